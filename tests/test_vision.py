"""The patch Transformer and the convolutional network that it is compared with."""

import pytest
import torch
import torch.nn.functional as F

from src.applications.vision import ConvNet, PatchTransformer
from src.recording import recording


def _model(**fields):
    sizes = {"channels": 3, "d_model": 12, "num_heads": 3, "d_ff": 20, "dropout": 0.0}
    return PatchTransformer((4, 10), 2, 7, **(sizes | fields)).eval()


def test_patches_are_the_squares_row_by_row():
    images = torch.randn(2, 3, 4, 10)
    patches = _model().patches(images)
    assert patches.shape == (2, 10, 12)
    for number in range(10):
        row, column = divmod(number, 5)
        square = images[:, :, 2 * row : 2 * row + 2, 2 * column : 2 * column + 2]
        assert torch.equal(patches[:, number], square.flatten(1))


def test_embedding_is_a_convolution_that_steps_by_whole_patches():
    model, images = _model(), torch.randn(2, 3, 4, 10)
    kernel = model.embed.weight.view(12, 3, 2, 2)
    expected = F.conv2d(images, kernel, model.embed.bias, stride=2).flatten(2).transpose(1, 2)
    torch.testing.assert_close(model.embed(model.patches(images)), expected, atol=1e-5, rtol=0)


def test_one_pixel_can_be_a_token():
    model = PatchTransformer((3, 5), 1, 2, channels=3, d_model=8, num_heads=2, d_ff=8).eval()
    images = torch.randn(2, 3, 3, 5)
    assert torch.equal(model.patches(images), images.flatten(2).transpose(1, 2))
    with recording(model) as maps:
        assert model(images).shape == (2, 2)
    assert [tuple(w.shape) for w in maps.values()] == [(2, 2, 15, 15)] * 2


@pytest.mark.parametrize("positions", ["learned", "sinusoidal", "rotary"])
def test_positions_make_the_order_of_patches_matter(positions):
    model, images = _model(positions=positions), torch.randn(2, 3, 4, 10)
    left, right = images.split([4, 6], dim=3)  # whole patches: as a set they stay the same
    assert (model(images) - model(torch.cat([right, left], dim=3))).abs().max() > 1e-4


def test_without_positions_whole_patches_may_be_shuffled():
    model, images = _model(positions="none"), torch.randn(2, 3, 4, 10)
    left, right = images.split([4, 6], dim=3)
    torch.testing.assert_close(
        model(images), model(torch.cat([right, left], dim=3)), atol=1e-5, rtol=0
    )
    assert (model(images) - model(images.roll(1, dims=3))).abs().max() > 1e-4  # cut otherwise


def test_dropout_acts_in_training_only():
    model, images = _model(dropout=0.5), torch.randn(2, 3, 4, 10)
    assert torch.equal(model(images), model(images))
    model.train()
    assert not torch.equal(model(images), model(images))


@pytest.mark.parametrize("model", [_model(), ConvNet(7, channels=3, width=5)])
def test_every_parameter_gets_a_gradient(model):
    torch.manual_seed(0)
    for parameter in model.parameters():
        parameter.grad = None
    logits = model(torch.randn(2, 3, 4, 10))
    assert logits.shape == (2, 7)
    logits.square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().max() > 0 for p in model.parameters())


def test_convnet_does_not_see_a_shift_that_its_halving_keeps():
    model = ConvNet(7, channels=3, width=5)
    images = torch.zeros(2, 3, 24, 24)
    images[..., 10:13, 10:13] = torch.randn(2, 3, 3, 3)
    torch.testing.assert_close(
        model(images), model(images.roll((2, -2), dims=(2, 3))), atol=1e-5, rtol=0
    )


def test_convnet_is_the_chain_of_its_layers():
    model, images = ConvNet(7, channels=3, width=5), torch.randn(2, 3, 8, 6)
    first, second, third = model.convolutions
    chain = torch.nn.Sequential(
        first,
        torch.nn.ReLU(),
        second,
        torch.nn.ReLU(),
        torch.nn.MaxPool2d(2),
        third,
        torch.nn.ReLU(),
        torch.nn.AdaptiveAvgPool2d(1),
        torch.nn.Flatten(),
        model.head,
    )
    torch.testing.assert_close(model(images), chain(images), atol=1e-6, rtol=0)


def test_both_have_about_as_many_weights():
    counts = [
        sum(p.numel() for p in model.parameters())
        for model in (PatchTransformer((8, 8), 2, 10), ConvNet(10))
    ]
    assert counts == [39_514, 36_190]


def test_bad_arguments_are_named():
    with pytest.raises(ValueError, match="patch_size must divide height and width, but is 3"):
        PatchTransformer((6, 8), 3, 10)
    with pytest.raises(ValueError, match="patch_size must divide height and width, but is 0"):
        PatchTransformer((6, 8), 0, 10)
    with pytest.raises(ValueError, match="channels must be at least 1, but is 0"):
        PatchTransformer((6, 8), 2, 10, channels=0)
    with pytest.raises(ValueError, match="num_heads must be a divisor of d_model 10"):
        PatchTransformer((6, 8), 2, 10, d_model=10)
    with pytest.raises(ValueError, match=r"images must have shape \(B, 3, 4, 10\)"):
        _model()(torch.zeros(2, 3, 10, 4))
    for name in ("num_classes", "channels", "width"):
        with pytest.raises(ValueError, match=f"{name} must be at least 1, but is 0"):
            ConvNet(**({"num_classes": 2} | {name: 0}))
