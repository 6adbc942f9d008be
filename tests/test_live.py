"""Live figures: they refuse bad data, show the data that they get, and answer keys and pointers."""

import json
import re
from xml.etree import ElementTree

import pytest
import torch

from sample import ROOT, notebooks
from src import live
from src.live.page import labels, numbers, percents
from src.live.still import bars, heatmap, lines
from src.pooling import KERNELS, nadaraya_watson
from src.positions import sinusoidal_table
from test_browser import blank, browser, chromium, profile  # noqa: F401 - two fixtures

FOLDER = ROOT / "src" / "live"
SOURCES = [["the", "red", "cat", "<eos>"], ["a", "small", "house", ".", "<eos>"]]
TARGETS = [[4, 5, 6, 2, 1], [7, 8, 2]]
WORDS = ["<pad>", "<bos>", "<eos>", "</script>", "le", "chat", "rouge", "une", "maison", "la", "."]
TOKENS = [["[CLS]", "it", "was", "tired", "[SEP]"], ["[CLS]", "an", "apple", "[SEP]"]]


def random(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def softmax(*shape, seed=0):
    return (3 * random(*shape, seed=seed)).softmax(-1)


def examples(count, seed):
    x = 5 * torch.rand(count, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return x, 2 * torch.sin(2 * x) + x + 0.3 * random(count, seed=seed)


KEYS, VALUES = examples(23, seed=1)
HELD_OUT = examples(31, seed=2)
GRID = torch.linspace(0, 5, 51, dtype=torch.float64)


def score_playground(**changes):
    given = {"scores": [[8.0, -4.0, 0.5], [0.0, 1.0, 2.0]], "keys": ["cat", "dog", "<car>"]}
    given |= {"queries": ["pet", "wheel"], "width": 16}
    return live.score_playground(**given | changes)


def decoding_steps(**changes):
    given = {"sources": SOURCES, "targets": TARGETS, "vocabulary": WORDS}
    given["probabilities"] = [softmax(len(t), len(WORDS)) for t in TARGETS]
    given["attention"] = [
        softmax(2, 3, len(t), len(s)) for t, s in zip(TARGETS, SOURCES, strict=True)
    ]
    given["cached"] = [[1, 2, 3, 4, 5], [1, 2, 3]]
    return live.decoding_steps(**given | changes)


def head_maps(**changes):
    given = {"tokens": TOKENS, "maps": [softmax(2, 3, len(t), len(t)) for t in TOKENS]}
    return live.head_maps(**given | changes)


def position_waves(**changes):
    return live.position_waves(**{"table": sinusoidal_table(17, 6)} | changes)


def kernel_regression(**changes):
    given = {"keys": KEYS, "values": VALUES, "grid": GRID, "truth": 2 * (2 * GRID).sin() + GRID}
    return live.kernel_regression(**given | {"held_out": HELD_OUT, "width": 0.5} | changes)


def attention_or_pooling(**changes):
    given = {"things": ["lamb", "salad", "mango"], "features": ["sweet", "meaty"]}
    given |= {"keys": [[0, 1], [0.1, 0], [1, 0]], "values": [[290, 0], [20, 2], [60, 1.6]]}
    given |= {"units": ["kcal", "g fibre"], "queries": [[0, 7], [0, 0]], "names": ["wolf", "all"]}
    return live.attention_or_pooling(**given | changes)


FIGURES = [
    score_playground,
    decoding_steps,
    head_maps,
    position_waves,
    kernel_regression,
    attention_or_pooling,
]
every_figure = pytest.mark.parametrize("make", FIGURES, ids=lambda f: f.__name__)


def data_of(output):
    """Return the data in a figure's text."""
    line = next(x for x in output.data.splitlines() if x.startswith('start("live-'))
    text = line.removeprefix("start(").removesuffix(", build);")
    name, style, data = json.loads(f"[{text}]")
    return data


# --- the text


@every_figure
def test_equal_data_give_equal_text(make):
    assert make().data == make().data


@every_figure
def test_a_figure_asks_for_nothing_from_elsewhere(make):
    assert not re.search(r"https?:|//[\w-]+\.|@import|url\(|\bfetch\b|\bimport\b", make().data)


@every_figure
def test_a_picture_and_a_sentence_stand_where_scripts_do_not_run(make):
    text = make(title="A <title>", caption="Caption & all").data
    (still,) = re.findall(r"</strong><p>(.+?)</p><small>Caption &amp; all</small>", text)
    assert "<strong>A &lt;title&gt;</strong>" in text and still.endswith(".")
    drawing = ElementTree.fromstring(still[: still.index("</svg>") + 6])
    assert drawing.get("role") == "img" and drawing.find("title").text
    assert "<car>" not in still and "</script>" not in still


def test_pictures_draw_the_data():
    drawing = ElementTree.fromstring(bars("T", ["a", "b"], [0.25, 1]))
    assert [bar.get("width") for bar in drawing.iter("rect")] == ["0.25", "1.00"]
    assert [text.text for text in drawing.iter("text")] == ["a", "0.25", "b", "1.00"]
    made = heatmap("T", ["a", "b"], ["c", "d", "e"], [[0, 7, 93], [100, 0, 0]])
    drawing = ElementTree.fromstring(made)
    cells = [cell.get("opacity") for cell in drawing.iter("path") if cell.get("opacity")]
    assert cells == ["0.00", "0.07", "0.93", "1.00", "0.00", "0.00"]
    assert [text.text for text in drawing.iter("text")] == ["c", "d", "e", "a", "b"]
    assert heatmap("T", ["a"], ["b"] * 300, [[1] * 300])
    drawing = ElementTree.fromstring(lines("T", [0, 2.5], [-1.25, 1], [0, 0.5], [(1, 2.5)]))
    assert [line.get("points") for line in drawing.iter("polyline")] == [
        "0.00 0.00 2.50 0.50",
        "0.00 -1.25 2.50 1.00",
    ]
    assert [text.text for text in drawing.iter("text")] == ["3", "−2", "0", "3"]
    # 284 pixels for 3 units and 150 for 5; the upper left corner is the point (0, 3)
    assert "scale(94.6667 -30.0000) translate(0 -3)" in ElementTree.tostring(drawing, "unicode")
    assert "scale(142.0000 -150.0000)" in lines("T", [0, 2], [0, 0], [0, 0])  # flat


@every_figure
def test_data_cannot_end_the_script(make):
    assert make().data.count("</script>") == 1


@pytest.mark.parametrize("path", notebooks.all_notebooks(), ids=lambda path: path.stem)
def test_stored_figures_hold_the_present_code(path):
    """To the letter; when the notebook's outputs are compared, numbers in them have some play."""
    outputs = [o.get("data", {}) for c in notebooks.read(path) for o in c.get("outputs", [])]
    pages = ["".join(data.get("text/html", "")) for data in outputs]
    figures = [page for page in pages if page.startswith('<figure class="live"')]
    assert figures
    for figure in figures:
        kind = re.search(r'id="live-([a-z-]+)-[0-9a-f]{8}"', figure)[1].replace("-", "_")
        for file in ("live.js", f"{kind}.js"):
            assert (FOLDER / file).read_text(encoding="utf-8").strip() in figure
        style = (FOLDER / "live.css").read_text(encoding="utf-8").strip()
        assert json.dumps(style, ensure_ascii=False) in figure


def test_the_code_is_small():
    sizes = {
        path.name: path.stat().st_size for path in [*FOLDER.glob("*.js"), *FOLDER.glob("*.css")]
    }
    assert len(sizes) == len(FIGURES) + 2
    assert sizes.pop("live.js") <= 8192
    assert max(sizes.values()) <= 6144


def test_every_figure_is_public():
    assert sorted(live.__all__) == sorted(make.__name__ for make in FIGURES)


def test_the_data_are_the_rounded_ones():
    assert data_of(score_playground())["scores"] == [[8.0, -4.0, 0.5], [0.0, 1.0, 2.0]]
    assert data_of(score_playground(scores=[1 / 3, 0, -1e-9], queries=["q"]))["scores"] == [
        [0.333, 0.0, 0.0]
    ]
    shown = data_of(head_maps())["sentences"]
    for sentence, tokens in zip(shown, TOKENS, strict=True):
        weights = softmax(2, 3, len(tokens), len(tokens))
        assert (torch.tensor(sentence["maps"]) / 100 - weights).abs().max() <= 0.0051
    table = torch.tensor(data_of(position_waves())["table"])
    assert (table - sinusoidal_table(17, 6)).abs().max() <= 0.00051
    data = data_of(kernel_regression())
    assert data["widths"][data["start"]] == 0.5
    assert (torch.tensor(data["keys"], dtype=torch.float64) - KEYS).abs().max() <= 0.00051


def test_the_sentence_of_the_scores_is_right():
    # softmax of (8, −4, ½) / 4
    assert "at d = 16: cat 0.83, dog 0.04, &lt;car&gt; 0.13." in score_playground().data


def test_candidates_are_the_best_in_order():
    probabilities = torch.zeros(2, 11, dtype=torch.float64)
    probabilities[0, [9, 4, 5, 6, 7, 8, 10]] = torch.tensor(
        [0.1, 0.2, 0.1, 0.3, 0.1, 0.1, 0.1]
    ).double()
    probabilities[1, [2, 8]] = torch.tensor([0.998, 0.002]).double()
    output = decoding_steps(
        sources=SOURCES[:1],
        targets=[torch.tensor([9, 2])],
        probabilities=[probabilities],
        attention=[softmax(2, 4)],
        cached=None,
    )
    (sentence,) = data_of(output)["sentences"]
    assert sentence["target"] == ["la", "<eos>"] and sentence["chances"] == [0.1, 0.998]
    best = [["rouge", 0.3], ["le", 0.2], ["chat", 0.1], ["une", 0.1], ["maison", 0.1]]
    assert sentence["candidates"] == [best, [["<eos>", 0.998]]]
    assert "cached" not in sentence and torch.tensor(sentence["attention"]).shape == (1, 1, 2, 4)


@pytest.mark.parametrize("noise", [-1e-7, 0.0, 1e-7])
def test_rounding_ignores_the_last_bits(noise):
    assert percents("weights", [0.125 + noise, 0.875], "S") == [12, 88]
    # As text: a zero with a minus is equal and still another text.
    assert str(numbers("scores", [0.0625 + noise, -noise], "S")) == "[0.062, 0.0]"


def test_any_kind_of_number_is_taken():
    expected = [[1.0, 2.0], [3.0, 4.0]]
    tensor = torch.tensor(expected, dtype=torch.bfloat16, requires_grad=True)
    for values in (expected, tensor, list(tensor), tensor.detach().float().numpy()):
        assert numbers("x", values, 2, "S") == expected


# --- what is refused


@pytest.mark.parametrize(
    ("make", "changes", "message"),
    [
        (
            score_playground,
            {"scores": [[1.0, 2.0]]},
            r"scores must have shape \(2, 3\), got \(1, 2\)",
        ),
        (score_playground, {"scores": [[0, 0, float("nan")]] * 2}, "scores must be finite"),
        (score_playground, {"width": 0}, "width must be a whole number from 1 to 4096, got 0"),
        (score_playground, {"width": 2.5}, "width must be a whole number from 1 to 4096, got 2.5"),
        (score_playground, {"keys": []}, "keys must have some entries, got 0"),
        (decoding_steps, {"sources": []}, "sources must hold at least one sentence"),
        (
            decoding_steps,
            {"targets": TARGETS[:1]},
            "targets must have 2 entries, as sources, got 1",
        ),
        (decoding_steps, {"cached": [[1]]}, "cached must have 2 entries, as sources, got 1"),
        (decoding_steps, {"cached": [[1], [2]]}, r"cached must have shape \(5,\), got \(1,\)"),
        (
            decoding_steps,
            {"targets": [[4, 5, 6, 2, 99], [7, 8, 2]]},
            "targets must be ids below 11",
        ),
        (
            decoding_steps,
            {"probabilities": [softmax(5, 3)] * 2},
            r"probabilities must have shape \(5, 11\)",
        ),
        (
            decoding_steps,
            {"probabilities": [random(5, 11)] * 2},
            "probabilities must lie between 0 and 1",
        ),
        (
            decoding_steps,
            {"attention": [softmax(5, 3)] * 2},
            r"attention must have shape \(L, H, 5, 4\)",
        ),
        (
            decoding_steps,
            {"attention": [softmax(2, 1, 5, 4), softmax(3, 5)]},
            r"attention must have equal layers and heads for all, got \[\(1, 1\), \(2, 1\)\]",
        ),
        (head_maps, {"maps": []}, "maps must have 2 entries, as tokens, got 0"),
        (
            head_maps,
            {"maps": [softmax(4, 4)] * 2},
            r"maps must have shape \(L, H, 5, 5\), got \(1, 1, 4, 4\)",
        ),
        (
            position_waves,
            {"table": sinusoidal_table(17, 5)},
            "table must have 2 rows or more and even width",
        ),
        (position_waves, {"table": random(17, 6)}, "table must be the one of sinusoidal_table"),
        (kernel_regression, {"values": VALUES[1:]}, r"values must have shape \(23,\), got \(22,\)"),
        (kernel_regression, {"truth": VALUES}, r"truth must have shape \(51,\), got \(23,\)"),
        (kernel_regression, {"held_out": (KEYS, GRID)}, r"held_out\[1\] must have shape \(23,\)"),
        (kernel_regression, {"grid": -GRID}, "grid must rise at equal steps"),
        (kernel_regression, {"grid": GRID**2}, "grid must rise at equal steps"),
        (
            kernel_regression,
            {"width": 4},
            "width must lie within widths, 0 < 0.05 ≤ width ≤ 3.0, got 4",
        ),
        (
            attention_or_pooling,
            {"keys": [[0.0, 1.0]]},
            r"keys must have shape \(3, 2\), got \(1, 2\)",
        ),
        (
            attention_or_pooling,
            {"queries": [[0, 9], [0, 0]]},
            "queries must be multiples of 0.5 .* got 9",
        ),
        (
            attention_or_pooling,
            {"queries": [[0, 0.3], [0, 0]]},
            "queries must be multiples .* got 0.3",
        ),
    ],
)
def test_bad_data_are_refused(make, changes, message):
    with pytest.raises(ValueError, match=message):
        make(**changes)


@pytest.mark.parametrize("values", ["cat", [1, 2]])
def test_labels_are_lists_of_strings(values):
    with pytest.raises(TypeError, match="keys must be a list of strings, got"):
        labels("keys", values)


# --- in a browser

no_browser = pytest.mark.skipif(chromium.find() is None, reason="no Chromium or Chrome here")


def in_a_browser(test):
    return pytest.mark.slow(no_browser(test))


FRAME = '<!doctype html><html lang="en"><title>t</title><body>'
# What a page may do to what stands on it.
HOSTILE = "<style>* {color: #fff; font: 40px/3 serif} table, button, p {width: 900px; display: none}</style>"


class Show:
    """A page with figures, and what went wrong on it."""

    def __init__(self, profile, *outputs, before=""):
        self.page, self.wrong = blank(profile, width=360, scheme="dark"), []
        self.page.on("pageerror", lambda error: self.wrong.append(str(error)))
        self.page.on("request", lambda request: self.wrong.append(request.url))
        self.page.on("console", lambda message: self.wrong.append(message.text))
        self.page.set_content(FRAME + before + "".join(output.data for output in outputs))

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.page.close()
        if error == (None, None, None):
            assert self.wrong == []

    def said(self, figure=0):
        return self.page.locator("[aria-live]").nth(figure).text_content()

    def press(self, name, *keys, role="slider"):
        """Press keys on the control of this name; return what is read out then."""
        for key in keys:
            self.page.get_by_role(role, name=name, exact=True).press(key)
        return self.said()

    def point(self, plot, share):
        """Move the pointer over a plot, to this share of its width."""
        plot.scroll_into_view_if_needed()
        box = plot.bounding_box()
        self.page.mouse.move(box["x"] + share * (box["width"] - 2) + 1, box["y"] + 9)

    def select(self, name, option):
        """Choose an option of the list of this name; return what is read out then."""
        self.page.get_by_role("combobox", name=name, exact=True).select_option(label=option)
        return self.said()


@in_a_browser
@every_figure
def test_a_figure_fits_a_telephone_and_stands_any_page(make, profile):
    with Show(profile, make(), before=HOSTILE) as show:
        assert show.said()
        width = "document.documentElement.scrollWidth - window.innerWidth"
        card = show.page.locator(".card")
        assert show.page.evaluate(width) <= 0
        assert card.evaluate("node => node.scrollWidth - node.clientWidth") <= 0
        assert (
            card.evaluate("node => getComputedStyle(node).backgroundColor") == "rgb(255, 255, 255)"
        )
        assert card.evaluate("node => getComputedStyle(node).color") == "rgb(17, 17, 17)"
        assert (
            card.locator("button, table").first.is_visible()
            or card.locator("svg").first.is_visible()
        )
        show.page.emulate_media(media="print")
        assert card.is_visible()


@in_a_browser
@every_figure
def test_every_control_has_a_name_and_is_reached_by_tab(make, profile):
    with Show(profile, make()) as show:
        controls = show.page.locator("input:visible, select:visible, [role=radiogroup]:visible")
        seen, asked = set(), controls.count()
        active = """() => { let node = document.activeElement;
            while (node?.shadowRoot?.activeElement) node = node.shadowRoot.activeElement;
            const group = node.closest?.("[role=radiogroup]") ?? node;
            const controls = [...document.querySelector("figure > div").shadowRoot
              .querySelectorAll("input, select, [role=radiogroup]")].filter(n => n.offsetParent);
            const name = group.getAttribute("aria-label") ?? group.closest("label")?.textContent;
            return [controls.indexOf(group), name, getComputedStyle(node).outlineStyle]; }"""
        for _ in range(asked + 3):
            show.page.keyboard.press("Tab")
            index, name, outline = show.page.evaluate(active)
            if index >= 0:
                seen.add(index)
                assert name.strip() and outline == "solid"
        assert seen == set(range(asked)) and asked


@in_a_browser
@every_figure
def test_without_scripts_a_picture_and_a_sentence_are_seen(make, browser):
    with browser.new_context(java_script_enabled=False) as profile:
        with Show(profile, make(title="Title")) as show:
            assert len(show.page.inner_text("figure").splitlines()) >= 2
            box = show.page.locator("figure svg").bounding_box()
            assert 300 < box["width"] <= 360 and box["height"] > 50


@in_a_browser
def test_figures_share_a_page_and_leave_no_name(profile):
    outputs = [make() for make in [*FIGURES, score_playground]]  # the last one twice, one id
    with Show(profile) as show:
        before = show.page.evaluate("Object.keys(window).length")
    with Show(profile, *outputs, score_playground(width=4)) as show:
        assert show.page.evaluate("Object.keys(window).length") == before
        assert show.page.locator("[aria-live]").count() == len(FIGURES) + 2
        first = show.said(0)
        ids = show.page.eval_on_selector_all("figure", "nodes => nodes.map(node => node.id)")
        assert len(set(ids)) == len(FIGURES) + 1
        show.page.get_by_role("slider", name="Scores").last.press("ArrowRight")
        assert show.said(0) == first == show.said(len(FIGURES)) != show.said(len(FIGURES) + 1)


@in_a_browser
@every_figure
def test_a_figure_runs_in_an_isolated_frame_and_where_its_script_comes_later(make, profile):
    with Show(profile) as show:
        # As Colab does, then as Jupyter does: markup first, then a script element made anew.
        show.page.evaluate(
            """html => {
              const frame = document.createElement("iframe");
              frame.sandbox = "allow-scripts";
              frame.srcdoc = html;
              const output = document.createElement("div");
              output.innerHTML = html;
              const old = output.querySelector("script");
              const script = document.createElement("script");
              script.textContent = old.textContent;
              document.body.append(frame, output);
              old.replaceWith(script);
            }""",
            make().data,
        )
        show.page.frame_locator("iframe").locator("[aria-live]").wait_for()
        assert (
            show.page.frame_locator("iframe").locator("[aria-live]").text_content() == show.said()
        )
        show.wrong = [w for w in show.wrong if w != "about:srcdoc"]


@in_a_browser
def test_keys_stay_in_the_figure(profile):
    listen = "<script>keys = 0; document.addEventListener('keydown', () => keys++)</script>"
    with Show(profile, score_playground(), before=listen) as show:
        assert "lm-suppress-shortcuts" in score_playground().data  # JupyterLab asks for it
        show.press("Scores are divided by √d, d =", "ArrowRight", "ArrowLeft")
        assert show.page.evaluate("keys") == 0


@in_a_browser
def test_score_playground_answers(profile):
    with Show(profile, score_playground()) as show:
        # softmax of (2, −1, 1/8): 0.83, 0.04, 0.13
        assert show.said() == "Entropy 0.55 of at most 1.10; most weight, 0.83, on “cat”."
        assert "most weight, 1.00, on “cat”" in show.press("Scores are divided by √d, d =", "Home")
        end = show.press("Scores are divided by √d, d =", "End")
        assert end == "Entropy 1.10 of at most 1.10; most weight, 0.37, on “cat”."
        show.page.locator(".card").get_by_text("cat", exact=True).click()
        assert show.said() == "Entropy 0.69 of at most 0.69; most weight, 0.52, on “<car>”."
        show.press("dog", "Space", role="checkbox")
        assert "Every key is masked: all weights are 0" in show.press(
            "<car>", "Space", role="checkbox"
        )
        cells = show.page.locator("td.bar").all_text_contents()
        assert cells == ["0.00"] * 3
        show.select("Query", "wheel")
        show.page.locator(".card").get_by_text("<car>", exact=True).click()
        assert show.said() == "Entropy 0.00 of at most 0.00; most weight, 1.00, on “<car>”."


@in_a_browser
def test_scores_that_exp_cannot_hold(profile):
    scores = [[900.0, 899.0, -900.0], [-900.0, -1800.0, -901.0]]
    with Show(profile, score_playground(scores=scores, width=1)) as show:
        assert show.said() == "Entropy 0.58 of at most 1.10; most weight, 0.73, on “cat”."
        assert "most weight, 0.73, on “cat”" in show.select("Query", "wheel")


@in_a_browser
def test_decoding_steps_answers(profile):
    sentence = data_of(decoding_steps())["sentences"][0]

    def expected(step, head=None):
        maps = torch.tensor(sentence["attention"][0])
        row = (maps.double().mean(0) if head is None else maps[head].double())[step] / 100
        word = sentence["source"][int(row.argmax())]
        return f"looks most at “{word}”, weight {row.max():.2f}"

    with Show(profile, decoding_steps()) as show:
        assert show.said().startswith("Step 1 of 5 writes “le”") and expected(0) in show.said()
        assert show.said().endswith("The cache then holds 1 position.")
        show.page.get_by_role("button", name="next").click()
        assert show.said().startswith("Step 2 of 5 writes “chat”") and expected(1) in show.said()
        assert show.press("Step", "End").endswith("The cache then holds 5 positions.")
        assert expected(4) in show.said()
        rows = show.page.locator("tbody tr").all_inner_texts()
        assert rows == [f"{token}\t{chance:.2f}" for token, chance in sentence["candidates"][4]]
        show.page.get_by_role("radio").nth(2).click()
        assert show.said().startswith("Step 3 of 5")
        show.page.keyboard.press("ArrowLeft")
        assert show.said().startswith("Step 2 of 5")
        show.select("Head", "1")
        assert expected(1, head=1) in show.said()
        show.select("Sentence", "a small house . <eos>")
        assert show.said().startswith("Step 1 of 3 writes “une”")


@in_a_browser
def test_head_maps_answers(profile):
    def row(layer, head, token):
        weights = softmax(2, 3, 5, 5)[layer, head, token]
        return f"“{TOKENS[0][int(weights.argmax())]}” {weights.max():.2f}"

    with Show(profile, head_maps()) as show:
        assert show.said().startswith(f"Layer 0, head 0: “[CLS]” looks most at {row(0, 0, 0)}")
        token = show.page.get_by_role("radiogroup").last.get_by_role("radio")
        token.nth(3).hover()
        assert f"“tired” looks most at {row(0, 0, 3)}" in show.said()
        token.nth(1).focus()
        show.page.keyboard.press("End")
        assert f"“[SEP]” looks most at {row(0, 0, 4)}" in show.said()
        show.page.get_by_role("radio", name="head 0").focus()
        show.page.keyboard.press("ArrowRight")
        show.select("Layer", "1")
        assert show.said().startswith(f"Layer 1, head 1: “[SEP]” looks most at {row(1, 1, 4)}")
        show.select("Sentence", "[CLS] an apple [SEP]")
        assert show.said().startswith("Layer 1, head 1: “[CLS]”")
        assert show.page.get_by_role("radiogroup").last.get_by_role("radio").count() == 4


@in_a_browser
def test_position_waves_answers(profile):
    with Show(profile, position_waves()) as show:
        assert show.said().startswith("Columns 0 and 1 repeat every 6.3 positions. Position 5 ")
        table = sinusoidal_table(17, 6)
        assert f"{table[5] @ table[5]:.2f} with itself and {table[5] @ table[6]:.2f}" in show.said()
        assert "Columns 4 and 5 repeat every 2916.4" in show.press("Pair of columns", "End")
        assert "Position 6 " in show.press("Position", "ArrowRight")
        show.point(show.page.locator(".card svg").last, 1.0)
        assert "Position 16 " in show.said()


@in_a_browser
def test_kernel_regression_computes_what_the_package_computes(profile):
    number = r"error ([\d.−]+)\. Query ([\d.−]+) gets ([\d.−]+);"
    with Show(profile, kernel_regression(widths=(0.5, 2.0))) as show:
        show.press("Query", "ArrowRight")
        for name in KERNELS:
            show.select("Kernel", name)
            for key, width in (("Home", 0.5), ("End", 2.0)):
                said = show.press("Width", key).replace("−", "-")
                error, query, answer = map(float, re.search(number, said).groups())
                assert query == 2.6
                made = nadaraya_watson(HELD_OUT[0], KEYS, VALUES, name, width)
                assert error == pytest.approx(
                    (made - HELD_OUT[1]).square().mean().item(), abs=0.015
                )
                (made,) = nadaraya_watson(GRID[26:27], KEYS, VALUES, name, width)
                assert answer == pytest.approx(made.item(), abs=0.015)
        show.point(show.page.locator(".card svg").first, 0.0)
        assert "Query 0.00" in show.said()


@in_a_browser
def test_attention_or_pooling_answers(profile):
    with Show(profile, attention_or_pooling()) as show:
        assert show.said().startswith("Most weight, 1.00, on “lamb”.")
        rows = show.page.locator("table").last.locator("tbody tr")
        still = ["average pooling\t123.3\t1.2", "max pooling\t290.0\t2.0"]
        assert rows.all_inner_texts()[1:] == still
        show.press("meaty", "Home")
        assert show.press("sweet", "End").startswith("Most weight, 1.00, on “mango”.")
        assert rows.all_inner_texts()[1:] == still
        show.select("Query of", "all")
        assert show.said().startswith("The query asks for nothing: attention is average pooling")
        assert rows.first.inner_text() == "attention\t123.3\t1.2"
