"""Attention before neural networks: the kernel regression of Nadaraya and Watson.

A prediction is a weighted mean of the values, and a value weighs the more the nearer its key lies
to the query: f(x) = Σᵢ K((x − xᵢ)/h) yᵢ / Σⱼ K((x − xⱼ)/h). The kernel K says how weight falls
with distance, the width h how fast. `nadaraya_watson` takes the width as given,
`KernelRegression` learns it.

The kernels are functions of the scaled distance u. They are 1 at u = 0: the constants that make
them densities (1/√(2π), ½, 1, ¾) stand above and below the line and cancel.
"""

from collections.abc import Callable

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from src.functional import check_mask, masked_softmax, wide_products

__all__ = [
    "KERNELS",
    "KernelRegression",
    "boxcar",
    "epanechnikov",
    "gaussian",
    "leave_one_out_mask",
    "nadaraya_watson",
    "triangle",
]

Real = float | int
Kernel = Callable[[Tensor], Tensor]


def gaussian(u: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """The bell: exp(−u²/2). Smooth, and positive at every distance."""
    return torch.exp(-0.5 * u.square())


def boxcar(u: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """The window: 1 up to ``|u| = 1``, else 0. A mean of all keys in reach; it has no gradient."""
    return (u.abs() <= 1).to(u.dtype)


def triangle(u: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """The tent: ``1 − |u|`` up to ``|u| = 1``, else 0."""
    return (1 - u.abs()).clamp(min=0)


def epanechnikov(u: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """The parabola: 1 − u² up to ``|u| = 1``, else 0.

    Source: Epanechnikov 1969; it has the least mean squared error of all kernels, to first order.
    """
    return (1 - u.square()).clamp(min=0)


KERNELS: dict[str, Kernel] = {
    "gaussian": gaussian,
    "boxcar": boxcar,
    "triangle": triangle,
    "epanechnikov": epanechnikov,
}


def nadaraya_watson(
    query: Float[Tensor, "*#axes T"],
    keys: Float[Tensor, "*#axes S"],
    values: Float[Tensor, "*#axes Sv"],
    kernel: str | Kernel = "gaussian",
    width: Real | Tensor = 1.0,
    *,
    mask: Bool[Tensor, "..."] | None = None,
    return_weights: bool = False,
) -> (
    Float[Tensor, "*axes T"]
    | tuple[Float[Tensor, "*axes T"], Float[Tensor, "*pairs T S"]]
):
    """Predict at each query a mean of values, weighted by how near keys lie.

    The Gaussian kernel is computed as the softmax of −½((x − xᵢ)/h)². Its weights sum to 1 even
    where every key is so far away that exp would be 0: the nearest key takes all. Keys that are
    more than about 10¹⁹ widths away count as equally far. The other kernels end at distance h; a
    query without any key in reach gets the weights 0 and the prediction 0, and gradients 0. All is
    computed in float32 at least, under ``torch.autocast``, too.

    Args:
        query: Places x to predict at, shape (..., T).
        keys: Places xᵢ of the known values, shape (..., S).
        values: Known values yᵢ, shape (..., S).
        kernel: A name in `KERNELS`, or a function of u = (x − xᵢ)/h, shape (..., T, S), that
            returns weights of this shape, not negative.
        width: The width h in the unit of the keys, above 0: a number, or a tensor that
            broadcasts to (..., T, S), such as (T, 1) for a width of each query.
        mask: True = this query may use this key; of the rank of the weights (one more than
            `query`), broadcastable to (..., T, S).
        return_weights: Also return the weights.

    Returns:
        Predictions, shape (..., T), or predictions and weights, shape (..., T, S). Each row of
        weights sums to 1, or to 0 where no key is in reach.

    Raises:
        TypeError: If `mask` is not boolean.
        ValueError: If `kernel` is unknown or returns no weights, or if `width`, `mask` or the
            number of keys and values do not fit.

    Source: Nadaraya 1964; Watson 1964.
    Differs from: d2l multiplies the distance by a parameter w; here it is divided by h = 1/w.
    """
    if keys.shape[-1] != values.shape[-1]:
        raise ValueError(
            "keys and values must hold as many entries, "
            f"but hold {keys.shape[-1]} and {values.shape[-1]}"
        )
    kernel = _find_kernel(kernel)
    dtype = torch.result_type(query, keys)
    # Squares and sums may not fit into a half: they are wide.
    wide = torch.promote_types(dtype, torch.float32)
    # (..., T, 1) − (..., 1, S)
    distance = query.to(wide).unsqueeze(-1) - keys.to(wide).unsqueeze(-2)
    u = distance / _check_width(width, distance)
    weights = _kernel_weights(kernel, u, mask)
    with wide_products(query.device):
        output = (weights @ values.to(weights.dtype).unsqueeze(-1)).squeeze(-1)
    output, weights = output.to(dtype), weights.to(dtype)
    return (output, weights) if return_weights else output


def leave_one_out_mask(
    size: int, device: torch.device | str | None = None
) -> Bool[Tensor, "{size} {size}"]:
    """True everywhere but on the diagonal: each query may use every key but its own.

    Args:
        size: Number of queries, which is that of the keys, at least 1.
        device: Where the mask lives.

    Raises:
        ValueError: If `size` is below 1.
    """
    if size < 1:
        raise ValueError(f"size must be at least 1, but is {size}")
    return ~torch.eye(size, dtype=torch.bool, device=device)


class KernelRegression(nn.Module):
    """Nadaraya–Watson regression whose width is learned.

    What is learned is the logarithm of the width, so that a step of any optimiser keeps the
    width above 0. Train it with `leave_one_out`: a training point that may use its own value is
    predicted best by a width of 0.

    Args:
        width: The width to start from, above 0, in the unit of the keys.
        kernel: A name in `KERNELS` or a function of u, see `nadaraya_watson`. Not the boxcar: its
            weights change with the width in jumps only, so there is no gradient to follow.

    Attributes:
        log_width: Natural logarithm of the width, a parameter without axes.

    Raises:
        ValueError: If `width` is not above 0, or `kernel` is unknown or the boxcar.
    """

    def __init__(self, width: Real = 1.0, kernel: str | Kernel = "gaussian") -> None:
        super().__init__()
        if not 0 < width < float("inf"):
            raise ValueError(f"width must be finite and above 0, but is {width}")
        self.kernel = _find_kernel(kernel)
        if self.kernel is boxcar:
            raise ValueError(
                "kernel must have a gradient for the width, but is 'boxcar'"
            )
        self.log_width = nn.Parameter(torch.tensor(float(width)).log())

    @property
    def width(self) -> Float[Tensor, ""]:
        """The width, above 0; differentiable."""
        return self.log_width.exp()

    def forward(
        self,
        query: Float[Tensor, "*#axes T"],
        keys: Float[Tensor, "*#axes S"],
        values: Float[Tensor, "*#axes Sv"],
        *,
        leave_one_out: bool = False,
        return_weights: bool = False,
    ) -> (
        Float[Tensor, "*axes T"]
        | tuple[Float[Tensor, "*axes T"], Float[Tensor, "*pairs T S"]]
    ):
        """Predict at each query, see `nadaraya_watson`.

        Args:
            query: Places to predict at, shape (..., T).
            keys: Places of the known values, shape (..., S).
            values: Known values, shape (..., S).
            leave_one_out: Query number i may not use key number i. For training, where the keys
                are the queries themselves.
            return_weights: Also return the weights.

        Returns:
            Predictions, shape (..., T), or predictions and weights, shape (..., T, S).

        Raises:
            ValueError: If `leave_one_out` is asked for and T is not S, or as `nadaraya_watson`.
        """
        mask = None
        if leave_one_out:
            if query.shape[-1] != keys.shape[-1]:
                raise ValueError(
                    "leave_one_out needs a query for each key, but there are "
                    f"{query.shape[-1]} queries and {keys.shape[-1]} keys"
                )
            mask = leave_one_out_mask(keys.shape[-1], device=keys.device)
            mask = mask.view((1,) * (max(query.ndim, keys.ndim) - 1) + mask.shape)
        return nadaraya_watson(
            query,
            keys,
            values,
            self.kernel,
            self.width,
            mask=mask,
            return_weights=return_weights,
        )

    def extra_repr(self) -> str:
        """Name the kernel and the present width."""
        return f"kernel={self.kernel.__name__}, width={self.width.item():.4g}"


def _find_kernel(kernel: str | Kernel) -> Kernel:
    if not isinstance(kernel, str):
        return kernel
    if kernel not in KERNELS:
        raise ValueError(
            f"kernel must be one of {', '.join(KERNELS)}, but is {kernel!r}"
        )
    return KERNELS[kernel]


def _check_width(width: Real | Tensor, distance: Tensor) -> Real | Tensor:
    """Demand a width above 0 that broadcasts to the distances."""
    if not isinstance(width, Tensor):
        if not 0 < width < float("inf"):
            raise ValueError(f"width must be finite and above 0, but is {width}")
        return width
    if not ((width > 0) & width.isfinite()).all():
        raise ValueError(
            f"width must be finite and above 0, but is {width.min().item()} somewhere"
        )
    sizes = zip(reversed(width.shape), reversed(distance.shape), strict=False)
    if width.ndim > distance.ndim or any(w not in (1, d) for w, d in sizes):
        raise ValueError(
            f"width must broadcast to shape {tuple(distance.shape)}, but has shape "
            f"{tuple(width.shape)}"
        )
    return width


def _kernel_weights(kernel: Kernel, u: Tensor, mask: Tensor | None) -> Tensor:
    """Kernel values at u, made to sum to 1 over the keys in reach."""
    if kernel is gaussian:
        # Beyond the root of the largest number all keys are equally far.
        limit = torch.finfo(u.dtype).max ** 0.5
        return masked_softmax(-0.5 * u.clamp(-limit, limit).square(), mask)
    raw = kernel(u)
    if raw.shape != u.shape:
        raise ValueError(
            f"kernel must return weights of shape {tuple(u.shape)}, "
            f"but their shape is {tuple(raw.shape)}"
        )
    if not (raw >= 0).all():
        raise ValueError("kernel must return weights that are not negative or NaN")
    if mask is not None:
        check_mask(mask, raw.shape)
        raw = raw.masked_fill(~mask, 0)
    total = raw.sum(dim=-1, keepdim=True)
    # Where nothing is in reach this divides 0 by 1; dividing by 0 first
    # and mending it afterwards would leave NaN in the gradient.
    return raw / total.masked_fill(total == 0, 1)
