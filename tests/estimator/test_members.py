"""`members=`: an ensemble that fits, saves, loads and answers like any model."""

import logging
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.tiny import KERNEL, held_out

from gppvae import GPPVAE, Callback
from gppvae.inference import INFERENCES
from gppvae.nets.members import MemberDecoder

SMALL = {"latent_dim": 6, "network": "image", "width": 4, "members": 2, "epochs": 2, "warmup_epochs": 1, "gp_epochs": 1}
FITS = [name for name in INFERENCES if name not in ("vae", "fixed", "distill")]


@pytest.mark.parametrize("inference", FITS)
def test_saved_and_loaded_it_answers_the_same(tmp_path: Path, inference: str) -> None:
    images, table, wanted, asked = held_out()
    model = GPPVAE(KERNEL, inference=inference, **SMALL).fit(images, table, progress=False)
    model.save(tmp_path)
    again = GPPVAE.load(tmp_path)
    assert isinstance(again.model_.autoencoder.decoder, MemberDecoder)
    np.testing.assert_array_equal(again.predict(asked).mean, model.predict(asked).mean)
    assert again.encode(images).shape == (len(images), 6)
    assert model.resolved_["members"] == 2
    assert np.isfinite(model.score(wanted, asked))


def test_groups_of_latents_are_divided_too() -> None:
    images, table, _, asked = held_out()
    settings = SMALL | {"latent_dim": None}
    model = GPPVAE([(KERNEL, 4), (None, 2)], inference="minibatch", **settings).fit(images, table, progress=False)
    assert np.isfinite(model.predict(asked, n_samples=4).std).all()


def test_a_stopped_fit_continues_with_the_same_members(tmp_path: Path) -> None:
    images, table, _, asked = held_out()
    whole = GPPVAE(KERNEL, seed=1, epochs=3).fit(images, table, out=tmp_path / "whole", progress=False)

    class Stop(Callback):
        def on_epoch(self, phase: str, epoch: int, metrics: dict[str, float]) -> None:
            if epoch == 2:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        GPPVAE(KERNEL, seed=1, epochs=3).fit(images, table, out=tmp_path / "part", progress=False, callbacks=[Stop()])
    again = GPPVAE.resume(tmp_path / "part", images, table, progress=False)
    assert again.resolved_["members"] == whole.resolved_["members"] == 3
    np.testing.assert_array_equal(again.predict(asked).mean, whole.predict(asked).mean)


def test_few_images_get_an_ensemble_and_the_log_says_so(caplog: pytest.LogCaptureFixture) -> None:
    images, table, _, _ = held_out()
    with caplog.at_level(logging.INFO, "gppvae"):
        model = GPPVAE(KERNEL, epochs=1).fit(images, table, progress=False)
    assert (model.resolved_["members"], model.resolved_["width"], model.resolved_["latent_dim"]) == (3, 16, 64)
    assert "an ensemble of 3 networks, which predict by their average" in caplog.text
    few_latents = GPPVAE(KERNEL, latent_dim=8, epochs=1).fit(images, table, progress=False)
    assert (few_latents.resolved_["members"], few_latents.resolved_["width"]) == (1, 32)


@pytest.mark.parametrize("members", [0, 1.5, 65])
def test_other_numbers_are_refused(members: float) -> None:
    images, table, _, _ = held_out()
    with pytest.raises((ValueError, TypeError), match="members"):
        GPPVAE(KERNEL, members=members).fit(images, table)


def test_your_own_networks_come_alone() -> None:
    images, table, _, _ = held_out()
    own = {"encoder": torch.nn.Identity(), "decoder": torch.nn.Identity()}
    with pytest.raises(ValueError, match="members=2 needs a network by name, got your own"):
        GPPVAE(KERNEL, members=2, **own).fit(images, table)
