"""Commands that train: demo, fit."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gppvae.cli.errors import one_line_errors
from gppvae.cli.inputs import fit_data
from gppvae.cli.options import (
    MODEL,
    OUTPUT,
    SAMPLES,
    TABLE_HELP,
    TRAINING,
    VALIDATION,
    SampleOptions,
    Shown,
    ValidationOptions,
    option_in,
    with_options,
)
from gppvae.cli.output import answer, print_scores, utf8

if TYPE_CHECKING:
    import pandas as pd

    from gppvae.estimator import GPPVAE


@with_options
def demo(
    *,
    out: Path = typer.Option(Path("runs/demo"), help="Run folder; an earlier demo in it is replaced."),
    seed: int = typer.Option(0, min=0, help="Seed of the digits and of the training."),
    shown: Shown,
) -> None:
    """Learn to rotate handwritten threes and predict them at an unseen angle (two minutes on two cores).

    Run the command again to continue an interrupted demo.
    """
    with one_line_errors(resumable=True):
        from gppvae.demo import run_demo

        result = run_demo(out, seed, progress=not shown.quiet)
        if not shown.as_json:
            print_scores(result.mse, f"MSE at {result.digits.held_out_angle:g} degrees, held out")
        answer(shown, {"mse": result.mse, "report": result.page}, f"report: {result.page}")


def _setting(panel: str, default: str, text: str, values: str = "") -> Any:
    """An option of `fit` with the default of GPPVAE; the shell completes its values."""
    complete = (lambda: values.split()) if values else None
    return option_in(panel, help=text, show_default=default, autocompletion=complete)


def _choice(panel: str, values: str) -> Any:
    """An option that takes one of several values; the first is the default."""
    *most, last = values.split()
    return _setting(panel, values.split()[0], f"{', '.join(most)} or {last}.", values)


@dataclass
class FitSettings:
    """Settings of GPPVAE as options; None leaves a setting to GPPVAE. The defaults here are for --help only."""

    latent_dim: Annotated[int | None, _setting(MODEL, "chosen from the data", "Latent dimensions.")] = None
    network: Annotated[str | None, _choice(MODEL, "auto image vector conv wide faces mlp")] = None
    width: Annotated[int | None, _setting(MODEL, "depends on the network", "Channels of the network's layers.")] = None
    members: Annotated[
        int | None,
        _setting(MODEL, "chosen from the data", "Networks of an ensemble, which divide the latents among them."),
    ] = None
    likelihood: Annotated[str | None, _choice(MODEL, "gaussian bernoulli negative_binomial poisson perceptual")] = None
    pixel_var: Annotated[
        float | None, _setting(MODEL, "measured at held-out rows", "Noise variance of the Gaussian likelihood.")
    ] = None
    alpha: Annotated[float | None, _setting(MODEL, "depends on the inference", "Initial latent noise variance.")] = None
    inference: Annotated[str | None, _choice(TRAINING, "auto leave_out global minibatch posterior exact")] = None
    schedule: Annotated[
        str | None,
        _setting(TRAINING, "joint", "joint, or disjoint to keep the networks of the warm-up.", "joint disjoint"),
    ] = None
    epochs: Annotated[int | None, _setting(TRAINING, "chosen from the data", "Passes over the data.")] = None
    warmup_epochs: Annotated[int | None, _setting(TRAINING, "50", "Epochs of the VAE warm-up.")] = None
    gp_epochs: Annotated[int | None, _setting(TRAINING, "100", "Steps of the GP-only phase.")] = None
    lr: Annotated[float | None, _setting(TRAINING, "depends on the inference", "Learning rate of the networks.")] = None
    prior_lr: Annotated[float | None, _setting(TRAINING, "depends on the inference", "Learning rate of the prior.")] = (
        None
    )
    phases: Annotated[
        Path | None,
        _setting(TRAINING, "those of the inference", "JSON list of phases, instead of inference, epochs and rates."),
    ] = None
    batch_size: Annotated[int | None, _setting(TRAINING, "chosen from the data", "Samples per step.")] = None
    seed: Annotated[int | None, _setting(TRAINING, "0", "Seed of the fit.")] = None
    device: Annotated[str | None, _setting(TRAINING, "the best available", "For example cuda.")] = None
    patience: Annotated[
        int | None,
        _setting(
            VALIDATION, "chosen with auto, else no limit", "Validations without improvement before a phase stops."
        ),
    ] = None
    validate_every: Annotated[
        int | None, _setting(VALIDATION, "a 50th of the longest phase", "Epochs between validations.")
    ] = None
    hold_out: Annotated[
        float | None,
        _setting(VALIDATION, "a few per cent with auto, else none", "Share of the rows held out to measure errors."),
    ] = None
    channels: Annotated[
        str | None, _setting(SAMPLES, "first", "first or last, for four-dimensional arrays.", "first last")
    ] = None
    scale: Annotated[
        float | None, _setting(SAMPLES, "images to [0, 1], else 1", "Factor on the values of the samples.")
    ] = None
    missing: Annotated[
        str | None, _setting(SAMPLES, "error", "error, or mask to treat NaN as not observed.", "error mask")
    ] = None


@dataclass
class LikelihoodOptions:
    """Options of single likelihoods: sizes of counts, the network of the perceptual likelihood."""

    size: Annotated[str | None, _setting(MODEL, "sample totals", "Column with the sizes of count samples.")] = None
    feature_weights: Annotated[
        Path | None, _setting(MODEL, "none", "VGG19 weights for perceptual: .pth or .safetensors.")
    ] = None
    feature_layers: Annotated[
        str | None,
        _setting(MODEL, "as in Hou et al.", "VGG19 layers and their weights, for example relu1_1=1,relu2_1=0.5."),
    ] = None


@with_options
def fit(
    *,
    table: Annotated[Path, typer.Argument(help=TABLE_HELP)],
    kernel: list[str] = typer.Option(
        ...,
        help='Kernel over columns, for example "Learned(person, 64) * FreeForm(pose)". Repeat it for groups of latents '
        'with their sizes: --kernel "RBF(age): 12" --kernel "none: 4". `gppvae kernels` lists the kernels.',
    ),
    out: Path = typer.Option(..., help="Run folder to create."),
    source: SampleOptions,
    settings: FitSettings,
    of_likelihood: LikelihoodOptions,
    held_out: ValidationOptions,
    checkpoint_seconds: Annotated[
        float, option_in(OUTPUT, min=0.0, help="Minimum number of seconds between checkpoints.")
    ] = 30.0,
    page: Annotated[
        bool, option_in(OUTPUT, "--report/--no-report", help="Write report.html and figures at the end.")
    ] = True,
    verbose: Annotated[
        bool, option_in(OUTPUT, "--verbose", "-v", help="Log the features and the chosen settings.")
    ] = False,
    shown: Shown,
) -> None:
    """Fit a model to samples and their table.

    Run the same command again to continue an interrupted run.

    Example: gppvae fit threes.csv --data threes.npy --kernel "Learned(digit, 8) * Periodic(angle, 360)"
    --validation-fraction 0.1 --out runs/threes

    Samples in the table itself: gppvae fit visits.csv --samples "gene_*" --kernel "Learned(subject) * RBF(age)"
    --out runs/visits

    Under torchrun the same command trains on several processes: torchrun --nproc-per-node 4 -m gppvae fit ...
    """
    with one_line_errors(resumable=True):
        from gppvae.estimator import GPPVAE
        from gppvae.estimator.settings import groups_from_words
        from gppvae.report.describe import REPORT, final_metrics
        from gppvae.training.distributed import first_process
        from gppvae.training.folder import RunFolder

        if verbose:
            logging.basicConfig(format="%(message)s")
            logging.getLogger("gppvae").setLevel(logging.INFO)
        folder = RunFolder(out)
        folder.check_writable()
        if not page or (out / REPORT).exists():
            folder.check_unfinished()
        groups = groups_from_words(utf8(*kernel))
        train, validation = fit_data(table, source, held_out, groups, settings.seed)
        wanted = GPPVAE(groups, **_given(settings, of_likelihood))
        if folder.finished() and not _is_fit(out, wanted, *train):
            folder.check_unfinished()
        if folder.finished():  # interrupted between fit and report
            model = GPPVAE.load(out)
        else:
            model = wanted.fit(
                *train,
                validation=validation,
                out=out,
                progress=not shown.quiet,
                checkpoint_seconds=checkpoint_seconds,
            )
        if not first_process():
            return
        result = {"model": out, "n_samples": len(train[1]), "shape": model.shape_, "seconds": model.fit_seconds_}
        words = f"trained on {len(train[1])} samples of shape {model.shape_} in {model.fit_seconds_:.0f} s"
        lines = [words, f"model:  {out}"]
        if page:
            from gppvae.report.run import write_report

            result["report"] = write_report(out, model, train=train, test=validation, title=utf8(out.name)[0])
            lines.append(f"report: {result['report']}")
        metrics = {phase: values for phase, _, values in final_metrics(model.history_)}
        answer(shown, result | {"metrics": metrics}, *lines)


def _is_fit(out: Path, wanted: GPPVAE, samples: Any, frame: pd.DataFrame) -> bool:
    """Whether the finished run in a folder has the settings of `wanted` and was fitted to these data."""
    from gppvae.data.run_files import CONFIG
    from gppvae.data.table import Table
    from gppvae.estimator import GPPVAE
    from gppvae.estimator.settings import settings_of
    from gppvae.training.folder import read_config

    if not (out / CONFIG).exists():  # a model that was only saved
        return False
    before = read_config(out)["settings"]
    if before["given"] != json.loads(json.dumps(settings_of(wanted))):
        return False
    model = GPPVAE.load(out)
    try:
        facts = model._data_facts(model._samples(samples), model.prior_.code(Table(frame)))
    except ValueError:  # samples of another shape, ids that the model does not know
        return False
    return bool(before["data"] == facts)


def _given(settings: FitSettings, of_likelihood: LikelihoodOptions) -> dict[str, Any]:
    """The settings given on the command line, as arguments of GPPVAE."""
    given = {name: value for name, value in vars(settings).items() if value is not None}
    if settings.likelihood == "perceptual" or of_likelihood.feature_weights or of_likelihood.feature_layers:
        from gppvae.likelihoods import perceptual_from_file

        of = settings.likelihood, of_likelihood.feature_weights, of_likelihood.feature_layers, settings.pixel_var
        given["likelihood"] = perceptual_from_file(*of)
    elif of_likelihood.size is not None:
        from gppvae.likelihoods import counts_by_words

        given["likelihood"] = counts_by_words(settings.likelihood, utf8(of_likelihood.size)[0])
    if settings.phases is not None:
        given["phases"] = _read_phases(settings.phases)
    return given


def _read_phases(path: Path) -> list[Any]:
    """Phases from a JSON list of their fields."""
    from gppvae.data.paths import plain_file
    from gppvae.data.words import reason
    from gppvae.inference.phase import Phase

    try:
        found = json.loads(plain_file(path, "a JSON file of phases").read_text("utf-8"))
        if not isinstance(found, list):
            raise ValueError(f"its content is {type(found).__name__}")
        return [Phase(**entry) for entry in found]
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(
            f"expected a list of phases in {path}, each with name, inference, epochs and lr, got something else "
            f"({reason(error)}); see gppvae.Phase"
        ) from None
