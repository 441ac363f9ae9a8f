"""The data of a run, if given: training rows, held-out rows, and their samples."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from gppvae.data.arrays import Samples
from gppvae.data.rotated_digits import small_split
from gppvae.data.subset import evenly
from gppvae.data.table import Table
from gppvae.estimator import GPPVAE
from gppvae.explore.columns import ColumnFacts, columns_of, numbers_in, row_key, table_keys
from gppvae.report.checked import opened
from gppvae.report.describe import run_config

DEMO = "demo.json"  # written by `gppvae demo` into its run folder
MAX_ROWS = 20_000  # shown on the page
MAX_CELLS = 4096  # of a grid without a table
MAX_COLOURS = 24  # further columns of the table, to colour cells by
PREDICTED, MEASURED, HELD_OUT = 0, 1, 2
Numbers = Sequence[int] | np.ndarray


@dataclass
class Part:
    """Rows, and their samples if known."""

    table: Table
    samples: Samples | None = None


@dataclass
class Source:
    """The data of a model.

    Attributes:
        train, held: training rows and held-out rows.  notes: shown on the page.
    """

    train: Part | None = None
    held: Part | None = None
    notes: list[str] = field(default_factory=list)


def make_part(model: GPPVAE, table: Any, samples: Any = None) -> Part:
    """Rows and samples for this model; samples must have its shape, and a row each."""
    if samples is None:
        return Part(Table(table))
    data, rows = opened(model, (samples, table))
    return Part(rows, data)


def demo_source(run: Path, model: GPPVAE) -> Source | None:
    """The digits of a run of `gppvae demo`; None for other runs."""
    file = run / DEMO
    if not file.is_file():
        return None
    try:
        facts = json.loads(file.read_text("utf-8"))
        recipe = facts["recipe"]
        digits = small_split(recipe["n_digits"], recipe["n_angles"], facts["seed"], recipe["held_out_angle"])
    except (ValueError, KeyError, TypeError) as error:
        return Source(
            notes=[f"The digits of the demo cannot be read from {DEMO} ({error!r:.80}); give --table and --data."]
        )
    train, held = (make_part(model, part.table, part.images) for part in (digits.train, digits.test))
    return Source(train, held)


def other_data(run: Path, part: Part | None) -> list[str]:
    """A note if the number of rows differs from that of the training set, as recorded in the run folder."""
    fitted = run_config(run).get("settings", {}).get("data", {})
    if part is None or not isinstance(fitted, dict) or fitted.get("n_samples", len(part.table)) == len(part.table):
        return []
    return [
        f"The model was fitted to {fitted['n_samples']} samples, and the table has {len(part.table)} rows, all shown "
        "as measured. If gppvae fit had --validation-fraction, give it here too."
    ]


class Cells:
    """The rows that the page shows, with their samples if known.

    Args:
        model: fitted.  source: the data, if given.

    Attributes:
        columns: of the kernel.  table: the rows with all columns.  status: PREDICTED, MEASURED or HELD_OUT, (N,).
    """

    def __init__(self, model: GPPVAE, source: Source) -> None:
        self.model, self.source = model, source
        parts = [part for part in (source.train, source.held) if part is not None]
        joined = _joined([part.table for part in parts]) if parts else None
        self.columns = columns_of(model.prior_, None if joined is None else Table(joined[columns_in(model, joined)]))
        self.where: list[tuple[Part | None, int]] = []
        if joined is None:
            self.table = _from_model(self.columns)
            self.status = np.full(len(self.table), PREDICTED)
            self.where = [(None, 0)] * len(self.table)
        else:
            self._take(joined, parts)
        self.places: dict[tuple[Any, ...], list[int]] = {}
        for number, key in enumerate(table_keys(self.columns, self.table)):
            self.places.setdefault(key, []).append(number)

    def _take(self, joined: pd.DataFrame, parts: list[Part]) -> None:
        where = [(part, number) for part in parts for number in range(len(part.table))]
        status = np.concatenate(
            [np.full(len(part.table), MEASURED if part is self.source.train else HELD_OUT) for part in parts]
        )
        known = self.model.prior_.knows(Table(joined))
        if not known.all():
            self.source.notes.append(f"{int((~known).sum())} rows with unknown ids are left out.")
        picked = np.flatnonzero(known)
        if len(picked) > MAX_ROWS:
            self.source.notes.append(f"{MAX_ROWS} of {len(picked)} rows are shown, evenly spaced.")
            picked = picked[evenly(len(picked), MAX_ROWS)]
        if not len(picked):
            raise ValueError("expected rows with ids that the model knows, got none; give the table it was fitted to")
        self.table, self.status = Table(joined.iloc[picked]), status[picked]
        self.where = [where[number] for number in picked]

    def add(self, model: GPPVAE, rows: dict[str, list[Any]], samples: np.ndarray) -> None:
        """Add rows of objects that were added to `model`, the new model; all are measured."""
        self.model = model
        part, first = make_part(model, rows, samples), len(self.table)
        self.table = Table(_joined([self.table, part.table]))
        self.columns = columns_of(model.prior_, Table({name: self.table[name] for name in model.prior_.columns()}))
        self.status = np.concatenate([self.status, np.full(len(part.table), MEASURED)])
        self.where += [(part, number) for number in range(len(part.table))]
        for number, key in enumerate(table_keys(self.columns, part.table), first):
            self.places.setdefault(key, []).append(number)

    def at(self, row: dict[str, Any]) -> list[int]:
        """Indices of the cells with this row."""
        return self.places.get(row_key(self.columns, row), [])

    def read(self, numbers: Numbers) -> list[np.ndarray | None]:
        """Samples of cells, (*shape) each, NaN where nothing was observed; None if a cell has no sample."""
        return [self._read_one(*self.where[number]) for number in numbers]

    def _read_one(self, part: Part | None, number: int) -> np.ndarray | None:
        if part is None or part.samples is None:
            return None
        return part.samples.with_gaps(np.array([number]))[0]

    def rows(self, numbers: Numbers) -> Table:
        """The kernel's columns at cells."""
        taken = self.table.take(np.asarray(numbers, dtype=np.int64))
        return Table({column.name: taken[column.name] for column in self.columns})

    def to_json(self) -> dict[str, Any]:
        """Every column as codes of ids or as numbers, and the status of each row."""
        of_kernel = [column.name for column in self.columns]
        others = [name for name in self.table.columns if name not in of_kernel][:MAX_COLOURS]
        numeric = {column.name: column.levels is None for column in self.columns}
        found = {name: _column(self.table, name, numeric.get(name)) for name in [*of_kernel, *others]}
        return {"columns": found, "status": self.status.tolist()}


def columns_in(model: GPPVAE, table: pd.DataFrame) -> list[str]:
    """The kernel's columns, or all without a kernel; ValueError if the table lacks one."""
    rows = Table(table)
    for name in model.prior_.columns():
        rows[name]  # raises if it is missing
    return model.prior_.columns() or list(rows.columns)


def _joined(tables: list[Table]) -> pd.DataFrame:
    frames = [pd.DataFrame(table.columns) for table in tables]
    return pd.concat(frames, ignore_index=True) if len(frames) > 1 else frames[0]


def _from_model(columns: list[ColumnFacts]) -> Table:
    """All combinations of known ids and training values, at most MAX_CELLS."""
    found: dict[str, list[Any]] = {}
    for column in columns:
        values: list[Any] = column.levels if column.levels is not None else (column.values or [0.0])
        n = len(next(iter(found.values()), [None]))
        values = values[: max(1, MAX_CELLS // n)]
        found = {name: [value for value in old for _ in values] for name, old in found.items()}
        found[column.name] = values * n
    return Table(found or {"row": [0]})


def _column(table: Table, name: str, numeric: bool | None = None) -> dict[str, Any]:
    """A column as numbers or as codes of ids; `numeric`: which of them, None for numbers if all values are."""
    raw = pd.Series(table[name])
    if numeric is None:
        numbers = pd.to_numeric(raw, errors="coerce")
        numeric = raw.dtype.kind not in "mM" and not (numbers.isna() & ~raw.isna()).any()
    if numeric:
        values = numbers_in(table, name)
        return {"kind": "number", "values": [float(v) if np.isfinite(v) else None for v in values]}
    filled = Table({name: raw.astype(object).where(~raw.isna(), "(missing)").to_numpy()})
    codes, levels = filled.coded_ids(name)
    return {"kind": "id", "codes": codes.tolist(), "levels": [str(level) for level in levels]}
