"""Samples with named values: columns of the table, a DataFrame, the genes of an AnnData."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Sequence
from decimal import Decimal
from numbers import Real
from typing import Any

import numpy as np
import pandas as pd

from gppvae.data.subset import Subset
from gppvae.data.table import repeated_name, too_large
from gppvae.data.words import decimal_comma, did_you_mean, shortened


class Named:
    """An array-like of vectors with one name per value.

    Args:
        values: (N, D) array-like: NumPy array, scipy sparse matrix, HDF5 data set.
        names: of the D values; must be unique.
    """

    def __init__(self, values: Any, names: Iterable[Any]) -> None:
        self.values, self.names = values, [str(name) for name in names]
        self.shape, self.dtype = tuple(values.shape), values.dtype
        twice = repeated_name(self.names)
        if twice is not None:
            raise ValueError(f"expected unique names of values, got {shortened(twice)!r} twice; rename one")
        if len(self.shape) != 2 or self.shape[1] != len(self.names):
            raise ValueError(f"expected one name per value, got {len(self.names)} names and samples of {self.shape}")

    def __len__(self) -> int:
        return int(self.shape[0])

    def __getitem__(self, key: Any) -> np.ndarray:
        part = self.values[key]
        return part.toarray() if hasattr(part, "toarray") else np.asarray(part)


class Selected:
    """Selected columns of an array-like, read on demand.

    Args:
        data: (N, D) array-like.  columns: positions of the columns, in the order wanted.
    """

    def __init__(self, data: Named, columns: np.ndarray) -> None:
        self.data, self.columns = data, columns
        self.shape, self.dtype = (len(data), len(columns)), data.dtype

    def __getitem__(self, key: Any) -> np.ndarray:
        return self.data[key][:, self.columns]


def names_of(samples: Any) -> list[str] | None:
    """Names of the samples' values, or None."""
    if isinstance(samples, Subset):
        return names_of(samples.data)
    if isinstance(samples, pd.DataFrame):
        return [str(name) for name in samples.columns]
    return samples.names if isinstance(samples, Named) else None


def from_frame(frame: pd.DataFrame) -> Named:
    """A DataFrame of numeric columns as one array; missing numbers are NaN."""
    for i, dtype in enumerate(frame.dtypes):
        if not pd.api.types.is_numeric_dtype(dtype):  # bool is numeric
            _check_numbers(frame.iloc[:, i])
    if len(frame.columns) and all(isinstance(dtype, pd.SparseDtype) for dtype in frame.dtypes):
        return Named(frame.sparse.to_coo().tocsr(), frame.columns)
    plain = all(isinstance(dtype, np.dtype) and dtype.kind != "O" for dtype in frame.dtypes)
    mixed = len({np.dtype(bool) == dtype for dtype in frame.dtypes}) > 1  # bool and numbers become an object array
    values = frame.to_numpy() if plain and not mixed else frame.to_numpy(np.float64, na_value=np.nan)
    return Named(values, frame.columns)


def _check_numbers(column: pd.Series) -> None:
    """Raise ValueError unless a column of any type holds numbers or missing values only."""
    fits = (not too_large(x) if isinstance(x, (Real, Decimal)) else pd.isna(x) for x in column)
    wrong = [row for row, fit in enumerate(fits) if not fit]
    if wrong or column.dtype != object:
        large = bool(wrong) and too_large(column.iloc[wrong[0]])
        shown = shortened(str(column.iloc[wrong[0]])) if wrong else str(column.dtype)
        where = f" in row {wrong[0]}" if wrong else ""
        advice = decimal_comma(shown) or "choose the columns of the samples by name"
        advice = "rescale the column" if large else advice
        name = shortened(str(column.name))
        raise ValueError(f"column {name!r} must be numeric to be part of a sample, got {shown!r}{where}; {advice}")


def chosen_columns(patterns: str | Sequence[str], columns: Iterable[Any], read: Sequence[str] = ()) -> list[str]:
    """The columns that match names or patterns such as "gene_*": by pattern, then in the order of the table.

    Args:
        patterns: one or more.  columns: of the table.
        read: columns that the kernel reads. Patterns skip them, and naming one is an error.
    """
    known = [str(name) for name in columns]
    chosen: dict[str, None] = {}
    for pattern in [patterns] if isinstance(patterns, str) else patterns:
        if pattern in read:
            raise ValueError(
                f"expected samples that the kernel does not read, got column {shortened(pattern)!r} as both; "
                "take it out of one"
            )
        exact = [pattern] if pattern in known else None
        matching = exact or [name for name in known if fnmatch.fnmatchcase(name, pattern) and name not in read]
        if not matching:
            hint = did_you_mean(pattern, known, "see the names in the table's first line")
            raise ValueError(
                f"expected columns of the table as samples, got {shortened(pattern)!r}, which matches none; {hint}"
            )
        chosen |= dict.fromkeys(matching)
    if not chosen:
        raise ValueError('expected columns of the table as samples, got none; name them, for example "gene_*"')
    return list(chosen)


def samples_from(samples: Any, table: Any, read: Sequence[str] = ()) -> Any:
    """The samples, or the columns of the table that they name.

    Args:
        samples: array-like; or a name or pattern of columns, or a list of these. A list of strings of which none
            matches a column is a list of image files.
        table: DataFrame, or mapping of columns.  read: columns that the kernel reads.
    """
    words = [samples] if isinstance(samples, str) else samples
    texts = isinstance(words, (list, tuple)) and len(words) > 0 and all(isinstance(word, str) for word in words)
    if not texts:
        return samples
    frame = table if isinstance(table, pd.DataFrame) else pd.DataFrame(dict(getattr(table, "columns", table)))
    names = {str(name) for name in frame.columns}
    if not isinstance(samples, str) and not any(word in names or fnmatch.filter(names, word) for word in words):
        return samples
    frame = frame.rename(columns=str)
    return frame[chosen_columns(words, frame.columns, read)]


def aligned(samples: Any, names: list[str] | None) -> Any:
    """Samples with their values in the order of training, matched by name; other values are dropped.

    Args:
        names: of the training samples' values, or None.
    """
    given = names_of(samples)
    if names is None or given is None or given == names:
        return samples
    position = {name: i for i, name in enumerate(given)}
    missing = [name for name in names if name not in position]
    if missing:
        raise ValueError(
            f"expected the {len(names)} values of the training samples, got none named {shortened(missing[0])!r} "
            f"({len(missing)} such); add them"
        )
    if isinstance(samples, Subset):
        return Subset(aligned(samples.data, names), samples.index)
    if isinstance(samples, pd.DataFrame):
        return samples.rename(columns=str)[names]
    return Named(Selected(samples, np.array([position[name] for name in names])), names)


def framed(array: np.ndarray, names: list[str] | list[int] | None, like: Any) -> Any:
    """Vectors as a DataFrame with the index of `like`, if that is a DataFrame and the values have names."""
    if names is None or not isinstance(like, pd.DataFrame):
        return array
    return pd.DataFrame(array, index=like.index, columns=names)
