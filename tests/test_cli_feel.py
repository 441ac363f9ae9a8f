"""How the command line feels: every setting is an option, defaults are shown, JSON, completion, bars, quick answers."""

import functools
import io
import json
import os
import re
import subprocess
import sys
from dataclasses import MISSING, fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import typer.main
from rich.console import Console
from typer.testing import CliRunner

from gppvae import GPPVAE
from gppvae.cli import app, output
from gppvae.cli.fitting import FitSettings
from gppvae.cli.options import Shown
from gppvae.data import progress as passes
from gppvae.kernels.parse import KERNELS
from gppvae.training import progress
from tiny import KERNEL, held_out

ROOT = Path(__file__).parents[1]
COMMANDS: dict[str, Any] = typer.main.get_command(app).commands  # type: ignore[attr-defined]
IN_PYTHON_ONLY = {"encoder", "decoder"}  # modules of your own are objects, which no option can name


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    images, table, _, _ = held_out()
    path = tmp_path_factory.mktemp("runs") / "run"
    GPPVAE(KERNEL, 2, network="mlp", inference="global", epochs=1).fit(images, table, out=path, progress=False)
    return path


def option(command: str, name: str) -> Any:
    return next(parameter for parameter in COMMANDS[command].params if parameter.name == name)


# -- settings and defaults


def test_fit_takes_everything_that_the_estimator_takes() -> None:
    settings = {item.name for item in fields(GPPVAE)} - IN_PYTHON_ONLY
    assert settings - {"kernel"} == {item.name for item in fields(FitSettings)}
    assert settings <= {parameter.name for parameter in COMMANDS["fit"].params}


@pytest.mark.parametrize("item", [item for item in fields(GPPVAE) if item.name not in {*IN_PYTHON_ONLY, "kernel"}],
                         ids=lambda item: item.name)  # fmt: skip
def test_help_shows_the_default_of_the_estimator(item: Any) -> None:
    shown = option("fit", item.name).show_default
    assert isinstance(shown, str) and shown
    if item.default not in (None, MISSING):
        assert shown == str(item.default)


@pytest.mark.parametrize("name", [name for name in COMMANDS if name not in ("reproduce", "bench")])
def test_every_option_has_help_and_a_default_and_a_place(name: str) -> None:
    for parameter in COMMANDS[name].params:
        if parameter.name == "help":
            continue
        assert parameter.help, parameter.name
        if not parameter.required and parameter.default is None:
            assert isinstance(parameter.show_default, str), f"{name} --{parameter.name} does not say its default"
    assert {"--json", "--quiet"} <= {word for parameter in COMMANDS[name].params for word in parameter.opts}
    answer = CliRunner(env={"COLUMNS": "100"}).invoke(app, [name, "--help"]).stdout
    assert "Output" in answer
    for panel in ("Samples", "Model", "Training", "Validation") if name == "fit" else ():
        assert f"─ {panel} ─" in answer


def test_the_page_of_commands_is_that_of_the_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    from cli_reference import page

    assert page() == (ROOT / "docs" / "cli.md").read_text("utf-8"), "run: python docs/cli_reference.py > docs/cli.md"


# -- quick answers


def run_python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_info_does_not_wait_for_torch(run: Path) -> None:
    code = (
        "import sys\nfrom typer.testing import CliRunner\nfrom gppvae.cli import app\n"
        f"result = CliRunner().invoke(app, ['info', {str(run)!r}])\n"
        "assert result.exit_code == 0 and 'Learned' in result.stdout, result.output\n"
        "print([name for name in ('torch', 'gpytorch', 'pandas', 'scipy', 'matplotlib') if name in sys.modules])"
    )
    assert run_python(code) == "[]\n"


def test_info_breaks_no_word_at_80_columns(tmp_path: Path) -> None:
    kernel = "Learned(spot, 2) * Periodic(angle, period=360.0) + RBF(angle)"
    table = {"spot": np.repeat(["a", "b"], 8), "angle": np.tile(np.arange(8) * 45.0, 2)}
    samples = np.random.default_rng(0).normal(size=(16, 3)).astype(np.float32)
    GPPVAE(kernel, latent_dim=2, width=4, epochs=1, inference="global").fit(samples, table, out=tmp_path / "run")
    command = [sys.executable, "-m", "gppvae", "info", str(tmp_path / "run")]
    told = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"COLUMNS": "80"}, check=True)
    assert "factor before" in told.stdout and max(map(len, told.stdout.splitlines())) <= 80
    whole = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"COLUMNS": "400"}, check=True)
    assert sorted(told.stdout.split()) == sorted(whole.stdout.split())
    assert "MaskedEncoder" not in whole.stdout and "network" in whole.stdout


def test_info_as_json_is_what_the_loaded_model_knows(run: Path) -> None:
    found = json.loads(CliRunner().invoke(app, ["info", str(run), "--json"]).stdout)
    model = GPPVAE.load(run)
    assert found["shape"] == list(model.shape_) and found["kind"] == "gppvae"
    assert found["settings"] == json.loads(json.dumps(model.resolved_))
    assert found["columns"]["spot"] == "5 ids (s0, s1, s2, s3, ...)"
    assert found["run"]["seed"] == 0


def test_an_unfinished_run_is_told(tmp_path: Path) -> None:
    (tmp_path / "checkpoint.safetensors").write_bytes(b"")
    result = CliRunner().invoke(app, ["info", str(tmp_path)])
    assert result.exit_code == 2 and "holds a run that is not finished" in result.stderr


def test_kernels_are_listed_with_equation_and_arguments() -> None:
    answer = CliRunner().invoke(app, ["kernels"]).stdout
    found = json.loads(CliRunner().invoke(app, ["kernels", "--json"]).stdout)
    assert list(found) == list(KERNELS)
    for name, cls in KERNELS.items():
        assert f"\n{name}(" in f"\n{answer}" and "k(" in found[name]["text"]
        assert " ".join((cls.__doc__ or "").split()[:6]) in " ".join(answer.split())
    assert "Periodic(column, period, lengthscale=None" in answer


# -- completion


def completed(words: str, last: int) -> list[str]:
    environment = os.environ | {"_GPPVAE_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(last)}
    command = [sys.executable, "-c", "from gppvae.cli import main; main()"]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120).stdout.split()


def test_the_shell_completes_commands_options_and_words() -> None:
    assert completed("gppvae pre", 1) == ["predict"]
    assert "--validation-fraction" in completed("gppvae fit --validation", 2)
    assert completed("gppvae fit --inference mini", 3) == ["minibatch"]


@pytest.mark.skipif(os.name != "posix", reason="bash and its home folder")
def test_completion_can_be_installed(tmp_path: Path) -> None:
    environment = os.environ | {
        "HOME": str(tmp_path),
        "SHELL": "/bin/bash",
        "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1",
    }
    command = [sys.executable, "-c", "from gppvae.cli import main; main()", "--install-completion", "bash"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)
    assert done.returncode == 0, done.stderr
    installed = [path for path in tmp_path.rglob("*.sh") if path.is_file()]
    assert len(installed) == 1 and "_GPPVAE_COMPLETE=complete_bash" in installed[0].read_text()
    assert str(installed[0]) in (tmp_path / ".bashrc").read_text()


# -- bars


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """What a terminal of 80 columns is sent."""
    screen = io.StringIO()
    console = functools.partial(Console, force_terminal=True, width=80, _environ={"TERM": "xterm"})
    monkeypatch.setattr(screen, "isatty", lambda: True)
    monkeypatch.setattr(progress, "sys", SimpleNamespace(stderr=screen))
    monkeypatch.setattr(progress, "Console", lambda stderr: console(file=screen))
    return screen


def lines(screen: io.StringIO) -> list[str]:
    plain = re.sub(r"\x1b\[[0-9;]*m", "", screen.getvalue())  # colours
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "\n", plain)  # the cursor is moved
    return [line.rstrip() for line in plain.replace("\r", "\n").split("\n") if line.strip()]


def test_values_of_an_epoch_keep_their_places_in_80_columns(terminal: io.StringIO) -> None:
    with progress.Progress([("warm-up of the networks", 100, 3), ("joint", 12000, 3)]) as bar:
        bar.phase(1, 0)
        bar.epoch(1, {"loss": -123456.789}, {"recon_nll": 1.0})
        bar._bar.refresh()
        bar.epoch(2, {"loss": 0.0000123456, "valid_mse_prediction": 0.001234567}, {"recon_nll": 1.0})
        bar._bar.refresh()
        bar.epoch(3, {"loss": 1e-300}, {"recon_nll": 1.0})
        bar._bar.refresh()
    shown = [line for line in lines(terminal) if "loss" in line]
    assert max(map(len, lines(terminal))) <= 80
    for word, place in (("loss", 33), ("valid", 49)):
        assert {line.index(word) for line in shown} == {place}
    values = [(line[38:47], line[55:64]) for line in shown]
    assert ("-1.23e+05", " " * 9) in values and ("1.235e-05", " 0.001235") in values
    assert all(re.search(r"\d:\d\d:\d\d (-:--:--|\d+:\d\d:\d\d)$", line) for line in shown), "times are not cut off"
    assert values[-1] == ("   1e-300", " 0.001235"), "the last validation stays"


@pytest.mark.parametrize("width", [80, 104, 140])
def test_terms_of_the_loss_are_shown_where_there_is_room(width: int) -> None:
    terms = {"recon_nll": 12.5, "gp_nll": -3.25, "neg_entropy": 1.0}
    room = width - progress.OTHER_COLUMNS
    text = progress.shown_values(9.25, None, terms, room)
    assert len(text) <= max(room, 31) and text.startswith("loss      9.25  valid")
    assert ("gp_nll" in text) == (width >= 140) and ("recon_nll" in text) == (width >= 104)


def test_rows_that_are_done_are_shown(terminal: io.StringIO) -> None:
    with output.row_bar("predict", Shown()):
        for done in (256, 512, 600):
            passes.rows_done(done, 600)
    passes.rows_done(1, 2)  # nobody watches any more
    assert any("predict" in line and "600/600" in line for line in lines(terminal))
    assert max(map(len, lines(terminal))) <= 80


def test_quiet_shows_nothing(terminal: io.StringIO) -> None:
    with output.row_bar("predict", Shown(quiet=True)):
        passes.rows_done(600, 600)
    assert terminal.getvalue() == ""


@pytest.mark.parametrize(
    "words", [["predict", "rows.csv"], ["encode", "--data", "y.npy"], ["impute", "t.csv", "--data", "y.npy"]]
)
def test_commands_tell_how_far_they_are(
    words: list[str], run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images, table, _, _ = held_out()
    np.save(tmp_path / "y.npy", images)
    table.to_csv(tmp_path / "t.csv", index=False)
    table.to_csv(tmp_path / "rows.csv", index=False)
    told: list[tuple[int, int]] = []
    monkeypatch.setattr(progress.RowProgress, "update", lambda self, done, total: told.append((done, total)))
    command, *rest = words
    given = [str(tmp_path / word) if "." in word else word for word in rest]
    result = CliRunner().invoke(app, [command, str(run), *given, "--out", str(tmp_path / "out")])
    assert result.exit_code == 0, result.output
    assert told[-1] == (len(table), len(table))
