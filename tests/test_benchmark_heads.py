"""The long experiment of chapter 10.5 at toy size, its parts, and the result the page reads."""

import dataclasses
import functools
import math

import pytest
import torch

import src.results as results
from benchmarks import heads as script
from src.config import TransformerConfig
from src.multihead import MultiHeadAttention
from src.transformer import Transformer

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def toy():
    splits = script.toy_splits()
    with pytest.MonkeyPatch.context() as patch:  # a model of three updates would never stop
        patch.setattr(script, "translate", functools.partial(script.translate, max_len=6))
        return script.run(script.TOY, dataclasses.replace(splits, test=splits.test[:14]))


def test_toy_size_removes_every_head_once(toy):
    [found] = toy["runs"]
    places = [(h["kind"], h["layer"], h["head"]) for h in found["heads"]]
    assert places == [(k, i, h) for k in script.KINDS for i in (0, 1) for h in range(4)]
    assert [(b["kind"], b["layer"]) for b in found["blocks"]] == places_of_blocks(places)
    assert toy["sentences"] == 14
    for head in found["heads"]:
        assert 0 <= head["bleu_without"] <= 100 and head["loss_without"] > 0
        assert head["loss_without"] != found["loss"]  # something was taken away
        longest = {"encoder": 8, "decoder": 8, "cross": 9}[head["kind"]]
        assert 0 <= head["distance"] < longest and 0 <= head["entropy"] <= math.log(longest + 1)


def places_of_blocks(places):
    return list(dict.fromkeys(place[:2] for place in places))


def test_untrained_heads_look_almost_evenly(toy):
    [found] = toy["runs"]
    for kind in script.KINDS:
        for layer in found["untrained"][kind]:
            for head in layer:
                share = head["entropy"] / found["evenly"][kind]["entropy"]
                assert 0.6 < share < 1 + 1e-6


def test_without_takes_the_head_and_puts_it_back():
    block = MultiHeadAttention(12, 3).eval()
    x = torch.randn(2, 5, 12)
    whole, matrix = block(x), block.out_proj.weight.detach().clone()
    parts = []
    for head in range(3):
        with script.without(block, [head]):
            parts.append(whole - block(x))
    assert torch.equal(block.out_proj.weight, matrix)
    with script.without(block, range(3)):
        rest = block(x)
    torch.testing.assert_close(sum(parts) + rest, whole)  # heads add up
    assert all((part.abs().amax((0, 1)) > 1e-3).all() for part in parts)  # in every column
    with pytest.raises(RuntimeError, match="inside"), script.without(block, [1]):
        raise RuntimeError("inside")
    assert torch.equal(block.out_proj.weight, matrix)


def test_without_refuses_heads_that_are_not_there():
    block = MultiHeadAttention(12, 3)
    with pytest.raises(ValueError, match=r"heads must lie in 0 … 2, but one is 3"):
        with script.without(block, [3]):
            pass


def test_look_counts_real_queries_alone():
    weights = torch.zeros(1, 2, 3, 3)
    weights[0, 0] = torch.eye(3)  # looks at itself
    weights[0, 1] = 1 / 3  # looks everywhere
    distance, entropy, count = script.look(weights, torch.tensor([[True, True, False]]))
    assert count == 2
    torch.testing.assert_close(distance, torch.tensor([0.0, (0 + 1 + 2 + 1 + 0 + 1) / 3]))
    torch.testing.assert_close(entropy, torch.tensor([0.0, 2 * math.log(3)]))


def test_blocks_are_named_by_what_they_are():
    model = Transformer(TransformerConfig.tiny(9, 9))
    found = {(kind, layer): block for kind, layer, block in script.blocks(model)}
    assert list(found) == [(kind, layer) for kind in script.KINDS for layer in (0, 1)]
    assert found["cross", 1] is model.decoder.layers[1].cross_attention
    assert found["decoder", 0] is model.decoder.layers[0].self_attention
    assert found["encoder", 1] is model.encoder.layers[1].self_attention


def test_toy_run_saves_nothing(toy, monkeypatch, capsys):
    saved, asked = [], []

    def run(settings, splits, **options):
        asked.append((settings, len(splits.train), options["processes"]))
        return toy

    monkeypatch.setattr(script, "run", run)
    monkeypatch.setattr(results, "save", lambda *a, **k: saved.append(a))
    script.main(["--toy", "--processes", "2"])
    assert asked == [(script.TOY, 200, 2)]
    assert saved == [] and "without head" in capsys.readouterr().out


def test_saved_result_is_that_of_the_full_settings():
    data = results.load("heads")["data"]
    assert data["settings"] == script.FULL
    assert [run["seed"] for run in data["runs"]] == script.FULL["seeds"]
    assert all(len(run["heads"]) == 24 and len(run["blocks"]) == 6 for run in data["runs"])
    assert data["sentences"] > 400
