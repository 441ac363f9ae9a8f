"""What people see of estimators and predictions, and that plots and reports are a method away."""

from html import escape
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from gppvae import GPPVAE, VAE, Prediction
from gppvae.estimator.base import NotFittedError
from gppvae.estimator.comparison import Comparison
from gppvae.estimator.kernel_summary import as_written, natural_order
from gppvae.kernels import parse_kernel, with_amplitudes
from tiny import KERNEL, held_out


@pytest.fixture(scope="module")
def fitted():
    images, table, test_images, test_table = held_out()
    model = GPPVAE(KERNEL, 3, network="mlp", epochs=2, batch_size=16)
    model.fit(images, table, progress=False)
    return model, (images, table), (test_images, test_table)


def test_an_estimator_says_what_it_is_and_whether_it_is_fitted(fitted) -> None:
    model, *_ = fitted
    fresh = GPPVAE(KERNEL, 3)
    assert repr(fresh) == f"GPPVAE(kernel={KERNEL!r}, latent_dim=3)"
    assert "not fitted yet" in fresh._repr_html_()
    first, second = repr(model).split("\n")
    assert first.startswith("GPPVAE(kernel=")
    assert second.startswith("  fitted: samples of shape (1, 8, 8), 3 latents, ")
    assert f"held-out error {model.comparison_.error:.4g} of the variance" in second
    model.comparison_ = Comparison({"model": 0.5, "mean": 0.75, "nearest": 0.25}, 9)
    assert repr(model).endswith("held-out error 0.5 of the variance, best simple answer 0.25 (nearest)")
    assert "<table>" in model._repr_html_() and "fitted: samples" in model._repr_html_()
    model.comparison_ = None
    assert "held-out" not in repr(model)
    assert repr(VAE(3)) == "VAE(latent_dim=3)"


def test_the_kernel_in_a_notebook_is_the_one_that_was_written(fitted) -> None:
    """Not the list of groups that is saved; and a model without a kernel is shown without one."""
    row = "<td>kernel</td><td style='text-align:left'>{}</td>"
    assert row.format(escape(as_written(fitted[0].prior_.written_kernels[0]))) in fitted[0]._repr_html_()
    assert row.format(escape(KERNEL)) in GPPVAE(KERNEL, 3)._repr_html_()
    assert "kernel" not in VAE(3)._repr_html_()


def test_html_is_escaped() -> None:
    assert "<b>x" not in GPPVAE("RBF('<b>x')")._repr_html_()


def test_predictions_say_shape_range_and_uncertainty(fitted) -> None:
    model, _, (_, table) = fitted
    plain, drawn = model.predict(table), model.predict(table, n_samples=4)
    words = f"mean from {plain.mean.min():.4g} to {plain.mean.max():.4g}, no std: n_samples=0"
    assert repr(plain) == f"Prediction(5 samples of shape (8, 8), {words})"
    assert f"std {drawn.std.mean():.4g}" in repr(drawn)
    assert plain._repr_html_().count("<img") == 5
    assert repr(Prediction(np.zeros((0, 3)), None)) == "Prediction(0 samples of shape (3,))"


def test_imputations_are_shown_as_predictions_are(fitted) -> None:
    model, _, (images, table) = fitted
    found = model.impute(images, table, n_samples=2)
    assert repr(found).startswith("Imputation(5 samples of shape (8, 8), mean from ")
    assert repr(found).endswith(", 2 draws)") and found._repr_html_().count("<img") == 5


@pytest.mark.parametrize(
    ("shape", "pictures"),
    [((2, 8, 8), 2), ((2, 3, 8, 8), 2), ((2, 8, 8, 3), 2), ((2, 1, 8, 8), 2), ((2, 2, 8, 8), 2), ((2, 7), 0)],
)
def test_pictures_or_numbers_in_a_notebook(shape: tuple[int, ...], pictures: int) -> None:
    html = Prediction(np.random.default_rng(0).random(shape), np.ones(shape))._repr_html_()
    assert html.count("<img") == pictures
    assert ("<table>" in html) is (pictures == 0)


def test_names_of_values_head_the_table() -> None:
    mean = pd.DataFrame({"iron": [1.0, 2.0], "salt & <oil>": [3.0, 4.0]})
    html = Prediction(mean, None)._repr_html_()  # type: ignore[arg-type]
    assert "<th>iron</th><th>salt &amp; &lt;oil&gt;</th>" in html


def test_plots_are_methods(fitted, tmp_path: Path) -> None:
    model, train, test = fitted
    plots = [
        model.plot_training(),
        model.plot_covariances(),
        model.plot_explain(train[1]),
        model.plot_predictions(*test),
        model.plot_calibration(*test),
    ]
    for number, plot in enumerate(plots):
        assert "<svg" in plot._repr_html_()
        assert plot.save(tmp_path / f"{number}.svg").stat().st_size > 500
    assert len(plots[1].charts) == 2  # Learned and Periodic
    with pytest.raises(ValueError, match=r"name of an SVG file, got .*\.png'; let it end in \.svg"):
        plots[0].save(tmp_path / "0.png")


def test_a_model_that_is_not_fitted_has_no_plots(fitted) -> None:
    _, train, test = fitted
    fresh = GPPVAE(KERNEL, 3)
    calls = {"training": (), "covariances": (), "explain": train[1:], "predictions": test, "calibration": test}
    for name, given in calls.items():
        with pytest.raises(NotFittedError, match="this GPPVAE is not fitted yet"):
            getattr(fresh, f"plot_{name}")(*given)


def test_the_report_is_a_method(fitted, tmp_path: Path) -> None:
    model, train, test = fitted
    page = model.report(tmp_path, train=train, test=test, title="Mine")
    assert page == tmp_path / "report.html"
    assert "<h1>Mine</h1>" in page.read_text("utf-8")


def test_ids_are_in_the_order_that_people_expect() -> None:
    names = ["patient 10", "patient 2", "12", "3", "b", "a9", "a10", ""]
    assert natural_order(names) == ["", "3", "12", "a9", "a10", "b", "patient 2", "patient 10"]


@pytest.mark.parametrize(
    "text",
    [
        "RBF('age') + Learned('who', dim=3) * RBF('age')",
        "RBF('age') + Constant() + 2.0 * Linear('age')",
        "RBF('age') + (Constant() + Linear('age'))",
        "1.0 * RBF('age')",
        "1.0 * (RBF('age') + Constant()) + Linear('age')",
        "Learned('who', dim=3) * RBF('age')",
    ],
)
def test_a_kernel_is_shown_as_it_was_written(text: str) -> None:
    shown = as_written(with_amplitudes(parse_kernel(text)))
    assert shown == text
    assert with_amplitudes(parse_kernel(shown)).text() == with_amplitudes(parse_kernel(text)).text()
