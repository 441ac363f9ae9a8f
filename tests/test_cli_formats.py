"""The commands on every kind of storage, and on several processes."""

from pathlib import Path

import h5py
import numpy as np
import pandas as pd
import pytest
import zarr
from PIL import Image
from typer.testing import CliRunner

from gppvae import GPPVAE
from gppvae.cli import app
from gppvae.data.stored import ChunkReader, MapReader, SubsetReader, reader_of
from gppvae.data.subset import Subset
from processes import torchrun
from tiny import KERNEL, spots

FORMATS = ("npy", "h5", "zarr", "folder", "named")
QUICK = ["--network", "mlp", "--width", 8, "--latent-dim", 2, "--batch-size", 16, "--epochs", 2, "--quiet"]


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same images in every format: a.npy, a.h5, a.zarr, a/ sorted by name, b/ with names in the table."""
    folder = tmp_path_factory.mktemp("stored")
    images, table = spots()
    pixels = (255 * images).astype(np.uint8)
    np.save(folder / "a.npy", pixels)
    with h5py.File(folder / "a.h5", "w") as file:
        file.create_dataset("pictures", data=pixels, chunks=(7, 8, 8))
        file.create_dataset("other", data=np.zeros(3))
    array = zarr.open_array(str(folder / "a.zarr"), mode="w", shape=pixels.shape, chunks=(7, 8, 8), dtype=pixels.dtype)
    array[:] = pixels
    names = np.random.default_rng(0).permutation(len(pixels))
    for place in ("a", "b"):
        (folder / place).mkdir()
    for number, picture in enumerate(pixels):
        Image.fromarray(picture).save(folder / "a" / f"{number:03d}.png")
        Image.fromarray(picture).save(folder / "b" / f"spot {names[number]}.png")
    table.assign(file=[f"spot {name}.png" for name in names]).to_csv(folder / "spots.csv", index=False)
    table.to_csv(folder / "unnamed.csv", index=False)
    return folder


def data_of(folder: Path, kind: str) -> list[object]:
    where = {"npy": "a.npy", "h5": "a.h5:pictures", "zarr": "a.zarr", "folder": "a", "named": "b"}[kind]
    return ["--data", folder / where, *(["--image-column", "file"] if kind == "named" else [])]


def fit_words(folder: Path, kind: str, out: Path) -> list[object]:
    table = "unnamed.csv" if kind == "folder" else "spots.csv"
    words = ["fit", folder / table, *data_of(folder, kind), "--kernel", KERNEL, "--out", out]
    return [*words, "--validation-fraction", 0.2, "--no-report", *QUICK]


def succeed(*words: object) -> str:
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == 0, result.output + repr(result.exception)
    return result.stdout


@pytest.fixture(scope="module")
def model(stored: Path) -> GPPVAE:
    """What the .npy file gives."""
    succeed(*fit_words(stored, "npy", stored / "run"))
    return GPPVAE.load(stored / "run", device="cpu")


@pytest.mark.parametrize("kind", FORMATS[1:])
def test_fit_encode_and_predict_do_not_depend_on_the_storage(
    kind: str, stored: Path, model: GPPVAE, tmp_path: Path
) -> None:
    assert "trained on 48 samples of shape (1, 8, 8)" in succeed(*fit_words(stored, kind, tmp_path / "run"))
    wanted = pd.DataFrame({"spot": ["s1", "s4"], "angle": [12.0, 200.0]})
    wanted.to_csv(tmp_path / "wanted.csv", index=False)
    succeed("predict", tmp_path / "run", tmp_path / "wanted.csv", "--out", tmp_path / "predicted")
    np.testing.assert_array_equal(np.load(tmp_path / "predicted" / "mean.npy"), model.predict(wanted).mean)
    assert len(list((tmp_path / "predicted" / "images").glob("*.png"))) == 2
    words = ["--table", stored / "spots.csv"] if kind == "named" else []
    said = succeed("encode", tmp_path / "run", *data_of(stored, kind), "--out", tmp_path / "latents", *words)
    assert "60 samples in 2 latent dimensions" in said
    mean, std = model.encode(np.load(stored / "a.npy"), return_std=True)
    np.testing.assert_allclose(np.load(tmp_path / "latents" / "mean.npy"), mean, rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(np.load(tmp_path / "latents" / "std.npy"), std, rtol=1e-6)


def test_images_of_other_sizes_are_resized(stored: Path, tmp_path: Path) -> None:
    words = fit_words(stored, "folder", tmp_path / "run")
    assert "shape (1, 6, 5)" in succeed(*words, "--image-size", 6, 5)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--data", "a.npy", "--image-column", "file"], "a.npy, found a file"),
        (["--data", "nothing", "--image-column", "file"], "nothing, found no such file"),
        (["--data", "a", "--image-column", "file"], "column 'file' must name images of"),
        (["--data", "b", "--image-column", "name"], "a column 'name'"),
        (["--data", "a.h5"], "one data set of"),
    ],
)
def test_samples_that_are_not_there_are_one_sentence(words: list[str], sentence: str, stored: Path) -> None:
    words = [str(stored / word) if word.startswith(("a", "b")) else word for word in words]
    start = ["fit", str(stored / "spots.csv"), *words, "--kernel", KERNEL, "--out", str(stored / "none")]
    result = CliRunner().invoke(app, start)
    assert result.exit_code == 2 and sentence in result.stderr and not (stored / "none").exists()


def test_encode_needs_the_table_of_named_images(stored: Path, model: GPPVAE, tmp_path: Path) -> None:
    words = ["encode", stored / "run", *data_of(stored, "named"), "--out", tmp_path]
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == 2 and "expected --table together with --image-column" in result.stderr


@pytest.mark.parametrize("kind", ["npy", "h5"])
def test_a_part_is_read_as_the_whole_is(kind: str, stored: Path, rng: np.random.Generator) -> None:
    """Chunks and files, not one array element after the other."""
    with h5py.File(stored / "a.h5") as file:
        data = file["pictures"] if kind == "h5" else np.load(stored / "a.npy", mmap_mode="r")
        reader = reader_of(Subset(data, np.arange(0, 60, 3)))
        assert isinstance(reader, SubsetReader)
        assert isinstance(reader._whole, ChunkReader if kind == "h5" else MapReader)
        whole, picked = np.load(stored / "a.npy"), rng.integers(0, 20, 9)
        np.testing.assert_array_equal(reader.rows(picked), whole[::3][picked])
        np.testing.assert_array_equal(reader.block(4, 9), whole[::3][4:9])


def test_two_processes_do_what_one_does(stored: Path, model: GPPVAE, tmp_path: Path) -> None:
    done = torchrun("-m", "gppvae", *fit_words(stored, "h5", tmp_path / "run"), "--verbose")
    assert done.stdout.count("trained on 48 samples") == 1
    assert done.stderr.count("H = 36 features") == done.stderr.count("12 inducing points at its distinct values") == 1
    wanted = {"spot": ["s1", "s4"], "angle": [12.0, 200.0]}
    found = GPPVAE.load(tmp_path / "run", device="cpu").predict(wanted).mean
    np.testing.assert_allclose(found, model.predict(wanted).mean, rtol=1e-3, atol=1e-4)
