"""Stand-ins for packages that the book's environment lacks, so that `src` can be imported.

The package's reference is made of signatures and docstrings. It needs the *names* of PyTorch and
its kin, not what they do, and Sphinx's own mocks are objects, of which neither ``Tensor | None``
nor ``Float[Tensor, "B T"]`` can be formed. A stand-in is a class, and so is whatever is in it.
"""

import importlib.machinery
import sys

PACKAGES = ("pypi_simple", "sacrebleu", "safetensors", "tensorboard", "tokenizers", "torch")


class _Kind(type):
    """What a stand-in is made of: any name is in it, as another stand-in."""

    def __getattr__(cls, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        found = _make(name, f"{cls.__module__}.{cls.__qualname__}".removeprefix("."))
        setattr(cls, name, found)
        return found


class _StandIn:
    def __init__(self, *args, **kwargs):
        pass

    def __call__(self, function):
        """Serve as a decorator that changes nothing, as in ``@torch.no_grad()``."""
        return function


def _make(name: str, module: str) -> type:
    return _Kind(name, (_StandIn,), {"__module__": module})


class _Finder:
    """Finds the packages that are stood in for, and every module in them."""

    def find_spec(self, fullname: str, path=None, target=None):
        if fullname.partition(".")[0] in PACKAGES:
            return importlib.machinery.ModuleSpec(fullname, self, is_package=True)
        return None

    def create_module(self, spec):
        module, _, name = spec.name.rpartition(".")
        return _make(name, module)

    def exec_module(self, module):
        pass


def install() -> None:
    """Let imports of PACKAGES find stand-ins from now on, also where the real ones are.

    So the pages are the same in the environment of the book and in that of the tests.
    """
    sys.meta_path.insert(0, _Finder())
