"""Decoding: from a model that scores the next token to whole sentences.

Greedy choice, sampling and beam search, each over a whole batch at once. Nothing here knows a
model: everything that is needed of one is a `StepFunction`, so the Transformer of chapter 10.7,
the GRU of chapter 10.4 and a table of probabilities in a test are decoded by the same code.

All three agree on the following.

* Decoding starts by feeding `bos_id`. A sentence ends with `eos_id`, which is kept, or is cut
  off at `max_len` tokens, the end token included. Behind that stands `pad_id` only.
* `bos_id`, `pad_id` and `forbidden_ids` are never produced. They are left out of the choice, and
  the log-probabilities of the other tokens stay what the model says.
* A finished sentence leaves the batch (`StepFunction.select` with fewer rows), so the last long
  sentence costs one row a step and not the whole batch.
* The functions build no graph. Switching the model to `eval()` is the step function's part.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

__all__ = [
    "BeamResult",
    "StepFunction",
    "beam_search",
    "greedy",
    "length_norm",
    "sample",
    "sampling_candidates",
]

Real = float | int
NEVER = float("-inf")
LARGEST_PENALTY = 10  # what is divided by more may overflow float32


@runtime_checkable
class StepFunction(Protocol):
    """What decoding needs of a model: one step forward, and a choice of rows.

    The object holds the state of `N` unfinished sentences (source, cache, hidden state). It is
    made for `batch_size` rows, in the order of the sentences, and is used up by one decoding.
    It may have an attribute `device`; the tokens it is fed are then made there.
    """

    def __call__(self, tokens: Int[Tensor, " N"]) -> Float[Tensor, "N V"]:
        """Feed the newest token of each row; return the logits of the token after it.

        Args:
            tokens: int64, shape (N,). On the first call all of them are `bos_id`.

        Returns:
            Unnormalised log-probabilities, shape (N, V), of any floating dtype.
        """
        ...

    def select(self, index: Int[Tensor, " M"]) -> None:
        """Make row `m` of the new state a copy of row `index[m]` of the old one.

        Rows are reordered and repeated (beams) and left out (finished sentences); `M` may be
        smaller or larger than `N`. The next call is fed `M` tokens.

        Args:
            index: int64, shape (M,), values in [0, N).
        """
        ...


class BeamResult(NamedTuple):
    """The best hypotheses of each sentence, best first.

    Attributes:
        tokens: int64, shape (B, R, L): no `bos_id`, then `eos_id`, then `pad_id` only. L is the
            length of the longest hypothesis.
        scores: shape (B, R), float32 (float64 if the logits are): the hypothesis's
            log-probability over `length_norm(length, length_penalty)`. Where a sentence has
            fewer than R hypotheses at all, the missing ones are padding with score −inf.
    """

    tokens: Int[Tensor, "B R L"]
    scores: Float[Tensor, "B R"]


@torch.no_grad()
def greedy(
    step: StepFunction,
    batch_size: int,
    *,
    bos_id: int,
    eos_id: int,
    pad_id: int,
    max_len: int | Tensor,
    forbidden_ids: Sequence[int] = (),
    return_scores: bool = False,
    device: torch.device | str | None = None,
) -> Int[Tensor, "B L"] | tuple[Int[Tensor, "B L"], Float[Tensor, " B"]]:
    """Take the most probable token at every step.

    Args:
        step: The model's state, see `StepFunction`; it is used up.
        batch_size: Number of sentences B, at least 1.
        bos_id: Token that is fed first.
        eos_id: Token that ends a sentence.
        pad_id: Token that fills the rest of a finished row.
        max_len: Most tokens a sentence may get, at least 1: one int, or int64 of shape (B,).
        forbidden_ids: Further tokens that are never produced, such as the unknown word.
        return_scores: Also return each sentence's log-probability under the model.
        device: Where the tokens live. Default: `step.device` if there is one, else the CPU.

    Returns:
        Tokens, int64, shape (B, L), L the length of the longest sentence; with `return_scores`
        also the log-probabilities, shape (B,).

    Raises:
        ValueError: If a number is out of range, or if logits are NaN or leave no token to choose.
        TypeError: If `max_len` or the logits have the wrong dtype.
    """
    rules = _Rules.check(
        step, batch_size, bos_id, eos_id, pad_id, max_len, forbidden_ids, device
    )
    return _decode(step, lambda logits: logits.argmax(dim=-1), rules, return_scores)


@torch.no_grad()
def sample(
    step: StepFunction,
    batch_size: int,
    *,
    bos_id: int,
    eos_id: int,
    pad_id: int,
    max_len: int | Tensor,
    temperature: Real = 1.0,
    top_k: int | None = None,
    top_p: Real | None = None,
    generator: torch.Generator | None = None,
    forbidden_ids: Sequence[int] = (),
    return_scores: bool = False,
    device: torch.device | str | None = None,
) -> Int[Tensor, "B L"] | tuple[Int[Tensor, "B L"], Float[Tensor, " B"]]:
    """Draw each token at random from the model's distribution, or from its head.

    The arguments that `greedy` has too mean the same here.

    Args:
        step: The model's state; it is used up.
        batch_size: Number of sentences B.
        bos_id: Token that is fed first.
        eos_id: Token that ends a sentence.
        pad_id: Token that fills the rest of a finished row.
        max_len: Most tokens a sentence may get, one int or int64 of shape (B,).
        temperature: Divides the logits, above 0: below 1 sharper, above 1 flatter.
        top_k: Draw from the k most probable tokens only, at least 1. None: from all.
        top_p: Draw from the smallest set of most probable tokens that together have at least
            this probability, in (0, 1]. It is applied after `temperature` and `top_k`.
        generator: Source of randomness, on the tokens' device. None: torch's global one.
        forbidden_ids: Further tokens that are never produced.
        return_scores: Also return each sentence's log-probability under the model itself, that
            is, at temperature 1 and without `top_k` and `top_p`.
        device: Where the tokens live.

    Returns:
        Tokens, int64, shape (B, L); with `return_scores` also log-probabilities, shape (B,).

    Raises:
        ValueError: As `greedy`, and if `temperature`, `top_k` or `top_p` is out of range.
        TypeError: As `greedy`.

    Source:
        Top-k: Fan et al. 2018, §5.1. Top-p ("nucleus"): Holtzman et al. 2020, §3.1.
    """
    rules = _Rules.check(
        step, batch_size, bos_id, eos_id, pad_id, max_len, forbidden_ids, device
    )
    _check_sampling(temperature, top_k, top_p)

    def draw(logits: Tensor) -> Tensor:
        probs, ids = sampling_candidates(logits, temperature, top_k, top_p)
        return ids.gather(1, torch.multinomial(probs, 1, generator=generator)).squeeze(
            1
        )

    return _decode(step, draw, rules, return_scores)


def sampling_candidates(
    logits: Float[Tensor, "N V"],
    temperature: Real = 1.0,
    top_k: int | None = None,
    top_p: Real | None = None,
) -> tuple[Float[Tensor, "N C"], Int[Tensor, "N C"]]:
    """List the tokens that sampling may draw, with the weights it draws them by.

    Args:
        logits: Shape (N, V).
        temperature: Divides the logits, above 0.
        top_k: Keep the k most probable tokens, at least 1.
        top_p: Of these, keep the smallest set of most probable ones whose probability, taken
            relative to what `top_k` left, is at least `top_p`, in (0, 1].

    Returns:
        Weights, shape (N, C), 0 for what `top_p` leaves out, not renormalised after it; and the
        tokens they belong to, int64, shape (N, C). Most probable first if `top_k` or `top_p` is
        given, else in the order of the vocabulary.

    Raises:
        ValueError: If `temperature`, `top_k` or `top_p` is out of range.
    """
    _check_sampling(temperature, top_k, top_p)
    vocab = logits.shape[-1]
    # Subtracting the maximum first keeps a tiny temperature from overflowing to inf − inf.
    scaled = (logits - logits.amax(dim=-1, keepdim=True)) / temperature
    if top_k is None and top_p is None:
        ids = torch.arange(vocab, device=logits.device).expand_as(logits)
        return scaled.softmax(dim=-1), ids
    scaled, ids = scaled.topk(min(top_k or vocab, vocab), dim=-1)
    probs = scaled.softmax(dim=-1)
    if top_p is not None and top_p < 1:
        # A token is needed as long as those before it do not reach top_p; the first always is.
        before = probs.cumsum(dim=-1) - probs
        before[:, 0] = 0
        probs = probs.masked_fill(before >= top_p, 0)
    return probs, ids


def _check_sampling(temperature: Real, top_k: int | None, top_p: Real | None) -> None:
    if not 0 < temperature < float("inf"):
        raise ValueError(
            f"temperature must be finite and above 0, but is {temperature}"
        )
    if top_k is not None and top_k < 1:
        raise ValueError(f"top_k must be at least 1, but is {top_k}")
    if top_p is not None and not 0 < top_p <= 1:
        raise ValueError(f"top_p must be in (0, 1], but is {top_p}")


def length_norm(length: Int[Tensor, "*shape"] | int, alpha: Real) -> Tensor | float:
    """The divisor by which beam search makes long and short hypotheses comparable.

    Args:
        length: Number of tokens, the end token included.
        alpha: Strength, 0 or more: 0 compares plain log-probabilities, which favours short
            hypotheses; about 1 compares log-probabilities per token.

    Returns:
        ((5 + length) / 6) ** alpha, of the same shape as `length`.

    Source:
        Wu et al. 2016 (GNMT), equation 14, without the coverage penalty.
    """
    return ((5 + length) / 6) ** alpha


@torch.no_grad()
def beam_search(
    step: StepFunction,
    batch_size: int,
    *,
    beam_size: int,
    bos_id: int,
    eos_id: int,
    pad_id: int,
    max_len: int | Tensor,
    length_penalty: Real = 0.6,
    num_return: int = 1,
    forbidden_ids: Sequence[int] = (),
    device: torch.device | str | None = None,
) -> BeamResult:
    """Keep the `beam_size` most probable beginnings at every step.

    At each step the beginnings of a sentence are extended by every token, and the `beam_size`
    most probable extensions are kept. Those that end with `eos_id` or are `max_len` long become
    hypotheses and are extended no further; the others run on. So a beam of 1 is `greedy`, and a
    beam as large as the number of all token sequences is exhaustive search.

    A sentence is finished when it has `num_return` hypotheses and no running beginning can still
    beat the worst of them: a log-probability only falls, so one that is s now can at best end
    with s / length_norm(max_len). Stopping there never changes the result.

    Args:
        step: The model's state for B rows; it is used up.
        batch_size: Number of sentences B, at least 1.
        beam_size: Beginnings kept for each sentence, at least 1.
        bos_id: Token that is fed first.
        eos_id: Token that ends a sentence.
        pad_id: Token that fills the rest of a finished row.
        max_len: Most tokens a sentence may get, at least 1: one int, or int64 of shape (B,).
        length_penalty: The alpha of `length_norm`, 0 to 10: more may overflow float32.
        num_return: Hypotheses R returned for each sentence, 1 to `beam_size`.
        forbidden_ids: Further tokens that are never produced.
        device: Where the tokens live. Default: `step.device` if there is one, else the CPU.

    Returns:
        `BeamResult` with tokens (B, R, L) and scores (B, R), best first.

    Raises:
        ValueError: If a number is out of range, or if logits are NaN or leave no token to choose.
        TypeError: If `max_len` or the logits have the wrong dtype.

    Source:
        Sutskever et al. 2014, §3.2; length normalisation of Wu et al. 2016, §7.
    """
    rules = _Rules.check(
        step, batch_size, bos_id, eos_id, pad_id, max_len, forbidden_ids, device
    )
    if beam_size < 1:
        raise ValueError(f"beam_size must be at least 1, but is {beam_size}")
    if not 1 <= num_return <= beam_size:
        raise ValueError(
            f"num_return must be in [1, beam_size={beam_size}], but is {num_return}"
        )
    if not 0 <= length_penalty <= LARGEST_PENALTY:
        raise ValueError(
            f"length_penalty must be in [0, {LARGEST_PENALTY}], but is {length_penalty}"
        )
    search = _BeamSearch(rules, beam_size, length_penalty, num_return)
    tokens = rules.first_tokens()
    while len(tokens):
        tokens, index = search.advance(rules.logits(step, tokens))
        if len(tokens):
            step.select(index)
    return search.result()


class _Rules(NamedTuple):
    """The checked arguments that all ways of decoding share."""

    bos_id: int
    eos_id: int
    pad_id: int
    largest_id: int  # of all that are named, to be checked against V
    banned: Tensor  # int64 (F,): tokens that are never produced
    limits: Tensor  # int64 (B,): the most tokens for each sentence

    @classmethod
    def check(
        cls, step, batch_size, bos_id, eos_id, pad_id, max_len, forbidden_ids, device
    ) -> "_Rules":
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, but is {batch_size}")
        ids = {"bos_id": bos_id, "eos_id": eos_id, "pad_id": pad_id}
        ids |= {f"forbidden_ids[{i}]": token for i, token in enumerate(forbidden_ids)}
        for name, value in ids.items():
            if value < 0:
                raise ValueError(f"{name} must not be negative, but is {value}")
        if device is None:
            device = getattr(step, "device", "cpu")
        limits = torch.as_tensor(
            max_len
        )  # checked where it is: a GPU would have to be waited for
        if (
            limits.is_floating_point()
            or limits.is_complex()
            or limits.dtype == torch.bool
        ):
            raise TypeError(
                f"max_len must be an int or hold integers, but is {limits.dtype}"
            )
        if limits.shape not in ((), (batch_size,)):
            raise ValueError(
                f"max_len must be one int or have shape (batch_size,) = ({batch_size},), "
                f"but has shape {tuple(limits.shape)}"
            )
        if (limits < 1).any():
            raise ValueError(f"max_len must be at least 1, but is {int(limits.min())}")
        # Some vocabularies use one token as bos or pad and as eos: it must stay possible.
        banned = sorted({bos_id, pad_id} - {eos_id} | set(forbidden_ids))
        banned = torch.tensor(banned, dtype=torch.int64, device=device)
        limits = limits.to(device, torch.int64).expand(batch_size).contiguous()
        return cls(bos_id, eos_id, pad_id, max(ids.values()), banned, limits)

    def first_tokens(self) -> Tensor:
        return torch.full_like(self.limits, self.bos_id)

    def logits(self, step: StepFunction, tokens: Tensor) -> Tensor:
        """Run one step and check what came back: float32 or float64, shape (N, V)."""
        logits = step(tokens)
        if not logits.is_floating_point():
            raise TypeError(
                f"step must return floating-point logits, but they are {logits.dtype}"
            )
        if logits.ndim != 2 or len(logits) != len(tokens):
            raise ValueError(
                f"step must return logits of shape (N, V) with N = {len(tokens)}, "
                f"but has shape {tuple(logits.shape)}"
            )
        if self.largest_id >= logits.shape[1]:
            raise ValueError(
                f"bos_id, eos_id, pad_id and forbidden_ids must be below the number of logits "
                f"V = {logits.shape[1]}, but the largest is {self.largest_id}"
            )
        # Half precision is too coarse for sums over a sentence.
        return logits if logits.dtype == torch.float64 else logits.float()


def _decode(
    step: StepFunction,
    choose: Callable[[Tensor], Tensor],
    rules: _Rules,
    return_scores: bool,
) -> Tensor | tuple[Tensor, Tensor]:
    """Greedy choice and sampling: one row a sentence, `choose` maps logits (N, V) to (N,)."""
    limits = rules.limits
    rows = torch.arange(
        len(limits), device=limits.device
    )  # sentence of each running row
    tokens = rules.first_tokens()
    history: list[tuple[Tensor, Tensor]] = []
    scores = None
    while len(rows):
        logits = rules.logits(step, tokens)
        allowed = logits.index_fill(1, rules.banned, NEVER)
        if not allowed.amax(dim=1).isfinite().all():  # amax hands NaN on
            raise ValueError(
                f"step {len(history) + 1}: logits must hold no NaN or +inf and leave a token to "
                "choose"
            )
        tokens = choose(allowed)
        history.append((rows, tokens))
        if return_scores:
            log_prob = logits.log_softmax(dim=-1).gather(1, tokens[:, None]).squeeze(1)
            scores = logits.new_zeros(len(limits)) if scores is None else scores
            scores.index_add_(0, rows, log_prob)
        done = (tokens == rules.eos_id) | (limits[rows] <= len(history))
        keep = (~done).nonzero().squeeze(1)
        if len(keep) < len(rows):
            rows, tokens = rows[keep], tokens[keep]
            if len(rows):
                step.select(keep)

    output = limits.new_full((len(limits), len(history)), rules.pad_id)
    for t, (rows, tokens) in enumerate(history):
        output[rows, t] = tokens
    return (output, scores) if return_scores else output


class _BeamSearch:
    """The bookkeeping of `beam_search`: running beginnings, hypotheses, and who came from whom.

    Nothing is copied while the search runs. Each step only notes, for every sentence still in the
    batch and each of its W ≤ `beam_size` slots, the token put there and the slot it extends; a
    hypothesis is a (step, slot) pair, and `result` walks back from there once, at the end.
    """

    def __init__(
        self, rules: _Rules, beam_size: int, alpha: Real, num_return: int
    ) -> None:
        self.rules, self.beam_size = rules, beam_size
        self.alpha, self.num_return = alpha, num_return
        batch = len(rules.limits)
        self.rows = torch.arange(
            batch, device=rules.limits.device
        )  # sentences still running
        self.history: list[
            tuple[Tensor, Tensor, Tensor]
        ] = []  # rows (N,), tokens, parents (N, W)
        # Running log-probabilities, (N, W): one empty beginning each. −inf marks a dead slot.
        self.running = torch.zeros(batch, 1, device=rules.limits.device)
        # Best hypotheses so far, (B, R): score, step of the last token, slot in that step.
        self.scores: Tensor | None = None
        self.ends = rules.limits.new_full((batch, num_return), -1)
        self.slots = torch.zeros_like(self.ends)

    def advance(self, logits: Float[Tensor, "NW V"]) -> tuple[Tensor, Tensor]:
        """Take one step's logits; return the next tokens (M,) and the rows they extend (M,).

        Both are empty when all sentences are finished.
        """
        count, width = self.running.shape
        vocab = logits.shape[1]
        log_probs = logits.log_softmax(dim=-1).index_fill_(1, self.rules.banned, NEVER)
        # The best extensions of each slot, (N·W, C), then of each sentence, (N, W·C) -> (N, W').
        own, tokens = log_probs.topk(min(self.beam_size, vocab), dim=1)
        total = (self.running.view(-1, 1) + own).view(count, -1)
        best, flat = total.topk(min(self.beam_size, total.shape[1]), dim=1)
        if best.isnan().any():  # topk puts NaN first
            raise ValueError(
                f"step {len(self.history) + 1}: logits must hold no NaN or +inf and must not all "
                "be −inf"
            )
        parents, tokens = flat // own.shape[1], tokens.view(count, -1).gather(1, flat)
        self.history.append((self.rows, tokens, parents))
        limits = self.rules.limits[self.rows]
        ended = (tokens == self.rules.eos_id) | (limits <= len(self.history))[:, None]
        worst = self._collect(best.masked_fill(~ended, NEVER))

        running = best.masked_fill(ended, NEVER)
        # alpha ≥ 0, so the longest possible hypothesis has the kindest divisor.
        bound = running.amax(dim=1) / length_norm(limits, self.alpha)
        keep = (bound > worst).nonzero().squeeze(1)
        return self._next_rows(keep, running, tokens, parents, width)

    def _collect(self, ended: Float[Tensor, "N W"]) -> Float[Tensor, " N"]:
        """Merge new hypotheses into the best R of each sentence; return the worst of these."""
        last = len(self.history) - 1
        if self.scores is None:
            self.scores = ended.new_full(self.ends.shape, NEVER)
        new = ended / length_norm(last + 1, self.alpha)
        slots = torch.arange(ended.shape[1], device=ended.device).expand(ended.shape)
        scores, pick = torch.cat([self.scores[self.rows], new], 1).topk(
            self.num_return, dim=1
        )
        ends = torch.cat([self.ends[self.rows], torch.full_like(slots, last)], 1)
        slots = torch.cat([self.slots[self.rows], slots], 1)
        self.scores[self.rows] = scores
        self.ends[self.rows] = ends.gather(1, pick)
        self.slots[self.rows] = slots.gather(1, pick)
        return scores[:, -1]

    def _next_rows(
        self, keep: Tensor, running: Tensor, tokens: Tensor, parents: Tensor, width: int
    ) -> tuple[Tensor, Tensor]:
        """Drop finished sentences and turn the slots of the others into rows of the batch."""
        self.rows, self.running = self.rows[keep], running[keep]
        # A dead slot keeps its row, so that all sentences are equally wide, but the model should
        # not see words after <eos>: the row doubles the sentence's best beginning at score −inf.
        slots = torch.arange(running.shape[1], device=running.device)
        live = self.running > NEVER
        heirs = torch.where(live, slots, self.running.argmax(dim=1, keepdim=True))
        tokens, parents = tokens[keep].gather(1, heirs), parents[keep].gather(1, heirs)
        return tokens.flatten(), (keep[:, None] * width + parents).flatten()

    def result(self) -> BeamResult:
        """Walk back from each hypothesis's last token to its first."""
        if self.scores is None or (self.scores[:, 0] == NEVER).any():
            raise ValueError(
                "logits must leave a token to choose: a sentence has no hypothesis"
            )
        steps, batch, width = len(self.history), len(self.ends), self.beam_size
        trellis = self.ends.new_zeros(2, steps, batch, width)  # tokens and parents
        for t, (rows, tokens, parents) in enumerate(self.history):
            trellis[0, t, rows, : tokens.shape[1]] = tokens
            trellis[1, t, rows, : tokens.shape[1]] = parents
        ends = self.ends.masked_fill(self.scores == NEVER, -1)
        shape = (batch, self.num_return, int(ends.max()) + 1)
        output = self.ends.new_full(shape, self.rules.pad_id)
        slots = self.slots
        for t in reversed(range(output.shape[2])):
            inside = t <= ends
            output[:, :, t] = torch.where(
                inside, trellis[0, t].gather(1, slots), self.rules.pad_id
            )
            slots = torch.where(inside, trellis[1, t].gather(1, slots), slots)
        return BeamResult(output, self.scores)
