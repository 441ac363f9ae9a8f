"""Figures and page of the rotated-MNIST experiment, from its folder alone."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from gppvae.data.sources.rotated_mnist import RotatedDigits
from gppvae.experiments.record import read_results
from gppvae.experiments.rotated_mnist.methods import METHODS
from gppvae.experiments.rotated_mnist.run import RESULTS, predictions
from gppvae.report import figures
from gppvae.report.page import Page

REPORT, FIGURES = "report.html", "figures"
PAPER_MSE = {"joint": 0.0280, "dis": 0.0306}
PAPER_ERROR = {"joint": 0.0008, "dis": 0.0009}
N_SHOWN, MAX_DENSITY = 10, 20_000


def write_page(folder: str | os.PathLike[str], digits: RotatedDigits) -> Path:
    """Write report.html and figures/ (PNG and PDF) of a finished experiment; returns the page's path.

    Args:
        folder: of the experiment, with results.json.  digits: the data, for the true images.
    """
    page = ExperimentPage(Path(folder), digits)
    page.results()
    page.predictions()
    page.densities()
    page.covariances()
    page.selection()
    page.facts()
    return page.page.write(Path(folder) / REPORT)


class ExperimentPage:
    """The sections of the page; each adds itself only where the methods it shows have run."""

    def __init__(self, folder: Path, digits: RotatedDigits) -> None:
        self.folder, self.digits = folder, digits
        self.content = read_results(folder / RESULTS)
        self.methods: dict[str, Any] = self.content["methods"]
        self.labels = {name: METHODS[name][0] for name in self.methods}
        angle = self.content["data"]["held_out_angle"]
        self.page = Page(
            "Rotated MNIST",
            f"Handwritten threes predicted at {angle:g} degrees, where none was seen. "
            f"Split: {self.content['split']}, network: {self.content['network']}.",
        )

    def results(self) -> None:
        """Figure 2a: errors of all methods, and the paired tests."""
        data = self.content["data"]
        self.page.section(
            "Errors",
            f"Mean squared error per pixel over {data['test']} test images at the last epoch. Standard errors are over "
            "images; where several seeds ran, spread is the standard deviation over them.",
        )
        columns, rows = mse_rows(self.content)
        first = next((number for number, name in enumerate(self.methods) if name == "joint"), None)
        self.page.table(columns, rows, "Mean squared error, lower is better.", highlight_row=first)
        shown = [name for name in self.methods if self.methods[name]["mean_decoded"]]
        errors = {name: self.methods[name]["mean_decoded"] for name in shown}
        figure = figures.bar_mse(
            [self.labels[name] for name in shown],
            [errors[name]["mean"] for name in shown],
            [errors[name]["standard_error"] for name in shown],
            {self.labels[name]: PAPER_MSE.get(name) for name in shown if name in PAPER_MSE},
        )
        caption = "Figure 2a. Mean squared error on the test set with standard errors over images; diamonds: the paper."
        self._figure(figure, "figure_2a_mse", caption, "bars of the mean squared error of each method")
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
        """Figure 2d: ten test digits, the truth and what each method says."""
        seed = min(seed for method in self.methods.values() for seed in method["mean_decoded"]["seeds"])
        picked = np.sort(np.random.default_rng(0).permutation(len(self.digits.test.table))[:N_SHOWN])
        truth = self.digits.test.images[picked]
        guesses = {
            self.labels[name]: predictions(self.folder, seed, name)["mean"][picked]
            for name in self.methods
            if seed in self.methods[name]["mean_decoded"]["seeds"]
        }
        figure = figures.prediction_montage(truth, guesses)
        self.page.section("Predictions", f"Ten test digits drawn at random, seed {seed}, decoded from the mean latent.")
        caption = "Figure 2d. Out-of-sample predictions; the VAE reconstruction is the only row that saw the images."
        self._figure(figure, "figure_2d_predictions", caption, "true and predicted digits, one row per method")

    def densities(self) -> None:
        """Figures 2b and 2c: encoder means and log-variances of VAE and GPPVAE-joint."""
        arrays = {self.labels[name]: self._arrays(name) for name in ("vae", "joint") if name in self.methods}
        if len(arrays) < 2:
            return
        series = {"VAE" if label.startswith("VAE") else label: value for label, value in arrays.items()}
        self.page.section("Latents", "What the encoders say about the training images, over all latent dimensions.")
        means = figures.density({name: _thinned(value["z_mean"]) for name, value in series.items()}, "mean of q(z)")
        self._figure(means, "figure_2b_means", "Figure 2b. Density of encoder means.", "densities of encoder means")
        logvars = {name: _thinned(value["z_logvar"]) for name, value in series.items()}
        figure = figures.density(logvars, "log variance of q(z)")
        caption = "Figure 2c. Density of encoder log-variances."
        self._figure(figure, "figure_2c_log_variances", caption, "densities of encoder log-variances")

    def covariances(self) -> None:
        """Figures 2e and 2f: what the kernel of GPPVAE-joint learned."""
        if "joint" not in self.methods:
            return
        arrays = self._arrays("joint")
        labels = [f"{angle:g}" for angle in self.digits.angles]
        figure = figures.covariance_pair(arrays["object_covariance"], arrays["view_covariance"], labels)
        self.page.section("What the kernel learned")
        caption = "Figures 2e and 2f. Covariance between digits (clustered) and between angles, GPPVAE-joint."
        self._figure(figure, "figure_2ef_covariances", caption, "heat maps of digit and angle covariance")

    def selection(self) -> None:
        """Figures S3 and S4: the trade-off on validation data."""
        selection = self.content["selection"]
        if not selection:
            return
        self.page.section(
            "Trade-off",
            "Pixel variance chosen on validation digits. The paper's lambda is 2 L / K times it. All methods share the "
            "value with the highest VAE bound; the -opt variants take the one that predicts validation digits best.",
        )
        words = {
            "shared": ("figure_s3_vae_bound", "Figure S3. Validation bound of the VAE.", "bound per image (nats)"),
            "cvae": ("figure_s4a_cvae", "Figure S4a. Validation error of the CVAE.", "validation MSE"),
            "livae": ("figure_s4b_livae", "Figure S4b. Validation error of LIVAE.", "validation MSE"),
        }
        for name, (file, caption, ylabel) in words.items():
            if name in selection:
                curve = selection[name]
                figure = figures.curve_with_choice(
                    selection["grid"], curve["values"], curve["standard_errors"], curve["chosen"],
                    "pixel variance", ylabel, log_x=True,
                )  # fmt: skip
                self._figure(figure, file, caption, f"{ylabel} against pixel variance")
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
        figure = figures.bar_mse(names, [e["mean"] for e in errors], [e["standard_error"] for e in errors])
        caption = "Figure S4c and S4d. Test error of the -opt variants beside those with the shared value."
        self._figure(figure, "figure_s4cd_mse", caption, "bars of the mean squared error")

    def _arrays(self, name: str) -> dict[str, np.ndarray]:
        return predictions(self.folder, min(self.methods[name]["mean_decoded"]["seeds"]), name)

    def _figure(self, figure: Figure, name: str, caption: str, alt: str) -> None:
        figures.save(figure, self.folder / FIGURES / name)
        self.page.figure(figure, caption, alt)


def mse_rows(content: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Columns and rows of the table of errors, all text."""
    columns = ["method", "paper", "mean latent decoded", "64 draws averaged", "seeds", "epochs", "minutes", "note"]
    rows = []
    for name, method in content["methods"].items():
        paper = f"{PAPER_MSE[name]:.4f} ± {PAPER_ERROR[name]:.4f}" if name in PAPER_MSE else "\u2013"
        epochs = ", ".join(f"{phase} {count}" for phase, count in method["epochs"].items()) or "\u2013"
        minutes = f"{np.mean(method['seconds']) / 60.0:.1f}"
        seeds = str(len(method["mean_decoded"]["seeds"]))
        numbers = [mse_text(method["mean_decoded"]), mse_text(method["sample_averaged"])]
        rows.append([method["label"], paper, *numbers, seeds, epochs, minutes, method["note"]])
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
