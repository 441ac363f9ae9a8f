"""The command line: parse, call, print. Everything heavy is imported inside the commands, so help is quick."""

from __future__ import annotations

import contextlib
import contextvars
import errno
import logging
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import typer

FAULT, BAD_INPUT, TRAINING_FAILED, INTERRUPTED = 1, 2, 3, 130
IMAGE_COLUMN_HELP = "Column of the table with the images' file names; found by itself where one fits the files."
IMAGE_SIZE_HELP = "Height and width to resize images to."
OUTSIDE_HELP = "Let image names and HDF5 links lead out of the folder or file that was named."
FILL_HELP = "Read parts of HDF5 and Zarr arrays that are not stored as their fill value."

_debug = contextvars.ContextVar("debug", default=False)
log = logging.getLogger("gppvae")

app = typer.Typer(
    name="gppvae",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def main() -> None:
    """Entry point of the command `gppvae` and of `python -m gppvae`."""
    for stream in (sys.stdout, sys.stderr):
        if getattr(stream, "errors", None) == "strict":  # names of files may hold what the terminal cannot show
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    app(prog_name="gppvae")


@contextlib.contextmanager
def one_sentence(continues: bool = False) -> Iterator[None]:
    """Turn whatever is raised inside into one line on stderr and an exit code; `--debug` shows the trace as well.

    Args:
        continues: whether the same command continues an interrupted run.
    """
    try:
        yield
    except (typer.Exit, typer.Abort):
        raise
    except KeyboardInterrupt:
        _stop("stopped" + ("; type the same command again to continue" if continues else ""), INTERRUPTED)
    except Exception as error:
        if isinstance(error, OSError) and error.errno == errno.EPIPE:
            raise  # the reader of a pipe has left; nobody is there to be told
        if _debug.get():
            traceback.print_exc()
        _stop(_sentence(error), _exit_code(error))


def _stop(sentence: str, code: int) -> None:
    print(f"gppvae: {sentence}", file=sys.stderr)
    raise typer.Exit(code) from None


def _exit_code(error: Exception) -> int:
    from gppvae.training.loop import TrainingError

    if isinstance(error, TrainingError):
        return TRAINING_FAILED
    return BAD_INPUT if isinstance(error, (ValueError, TypeError, OSError)) else FAULT


def _sentence(error: Exception) -> str:
    from gppvae.data.atomic import NO_SPACE

    text = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, OSError) and error.strerror:
        text = error.strerror if error.filename is None else f"{error.strerror}: {error.filename}"
        kept = "; what was saved before is kept: free some space and type the same command again"
        return text + (kept if error.errno in NO_SPACE else "")
    if isinstance(error, MemoryError) or "can't allocate memory" in text or "out of memory" in text:
        return "not enough memory; use a smaller --batch-size, smaller images or a narrower network"
    if _exit_code(error) == FAULT:
        return (
            f"a fault of gppvae itself ({type(error).__name__}: {text[:200]}); please report it with what "
            "`gppvae --debug` and the same words print"
        )
    return text


def _show_version(wanted: bool) -> None:
    if wanted:
        from gppvae import __version__

        print(f"gppvae {__version__}")
        raise typer.Exit


@app.callback()
def common(
    version: bool = typer.Option(False, "--version", callback=_show_version, is_eager=True, help="Show the version."),
    debug: bool = typer.Option(False, "--debug", help="Show where an error comes from; stands before the command."),
) -> None:
    """Gaussian process prior VAEs: latent spaces that covary as a kernel over your table says.

    [bold]gppvae demo[/bold] trains on digits that come with the package and ends in a report page.

    [bold]gppvae fit[/bold] table.csv --data images.npy --kernel "Learned(person, 64) * FreeForm(pose)" --out runs/faces

    [bold]gppvae predict[/bold] runs/faces wanted.csv --out predicted
    """
    _debug.set(debug)


@app.command()
def demo(
    out: Path = typer.Option(Path("runs/demo"), help="Folder for the run; an earlier demo in it is replaced."),
    seed: int = typer.Option(0, min=0, help="Decides the digits and the start of the training."),
    quiet: bool = typer.Option(False, "--quiet", "-q", help="No progress bars."),
) -> None:
    """Learn to rotate handwritten threes and predict them at an angle never seen (two minutes on two cores).

    An interrupted demo continues where it stopped when the command is typed again.
    """
    with one_sentence(continues=True):
        from gppvae.demo import run_demo

        result = run_demo(out, seed, progress=not quiet)
        _print_scores(result.mse, f"MSE at {result.digits.held_out_angle:g} degrees, held out")
        print(f"report: {result.page}")


@app.command()
def fit(
    table: Path = typer.Argument(help="CSV table, one row per sample; its columns are those the kernel names."),
    data: Path = typer.Option(
        ...,
        help="Samples: a .npy file, an HDF5 file (faces.h5 or faces.h5:images), a .zarr array or a folder of images.",
    ),
    kernel: list[str] = typer.Option(
        ...,
        help='Over columns, for example "Learned(person, 64) * FreeForm(pose)". Several make groups of latents, each '
        'with its number: --kernel "RBF(age): 12" --kernel "none: 4".',
    ),
    out: Path = typer.Option(..., help="Run folder to make."),
    latent_dim: int | None = typer.Option(None, help="Latent dimensions."),
    network: str | None = typer.Option(None, help="auto, conv, wide, faces or mlp."),
    width: int | None = typer.Option(None, help="Channels of every layer of the network."),
    inference: str | None = typer.Option(None, help="global, leave_out, minibatch, posterior or exact."),
    schedule: str | None = typer.Option(None, help="joint or disjoint."),
    likelihood: str | None = typer.Option(None, help="gaussian, bernoulli, negative_binomial or perceptual."),
    pixel_var: float | None = typer.Option(None, help="Noise variance of the Gaussian likelihood."),
    feature_weights: Path | None = typer.Option(None, help="VGG19 weights of perceptual: .pth or .safetensors."),
    feature_layers: str | None = typer.Option(None, help="Its layers, for example relu1_1=1,relu2_1=0.5."),
    epochs: int | None = typer.Option(None, help="Passes over the data."),
    warmup_epochs: int | None = typer.Option(None, help="Passes of the VAE warm-up."),
    gp_epochs: int | None = typer.Option(None, help="Steps of the GP-only phase."),
    lr: float | None = typer.Option(None, help="Learning rate of the networks."),
    prior_lr: float | None = typer.Option(None, help="Learning rate of the prior."),
    batch_size: int | None = typer.Option(None, help="Samples per step."),
    patience: int | None = typer.Option(None, help="Validations without improvement before a phase stops."),
    channels: str | None = typer.Option(None, help="first or last, for arrays of four dimensions."),
    missing: str | None = typer.Option(None, help="error, or mask for NaN that means not observed."),
    seed: int | None = typer.Option(None, help="Makes the fit repeatable."),
    device: str | None = typer.Option(None, help="For example cuda; chosen when not given."),
    validation_fraction: float | None = typer.Option(None, help="Share of the rows held out at random."),
    validation_table: Path | None = typer.Option(None, help="CSV table of rows that are not trained on."),
    validation_data: Path | None = typer.Option(None, help="Their samples, of any kind that --data takes."),
    image_column: str | None = typer.Option(None, help=IMAGE_COLUMN_HELP),
    image_size: tuple[int, int] | None = typer.Option(None, help=IMAGE_SIZE_HELP),
    outside: bool = typer.Option(False, "--outside", help=OUTSIDE_HELP),
    fill_unwritten: bool = typer.Option(False, "--fill-unwritten", help=FILL_HELP),
    checkpoint_seconds: float = typer.Option(30.0, min=0.0, help="Least time between checkpoints."),
    page: bool = typer.Option(True, "--report/--no-report", help="Write report.html and figures at the end."),
    quiet: bool = typer.Option(False, "--quiet", "-q", help="No progress bars."),
    verbose: bool = typer.Option(False, "--verbose", "-v", help="Say how features are made and what was chosen."),
) -> None:
    """Fit a model to samples and the table that says what they are.

    Typing the same command again continues a run that was stopped. What is not given keeps its default (see GPPVAE).

    Example: gppvae fit threes.csv --data threes.npy --kernel "Learned(digit, 8) * Periodic(angle, 360)"
    --validation-fraction 0.1 --out runs/threes

    Under torchrun the same words train on several processes: torchrun --nproc-per-node 4 -m gppvae fit ...
    """
    given = {name: value for name, value in locals().items() if name in _ESTIMATOR_OPTIONS and value is not None}
    with one_sentence(continues=True):
        from gppvae.estimator import GPPVAE
        from gppvae.estimator.settings import groups_from_words
        from gppvae.likelihoods import perceptual_from_file
        from gppvae.report.describe import REPORT
        from gppvae.training.distributed import first_process
        from gppvae.training.folder import RunFolder

        if verbose:
            logging.basicConfig(format="%(message)s")
            logging.getLogger("gppvae").setLevel(logging.INFO)
        folder = RunFolder(out)
        folder.check_writable()
        if not page or (out / REPORT).exists():
            folder.check_unfinished()
        written, opened = groups_from_words(_utf8(*kernel)), _opener(image_column, image_size, outside, fill_unwritten)
        pairs = (table, data), (validation_table, validation_data)
        train, validation = _fit_data(*pairs, written, validation_fraction, seed, opened)
        if folder.finished():  # stopped after the fit, before its report
            model = GPPVAE.load(out)
        else:
            if likelihood == "perceptual" or feature_weights or feature_layers:
                given["likelihood"] = perceptual_from_file(likelihood, feature_weights, feature_layers, pixel_var)
            model = GPPVAE(written, **given)
            model.fit(*train, validation=validation, out=out, progress=not quiet, checkpoint_seconds=checkpoint_seconds)
        if not first_process():
            return
        print(f"trained on {len(train[1])} samples of shape {model.shape_} in {model.fit_seconds_:.0f} s")
        print(f"model:  {out}")
        if page:
            from gppvae.report.run import write_report

            print(f"report: {write_report(out, model, train=train, test=validation, title=_utf8(out.name)[0])}")


_ESTIMATOR_OPTIONS = (
    "latent_dim", "network", "width", "inference", "schedule", "likelihood", "pixel_var", "epochs",
    "warmup_epochs", "gp_epochs", "lr", "prior_lr", "batch_size", "patience", "channels", "missing", "seed", "device",
)  # fmt: skip


@app.command()
def predict(
    run: Path = typer.Argument(help="Folder of a fitted model."),
    rows: Path = typer.Argument(help="CSV table of the rows wanted."),
    out: Path = typer.Option(..., help="Folder for the predictions; must not hold any yet."),
    n_samples: int = typer.Option(0, help="Draws of the latents to average over; 0 gives no std.npy."),
    include_noise: bool = typer.Option(False, help="Count the noise of the samples themselves in std.npy."),
    seed: int | None = typer.Option(None, min=0, help="Of the draws; that of the model when not given."),
    images: bool = typer.Option(True, help="Draw PNG images of image data."),
) -> None:
    """Predict samples at the rows of a table: mean.npy, std.npy, rows.csv and PNG images.

    Example: gppvae predict runs/threes wanted.csv --out predicted --n-samples 64
    """
    with one_sentence():
        from gppvae.data.files import read_table
        from gppvae.estimator import GPPVAE
        from gppvae.estimator.settings import id_columns
        from gppvae.report.predictions import check_free, write_predictions

        check_free(out)
        model = GPPVAE.load(run)
        wanted = read_table(rows, id_columns(model.kernel))
        ask = lambda work: model.predict(wanted, n_samples, include_noise, seed, work)  # noqa: E731
        names = write_predictions(out, ask, rows.read_bytes(), images, model.layout_)
        print(f"{len(wanted)} predictions in {out}: {', '.join(names)}")


@app.command()
def encode(
    run: Path = typer.Argument(help="Folder of a fitted model."),
    data: Path = typer.Option(..., help="Samples, of any kind that `gppvae fit --data` takes."),
    out: Path = typer.Option(..., help="Folder for mean.npy and std.npy; must not hold any yet."),
    table: Path | None = typer.Option(None, help="CSV table with the column of image names, where there is one."),
    image_column: str | None = typer.Option(None, help=IMAGE_COLUMN_HELP),
    image_size: tuple[int, int] | None = typer.Option(None, help=IMAGE_SIZE_HELP),
    outside: bool = typer.Option(False, "--outside", help=OUTSIDE_HELP),
    fill_unwritten: bool = typer.Option(False, "--fill-unwritten", help=FILL_HELP),
) -> None:
    """Encode samples: means and standard deviations of their latents, in mean.npy and std.npy.

    Example: gppvae encode runs/threes --data threes.npy --out latents
    """
    with one_sentence():
        from gppvae.data.files import read_table
        from gppvae.estimator import GPPVAE

        model = GPPVAE.load(run)
        opened = _opener(image_column, image_size, outside, fill_unwritten)
        samples = opened(data, None if table is None else read_table(table))
        mean, _ = model.encode(samples, return_std=True, out=out)
        print(f"{len(mean)} samples in {mean.shape[1]} latent dimensions in {out}: mean.npy, std.npy")


@app.command()
def info(run: Path = typer.Argument(help="Folder of a fitted model.")) -> None:
    """Show what a fitted model is: settings, kernel with what it learned, columns, final metrics."""
    with one_sentence():
        from gppvae.estimator import GPPVAE
        from gppvae.report import describe

        model = GPPVAE.load(run)
        ends = [
            (f"{phase}, {epoch}", "  ".join(f"{name} {value:.4g}" for name, value in values.items()))
            for phase, epoch, values in describe.final_metrics(model.history_)
        ]
        facts = [(name, str(value)) for name, value in describe.run_facts(run, model).items()]
        _print_pairs("model", [("kernel", describe.kernel_text(model)), ("shape of a sample", str(model.shape_))])
        _print_pairs("learned", describe.kernel_rows(model))
        _print_pairs("columns", describe.column_rows(model))
        _print_pairs("phases", describe.phase_rows(model))
        _print_pairs("end of training", ends)
        _print_pairs("settings", describe.settings_rows(model))
        _print_pairs("run", facts)


@app.command()
def report(run: Path = typer.Argument(help="Folder of a fitted model.")) -> None:
    """Write report.html and figures/ of a run again, from the run folder alone."""
    with one_sentence():
        from gppvae.report.run import write_report

        print(f"report: {write_report(run, title=_utf8(run.name)[0])}")


@app.command(
    add_help_option=False,
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True, "allow_interspersed_args": False},
)
def reproduce(words: typer.Context) -> None:
    """Repeat an experiment of the paper: its numbers and its figures."""
    from gppvae.paper.commands import reproduce_app

    reproduce_app(one_sentence)(words.args, prog_name=words.command_path)


@app.command(
    add_help_option=False,
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True, "allow_interspersed_args": False},
)
def bench(words: typer.Context) -> None:
    """Measure the package on public data, with nothing but a kernel."""
    from gppvae.bench.commands import bench_app

    bench_app(one_sentence)(words.args, prog_name=words.command_path)


def _utf8(*words: str) -> list[str]:
    """Words of the command line as they were typed, also where the locale is C and Python took them for bytes."""
    return [os.fsencode(word).decode("utf-8", "replace") for word in words]


def _opener(
    image_column: str | None, image_size: tuple[int, int] | None, outside: bool, fill_unwritten: bool
) -> Callable[[Path, Any], Any]:
    """Opens samples; those of an image folder belong to the rows of their table that name them."""
    from gppvae.data.open import open_samples
    from gppvae.data.pairing import pair_images
    from gppvae.data.paths import kind_of
    from gppvae.data.zarr_files import is_zarr_folder

    column = None if image_column is None else _utf8(image_column)[0]

    def opened(data: Path, frame: Any) -> Any:
        if kind_of(data) == "a folder" and not is_zarr_folder(data):
            files, sentence = pair_images(data, frame, column, image_size, outside)
            _tell_pairing(sentence)
            return files
        if column is not None:
            raise ValueError(f"expected a folder of images at {data}, got a file; --image-column is for images only")
        return open_samples(data, image_size, None, outside, fill_unwritten)

    return opened


def _tell_pairing(sentence: str) -> None:
    """Say how files were paired with rows: always where only the order of names says so, else with --verbose."""
    from gppvae.training.distributed import first_process

    if not first_process():
        return
    if "in the order of their names" in sentence:
        print(f"gppvae: {sentence}", file=sys.stderr)
    else:
        log.info(sentence)


Pair = tuple[Any, Any]


def _fit_data(
    training: tuple[Path, Path],
    validation: tuple[Path | None, Path | None],
    kernel: Any,
    fraction: float | None,
    seed: int | None,
    opened: Callable[[Path, Any], Any],
) -> tuple[Pair, Pair | None]:
    """Training and validation data, each (samples, table), from (table, data) each."""
    from gppvae.data.files import read_table
    from gppvae.data.subset import Subset, hold_out
    from gppvae.data.table import Table
    from gppvae.estimator.settings import id_columns

    def pair(table: Path, data: Path) -> Pair:
        frame = read_table(table, ids)
        samples = opened(data, frame)
        n_samples = samples.shape[0] if samples.shape else 0
        if n_samples != len(frame):
            raise ValueError(
                f"expected one row of {table} per sample of {data}, got {len(frame)} rows and {n_samples} samples"
            )
        return samples, frame

    if (validation[0] is None) != (validation[1] is None):
        raise ValueError("expected --validation-table and --validation-data together, got only one of them; give both")
    if fraction is not None and validation[0] is not None:
        raise ValueError("expected --validation-fraction or --validation-table, got both; choose one")
    ids = id_columns(kernel)
    samples, frame = pair(*training)
    if validation[0] is not None and validation[1] is not None:
        return (samples, frame), pair(validation[0], validation[1])
    if fraction is None:
        return (samples, frame), None
    kept, held = hold_out(Table(frame), fraction, ids, seed or 0)
    return (Subset(samples, kept), frame.iloc[kept]), (Subset(samples, held), frame.iloc[held])


def _print_scores(mse: dict[str, float], title: str) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    table.add_column("method")
    table.add_column("MSE", justify="right")
    for number, (name, value) in enumerate(mse.items()):
        table.add_row(name, f"{value:.4f}", style="bold" if number == 0 else "")
    Console().print(table)


def _print_pairs(title: str, pairs: list[tuple[str, str]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    if not pairs:
        return
    table = Table(title=title, title_justify="left", title_style="bold", show_header=False, box=None, pad_edge=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in pairs:
        table.add_row(Text(name), Text(value))
    Console().print(table, "")
