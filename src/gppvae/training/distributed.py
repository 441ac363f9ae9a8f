"""Many processes under torchrun. The only place that reads the environment they are described in."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from gppvae.data.world import ALONE, World


class ProcessGroup(World):
    """The processes of torch.distributed's default group: gloo for tensors on the CPU, NCCL on CUDA."""

    def __init__(self) -> None:
        self.rank, self.size = dist.get_rank(), dist.get_world_size()

    @torch.no_grad()
    def sum_(self, tensors: Sequence[Tensor]) -> None:
        for group in _alike(tensors):
            flat = torch.cat([tensor.reshape(-1) for tensor in group])
            dist.all_reduce(flat)
            for tensor, part in zip(group, flat.split([tensor.numel() for tensor in group]), strict=True):
                tensor.copy_(part.view_as(tensor))

    def sum(self, tensor: Tensor) -> Tensor:
        summed: Tensor = _Sum.apply(tensor)
        return summed

    @torch.no_grad()
    def broadcast_(self, tensors: Sequence[Tensor]) -> None:
        for tensor in tensors:
            whole = tensor.contiguous()
            dist.broadcast(whole, 0)
            tensor.copy_(whole)

    def barrier(self) -> None:
        # A sum and not dist.barrier(), which has to be told its device under NCCL.
        self.sum_([torch.zeros(1)])


class _Sum(torch.autograd.Function):
    """Sum over processes; every process's loss depends on every part, so gradients are summed on the way back."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        total = tensor.contiguous().clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        total = grads[0].contiguous().clone()
        dist.all_reduce(total)
        return total


def _alike(tensors: Sequence[Tensor]) -> list[list[Tensor]]:
    """Tensors by type and device, in the order of their first appearance: one message for each group."""
    groups: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
    for tensor in tensors:
        groups.setdefault((tensor.dtype, tensor.device), []).append(tensor)
    return list(groups.values())


def current_world() -> World:
    """The processes that torchrun started, or this process alone. All of them must call it."""
    if not dist.is_initialized():
        if _started_processes() == 1:
            return ALONE
        if torch.cuda.is_available():
            torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
            dist.init_process_group("cpu:gloo,cuda:nccl")
        else:
            dist.init_process_group("gloo")
    return ProcessGroup() if dist.get_world_size() > 1 else ALONE


def first_process() -> bool:
    """Whether this process is the one that writes files and prints."""
    if dist.is_initialized():
        return dist.get_rank() == 0
    return _started_processes() == 1 or int(os.environ["RANK"]) == 0


def _started_processes() -> int:
    """How many processes torchrun started; 1 without it."""
    described = all(name in os.environ for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR"))
    return int(os.environ["WORLD_SIZE"]) if described and dist.is_available() else 1
