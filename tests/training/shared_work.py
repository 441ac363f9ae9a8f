"""What one or several processes do with the same problem: every inference, step by step."""

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from gppvae.data.world import World
from gppvae.inference import INFERENCES
from gppvae.training.distributed import current_world
from inference.setting import KERNELS, RowEpoch, gradients, make_epoch, make_model

# 21 rows: batches of 5 leave one row for the last, so that one of two processes has none.
CASES = [(name, batch_size) for name in INFERENCES for batch_size in (5, 21)]
WITH_ONE_ROW = ("exact", "fixed", "minibatch", "posterior")  # fewer rows than processes
KERNEL = "few inducing points"  # each row has a noise of its own


def one_row(epoch: RowEpoch) -> RowEpoch:
    return RowEpoch(epoch.y[:1], epoch.rows[:1], epoch.eps[:1], 1, world=epoch.world)


def steps_of(name: str, batch_size: int, world: World, single: bool = False) -> Iterator[dict[str, Tensor]]:
    """Per step: gradients and terms, summed over the processes; at the end what predictions and checkpoints use."""
    model = make_model(KERNELS[KERNEL]())
    epoch = replace(make_epoch(model, batch_size), world=world)
    epoch = one_row(epoch) if single else epoch
    generator = torch.Generator().manual_seed(1)
    inference = INFERENCES[name](model)
    inference.initialise(generator)
    weights = model.prior.before_data()
    for part in weights.parts:
        part.mean.copy_(torch.randn(part.mean.shape, generator=generator, dtype=torch.float64))
    inference.start(epoch, weights)
    for terms in inference.steps(epoch):
        found = gradients(model, inference) | {k: v.double().clone() for k, v in terms.named().items()}
        world.sum_(list(found.values()))
        yield found | {"n": torch.tensor(terms.n)}
    posterior = inference.weights(epoch)
    left = {} if posterior is None else {f"q.{k}": v.detach().clone() for k, v in posterior.tensors().items()}
    yield left | {f"state.{k}": v.detach().clone() for k, v in inference.state_dict().items()}


def everything(world: World) -> dict[str, Tensor]:
    found = {}
    for name, batch_size in CASES:
        for number, step in enumerate(steps_of(name, batch_size, world)):
            found |= {f"{name}/{batch_size}/{number}/{key}": value for key, value in step.items()}
    for name in WITH_ONE_ROW:
        for number, step in enumerate(steps_of(name, 1, world, single=True)):
            found |= {f"{name}/one row/{number}/{key}": value for key, value in step.items()}
    return found


if __name__ == "__main__":
    processes = current_world()
    assert processes.size > 1
    save_file(
        {k: v.contiguous() for k, v in everything(processes).items()},
        Path(sys.argv[1]) / f"{processes.rank}.safetensors",
    )
