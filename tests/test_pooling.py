"""Kernel regression at the edges: far keys, no key, half precision, learned width, refusals."""

import math

import pytest
import torch

from src.pooling import (
    KERNELS,
    KernelRegression,
    boxcar,
    epanechnikov,
    gaussian,
    leave_one_out_mask,
    nadaraya_watson,
    triangle,
)

# Batch, queries, keys: all different.
B, T, S = 3, 5, 7


def sines(count: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Noisy values of 2 sin x + x^0.8 on [0, 5], sorted by x."""
    generator = torch.Generator().manual_seed(seed)
    x = (torch.rand(count, generator=generator, dtype=torch.float64) * 5).sort().values
    noise = torch.randn(count, generator=generator, dtype=torch.float64) * 0.5
    return x, 2 * x.sin() + x**0.8 + noise


def test_the_table_of_kernels():
    assert {
        "gaussian": gaussian,
        "boxcar": boxcar,
        "triangle": triangle,
        "epanechnikov": epanechnikov,
    } == KERNELS


def test_the_function_and_its_name_are_the_same_kernel():
    x, k, y = torch.randn(T), torch.randn(S), torch.randn(S)
    for name, function in KERNELS.items():
        assert torch.equal(nadaraya_watson(x, k, y, name), nadaraya_watson(x, k, y, function))


def test_a_kernel_of_ones_own():
    """A constant kernel is average pooling."""
    x, k, y = torch.randn(T), torch.randn(S), torch.randn(S)
    output = nadaraya_watson(x, k, y, torch.ones_like)
    torch.testing.assert_close(output, y.mean().expand(T))


def test_far_from_all_keys_the_gaussian_takes_the_nearest():
    """exp(−½·1000²) is 0 in every float type; the softmax form still has weights."""
    query, keys, values = torch.tensor([1000.0]), torch.tensor([0.0, 1.0, -3.0]), torch.arange(3.0)
    assert gaussian(query - keys).eq(0).all()
    output, weights = nadaraya_watson(query, keys, values, return_weights=True)
    assert weights.tolist() == [[0.0, 1.0, 0.0]] and output.item() == 1.0


@pytest.mark.parametrize(
    ("query", "keys", "width", "dtype", "weights"),
    [
        (300.0, [0.0, 1.0], 1.0, torch.float16, [0.0, 1.0]),
        (1e18, [0.0, 1e17], 1.0, torch.float32, [0.0, 1.0]),
        (1e20, [0.0, 1.0], 1.0, torch.float32, [0.5, 0.5]),  # equally far
        (0.0, [1.0, -0.5], 1e-18, torch.float32, [0.0, 1.0]),
    ],
)
@pytest.mark.parametrize("masked", [False, True])
def test_squares_that_overflow_leave_the_nearest_its_weight(
    query, keys, width, dtype, weights, masked
):
    x, k = (torch.tensor(n, dtype=dtype, requires_grad=True) for n in ([query, query], keys))
    mask = None
    if masked:  # the nearest of all is one that the first query may not use; the second has none
        k = torch.cat([k, x[:1]])
        mask = torch.ones(2, len(k), dtype=torch.bool)
        mask[0, -1] = mask[1] = False
    output, found = nadaraya_watson(
        x, k, torch.ones_like(k), width=width, mask=mask, return_weights=True
    )
    assert found.dtype == output.dtype == dtype
    assert found[0, : len(keys)].tolist() == weights and output[0] == 1
    if masked:
        assert found[0, -1] == 0 and not found[1].any()
    gradients = torch.autograd.grad((found * torch.arange(found.numel()).view_as(found)).sum(), x)
    assert gradients[0].isfinite().all()


@pytest.mark.parametrize("kernel", [*KERNELS, lambda u: boxcar(u)])
def test_70_000_keys_in_half_precision(kernel):
    """Their number does not fit into float16; nor may the prediction be summed in it."""
    keys = torch.linspace(-0.5, 0.5, 70_000).half()
    values = torch.linspace(0, 2, 70_000).half()
    query = torch.zeros(1).half()
    output, weights = nadaraya_watson(query, keys, values, kernel, return_weights=True)
    assert output.dtype == weights.dtype == torch.float16
    assert output.item() == pytest.approx(1, abs=1e-3) and bool((weights > 0).all())


@pytest.mark.parametrize("name", ["boxcar", "triangle", "epanechnikov"])
def test_a_query_without_a_key_in_reach_gets_zeros(name):
    query = torch.tensor([0.2, 50.0], dtype=torch.float64, requires_grad=True)
    keys = torch.tensor([0.0, 0.5, 1.0], dtype=torch.float64, requires_grad=True)
    values = torch.tensor([2.0, 3.0, 5.0], dtype=torch.float64, requires_grad=True)
    output, weights = nadaraya_watson(query, keys, values, name, return_weights=True)
    assert output[1] == 0 and torch.all(weights[1] == 0)
    assert weights[0].sum().item() == pytest.approx(1, abs=1e-15)
    inputs = (values,) if name == "boxcar" else (query, keys, values)
    for gradient in torch.autograd.grad(output.sum(), inputs):
        assert gradient.isfinite().all()
    alone = torch.autograd.grad(nadaraya_watson(query[1:], keys, values, name).sum(), values)[0]
    assert torch.all(alone == 0)


def test_a_kernel_that_underflows_has_gradients_without_nan():
    """Quotient and kernel are 0 here; dividing 0 by 0 and mending it leaves NaN behind."""
    query = torch.tensor([0.3, 1000.0], requires_grad=True)
    keys, values = torch.tensor([0.0, 1.0]).requires_grad_(), torch.tensor([2.0, 3.0])
    output = nadaraya_watson(query, keys, values, lambda u: gaussian(u))
    assert output[1] == 0
    of_query, of_keys = torch.autograd.grad(output.sum(), (query, keys))
    assert of_query[0] != 0 and of_query[1] == 0
    assert of_keys.isfinite().all() and torch.all(of_keys != 0)


@pytest.mark.parametrize("name", KERNELS)
def test_leading_axes_broadcast(name):
    x, k, y = torch.randn(B, T), torch.randn(B, S), torch.randn(B, S)
    together, weights = nadaraya_watson(x, k, y, name, return_weights=True)
    assert together.shape == (B, T) and weights.shape == (B, T, S)
    for b in range(B):
        torch.testing.assert_close(together[b], nadaraya_watson(x[b], k[b], y[b], name))
    shared = nadaraya_watson(x, k[:1], y[:1], name)
    torch.testing.assert_close(shared[2], nadaraya_watson(x[2], k[0], y[0], name))


@pytest.mark.parametrize("name", KERNELS)
def test_each_query_may_have_its_own_width(name):
    x, k, y = torch.randn(T), torch.randn(S), torch.randn(S)
    widths = torch.rand(T, 1) + 0.5
    output = nadaraya_watson(x, k, y, name, widths)
    for t in range(T):
        alone = nadaraya_watson(x[t : t + 1], k, y, name, widths[t].item())
        torch.testing.assert_close(output[t : t + 1], alone)


def test_the_width_goes_from_the_nearest_key_to_the_mean():
    x, y = sines(47)
    narrow = nadaraya_watson(x, x, y, width=1e-6)
    torch.testing.assert_close(narrow, y)
    wide = nadaraya_watson(x, x, y, width=1e6)
    torch.testing.assert_close(wide, y.mean().expand(47))


# ----------------------------------------------------------------------------- learned width


def test_the_module_names_its_kernel_and_width():
    assert repr(KernelRegression(0.7)) == "KernelRegression(kernel=gaussian, width=0.7)"


def test_training_finds_the_width_with_the_least_error():
    """Gradient descent ends where a fine grid has its minimum, and the loss has fallen."""
    x, y = sines(97)
    model = KernelRegression(width=1.0).double()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    losses = []
    for _ in range(400):  # at 200 the gradient is still 2e-3, at 400 it is gone
        loss = (model(x, x, y, leave_one_out=True) - y).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())

    def error(width: float) -> float:
        mask = leave_one_out_mask(97)
        return (nadaraya_watson(x, x, y, width=width, mask=mask) - y).square().mean().item()

    grid = [0.02 * 1.01**i for i in range(400)]
    best = min(grid, key=error)
    assert losses[-1] < losses[0]
    assert model.width.item() == pytest.approx(best, rel=0.01)  # the step of the grid
    assert losses[-1] == pytest.approx(error(best), rel=1e-4)


def test_without_leaving_out_the_width_only_shrinks():
    """The reason for leaving one out: with its own value, a point is best predicted by it."""
    x, y = sines(97)
    errors = [
        (nadaraya_watson(x, x, y, width=w) - y).square().mean().item()
        for w in (1.0, 0.3, 0.1, 0.03, 0.01, 1e-6)
    ]
    assert errors == sorted(errors, reverse=True) and errors[-1] < 1e-12


def test_the_width_stays_above_zero():
    model = KernelRegression(width=0.05)
    x, y = sines(13)
    optimizer = torch.optim.SGD(model.parameters(), lr=10.0)
    for _ in range(7):
        optimizer.zero_grad()
        (model(x.float(), x.float(), y.float()) - y).square().mean().backward()
        optimizer.step()
        assert model.width > 0


# ------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize("width", [0, -1.0, math.nan, math.inf])
def test_a_width_must_be_above_zero(width):
    x = torch.randn(S)
    with pytest.raises(ValueError, match=f"width must be finite and above 0, but is {width}"):
        nadaraya_watson(x, x, x, width=width)
    with pytest.raises(ValueError, match=f"width must be finite and above 0, but is {width}"):
        KernelRegression(width=width)
    with pytest.raises(ValueError, match="width must be finite and above 0, but is .* somewhere"):
        nadaraya_watson(x, x, x, width=torch.tensor([1.0] * (S - 1) + [float(width)]))


def test_a_width_must_fit():
    x, k = torch.randn(T), torch.randn(S)
    for shape in [(T,), (B, T, S), (S, 1)]:
        with pytest.raises(ValueError, match=r"width must broadcast to shape \(5, 7\)"):
            nadaraya_watson(x, k, k, width=torch.ones(shape))


def test_kernels_that_are_none():
    x = torch.randn(S)
    for call in (lambda: nadaraya_watson(x, x, x, "bell"), lambda: KernelRegression(kernel="bell")):
        with pytest.raises(ValueError, match="kernel must be one of gaussian, .*, but is 'bell'"):
            call()
    with pytest.raises(ValueError, match="kernel must return weights that are not negative"):
        nadaraya_watson(x, x, x, lambda u: -torch.ones_like(u))
    with pytest.raises(ValueError, match="kernel must return weights that are not negative or NaN"):
        nadaraya_watson(x, x, x, lambda u: u * math.nan)
    with pytest.raises(ValueError, match=r"kernel must return weights of shape \(7, 7\)"):
        nadaraya_watson(x, x, x, lambda u: u.sum(-1))
    for kernel in ("boxcar", boxcar):
        with pytest.raises(ValueError, match="kernel must have a gradient for the width"):
            KernelRegression(kernel=kernel)


def test_numbers_that_do_not_fit():
    x, k, y = torch.randn(T), torch.randn(S), torch.randn(S - 1)
    with pytest.raises(ValueError, match="keys and values must hold as many entries, .* 7 and 6"):
        nadaraya_watson(x, k, y)
    with pytest.raises(ValueError, match="needs a query for each key, but there are 5 .* and 7"):
        KernelRegression()(x, k, k, leave_one_out=True)
    with pytest.raises(ValueError, match="size must be at least 1, but is 0"):
        leave_one_out_mask(0)


@pytest.mark.parametrize("name", ["gaussian", "triangle"])
def test_masks_that_do_not_fit(name):
    x, k = torch.randn(T), torch.randn(S)
    with pytest.raises(TypeError, match="mask"):
        nadaraya_watson(x, k, k, name, mask=torch.ones(T, S))
    with pytest.raises(ValueError, match="mask must have rank 2"):
        nadaraya_watson(x, k, k, name, mask=torch.ones(S, dtype=torch.bool))
