"""Rotated MNIST: the published split against a loop-written rebuild, known baselines and fixed checksums."""

from __future__ import annotations

import gzip
import hashlib
import os
import random
from pathlib import Path

import numpy as np
import pytest
from scipy import ndimage

from gppvae.data.digits import load_threes
from gppvae.data.image_set import ImageSet
from gppvae.data.rotated_digits import RotatedDigits, small_split
from gppvae.paper.rotated_mnist import data as split_module
from gppvae.paper.rotated_mnist.data import paper_split, published_split
from splits import assert_same, assert_structure, cells

# Fingerprints of images and tables: the published recipe on full MNIST; the paper split of the embedded threes, seed 0.
PUBLISHED = {
    "train": "2d430bc22dad84752ab298c08f8c15007155bf1fe2a60afd8a8bc5324414e935",
    "valid": "7c2ebbe149efc594fd074c0b1a4992b3abf9db2d41d014c6d5b19ebda34da738",
    "test": "c5ac94a0855fe6dfa626f79b1d21bd4630a6103a211c8c0f7863a818bcc33eab",
}
PAPER_SEED_0 = {
    "train": "a9f75792c0ea13facc3d5c4eb717bab420dd328c06877f4262ea12cd33f34065",
    "valid": "1df15373ee09e749f832be2ef9fcad94991717887f2c12152f004365493de40f",
    "test": "bc439d05b455da4a10c5cac7c7ea838d6f3900cfcff8afecfd4d98e1c2c586bf",
}


def fingerprint(part: ImageSet) -> str:
    """Return a SHA-256 of a part in steps of 1e-5.

    No pixel of the pinned sets lies nearer than 2e-12 to a rounding edge, so the last bits of a platform's
    arithmetic cannot change it.
    """
    columns = (
        part.images.astype(np.float64) * 1e5,
        part.table["digit"].to_numpy(),
        part.table["angle"].to_numpy() * 10,
    )
    return hashlib.sha256(b"".join(np.rint(c).astype("<i4").tobytes() for c in columns)).hexdigest()


def mse(images: np.ndarray, guess: np.ndarray | float) -> float:
    return float(((images - guess) ** 2).mean())


@pytest.fixture(scope="module")
def mnist_folder() -> Path:
    folder = Path(os.environ.get("GPPVAE_DATA", "")) / "mnist"
    if not (folder / "train-images-idx3-ubyte.gz").is_file():
        pytest.skip("needs the MNIST files in $GPPVAE_DATA/mnist")
    return folder


@pytest.fixture(scope="module")
def published(mnist_folder: Path) -> RotatedDigits:
    return published_split(mnist_folder, dtype=np.float64)


@pytest.fixture(scope="module")
def paper() -> RotatedDigits:
    return paper_split(seed=0, dtype=np.float64)


def test_published_split_has_the_published_shape(published: RotatedDigits) -> None:
    assert_structure(published, 400, 16)
    assert len(published.train.table) == 4050
    assert len(published.valid.table) == 640
    assert len(published.test.table) == 270
    assert published.held_out_angle == 157.5
    everything = np.concatenate([published.train.images, published.valid.images, published.test.images])
    assert everything.min() == pytest.approx(-0.26, abs=0.005)
    assert everything.max() == pytest.approx(1.24, abs=0.005)


def test_published_split_gives_the_known_trivial_baselines(published: RotatedDigits) -> None:
    test = published.test.images
    at_angle = (published.valid.table["angle"] == 157.5).to_numpy()
    assert at_angle.sum() == 40
    assert round(mse(test, 0.0), 4) == 0.1201
    assert round(mse(test, published.train.images.mean(0)), 4) == 0.0780
    assert round(mse(test, published.valid.images[at_angle].mean(0)), 4) == 0.0562


def test_published_split_equals_a_loop_written_rebuild(published: RotatedDigits, mnist_folder: Path) -> None:
    pixels = gzip.decompress((mnist_folder / "train-images-idx3-ubyte.gz").read_bytes())[16:]
    labels = gzip.decompress((mnist_folder / "train-labels-idx1-ubyte.gz").read_bytes())[8:]
    threes = [i for i in range(60000) if labels[i] == 3]
    angles = [22.5 * q for q in range(16)]

    state = random.getstate()
    random.seed(0)
    picked = random.sample(range(6131), 400)
    held_out = random.sample(angles, 1)[0]
    views = [(p, a) for p in range(360) for a in angles if a != held_out]
    train = [views[i] for i in random.sample(range(5400), 4050)]
    test = [(p, held_out) for p in random.sample(range(360), 270)]
    random.setstate(state)

    def image(p: int, angle: float) -> np.ndarray:
        start = threes[picked[p]] * 784
        flat = np.array(list(pixels[start : start + 784])) / 255
        return ndimage.rotate(flat.reshape(28, 28), angle, reshape=False)

    valid = [(p, a) for p in range(360, 400) for a in angles]
    for part, rows in ((published.train, train), (published.valid, valid), (published.test, test)):
        assert list(zip(part.table["digit"], part.table["angle"], strict=True)) == rows
        for n in range(0, len(rows), 9):
            np.testing.assert_allclose(part.images[n], image(*rows[n]), rtol=0, atol=1e-12)


@pytest.mark.parametrize("part", ["train", "valid", "test"])
def test_published_split_keeps_its_fingerprint(published: RotatedDigits, part: str) -> None:
    assert fingerprint(getattr(published, part)) == PUBLISHED[part]


def test_full_mnist_with_seed_0_is_the_published_split(published: RotatedDigits, mnist_folder: Path) -> None:
    assert_same(paper_split(0, "mnist", mnist_folder, dtype=np.float64), published)
    other = paper_split(1, "mnist", mnist_folder)
    assert_structure(other, 400, 16)
    assert cells(other.train) != cells(published.train)


def test_published_split_refuses_another_set_of_digits(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    few = (np.zeros((5, 28, 28), np.uint8), np.full(5, 3, np.uint8))
    monkeypatch.setattr(split_module, "load_mnist", lambda folder, split: few)
    with pytest.raises(ValueError, match="should hold 6131 threes, got 5"):
        published_split(tmp_path)


def test_missing_mnist_folder_is_named(tmp_path: Path) -> None:
    for make in (published_split, lambda folder: paper_split(0, "mnist", folder)):
        with pytest.raises(FileNotFoundError, match=r"nowhere.*download_mnist"):
            make(tmp_path / "nowhere")


def test_paper_split_has_the_counts_of_the_paper(paper: RotatedDigits) -> None:
    assert_structure(paper, 400, 16)
    assert (len(paper.train.table), len(paper.test.table), len(paper.valid.table)) == (4050, 270, 640)
    assert -0.3 < paper.train.images.min() < -0.1 and 1.1 < paper.train.images.max() < 1.3


@pytest.mark.parametrize("part", ["train", "valid", "test"])
def test_paper_split_keeps_its_fingerprint(paper: RotatedDigits, part: str) -> None:
    assert fingerprint(getattr(paper, part)) == PAPER_SEED_0[part]


def test_views_show_the_digit_and_angle_that_the_table_says(paper: RotatedDigits) -> None:
    """Undo each rotation: the views of a digit then all look like the same one of the 500 threes."""
    threes = load_threes().reshape(500, 784)
    found: dict[int, set[int]] = {}
    for part in (paper.train, paper.valid, paper.test):
        for n in range(0, len(part.table), 11):
            digit, angle = part.table.iloc[n]
            upright = ndimage.rotate(part.images[n], -angle, reshape=False).ravel()
            nearest = int(((threes - upright) ** 2).sum(1).argmin())
            found.setdefault(int(digit), set()).add(nearest)
    assert len(found) > 250
    assert all(len(matches) == 1 for matches in found.values())
    assert len({next(iter(matches)) for matches in found.values()}) == len(found)


def test_paper_split_depends_on_the_seed_and_on_nothing_else(paper: RotatedDigits) -> None:
    random.seed(99)
    before = random.getstate()
    again = paper_split(np.int64(0), dtype=np.float64)
    assert random.getstate() == before
    assert_same(again, paper)
    others = [paper_split(seed) for seed in (1, 2)]
    for other in others:
        assert_structure(other, 400, 16)
        assert cells(other.train) != cells(paper.train)
    assert len({data.held_out_angle for data in [paper, *others]}) > 1


def test_images_are_float32_unless_asked(paper: RotatedDigits) -> None:
    single = paper_split(0)
    assert single.train.images.dtype == np.float32
    for x, y in ((single.train, paper.train), (single.valid, paper.valid), (single.test, paper.test)):
        np.testing.assert_array_equal(x.images, y.images.astype(np.float32))


def test_small_split_of_full_size_is_the_paper_split(paper: RotatedDigits) -> None:
    assert_same(small_split(400, 16, 0, dtype=np.float64), paper)


def test_bad_arguments_are_refused_in_one_sentence() -> None:
    with pytest.raises(ValueError, match="got 9"):
        paper_split(n_digits=9)
    with pytest.raises(ValueError, match='source must be "embedded" or "mnist"'):
        paper_split(source="torchvision")  # type: ignore[arg-type]
