"""Tables from files, with one clear sentence when a file is not what it should be."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable
from pathlib import Path

import pandas as pd


def read_table(path: str | os.PathLike[str], id_columns: Iterable[str] = ()) -> pd.DataFrame:
    """A CSV file with one header line.

    Args:
        path: the file.
        id_columns: columns to keep as text, so that "007" stays "007" whatever else the column holds; a whole
            number written as 3.0 is the id 3.
    """
    file = _existing(path, "a CSV table")
    ids = list(id_columns)
    try:
        with warnings.catch_warnings():
            # Without this, a row with more fields than the header would lose them silently.
            warnings.simplefilter("error", pd.errors.ParserWarning)
            table = pd.read_csv(
                file, dtype=dict.fromkeys(ids, str), index_col=False, keep_default_na=False, na_values=[""]
            )
    except (pd.errors.ParserError, pd.errors.ParserWarning, pd.errors.EmptyDataError, UnicodeDecodeError) as error:
        reason = " ".join(str(error).split()).rstrip(".")
        raise ValueError(f"expected a CSV table with a header line in {file}, got something else ({reason})") from None
    if table.empty:
        raise ValueError(f"expected a table with rows in {file}, got {len(table)} rows; give one row per sample")
    for name in ids:
        if name in table:
            table[name] = table[name].str.replace(r"^([-+]?\d+)\.0+$", r"\1", regex=True)
    return table


def _existing(path: str | os.PathLike[str], what: str) -> Path:
    file = Path(path)
    if not file.is_file():
        raise FileNotFoundError(f"expected {what} at {file}, found {'a folder' if file.is_dir() else 'no such file'}")
    return file
