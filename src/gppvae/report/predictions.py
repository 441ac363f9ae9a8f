"""Predictions as a folder: arrays, the rows they belong to, and pictures. It is written atomically."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np

from gppvae.data.arrays import from_input_layout
from gppvae.data.atomic import WriteError, part_of, remove_leftovers, write_error
from gppvae.estimator import Prediction
from gppvae.report.figures import to_uint8
from gppvae.report.images import contact_sheet, is_image, png_bytes, shade_range, to_pictures
from gppvae.training.folder import RunFolder

SHEET_ROWS = 400


def check_free(folder: str | os.PathLike[str]) -> Path:
    """The folder, if it can be made and is empty."""
    path = Path(folder)
    if path.is_dir() and any(path.iterdir()):
        raise ValueError(f"{path} already holds predictions or other files; choose another folder or remove it")
    RunFolder(path).check_writable()
    return path


def write_predictions(
    folder: str | os.PathLike[str],
    predict: Callable[[Path], Prediction],
    rows_csv: bytes,
    images: bool = True,
    layout: str = "first",
) -> list[str]:
    """Write mean.npy, std.npy (when drawn), rows.csv and, for images, a PNG per row and one contact sheet.

    Args:
        folder: must be free (see check_free).
        predict: writes mean.npy and std.npy into the folder it is given and returns them, as GPPVAE.predict does; they
            may be larger than memory.
        rows_csv: the table of rows, copied as it is.  images: whether to draw pictures.
        layout: of the predictions (GPPVAE.layout_).

    Returns:
        Names of what is in the folder now.
    """
    target = check_free(folder)
    work = part_of(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    remove_leftovers(target)
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    try:
        (work / "rows.csv").write_bytes(rows_csv)
        mean = from_input_layout(predict(work).mean, layout)
        if images and is_image(mean.shape[1:]) and len(mean):
            _draw(work, mean)
        if target.exists():
            target.rmdir()
        os.replace(work, target)
    except WriteError:
        raise
    except OSError as error:
        raise write_error(error, target, "no predictions were left") from error
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return sorted(path.name for path in target.iterdir())


def _draw(folder: Path, samples: np.ndarray) -> None:
    """A picture of each sample, and a contact sheet of the first ones, which set the range of shades."""
    first = to_pictures(samples[:SHEET_ROWS])
    shades = shade_range(samples[:SHEET_ROWS])
    (folder / "images").mkdir()
    digits = max(4, len(str(len(samples) - 1)))
    for number in range(len(samples)):
        picture = to_uint8(to_pictures(samples[number]), *shades)
        (folder / "images" / f"{number:0{digits}d}.png").write_bytes(png_bytes(picture))
    (folder / "sheet.png").write_bytes(png_bytes(contact_sheet(to_uint8(first, *shades))))
