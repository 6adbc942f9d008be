"""The whole Transformer: blind to the future and to padding, cached and copied."""

import copy
import subprocess
import sys

import pytest
import torch

from src.cache import DecoderCache
from src.config import TransformerConfig
from src.transformer import Transformer

B, T, S, H, LAYERS = 3, 5, 7, 2, 2
SRC_VOCAB, TGT_VOCAB, D = 17, 19, 20
POSITIONS = ("sinusoidal", "learned", "rotary", "none")
KINDS = [(p, n) for p in POSITIONS for n in (False, True)]


def make(dtype=torch.float64, **fields):
    sizes = {
        "d_model": D,
        "num_heads": H,
        "d_ff": 13,
        "num_encoder_layers": LAYERS,
        "num_decoder_layers": LAYERS + 1,
        "dropout": 0.0,
        "max_len": 23,
    }
    torch.manual_seed(1)
    model = Transformer(
        TransformerConfig.from_dict(
            {"src_vocab_size": SRC_VOCAB, "tgt_vocab_size": TGT_VOCAB} | sizes | fields
        )
    )
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:  # zero biases and unit gains would hide much
                parameter += 0.3 * torch.randn_like(parameter)
    return model.to(dtype)


def batch():
    """Sources of 7, 4 and 2 real tokens, and targets that begin with <bos>."""
    src = torch.randint(3, SRC_VOCAB, (B, S))
    src[1, 4:], src[2, 2:] = 0, 0
    tgt = torch.randint(3, TGT_VOCAB, (B, T))
    tgt[:, 0] = 1
    return src, tgt


def close(ours, theirs, tolerance=1e-10):
    assert ours.shape == theirs.shape
    torch.testing.assert_close(ours, theirs, rtol=0, atol=tolerance)


def test_a_source_of_padding_alone_gives_finite_logits_and_gradients():
    for backend in ("explicit", "sdpa"):
        model, (src, tgt) = make(torch.float32, backend=backend), batch()
        src[1] = 0
        logits = model(src, tgt)
        assert bool(logits.isfinite().all())
        logits.logsumexp(-1).sum().backward()
        assert all(bool(p.grad.isfinite().all()) for p in model.parameters())


@torch.no_grad()
def test_cached_decoding_under_autocast():
    """The cache takes the dtype of what is stored in it, here bfloat16."""
    model, (src, tgt) = make(torch.float32), batch()
    with torch.autocast("cpu", torch.bfloat16):
        full = model(src, tgt)
        cache = model.new_cache(src)
        steps = torch.cat([model.decode_cached(t, cache) for t in tgt.split(1, 1)], 1)
    assert cache.layers[0].keys.dtype == torch.bfloat16
    close(steps, full, 0.15)
    close(steps.float(), model(src, tgt), 0.3)


@torch.no_grad()
def test_a_full_cache_and_other_rows_are_refused(unchecked):
    model, (src, tgt) = make(), batch()
    cache = model.new_cache(src, max_len=3)
    model.decode_cached(tgt[:, :3], cache)
    with pytest.raises(ValueError, match="max_len of the cache is 3, but position 3"):
        model.decode_cached(tgt[:, 3:4], cache)
    with pytest.raises(ValueError, match="to fit the cache"):
        model.decode_cached(tgt[:1, 1:2], model.new_cache(src))
    assert model.new_cache(src, max_len=1000).layers[0].max_len == 23
    long = torch.ones(B, 23, dtype=torch.long)
    cache = model.new_cache(src)
    model.decode_cached(long, cache)
    with pytest.raises(ValueError, match="max_len is 23, but the sequence reaches position 23"):
        model.decode_cached(tgt[:, :1], cache)


class Negated(torch.nn.Linear):
    def forward(self, x):
        return -super().forward(x)


class Twice(torch.nn.Module):
    def forward(self, weight):
        return 2 * weight


@pytest.mark.parametrize(
    "change",
    [
        lambda m: m.output.register_forward_hook(lambda layer, given, out: -out),
        lambda m: m.output.register_forward_pre_hook(lambda layer, given: (-given[0],)),
        lambda m: torch.nn.utils.parametrize.register_parametrization(m.output, "weight", Twice()),
        lambda m: setattr(m.output, "forward", lambda x: x @ m.output.weight.neg().t()),
        lambda m: setattr(m, "output", Negated(D, TGT_VOCAB, bias=False, dtype=torch.float64)),
        lambda m: setattr(m, "output", torch.nn.Sequential(m.output, torch.nn.ReLU())),
    ],
)
@torch.no_grad()
def test_what_is_put_on_the_output_acts_in_decoding(change):
    model, (src, tgt) = make(), batch()
    plain = model.stepper(src)(tgt[:, 0])
    change(model)
    found = model.stepper(src)(tgt[:, 0])
    close(found, model(src, tgt)[:, 0])
    assert not torch.allclose(found, plain)


def test_the_stepper_builds_no_graph_and_needs_no_mask_without_padding():
    model, (src, tgt) = make(), batch()
    step = model.stepper(src[:1])
    assert isinstance(step.cache, DecoderCache) and step.cache.memory[0].mask is None
    assert not step(tgt[:1, 0]).requires_grad
    assert model.stepper(src).cache.memory[0].mask is not None


def test_a_backward_pass_through_a_cache_raises():
    """Rather that than gradients which silently lack a part."""
    model, (src, tgt) = make(), batch()
    cache = model.new_cache(src)
    logits = [model.decode_cached(part, cache) for part in tgt.split(1, 1)]
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.cat(logits, 1).sum().backward()


@pytest.mark.parametrize(("positions", "norm_first"), KINDS)
@pytest.mark.parametrize("tie", ["none", "target"])
def test_gradients_reach_every_parameter(positions, norm_first, tie):
    model = make(positions=positions, norm_first=norm_first, tie_embeddings=tie)
    src, tgt = batch()
    loss = torch.nn.functional.cross_entropy(model(src, tgt).flatten(0, 1), tgt.flatten())
    loss.backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and bool((parameter.grad != 0).any()), name
        assert bool(parameter.grad.isfinite().all()), name


@pytest.mark.parametrize(
    ("src", "tgt", "message"),
    [
        (torch.zeros(0, 3), torch.zeros(0, 3), "at least one token"),
        (torch.ones(2, 0), torch.ones(2, 3), r"at least one token, but has shape \(2, 0\)"),
        (torch.ones(2, 3), torch.ones(2, 0), r"at least one token, but has shape \(2, 0\)"),
        (torch.ones(2, 3), torch.ones(1, 3), "the same number of rows, but have 2 and 1"),
        (torch.ones(1, 3), torch.ones(2, 3), "the same number of rows, but have 1 and 2"),
        (torch.ones(1, 24), torch.ones(1, 3), "max_len is 23, but the sequence reaches"),
        (torch.ones(1, 3), torch.ones(1, 24), "max_len is 23, but the sequence reaches"),
        (torch.full((1, 3), 17), torch.ones(1, 3), "ids must lie in 0 … 16, but span 17 … 17"),
        (torch.ones(1, 3), torch.full((1, 3), 19), "ids must lie in 0 … 18, but span 19 … 19"),
        (torch.full((1, 3), -1), torch.ones(1, 3), "ids must lie in 0 … 16, but span -1"),
        (torch.tensor([[0, 3]]), torch.ones(1, 3), "src must hold each row's tokens first"),
        (torch.ones(1, 3), torch.tensor([[1, 0, 3]]), "tgt must hold each row's tokens first"),
        (torch.ones(1, 3), torch.ones(1), r"ids must have shape \(B, T\), but have \(1,\)"),
    ],
)
@pytest.mark.parametrize("positions", POSITIONS)
def test_bad_input_is_refused(unchecked, src, tgt, message, positions):
    with pytest.raises(ValueError, match=message):
        make(torch.float32, positions=positions)(src.long(), tgt.long())


@pytest.mark.parametrize("tied", ["none", "target", "all"])
@pytest.mark.parametrize("assign", [False, True])
def test_a_model_made_without_storage_is_the_same_model(tied, assign):
    """Tied weights stay one, and the table of positions comes along."""
    sizes = {"tie_embeddings": tied, "src_vocab_size": 19, "tgt_vocab_size": 19}
    model = make(torch.float32, **sizes)
    with torch.device("meta"):
        empty = make(torch.float32, **sizes)
    if not assign:
        empty = empty.to_empty(device="cpu")
    empty.load_state_dict(model.state_dict(), assign=assign)
    assert empty.num_parameters() == model.num_parameters()
    assert (empty.output.weight is empty.decoder.embeddings.tokens.weight) == (tied != "none")
    src, tgt = batch()
    assert torch.equal(empty.eval()(src, tgt), model(src, tgt))


COMPILED = """
import torch
from src.transformer import Transformer, TransformerConfig

sizes = {"d_model": 12, "num_heads": 2, "d_ff": 13, "max_len": 11, "dropout": 0.0}
layers = {"num_encoder_layers": 1, "num_decoder_layers": 1}
model = Transformer(TransformerConfig(17, 19, **sizes, **layers))
src, tgt = torch.tensor([[3, 4, 0], [5, 6, 7]]), torch.tensor([[1, 8], [1, 9]])
compiled = torch.compile(model, backend="eager", fullgraph=True)
torch.testing.assert_close(compiled(src, tgt), model(src, tgt), rtol=0, atol=1e-6)

# The formula switches autocast off for a product; that is no break, and can be exported.
explicit = Transformer(TransformerConfig(17, 19, **sizes, **layers, backend="explicit"))
compiled = torch.compile(explicit, backend="eager", fullgraph=True)
torch.testing.assert_close(compiled(src, tgt), explicit(src, tgt), rtol=0, atol=1e-6)
with torch.autocast("cpu", torch.bfloat16):
    torch.testing.assert_close(compiled(src, tgt), explicit(src, tgt), rtol=0, atol=1e-6)
exported = torch.export.export(explicit, (src, tgt), strict=False).module()
torch.testing.assert_close(exported(src, tgt), explicit(src, tgt), rtol=0, atol=1e-6)

# Batches of other sizes need no other graph once their size is a symbol.
torch._dynamo.reset()
torch._dynamo.config.error_on_recompile = True
compiled = torch.compile(model, backend="eager", fullgraph=True, dynamic=True)
for rows in (6, 10, 21, 30):
    src, tgt = torch.randint(3, 17, (rows, 5)), torch.randint(3, 19, (rows, 4))
    torch.testing.assert_close(compiled(src, tgt), model(src, tgt), rtol=0, atol=1e-6)
"""


@pytest.mark.gpu
@pytest.mark.parametrize("backend", ["explicit", "sdpa"])
@pytest.mark.parametrize(("positions", "norm_first"), KINDS)
def test_gpu_equals_cpu(positions, norm_first, backend):
    model, (src, tgt) = make(positions=positions, norm_first=norm_first, backend=backend), batch()
    expected = model(src, tgt)
    there = copy.deepcopy(model).cuda()
    close(there(src.cuda(), tgt.cuda()).cpu(), expected)
    close(there.float()(src.cuda(), tgt.cuda()).cpu().double(), expected, 1e-3)
    step = model.stepper(src)
    assert step.cache.layers[0].keys.device == src.device
    with torch.no_grad():
        there = there.double()
        cache = there.new_cache(src.cuda())
        steps = [there.decode_cached(part, cache) for part in tgt.cuda().split([2, 1, 2], 1)]
    close(torch.cat(steps, 1).cpu(), expected)


@pytest.mark.slow
def test_the_model_is_one_graph_under_autocast():
    """In a process of its own: the annotations' checks of this one cannot be compiled."""
    run = subprocess.run(
        [sys.executable, "-c", COMPILED], capture_output=True, text=True, timeout=300, check=False
    )
    assert run.returncode == 0, run.stderr
