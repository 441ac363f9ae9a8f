"""Model files whose checksum is right and whose content is not: one ValueError each, never a model that answers NaN."""

import json
from pathlib import Path

import pytest

from gppvae import GPPVAE, VAE
from gppvae.training.checkpoint import read_tensors
from tiny import spots
from torture.files import Mutations, check_checkpoint, check_config, check_model, sign

SMALL = {"latent_dim": 2, "network": "mlp", "width": 4, "batch_size": 16}
KERNELS = {
    "product": "Learned(spot, 2) * Periodic(angle, 360)",
    "sum": "2.0 * FreeForm(spot) + RBF(angle, basis='hilbert', max_inducing=8) + Linear(angle) * Categorical(spot)",
    "groups": [("Learned(spot, 2) * Matern(angle)", 2), (None, 1)],
}


@pytest.mark.parametrize("kind", [*KERNELS, "vae"])
def test_mutated_models_are_refused_or_answer_with_finite_numbers(kind: str, tmp_path: Path) -> None:
    images, table = spots(3, 5)
    if kind == "vae":
        model = VAE(epochs=1, **SMALL).fit(images, progress=False)
    else:
        settings = SMALL | {"latent_dim": None if kind == "groups" else 2}
        model = GPPVAE(KERNELS[kind], epochs=1, warmup_epochs=1, gp_epochs=1, **settings)
        model.fit(images, table, progress=False)
    model.save(tmp_path)
    mutations = Mutations(tmp_path / "model.safetensors", seed=1)
    for number in range(150):
        mutations.apply(number)
        check_model(tmp_path, table, mutations.description)


def test_mutated_checkpoints_and_configs_are_refused_or_continued(tmp_path: Path) -> None:
    check_checkpoint(tmp_path / "checkpoints", seed=2, count=60)
    check_config(tmp_path / "configs", seed=3, count=40)


@pytest.mark.parametrize("kind", ["product", "vae"])
def test_a_model_file_that_lacks_an_entry_is_refused_or_needs_none(kind: str, tmp_path: Path) -> None:
    """Every entry of the description in turn, since random changes seldom hit a given one."""
    images, table = spots(3, 5)
    if kind == "vae":
        VAE(epochs=1, **SMALL).fit(images, progress=False).save(tmp_path)
    else:
        settings = SMALL | {"epochs": 1, "warmup_epochs": 1, "gp_epochs": 1}
        GPPVAE(KERNELS[kind], **settings).fit(images, table, progress=False).save(tmp_path)
    file = tmp_path / "model.safetensors"
    tensors, meta = read_tensors(file)
    found = {}
    for name in meta:
        sign(file, tensors, json.dumps({key: value for key, value in meta.items() if key != name}))
        found[name] = check_model(tmp_path, table, f"without {name}")
    assert {name for name, answer in found.items() if answer == "finite"} <= {"about", "described"}
