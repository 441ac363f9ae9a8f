"""Model files whose checksum is right and whose content is not: one ValueError each, never a model that answers NaN."""

import json
from pathlib import Path

import pytest

from gppvae.training.checkpoint import read_tensors
from torture.files import KERNELS, Mutations, check_checkpoint, check_config, check_model, sign, write_model


@pytest.mark.parametrize("kind", [*KERNELS, "vae"])
def test_mutated_models_are_refused_or_answer_with_finite_numbers(kind: str, tmp_path: Path) -> None:
    table = write_model(kind, tmp_path)
    mutations = Mutations(tmp_path / "model.safetensors", seed=1)
    for number in range(150):
        mutations.apply(number)
        check_model(tmp_path, table, mutations.description)


def test_mutated_checkpoints_and_configs_are_refused_or_continued(tmp_path: Path) -> None:
    check_checkpoint(tmp_path / "checkpoints", seed=2, count=60)
    check_config(tmp_path / "configs", seed=3, count=40)


@pytest.mark.parametrize("kind", ["product", "subjects", "vae"])
def test_a_model_file_that_lacks_an_entry_is_refused_or_needs_none(kind: str, tmp_path: Path) -> None:
    """Every entry of the description in turn, since random changes seldom hit a given one."""
    table = write_model(kind, tmp_path)
    file = tmp_path / "model.safetensors"
    tensors, meta = read_tensors(file)
    found = {}
    for name in meta:
        sign(file, tensors, json.dumps({key: value for key, value in meta.items() if key != name}))
        found[name] = check_model(tmp_path, table, f"without {name}")
    assert {name for name, answer in found.items() if answer == "finite"} <= {
        "about",
        "described",
        "integer_names",
    }  # version 0.2 wrote no integer_names
