"""Image files as samples: grey and colour, resized when asked, clear words when one is not what it should be."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

from gppvae.data.arrays import Samples
from gppvae.data.images import ImageFiles
from gppvae.data.open import open_samples

GREY = np.random.default_rng(0).integers(0, 255, (5, 6, 4), dtype=np.uint8)
COLOUR = np.random.default_rng(1).integers(0, 255, (3, 6, 4, 3), dtype=np.uint8)


def write(folder: Path, pictures: np.ndarray) -> list[Path]:
    paths = [folder / f"{number}.png" for number in range(len(pictures))]
    for path, picture in zip(paths, pictures, strict=True):
        Image.fromarray(picture).save(path)
    return paths


@pytest.mark.parametrize("kind", [list, np.array, lambda paths: pd.Series([str(path) for path in paths])])
def test_a_list_or_column_of_paths_is_an_array_of_images(kind: type, tmp_path: Path) -> None:
    samples = Samples(kind(write(tmp_path, GREY)))
    assert len(samples) == 5 and samples.shape == (1, 6, 4) and not samples.in_memory
    y, _ = samples.read(torch.tensor([3, 0, 3]))
    np.testing.assert_allclose(y[:, 0].numpy(), GREY[[3, 0, 3]] / 255.0, rtol=1e-6)
    assert samples.check() == (pytest.approx(GREY.min() / 255), pytest.approx(GREY.max() / 255))
    samples.keep_in_memory()
    np.testing.assert_allclose(samples.read(torch.arange(5))[0][:, 0].numpy(), GREY / 255.0, rtol=1e-6)


@pytest.mark.parametrize("channels", ["first", "last"])
def test_colours_are_channels_first_whatever_arrays_are(channels: str, tmp_path: Path) -> None:
    samples = Samples(write(tmp_path, COLOUR), channels=channels)
    assert samples.shape == (3, 6, 4)
    y, _ = samples.read(torch.arange(3))
    np.testing.assert_allclose(y.numpy(), COLOUR.transpose(0, 3, 1, 2) / 255.0, rtol=1e-6)


def test_images_are_resized_when_asked(tmp_path: Path) -> None:
    paths = write(tmp_path, GREY)
    Image.fromarray(np.full((9, 9), 77, dtype=np.uint8)).save(paths[1])
    with pytest.raises(ValueError, match=r"images of 6 x 4 pixels, got 9 x 9 in .*1\.png; pass ImageFiles"):
        Samples(paths).read(torch.tensor([1]))
    files = ImageFiles(paths, size=(3, 2))
    assert files.shape == (5, 3, 2) and (files[1:2] == 77).all()


def test_colours_stay_unless_told(tmp_path: Path) -> None:
    paths = write(tmp_path, COLOUR)
    assert ImageFiles(paths).shape == (3, 3, 6, 4)
    assert ImageFiles(paths, colour=False).shape == (3, 6, 4)
    want = np.asarray(Image.fromarray(COLOUR[2]).convert("L"))
    np.testing.assert_array_equal(ImageFiles(paths, colour=False)[np.array([2])][0], want)


def test_a_folder_is_sorted_by_name(tmp_path: Path) -> None:
    write(tmp_path, GREY)
    (tmp_path / "notes.txt").write_text("no image")
    files = open_samples(tmp_path)
    np.testing.assert_array_equal(files[:], GREY)
    assert open_samples(tmp_path, image_size=(2, 2)).shape == (5, 2, 2)


def test_files_that_are_no_images_are_named(tmp_path: Path) -> None:
    paths = write(tmp_path, GREY)
    with pytest.raises(FileNotFoundError, match=r"image at .*gone\.png, found no such file"):
        ImageFiles([*paths, tmp_path / "gone.png"])[np.array([5])]
    (tmp_path / "2.png").write_text("text")
    with pytest.raises(ValueError, match=r"expected an image in .*2\.png"):
        ImageFiles(paths)[2:3]
    whole = paths[3].read_bytes()
    paths[3].write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=r"whole image in .*3\.png"):
        ImageFiles(paths[3:])[:1]
    with pytest.raises(ValueError, match="at least one image"):
        ImageFiles([])
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"image files in .*empty"):
        open_samples(tmp_path / "empty")
