"""Processes that train together have the same settings, table and samples, or all say so and stop."""

import re
from pathlib import Path

import pytest

from gppvae.data.world import ALONE
from gppvae.training.distributed import check_same, on_first
from processes import TESTS, torchrun


@pytest.mark.parametrize(("what", "named"), [("seed", "settings"), ("samples", "samples"), ("table", "table")])
def test_another_process_with_other_data_is_told_by_all(what: str, named: str, tmp_path: Path) -> None:
    done = torchrun(TESTS / "training" / "other_on_one_rank.py", what, tmp_path, check=False)
    assert done.returncode != 0 and "Traceback" not in done.stderr.partition("torch/distributed")[0]
    sentence = f"gppvae: expected the same {named} in all 2 processes, got others in process 1 than in process 0"
    assert done.stderr.count(sentence) == 2
    # torchrun ends the others as soon as one has ended, so that the second need not get to its own exit code.
    assert "2" in re.findall(r"exitcode\s*:\s*(-?\d+)", done.stderr)
    assert not (tmp_path / "run" / "model.safetensors").exists()


def test_the_same_in_all_processes_trains(tmp_path: Path) -> None:
    torchrun(TESTS / "training" / "other_on_one_rank.py", "nothing", tmp_path)
    assert (tmp_path / "run" / "model.safetensors").exists()


def test_a_folder_that_is_refused_is_refused_in_all_processes(tmp_path: Path) -> None:
    torchrun(TESTS / "training" / "other_on_one_rank.py", "nothing", tmp_path)
    (tmp_path / "run" / "model.safetensors").rename(tmp_path / "run" / "kept")
    config = (tmp_path / "run" / "config.json").read_text()
    (tmp_path / "run" / "config.json").write_text(config.replace('"seed": 4', '"seed": 3'))
    done = torchrun(TESTS / "training" / "other_on_one_rank.py", "nothing", tmp_path, check=False)
    assert done.returncode != 0 and done.stderr.count("holds an unfinished run with other settings (seed was 3") == 2


def test_alone_everything_is_the_same() -> None:
    check_same(ALONE, {"settings": "0f" * 32})
    assert on_first(ALONE, lambda: True) is True
    with pytest.raises(OSError, match="no disk"):
        on_first(ALONE, lambda: (_ for _ in ()).throw(OSError("no disk")))
