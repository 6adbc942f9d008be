"""The whole Transformer: against loops, blind to the future and to padding, cached and copied."""

import copy
import math
import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import reference
from src.cache import DecoderCache
from src.config import TransformerConfig
from src.masks import padding_mask
from src.transformer import Transformer

B, T, S, H, LAYERS = 3, 5, 7, 2, 2
SRC_VOCAB, TGT_VOCAB, D = 17, 19, 20
POSITIONS = ("sinusoidal", "learned", "rotary", "none")
KINDS = [(p, n) for p in POSITIONS for n in (False, True)]


def make(dtype=torch.float64, **fields):
    sizes = {
        "d_model": D, "num_heads": H, "d_ff": 13, "num_encoder_layers": LAYERS,
        "num_decoder_layers": LAYERS + 1, "dropout": 0.0, "max_len": 23,
    }
    torch.manual_seed(1)
    model = Transformer(TransformerConfig.from_dict(
        {"src_vocab_size": SRC_VOCAB, "tgt_vocab_size": TGT_VOCAB} | sizes | fields
    ))
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


@pytest.mark.parametrize("norm_first", [False, True])
def test_equals_the_loops(norm_first):
    model = make(d_model=6, num_encoder_layers=1, num_decoder_layers=1, norm_first=norm_first)
    src, tgt = torch.tensor([[3, 4, 9], [11, 5, 0]]), torch.tensor([[1, 7], [1, 18]])

    def embed(stack, ids):
        table = stack.embeddings.tokens.weight
        rows = [
            [
                [
                    table[token, c] * math.sqrt(6) + reference.sinusoid(t, c, 6)
                    for c in range(6)
                ]
                for t, token in enumerate(row)
            ]
            for row in ids.tolist()
        ]
        return reference.joined(rows)

    def finish(stack, x):
        return reference.layer_norm(stack.norm, x) if norm_first else x

    real = (src != 0).unsqueeze(1)
    memory = reference.encoder_layer(
        model.encoder.layers[0], embed(model.encoder, src), real.expand(-1, 3, -1), norm_first
    )
    memory = finish(model.encoder, memory)
    causal = reference.causal(2, 2).expand(2, -1, -1)
    x = reference.decoder_layer(
        model.decoder.layers[0], embed(model.decoder, tgt), memory, causal,
        real.expand(-1, 2, -1), norm_first,
    )
    output = reference.nested(model.output.weight)
    expected = reference.joined([
        [reference.linear(token, output, None) for token in row]
        for row in reference.nested(finish(model.decoder, x))
    ])
    close(model(src, tgt), expected, 1e-12)
    factor, wanted = torch.randn_like(expected), list(model.parameters())
    ours = torch.autograd.grad((model(src, tgt) * factor).sum(), wanted)
    theirs = torch.autograd.grad((expected * factor).sum(), wanted)
    for a, b in zip(ours, theirs, strict=True):
        close(a, b, 1e-11)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-5)])
@pytest.mark.parametrize(("positions", "norm_first"), KINDS)
def test_backends_agree(positions, norm_first, dtype, tolerance):
    src, tgt = batch()
    results = []
    for backend in ("explicit", "sdpa"):
        model = make(dtype, positions=positions, norm_first=norm_first, backend=backend)
        logits = model(src, tgt)
        loss = logits.log_softmax(-1).mean()
        results.append((logits, *torch.autograd.grad(loss, list(model.parameters()))))
    for ours, theirs in zip(*results, strict=True):
        close(ours, theirs, tolerance)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("backend", ["explicit", "sdpa"])
@pytest.mark.parametrize(("positions", "norm_first"), KINDS)
def test_a_changed_future_leaves_the_past_bit_equal(positions, norm_first, backend, training):
    model = make(torch.float32, positions=positions, norm_first=norm_first, backend=backend)
    model.train(training)
    src, tgt = batch()
    before = model(src, tgt)
    for t in range(1, T):
        changed = tgt.clone()
        changed[:, t:] = 3 + (tgt[:, t:] + 2) % (TGT_VOCAB - 3)
        after = model(src, changed)
        assert torch.equal(after[:, :t], before[:, :t])
        assert not torch.equal(after[:, t], before[:, t])


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-13), (torch.float32, 3e-6)])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("backend", ["explicit", "sdpa"])
@pytest.mark.parametrize(("positions", "norm_first"), KINDS)
def test_more_padding_leaves_the_answer(
    positions, norm_first, backend, training, dtype, tolerance
):
    """To rounding: logits here reach 4, and sums of another length round in another order."""
    model = make(dtype, positions=positions, norm_first=norm_first, backend=backend)
    model.train(training)
    src, tgt = batch()
    padded_src = torch.cat([src, torch.zeros(B, 4, dtype=torch.long)], 1)
    padded_tgt = torch.cat([tgt, torch.zeros(B, 3, dtype=torch.long)], 1)
    close(model(padded_src, padded_tgt)[:, :T], model(src, tgt), tolerance)
    for row, length in enumerate((7, 4, 2)):
        alone = model(src[row : row + 1, :length], tgt[row : row + 1])
        close(alone, model(src, tgt)[row : row + 1], tolerance)


@pytest.mark.parametrize("backend", ["explicit", "sdpa"])
def test_what_stands_under_the_padding_does_not_matter(backend):
    """Nothing may be read from a padded position, not even through the residual stream."""
    model, (src, tgt) = make(backend=backend), batch()
    memory = model.encode(src)
    mask = padding_mask(src, 0)
    disturbed = torch.where(mask.transpose(1, 2), memory, torch.full_like(memory, 1e6))
    assert torch.equal(model.decode(tgt, disturbed, mask), model.decode(tgt, memory, mask))


def test_a_source_of_padding_alone_gives_finite_logits_and_gradients():
    for backend in ("explicit", "sdpa"):
        model, (src, tgt) = make(torch.float32, backend=backend), batch()
        src[1] = 0
        logits = model(src, tgt)
        assert bool(logits.isfinite().all())
        logits.logsumexp(-1).sum().backward()
        assert all(bool(p.grad.isfinite().all()) for p in model.parameters())


@pytest.mark.parametrize(
    "chunks", [(1,) * 7, (3, 1, 2, 1), (2, 5), (7,)], ids=lambda c: "-".join(map(str, c))
)
@pytest.mark.parametrize("backend", ["explicit", "sdpa"])
@pytest.mark.parametrize(("positions", "norm_first"), KINDS)
@torch.no_grad()
def test_cached_chunks_equal_the_full_pass(positions, norm_first, backend, chunks):
    model = make(positions=positions, norm_first=norm_first, backend=backend)
    src, _ = batch()
    tgt = torch.randint(3, TGT_VOCAB, (B, sum(chunks)))
    cache = model.new_cache(src)
    logits = [model.decode_cached(part, cache) for part in tgt.split(list(chunks), 1)]
    close(torch.cat(logits, 1), model(src, tgt))
    assert cache.length == sum(chunks)


@settings(deadline=None, max_examples=15)
@given(
    st.sampled_from(POSITIONS),
    st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=5), min_size=1, max_size=4),
)
@torch.no_grad()
def test_rows_may_be_reordered_dropped_and_repeated(positions, picks):
    """After any chain of selections a step gives what the full pass gives for those rows."""
    model = make(positions=positions)
    src, tgt = batch()
    tgt = tgt[:, :1]
    step = model.stepper(src)
    logits = step(tgt[:, -1])
    for pick in picks:
        index = torch.tensor([i % len(src) for i in pick])
        step.select(index)
        src = src[index]
        tgt = torch.cat([tgt[index], torch.randint(3, TGT_VOCAB, (len(index), 1))], 1)
        logits = step(tgt[:, -1])
        close(logits, model(src, tgt)[:, -1])


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


@pytest.mark.parametrize("change", [
    lambda m: m.output.register_forward_hook(lambda layer, given, out: -out),
    lambda m: m.output.register_forward_pre_hook(lambda layer, given: (-given[0],)),
    lambda m: torch.nn.utils.parametrize.register_parametrization(m.output, "weight", Twice()),
    lambda m: setattr(m.output, "forward", lambda x: x @ m.output.weight.neg().t()),
    lambda m: setattr(m, "output", Negated(D, TGT_VOCAB, bias=False, dtype=torch.float64)),
    lambda m: setattr(m, "output", torch.nn.Sequential(m.output, torch.nn.ReLU())),
])  # fmt: skip
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
    assert isinstance(step.cache, DecoderCache) and step.cache.memory_mask is None
    assert not step(tgt[:1, 0]).requires_grad
    assert model.stepper(src).cache.memory_mask is not None


def test_a_backward_pass_through_a_cache_raises():
    """Rather that than gradients which silently lack a part."""
    model, (src, tgt) = make(), batch()
    cache = model.new_cache(src)
    logits = [model.decode_cached(part, cache) for part in tgt.split(1, 1)]
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.cat(logits, 1).sum().backward()


def test_attention_maps():
    model, (src, tgt) = make(), batch()
    maps = model.attention_maps(src, tgt)
    assert {name: len(layers) for name, layers in maps.items()} == {
        "encoder": LAYERS, "decoder": LAYERS + 1, "cross": LAYERS + 1,
    }
    real = padding_mask(src, 0).unsqueeze(1)
    for name, shape in (("encoder", (S, S)), ("decoder", (T, T)), ("cross", (T, S))):
        for weights in maps[name]:
            assert weights.shape == (B, H, *shape) and not weights.requires_grad
            close(weights.sum(-1), torch.ones(B, H, shape[0], dtype=torch.float64), 1e-12)
            if name == "decoder":
                assert bool((weights.triu(1) == 0).all())
                assert bool((weights[..., 2, :3] > 0).all())
            else:
                assert bool((weights.masked_select(~real.expand_as(weights)) == 0).all())
    assert maps["encoder"][0].equal(
        make(backend="explicit").attention_maps(src, tgt)["encoder"][0]
    )


def test_encoder_states_are_recorded():
    model, (src, _) = make(norm_first=True), batch()
    states = []
    memory = model.encoder(src, padding_mask(src, 0), states=states)
    assert len(states) == LAYERS + 1
    close(states[0], model.encoder.embeddings(src))
    close(model.encoder.norm(states[-1]), memory)


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


@pytest.mark.parametrize("tie", ["none", "target", "all"])
def test_copies_and_state_dicts_keep_answers_and_ties(tie, tmp_path):
    model, (src, tgt) = make(src_vocab_size=TGT_VOCAB, tie_embeddings=tie), batch()
    model.attention_maps(src, tgt)
    torch.save(model.state_dict(), tmp_path / "model.pt")
    fresh = Transformer(model.config).double()
    fresh.load_state_dict(torch.load(tmp_path / "model.pt"))
    for twin in (copy.deepcopy(model), fresh, copy.deepcopy(model).float().double(), model):
        tokens = twin.decoder.embeddings.tokens.weight
        assert (twin.output.weight is tokens) == (tie != "none")
        assert (twin.encoder.embeddings.tokens.weight is tokens) == (tie == "all")
        assert twin.num_parameters() == model.num_parameters()
        close(twin(src, tgt), model(src, tgt), 1e-5)
    assert torch.equal(fresh(src, tgt), model(src, tgt))
    assert torch.equal(copy.deepcopy(model)(src, tgt), model(src, tgt))


def test_dropout_while_training_only():
    model, (src, tgt) = make(torch.float32, dropout=0.3), batch()
    assert not torch.equal(model(src, tgt), model(src, tgt))
    model.eval()
    assert torch.equal(model(src, tgt), model(src, tgt))
    close(model(src, tgt), make(torch.float32)(src, tgt), 1e-6)


def test_half_precision_keeps_positions_apart():
    """In bfloat16 a table of angles would repeat itself from position 256 on."""
    model = make(max_len=600, positions="sinusoidal").to(torch.bfloat16)
    assert model.encoder.embeddings.positions.table.dtype == torch.float32
    src, tgt = batch()
    assert model(src, tgt).dtype == torch.bfloat16
    close(model(src, tgt).double(), make(max_len=600)(src, tgt), 0.3)


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


@pytest.mark.slow
def test_the_model_is_one_graph_for_torch_compile():
    """In a process of its own: the annotations' checks of this one cannot be compiled."""
    run = subprocess.run(
        [sys.executable, "-c", COMPILED], capture_output=True, text=True, timeout=300, check=False
    )
    assert run.returncode == 0, run.stderr


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
