"""Every way to fit, through the estimator, and what a phase's decay and average do to what is fitted."""

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook

from gppvae import GPPVAE, Phase
from gppvae.likelihoods import Gaussian
from gppvae.training import loop
from gppvae.training.checkpoint import read_tensors
from stops import Stop
from tiny import KERNEL, held_out, spots

INFERENCES = ("exact", "minibatch", "posterior", "global", "leave_out")
SMALL: dict[str, Any] = {"latent_dim": 3, "network": "mlp", "width": 32, "batch_size": 16, "pixel_var": 0.02}
LENGTHS: dict[str, dict[str, Any]] = {
    "exact": {"warmup_epochs": 40, "gp_epochs": 60, "epochs": 30, "lr": 5e-3},
    "minibatch": {"warmup_epochs": 40, "gp_epochs": 60, "epochs": 30, "lr": 5e-3},
    "posterior": {"warmup_epochs": 40, "gp_epochs": 60, "epochs": 30, "lr": 5e-3},
    "global": {"epochs": 60, "lr": 5e-3, "prior_lr": 3e-2, "alpha": 0.01},
    "leave_out": {"epochs": 60, "lr": 5e-3, "prior_lr": 3e-2},
}
every_inference = pytest.mark.parametrize("inference", INFERENCES)


def make(inference: str, **settings: Any) -> GPPVAE:
    return GPPVAE(KERNEL, **(SMALL | {"inference": inference} | LENGTHS[inference] | settings))


def tensors(model: GPPVAE) -> dict[str, Tensor]:
    assert model.model_ is not None and model.posterior_ is not None
    found = {**model.model_.state_dict(), **{f"q.{name}": value for name, value in model.posterior_.tensors().items()}}
    return {name: value.clone() for name, value in found.items()}


# -- learning


@pytest.fixture(scope="module", params=INFERENCES)
def fitted(request: pytest.FixtureRequest) -> GPPVAE:
    images, table, _, _ = held_out()
    return make(request.param).fit(images, table, progress=False)


def test_every_choice_predicts_rows_that_were_held_out(fitted: GPPVAE) -> None:
    images, _, truth, wanted = held_out()
    error = np.mean((fitted.predict(wanted).mean - truth) ** 2)
    assert error < 0.4 * np.mean((images.mean(0) - truth) ** 2)


def test_every_choice_lowers_its_loss(fitted: GPPVAE) -> None:
    for phase in {row["phase"] for row in fitted.history_}:
        rows = [row for row in fitted.history_ if row["phase"] == phase]
        assert all(np.isfinite(row["loss"]) for row in rows)
        for row in rows:
            terms = row["recon_nll"] + row["gp_nll"] + row["neg_entropy"] + row["penalty"]
            assert row["loss"] == pytest.approx(terms, rel=1e-9, abs=1e-9)
        if phase in ("vae_warmup", "gp_only", "global", "encoder"):
            assert rows[-1]["loss"] < rows[0]["loss"]
    assert fitted.skipped_steps_ == 0


def test_every_choice_encodes_near_what_it_predicts(fitted: GPPVAE) -> None:
    """Encodings of training samples and the latents the GP gives their rows are of one space."""
    images, table, _, _ = held_out()
    encoded, latents = fitted.encode(images), fitted.predict_latent(table)[0]
    apart = np.mean((encoded - latents) ** 2)
    assert apart < 0.5 * np.mean((encoded - latents.mean(0)) ** 2)


def test_the_distilled_encoder_finds_the_latents_and_reconstructs() -> None:
    images, table, truth, wanted = held_out()
    model = make("global", epochs=160).fit(images, table, progress=False)
    latents = model.predict_latent(table)[0]
    assert np.mean((model.encode(images) - latents) ** 2) < 0.1 * latents.var()
    new, std = model.encode(truth, return_std=True)  # samples it never saw
    assert np.mean((new - model.predict_latent(wanted)[0]) ** 2) < 0.4 * latents.var()
    assert (std > 0).all()
    assert np.mean((model.reconstruct(images) - images) ** 2) < 0.4 * images.var(0).mean()


def test_the_distillation_leaves_the_model_as_the_global_phase_made_it() -> None:
    images, table = spots(4, 8)
    rates = {"decoder": 5e-3, "prior": 1e-2, "weights": 1e-2}
    one = [Phase("global", "global", 3, rates)]
    both = [*one, Phase("encoder", "distill", 4, {"encoder": 5e-3})]
    first, second = (
        tensors(make("global", phases=phases).fit(images, table, progress=False)) for phases in (one, both)
    )
    assert first.keys() == second.keys()
    changed = {name for name in first if not torch.equal(first[name], second[name])}
    assert changed and all(name.startswith("autoencoder.encoder.") for name in changed)


# -- seeds and stops


@every_inference
def test_the_seed_decides_and_another_seed_differs(inference: str) -> None:
    images, table, _, wanted = held_out()
    short = {"epochs": 3, "gp_epochs": 2, "warmup_epochs": 2}

    def run(seed: int) -> tuple[dict[str, Tensor], np.ndarray]:
        model = make(inference, seed=seed, **short).fit(images, table, progress=False)
        return tensors(model), model.predict(wanted, n_samples=3).mean

    (one, predicted), (again, same), (other, different) = run(1), run(1), run(2)
    assert all(torch.equal(one[name], again[name]) for name in one)
    np.testing.assert_array_equal(predicted, same)
    assert not np.allclose(predicted, different, atol=1e-3)
    assert not any(torch.equal(one[name], other[name]) for name in one if name.endswith(("weight", "kernel.left.x")))


def stop_at(patch: pytest.MonkeyPatch, phase: int, epoch: int) -> None:
    """Stop right after the checkpoint of that epoch."""
    original = loop.Trainer.checkpoint

    def checkpoint(self: loop.Trainer, state: Any, meta: dict[str, Any], due: bool) -> None:
        original(self, state, meta, due)
        if (meta["phase"], meta["epoch"]) == (phase, epoch):
            raise Stop

    patch.setattr(loop.Trainer, "checkpoint", checkpoint)


@pytest.mark.parametrize(("phase", "epoch"), [(0, 1), (0, 5), (0, 8), (1, 0), (1, 1)])
def test_a_global_run_that_was_stopped_ends_like_one_that_was_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, phase: int, epoch: int
) -> None:
    images, table, truth, wanted = held_out()

    def run(out: Path) -> GPPVAE:
        model = make("global", epochs=8, validate_every=2)
        return model.fit(images, table, validation=(truth, wanted), out=out, progress=False, checkpoint_seconds=0.0)

    with monkeypatch.context() as patch:
        stop_at(patch, phase, epoch)
        with pytest.raises(Stop):
            run(tmp_path / "stopped")
    assert not (tmp_path / "stopped" / "model.safetensors").exists()
    resumed, undisturbed = run(tmp_path / "stopped"), run(tmp_path / "undisturbed")
    one, two = tensors(undisturbed), tensors(resumed)
    assert one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)
    assert [row["loss"] for row in resumed.history_] == [row["loss"] for row in undisturbed.history_]
    files = [read_tensors(tmp_path / name / "model.safetensors")[0] for name in ("stopped", "undisturbed")]
    assert all(torch.equal(files[0][name], files[1][name]) for name in files[1])
    np.testing.assert_array_equal(resumed.predict(wanted, 3).std, undisturbed.predict(wanted, 3).std)


# -- what a phase may ask for


def one_step(**options: Any) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """All tensors before and after one step of everything, from the same start and with the same noise."""
    images, table = spots(4, 8)
    likelihood = Gaussian(0.02, learn=True)
    rates = {"encoder": 1e-2, "decoder": 1e-2, "prior": 1e-2, "noise": 1e-2}

    def run(epochs: int) -> dict[str, Tensor]:
        phases = [Phase("p", "minibatch", epochs, rates, **options)]
        settings = {"phases": phases, "batch_size": 64, "likelihood": likelihood.config()}
        return tensors(make("minibatch", **settings).fit(images, table, progress=False))

    return run(0), run(1)


def test_weight_decay_shrinks_the_networks_apart_from_the_gradient() -> None:
    start, plain = one_step()
    again, decayed = one_step(weight_decay=3.0)
    networks = [name for name in start if name.startswith(("autoencoder.encoder.", "autoencoder.decoder."))]
    assert networks and all(torch.equal(start[name], again[name]) for name in start)
    for name in networks:
        # AdamW: p <- p - lr decay p, then Adam's step as without decay.
        torch.testing.assert_close(decayed[name], plain[name] - 1e-2 * 3.0 * start[name], rtol=1e-5, atol=1e-6)
    for name in ("prior.members.0.kernel.left.x", "prior.members.0.log_alpha"):
        assert torch.equal(decayed[name], plain[name]) and not torch.equal(plain[name], start[name])


def test_weight_decay_leaves_the_noise_of_the_likelihood() -> None:
    """Its logarithm is no weight: shrinking it would pull the pixel variance towards one."""
    name = "autoencoder.likelihood.log_pixel_var"
    start, plain = one_step()
    decayed = one_step(weight_decay=3.0)[1]
    assert not torch.equal(plain[name], start[name])
    torch.testing.assert_close(decayed[name], plain[name], rtol=0, atol=1e-6)


@pytest.mark.parametrize("decay", [0.5, 0.999])
def test_an_average_ends_the_phase_on_the_mean_of_its_steps(decay: float) -> None:
    """a <- d a + (1 - d) p after each step k = 0, 1 ..., d = min(decay, (1 + k) / (10 + k)), from the start's a = p."""
    images, table = spots(4, 8)
    seen: list[list[Tensor]] = []

    def remember(optimizer: Optimizer, *_: Any) -> None:
        groups = optimizer.param_groups
        seen.append([p.detach().clone() for group in groups for p in group["params"]])

    def run(epochs: int, average: float) -> GPPVAE:
        rates = {"decoder": 1e-2, "prior": 1e-2, "weights": 1e-2}
        phases = [Phase("g", "global", epochs, rates, average=average)]
        return make("global", phases=phases).fit(images, table, progress=False)

    start = tensors(run(0, 0.0))
    handle = register_optimizer_step_post_hook(remember)
    plain = run(6, 0.0)
    handle.remove()
    assert len(seen) == 12  # two batches an epoch
    assert plain.model_ is not None
    order = [value.shape for value in seen[0]]
    own = [("autoencoder.decoder." + name) for name, _ in plain.model_.autoencoder.decoder.named_parameters()]
    assert order[: len(own)] == [start[name].shape for name in own]
    averaged = tensors(run(6, decay))
    for place, name in enumerate(own):
        value = start[name].double().numpy()
        for k, step in enumerate(seen):
            d = min(decay, (1.0 + k) / (10.0 + k))
            value = d * value + (1.0 - d) * step[place].double().numpy()
        np.testing.assert_allclose(averaged[name].numpy(), value, rtol=1e-4, atol=1e-6)
        assert not torch.equal(averaged[name], tensors(plain)[name])
    assert not torch.equal(averaged["q.0.mean"], tensors(plain)["q.0.mean"])


def test_a_cosine_phase_ends_softly_and_a_warm_up_begins_so() -> None:
    """Sizes of the first and last change under the rates that Phase.rate documents."""
    images, table = spots(4, 8)
    changes: dict[str, list[float]] = {}

    def run(name: str, **options: Any) -> None:
        steps: list[np.ndarray] = []

        def remember(optimizer: Optimizer, *_: Any) -> None:
            steps.append(optimizer.param_groups[0]["params"][0].detach().double().numpy().copy())

        handle = register_optimizer_step_post_hook(remember)
        vae = Phase("g", "vae", 20, {"encoder": 1e-3, "decoder": 1e-3}, **options)
        phases = [vae, Phase("gp", "fixed", 0, {"prior": 1e-2})]
        make("minibatch", phases=phases).fit(images, table, progress=False)
        handle.remove()
        changes[name] = [float(np.abs(b - a).max()) for a, b in itertools.pairwise(steps)]

    run("constant")
    run("cosine", decay="cosine")
    run("warm", warmup=0.5)
    assert changes["cosine"][-1] < 0.05 * changes["constant"][-1]
    assert changes["warm"][0] < 0.2 * changes["constant"][0]
    assert changes["warm"][-1] > 0.2 * changes["constant"][-1]


@pytest.mark.parametrize(
    "settings",
    [
        {"phases": [Phase("vae", "vae", 1, {"encoder": 1e-3, "decoder": 1e-3})]},
        {"schedule": "disjoint", "gp_epochs": 0, "warmup_epochs": 1},
        {"gp_epochs": 0, "epochs": 0, "warmup_epochs": 1},
    ],
)
def test_a_plan_without_a_gaussian_process_is_told_before_training(settings: dict[str, Any]) -> None:
    images, table = spots(4, 8)
    model = make("minibatch", **settings)
    with pytest.raises(ValueError, match="a phase that fits the Gaussian process"):
        model.fit(images, table, progress=False)
    assert not hasattr(model, "history_")


def test_distillation_cannot_come_first() -> None:
    """It fits the encoder to a q(B) that nobody has made yet."""
    phases = [Phase("encoder", "distill", 1, {"encoder": 1e-3}), Phase("global", "global", 1, {"weights": 1e-2})]
    with pytest.raises(ValueError, match=r"phase 'encoder' \(distill\) needs a phase before it .*; put .*global"):
        make("global", phases=phases).fit(*spots(4, 8), progress=False)
