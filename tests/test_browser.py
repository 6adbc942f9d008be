"""The built pages in a real browser: nothing from elsewhere, no script error, no bad formula.

Skipped where there is no Chromium or Chrome; `.ci/run` installs one.
"""

from pathlib import Path

import axe_playwright_python
import pytest

import browser as chromium  # in tools/, which `sample` has put on the path
from sample import ROOT, notebooks

HTML = ROOT / "_build" / "html"
AXE = Path(axe_playwright_python.__file__).with_name("axe.min.js").read_text(encoding="utf-8")
PAGES = sorted(
    str(p.relative_to(ROOT).with_suffix(".html"))
    for p in [*ROOT.glob("book/*.md"), *ROOT.glob("notebooks/*.ipynb")]
)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(chromium.find() is None, reason="no Chromium or Chrome here"),
]


@pytest.fixture(scope="module")
def address():
    assert (HTML / "index.html").is_file(), "no book in _build/html: run make book"
    with chromium.serve(HTML) as url:
        yield url


@pytest.fixture(scope="module")
def browser():
    with chromium.start() as started:
        yield started


@pytest.fixture(scope="module")
def profile(browser):
    """One for all pages: with a new one each, every page would read every script and font anew."""
    with browser.new_context() as context:
        yield context


def blank(profile, width=1280, scheme="light"):
    """Return a page of this width and colour scheme with nothing on it yet."""
    page = profile.new_page()
    page.set_viewport_size({"width": width, "height": 740})
    page.emulate_media(color_scheme=scheme)
    return page


def visit(profile, url, address, **look):
    """Open a page; return it and all that went wrong while it loaded."""
    page = blank(profile, **look)
    wrong = []
    page.on("pageerror", lambda error: wrong.append(f"script error: {error}"))
    page.on("requestfailed", lambda request: wrong.append(f"not loaded: {request.url}"))

    def note_request(request):
        if not request.url.startswith((address, "data:", "blob:")):
            wrong.append(f"asked elsewhere: {request.url}")

    def note_message(message):
        # The page that only leads on to another has no head in which to name an icon.
        icon = message.location["url"] == f"{address}favicon.ico"
        if message.type == "error" and not icon:
            wrong.append(f"console: {message.text} {message.location['url']}")

    page.on("request", note_request)
    page.on("console", note_message)
    # The network may be idle while a long page is still being read: both are waited for.
    page.goto(url, wait_until="load")
    page.wait_for_load_state("networkidle")
    return page, wrong


def visit_without_formulas(profile, url, **look):
    """Open a page whose formulas stay as they are written: they take most of the time."""
    page = blank(profile, **look)
    # By the browser itself: a route of Playwright's would switch its cache off.
    session = page.context.new_cdp_session(page)
    session.send("Network.enable")
    session.send("Network.setBlockedURLs", {"urls": ["*/mathjax/*"]})
    page.goto(url, wait_until="load")
    return page


@pytest.fixture(scope="module", params=PAGES)
def loaded(request, address, profile):
    """Each page once for all tests of every page: its name, the page and what went wrong."""
    page, wrong = visit(profile, address + request.param, address, width=360, scheme="dark")
    yield request.param, page, wrong
    page.close()


def test_a_page_loads_cleanly_and_fits_a_telephone(loaded):
    name, page, wrong = loaded
    bad_formulas = page.eval_on_selector_all(
        "mjx-merror", "nodes => nodes.map(n => n.getAttribute('data-mjx-error'))"
    )
    assert wrong == [] and bad_formulas == []
    too_wide = page.evaluate("document.documentElement.scrollWidth - window.innerWidth")
    assert too_wide <= 0, f"{too_wide} pixels wider than the window"
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"


def test_the_front_page_leads_to_the_book(address, profile):
    page, wrong = visit(profile, address, address)
    page.wait_for_url("**/book/index.html")
    title = page.title()
    page.close()
    assert wrong == [] and title.startswith("Attention and Transformers")


def test_what_goes_wrong_is_seen(tmp_path, address, profile):
    """A page that does everything wrong, so that a silent check would be noticed."""
    (tmp_path / "bad.html").write_text(
        "<script>undefinedName()</script><script src='http://127.0.0.1:1/x.js'></script>"
    )
    page, wrong = visit(profile, Path(tmp_path, "bad.html").as_uri(), address)
    page.close()
    kinds = {line.partition(":")[0] for line in wrong}
    assert {"script error", "asked elsewhere", "not loaded", "console"} <= kinds


LIVE_PAGES = ["book/index.html", *(f"notebooks/{p.stem}.html" for p in notebooks.all_notebooks())]


def reacts_to_keys(figure, page):
    """Whether what the figure tells a screen reader changes with the arrow keys."""
    before = figure.locator("[aria-live]").text_content()
    figure.locator("input:visible, [role=radio][tabindex='0']:visible").first.focus()
    for key in ("ArrowRight", "ArrowRight", "ArrowLeft", "End", "Home"):
        page.keyboard.press(key)
        if figure.locator("[aria-live]").text_content() != before:
            return True
    return False


def reacts_to_the_pointer(figure):
    """Whether it changes with a click on a slider's far end or on a token."""
    control = figure.locator("input[type=range]:visible, [role=radio]:visible").first
    box = control.bounding_box()
    before = figure.locator("[aria-live]").text_content()
    if control.evaluate("node => node.matches('[role=radio]')"):
        control = figure.locator("[role=radio][aria-checked='false']:visible").last
        control.click()
    else:
        for place in (0.05, 0.95):
            control.click(position={"x": place * box["width"], "y": box["height"] / 2})
    return figure.locator("[aria-live]").text_content() != before


def test_a_live_figure_reacts_to_keys_and_pointer(loaded):
    name, page, _ = loaded
    page.set_viewport_size({"width": 1280, "height": 800})
    figures = page.locator("figure.live")
    count = figures.count()
    assert bool(count) == (name in LIVE_PAGES)
    keys = [reacts_to_keys(figures.nth(i), page) for i in range(count)]
    pointer = [reacts_to_the_pointer(figures.nth(i)) for i in range(count)]
    assert all(keys) and all(pointer), (keys, pointer)


# What stays, and why.
LISTED = {
    # docutils marks entries of a bibliography with roles that ARIA has given up since.
    "aria-allowed-role",
    "aria-deprecated-role",
    "aria-required-children",
}
# The reference repeats one pattern hundreds of times, code does in each cell: some suffice.
# Formulas are MathJax's, and thousands of elements.
FEWER = """for (const [kind, from] of [["#the-package > section", 2], [".highlight pre", 6]])
  [...document.querySelectorAll(kind)].slice(from).forEach((node) => node.remove());
document.querySelectorAll("mjx-container").forEach((node) => node.replaceWith("formula"))"""
ONE_CHAPTER = "notebooks/ch10_2_attention_pooling.html"


def variants(name):
    """Schemes and widths to look at, and whether contrast is measured there.

    Colours follow the scheme alone, everything else the width alone. Contrast takes most of the
    time: of the chapters, which share their colours, one has it measured, and that one also where
    it is dark and wide, since what stands beside the text is the same on every page.
    """
    contrast = name == ONE_CHAPTER or not name.startswith("notebooks/")
    found = [("light", 1280, contrast), ("dark", 360, contrast)]
    return [*found, ("dark", 1280, True)] if name == ONE_CHAPTER else found


def test_axe_finds_nothing_of_ours(loaded):
    name, page, _ = loaded
    page.evaluate(FEWER)
    page.evaluate(AXE)
    page.add_style_tag(content="* { transition: none !important; }")  # colours change at once
    wrong = []
    for scheme, width, contrast in variants(name):
        page.emulate_media(color_scheme=scheme)
        page.set_viewport_size({"width": width, "height": 800})
        page.wait_for_function(f"document.documentElement.dataset.theme == '{scheme}'")
        found = page.evaluate(
            """contrast => axe.run({
                resultTypes: ["violations"], rules: {"color-contrast": {enabled: contrast}},
            }).then(r => r.violations.map(v => [v.id, v.nodes.map(n => n.target.join(" "))]))""",
            contrast,
        )
        wrong += [(scheme, width, *one) for one in found if one[0] not in LISTED]
    assert wrong == []


def test_axe_sees_a_fault(address, profile):
    page = visit_without_formulas(profile, address + "book/credits.html")
    page.evaluate("document.querySelector('article').append(document.createElement('button'))")
    page.evaluate(AXE)
    found = page.evaluate("axe.run().then(r => r.violations.map(v => v.id))")
    page.close()
    assert "button-name" in found


TERMS = ["softmax", "Nadaraya", "label smoothing", "beam search", "positional", "注意力", "查询"]
TERMS += ["多头注意力", "编码器", "掩码"]


@pytest.mark.parametrize("term", TERMS)
def test_the_search_finds(term, address, profile):
    page, wrong = visit(profile, f"{address}search.html?q={term}", address)
    page.wait_for_selector("#search-results ul.search li a", timeout=10_000)
    page.close()
    assert wrong == []


def test_on_paper_a_page_has_its_title_and_nothing_to_click(address, profile):
    page = visit_without_formulas(profile, address + "notebooks/ch10_2_attention_pooling.html")
    page.emulate_media(media="print")
    title = page.locator("article h1")
    seen = title.is_visible(), title.text_content().startswith("10.2 Attention Pooling")
    clickable = page.locator(
        "header:visible, .bd-sidebar-primary:visible, .copybtn:visible"
    ).count()
    page.close()
    assert seen == (True, True) and clickable == 0


def test_a_dark_page_is_light_on_paper(address, profile):
    page = visit_without_formulas(profile, address + "book/index.html", scheme="dark")
    seen = [page.evaluate("document.documentElement.dataset.theme")]
    for event in ("beforeprint", "afterprint"):
        page.evaluate(f"window.dispatchEvent(new Event('{event}'))")
        seen.append(page.evaluate("document.documentElement.dataset.theme"))
    page.close()
    assert seen == ["dark", "light", "dark"]


def test_the_theme_can_be_switched(address, browser):
    # The choice is kept in the profile: this one is nobody else's.
    page = visit_without_formulas(browser.new_context(), address + "book/index.html")
    seen = []
    for _ in range(3):
        page.locator("button.theme-switch-button:visible").first.click()
        seen.append(page.evaluate("document.documentElement.dataset.theme"))
    page.context.close()
    assert {"light", "dark"} <= set(seen)


def test_a_token_shows_its_row_while_the_pointer_is_on_it(address, profile):
    page = visit_without_formulas(profile, address + "notebooks/ch10_5_multi_head_attention.html")
    figure = page.locator("figure.live").first
    tokens = figure.locator("[role=radio]:visible")
    before = figure.locator("[aria-live]").text_content()
    tokens.last.hover()
    after = figure.locator("[aria-live]").text_content()
    page.close()
    assert after != before


# What is wrong on a page that has no scripts; it is looked at from outside.
WITHOUT_SCRIPTS = r"""() => {
  const wrong = [];
  const seen = (node) => node.checkVisibility({ visibilityProperty: true });
  const check = (right, what) => right || wrong.push(what);
  const letters = (node) => getComputedStyle(node).color;
  const every = (kind) => [...document.querySelectorAll(kind)];

  every("details").forEach((node) => { node.open = true; });
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const { data, parentElement } = texts.currentNode;
    if (/\\[(\[]/.test(data) && !parentElement.closest("pre, code, script") && seen(parentElement))
      wrong.push(`TeX: ${data}`);
  }
  const drawn = every("math").filter(seen).length;
  const formulas = every(".math.notranslate:not(#jb-print-docs-body *)").length;
  check(drawn === formulas, `${drawn} of ${formulas} formulas`);

  for (const figure of every("figure.live")) {
    const box = figure.querySelector("svg[role=img]")?.getBoundingClientRect();
    check(box?.width > 200 && box.height > 40, `no picture: ${figure.id}`);
    check(letters(figure) === letters(document.body), `letters of ${figure.id}`);
  }
  const parts = every(".admonition.dropdown").flatMap((node) => [...node.children]);
  check(parts.every((node) => seen(node) && node.getBoundingClientRect().height), "a solution");
  const dead = "button:not(.dropdown-toggle), [type=search], select, input:not(.sidebar-toggle)";
  check(!every(dead).some(seen) || document.querySelector("#search-results"), "a dead control");

  const title = document.querySelector("article h1, main h1:not(.onlyprint *)");
  const box = title.getBoundingClientRect();
  for (const [x, y] of [[0.02, 0.1], [0.5, 0.5], [0.02, 0.9], [0.98, 0.1]]) {
    const top = document.elementFromPoint(box.x + x * box.width, box.y + y * box.height);
    check(title.contains(top), `over the title: ${top?.className}`);
  }
  const colour = (kind) => getComputedStyle(document.querySelector(kind)).backgroundColor;
  check(colour(".bd-header-article") === colour("body") && colour("body") === "rgb(18, 18, 18)",
    `dark: ${colour("body")}, header ${colour(".bd-header-article")}`);
  check(document.documentElement.scrollWidth <= innerWidth, "wider than the window");
  check(every(".bd-sidebar-primary a").some(seen), "the table of contents is out of reach");
  for (const button of every(".bd-header-article .dropdown-toggle")) {
    button.focus();
    check(seen(button.parentElement.querySelector("a")), "a list in the header");
  }
  return wrong;
}"""


def test_without_scripts_every_page_is_whole(address, browser):
    found = {}
    with browser.new_context(java_script_enabled=False) as context:
        page = blank(context, width=360, scheme="dark")
        for name in PAGES:
            page.goto(address + name, wait_until="load")
            found[name] = page.evaluate(WITHOUT_SCRIPTS)
    assert len(PAGES) > 15 and {name: wrong for name, wrong in found.items() if wrong} == {}
