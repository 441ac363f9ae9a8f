"""`gppvae bench inference`: every inference on the same task, in one table."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gppvae.bench.run as bench_run
from gppvae import GPPVAE
from gppvae.bench import tasks
from gppvae.bench.page import filled, table
from gppvae.bench.task import Question, Target, Task
from gppvae.report.record import read_results

ROOT = Path(__file__).parents[2]
PAGE, RESULTS = ROOT / "docs" / "inference.md", ROOT / "results" / "inference.json"


def tiny(data: Path) -> Task:
    t = np.linspace(0, 3, 24)
    y = np.stack([np.sin(t), np.cos(t)], axis=1).astype(np.float32)
    question = Question("tiny", {"t": t[1::2]}, y[1::2], {"mean": 0.5}, Target(1.0, ("mean",)))
    return Task("tiny", "RBF(t)", y[::2], {"t": t[::2]}, [question], "a circle")


def test_every_fit_is_told_its_inference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[dict[str, Any]] = []

    def short(kernel: str, **settings: Any) -> GPPVAE:
        said.append(settings)
        return GPPVAE(kernel, epochs=1, latent_dim=2, **settings)

    monkeypatch.setattr(bench_run, "GPPVAE", short)
    loaders = {f"tiny-{name}": lambda data, name=name: tasks.told(tiny, name, data) for name in ("global", "exact")}
    out = tmp_path / "inference.json"
    bench_run.run_suite("inference", loaders, [0, 1], tmp_path, out, False, lambda line: None)
    assert [settings["inference"] for settings in said] == ["global", "global", "exact", "exact"]
    runs = read_results(out)["runs"]
    trained = [run["settings"]["phases"][-1]["inference"] for run in runs.values()]
    assert trained == ["distill", "distill", "exact", "exact"]  # global ends by fitting the encoder
    errors = {
        name: [runs[f"tiny-{name} seed {seed}"]["questions"]["tiny"]["error"] for seed in (0, 1)]
        for name in ("global", "exact")
    }
    lines = table(read_results(out)).splitlines()
    assert lines[0] == "| `inference=` | tiny, MSE |"
    for line, (name, found) in zip(lines[2:4], errors.items(), strict=True):
        mean, low, high = (f"{value:.4g}" for value in (sum(found) / 2, min(found), max(found)))
        assert line.startswith(f'| `"{name}"` | {mean} ({low} to {high}), ') and line.endswith(" min |")


def test_the_suite_has_every_inference_that_predicts() -> None:
    asked = {name.removeprefix("heads-") for name in tasks.SUITES["inference"] if name.startswith("heads-")}
    text = PAGE.read_text("utf-8")
    listed = {line.split('"')[1] for line in text[: text.index("Measured")].splitlines() if line.startswith('| `"')}
    assert asked == listed | {"auto"}


def test_the_page_shows_the_file() -> None:
    found = read_results(RESULTS) if RESULTS.is_file() else {"experiment": "inference", "runs": {}}
    text = PAGE.read_text("utf-8")
    assert filled(text, found) == text
    assert all(run["about"]["clean"] for run in found["runs"].values())
