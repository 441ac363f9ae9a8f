"""Samples whose values have names: columns of the table, a DataFrame, the genes of an AnnData."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Sequence
from numbers import Real
from typing import Any

import numpy as np
import pandas as pd

from gppvae.data.subset import Subset
from gppvae.data.table import repeated_name
from gppvae.data.words import decimal_comma, did_you_mean, shortened


class Named:
    """An array-like of vectors with one name per value.

    Args:
        values: (N, D) array-like: NumPy array, scipy sparse matrix, HDF5 data set.
        names: of the D values, all different.
    """

    def __init__(self, values: Any, names: Iterable[Any]) -> None:
        self.values, self.names = values, [str(name) for name in names]
        self.shape, self.dtype = tuple(values.shape), values.dtype
        twice = repeated_name(self.names)
        if twice is not None:
            raise ValueError(f"expected names of values that differ, got {shortened(twice)!r} twice; rename one")
        if len(self.shape) != 2 or self.shape[1] != len(self.names):
            raise ValueError(f"expected one name per value, got {len(self.names)} names and samples of {self.shape}")

    def __len__(self) -> int:
        return int(self.shape[0])

    def __getitem__(self, key: Any) -> np.ndarray:
        part = self.values[key]
        return part.toarray() if hasattr(part, "toarray") else np.asarray(part)


class Picked:
    """Some values of each sample of an array-like, read on demand.

    Args:
        data: (N, D) array-like.  places: of the values, in the order wanted.
    """

    def __init__(self, data: Named, places: np.ndarray) -> None:
        self.data, self.places = data, places
        self.shape, self.dtype = (len(data), len(places)), data.dtype

    def __getitem__(self, key: Any) -> np.ndarray:
        return self.data[key][:, self.places]


def names_of(samples: Any) -> list[str] | None:
    """Names of the samples' values, where they have any."""
    if isinstance(samples, Subset):
        return names_of(samples.data)
    if isinstance(samples, pd.DataFrame):
        return [str(name) for name in samples.columns]
    return samples.names if isinstance(samples, Named) else None


def from_frame(frame: pd.DataFrame) -> Named:
    """The columns of a DataFrame, all of them numbers, as one array; missing numbers are NaN."""
    for place, kind in enumerate(frame.dtypes):
        if not pd.api.types.is_numeric_dtype(kind):  # bool is numeric
            _check_numbers(frame.iloc[:, place])
    if len(frame.columns) and all(isinstance(kind, pd.SparseDtype) for kind in frame.dtypes):
        return Named(frame.sparse.to_coo().tocsr(), frame.columns)
    own = all(isinstance(kind, np.dtype) and kind.kind != "O" for kind in frame.dtypes)
    mixed = len({np.dtype(bool) == kind for kind in frame.dtypes}) > 1  # pandas makes objects of bool beside numbers
    return Named(frame.to_numpy() if own and not mixed else frame.to_numpy(np.float64, na_value=np.nan), frame.columns)


def _check_numbers(column: pd.Series) -> None:
    """Raise ValueError unless a column of any type holds numbers, missing ones included."""
    wrong = [row for row, value in enumerate(column) if not (isinstance(value, Real) or pd.isna(value))]
    if wrong or column.dtype != object:
        shown = shortened(str(column.iloc[wrong[0]])) if wrong else str(column.dtype)
        where = f" in row {wrong[0]}" if wrong else ""
        advice = decimal_comma(shown) or "choose the columns of the samples by name"
        name = shortened(str(column.name))
        raise ValueError(f"column {name!r} must be numeric to be part of a sample, got {shown!r}{where}; {advice}")


def chosen_columns(patterns: str | Sequence[str], columns: Iterable[Any], read: Sequence[str] = ()) -> list[str]:
    """The columns that match names or patterns such as "gene_*", pattern by pattern, in the order of the table.

    Args:
        patterns: one or more.  columns: of the table.
        read: columns that the kernel reads; a pattern leaves them out, and naming one of them is an error.
    """
    there = [str(name) for name in columns]
    chosen: dict[str, None] = {}
    for pattern in [patterns] if isinstance(patterns, str) else patterns:
        if pattern in read:
            raise ValueError(
                f"expected samples that the kernel does not read, got column {shortened(pattern)!r} as both; "
                "take it out of one"
            )
        exact = [pattern] if pattern in there else None
        found = exact or [name for name in there if fnmatch.fnmatchcase(name, pattern) and name not in read]
        if not found:
            hint = did_you_mean(pattern, there, "see the names in the table's first line")
            raise ValueError(
                f"expected columns of the table as samples, got {shortened(pattern)!r}, which fits none; {hint}"
            )
        chosen |= dict.fromkeys(found)
    if not chosen:
        raise ValueError('expected columns of the table as samples, got none; name them, for example "gene_*"')
    return list(chosen)


def samples_from(samples: Any, table: Any, read: Sequence[str] = ()) -> Any:
    """Samples as given, or the columns of the table that they name.

    Args:
        samples: array-like; or a name or pattern of columns, or a list of these. A list of strings
            that match no column is a list of image files.
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
    """Samples with their values in the order of training, found by name; further values are ignored.

    Args:
        names: of the training samples' values, or None where they had none.
    """
    given = names_of(samples)
    if names is None or given is None or given == names:
        return samples
    place = {name: number for number, name in enumerate(given)}
    missing = [name for name in names if name not in place]
    if missing:
        raise ValueError(
            f"expected the {len(names)} values of the training samples, got none named {shortened(missing[0])!r} "
            f"({len(missing)} such); add them"
        )
    if isinstance(samples, Subset):
        return Subset(aligned(samples.data, names), samples.index)
    if isinstance(samples, pd.DataFrame):
        return samples.rename(columns=str)[names]
    return Named(Picked(samples, np.array([place[name] for name in names])), names)


def framed(array: np.ndarray, names: list[str] | None, like: Any) -> Any:
    """Vectors as a DataFrame with their names and the index of `like`, if there are names and it is a DataFrame."""
    if names is None or not isinstance(like, pd.DataFrame):
        return array
    return pd.DataFrame(array, index=like.index, columns=names)
