"""Baselines against loops over rows."""

import numpy as np
import pandas as pd
import pytest

from gppvae.estimator.simple_answers import copy_nearest_view, mean_image, mean_of_nearest_view, view_distance


@pytest.fixture
def data(rng: np.random.Generator) -> tuple[np.ndarray, pd.DataFrame, pd.DataFrame]:
    table = pd.DataFrame(
        {"name": rng.choice(["a", "b", "c"], 30), "angle": rng.choice([0.0, 40.0, 100.0, 190.0, 330.0], 30)}
    )
    wanted = pd.DataFrame({"name": ["a", "b", "c", "a"], "angle": [350.0, 120.0, 260.5, 15.0]})
    return rng.standard_normal((30, 4, 5)), table, wanted


def circle(a: float, b: float, period: float) -> float:
    """Distance on a circle by trying whole turns."""
    return min(abs(a - b + turns * period) for turns in range(-3, 4))


def test_distances_go_around_the_circle(rng: np.random.Generator) -> None:
    a, b = rng.uniform(-400, 400, 20), rng.uniform(-400, 400, 30)
    expected = [[circle(x, y, 360.0) for y in b] for x in a]
    np.testing.assert_allclose(view_distance(a, b, 360.0), expected, atol=1e-9)
    np.testing.assert_allclose(view_distance(a, b), [[abs(x - y) for y in b] for x in a], atol=1e-12)
    assert view_distance(np.array([359.0]), np.array([1.0]), 360.0)[0, 0] == pytest.approx(2.0)


@pytest.mark.parametrize("period", [None, 360.0])
def test_the_copy_is_the_nearest_view_of_the_same_object(
    data: tuple[np.ndarray, pd.DataFrame, pd.DataFrame], period: float | None
) -> None:
    images, table, wanted = data
    found = copy_nearest_view(images, table, wanted, "name", "angle", period)
    for k, (name, angle) in enumerate(zip(wanted["name"], wanted["angle"], strict=True)):
        best, best_distance = -1, np.inf
        for n, (other, view) in enumerate(zip(table["name"], table["angle"], strict=True)):
            distance = abs(angle - view) if period is None else circle(angle, view, period)
            if other == name and distance < best_distance - 1e-9:
                best, best_distance = n, distance
        np.testing.assert_array_equal(found[k], images[best])


def test_the_circle_matters_near_its_seam() -> None:
    table, wanted = {"name": ["a", "a"], "angle": [0.0, 300.0]}, {"name": ["a"], "angle": [350.0]}
    images = np.array([[1.0], [2.0]])
    assert copy_nearest_view(images, table, wanted, "name", "angle", 360.0)[0, 0] == 1.0
    assert copy_nearest_view(images, table, wanted, "name", "angle")[0, 0] == 2.0


def test_an_object_never_seen_has_no_copy() -> None:
    with pytest.raises(ValueError, match="a training sample of every wanted name, got none of 'z'"):
        copy_nearest_view(
            np.zeros((1, 2)), {"name": ["a"], "angle": [0.0]}, {"name": ["z"], "angle": [0.0]}, "name", "angle"
        )


def test_the_mean_image_is_the_same_for_every_row(data: tuple[np.ndarray, pd.DataFrame, pd.DataFrame]) -> None:
    images, _, _ = data
    expected = sum(images[n] for n in range(len(images))) / len(images)
    np.testing.assert_allclose(mean_image(images, 3), [expected] * 3, atol=1e-12)


def test_the_mean_of_a_view_is_over_all_objects_and_both_sides_of_a_tie(
    data: tuple[np.ndarray, pd.DataFrame, pd.DataFrame],
) -> None:
    images, table, _ = data
    found = mean_of_nearest_view(images, table, {"angle": [100.0, 350.0, 20.0]}, "angle", 360.0)
    for k, views in enumerate([{100.0}, {0.0}, {0.0, 40.0}]):  # seen, nearest around the circle, a tie
        rows = [images[n] for n, view in enumerate(table["angle"]) if view in views]
        np.testing.assert_allclose(found[k], sum(rows) / len(rows), atol=1e-12)
