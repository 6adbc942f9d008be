"""Loss per token, schedule, optimizer and the training loop."""

import copy
import dataclasses
import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

from src.data.batches import Batch, BucketedBatches
from src.training.checkpoints import CheckpointError, read_header
from src.training.config import Evaluation, Record
from src.training.distributed import pick_device
from src.training.evaluation import evaluate, switched
from src.training.optimization import make_optimizer, token_loss, warmup_rate, warmup_schedule
from src.training.trainer import Trainer
from src.training.updater import Updater
from toy_training import PAD, config, copy_examples, tiny_model, trainer

# ---------------------------------------------------------------- loss


def loop_loss(logits, targets, pad_id, smoothing):
    """The formula as plain loops, in Python's float64."""
    total, count = 0.0, 0
    for row, wanted in zip(logits.tolist(), targets.tolist(), strict=False):
        for scores, target in zip(row, wanted, strict=False):
            if target == pad_id:
                continue
            norm = math.log(sum(math.exp(s) for s in scores))
            log_probs = [s - norm for s in scores]
            for v, log_prob in enumerate(log_probs):
                share = smoothing / len(scores) + (1 - smoothing) * (v == target)
                total -= share * log_prob
            count += 1
    return total, count


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.7])
def test_token_loss_is_the_formula(smoothing):
    logits = torch.randn(3, 5, 7, dtype=torch.float64)
    targets = torch.randint(0, 7, (3, 5))
    targets[1, 2:] = 6  # padding
    total, count = token_loss(logits, targets, 6, smoothing)
    expected, tokens = loop_loss(logits, targets, 6, smoothing)
    assert count.item() == tokens < 15
    assert total.item() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("pad_id", [0, 4, -100])
def test_token_loss_equals_cross_entropy_with_gradients(smoothing, pad_id):
    logits = torch.randn(3, 5, 7, dtype=torch.float64, requires_grad=True)
    targets = torch.randint(0, 7, (3, 5))
    targets[0, 3:] = pad_id
    total, count = token_loss(logits, targets, pad_id, smoothing)
    other = logits.detach().clone().requires_grad_()
    expected = F.cross_entropy(
        other.transpose(1, 2), targets, ignore_index=pad_id, label_smoothing=smoothing
    )
    (total / count).backward()
    expected.backward()
    torch.testing.assert_close(total / count, expected, rtol=1e-12, atol=0)
    torch.testing.assert_close(logits.grad, other.grad, rtol=1e-12, atol=1e-15)


@given(extra=st.integers(1, 9), seed=st.integers(0, 99))
@settings(deadline=None, max_examples=20)
def test_more_padding_changes_neither_loss_nor_count(extra, seed):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(2, 3, 5, generator=generator, dtype=torch.float64)
    targets = torch.randint(1, 5, (2, 3), generator=generator)
    more = torch.randn(2, extra, 5, generator=generator, dtype=torch.float64)
    padding = torch.zeros(2, extra, dtype=torch.int64)
    total, count = token_loss(logits, targets, 0, 0.1)
    wide, wide_count = token_loss(
        torch.cat([logits, more], 1), torch.cat([targets, padding], 1), 0, 0.1
    )
    assert wide_count == count == 6
    torch.testing.assert_close(wide, total, rtol=1e-12, atol=0)


def test_a_batch_of_padding_alone_has_no_loss_and_no_gradient():
    logits = torch.randn(2, 3, 5, requires_grad=True)
    total, count = token_loss(logits, torch.zeros(2, 3, dtype=torch.int64), 0, 0.1)
    total.backward()
    assert total.item() == 0 and count.item() == 0
    assert logits.grad.eq(0).all()


def test_half_precision_logits_are_summed_in_float32():
    # 2 × 1021 tokens of about log 7 each: a bfloat16 sum would be off by several units.
    logits = torch.randn(2, 1021, 7).bfloat16()
    targets = torch.randint(1, 7, (2, 1021))
    total, _ = token_loss(logits, targets, 0)
    exact, _ = token_loss(logits.double(), targets, 0)
    assert total.dtype == torch.float32
    assert total.item() == pytest.approx(exact.item(), rel=1e-6)


def test_token_loss_refuses_what_it_cannot_mean(unchecked):
    logits = torch.randn(2, 3, 5)
    with pytest.raises(ValueError, match=r"targets must have shape \(2, 3\).*\(3, 2\)"):
        token_loss(logits, torch.zeros(3, 2, dtype=torch.int64), 0)
    with pytest.raises(TypeError, match="targets must be int64, got torch.int32"):
        token_loss(logits, torch.zeros(2, 3, dtype=torch.int32), 0)
    with pytest.raises(ValueError, match=r"label_smoothing must be in \[0, 1\), got 1.0"):
        token_loss(logits, torch.zeros(2, 3, dtype=torch.int64), 0, 1.0)


# ---------------------------------------------------------------- schedule and optimizer


@pytest.mark.parametrize("step", [1, 17, 3999, 4000, 4001, 100_000])
def test_warmup_rate_is_equation_3(step):
    expected = 512**-0.5 * min(step**-0.5, step * 4000**-1.5)
    assert warmup_rate(step, 4000, d_model=512) == pytest.approx(expected, rel=1e-12)


def test_warmup_rate_peaks_at_the_end_of_the_warmup():
    rates = [warmup_rate(step, 7, peak_lr=0.3) for step in range(1, 60)]
    assert max(rates) == rates[6] == pytest.approx(0.3)
    assert rates[:7] == sorted(rates[:7]) and rates[6:] == sorted(rates[6:], reverse=True)
    assert rates[27] == pytest.approx(0.15)  # four times the warm-up, half the rate


def test_warmup_schedule_sets_the_rate_of_each_update():
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=123.0)
    schedule = warmup_schedule(optimizer, 5, d_model=11)
    for step in range(1, 20):
        assert optimizer.param_groups[0]["lr"] == pytest.approx(warmup_rate(step, 5, d_model=11))
        optimizer.step()
        schedule.step()


def test_constant_schedule_stays_at_the_peak():
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    schedule = warmup_schedule(optimizer, 2, peak_lr=0.5, after="constant")
    rates = []
    for _ in range(5):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    assert rates == [0.25, 0.5, 0.5, 0.5, 0.5]


def test_schedule_refuses_bad_numbers():
    with pytest.raises(ValueError, match="step must be at least 1"):
        warmup_rate(0, 4, peak_lr=1.0)
    with pytest.raises(ValueError, match="warmup must be at least 1, got 0"):
        warmup_rate(1, 0, peak_lr=1.0)
    with pytest.raises(ValueError, match="give d_model or peak_lr"):
        warmup_rate(1, 4)
    with pytest.raises(ValueError, match="give d_model or peak_lr"):
        warmup_rate(1, 4, d_model=8, peak_lr=1.0)
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    with pytest.raises(ValueError, match="after must be one of .* got 'cosine'"):
        warmup_schedule(optimizer, 4, peak_lr=1.0, after="cosine")


def test_adam_is_the_papers_and_fused():
    group = make_optimizer(nn.Linear(3, 2)).param_groups[0]
    assert group["betas"] == (0.9, 0.98) and group["eps"] == 1e-9 and group["fused"]


def test_adamw_decays_matrices_only():
    layer = nn.Sequential(nn.Linear(3, 2), nn.LayerNorm(2))
    optimizer = make_optimizer(layer, "adamw", weight_decay=0.5)
    decays = {
        tuple(p.shape): g["weight_decay"] for g in optimizer.param_groups for p in g["params"]
    }
    assert decays == {(2, 3): 0.5, (2,): 0.0}


def test_make_optimizer_refuses_bad_arguments():
    with pytest.raises(ValueError, match="optimizer must be one of .* got 'sgd'"):
        make_optimizer(nn.Linear(2, 2), "sgd")
    with pytest.raises(ValueError, match="weight_decay must be 0 with adam, got 0.1"):
        make_optimizer(nn.Linear(2, 2), "adam", weight_decay=0.1)
    with pytest.raises(ValueError, match="model must have at least one parameter"):
        make_optimizer(nn.Linear(2, 2).requires_grad_(False))


# ---------------------------------------------------------------- configuration


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"steps": None}, "steps, epochs or seconds must be given"),
        ({"steps": 0}, "steps must be at least 1, got 0"),
        ({"accumulate": 0}, "accumulate must be at least 1, got 0"),
        ({"patience": -1}, "patience must be at least 1, got -1"),
        ({"lr": 0.0}, "lr must be above 0 and finite, got 0.0"),
        ({"lr": math.nan}, "lr must be above 0 and finite, got nan"),
        ({"clip": -1.0}, "clip must be above 0 and finite, got -1.0"),
        ({"lr": math.inf}, "lr must be above 0 and finite, got inf"),
        ({"seconds": math.inf}, "seconds must be above 0 and finite, got inf"),
        ({"seed": -1}, r"seed must be in 0 … 2\*\*63 - 1, got -1"),
        ({"betas": (0.9, 1.0)}, r"betas must be two numbers in \[0, 1\), got \(0.9, 1.0\)"),
        ({"betas": (0.9,)}, r"betas must be two numbers in \[0, 1\), got \(0.9,\)"),
        ({"weight_decay": -0.1}, "weight_decay must be at least 0 and finite, got -0.1"),
        ({"weight_decay": math.inf}, "weight_decay must be at least 0 and finite, got inf"),
        ({"label_smoothing": 1.0}, r"label_smoothing must be in \[0, 1\), got 1.0"),
        ({"precision": "int8"}, "precision must be one of .* got 'int8'"),
        ({"optimizer": "sgd"}, "optimizer must be one of .* got 'sgd'"),
        ({"schedule": "cosine"}, "schedule must be one of .* got 'cosine'"),
        ({"best_by": "luck"}, "best_by must be one of .* got 'luck'"),
    ],
)
def test_config_refuses_values_out_of_range(fields, message, unchecked):
    with pytest.raises(ValueError, match=message):
        config(**fields)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"steps": 2.5}, "steps must be an integer or None, but is 2.5"),
        ({"lr": "1e-3"}, "lr must be a number or None, but is '1e-3'"),
        ({"betas": 0.9}, "betas must be a sequence, but is 0.9"),
        ({"warmup": True}, "warmup must be an integer, but is True"),
    ],
)
def test_values_of_another_type_are_refused(unchecked, fields, message):
    with pytest.raises(TypeError, match=message):
        config(**fields)


def test_compile_is_a_yes_or_a_no(unchecked):
    with pytest.raises(TypeError, match="compile must be true or false, but is 'no'"):
        config(compile="no")
    assert "compile" not in config(compile=True).what_decides()  # a run may go on without


def test_config_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError, match="steps"):
        config().steps = 3


def test_trainer_refuses_arguments_that_do_not_fit():
    batches = BucketedBatches(copy_examples(), batch_size=5)
    with pytest.raises(ValueError, match="metric must be given if best_by is 'score'"):
        trainer(tiny_model(), batches, best_by="score")
    with pytest.raises(ValueError, match="valid must be given if patience is"):
        trainer(tiny_model(), batches, patience=2)
    with pytest.raises(ValueError, match="precision must not be float16 with fsdp"):
        Trainer(tiny_model(), batches, config(precision="float16"), pad_id=0, sharding="fsdp")
    with pytest.raises(ValueError, match="lr must be given where there is no d_model"):
        Trainer(nn.Linear(2, 2), batches, config(lr=None), pad_id=0)
    with pytest.raises(ValueError, match="train must deal its batches to world_size = 1 .* has 2"):
        trainer(tiny_model(), BucketedBatches(copy_examples(), batch_size=5, world_size=2))
    with pytest.raises(ValueError, match="train must hold at least one batch"):
        trainer(tiny_model(), []).fit()


# ---------------------------------------------------------------- loop


def gradients_after(model, batches, **fields):
    """Gradients of the first update, seen in Adam's first moment (0.1 of them), and the run."""
    run = trainer(model, batches, steps=1, clip=None, **fields)
    run.fit()
    state = run.updater.optimizer.state
    return {name: state[p]["exp_avg"].clone() for name, p in model.named_parameters()}, run


def joined(batches):
    """The sentences of several batches in one, padded to the longest of all."""
    width_s = max(b.src.shape[1] for b in batches)
    width_t = max(b.tgt.shape[1] for b in batches)
    return Batch(
        torch.cat([F.pad(b.src, (0, width_s - b.src.shape[1])) for b in batches]),
        torch.cat([F.pad(b.tgt, (0, width_t - b.tgt.shape[1])) for b in batches]),
    )


def test_four_small_batches_are_one_large_one():
    # Sorted by length: the first batch has far fewer tokens than the last, so a mean of means
    # would weight them wrongly.
    batches = list(BucketedBatches(copy_examples(24), batch_size=6, shuffle=False))
    assert len(batches) == 4
    assert batches[-1].num_tokens > 3 * batches[0].num_tokens
    model = tiny_model().double()
    many, run = gradients_after(copy.deepcopy(model), batches, accumulate=4)
    one, whole = gradients_after(copy.deepcopy(model), [joined(batches)])
    for name in one:
        torch.testing.assert_close(many[name], one[name], rtol=1e-9, atol=1e-12)
    assert run.history[0].loss == pytest.approx(whole.history[0].loss, rel=1e-6)
    assert run.tokens == whole.tokens == sum(b.num_tokens for b in batches)


def test_mean_of_means_would_be_wrong_here():
    """The check above can fail: weighting by batch gives another gradient on the same data."""
    batches = list(BucketedBatches(copy_examples(24), batch_size=6, shuffle=False))
    model = tiny_model().double()
    right, _ = gradients_after(copy.deepcopy(model), [joined(batches)])
    wrong = copy.deepcopy(model)
    for batch in batches:
        total, count = token_loss(wrong(batch.src, batch.tgt_in), batch.tgt_out, PAD, 0.1)
        (total / count / len(batches)).backward()
    name = "decoder.embeddings.tokens.weight"
    moment = 0.1 * dict(wrong.named_parameters())[name].grad
    assert (moment - right[name]).norm() > 0.01 * right[name].norm()


def test_the_first_updates_are_those_written_by_hand():
    """Two: to one alone Adam's answer is the same whatever the gradient's norm."""
    batches = list(BucketedBatches(copy_examples(), batch_size=5))[:2]
    model = tiny_model().double()  # some gradients are 0 but for rounding, and Adam divides
    byhand = copy.deepcopy(model)
    trainer(model, batches, steps=2, clip=0.01, warmup=4, lr=0.1).fit()
    adam = torch.optim.Adam(byhand.parameters(), betas=(0.9, 0.98), eps=1e-9)
    for step, batch in enumerate(batches, 1):
        logits = byhand(batch.src, batch.tgt_in)
        adam.zero_grad()
        F.cross_entropy(
            logits.transpose(1, 2), batch.tgt_out, ignore_index=0, label_smoothing=0.1
        ).backward()
        assert nn.utils.clip_grad_norm_(byhand.parameters(), 0.01) > 0.02
        adam.param_groups[0]["lr"] = 0.1 * step / 4
        adam.step()
    for mine, other in zip(model.parameters(), byhand.parameters(), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-7, atol=1e-9)


def test_history_says_what_happened():
    batches = BucketedBatches(copy_examples(), batch_size=5, seed=1)
    run = trainer(tiny_model(), batches, steps=9, log_every=4, clip=None)
    history = run.fit()
    assert [r.step for r in history] == [4, 8, 9]  # the last, shorter one is not lost
    assert [r.epoch for r in history] == [0, 0, 1]
    expected = [warmup_rate(step, 4, peak_lr=1e-3) for step in (4, 8, 9)]
    assert [r.lr for r in history] == pytest.approx(expected)
    assert history[-1].tokens == run.tokens > history[0].tokens > 0
    assert all(r.grad_norm > 0 and r.seconds > 0 for r in history)
    assert history[0].loss > 0 and isinstance(history[0], Record)


def test_a_record_averages_over_its_tokens():
    batches = list(BucketedBatches(copy_examples(), batch_size=5, shuffle=False))
    each = trainer(tiny_model(), batches, steps=4, log_every=1).fit()
    all_four = trainer(tiny_model(), batches, steps=4, log_every=4).fit()
    weights = [b.num_tokens for b in batches[:4]]
    mean = sum(r.loss * w for r, w in zip(each, weights, strict=False)) / sum(weights)
    assert all_four[0].loss == pytest.approx(mean, rel=1e-5)


def test_it_learns():
    batches = BucketedBatches(copy_examples(60, longest=5), batch_size=15)
    model = tiny_model(d_model=24, num_encoder_layers=1, d_ff=48)
    run = trainer(model, batches, steps=150, lr=1e-2, warmup=20, label_smoothing=0.0)
    history = run.fit()
    assert history[0].loss > 2.5
    assert history[-1].loss < 0.5


def test_paper_rate_without_lr():
    run = trainer(tiny_model(), BucketedBatches(copy_examples(), batch_size=5), lr=None, steps=2)
    assert [r.lr for r in run.fit()] == pytest.approx(
        [warmup_rate(step, 4, d_model=12) for step in (1, 2)]
    )


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_half_precision_follows_float32(precision):
    batches = list(BucketedBatches(copy_examples(), batch_size=8, shuffle=False))
    exact = trainer(tiny_model(), batches, steps=5).fit()
    half = trainer(tiny_model(), batches, steps=5, precision=precision).fit()
    assert [r.loss for r in half] == pytest.approx([r.loss for r in exact], rel=0.02)
    assert [r.loss for r in half] != [r.loss for r in exact]
    # The scale of float16 has to be taken out before clipping.
    assert [r.grad_norm for r in half] == pytest.approx([r.grad_norm for r in exact], rel=0.1)


def test_padding_computed_or_left_out_is_the_same_update():
    """What an accelerator does, and what a CPU does."""
    batch = joined(list(BucketedBatches(copy_examples(7), batch_size=1)))
    assert batch.num_tokens < 0.7 * batch.tgt_out.numel()
    model, losses, gradients = tiny_model().double(), [], []
    for packs in (True, False):
        each = copy.deepcopy(model)
        updater = Updater(each, config(), pad_id=PAD, device=torch.device("cpu"))
        assert updater.packs  # on a CPU
        updater.packs = packs
        loss = updater._loss(batch)
        losses.append(loss)
        gradients.append(torch.autograd.grad(loss, each.parameters()))
    torch.testing.assert_close(*losses, rtol=1e-12, atol=0)
    for ours, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-10)


@pytest.mark.parametrize("fields", [{}, {"positions": "rotary"}, {"backend": "explicit"}])
def test_an_accelerator_need_not_wait_for_any_number(fields):
    """On the device "meta" there are none: a shape that depended on one would raise."""
    device = torch.device("meta")
    updater = Updater(tiny_model(dropout=0.1, **fields), config(), pad_id=PAD, device=device)
    batch = joined(list(BucketedBatches(copy_examples(7), batch_size=1)))
    assert updater.update([batch, batch]) == 2 * batch.num_tokens
    assert all(p.device == device for p in updater.model.parameters())
    assert updater.loss_sum.device == updater.grad_norm.device == device


def test_a_gpu_gets_its_batches_from_pinned_memory():
    calls = []

    class Spy(Batch):
        def pin_memory(self):
            calls.append("pinned")
            return self

        def to(self, device, non_blocking=False):
            calls.append((device.type, non_blocking))
            return self

    batch = Spy(torch.tensor([[3, 2]]), torch.tensor([[1, 6, 2]]))
    updater = Updater(tiny_model(), config(), pad_id=PAD, device=torch.device("cpu"))
    updater.to_device(batch)
    updater.device = torch.device("cuda")
    updater.to_device(batch)
    assert calls == [("cpu", False), "pinned", ("cuda", True)]


@pytest.mark.parametrize("sharding", ["ddp", "fsdp"])
def test_a_model_is_sharded_before_it_is_moved(sharding, tmp_path, monkeypatch):
    """With copies the whole model is moved; with shards each part when it is cut, none before."""
    from torch.distributed import fsdp

    calls, shard = [], fsdp.fully_shard

    def spy(part, *, mesh):
        calls.append((type(part).__name__, mesh.device_type))
        return shard(part, mesh=mesh)

    monkeypatch.setattr(fsdp, "fully_shard", spy)
    model = tiny_model()
    for name in ("to", "_apply"):  # the second is what `.cuda()` and the like come down to
        monkeypatch.setattr(model, name, lambda *_, name=name: calls.append(name))
    store = torch.distributed.FileStore(str(tmp_path / "store"), 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        Updater(model, config(), pad_id=PAD, device=torch.device("cpu"), sharding=sharding)
    finally:
        torch.distributed.destroy_process_group()
    if sharding == "ddp":
        assert calls == ["to"]
    else:
        parts = ["EncoderLayer", "MultiHeadAttention", "FeedForward", "Transformer"]
        assert calls == [(part, "cpu") for part in parts]


def test_weights_stay_in_float32_under_autocast():
    model = tiny_model()
    trainer(model, BucketedBatches(copy_examples(), batch_size=5), precision="bfloat16").fit()
    assert {p.dtype for p in model.parameters()} == {torch.float32}


def test_epochs_end_training_and_evaluate_each_time():
    batches = BucketedBatches(copy_examples(), batch_size=7)
    run = trainer(tiny_model(), batches, steps=None, epochs=3, accumulate=4, valid=batches)
    run.fit()
    assert len(batches) == 6 and run.step == 3 * 2  # the second group of an epoch is short
    assert [e.step for e in run.evaluations] == [2, 4, 6]
    assert [e.epoch for e in run.evaluations] == [1, 2, 3]
    assert run.evaluations[-1].loss < run.evaluations[0].loss
    assert run.tokens == 3 * sum(b.num_tokens for b in batches)


def test_batches_that_do_not_know_their_number_end_an_epoch():
    examples = copy_examples()

    class Stream(IterableDataset):
        def __iter__(self):
            return iter(BucketedBatches(examples, batch_size=7))

    run = trainer(tiny_model(), DataLoader(Stream(), batch_size=None), steps=None, epochs=2)
    run.fit()
    assert run.epoch == 2 and run.step == 12


def test_seconds_end_training():
    batches = BucketedBatches(copy_examples(), batch_size=5)
    run = trainer(tiny_model(), batches, steps=None, seconds=0.05)
    run.fit()
    assert 0.05 <= run.seconds < 5 and run.step > 0


def test_evaluation_time_is_not_training_time(monkeypatch):
    clock = [0.0]  # of the test's own, so that a busy machine makes no difference
    monkeypatch.setattr("src.training.trainer.time.perf_counter", lambda: clock[0])

    def slow(model):
        clock[0] += 100.0
        return 0.0

    def train(trainer, event):
        if isinstance(event, Record):
            clock[0] += 1.0

    batches = BucketedBatches(copy_examples(), batch_size=5)
    run = trainer(tiny_model(), batches, steps=2, eval_every=1, metric=slow, callbacks=[train])
    run.fit()
    assert len(run.evaluations) == 2 and run.seconds < 100


def test_epochs_come_in_new_orders_and_runs_repeat():
    def losses(seed):
        torch.manual_seed(7)
        batches = BucketedBatches(copy_examples(), batch_size=5, seed=3)
        run = trainer(tiny_model(dropout=0.3), batches, steps=20, seed=seed)
        return [r.loss for r in run.fit()]

    assert losses(1) == losses(1)
    assert losses(1) != losses(2)  # dropout


def test_every_epoch_is_announced_to_the_batches():
    class Announced(list):
        epochs = []

        def set_epoch(self, epoch):
            self.epochs.append(epoch)

    batches = Announced(list(BucketedBatches(copy_examples(), batch_size=20)))
    trainer(tiny_model(), batches, steps=None, epochs=3).fit()
    assert batches.epochs == [0, 1, 2]


def test_the_best_loss_is_the_least(tmp_path, monkeypatch):
    losses = iter([2.0, 1.0, 3.0])
    monkeypatch.setattr("src.training.trainer.evaluate", lambda *arguments: next(losses))
    batches = BucketedBatches(copy_examples(), batch_size=20)
    run = trainer(tiny_model(), batches, steps=3, eval_every=1, valid=batches, directory=tmp_path)
    run.fit()
    assert read_header(tmp_path / "best.safetensors")["state"]["loss"] == 1.0
    assert run.best == -1.0 and run.stale == 1


def test_patience_stops_and_is_off_by_default():
    scores = iter([1.0, 3.0, 2.0, 2.5, 9.0, 9.5])
    batches = BucketedBatches(copy_examples(), batch_size=5)
    run = trainer(
        tiny_model(),
        batches,
        steps=6,
        eval_every=1,
        patience=2,
        best_by="score",
        metric=lambda model: next(scores),
    )
    run.fit()
    assert [e.score for e in run.evaluations] == [1.0, 3.0, 2.0, 2.5] and run.step == 4
    worse = iter(range(0, -9, -1))
    run = trainer(
        tiny_model(),
        batches,
        steps=6,
        eval_every=1,
        best_by="score",
        metric=lambda model: next(worse),
    )
    run.fit()
    assert run.step == 6


def test_best_weights_are_kept(tmp_path):
    from safetensors.torch import load_file

    seen, scores = [], iter([1.0, 3.0, 2.0])

    def metric(model):
        seen.append(copy.deepcopy(model.state_dict()))
        return next(scores)

    batches = BucketedBatches(copy_examples(), batch_size=5)
    trainer(
        tiny_model(),
        batches,
        steps=3,
        eval_every=1,
        best_by="score",
        metric=metric,
        directory=tmp_path,
    ).fit()
    best = load_file(tmp_path / "best.safetensors")
    last = load_file(tmp_path / "last.safetensors")
    name = "encoder.embeddings.tokens.weight"
    assert torch.equal(best[f"model.{name}"], seen[1][name])
    assert torch.equal(last[f"model.{name}"], seen[2][name])


def test_callbacks_get_records_and_evaluations():
    events = []
    batches = BucketedBatches(copy_examples(), batch_size=5)
    run = trainer(
        tiny_model(),
        batches,
        steps=2,
        eval_every=2,
        valid=batches,
        callbacks=[lambda trainer, event: events.append((trainer.step, event))],
    )
    run.fit()
    assert [(step, type(event)) for step, event in events] == [
        (1, Record),
        (2, Record),
        (2, Evaluation),
    ]


def test_stop_ends_after_the_update():
    def stop(trainer, event):
        if event.step == 3:
            trainer.stop()

    batches = BucketedBatches(copy_examples(), batch_size=5)
    run = trainer(tiny_model(), batches, steps=50, callbacks=[stop])
    assert len(run.fit()) == 3 and run.stopped


def test_loss_that_is_not_finite_raises_and_is_not_saved(tmp_path):
    batches = BucketedBatches(copy_examples(), batch_size=5)
    model = tiny_model()

    def poison(trainer, event):
        if event.step == 2:
            with torch.no_grad():
                next(model.parameters()).fill_(math.nan)

    run = trainer(model, batches, save_every=1, directory=tmp_path, callbacks=[poison])
    with pytest.raises(FloatingPointError, match="the loss is nan at update 3: try a lower lr"):
        run.fit()
    fresh = trainer(tiny_model(), batches, directory=tmp_path)
    assert fresh.resume() and fresh.step == 2
    assert all(r.loss == r.loss for r in fresh.history)


def test_a_gradient_that_is_not_finite_raises_before_anything_is_saved(tmp_path):
    """The loss of the update that destroys the weights is still finite."""
    batches = BucketedBatches(copy_examples(), batch_size=5)
    model, calls = tiny_model(), []

    def poison(grad):
        calls.append(1)
        return grad * math.nan if len(calls) == 3 else grad

    next(model.parameters()).register_hook(poison)
    run = trainer(model, batches, valid=batches, eval_every=1, directory=tmp_path / "run")
    with pytest.raises(FloatingPointError, match="norm of the gradients is nan at update 3"):
        run.fit()
    for name in ("last", "best"):
        saved = load_file(tmp_path / "run" / f"{name}.safetensors")
        assert all(tensor.isfinite().all() for tensor in saved.values())
    fresh = trainer(tiny_model(), batches, valid=batches, directory=tmp_path / "run")
    assert fresh.resume() and fresh.step == 2


def test_a_run_resumed_at_an_epochs_end_looks_no_second_time(tmp_path):
    batches = BucketedBatches(copy_examples(), batch_size=5)
    steps = len(batches)

    def looks(run):
        return [found.step for found in run.evaluations]

    common = {"valid": batches, "eval_every": None, "patience": 50, "directory": tmp_path}
    trainer(tiny_model(), batches, steps=steps, **common).fit()
    resumed = trainer(tiny_model(), batches, steps=3 * steps, **common)
    assert resumed.resume()
    resumed.fit()
    assert looks(resumed) == [steps, 2 * steps, 3 * steps]


def test_the_bar_runs_over_seconds_where_these_alone_say_when_to_end(capsys):
    batches = BucketedBatches(copy_examples(), batch_size=5)
    settings = config(steps=None, seconds=1.2)
    Trainer(tiny_model(), batches, settings, pad_id=PAD, device="cpu", progress=True).fit()
    bar = capsys.readouterr().err
    assert "2/2" not in bar and "1/2 [" in bar  # seconds, of which the second is not full


def test_resume_says_what_it_needs(tmp_path):
    batches = BucketedBatches(copy_examples(), batch_size=5)
    with pytest.raises(ValueError, match="path must be given where the trainer has no directory"):
        trainer(tiny_model(), batches).resume()
    run = trainer(tiny_model(), batches, valid=batches, steps=2, eval_every=2, directory=tmp_path)
    run.fit()
    with pytest.raises(CheckpointError, match="best.safetensors holds weights alone"):
        run.resume(tmp_path / "best.safetensors")


# ---------------------------------------------------------------- evaluation


def test_evaluate_is_the_mean_over_tokens_without_dropout_or_smoothing():
    batches = BucketedBatches(copy_examples(), batch_size=6)
    model = tiny_model(dropout=0.5)
    loss = evaluate(model, batches, PAD)
    whole = joined(list(batches))
    model.eval()
    expected = F.cross_entropy(
        model(whole.src, whole.tgt_in).transpose(1, 2), whole.tgt_out, ignore_index=PAD
    )
    assert loss == pytest.approx(expected.item(), rel=1e-5)
    with pytest.raises(ValueError, match="at least one real target token"):
        evaluate(model, [], PAD)


def test_every_part_comes_back_in_its_own_mode():
    batches = BucketedBatches(copy_examples(), batch_size=5)
    model = tiny_model(dropout=0.1)
    model.train()
    model.encoder.eval()  # frozen by hand
    before = [module.training for module in model.modules()]
    evaluate(model, batches, PAD)
    assert [module.training for module in model.modules()] == before
    model.eval()
    trainer(model, batches, steps=2, valid=batches).fit()
    assert not any(module.training for module in model.modules())
    with pytest.raises(KeyError, match="inside"), switched(model, training=True):
        assert model.training
        raise KeyError("inside")
    assert not model.training


def test_metric_sees_eval_mode_and_training_goes_on_in_train_mode():
    modes = []
    batches = BucketedBatches(copy_examples(), batch_size=5)
    model = tiny_model(dropout=0.1)
    trainer(
        model,
        batches,
        steps=2,
        eval_every=1,
        metric=lambda m: modes.append(m.training) or 0.0,
        callbacks=[lambda t, e: modes.append(("callback", t.model.training))],
    ).fit()
    assert modes == [("callback", True), False, ("callback", True)] * 2


def test_pick_device_is_usable():
    device = pick_device()
    assert torch.zeros(2, device=device).device.type == device.type
    if not torch.cuda.is_available() and not torch.backends.mps.is_available():
        assert device.type == "cpu"
    assert pick_device("cpu") == torch.device("cpu")
    for name in ("abacus", "cuda:77"):
        with pytest.raises(ValueError, match=f"device must be usable here, but {name} is not"):
            pick_device(name)


@pytest.mark.gpu
def test_trains_on_the_gpu_in_every_precision():
    for precision in ("float32", "bfloat16", "float16"):
        batches = BucketedBatches(copy_examples(), batch_size=5)
        run = Trainer(
            tiny_model(),
            batches,
            config(precision=precision, steps=8),
            pad_id=PAD,
            valid=batches,
            progress=False,
        )
        history = run.fit()
        assert run.updater.device.type == "cuda"
        assert all(math.isfinite(r.loss) for r in history)
        assert run.evaluations[-1].loss < history[0].loss
