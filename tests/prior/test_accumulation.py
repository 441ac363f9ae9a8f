"""Sums over ten million rows keep their digits: against whole numbers, which add up exactly in int64."""

import math

import numpy as np
import pytest
import torch

from gppvae.prior.layout import GroupedRows
from gppvae.prior.statistics import Statistics, StatisticsSum, statistics

CHUNK = 8192
ULP = 2.0**-52


def whole_numbers(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """x (n, 2) and mean (n, 1), whole and below 2^18, so that products of a chunk add up without rounding."""
    rng = np.random.default_rng(seed)
    return rng.integers(0, 2**18, (n, 2)), rng.integers(0, 2**18, (n, 1))


def test_ten_million_rows_are_summed_to_the_last_digit() -> None:
    total, exact_outer, exact_t, n = StatisticsSum(), np.zeros((2, 3), dtype=np.int64), 0, 10_000_000
    noise = torch.tensor(0.25, dtype=torch.float64)  # c = 4 without rounding
    for number, start in enumerate(range(0, n, CHUNK)):
        x, mean = whole_numbers(min(CHUNK, n - start), number)
        rows, latents = (torch.from_numpy(whole.astype(np.float64)) for whole in (x, mean))
        total.add([statistics(GroupedRows(rows), latents, None, noise)])
        exact_outer += x.T @ np.concatenate([x, mean], axis=1)
        exact_t += int((mean * mean).sum())
    (found,) = total.value
    want = exact_outer.astype(object) * 4
    assert exact_outer.min() > 2**55  # beyond what float64 can count by ones
    for i in range(2):
        for j in range(3):
            error = abs(int(found.outer[0, i, j].item()) - want[i, j])
            assert error <= want[i, j] * ULP
    assert abs(int(found.sums[0].item()) - 4 * exact_t) <= 4 * exact_t * ULP
    assert found.sums[3].item() == n
    assert found.sums[2].item() == pytest.approx(n * math.log(0.25), rel=4 * ULP)


def part(value: float) -> Statistics:
    return Statistics(
        torch.full((1, 1, 2), value, dtype=torch.float64), torch.full((4,), value, dtype=torch.float64), 1
    )


def test_small_parts_beside_a_large_one_are_kept() -> None:
    values = [1e16, *np.random.default_rng(0).uniform(0.1, 0.9, 20_000).tolist()]
    total = StatisticsSum()
    for value in values:
        total.add([part(value)])
    want = math.fsum(values)
    assert total.value[0].outer[0, 0, 0].item() == pytest.approx(want, rel=ULP)
    plain = sum(values)
    assert abs(plain - want) > 100 * abs(total.value[0].sums[1].item() - want)


def test_what_is_added_stays_as_it_was() -> None:
    first, second, total = [part(1.0), part(5.0)], [part(2.0), part(7.0)], StatisticsSum()
    total.add(first)
    total.add(second)
    assert [sums.outer[0, 0, 1].item() for sums in total.value] == [3.0, 12.0]  # groups of latents do not mix
    assert [sums.sums[0].item() for sums in first + second] == [1.0, 5.0, 2.0, 7.0]
