"""What must hold for every split of rotated digits."""

from __future__ import annotations

import numpy as np
import pytest

from gppvae.data.image_set import ImageSet
from gppvae.data.rotated_digits import RotatedDigits


def cells(part: ImageSet) -> set[tuple[int, float]]:
    return set(zip(part.table["digit"], part.table["angle"], strict=True))


def assert_same(a: RotatedDigits, b: RotatedDigits) -> None:
    for x, y in ((a.train, b.train), (a.valid, b.valid), (a.test, b.test)):
        np.testing.assert_array_equal(x.images, y.images)
        assert x.table.equals(y.table)
    assert a.angles == b.angles and a.held_out_angle == b.held_out_angle


def assert_structure(data: RotatedDigits, n_digits: int, n_angles: int) -> None:
    """Check what must hold for every split, whatever was drawn."""
    n_valid = n_digits // 10
    n_known = n_digits - n_valid
    assert data.angles == pytest.approx([360 * q / n_angles for q in range(n_angles)])
    assert data.held_out_angle in data.angles
    assert len(data.train.table) == 3 * n_known * (n_angles - 1) // 4
    assert len(data.test.table) == 3 * n_known // 4
    for part in (data.train, data.valid, data.test):
        assert list(part.table.columns) == ["digit", "angle"]
        assert part.table["digit"].dtype == np.int64 and part.table["angle"].dtype == np.float64
        assert part.images.shape == (len(part.table), 28, 28)
        assert len(cells(part)) == len(part.table)  # no view twice

    wanted = [(p, a) for p in range(n_known, n_digits) for a in data.angles]
    assert list(zip(data.valid.table["digit"], data.valid.table["angle"], strict=True)) == wanted
    assert set(data.train.table["digit"]) <= set(range(n_known))
    assert set(data.test.table["digit"]) <= set(data.train.table["digit"])
    assert set(data.test.table["angle"]) == {data.held_out_angle}
    assert data.held_out_angle not in set(data.train.table["angle"])
