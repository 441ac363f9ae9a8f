"""The accuracy experiment on a stand-in of a few small images, and its numbers against plain NumPy."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import ndimage

from gppvae import GPPVAE
from gppvae.data.image_set import ImageSet
from gppvae.data.rotated_digits import RotatedDigits
from gppvae.paper import accuracy
from gppvae.paper.rotated_mnist.recipes import global_recipe

SIZE, N_ANGLES, HELD_OUT = 12, 10, 72.0


def stand_in() -> RotatedDigits:
    """Ten random smooth images, each turned to ten angles; two digits are for validation, one angle for the test."""
    rng = np.random.default_rng(0)
    angles = tuple(360.0 * q / N_ANGLES for q in range(N_ANGLES))
    images, rows = [], []
    for digit in range(10):
        image = ndimage.gaussian_filter(rng.normal(size=(SIZE, SIZE)), 2.0)
        image = (image - image.min()) / (image.max() - image.min())
        for angle in angles:
            images.append(np.clip(ndimage.rotate(image, angle, reshape=False, order=1), 0.0, 1.0))
            rows.append((digit, angle))
    pixels, table = np.array(images, dtype=np.float32), pd.DataFrame(rows, columns=["digit", "angle"])
    new, held = (table["digit"] >= 8).to_numpy(), (table["angle"] == HELD_OUT).to_numpy()
    parts = [ImageSet(pixels[w], table[w].reset_index(drop=True)) for w in (~new & ~held, new, ~new & held)]
    return RotatedDigits("stand-in", *parts, angles, HELD_OUT)


def start(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """Put the stand-in where the published split is read; the calls that asked for it."""
    calls: list[tuple[Any, ...]] = []

    def load(split: str, **options: Any) -> RotatedDigits:
        calls.append((split, options))
        return stand_in()

    monkeypatch.setattr(accuracy, "load_split", load)
    return calls


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any], list[tuple[Any, ...]]]:
    folder = tmp_path_factory.mktemp("accuracy")
    with pytest.MonkeyPatch.context() as patch:
        calls = start(patch)
        content = accuracy.run(
            "paper", [0, 3], folder / "runs", folder / "results", mnist=Path("digits"), epochs=1, progress=False
        )
    return folder, content, calls


# -- which views are given


@pytest.mark.parametrize("k", [1, 2, 4, 8])
def test_exactly_k_views_of_every_object_are_given(k: int) -> None:
    table = stand_in().valid.table.sample(frac=1.0, random_state=1)  # any order, any index
    given = accuracy.given_views(table, k, seed=0)
    assert given.shape == (20,) and given.dtype == bool
    assert table[given].groupby("digit").size().to_dict() == {8: k, 9: k}
    np.testing.assert_array_equal(accuracy.given_views(table, k, seed=0), given)
    assert any((accuracy.given_views(table, k, seed) != given).any() for seed in (1, 2, 3))


def test_given_views_are_spread_over_all_views() -> None:
    table = stand_in().valid.table
    picked = np.mean([accuracy.given_views(table, 2, seed) for seed in range(300)], axis=0)
    np.testing.assert_allclose(picked, 0.2, atol=0.1)


# -- the experiment


def test_the_file_holds_what_was_found(finished: tuple[Path, dict[str, Any], list[tuple[Any, ...]]]) -> None:
    folder, content, calls = finished
    assert calls == [("published", {"mnist": Path("digits")})]
    written = json.loads((folder / "results" / "accuracy_paper.json").read_text())
    assert written.pop("about")
    assert written == json.loads(json.dumps(content))
    assert set(content) == {
        "experiment", "network", "data", "seeds", "mse", "mse_averaged", "fit_seconds", "coverage", "nll_per_pixel",
        "new_objects", "mse_of_average", "per_seed", "recipe", "trained",
    }  # fmt: skip
    assert (content["experiment"], content["network"], content["seeds"]) == ("accuracy", "paper", [0, 3])
    assert content["data"] == {
        "name": "stand-in", "train": 72, "validation": 20, "test": 8, "angles": 10, "held_out_angle": HELD_OUT,
    }  # fmt: skip
    assert set(content["coverage"]) == {"50%", "80%", "90%"}
    assert list(content["new_objects"]) == ["1", "2", "4", "8"]
    for found in content["new_objects"].values():
        assert set(found) == {"mse", "mean_std", "copy_nearest_view", "mean_image_of_view", "seconds"}
    assert [row["seed"] for row in content["per_seed"]] == [0, 3]
    assert [phase["epochs"] for phase in content["recipe"]["phases"]] == [1, 1]
    (trained,) = content["trained"]["settings"]
    assert trained["phases"] == content["recipe"]["phases"] and len(content["trained"]["cpu_seconds"]) == 2
    assert content["trained"]["cpu_seconds"][0] > 0.0


def test_means_and_spreads_are_over_seeds(finished: tuple[Path, dict[str, Any], list[tuple[Any, ...]]]) -> None:
    content = finished[1]
    rows = content["per_seed"]

    def check(summary: dict[str, float], values: list[float]) -> None:
        assert summary["mean"] == pytest.approx(sum(values) / 2)
        assert summary["std"] == pytest.approx(abs(values[0] - values[1]) / np.sqrt(2.0))
        assert (summary["least"], summary["most"]) == (min(values), max(values))

    for name in ("mse", "mse_averaged", "fit_seconds", "nll_per_pixel"):
        check(content[name], [row[name] for row in rows])
        assert rows[0][name] != rows[1][name]
    check(content["coverage"]["90%"], [row["coverage"]["90%"] for row in rows])
    check(content["new_objects"]["4"]["mse"], [row["new_objects"]["4"]["mse"] for row in rows])


def test_errors_are_those_of_the_saved_model(finished: tuple[Path, dict[str, Any], list[tuple[Any, ...]]]) -> None:
    folder, content, _ = finished
    digits, row = stand_in(), content["per_seed"][1]
    model = GPPVAE.load(folder / "runs" / "paper" / "seed3")
    truth = digits.test.images
    errors = [float(np.mean((a - b) ** 2)) for a, b in zip(truth, model.predict(digits.test.table).mean, strict=True)]
    assert row["mse"] == pytest.approx(np.mean(errors), rel=1e-5)
    assert row["mse_standard_error"] == pytest.approx(np.std(errors, ddof=1) / np.sqrt(8), rel=1e-5)
    drawn = model.predict(digits.test.table, 64, include_noise=True)
    assert row["mse_averaged"] == pytest.approx(np.mean((drawn.mean - truth) ** 2), rel=1e-5)
    assert drawn.std is not None
    varies = digits.train.images.std(axis=0) > 0.01
    apart = np.abs(truth - drawn.mean)[:, varies]
    assert row["coverage"]["90%"] == pytest.approx(np.mean(apart <= 1.6448536 * drawn.std[:, varies]), abs=1e-6)
    assert row["share_of_varying_pixels"] == pytest.approx(varies.mean())


def test_the_average_of_models_is_one_prediction(
    finished: tuple[Path, dict[str, Any], list[tuple[Any, ...]]],
) -> None:
    folder, content, _ = finished
    test = stand_in().test
    one, two = (GPPVAE.load(folder / "runs" / "paper" / f"seed{s}").predict(test.table).mean for s in (0, 3))
    assert content["mse_of_average"] == pytest.approx(np.mean((0.5 * (one + two) - test.images) ** 2), rel=1e-5)
    assert content["mse_of_average"] < content["mse"]["mean"]


def test_new_digits_are_asked_at_the_views_not_given(
    finished: tuple[Path, dict[str, Any], list[tuple[Any, ...]]],
) -> None:
    folder, content, _ = finished
    valid, train = stand_in().valid, stand_in().train
    model = GPPVAE.load(folder / "runs" / "paper" / "seed0")
    given = accuracy.given_views(valid.table, 2, 0)
    assert model.add_objects(valid.images[given], valid.table[given]) == ["8", "9"]
    predicted = model.predict(valid.table[~given]).mean
    found = content["per_seed"][0]["new_objects"]["2"]
    assert found["mse"] == pytest.approx(np.mean((predicted - valid.images[~given]) ** 2), rel=1e-4)
    copied, averaged = [], []
    for row, truth in zip(valid.table[~given].to_dict("records"), valid.images[~given], strict=True):
        own = np.flatnonzero(given & (valid.table["digit"] == row["digit"]).to_numpy())
        apart = [abs(valid.table["angle"][n] - row["angle"]) for n in own]
        nearest = own[int(np.argmin([min(a, 360.0 - a) for a in apart]))]
        copied.append(np.mean((valid.images[nearest] - truth) ** 2))
        apart = np.abs(train.table["angle"].to_numpy() - row["angle"])
        apart = np.minimum(apart, 360.0 - apart)
        averaged.append(np.mean((train.images[np.isclose(apart, apart.min())].mean(0) - truth) ** 2))
    assert found["copy_nearest_view"] == pytest.approx(np.mean(copied), rel=1e-4)
    assert found["mean_image_of_view"] == pytest.approx(np.mean(averaged), rel=1e-4)


def test_seeds_that_are_finished_are_not_run_again(
    finished: tuple[Path, dict[str, Any], list[tuple[Any, ...]]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder, content, _ = finished
    start(monkeypatch)

    def fail(*_: Any, **__: Any) -> None:
        raise AssertionError("a finished seed ran again")

    monkeypatch.setattr(accuracy, "_one_seed", fail)
    again = accuracy.run("paper", [3, 0], folder / "runs", tmp_path, epochs=1, progress=False)
    assert again["per_seed"] == content["per_seed"][::-1]
    assert again["mse"] == content["mse"]
    with pytest.raises(AssertionError, match="ran again"):
        accuracy.run("paper", [0, 4], folder / "runs", tmp_path, epochs=1, progress=False)


def test_a_fitted_model_without_a_record_is_only_evaluated(
    finished: tuple[Path, dict[str, Any], list[tuple[Any, ...]]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder, content, _ = finished
    start(monkeypatch)
    model = tmp_path / "paper" / "seed0"
    model.mkdir(parents=True)
    for name in ("model.safetensors", "config.json", "metrics.jsonl"):
        (model / name).write_bytes((folder / "runs/paper/seed0" / name).read_bytes())
    monkeypatch.setattr(GPPVAE, "fit", None)
    again = accuracy.run("paper", [0], tmp_path, tmp_path / "results", epochs=1, progress=False)
    for name in ("mse", "mse_averaged", "coverage", "fit_seconds"):
        assert again["per_seed"][0][name] == content["per_seed"][0][name]
    assert again["mse"]["std"] == 0.0


def test_without_epochs_the_recipe_decides(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    start(monkeypatch)
    seen: list[int] = []

    class Enough(Exception):
        """Ends the run when the phases are known."""

    def fit(self: GPPVAE, *_: Any, **__: Any) -> None:
        assert self.phases is not None
        seen.extend(phase.epochs for phase in self.phases)
        raise Enough

    monkeypatch.setattr(GPPVAE, "fit", fit)
    with pytest.raises(Enough):
        accuracy.run("image", [0], tmp_path, tmp_path, progress=False)
    assert seen == [phase.epochs for phase in global_recipe("image")["phases"]] and seen[0] > 10


def test_an_ensemble_has_the_recipe_of_its_members(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start(monkeypatch)
    seen: list[GPPVAE] = []

    class Enough(Exception):
        """Ends the run when the settings are known."""

    def fit(self: GPPVAE, *_: Any, **__: Any) -> None:
        seen.append(self)
        raise Enough

    monkeypatch.setattr(GPPVAE, "fit", fit)
    for name in ("image", "image-5", "paper-5"):
        with pytest.raises(Enough):
            accuracy.run(name, [0], tmp_path, tmp_path, progress=False)
    one, five, small = seen
    assert (one.members, five.members, small.members) == (None, 5, 5) and small.network == "conv"
    assert five.latent_dim == 5 * one.latent_dim and five.network == one.network == "image"
    assert five.phases == one.phases and five.kernel == one.kernel
    with pytest.raises(ValueError, match="one of image, image-5, paper, paper-5, got 'image-6'"):
        accuracy.run("image-6", [0], tmp_path, tmp_path)
