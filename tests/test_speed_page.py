"""The page "How fast is it" says what the committed results say, and what was not measured."""

import json
import sys

import pytest
from sample import ROOT

sys.path.insert(0, str(ROOT / "tools"))
import speed_page  # noqa: E402

COMMON = {
    "date": "2026-01-02", "command": "python -m benchmarks.speed.x", "versions": {"torch": "2.0"},
    "machine": {"cpu": "Some CPU", "threads": 1},
}  # fmt: skip


def ratio(median):
    return {"median": median, "low": median / 2, "high": 2 * median}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(speed_page, "RESULTS", tmp_path)
    return tmp_path


def save(folder, name, data):
    (folder / f"speed_{name}.json").write_text(json.dumps(COMMON | {"data": data}))


def test_without_results_every_row_says_that_it_is_not_measured(folder):
    page = speed_page.speed()
    for name in ("training", "mixed_lengths", "decoding", "attention_memory", "matmul_share"):
        assert f"Not measured yet: `python -m benchmarks.speed.{name}`" in page
    assert "None of this is measured yet" in speed_page.gpu()


def test_the_bound_of_decoding_is_what_products_leave(folder):
    rates, ratios = {"ours": 10.0, "MarianMT": 5.0}, {"ours": ratio(1), "MarianMT": ratio(2.0)}
    seconds = {"ours": [2.0, 1.0, 3.0], "MarianMT": [4.0, 5.0, 3.0]}
    row = {"rates": rates, "ratios": ratios, "seconds": seconds}
    row |= {"product_seconds": 1.25, "product_flops": 25e9}
    save(folder, "decoding", {"greedy": row, "beam": row})
    said = "products are 62% of our time; with nothing else around them the ratio would be 3.2 ×"
    assert speed_page.speed().count(said) == 2
    assert speed_page.speed().count("they run at 20 GFLOP/s") == 2


@pytest.mark.parametrize(("median", "word"), [(1.2, "reached with 1.20"), (1.1, "**missed** with")])
def test_the_goal_is_held_against_the_best_peer(folder, median, word):
    rates = {"ours": 10.0, "MarianMT": 5.0, "nn.Transformer": 4.0}
    ratios = {"ours": ratio(1), "MarianMT": ratio(median), "nn.Transformer": ratio(3.0)}
    save(folder, "training", {"rates": rates, "ratios": ratios})
    page = speed_page.speed()
    assert f"Goal: 1.15 × MarianMT; {word}" in page
    assert "2026-01-02: Some CPU, 1 thread, PyTorch 2.0" in page


def test_the_gpu_table_shows_what_was_measured(folder):
    row = {
        "rates": {"ours": 123456.0}, "ratios": {"nn.Transformer": ratio(1.75)}, "share": 0.41,
    }  # fmt: skip
    decoding = {"rates": {"ours": 9.0}, "ratios": {"MarianMT": ratio(6.0)}}
    save(folder, "gpu", {"training": {"base": row}, "decoding": decoding, "limit": 7e14})
    page = speed_page.gpu()
    assert "123,456" in page and "41%" in page and "1.75 × `nn.Transformer`" in page
    assert "6.00 × Marian" in page


def test_the_committed_results_fill_the_page():
    page = speed_page.speed()
    assert page.count("Measured on") >= 5
    assert "Not measured yet: `python" not in page
    assert '<svg role="img" aria-label=' in page
    assert "10¹⁸ FLOP" in speed_page.plan()
