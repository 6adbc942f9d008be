"""What `tools/steady.py` puts into a notebook's kernel: other seeds, and a look at each assertion.

Imported in the kernel before the first cell. `shift_seeds` adds a number to every seed that is set
from then on. `watch` rewrites assertions as they are compiled: in ``assert a < b`` both sides are
kept beside the outcome, so that the distance from the bound is known; the cell itself is as it was.
"""

import ast
import json
import operator
import random
from pathlib import Path

import numpy as np
import torch

ORDER = {
    ast.Lt: ("<", operator.lt),
    ast.LtE: ("<=", operator.le),
    ast.Gt: (">", operator.gt),
    ast.GtE: (">=", operator.ge),
}
OUTCOME = dict(ORDER.values())


def shift_seeds(shift: int) -> None:
    """Add `shift` to every seed given to PyTorch, NumPy and `random` from now on."""

    class Generator(torch.Generator):
        def manual_seed(self, seed):
            return super().manual_seed(seed + shift)

    torch_seed, numpy_seed, python_seed = torch.manual_seed, np.random.seed, random.seed
    default_rng, numpy_state, python_random = (
        np.random.default_rng,
        np.random.RandomState,
        random.Random,
    )

    class Random(python_random):
        def __init__(self, seed=None):
            super().__init__(_add(seed, shift))

    class RandomState(numpy_state):
        def __init__(self, seed=None):
            super().__init__(_add(seed, shift))

    torch.Generator = Generator
    torch.manual_seed = torch.random.manual_seed = lambda seed: torch_seed(seed + shift)
    np.random.seed = lambda seed=None: numpy_seed(_add(seed, shift))
    np.random.default_rng = lambda seed=None: default_rng(_add(seed, shift))
    np.random.RandomState = RandomState
    random.seed = lambda seed=None: python_seed(_add(seed, shift))
    random.Random = Random


def _add(seed, shift: int):
    """A seed may be a number, or several of which the first is shifted."""
    if isinstance(seed, tuple | list):
        return [_add(seed[0], shift), *seed[1:]]
    return seed + shift if isinstance(seed, int | np.integer) else seed


class Watch(ast.NodeTransformer):
    """Rewrite the comparisons on which an assertion rests into calls that keep both sides."""

    def visit_Assert(self, node: ast.Assert) -> ast.Assert:
        node.test = self.rest_on(node.test)
        return node

    def rest_on(self, test: ast.expr) -> ast.expr:
        """Follow what has to be true for the whole to be true: `and`, `all(…)`, `.all()`."""
        match test:
            case ast.BoolOp(op=ast.And()):
                test.values = [self.rest_on(value) for value in test.values]
            case ast.Call(func=ast.Name("all"), args=[ast.GeneratorExp() | ast.ListComp() as each]):
                each.elt = self.rest_on(each.elt)
            case ast.Call(func=ast.Attribute(value=value, attr="all"), args=[]):
                test.func.value = self.rest_on(value)
            case ast.Call(func=ast.Name(id="bool"), args=[value]):
                test.args = [self.rest_on(value)]
            case ast.Compare() if all(type(op) in ORDER for op in test.ops):
                return self.keep(test)
        return test

    @staticmethod
    def keep(test: ast.Compare) -> ast.expr:
        signs = ast.Tuple([ast.Constant(ORDER[type(op)][0]) for op in test.ops], ast.Load())
        words = [ast.Constant(ast.unparse(side)) for side in (test.left, *test.comparators)]
        sides = ast.Tuple([test.left, *test.comparators], ast.Load())
        call = ast.Call(
            ast.Name("__keep__", ast.Load()), [signs, ast.Tuple(words, ast.Load()), sides], []
        )
        return ast.copy_location(call, test)


class Watcher:
    """The transformer for one kernel, and what it has seen so far."""

    def __init__(self) -> None:
        self.cell = None
        self.seen: dict[tuple, list] = {}

    def visit(self, tree: ast.Module) -> ast.Module:
        return ast.fix_missing_locations(Watch().visit(tree))

    def keep(self, signs, words, sides):
        """Compare as the assertion does; keep the worst pair of each comparison."""
        outcome = True
        for i, sign in enumerate(signs):
            left, right = sides[i], sides[i + 1]
            place = (self.cell, words[i], sign, words[i + 1])
            try:
                self.seen.setdefault(place, []).append(_worst(left, sign, right))
            except (TypeError, ValueError):  # strings, dates: they have no distance
                self.seen.pop(place, None)
            result = OUTCOME[sign](left, right)
            outcome = result if i == 0 else outcome & result
        return outcome

    def save(self, path: str) -> None:
        rows = [[*place, pairs] for place, pairs in self.seen.items() if pairs]
        Path(path).write_text(json.dumps(rows), encoding="utf-8")


def _worst(left, sign: str, right) -> tuple[float, float]:
    """Return the pair of elements that is nearest to breaking the comparison."""
    left, right = torch.broadcast_tensors(
        *(torch.as_tensor(side, dtype=torch.float64).detach().cpu() for side in (left, right))
    )
    distance = left - right if sign in (">", ">=") else right - left
    at = distance.argmin()
    return left.flatten()[at].item(), right.flatten()[at].item()


def watch(shell) -> Watcher:
    """Watch all assertions of a notebook from now on."""
    watcher = Watcher()
    shell.user_ns["__keep__"] = watcher.keep
    shell.ast_transformers.append(watcher)
    return watcher
