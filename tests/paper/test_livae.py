"""Linear interpolation between observed views, on a circle and on a line."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gppvae.paper.livae import interpolate_latents, neighbours


def test_the_two_nearest_views_on_either_side() -> None:
    observed = np.array([180.0, 90.0, 0.0, 157.5])
    assert neighbours(112.5, observed, 360.0) == (1, 3, pytest.approx(22.5 / 67.5))
    assert neighbours(90.0, observed, 360.0) == (1, 1, 0.0)


def test_the_circle_closes() -> None:
    observed = np.array([337.5, 45.0])
    assert neighbours(0.0, observed, 360.0) == (0, 1, pytest.approx(22.5 / 67.5))
    assert neighbours(200.0, observed, 360.0) == (1, 0, pytest.approx(155.0 / 292.5))


def test_beyond_the_ends_of_a_line_the_last_view_is_repeated() -> None:
    observed = np.array([10.0, 20.0])
    assert neighbours(5.0, observed, None) == (0, 0, 0.0)
    assert neighbours(25.0, observed, None) == (1, 1, 0.0)
    assert neighbours(17.5, observed, None) == (0, 1, pytest.approx(0.75))


def test_one_view_is_copied() -> None:
    assert neighbours(100.0, np.array([40.0]), 360.0)[:2] == (0, 0)


@given(
    views=st.lists(st.integers(0, 15), min_size=2, max_size=15, unique=True),
    wanted=st.integers(0, 15),
)
def test_neighbours_against_a_walk_around_the_circle(views: list[int], wanted: int) -> None:
    """Oracle: step from the wanted view in both directions until an observed one is met."""
    down = next(step for step in range(16) if (wanted - step) % 16 in views)
    up = next(step for step in range(16) if (wanted + step) % 16 in views)
    low, high, t = neighbours(22.5 * wanted, 22.5 * np.array(views), 360.0)
    assert views[low] == (wanted - down) % 16
    if down == 0:
        assert (high, t) == (low, 0.0)
    else:
        assert views[high] == (wanted + up) % 16
        assert t == pytest.approx(down / (down + up))


def test_latents_between_views_of_the_same_object_only() -> None:
    mean = np.array([[0.0], [4.0], [100.0], [8.0]])
    var = np.array([[1.0], [2.0], [50.0], [3.0]])
    objects, views = np.array(["a", "a", "b", "a"]), np.array([0.0, 90.0, 45.0, 180.0])
    wanted = np.array(["a", "a", "b"]), np.array([22.5, 90.0, 10.0])
    centre, spread = interpolate_latents(mean, var, objects, views, *wanted, 360.0)
    np.testing.assert_allclose(centre, [[1.0], [4.0], [100.0]])
    np.testing.assert_allclose(spread, [[0.75**2 * 1.0 + 0.25**2 * 2.0], [2.0], [50.0]])


def test_objects_without_views_are_an_error() -> None:
    one = np.zeros((1, 2))
    with pytest.raises(ValueError, match="got none of 'c'"):
        interpolate_latents(one, one, np.array(["a"]), np.zeros(1), np.array(["c"]), np.zeros(1))
    with pytest.raises(ValueError, match="at least one observed view"):
        neighbours(0.0, np.array([]), None)
