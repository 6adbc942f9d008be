"""The long experiment of chapter 10.7's answer at toy size, its parts, and the saved result."""

import dataclasses
import json
import math

import pytest
import torch

import src.results as results
from benchmarks import ablations as script
from benchmarks.seq2seq_attention import toy_splits
from src.config import TransformerConfig
from src.multihead import MultiHeadAttention
from src.recording import recording
from src.training.config import TrainingConfig
from src.training.optimization import warmup_rate
from src.training.trainer import Trainer
from src.transformer import Transformer

pytestmark = pytest.mark.slow


def built(part):
    torch.manual_seed(0)
    return script.build(part, 31, 37).eval()


@pytest.fixture(scope="module")
def ids():
    generator = torch.Generator().manual_seed(0)
    src = torch.randint(3, 31, (2, 7), generator=generator)
    return src, torch.randint(3, 37, (2, 5), generator=generator)


def small_splits():
    splits = toy_splits()
    return dataclasses.replace(splits, test=splits.test[:6])


def test_toy_size_measures_every_part(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(script, "toy_splits", small_splits)
    script.main(["--toy", "--out", str(tmp_path)])
    data = json.loads((tmp_path / "ablations.json").read_text())["data"]
    assert [entry["part"] for entry in data["runs"]] == list(script.PARTS)
    assert data["sentences"] == 6
    for entry in data["runs"]:
        assert 0 < entry["loss"] < 100 and 0 <= entry["bleu"] <= 100
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].startswith("nothing: loss") and len(printed) == len(script.PARTS) + 1


def test_a_run_repeats_itself():
    splits = small_splits()
    first, second = (script.measure("positions", 0, splits, script.TOY) for _ in range(2))
    assert first == second


def test_skipped_sublayers_take_their_weights_along():
    d, ff = 128, 512
    attention, wrapper = 4 * (d * d + d), 2 * d
    network = d * ff + ff + ff * d + d
    lost = {
        part: built("nothing").num_parameters() - built(part).num_parameters()
        for part in script.PARTS
    }
    assert lost["feed-forward"] == 4 * (network + wrapper)
    assert lost["encoder self-attention"] == 2 * (attention + wrapper)
    assert lost["decoder self-attention"] == 2 * (attention + wrapper)
    assert lost["cross-attention"] == 2 * wrapper  # its matrices stay, unused
    assert lost["norms"] == (10 + 2) * wrapper
    for part in ("positions", "residual", "causal mask", "embedding scale", "score scale", "heads"):
        assert lost[part] == 0


def test_without_cross_attention_the_source_is_not_seen(ids):
    src, tgt = ids
    model = built("cross-attention")
    assert torch.equal(model(src, tgt), model(src.flip(1), tgt))
    whole = built("nothing")
    assert not torch.allclose(whole(src, tgt), whole(src.flip(1), tgt))


def test_without_self_attention_tokens_do_not_meet(ids):
    src, tgt = ids
    other = src.clone()
    other[:, -1] = (other[:, -1] - 2) % 28 + 3
    for part, same in (("encoder self-attention", True), ("nothing", False)):
        model = built(part)
        first, second = model.encode(src)[:, :-1], model.encode(other)[:, :-1]
        assert torch.equal(first, second) is same
    model, other = built("decoder self-attention"), tgt.clone()
    other[:, 0] = 3 + (other[:, 0] + 1) % 30
    memory = model.encode(src)
    assert torch.equal(model.decode(tgt, memory)[:, 1:], model.decode(other, memory)[:, 1:])


def test_without_positions_order_means_nothing_to_the_encoder(ids):
    src, _ = ids
    turned = built("positions").encode(src.flip(1)).flip(1)
    torch.testing.assert_close(turned, built("positions").encode(src), rtol=0, atol=1e-5)
    assert not torch.allclose(
        built("nothing").encode(src.flip(1)).flip(1), built("nothing").encode(src), atol=1e-2
    )


def test_wrappers_leave_out_what_they_say():
    config = TransformerConfig.tiny(9, 9, norm_first=True)
    x = torch.randn(2, 3, 128)
    plain = script.AddNorm(config).eval()

    def sublayer(h):
        return 3 * h + 1

    residual, norm = script.NoResidual(config).eval(), script.NoNorm(config).eval()
    torch.testing.assert_close(residual(x, sublayer), plain(x, sublayer) - x)
    torch.testing.assert_close(norm(x, sublayer), x + 3 * x + 1)
    assert script.Skip()(x, sublayer) is x


def test_norms_are_all_gone():
    model = built("norms")
    assert not any(isinstance(module, torch.nn.LayerNorm) for module in model.modules())


def test_unscaled_scores_are_the_plain_dot_products():
    torch.manual_seed(0)
    block = MultiHeadAttention(12, 3)
    x = torch.randn(2, 5, 12)
    q, k, _ = block.split(block.in_proj(x))
    block.core.__class__ = script.Unscaled
    with recording(block) as maps:
        block(x)
    torch.testing.assert_close(maps["attention"], (q @ k.mT).softmax(-1))


def test_the_causal_mask_is_gone_in_training_alone(ids):
    src, tgt = ids
    model = built("causal mask")
    embedded = model.decoder.embeddings(tgt)
    memory = model.decoder.remember(model.encode(src))
    other = embedded.clone()
    other[:, -1] += 1
    layer = model.decoder.layers[0]
    for part in layer.modules():
        if isinstance(part, torch.nn.Dropout):
            part.p = 0.0
    for training in (False, True):
        layer.train(training)
        same = torch.equal(layer(embedded, memory[0])[:, 0], layer(other, memory[0])[:, 0])
        assert same is not training


def test_without_the_factor_embeddings_are_the_table(ids):
    src, _ = ids
    model = built("embedding scale")
    embeddings = model.encoder.embeddings
    expected = embeddings.tokens(src) + embeddings.positions.table[: src.shape[1]]
    torch.testing.assert_close(embeddings(src), expected)
    assert abs(embeddings.tokens.weight.std() * math.sqrt(128) - 1) < 0.05


def test_the_schedule_starts_at_its_peak_and_goes_on_as_before():
    model = Transformer(TransformerConfig.tiny(9, 9))
    config = TrainingConfig(steps=3, lr=0.5, warmup=4)
    trainer = Trainer(model, [], config, pad_id=0, device="cpu")
    script.start_at_the_peak(trainer, 4)
    schedule, rates = trainer.updater.schedule, []
    for _ in range(9):
        rates.append(schedule.get_last_lr()[0])
        trainer.updater.optimizer.step()
        schedule.step()
    assert rates[:4] == [0.5] * 4
    later = [warmup_rate(step, 4, peak_lr=0.5) for step in range(5, 10)]
    assert rates[4:] == pytest.approx(later)


def test_unknown_parts_are_named():
    with pytest.raises(ValueError, match="part must be one of nothing, .* but is 'luck'"):
        script.build("luck", 9, 9)


def test_saved_result_is_that_of_the_full_settings():
    data = results.load("ablations")["data"]
    assert data["settings"] == script.FULL
    assert [(entry["part"], entry["seed"]) for entry in data["runs"]] == [
        (part, seed) for part in script.PARTS for seed in script.FULL["seeds"]
    ]
    assert data["sentences"] > 200
