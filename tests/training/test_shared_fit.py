"""A fit under torchrun: the same model file as one process writes."""

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor

from gppvae import GPPVAE
from gppvae.training.checkpoint import read_tensors
from processes import torchrun
from training.shared_fit import fit
from training.test_resume import assert_same_run

SCRIPT = Path(__file__).parent / "shared_fit.py"


def saved(folder: Path) -> dict[str, Tensor]:
    return read_tensors(folder / "model.safetensors")[0]


def metrics(folder: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Run folders of undisturbed fits by two processes, and what they printed."""
    folder = tmp_path_factory.mktemp("two")
    return folder, torchrun(SCRIPT, folder, 0, "minibatch", "global").stderr


@pytest.mark.parametrize("inference", ["minibatch", "global"])
def test_two_processes_write_the_file_of_one(inference: str, two: tuple[Path, str], tmp_path: Path) -> None:
    fit(inference, tmp_path / "one")
    one, other = saved(tmp_path / "one"), saved(two[0] / inference)
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        # Networks are float32; after some steps of Adam their sums differ by rounding only.
        torch.testing.assert_close(other[name], tensor, rtol=1e-4, atol=1e-5)
    for row, wanted in zip(metrics(two[0] / inference), metrics(tmp_path / "one"), strict=True):
        assert row.keys() == wanted.keys() and row["phase"] == wanted["phase"]
        assert row["loss"] == pytest.approx(wanted["loss"], rel=1e-5)
    settings = [
        json.loads((path / "config.json").read_text())["settings"] for path in (tmp_path / "one", two[0] / inference)
    ]
    assert settings[0] == settings[1]
    loaded = GPPVAE.load(two[0] / inference, device="cpu")
    assert loaded.predict({"object": [1], "angle": [10.0]}).mean.shape == (1, 6)


def test_only_the_first_process_shows_progress(two: tuple[Path, str]) -> None:
    assert two[1].count("joint epoch 3/3") == 1 and two[1].count("global epoch 3/3") == 1


def test_a_killed_process_changes_nothing(two: tuple[Path, str], tmp_path: Path) -> None:
    """The second process dies by SIGKILL after five of the seven epochs of the second fit; both are started again."""
    starts = torchrun(SCRIPT, tmp_path, 5, "global", "minibatch", restarts=1).stdout
    assert starts.count("start 0") == starts.count("start 1") == 2, starts
    for name in ("minibatch", "global"):
        assert_same_run(two[0] / name, tmp_path / name)
