"""Images as sequences: a Transformer over patches, and the convolutional network beside it."""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from src.config import POSITIONS, LayerConfig
from src.layers import EncoderLayer
from src.positions import LearnedPositions, RotaryPositions, SinusoidalPositions

_ADDED = {"learned": LearnedPositions, "sinusoidal": SinusoidalPositions}


class PatchTransformer(nn.Module):
    """Cut an image into patches, read them as tokens, classify their mean.

    Each patch becomes one token by a linear layer; then come positions, the encoder layers of
    `src.layers` (pre-norm, GELU), a last norm, the mean over tokens and a linear layer. With
    ``patch_size=1`` every pixel is a token.

    Args:
        image_size: Height and width, in pixels.
        patch_size: Side of a square patch; divides both.
        num_classes: Number ``C`` of classes, ≥ 1.
        channels: Numbers in a pixel.
        d_model: Width of a token.
        num_heads: Heads of each attention; divides ``d_model``.
        d_ff: Hidden width of the feed-forward network.
        num_layers: Encoder layers.
        dropout: On the tokens and on each sublayer's output.
        positions: ``"learned"``, ``"sinusoidal"``, ``"rotary"`` or ``"none"``; patches are
            counted row by row.

    Raises:
        ValueError: If ``patch_size`` does not divide the image, ``channels`` is below 1, or a
            field is out of the range that `src.config.LayerConfig` demands.

    Source: Dosovitskiy et al. 2021, §3.1.
    Differs from: it takes the mean of the tokens, where the paper adds a class token.
    """

    def __init__(
        self,
        image_size: tuple[int, int],
        patch_size: int,
        num_classes: int,
        *,
        channels: int = 1,
        d_model: int = 48,
        num_heads: int = 4,
        d_ff: int = 96,
        num_layers: int = 2,
        dropout: float = 0.1,
        positions: str = "learned",
    ) -> None:
        super().__init__()
        height, width = image_size
        if (
            patch_size < 1
            or height < 1
            or width < 1
            or height % patch_size
            or width % patch_size
        ):
            raise ValueError(
                f"patch_size must divide height and width, but is {patch_size} for an image of "
                f"{height} × {width}"
            )
        if channels < 1:
            raise ValueError(f"channels must be at least 1, but is {channels}")
        if num_layers < 1:
            raise ValueError(f"num_layers must be at least 1, but is {num_layers}")
        if positions not in POSITIONS:
            raise ValueError(
                f"positions must be one of {', '.join(POSITIONS)}, but is {positions!r}"
            )
        num_patches = (height // patch_size) * (width // patch_size)
        config = LayerConfig(
            d_model=d_model,
            num_heads=num_heads,
            d_ff=d_ff,
            dropout=dropout,
            norm_first=True,
            activation="gelu",
        )
        self.image_size, self.patch_size, self.channels = (
            (height, width),
            patch_size,
            channels,
        )
        self.embed = nn.Linear(channels * patch_size**2, d_model)
        kind = _ADDED.get(positions)
        self.positions = kind(d_model, num_patches) if kind else None
        turned = positions == "rotary"
        rotary = RotaryPositions(config.head_dim, num_patches) if turned else None
        self.dropout = nn.Dropout(dropout)
        self.layers = nn.ModuleList(
            EncoderLayer(config, rotary) for _ in range(num_layers)
        )
        self.norm = nn.LayerNorm(d_model)
        self.head = nn.Linear(d_model, num_classes)

    def patches(
        self, images: Float[Tensor, "B channels H W"]
    ) -> Float[Tensor, "B N P"]:
        """Cut images into ``N`` patches of ``P = channels·patch_size²`` numbers.

        Raises:
            ValueError: If the images have another size or other channels than the model.
        """
        expected = (self.channels, *self.image_size)
        if images.shape[1:] != expected:
            raise ValueError(
                f"images must have shape (B, {', '.join(map(str, expected))}), "
                f"but have {tuple(images.shape)}"
            )
        return F.unfold(images, self.patch_size, stride=self.patch_size).transpose(1, 2)

    def forward(self, images: Float[Tensor, "B channels H W"]) -> Float[Tensor, "B C"]:
        """Logits of the classes."""
        x = self.embed(self.patches(images))
        if self.positions is not None:
            x = self.positions(x)
        x = self.dropout(x)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x).mean(dim=1))


class ConvNet(nn.Module):
    """Three 3 × 3 convolutions, one halving in between, the mean over pixels, a linear layer.

    Args:
        num_classes: Number ``C`` of classes, ≥ 1.
        channels: Numbers in a pixel, ≥ 1.
        width: Channels of the first two convolutions, ≥ 1; the third has twice as many.

    Raises:
        ValueError: If one of them is below 1.
    """

    def __init__(self, num_classes: int, *, channels: int = 1, width: int = 36) -> None:
        super().__init__()
        sizes = (("num_classes", num_classes), ("channels", channels), ("width", width))
        for name, value in sizes:
            if value < 1:
                raise ValueError(f"{name} must be at least 1, but is {value}")
        self.convolutions = nn.ModuleList(
            nn.Conv2d(inner, outer, 3, padding=1)
            for inner, outer in ((channels, width), (width, width), (width, 2 * width))
        )
        self.head = nn.Linear(2 * width, num_classes)

    def forward(self, images: Float[Tensor, "B channels H W"]) -> Float[Tensor, "B C"]:
        """Logits of images of at least 2 × 2 pixels."""
        first, second, third = self.convolutions
        x = F.max_pool2d(torch.relu(second(torch.relu(first(images)))), 2)
        return self.head(torch.relu(third(x)).mean(dim=(2, 3)))
