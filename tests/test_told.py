"""What the commands tell: how rows and files were paired, what a full disk leaves, what Ctrl-C keeps, and where."""

import errno
import functools
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from PIL import Image
from typer.testing import CliRunner, Result

from gppvae import GPPVAE
from gppvae.cli import app
from gppvae.data import atomic
from gppvae.report import describe
from gppvae.training.checkpoint import read_tensors
from tiny import KERNEL, spots

SMALL = ["--latent-dim", "2", "--network", "mlp", "--width", "4", "--warmup-epochs", "1", "--gp-epochs", "1", "--quiet"]


def call(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


def fit_words(table: Path, data: Path, out: Path, epochs: int = 1) -> list[str]:
    words = ["fit", table, "--data", data, "--kernel", KERNEL, "--out", out, "--epochs", epochs, "--no-report"]
    return [*map(str, words), *SMALL]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    images, table = spots(4, 5)
    np.save(tmp_path / "y.npy", images)
    table.to_csv(tmp_path / "t.csv", index=False)
    return tmp_path


# -- pairing


@pytest.fixture
def photos(data: Path) -> Path:
    """Twenty pictures, in the order of their names the other way round than the rows of the table."""
    images = np.load(data / "y.npy")
    (data / "photos").mkdir()
    for number, image in enumerate(images):
        Image.fromarray((255 * image).astype(np.uint8)).save(data / "photos" / f"{99 - number}.png")
    table = pd.read_csv(data / "t.csv").assign(path=[f"{99 - number}.png" for number in range(20)])
    table.to_csv(data / "named.csv", index=False)
    return data


def test_a_column_that_names_the_files_is_taken_without_asking(photos: Path) -> None:
    named = call(*fit_words(photos / "named.csv", photos / "photos", photos / "a"), "--verbose")
    given = call(*fit_words(photos / "named.csv", photos / "photos", photos / "b"), "--image-column", "path")
    assert named.exit_code == given.exit_code == 0 and given.stderr == ""
    wanted = {"spot": ["s1"], "angle": [70.0]}
    a, b = (GPPVAE.load(photos / run).predict(wanted).mean for run in ("a", "b"))
    np.testing.assert_array_equal(a, b)


def test_pairing_by_the_order_of_names_is_told_and_other_counts_are_refused(photos: Path) -> None:
    told = call(*fit_words(photos / "t.csv", photos / "photos", photos / "run"))
    assert told.exit_code == 0
    assert (
        "paired 20 rows with 20 files of" in told.stderr and "in the order of their names (80.png first" in told.stderr
    )
    (photos / "photos" / "81.png").unlink()
    refused = call(*fit_words(photos / "t.csv", photos / "photos", photos / "other"))
    assert refused.exit_code == 2 and "got 20 rows and 19 files" in refused.stderr
    assert not (photos / "other").exists()


def test_paths_out_of_the_folder_need_an_option(photos: Path) -> None:
    (photos / "photos" / "99.png").rename(photos / "99.png")
    table = pd.read_csv(photos / "named.csv")
    table["path"] = table["path"].replace("99.png", "../99.png")
    table.to_csv(photos / "named.csv", index=False)
    words = fit_words(photos / "named.csv", photos / "photos", photos / "run")
    refused = call(*words, "--image-column", "path")
    assert refused.exit_code == 2 and "allow paths elsewhere with outside=True (--outside)" in refused.stderr
    assert call(*words, "--image-column", "path", "--outside").exit_code == 0
    encoded = ["encode", photos / "run", "--data", photos / "photos", "--table", photos / "named.csv"]
    encoded += ["--image-column", "path", "--out", photos / "latents"]
    assert call(*encoded).exit_code == 2 and call(*encoded, "--outside").exit_code == 0


def test_unwritten_parts_need_an_option(data: Path) -> None:
    import h5py

    with h5py.File(data / "y.h5", "w") as file:
        stored = file.create_dataset("y", shape=(20, 8, 8), dtype="f4", chunks=(5, 8, 8))
        stored[:10] = np.load(data / "y.npy")[:10]
    words = fit_words(data / "t.csv", data / "y.h5", data / "run")
    refused = call(*words)
    assert refused.exit_code == 2 and "pass fill_unwritten=True (--fill-unwritten)" in refused.stderr
    assert call(*words, "--fill-unwritten").exit_code == 0


# -- devices


@pytest.mark.parametrize("device", ["abc", "cuda:99", "meta", ""])
def test_a_device_that_is_not_there_is_one_sentence(data: Path, device: str) -> None:
    result = call(*fit_words(data / "t.csv", data / "y.npy", data / "run"), "--device", device)
    assert result.exit_code == 2 and result.stderr.count("\n") == 1
    assert f"expected a device that can compute, got {device!r}; this machine has cpu" in result.stderr
    assert not (data / "run").exists()


def test_load_blames_the_device_and_not_the_file(data: Path) -> None:
    assert call(*fit_words(data / "t.csv", data / "y.npy", data / "run")).exit_code == 0
    with pytest.raises(ValueError, match="expected a device that can compute, got 'abc'"):
        GPPVAE.load(data / "run", device="abc")


def test_a_failed_factor_in_a_prediction_is_one_sentence(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    def fail(*_: object, **__: object) -> None:
        raise torch.linalg.LinAlgError("the leading minor of order 2 is not positive-definite")

    assert call(*fit_words(data / "t.csv", data / "y.npy", data / "run")).exit_code == 0
    model = GPPVAE.load(data / "run")
    monkeypatch.setattr(torch.linalg, "cholesky", fail)
    with pytest.raises(ValueError, match="a covariance of the fitted kernel is not positive definite at these rows"):
        model.predict({"spot": ["s0"], "angle": [3.3]})


# -- full disks


def fill_up(patch: pytest.MonkeyPatch, what: str) -> None:
    """No space for files whose name holds `what`."""
    real = open

    def opened(file: Any, mode: str = "r", *rest: Any, **options: Any) -> Any:
        if what in str(file) and ("w" in mode or "a" in mode):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(file, mode, *rest, **options)

    patch.setattr("builtins.open", opened)


@pytest.mark.parametrize("what", ["metrics.jsonl", "checkpoint.safetensors", "config.json", "model.safetensors"])
def test_a_full_disk_names_the_file_and_the_run_goes_on_later(
    data: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    words = fit_words(data / "t.csv", data / "y.npy", data / "run", epochs=2)
    with monkeypatch.context() as patch:
        fill_up(patch, what)
        full = call(*words)
    assert full.exit_code == 2 and full.stderr.count("\n") == 1
    assert what in full.stderr and "No space left on device" in full.stderr and "free some space" in full.stderr
    assert call(*words).exit_code == 0
    undisturbed = fit_words(data / "t.csv", data / "y.npy", data / "other", epochs=2)
    assert call(*undisturbed).exit_code == 0
    one, two = (read_tensors(data / run / "model.safetensors")[0] for run in ("run", "other"))
    assert one.keys() == two.keys() and all(bool((one[name] == two[name]).all()) for name in one)


@pytest.mark.parametrize("what", ["mean.npy", "std.npy", "rows.csv", ".png"])
def test_a_full_disk_leaves_no_half_predictions(data: Path, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    assert call(*fit_words(data / "t.csv", data / "y.npy", data / "run")).exit_code == 0
    real = Path.write_bytes

    def full(self: Path, content: bytes) -> int:
        if what in self.name:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(self, content)

    with monkeypatch.context() as patch:
        fill_up(patch, what)
        patch.setattr(Path, "write_bytes", full)
        result = call("predict", data / "run", data / "t.csv", "--out", data / "out", "--n-samples", 2)
    assert result.exit_code == 2 and result.stderr.count("\n") == 1
    assert "could not write" in result.stderr and "free some space" in result.stderr
    assert not (data / "out").exists() and not list(data.glob(".*part"))


def test_raw_errors_of_the_system_say_what_to_do(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(describe, "read_saved", full)
    result = call("info", data)
    assert result.exit_code == 2 and "None" not in result.stderr and "free some space" in result.stderr


# -- Ctrl-C


@pytest.mark.skipif(os.name != "posix", reason="needs signals of POSIX")
def test_ctrl_c_keeps_the_last_epoch(data: Path) -> None:
    words = fit_words(data / "t.csv", data / "y.npy", data / "run", epochs=10**6)
    heeded = functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    command = [sys.executable, "-m", "gppvae", *words, "--checkpoint-seconds", "1e6"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=heeded)
    metrics = data / "run" / "metrics.jsonl"
    deadline = time.monotonic() + 120.0
    while (not metrics.exists() or metrics.read_bytes().count(b"epoch") < 8) and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode in (130, -signal.SIGINT), errors
    _, meta = read_tensors(data / "run" / "checkpoint.safetensors")
    rows = [json.loads(line) for line in metrics.read_text().splitlines()]
    assert meta["epoch"] >= 7
    assert meta["metrics"] >= len(rows) - 1, "at most the epoch under way is lost"


# -- locales


@pytest.mark.skipif(os.name != "posix", reason="locales of POSIX")
def test_a_folder_with_other_letters_in_the_c_locale(data: Path) -> None:
    folder = data / "Größe 数据"
    folder.mkdir()
    (data / "y.npy").rename(folder / "y.npy")
    table = pd.read_csv(data / "t.csv").rename(columns={"angle": "Größe"})
    table.to_csv(folder / "t.csv", index=False)
    kernel = ["--kernel", "Learned(spot, 2) * Periodic(Größe, 360)"]
    words = ["fit", str(folder / "t.csv"), "--data", str(folder / "y.npy"), *kernel, "--out", str(folder / "run ä")]
    environment = {name: value for name, value in os.environ.items() if name not in ("LANG", "LC_CTYPE")}
    environment |= {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}  # names are bytes, output is ASCII
    command = [sys.executable, "-m", "gppvae", *words, *SMALL, "--epochs", "1"]
    done = subprocess.run(command, capture_output=True, env=environment, timeout=240)
    assert done.returncode == 0, done.stderr
    assert b"Traceback" not in done.stderr
    assert "run ä" in (folder / "run ä" / "report.html").read_text("utf-8")
    model = GPPVAE.load(folder / "run ä")
    assert model.predict({"spot": ["s0"], "Größe": [4.0]}).mean.shape == (1, 8, 8)
    missing = [sys.executable, "-m", "gppvae", "info", str(folder / "fehlt ü")]
    refused = subprocess.run(missing, capture_output=True, env=environment, timeout=240)
    assert refused.returncode == 2 and refused.stderr.count(b"\n") == 1


def test_the_folder_is_flushed_after_a_rename(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flushed: list[Path] = []
    monkeypatch.setattr(atomic, "_flush_folder", flushed.append)
    atomic.write_bytes(tmp_path / "file", b"content")
    assert flushed == [tmp_path]
