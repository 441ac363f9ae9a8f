"""The threes inside the package: pinned by checksum, and against MNIST itself where that is at hand."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import numpy as np
import pytest

from gppvae.data.digits import load_threes
from gppvae.paper.mnist import first_of_each, load_mnist

PIXELS = "730fcd2c7fbb8336570fd56c5b59aa82f425478b95ba10a25ecbdcdd4b729827"  # SHA-256 of the 500 images as bytes


def test_the_threes_are_pinned() -> None:
    threes = load_threes()
    assert threes.shape == (500, 28, 28) and threes.dtype == np.float64
    pixels = np.rint(threes * 255.0).astype(np.uint8)
    np.testing.assert_array_equal(threes, pixels / 255.0)
    assert hashlib.sha256(pixels.tobytes()).hexdigest() == PIXELS


MNIST = Path(os.environ.get("GPPVAE_DATA", "nowhere")) / "mnist"


@pytest.mark.skipif(not MNIST.is_dir(), reason="GPPVAE_DATA names no folder with mnist/, nothing to compare")
def test_the_threes_are_the_first_of_mnist() -> None:
    images, labels = load_mnist(MNIST)
    np.testing.assert_array_equal(load_threes(), images[labels == 3][:500] / 255.0)


@pytest.mark.skipif(not MNIST.is_dir(), reason="GPPVAE_DATA names no folder with mnist/, nothing to pick from")
def test_the_first_of_each_digit() -> None:
    images, labels = first_of_each(500, MNIST)
    assert labels.tolist() == [digit for digit in range(10) for _ in range(500)]
    np.testing.assert_array_equal(images[labels == 3], load_threes())
