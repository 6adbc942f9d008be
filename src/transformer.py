"""The Transformer of "Attention Is All You Need": encoder, decoder and what joins them."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from src.cache import DecoderCache, KVCache, Memory
from src.config import TransformerConfig
from src.layers import DecoderLayer, Embeddings, EncoderLayer
from src.masks import padding_mask
from src.padding import Padding
from src.positions import RotaryPositions, fill_tables
from src.recording import recording
from src.token_ids import check_padding

__all__ = ["Decoder", "Encoder", "Transformer", "TransformerStepper"]


class _Stack(nn.Module):
    """What encoder and decoder share: embeddings, rotary positions, a norm at the end."""

    def __init__(
        self, vocab_size: int, config: TransformerConfig, num_token_types: int
    ) -> None:
        super().__init__()
        self.embeddings = Embeddings(vocab_size, config, num_token_types)
        rotary = config.positions == "rotary"
        self.rotary = (
            RotaryPositions(config.head_dim, config.max_len) if rotary else None
        )
        self.norm = (
            nn.LayerNorm(config.d_model, config.norm_eps) if config.norm_first else None
        )
        self.register_load_state_dict_post_hook(_complete)

    def finish(self, x: Tensor) -> Tensor:
        """Normalise the last layer's output, where the layers are pre-norm."""
        return x if self.norm is None else self.norm(x)


def _complete(stack: _Stack, _: object) -> None:
    fill_tables(stack, stack.embeddings.tokens.weight.device)


class Encoder(_Stack):
    """Source ids to memory: one vector for each source token, aware of all the others.

    Source: Vaswani et al. 2017, §3.1.
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__(config.src_vocab_size, config, config.num_token_types)
        self.layers = nn.ModuleList(
            EncoderLayer(config, self.rotary) for _ in range(config.num_encoder_layers)
        )

    def forward(
        self,
        src: Int[Tensor, "B S"],
        mask: Bool[Tensor, "#B #S S"] | Padding | None = None,
    ) -> Float[Tensor, "*tokens D"]:
        """Encode ``src``.

        Args:
            src: Source ids.
            mask: Which positions may be attended to, or the padding of ``src``; if that packs,
                so is the output, and all the work but attention itself.
        """
        x = self.embeddings(src)
        if isinstance(mask, Padding):
            x = mask.pack(x)
        for layer in self.layers:
            x = layer(x, mask)
        return self.finish(x)


class Decoder(_Stack):
    """Target ids and memory to one vector for each target position.

    Source: Vaswani et al. 2017, §3.1.
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__(config.tgt_vocab_size, config, 0)
        self.layers = nn.ModuleList(
            DecoderLayer(config, self.rotary) for _ in range(config.num_decoder_layers)
        )

    def remember(
        self,
        memory: Float[Tensor, "*tokens D"],
        mask: Bool[Tensor, "#B 1 S"] | Padding | None = None,
    ) -> list[Memory]:
        """For each layer the heads of keys and values of the encoder's output."""
        return [layer.cross_attention.remember(memory, mask) for layer in self.layers]

    def forward(
        self,
        tgt: Int[Tensor, "B T"],
        memory: list[Memory],
        *,
        cache: list[KVCache] | None = None,
        padding: Padding | None = None,
    ) -> Float[Tensor, "*tokens D"]:
        """Decode ``tgt``, whose first token comes right after those stored in ``cache``.

        Args:
            tgt: Target ids.
            memory: What `remember` made of the encoder's output.
            cache: One for each layer; takes the keys and values of ``tgt``.
            padding: The padding of ``tgt``. It needs no mask, since it comes last, where no real
                token may look anyway; if it packs, so is the output.
        """
        x = self.embeddings(tgt, offset=cache[0].length if cache else 0)
        if padding is not None:
            x = padding.pack(x)
        caches = cache if cache else [None] * len(self.layers)
        for layer, layer_memory, layer_cache in zip(
            self.layers, memory, caches, strict=True
        ):
            x = layer(x, layer_memory, cache=layer_cache, padding=padding)
        return self.finish(x)


class Transformer(nn.Module):
    """Encoder, decoder and the output matrix that turns the decoder's vectors into logits.

    Args:
        config: Shape and arithmetic.

    Source: Vaswani et al. 2017, §3; tied embeddings Press and Wolf 2017.
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config
        self.encoder = Encoder(config)
        self.decoder = Decoder(config)
        self.output = nn.Linear(config.d_model, config.tgt_vocab_size, bias=False)
        nn.init.normal_(self.output.weight, std=config.d_model**-0.5)
        self._tie()
        # With ``assign=True`` loading puts a tensor of its own in each place.
        self.register_load_state_dict_post_hook(_tie_again)

    def _tie(self) -> None:
        """Let the places that share a matrix hold the same one."""
        if self.config.tie_embeddings != "none":
            self.output.weight = self.decoder.embeddings.tokens.weight
        if self.config.tie_embeddings == "all":
            self.encoder.embeddings.tokens.weight = (
                self.decoder.embeddings.tokens.weight
            )

    def _apply(self, fn, recurse=True):
        super()._apply(fn, recurse)
        self._tie()  # `to_empty` gives each place a storage of its own
        return self

    def forward(
        self,
        src: Int[Tensor, "B S"],
        tgt: Int[Tensor, "B T"],
        targets: Int[Tensor, "B T"] | None = None,
    ) -> Float[Tensor, "B T V"] | Float[Tensor, "N V"]:
        """Logits of the next token after every prefix of ``tgt``: training's view.

        Args:
            src: Source ids, padded at the end with ``pad_id``.
            tgt: Target ids, starting with ``bos_id``: the sentence shifted right by one.
            targets: The right answers, padded at the end with ``pad_id``. Given, the logits are
                those of the ``N`` real targets alone, in the order of
                ``targets[targets != pad_id]``, and nothing is computed for padding. An
                accelerator would wait for their number: give them on a CPU alone.

        Raises:
            ValueError: If a batch is empty, the rows differ in number, a sequence is longer than
                ``max_len``, or, as far as it costs nothing to look (`src.token_ids`), an id lies
                outside its vocabulary or padding comes before a token.
        """
        pad_id = self.config.pad_id
        check_padding("src", src, pad_id)
        check_padding("tgt", tgt[..., 1:], pad_id)  # Marian starts with padding
        self._check_rows(src, tgt, targets)
        source = Padding(src != pad_id, packed=targets is not None)
        memory = self.decoder.remember(self.encoder(src, source), source)
        if targets is None:
            return self.output(self.decoder(tgt, memory))
        target = Padding(targets != pad_id, packed=True)
        x = self.decoder(tgt, memory, padding=target)
        return self.output(x if target.packed else x[target.real])

    def encode(self, src: Int[Tensor, "B S"]) -> Float[Tensor, "B S D"]:
        """Memory of the source; padding is never attended to."""
        return self.encoder(src, padding_mask(src, self.config.pad_id))

    def decode(
        self,
        tgt: Int[Tensor, "B T"],
        memory: Float[Tensor, "B2 S D"],
        memory_mask: Bool[Tensor, "#B2 1 S"] | None = None,
    ) -> Float[Tensor, "B T V"]:
        """Logits of the next token after every prefix of ``tgt``, given a memory.

        Raises:
            ValueError: If ``tgt`` and ``memory`` differ in their number of rows.
        """
        self._check_rows(memory, tgt)
        return self.output(
            self.decoder(tgt, self.decoder.remember(memory, memory_mask))
        )

    def new_cache(
        self, src: Int[Tensor, "B S"], max_len: int | None = None
    ) -> DecoderCache:
        """Encode ``src`` and project it once for every decoder layer.

        Args:
            src: Source ids.
            max_len: Target positions to make room for; the model's ``max_len`` if None.
        """
        mask = padding_mask(src, self.config.pad_id)
        mask = (
            None if bool(mask.all()) else mask
        )  # no padding, no mask: the faster kernel
        memory = self.decoder.remember(self.encode(src), mask)
        longest = self.config.max_len
        max_len = longest if max_len is None else min(max_len, longest)
        key = memory[0].key  # under autocast its dtype is not the memory's own
        rows, heads, _, width = key.shape
        layers = [
            KVCache(rows, heads, max_len, width, dtype=key.dtype, device=key.device)
            for _ in memory
        ]
        return DecoderCache(layers, memory)

    def decode_cached(
        self, tgt: Int[Tensor, "B T"], cache: DecoderCache
    ) -> Float[Tensor, "B T V"]:
        """Logits after each new token; ``tgt`` is **appended to the cache**.

        One token, a chunk or a whole sentence: the logits are those of the full pass.
        """
        return self.output(self.decoder(tgt, cache.memory, cache=cache.layers))

    def stepper(
        self, src: Int[Tensor, "B S"], max_len: int | None = None
    ) -> "TransformerStepper":
        """A step function for `src.decoding`, with the memory of ``src`` and an empty cache."""
        return TransformerStepper(self, src, max_len)

    @torch.no_grad()
    def attention_maps(
        self, src: Int[Tensor, "B S"], tgt: Int[Tensor, "B T"]
    ) -> dict[str, list[Float[Tensor, "B H T_or_S S_or_T"]]]:
        """Each layer's weights: ``"encoder"`` (S × S), ``"decoder"`` (T × T), ``"cross"`` (T × S).

        Weights are those before dropout; take them in ``eval()`` mode.
        """
        with recording(self) as maps:
            self(src, tgt)

        def of(name: str, layers: nn.ModuleList) -> list[Tensor]:
            return [maps[name.format(i)] for i in range(len(layers))]

        return {
            "encoder": of("encoder.layers.{}.self_attention", self.encoder.layers),
            "decoder": of("decoder.layers.{}.self_attention", self.decoder.layers),
            "cross": of("decoder.layers.{}.cross_attention", self.decoder.layers),
        }

    def _check_rows(
        self, src: Tensor, tgt: Tensor, targets: Tensor | None = None
    ) -> None:
        if src.shape[0] != tgt.shape[0]:
            raise ValueError(
                "src and tgt must have the same number of rows, but have "
                f"{src.shape[0]} and {tgt.shape[0]}"
            )
        if targets is not None and targets.shape != tgt.shape:
            raise ValueError(
                f"targets must have the shape of tgt, {tuple(tgt.shape)}, but have "
                f"{tuple(targets.shape)}"
            )

    def num_parameters(self) -> int:
        """Number of learned numbers; tied ones count once."""
        return sum(p.numel() for p in self.parameters())


def _tie_again(model: Transformer, _: object) -> None:
    model._tie()


class TransformerStepper:
    """A step function over a Transformer: feeds one token a row and remembers the rest.

    Args:
        model: The model, in ``eval()`` mode unless you want dropout.
        src: Source ids.
        max_len: Target positions to make room for.
    """

    @torch.no_grad()
    def __init__(
        self, model: Transformer, src: Tensor, max_len: int | None = None
    ) -> None:
        self.model = model
        self.device = src.device  # where tokens are wanted
        self.cache = model.new_cache(src, max_len)

    @torch.no_grad()
    def __call__(self, tokens: Int[Tensor, " N"]) -> Float[Tensor, "N V"]:
        """Feed the last token of each row; logits of the next."""
        return self.model.decode_cached(tokens.unsqueeze(1), self.cache).squeeze(1)

    def select(self, index: Int[Tensor, " M"]) -> None:
        """Keep, reorder, drop or repeat rows."""
        self.cache.select(index)
