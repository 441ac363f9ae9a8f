"""The comparison of losses on a handful of digits, its measures against plain loops, and its page."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from gppvae import GPPVAE
from gppvae.cli import app
from gppvae.data.digits import load_threes
from gppvae.data.rotated_digits import small_split
from gppvae.paper import perceptual
from gppvae.paper.digit_classifier import DigitClassifier, train_classifier
from gppvae.paper.perceptual import FEATURES, PLAIN, Recipe, choose, gradient_energy, laplacian_variance, run
from gppvae.paper.tables import TABLES

TINY = Recipe(
    n_digits=10, n_angles=4, held_out_angle=90.0, inner_angle=180.0, epochs=1, weights=(10.0, 50.0), seeds=(0, 4)
)


def made_digits(count: int = 1500) -> tuple[np.ndarray, np.ndarray]:
    """Ten kinds of images, each a picture of its own under noise, in place of MNIST."""
    rng = np.random.default_rng(0)
    labels = np.arange(count) % 10
    return np.clip(rng.random((10, 28, 28))[labels] + 0.2 * rng.normal(size=(count, 28, 28)), 0.0, 1.0), labels


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("perceptual")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(perceptual, "first_of_each", lambda count, folder: made_digits())
        patch.setattr(perceptual, "train_classifier", lambda *data: train_classifier(*data, seed=1, epochs=1))
        return folder, run(folder / "runs", folder / "results", TINY, progress=False)


# -- measures


def test_sharpness_in_loops(rng: np.random.Generator) -> None:
    images = rng.random((3, 5, 6)).astype(np.float32)
    down = [(float(a[i + 1, j]) - float(a[i, j])) ** 2 for a in images for i in range(4) for j in range(6)]
    across = [(float(a[i, j + 1]) - float(a[i, j])) ** 2 for a in images for i in range(5) for j in range(5)]
    assert gradient_energy(images) == pytest.approx(np.mean(down) + np.mean(across))
    variances = []
    for a in images.astype(float):
        bends = [
            a[i - 1, j] + a[i + 1, j] + a[i, j - 1] + a[i, j + 1] - 4 * a[i, j]
            for i in range(1, 4)
            for j in range(1, 5)
        ]
        variances.append(np.var(bends))
    assert laplacian_variance(images) == pytest.approx(np.mean(variances))


def test_blur_lowers_sharpness() -> None:
    digits = load_threes()[:20]
    blurred = (digits + np.roll(digits, 1, 1) + np.roll(digits, 1, 2)) / 3.0
    assert gradient_energy(blurred) < 0.7 * gradient_energy(digits)
    assert laplacian_variance(blurred) < 0.5 * laplacian_variance(digits)


# -- the classifier


def test_the_classifier_learns_and_is_repeatable() -> None:
    digits = made_digits()
    state = torch.random.get_rng_state()
    first, accuracy = train_classifier(*digits, seed=2, epochs=1)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert accuracy > 0.6 and not first.training
    for a, b in zip(first.parameters(), train_classifier(*digits, seed=2, epochs=1)[0].parameters(), strict=True):
        assert torch.equal(a, b)


# -- the choice


def test_the_weight_of_the_least_error_is_chosen_even_where_plain_is_better() -> None:
    tried = [{"weight": w, "mse": mse} for w, mse in ((0.0, 1.0), (1.0, 3.0), (5.0, 2.0), (9.0, 4.0))]
    assert choose(tried) == 5.0


# -- the experiment


def test_the_file_holds_what_was_found(finished: tuple[Path, dict[str, Any]]) -> None:
    folder, content = finished
    written = json.loads((folder / "results" / "perceptual.json").read_text())
    assert written.pop("about") and written == json.loads(json.dumps(content))
    assert [row["weight"] for row in content["selection"]] == [0.0, 10.0, 50.0] and content["weight"] in (10.0, 50.0)
    assert [(row["method"], row["seed"]) for row in content["per_seed"]] == [
        (PLAIN, 0), (PLAIN, 4), (FEATURES, 0), (FEATURES, 4),
    ]  # fmt: skip
    values = [row["mse"] for row in content["per_seed"][2:]]
    assert content["methods"][FEATURES]["mse"]["mean"] == pytest.approx(np.mean(values))
    assert content["methods"][FEATURES]["mse"]["std"] == pytest.approx(abs(values[0] - values[1]) / np.sqrt(2.0))


def test_measures_are_those_of_the_saved_models(finished: tuple[Path, dict[str, Any]]) -> None:
    folder, content = finished
    test, row = small_split(10, 4, 0, 90.0).test, content["per_seed"][3]
    model = GPPVAE.load(folder / "runs" / "pixels-and-features-seed4")
    layers = model.resolved_["likelihood"]["layers"]
    assert layers == {"relu1": content["weight"], "relu2": content["weight"]}
    found = model.predict(test.table).mean
    assert row["mse"] == pytest.approx(np.mean((found.astype(float) - test.images) ** 2), rel=1e-5)
    assert row["gradient_energy"] == pytest.approx(gradient_energy(found) / gradient_energy(test.images))
    assert row["laplacian_variance"] == pytest.approx(laplacian_variance(found) / laplacian_variance(test.images))
    classifier: DigitClassifier = perceptual.classifier_in(folder / "runs")[0].eval()
    errors = []
    with torch.no_grad():
        one, two = (classifier.relu1(classifier.conv1(torch.tensor(x)[:, None])) for x in (test.images, found))
        errors.append(np.mean((one - two).numpy() ** 2))
        one, two = (classifier.relu2(classifier.conv2(classifier.pool1(x))) for x in (one, two))
        errors.append(np.mean((one - two).numpy() ** 2))
    assert row["feature_mse"] == pytest.approx(np.mean(errors), rel=1e-4)


def test_the_weight_is_chosen_without_the_test_angle_and_the_inner_one(
    finished: tuple[Path, dict[str, Any]],
) -> None:
    folder, content = finished
    train = small_split(10, 4, 0, 90.0).train
    inner = (train.table["angle"] == 180.0).to_numpy()
    config = json.loads((folder / "runs" / "choice-weight10" / "config.json").read_text())["settings"]
    assert config["data"]["n_samples"] == (~inner).sum() < len(inner)
    model = GPPVAE.load(folder / "runs" / "choice-weight10")
    found = model.predict(train.table[inner]).mean
    assert content["selection"][1]["mse"] == pytest.approx(
        np.mean((found.astype(float) - train.images[inner]) ** 2), rel=1e-5
    )


def test_what_is_finished_is_not_run_again(
    finished: tuple[Path, dict[str, Any]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder, content = finished
    monkeypatch.setattr(GPPVAE, "fit", None)
    monkeypatch.setattr(perceptual, "train_classifier", None)
    assert run(folder / "runs", tmp_path, TINY, progress=False) == content
    with pytest.raises(ValueError, match="holds this experiment with other settings; choose another folder"):
        run(folder / "runs", tmp_path, Recipe(n_digits=10, epochs=2), progress=False)


def test_command_page_and_tables(
    finished: tuple[Path, dict[str, Any]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder, content = finished
    monkeypatch.setattr(perceptual, "Recipe", lambda: TINY)
    words = ["reproduce", "perceptual", "--out", folder / "runs", "--results", tmp_path, "--quiet"]
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == 0, result.output
    assert f"report: {folder / 'runs' / 'report.html'}" in result.stdout
    plain = content["methods"][PLAIN]["mse"]
    cell = f"{plain['mean']:.4f} ± {plain['std']:.4f}"
    assert f"loss pixels, MSE {cell}" in result.stdout
    page = (folder / "runs" / "report.html").read_text("utf-8")
    assert cell in page and "Choice of the weight" in page
    assert (folder / "runs" / "figures" / "predictions.png").is_file()
    written = json.loads((tmp_path / "perceptual.json").read_text())
    written["trained"] |= {"clean": True, "commits": ["abc"]}  # the code may have changes while tests run
    (tmp_path / "perceptual.json").write_text(json.dumps(written))
    assert f"| pixels | {cell} |" in TABLES["perceptual"](tmp_path, {})
    assert f"| 50 | {content['selection'][2]['mse']:.4f} |" in TABLES["perceptual-choice"](tmp_path, {})
    assert TABLES["perceptual"](tmp_path / "nowhere", {}) == "Not run yet."
