"""Checkpoints: one safetensors file, with everything that is no tensor as JSON in its header.

Nothing here is pickled, so a checkpoint from somebody else can be opened without running what is
in it. One file, because one file can be replaced at once: it is written beside its old version,
forced to disk and renamed over it. A kill at any moment leaves the old version or the new one,
never a mixture and never a torn file. The file holds the SHA-256 of its header and of its tensors,
and loading compares both: a bit that has flipped on a disk is not loaded.
"""

import base64
import hashlib
import json
import os
import random
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.optim import Optimizer

from src.files import replacing
from src.training.distributed import gather, on_writer, rank

FORMAT = 1
# Whole tensors on the host, whatever the sharding; moments are named by their parameter.
_WHOLE = StateDictOptions(full_state_dict=True, cpu_offload=True)


class CheckpointError(ValueError):
    """A file that is no checkpoint, or not one that can be used here."""


class ConfigMismatch(CheckpointError):
    """A checkpoint that was written with another configuration."""


def vocabularies(folder: str | os.PathLike) -> str | None:
    """Digest of a run's ``source.json`` and ``target.json``; None where they are not."""
    files = [Path(folder) / f"{side}.json" for side in ("source", "target")]
    if not all(file.is_file() for file in files):
        return None
    digests = [hashlib.sha256(file.read_bytes()).digest() for file in files]
    return hashlib.sha256(b"".join(digests)).hexdigest()


def save_checkpoint(
    path: str | os.PathLike,
    model: nn.Module,
    *,
    config: Mapping[str, Any],
    optimizer: Optimizer | None = None,
    state: Mapping[str, Any] | None = None,
) -> None:
    """Write weights, the optimizer's tensors and state, replacing ``path`` at once or not at all.

    In a distributed run all processes call it, and one writes. The header keeps `vocabularies` of
    the folder, so that a checkpoint does not pass for another run's, and a SHA-256 of itself and
    all tensors, so that a damaged one does not pass for a whole one.

    Args:
        path: File to write, usually ``….safetensors``; its folder must exist.
        model: Its state dict is written; tensors that share memory are written once.
        config: What the model is made of; JSON types only. Compared when loading.
        optimizer: Its moments are written, too, if given.
        state: Anything else that JSON can hold.

    Raises:
        OSError: If the file cannot be written (full disk, no permission). The old one is kept.
    """
    aliases = _aliases(model)
    header = {"format": FORMAT, "config": dict(config), "state": dict(state or {})}
    header |= {"aliases": aliases, "vocabularies": vocabularies(Path(path).parent)}
    weights = get_model_state_dict(model, options=_WHOLE)
    tensors = {
        f"model.{k}": v.contiguous() for k, v in weights.items() if k not in aliases
    }
    if optimizer is not None:
        entries = get_optimizer_state_dict(model, optimizer, options=_WHOLE)
        for name, moments in entries.get(
            "state", {}
        ).items():  # empty but in the writer
            tensors |= {
                f"optimizer.{name}.{k}": v.contiguous() for k, v in moments.items()
            }
        header["lr"] = [group["lr"] for group in optimizer.param_groups]
    on_writer(lambda: _replace(Path(path), tensors, header))


def read_header(path: str | os.PathLike) -> dict[str, Any]:
    """The JSON part of a checkpoint: ``config``, ``state`` and the bookkeeping beside them.

    Raises:
        FileNotFoundError: If there is no such file.
        CheckpointError: If it is not a checkpoint of this package, or it is damaged.
    """
    return _open(Path(path), with_tensors=False)[0]


def load_checkpoint(
    path: str | os.PathLike,
    model: nn.Module,
    *,
    config: Mapping[str, Any] | None = None,
    optimizer: Optimizer | None = None,
) -> dict[str, Any]:
    """Put a checkpoint's weights into ``model``, its moments into ``optimizer``.

    Everything is checked before anything is changed.

    Args:
        path: File written by `save_checkpoint`.
        model: Changed in place.
        config: Configuration that the checkpoint must have been written with; None skips this.
        optimizer: Changed in place, if given.

    Returns:
        The ``state`` that was saved.

    Raises:
        FileNotFoundError: If there is no such file.
        ConfigMismatch: If ``config`` or the tensors' names, shapes or kinds of number differ; says
            where.
        CheckpointError: If the file is not a checkpoint or is damaged, if the vocabularies beside
            it have changed since, or if it holds no optimizer and one is asked, or one with
            another number of groups.
    """
    path = Path(path)
    header, tensors = _open(path)
    beside, known = vocabularies(path.parent), header.get("vocabularies")
    if None not in (beside, known) and beside != known:
        raise CheckpointError(
            f"{path} was written beside another source.json and target.json than are there now"
        )
    if config is not None:
        check_config(path, header["config"], config)
    weights = {k[6:]: v for k, v in tensors.items() if k.startswith("model.")}
    aliases = header["aliases"].items()
    weights |= {alias: weights[name] for alias, name in aliases if name in weights}
    _check_tensors(path, weights, model)
    if optimizer is not None and "lr" not in header:
        raise CheckpointError(f"{path} holds weights only: it cannot continue a run")
    if optimizer is not None and len(header["lr"]) != len(optimizer.param_groups):
        raise CheckpointError(
            f"{path} holds an optimizer with {len(header['lr'])} groups of parameters, but this "
            f"one has {len(optimizer.param_groups)}"
        )
    set_model_state_dict(model, weights, options=_WHOLE)
    if optimizer is not None:
        _load_moments(model, optimizer, tensors, header["lr"])
    return header["state"]


def _load_moments(
    model: nn.Module,
    optimizer: Optimizer,
    tensors: Mapping[str, Tensor],
    lr: list[float],
) -> None:
    """Load the memory of the optimizer; options such as betas stay as it was made with."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    options = [
        {k: v for k, v in g.items() if k != "params"} for g in optimizer.param_groups
    ]
    groups = [
        own | {"params": [names[id(p)] for p in group["params"]]}
        for own, group in zip(options, optimizer.param_groups, strict=True)
    ]
    state: dict[str, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        kind, _, name = key.partition(".")
        if kind == "optimizer":
            name, _, moment = name.rpartition(".")
            # A copy: Windows replaces no file of which a tensor is a view.
            state.setdefault(name, {})[moment] = tensor.clone()
    entries = {"state": state, "param_groups": groups}
    set_optimizer_state_dict(model, optimizer, entries, options=_WHOLE)
    for group, own, rate in zip(optimizer.param_groups, options, lr, strict=True):
        group |= own | {"lr": rate}


def check_config(
    path: Path, found: Mapping[str, Any], wanted: Mapping[str, Any]
) -> None:
    """Raise `ConfigMismatch` naming each field in which two configurations differ."""
    found, wanted = (json.loads(json.dumps(dict(c))) for c in (found, wanted))
    absent = object()
    differences = [
        f"{key} = {found.get(key, 'absent')!r} there and {wanted.get(key, 'absent')!r} here"
        for key in sorted(found.keys() | wanted.keys())
        if found.get(key, absent) != wanted.get(key, absent)
    ]
    if differences:
        raise ConfigMismatch(
            f"{path} has another configuration: {'; '.join(differences)}"
        )


def rng_state(device: torch.device) -> dict[str, Any]:
    """State of the random generators: PyTorch's in each process, and Python's, as JSON types."""
    states = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    text = {k: [_encode(part) for part in gather(v)] for k, v in states.items()}
    # Python's comes last, here and below: a checker of annotations may draw from it on the way.
    version, numbers, gauss = random.getstate()
    return text | {"python": [version, list(numbers), gauss]}


def set_rng_state(state: Mapping[str, Any], device: torch.device) -> bool:
    """Go back to a state of `rng_state`.

    Returns:
        Whether there was one for this process and kind of device. A run that goes on with more
        processes, or on another device, cannot draw the numbers it would have drawn.
    """
    kinds = ["cpu"] + (["cuda"] if device.type == "cuda" else [])
    known = all(rank() < len(state.get(kind, ())) for kind in kinds)
    if known:
        torch.set_rng_state(_decode(state["cpu"][rank()]))
    if known and device.type == "cuda":
        torch.cuda.set_rng_state(_decode(state["cuda"][rank()]), device)
    version, numbers, gauss = state["python"]
    random.setstate((version, tuple(numbers), gauss))
    return known


def _encode(state: Tensor) -> str:
    return base64.b64encode(bytes(state.tolist())).decode()


def _decode(text: str) -> Tensor:
    return torch.tensor(list(base64.b64decode(text)), dtype=torch.uint8)


def _aliases(model: nn.Module) -> dict[str, str]:
    """Second name → first name of each tied parameter: it is written once and stays one."""
    first: dict[int, str] = {}
    aliases = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if first.setdefault(id(parameter), name) != name:
            aliases[name] = first[id(parameter)]
    return aliases


def _digest(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 of all names, dtypes, shapes and bytes."""
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        digest.update(tensor.contiguous().flatten().view(torch.uint8).numpy())
    return digest.hexdigest()


def _replace(path: Path, tensors: Mapping[str, Tensor], header: dict[str, Any]) -> None:
    text = json.dumps(header | {"tensors": _digest(tensors)}, allow_nan=True)
    metadata = {"checkpoint": text, "sha256": hashlib.sha256(text.encode()).hexdigest()}
    with replacing(path) as partial:
        partial.touch()
        # Its mode as the umask has it; safetensors makes a file that only its owner may read.
        mode = partial.stat().st_mode
        try:
            save_file(dict(tensors), partial, metadata)
        except SafetensorError as error:
            number = re.search(r"os error (\d+)", str(error))
            code = int(number[1]) if number else 5  # EIO
            raise OSError(code, os.strerror(code), str(path)) from error
        partial.chmod(mode)


def _open(
    path: Path, with_tensors: bool = True
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    if not path.is_file():
        raise FileNotFoundError(2, "No such checkpoint", str(path))
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            text = metadata.pop("checkpoint", None)
            if text is None:
                raise CheckpointError(
                    f"{path} is a safetensors file, but not a checkpoint"
                )
            names = file.keys() if with_tensors else ()
            tensors = {name: file.get_tensor(name) for name in names}
    except SafetensorError as error:
        raise CheckpointError(f"{path} is not a checkpoint: {error}") from error
    # Those of earlier versions have no digests.
    if metadata not in ({}, {"sha256": hashlib.sha256(text.encode()).hexdigest()}):
        raise CheckpointError(
            f"{path} is damaged: its header is not the one that was written"
        )
    try:
        header = json.loads(text)
    except ValueError as error:
        raise CheckpointError(
            f"{path} is not a checkpoint: its header is no JSON"
        ) from error
    found = header.get("format") if isinstance(header, dict) else None
    if found != FORMAT:
        raise CheckpointError(
            f"{path} has format {found!r}; this version reads {FORMAT}"
        )
    for name in ("config", "state", "aliases"):
        if not isinstance(header.get(name), dict):
            raise CheckpointError(
                f"{path} is not a checkpoint: its header has no {name}"
            )
    if with_tensors and header.get("tensors") not in (None, _digest(tensors)):
        raise CheckpointError(
            f"{path} is damaged: its tensors are not those that were written"
        )
    return header, tensors


def _check_tensors(path: Path, weights: Mapping[str, Tensor], model: nn.Module) -> None:
    own = model.state_dict()
    wanted = {k: tuple(v.shape) for k, v in own.items()}
    found = {k: tuple(v.shape) for k, v in weights.items()}
    for name in sorted(found.keys() | wanted.keys()):
        if found.get(name) != wanted.get(name):
            raise ConfigMismatch(
                f"{path} does not fit the model: {name} has shape {found.get(name, 'absent')} "
                f"there and {wanted.get(name, 'absent')} here"
            )
        if _kind(weights[name]) != _kind(own[name]):
            raise ConfigMismatch(
                f"{path} does not fit the model: {name} is of {weights[name].dtype} there and of "
                f"{own[name].dtype} here"
            )


def _kind(tensor: Tensor) -> tuple[bool, bool, bool]:
    dtype = tensor.dtype  # precisions may differ: copying rounds
    return dtype.is_floating_point, dtype.is_complex, dtype == torch.bool
