"""One process or many: what `src.training` has to know about the others.

Started by ``torchrun``, every process works on its share of each update. Without it every function
here does what is right for a single process, so the training loop is written once.
"""

import os
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.rendezvous import rendezvous
from torch.nn.parallel import DistributedDataParallel

SHARDING = ("ddp", "fsdp")
# Methods by which a model is used besides `forward`: FSDP has to fetch its parameters there, too.
ENTRANCES = ("new_cache", "decode_cached")
# The key under which the launcher's store keeps what ended the run.
FAILURE = "first_failure"


def pick_device(name: torch.device | str | None = None) -> torch.device:
    """The device of that name, or the best one at hand.

    That is CUDA (under torchrun, this process's own device), MPS, or the CPU.

    Raises:
        ValueError: If there is no such device, or none that works here.
    """
    if name is not None:
        try:
            device = torch.device(name)
            torch.zeros(1, device=device)
        except (RuntimeError, AssertionError) as error:
            reason = str(error).splitlines()[0]
            raise ValueError(
                f"device must be usable here, but {name} is not: {reason}"
            ) from error
        return device
    if torch.cuda.is_available():
        return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    if (
        torch.backends.mps.is_available() and world_size() == 1
    ):  # MPS has no collectives
        return torch.device("mps")
    return torch.device("cpu")


def rank() -> int:
    """Number of this process, 0 where there is only one."""
    return dist.get_rank() if dist.is_initialized() else 0


def world_size() -> int:
    """How many processes train together."""
    return dist.get_world_size() if dist.is_initialized() else 1


def is_writer() -> bool:
    """Whether this process writes files and messages: exactly one does."""
    return rank() == 0


@contextmanager
def process_group(timeout_s: float = 1800.0) -> Iterator[None]:
    """Join the other processes for the time of the block, if ``torchrun`` started any.

    Host tensors travel by gloo, device tensors by NCCL. A process that waits longer than
    ``timeout_s`` seconds for another one fails, so none waits for ever for one that died. Whatever
    leaves the block as an exception in one process ends the others at their next exchange.

    Raises:
        OtherFailed: If another process failed, and this one lost the connection to it.
    """
    if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ:
        yield
        return
    if torch.cuda.is_available():
        torch.cuda.set_device(pick_device())
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    store, number, size = next(rendezvous("env://"))
    dist.init_process_group(
        backend,
        timeout=timedelta(seconds=timeout_s),
        store=store,
        rank=number,
        world_size=size,
    )
    try:
        yield
    except BaseException as error:
        if not _connection_lost(error):
            with suppress(RuntimeError):  # a store that has ended
                text = f"process {number} failed: {type(error).__name__}: {error}"
                store.compare_set(FAILURE, "", text)  # the first one says why
            raise
        raise OtherFailed(_first_failure(store)) from error
    finally:
        dist.destroy_process_group()


class OtherFailed(RuntimeError):
    """What a process raises when it lost another one, and so cannot go on."""


def _connection_lost(error: BaseException) -> bool:
    """Whether an exchange failed: gloo has no class of errors of its own, only its name in them."""
    if isinstance(error, dist.DistError):
        return True
    return (
        type(error) is RuntimeError and re.search(r"\bgloo\b", str(error)) is not None
    )


def _first_failure(store: dist.Store) -> str:
    with suppress(RuntimeError):
        if store.check([FAILURE]):
            return store.get(FAILURE).decode()
    return "another process ended and did not say why"


def sum_over_ranks(*values: int | float) -> list[float]:
    """Add up each value over all processes, in float64."""
    if world_size() == 1:
        return [float(value) for value in values]
    total = torch.tensor(values, dtype=torch.float64)
    dist.all_reduce(total)
    return total.tolist()


def any_rank(flag: bool) -> bool:
    """Whether the flag is set in any process; the same answer in all of them."""
    return sum_over_ranks(float(flag))[0] > 0


def gather(state: Tensor) -> list[Tensor]:
    """A host tensor of the same shape from each process, in the order of their ranks."""
    if world_size() == 1:
        return [state]
    parts = [torch.empty_like(state) for _ in range(world_size())]
    dist.all_gather(parts, state)
    return parts


class WriterFailed(RuntimeError):
    """What the other processes raise when the one that writes has failed."""


def on_writer(action: Callable[[], Any]) -> None:
    """Run ``action`` in one process, and fail in all of them if it fails there.

    Raises:
        Exception: In the writer, what ``action`` raised.
        WriterFailed: In the others.
    """
    error: Exception | None = None
    if is_writer():
        try:
            action()
        except Exception as failure:
            error = failure
    failed = any_rank(error is not None)
    if error is not None:
        raise error
    if failed:
        raise WriterFailed("process 0 failed while it wrote for all: see its message")


def wrap(
    model: nn.Module, sharding: str = "ddp", device: torch.device | None = None
) -> nn.Module:
    """Move the model, and make the gradients of all processes add up: by copies or by shards.

    Copies (DDP) return a wrapper and leave the model as it is. Shards (FSDP2) change the model in
    place: each process keeps a part of every parameter, gradient and moment, and fetches a layer
    when it is its turn. Both *average* over the processes; the loss has to be multiplied by their
    number.

    Args:
        model: Moved to ``device``; to be sharded, layer by layer and never as a whole, so that it
            need not fit there.
        sharding: ``"ddp"`` or ``"fsdp"``; makes no difference to a process that is alone.
        device: Where to train; None is where the model is.

    Raises:
        ValueError: If ``sharding`` is unknown.
    """
    if sharding not in SHARDING:
        raise ValueError(f"sharding must be one of {SHARDING}, got {sharding!r}")
    if sharding == "fsdp" and dist.is_initialized():
        _shard(model, next(model.parameters()).device if device is None else device)
        return model
    model.to(device)
    if not dist.is_initialized():
        return model
    device = next(model.parameters()).device
    ids = [device.index] if device.type == "cuda" else None
    return DistributedDataParallel(model, device_ids=ids, gradient_as_bucket_view=True)


def _blocks(module: nn.Module) -> Iterator[nn.Module]:
    """The layers of a model: what stands in its outermost lists of modules."""
    for child in module.children():
        if isinstance(child, nn.ModuleList):
            yield from child
        else:
            yield from _blocks(child)


def _parts(model: nn.Module) -> Iterator[nn.Module]:
    """What is fetched together, the whole last, which keeps what is in no other part."""
    for block in _blocks(model):
        if hasattr(block, "cross_attention"):
            # Its keys and values are projected before the layer runs, so it stays with the whole.
            for name, part in block.named_children():
                if name != "cross_attention" and not isinstance(part, nn.ModuleList):
                    yield part
        else:
            yield block
    yield model


def _shard(model: nn.Module, device: torch.device) -> None:
    """Cut up part after part; `fully_shard` moves each to the device of the mesh, and cuts it."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

    mesh = init_device_mesh(device.type, (world_size(),))
    for part in list(_parts(model)):
        fully_shard(part, mesh=mesh)
        for name in ENTRANCES:
            if hasattr(part, name):
                register_fsdp_forward_method(part, name)


def accumulating(wrapped: nn.Module, last: bool) -> AbstractContextManager:
    """Context of one backward: gradients travel with the ``last`` batch of an update only."""
    if isinstance(wrapped, DistributedDataParallel):
        return nullcontext() if last else wrapped.no_sync()
    if hasattr(wrapped, "set_requires_gradient_sync"):  # FSDP2
        wrapped.set_requires_gradient_sync(last)
    return nullcontext()
