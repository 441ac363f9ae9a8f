"""Output of a model as a folder of arrays, tables and pictures, written atomically."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from gppvae.data.anndata_files import H5AD, write_h5ad
from gppvae.data.arrays import from_input_layout
from gppvae.data.atomic import WriteError, part_of, remove_leftovers, write_error
from gppvae.data.files import PARQUET
from gppvae.data.png import png_bytes
from gppvae.data.table import id_text
from gppvae.estimator import GPPVAE, Prediction
from gppvae.estimator.outputs import Outputs
from gppvae.report.images import contact_sheet, is_image, shade_range, to_pictures, to_uint8
from gppvae.training.folder import RunFolder

SHEET_ROWS = 400  # pictures on the contact sheet
CSV_ROWS = 1000  # formatted at a time
MAX_NAME = 100  # characters of the name of a picture
MAX_BYTES = 200  # of it; file systems allow 255


def check_free(folder: str | os.PathLike[str]) -> Path:
    """The folder, if it is empty or can be created; else ValueError."""
    path = Path(folder)
    if path.is_dir() and any(path.iterdir()):
        raise ValueError(f"{path} already holds predictions or other files; choose another folder or remove it")
    RunFolder(path).check_writable()
    return path


def write_answers(
    folder: str | os.PathLike[str],
    ask: Callable[[Path], Any],
    model: GPPVAE,
    table: pd.DataFrame | None,
    rows_file: Path | None,
    images: bool = True,
    level: float | None = None,
) -> list[str]:
    """Write mean.npy, std.npy (if any) and rows.csv; for images also a PNG per row and a contact sheet.

    Named values are also written as mean.csv and std.csv, with the columns of their rows, or as predictions.h5ad if the
    rows came from an .h5ad file; their draws as draws.csv. Ends of intervals are written as low and high, likewise.

    Args:
        folder: must be free (see check_free).
        ask: writes mean.npy and std.npy, which may be larger than memory, into the given folder and returns a
            Prediction, or the mean alone.
        model: the model.  table: the rows, or None.  rows_file: of the rows; a text file is copied unchanged.
        images: whether to write pictures.  level: of the intervals, if `ask` returns a Prediction with a std.

    Returns:
        Names of the files in the folder.
    """

    def fill(work: Path) -> None:
        found = ask(work)
        # An ndarray has methods called mean and std.
        parts = {"mean": found} if isinstance(found, np.ndarray) else {"mean": found.mean, "std": found.std}
        arrays = {name: part for name, part in parts.items() if part is not None}
        if level is not None:
            arrays |= _write_interval(work, found, level)
        _write_named(work, arrays, model.sample_names_, table, rows_file)
        if table is not None and getattr(found, "draws", None) is not None:
            _write_draws(work, found.draws, model.sample_names_, table)
        pictures = from_input_layout(arrays["mean"], model.layout_)
        if images and is_image(pictures.shape[1:]) and len(pictures):
            _draw(work, pictures, _row_names(table, model, len(pictures)))

    return _written(folder, fill, table, rows_file)


def write_draws(
    folder: str | os.PathLike[str],
    draw: Callable[[], np.ndarray],
    model: GPPVAE,
    table: pd.DataFrame,
    rows_file: Path,
) -> list[str]:
    """Write draws.npy (draws, rows, ...) and rows.csv; named values also as draws.csv, a line per draw and row."""

    def fill(work: Path) -> None:
        draws = draw()
        np.save(work / "draws.npy", draws)
        _write_draws(work, draws, model.sample_names_, table)

    return _written(folder, fill, table, rows_file)


def _written(
    folder: str | os.PathLike[str], fill: Callable[[Path], None], table: pd.DataFrame | None, rows_file: Path | None
) -> list[str]:
    """Fill a folder under a temporary name and rename it when it is complete."""
    target = check_free(folder)
    work = part_of(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    remove_leftovers(target)
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    try:
        if rows_file is not None and table is not None:
            text = rows_file.suffix.lower() not in (H5AD, *PARQUET)
            content = rows_file.read_bytes() if text else table.to_csv(index=False).encode()
            (work / "rows.csv").write_bytes(content)
        fill(work)
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


def _write_interval(folder: Path, found: Prediction, level: float) -> dict[str, np.ndarray]:
    """Write the ends of the intervals as low.npy and high.npy; chunk by chunk, for arrays larger than memory."""
    assert found.std is not None
    with Outputs(folder, ("low", "high"), found.mean.shape) as ends:
        for start in range(0, len(found.mean), CSV_ROWS):
            part = slice(start, start + CSV_ROWS)
            low, high = replace(found, mean=found.mean[part], std=found.std[part]).interval(level)
            ends.put(low=low, high=high)
    return {name: ends[name] for name in ends.names}


def _write_named(
    folder: Path,
    arrays: dict[str, np.ndarray],
    names: list[str] | None,
    table: pd.DataFrame | None,
    rows_file: Path | None,
) -> None:
    if names is None:
        return
    rows = pd.DataFrame(index=range(len(arrays["mean"]))) if table is None else table
    if rows_file is not None and rows_file.suffix == H5AD:
        write_h5ad(folder / "predictions.h5ad", arrays, rows, names)
        return
    for name, array in arrays.items():
        _write_csv(folder / f"{name}.csv", array, names, rows)


def _write_draws(folder: Path, draws: np.ndarray, names: list[str] | None, table: pd.DataFrame) -> None:
    """Draws (n_samples, N, D) of named values as draws.csv, a line per draw and row."""
    for number, part in enumerate(draws if names is not None else ()):
        _write_csv(folder / "draws.csv", part, names or [], table.assign(draw=number), append=number > 0)


def _write_csv(path: Path, array: np.ndarray, names: list[str], rows: pd.DataFrame, append: bool = False) -> None:
    """Named values, after the columns of their rows; chunk by chunk, for arrays larger than memory."""
    others = rows[[name for name in rows.columns if str(name) not in set(names)]].reset_index(drop=True)
    for start in range(0, len(array), CSV_ROWS):
        part = slice(start, start + CSV_ROWS)
        values = pd.DataFrame(np.asarray(array[part]), columns=names)
        whole = pd.concat([others.iloc[part].reset_index(drop=True), values], axis=1)
        first = start == 0 and not append
        whole.to_csv(path, mode="w" if first else "a", header=first, index=False)


def _row_names(table: pd.DataFrame | None, model: GPPVAE, count: int) -> list[str]:
    """A file name per row: its number and its values in the kernel's columns."""
    digits = max(4, len(str(count - 1)))
    numbers = [f"{number:0{digits}d}" for number in range(count)]
    columns = [] if table is None else [name for name in model.prior_.columns() if name in table.columns]
    if table is None or not columns:
        return numbers
    words = [[re.sub(r"[^\w.+-]+", "-", id_text(value)) for value in table[name]] for name in columns]
    names = ["_".join([number, *parts])[:MAX_NAME] for number, *parts in zip(numbers, *words, strict=True)]
    return [name.encode("utf-8", "ignore")[:MAX_BYTES].decode("utf-8", "ignore") for name in names]


def _draw(folder: Path, samples: np.ndarray, names: list[str]) -> None:
    """A picture of each sample, and a contact sheet of the first ones, which also set the grey levels."""
    first = to_pictures(samples[:SHEET_ROWS])
    shades = shade_range(samples[:SHEET_ROWS])
    (folder / "images").mkdir()
    for number, name in enumerate(names):
        picture = to_uint8(to_pictures(samples[number]), *shades)
        (folder / "images" / f"{name}.png").write_bytes(png_bytes(picture))
    (folder / "sheet.png").write_bytes(png_bytes(contact_sheet(to_uint8(first, *shades))))
