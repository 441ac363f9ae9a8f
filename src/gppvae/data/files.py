"""Tables from CSV, TSV and Parquet files, with clear errors for other files."""

from __future__ import annotations

import codecs
import csv
import io
import os
import warnings
from collections.abc import Iterable
from pathlib import Path

import pandas as pd

from gppvae.data.paths import plain_file
from gppvae.data.table import id_text, repeated_name
from gppvae.data.words import reason, shortened

SEPARATORS = (",", "\t", ";")
HEAD_BYTES = 1 << 22  # read to find the separator: the header line and some rows
PARQUET = (".parquet", ".pq")
ROWS_TRIED = 20  # compared to find the separator
MISSING_NUMBERS = ("NA", "N/A", "#N/A", "NaN", "nan", "null", "NULL")
MISSING_IDS = ("NaN", "nan")  # NA may be a real id
OTHER_FORMATS = {  # first bytes of files that are often given by mistake
    b"PK\x03\x04": "a zip file, such as an Excel workbook; save the sheet as CSV",
    b"\xd0\xcf\x11\xe0": "an Excel workbook; save the sheet as CSV",
    b"\x93NUMPY": "a NumPy array; samples are given with --data, beside a table",
    b"\x89HDF": "an HDF5 file; samples are given with --data, beside a table",
    b"PAR1": "a Parquet table; let its name end in .parquet",
}


def read_table(path: str | os.PathLike[str], id_columns: Iterable[str] = ()) -> pd.DataFrame:
    """A Parquet table, or UTF-8 text with a header line and commas, tabs or semicolons as separators.

    Args:
        path: the file; .parquet and .pq are Parquet, everything else is text.
        id_columns: columns to read as text, so that "007" stays "007"; an integer written as 3.0 is the id 3. In
            other columns, NA, NaN and null among numbers are missing values.

    Example:
        >>> from pathlib import Path
        >>> from gppvae.data.files import read_table
        >>> _ = Path("table.csv").write_text("person,angle\\n007,90\\n008,180\\n")
        >>> read_table("table.csv", id_columns=["person"])["person"].tolist()
        ['007', '008']
    """
    file = plain_file(path, "a CSV table")
    ids = list(id_columns)
    table = _read_parquet(file, ids) if file.suffix.lower() in PARQUET else _read_text(file, ids)
    if table.empty:
        raise ValueError(f"expected a table with rows in {file}, got {len(table)} rows; give one row per sample")
    return table


def _read_text(file: Path, ids: list[str]) -> pd.DataFrame:
    expected = f"expected a CSV table with a header line in {file}, got"
    _check_text(file, expected)
    separator = _separator(file, expected)
    try:
        with warnings.catch_warnings():
            # Otherwise pandas silently drops the extra fields of a row that is longer than the header.
            warnings.simplefilter("error", pd.errors.ParserWarning)
            table = pd.read_csv(
                file,
                sep=separator,
                dtype=dict.fromkeys(ids, str),
                index_col=False,
                keep_default_na=False,
                na_values=[""],
                encoding="utf-8-sig",  # with or without the byte order mark of spreadsheets
                low_memory=False,  # one type per column, not one per chunk of the file
            )
    except pd.errors.EmptyDataError:
        raise ValueError(f"{expected} nothing; give one row per sample below a line of names") from None
    except (pd.errors.ParserError, pd.errors.ParserWarning) as error:
        raise ValueError(f"{expected} something else ({reason(error)}); check that row") from None
    for name in table.columns:
        if name in ids:
            texts = table[name].str.replace(r"^([-+]?\d+)\.0+$", r"\1", regex=True)
            table[name] = texts.mask(texts.isin(MISSING_IDS))
        elif not pd.api.types.is_numeric_dtype(table[name]):
            table[name] = _numbers_if_any(table[name])
    return table


def _numbers_if_any(texts: pd.Series) -> pd.Series:
    """The column as numbers if every text is a number or marks a missing one, else unchanged."""
    missing = texts.isin(MISSING_NUMBERS)
    if not missing.any():
        return texts
    numbers = pd.to_numeric(texts.mask(missing), errors="coerce").astype(float)
    return texts if (numbers.isna() & texts.notna() & ~missing).any() else numbers


def _read_parquet(file: Path, ids: list[str]) -> pd.DataFrame:
    """A Parquet table, with ids as text, as in a CSV table."""
    try:
        import pyarrow
    except ImportError:
        raise ValueError(
            f"reading the Parquet table {file} needs pyarrow, which is not installed; pip install 'gppvae[parquet]'"
        ) from None
    try:
        table = pd.read_parquet(file, engine="pyarrow")
    except (pyarrow.ArrowException, ValueError, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise ValueError(
            f"expected a Parquet table in {file}, got something else ({reason(error)}); check the file"
        ) from None
    for name in ids:
        if name in table:
            table[name] = table[name].map(id_text, na_action="ignore").astype(object)
    return table


def _check_text(file: Path, expected: str) -> None:
    """Raise ValueError unless the whole file is UTF-8 without NUL bytes, at which a parser may stop."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    line = 1
    with open(file, "rb") as content:
        start = content.read(8)
        if start[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
            raise ValueError(f"{expected} UTF-16; save it as UTF-8")
        other = next((text for magic, text in OTHER_FORMATS.items() if start.startswith(magic)), None)
        if other is not None:
            raise ValueError(f"{expected} {other}")
        content.seek(0)
        while True:
            block = content.read(1 << 20)
            try:
                decoder.decode(block, final=not block)
            except UnicodeDecodeError as error:
                line += error.object.count(b"\n", 0, error.start)
                raise ValueError(f"{expected} text that is not UTF-8 in line {line}; save it as UTF-8") from None
            if b"\0" in block:
                line += block.count(b"\n", 0, block.index(b"\0"))
                raise ValueError(f"{expected} a NUL byte in line {line}; remove it, or save the table as UTF-8")
            line += block.count(b"\n")
            if not block:
                return


def _separator(file: Path, expected: str) -> str:
    """The separator with which the header and the first rows have the same number of fields."""
    with open(file, "rb") as content:
        head = content.read(HEAD_BYTES)
    if len(head) == HEAD_BYTES and b"\n" not in head and b"\r" not in head:
        raise ValueError(f"{expected} a first line of more than {HEAD_BYTES} bytes; check what the file is")
    text = head.decode("utf-8-sig", errors="ignore")  # the last character may be incomplete
    if len(head) == HEAD_BYTES:
        text = text[: max(text.rfind("\n"), text.rfind("\r")) + 1]
    fields = {mark: _first_rows(text, mark) for mark in (*SEPARATORS, "|")}
    possible = [mark for mark in SEPARATORS if fields[mark] and len(fields[mark][0]) > 1]
    even = [mark for mark in possible if len({len(row) for row in fields[mark]}) == 1]  # rows of equal length
    if len(even) > 1:
        raise ValueError(
            f"expected one separator in {file}, got a header line that can be split at {even[0]!r} and at {even[1]!r}; "
            "put names and values with these characters in quotes"
        )
    if not possible and fields["|"] and len(fields["|"][0]) > 1:
        raise ValueError(
            f"expected columns separated by commas, tabs or semicolons in {file}, got '|'; save it with one of these"
        )
    chosen = (even or sorted(possible, key=lambda mark: -len(fields[mark][0])) or [","])[0]
    twice = repeated_name(name for name in fields[chosen][0] if name) if fields[chosen] else None
    if twice is not None:
        raise ValueError(f"expected unique column names in {file}, got {shortened(twice)!r} twice; rename one")
    return chosen


def _first_rows(text: str, separator: str) -> list[list[str]]:
    rows: list[list[str]] = []
    try:
        for row in csv.reader(io.StringIO(text, newline=""), delimiter=separator):
            if row:
                rows.append(row)
            if len(rows) > ROWS_TRIED:
                break
    except csv.Error:  # a field longer than the csv module allows; the rows so far are enough
        pass
    return rows
