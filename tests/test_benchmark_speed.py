"""Every benchmark of speed runs at toy size and measures what it says; nothing here is timed."""

import importlib
import json
import re
import shutil
import subprocess
import sys

import pytest
import torch

from benchmarks.speed import measure, peers, plan
from sample import ROOT

pytestmark = pytest.mark.slow

SIZE = peers.Size(vocab_size=31, d_model=16, num_heads=2, d_ff=32, num_layers=1, dropout=0.0)


@pytest.fixture(autouse=True)
def quiet():
    torch.manual_seed(0)


def batch(pairs=5):
    return peers.random_pairs(pairs, SIZE, 2, 7, torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    "name",
    [
        "training",
        "mixed_lengths",
        "decoding",
        "matmul_share",
        "bfloat16",
        "gpu",
    ],
    ids="{}.py".format,  # a test called `gpu` would be skipped as if it were marked so
)
def test_runs_at_toy_size(name, capsys, monkeypatch):
    # Dynamo takes a minute to trace the checks of the annotations that tests switch on.
    monkeypatch.setattr(torch, "compile", lambda function, **options: function)
    script = importlib.import_module(f"benchmarks.speed.{name}")
    found = script.compare(script.TOY)
    assert found["size"]["d_model"] == 16
    assert capsys.readouterr().out
    parts = [found["greedy"], found["beam"]] if "decoding" in name else [found]
    if name == "matmul_share":
        parts = list(found["precisions"].values())
    if name == "gpu":
        parts = [*found["training"].values(), found["decoding"]]
    for part in parts:
        assert all(len(times) == script.TOY["rounds"] for times in part["seconds"].values())
    if name == "matmul_share":
        for part in parts:
            assert 0 < part["spread"]["share"]["low"] <= part["share"]
    else:
        assert all(ratio["median"] > 0 for part in parts for ratio in part["ratios"].values())
    if name == "gpu":
        assert 0 < parts[0]["share_spread"]["low"] <= parts[0]["share"]
        assert found["limit_spread"]["low"] <= found["limit"]
    if name == "decoding":
        assert all(part["product_seconds"] > 0 for part in parts)
        assert all(part["product_flops"] > 0 for part in parts)
        assert all(sum(part["operators"].values()) == pytest.approx(1) for part in parts)


RESULTS = sorted((ROOT / "src" / "results").glob("speed_*.json"))


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.stem)
def test_committed_results_were_measured_with_the_settings_of_the_script(path):
    result = json.loads(path.read_text(encoding="utf-8"))
    name = path.stem.removeprefix("speed_")
    script = importlib.import_module(f"benchmarks.speed.{name.removesuffix('_cuda')}")
    full = getattr(script, "CUDA", script.FULL) if name.endswith("_cuda") else script.FULL
    assert result["data"]["settings"] == full
    assert "--" not in result["command"]


def test_product_flops_counts_products_alone():
    decoding = importlib.import_module("benchmarks.speed.decoding")
    a, b = torch.ones(3, 4), torch.ones(4, 5)
    assert decoding.product_flops(lambda: (a @ b).softmax(1) + 1) == 2 * 3 * 4 * 5


def test_shares_keep_the_largest_and_add_up_to_one():
    decoding = importlib.import_module("benchmarks.speed.decoding")
    profiles = [{"a": 2.0, "b": 1.0, "c": 0.5}, {"a": 2.0, "b": 2.0, "d": 0.5}]
    assert decoding.shares(profiles, kept=2) == pytest.approx({"a": 0.5, "b": 0.375, "rest": 0.125})


def test_random_pairs_have_the_lengths_that_were_asked_for():
    found = batch(200)
    lengths = (found.src != peers.PAD).sum(1)  # words and <eos>
    assert lengths.min() == 3 and lengths.max() == 8 and found.src.shape[1] == 8
    assert (found.tgt[:, 0] == peers.BOS).all()
    assert ((found.tgt == peers.EOS).sum(1) == 1).all()


def test_all_models_have_as_many_weights():
    size = peers.Size(vocab_size=101, d_model=32, num_heads=2, d_ff=64, num_layers=2)
    counts = {
        name: sum(p.numel() for p in model.module.parameters() if p.requires_grad)
        for name, model in peers.build(size).items()
    }
    ours = counts["ours"]
    # Biases, final norms and learned positions are what they differ in.
    assert all(abs(count - ours) < 0.15 * ours for count in counts.values()), counts


@pytest.mark.parametrize("name", list(peers.PEERS))
def test_every_model_learns_the_batch(name):
    model = peers.build(SIZE, (name,))[name]
    step = peers.trainer(model, [batch()])
    losses = [step() for _ in range(30)]
    assert losses[-1] < losses[0]
    assert 2 < losses[0] < 6  # about ln 31 = 3.4, so the mean over real tokens


@pytest.mark.parametrize("name", list(peers.PEERS))
def test_every_model_makes_exactly_the_asked_number_of_words(name):
    model = peers.build(SIZE, (name,))[name]
    model.module.eval()
    for beam_size in (1, 3) if model.searches else (1,):
        output = model.generate(batch().src, 6, beam_size)
        assert output.shape == (5, 6)
        if name != "x-transformers":  # which has no way to forbid a token
            assert not torch.isin(output, torch.tensor([peers.PAD, peers.BOS, peers.EOS])).any()


@pytest.mark.parametrize("name", ["nn.Transformer", "x-transformers"])
def test_a_model_without_a_search_says_so(name):
    model = peers.build(SIZE, (name,))[name]
    with pytest.raises(ValueError, match="beam_size must be 1"):
        model.generate(batch().src, 3, 2)


def test_ratios_compare_round_by_round():
    seconds = {"ours": [1.0, 2.0, 4.0], "other": [3.0, 4.0, 4.0]}
    assert measure.ratios(seconds, "ours")["other"] == {"median": 2.0, "low": 1.0, "high": 3.0}
    assert measure.ratios(seconds, "ours")["ours"]["low"] == 1.0
    assert measure.rates(seconds, 8.0) == {"ours": 4.0, "other": 2.0}


def test_interleave_calls_each_candidate_once_a_round_in_turning_order():
    called = []
    seconds = measure.interleave(
        {name: lambda name=name: called.append(name) for name in "abc"}, rounds=3
    )
    assert "".join(called) == "abc" + "abc" + "bca" + "cab"
    assert all(len(times) == 3 for times in seconds.values())


@pytest.mark.parametrize(("candidates", "rounds"), [({}, 1), ({"a": int}, 0)])
def test_interleave_refuses_what_measures_nothing(candidates, rounds):
    with pytest.raises(ValueError, match="rounds and candidates must not be empty"):
        measure.interleave(candidates, rounds)


def test_the_explicit_backend_needs_memory_for_all_pairs_of_positions():
    script = importlib.import_module("benchmarks.speed.attention_memory")
    # Below the limit by a half, and above it.
    found = script.compare({"lengths": [2048, 4096], "width": 8, "limit": 1e8})["bytes"]
    assert found["explicit"]["2048"] > 3 * 4 * 2048**2 > 3 * found["sdpa"]["2048"]
    assert list(found["explicit"]) == ["2048"] and list(found["sdpa"]) == ["2048", "4096"]


def test_the_slope_is_the_power_of_the_length():
    script = importlib.import_module("benchmarks.speed.attention_memory")
    assert script.slope({"8": 5 * 8, "16": 5 * 16, "64": 5 * 64}) == pytest.approx(1)
    assert script.slope({"8": 3 * 8**2, "16": 3 * 16**2, "64": 3 * 64**2}) == pytest.approx(2)


# --- the command line


def command_line(monkeypatch, *arguments, **options):
    """Run a benchmark that measures nothing; the settings it was given."""
    seen = []
    monkeypatch.setattr(sys, "argv", ["x.py", "--threads", "1", *arguments])
    measure.run(
        "speed_x",
        "X.",
        lambda settings: seen.append(settings) or {},
        {"size": {}, "of": "cpu"},
        {"size": {}},
        **options,
    )
    return seen[0]


def test_a_gpu_has_results_and_settings_of_its_own(monkeypatch, tmp_path):
    cuda = {"size": {}, "of": "cuda"}
    assert command_line(monkeypatch, "--out", str(tmp_path), cuda=cuda)["of"] == "cpu"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "Some GPU")
    assert command_line(monkeypatch, "--out", str(tmp_path), cuda=cuda)["of"] == "cuda"
    assert command_line(monkeypatch, "--out", str(tmp_path))["of"] == "cpu"
    assert sorted(p.stem for p in tmp_path.iterdir()) == ["speed_x", "speed_x_cuda"]


def test_dropout_can_be_switched_off_but_not_on_the_page(monkeypatch, tmp_path, capsys):
    off = ("--dropout", "0")
    found = command_line(monkeypatch, *off, "--out", str(tmp_path), of_size=("dropout",))
    assert found["size"] == {"dropout": 0.0}
    with pytest.raises(SystemExit):
        command_line(monkeypatch, *off, of_size=("dropout",))
    assert "--dropout needs --out" in capsys.readouterr().err
    for model in peers.build(peers.Size(31, 16, 2, 32, 1, **found["size"])).values():
        model.module.train()
        with torch.no_grad():
            assert model.loss(batch()) == model.loss(batch())


# --- the plan

COUNTED = {
    "parameters": 1000,
    "flops_per_token": 1e6,
    "activation_bytes_per_token": 10.0,
    "logit_bytes_per_token": 20,
    "last_share": 0.25,
    "rates": [1e9, 2e9],
}
SETTINGS = {"tokens_per_update": 4000, "updates": 3600, "links": [1e3, 4e3]}


def test_one_device_waits_for_nobody():
    found = plan.divide(SETTINGS, COUNTED, 1)
    assert found["state_bytes"] == found["sharded_state_bytes"] == 16000
    assert found["sent_bytes"] == 0 and found["efficiency"] == [1, 1]
    assert found["hours"] == pytest.approx([2, 4])  # 4 GFLOP an update, 3600 of them
    assert (found["activation_bytes"], found["logit_bytes"]) == (40000, 80000)


def test_two_devices_hide_what_they_send_while_backward_runs():
    found = plan.divide(SETTINGS, COUNTED, 2)
    assert found["tokens"] == 2000 and found["sharded_state_bytes"] == 8000
    assert found["sent_bytes"] == 4000 and found["sharded_sent_bytes"] == 6000
    assert found["seconds_sent"] == [1, 4] and found["seconds_computed"] == [1, 2]
    # Best: 2 s computing, 1 s sending of which the last quarter shows.
    # Worst: 1 s computing, 4 s sending of which 2/3 s are hidden.
    assert found["efficiency"] == pytest.approx([1 / (1 + 4 - 2 / 3), 2 / 2.25])


def test_the_plan_counts_what_backward_needs_and_takes_a_measured_rate(monkeypatch, capsys):
    found = plan.compare(plan.TOY)
    assert found["devices"]["1"]["activation_bytes"] > 25000 * 4 * 512 * 6 * 10
    spread = {"low": 0.3, "median": 0.4, "high": 0.5}
    data = {"limit": 1e15, "training": {"base": {"share_spread": spread}}}
    monkeypatch.setattr(plan.results, "load", lambda name: {"data": data})
    assert plan.device_rates([1.0]) == ([3e14, 5e14], True)


def test_the_committed_plan_knows_the_committed_gpu_result():
    data = json.loads((ROOT / "src/results/speed_plan.json").read_text(encoding="utf-8"))["data"]
    assert data["measured"] == (ROOT / "src/results/speed_gpu.json").is_file(), "run the plan again"


# --- on a machine with a GPU

PARTS = ["pytest", "gpu", "matmul_share", "attention_memory", "plan"]


@pytest.mark.parametrize("broken", ["none", *PARTS], ids="{} fails".format)
def test_one_failing_part_stops_no_other_and_all_fit_into_eight_minutes(broken, tmp_path):
    for name in ("tools", "src/results", "bin", "out"):
        (tmp_path / name).mkdir(parents=True)
    shutil.copy(ROOT / "tools" / "gpu.sh", tmp_path / "tools")
    for stem in ("gpu", "matmul_share", "matmul_share_cuda"):
        (tmp_path / "src" / "results" / f"speed_{stem}.json").write_text("{}")
    calls = tmp_path / "calls"
    scripts = {
        "timeout": f'echo "$1 $2 $3" >> {calls}; shift 3; exec "$@"',
        "python": f'case "$2" in {broken}|*.{broken}) exit 124 ;; esac',
    }
    for name, script in scripts.items():
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    run = subprocess.run(
        ["/bin/sh", str(tmp_path / "tools" / "gpu.sh")],
        env={
            "PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin",
            "PYTHON": "python",
            "OUT": str(tmp_path / "out"),
        },
        capture_output=True,
        text=True,
        timeout=60,
    )
    failed = int(broken != "none")
    summary = run.stdout.partition("== summary")[2]
    assert run.returncode == failed
    assert (summary.count("passed: "), summary.count("FAILED (124): ")) == (5 - failed, failed)
    limits = re.findall(r"-k (\d+) (\d+)", calls.read_text())
    assert len(limits) == 5 and sum(int(a) + int(b) for a, b in limits) <= 480
    copied = sorted(path.stem for path in (tmp_path / "out").iterdir())
    assert copied == ["speed_gpu", "speed_matmul_share_cuda"]
