"""Epochs: every row once, the same batches and noise at each pass, another order for another seed."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from gppvae.data.arrays import Samples
from gppvae.data.batches import Epoch, derive_seed
from gppvae.data.table import Table
from gppvae.kernels import Linear

N = 23


def make_epoch(batch_size: int = 5, seed: int | None = 7, missing: str = "error") -> Epoch:
    """Sample n holds n, and so does its row."""
    kernel = Linear("n")
    table = Table({"n": np.arange(N, dtype=float)[::-1]})
    kernel.bind(table)
    values = np.stack([np.arange(N, dtype=float)] * 2, axis=1)
    if missing == "mask":
        values[3, 1] = np.nan
    return Epoch(Samples(values, missing=missing), kernel.code(table), batch_size, seed, torch.device("cpu"))


@pytest.mark.parametrize("batch_size", [1, 5, 23, 100])
@pytest.mark.parametrize("seed", [None, 0, 7])
def test_every_row_comes_once_with_its_own_sample(batch_size: int, seed: int | None) -> None:
    epoch = make_epoch(batch_size, seed)
    batches = list(epoch)
    assert len(batches) == epoch.n_batches and epoch.n_rows == N
    assert sorted(torch.cat([batch.index for batch in batches]).tolist()) == list(range(N))
    for batch in batches:
        assert len(batch) == len(batch.y) == len(batch.rows) <= batch_size
        assert batch.mask is None and batch.y.dtype == torch.float32
        torch.testing.assert_close(batch.y[:, 0], batch.index.float())
        column = batch.rows.columns["n"]
        torch.testing.assert_close(column.values[column.index, 0], (N - 1 - batch.index).double())


def test_each_pass_has_the_same_batches_and_noise() -> None:
    epoch = make_epoch()
    for first, second in zip(epoch, epoch, strict=True):
        assert torch.equal(first.index, second.index) and torch.equal(first.y, second.y)
        assert torch.equal(first.noise(4), second.noise(4)) and torch.equal(first.noise(4), first.noise(4))


def test_noise_is_standard_normal_and_differs_between_batches() -> None:
    noise = [batch.noise(400) for batch in make_epoch()]
    assert all(part.shape[1] == 400 and part.dtype == torch.float32 for part in noise)
    assert not torch.equal(noise[0], noise[1])
    values = torch.cat(noise)
    assert abs(values.mean().item()) < 0.05 and abs(values.std().item() - 1) < 0.05


def test_the_seed_sets_order_and_noise() -> None:
    base, same, other = make_epoch(seed=1), make_epoch(seed=1), make_epoch(seed=2)
    a, b, c = (next(iter(epoch)) for epoch in (base, same, other))
    assert torch.equal(a.index, b.index) and torch.equal(a.noise(2), b.noise(2))
    assert not torch.equal(a.index, c.index) and not torch.equal(a.noise(2), c.noise(2))


def test_without_a_seed_the_order_is_that_of_the_data() -> None:
    order = torch.cat([batch.index for batch in make_epoch(seed=None)])
    assert order.tolist() == list(range(N))


def test_global_random_state_is_neither_read_nor_moved() -> None:
    torch.manual_seed(3)
    first = torch.cat([batch.index for batch in make_epoch()])
    state = torch.get_rng_state()
    torch.manual_seed(4)
    assert torch.equal(first, torch.cat([batch.index for batch in make_epoch()]))
    torch.manual_seed(3)
    assert torch.equal(torch.get_rng_state(), state)


def test_masks_follow_their_samples() -> None:
    for batch in make_epoch(missing="mask"):
        want = torch.stack([torch.ones(len(batch), dtype=torch.bool), batch.index != 3], dim=1)
        assert torch.equal(batch.mask, want)


def test_tick_is_called_after_each_batch() -> None:
    ticks = []
    epoch = replace(make_epoch(), tick=lambda: ticks.append(1))
    for number, _ in enumerate(epoch):
        assert len(ticks) == number
    assert len(ticks) == epoch.n_batches


def test_derived_seeds_are_repeatable_and_apart() -> None:
    assert derive_seed(1, 2, 3) == derive_seed(1, 2, 3)
    seeds = {derive_seed(a, b) for a in range(20) for b in range(20)}
    assert len(seeds) == 400 and all(0 <= seed < 2**32 for seed in seeds)
    assert derive_seed(-1) == derive_seed(2**32 - 1)
