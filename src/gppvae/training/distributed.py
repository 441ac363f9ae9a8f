"""Several processes under torchrun. Only this module reads their environment variables."""

from __future__ import annotations

import atexit
import os
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.rendezvous import rendezvous

from gppvae.data.world import ALONE, World

POLL_SECONDS = 0.02
LEAVE_SECONDS = 0.2
MESSAGE_BYTES = 2000
WIDENED_BYTES = 1 << 18


class ProcessGroup(World):
    """The processes of torch.distributed's default group: gloo for tensors on the CPU, NCCL on CUDA."""

    def __init__(self) -> None:
        self.rank, self.size = dist.get_rank(), dist.get_world_size()

    @torch.no_grad()
    def sum_(self, tensors: Sequence[Tensor]) -> None:
        groups = _messages(tensors)
        flats = [torch.cat([tensor.reshape(-1) for tensor in group]) for group in groups]
        for sent in [dist.all_reduce(flat, async_op=True) for flat in flats]:  # all are on their way at once
            sent.wait()
        for group, flat in zip(groups, flats, strict=True):
            for tensor, part in zip(group, flat.split([tensor.numel() for tensor in group]), strict=True):
                tensor.copy_(part.view_as(tensor))

    @torch.no_grad()
    def broadcast_(self, tensors: Sequence[Tensor]) -> None:
        for tensor in tensors:
            whole = tensor.contiguous()
            dist.broadcast(whole, 0)
            tensor.copy_(whole)

    def barrier(self) -> None:
        # A sum, since dist.barrier() needs a device under NCCL.
        self.sum_([torch.zeros(1)])


def _messages(tensors: Sequence[Tensor]) -> list[list[Tensor]]:
    """Tensors grouped into messages: one per type and device; one per device for floats that are few.

    Every message is waited for, and a short one takes as long as an empty one. So float32 tensors join float64 ones,
    which loses nothing, unless the message would grow by more than WIDENED_BYTES.
    """
    groups: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
    for tensor in tensors:
        groups.setdefault((tensor.dtype, tensor.device), []).append(tensor)
    for single, device in [key for key in groups if key[0] is torch.float32]:
        narrow = groups[single, device]
        wide = groups.get((torch.float64, device))
        if wide is not None and sum(tensor.nbytes for tensor in narrow) <= WIDENED_BYTES:
            wide.extend(groups.pop((single, device)))  # torch.cat promotes them
    return list(groups.values())


def current_world() -> World:
    """The processes started by torchrun, or this process alone. All processes must call it."""
    if not dist.is_initialized():
        if _started_processes() == 1:
            return ALONE
        if torch.cuda.is_available():
            torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
            _connect("cpu:gloo,cuda:nccl")
        else:
            _connect("gloo")
    return ProcessGroup() if dist.get_world_size() > 1 else ALONE


def _connect(backend: str) -> None:
    """Join the process group, under a name that is new at every start."""
    store, rank, size = next(rendezvous("env://"))
    name = _agree(store, rank, size)
    dist.init_process_group(backend, store=dist.PrefixStore(name, store), rank=rank, world_size=size)
    atexit.register(_leave)


def _leave() -> None:
    """Leave the group before the interpreter shuts down.

    Gloo's threads need the interpreter's lock to release the tensors of the last sum. If they take it during shutdown,
    a process whose work is done aborts. A pause lets them finish first.
    """
    if dist.is_initialized():
        time.sleep(LEAVE_SECONDS)
        dist.destroy_process_group()


def _agree(store: dist.Store, rank: int, size: int) -> str:
    """Agree on a name for this start of the processes.

    torchrun keeps its store when it restarts workers, and with it the addresses of the dead ones. Processes that read
    those would be refused, or wait forever. The restart count cannot serve as the name, since it does not change when
    hosts join or leave. So each process sends a random token, and rank 0 replies to that token with a new name.
    """
    if rank > 0:
        token = uuid.uuid4().hex
        store.set(f"gppvae/ask/{rank}", token)
        name = store.get(f"gppvae/answer/{token}").decode()
        store.set(f"gppvae/{name}/{rank}", "here")
        return name
    name = uuid.uuid4().hex
    missing = set(range(1, size))
    timeout: timedelta = store.timeout  # type: ignore[attr-defined]
    deadline = time.monotonic() + timeout.total_seconds()
    while missing:
        if time.monotonic() > deadline:
            raise TimeoutError(
                f"expected {size} processes to meet, got no answer from {sorted(missing)} in {timeout}; "
                "look for their errors"
            )
        for other in missing:
            if store.check([f"gppvae/ask/{other}"]):
                store.set(f"gppvae/answer/{store.get(f'gppvae/ask/{other}').decode()}", name)
        time.sleep(POLL_SECONDS)
        missing = {other for other in missing if not store.check([f"gppvae/{name}/{other}"])}
    return name


def on_first(world: World, task: Callable[[], bool]) -> bool:
    """Run `task` in the first process; all processes return its result or raise its error."""
    # outcome: kind of error (0 none, 1 ValueError, 2 OSError) and result; zeros in the other processes.
    outcome, message = torch.zeros(2, dtype=torch.int64), torch.zeros(MESSAGE_BYTES, dtype=torch.int64)
    failed: Exception | None = None
    if world.first:
        try:
            outcome[1] = int(task())
        except (ValueError, OSError) as error:
            failed = error
            outcome[0] = 1 if isinstance(error, ValueError) else 2
            content = str(error).encode(errors="replace")[:MESSAGE_BYTES]
            message[: len(content)] = torch.tensor(list(content))
    world.sum_([outcome, message])
    if failed is not None:
        raise failed
    if outcome[0]:
        text = bytes(message[message > 0].tolist()).decode(errors="replace")
        raise ValueError(text) if outcome[0] == 1 else OSError(text)
    return bool(outcome[1])


def check_same(world: World, digests: Mapping[str, str]) -> None:
    """Raise ValueError in every process unless all have the same digests.

    Args:
        digests: SHA-256 in hexadecimal, by name; the same names in all processes.
    """
    # Half of each digest as eight numbers; each process fills its row, and a sum gathers them.
    own = [[int(value[place : place + 4], 16) for place in range(0, 32, 4)] for value in digests.values()]
    found = torch.zeros(len(own), world.size, 8, dtype=torch.int64)  # (digests, processes, 8)
    found[:, world.rank] = torch.tensor(own)
    world.sum_([found])
    for name, numbers in zip(digests, found, strict=True):
        others = [rank for rank in range(world.size) if not torch.equal(numbers[rank], numbers[0])]
        if others:
            which = ", ".join(map(str, others))
            raise ValueError(
                f"expected the same {name} in all {world.size} processes, got others in process {which} than in "
                "process 0; start all of them with the same command, files and versions"
            )


def restarted() -> bool:
    """Whether torchrun restarted this process."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0


def first_process() -> bool:
    """Whether this is the process that writes files and prints."""
    if dist.is_initialized():
        return dist.get_rank() == 0
    return _started_processes() == 1 or int(os.environ["RANK"]) == 0


def _started_processes() -> int:
    """Number of processes started by torchrun; 1 without it."""
    described = all(name in os.environ for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR"))
    return int(os.environ["WORLD_SIZE"]) if described and dist.is_available() else 1
