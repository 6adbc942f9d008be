"""What only a GPU can show: kernels, precisions, waits, a compiler, NCCL.

Nearly every test runs on the CPU, too, where it shows little but that the test itself works.
"""

import copy
from functools import partial

import pytest
import torch
import torch.distributed as dist

import processes
from src.data.batches import Batch, BucketedBatches
from src.decoding import beam_search, greedy
from src.training.optimization import token_loss
from src.training.trainer import Trainer
from src.training.updater import Updater
from toy_training import PAD, config, copy_examples, tiny_model

CUDA = pytest.param("cuda", marks=pytest.mark.gpu)
DEVICES = pytest.mark.parametrize("device", ["cpu", CUDA])
HALVES = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
IDS = {"bos_id": 1, "eos_id": 2, "pad_id": PAD}
# Logits lie within about ±3. They differ by what rounding to 8 or 11 bits leaves after 2 layers.
TOLERANCE = {torch.bfloat16: 0.1, torch.float16: 0.02}


def a_batch():
    """Sentences of unequal lengths, and a source without a single token."""
    batch = next(iter(BucketedBatches(copy_examples(7), batch_size=7)))
    batch.src[3] = PAD
    return batch


def losses(run):
    return [record.loss for record in run.fit()]


# ---------------------------------------------------------------- compiled


def compare_compiled(device, backend, folder):
    """Train with and without the compiler; run by the test below in a process of its own."""
    batches = list(BucketedBatches(copy_examples(20), batch_size=5))
    if backend:
        torch.compile = partial(torch.compile, backend=backend)
    runs = [
        Trainer(
            tiny_model(),
            batches,
            config(steps=4, compile=compiled),
            pad_id=PAD,
            device=device,
            valid=batches,
            directory=folder,
            progress=False,
        )
        for compiled in (False, True)
    ]
    near = {"rtol": 0, "atol": 1e-6 if device == "cpu" else 1e-4}
    plain, compiled = map(losses, runs)
    torch.testing.assert_close(torch.tensor(compiled), torch.tensor(plain), **near)
    assert runs[1].evaluations[-1].loss == pytest.approx(runs[0].evaluations[-1].loss, abs=1e-4)
    batch = a_batch().to(device)
    logits = runs[1].updater.forward(batch.src, batch.tgt_in)
    torch.testing.assert_close(logits, runs[1].model(batch.src, batch.tgt_in), **near)
    assert torch._dynamo.utils.counters["frames"]["ok"] >= 2  # the model and the loss
    # A run goes on without the compiler, from a checkpoint whose names know nothing of it.
    longer = Trainer(
        tiny_model(),
        batches,
        config(steps=5),
        pad_id=PAD,
        device=device,
        directory=folder,
        progress=False,
    )
    assert longer.resume() and longer.step == 4
    assert len(longer.fit()) == 5


@pytest.mark.slow
@pytest.mark.parametrize(
    ("device", "backend"),
    [("cpu", "eager"), pytest.param("cuda", None, marks=pytest.mark.gpu)],
)
def test_compiled_training_is_training(device, backend, tmp_path):
    """In a process of its own: the annotations' checks of this one cannot be compiled."""
    out = tmp_path / "out.txt"
    process = processes.start(compare_compiled, device, backend, str(tmp_path), out=out)
    assert processes.finished(process) == [0], out.read_text()
    assert "recompile_limit" not in out.read_text()


# ---------------------------------------------------------------- half precision


@DEVICES
@HALVES
def test_the_whole_model_in_half_precision_is_near_float32(device, dtype):
    """Forward and backward, with a source that is padding alone, so that its rows have no key."""
    layers = {"num_encoder_layers": 2, "num_decoder_layers": 2}
    exact = tiny_model(**layers).to(device)
    half = copy.deepcopy(exact).to(dtype)
    batch = a_batch().to(device)
    real = batch.tgt_out != PAD
    wanted, found = (model(batch.src, batch.tgt_in) for model in (exact, half))
    assert found.dtype == dtype and bool(found.isfinite().all())
    torch.testing.assert_close(found[real].float(), wanted[real], rtol=0, atol=TOLERANCE[dtype])
    for logits in (wanted, found):
        (token_loss(logits, batch.tgt_out, PAD)[0] / batch.num_tokens).backward()
    wanted, found = (
        torch.cat([p.grad.flatten().float() for p in model.parameters()]) for model in (exact, half)
    )
    assert bool(found.isfinite().all())
    assert (found - wanted).norm() < 0.1 * wanted.norm()


@DEVICES
@HALVES
@pytest.mark.parametrize("positions", ["sinusoidal", "rotary"])
@torch.no_grad()
def test_cached_steps_in_half_precision_are_the_full_pass(device, dtype, positions):
    model = tiny_model(positions=positions).to(device, dtype).eval()
    batch = a_batch().to(device)
    cache = model.new_cache(batch.src)
    steps = torch.cat([model.decode_cached(t, cache) for t in batch.tgt_in.split(1, 1)], 1)
    full = model(batch.src, batch.tgt_in)
    assert steps.dtype == dtype
    torch.testing.assert_close(steps.float(), full.float(), rtol=0, atol=TOLERANCE[dtype])


# ---------------------------------------------------------------- decoding


@DEVICES
@pytest.mark.parametrize("decode", [greedy, beam_search])
def test_a_model_says_the_same_on_each_device(device, decode):
    """After a few updates: a fresh model's words are near ties, which rounding may decide."""
    batches = list(BucketedBatches(copy_examples(), batch_size=20))
    model = tiny_model()
    Trainer(
        model, batches, config(steps=30, lr=0.02), pad_id=PAD, device="cpu", progress=False
    ).fit()
    model.eval()
    there, src = copy.deepcopy(model).to(device), batches[0].src
    more = {"beam_size": 3} if decode is beam_search else {}
    found = []
    for each, ids in ((model, src), (there, src.to(device))):
        said = decode(each.stepper(ids), len(ids), max_len=9, **IDS, **more)
        found.append(said.tokens if decode is beam_search else said)
    assert found[1].device.type == device
    assert torch.equal(found[1].cpu(), found[0])
    assert len(found[0].unique(dim=0)) > 3  # not one sentence for all


# ---------------------------------------------------------------- the trainer


@pytest.mark.gpu
def test_a_training_pass_never_waits_for_the_gpu():
    """Copy, forward, loss and backward; `test_training` shows it without a GPU, but for copies."""
    updater = Updater(tiny_model(dropout=0.1), config(), pad_id=PAD, device=torch.device("cuda"))
    batch = a_batch()
    updater._loss(batch).backward()  # what is set up once may wait
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        updater._loss(batch).backward()
    finally:
        torch.cuda.set_sync_debug_mode(before)


class Immovable(Batch):
    """A batch that nobody may copy to a device."""

    def to(self, *arguments, **options):
        raise AssertionError("copied before it was checked")

    pin_memory = to


@DEVICES
@pytest.mark.parametrize("side", ["src", "tgt"])
@pytest.mark.parametrize("wrong", [-1, 17])
def test_ids_out_of_range_never_reach_the_device(device, side, wrong):
    ids = {"src": torch.tensor([[3, 2]]), "tgt": torch.tensor([[1, 6, 2]])}
    ids[side][0, -1] = wrong  # of a target, the answer to its last question
    model, size = tiny_model(), {"src": 13, "tgt": 17}[side]
    message = f"{side} ids must lie in 0 … {size - 1}, but span"
    good = Batch(torch.tensor([[3, 2]]), torch.tensor([[1, 6, 2]]))
    for train, valid in (([Immovable(**ids)], None), ([good], [Immovable(**ids)])):
        run = Trainer(
            model, train, config(steps=1), pad_id=PAD, device=device, valid=valid, progress=False
        )
        with pytest.raises(ValueError, match=message):
            run.fit()
        assert run.step == (train == [good])


@DEVICES
@pytest.mark.parametrize("sharding", ["ddp", "fsdp"])
def test_a_group_of_one_trains_as_without_a_group(device, sharding, tmp_path):
    batches = list(BucketedBatches(copy_examples(), batch_size=5))

    def run(sharding):
        return losses(
            Trainer(
                tiny_model(),
                batches,
                config(accumulate=2),
                pad_id=PAD,
                device=device,
                sharding=sharding,
                progress=False,
            )
        )

    wanted = run("ddp")
    backend = "gloo" if device == "cpu" else "cpu:gloo,cuda:nccl"
    store = dist.FileStore(str(tmp_path / "store"), 1)
    dist.init_process_group(backend, store=store, rank=0, world_size=1)
    try:
        assert run(sharding) == pytest.approx(wanted, rel=1e-5 if device == "cpu" else 1e-4)
    finally:
        dist.destroy_process_group()
