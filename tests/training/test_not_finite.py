"""What is not finite is never saved as a finished model: the last good state is, and the fit fails loudly."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner

from gppvae import GPPVAE, VAE, Phase
from gppvae.cli import app
from gppvae.training.loop import PhaseRun, TrainingError
from tiny import KERNEL, spots

RATES = {"decoder": 1e-3, "prior": 1e-2, "noise": 1e-2, "weights": 1e-2}


def spoil_after(patch: pytest.MonkeyPatch, phase: str, epochs: int, spoil: Any) -> None:
    """Call `spoil(run)` after so many epochs of a phase, before the loop looks at its parameters."""
    real = PhaseRun._epoch

    def epoch(self: PhaseRun, *arguments: Any) -> None:
        real(self, *arguments)
        if self.phase.name == phase and arguments[1] + 1 > epochs:
            spoil(self)

    patch.setattr(PhaseRun, "_epoch", epoch)


@torch.no_grad()
def infinite_decoder(run: PhaseRun) -> None:
    next(run.trainer.model.autoencoder.decoder.parameters())[:] = math.inf


@torch.no_grad()
def overflowing_decoder(run: PhaseRun) -> None:
    """All parameters finite, all predictions not."""
    for parameter in run.trainer.model.autoencoder.decoder.parameters():
        parameter.fill_(1e30)


def model(**changes: Any) -> GPPVAE:
    settings = {"latent_dim": 2, "network": "mlp", "width": 8, "warmup_epochs": 1, "gp_epochs": 1, "batch_size": 16}
    return GPPVAE(KERNEL, **settings | {"epochs": 6} | changes)


def test_the_last_good_state_is_saved_when_a_parameter_turns_infinite(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images, table = spots()
    phases = [Phase("global", "global", 6, RATES)]
    wanted = model(phases=[Phase("global", "global", 3, RATES)]).fit(images, table, progress=False)
    spoil_after(monkeypatch, "global", 3, infinite_decoder)
    with pytest.raises(TrainingError, match=r"a parameter was not finite after epoch 4; the last good state is in"):
        model(phases=phases).fit(images, table, out=tmp_path, progress=False)
    kept = GPPVAE.load(tmp_path)
    assert len(kept.history_) == 4
    np.testing.assert_array_equal(kept.predict(table).mean, wanted.predict(table).mean)


@pytest.mark.parametrize("inference", ["global", "minibatch", "posterior", "exact"])
def test_predictions_that_overflow_are_never_a_finished_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inference: str
) -> None:
    images, table = spots()
    spoil_after(monkeypatch, "joint" if inference != "global" else "global", 2, overflowing_decoder)
    with pytest.raises(TrainingError, match="not finite"):
        model(inference=inference).fit(images, table, out=tmp_path, progress=False)
    if (tmp_path / "model.safetensors").exists():
        prediction = GPPVAE.load(tmp_path).predict(table, n_samples=4)
        assert np.isfinite(prediction.mean).all() and np.isfinite(prediction.std).all()


def test_a_vae_keeps_its_last_good_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images, _ = spots()
    spoil_after(monkeypatch, "vae", 2, infinite_decoder)
    with pytest.raises(TrainingError):
        VAE(latent_dim=2, network="mlp", width=8, epochs=5).fit(images, out=tmp_path, progress=False)
    assert np.isfinite(VAE.load(tmp_path).reconstruct(images)).all()


def test_the_command_says_so_by_its_exit_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images, table = spots()
    np.save(tmp_path / "y.npy", images)
    table.to_csv(tmp_path / "t.csv", index=False)
    spoil_after(monkeypatch, "joint", 1, infinite_decoder)
    words = ["fit", "t.csv", "--data", "y.npy", "--kernel", KERNEL, "--out", "run", "--epochs", "4", "--quiet"]
    small = ["--latent-dim", "2", "--network", "mlp", "--width", "8", "--warmup-epochs", "1", "--gp-epochs", "1"]
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, [*words, *small, "--inference", "minibatch"])
    assert result.exit_code == 3
    assert result.stderr.count("\n") == 1 and "the last good state is in run" in result.stderr
    assert np.isfinite(GPPVAE.load(tmp_path / "run").predict(table).mean).all()


def test_a_failed_factor_outside_the_steps_is_a_training_error(monkeypatch: pytest.MonkeyPatch) -> None:
    from gppvae.inference import Minibatch

    def fail(*_: object) -> Tensor:
        raise torch.linalg.LinAlgError("not positive-definite")

    images, table = spots()
    monkeypatch.setattr(Minibatch, "weights", fail)
    with pytest.raises(TrainingError, match="a Cholesky factor failed"):
        model(inference="minibatch").fit(images, table, progress=False)
