"""Checkers of chapters 10.5 and 10.6: heads, a mask and positions."""

from collections.abc import Callable

import torch
from torch import Tensor

from src.checks.engine import Case, Wrong, run
from src.masks import window_mask
from src.multihead import MultiHeadAttention
from src.positions import sinusoidal_table
from src.recording import recording


def check_split_heads(function: Callable) -> None:
    """Check how the columns of a projection become heads (chapter 10.5).

    The function's signature is ``split_heads(x, num_heads)``: tokens ``(B, T, D)`` and a number H
    that divides D give heads ``(B, H, T, D / H)``. Head 0 has the first D / H columns, and so on.

    Raises:
        CheckFailed: If it is wrong in any case.
        TypeError: If ``function`` can't be called.
    """

    def reference(x: Tensor, num_heads: int) -> Tensor:
        return MultiHeadAttention(x.shape[-1], num_heads).split(x)[0]

    def cases() -> list[Case]:
        x = torch.randn(2, 5, 21)
        order = (
            "cut the columns first, (B, T, H, K), then swap T and H: a `view` as (B, H, T, K) "
            "mixes tokens and heads"
        )
        return [
            Case("3 heads of width 7", (x, 3), order),
            Case("7 heads of width 3", (x, 7), order),
            Case("as many heads as tokens", (x[:, :3], 3), order),
            Case(
                "one head",
                (x, 1),
                "one head has all columns; its axis stays, (B, 1, T, D)",
            ),
            Case(
                "one token",
                (x[:, :1], 3),
                "keep the axis of the tokens, also if it is 1",
            ),
            Case("gradients", (x, 3), "rearrange the tensor itself", gradients=("x",)),
        ]

    run("check_split_heads", function, reference, cases)


def check_renumber_heads(function: Callable) -> None:
    """Check a layer with the same output whose heads have other numbers (chapter 10.5).

    The function's signature is ``renumber(layer, order)``: a `src.multihead.MultiHeadAttention`
    and a permutation, int64 ``(H,)``, give a new `MultiHeadAttention` whose head i is head
    ``order[i]`` of the old one, and whose output is the same. The old layer stays as it is.

    Raises:
        CheckFailed: If it is wrong in any case.
        TypeError: If ``function`` can't be called.
    """

    def reference(layer: MultiHeadAttention, order: Tensor) -> MultiHeadAttention:
        sizes = (layer.num_heads, layer.head_dim)
        new = MultiHeadAttention(
            layer.d_model, sizes[0], bias=layer.in_proj.bias is not None
        )
        weights = layer.state_dict()
        for name in weights:
            if name.startswith("in_proj"):
                weights[name] = (
                    weights[name].unflatten(0, (3, *sizes))[:, order].flatten(0, 2)
                )
        columns = weights["out_proj.weight"].unflatten(1, sizes)
        weights["out_proj.weight"] = columns[:, order].flatten(1)
        new.load_state_dict(weights)
        return new

    def look(new: MultiHeadAttention, arguments: tuple) -> tuple[Tensor, Tensor]:
        old = arguments[0]
        if not isinstance(new, MultiHeadAttention):
            raise Wrong(
                f"expected a MultiHeadAttention, your function gave {type(new).__name__}"
            )
        if new is old:
            raise Wrong("expected a new layer, your function gave the old one")
        d_model = old.d_model
        x = torch.arange(2.0 * 5 * d_model).sin().reshape(2, 5, d_model)
        with torch.no_grad(), recording(new) as maps:
            return new(x), maps["attention"]

    def layer(heads: int, width: int, bias: bool = True) -> MultiHeadAttention:
        made = MultiHeadAttention(heads * width, heads, bias=bias)
        # Biases are zero at first, which would hide them.
        for parameter in made.parameters():
            torch.nn.init.normal_(parameter, std=0.5)
        return made

    def cases() -> list[Case]:
        circle, swap = torch.tensor([1, 2, 3, 4, 0]), torch.tensor([2, 1, 0])
        return [
            Case(
                "5 heads in a circle, no bias",
                (layer(5, 3, bias=False), circle),
                BLOCKS,
            ),
            Case(
                "2 of 3 heads swapped",
                (layer(3, 5), swap),
                f"{BLOCKS}; biases move, too",
            ),
            Case(
                "5 heads of width 1",
                (layer(5, 1), circle),
                f"{BLOCKS}; biases move, too",
            ),
            Case("the old order", (layer(3, 5), torch.arange(3)), "nothing moves then"),
        ]

    run("check_renumber_heads", function, reference, cases, look)


BLOCKS = (
    "result 1 is the output, result 2 the heads' weights: move blocks of K rows in each third of "
    "`in_proj` and blocks of K columns of `out_proj.weight`; new block i is old block order[i]"
)


def check_global_window(function: Callable) -> None:
    """Check the mask of a window with one token that all may attend to (chapter 10.6).

    The function's signature is ``global_window(n, reach, token)``: three numbers give a boolean
    mask ``(1, n, n)``, true where the query of the row may attend to the key of the column: to
    keys at most ``reach`` places away, and to key ``token``; query ``token`` may attend to all.

    Raises:
        CheckFailed: If it is wrong in any case.
        TypeError: If ``function`` can't be called.
    """

    def reference(n: int, reach: int, token: int) -> Tensor:
        mask = window_mask(n, left=reach, right=reach).clone()
        mask[:, token, :] = mask[:, :, token] = True
        return mask

    def cases() -> list[Case]:
        both = "index [0, query, key]: row and column of the token are true"
        return [
            Case("13 tokens, reach 2, token 6", (13, 2, 6), both),
            Case("the first token", (11, 3, 0), both),
            Case("the last token", (11, 1, 10), both),
            Case(
                "reach 0",
                (7, 0, 2),
                "each query still sees its own key: distance <= reach",
            ),
            Case("reach beyond the sentence", (5, 9, 2), "everybody sees everybody"),
            Case("one token", (1, 1, 0), "a mask of shape (1, 1, 1)"),
        ]

    run("check_global_window", function, reference, cases)


def check_grid_positions(function: Callable) -> None:
    """Check positions in two directions for the patches of an image (chapter 10.6).

    The function's signature is ``grid_positions(rows, columns, d_model)``: numbers of rows and
    columns of patches and a width that 4 divides give a float32 table ``(rows · columns,
    d_model)``, patches counted row by row. The first half of an entry is the sinusoidal encoding
    of width ``d_model / 2`` of the patch's row, the second half that of its column.

    Raises:
        CheckFailed: If it is wrong in any case.
        TypeError: If ``function`` can't be called.
    """

    def reference(rows: int, columns: int, d_model: int) -> Tensor:
        half = d_model // 2
        of_row, of_column = (
            sinusoidal_table(rows, half),
            sinusoidal_table(columns, half),
        )
        return torch.cat(
            [of_row.repeat_interleave(columns, 0), of_column.repeat(rows, 1)], dim=1
        )

    def cases() -> list[Case]:
        divide = "patch number n stands in row n // columns and column n % columns"
        half = "frequencies go by the half width: 10000 ** (2j / (d_model / 2)); sine, cosine, …"
        return [
            Case("4 by 4 patches", (4, 4, 32), half),
            Case("more columns than rows", (3, 5, 8), divide),
            Case("more rows than columns", (7, 2, 12), divide),
            Case("one row", (1, 5, 8), "the row is 0 for all: sines 0, cosines 1"),
            Case(
                "one column", (5, 1, 8), "the column is 0 for all: sines 0, cosines 1"
            ),
        ]

    run("check_grid_positions", function, reference, cases)
