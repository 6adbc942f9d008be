"""Checkers for the exercises whose answer is a function.

Write the function that an exercise asks for and give it to its checker:

>>> from src.checks import check_masked_softmax
>>> check_masked_softmax(my_softmax)  # doctest: +SKIP
check_masked_softmax: all 8 cases pass

A checker calls your function on copies of its arguments and compares result and gradients with
those of the package. If something is wrong it raises `CheckFailed`, which names each case that
fails, what was expected there, what your function gave, and where to look. Only notebooks import
this module.
"""

from src.checks.engine import CheckFailed
from src.checks.heads import (
    check_global_window,
    check_grid_positions,
    check_renumber_heads,
    check_split_heads,
)
from src.checks.pooling import (
    check_additive_step,
    check_attend_in_pieces,
    check_attention_pooling,
    check_leave_one_out,
    check_masked_softmax,
)
from src.checks.transformer import (
    check_effective_number,
    check_layer_norm,
    check_multi_head_attention,
    check_token_loss,
)

__all__ = [
    "CheckFailed",
    "check_additive_step",
    "check_attend_in_pieces",
    "check_attention_pooling",
    "check_effective_number",
    "check_global_window",
    "check_grid_positions",
    "check_layer_norm",
    "check_leave_one_out",
    "check_masked_softmax",
    "check_multi_head_attention",
    "check_renumber_heads",
    "check_split_heads",
    "check_token_loss",
]
