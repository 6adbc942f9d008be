"""The built pages, and what makes a build fail. Nothing is built here but copies of a few lines.

`make test` builds the book first; run by hand, these tests want `make book` before.
"""

import re
import shutil
import subprocess
import sys
from functools import cache
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pikepdf
import pytest
import yaml
from bs4 import BeautifulSoup, NavigableString, Tag
from pybtex.database import parse_file
from pybtex.richtext import Text
from sphinx.util.inspect import signature
from sphinx.util.typing import stringify_annotation

import browser
import chapter_pages
import front_page
import noscript
import package
import pdf
import plain_pages
import stamp
from sample import FILE, ROOT, code, notebooks, repository, sample_cells, write

pytestmark = pytest.mark.slow

HTML = ROOT / "_build" / "html"
# Made by Sphinx without text of ours, as are the pages of source.
MADE_BY_SPHINX = {"genindex", "search", "py-modindex", "index"}


def pages() -> list[Path]:
    return sorted(p for p in HTML.rglob("*.html") if "_static" not in p.parts)


def own_pages() -> list[Path]:
    made = {HTML / f"{stem}.html" for stem in MADE_BY_SPHINX}
    return [p for p in pages() if p not in made and "_modules" not in p.parts]


def name(page: Path) -> str:
    return str(page.relative_to(HTML)) if page.is_relative_to(HTML) else str(page)


@cache
def soup(page: Path) -> BeautifulSoup:
    """Return a page as it is read with scripts."""
    html = BeautifulSoup(page.read_text(encoding="utf-8"), "html.parser")
    for node in html("noscript"):
        node.decompose()
    return html


@pytest.fixture(autouse=True)
def _built(request):
    if "copy" not in request.fixturenames:
        assert (HTML / "index.html").is_file(), "no book in _build/html: run make book"


def test_every_source_has_its_page():
    sources = [*ROOT.glob("book/*.md"), *notebooks.all_notebooks()]
    made = [HTML / p.relative_to(ROOT).with_suffix(".html") for p in sources]
    missing = [p for p in made if not p.is_file()]
    assert sources and missing == []


def each_page(test):
    """Run a test for each page of ours; its message names the page."""

    def run():
        found = {name(page): list(test(soup(page), page)) for page in own_pages()}
        assert {page: wrong for page, wrong in found.items() if wrong} == {}

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


@each_page
def test_a_page_has_one_title_and_a_language(html, page):
    if len(html.select("article h1")) != 1:
        yield f"{len(html.select('article h1'))} titles"
    if html.html.get("lang") != "en":
        yield "no language"


@each_page
def test_pictures_have_alt_text(html, page):
    for image in html.select("article img"):
        alt = image.get("alt", "").strip()
        if not alt or re.search(r"\.(?:png|svg|jpe?g)$|^[0-9a-f]{16,}", alt):
            yield image


@each_page
def test_figures_have_captions(html, page):
    for figure in html.select("article figure:not(.live)"):
        if not figure.select_one("figcaption .caption-text"):
            yield figure.get("id")


@each_page
def test_no_page_shows_an_error(html, page):
    if html.select(".output.traceback, .system-message, .problematic"):
        yield "an error output or a message of Sphinx"
    for words in ("Traceback (most recent call last)", "UserWarning:", "DeprecationWarning:"):
        if words in html.select_one("article").get_text():
            yield words


@each_page
def test_no_markup_is_left_over(html, page):
    article = html.select_one("article")
    verbatim = article.select("pre, code, .math, script, style, .viewcode-link, dl.py dt")
    text = "".join(words(article, skipped=set(map(id, verbatim))))
    yield from re.findall(r"\$\$|\\begin\{|\\bm\b|\{[a-z:]+\}`|:::|```|\]\(", text)


def words(element, skipped):
    """Return the texts below an element, except those in the skipped ones."""
    for child in element.children:
        if isinstance(child, Tag):
            if id(child) not in skipped:
                yield from words(child, skipped)
        elif type(child) is NavigableString:
            yield child


def test_a_page_and_its_pictures_stay_below_two_megabytes():
    sizes = {}
    for page in own_pages():
        pictures = {(page.parent / i["src"]).resolve() for i in soup(page).select("article img")}
        sizes[name(page)] = sum(p.stat().st_size for p in {page, *pictures} if p.is_file())
    assert {page: size for page, size in sizes.items() if size > 2_000_000} == {}
    assert sizes["notebooks/ch10_7_transformer.html"] > 400_000  # the pictures are counted


@each_page
def test_everything_a_page_loads_is_beside_it(html, page):
    for tag, key in (
        ("script", "src"),
        ("img", "src"),
        ("iframe", "src"),
        ("source", "src"),
        ("video", "src"),
        ("audio", "src"),
        ("embed", "src"),
        ("object", "data"),
        ("link", "href"),
    ):
        for element in html.find_all(tag):
            if tag == "link" and not set(element.get("rel", [])) & {
                "stylesheet",
                "icon",
                "preload",
                "modulepreload",
                "prefetch",
                "preconnect",
            }:
                continue
            target = element.get(key)
            if target and not target.startswith("data:"):
                if urlsplit(target).netloc:
                    yield target
                elif not (page.parent / unquote(urlsplit(target).path)).is_file():
                    yield f"missing: {target}"


def test_styles_load_nothing_from_elsewhere():
    styles = list(HTML.rglob("*.css"))
    foreign = [
        (name(p), found)
        for p in styles
        for found in re.findall(
            r"(?:url\(|@import)\s*['\"]?(?:https?:)?//[^)'\"]+", p.read_text(encoding="utf-8")
        )
    ]
    assert styles and foreign == []


@cache
def anchors(page: Path) -> frozenset[str]:
    return frozenset(
        element.get(key)
        for key in ("id", "name")
        for element in soup(page).find_all(attrs={key: True})
    )


@each_page
def test_links_within_the_book_lead_somewhere(html, page):
    for link in html.select("a[href]"):
        parts = urlsplit(link["href"])
        if parts.scheme or parts.netloc or not link["href"].strip("#"):
            continue
        target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
        if not target.is_file():
            yield link["href"]
        elif target.suffix == ".html" and parts.fragment:
            if unquote(parts.fragment) not in anchors(target):
                yield link["href"]


@each_page
def test_ids_are_unique(html, page):
    ids = [element["id"] for element in html.select("article [id]")]
    yield from sorted({i for i in ids if ids.count(i) > 1})


@each_page
def test_buttons_for_editing_and_download_lead_to_files(html, page):
    edits = html.select("a.btn-source-edit-button")
    downloads = html.select("a.btn-download-source-button")
    if name(page).startswith(("book/", "notebooks/")) and not (edits and downloads):
        yield "no button"
    for link in edits:
        file = link["href"].removeprefix(f"{repository.address()}/edit/main/")
        if not (ROOT / file).is_file():
            yield link["href"]
    for link in downloads:
        if not (HTML / page.parent / link["href"]).is_file():
            yield link["href"]


@pytest.mark.parametrize("path", notebooks.all_notebooks(), ids=lambda p: p.stem)
def test_a_chapter_has_one_button_for_colab(path):
    links = soup(HTML / "notebooks" / f"{path.stem}.html").select("a[href*='colab.research']")
    assert [link["href"] for link in links] == [repository.colab_link(path.name)]
    assert "Open in Colab" in links[0].get_text()


@pytest.mark.parametrize("path", notebooks.all_notebooks(), ids=lambda p: p.stem)
def test_a_chapter_does_not_show_its_first_cell(path):
    page = soup(HTML / "notebooks" / f"{path.stem}.html")
    assert "google.colab" not in page.select_one("article").get_text()


def test_the_ledger_lists_every_finding_and_leads_to_it():
    page = HTML / "book" / "claims.html"
    rows = {}
    for row in soup(page).select("table.ledger tbody tr"):
        claim, _, verdict, measured = row.find_all("td")
        rows[claim.get_text(strip=True)] = (
            claim.a["href"],
            verdict.get_text(strip=True),
            measured.get_text(" ", strip=True),
        )
    found = notebooks.findings()
    assert list(rows) == [f.claim.id for f in found] and found
    for f in found:
        href, verdict, measured = rows[f.claim.id]
        path, _, anchor = href.partition("#")
        assert (page.parent / path).stem == f.notebook.stem
        box = soup((page.parent / path).resolve()).find(id=anchor)
        assert box and f"Claim {f.claim.id}" in box.get_text() and f.verdict in box["class"]
        assert verdict == notebooks.VERDICTS[f.verdict]
        assert re.sub(r"\W", "", measured) == re.sub(r"\W", "", f.measured)


def test_the_corrections_are_the_claims_that_do_not_simply_hold():
    boxes = soup(HTML / "book" / "corrections.html").select("article .admonition.claim")
    shown = [re.match(r"Claim (\S+):", b.p.get_text())[1] for b in boxes]
    wanted = [f.claim.id for f in notebooks.findings() if f.verdict in ("wrong", "caveat")]
    assert sorted(shown) == sorted(wanted)


def test_the_reference_documents_every_module():
    page = soup(HTML / "book" / "api.html")
    documented = {tag["id"] for tag in page.select("dt[id^='src.']")}
    for module, path in package.files().items():
        assert f"src.{module}" in " ".join(h.get_text() for h in page.select("h2"))
        if module != "train" and path.name != "__init__.py":
            assert any(i.startswith(f"src.{module}.") for i in documented), module


def test_the_reference_reads_as_if_it_had_been_made_with_pytorch():
    """The build imports stand-ins; these tests import the real packages."""

    def text(annotation) -> str:
        return re.sub(r"~(?:\w+\.)+", "", stringify_annotation(annotation, "smart"))

    seen = []
    page = soup(HTML / "book" / "api.html")
    for tag in page.select("dl.function > dt[id^='src.'], dl.method > dt[id^='src.']"):
        path = tag["id"].removeprefix("src.")
        module = package.module_of(path, package.files())
        name = path.removeprefix(f"{module}.")
        real = signature(attrgetter(name)(import_module(f"src.{module}")))
        hints = {p.name: text(p.annotation) for p in real.parameters.values()}
        for parameter in tag.select(".sig-param"):
            shown = re.match(r"\W*(\w+): (.*?)(?: = .*)?$", parameter.get_text())
            if shown:
                seen.append(shown[2])
                assert hints[shown[1]] == shown[2], tag["id"]
        for returned in tag.select(".sig-return-typehint"):
            seen.append(returned.get_text())
            assert text(real.return_annotation) == seen[-1], tag["id"]
    kinds = ("Float[Tensor, '*axes T K']", "device | str | None", "Callable[[Tensor], Tensor]")
    assert len(seen) > 500 and set(kinds) <= set(seen)


def test_a_row_of_the_ledger_can_be_reached_from_its_box():
    ledger = soup(HTML / "book" / "claims.html")
    for f in notebooks.findings():
        page = soup(HTML / "notebooks" / f"{f.notebook.stem}.html")
        says = page.find(id=chapter_pages.target_of(f.claim.id)).select_one(".says")
        words = re.sub(r"\W|\\[()]", "", f.claim.statement.replace("$", ""))
        assert words in re.sub(r"\W|\\[()]", "", says.get_text()), f.claim.id
        path, _, anchor = says.a["href"].partition("#")
        assert path == "../book/claims.html"
        row = ledger.find(id=anchor).find_parent("tr")
        assert row.td.get_text(strip=True) == f.claim.id


@pytest.mark.parametrize("path", notebooks.all_notebooks(), ids=lambda p: p.stem)
def test_a_chapter_says_how_long_it_is_and_what_it_needs(path):
    page = soup(HTML / "notebooks" / f"{path.stem}.html")
    cells = notebooks.read(path)
    about = page.select_one("article h1").find_next(class_="about").get_text()
    assert about.startswith(f"About {chapter_pages.minutes(cells)} minutes of reading")
    opening = str(page.select_one("article")).partition("<h2")[0]
    assert "You need" in opening and "You will be able to" in opening


def test_the_reading_time_follows_from_words_and_lines():
    words = {"cell_type": "markdown", "metadata": {}, "source": "word " * 1800 + "$a + b$ " * 180}
    lines = {"cell_type": "code", "metadata": {}, "source": "x = 1\n\n" * 400}
    hidden = lines | {"metadata": {"tags": ["remove-cell"]}}
    assert chapter_pages.minutes([]) == 5
    assert chapter_pages.minutes([words]) == 15  # 13.2
    assert chapter_pages.minutes([words, lines, hidden]) == 30  # 29.2


def test_chinese_terms_lead_to_the_glossary():
    terms = chapter_pages.chinese_terms()
    assert terms["查询"] == "query" and terms["基于位置的前馈网络"] == "feed-forward network"
    assert terms["分数"] == terms["评分"] == "score"  # and not BLEU, beside which 分数 stands, too
    links = soup(HTML / "notebooks" / "ch10_3_scoring_functions.html").select(
        "article a[href^='../book/glossary.html#term-']"
    )
    shown = [link.get_text() for link in links]
    assert "查询" in shown and len(shown) == len(set(shown))


def test_a_chinese_word_of_two_terms_is_refused(tmp_path):
    page = tmp_path / "glossary.md"
    page.write_text("one\n  一. First.\n\ntwo\n  一. Second.\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"glossary\.md: 一 stands with one and two"):
        chapter_pages.chinese_terms(page)


# --- the glossary and the notation page hold what the chapters use

CHAPTERS = {notebooks.chapter_of(path): path for path in notebooks.all_notebooks()}


def markdown(path: Path) -> str:
    """Return a chapter's text without code."""
    cells = [c["source"] for c in notebooks.read(path) if c["cell_type"] == "markdown"]
    text = re.sub(r"(?ms)^(`{3,})python$.*?^\1$", "", "\n\n".join(cells))
    return re.sub(r"`[^`\n]*`", "", text)


def bracketed_chinese(text: str) -> set[str]:
    """Return the Chinese words in brackets: 词 of (词), (词, FLOPs) and (**word**, 词)."""
    brackets = re.findall(r"[(（]([^()（）]*[\u4e00-\u9fff][^()（）]*)[)）]", text)
    parts = (part.strip(" *\n") for inside in brackets for part in re.split("[,，;；]", inside))
    return {part for part in parts if re.search(r"[\u4e00-\u9fff]", part)}


def glossary() -> set[str]:
    page = (ROOT / "book" / "glossary.md").read_text(encoding="utf-8")
    heads = re.findall(r"(?m)^\S.*\n  ([^.]*[\u4e00-\u9fff][^.]*)\.", page)
    at_the_end = re.findall(r";\s+([\u4e00-\u9fff]+)(?=[.;])", page)
    return {word.strip() for words in heads for word in words.split(";")} | set(at_the_end)


def test_bracketed_chinese_is_found():
    text = "a key (键), FLOPs (次数, FLOPs), (**forcing**,\n教学), 我 (I), （掩蔽 softmax） and (1)"
    assert bracketed_chinese(text) == {"键", "次数", "教学", "掩蔽 softmax"}


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_the_glossary_has_every_chinese_word_of_a_chapter(chapter):
    words = bracketed_chinese(markdown(CHAPTERS[chapter]))
    assert words and sorted(words - glossary()) == []


def test_the_glossary_is_sorted_and_has_a_chinese_word_in_each_entry():
    page = (ROOT / "book" / "glossary.md").read_text(encoding="utf-8")
    terms = re.findall(r"(?m)^(\S.*)\n  (.*)", page)
    keys = [re.sub(r"[^a-z0-9 ]", " ", term.lower()) for term, _ in terms]
    assert keys == sorted(keys) and len(keys) == len(set(keys)) > 100
    without = [term for term, entry in terms if not re.search(r"[\u4e00-\u9fff]", entry)]
    assert without == ["softmax"]  # it has no Chinese name


GREEK = [
    "alpha",
    "beta",
    "gamma",
    "delta",
    "epsilon",
    "varepsilon",
    "zeta",
    "eta",
    "theta",
    "iota",
    "kappa",
    "lambda",
    "mu",
    "nu",
    "xi",
    "pi",
    "rho",
    "sigma",
    "tau",
    "upsilon",
    "phi",
    "varphi",
    "chi",
    "psi",
    "omega",
    "Gamma",
    "Delta",
    "Theta",
    "Lambda",
    "Xi",
    "Pi",
    "Sigma",
    "Upsilon",
    "Phi",
    "Psi",
    "Omega",
]
STYLES = "mathbf|boldsymbol|mathcal|mathbb"
# An index after these letters makes another symbol; elsewhere it only counts: q_i is a query.
NAMED = {r"\mathbf W", r"\mathbf b", "d", "w"}


def symbols(text: str) -> set[tuple[str, bool]]:
    """Return the symbols in the formulas of a text, and whether each has an index.

    Symbols are bold and other styled letters, Greek ones and single Latin ones. Names in upright
    type, such as softmax, are none, nor is Euler's number.
    """
    found = set()
    for math in (a or b for a, b in re.findall(r"(?s)\$\$(.+?)\$\$|\$(.+?)\$", text)):
        math = re.sub(r"_\{?\\text\s*\{ff\}\}?", "_{ff}", math)
        upright = r"\\(?:begin|end|text|operatorname|mathrm)\s*(?:\{[^{}]*\}|[A-Za-z])"
        math = re.sub(rf"{upright}|(?<![A-Za-z\\])e(?=\^)", " ", math)
        token = re.compile(
            rf"\\(?P<style>{STYLES})\s*\{{?(?P<styled>\\[A-Za-z]+|\w)\}}?"
            r"|\\(?P<command>[A-Za-z]+)|(?P<letter>[A-Za-z])"
        )
        at = 0
        while match := token.search(math, at):
            at = match.end()
            if match["style"]:
                name = rf"\{match['style']} {match['styled']}"
            elif match["command"]:
                if match["command"] not in GREEK:
                    continue
                name = "\\" + match["command"]
            else:
                name = match["letter"]
            index = re.compile(r"_(?:\{([^{}]+)\}|(\w))").match(math, at)
            if index and name in NAMED:
                name, at = f"{name}_{index[1] or index[2]}", index.end()
            found.add((name, index is not None))
    return found


def notation() -> list[tuple[set[str], set[str]]]:
    """Return the rows of the notation page: each its symbols, and the chapters that it names."""
    page = (ROOT / "book" / "notation.md").read_text(encoding="utf-8")
    order = sorted(CHAPTERS, key=lambda c: [int(n) for n in c.split(".")])
    rows = []
    for table in re.findall(r"(?m)(?:^\|.*\n)+", page):
        head, _, *lines = (
            [cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()
        )
        if head[-1] != "chapters":
            continue
        for line in lines:
            assert len(line) == len(head), line
            where = set()
            for part in line[-1].replace("all", f"{order[0]}–{order[-1]}").split(", "):
                first, _, last = part.partition("–")
                where |= set(order[order.index(first) : order.index(last or first) + 1])
            rows.append(({name for name, _ in symbols(line[0])}, where))
    return rows


def test_symbols_are_found_and_reduced():
    text = r"$\mathbf W_q^{(i)} \mathbf{x}_j$ and $$\bar\delta = d_{\text{ff}} \, \mathrm e^u$$"
    assert symbols(text) == {
        (r"\mathbf W_q", True),
        (r"\mathbf x", True),
        (r"\delta", False),
        ("d_ff", True),
        ("i", False),
        ("j", False),
        ("u", False),
    }
    assert symbols(r"$\operatorname{softmax}_i$, $e^{-s}$") == {("i", False), ("s", False)}


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_the_notation_page_has_every_symbol_of_a_chapter(chapter):
    used = symbols(markdown(CHAPTERS[chapter]))
    listed = {name for names, where in notation() if chapter in where for name in names}
    # A plain letter with an index is an entry of the vector with the bold letter, as the page says.
    missing = {
        name
        for name, index in used
        if name not in listed and not (index and rf"\mathbf {name}" in listed)
    }
    assert len(used) > 10 and sorted(missing) == []


def test_the_notation_page_names_no_chapter_without_the_symbol():
    used = {c: {name for name, _ in symbols(markdown(path))} for c, path in CHAPTERS.items()}
    stale = [
        (sorted(names), chapter)
        for names, where in notation()
        for chapter in where
        if names and len(where) < len(CHAPTERS) and not names & used[chapter]
    ]
    assert stale == []


def test_the_notation_page_says_which_chapters_write_columns_and_which_rows():
    page = (ROOT / "book" / "notation.md").read_text(encoding="utf-8")
    (row,) = re.findall(r"(?m)^\| what \| (.*) \|\n.*\n\| a vector is \| a \*\*column\*\* \|", page)
    assert row == "10.1–10.4 | 10.5–10.7, 15.2"
    column, line = r"\\mathbf W_q\s*\\mathbf [qs]", r"\\mathbf [qx](?:_i)?\s*\\mathbf W_q"
    for chapter, path in CHAPTERS.items():
        text = markdown(path)
        if chapter in ("10.3", "10.4"):
            assert re.search(column, text) and not re.search(line, text), chapter
        if chapter in ("10.6", "15.2"):
            assert re.search(line, text) and not re.search(column, text), chapter


def test_the_front_page_counts_as_the_ledger_does():
    text = soup(HTML / "book" / "index.html").select_one(".front .hello").get_text()
    found = notebooks.findings()
    assert f"{len(found)} statements" in text
    for verdict in notebooks.VERDICTS:
        number = soup(HTML / "book" / "index.html").select_one(f".hello .verdict.{verdict}")
        assert int(number.get_text()) == sum(f.verdict == verdict for f in found)


def test_the_front_page_shows_a_figure_that_a_chapter_computed():
    figure = soup(HTML / "book" / "index.html").select_one("article figure.live")
    name = figure["id"].removesuffix("-front")
    chapter = figure.find_next(class_="about").a["href"]
    assert soup((HTML / "book" / chapter).resolve()).find(id=name)
    assert front_page.live().count("<figure") == 1


def test_the_front_page_has_a_card_for_every_chapter():
    cards = soup(HTML / "book" / "index.html").select(".chapters .chapter")
    paths = notebooks.all_notebooks()
    assert len(cards) == len(paths)
    for card, path in zip(cards, paths, strict=True):
        assert card.a["href"] == f"../notebooks/{path.stem}.html"
        assert notebooks.question(path)[:20] in card.get_text()
        assert f"{chapter_pages.minutes(notebooks.read(path))} minutes" in card.get_text()


@each_page
def test_a_page_names_its_commit(html, page):
    found = html.select("footer .stamp a")
    wanted = stamp.commit(ROOT) is not None
    if bool(found) != wanted:
        yield f"{len(found)} commits"
    for link in found:
        if not re.fullmatch(rf"{re.escape(repository.address())}/commit/[0-9a-f]+", link["href"]):
            yield link["href"]


def test_the_commit_comes_from_git_else_from_the_environment(tmp_path, monkeypatch):
    monkeypatch.delenv(stamp.VARIABLE, raising=False)
    assert stamp.commit(tmp_path) is None and stamp.footer(tmp_path, "x") == ""
    monkeypatch.setenv(stamp.VARIABLE, "0123456789")
    assert stamp.commit(tmp_path) == ("0123456789", False)
    monkeypatch.setenv(stamp.VARIABLE, "main")
    with pytest.raises(ValueError, match="COURSE_COMMIT must be 7 to 40 hexadecimal digits"):
        stamp.commit(tmp_path)
    git = ["git", "-C", tmp_path, "-c", "user.name=a", "-c", "user.email=a@example.org"]
    (tmp_path / "a").write_text("1")
    for command in (["init", "-q"], ["add", "a"], ["commit", "-q", "-m", "a"]):
        subprocess.run([*git, *command], check=True)
    name, changed = stamp.commit(tmp_path)
    assert re.fullmatch("[0-9a-f]{40}", name) and not changed
    (tmp_path / "a").write_text("2")
    assert stamp.commit(tmp_path) == (name, True)
    assert f"x/commit/{name}" in stamp.footer(tmp_path, "x")
    (tmp_path / "inner").mkdir()  # a folder of another project's repository
    monkeypatch.delenv(stamp.VARIABLE)
    assert stamp.commit(tmp_path / "inner") is None


# --- without scripts


@pytest.mark.parametrize(
    ("tex", "made"),
    [
        (r"\mathbf x<1", '<mi mathvariant="bold">x</mi><mo>&lt;</mo><mn>1</mn>'),
        (r"\Delta", '<mi mathvariant="normal">Δ</mi>'),
        (r"\boldsymbol\Delta", '<mi mathvariant="bold">Δ</mi>'),
        (r"\mathbb R \mathbb E \mathbb 1", "<mi>ℝ</mi><mi>𝔼</mi><mn>𝟙</mn>"),
        (r"\operatorname{Cov}!", "<mi>Cov</mi><mo>!</mo>"),
        (r"\exp a", '<mi>exp</mi><mspace width="0.167em" /><mi>a</mi>'),
        (r"\operatorname{E}", '<mi mathvariant="normal">E</mi>'),
        (r"a\!b", '<mi>a</mi><mspace width="-0.167em" /><mi>b</mi>'),
        (r"\text{if } a \tag{3}", "<mtext>if\xa0</mtext><mi>a</mi><mtext>(3)</mtext>"),
    ],
)
def test_a_formula_becomes_mathml(tex, made):
    assert noscript.mathml(tex) == f"<math><mrow>{made}</mrow></math>"


def test_aligned_lines_become_a_table():
    html = noscript.mathml(r"\begin{aligned} a &= b \\ &= c \end{aligned}", block=True)
    assert html.startswith('<math display="block">') and html.count("<mtr>") == 2
    assert html.count("<mtd ") == 4 and "&" not in html


@pytest.mark.parametrize("tex", [r"\bm{x} \nosuch", r"\begin{aligned} a", r"a \\ b", "a & b", "{"])
def test_what_has_no_mathml_is_refused(tex):
    with pytest.raises(ValueError, match="no MathML for"):
        noscript.mathml(tex)


def test_colours_follow_the_setting_of_the_reader():
    sheet = """@import url(x.css);/* [data-theme=dark] */ a {b: c} html[data-theme=light]{d:e}
    html[data-theme="dark"] i, u { f: g; }"""
    light, dark = noscript.colours([sheet]).split("@media (prefers-color-scheme: ")[1:]
    assert re.fullmatch(r'light\) \{\s*html\[data-theme="auto"]\{d:e}\s*\}\s*', light)
    assert 'html[data-theme="auto"] i, u { f: g; }' in dark and "d:e" not in dark


# --- the PDF

PDF = HTML / "_static" / pdf.FILE


@pytest.mark.skipif(browser.find() is None, reason="no Chromium or Chrome here")
def test_the_pdf_holds_every_chapter_with_outline_and_tags_and_is_offered():
    assert pdf.main([]) == 0
    front = BeautifulSoup((HTML / pdf.FRONT_PAGE).read_text(encoding="utf-8"), "html.parser")
    assert len(front.select(f"a[href$='{pdf.FILE}']")) == 1
    with pikepdf.open(PDF) as document:
        assert document.Root.MarkInfo.Marked and "/StructTreeRoot" in document.Root
        starts, pages = {}, {page.objgen: i for i, page in enumerate(document.pages)}
        with document.open_outline() as outline:
            (whole,) = outline.root  # the book's title, and all else below it
            for entry in whole.children:
                starts.setdefault(entry.title, pages[entry.destination[0].objgen])
        ordered = sorted(set(starts.values())) + [len(document.pages)]
    for path in notebooks.all_notebooks():
        wanted = notebooks.title(path)
        (start,) = [page for title, page in starts.items() if title.startswith(wanted)]
        assert ordered[ordered.index(start) + 1] - start >= 5, wanted


def test_without_a_chromium_no_pdf_is_made_and_that_is_said(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(browser, "find", lambda: None)
    assert pdf.main(["--book", str(tmp_path)]) == 2
    assert "printing needs Chromium or Chrome" in capsys.readouterr().err
    with pytest.raises(FileNotFoundError, match="no Chromium or Chrome on this machine"):
        with browser.start():
            pass


def test_a_pdf_of_no_book_is_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(browser, "find", lambda: "somewhere")
    assert pdf.main(["--book", str(tmp_path)]) == 1
    assert "run make book first" in capsys.readouterr().err


def test_the_link_to_the_pdf_replaces_an_older_one(tmp_path):
    page, file = tmp_path / "index.html", tmp_path / "a.pdf"
    file.write_bytes(b"x" * 2_400_000)
    page.write_text(f"<p>{pdf.BEGIN}{pdf.END}</p>")
    for _ in range(2):
        pdf.offer(page, file, "../a.pdf")
        assert page.read_text().count('href="../a.pdf"') == 1 and "PDF, 2 MB" in page.read_text()
    page.write_text("<p></p>")
    with pytest.raises(ValueError, match=r"index\.html must hold .* once, found 0"):
        pdf.offer(page, file, "../a.pdf")


# --- what makes a build fail


@pytest.fixture
def copy(tmp_path):
    """Return a folder with the book's own configuration, one page and no notebook yet."""
    cached = shutil.ignore_patterns("__pycache__")
    for folder in ("tools", "_static", "_templates"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=cached)
    (tmp_path / "book").mkdir()
    for file in ("_config.yml", "book/claims.yml", "book/references.bib"):
        shutil.copy(ROOT / file, tmp_path / file)
    page = "# A book\n\n```{generated} chapters\n```\n\n```{bibliography}\n```\n"
    (tmp_path / "index.md").write_text(page)
    toc = {"format": "jb-book", "root": "index", "chapters": [{"glob": "notebooks/*"}]}
    (tmp_path / "_toc.yml").write_text(yaml.safe_dump(toc), encoding="utf-8")
    return tmp_path


def build(folder: Path) -> tuple[int, str]:
    """Build a folder as `make book` does; return exit status and messages."""
    jupyter_book = Path(sys.executable).with_name("jupyter-book")
    run = subprocess.run(
        [jupyter_book, "build", ".", "-W", "-n", "--keep-going"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
    )
    return run.returncode, run.stdout + run.stderr


def test_a_chapter_without_fault_builds(copy):
    cells = sample_cells()
    cells[2]["source"] += (
        "\n\n$$a = b \\tag{10.2.1}$$\n\nBy (10.2.1), exercise 10.2-3 and "
        "[Ba et al. (2016)](https://arxiv.org/abs/1607.06450). Not by (10.2.9)."
    )
    write(copy / "notebooks", cells, FILE)
    status, output = build(copy)
    assert status == 0, output
    html = (copy / "_build" / "html" / "index.html").read_text(encoding="utf-8")
    assert "How far does a fact reach?" in html
    page = soup(copy / "_build" / "html" / "notebooks" / FILE.replace(".ipynb", ".html"))
    assert [page.find(id=f"claim-10-2-{n}")["class"] for n in (1, 2, 3, 4)] == [
        ["claim", verdict, "admonition"] for verdict in notebooks.VERDICTS
    ]
    box = page.find(id="claim-10-2-3")
    assert box.find(class_="admonition-title").get_text() == "Claim 10.2-3: wrong"
    assert box.find_all("p")[1].get_text() == " We find \\(a = 2\\)."
    assert "Count to 3." in page.find(id="ex-10-2-3").get_text()
    solution = page.find(id="ex-10-2-3-solution")
    assert solution.get_text().split() == ["Solution", "of", "exercise", "10.2-3", "Done."]
    assert "dropdown" in solution["class"]
    assert page.find(id="equation-10-2-1").find(class_="eqno").get_text() == "(10.2.1)#"
    links = {link.get_text(): link["href"] for link in page.find_all("a", class_="internal")}
    assert links["(10.2.1)"] == "#equation-10-2-1" and links["exercise 10.2-3"] == "#ex-10-2-3"
    assert "(10.2.9)" not in links and "\\tag" not in page.get_text()
    assert page.find(class_="bibtex-citation").get_text() == "Ba et al. [2016]"


@pytest.mark.parametrize("path", notebooks.all_notebooks(), ids=lambda p: p.stem)
def test_a_citation_names_the_first_author_and_the_year(path):
    works = parse_file(ROOT / "book" / "references.bib").entries
    text = "\n".join(c["source"] for c in notebooks.read(path) if c["cell_type"] == "markdown")
    for words, url in plain_pages.LINK.findall(text):
        if key := plain_pages.references().get(url):
            work = works[key]
            name = Text.from_latex(" ".join(work.persons["author"][0].last_names))
            assert str(name) in words and work.fields["year"] in words


def test_a_paper_outside_the_bibliography_is_refused():
    with pytest.raises(ValueError, match="no work in book/references.bib has this address"):
        plain_pages.cite("[Ba et al. (2016)](https://arxiv.org/abs/1607.06451)")


def test_a_stored_error_and_a_link_to_nowhere_fail_the_build(copy):
    cells = sample_cells()
    error = {"output_type": "error", "ename": "E", "evalue": "no", "traceback": ["E: no"]}
    cells[4]["outputs"].append(error)
    write(copy / "notebooks", cells, FILE)
    page = "# A book\n\nSee {ref}`nowhere`, {func}`src.functional.no` and $\\nosuch x$.\n"
    (copy / "index.md").write_text(page)
    status, output = build(copy)
    assert status != 0 and "code cell 2: an error output, against its tags" in output
    assert "undefined label: 'nowhere'" in output and "src.functional.no" in output
    assert r"no MathML for '\\nosuch x': \nosuch is not understood" in output


def test_a_cell_that_raises_fails_a_build_that_runs_it(copy):
    config = copy / "_config.yml"
    text = config.read_text(encoding="utf-8")
    assert 'execute_notebooks: "off"' in text
    config.write_text(text.replace('execute_notebooks: "off"', "execute_notebooks: force"))
    cells = sample_cells()
    cells.insert(4, code("1 / 0"))
    write(copy / "notebooks", cells, FILE)
    status, output = build(copy)
    assert status != 0 and "ZeroDivisionError" in output
