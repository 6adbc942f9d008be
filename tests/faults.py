"""Faults to plant, and the test that must notice each; `test_faults.py` does the planting.

To add one: a name, the file, a piece of text that occurs exactly once in it, what to put in its
place, and the id of a fast test (a parametrised function counts as one and stops at its first
failure). The tests run without the annotations' checks, so that it is their assertions that fail.
"""

from typing import NamedTuple


class Fault(NamedTuple):
    """One mistake."""

    name: str
    file: str
    old: str
    new: str
    test: str


MASKS, FUNCTIONAL, POSITIONS, CACHE, MULTIHEAD, CONFIG, LAYERS, TRANSFORMER, INTEROP = (
    f"tests/test_{name}.py::test_"
    for name in (
        "masks", "functional", "positions", "cache", "multihead", "config", "layers",
        "transformer", "interop",
    )
)

FAULTS = [
    # ---- masks
    Fault(
        "padding mask the wrong way round", "src/masks.py",
        "return (ids != pad_id).unsqueeze(1)",
        "return (ids == pad_id).unsqueeze(1)",
        MASKS + "padding_mask_is_true_on_real_tokens",
    ),
    Fault(
        "causal mask aligned at the top left", "src/masks.py",
        "query = torch.arange(num_keys - num_queries, num_keys, device=device)",
        "query = torch.arange(num_queries, device=device)",
        MASKS + "causal_mask_is_aligned_at_the_bottom_right",
    ),
    Fault(
        "causal mask hides the token itself", "src/masks.py",
        "return distance >= 0",
        "return distance > 0",
        MASKS + "causal_mask_of_one_argument_is_square",
    ),
    Fault(
        "one key too many", "src/masks.py",
        "return torch.arange(num_keys, device=valid_lens.device) < lens",
        "return torch.arange(num_keys, device=valid_lens.device) <= lens",
        MASKS + "length_mask_allows_the_first_keys_and_none_for_length_zero",
    ),
    Fault(
        "torch.nn's mask taken as it is", "src/masks.py",
        "return ~key_padding_mask.unsqueeze(1)",
        "return key_padding_mask.unsqueeze(1)",
        MASKS + "key_padding_mask_is_turned_round",
    ),
    Fault(
        "a large number for infinity", "src/masks.py",
        'return zeros.masked_fill(~mask, float("-inf"))',
        "return zeros.masked_fill(~mask, -1e4)",
        MASKS + "additive_round_trip",
    ),
    Fault(
        "window without a right edge", "src/masks.py",
        "return (distance <= left) & (distance >= -right)",
        "return distance <= left",
        MASKS + "window_mask_reaches_exactly_left_and_right",
    ),
    # ---- functional
    Fault(
        "scale forgotten", "src/functional.py",
        "scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale",
        "scale = 1.0 if scale is None else scale",
        FUNCTIONAL + "equals_the_loops[explicit-None]",
    ),
    Fault(
        "mask forgotten in the explicit backend", "src/functional.py",
        "weights = masked_softmax(scores, mask)",
        "weights = masked_softmax(scores)",
        FUNCTIONAL + "equals_the_loops[explicit-None]",
    ),
    Fault(
        "mask forgotten in the fused backend", "src/functional.py",
        "query, key, value, attn_mask=mask, dropout_p=dropout, scale=scale,",
        "query, key, value, attn_mask=None, dropout_p=dropout, scale=scale,",
        FUNCTIONAL + "equals_the_loops[sdpa-None]",
    ),
    Fault(
        "returned weights see the future", "src/functional.py",
        "fused_causal = fused and is_causal and",
        "fused_causal = is_causal and",
        FUNCTIONAL + "returned_weights_are_causal_too[5-5-sdpa]",
    ),
    Fault(
        "causal flag forgotten with more keys than queries", "src/functional.py",
        "if is_causal and num_queries > 1 and not fused_causal:",
        "if is_causal and num_queries == num_keys and not fused_causal:",
        FUNCTIONAL + "backends_agree_on_causal_attention",
    ),
    Fault(
        "dead rows become NaN", "src/functional.py",
        'masked_fill(~mask, float("-inf")).masked_fill(empty, 0.0)',
        'masked_fill(~mask, float("-inf"))',
        FUNCTIONAL + "a_query_without_keys_gets_zeros_and_finite_gradients",
    ),
    Fault(
        "dead rows become uniform", "src/functional.py",
        "return wide.softmax(dim=-1).masked_fill(empty, 0.0).to(scores.dtype)",
        "return wide.softmax(dim=-1).to(scores.dtype)",
        FUNCTIONAL + "a_query_without_keys_gets_zeros_and_finite_gradients",
    ),
    Fault(
        "a fill that a low score can beat", "src/functional.py",
        'masked_fill(~mask, float("-inf")).masked_fill(empty, 0.0)',
        "masked_fill(~mask, -1e9).masked_fill(empty, 0.0)",
        FUNCTIONAL + "scores_far_below_any_large_negative_fill",
    ),
    Fault(
        "dropout forgotten", "src/functional.py",
        "output = F.dropout(weights, dropout) @ value",
        "output = weights @ value",
        FUNCTIONAL + "weights_are_those_before_dropout",
    ),
    Fault(
        "weights returned after dropout", "src/functional.py",
        "weights = masked_softmax(scores, mask)\n",
        "weights = F.dropout(masked_softmax(scores, mask), dropout)\n",
        FUNCTIONAL + "weights_are_those_before_dropout",
    ),
    Fault(
        "a mask of any rank", "src/functional.py",
        "if mask.dim() != len(shape):",
        "if mask.dim() > len(shape):",
        FUNCTIONAL + "softmax_refuses_a_mask_of_lower_rank",
    ),
    # ---- positions
    Fault(
        "sine and cosine swapped", "src/positions.py",
        "table[:, 0::2] = angles.sin()",
        "table[:, 0::2] = angles.cos()",
        POSITIONS + "table_equals_the_formula[14]",
    ),
    Fault(
        "frequencies fall twice as fast", "src/positions.py",
        "angles = torch.arange(max_len)[:, None] / 10000 ** (columns / d_model)",
        "angles = torch.arange(max_len)[:, None] / 10000 ** (2 * columns / d_model)",
        POSITIONS + "table_equals_the_formula[14]",
    ),
    Fault(
        "positions without offset", "src/positions.py",
        "return self.table[offset : offset + length]",
        "return self.table[:length]",
        POSITIONS + "offset_continues_where_the_last_chunk_ended",
    ),
    Fault(
        "learned positions without offset", "src/positions.py",
        "return x + self.weight[offset : offset + x.shape[1]].to(x.dtype)",
        "return x + self.weight[: x.shape[1]].to(x.dtype)",
        POSITIONS + "offset_continues_where_the_last_chunk_ended[learned]",
    ),
    Fault(
        "table cast to half precision", "src/positions.py",
        "if self.table.dtype != before.dtype or before.is_meta:",
        "if before.is_meta:",
        POSITIONS + "a_cast_to_half_precision_keeps_positions_apart",
    ),
    Fault(
        "rotation mirrored", "src/positions.py",
        "turned = (first * cos - second * sin, second * cos + first * sin)",
        "turned = (first * cos + second * sin, second * cos + first * sin)",
        POSITIONS + "rotary_scores_depend_on_the_distance_only",
    ),
    Fault(
        "rotation by the wrong frequencies", "src/positions.py",
        "/ 10000 ** (columns / self.head_dim)",
        "/ 10000 ** (columns / 2 / self.head_dim)",
        POSITIONS + "rotary_turns_complex_numbers",
    ),
    # ---- cache
    Fault(
        "keys stored as values", "src/cache.py",
        "self.values[:, :, self.length : end] = value",
        "self.values[:, :, self.length : end] = key",
        CACHE + "chunks_come_back_whole",
    ),
    Fault(
        "values keep their rows", "src/cache.py",
        "self.values = _select_filled(self.values, index, self.length)",
        "self.values = _select_filled(self.values, index * 0, self.length)",
        CACHE + "select_keeps_reorders_drops_and_repeats",
    ),
    Fault(
        "mask keeps its rows", "src/cache.py",
        "self.memory_mask = self.memory_mask.index_select(0, kept)",
        "self.memory_mask = self.memory_mask[: len(kept)]",
        CACHE + "decoder_cache_moves_layers_memory_and_mask_together",
    ),
    Fault(
        "one row broadcast into all", "src/cache.py",
        "expected = (*self.keys.shape[:2], key.shape[2], self.keys.shape[3])",
        "expected = (*key.shape[:2], key.shape[2], self.keys.shape[3])",
        CACHE + "a_wrong_number_of_rows_is_refused[1]",
    ),
    Fault(
        "last position refused", "src/cache.py",
        "if end > self.max_len:",
        "if end >= self.max_len:",
        CACHE + "overflow_is_refused_and_changes_nothing",
    ),
    # ---- multihead
    Fault(
        "keys reused for values", "src/multihead.py",
        "v = self.split(self._project(value, 2, 3), 1, packing)[0]",
        "v = self.split(self._project(value, 1, 2), 1, packing)[0]",
        MULTIHEAD + "a_key_alone_is_the_value_too",
    ),
    Fault(
        "mask only while training", "src/multihead.py",
        "mask = mask.unsqueeze(1)",
        "mask = mask.unsqueeze(1) if self.training else None",
        MULTIHEAD + "the_mask_counts_in_training_and_evaluation",
    ),
    Fault(
        "dropout in evaluation", "src/multihead.py",
        "dropout = self.dropout if self.training else 0.0",
        "dropout = self.dropout",
        MULTIHEAD + "dropout_acts_while_training_only",
    ),
    Fault(
        "rotary positions without offset", "src/multihead.py",
        "offset = 0 if cache is None else cache.length",
        "offset = 0",
        MULTIHEAD + "cached_chunks_equal_the_full_pass",
    ),
    Fault(
        "queries left unturned", "src/multihead.py",
        "q, k = rotary(q, offset), rotary(k, offset)",
        "k = rotary(k, offset)",
        MULTIHEAD + "rotary_attention_sees_distances_only",
    ),
    Fault(
        "heads shuffled into positions", "src/multihead.py",
        "output = output.transpose(1, 2).flatten(2)",
        "output = output.reshape(output.shape[0], output.shape[2], -1)",
        MULTIHEAD + "equals_the_loops[explicit-self-True]",
    ),
    Fault(
        "mask forgotten with another scorer", "src/multihead.py",
        "weights = masked_softmax(self.scorer(query, key), mask)",
        "weights = masked_softmax(self.scorer(query, key))",
        MULTIHEAD + "another_scorer",
    ),
    # ---- config
    Fault(
        "big model with the base model's heads", "src/config.py",
        '"num_heads": 16,',
        '"num_heads": 8,',
        CONFIG + "big_is_the_papers_big_model",
    ),
    Fault(
        "heads that do not divide", "src/config.py",
        '"num_heads", self.d_model % self.num_heads == 0,',
        '"num_heads", self.num_heads <= self.d_model,',
        CONFIG + "bad_fields_are_refused",
    ),
    Fault(
        "unknown fields dropped", "src/config.py",
        "        if unknown:",
        "        if not fields:",
        CONFIG + "unknown_fields_are_refused",
    ),
    # ---- layers
    Fault(
        "LayerNorm over time", "src/layers.py",
        "return self.norm(x + self.dropout(sublayer(x)))",
        "return F.layer_norm((x + sublayer(x)).mT, x.shape[1:2]).mT",
        LAYERS + "add_and_norm[False]",
    ),
    Fault(
        "residual connection dropped", "src/layers.py",
        "return x + self.dropout(sublayer(self.norm(x)))",
        "return self.dropout(sublayer(self.norm(x)))",
        LAYERS + "add_and_norm[True]",
    ),
    Fault(
        "residual connection normalised", "src/layers.py",
        "return x + self.dropout(sublayer(self.norm(x)))",
        "return self.norm(x) + self.dropout(sublayer(self.norm(x)))",
        LAYERS + "add_and_norm[True]",
    ),
    Fault(
        "embeddings not scaled", "src/layers.py",
        "self.scale = math.sqrt(d_model) if config.scale_embeddings else 1.0",
        "self.scale = 1.0",
        LAYERS + "embeddings_are_scaled_and_placed[True]",
    ),
    Fault(
        "cross-attention over the decoder's own keys", "src/layers.py",
        "query, *memory, memory_mask, packing=packing, return_weights=keep",
        "query, *self.cross_attention.project_key_value(h), return_weights=keep",
        LAYERS + "decoder_layer_equals_the_loops[explicit-False]",
    ),
    Fault(
        "memory's padding attended to", "src/layers.py",
        "query, *memory, memory_mask, packing=packing, return_weights=keep",
        "query, *memory, packing=packing, return_weights=keep",
        LAYERS + "decoder_layer_equals_the_loops[explicit-False]",
    ),
    Fault(
        "source padding attended to", "src/layers.py",
        "h, mask=mask, rotary=rotary, packing=packing, return_weights=keep",
        "h, rotary=rotary, packing=packing, return_weights=keep",
        LAYERS + "encoder_layer_equals_the_loops[explicit-False]",
    ),
    Fault(
        "activation forgotten", "src/layers.py",
        "return self.outer(self.dropout(self.activation(self.inner(x))))",
        "return self.outer(self.dropout(self.inner(x)))",
        LAYERS + "feed_forward_equals_the_loops[relu]",
    ),
    # ---- transformer
    Fault(
        "decoder causal only while training", "src/layers.py",
        "h, is_causal=True, rotary=rotary,",
        "h, is_causal=self.training, rotary=rotary,",
        TRANSFORMER + "a_changed_future_leaves_the_past_bit_equal[sinusoidal-False-sdpa-False]",
    ),
    Fault(
        "decoder never causal", "src/layers.py",
        "h, is_causal=True, rotary=rotary,",
        "h, rotary=rotary,",
        TRANSFORMER + "a_changed_future_leaves_the_past_bit_equal[none-True-explicit-True]",
    ),
    Fault(
        "tied weights untied", "src/transformer.py",
        "self.output.weight = self.decoder.embeddings.tokens.weight",
        "self.output.weight.data = self.decoder.embeddings.tokens.weight.data",
        TRANSFORMER + "copies_and_state_dicts_keep_answers_and_ties[target]",
    ),
    Fault(
        "cached tokens all at position 0", "src/transformer.py",
        "offset=cache[0].length if cache else 0",
        "offset=0",
        TRANSFORMER + "cached_chunks_equal_the_full_pass[learned-False-sdpa-3-1-2-1]",
    ),
    Fault(
        "mask lost when there is a cache", "src/transformer.py",
        "mask = None if bool(mask.all()) else mask",
        "mask = None",
        TRANSFORMER + "cached_chunks_equal_the_full_pass[none-False-sdpa-7]",
    ),
    Fault(
        "final norm of pre-norm stacks forgotten", "src/transformer.py",
        "return x if self.norm is None else self.norm(x)",
        "return x",
        TRANSFORMER + "equals_the_loops[True]",
    ),
    Fault(
        "padding marked by another id", "src/transformer.py",
        "mask = padding_mask(src, self.config.pad_id)\n        if targets is None:",
        "mask = padding_mask(src, self.config.eos_id)\n        if targets is None:",
        TRANSFORMER + "more_padding_leaves_the_answer[none-False-sdpa-False-dtype0-1e-13]",
    ),
    # ---- interop
    Fault(
        "pre-norm taken for post-norm", "src/interop.py",
        '"norm_first": layer.norm_first, ',
        "",
        INTEROP + "a_layer_gives_the_same_answer",
    ),
    Fault(
        "queries and keys swapped", "src/interop.py",
        'parts = (f"{name}.{part}" for part in ("q_proj", "k_proj", "v_proj"))',
        'parts = (f"{name}.{part}" for part in ("k_proj", "q_proj", "v_proj"))',
        INTEROP + "marians_projections_keep_their_order",
    ),
    Fault(
        "what has no place is left out", "src/interop.py",
        "if unknown or missing:",
        "if missing:",
        INTEROP + "a_weight_without_a_place_is_refused",
    ),
]
