"""The demo, with a recipe of seconds: what it leaves behind, what it replaces, how it continues."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gppvae import demo
from gppvae.demo import OURS, RESULT, DemoRecipe, DemoResult, predictions, run_demo
from gppvae.estimator import GPPVAE
from gppvae.inference.phase import Phase
from gppvae.training import loop

TINY = DemoRecipe(
    n_digits=10,
    n_angles=4,
    held_out_angle=90.0,
    kernel="Learned(digit, 2) * Periodic(angle, 360)",
    settings={"latent_dim": 2, "network": "mlp", "pixel_var": 0.05, "batch_size": 8},
    phases=(
        Phase("global", "global", 4, {"decoder": 1e-2, "prior": 1e-2, "weights": 1e-2}),
        Phase("encoder", "distill", 1, {"encoder": 1e-3}),
    ),
)


def run(out: Path, seed: int = 0) -> DemoResult:
    return run_demo(out, seed, TINY, progress=False)


def test_the_numbers_are_those_of_the_predictions_it_shows(tmp_path: Path) -> None:
    result = run(tmp_path / "demo")
    truth = result.digits.test.images.astype(np.float64)
    for name, guess in predictions(result.model, result.digits).items():
        assert guess.shape == truth.shape
        expected = sum(float(((g - t) ** 2).mean()) for g, t in zip(guess, truth, strict=True)) / len(truth)
        assert result.mse[name] == pytest.approx(expected, rel=1e-6)
    assert next(iter(result.mse)) == OURS
    assert json.loads((tmp_path / "demo" / RESULT).read_text())["mse"] == result.mse


def test_nobody_saw_the_held_out_angle(tmp_path: Path) -> None:
    result = run(tmp_path / "demo")
    assert 90.0 not in set(result.digits.train.table["angle"])
    assert set(result.digits.test.table["angle"]) == {90.0}
    seen = result.model.kernel_.leaves()[1].inducing.flatten().tolist()  # type: ignore[union-attr,union-attr]
    assert 90.0 not in seen


def test_a_finished_demo_is_made_anew_and_replaced_at_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "demo"
    first = run(out, seed=0)
    (out / "mark").write_text("of the first")
    write_report = demo.write_report

    def report(*data: Any, **options: Any) -> Path:
        assert (out / "mark").exists()
        return write_report(*data, **options)

    monkeypatch.setattr(demo, "write_report", report)
    second = run(out, seed=1)
    assert not (out / "mark").exists()
    assert second.page == out / "report.html" and second.page.is_file()
    assert first.mse[OURS] != second.mse[OURS]
    assert [path.name for path in tmp_path.iterdir()] == ["demo"]


def test_an_interrupted_demo_continues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = loop.Trainer.log
    rows: list[tuple[str, int]] = []

    def log(self: loop.Trainer, row: dict) -> None:  # type: ignore[type-arg]
        original(self, row)
        rows.append((row["phase"], row["epoch"]))
        if rows == [("global", 1), ("global", 2), ("global", 3), ("global", 4), ("encoder", 1)]:
            raise KeyboardInterrupt

    monkeypatch.setattr(loop.Trainer, "log", log)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "demo")
    assert not (tmp_path / "demo").exists()
    result = run(tmp_path / "demo")
    assert rows[5:] == [("encoder", 1)]  # the first phase was not trained again
    assert result.mse == run(tmp_path / "other").mse


def test_a_demo_stopped_before_its_report_does_not_train_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stopped: list[tuple[GPPVAE, dict[str, float]]] = []

    def stop(folder: Path, model: GPPVAE, *, scores: dict[str, float], **options: Any) -> Path:
        stopped.append((model, scores))
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(demo, "write_report", stop)
        run(tmp_path / "demo")
    ((first, mse),) = stopped
    again = run(tmp_path / "demo")
    assert again.model.fit_seconds_ == first.fit_seconds_
    assert again.mse == mse


def test_what_is_not_a_demo_is_never_replaced(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    with pytest.raises(ValueError, match="found something else"):
        run(tmp_path / "mine")
    assert (tmp_path / "mine" / "thesis.txt").exists()
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="found something else"):
        run(tmp_path / "file")


def test_the_recipe_of_the_demo_states_its_phases() -> None:
    recipe = DemoRecipe()
    assert recipe.held_out_angle in [360.0 * q / recipe.n_angles for q in range(recipe.n_angles)]
    assert [phase.inference for phase in recipe.phases] == ["global", "distill"]
    assert set(recipe.phases[0].lr) == {"decoder", "prior", "noise", "weights"}
