"""The perceptual likelihood through the estimators and the command line: every inference, saving, continuing."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner, Result

from gppvae import GPPVAE, VAE, Phase
from gppvae.cli import app
from gppvae.likelihoods import VGG19, Gaussian, Perceptual
from gppvae.training.checkpoint import read_tensors
from likelihoods.feature_networks import eyes, eyes_features, write_vgg
from stops import Stop, stop_after
from tiny import KERNEL, spots

LAYERS = {"first": 2.0, "second": 5.0}
SETTINGS: dict[str, Any] = {"latent_dim": 2, "network": "mlp", "batch_size": 16, "seed": 5}
LENGTHS = {"global": {"epochs": 4}} | {
    name: {"warmup_epochs": 2, "gp_epochs": 2, "epochs": 2} for name in ("exact", "minibatch", "posterior")
}


def likelihood(seed: int = 3) -> Perceptual:
    return Perceptual(eyes(seed=seed), LAYERS, Gaussian(0.05, learn=True))


def fit(out: Path | None = None, given: Perceptual | None = None, **settings: Any) -> GPPVAE:
    images, table = spots(4, 6)
    model = GPPVAE(KERNEL, **(SETTINGS | {"likelihood": given or likelihood()} | settings))
    return model.fit(images, table, out=out, progress=False, checkpoint_seconds=0.0)


def weights_of(given: Perceptual) -> dict[str, bytes]:
    assert given._features is not None
    return {name: value.numpy().tobytes() for name, value in given._features.network.state_dict().items()}


# -- training


@pytest.mark.parametrize("inference", LENGTHS)
def test_every_inference_trains_with_it_and_leaves_the_network_alone(
    inference: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    optimised: list[int] = []

    class Watched(torch.optim.AdamW):
        def __init__(self, groups: Any, **options: Any) -> None:
            super().__init__(groups, **options)
            optimised.extend(id(p) for group in self.param_groups for p in group["params"])

    monkeypatch.setattr(torch.optim, "AdamW", Watched)
    given = likelihood()
    before = weights_of(given)
    model = fit(given=given, inference=inference, **LENGTHS[inference])
    assert model.skipped_steps_ == 0 and np.isfinite(model.history_[-1]["loss"])
    fitted = model.model_.autoencoder.likelihood
    assert isinstance(fitted, Perceptual) and fitted is not given
    network = fitted._features.network  # type: ignore[union-attr]
    assert weights_of(fitted) == before and not network.training
    assert optimised and not {id(p) for p in network.parameters()} & set(optimised)
    assert not any(p.requires_grad or p.grad is not None for p in network.parameters())
    assert fitted.pixels.pixel_var.item() != pytest.approx(0.05)  # learned beside it
    assert given.pixels.pixel_var.item() == pytest.approx(0.05)  # the one given stays as it was


def test_the_logged_loss_holds_the_feature_term() -> None:
    """With networks that do not move, loss with features minus loss without is the term in loops."""
    images, table = spots(2, 3)
    phases = [Phase("vae", "vae", 1, {"encoder": 1e-30}), Phase("exact", "exact", 1, {"noise": 1e-30})]
    settings = SETTINGS | {"phases": phases, "batch_size": len(images)}
    logged, network = {}, eyes()
    for name, given in {"with": Perceptual(network, LAYERS, Gaussian(0.05)), "without": Gaussian(0.05)}.items():
        model = GPPVAE(KERNEL, likelihood=given, **settings).fit(images, table, progress=False)
        logged[name] = model.history_[0]["recon_nll"]
    seen: list[float] = []

    class Kept(Gaussian):
        """Notes the term in loops at the very outputs that training meets."""

        def nll(self, y: torch.Tensor, out: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
            for one, two in zip(y.double().numpy(), out.detach().double().numpy(), strict=True):
                a, b = eyes_features(network, one), eyes_features(network, two)
                seen.append(sum(w * one.size / 2 * np.mean((a[k] - b[k]) ** 2) for k, w in LAYERS.items()))
            return super().nll(y, out, mask)

    GPPVAE(KERNEL, likelihood=Kept(0.05), **(settings | {"phases": phases})).fit(images, table, progress=False)
    assert logged["with"] - logged["without"] == pytest.approx(np.mean(seen[: len(images)]), rel=1e-4)


def test_training_brings_features_together() -> None:
    images, _ = spots(4, 6)
    apart = {}
    for name, given in {"features": Perceptual(eyes(), {"second": 1e4}), "pixels": Gaussian(0.01)}.items():
        model = VAE(**(SETTINGS | {"likelihood": given, "epochs": 60, "lr": 3e-3})).fit(images, progress=False)
        found = model.reconstruct(images).astype(float)
        pairs = zip(images.astype(float)[:, None], found[:, None], strict=True)
        apart[name] = np.mean(
            [np.mean((eyes_features(eyes(), a)["second"] - eyes_features(eyes(), b)["second"]) ** 2) for a, b in pairs]
        )
    assert apart["features"] < 0.8 * apart["pixels"]


def test_missing_pixels_are_masked() -> None:
    images, table = spots(4, 6)
    images[::2, 2:5, 2:5] = np.nan
    model = GPPVAE(KERNEL, **(SETTINGS | {"likelihood": likelihood(), "missing": "mask", "epochs": 3}))
    model.fit(images, table, progress=False)
    assert model.skipped_steps_ == 0 and np.isfinite(model.predict(table).mean).all()
    assert np.isfinite(model.score(images, table))


def test_new_objects_are_fitted_by_their_pixels() -> None:
    model = fit(epochs=3)
    images, table = spots(5, 6)
    new = (table["spot"] == "s4").to_numpy()
    assert model.add_objects(images[new], table[new]) == ["s4"]
    assert np.isfinite(model.predict(table[new], n_samples=4, include_noise=True).std).all()
    assert model.calibration_ is not None


def test_a_network_that_cannot_see_the_samples_is_told_before_training(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"cannot take samples of shape \(1, 8, 8\)"):
        fit(tmp_path / "run", Perceptual(eyes(channels=3), LAYERS), epochs=1)
    assert not (tmp_path / "run").exists()


# -- saving


def test_a_saved_model_holds_no_weight_of_the_network(tmp_path: Path) -> None:
    fit(tmp_path, epochs=2)
    for file in ("model.safetensors", "checkpoint.safetensors"):
        names = [name for name in read_tensors(tmp_path / file)[0] if "likelihood" in name]
        assert names and all(name.endswith("pixels.log_pixel_var") for name in names)


@pytest.mark.parametrize("kind", [GPPVAE, VAE])
def test_a_loaded_model_predicts_without_the_network_and_scores_with_it(
    tmp_path: Path, kind: type[GPPVAE] | type[VAE]
) -> None:
    images, table = spots(4, 6)
    settings = SETTINGS | {"likelihood": likelihood(), "epochs": 2}
    data = (images, table) if kind is GPPVAE else (images,)
    model = (GPPVAE(KERNEL, **settings) if kind is GPPVAE else VAE(**settings)).fit(*data, progress=False)
    model.save(tmp_path)
    alone = kind.load(tmp_path)
    np.testing.assert_array_equal(alone.reconstruct(images), model.reconstruct(images))
    if isinstance(model, GPPVAE) and isinstance(alone, GPPVAE):
        np.testing.assert_array_equal(alone.predict(table, 4, True).std, model.predict(table, 4, True).std)
        assert alone.add_objects(images[:2], table[:2].assign(spot="new")) == ["new"]
    with pytest.raises(ValueError, match="got only its name Eyes; pass likelihood="):
        alone.score(*data)
    again = kind.load(tmp_path, likelihood=likelihood())
    assert again.score(*data) == model.score(*data)
    alone.save(tmp_path / "copy")
    assert kind.load(tmp_path / "copy", likelihood=likelihood()).score(*data) == model.score(*data)
    with pytest.raises(ValueError, match=r"fitted with the feature network .*; pass the one it was fitted with"):
        kind.load(tmp_path, likelihood=likelihood(seed=4))
    with pytest.raises(ValueError, match="fitted with the likelihood perceptual, got gaussian"):
        kind.load(tmp_path, likelihood=Gaussian())


@pytest.mark.parametrize("inference", ["global", "minibatch"])
def test_a_stopped_run_continues_exactly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inference: str) -> None:
    settings = {"inference": inference} | LENGTHS[inference]
    with monkeypatch.context() as patch:
        stop_after(patch, 3)
        with pytest.raises(Stop):
            fit(tmp_path / "stopped", **settings)
    with pytest.raises(ValueError, match=r"unfinished run with other settings .*likelihood was"):
        fit(tmp_path / "stopped", likelihood(seed=4), **settings)
    images, table = spots(4, 6)
    with pytest.raises(ValueError, match=r"got only its name Eyes; pass likelihood=.* to load\(\) or resume\(\)"):
        GPPVAE.resume(tmp_path / "stopped", images, table, progress=False)
    GPPVAE.resume(tmp_path / "stopped", images, table, likelihood=likelihood(), progress=False)
    fit(tmp_path / "undisturbed", **settings)
    one, two = (read_tensors(tmp_path / name / "model.safetensors")[0] for name in ("stopped", "undisturbed"))
    assert one.keys() == two.keys()
    for name in one:
        assert one[name].numpy().tobytes() == two[name].numpy().tobytes(), name


# -- the command line


def command(folder: Path, *words: object) -> Result:
    images, table = spots(3, 4)
    np.save(folder / "spots.npy", images)
    table.to_csv(folder / "spots.csv", index=False)
    fixed = ["fit", folder / "spots.csv", "--data", folder / "spots.npy", "--kernel", KERNEL, "--out", folder / "run"]
    quick = ["--network", "mlp", "--latent-dim", 2, "--epochs", 2, "--quiet", "--no-report"]
    return CliRunner().invoke(app, [str(word) for word in (*fixed, *quick, *words)])


@pytest.mark.parametrize("kind", ["pth", "safetensors"])
def test_the_command_fits_with_vgg_from_a_file(tmp_path: Path, kind: str) -> None:
    file = write_vgg(tmp_path, kind)
    words = ["--likelihood", "perceptual", "--feature-weights", file, "--feature-layers", "relu1_1=2, relu2_1"]
    result = command(tmp_path, *words, "--pixel-var", 0.04)
    assert result.exit_code == 0, result.output
    saved = json.loads((tmp_path / "run" / "config.json").read_text())["settings"]["trained"]["likelihood"]
    wanted = Perceptual(VGG19(file), {"relu1_1": 2.0, "relu2_1": 1.0}, Gaussian(0.04))
    assert saved == json.loads(json.dumps(wanted.config()))
    images, table = spots(3, 4)
    score = GPPVAE.load(tmp_path / "run").score(images, table)
    file.unlink()
    alone = GPPVAE.load(tmp_path / "run")
    assert np.isfinite(score) and alone.predict(table).mean.shape == (12, 8, 8)
    with pytest.raises(FileNotFoundError, match="expected VGG19 weights at"):
        alone.score(images, table)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--likelihood", "perceptual"], "needs the file of VGG19's weights, got none"),
        (["--feature-weights", "vgg19.pth"], "belong to the perceptual likelihood, got None"),
        (["--likelihood", "gaussian", "--feature-layers", "relu1_1"], "belong to the perceptual likelihood"),
        (["--likelihood", "perceptual", "--feature-weights", "gone.pth"], "expected VGG19 weights at"),
        (["--likelihood", "perceptual", "--feature-weights", "FILE", "--feature-layers", "relu9_9"], "no layer 'relu9"),
        (
            ["--likelihood", "perceptual", "--feature-weights", "FILE", "--feature-layers", "relu1_1=x"],
            "got 'relu1_1=x'",
        ),
    ],
)
def test_the_command_says_what_is_wrong_in_one_sentence(tmp_path: Path, words: list[str], told: str) -> None:
    file = write_vgg(tmp_path)
    result = command(tmp_path, *(str(file) if word == "FILE" else word for word in words))
    assert result.exit_code == 2 and told in result.stderr
    assert len(result.stderr.splitlines()) == 1 and not (tmp_path / "run").exists()
