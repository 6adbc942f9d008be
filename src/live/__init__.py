"""Live figures: the reader moves, chooses and taps, and no kernel is needed.

Nothing imports this package but notebooks. Each function takes what a notebook has computed,
checks and rounds it, and returns one HTML output that works in the book without network, in
Jupyter and on Colab, by keyboard, by pointer and on a telephone. Equal data give equal text, so
the checks of the notebooks compare it; where the data of a long training differ from machine to
machine, the cell needs the tag `nbval-ignore-output`.

Tensors may be on any device and may require gradients. End the cell with the call. An output
holds a copy of the code here: after a change to it, run the chapters with live figures again.
"""

from src.live.charts import (
    attention_or_pooling,
    kernel_regression,
    position_waves,
    score_playground,
)
from src.live.tokens import decoding_steps, head_maps

__all__ = [
    "attention_or_pooling",
    "decoding_steps",
    "head_maps",
    "kernel_regression",
    "position_waves",
    "score_playground",
]
