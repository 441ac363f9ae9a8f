"""Two fits into one folder: the second is told who writes there, and a lock outlives no process."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from gppvae import GPPVAE
from gppvae.cli import app
from gppvae.training.folder import LOCK, OWNER, FolderLock
from tiny import KERNEL, spots

SMALL = ["--latent-dim", "2", "--network", "mlp", "--width", "4", "--warmup-epochs", "1", "--gp-epochs", "1", "--quiet"]


def words(folder: Path, epochs: int) -> list[str]:
    if not (folder / "y.npy").exists():
        images, table = spots(4, 5)
        np.save(folder / "y.npy", images)
        table.to_csv(folder / "t.csv", index=False)
    data = [str(folder / "t.csv"), "--data", str(folder / "y.npy"), "--kernel", KERNEL, "--out", str(folder / "run")]
    return ["fit", *data, *SMALL, "--epochs", str(epochs), "--no-report", "--checkpoint-seconds", "0"]


def started(folder: Path, epochs: int) -> subprocess.Popen[str]:
    """A fit in a process of its own, after its first epochs."""
    command = [sys.executable, "-m", "gppvae", *words(folder, epochs)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    deadline = time.monotonic() + 60.0
    while not holds(folder, process) and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    return process


def holds(folder: Path, process: subprocess.Popen[str]) -> bool:
    """Whether this process has the folder and has trained an epoch."""
    owner, checkpoint = folder / "run" / OWNER, folder / "run" / "checkpoint.safetensors"
    return owner.exists() and checkpoint.exists() and json.loads(owner.read_bytes())["process"] == process.pid


@pytest.mark.skipif(os.name != "posix", reason="needs signals of POSIX")
def test_a_second_fit_names_the_first_and_a_dead_one_is_in_nobodys_way(tmp_path: Path) -> None:
    first = started(tmp_path, epochs=10**7)
    second = CliRunner().invoke(app, words(tmp_path, epochs=10**7))
    assert second.exit_code == 2 and second.stderr.count("\n") == 1
    assert f"is being written by another run (process {first.pid} on " in second.stderr
    assert "wait for it or choose another folder" in second.stderr
    assert first.poll() is None, "the first goes on"
    first.send_signal(signal.SIGKILL)
    first.communicate(timeout=60)
    assert (tmp_path / "run" / LOCK).exists() and (tmp_path / "run" / OWNER).exists()
    third = started(tmp_path, epochs=10**7)  # the same command continues what the dead one left
    third.kill()
    _, errors = third.communicate(timeout=60)
    assert holds(tmp_path, third), errors


def test_a_finished_fit_and_a_refused_one_let_go(tmp_path: Path) -> None:
    assert CliRunner().invoke(app, words(tmp_path, epochs=1)).exit_code == 0
    assert not (tmp_path / "run" / OWNER).exists()
    again = CliRunner().invoke(app, words(tmp_path, epochs=1))
    assert again.exit_code == 2 and "already holds a finished run" in again.stderr
    lock = FolderLock(tmp_path / "run")
    lock.acquire()
    lock.release()


def test_threads_of_one_process_are_kept_apart_too(tmp_path: Path) -> None:
    lock = FolderLock(tmp_path)
    lock.acquire()
    images, table = spots(3, 4)
    with pytest.raises(ValueError, match=f"being written by another run .process {os.getpid()}"):
        GPPVAE(KERNEL, epochs=1).fit(images, table, out=tmp_path, progress=False)
    lock.release()


def test_leftovers_of_dead_processes_are_removed(tmp_path: Path) -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    run = tmp_path / "run"
    run.mkdir()
    left = [run / f".{name}.{dead.pid}.part" for name in ("checkpoint.safetensors", "config.json", "model.safetensors")]
    for path in left:
        path.write_bytes(b"half")
    assert CliRunner().invoke(app, words(tmp_path, epochs=1)).exit_code == 0
    assert not any(path.exists() for path in left)
