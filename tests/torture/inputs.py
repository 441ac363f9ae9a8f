"""Arrays, images, kernel texts, settings and command lines that are changed at random, and what may come of them."""

import io
import math
import shutil
import warnings
from dataclasses import fields
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch
import zarr
from PIL import Image
from typer.testing import CliRunner

from gppvae import GPPVAE
from gppvae.cli import app
from gppvae.data.arrays import Samples
from gppvae.data.open import open_samples
from gppvae.kernels import parse_kernel
from gppvae.training.loop import TrainingError
from tiny import spots
from torture.files import own_error

WORDS = [
    "RBF", "Matern", "Periodic", "RationalQuadratic", "Linear", "Constant", "Learned", "FreeForm", "Categorical", "RFB",
    "angle", "spot", "'a b'", "8", "0", "-1", "1e-300", "1e300", "nan", "10**9", "9" * 400, "True", "false", "None",
    "abc", "fixed=", "dim=", "lengthscale=", "period=", "basis=", "max_inducing=", "(", ")", "(", ")", ",", ",", "+",
    "*", "*", "**", "-", " ", "\n", "\\", "\0", "\ud800", "__class__", "lambda", "[", "]", ":=", "{}", "#", "'", '"',
]  # fmt: skip
VALUES: list[Any] = [
    None, True, False, -1, 0, 1, 2, 7, 10**12, 10**400, -0.5, 0.5, 1e-300, 1e300, math.nan, math.inf, "", "x", "auto",
    "mlp", "first", "\ud800", b"x", [], [1], ("RBF(angle)", 2), [("RBF(angle)", 2)], [(None, 1)], {}, {"a": 1},
    object(), np.float32(0.1), np.int64(2), np.zeros(2), "gaussian", {"name": "gaussian", "pixel_var": math.nan},
    "Linear(angle)",
]  # fmt: skip


def changed_bytes(content: bytes, rng: np.random.Generator) -> bytes:
    """The content with bytes changed, cut out, doubled or put in, mostly near the start, where headers are."""
    found = bytearray(content)
    for _ in range(int(rng.integers(1, 5))):
        place = int(min(rng.exponential(60.0), len(found) - 1)) if rng.random() < 0.7 else int(rng.integers(len(found)))
        action = rng.integers(4)
        if action == 0:
            found[place] = int(rng.integers(256))
        elif action == 1:
            del found[place : place + int(rng.integers(1, 40))]
        elif action == 2:
            found[place:place] = found[place : place + int(rng.integers(1, 20))]
        else:
            found[place:place] = bytes(rng.integers(0, 256, int(rng.integers(1, 9)), dtype=np.uint8))
        found = found or bytearray(b"\0")
    return bytes(found)


def check_array(folder: Path, rng: np.random.Generator) -> str:
    """A .npy file: refused, or numbers that are all finite."""
    out = io.BytesIO()
    kind = ["<f4", "<f8", "u1", "<u2", "<i4", ">f4"][int(rng.integers(6))]
    np.save(out, np.arange(3 * 4 * 4).reshape(3, 4, 4).astype(kind))
    (folder / "a.npy").write_bytes(changed_bytes(out.getvalue(), rng))
    return _read(lambda: open_samples(folder / "a.npy"))


def check_zarr(folder: Path, rng: np.random.Generator) -> str:
    """A Zarr array with a changed chunk or changed metadata: refused, or numbers that are all finite."""
    place = folder / "a.zarr"
    shutil.rmtree(place, ignore_errors=True)
    kind = ["<f4", "<f8", "u1", "<u2"][int(rng.integers(4))]
    form = int(rng.integers(2, 4))
    stored = zarr.create_array(store=str(place), shape=(6, 4, 4), chunks=(2, 4, 4), dtype=kind, zarr_format=form)
    stored[:] = np.arange(1, 97).reshape(6, 4, 4)
    files = sorted(path for path in place.rglob("*") if path.is_file())
    about = [path for path in files if path.name in ("zarr.json", ".zarray")]
    pool = about if rng.random() < 0.5 else files
    file = pool[int(rng.integers(len(pool)))]
    file.write_bytes(changed_bytes(file.read_bytes(), rng))
    return _read(lambda: open_samples(place))


def check_hdf5(folder: Path, rng: np.random.Generator) -> str:
    """An HDF5 file with some bytes changed or its end missing: refused, or numbers that are all finite."""
    place = folder / "a.h5"
    with h5py.File(place, "w") as content:
        more: dict[str, Any] = {"chunks": (2, 4, 4), "fletcher32": True} if rng.random() < 0.5 else {}
        content.create_dataset("images", data=np.arange(96, dtype=np.float32).reshape(6, 4, 4), **more)
    found = bytearray(place.read_bytes())
    for _ in range(int(rng.integers(1, 4))):
        found[int(rng.integers(len(found)))] = int(rng.integers(256))
    end = int(rng.integers(len(found))) if rng.random() < 0.2 else len(found)
    place.write_bytes(bytes(found[:end]))
    return _read(lambda: open_samples(f"{place}:images"))


def check_image(folder: Path, rng: np.random.Generator) -> str:
    """A folder of one picture: refused, or pixels."""
    out = io.BytesIO()
    mode = ["L", "RGB", "RGBA", "P", "I;16", "1"][int(rng.integers(6))]
    form = ["PNG", "PNG", "TIFF", "GIF", "BMP", "JPEG", "WEBP"][int(rng.integers(7))]
    pixels = rng.integers(0, 256, (9, 8), dtype=np.uint8)
    picture = Image.fromarray(pixels.astype(np.uint16)) if mode == "I;16" else Image.fromarray(pixels).convert(mode)
    try:
        picture.save(out, form)
    except OSError:  # a mode that the format does not have
        Image.fromarray(pixels).save(out, form)
    (folder / "one").mkdir(exist_ok=True)
    (folder / "one" / f"a.{'png' if form == 'PNG' else 'tif'}").write_bytes(changed_bytes(out.getvalue(), rng))
    try:
        return _read(lambda: open_samples(folder / "one"))
    finally:
        for path in (folder / "one").iterdir():
            path.unlink()


def _read(opened: Any) -> str:
    try:
        samples = Samples(opened())
        samples.check()
        y, _ = samples.read(torch.arange(min(len(samples), 3)))
    except (ValueError, TypeError, OSError) as error:
        assert own_error(error), repr(error)
        return "refused"
    assert bool(y.isfinite().all())
    return "finite"


def check_kernel(rng: np.random.Generator) -> str:
    """A kernel text: refused, or a kernel whose text is read as the same."""
    count = int(rng.integers(1, 16))
    text = "".join(WORDS[int(n)] for n in rng.integers(0, len(WORDS), count))
    if rng.random() < 0.5:
        name = WORDS[int(rng.integers(9))]
        values = ", ".join(WORDS[int(n)] for n in rng.integers(9, len(WORDS), int(rng.integers(0, 4))))
        text = f"{name}({values})" if rng.random() < 0.5 else f"{name}(angle) * {name}({values}) + {text}"
    try:
        kernel = parse_kernel(text)
    except (ValueError, TypeError) as error:
        assert own_error(error), (text, repr(error))
        return "refused"
    assert parse_kernel(kernel.text()).text() == kernel.text(), text
    return "finite"


def check_settings(rng: np.random.Generator) -> str:
    """Constructor arguments of any type: refused, or a model that answers with finite numbers."""
    images, table = spots(2, 3)
    settings: dict[str, Any] = {"kernel": "Linear(angle)", "latent_dim": 2, "network": "mlp", "width": 4, "epochs": 1}
    settings |= {"warmup_epochs": 1, "gp_epochs": 1}
    names = [item.name for item in fields(GPPVAE)]
    for _ in range(int(rng.integers(1, 4))):
        settings[names[int(rng.integers(len(names)))]] = VALUES[int(rng.integers(len(VALUES)))]
    if any(isinstance(settings.get(name), (int, np.integer)) and settings[name] > 100 for name in ("latent_dim",)):
        settings["latent_dim"] = 5000
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = GPPVAE(**settings).fit(images, table, progress=False)
            answer = model.predict(table).mean
    except (ValueError, TypeError, TrainingError) as error:
        assert own_error(error), (settings, repr(error))
        return "refused"
    assert np.isfinite(answer).all(), settings
    return "finite"


def write_data(folder: Path) -> None:
    """What the command lines below name."""
    images, table = spots(2, 3)
    np.save(folder / "y.npy", images)
    table.to_csv(folder / "t.csv", index=False)
    (folder / "b.csv").write_bytes(b"\x89PNG\0")
    (folder / "photos").mkdir(exist_ok=True)


def check_command(folder: Path, rng: np.random.Generator, number: int) -> str:
    """A command line: exit code 0, 2 or 3 and never a trace; 1 would be a fault of our own."""
    names = ["t.csv", "y.npy", "b.csv", "photos", "none", "", "y.npy:x", "/dev/null", "\x01", "run", "."]
    options = ["--data", "--kernel", "--out", "--epochs", "--lr", "--latent-dim", "--device", "--image-size", "--seed"]
    options += [
        "--pixel-var",
        "--channels",
        "--batch-size",
        "--n-samples",
        "--table",
        "--image-column",
        "--quiet",
        "-h",
    ]
    values = ["1", "0", "-1", "nan", "1e9", "RBF(angle)", "Learned(spot, 2): 2", "none: 1", "cuda", "abc", "10" * 30]
    pick = lambda things: things[int(rng.integers(len(things)))]  # noqa: E731
    place = lambda name: str(folder / name) if name and not name.startswith("/") else name  # noqa: E731
    command = pick(["fit", "fit", "predict", "encode", "info", "report", "fti", ""])
    words = [command, *(place(pick(names)) for _ in range(int(rng.integers(0, 3))))]
    if command == "fit" and rng.random() < 0.6:
        words = [
            "fit",
            place("t.csv"),
            "--data",
            place(pick(["y.npy", "photos", "b.csv"])),
            "--kernel",
            "Linear(angle)",
        ]
        words += ["--out", place(f"out{number}"), "--epochs", "1", "--warmup-epochs", "1", "--gp-epochs", "1"]
        words += ["--no-report", "--quiet", "--network", "mlp", "--width", "4"]
    for _ in range(int(rng.integers(0, 4))):
        option = pick(options)
        words += (
            [option]
            if option in ("--quiet", "-h")
            else [option, place(pick(names)) if rng.random() < 0.3 else pick(values)]
        )
    if any(word.isdigit() and len(word) > 8 for word in words) and "--epochs" in words:
        words = [word for word in words if not (word.isdigit() and len(word) > 8)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = CliRunner().invoke(app, words)
    assert result.exit_code in (0, 2, 3), (words, result.exit_code, result.stderr[-300:], repr(result.exception))
    assert "Traceback" not in result.output, words
    return "finite" if result.exit_code == 0 else "refused"
