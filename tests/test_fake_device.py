"""The GPU path without a GPU: where everything lies, and what waits for the device.

Two stand-ins. *Fake* tensors claim to be on a GPU and obey every operator's rules on shape, dtype
and device, but hold no numbers. *Pretended* tensors hold numbers and are on the CPU, but say that
they are on a GPU, so that the code goes the way it goes there. What only kernels can show, and
what happens on the GPU in earnest, is in `test_gpu`.
"""

import sys
from collections import Counter
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

import src
from src import masks
from src.applications import classification
from src.applications.classification import TokenClassifier
from src.applications.vision import PatchTransformer
from src.config import RecurrentConfig
from src.data.batches import Batch, BucketedBatches
from src.data.tokenization import WordTokenizer
from src.decoding import beam_search, greedy, sample
from src.functional import attention
from src.layers import AddNorm
from src.padding import Padding
from src.pooling import KernelRegression
from src.recurrent import AttentionSeq2Seq
from src.scoring import AdditiveScore, BilinearScore, DotScore, ScaledDotScore, attend
from src.training import checkpoints
from src.training.checkpoints import load_checkpoint, save_checkpoint
from src.training.evaluation import evaluate, translate
from src.training.optimization import make_optimizer, token_loss
from src.training.trainer import Trainer
from src.training.updater import Updater
from toy_training import PAD, config, copy_examples, tiny_model

GPU, CPU = torch.device("cuda", 0), torch.device("cpu")
SOURCES = str(Path(src.__file__).parent)
B, S, T = 3, 5, 7
IDS = {"bos_id": 1, "eos_id": 2, "pad_id": PAD}


def there(things):
    """Whether all tensors among ``things`` are on the GPU; there has to be one."""
    tensors = [x for x in tree_leaves(things) if isinstance(x, torch.Tensor)]
    return bool(tensors) and all(x.device == GPU for x in tensors)


# ---------------------------------------------------------------- fake tensors


class Watch(TorchDispatchMode):
    """Notes every operator that takes or makes a tensor on the CPU.

    Numbers that are read from the device do not exist: each is ``answer``.
    """

    def __init__(self, answer=None):
        super().__init__()
        self.strays, self.answer = [], answer

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        reads = func in (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.equal.default)
        if reads and self.answer is not None:
            return self.answer
        out = func(*args, **(kwargs or {}))
        for x in tree_leaves((args, kwargs, out)):
            if isinstance(x, torch.Tensor) and x.device.type == "cpu":
                self.strays.append(str(func))
                break
        return out


@pytest.fixture
def fake(monkeypatch):
    """Make every new tensor a fake one, let autocast believe in the GPU, and walk the graph."""
    monkeypatch.setattr("torch.cuda.amp.common.amp_definitely_not_available", lambda: False)
    monkeypatch.setattr("torch.cuda.is_bf16_supported", lambda *_, **__: True)
    monkeypatch.setattr(torch.Tensor, "backward", walk_back)
    with FakeTensorMode() as mode:
        try:
            torch.zeros(2, device=GPU)[0]
        except RuntimeError as error:
            if torch.__version__ >= (2, 14):
                raise
            pytest.skip(f"this PyTorch needs a GPU for fake tensors on one: {error}")
        # The mode remembers tensors by weak references; a parameter that has one cannot be moved.
        monkeypatch.setattr(mode.fake_tensor_converter, "set_tensor_memo", lambda *_: None)
        yield mode


def walk_back(loss):
    """`Tensor.backward` node by node: the engine would start a thread for a device not there."""
    waiting = {loss.grad_fn: [torch.ones_like(loss)]}
    while waiting:
        node = max(waiting, key=lambda node: node._sequence_nr())
        grads = waiting.pop(node)
        if hasattr(node, "variable"):
            leaf = node.variable
            leaf.grad = grads[0] if leaf.grad is None else leaf.grad + grads[0]
            continue
        out = node(*grads)
        for grad, (after, i) in zip(
            out if isinstance(out, tuple) else (out,), node.next_functions, strict=True
        ):
            if after is not None and grad is not None:
                expected = after._input_metadata[i]
                grad = grad.sum_to_size(expected.shape).to(expected.dtype)
                assert grad.device == expected.device
                slots = waiting.setdefault(after, [None] * len(after._input_metadata))
                slots[i] = grad if slots[i] is None else slots[i] + grad


def an_updater(fields=None, **training):
    return Updater(tiny_model(**fields or {}), config(**training), pad_id=PAD, device=GPU)


def ids(rows, length):
    return torch.ones(rows, length, dtype=torch.long, device=GPU)


MODELS = [
    {},
    {"positions": "rotary", "norm_first": True},
    {"positions": "learned", "backend": "explicit", "tie_embeddings": "target"},
]


def test_the_walk_is_the_engine():
    """With numbers, on the CPU: what the tests below call backward is backward."""
    model = tiny_model()
    source, target = torch.randint(3, 13, (B, S)), torch.randint(3, 17, (B, T))
    loss = token_loss(model(source, target), target, PAD, 0.1)[0]
    expected = torch.autograd.grad(loss, list(model.parameters()), retain_graph=True)
    walk_back(loss)
    for parameter, grad in zip(model.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, grad, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("fields", "precision"), list(zip(MODELS, ["float32", "bfloat16", "float32"], strict=True))
)
def test_an_update_stays_on_the_device(fake, fields, precision):
    updater = an_updater({"dropout": 0.1} | fields, precision=precision)
    model = updater.model
    assert there([list(model.parameters()), list(model.buffers()), updater.loss_sum])
    gradients = []
    updater.optimizer.register_step_pre_hook(
        lambda *_: gradients.extend(p.grad for p in model.parameters())
    )
    batch = Batch(ids(B, S), ids(B, T + 1), num_tokens=B * T)
    with Watch() as watch:
        assert updater.update([batch, batch]) == 2 * B * T
    assert watch.strays == []
    assert len(gradients) == len(list(model.parameters())) and there(gradients)
    state = updater.optimizer.state
    assert len(state) == len(gradients) and there(list(state.values()))
    assert there([list(model.parameters()), updater.loss_sum, updater.grad_norm])


@pytest.mark.parametrize("fields", [{}, {"backend": "explicit"}])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_mixed_precision_there_gives_half_logits_and_a_wide_loss(fake, fields, dtype):
    model = tiny_model(**fields).to(GPU)
    scaler = torch.amp.GradScaler("cuda", enabled=dtype == torch.float16)
    optimizer = make_optimizer(model)
    with Watch() as watch:
        with torch.autocast("cuda", dtype):
            logits = model(ids(B, S), ids(B, T))
        loss, count = token_loss(logits, ids(B, T), PAD, 0.1)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
    assert watch.strays == []
    assert logits.dtype == dtype and loss.dtype == torch.float32
    assert there([logits, loss, count, [p.grad for p in model.parameters()]])
    assert {p.grad.dtype for p in model.parameters()} == {torch.float32}


def test_a_batch_is_copied_to_the_device(fake, monkeypatch):
    """What comes before, the look at its ids and page-locked memory, needs what fakes lack."""
    monkeypatch.setattr("src.training.updater.check_ids", lambda *_: None)
    monkeypatch.setattr(Batch, "pin_memory", lambda batch: batch)
    updater = an_updater()
    batch = Batch(ids(B, S).cpu(), ids(B, T).cpu(), num_tokens=1)
    moved = updater.to_device(batch)
    assert there([moved.src, moved.tgt, moved.tgt_in, moved.tgt_out])


@pytest.mark.parametrize(("fields", "padded"), list(zip(MODELS, [False, True, True], strict=True)))
@torch.no_grad()
def test_cached_decoding_stays_on_the_device(fake, fields, padded):
    model = tiny_model(**fields).to(GPU).eval()
    with Watch(answer=not padded) as watch:  # "is there no padding?" is what is asked
        step = model.stepper(ids(B, S))
        cache = step.cache
        logits = [step(ids(B, 1)[:, 0]), model.decode_cached(ids(B, T), cache)]
        watch.answer = True  # "are these the sentences we had?"
        cache.select(torch.arange(B, device=GPU).flip(0))
        logits.append(step(ids(B, 1)[:, 0]))
    assert watch.strays == []
    assert there([logits, cache.memory, [(layer.keys, layer.values) for layer in cache.layers]])
    mask = cache.memory[0].mask
    assert mask is None if not padded else there(mask)
    assert cache.length == T + 2


@pytest.mark.parametrize("fields", MODELS)
def test_maps_stay_on_the_device(fake, fields):
    model = tiny_model(**fields).to(GPU).eval()
    with Watch() as watch:
        maps = model.attention_maps(ids(B, S), ids(B, T))
    assert watch.strays == []
    assert [len(part) for part in maps.values()] == [1, 1, 1] and there(maps)


def test_masks_are_made_where_they_are_used(fake):
    with Watch(answer=1) as watch:  # lengths are looked at: from 1 to 1
        padding = masks.padding_mask(ids(B, S), PAD)
        made = [
            padding,
            masks.length_mask(ids(B, 1)[:, 0], S),
            masks.valid_lens_mask(ids(B, T), S),
            masks.causal_mask(T, device=GPU),
            masks.window_mask(T, S + T, left=1, device=GPU),
            masks.from_key_padding_mask(padding[:, 0]),
            masks.to_additive(padding, torch.float16),
            masks.from_additive(masks.to_additive(padding, torch.float32)),
        ]
    assert watch.strays == []
    assert all(there(mask) for mask in made)


@pytest.mark.parametrize("backend", ["sdpa", "explicit"])
@pytest.mark.parametrize("num_keys", [T, T + 2])
def test_attention_builds_its_causal_mask_there(fake, backend, num_keys):
    query, key = (torch.zeros(B, n, 4, device=GPU) for n in (T, num_keys))
    with Watch() as watch:
        output = attention(query, key, key, is_causal=True, backend=backend, dropout=0.1)
    assert watch.strays == []
    assert there(output)


def test_scores_and_kernels_stay_on_the_device(fake):
    scores = [DotScore(), ScaledDotScore(), BilinearScore(4, 4), AdditiveScore(4, 4, 6)]
    scores = [score.to(GPU) for score in scores]
    with GPU:  # a constant cannot be moved
        regression = KernelRegression(1.0, "triangle")
    x, query, mask = (
        torch.zeros(S, device=GPU),
        torch.zeros(B, S, 4, device=GPU),
        torch.ones(B, 1, S, dtype=torch.bool, device=GPU),
    )
    with Watch(answer=True) as watch:  # "are all widths and weights above 0?"
        outputs = [attend(score, query, query, query, mask) for score in scores]
        outputs.append(regression(x, x, x, leave_one_out=True))
    assert watch.strays == []
    assert all(there(output) for output in outputs)


def test_classifiers_stay_on_the_device(fake):
    image = PatchTransformer((4, 6), 2, 3, d_model=8, num_heads=2, d_ff=8).to(GPU)
    token = TokenClassifier(tiny_model().config, 3).to(GPU)
    with Watch() as watch:
        outputs = [image(torch.zeros(B, 1, 4, 6, device=GPU)), token(ids(B, S))]
    assert watch.strays == []
    assert all(there(output) for output in outputs)


def test_nothing_is_packed_there(fake):
    """An accelerator would have to tell how many tokens are real; any read of it would raise."""
    assert not Padding(ids(B, S) == 1, packed=True).packed
    assert not an_updater().packs


def test_a_checkpoint_goes_to_the_cpu_and_comes_back(fake, monkeypatch, tmp_path):
    """The file itself would need numbers; `test_checkpoints` writes and reads it."""
    updater = an_updater({"tie_embeddings": "target"})
    model = updater.model
    updater.update([Batch(ids(B, S), ids(B, T), num_tokens=B)])
    files = {}
    monkeypatch.setattr(
        checkpoints, "_replace", lambda path, tensors, header: files.update({path: tensors})
    )
    path = tmp_path / "last.safetensors"
    save_checkpoint(path, model, config={}, optimizer=updater.optimizer)
    tensors = files[path]
    assert len(tensors) > 3 * len(list(model.parameters()))
    assert {x.device for x in tensors.values()} == {CPU}
    aliases = checkpoints._aliases(model)
    assert aliases
    header = {"aliases": aliases, "lr": [1e-3], "state": {}, "config": {}}
    monkeypatch.setattr(checkpoints, "_open", lambda path: (header, tensors))
    load_checkpoint(path, model, optimizer=updater.optimizer)
    state = updater.optimizer.state
    assert len(state) == len(list(model.parameters()))
    assert there([list(model.parameters()), [x["exp_avg"] for x in state.values()]])
    assert there([x["exp_avg_sq"] for x in state.values()])


# ---------------------------------------------------------------- pretended tensors

# Every place where one of the loops below waits for the device, and why it has to.
WAITS = {
    "trainer.Trainer._log": "a record holds numbers; one record in `log_every` updates",
    "evaluation.evaluate": "the loss is a number; read once, after the last batch",
    "evaluation.translate_nbest": "the words are wanted; once a group of sentences",
    "decoding._decode": "each token: how many sentences go on decides what is computed next, and "
    "NaN must be noticed before it is drawn from",
    "decoding._BeamSearch.advance": "each token: as above",
    "decoding._BeamSearch.result": "once: how long the longest hypothesis is, and is there one",
    "cache.DecoderCache.select": "each token of a beam: do its rows still have their sentences, "
    "and if not, which are left",
    "updater.Updater._step": "each update, in float16 alone: did it overflow and is left out",
    "transformer.Transformer.new_cache": "once: without padding each token is cheaper",
    "recurrent.RecurrentEncoder.forward": "once a batch: PyTorch packs by lengths on the CPU",
    "classification.fit": "each update: the losses are what it returns",
}
WAITING = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
INDEXING = {
    torch.ops.aten.index.Tensor,
    torch.ops.aten.index_put.default,
    torch.ops.aten.index_put_.default,
}


class Waits(TorchDispatchMode):
    """Counts, for each function of `src`, the operators whose result the host has to wait for."""

    def __init__(self):
        super().__init__()
        self.found, self.on_host = Counter(), False

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func in INDEXING:
            waits = any(i is not None and i.dtype == torch.bool for i in args[1])
        else:
            waits = not WAITING.isdisjoint(func.tags)
        if waits:
            self.note()
        return func(*args, **(kwargs or {}))

    def note(self):
        """Put it down to the innermost function of the package."""
        frame = sys._getframe(1)
        while frame is not None and not frame.f_code.co_filename.startswith(SOURCES):
            frame = frame.f_back
        if frame is not None and not self.on_host:
            module = Path(frame.f_code.co_filename).stem
            self.found[f"{module}.{frame.f_code.co_qualname.partition('.<locals>')[0]}"] += 1


class Pretend(TorchFunctionMode):
    """Every tensor says that it is on a GPU, but for those that were made on or copied to the CPU.

    Those carry a mark. What is computed from them alone is on the CPU, too.
    """

    def __init__(self, waits):
        super().__init__()
        self.waits = waits

    def __torch_function__(self, func, types, args=(), kwargs=None):
        leaves = tree_leaves((args, kwargs))
        was_host = all(hasattr(x, "on_host") for x in leaves if isinstance(x, torch.Tensor))
        if func == torch.Tensor.device.__get__:
            return CPU if was_host else GPU
        if func is torch.Tensor.pin_memory:
            return args[0]
        if func in (torch.device, torch._C._nn._parse_to):
            return func(*args, **(kwargs or {}))
        host = func is torch.Tensor.cpu or was_host and not any(map(_names_gpu, leaves))
        if not was_host and (host or func in (torch.Tensor.tolist, torch.Tensor.numpy)):
            self.waits.note()
        args, kwargs = tree_map(lambda x: CPU if _names_gpu(x) else x, (args, kwargs or {}))
        self.waits.on_host = host
        try:
            out = func(*args, **kwargs)
        finally:
            self.waits.on_host = False
        if func in (torch.Tensor.to, torch.Tensor.cpu) and host != was_host:
            out = out.view_as(out)  # another tensor, so that the mark is its own
        if func is torch._VF._pack_padded_sequence:
            out[1].on_host = True  # how many rows there are at each step
        for x in tree_leaves(out) if host else ():
            if isinstance(x, torch.Tensor):
                x.on_host = True
        return out


def _names_gpu(x):
    return isinstance(x, (str, torch.device)) and str(x).startswith("cuda")


@contextmanager
def waits():
    """Run the block as on a GPU; yields the count of waits for each function of `src`.

    Models and batches that were made before it are there already.
    """
    found = Waits()
    with pytest.MonkeyPatch.context() as patch, Pretend(found), found:
        patch.setattr("torch.cuda.amp.common.amp_definitely_not_available", lambda: False)
        yield found.found


@pytest.fixture(scope="module")
def hot_loops():
    """Where each loop waits: training, evaluation, translation and all ways of decoding."""
    batches = list(BucketedBatches(copy_examples(), batch_size=20))
    source, target = (WordTokenizer.train([" ".join("abcdefghijklm")], n) for n in (13, 17))
    recurrent = RecurrentConfig(13, 17, d_embed=4, d_encoder=4, d_decoder=4)
    found = {}
    for model in (tiny_model(), AttentionSeq2Seq(recurrent)):
        name = type(model).__name__
        with waits() as found[name, "train"]:
            Trainer(
                model,
                batches,
                config(steps=2, log_every=2),
                pad_id=PAD,
                device="cuda",
                valid=batches,
                progress=False,
            ).fit()
        model.eval()
        for decode, more in ((greedy, {}), (sample, {}), (beam_search, {"beam_size": 3})):
            with waits() as found[name, decode.__name__]:
                decode(model.stepper(batches[0].src), 20, max_len=6, **IDS, **more)
        with waits() as found[name, "translate"]:
            translate(model, ["a b", "c"], source, target, beam_size=2, max_len=4)
    model = tiny_model()
    with waits() as found["Transformer", "float16"]:
        updater = Updater(model, config(precision="float16"), pad_id=PAD, device=GPU)
        updater.update(batches)
    model, data = torch.nn.Linear(3, 4), (torch.ones(5, 3), torch.ones(5).long())
    with waits() as found["classifier", "train"]:
        classification.fit(model, lambda: data, steps=2, lr=0.1)
    return found


def test_the_list_of_waits_is_complete_and_holds_nothing_else(hot_loops):
    assert set().union(*hot_loops.values()) == set(WAITS)


def test_training_waits_for_records_and_for_lengths_alone(hot_loops):
    assert set(hot_loops["Transformer", "train"]) == {"trainer.Trainer._log", "evaluation.evaluate"}
    assert set(hot_loops["AttentionSeq2Seq", "train"]) == {
        "trainer.Trainer._log",
        "evaluation.evaluate",
        "recurrent.RecurrentEncoder.forward",
    }


@pytest.mark.parametrize(
    ("decode", "each_token"),
    [
        (greedy, {"decoding._decode": 2}),
        (beam_search, {"decoding._BeamSearch.advance": 2, "cache.DecoderCache.select": 1}),
    ],
)
def test_how_often_a_token_waits(decode, each_token):
    """Sentences of three tokens more; none ends before, so that all else is equal."""
    model, source = tiny_model().eval(), torch.ones(4, S, dtype=torch.long)
    more = {"beam_size": 3} if decode is beam_search else {}
    found = []
    for max_len in (5, 8):
        with waits() as count:
            decode(Never(model.stepper(source)), 4, max_len=max_len, **IDS, **more)
        found.append(count)
    assert found[1] - found[0] == Counter({k: 3 * n for k, n in each_token.items()})


class Never:
    """A step function that never ends a sentence."""

    def __init__(self, step):
        self.step, self.device, self.select = step, GPU, step.select

    def __call__(self, tokens):
        return self.step(tokens).index_fill(1, torch.tensor([IDS["eos_id"]], device=GPU), -1e9)


def test_evaluation_waits_after_its_last_batch():
    batches = list(BucketedBatches(copy_examples(), batch_size=10))
    model, seen = tiny_model(), []
    with waits() as count:
        model.register_forward_hook(lambda *_: seen.append(count.total()))
        evaluate(model, batches, PAD)
    assert seen == [0] * len(batches) and len(batches) == 4
    assert set(count) == {"evaluation.evaluate"}


READS = [
    lambda x: x.sum().item(),
    lambda x: bool((x > 2).any()),
    lambda x: x.tolist(),
    lambda x: x[x > 0.5],
    lambda x: x.nonzero(),
    lambda x: x.cpu(),
    lambda x: int(x.sum()),
    lambda x: torch.equal(x, x + 1),
    lambda x: x.masked_select(x > 0),
    lambda x: x.unique(),
]


def test_a_wait_is_seen_and_a_look_at_the_host_is_none():
    """Each way to read a number, within a function of the package that has none itself."""
    layer, x = AddNorm(tiny_model().config), torch.rand(2, 12)

    def found(read):
        with waits() as count:
            layer(x, lambda h: read(h.detach()) is None or h)
        return count

    for read in READS:
        assert found(read) == {"layers.AddNorm.forward": 1}
    assert found(lambda x: torch.arange(3).sum().item()) == {}
    assert found(lambda x: x[torch.tensor([1], device=x.device)]) == {}
    # One copy, and then the host has the numbers.
    assert found(lambda x: x.cpu().sum().item()) == {"layers.AddNorm.forward": 1}
