"""What `World.sum_` does with tensors of several types: the sums, and the messages that they took."""

import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch import Tensor

from gppvae.training.distributed import WIDENED_BYTES, current_world


def tensors_of(rank: int, few: bool) -> dict[str, Tensor]:
    """Those of one process: gradients of a network and of a kernel in an order of their own, and counts."""
    generator = torch.Generator().manual_seed(rank)
    size = 30 if few else WIDENED_BYTES // 4
    network = torch.randn(size, 2, generator=generator)
    kernel = torch.randn(3, 4, dtype=torch.float64, generator=generator)
    bias, alpha = torch.randn(5, generator=generator), torch.randn((), dtype=torch.float64, generator=generator)
    return {"kernel": kernel.T, "network": network, "alpha": alpha, "bias": bias, "rows": torch.tensor([2**60 + rank])}


if __name__ == "__main__":
    world = current_world()
    messages: list[tuple[torch.dtype, int]] = []
    all_reduce = dist.all_reduce

    def noted(message: Tensor, *args: Any, **options: Any) -> Any:
        messages.append((message.dtype, message.numel()))
        return all_reduce(message, *args, **options)

    dist.all_reduce = noted
    for few in (True, False):
        tensors = tensors_of(world.rank, few)
        messages.clear()
        world.sum_(list(tensors.values()))
        name = f"{'few' if few else 'many'}-{world.rank}.safetensors"
        sent = {f"sent {dtype}": torch.tensor(size) for dtype, size in messages}
        assert len(sent) == len(messages)
        save_file({key: value.contiguous() for key, value in (tensors | sent).items()}, Path(sys.argv[1]) / name)
