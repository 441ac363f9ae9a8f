"""Samples and tables from the files named by a command's options."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gppvae.cli.options import SampleOptions, ValidationOptions
from gppvae.cli.output import utf8

log = logging.getLogger("gppvae")
Pair = tuple[Any, Any]  # samples, table
TABLES = (".csv", ".tsv", ".txt", ".parquet", ".pq")


class Inputs:
    """Reads samples and tables.

    Args:
        options: of the samples.  ids: columns of ids, which are read as text.
        read: all columns that the kernel reads; patterns for sample columns skip them.
        names: of the training samples' values; without other options, these columns are the samples.
    """

    def __init__(
        self, options: SampleOptions, ids: Sequence[str], read: Sequence[str] = (), names: list[str] | None = None
    ) -> None:
        self.options, self.ids, self.read, self.names = options, ids, read, names

    @classmethod
    def of_model(cls, options: SampleOptions, model: Any) -> Inputs:
        """Inputs for a fitted model."""
        from gppvae.estimator.settings import id_columns

        return cls(options, id_columns(model.kernel), model.prior_.columns(), model.sample_names_)

    def table(self, path: Path) -> Any:
        """The table in a file."""
        return self._whole(path)[1]

    def pair(self, path: Path, data: Path | None = None) -> Pair:
        """Samples and their table, one row per sample.

        Args:
            path: of the table.  data: of the samples, instead of --data.
        """
        in_table, frame = self._whole(path)
        place = self.options.data if data is None else data
        if place is not None:
            samples = self._open(place, frame)
        elif in_table is not None:
            samples = in_table
        else:
            samples = self._columns(frame)
        n_samples = samples.shape[0] if samples.shape else 0
        if n_samples != len(frame):
            raise ValueError(
                f"expected one row of {path} per sample of {place}, got {len(frame)} rows and {n_samples} samples; "
                "match them"
            )
        return samples, frame

    def samples(self, path: Path | None) -> Any:
        """Samples only, for a command that needs no table; `path`: of the table, if there is one."""
        if path is not None:
            return self.pair(path)[0]
        place = self.options.data
        if place is None:
            raise ValueError("expected samples, got neither --data nor --table; give one of them")
        if place.suffix == ".h5ad":
            return self._whole(place)[0]
        return self._open(place, None)

    def _whole(self, path: Path) -> Pair:
        """The samples in the file of the table (None except for .h5ad), and the table."""
        from gppvae.data.anndata_files import H5AD, read_h5ad
        from gppvae.data.files import read_table

        if path.suffix == H5AD:
            return read_h5ad(path, self.options.layer, self.options.spatial)
        for name in ("layer", "spatial"):
            if getattr(self.options, name) is not None and getattr(self.options.data, "suffix", "") != H5AD:
                raise ValueError(f"expected an .h5ad file together with --{name}, got {path}; leave --{name} out")
        return None, read_table(path, self.ids)

    def _columns(self, frame: Any, shared: Sequence[str] = ()) -> Any:
        """The samples in the columns of a table; `shared` columns are excluded."""
        from gppvae.data.named import chosen_columns, from_frame

        columns, given = [str(name) for name in frame.columns], utf8(*(self.options.samples or []))
        patterns = [part for pattern in given for part in _parts(pattern, columns)] if given else self.names
        if patterns is None:
            raise ValueError(
                "expected samples, got neither --data nor --samples; name a file, or the table's columns with --samples"
            )
        frame = frame.rename(columns=str)
        return from_frame(frame[chosen_columns(patterns, columns, [*self.read, *shared])])

    def _open(self, place: Path, frame: Any) -> Any:
        """The samples in a file or folder; the images of a folder are paired with the rows of the table."""
        from gppvae.data.open import open_samples
        from gppvae.data.pairing import pair_images
        from gppvae.data.paths import kind_of
        from gppvae.data.zarr_files import is_zarr_folder

        given = self.options
        column = None if given.image_column is None else utf8(given.image_column)[0]
        if kind_of(place) == "a folder" and not is_zarr_folder(place):
            files, sentence = pair_images(place, frame, column, given.image_size, given.outside)
            _report_pairing(sentence)
            return files
        if column is not None:
            raise ValueError(
                f"expected a folder of images at {place}, found {kind_of(place)}; --image-column is for images only"
            )
        if place.suffix == ".h5ad":
            return self._whole(place)[0]
        if place.suffix.lower() in TABLES:
            return self._sample_table(place, frame)
        if given.samples:
            raise ValueError(f"expected a table of samples together with --samples, got {place}; leave --samples out")
        return open_samples(place, given.image_size, None, given.outside, given.fill_unwritten)

    def _sample_table(self, place: Path, frame: Any) -> Any:
        """Samples in a separate table; columns in both tables must agree row by row."""
        from gppvae.data.files import read_table
        from gppvae.data.named import from_frame
        from gppvae.data.table import id_text

        values = read_table(place, self.ids)
        shared = [] if frame is None else [name for name in values.columns if name in set(frame.columns)]
        if len(values) == (len(values) if frame is None else len(frame)):
            for name in shared:
                ours, theirs = ([id_text(value) for value in table[name]] for table in (values, frame))
                differ = next((n for n in range(len(values)) if ours[n] != theirs[n]), None)
                if differ is not None:
                    raise ValueError(
                        f"expected rows of {place} in the order of the table, got {ours[differ]!r} in column "
                        f"{name!r} of row {differ} instead of {theirs[differ]!r}; put both in one order"
                    )
        if self.options.samples or self.names is not None:
            return self._columns(values, shared)
        return from_frame(values[[name for name in values.columns if name not in shared]])


def fit_data(
    table: Path,
    source: SampleOptions,
    held_out: ValidationOptions,
    kernel: Any,
    seed: int | None,
    names: list[str] | None = None,
    tables_only: bool = False,
) -> tuple[Pair, Pair | None]:
    """Training and validation data, each (samples, table).

    Args:
        kernel: of the model.  seed: of the choice of held-out rows.
        names: of the training samples' values, for a fitted model.
        tables_only: whether to leave out the samples, which are then None.
    """
    from gppvae.data.subset import Subset, hold_out
    from gppvae.data.table import Table
    from gppvae.estimator.settings import columns_of, id_columns, latent_groups

    place, data, fraction = held_out.validation_table, held_out.validation_data, held_out.validation_fraction
    apart = source.data is not None
    if not tables_only and (place is None) != (data is None) and (apart or place is None):
        raise ValueError("expected --validation-table and --validation-data together, got only one of them; give both")
    if fraction is not None and place is not None:
        raise ValueError("expected --validation-fraction or --validation-table, got both; choose one")
    ids = id_columns(kernel)
    inputs = Inputs(source, ids, columns_of(latent_groups(kernel, None)), names)
    samples, frame = (None, inputs.table(table)) if tables_only else inputs.pair(table)
    if place is not None:
        return (samples, frame), (None, inputs.table(place)) if tables_only else inputs.pair(place, data)
    if fraction is None:
        return (samples, frame), None
    kept, held = hold_out(Table(frame), fraction, ids, seed or 0)
    parts = [(None if samples is None else Subset(samples, index), frame.iloc[index]) for index in (kept, held)]
    return parts[0], parts[1]


def _parts(pattern: str, columns: Sequence[str]) -> list[str]:
    """One argument of --samples, split at commas unless it is the name of a column."""
    return [pattern] if pattern in columns else [part.strip() for part in pattern.split(",") if part.strip()]


def _report_pairing(sentence: str) -> None:
    """Report how files were paired with rows: on stderr if only by the order of names, else in the log."""
    from gppvae.training.distributed import first_process

    if not first_process():
        return
    if "in the order of their names" in sentence:
        print(f"gppvae: {sentence}", file=sys.stderr)
    else:
        log.info(sentence)
