"""Commands that use a fitted model: predict, impute, reconstruct, encode, sample, score, explain."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gppvae.cli.errors import one_line_errors
from gppvae.cli.inputs import Inputs
from gppvae.cli.options import OUTPUT, TABLE_HELP, Run, SampleOptions, Shown, option_in, with_options
from gppvae.cli.output import answer, row_bar

if TYPE_CHECKING:
    from gppvae.estimator import GPPVAE

Rows = Annotated[Path, typer.Argument(help="Table of the rows to predict: CSV, TSV, Parquet or .h5ad.")]
Out = Annotated[Path, option_in(OUTPUT, help="Folder for the results, new or empty.")]
Images = Annotated[bool, option_in(OUTPUT, help="Write PNG images of image data.")]
Seed = Annotated[int | None, typer.Option(min=0, help="Seed of the draws.", show_default="seed of the model")]
Spatial = Annotated[str | None, typer.Option(help="Key of coordinates in obsm of an .h5ad file.", show_default="none")]
Table = Annotated[Path, typer.Argument(help=TABLE_HELP)]
SomeTable = Annotated[
    Path | None, typer.Option(help="Table with the column of image names, or with the samples.", show_default="none")
]


INTERVAL_DRAWS = 64


@contextlib.contextmanager
def _fitted(run: Path, out: Path | None = None) -> Iterator[GPPVAE]:
    """The model of a run, with errors inside as one line; the folder for results is checked before it is loaded."""
    with one_line_errors():
        from gppvae.estimator import GPPVAE
        from gppvae.report.predictions import check_free

        if out is not None:
            check_free(out)
        yield GPPVAE.load(run)


@with_options
def predict(
    *,
    run: Run,
    rows: Rows,
    out: Out,
    n_samples: Annotated[
        int, typer.Option(help="Draws of the latents to average over, 2 or more; 0 gives no std.")
    ] = 0,
    include_noise: Annotated[
        bool, typer.Option(help="Give the std of new samples, with noise and errors of the model; needs --n-samples.")
    ] = False,
    interval: Annotated[
        float | None,
        typer.Option(
            help="Level of intervals of new samples, for example 0.9, in low.npy and high.npy; takes --include-noise, "
            f"and {INTERVAL_DRAWS} draws unless --n-samples is given.",
            show_default="none",
        ),
    ] = None,
    seed: Seed = None,
    images: Images = True,
    spatial: Spatial = None,
    shown: Shown,
) -> None:
    """Predict samples at the rows of a table: mean.npy, std.npy, rows.csv, and PNG images or CSV with names.

    Example: gppvae predict runs/threes wanted.csv --out predicted --interval 0.9
    """
    with _fitted(run, out) as model:
        from gppvae.estimator.checks import share
        from gppvae.report.predictions import write_answers

        if interval is not None:
            share("--interval", interval, "0.9")
            n_samples, include_noise = n_samples or INTERVAL_DRAWS, True
        wanted = Inputs.of_model(SampleOptions(spatial=spatial), model).table(rows)
        columns = {str(name): wanted[name].to_numpy() for name in wanted}
        with row_bar("predict", shown):
            ask = functools.partial(model.predict, columns, n_samples, include_noise, seed)
            names = write_answers(out, ask, model, wanted, rows, images, interval)
        _answer_files(shown, out, names, len(wanted), "predictions")


@with_options
def impute(
    *,
    run: Run,
    table: Table,
    out: Out,
    source: SampleOptions,
    n_samples: Annotated[int, typer.Option(help="Draws of the missing values, in draws.npy and draws.csv.")] = 0,
    include_noise: Annotated[bool, typer.Option(help="Include the noise of the values.")] = True,
    seed: Seed = None,
    images: Images = True,
    shown: Shown,
) -> None:
    """Impute missing values of samples: mean.npy, std.npy, rows.csv, and PNG images or CSV with names.

    Empty cells and NA in a table and NaN in an array are missing. Observed values are unchanged.

    Example: gppvae impute runs/visits visits.csv --samples "gene_*" --out filled
    """
    with _fitted(run, out) as model:
        from gppvae.report.predictions import write_answers

        samples, frame = Inputs.of_model(source, model).pair(table)
        with row_bar("impute", shown):
            ask = functools.partial(model.impute, samples, frame, n_samples, include_noise, seed)
            names = write_answers(out, ask, model, frame, table, images)
        _answer_files(shown, out, names, len(frame), "samples")


@with_options
def sample(
    *,
    run: Run,
    rows: Rows,
    out: Out,
    n_samples: Annotated[int, typer.Option(help="Number of draws.")] = 1,
    prior: Annotated[bool, typer.Option("--prior", help="Draw from the prior instead of the posterior.")] = False,
    include_noise: Annotated[bool, typer.Option(help="Draw new samples, with noise and errors of the model.")] = False,
    seed: Seed = None,
    spatial: Spatial = None,
    shown: Shown,
) -> None:
    """Draw functions at the rows of a table: draws.npy of shape (draws, rows, ...) and rows.csv.

    Example: gppvae sample runs/threes wanted.csv --out drawn --n-samples 8
    """
    with _fitted(run, out) as model:
        from gppvae.report.predictions import write_draws

        wanted = Inputs.of_model(SampleOptions(spatial=spatial), model).table(rows)
        with row_bar("sample", shown):
            draw = functools.partial(model.sample, wanted, n_samples, prior, include_noise, seed)
            names = write_draws(out, draw, model, wanted, rows)
        _answer_files(shown, out, names, n_samples, f"draws at {len(wanted)} rows")


@with_options
def reconstruct(
    *,
    run: Run,
    out: Out,
    table: SomeTable = None,
    source: SampleOptions,
    images: Images = True,
    shown: Shown,
) -> None:
    """Reconstruct samples by encoder and decoder: mean.npy, and PNG images or CSV with names.

    Example: gppvae reconstruct runs/threes --data threes.npy --out again
    """
    with _fitted(run, out) as model:
        from gppvae.report.predictions import write_answers

        inputs = Inputs.of_model(source, model)
        given = inputs.samples(table)
        frame = None if table is None else inputs.table(table)
        with row_bar("reconstruct", shown):
            names = write_answers(out, lambda work: model.reconstruct(given, out=work), model, frame, table, images)
        _answer_files(shown, out, names, int(given.shape[0]), "reconstructions")


@with_options
def encode(
    *,
    run: Run,
    out: Out,
    table: SomeTable = None,
    source: SampleOptions,
    shown: Shown,
) -> None:
    """Encode samples: means and standard deviations of the latents, in mean.npy and std.npy.

    Example: gppvae encode runs/threes --data threes.npy --out latents
    """
    with _fitted(run, out) as model:
        samples = Inputs.of_model(source, model).samples(table)
        with row_bar("encode", shown):
            mean, _ = model.encode(samples, return_std=True, out=out)
        words = f"{len(mean)} samples in {mean.shape[1]} latent dimensions in {out}: mean.npy, std.npy"
        result = {"out": out, "files": ["mean.npy", "std.npy"], "n_samples": len(mean), "latent_dim": mean.shape[1]}
        answer(shown, result, words)


@with_options
def score(
    *,
    run: Run,
    table: Table,
    source: SampleOptions,
    shown: Shown,
) -> None:
    """Score samples: mean lower bound on the log probability, in nats.

    Example: gppvae score runs/threes new.csv --data new.npy
    """
    with _fitted(run) as model:
        samples, frame = Inputs.of_model(source, model).pair(table)
        with row_bar("score", shown):
            found = float(model.score(samples, frame))
        words = f"{found:.6g} nats per sample (lower bound on log p, higher is better), {len(frame)} samples"
        answer(shown, {"score": found, "n_samples": len(frame)}, words)


@with_options
def explain(
    *,
    run: Run,
    table: Annotated[Path, typer.Argument(help="Table of the rows to explain, usually the training table.")],
    n_rows: Annotated[int, typer.Option(help="Maximum number of rows, drawn at random.")] = 256,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Seed of the choice of rows.", show_default="seed of the model")
    ] = None,
    spatial: Spatial = None,
    shown: Shown,
) -> None:
    """Show the share of each kernel term in the variance of latents and predictions; --json adds the curves.

    Example: gppvae explain runs/visits visits.csv
    """
    with _fitted(run) as model:
        frame = Inputs.of_model(SampleOptions(spatial=spatial), model).table(table)
        with row_bar("explain", shown):
            found = model.explain(frame, n_rows, seed)
        answer(shown, found.to_json(), repr(found))


def _answer_files(shown: Shown, out: Path, names: list[str], count: int, what: str) -> None:
    answer(shown, {"out": out, "files": names, "count": count}, f"{count} {what} in {out}: {', '.join(names)}")
