"""Bad input at the command line: exit code 2 and one sentence, before any training, and nothing left behind."""

import os
import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner, Result

from gppvae import GPPVAE
from gppvae.cli import app
from tiny import KERNEL, held_out


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with spots.csv and spots.npy, which are fine."""
    images, table, _, _ = held_out()
    np.save(tmp_path / "spots.npy", images)
    table.to_csv(tmp_path / "spots.csv", index=False)
    return tmp_path


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run."""
    images, table, _, _ = held_out()
    path = tmp_path_factory.mktemp("runs") / "finished"
    GPPVAE(KERNEL, 2, network="mlp", inference="global", epochs=1).fit(images, table, out=path, progress=False)
    return path


def words(folder: Path, *more: str, kernel: str = KERNEL) -> list[str]:
    start = ["fit", str(folder / "spots.csv"), "--data", str(folder / "spots.npy"), "--kernel", kernel]
    quick = ["--epochs", "1", "--warmup-epochs", "1", "--gp-epochs", "1", "--network", "mlp", "--quiet", "--no-report"]
    return [*start, "--out", str(folder / "run"), *quick, *more]


def refused(result: Result) -> str:
    """The sentence of a refused command, after checking that it is one sentence with exit code 2."""
    assert result.exit_code == 2, result.output
    assert "Traceback" not in result.output
    lines = result.stderr.splitlines()
    assert len(lines) == 1 and lines[0].startswith("gppvae: "), result.stderr
    assert result.stdout == ""
    return lines[0]


def fit(folder: Path, *more: str, kernel: str = KERNEL) -> str:
    sentence = refused(CliRunner().invoke(app, words(folder, *more, kernel=kernel)))
    assert not (folder / "run").exists(), "a refused fit leaves no folder"
    return sentence


def test_the_same_words_without_the_fault_are_accepted(folder: Path) -> None:
    result = CliRunner().invoke(app, words(folder))
    assert result.exit_code == 0, result.output
    assert (folder / "run" / "model.safetensors").exists()


# -- arrays


def replace(folder: Path, change: Callable[[np.ndarray], np.ndarray]) -> None:
    np.save(folder / "spots.npy", change(np.load(folder / "spots.npy")))


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda y: y[:-3], "got 55 rows and 52 samples"),
        (lambda y: y[:0], "got 55 rows and 0 samples"),
        (lambda y: y.reshape(55, 2, 2, 4, 4), "expected samples of shape"),
        (lambda y: y[0, 0, 0], "0 samples"),
        (lambda y: y.reshape(-1), "got 55 rows and 3520 samples"),
        (lambda y: np.where(np.arange(55)[:, None, None] == 7, np.nan, y), "NaN or infinity in sample 7"),
        (lambda y: np.where(np.arange(55)[:, None, None] == 9, -np.inf, y), "NaN or infinity in sample 9"),
        (lambda y: y.astype(np.complex64), "integer or float type, got complex64"),
        (lambda y: y.astype(str), "integer or float type, got <U"),
        (lambda y: y[:, :, :0], "expected at least one sample"),
        (lambda y: np.stack([y] * 3, axis=-1), "expected channels first, got shape (55, 8, 8, 3)"),
    ],
)
def test_arrays_that_do_not_fit(folder: Path, change: Callable[[np.ndarray], np.ndarray], expected: str) -> None:
    replace(folder, change)
    assert expected in fit(folder)


@pytest.mark.parametrize("share", [0.0, 0.005, 0.5, 0.99])
def test_a_truncated_array(folder: Path, share: float) -> None:
    content = (folder / "spots.npy").read_bytes()
    (folder / "spots.npy").write_bytes(content[: int(share * len(content))])
    assert "cut short, pickled or of another kind" in fit(folder)


class Bomb:
    """Makes a folder when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str, int]]:
        return os.mkdir, (str(self.path), 0o777)


def test_a_pickled_array_is_refused_and_not_executed(folder: Path) -> None:
    mark = folder / "executed"
    np.save(folder / "spots.npy", np.array([Bomb(mark)] * 55, dtype=object), allow_pickle=True)
    assert "pickled" in fit(folder)
    (folder / "spots.npy").write_bytes(pickle.dumps(Bomb(mark)))
    assert "pickled" in fit(folder)
    assert not mark.exists()


def test_an_archive_instead_of_an_array(folder: Path) -> None:
    np.savez(folder / "several.npz", a=np.zeros(3), b=np.ones(3))
    (folder / "several.npz").rename(folder / "spots.npy")
    assert "an archive of several" in fit(folder)


def test_files_that_are_not_there(folder: Path) -> None:
    (folder / "spots.npy").unlink()
    assert f"expected a .npy array at {folder / 'spots.npy'}, found no such file" in fit(folder)
    (folder / "spots.csv").unlink()
    (folder / "spots.csv").mkdir()
    assert f"expected a CSV table at {folder / 'spots.csv'}, found a folder" in fit(folder)


# -- tables


def rewrite(folder: Path, change: Callable[[pd.DataFrame], pd.DataFrame]) -> None:
    path = folder / "spots.csv"
    change(pd.read_csv(path)).to_csv(path, index=False)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda t: t.drop(columns="angle"), "expected a column 'angle', got columns ['spot']"),
        (lambda t: t.rename(columns={"angle": "angles"}), "did you mean 'angles'?"),
        (lambda t: t.head(0), "expected a table with rows"),
        (lambda t: t.head(20), "got 20 rows and 55 samples"),
        (lambda t: t.assign(angle=t["angle"].mask(t.index == 4)), "column 'angle' must be finite, got nan in row 4"),
        (lambda t: t.assign(angle=t["angle"].mask(t.index == 5, np.inf)), "must be finite, got inf in row 5"),
        (lambda t: t.assign(angle="left"), "column 'angle' must be numeric, got values like 'left'"),
        (
            lambda t: t.assign(spot=t["spot"].mask(t.index == 6)),
            "must name an id in every row, got a missing value in row 6",
        ),
    ],
)
def test_tables_that_do_not_fit(folder: Path, change: Callable[[pd.DataFrame], pd.DataFrame], expected: str) -> None:
    rewrite(folder, change)
    assert expected in fit(folder)


@pytest.mark.parametrize("content", [b"", b"\x89PNG\r\n\x1a\n\x00\xff\xfe", b"a,b\n1,2\n1,2,3\n", b'a,b\n1,"2\n'])
def test_a_file_that_is_no_csv_table(folder: Path, content: bytes) -> None:
    (folder / "spots.csv").write_bytes(content)
    assert "expected a CSV table with a header line" in fit(folder)


def test_a_row_with_more_fields_than_the_header_is_not_swallowed(folder: Path) -> None:
    rows = ["spot,angle", *["s0,10.0,7"] * 55]
    (folder / "spots.csv").write_text("\n".join(rows))
    assert "expected a CSV table" in fit(folder)


# -- kernels and settings


@pytest.mark.parametrize(
    ("kernel", "expected"),
    [
        ("Lerned(spot, 3) * Periodic(angle, 360)", "got 'Lerned'; did you mean Learned?"),
        ("Learned(spot, 3) * Perodic(angle, 360)", "did you mean Periodic?"),
        ("Learned(spot, 3) *", "check brackets"),
        ("Learned(spot, 0)", "needs dim between 1 and 4096, got 0"),
        ("Periodic(angle, 0)", "needs period between 1e-30 and 1e+30, got 0"),
        ("Learned(spot) ** 2", "use kernel names, +, *, numbers and brackets"),
        ("__import__('os').system('true')", "the kernel names must be known ones"),
        ("RBF(spot)", "column 'spot' must be numeric"),
        ("2.0", "name a kernel"),
    ],
)
def test_kernels_that_cannot_be_read(folder: Path, kernel: str, expected: str) -> None:
    assert expected in fit(folder, kernel=kernel)


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        (["--latent-dim", "0"], "latent_dim must be a whole number of at least 1, got 0"),
        (["--batch-size", "0"], "batch_size must be a whole number of at least 1, got 0"),
        (["--epochs", "-1"], "epochs must be a whole number of at least 0, got -1"),
        (["--network", "transformer"], "network must be one of auto, image, vector, conv"),
        (["--inference", "magic"], "inference must be auto, one of global"),
        (["--schedule", "both"], "schedule must be 'joint' or 'disjoint', got 'both'"),
        (["--likelihood", "gamma"], "likelihood must be one of gaussian"),
        (["--likelihood", "negative_binomial"], "needs counts 0, 1, 2"),
        (["--likelihood", "poisson"], "needs counts 0, 1, 2"),
        (["--size", "depth"], "sizes belong to the likelihoods negative_binomial, poisson, got None"),
        (["--pixel-var", "0"], "pixel_var must be a number from 1e-12 to 1e+12, got 0"),
        (["--channels", "middle"], "channels must be one of first, last, got 'middle'"),
        (["--missing", "guess"], "missing must be one of error, mask"),
        (["--validation-fraction", "1.5"], "between 0 and 1, got 1.5"),
        (["--validation-fraction", "0.2", "--validation-table", "v.csv", "--validation-data", "v.npy"], "choose one"),
        (["--validation-table", "v.csv"], "--validation-table and --validation-data together"),
        (["--validation-table", "v.csv", "--validation-data", "v.npy"], "expected a CSV table at v.csv"),
    ],
)
def test_settings_that_make_no_sense(folder: Path, more: list[str], expected: str) -> None:
    assert expected in fit(folder, *more)


def test_vectors_for_a_convolutional_network(folder: Path) -> None:
    replace(folder, lambda y: y.reshape(55, -1))
    sentence = fit(folder, "--network", "conv")
    assert "the 'conv' network needs images" in sentence and "use network='vector' for vectors" in sentence


def test_one_row_per_id_leaves_none_for_validation(folder: Path) -> None:
    rewrite(folder, lambda t: t.assign(spot=[f"s{n}" for n in range(len(t))]))
    assert "give separate validation data" in fit(folder, "--validation-fraction", "0.2")


# -- output folders


def test_latents_are_not_written_among_the_files_of_a_run(folder: Path, run: Path) -> None:
    before = sorted(run.iterdir())
    result = CliRunner().invoke(app, ["encode", str(run), "--data", str(folder / "spots.npy"), "--out", str(run)])
    assert "already holds predictions or other files; choose another folder" in refused(result)
    assert sorted(run.iterdir()) == before


@pytest.mark.parametrize("content", ["{", "[1]", '{"settings": 1, "about": [1]}'])
@pytest.mark.parametrize("words", [["info"], ["report"], ["explore", "--no-browser", "--table", "spots.csv"]])
def test_damaged_settings_of_a_run_are_named(words: list[str], content: str, folder: Path, run: Path) -> None:
    shutil.copytree(run, folder / "damaged")
    (folder / "damaged" / "config.json").write_text(content)
    given = [str(folder / word) if word.endswith(".csv") else word for word in words[1:]]
    result = CliRunner().invoke(app, [words[0], str(folder / "damaged"), *given])
    assert "config.json" in refused(result)


def test_a_folder_that_holds_a_run(folder: Path, run: Path) -> None:
    before = (run / "model.safetensors").read_bytes()
    result = CliRunner().invoke(app, words(folder, "--out", str(run)))
    assert "already holds a finished run; choose another folder" in refused(result)
    assert (run / "model.safetensors").read_bytes() == before


def test_a_folder_that_cannot_be_made(folder: Path) -> None:
    (folder / "file").write_text("not a folder")
    result = CliRunner().invoke(app, words(folder, "--out", str(folder / "file" / "run")))
    assert "expected a writable folder" in refused(result)
    result = CliRunner().invoke(app, ["demo", "--out", str(folder / "file" / "demo")])
    assert "expected a writable folder" in refused(result)


# -- predict, info, report


def predict(run: Path, rows: Path, out: Path, *more: str) -> str:
    sentence = refused(CliRunner().invoke(app, ["predict", str(run), str(rows), "--out", str(out), *more]))
    assert not list(out.parent.glob(".*part"))
    return sentence


def test_predictions_that_cannot_be_made(folder: Path, run: Path) -> None:
    out = folder / "predicted"
    rows = folder / "rows.csv"
    rows.write_text("spot,angle\ns0,10\ns99,20\n")
    assert "must hold ids known from training (5 of them), got 's99'" in predict(run, rows, out)
    rows.write_text("spot,angel\ns0,10\n")
    assert "did you mean 'angel'?" in predict(run, rows, out)
    rows.write_text("spot,angle\ns0,north\n")
    assert "must be numeric" in predict(run, rows, out)
    rows.write_text("spot,angle\n")
    assert "expected a table with rows" in predict(run, rows, out)
    assert "n_samples must be a whole number" in predict(run, folder / "spots.csv", out, "--n-samples", "-1")
    assert "no such file" in predict(run, folder / "none.csv", out)
    assert "expected a gppvae file" in predict(folder / "nowhere", folder / "spots.csv", out)
    (folder / "file").write_text("")
    assert "a writable folder" in predict(run, folder / "spots.csv", folder / "file" / "out")
    assert not out.exists()


def test_predictions_do_not_overwrite(folder: Path, run: Path) -> None:
    (folder / "full").mkdir()
    (folder / "full" / "mean.npy").write_text("precious")
    assert "already holds predictions or other files" in predict(run, folder / "spots.csv", folder / "full")
    assert (folder / "full" / "mean.npy").read_text() == "precious"


@pytest.mark.parametrize("command", ["info", "report"])
def test_folders_without_a_whole_model(tmp_path: Path, run: Path, command: str) -> None:
    ask = lambda path: refused(CliRunner().invoke(app, [command, str(path)]))  # noqa: E731
    assert "found none; check the folder's name" in ask(tmp_path / "nowhere")
    content = (run / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(content[: len(content) // 2])
    assert "cut short or not a gppvae file" in ask(tmp_path)
    damaged = bytearray(content)
    damaged[-9] ^= 4
    (tmp_path / "model.safetensors").write_bytes(bytes(damaged))
    assert "is damaged" in ask(tmp_path)


# -- real processes


def test_exit_codes_of_real_processes(folder: Path) -> None:
    command = [sys.executable, "-m", "gppvae"]
    bad = subprocess.run([*command, *words(folder, "--latent-dim", "0")], capture_output=True, text=True, timeout=120)
    assert bad.returncode == 2
    assert bad.stderr.count("\n") == 1 and bad.stderr.startswith("gppvae: latent_dim must be")
    unknown = subprocess.run([*command, "fit", "--colour", "red"], capture_output=True, text=True, timeout=120)
    assert unknown.returncode == 2
    assert "No such option" in unknown.stderr and "Traceback" not in unknown.stderr
