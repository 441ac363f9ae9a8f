"""One process is several: threads that share the work, against a single one, for every inference.

Real processes are in tests/training; threads make the same sums without a network between them.
"""

import copy
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from gppvae.data.world import ALONE, World
from gppvae.inference import INFERENCES, Global
from gppvae.kernels import Categorical, FreeForm, Learned, Matern
from gppvae.models.gppvae import GPPriorVAE
from inference.setting import N, RowEpoch, gradients, make_epoch, make_model


class Meeting:
    """Where threads put their tensors, and read those of the others."""

    def __init__(self, size: int) -> None:
        self.barrier = threading.Barrier(size, timeout=60)
        self.brought: list[list[Tensor]] = [[] for _ in range(size)]


class ThreadWorld(World):
    """One of several threads; sums are added in the order of the ranks, so that all get the same."""

    def __init__(self, rank: int, size: int, meeting: Meeting) -> None:
        self.rank, self.size, self.meeting = rank, size, meeting

    def sum_(self, tensors: Sequence[Tensor]) -> None:
        self.meeting.brought[self.rank] = [tensor.detach().clone() for tensor in tensors]
        self.meeting.barrier.wait()
        with torch.no_grad():
            for tensor, *parts in zip(tensors, *self.meeting.brought, strict=True):
                tensor.copy_(torch.stack(parts).sum(0))
        self.meeting.barrier.wait()

    def broadcast_(self, tensors: Sequence[Tensor]) -> None:
        raise AssertionError("no inference broadcasts")

    def barrier(self) -> None:
        raise AssertionError("no inference waits")


Found = list[dict[str, Tensor]]


def work(name: str, model: GPPriorVAE, epoch: RowEpoch) -> Found:
    """Two epochs: per step this process's part of gradients and terms; at the end what all of them hold alike."""
    inference = INFERENCES[name](model)
    start = Global(model)
    for number, mean in enumerate(start.means):
        generator = torch.Generator().manual_seed(number)
        mean.data.copy_(torch.randn(mean.shape, generator=generator, dtype=torch.float64))
    inference.start(epoch, start.weights(epoch))
    steps: Found = []
    for _ in range(2):
        for terms in inference.steps(epoch):
            steps.append(gradients(model, inference) | terms.named() | {"n": torch.tensor(float(terms.n))})
    posterior = inference.weights(epoch)
    kept = {} if posterior is None else posterior.tensors()
    return [*steps, kept | dict(inference.state_dict())]


def in_threads(size: int, of: Callable[[World], Found]) -> list[Found]:
    meeting = Meeting(size)
    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(lambda rank: of(ThreadWorld(rank, size, meeting)), range(size)))


@pytest.mark.parametrize("rows", ["5 per batch", "all at once", "a single row"])
@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("name", INFERENCES)
def test_parts_of_several_processes_add_up_to_one(name: str, size: int, rows: str) -> None:
    """With groups of latents, noise per row, batches that do not divide, and processes without a row."""
    few = Learned("person", 2) * Matern("time", lengthscale=0.9, max_inducing=4)
    own = 0.6 * Categorical("person") * Matern("time", lengthscale=0.9, max_inducing=3) + FreeForm("pose")
    model = make_model([(few, 2), (None, 1), (FreeForm("pose") * Learned("person", 2), 1), (own, 1)])
    epoch = make_epoch(model, 5 if rows == "5 per batch" else N)
    model.prior.plan(epoch.rows, 5)
    if rows == "a single row":
        epoch = RowEpoch(epoch.y[:1], epoch.rows[:1], epoch.eps[:1], 1)
    alone = work(name, copy.deepcopy(model), replace(epoch, world=ALONE))
    models = [copy.deepcopy(model) for _ in range(size)]
    together = in_threads(size, lambda world: work(name, models[world.rank], replace(epoch, world=world)))
    *steps, kept = alone
    assert len(steps) in (2, 2 * epoch.n_batches)
    for number, want in enumerate(steps):
        for key, value in want.items():
            parts = torch.stack([found[number][key].double() for found in together])
            got = parts[0] if key == "n" else parts.sum(0)
            torch.testing.assert_close(got, value.double(), rtol=1e-9, atol=1e-9, msg=lambda m, k=key: f"{k}: {m}")
    for found in together:
        assert found[-1].keys() == kept.keys()
        for key, value in kept.items():
            torch.testing.assert_close(found[-1][key], value, rtol=1e-8, atol=1e-9, msg=lambda m, k=key: f"{k}: {m}")
