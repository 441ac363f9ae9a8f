"""The commands, from table and array to predictions and report."""

import functools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image
from typer.testing import CliRunner, Result

import gppvae
from gppvae import GPPVAE, demo
from gppvae.cli import app
from gppvae.data.files import read_table
from gppvae.data.subset import Subset, hold_out
from gppvae.data.table import Table
from gppvae.report import describe
from gppvae.training.loop import TrainingError
from tiny import KERNEL, SIZE, held_out, spots

QUICK = ["--network", "mlp", "--inference", "global", "--latent-dim", "3", "--batch-size", "16", "--quiet"]


def call(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


def succeed(*words: object) -> Result:
    result = call(*words)
    assert result.exit_code == 0, result.output + repr(result.exception)
    return result


def write(folder: Path, images: np.ndarray, table: pd.DataFrame, name: str = "spots") -> tuple[Path, Path]:
    np.save(folder / f"{name}.npy", images)
    table.to_csv(folder / f"{name}.csv", index=False)
    return folder / f"{name}.csv", folder / f"{name}.npy"


def sections(page: Path) -> list[str]:
    return re.findall(r"<h2[^>]*>([^<]*)</h2>", page.read_text("utf-8"))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on images with validation data, made by the command."""
    folder = tmp_path_factory.mktemp("images")
    images, table, test_images, test_table = held_out()
    csv, npy = write(folder, images, table)
    valid_csv, valid_npy = write(folder, test_images, test_table, "valid")
    out = folder / "run"
    result = succeed(
        "fit", csv, "--data", npy, "--kernel", KERNEL, "--out", out, "--epochs", 30, "--lr", 3e-3, *QUICK,
        "--validation-table", valid_csv, "--validation-data", valid_npy,
    )  # fmt: skip
    assert f"report: {out / 'report.html'}" in result.stdout
    assert "trained on 55 samples of shape (1, 8, 8)" in result.stdout
    return out


# -- fit


def test_fit_leaves_model_log_report_and_figures(run: Path) -> None:
    names = {path.name for path in run.iterdir()}
    assert names >= {"config.json", "metrics.jsonl", "model.safetensors", "report.html", "figures"}
    assert sections(run / "report.html") == [
        "Results", "Predictions", "Can the uncertainty be trusted?", "Every view of every object",
        "What each term explains", "What the kernel learned", "Training", "Facts",
    ]  # fmt: skip
    drawn = {path.name for path in (run / "figures").iterdir()}
    assert drawn == {f"{name}.svg" for name in ("predictions", "calibration", "explained", "covariances", "loss")}
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert any("valid_mse_prediction" in row for row in rows)


def test_fit_is_what_the_estimator_does(run: Path) -> None:
    images, table, test_images, test_table = held_out()
    model = GPPVAE(KERNEL, 3, network="mlp", inference="global", epochs=30, batch_size=16, lr=3e-3)
    model.fit(images, table, validation=(test_images, test_table), progress=False)
    np.testing.assert_array_equal(GPPVAE.load(run).predict(test_table).mean, model.predict(test_table).mean)


def test_the_error_in_the_report_is_that_of_the_predictions(run: Path) -> None:
    images, _, test_images, test_table = held_out()
    error = np.mean((GPPVAE.load(run).predict(test_table).mean - test_images) ** 2) / images.var()
    assert f'<td>GPPVAE</td><td class="num">{error:.4g}</td>' in (run / "report.html").read_text("utf-8")


def test_the_turntable_shows_what_was_measured_and_marks_the_held_out_view(run: Path) -> None:
    page = (run / "report.html").read_text("utf-8")
    data = json.loads(re.search(r'data-turntable="([^"]*)"', page)[1].replace("&quot;", '"'))  # type: ignore[index]
    assert data["objects"] == [f"spot s{p}" for p in range(5)]
    assert data["panels"] == ["measured", "predicted", "uncertainty"]
    views = [float(label.split()[1]) for label in data["labels"]]
    assert views == sorted(views) and len(views) == 48  # twelve measured, three between each pair
    assert {30.0 * q for q in range(12)} <= set(views)
    for row in data["held"]:
        assert [view for view, bit in zip(views, row, strict=True) if bit == "1"] == [90.0]
    measured_rows = data["gaps"][::3]
    for row in measured_rows:
        assert [view for view, bit in zip(views, row, strict=True) if bit == "0"] == [30.0 * q for q in range(12)]


def test_fit_of_vectors_with_a_sum_of_kernels(tmp_path: Path) -> None:
    images, table = spots()
    csv, npy = write(tmp_path, images.reshape(len(images), -1)[:, :12], table)
    kernel = "Learned(spot, 2) + 0.5 * RBF(angle) + Categorical(spot) + Constant()"
    succeed("fit", csv, "--data", npy, "--kernel", kernel, "--out", tmp_path / "run", "--epochs", 2,
            "--validation-fraction", 0.2, *QUICK)  # fmt: skip
    found = sections(tmp_path / "run" / "report.html")
    assert found == [
        "Results", "Predictions", "Can the uncertainty be trusted?", "Measured and predicted",
        "What each term explains", "What the kernel learned", "Training", "Facts",
    ]  # fmt: skip
    answer = succeed("info", tmp_path / "run").stdout
    assert "length scale" in answer and "5 levels" in answer and "(12,)" in answer


def test_colour_bytes_with_levels_as_views(tmp_path: Path) -> None:
    images, table = spots(3, 4)
    colour = np.round(255 * np.stack([images, images, 1 - images], axis=-1)).astype(np.uint8)
    names = table.assign(pose=table["angle"].map({0.0: "front", 90.0: "left", 180.0: "back", 270.0: "right"}))
    csv, npy = write(tmp_path, colour, names)
    out = tmp_path / "run"
    succeed("fit", csv, "--data", npy, "--kernel", "Learned(spot, 2) * FreeForm(pose)", "--out", out, "--epochs", 2,
            "--channels", "last", *QUICK)  # fmt: skip
    assert "Every view of every object" in sections(out / "report.html")
    assert "Results" not in sections(out / "report.html")
    (tmp_path / "rows.csv").write_text("spot,pose\ns1,left\n")
    succeed("predict", out, tmp_path / "rows.csv", "--out", tmp_path / "predicted")
    with Image.open(tmp_path / "predicted" / "images" / "0000_s1_left.png") as picture:
        assert picture.mode == "RGB" and picture.size == (SIZE, SIZE)


def test_a_fit_that_was_stopped_before_its_report_only_writes_the_report(tmp_path: Path) -> None:
    csv, npy = write(tmp_path, *spots(3, 4))
    words = ["fit", csv, "--data", npy, "--kernel", KERNEL, "--out", tmp_path / "run", "--epochs", 1, *QUICK]
    succeed(*words, "--no-report")
    before = (tmp_path / "run" / "model.safetensors").read_bytes()
    assert not (tmp_path / "run" / "report.html").exists()
    succeed(*words)
    assert (tmp_path / "run" / "report.html").exists()
    assert (tmp_path / "run" / "model.safetensors").read_bytes() == before
    assert call(*words).exit_code == 2


def test_a_finished_model_of_another_fit_is_not_taken_for_the_one_asked_for(tmp_path: Path) -> None:
    """Its report was written, and the answer said that it was trained on the new samples."""
    images, table = spots(3, 4)
    csv, npy = write(tmp_path, images, table)
    other_csv, other_npy = write(tmp_path, images[::-1], table, "other")
    rest = ["--out", tmp_path / "run", *QUICK]
    succeed("fit", csv, "--data", npy, "--kernel", KERNEL, "--epochs", 1, "--no-report", *rest)
    GPPVAE.load(tmp_path / "run").save(tmp_path / "saved")
    for changed in (
        ["fit", csv, "--data", npy, "--kernel", KERNEL, "--epochs", 2, *rest],
        ["fit", csv, "--data", npy, "--kernel", "Learned(spot, 2)", "--epochs", 1, *rest],
        ["fit", other_csv, "--data", other_npy, "--kernel", KERNEL, "--epochs", 1, *rest],
        ["fit", csv, "--data", npy, "--kernel", KERNEL, "--epochs", 1, *rest, "--out", tmp_path / "saved"],
    ):
        result = call(*changed)
        assert result.exit_code == 2 and "already holds a finished run" in result.stderr
        assert not (tmp_path / "run" / "report.html").exists()
    succeed("fit", csv, "--data", npy, "--kernel", KERNEL, "--epochs", 1, *rest)


def test_the_report_command_loses_no_section_and_takes_the_data(run: Path, tmp_path: Path) -> None:
    shutil.copytree(run, tmp_path / "run")
    before = sections(tmp_path / "run" / "report.html")
    (tmp_path / "run" / "report.html").unlink()
    succeed("report", tmp_path / "run")
    assert sections(tmp_path / "run" / "report.html") == before
    (tmp_path / "run" / "report_sections.json").unlink()
    images, table, test_images, test_table = held_out()
    csv, npy = write(tmp_path, images, table)
    valid_csv, valid_npy = write(tmp_path, test_images, test_table, "valid")
    succeed("report", tmp_path / "run", "--table", csv, "--data", npy, "--validation-table", valid_csv,
            "--validation-data", valid_npy)  # fmt: skip
    assert sections(tmp_path / "run" / "report.html") == before
    result = call("report", tmp_path / "run", "--data", npy)
    assert result.exit_code == 2 and "expected --table and --data together" in result.stderr


def test_the_report_command_writes_the_page_from_the_folder_alone(run: Path, tmp_path: Path) -> None:
    GPPVAE.load(run).save(tmp_path / "copy")
    succeed("report", tmp_path / "copy")
    assert sections(tmp_path / "copy" / "report.html") == [
        "Results", "Every view of every object", "What the kernel learned", "Training", "Facts",
    ]  # fmt: skip


# -- predict


@pytest.mark.parametrize("letter", ["a", "者", "\U0001f600"])
def test_pictures_of_long_ids_have_short_names(letter: str, tmp_path: Path) -> None:
    """Names of files have a limit in bytes, of which a letter may take four."""
    images, table = spots(3, 4)
    table["spot"] = [letter * 90 + name for name in table["spot"]]
    model = GPPVAE(KERNEL, latent_dim=2, network="mlp", epochs=1).fit(images, table, progress=False)
    model.save(tmp_path / "run")
    table.to_csv(tmp_path / "rows.csv", index=False)
    succeed("predict", tmp_path / "run", tmp_path / "rows.csv", "--out", tmp_path / "predicted")
    names = sorted(path.name for path in (tmp_path / "predicted" / "images").iterdir())
    assert [name[:4] for name in names] == [f"{n:04d}" for n in range(12)]


def test_predict_writes_arrays_rows_and_pictures(run: Path, tmp_path: Path) -> None:
    rows = tmp_path / "rows.csv"
    rows.write_text("angle,note,spot\n12.5,x,s0\n90.0,y,s4\n301.0,z,s2\n")
    out = tmp_path / "predicted"
    succeed("predict", run, rows, "--out", out, "--n-samples", 5, "--seed", 3)
    assert sorted(path.name for path in out.iterdir()) == ["images", "mean.npy", "rows.csv", "sheet.png", "std.npy"]
    assert (out / "rows.csv").read_bytes() == rows.read_bytes()
    wanted = {"spot": ["s0", "s4", "s2"], "angle": [12.5, 90.0, 301.0]}
    expected = GPPVAE.load(run).predict(wanted, n_samples=5, seed=3)
    np.testing.assert_array_equal(np.load(out / "mean.npy"), expected.mean)
    np.testing.assert_array_equal(np.load(out / "std.npy"), expected.std)
    for n, name in enumerate(("0000_s0_12.5", "0001_s4_90", "0002_s2_301")):
        with Image.open(out / "images" / f"{name}.png") as picture:
            shown = np.asarray(picture) / 255.0
        np.testing.assert_allclose(shown, expected.mean[n].clip(0, 1), atol=0.5 / 255 + 1e-6)
    with Image.open(out / "sheet.png") as sheet:
        assert sheet.size == (2 * SIZE + 2, 2 * SIZE + 2)
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_predict_without_draws_has_no_std_and_pictures_can_be_left_out(run: Path, tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("spot,angle\ns1,40\n")
    (tmp_path / "out").mkdir()  # an empty folder is free
    succeed("predict", run, tmp_path / "rows.csv", "--out", tmp_path / "out", "--no-images")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["mean.npy", "rows.csv"]
    assert call("predict", run, tmp_path / "rows.csv", "--out", tmp_path / "out").exit_code == 2


def test_noise_is_counted_when_asked_for(run: Path, tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("spot,angle\ns1,40\n")
    for name, more in (("plain", []), ("noisy", ["--include-noise"])):
        succeed("predict", run, tmp_path / "rows.csv", "--out", tmp_path / name, "--n-samples", 4, *more)
    plain, noisy = (np.load(tmp_path / name / "std.npy") for name in ("plain", "noisy"))
    assert noisy.mean() > plain.mean()


def test_intervals_are_those_of_new_samples(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gppvae.report.predictions.CSV_ROWS", 2)
    (tmp_path / "rows.csv").write_text("spot,angle\ns1,40\ns2,90\ns3,10\n")
    words = ["predict", run, tmp_path / "rows.csv", "--out", tmp_path / "out", "--interval", 0.8, "--no-images"]
    succeed(*words)
    names = ["high.npy", "low.npy", "mean.npy", "rows.csv", "std.npy"]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == names
    model, rows = GPPVAE.load(run), {"spot": ["s1", "s2", "s3"], "angle": [40.0, 90.0, 10.0]}
    expected = model.predict(rows, n_samples=64, include_noise=True).interval(0.8)
    for name, end in zip(("low", "high"), expected, strict=True):
        np.testing.assert_allclose(np.load(tmp_path / "out" / f"{name}.npy"), end, rtol=1e-6)
    refused = call(*words[:4], tmp_path / "other", "--interval", 90)
    assert refused.exit_code == 2 and "--interval must be a number between 0 and 1" in refused.output
    assert not (tmp_path / "other").exists()


# -- info, version, help


def test_info_says_what_the_model_is(run: Path) -> None:
    answer = succeed("info", run).stdout
    model = GPPVAE.load(run)
    assert model.model_ is not None
    scale = float(model.kernel_.leaves()[1].base.lengthscale.detach())  # type: ignore[attr-defined]
    for word in (
        "Learned('spot', dim=3) * Periodic('angle', period=360.0)",
        "(1, 8, 8)",
        "5 ids (s0, s1, s2, s3, ...)",
    ):
        assert word in answer
    assert f"length scale {scale:.4g}" in answer
    assert f"variance {float(model.prior_.groups[0].alpha.detach()):.4g}" in answer
    assert re.search(r"global, epoch 30 .*valid_mse_prediction", " ".join(answer.split()))
    assert re.search(r"batch_size\s+16", answer) and re.search(r"torch\s+\d", answer)


def test_version_and_help() -> None:
    assert succeed("--version").stdout == f"gppvae {gppvae.__version__}\n"
    answer = succeed("--help").stdout
    for command in ("demo", "fit", "predict", "info", "report"):
        assert command in answer
    assert "--validation-fraction" in CliRunner(env={"COLUMNS": "200"}).invoke(app, ["fit", "--help"]).stdout
    assert call().exit_code == 2


def test_python_m_is_the_same_command() -> None:
    answer = subprocess.run([sys.executable, "-m", "gppvae", "--version"], capture_output=True, text=True, timeout=120)
    assert (answer.returncode, answer.stdout) == (0, f"gppvae {gppvae.__version__}\n")


# -- stopping


def test_failed_training_is_exit_code_three(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: GPPVAE, *_: object, **__: object) -> None:
        raise TrainingError("training stopped in phase 'joint' because\nrecon_nll was not finite")

    monkeypatch.setattr(GPPVAE, "fit", fail)
    csv, npy = write(tmp_path, *spots(3, 4))
    result = call("fit", csv, "--data", npy, "--kernel", KERNEL, "--out", tmp_path / "run")
    assert result.exit_code == 3
    assert result.stderr == "gppvae: training stopped in phase 'joint' because recon_nll was not finite\n"


def test_faults_of_the_program_are_one_sentence_and_a_trace_only_with_debug(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise KeyError("a fault")

    monkeypatch.setattr(describe, "read_saved", fail)
    result = call("info", tmp_path)
    assert result.exit_code == 1 and result.stderr.count("\n") == 1
    assert "an internal error of gppvae (KeyError: 'a fault'); please report it with the output of" in result.stderr
    shown = call("--debug", "info", tmp_path)
    assert shown.exit_code == 1 and "Traceback" in shown.stderr and 'raise KeyError("a fault")' in shown.stderr
    assert call("info", tmp_path).stderr.count("\n") == 1, "the option lasts for one command"


@pytest.mark.skipif(os.name != "posix", reason="needs signals of POSIX")
def test_ctrl_c_says_how_to_continue(tmp_path: Path) -> None:
    csv, npy = write(tmp_path, *spots())
    words = ["fit", csv, "--data", npy, "--kernel", KERNEL, "--out", tmp_path / "run", "--epochs", 100_000, *QUICK]
    command = [sys.executable, "-m", "gppvae", *map(str, words)]
    # Tests may themselves run where Ctrl-C is ignored (a background job), which children inherit.
    heeded = functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=heeded)
    while not (tmp_path / "run" / "metrics.jsonl").exists() and process.poll() is None:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    out, errors = process.communicate(timeout=60)
    # When the signal falls into an exec() of some import, Python ends itself by it after all; shells show 130 for both.
    assert process.returncode in (130, -signal.SIGINT)
    assert errors == "gppvae: stopped; run the same command again to continue\n"
    assert out == ""


# -- demo


def test_the_demo_ends_in_a_table_and_a_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = demo.DemoRecipe(
        n_digits=10, n_angles=4, held_out_angle=90.0, kernel="Learned(digit, 2) * Periodic(angle, 360)",
        settings={"latent_dim": 2, "network": "mlp", "batch_size": 8},
        phases=(demo.Phase("global", "global", 3, {"decoder": 1e-2, "weights": 1e-2}),),
    )  # fmt: skip
    monkeypatch.setattr(demo, "DemoRecipe", lambda: small)
    out = tmp_path / "demo"
    for _ in range(2):  # a finished demo is made anew
        result = succeed("demo", "--out", out, "--quiet")
        assert f"report: {out / 'report.html'}" in result.stdout
    for name in ("GPPVAE", "copy of the nearest view", "mean image"):
        assert name in result.stdout
    assert "Every view of every object" in sections(out / "report.html")
    assert [path.name for path in tmp_path.iterdir()] == ["demo"]


# -- tables and parts of data


def test_ids_stay_text_and_numbers_numbers(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("id,other,x\n007,NA,1.5\n7.0,n,2\nA1,nan,3\n")
    table = read_table(tmp_path / "t.csv", ["id", "other"])
    assert table["id"].tolist() == ["007", "7", "A1"]
    assert table["other"].tolist()[:2] == ["NA", "n"] and pd.isna(table["other"].iloc[2])
    assert table["x"].tolist() == [1.5, 2.0, 3.0]


def test_a_random_part_is_held_out_and_every_id_stays_in_training() -> None:
    _, table = spots(6, 4)
    rare = pd.concat([table, pd.DataFrame({"spot": ["once"], "angle": [0.0]})], ignore_index=True)
    kept, held = hold_out(Table(rare), 0.3, ["spot"], seed=1)
    assert sorted([*kept, *held]) == list(range(25))
    assert len(held) == round(0.3 * 25)
    assert set(rare["spot"].iloc[kept]) == set(rare["spot"])
    assert hold_out(Table(rare), 0.3, ["spot"], seed=1)[1].tolist() == held.tolist()
    assert hold_out(Table(rare), 0.3, ["spot"], seed=2)[1].tolist() != held.tolist()


def test_a_subset_reads_what_indexing_twice_would(rng: np.random.Generator) -> None:
    data, index = rng.standard_normal((20, 3)), np.array([5, 1, 19, 7])
    part = Subset(data, index)
    assert (part.shape, part.dtype, len(part)) == ((4, 3), data.dtype, 4)
    np.testing.assert_array_equal(part[1:3], data[[1, 19]])
    np.testing.assert_array_equal(part[np.array([3, 0])], data[[7, 5]])
