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


(
    MASKS, FUNCTIONAL, POSITIONS, CACHE, MULTIHEAD, CONFIG, LAYERS, TRANSFORMER, INTEROP,
    SCORING, POOLING, RECURRENT, DATES, DATA, BATCHES, TOKENIZATION, PACKING, TRAINING,
    DECODING, VISION, CLASSIFICATION, PRETRAINED, HEADS, CHECKS, LIVE,
) = (
    f"tests/test_{name}.py::test_"
    for name in (
        "masks", "functional", "positions", "cache", "multihead", "config", "layers",
        "transformer", "interop", "scoring", "pooling", "recurrent", "dates", "data", "batches",
        "tokenization", "packing", "training", "decoding", "vision", "classification",
        "pretrained", "benchmark_heads", "checks", "live",
    )
)  # fmt: skip

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
        "fused and is_causal and",
        "is_causal and",
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
        "weights = masked_softmax(scores, mask).to(query.dtype)\n",
        "weights = F.dropout(masked_softmax(scores, mask), dropout).to(query.dtype)\n",
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
        "mask = mask if mask is None else mask.unsqueeze(1)",
        "mask = mask.unsqueeze(1) if self.training and mask is not None else None",
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
        "unknown fields dropped", "src/configuration.py",
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
        "query, *memory, memory_mask, packing=packing,",
        "query, *self.cross_attention.project_key_value(h),",
        LAYERS + "decoder_layer_equals_the_loops[explicit-False]",
    ),
    Fault(
        "memory's padding attended to", "src/layers.py",
        "query, *memory, memory_mask, packing=packing,",
        "query, *memory, packing=packing,",
        LAYERS + "decoder_layer_equals_the_loops[explicit-False]",
    ),
    Fault(
        "source padding attended to", "src/layers.py",
        "h, mask=mask, rotary=rotary, packing=packing,",
        "h, rotary=rotary, packing=packing,",
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
        'mask = padding_mask(src, self.config.pad_id)\n        check_padding("src"',
        'mask = padding_mask(src, self.config.eos_id)\n        check_padding("src"',
        TRANSFORMER + "more_padding_leaves_the_answer[none-False-sdpa-False-dtype0-1e-13]",
    ),
    # ---- interop
    Fault(
        "pre-norm taken for post-norm", "src/interop.py",
        'yield "norm_first", layer.norm_first',
        'yield "norm_first", False',
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
    # ---- scoring
    Fault(
        "scaled by the number of keys", "src/scoring.py",
        "/ math.sqrt(query.shape[-1])",
        "/ math.sqrt(key.shape[-2])",
        SCORING + "scaled_is_the_score_of_attention",
    ),
    Fault(
        "another activation in the additive score", "src/scoring.py",
        "hidden.tanh_()",
        "hidden.relu_()",
        SCORING + "additive_is_a_network_on_the_concatenation",
    ),
    Fault(
        "key subtracted from the query", "src/scoring.py",
        "self.query_proj(query).unsqueeze(-2) + projected.unsqueeze(-3)",
        "self.query_proj(query).unsqueeze(-2) - projected.unsqueeze(-3)",
        SCORING + "scores_are_the_formula[additive]",
    ),
    Fault(
        "bilinear form without negative weights", "src/scoring.py",
        "return query @ self.weight @ key.transpose(-2, -1)",
        "return query @ self.weight.relu() @ key.transpose(-2, -1)",
        SCORING + "bilinear_is_torchs_bilinear_form",
    ),
    Fault(
        "additive score with a bias", "src/scoring.py",
        "self.key_proj = nn.Linear(d_key, d_hidden, bias=False)",
        "self.key_proj = nn.Linear(d_key, d_hidden)",
        SCORING + "what_there_is_to_learn",
    ),
    Fault(
        "mask forgotten with a score", "src/scoring.py",
        "weights = masked_softmax(score(query, key), mask)",
        "weights = masked_softmax(score(query, key))",
        SCORING + "scaled_is_the_score_of_attention",
    ),
    Fault(
        "weights normalised over the queries", "src/scoring.py",
        "weights = masked_softmax(score(query, key), mask)",
        "weights = score(query, key).softmax(-2)",
        SCORING + "scaled_is_the_score_of_attention",
    ),
    # ---- pooling
    Fault(
        "Gaussian without its half", "src/pooling.py",
        "return torch.exp(-0.5 * u.square())",
        "return torch.exp(-u.square())",
        POOLING + "kernels_are_their_formulas[gaussian]",
    ),
    Fault(
        "Gaussian weights by the distance, not its square", "src/pooling.py",
        "masked_softmax(-0.5 * u.clamp(-limit, limit).square(), mask)",
        "masked_softmax(-0.5 * u.clamp(-limit, limit).abs(), mask)",
        POOLING + "gaussian_weights_are_a_softmax",
    ),
    Fault(
        "window open at its edge", "src/pooling.py",
        "return (u.abs() <= 1).to(u.dtype)",
        "return (u.abs() < 1).to(u.dtype)",
        POOLING + "kernels_are_their_formulas[boxcar]",
    ),
    Fault(
        "width multiplied", "src/pooling.py",
        "u = distance / _check_width(width, distance)",
        "u = distance * _check_width(width, distance)",
        POOLING + "the_module_is_the_usual_parametrisation",
    ),
    Fault(
        "keys averaged for values", "src/pooling.py",
        "output = (weights @ values.to(weights.dtype).unsqueeze(-1)).squeeze(-1)",
        "output = (weights @ keys.to(weights.dtype).unsqueeze(-1)).squeeze(-1)",
        POOLING + "a_kernel_of_ones_own",
    ),
    Fault(
        "own value not left out", "src/pooling.py",
        "mask = leave_one_out_mask(keys.shape[-1], device=keys.device)",
        "mask = ~leave_one_out_mask(keys.shape[-1], device=keys.device)",
        POOLING + "leaving_one_out_is_leaving_it_out",
    ),
    Fault(
        "exp before the maximum is taken off", "src/pooling.py",
        "if kernel is gaussian:",
        "if kernel is None:",
        POOLING + "far_from_all_keys_the_gaussian_takes_the_nearest",
    ),
    Fault(
        "kernel weights not normalised", "src/pooling.py",
        "return raw / total.masked_fill(total == 0, 1)",
        "return raw",
        POOLING + "a_kernel_of_ones_own",
    ),
    Fault(
        "0 / 0 mended afterwards", "src/pooling.py",
        "return raw / total.masked_fill(total == 0, 1)",
        "return (raw / total).nan_to_num()",
        POOLING + "a_kernel_that_underflows_has_gradients_without_nan",
    ),
    Fault(
        "mask forgotten for kernels that end", "src/pooling.py",
        "raw = raw.masked_fill(~mask, 0)",
        "pass",
        POOLING + "masked_keys_do_not_count[triangle]",
    ),
    # ---- recurrent
    Fault(
        "attention over padding", "src/recurrent.py",
        "weights = masked_softmax(self.scorer.score_projected(query, keys), mask)",
        "weights = masked_softmax(self.scorer.score_projected(query, keys))",
        RECURRENT + "attention_maps_are_the_weights_of_the_formula",
    ),
    Fault(
        "map of the step before", "src/recurrent.py",
        "used = states[1:] if current else states[:-1]",
        "used = states[1:]",
        RECURRENT + "attention_maps_are_the_weights_of_the_formula",
    ),
    Fault(
        "hidden state not reordered", "src/recurrent.py",
        "self.hidden.index_select(1, index)",
        "self.hidden.index_select(1, index * 0)",
        RECURRENT + "selected_rows_go_on_as_if_alone",
    ),
    Fault(
        "context not reordered", "src/recurrent.py",
        "x.index_select(0, index) for x in self[1:]",
        "x.index_select(0, index * 0) for x in self[1:]",
        RECURRENT + "selected_rows_go_on_as_if_alone",
    ),
    Fault(
        "every step reads the first context", "src/recurrent.py",
        "torch.cat([token, contexts[-1]], dim=-1)",
        "torch.cat([token, contexts[0]], dim=-1)",
        RECURRENT + "forward_is_the_formula",
    ),
    Fault(
        "both queries mixed up", "src/recurrent.py",
        'contexts[1:] if self.config.query_from == "current" else contexts[:-1]',
        'contexts[:-1] if self.config.query_from == "current" else contexts[1:]',
        RECURRENT + "forward_is_the_formula",
    ),
    Fault(
        "logits without the context", "src/recurrent.py",
        "torch.cat([outputs, contexts], dim=-1)",
        "torch.cat([outputs, 0 * contexts], dim=-1)",
        RECURRENT + "forward_is_the_formula",
    ),
    Fault(
        "state after the padding", "src/recurrent.py",
        "lengths = torch.where(src == self.pad_id, 0, places).amax(dim=1).cpu()",
        "lengths = places.expand_as(src).amax(dim=1).cpu()",
        RECURRENT + "the_last_state_is_the_one_at_the_true_last_token",
    ),
    Fault(
        "state of the first layer", "src/recurrent.py",
        "hidden[-self.directions :]",
        "hidden[: self.directions]",
        RECURRENT + "encoder_equals_d2l[2]",
    ),
    # ---- dates, data, splits, batches
    Fault(
        "each digit stands for the whole number", "src/dates.py",
        "alignment += [frozenset({i}) for i in own]",
        "alignment += [frozenset(own)] * len(own)",
        DATES + "a_date_in_full",
    ),
    Fault(
        "constant characters aligned", "src/dates.py",
        'constant = _weekday_prefix(locale, width) if letter == "E" else ""',
        'constant = ""',
        DATES + "a_date_in_full",
    ),
    Fault(
        "a day trained on and tested", "src/dates.py",
        "chooser.sample(range(days), num_train + num_test)",
        "chooser.choices(range(days), k=num_train + num_test)",
        DATES + "no_day_is_drawn_twice",
    ),
    Fault(
        "the place before counts for the place after", "src/dates.py",
        "best[t] - 1 in true",
        "best[t] + 1 in true",
        DATES + "agreement_counts_by_hand",
    ),
    Fault(
        "tokens without a source counted", "src/dates.py",
        "            if true:",
        "            if t >= 0:",
        DATES + "agreement_counts_by_hand",
    ),
    Fault(
        "German for French", "src/data.py",
        '_TARGETS = {"deu": 4, "fra": 5,',
        '_TARGETS = {"deu": 5, "fra": 4,',
        DATA + "read_tatoeba_takes_the_columns_of_the_language",
    ),
    Fault(
        "repeated pairs kept", "src/data.py",
        "if pair in seen:",
        "if (source, translation) in seen:",
        DATA + "load_pairs_normalises_deduplicates_and_filters",
    ),
    Fault(
        "translations not filtered", "src/data.py",
        'is_suitable(pair.source, "eng") and is_suitable(pair.target, target)',
        'is_suitable(pair.source, "eng")',
        DATA + "load_pairs_normalises_deduplicates_and_filters",
    ),
    Fault(
        "long translations kept", "src/data.py",
        "max(lengths) > max_words",
        "lengths[0] > max_words",
        DATA + "load_pairs_normalises_deduplicates_and_filters",
    ),
    Fault(
        "sentences shared by two sides", "src/splits.py",
        'draw = _uniform(f"{seed}\\t{groups[source_key]}")',
        'draw = _uniform(f"{seed}\\t{source_key}")',
        DATA + "pairs_linked_through_others_stay_together",
    ),
    Fault(
        "split by Python's hash", "src/splits.py",
        "return (int.from_bytes(digest, \"big\") >> 11) / 2**53",
        "return (hash(text) % 2**53) / 2**53",
        DATA + "split_shares_and_seed",
    ),
    Fault(
        "seed of the split not used", "src/splits.py",
        'draw = _uniform(f"{seed}\\t{groups[source_key]}")',
        'draw = _uniform(groups[source_key])',
        DATA + "split_shares_and_seed",
    ),
    Fault(
        "words chosen from the test", "src/splits.py",
        "_is_easy((pair.source for pair in splits.train), num_words, max_tokens)",
        "_is_easy((pair.source for pair in splits.test), num_words, max_tokens)",
        DATA + "easy_subset_takes_its_words_from_the_training_side_alone",
    ),
    Fault(
        "target not shifted", "src/batches.py",
        "return self.tgt[:, 1:]",
        "return self.tgt[:, :-1]",
        BATCHES + "batch_shift_and_count",
    ),
    Fault(
        "padding counted as tokens", "src/batches.py",
        "int((self.tgt_out != self.pad_id).sum())",
        "self.tgt_out.numel()",
        BATCHES + "batch_shift_and_count",
    ),
    Fault(
        "padding before the sentence", "src/batches.py",
        "row[: len(sequence)] =",
        "row[-len(sequence) :] =",
        BATCHES + "pad",
    ),
    Fault(
        "target without its end", "src/batches.py",
        "return [tokenizer.bos_id, *tokenizer.encode(sentence), tokenizer.eos_id]",
        "return [tokenizer.bos_id, *tokenizer.encode(sentence)]",
        BATCHES + "encoding_adds_the_special_tokens",
    ),
    Fault(
        "every epoch in the same order", "src/batches.py",
        "np.random.default_rng((self.seed, self.epoch))",
        "np.random.default_rng(self.seed)",
        BATCHES + "order_follows_seed_and_epoch_alone",
    ),
    Fault(
        "last round of batches dropped", "src/batches.py",
        "return -(-self._num_batches // self.world_size)",
        "return self._num_batches // self.world_size",
        BATCHES + "ranks_share_an_epoch",
    ),
    Fault(
        "budget kept by the source alone", "src/batches.py",
        "self._cells = np.maximum(self._src_len, self._tgt_len)",
        "self._cells = self._src_len",
        BATCHES + "each_example_once_within_the_budget",
    ),
    # ---- tokenization
    Fault(
        "unknown words end the sentence", "src/tokenization.py",
        "self._ids.get(token, self.unk_id)",
        "self._ids.get(token, self.eos_id)",
        TOKENIZATION + "vocabulary_by_frequency_then_by_code_point",
    ),
    Fault(
        "equally frequent words as they come", "src/tokenization.py",
        "key=lambda word: (-counts[word], word))",
        "key=lambda word: -counts[word])",
        TOKENIZATION + "vocabulary_by_frequency_then_by_code_point",
    ),
    Fault(
        "special tokens above the vocabulary's size", "src/tokenization.py",
        "by_frequency[: vocab_size - len(SPECIALS)]",
        "by_frequency[:vocab_size]",
        TOKENIZATION + "vocabulary_by_frequency_then_by_code_point",
    ),
    Fault(
        "words after the end", "src/tokenization.py",
        "                break",
        "                continue",
        TOKENIZATION + "one_interface",
    ),
    Fault(
        "a sentence can end itself", "src/tokenization.py",
        "self._bpe.encode_special_tokens = True",
        "self._bpe.encode_special_tokens = False",
        TOKENIZATION + "names_of_special_tokens_in_a_sentence_are_plain_text",
    ),
    Fault(
        "accents in two pieces", "src/tokenization.py",
        'return unicodedata.normalize("NFC", " ".join(text.split()))',
        'return " ".join(text.split())',
        TOKENIZATION + "normalise",
    ),
    # ---- packing
    Fault(
        "packed column by column", "src/packing.py",
        "self.index = real.flatten().nonzero().squeeze(1)",
        "self.index = real.T.flatten().nonzero().squeeze(1)",
        PACKING + "unpack_undoes_pack_and_zeroes_padding",
    ),
    Fault(
        "padding left as it was", "src/packing.py",
        "padded = x.new_zeros(",
        "padded = x.new_ones(",
        PACKING + "unpack_undoes_pack_and_zeroes_padding",
    ),
    Fault(
        "padding packed", "src/packing.py",
        'or bool(real.all()):',
        'or bool(real.any()):',
        PACKING + "there_is_no_packing_without_padding",
    ),
    Fault(
        "tokens behind padding packed", "src/packing.py",
        "if bool((real[:, 1:] & ~real[:, :-1]).any()):",
        "if not len(real):",
        PACKING + "padding_before_a_token_is_refused",
    ),
    Fault(
        "targets in another order than the packed logits", "src/updates.py",
        "targets = targets[targets != self.pad_id]",
        "targets = targets.T[targets.T != self.pad_id]",
        PACKING + "training_with_packing_moves_the_weights_as_without",
    ),
    # ---- optimization, updates, training
    Fault(
        "smoothing added, not mixed", "src/optimization.py",
        "total = torch.lerp(total, even, label_smoothing)",
        "total = total + label_smoothing * even",
        TRAINING + "token_loss_is_the_formula",
    ),
    Fault(
        "padding smoothed", "src/optimization.py",
        ".masked_fill(~real, 0.0)",
        "",
        TRAINING + "token_loss_is_the_formula",
    ),
    Fault(
        "loss divided by padding, too", "src/optimization.py",
        "return total, real.sum()",
        "return total, torch.tensor(flat.numel())",
        TRAINING + "token_loss_is_the_formula",
    ),
    Fault(
        "loss summed in half precision", "src/optimization.py",
        "dim=-1, dtype=wide)",
        "dim=-1)",
        TRAINING + "half_precision_logits_are_summed_in_float32",
    ),
    Fault(
        "rate falls with the step, not its root", "src/optimization.py",
        "(warmup / step) ** 0.5)",
        "warmup / step)",
        TRAINING + "warmup_rate_is_equation_3",
    ),
    Fault(
        "biases and gains decay", "src/optimization.py",
        '"weight_decay": 0.0},',
        '"weight_decay": weight_decay},',
        TRAINING + "adamw_decays_matrices_only",
    ),
    Fault(
        "Adam's defaults for the paper's", "src/optimization.py",
        "betas: tuple[float, float] = (0.9, 0.98),",
        "betas: tuple[float, float] = (0.9, 0.999),",
        TRAINING + "adam_is_the_papers_and_fused",
    ),
    Fault(
        "mean of means", "src/updates.py",
        "self.scaler.scale(loss * factor).backward()",
        "self.scaler.scale(loss / batch.num_tokens / len(group)).backward()",
        TRAINING + "four_small_batches_are_one_large_one",
    ),
    Fault(
        "gradients of all updates added up", "src/updates.py",
        "self.optimizer.zero_grad(set_to_none=True)",
        "pass",
        TRAINING + "the_first_updates_are_those_written_by_hand",
    ),
    Fault(
        "gradients not clipped", "src/updates.py",
        "limit = inf if self.config.clip is None else self.config.clip",
        "limit = inf",
        TRAINING + "the_first_updates_are_those_written_by_hand",
    ),
    Fault(
        "rate of the first update for all", "src/updates.py",
        "            self.schedule.step()",
        "            pass",
        TRAINING + "history_says_what_happened",
    ),
    Fault(
        "clipped before the scale is taken out", "src/updates.py",
        "self.scaler.unscale_(self.optimizer)",
        "pass",
        TRAINING + "half_precision_follows_float32[float16]",
    ),
    Fault(
        "dropout while evaluating", "src/training.py",
        "with switched(self.model, training=False):",
        "with switched(self.model, training=True):",
        TRAINING + "metric_sees_eval_mode_and_training_goes_on_in_train_mode",
    ),
    Fault(
        "last weights for the best", "src/training.py",
        "if value > self.best:",
        "if value:",
        TRAINING + "best_weights_are_kept",
    ),
    Fault(
        "greatest loss for the best", "src/training.py",
        "value = -found.loss",
        "value = found.loss",
        TRAINING + "the_best_loss_is_the_least",
    ),
    Fault(
        "epochs all called the first", "src/training.py",
        "self.train.set_epoch(self.epoch)",
        "self.train.set_epoch(0)",
        TRAINING + "every_epoch_is_announced_to_the_batches",
    ),
    # ---- decoding
    Fault(
        "length itself for the penalty", "src/decoding.py",
        "return ((5 + length) / 6) ** alpha",
        "return length**alpha",
        DECODING + "length_norm",
    ),
    Fault(
        "logits summed for log-probabilities", "src/decoding.py",
        "log_probs = logits.log_softmax(dim=-1).index_fill_(1, self.rules.banned, NEVER)",
        "log_probs = logits.index_fill(1, self.rules.banned, NEVER)",
        DECODING + "a_wide_beam_is_exhaustive_search[4-5-0]",
    ),
    Fault(
        "beams continue in their own slot", "src/decoding.py",
        "(keep[:, None] * width + parents).flatten()",
        "(keep[:, None] * width + heirs.clamp(max=width - 1)).flatten()",
        DECODING + "a_wide_beam_is_exhaustive_search[7-3-0]",
    ),
    Fault(
        "search ends with the first sentence that ends", "src/decoding.py",
        "keep = (bound > worst).nonzero().squeeze(1)",
        "keep = (worst == NEVER).nonzero().squeeze(1)",
        DECODING + "a_long_hypothesis_may_overtake_a_finished_one",
    ),
    Fault(
        "temperature turned round", "src/decoding.py",
        "(logits - logits.amax(dim=-1, keepdim=True)) / temperature",
        "(logits - logits.amax(dim=-1, keepdim=True)) * temperature",
        DECODING + "frequencies_follow_the_softmax[0.5-None-None]",
    ),
    Fault(
        "top p without the token that reaches it", "src/decoding.py",
        "before = probs.cumsum(dim=-1) - probs",
        "before = probs.cumsum(dim=-1)",
        DECODING + "top_p_at_its_boundary",
    ),
    Fault(
        "padding produced", "src/decoding.py",
        "allowed = logits.index_fill(1, rules.banned, NEVER)",
        "allowed = logits",
        DECODING + "the_most_probable_token_may_be_forbidden",
    ),
    Fault(
        "score of the choice, not of the model", "src/decoding.py",
        "log_prob = logits.log_softmax(dim=-1)",
        "log_prob = allowed.log_softmax(dim=-1)",
        DECODING + "the_most_probable_token_may_be_forbidden",
    ),
    Fault(
        "finished sentences stay in the batch", "src/decoding.py",
        "done = (tokens == rules.eos_id) | (limits[rows] <= len(history))",
        "done = limits[rows] <= len(history)",
        DECODING + "greedy_walks_a_known_table",
    ),
    # ---- vision, classification
    Fault(
        "patches without positions", "src/vision.py",
        "x = self.positions(x)",
        "pass",
        VISION + "positions_make_the_order_of_patches_matter[learned]",
    ),
    Fault(
        "rotary positions not handed on", "src/vision.py",
        "x = layer(x, rotary=self.rotary, record=record)",
        "x = layer(x, record=record)",
        VISION + "positions_make_the_order_of_patches_matter[rotary]",
    ),
    Fault(
        "strips for patches", "src/vision.py",
        "return F.unfold(\n"
        "            images, self.patch_size, stride=self.patch_size\n"
        "        ).transpose(1, 2)",
        "return images.reshape(len(images), -1, self.channels * self.patch_size**2)",
        VISION + "patches_are_the_squares_row_by_row",
    ),
    Fault(
        "the first patch decides", "src/vision.py",
        "return self.head(self.norm(x).mean(dim=1))",
        "return self.head(self.norm(x)[:, 0])",
        VISION + "without_positions_whole_patches_may_be_shuffled",
    ),
    Fault(
        "last norm of the patch Transformer forgotten", "src/vision.py",
        "return self.head(self.norm(x).mean(dim=1))",
        "return self.head(x.mean(dim=1))",
        VISION + "every_parameter_gets_a_gradient",
    ),
    Fault(
        "a convolution without activation", "src/vision.py",
        "torch.relu(third(x)).mean(dim=(2, 3))",
        "third(x).mean(dim=(2, 3))",
        VISION + "convnet_is_the_chain_of_its_layers",
    ),
    Fault(
        "mean pooling for max pooling", "src/vision.py",
        "x = F.max_pool2d(",
        "x = F.avg_pool2d(",
        VISION + "convnet_is_the_chain_of_its_layers",
    ),
    Fault(
        "looks ahead for back", "src/classification.py",
        "targets[:, back:] = ids[:, :-back]",
        "targets[:, back:] = ids[:, back:]",
        CLASSIFICATION + "look_back_targets_are_the_earlier_tokens",
    ),
    Fault(
        "ignored targets counted", "src/classification.py",
        "(guesses == targets)[counts]",
        "(guesses == targets)",
        CLASSIFICATION + "accuracy_counts_by_hand_across_batches",
    ),
    Fault(
        "mask not handed to the encoder", "src/classification.py",
        "self.encoder(ids, mask, record=record)",
        "self.encoder(ids, record=record)",
        CLASSIFICATION + "token_classifier_obeys_its_mask",
    ),
    Fault(
        "targets of other inputs", "src/classification.py",
        "yield inputs[rows], targets[rows]",
        "yield inputs[rows], targets[rows.sort().values]",
        CLASSIFICATION + "minibatches_show_everything_once_a_round",
    ),
    # ---- pretrained
    Fault(
        "BERT's queries and keys swapped", "src/pretrained.py",
        '("query", "key", "value"), thirds, strict=True',
        '("key", "query", "value"), thirds, strict=True',
        PRETRAINED + "tiny_random_bert_equals_the_library_to_rounding",
    ),
    Fault(
        "BERT's eps dropped", "src/pretrained.py",
        '        norm_eps=fields["layer_norm_eps"],\n',
        "",
        PRETRAINED + "tiny_random_bert_equals_the_library_to_rounding",
    ),
    Fault(
        "BERT's embeddings scaled", "src/pretrained.py",
        "scale_embeddings=False,",
        "scale_embeddings=True,",
        PRETRAINED + "tiny_random_bert_equals_the_library_to_rounding",
    ),
    Fault(
        "one BERT norm for the other", "src/pretrained.py",
        'f"{prefix}.output.LayerNorm", layer.add_norms[1].norm',
        'f"{prefix}.output.LayerNorm", layer.add_norms[0].norm',
        PRETRAINED + "every_parameter_is_written",
    ),
    Fault(
        "padding in the mean", "src/pretrained.py",
        "mean = (real @ encoder(ids, mask)).squeeze(1) / real.sum(dim=-1)",
        "mean = encoder(ids, mask).mean(dim=1)",
        PRETRAINED + "embedding_is_the_mean_over_real_tokens_of_length_1",
    ),
    Fault(
        "embeddings of any length", "src/pretrained.py",
        "return F.normalize(mean, dim=-1)",
        "return mean",
        PRETRAINED + "embedding_is_the_mean_over_real_tokens_of_length_1",
    ),
    Fault(
        "padding attended to by BERT", "src/pretrained.py",
        "mean = (real @ encoder(ids, mask)).squeeze(1) / real.sum(dim=-1)",
        "mean = (real @ encoder(ids)).squeeze(1) / real.sum(dim=-1)",
        PRETRAINED + "embedding_is_the_mean_over_real_tokens_of_length_1",
    ),
    # ---- memory that beams share
    Fault(
        "beams of a sentence counted per sentence", "src/cache.py",
        "self._sources = rows.repeat_interleave(width)",
        "self._sources = rows.repeat(width)",
        CACHE + "beams_of_a_sentence_share_its_memory",
    ),
    Fault(
        "unequally many beams shared out equally", "src/cache.py",
        " & (counts == width).all()",
        "",
        CACHE + "sentences_with_unequally_many_beams_get_copies",
    ),
    Fault(
        "memory moved only if its number of rows changes", "src/cache.py",
        "if len(kept) != len(self.memory[0][0]) or not torch.equal(kept, rows):",
        "if len(kept) != len(self.memory[0][0]):",
        CACHE + "sentences_that_change_places_take_their_memory_along",
    ),
    Fault(
        "beams of all sentences interleaved", "src/multihead.py",
        "return x.unflatten(0, (-1, width)).transpose(1, 2).flatten(2, 3)",
        "return x.unflatten(0, (width, -1)).movedim(0, 2).flatten(2, 3)",
        MULTIHEAD + "rows_that_share_their_keys",
    ),
    Fault(
        "beams and queries mixed on the way back", "src/multihead.py",
        "return x.unflatten(2, (width, -1)).transpose(1, 2).flatten(0, 1)",
        "return x.unflatten(2, (-1, width)).movedim(3, 1).flatten(0, 1)",
        MULTIHEAD + "rows_that_share_their_keys",
    ),
    # ---- heads that are taken away (chapter 10.5's experiment)
    Fault(
        "rows of W_o removed for columns", "benchmarks/heads.py",
        "weight[:, head * width : (head + 1) * width] = 0",
        "weight[head * width : (head + 1) * width] = 0",
        HEADS + "without_takes_the_head_and_puts_it_back",
    ),
    Fault(
        "head not put back", "benchmarks/heads.py",
        "weight.copy_(kept)",
        "weight.copy_(weight)",
        HEADS + "without_takes_the_head_and_puts_it_back",
    ),
    Fault(
        "distances to the left taken off those to the right", "benchmarks/heads.py",
        "(torch.arange(rows)[:, None] - torch.arange(columns)).abs()",
        "torch.arange(rows)[:, None] - torch.arange(columns)",
        HEADS + "look_counts_real_queries_alone",
    ),
    Fault(
        "queries of padding counted", "benchmarks/heads.py",
        "(distance * real).sum((0, 2))",
        "distance.sum((0, 2))",
        HEADS + "look_counts_real_queries_alone",
    ),
    Fault(
        "self-attention called cross-attention", "benchmarks/heads.py",
        "layer.cross_attention)",
        "layer.self_attention)",
        HEADS + "blocks_are_named_by_what_they_are",
    ),
    # ---- checkers that let a wrong function pass
    Fault(
        "NaN passes", "src/checks/engine.py",
        "wrong = ~((wide - right).abs() <= allowed * (1 + right.abs()))",
        "wrong = (wide - right).abs() > allowed * (1 + right.abs())",
        CHECKS + "the_report_says_what_was_expected_and_what_came",
    ),
    Fault(
        "another dtype passes", "src/checks/engine.py",
        '        ("dtype", got.dtype, expected.dtype),\n',
        "",
        CHECKS + "the_report_says_what_was_expected_and_what_came",
    ),
    Fault(
        "gradients not compared", "src/checks/engine.py",
        "    if not case.gradients:\n        return",
        "    if case:\n        return",
        CHECKS + "gradients_are_compared_where_a_case_asks_for_them",
    ),
    Fault(
        "changed arguments pass", "src/checks/engine.py",
        "if not _same(before, given[name]):",
        "if before is None:",
        CHECKS + "a_changed_argument_is_a_case_of_its_own",
    ),
    Fault(
        "one of two results compared", "src/checks/engine.py",
        "zip(parts, expected, strict=True), 1)",
        "zip(parts[:1], expected[:1], strict=True), 1)",
        CHECKS + "results_in_a_tuple_are_told_apart",
    ),
    Fault(
        "softmax checked without an empty row", "src/checks/pooling.py",
        "empty[1] = empty[0, 3] = False",
        "pass",
        CHECKS + "a_wrong_function_is_caught_by_the_right_case",
    ),
    Fault(
        "step checked with axes of unequal length only", "src/checks/pooling.py",
        "(state, memory[:, :3], padded[:, :3], w_q, w_k, w),",
        "(state, memory[:, :4], padded[:, :4], w_q, w_k, w),",
        CHECKS + "a_wrong_function_is_caught_by_the_right_case",
    ),
    Fault(
        "heads renumbered with biases of zero", "src/checks/heads.py",
        "torch.nn.init.normal_(parameter, std=0.5)",
        "pass",
        CHECKS + "a_wrong_function_is_caught_by_the_right_case",
    ),
    Fault(
        "norm checked with an eps too small to matter", "src/checks/transformer.py",
        "(0.01 * x, gain, bias, 1e-3)",
        "(0.01 * x, gain, bias, 1e-12)",
        CHECKS + "a_wrong_function_is_caught_by_the_right_case",
    ),
    # ---- live figures
    Fault(
        "the last bits decide how a number is rounded", "src/live/page.py",
        "tensor.round(decimals=6).round(decimals=digits)",
        "tensor.round(decimals=digits)",
        LIVE + "rounding_ignores_the_last_bits",
    ),
    Fault(
        "a minus before zero", "src/live/page.py",
        ".round(decimals=digits) + 0.0",
        ".round(decimals=digits)",
        LIVE + "rounding_ignores_the_last_bits",
    ),
    Fault(
        "data that end the script", "src/live/page.py",
        'return text.replace("<", "\\\\u003c")',
        "return text",
        LIVE + "data_cannot_end_the_script",
    ),
    Fault(
        "sentence of the figure without the scale", "src/live/charts.py",
        "masked_softmax(torch.tensor(rows[0]) / math.sqrt(width))",
        "masked_softmax(torch.tensor(rows[0]))",
        LIVE + "the_sentence_of_the_scores_is_right",
    ),
    Fault(
        "worst candidates first", "src/live/tokens.py",
        "(-chances).sort(",
        "chances.sort(",
        LIVE + "candidates_are_the_best_in_order",
    ),
    Fault(
        "scores taken for probabilities", "src/live/page.py",
        "if not -1e-6 <= bound <= 1 + 1e-3:",
        "if bound != bound:",
        LIVE + "bad_data_are_refused",
    ),
    Fault(
        "masked keys in the reader's softmax", "src/live/live.js",
        "(allowed[i] ? Math.exp(score - top) : 0)",
        "Math.exp(score - top)",
        LIVE + "score_playground_answers",
    ),
    Fault(
        "exp overflows in the reader's softmax", "src/live/live.js",
        "Math.exp(score - top)",
        "Math.exp(score)",
        LIVE + "scores_that_exp_cannot_hold",
    ),
    Fault(
        "a tent for the parabola in the reader's kernels", "src/live/kernel_regression.js",
        "1 - u * u",
        "1 - Math.abs(u)",
        LIVE + "kernel_regression_computes_what_the_package_computes",
    ),
]
