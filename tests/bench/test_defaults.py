"""`gppvae bench defaults`: fits told nothing but a kernel, numbers as loops give them, one file for all runs."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from gppvae.bench import run as bench_run
from gppvae.bench import tasks
from gppvae.bench.coil import VIEWS, views_of
from gppvae.bench.field import dense_gp, rbf
from gppvae.bench.health import ONSET, SIZE, visits
from gppvae.bench.jura import ask_cadmium
from gppvae.bench.page import NOT_RUN, filled, table, write
from gppvae.bench.scores import coverage
from gppvae.bench.task import MAE, MSE, Question, Target, Task, error_of
from gppvae.cli import app
from gppvae.estimator.gppvae import GPPVAE
from gppvae.estimator.prediction import Prediction
from gppvae.report.record import read_results

ROOT = Path(__file__).parents[2]
RESULTS, PAGE = ROOT / "results" / "defaults.json", ROOT / "docs" / "defaults.md"


def tiny(data: Path | None = None, kernel: str = "RBF(t)") -> Task:
    t = np.linspace(0, 3, 24)
    y = np.stack([np.sin(t), np.cos(t)], axis=1).astype(np.float32)
    even = np.arange(24) % 2 == 0
    question = Question("tiny", {"t": t[~even]}, y[~even], {"mean": 0.5, "blend": 0.1}, Target(0.8, ("mean", "blend")))
    return Task("tiny", kernel, y[even], {"t": t[even]}, [question], "a circle")


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What each estimator was told beside its kernel; it is trained for one epoch."""
    said: list[dict[str, Any]] = []

    def short(kernel: str, **settings: Any) -> GPPVAE:
        said.append(settings)
        return GPPVAE(kernel, epochs=1, latent_dim=2, **settings)

    monkeypatch.setattr(bench_run, "GPPVAE", short)
    monkeypatch.setitem(tasks.SUITES, "defaults", {"tiny": tiny})
    about = {"commit": "abc", "clean": True, "machine": "M", "python": "3", "versions": {"torch": "2"}}
    monkeypatch.setattr(bench_run, "provenance", lambda: dict(about))
    return said


def test_a_run_is_told_the_kernel_alone_and_records_what_is_asked_for(told: list[dict[str, Any]]) -> None:
    task = tiny()
    found = bench_run.run(task, 5)
    assert told == [{"seed": 5}]
    answer = found["questions"]["tiny"]
    model = GPPVAE("RBF(t)", epochs=1, latent_dim=2, seed=5).fit(task.samples, task.table, progress=False)
    mean = model.predict(task.questions[0].table).mean
    squares = [(float(p) - float(q)) ** 2 for p, q in zip(mean.ravel(), task.questions[0].truth.ravel(), strict=True)]
    assert answer["error"] == pytest.approx(sum(squares) / len(squares), rel=1e-4)
    assert answer["ratios"]["blend"] == pytest.approx(answer["error"] / 0.1, rel=1e-4)
    assert answer["limit"] == pytest.approx(0.08) and answer["met"] == (answer["error"] <= 0.08)
    assert found["settings"] == model.resolved_ and found["settings"]["latent_dim"] == 2
    assert found["facts"]["rows"] == 12 and found["seconds"] >= 0 and found["threads"] >= 1
    json.dumps(found, allow_nan=False)


def test_coverage_is_counted_per_channel() -> None:
    stream = np.random.default_rng(0)
    truth = stream.normal(size=(30, 3, 4, 4))
    truth[:, 2] *= 3.0  # the intervals of this channel are too narrow
    found = coverage(Prediction(np.zeros_like(truth), np.ones_like(truth)), truth)
    for level, width in (("50%", 0.674490), ("80%", 1.281552), ("90%", 1.644854)):
        shares = [np.mean([abs(v) <= width for v in truth[:, c].ravel()]) for c in range(3)]
        assert found[level]["least"] == pytest.approx(min(shares), abs=1e-5) == pytest.approx(shares[2], abs=1e-5)
        assert found[level]["most"] == pytest.approx(max(shares), abs=1e-5)
        assert found[level]["all"] == pytest.approx(np.mean(shares), abs=1e-5)
    flat = coverage(Prediction(np.zeros((30, 4, 4)), np.ones((30, 4, 4))), truth[:, 0])
    assert flat["80%"]["least"] == flat["80%"]["most"]


def test_errors_and_targets() -> None:
    truth, answer = np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([[2.0, 2.0], [3.0, 1.0]])
    assert error_of(MSE, truth, answer) == 2.5 and error_of(MAE, truth, answer) == 1.0
    assert Target(0.006).limit({"mean": 9.0}) == 0.006
    assert Target(0.5, ("mean", "nearest")).limit({"mean": 9.0, "nearest": 4.0, "other": 1.0}) == 2.0


def test_runs_are_added_kept_and_replaced(
    told: list[dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, said = tmp_path / "new" / "defaults.json", []

    def go(*seeds: int) -> dict[str, Any]:
        bench_run.run_suite("defaults", {"tiny": tiny}, seeds, tmp_path, out, False, said.append)
        return read_results(out)["runs"]

    assert list(go(0)) == ["tiny seed 0"] and len(told) == 1
    assert list(go(0, 1)) == ["tiny seed 0", "tiny seed 1"] and len(told) == 2
    assert any("already" in line for line in said)
    other = bench_run.provenance() | {"commit": "def"}
    monkeypatch.setattr(bench_run, "provenance", lambda: dict(other))
    runs = go(0)
    assert len(told) == 3
    assert [run["about"]["commit"] for run in runs.values()] == ["def", "abc"]
    monkeypatch.setattr(bench_run, "provenance", lambda: other | {"clean": False})
    go(0)
    assert len(told) == 4, "code that is in no commit may have changed"
    out.write_text('{"experiment": "faces"}')
    with pytest.raises(ValueError, match="got others"):
        go(0)


def test_the_command_writes_results_and_the_table(told: list[dict[str, Any]], tmp_path: Path) -> None:
    out, page = tmp_path / "defaults.json", tmp_path / "page.md"
    words = ["bench", "defaults", "--task", "tiny", "--seeds", "3", "--data", str(tmp_path), "--out", str(out), "-q"]
    answer = CliRunner().invoke(app, words)
    assert answer.exit_code == 0 and "tiny, seed 3: MSE" in answer.stderr
    page.write_text("a\n<!-- defaults:begin -->\nold\n<!-- defaults:end -->\nb\n")
    assert CliRunner().invoke(app, ["bench", "table", str(page), "--results", str(out)]).exit_code == 0
    assert "| tiny | 1 | MSE " in page.read_text() and "old" not in page.read_text()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--task", "no"], "a task must be one of"),
        (["--seeds", "a"], "--seeds must be whole numbers"),
        (["--data", "nowhere"], "expected the folder of the data sets at nowhere"),
    ],
)
def test_bad_words_are_one_sentence(words: list[str], said: str) -> None:
    answer = CliRunner().invoke(app, ["bench", "defaults", *words])
    assert answer.exit_code == 2 and said in answer.stderr and answer.stderr.count("\n") == 1


def test_the_table_says_errors_targets_intervals_and_sources() -> None:
    def a_run(seed: int, error: float, commit: str = "abc") -> dict[str, Any]:
        inside = {"all": 0.8, "least": 0.75, "most": 0.85}
        question = {
            "error": error, "asked_by": "impute", "simple": {"blend": 0.1, "mean": 0.4}, "limit": 0.08,
            "target": {"value": 0.8, "of": ["blend"]}, "met": error <= 0.08,
            "coverage": {"50%": {"all": 0.5, "least": 0.5, "most": 0.5}, "80%": inside, "90%": inside},
        }  # fmt: skip
        about = {"commit": commit, "clean": True, "machine": "M", "python": "3", "versions": {"torch": "2"}}
        facts = {"error": MSE}
        return {"task": "t", "facts": facts, "questions": {"t": question}, "seconds": 90.0, "threads": 2} | {
            "about": about, "seed": seed
        }  # fmt: skip

    content = {"experiment": "defaults", "runs": {"t seed 0": a_run(0, 0.06), "t seed 1": a_run(1, 0.1)}}
    assert (
        "| t, by impute | 2 | MSE 0.08 (0.06 to 0.1) | blend 0.1 (ratio 0.80), mean 0.4 (ratio 0.20) "
        "| 0.08 (0.8 of blend) | 1 of 2 | 50% / 80% (75% to 85%) / 80% (75% to 85%) | 1.5 |"
    ) in table(content)
    assert table(content).endswith("All runs: commit abc, M, 2 threads, torch 2, Python 3.")
    mixed = {"experiment": "defaults", "runs": {"t seed 0": a_run(0, 0.06), "t seed 1": a_run(1, 0.1, "def")}}
    assert table(mixed).count("\n- t: commit") == 2
    assert table({"experiment": "defaults", "runs": {}}) == NOT_RUN.format("defaults")
    with pytest.raises(ValueError, match="one pair of comments"):
        filled("no marks", content)


def test_the_page_shows_the_file_and_names_every_task(tmp_path: Path) -> None:
    text = PAGE.read_text("utf-8")
    found = read_results(RESULTS) if RESULTS.is_file() else {"experiment": "defaults", "runs": {}}
    assert filled(text, found) == text
    assert all(run["about"]["clean"] for run in found["runs"].values())
    assert [name for name in tasks.SUITES["defaults"] if f"`{name}`" not in text] == []
    copy = tmp_path / "page.md"
    copy.write_text(text)
    if RESULTS.is_file():
        write(copy, RESULTS)
        assert copy.read_text("utf-8") == text


# -- the data sets


def test_the_dense_gp_is_that_of_its_formula_and_finds_the_length_scale() -> None:
    stream = np.random.default_rng(2)
    x = stream.uniform(0, 4, (120, 2))
    root = np.linalg.cholesky(rbf(x, x, 0.8) + 1e-8 * np.eye(120))
    y = root @ stream.normal(size=(120, 4)) + 0.2 * stream.normal(size=(120, 4))
    asked = stream.uniform(0, 4, (5, 2))
    found, lengthscale = dense_gp(x, y, asked)
    assert abs(lengthscale / 0.8 - 1) < 0.2
    kernel = np.array([[math.exp(-sum((a - b) ** 2) / (2 * lengthscale**2)) for b in x] for a in x])
    cross = np.array([[math.exp(-sum((a - b) ** 2) / (2 * lengthscale**2)) for b in x] for a in asked])
    for d in range(4):
        values = y[:, d] - y[:, d].mean()

        def nll(ratio: float, values: np.ndarray = values) -> float:
            c = kernel + ratio * np.eye(120)
            scale = values @ np.linalg.solve(c, values) / 120
            return float(60 * np.log(scale) + 0.5 * np.linalg.slogdet(c)[1])

        best = min(np.exp(np.linspace(np.log(1e-3), 0, 400)), key=nll)
        wanted = y[:, d].mean() + cross @ np.linalg.solve(kernel + best * np.eye(120), values)
        np.testing.assert_allclose(found[:, d], wanted, atol=0.02)


def test_visits_turn_and_move_as_described() -> None:
    digits = np.zeros((6, 28, 28), np.uint8)
    digits[:, 12:16, 6:22] = 200  # a bar
    clean, rows = visits(digits, np.array([3, 6, 3, 6, 3, 6]), 6, np.random.default_rng(0))
    assert clean.shape == (120, SIZE, SIZE) and sorted(np.bincount(rows["sex"])) == [60, 60]
    assert {0, 1} == set(rows["disease"])
    place = np.arange(SIZE)
    for picture, age, disease, since in zip(clean, rows["age"], rows["disease"], rows["disease_age"], strict=True):
        assert since == (age - ONSET if disease else 0)
        weight = picture / picture.sum()
        i, j = (weight.sum(1) @ place, weight.sum(0) @ place)
        assert abs(i - 17.5 - age / 10) < 0.3 and abs(j - 17.5 - age / 10) < 0.3
        di, dj = place[:, None] - i, place[None, :] - j
        tilt = 0.5 * np.degrees(np.arctan2(2 * (weight * di * dj).sum(), (weight * (dj**2 - di**2)).sum()))
        wanted = 45 / (1 + math.exp(-since)) if disease else 5.0
        assert abs(abs(tilt) - wanted) < 8 or wanted < 8 > abs(tilt)


def test_views_have_their_angles() -> None:
    pictures = np.arange(20 * VIEWS, dtype=np.float32).reshape(20, VIEWS, 1, 1)
    samples, rows = views_of(pictures, [2, 20], [0, 4])
    assert samples.ravel().tolist() == [VIEWS, VIEWS + 4, 19 * VIEWS, 19 * VIEWS + 4]
    assert rows == {"object": ["2", "2", "20", "20"], "angle": [0.0, 20.0, 0.0, 20.0]}


def test_cadmium_is_imputed_from_the_others() -> None:
    logs = np.log(np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], np.float32))
    question = Question("jura", {"x": [0, 1]}, np.array([1.0, 4.0]), {}, observed=logs)

    class Model:
        def impute(self, samples: np.ndarray, rows: Any) -> Prediction:
            assert np.isnan(samples[:, 0]).all() and (samples[:, 1:] == logs[:, 1:]).all() and rows == question.table
            return Prediction(np.where(np.isnan(samples), np.log(2.0), samples), np.full((2, 3), 0.5))

    answer = ask_cadmium(Model(), question)  # type: ignore[arg-type]
    np.testing.assert_allclose(answer.mean, [2.0, 2.0])
    assert answer.how == "impute" and not np.isnan(logs).any()
    np.testing.assert_array_equal(answer.covered, logs[:, 0])
