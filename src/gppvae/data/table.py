"""The table of the samples' auxiliary columns: named columns in, coded rows out."""

from __future__ import annotations

import datetime
import math
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from gppvae.data.words import decimal_comma, did_you_mean, shortened

DATE = re.compile(r"\d{4}[-/]\d{2}[-/]\d{2}([ T]|$)")
MAX_ID_LENGTH = 1000  # characters; arrays of ids have a fixed width, so every row pays for the longest id


class Table:
    """Named columns of equal length.

    Args:
        columns: a DataFrame, where named index levels become columns too; a mapping from column name to
            one-dimensional values; or a Table.

    Attributes:
        labels: the index of a DataFrame, else None.
    """

    def __init__(self, columns: pd.DataFrame | Mapping[str, Any] | Table) -> None:
        self.labels: pd.Index | None = None
        if isinstance(columns, Table):
            self.labels, columns = columns.labels, columns.columns
        twice = repeated_name(str(name) for name in columns) if isinstance(columns, (pd.DataFrame, Mapping)) else None
        if twice is not None:
            raise ValueError(f"expected unique column names, got {shortened(twice)!r} twice; rename one")
        if isinstance(columns, pd.DataFrame):
            names = [name for name in columns.index.names if name is not None and name not in columns.columns]
            index = {str(name): columns.index.get_level_values(name).to_numpy() for name in names}
            self.labels = columns.index
            columns = {str(name): columns[name].to_numpy() for name in columns.columns} | index
        if not isinstance(columns, Mapping):
            raise TypeError(
                f"expected a DataFrame or a dict of columns, got {type(columns).__name__}; "
                "pass for example {'digit': [...], 'angle': [...]}"
            )
        self.columns: dict[str, np.ndarray] = {str(k): _one_dimensional(str(k), v) for k, v in columns.items()}
        lengths = {name: len(values) for name, values in self.columns.items()}
        if not lengths:
            raise ValueError("expected a table with at least one column, got none; name the columns of the kernel")
        if len(set(lengths.values())) > 1:
            raise ValueError(f"expected columns of equal length, got {lengths}; every sample needs every column")
        self.n_rows = next(iter(lengths.values()))

    def __len__(self) -> int:
        return self.n_rows

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self.columns:
            hint = did_you_mean(name, self.columns, "add it or change the kernel")
            names = sorted(self.columns)
            more = f" and {len(names) - 20} more" if len(names) > 20 else ""
            raise ValueError(f"expected a column {name!r}, got columns {names[:20]}{more}; {hint}")
        return self.columns[name]

    def take(self, index: np.ndarray) -> Table:
        """The rows at `index`, in this order."""
        return Table({name: values[index] for name, values in self.columns.items()})

    def known(self, names: Sequence[str]) -> np.ndarray:
        """Positions of the rows without missing values in these columns."""
        missing = [pd.isna(self[name]) for name in names]
        return np.flatnonzero(~np.any(missing, axis=0)) if missing else np.arange(self.n_rows)

    def numeric(self, names: tuple[str, ...], may_miss: bool = False) -> np.ndarray:
        """The named columns as float64, (N, len(names)); text and non-finite entries raise ValueError.

        Dates and times become days since 1970-01-01 (UTC), durations become days.

        Args:
            may_miss: whether NaN is allowed.
        """
        parts = []
        for name in names:
            raw = self[name]
            values = days(raw)
            if values is None:
                values = as_numbers(raw)
            text = np.flatnonzero(np.isnan(values) & ~pd.isna(raw))
            if text.size:
                shown = shortened(str(raw[text[0]]))
                advice = "use Learned, FreeForm or Categorical for ids; write dates as 2020-01-31"
                advice = decimal_comma(shown) or advice
                raise ValueError(f"column {name!r} must be numeric, got values like {shown!r}; {advice}")
            bad = np.flatnonzero(np.isinf(values) if may_miss else ~np.isfinite(values))
            if bad.size:
                raise ValueError(
                    f"column {name!r} must be finite, got {values[bad[0]]} in row {bad[0]} "
                    f"({bad.size} such rows); remove or fill those rows"
                )
            parts.append(values)
        return np.stack(parts, axis=1)

    def levels(self, name: str) -> np.ndarray:
        """Distinct ids of a column, sorted; missing ids raise ValueError."""
        return self.coded_ids(name)[1]

    def ids(self, name: str) -> np.ndarray:
        """A column of ids as text, so that 3, 3.0 and "3" are the same id."""
        codes, levels = self.coded_ids(name)
        return levels[codes]

    def coded_ids(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """The id of each row as a code, (N,) int64, and the distinct ids as sorted text, (P,)."""
        raw = self[name]
        missing = np.flatnonzero(pd.isna(raw))
        if missing.size:
            raise ValueError(
                f"column {name!r} must name an id in every row, got a missing value in row {missing[0]} "
                f"({missing.size} such rows); remove or fill those rows"
            )
        codes, distinct = pd.factorize(raw)
        texts = [id_text(value) for value in distinct]
        longest = max(texts, key=len, default="")
        if len(longest) > MAX_ID_LENGTH:
            raise ValueError(
                f"column {name!r} must hold ids of at most {MAX_ID_LENGTH} characters, got {len(longest)} in "
                f"{shortened(longest)!r}; shorten them"
            )
        levels, level_of = np.unique(np.array(texts, dtype=str), return_inverse=True)  # 3 and "3" become one level
        return level_of.astype(np.int64)[codes], levels


@dataclass(frozen=True)
class Column:
    """One coded column: row n has the value `values[index[n]]`.

    Attributes:
        index: (N,) int64.
        values: (D, d) float64 for numeric columns, (D,) int64 level codes for ids; shared by all slices.
    """

    index: Tensor
    values: Tensor

    @property
    def by_row(self) -> Tensor:
        """The value of each row, (N,) or (N, d)."""
        return self.values[self.index]


class Rows:
    """Coded rows of a table, the input of kernels. Slices share the distinct values."""

    def __init__(self, columns: dict[str, Column], n_rows: int) -> None:
        self.columns = columns
        self.n_rows = n_rows

    def __len__(self) -> int:
        return self.n_rows

    def __getitem__(self, index: Tensor | slice) -> Rows:
        picked = {key: Column(c.index[index], c.values) for key, c in self.columns.items()}
        n = next(iter(picked.values())).index.shape[0] if picked else _count(index, self.n_rows)
        return Rows(picked, n)

    @property
    def device(self) -> torch.device:
        return next((c.index.device for c in self.columns.values()), torch.device("cpu"))

    def to(self, device: torch.device | str) -> Rows:
        return Rows({k: Column(c.index.to(device), c.values.to(device)) for k, c in self.columns.items()}, self.n_rows)


def distinct_rows(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Distinct rows of (N, d) numbers in lexicographic order, (D, d), and the index of each row into them, (N,).

    As numpy.unique(axis=0), but by hashing: linear in N, and much faster than sorting rows.
    """
    codes = np.zeros(len(values), dtype=np.int64)
    for column in values.T:
        column_codes, levels = pd.factorize(column, sort=True)
        codes, _ = pd.factorize(codes * max(len(levels), 1) + column_codes, sort=True)
    first = np.zeros(codes.max() + 1 if len(codes) else 0, dtype=np.int64)
    first[codes[::-1]] = np.arange(len(codes))[::-1]  # reversed, so that the first row of each code is written last
    return values[first], codes.astype(np.int64)


def _count(index: Tensor | slice, n_rows: int) -> int:
    if isinstance(index, slice):
        return len(range(*index.indices(n_rows)))
    return int(index.sum()) if index.dtype == torch.bool else int(index.shape[0])


def _one_dimensional(name: str, values: Any) -> np.ndarray:
    array = np.asarray(values)
    if array.ndim != 1:
        raise ValueError(f"column {name!r} must be one-dimensional, got shape {array.shape}; give one value per sample")
    return array


def as_numbers(column: np.ndarray) -> np.ndarray:
    """A column as float64, NaN where it has no number, infinite where a whole number is too large."""
    try:
        return pd.to_numeric(pd.Series(column), errors="coerce").to_numpy(np.float64, na_value=np.nan)
    except OverflowError:
        capped = [(math.inf if x > 0 else -math.inf) if too_large(x) else x for x in column]
        return as_numbers(np.array(capped, dtype=object))


def too_large(value: Any) -> bool:
    """Whether this is a whole number beyond the range of floats, which Python itself can hold."""
    return isinstance(value, int) and abs(value) > sys.float_info.max


def days(column: np.ndarray) -> np.ndarray | None:
    """Dates as days since 1970-01-01 (UTC), durations as days; None for any other column.

    Dates may have a date type or be text such as 2020-01-31 or 2020-01-31 12:00. Missing and invalid dates are NaN.
    """
    if column.dtype.kind == "m":
        return np.asarray(column / np.timedelta64(1, "D"), dtype=np.float64)
    first = next((value for value in column if not pd.isna(value)), None) if column.dtype.kind in "OUT" else None
    if isinstance(first, datetime.timedelta):
        return days(pd.to_timedelta(pd.Series(column), errors="coerce").to_numpy())
    text = isinstance(first, str) and DATE.match(first) is not None
    if column.dtype.kind != "M" and not text and not isinstance(first, datetime.date):  # Timestamps are dates
        return None
    options = {"format": "ISO8601"} if text else {}
    dates = pd.to_datetime(pd.Series(column), utc=True, errors="coerce", **options)
    return np.asarray((dates - pd.Timestamp(0, tz="UTC")) / pd.Timedelta(days=1), dtype=np.float64)


def repeated_name(names: Iterable[str]) -> str | None:
    """The first name that appears twice, or None."""
    listed = pd.Index(list(names), dtype=object)
    return next(iter(listed[listed.duplicated()]), None)


def id_text(value: Any) -> str:
    """An id as text: 3 and 3.0 are both "3"."""
    if isinstance(value, (float, np.floating, Decimal)) and float(value).is_integer() and value == int(value):
        return str(int(value))
    return str(value)
