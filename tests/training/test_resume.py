"""A run that is stopped, even by SIGKILL, ends as if nothing had happened."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gppvae import GPPVAE
from gppvae.training.checkpoint import read_tensors
from gppvae.training.loop import PhaseRun
from stops import Stop, stop_after
from tiny import KERNEL, spots
from torture.files import unfinished_run

SETTINGS: dict[str, Any] = {"latent_dim": 2, "network": "mlp", "batch_size": 16, "seed": 5}
EPOCHS = {
    "minibatch": {"inference": "minibatch", "warmup_epochs": 20, "gp_epochs": 20, "epochs": 50},
    "global": {"inference": "global", "epochs": 72},
}


def fit(out: Path, **settings: Any) -> GPPVAE:
    images, table = spots(5, 8)
    model = GPPVAE(KERNEL, **(SETTINGS | settings))
    return model.fit(images, table, out=out, progress=False, checkpoint_seconds=0.0)


def log(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def without_times(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if name not in ("seconds", "cpu_seconds")} for row in rows]


def assert_same_run(one: Path, two: Path) -> None:
    first, second = (read_tensors(folder / "model.safetensors")[0] for folder in (one, two))
    assert first.keys() == second.keys()
    for name, tensor in first.items():
        assert tensor.dtype == second[name].dtype and tensor.shape == second[name].shape
        assert tensor.numpy().tobytes() == second[name].numpy().tobytes(), f"{name} differs"
    assert without_times(log(one)) == without_times(log(two))
    for name in ("seconds", "cpu_seconds"):
        seconds = [row[name] for row in log(two)]
        assert seconds == sorted(seconds) and seconds[-1] > 0.0


# -- killed processes


def command(tmp_path: Path, out: Path, settings: dict[str, Any]) -> list[str]:
    images, table = spots(5, 8)
    np.save(tmp_path / "spots.npy", images)
    table.to_csv(tmp_path / "spots.csv", index=False)
    words = [sys.executable, "-m", "gppvae", "fit", str(tmp_path / "spots.csv"), "--data", str(tmp_path / "spots.npy")]
    words += ["--kernel", KERNEL, "--out", str(out), "--checkpoint-seconds", "0", "--quiet", "--no-report"]
    for name, value in (SETTINGS | settings).items():
        words += [f"--{name.replace('_', '-')}", str(value)]
    return words


def n_lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def start_and_kill(words: list[str], metrics: Path, epochs: int, delay: float) -> None:
    """Start the run, let it train that many epochs from where it was, and kill it a moment later."""
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    deadline = time.monotonic() + 120.0
    before = n_lines(metrics)  # a few of them may be dropped and written again
    while n_lines(metrics) < before + epochs and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.002)
    time.sleep(delay)
    process.kill()
    _, errors = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL, f"the run was over before it was killed: {errors.decode()}"


@pytest.mark.parametrize("inference", ["minibatch", "global"])
def test_killed_again_and_again_the_run_ends_byte_for_byte_the_same(tmp_path: Path, inference: str) -> None:
    settings = EPOCHS[inference]
    out = tmp_path / "killed"
    words = command(tmp_path, out, settings)
    rng = np.random.default_rng(11)
    kept = 0
    for epochs in rng.integers(3, 18, size=3).tolist():
        start_and_kill(words, out / "metrics.jsonl", epochs, rng.uniform(0.0, 0.03))
        assert not (out / "model.safetensors").exists()
        before, kept = kept, read_tensors(out / "checkpoint.safetensors")[1]["metrics"]
        assert kept > before
    finished = subprocess.run(words, capture_output=True, text=True, timeout=300)
    assert finished.returncode == 0, finished.stderr
    fit(tmp_path / "undisturbed", **settings)
    assert_same_run(tmp_path / "undisturbed", out)


# -- stopped inside any phase, in this process


@pytest.mark.parametrize("stop", [2, 4, 7, 12])
@pytest.mark.parametrize("inference", ["exact", "minibatch", "posterior", "global", "leave_out"])
def test_a_run_stopped_in_any_phase_continues_exactly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inference: str, stop: int
) -> None:
    lengths = (
        {"epochs": 13} if inference in ("global", "leave_out") else {"warmup_epochs": 4, "gp_epochs": 4, "epochs": 5}
    )
    settings = {"inference": inference} | lengths
    with monkeypatch.context() as patch:
        stop_after(patch, stop)
        with pytest.raises(Stop):
            fit(tmp_path / "stopped", **settings)
    assert len(log(tmp_path / "stopped")) == stop
    fit(tmp_path / "stopped", **settings)
    fit(tmp_path / "undisturbed", **settings)
    assert_same_run(tmp_path / "undisturbed", tmp_path / "stopped")


@pytest.mark.parametrize("network", ["conv", "wide"])
def test_convolutions_continue_exactly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, network: str) -> None:
    """Their weights lie in memory in another order than in the file, and so must the optimiser's moments."""
    settings = {"network": network, "width": 4, "inference": "global", "epochs": 6}
    with monkeypatch.context() as patch:
        stop_after(patch, 3)
        with pytest.raises(Stop):
            fit(tmp_path / "stopped", **settings)
    fit(tmp_path / "stopped", **settings)
    fit(tmp_path / "undisturbed", **settings)
    assert_same_run(tmp_path / "undisturbed", tmp_path / "stopped")


def test_early_stopping_survives_a_stop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images, table = spots(5, 8)
    test = (table["angle"] == 90.0).to_numpy()
    settings = SETTINGS | {"inference": "global", "epochs": 30, "patience": 2, "validate_every": 1, "prior_lr": 0.3}

    def run(out: Path) -> None:
        valid = images[test], table[test]
        GPPVAE(KERNEL, **settings).fit(
            images[~test], table[~test], validation=valid, out=out, progress=False, checkpoint_seconds=0.0
        )

    with monkeypatch.context() as patch:
        stop_after(patch, 5)
        with pytest.raises(Stop):
            run(tmp_path / "stopped")
    run(tmp_path / "stopped")
    run(tmp_path / "undisturbed")
    assert_same_run(tmp_path / "undisturbed", tmp_path / "stopped")


def test_a_stop_before_the_first_checkpoint_starts_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(self: PhaseRun, *_: object) -> None:
        raise Stop

    with monkeypatch.context() as patch:
        patch.setattr(PhaseRun, "_step", stop)
        with pytest.raises(Stop):
            fit(tmp_path / "stopped", inference="global", epochs=2)
    assert (tmp_path / "stopped" / "config.json").exists()
    fit(tmp_path / "stopped", inference="global", epochs=2)
    fit(tmp_path / "undisturbed", inference="global", epochs=2)
    assert_same_run(tmp_path / "undisturbed", tmp_path / "stopped")


@pytest.mark.parametrize(
    ("change", "word"),
    [({"seed": 6}, "seed was 5, now 6"), ({"pixel_var": 0.5}, "pixel_var was"), ({"epochs": 9}, "epochs")],
)
def test_other_settings_do_not_continue_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any], word: str
) -> None:
    with monkeypatch.context() as patch:
        stop_after(patch, 1)
        with pytest.raises(Stop):
            fit(tmp_path, inference="global", epochs=3)
    with pytest.raises(ValueError, match=f"unfinished run with other settings .*{word}"):
        fit(tmp_path, **({"inference": "global", "epochs": 3} | change))


def test_a_config_whose_sections_contradict_each_other_is_not_continued(tmp_path: Path) -> None:
    """More epochs in what was given than in what was trained: the run would go on for as long."""
    unfinished_run(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["settings"]["given"]["epochs"] = 1_000_000
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=r"with other settings \(phases was .* now "):
        GPPVAE.resume(tmp_path, *spots(3, 4), progress=False)


def test_resume_takes_the_settings_from_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images, table = spots(5, 8)
    with monkeypatch.context() as patch:
        stop_after(patch, 2)
        with pytest.raises(Stop):
            fit(tmp_path / "stopped", inference="global", epochs=4)
    GPPVAE.resume(tmp_path / "stopped", images, table, progress=False)
    fit(tmp_path / "undisturbed", inference="global", epochs=4)
    assert_same_run(tmp_path / "undisturbed", tmp_path / "stopped")
    with pytest.raises(FileNotFoundError, match=r"found no config\.json"):
        GPPVAE.resume(tmp_path / "nowhere", images, table)


def test_a_model_is_not_loaded_from_an_unfinished_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        stop_after(patch, 3)
        with pytest.raises(Stop):
            fit(tmp_path, inference="global", epochs=4)
    with pytest.raises(ValueError, match="not finished"):
        GPPVAE.load(tmp_path)
    assert torch.isfinite(read_tensors(tmp_path / "checkpoint.safetensors")[0]["model.prior.members.0.log_alpha"])
