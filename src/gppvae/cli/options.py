"""Options shared by commands, as dataclasses: a command with such a parameter gets its fields as options."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import typing
from collections.abc import Callable
from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

SAMPLES, MODEL, TRAINING, VALIDATION, OUTPUT = "Samples", "Model", "Training", "Validation", "Output"

Run = Annotated[Path, typer.Argument(help="Folder of a fitted model.")]
DATA_HELP = (
    "Samples: .npy, HDF5 (faces.h5 or faces.h5:images), .zarr, a folder of images, or a table of numbers "
    "(CSV, TSV, Parquet). Not needed with --samples or an .h5ad table."
)
TABLE_HELP = "Table with one row per sample and the columns of the kernel: CSV, TSV, Parquet or .h5ad."


def option_in(panel: str, *names: str, **more: Any) -> Any:
    return typer.Option(*names, rich_help_panel=panel, **more)


@dataclass
class SampleOptions:
    """Source and format of the samples."""

    data: Annotated[Path | None, option_in(SAMPLES, help=DATA_HELP, show_default="in the table")] = None
    samples: Annotated[
        list[str] | None,
        option_in(
            SAMPLES,
            help='Columns that hold the samples, by name or pattern ("gene_*"); may be repeated.',
            show_default="all of --data",
        ),
    ] = None
    layer: Annotated[str | None, option_in(SAMPLES, help="Layer of an .h5ad file.", show_default="X")] = None
    spatial: Annotated[
        str | None,
        option_in(SAMPLES, help="Key of coordinates (x, y, z) in obsm of an .h5ad file.", show_default="none"),
    ] = None
    image_column: Annotated[
        str | None,
        option_in(
            SAMPLES,
            help="Column of the table with the file names of the images.",
            show_default="found by the names of the files",
        ),
    ] = None
    image_size: Annotated[
        tuple[int, int] | None,
        option_in(SAMPLES, help="Height and width to resize images to.", show_default="not resized"),
    ] = None
    outside: Annotated[
        bool,
        option_in(SAMPLES, "--outside", help="Allow image names and HDF5 links to files elsewhere."),
    ] = False
    fill_unwritten: Annotated[
        bool,
        option_in(
            SAMPLES,
            "--fill-unwritten",
            help="Use the fill value for parts of HDF5 and Zarr arrays that are not stored.",
        ),
    ] = False


@dataclass
class ValidationOptions:
    """Held-out rows."""

    validation_fraction: Annotated[
        float | None, option_in(VALIDATION, help="Fraction of the rows held out at random.", show_default="none")
    ] = None
    validation_table: Annotated[
        Path | None, option_in(VALIDATION, help="Table of held-out rows.", show_default="none")
    ] = None
    validation_data: Annotated[
        Path | None, option_in(VALIDATION, help="Held-out samples, as for --data.", show_default="in their table")
    ] = None


@dataclass
class Shown:
    """Format of a command's output."""

    as_json: Annotated[bool, option_in(OUTPUT, "--json", help="Print the result as one JSON object.")] = False
    quiet: Annotated[bool, option_in(OUTPUT, "--quiet", "-q", help="Hide progress bars.")] = False


def with_options(function: Callable[..., None]) -> Callable[..., None]:
    """Replace every parameter with a dataclass type by the fields of the dataclass."""
    hints = typing.get_type_hints(function, include_extras=True)
    parameters: list[inspect.Parameter] = []
    groups: dict[str, type] = {}
    for name, parameter in inspect.signature(function).parameters.items():
        if not dataclasses.is_dataclass(hints[name]):
            parameters.append(parameter.replace(annotation=hints[name], kind=inspect.Parameter.KEYWORD_ONLY))
            continue
        groups[name] = typing.cast(type, hints[name])
        types = typing.get_type_hints(groups[name], include_extras=True)
        for field in dataclasses.fields(groups[name]):
            default = inspect.Parameter.empty if field.default is MISSING else field.default
            kind = inspect.Parameter.KEYWORD_ONLY
            parameters.append(inspect.Parameter(field.name, kind, default=default, annotation=types[field.name]))

    @functools.wraps(function)
    def command(**given: Any) -> None:
        for name, group in groups.items():
            given[name] = group(**{field.name: given.pop(field.name) for field in dataclasses.fields(group)})
        function(**given)

    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    del command.__wrapped__  # typer would follow it
    return command
