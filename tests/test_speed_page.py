"""The page "How fast is it" says what the committed results say, and what was not measured."""

import json

import pytest

import plan_page
import speed_page
from sample import ROOT

COMMON = {
    "date": "2026-01-02",
    "command": "python -m benchmarks.speed.x",
    "versions": {"torch": "2.0"},
    "machine": {"cpu": "Some CPU", "threads": 1},
}


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
    assert "What was tried" not in page
    assert "None of this is measured yet" in speed_page.gpu()
    assert speed_page.gpu().count("| not measured |") == 5
    for goal in ("| 35% |", "| 50% |", "| 1.50 × |", "| 5.00 × |"):
        assert goal in speed_page.gpu()
    assert plan_page.plan() == "Not measured yet: `python -m benchmarks.speed.plan`."


def test_the_bound_of_decoding_is_what_products_leave(folder):
    rates, ratios = {"ours": 10.0, "MarianMT": 5.0}, {"ours": ratio(1), "MarianMT": ratio(2.0)}
    seconds = {"ours": [2.0, 1.0, 3.0], "MarianMT": [4.0, 5.0, 3.0]}
    row = {"rates": rates, "ratios": ratios, "seconds": seconds}
    save(folder, "decoding", {"greedy": row, "beam": row})
    assert "products are" not in speed_page.speed()
    row |= {"product_seconds": 1.25}
    save(folder, "decoding", {"greedy": row, "beam": row})
    said = "products are 62% of our time; with nothing else around them the ratio would be 3.2 ×"
    assert speed_page.speed().count(said) == 2
    assert "GFLOP/s" not in speed_page.speed() and "operator" not in speed_page.speed()
    row |= {"product_flops": 25e9, "operators": {"aten::mm": 0.62, "rest": 0.38}}
    save(folder, "decoding", {"greedy": row, "beam": row})
    assert speed_page.speed().count(said) == 2
    assert speed_page.speed().count("they run at 20 GFLOP/s") == 2
    assert speed_page.speed().count("| `aten::mm` | 62% |\n| rest | 38% |") == 2


@pytest.mark.parametrize(("median", "word"), [(1.2, "reached with 1.20"), (1.1, "**missed** with")])
def test_the_goal_is_held_against_the_best_peer(folder, median, word):
    rates = {"ours": 10.0, "MarianMT": 5.0, "nn.Transformer": 4.0}
    ratios = {"ours": ratio(1), "MarianMT": ratio(median), "nn.Transformer": ratio(3.0)}
    save(folder, "training", {"rates": rates, "ratios": ratios})
    page = speed_page.speed()
    assert f"Goal: 1.15 × MarianMT; {word}" in page
    assert "2026-01-02: Some CPU, 1 thread, PyTorch 2.0" in page


def test_the_gpu_table_shows_what_was_measured(folder, monkeypatch):
    common = {"name": "speed_gpu", "machine": {"gpu": "Some GPU"}}
    monkeypatch.setitem(globals(), "COMMON", COMMON | common)
    row = {
        "rates": {"ours": 123456.0},
        "ratios": {"nn.Transformer": ratio(1.75)},
        "share": 0.41,
    }
    decoding = {"rates": {"ours": 9.0}, "ratios": {"MarianMT": ratio(6.0)}}
    save(folder, "gpu", {"training": {"base": row}, "decoding": decoding, "limit": 7e14})
    page = speed_page.gpu()
    assert "123,456" in page and "41%" in page and "1.75 × (0.88 … 3.50) `nn.Transformer`" in page
    assert "6.00 × (3.00 … 12.00) Marian" in page
    assert "| 35% | 41% | reached |" in page and "| 5.00 × | 6.00 × | reached |" in page
    assert page.count("| not measured |") == 2  # big
    row |= {"share": 0.3, "share_spread": {"median": 0.3, "low": 0.25, "high": 0.35}}
    save(folder, "gpu", {"training": {"base": row}, "decoding": decoding, "limit": 7e14})
    page = speed_page.gpu()
    assert "| 35% | 30% | **missed** |" in page and "30% (25% … 35%)" in page


def share_row(**more):
    return {"limit": 1e11, "rate": 6e10, "share": 0.6, "tokens_per_second": 200.0} | more


def test_the_table_of_shares_says_what_is_missing(folder):
    data = {"precisions": {"float32": share_row()}, "settings": {"rounds": 5}}
    save(folder, "matmul_share", data)
    page = speed_page.speed()
    assert "| bfloat16 | not measured: this processor has no instructions for it |" in page
    assert "Each rate is the best of 5 rounds." in page
    spread = {"share": {"median": 0.6, "low": 0.5, "high": 0.7}}
    data["precisions"] |= {"float32": share_row(spread=spread), "bfloat16": share_row()}
    save(folder, "matmul_share", data)
    page = speed_page.speed()
    assert "60% (50% … 70%)" in page and "no instructions" not in page.split("### Bfloat16")[0]
    assert "best of" not in page


def test_results_of_a_gpu_stand_in_its_section_alone(folder):
    sizes = {"64": 2**20, "128": 2**21}
    memory = {"bytes": {"sdpa": sizes, "explicit": sizes}, "slopes": {"sdpa": 1.0, "explicit": 1.0}}
    on_gpu = {"name": "speed_attention_memory_cuda"}
    on_gpu["machine"] = COMMON["machine"] | {"gpu": "Some GPU"}
    path = folder / "speed_attention_memory_cuda.json"
    path.write_text(json.dumps(COMMON | on_gpu | {"data": memory}))
    assert "Not measured yet: `python -m benchmarks.speed.attention_memory`" in speed_page.speed()
    page = speed_page.gpu()
    assert "### Memory against length on the GPU" in page and "2026-01-02: Some GPU" in page
    assert "fused: linear, slope 1.0; explicit: **not quadratic**, slope 1.0" in page


def test_the_machine_of_a_cpu_result_is_its_cpu(folder):
    machine = COMMON["machine"] | {"gpu": "Some GPU"}
    assert "Some CPU" in speed_page.source(COMMON | {"name": "speed_training", "machine": machine})
    assert "Some GPU" in speed_page.source(COMMON | {"name": "speed_gpu", "machine": machine})


def test_the_committed_results_fill_the_page():
    page = speed_page.speed()
    assert page.count("Measured on") >= 5
    assert "Not measured yet: `python" not in page
    assert '<svg role="img" aria-label=' in page
    assert "not tried" not in page and "explicit: quadratic, slope 2.0" in page
    assert "fused: linear, slope 0.8" in page


def test_the_plan_has_a_page_that_says_what_is_assumed():
    page = plan_page.plan()
    assert "10¹⁸ FLOP" in page and "two assumptions" in page
    if speed_page.load("gpu") is None:
        assert "**assumed** 100 … 400 TFLOP/s" in page
    for devices in (1, 8, 64):
        assert page.count(f"\n| {devices} |") == 3  # memory, messages, hours
    assert "{generated} plan" in (ROOT / "book" / "plan.md").read_text(encoding="utf-8")
    assert "{doc}`a page of its own <plan>`" in (ROOT / "book" / "how_fast.md").read_text("utf-8")
    assert "file: book/plan\n" in (ROOT / "_toc.yml").read_text(encoding="utf-8")
