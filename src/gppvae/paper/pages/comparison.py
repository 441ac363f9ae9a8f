"""Figures and page of a comparison of methods, from its folder and its data."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from gppvae.paper.comparison.learned import normalised
from gppvae.paper.comparison.methods import METHODS
from gppvae.paper.comparison.run import RESULTS, predictions
from gppvae.paper.comparison.task import Task
from gppvae.paper.pages import figures
from gppvae.paper.pages.figures import FigurePage, bar_mse, curve_with_choice, density
from gppvae.report.images import to_pictures
from gppvae.report.record import read_results

REPORT, FIGURES = "report.html", "figures"
N_SHOWN, MAX_DENSITY = 10, 20_000


@dataclass(frozen=True)
class Words:
    """What the page of one experiment calls things.

    Attributes:
        title: of the page.  about: one sentence; facts of the data stand in braces.  objects, views: in the plural.
        figures: file name and number in the paper of every figure.
        paper_mse, paper_error: published means and standard errors by method.
    """

    title: str
    about: str
    objects: str
    views: str
    figures: dict[str, tuple[str, str]]
    paper_mse: dict[str, float]
    paper_error: dict[str, float]

    def paper(self, method: str) -> str:
        """The published error of a method, or a dash."""
        if method not in self.paper_mse:
            return "\u2013"
        return f"{self.paper_mse[method]:.4f} ± {self.paper_error[method]:.4f}"


def write_page(folder: str | os.PathLike[str], task: Task, words: Words) -> Path:
    """Write report.html and figures/ (PNG and PDF) of a finished experiment; returns the page's path.

    Args:
        folder: of the experiment, with results.json.  task: the data, for the true images.  words: names of things.
    """
    page = ExperimentPage(Path(folder), task, words)
    page.results()
    page.predictions()
    page.densities()
    page.covariances()
    page.selection()
    page.facts()
    return page.page.write(Path(folder) / REPORT)


class ExperimentPage:
    """The sections of the page; each adds itself only where the methods it shows have run."""

    def __init__(self, folder: Path, task: Task, words: Words) -> None:
        self.folder, self.task, self.words = folder, task, words
        self.content = read_results(folder / RESULTS)
        self.methods: dict[str, Any] = self.content["methods"]
        self.labels = {name: METHODS[name][0] for name in self.methods}
        self.page = FigurePage(
            words.title,
            f"{words.about.format(**self.content['data'])} "
            f"Split: {self.content['split']}, network: {self.content['network']}.",
        )

    def results(self) -> None:
        """Errors of all methods, and the paired tests."""
        data = self.content["data"]
        self.page.section(
            "Errors",
            f"Mean squared error per pixel over {data['test']} test images. Standard errors are over images; "
            "where several seeds ran, spread is the standard deviation over them.",
        )
        columns, rows = mse_rows(self.content, self.words)
        first = next((number for number, name in enumerate(self.methods) if name == "joint"), None)
        self.page.table(columns, rows, "Mean squared error, lower is better.", highlight_row=first)
        shown = [name for name in self.methods if self.methods[name]["mean_decoded"]]
        errors = {name: self.methods[name]["mean_decoded"] for name in shown}
        figure = bar_mse(
            [self.labels[name] for name in shown],
            [errors[name]["mean"] for name in shown],
            [errors[name]["standard_error"] for name in shown],
            {self.labels[name]: value for name, value in self.words.paper_mse.items() if name in shown},
        )
        caption = "Mean squared error on the test set with standard errors over images; diamonds: the paper."
        self._figure(figure, "errors", caption, "bars of the mean squared error of each method")
        self._paired_tests()

    def _paired_tests(self) -> None:
        rows = []
        for name, test in self.content["tests"].items():
            average = test["average"]
            values = f"{average['difference']:+.5f}", f"{average['t_test_p']:.2g}", f"{average['wilcoxon_p']:.2g}"
            rows.append([name, str(len(test["seeds"])), *values, f"{average['share_better']:.0%}"])
        if rows:
            columns = ["paired over images", "seeds", "difference", "t-test p", "Wilcoxon p", "images it is better on"]
            self.page.table(columns, rows, "Paired two-sided tests over test images, errors averaged over seeds.")

    def predictions(self) -> None:
        """Some test images, the truth and what each method says."""
        seed = min(seed for method in self.methods.values() for seed in method["mean_decoded"]["seeds"])
        picked = np.sort(np.random.default_rng(0).permutation(len(self.task.test.table))[:N_SHOWN])
        truth = _drawable(self.task.test.take(picked).pixels())
        guesses = {
            self.labels[name]: _drawable(predictions(self.folder, seed, name)["mean"][picked])
            for name in self.methods
            if seed in self.methods[name]["mean_decoded"]["seeds"]
        }
        figure = figures.prediction_montage(truth, guesses)
        self.page.section("Predictions", f"Test images drawn at random, seed {seed}, decoded from the mean latent.")
        caption = "Out-of-sample predictions; the VAE reconstruction is the only row that saw the images."
        self._figure(figure, "predictions", caption, f"true and predicted {self.words.objects}, one row per method")

    def densities(self) -> None:
        """Encoder means and log-variances of VAE and GPPVAE-joint."""
        arrays = {self.labels[name]: self._arrays(name) for name in ("vae", "joint") if name in self.methods}
        if len(arrays) < 2:
            return
        series = {"VAE" if label.startswith("VAE") else label: value for label, value in arrays.items()}
        self.page.section("Latents", "What the encoders say about the training images, over all latent dimensions.")
        means = density({name: _thinned(value["z_mean"]) for name, value in series.items()}, "mean of q(z)")
        self._figure(means, "means", "Density of encoder means.", "densities of encoder means")
        logvars = {name: _thinned(value["z_logvar"]) for name, value in series.items()}
        figure = density(logvars, "log variance of q(z)")
        self._figure(figure, "log_variances", "Density of encoder log-variances.", "densities of encoder log-variances")

    def covariances(self) -> None:
        """What the kernel of GPPVAE-joint learned, each covariance scaled to an average variance of one."""
        if "joint" not in self.methods:
            return
        arrays, words = self._arrays("joint"), self.words
        objects, views = (normalised(arrays[name]) for name in ("object_covariance", "view_covariance"))
        figure = figures.covariance_pair(objects, views, list(self.task.views))
        self.page.section("What the kernel learned", self._explained())
        caption = f"Covariance between {words.objects} (clustered) and between {words.views}, GPPVAE-joint."
        self._figure(
            figure, "covariances", caption, f"heat maps of the covariance of {words.objects} and {words.views}"
        )

    def _explained(self) -> str:
        shares = {
            method["label"]: np.mean([facts["share_explained"] for facts in method["learned"]])
            for method in self.methods.values()
            if "learned" in method
        }
        listed = ", ".join(f"{label} {share:.1%}" for label, share in shares.items())
        return f"Share of the latent variance explained by object and view together, the rest being noise: {listed}."

    def selection(self) -> None:
        """The trade-off on validation data."""
        selection = self.content["selection"]
        if not selection:
            return
        self.page.section(
            "Trade-off",
            "Pixel variance chosen on validation images. The paper's lambda is 2 L / K times it. All methods share the "
            "value with the highest VAE bound; the -opt variants take the one that predicts validation images best.",
        )
        words = {
            "shared": ("Validation bound of the VAE.", "bound per image (nats)"),
            "cvae": ("Validation error of the CVAE.", "validation MSE"),
            "livae": ("Validation error of LIVAE.", "validation MSE"),
        }
        for name, (caption, ylabel) in words.items():
            if name in selection:
                curve = selection[name]
                figure = curve_with_choice(
                    curve["grid"], curve["values"], curve["standard_errors"], curve["chosen"],
                    "pixel variance", ylabel, log_x=True,
                )  # fmt: skip
                self._figure(figure, name, caption, f"{ylabel} against pixel variance")
        self._performance_of_opt()

    def facts(self) -> None:
        """Data, settings, versions."""
        about = self.content["about"]
        self.page.section("Facts")
        self.page.facts(self.content["data"])
        setup = self.content["setting"]["setup"]
        self.page.table(["setting", "value"], [(name, str(setup[name])) for name in setup], "Shared settings.")
        self.page.facts({name: about[name] for name in ("python", "commit", "machine", "written")} | about["versions"])

    def _performance_of_opt(self) -> None:
        shown = [name for name in ("cvae", "cvae-opt", "livae", "livae-opt", "joint") if name in self.methods]
        if not {"cvae-opt", "livae-opt"} & set(shown):
            return
        errors = [self.methods[name]["mean_decoded"] for name in shown]
        names = [self.labels[name] for name in shown]
        figure = bar_mse(names, [e["mean"] for e in errors], [e["standard_error"] for e in errors])
        caption = "Test error of the -opt variants beside those with the shared value."
        self._figure(figure, "opt", caption, "bars of the mean squared error")

    def _arrays(self, name: str) -> dict[str, np.ndarray]:
        return predictions(self.folder, min(self.methods[name]["mean_decoded"]["seeds"]), name)

    def _figure(self, figure: Figure, name: str, caption: str, alt: str) -> None:
        file, number = self.words.figures[name]
        figures.save(figure, self.folder / FIGURES / file)
        self.page.figure(figure, f"{number}. {caption}", alt)


def mse_rows(content: Mapping[str, Any], words: Words) -> tuple[list[str], list[list[str]]]:
    """Columns and rows of the table of errors, all text."""
    draws = f"{content['setting']['setup']['n_draws']} draws averaged"
    columns = ["method", "paper", "mean latent decoded", draws, "seeds", "epochs", "minutes", "note"]
    rows = []
    for name, method in content["methods"].items():
        epochs = ", ".join(f"{phase} {count}" for phase, count in method["epochs"].items()) or "\u2013"
        minutes = f"{np.mean(method['seconds']) / 60.0:.1f}"
        seeds = str(len(method["mean_decoded"]["seeds"]))
        numbers = [mse_text(method["mean_decoded"]), mse_text(method["sample_averaged"])]
        rows.append([method["label"], words.paper(name), *numbers, seeds, epochs, minutes, method["note"]])
    return columns, rows


def mse_text(summary: Mapping[str, Any] | None) -> str:
    """Mean and, over seeds, its spread; with one seed the standard error over images."""
    if summary is None:
        return "\u2013"
    error = summary["standard_error"] if summary["spread"] is None else summary["spread"]
    return f"{summary['mean']:.4f} ± {error:.4f}"


def _thinned(values: np.ndarray) -> np.ndarray:
    """Evenly spaced entries, few enough for a density to be drawn quickly."""
    flat = values.reshape(-1).astype(np.float64)
    return flat[:: -(-flat.size // MAX_DENSITY)]


def _drawable(images: np.ndarray) -> np.ndarray:
    """Images as figures want them: channels, where there are any, last."""
    return images if images.ndim == 3 else to_pictures(images)
