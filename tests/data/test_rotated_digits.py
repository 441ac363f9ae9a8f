"""Rotated digits: rotation against one image at a time, and small splits of any size."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import ndimage

from gppvae.data.rotated_digits import rotate, small_split
from splits import assert_same, assert_structure


def test_rotate_equals_one_image_at_a_time() -> None:
    images = np.random.default_rng(3).random((3, 9, 12))
    angles = [0.0, 22.5, 90.0, 157.5, -30.0, 400.0]
    views = rotate(images, angles)
    assert views.shape == (3, 6, 9, 12) and views.dtype == np.float64
    for p in range(3):
        for q, angle in enumerate(angles):
            alone = ndimage.rotate(images[p], angle, reshape=False)
            np.testing.assert_allclose(views[p, q], alone, rtol=0, atol=1e-12)


def test_rotate_turns_the_way_numpy_does_and_centres() -> None:
    image = np.random.default_rng(4).random((1, 6, 6))
    views = rotate(image, [0, 90, 180, 270])
    for q in range(4):
        np.testing.assert_allclose(views[0, q], np.rot90(image[0], q), rtol=0, atol=1e-12)


def test_rotate_takes_a_stack_only() -> None:
    with pytest.raises(ValueError, match=r"\(number, height, width\), got \(28, 28\)"):
        rotate(np.zeros((28, 28)), [0.0])


@pytest.mark.parametrize(("n_digits", "n_angles"), [(10, 2), (13, 2), (19, 3), (40, 5), (100, 8)])
@pytest.mark.parametrize("seed", range(3))
def test_small_split_keeps_the_structure(n_digits: int, n_angles: int, seed: int) -> None:
    assert_structure(small_split(n_digits, n_angles, seed), n_digits, n_angles)


def test_small_split_holds_out_the_angle_it_is_told() -> None:
    drawn = small_split(20, 8, seed=3)
    for angle in drawn.angles:
        told = small_split(20, 8, seed=3, held_out_angle=angle)
        assert told.held_out_angle == angle
        assert_structure(told, 20, 8)
        np.testing.assert_array_equal(told.valid.images, drawn.valid.images)
    assert_same(small_split(20, 8, seed=3, held_out_angle=drawn.held_out_angle), drawn)


def test_bad_arguments_are_refused_in_one_sentence() -> None:
    with pytest.raises(ValueError, match="n_digits must be from 10 to 500 for this source, got 501"):
        small_split(501, 4)
    with pytest.raises(ValueError, match="got 9"):
        small_split(9, 4)
    with pytest.raises(ValueError, match="n_angles must be at least 2"):
        small_split(20, 1)
    with pytest.raises(ValueError, match="held_out_angle must be one of 0, 90, 180, 270, got 45"):
        small_split(20, 4, held_out_angle=45)
    with pytest.raises(ValueError, match="seed must not be negative"):
        small_split(20, 4, seed=-1)
    with pytest.raises(TypeError, match="seed must be a whole number, got None"):
        small_split(20, 4, seed=None)  # type: ignore[arg-type]
