"""`gppvae explore`: the options of the command, and the data that they name."""

from __future__ import annotations

import contextlib
import importlib.util
import webbrowser
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from gppvae.estimator import GPPVAE
    from gppvae.explore.sources import Source


def register(app: typer.Typer, one_sentence: Callable[[], AbstractContextManager[None]]) -> None:
    """Add the command to `gppvae`.

    Args:
        app: of the command line.  one_sentence: turns errors into one line and an exit code.
    """

    @app.command()
    def explore(
        run: Path = typer.Argument(help="Folder of a fitted model."),
        table: Path | None = typer.Option(
            None, help="CSV table that the model was fitted to: shows what was measured."
        ),
        data: Path | None = typer.Option(None, help="Its samples, of any kind that `gppvae fit --data` takes."),
        validation_table: Path | None = typer.Option(None, help="CSV table of rows that were not trained on."),
        validation_data: Path | None = typer.Option(None, help="Their samples."),
        validation_fraction: float | None = typer.Option(None, help="As given to `gppvae fit`, for the same split."),
        value_names: Path | None = typer.Option(None, help="Text file: a name per value of a vector, one per line."),
        image_column: str | None = typer.Option(None, help="Column of the tables with the images' file names."),
        image_size: tuple[int, int] | None = typer.Option(None, help="Height and width to resize images to."),
        outside: bool = typer.Option(False, "--outside", help="Let names lead out of the folder or file named."),
        fill_unwritten: bool = typer.Option(False, "--fill-unwritten", help="Read what is not stored as fill values."),
        port: int = typer.Option(0, min=0, max=65535, help="Port on this machine; a free one when 0."),
        browser: bool = typer.Option(True, "--browser/--no-browser", help="Open the page in the browser."),
    ) -> None:
        """Look at a fitted model on a live page: pick a cell, drag a slider, switch terms off, drop in a new object.

        The page is on this machine only, at an address with a random token. Ctrl-C ends it; nothing is written.

        Example: gppvae explore runs/faces --table faces.csv --data photos/
        """
        with one_sentence():
            from gppvae.estimator import GPPVAE

            needs_extra()
            model = GPPVAE.load(run)
            options = {"column": image_column, "size": image_size, "outside": outside, "fill": fill_unwritten}
            pairs = (table, data), (validation_table, validation_data)
            source = find_source(run, model, pairs, validation_fraction, options)
            source.names = read_names(value_names, model.shape_)
            serve(run, model, source, port, browser)


def needs_extra() -> None:
    """Raise ValueError, with what to type, unless the server's packages are installed."""
    missing = [name for name in ("starlette", "uvicorn") if importlib.util.find_spec(name) is None]
    if missing:
        raise ValueError(f"gppvae explore needs {' and '.join(missing)}; type: pip install 'gppvae[explore]'")


def find_source(
    run: Path,
    model: GPPVAE,
    pairs: tuple[tuple[Path | None, Path | None], tuple[Path | None, Path | None]],
    fraction: float | None,
    options: dict[str, Any],
) -> Source:
    """The data that the options name; those of the demo need no options.

    Args:
        pairs: (table, samples) of training and of validation.  fraction: of the rows, held out by `gppvae fit`.
        options: of `open_data`.
    """
    from gppvae.data.files import read_table
    from gppvae.data.subset import Subset, hold_out
    from gppvae.data.table import Table
    from gppvae.estimator.settings import id_columns
    from gppvae.explore.sources import Source, demo_source, make_part, other_data

    ids = id_columns(model.kernel)
    for table, data in pairs:
        if table is None and data is not None:
            raise ValueError(f"expected a table that says what the samples of {data} are, got none; give --table")
    (table, data), (held_table, held_data) = pairs
    if table is None and held_table is None:
        if fraction is not None:
            raise ValueError("expected --table beside --validation-fraction, got none; give the table of the fit")
        return demo_source(run, model) or Source()
    source = Source()
    if table is not None:
        frame = read_table(table, ids)
        samples = None if data is None else open_data(data, frame, **options)
        if fraction is None:
            source.train = make_part(model, frame, samples)
        else:
            if held_table is not None:
                raise ValueError("expected --validation-fraction or --validation-table, got both; choose one")
            kept, held = hold_out(Table(frame), fraction, ids, model.seed)
            parts = [(rows, None if samples is None else Subset(samples, rows)) for rows in (kept, held)]
            source.train, source.held = (make_part(model, frame.iloc[rows], own) for rows, own in parts)
        source.notes += other_data(run, model, source.train)
    if held_table is not None:
        frame = read_table(held_table, ids)
        samples = None if held_data is None else open_data(held_data, frame, **options)
        source.held = make_part(model, frame, samples)
    return source


def open_data(
    data: Path, frame: Any, column: str | None, size: tuple[int, int] | None, outside: bool, fill: bool
) -> Any:
    """Samples from a path; those of a folder of images belong to the rows that name them."""
    from gppvae.data.open import open_samples
    from gppvae.data.pairing import pair_images
    from gppvae.data.paths import kind_of
    from gppvae.data.zarr_files import is_zarr_folder

    if kind_of(data) == "a folder" and not is_zarr_folder(data):
        return pair_images(data, frame, column, size, outside)[0]
    return open_samples(data, size, None, outside, fill)


def read_names(path: Path | None, shape: tuple[int, ...]) -> list[str]:
    """Names of the values of a vector, one per line."""
    if path is None:
        return []
    names = path.read_text("utf-8").splitlines()
    if len(shape) != 1 or len(names) != shape[0]:
        raise ValueError(f"expected a name for each value of samples of shape {shape}, got {len(names)} in {path}")
    return names


def serve(run: Path, model: GPPVAE, source: Source, port: int, browser: bool) -> None:
    """Run the server until Ctrl-C."""
    from gppvae.explore.answers import Answers
    from gppvae.explore.server import LiveServer

    title = run.resolve().name.encode("utf-8", "replace").decode()
    server = LiveServer(Answers(model, source, title, str(run)), port)
    print(f"live page: {server.address}  (Ctrl-C ends it)", flush=True)
    if browser:
        webbrowser.open(server.address)
    with contextlib.suppress(KeyboardInterrupt):  # how the page is meant to end
        server.run()
