"""Padding: its mask, and the same numbers packed."""

from copy import deepcopy

import pytest
import torch
from torch.testing import assert_close

from src.config import TransformerConfig
from src.data.batches import Batch
from src.padding import Padding
from src.training.config import TrainingConfig
from src.training.trainer import Trainer
from src.transformer import Transformer

SRC = torch.tensor([[3, 4, 5, 6, 7], [8, 9, 2, 0, 0], [5, 2, 0, 0, 0]])
TGT = torch.tensor([[1, 4, 5, 6, 7, 9, 3, 2], [1, 9, 2, 0, 0, 0, 0, 0], [1, 5, 4, 2, 0, 0, 0, 0]])


def test_unpack_undoes_pack_and_zeroes_padding():
    real = torch.tensor([[True, True, False], [True, True, True]])
    x = torch.randn(2, 3, 7)
    padding = Padding(real, packed=True)
    packed = padding.pack(x)
    assert padding.packed and packed.shape == (5, 7)
    assert torch.equal(packed, x[real])
    assert torch.equal(padding.unpack(packed), x * real[..., None])
    assert torch.equal(padding.mask, real[:, None])


@pytest.mark.parametrize("positions", ["sinusoidal", "rotary"])
@pytest.mark.parametrize("norm_first", [False, True])
def test_logits_and_gradients_are_those_of_the_padded_pass(norm_first, positions):
    torch.manual_seed(0)
    config = TransformerConfig.tiny(
        11, 13, d_model=12, num_heads=2, norm_first=norm_first, positions=positions, dropout=0.0
    )
    model = Transformer(config).double()
    tgt, targets = TGT[:, :-1], TGT[:, 1:]
    real = targets != 0
    packed = model(SRC, tgt, targets)
    padded = model(SRC, tgt)[real]
    assert packed.shape == (int(real.sum()), 13)
    assert_close(packed, padded, rtol=0, atol=1e-12)
    weight = torch.randn_like(packed)
    got = torch.autograd.grad((packed * weight).sum(), model.parameters())
    wanted = torch.autograd.grad((padded * weight).sum(), model.parameters())
    for a, b in zip(got, wanted, strict=True):
        assert_close(a, b, rtol=0, atol=1e-10)


@pytest.mark.parametrize("real", [[True, True], [True, False]])
def test_nothing_is_packed_without_padding_or_unasked(real):
    padding, x = Padding(torch.tensor([real]), packed=all(real)), torch.randn(1, 2, 7)
    assert not padding.packed and padding.pack(x) is x and padding.unpack(x) is x


def test_targets_without_padding_give_every_logit():
    torch.manual_seed(0)
    model = Transformer(TransformerConfig.tiny(11, 13, d_model=12, num_heads=2)).eval()
    tgt = torch.tensor([[1, 4, 5], [1, 6, 7]])
    targets = torch.tensor([[4, 5, 2], [6, 7, 2]])
    logits = model(SRC[:2], tgt, targets)
    assert_close(logits, model(SRC[:2], tgt).flatten(0, 1), rtol=0, atol=1e-6)


def test_padding_before_a_token_is_refused():
    with pytest.raises(ValueError, match="tokens first and its padding last"):
        Padding(torch.tensor([[False, True]]), packed=True)


def test_a_mask_that_is_not_boolean_is_refused(unchecked):
    with pytest.raises(TypeError, match="real must be boolean, but has dtype torch.float32"):
        Padding(torch.ones(1, 2))


def test_targets_of_another_shape_are_refused(unchecked):
    model = Transformer(TransformerConfig.tiny(11, 13, d_model=12, num_heads=2))
    with pytest.raises(ValueError, match="targets must have the shape of tgt"):
        model(SRC, TGT, TGT[:, 1:])


def test_a_batch_without_any_real_target_has_no_logits_and_no_gradient():
    model = Transformer(TransformerConfig.tiny(11, 13, d_model=12, num_heads=2))
    logits = model(SRC[:1], torch.tensor([[1]]), torch.tensor([[0]]))
    assert logits.shape == (0, 13)
    logits.sum().backward()
    assert all(p.grad is None or not p.grad.any() for p in model.parameters())


def test_training_with_packing_moves_the_weights_as_without():
    torch.manual_seed(0)
    config = TrainingConfig(steps=2, lr=1e-2, warmup=1, label_smoothing=0.1)
    packed = Transformer(
        TransformerConfig.tiny(11, 13, d_model=12, num_heads=2, dropout=0.0)
    ).double()
    padded = deepcopy(packed)
    padded.forward = lambda src, tgt: Transformer.forward(padded, src, tgt)
    losses = [
        Trainer(model, [Batch(SRC, TGT)], config, pad_id=0, device="cpu", progress=False).fit()
        for model in (packed, padded)
    ]
    assert losses[0][-1].loss == pytest.approx(losses[1][-1].loss, abs=1e-10)
    for a, b in zip(packed.parameters(), padded.parameters(), strict=True):
        assert_close(a, b, rtol=0, atol=1e-9)
