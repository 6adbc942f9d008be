"""Every benchmark of speed runs at toy size and measures what it says; nothing here is timed."""

import importlib

import pytest
import torch

from benchmarks.speed import measure, peers

SIZE = peers.Size(vocab_size=31, d_model=16, num_heads=2, d_ff=32, num_layers=1, dropout=0.0)


@pytest.fixture(autouse=True)
def quiet():
    torch.manual_seed(0)


def batch(pairs=5):
    return peers.random_pairs(pairs, SIZE, 2, 7, torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    "name", ["training", "mixed_lengths", "decoding", "matmul_share", "bfloat16"]
)
def test_runs_at_toy_size(name, capsys):
    script = importlib.import_module(f"benchmarks.speed.{name}")
    found = script.compare(script.TOY)
    assert found["size"]["d_model"] == 16
    assert capsys.readouterr().out
    parts = [found["greedy"], found["beam"]] if name == "decoding" else [found]
    for part in parts if name != "matmul_share" else []:
        assert all(len(times) == script.TOY["rounds"] for times in part["seconds"].values())
        assert all(ratio["median"] > 0 for ratio in part["ratios"].values())
    if name == "decoding":
        assert all(part["product_seconds"] > 0 for part in parts)
        assert all(part["product_flops"] > 0 for part in parts)
    if name == "matmul_share":
        assert 0 < found["precisions"]["float32"]["share"]


def test_product_flops_counts_products_alone():
    decoding = importlib.import_module("benchmarks.speed.decoding")
    a, b = torch.ones(3, 4), torch.ones(4, 5)
    assert decoding.product_flops(lambda: (a @ b).softmax(1) + 1) == 2 * 3 * 4 * 5


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
    found = script.compare({"lengths": [64, 2048], "width": 8, "limit": 1e8})["bytes"]
    assert found["explicit"]["2048"] > 3 * 4 * 2048**2 > 3 * found["sdpa"]["2048"]
    limited = script.compare({"lengths": [2048], "width": 8, "limit": 1e6})["bytes"]
    assert "2048" not in limited["explicit"]
