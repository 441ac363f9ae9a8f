"""Grids of the trade-off grow where the best lies at an edge; the CVAE has the networks of the others."""

import math
from collections.abc import Callable

import numpy as np
import pytest

from gppvae.nets.build import build_networks
from gppvae.paper.comparison.tradeoff import widened
from gppvae.paper.cvae.networks import conditional_networks
from gppvae.paper.faces import recipes as faces
from gppvae.paper.rotated_mnist import recipes as digits

GRID = (0.01, 0.02, 0.04)


def bowl(best: float, asked: list[float]) -> Callable[[float], np.ndarray]:
    """Two images whose error is least at `best`; values asked for are noted."""

    def errors(value: float) -> np.ndarray:
        asked.append(value)
        return np.array([0.0, 1.0]) + math.log(value / best) ** 2

    return errors


@pytest.mark.parametrize(("best", "least", "most"), [(0.02, 0.01, 0.04), (3.0, 0.01, 5.12), (0.001, 0.000625, 0.04)])
def test_the_choice_lies_inside(best: float, least: float, most: float) -> None:
    asked: list[float] = []
    choice = widened(GRID, bowl(best, asked), highest=False, most_values=20)
    assert choice.inside and choice.facts()["inside"]
    assert (choice.grid[0], choice.grid[-1]) == pytest.approx((least, most))
    assert choice.grid == sorted(choice.grid) and sorted(asked) == choice.grid, "every value is tried once"
    assert abs(math.log(choice.chosen / best)) <= math.log(2.0) / 2 + 1e-9
    assert choice.chosen == choice.grid[int(np.argmin(choice.values))]
    assert choice.errors == pytest.approx([0.5] * len(choice.grid))


def test_the_highest_is_chosen_where_that_is_best() -> None:
    choice = widened(GRID, lambda value: -bowl(0.3, [])(value), highest=True, most_values=20)
    assert choice.inside and choice.chosen == pytest.approx(0.32)


def test_a_rise_within_noise_does_not_end_the_search() -> None:
    noise = np.random.default_rng(0)

    def errors(value: float) -> np.ndarray:
        """Falls slowly, then far beyond the grid; at its upper edge there is a bump that the noise hides."""
        mean = 0.08 - 0.001 * math.log2(value / 0.01) + 0.0015 * (abs(value - 0.08) < 1e-9)
        mean = mean if value < 1.0 else 0.05 + 0.01 * abs(math.log2(value / 2.56))
        return mean + 0.01 * noise.normal(size=40)

    choice = widened(GRID, errors, highest=False, most_values=14)
    assert choice.inside and choice.chosen == pytest.approx(2.56)


def test_a_grid_without_an_end_stops_and_says_so() -> None:
    choice = widened(GRID, lambda value: np.array([1.0, 2.0]) / value, highest=False, most_values=6)
    assert len(choice.grid) == 6 and choice.chosen == choice.grid[-1] and not choice.inside


@pytest.mark.parametrize("network", ["conv", "wide"])
def test_the_conditional_networks_are_no_smaller_than_the_plain_ones(network: str) -> None:
    shape = (1, 28, 28)
    plain, told = build_networks(network, shape, 16), conditional_networks(network, shape, 16, 2)
    for one, other in zip(plain, told, strict=True):
        sizes = [sum(parameter.numel() for parameter in module.parameters()) for module in (one, other)]
        assert sizes[0] < sizes[1] < 1.2 * sizes[0]


def test_the_cvae_is_trained_for_as_long_as_the_others_or_longer() -> None:
    for network in digits.NETWORKS:
        setup = digits.setup(network)
        assert setup.cvae_epochs is not None and setup.cvae_epochs >= setup.warmup_epochs + setup.epochs
        assert digits.setup(network, quick=True).cvae_epochs is None
    assert faces.setup().cvae_epochs is None and faces.setup().most_values > len(faces.setup().grid)
