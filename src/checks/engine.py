"""What all checkers share: run a function on cases and say in words what is wrong with it."""

import copy
import inspect
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

# How far a result may lie from the right one, absolute and once more relative. Float64 gets more
# than its rounding: a function may well compute in float32.
TOLERANCE = {
    torch.float64: 1e-6,
    torch.float32: 1e-5,
    torch.bfloat16: 2e-2,
    torch.float16: 2e-3,
}


# The hint of all cases in float64.
FLOAT64 = "keep the dtype of the arguments: `torch.zeros(n)` alone is float32"

# The hint of all cases where the allowed scores lie below any fill but -inf.
LOWEST = "a forbidden key must not win: fill with -inf, not with some negative number"

UNCHANGED = "the arguments are left as they were"
HELP = (
    " – work on a copy: `masked_fill` instead of `masked_fill_`, `x = x + y` instead of `x += y`, "
    "or `x.clone()` first"
)


class CheckFailed(AssertionError):
    """A function is wrong in some cases; the text says in which and why.

    Attributes:
        failures: What is wrong, by the name of the case.
        num_cases: How many cases were tried.
    """

    def __init__(self, checker: str, failures: dict[str, str], num_cases: int) -> None:
        fail = "fails" if len(failures) == 1 else "fail"
        head = f"{checker}: {len(failures)} of {num_cases} cases {fail}"
        super().__init__(
            "\n".join([head, *(f"  {text}" for text in failures.values())])
        )
        self.failures = failures
        self.num_cases = num_cases

    def _render_traceback_(self) -> list[str]:
        """What a notebook shows: the report, without the way through this module."""
        return str(self).splitlines()


class Wrong(Exception):
    """One thing that is wrong with a result, as the rest of a sentence; perhaps with a hint."""

    hint = ""


@dataclass(frozen=True)
class Case:
    """One call of the reader's function.

    Attributes:
        name: What is special about it; unique within a checker.
        arguments: What the function gets, by position. It gets copies.
        hint: What to look at if it fails.
        gradients: Names of the arguments whose gradients are compared, too.
        tolerance: Instead of that in `TOLERANCE`.
    """

    name: str
    arguments: tuple[Any, ...]
    hint: str
    gradients: tuple[str, ...] = ()
    tolerance: float | None = None


def run(
    checker: str,
    function: Callable,
    reference: Callable,
    make_cases: Callable[[], Sequence[Case]],
    observe: Callable[[Any, tuple], Any] = lambda result, arguments: result,
) -> None:
    """Try a function on all cases; print one line if it is right.

    The state of PyTorch's random numbers is afterwards what it was before. A last case of its
    own demands that no argument has been changed.

    Args:
        checker: Name for the report.
        function: The reader's function.
        reference: A right one; its parameters have the names that the report uses.
        make_cases: Makes the cases, with random numbers from a fixed seed.
        observe: Turns a result and the arguments after the call into the tensor, or the tuple of
            tensors, that is compared. It may raise `Wrong`.

    Raises:
        CheckFailed: If the function is wrong in any case.
        TypeError: If it can't be called.
    """
    if not callable(function):
        raise TypeError(
            f"function must be callable, but is {_a(function)}: pass the function itself, "
            "without calling it"
        )
    names = list(inspect.signature(reference).parameters)
    failures: dict[str, str] = {}
    changed: dict[str, int] = {}
    seen: dict[str, int] = {}
    # Only the CPU's generator: nothing here draws on another device.
    with (
        torch.random.fork_rng(devices=[]),
        torch.inference_mode(False),
        torch.enable_grad(),
    ):
        torch.default_generator.manual_seed(0)
        cases = make_cases()
        for number, case in enumerate(cases, 1):
            wanted = dict(zip(names, copy.deepcopy(case.arguments), strict=True))
            given = copy.deepcopy(wanted)
            try:
                _judge(function, given, reference, wanted, observe, case)
            except Wrong as wrong:
                first = seen.setdefault(str(wrong), number)
                told = (
                    f"{wrong}{wrong.hint}" if first == number else f"as in case {first}"
                )
                failures[case.name] = f"case {number}, {case.name}: {told}"
            for name, before in zip(names, case.arguments, strict=True):
                if not _same(before, given[name]):
                    changed.setdefault(name, number)
    num_cases = len(cases)
    if any(
        isinstance(x, (Tensor, nn.Module)) for case in cases for x in case.arguments
    ):
        num_cases += 1
    if changed:
        which = ", ".join(
            f"`{name}` (in case {number})" for name, number in changed.items()
        )
        failures[UNCHANGED] = (
            f"case {num_cases}, {UNCHANGED}: your function changed {which}{HELP}"
        )
    if failures:
        raise CheckFailed(checker, failures, num_cases)
    print(f"{checker}: all {num_cases} cases pass")


def _judge(
    function: Callable,
    given: dict,
    reference: Callable,
    wanted: dict,
    observe: Callable,
    case: Case,
) -> None:
    """Compare one call of the function with the reference: values, then gradients.

    Raises:
        Wrong: Whatever is the first thing to differ, with the case's hint where it is about that.
    """
    for name in case.gradients:
        given[name].requires_grad_()
        wanted[name].requires_grad_()
    expected = _tuple(observe(reference(*wanted.values()), tuple(wanted.values())))
    try:
        result = _guard("your function", function, *given.values())
        got = _guard(
            "what your function returned", observe, result, tuple(given.values())
        )
        _compare_all(got, expected, case.tolerance)
    except Wrong as wrong:
        # Of wrong values the hint of a case about gradients says nothing; other cases do.
        wrong.hint = "" if case.gradients else f" – {case.hint}"
        raise
    try:
        _compare_gradients(_tuple(got), given, expected, wanted, case)
    except Wrong as wrong:
        wrong.hint = f" – {case.hint}"
        raise


def _compare_gradients(
    got: tuple[Tensor, ...],
    given: dict,
    expected: tuple[Tensor, ...],
    wanted: dict,
    case: Case,
) -> None:
    """Compare the gradients of the results, in the arguments that the case names."""
    if not case.gradients:
        return
    if not any(one.requires_grad for one in got):
        raise Wrong(
            "expected a result with gradients, your function gave one without (`.detach()`, "
            "`.data`, `.item()`, `no_grad` and `torch.tensor(x)` cut them off)"
        )
    ours = _guard(
        "backward through your function", _gradients, got, given, case.gradients
    )
    theirs = _gradients(expected, wanted, case.gradients)
    for name, one, other in zip(case.gradients, ours, theirs, strict=True):
        _compare(
            one,
            other,
            case.tolerance,
            f" for the gradient in `{name}` (of a weighted sum)",
        )


def _guard(what: str, function: Callable, *arguments: Any) -> Any:
    """Call something of the reader's and turn an exception into a sentence."""
    try:
        return function(*arguments)
    except Wrong:
        raise
    except Exception as error:
        # The first frame is this one; the second is the reader's, if it came that far.
        frames = traceback.extract_tb(error.__traceback__)[1:2]
        place = f" in `{frames[0].line}`" if frames and frames[0].line else ""
        text = " ".join(str(error).split())
        text = f": {text[:200]}" if text else ""
        raise Wrong(f"{what} raised {type(error).__name__}{place}{text}") from error


def _gradients(
    results: tuple[Tensor, ...], arguments: dict, names: tuple
) -> list[Tensor]:
    """Gradients of a sum in which every number of the results has a weight of its own."""
    total = 0.0
    for result in results:
        if result.requires_grad:
            weights = torch.arange(1.0, 1 + result.numel(), device=result.device).cos()
            total = total + (result * weights.reshape(result.shape)).sum()
    inputs = [arguments[name] for name in names]
    found = torch.autograd.grad(total, inputs, allow_unused=True)
    pairs = zip(found, inputs, strict=True)
    return [
        torch.zeros_like(x) if gradient is None else gradient for gradient, x in pairs
    ]


def _compare_all(
    got: Any, expected: tuple[Tensor, ...], tolerance: float | None
) -> None:
    """Compare one tensor, or the parts of a tuple."""
    parts = _tuple(got)
    if len(parts) != len(expected):
        count = (
            "one tensor"
            if len(expected) == 1
            else f"a tuple of {len(expected)} tensors"
        )
        raise Wrong(f"expected {count}, your function gave {_a(got)}")
    several = len(expected) > 1
    for number, (one, other) in enumerate(zip(parts, expected, strict=True), 1):
        _compare(one, other, tolerance, f" for result {number}" if several else "")


def _compare(got: Any, expected: Tensor, tolerance: float | None, where: str) -> None:
    """Raise `Wrong` at the first of type, shape, dtype, device and numbers that differs."""
    if not isinstance(got, Tensor):
        raise Wrong(f"expected a tensor{where}, your function gave {_a(got)}")
    for name, one, other in (
        ("shape", tuple(got.shape), tuple(expected.shape)),
        ("dtype", got.dtype, expected.dtype),
        ("device", got.device, expected.device),
        ("layout", got.layout, expected.layout),
    ):
        if one != other:
            raise Wrong(f"expected {name} {other}{where}, your function gave {one}")
    got, expected = got.detach(), expected.detach()
    if expected.dtype.is_floating_point:
        allowed = TOLERANCE[expected.dtype] if tolerance is None else tolerance
        wide, right = got.double(), expected.double()
        wrong = ~(
            (wide - right).abs() <= allowed * (1 + right.abs())
        )  # true for NaN, too
    else:
        wrong = got != expected
    if wrong.any():
        place = tuple(int(i) for i in wrong.nonzero()[0])
        at = f" at {list(place)}" if place else ""
        count = (
            f"; {int(wrong.sum())} of {wrong.numel()} differ"
            if wrong.numel() > 1
            else ""
        )
        raise Wrong(
            f"expected {_number(expected[place])}{at}{where}, your function gave "
            f"{_number(got[place])}{count}"
        )


def _same(before: Any, after: Any) -> bool:
    """Whether an argument is after the call what it was before."""
    if isinstance(before, Tensor):
        return before.shape == after.shape and torch.equal(before, after)
    if isinstance(before, nn.Module):
        old, new = before.state_dict(), after.state_dict()
        same = old.keys() == new.keys() and all(_same(old[k], new[k]) for k in old)
        return same and before.training == after.training
    return before == after


def _tuple(results: Any) -> tuple:
    return results if isinstance(results, tuple) else (results,)


def _number(value: Tensor) -> str:
    number = value.item()
    if isinstance(number, float):
        return "NaN" if number != number else f"{number:.6g}"
    return str(number)


def _a(thing: Any) -> str:
    """A thing by its type, such as "a list"; None by its likeliest cause."""
    if thing is None:
        return "None (is a `return` missing?)"
    if isinstance(thing, tuple):
        return f"a tuple of {len(thing)}"
    name = type(thing).__name__
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"
