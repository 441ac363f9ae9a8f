"""Classes written outside the package, as in a notebook, go through everything that the package's own do."""

import copy
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from typer.testing import CliRunner

from gppvae import GPPVAE, VAE, IdLeaf, InducingLeaf, Inference, Likelihood, LossTerms, NumericLeaf, Phase
from gppvae.cli import app
from gppvae.data.batches import Epoch
from gppvae.estimator.kernel_summary import column_rows, kernel_rows
from gppvae.inference import INFERENCES, Minibatch, draw, neg_entropy, recon_nll
from gppvae.kernels import Kernel
from gppvae.likelihoods import Gaussian, Perceptual, ScaledGaussian
from gppvae.models.vae import Autoencoder
from gppvae.report.run import write_report
from gppvae.training.checkpoint import read_tensors
from gppvae.training.loop import TrainingError
from likelihoods.feature_networks import eyes
from stops import Stop, stop_after
from tiny import KERNEL, SIZE, held_out

N_VALUES = SIZE * SIZE
SHORT: dict[str, Any] = {"latent_dim": 2, "network": "mlp", "batch_size": 16, "epochs": 4, "seed": 3}


# -- one class of each kind, written as a user would


class Turn(NumericLeaf):
    """k(a, b) = cos(w (a - b)): features cos and sin."""

    rank = 2

    def __init__(self, column: str) -> None:
        super().__init__(column)
        self.speed = nn.Parameter(torch.tensor(math.pi / 180.0, dtype=torch.float64))

    def factor(self, values: Tensor) -> Tensor:
        turned = self.speed * values
        return torch.cat([turned.cos(), turned.sin()], dim=1)


class Ring(InducingLeaf):
    """k(a, b) = exp(cos(a - b) - 1), in degrees."""

    def covariance(self, a: Tensor, b: Tensor) -> Tensor:
        return torch.exp(torch.cos(torch.deg2rad(a - b.T)) - 1.0)


class Effect(IdLeaf):
    """One learned number per id."""

    rank = 1

    def __init__(self, column: str) -> None:
        super().__init__(column)
        self.w = nn.Parameter(torch.zeros(0, 1, dtype=torch.float64))

    def create(self, generator: torch.Generator | None) -> None:
        self.w = nn.Parameter(torch.ones(len(self.levels), 1, dtype=torch.float64))

    def factor(self, codes: Tensor) -> Tensor:
        return self.w[codes]


class MeanAndVariance(Likelihood):
    """y ~ N(out[0], exp(out[1])), and a learned factor on all variances."""

    numbers_per_value = 2

    def __init__(self) -> None:
        super().__init__()
        self.log_factor = nn.Parameter(torch.zeros(()))

    def nll(self, y: Tensor, out: Tensor, mask: Tensor | None = None) -> Tensor:
        var = self.variance(out)
        terms = 0.5 * ((y - out[:, 0]).square() / var + var.log())
        return (terms if mask is None else terms * mask).flatten(1).sum(1)

    def mean(self, out: Tensor) -> Tensor:
        return out[:, 0]

    def variance(self, out: Tensor) -> Tensor:
        return (out[:, 1].clamp(-6.0, 6.0) + self.log_factor).exp()


class HalfBound(Inference):
    """The factorised bound with its prior terms weighted; q(B) anew in every epoch."""

    sweeps = 2

    def __init__(self, model: Any, weight: float = 0.5) -> None:
        super().__init__(model)
        self.weight = weight

    def steps(self, epoch: Epoch) -> Iterator[LossTerms]:
        prior, autoencoder = self.model.prior, self.model.autoencoder
        q = self.weights(epoch)
        for batch in epoch:
            share = len(batch) / epoch.n_rows
            mean, var = autoencoder.encode(batch.y, batch.mask)
            nll = prior.at(batch.rows, q, training=True).expected_nll(prior.to_gp(mean), prior.to_gp(var))
            terms = LossTerms(
                recon_nll=recon_nll(autoencoder, batch, draw(mean, var, batch)),
                gp_nll=self.weight * (nll.sum() + share * q.kl()),
                neg_entropy=self.weight * neg_entropy(var),
                penalty=share * prior.neg_log_prior(),
                n=batch.total,
            )
            terms.backward()
            yield terms


class Encoder(nn.Module):
    wants_mask = True

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2 * N_VALUES, 4)

    def forward(self, y: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        mean, logvar = self.layer(torch.cat([y.flatten(1), mask.flatten(1).to(y)], dim=1)).chunk(2, dim=1)
        return mean, logvar


class Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, N_VALUES))

    def forward(self, z: Tensor) -> Tensor:
        return self.layers(z).unflatten(1, (1, SIZE, SIZE))


def networks() -> dict[str, Any]:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return {"encoder": Encoder(), "decoder": Decoder()}


def phases(inference: Any = HalfBound) -> dict[str, Any]:
    rates = dict.fromkeys(("encoder", "decoder", "prior", "noise"), 1e-3)
    return {"phases": [Phase("mine", inference, 4, rates, options={"weight": 0.25})]}


@dataclass(frozen=True)
class Door:
    """Own arguments of an estimator, made anew at each call, and what load() and resume() say without them."""

    make: Callable[[], dict[str, Any]]
    classes: str
    load: str | None  # None: a model file is enough
    resume: str


DOORS = {
    "features": Door(lambda: {"kernel": Turn("angle") * Effect("spot")}, "Turn, Effect", "kernel=", "kernel="),
    "covariance": Door(
        lambda: {"kernel": Ring("angle", max_inducing=7) * Effect("spot")}, "Ring, Effect", *["kernel="] * 2
    ),
    "groups": Door(lambda: {"kernel": [(Ring("angle"), 1), (None, 1)]}, "Ring", "kernel=", "kernel="),
    "likelihood": Door(lambda: {"likelihood": MeanAndVariance()}, "MeanAndVariance", "likelihood=", "likelihood="),
    "inference": Door(
        lambda: {"inference": HalfBound, "warmup_epochs": 1, "gp_epochs": 1}, "HalfBound", None, "inference="
    ),
    "phases": Door(phases, "HalfBound", None, "phases="),
    "networks": Door(networks, "Encoder, Decoder", "encoder= and decoder=", "encoder= and decoder="),
}
each_door = pytest.mark.parametrize("door", DOORS.values(), ids=DOORS)
each_with_class = pytest.mark.parametrize(
    "door", [door for door in DOORS.values() if door.load], ids=[name for name, door in DOORS.items() if door.load]
)


def estimator(own: dict[str, Any]) -> GPPVAE:
    return GPPVAE(**({"kernel": KERNEL} | SHORT | own))


def fit(own: dict[str, Any], **options: Any) -> GPPVAE:
    images, table, _, _ = held_out()
    return estimator(own).fit(images, table, progress=False, **options)


def given_again(own: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in own.items() if name in names}


# -- fit, predict, save, load


@each_door
def test_it_is_fitted_saved_and_loaded(tmp_path: Path, door: Door) -> None:
    images, table, _, wanted = held_out()
    model = fit(door.make())
    predicted = model.predict(wanted, n_samples=4, include_noise=True)
    assert predicted.mean.shape == (5, SIZE, SIZE) and np.isfinite(predicted.std).all()
    model.save(tmp_path)
    own = given_again(door.make(), "kernel", "likelihood", "encoder", "decoder") if door.load else {}
    loaded = GPPVAE.load(tmp_path, **own)
    np.testing.assert_array_equal(loaded.predict(wanted, n_samples=4, include_noise=True).std, predicted.std)
    np.testing.assert_array_equal(loaded.encode(images), model.encode(images))
    assert loaded.score(images, table) == model.score(images, table)
    assert loaded.resolved_ == model.resolved_
    loaded.save(tmp_path / "again")  # a loaded model knows an inference by name only
    twice = GPPVAE.load(tmp_path / "again", **own)
    np.testing.assert_array_equal(twice.predict(wanted).mean, model.predict(wanted).mean)


@each_with_class
def test_load_says_what_it_needs(tmp_path: Path, door: Door) -> None:
    fit(door.make()).save(tmp_path)
    with pytest.raises(ValueError) as caught:
        GPPVAE.load(tmp_path)
    assert str(caught.value) == (
        f"{tmp_path} was fitted with classes of your own ({door.classes}); pass {door.load} to load()"
    )
    result = CliRunner().invoke(app, ["report", str(tmp_path)])
    assert result.exit_code == 2 and len(result.stderr.splitlines()) == 1


def test_all_that_is_needed_is_said_at_once(tmp_path: Path) -> None:
    own = networks() | {"kernel": Ring("angle"), "likelihood": Narrow()}
    fit(own).save(tmp_path)
    with pytest.raises(ValueError, match=r"\(Ring, Encoder, Narrow\); pass kernel=, encoder= and likelihood= to load"):
        GPPVAE.load(tmp_path, decoder=Decoder())
    assert GPPVAE.load(tmp_path, **own).resolved_["likelihood"] == {"name": "Narrow"}


def test_another_kernel_or_likelihood_is_refused(tmp_path: Path) -> None:
    fit({"kernel": Ring("angle", max_inducing=7), "likelihood": Narrow()}).save(tmp_path)
    with pytest.raises(ValueError, match=r"fitted with the kernel .*max_inducing=7.*, got .*max_inducing=8.*; pass"):
        GPPVAE.load(tmp_path, kernel=Ring("angle", max_inducing=8), likelihood=Narrow())
    with pytest.raises(ValueError, match="fitted with the likelihood Narrow, got MeanAndVariance"):
        GPPVAE.load(tmp_path, kernel=Ring("angle", max_inducing=7), likelihood=MeanAndVariance())


# -- a stopped run


@each_door
def test_a_stopped_run_continues_exactly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, door: Door) -> None:
    images, table, _, _ = held_out()
    with monkeypatch.context() as patch:
        stop_after(patch, 3)
        with pytest.raises(Stop):
            fit(door.make(), out=tmp_path / "stopped", checkpoint_seconds=0.0)
    with pytest.raises(ValueError) as caught:
        GPPVAE.resume(tmp_path / "stopped", images, table, progress=False)
    assert str(caught.value).endswith(f"classes of your own ({door.classes}); pass {door.resume} to resume()")
    own = given_again(door.make(), "kernel", "likelihood", "encoder", "decoder", "inference", "phases")
    GPPVAE.resume(tmp_path / "stopped", images, table, progress=False, **own)
    fit(door.make(), out=tmp_path / "undisturbed")
    one, two = (read_tensors(tmp_path / name / "model.safetensors")[0] for name in ("stopped", "undisturbed"))
    assert one.keys() == two.keys()
    for name in one:
        assert one[name].numpy().tobytes() == two[name].numpy().tobytes(), name


# -- what was passed stays as it was


def tensors_of(value: Any) -> dict[str, Tensor]:
    kernels = [kernel for kernel, _ in value if kernel] if isinstance(value, list) else []
    modules = kernels if isinstance(value, list) else [value]
    found = [(name, x) for module in modules for name, x in module.state_dict().items()]
    return {name: x.clone() for name, x in found}


@each_with_class
def test_fit_does_not_change_what_it_was_given(door: Door) -> None:
    own = door.make()
    before = {name: (tensors_of(value), copy.deepcopy(repr(value))) for name, value in own.items()}
    model = fit(own)
    for name, value in own.items():
        assert getattr(model, name) is value
        tensors, text = before[name]
        after = tensors_of(value)
        assert after.keys() == tensors.keys() and all(torch.equal(after[key], x) for key, x in tensors.items())
        assert repr(value) == text
        assert not isinstance(value, nn.Module) or all(p.grad is None for p in value.parameters())
    twice = model.fit(*held_out()[:2], progress=False)  # so that a second fit starts from the same point
    assert twice.history_[-1]["loss"] == fit(door.make()).history_[-1]["loss"]


def test_kernel_is_the_fitted_kernel() -> None:
    kernel = Turn("angle") * Effect("spot")
    model = fit({"kernel": kernel})
    assert isinstance(model.kernel_, Kernel) and model.kernel_ is not kernel
    turn, effect = model.kernel_.leaves()
    assert type(turn) is Turn and type(effect) is Effect and effect.levels == ["s0", "s1", "s2", "s3", "s4"]
    assert turn.speed.item() != kernel.leaves()[0].speed.item()
    assert model.kernel_ is model.prior_.groups[0].kernel
    groups = fit({"kernel": [(Ring("angle"), 1), (None, 1)]}).kernel_
    assert isinstance(groups, list) and type(groups[0]) is Ring and groups[1] is None


# -- kernels in the report


def test_the_report_shows_kernels_of_ones_own(tmp_path: Path) -> None:
    images, table, wanted_images, wanted = held_out()
    model = fit({"kernel": Ring("angle") * Turn("angle") * Effect("spot")}, out=tmp_path)
    learned = dict(kernel_rows(model))
    assert learned["Ring('angle')"] == "11 inducing points"
    speed = model.kernel_.leaves()[1].speed.item()
    assert learned["Turn('angle')"] == f"speed {speed:.4g}"
    assert learned["Effect('spot')"] == "5 levels"
    assert dict(column_rows(model))["angle"] == "numbers from 0 to 330 (11 values)"
    page = write_report(tmp_path, model, train=(images, table), test=(wanted_images, wanted)).read_text("utf-8")
    assert "learned covariance of Ring(" in page
    assert "data-turntable" in page


# -- likelihoods


class Narrow(Gaussian):
    """A likelihood that inherits all but its name."""

    def config(self) -> dict[str, Any]:
        return {"name": self.name}


def test_a_likelihood_inside_another_is_asked_for(tmp_path: Path) -> None:
    def seen() -> Perceptual:
        return Perceptual(eyes(), {"first": 1.0}, MeanAndVariance())

    assert seen().numbers_per_value == 2
    model = fit({"likelihood": seen()})
    assert model.model_.autoencoder.decode(torch.zeros(3, 2)).shape == (3, 2, 1, SIZE, SIZE)
    model.save(tmp_path)
    with pytest.raises(ValueError, match=r"\(MeanAndVariance\); pass likelihood= to load\(\)"):
        GPPVAE.load(tmp_path)
    _, _, _, wanted = held_out()
    loaded = GPPVAE.load(tmp_path, likelihood=seen())
    np.testing.assert_array_equal(loaded.predict(wanted).mean, model.predict(wanted).mean)


def test_pixels_that_are_standardised_have_features_too(tmp_path: Path) -> None:
    seen = Perceptual(eyes(), {"first": 1.0}, ScaledGaussian())
    model = fit({"likelihood": seen, "inference": "global"})
    pixels = model.model_.autoencoder.likelihood.values
    images, table, _, wanted = held_out()
    assert pixels.shift.item() == pytest.approx(images.mean(), rel=1e-5)
    assert pixels.variance(torch.zeros(1, 1, 1)).item() == pytest.approx(
        np.mean((model.predict(table).mean - images) ** 2), rel=1e-4
    )
    model.save(tmp_path)
    np.testing.assert_array_equal(GPPVAE.load(tmp_path).predict(wanted).mean, model.predict(wanted).mean)


def test_new_objects_with_two_numbers_per_value() -> None:
    images, table, wanted_images, wanted = held_out()
    model = fit({"likelihood": MeanAndVariance(), "epochs": 60, "lr": 3e-3})
    new = table[table["spot"] == "s2"].assign(spot="new")
    assert model.add_objects(images[(table["spot"] == "s2").to_numpy()], new, steps=3) == ["new"]
    predicted = model.predict(wanted[2:3].assign(spot="new")).mean[0]
    assert np.mean((predicted - wanted_images[2]) ** 2) < 0.5 * np.mean((images.mean(0) - wanted_images[2]) ** 2)


def test_a_decoder_must_give_as_many_numbers_as_are_asked_for() -> None:
    with pytest.raises(ValueError, match=r"decoder must return .* \(batch, 2, 1, 8, 8\), got \(2, 1, 8, 8\)"):
        fit(networks() | {"likelihood": MeanAndVariance()})


def test_a_vae_takes_likelihoods_and_networks_too(tmp_path: Path) -> None:
    images, _, _, _ = held_out()
    own = networks() | {"likelihood": Narrow()}
    model = VAE(2, epochs=2, **own).fit(images, progress=False)
    model.save(tmp_path)
    with pytest.raises(ValueError, match="pass encoder=, decoder= and likelihood= to load"):
        VAE.load(tmp_path)
    np.testing.assert_array_equal(VAE.load(tmp_path, **own).reconstruct(images), model.reconstruct(images))


# -- inferences


def test_an_inference_is_named_after_its_class() -> None:
    assert HalfBound.name == "HalfBound"
    assert type("Slow", (Minibatch,), {}).name == "Slow"
    assert type("Slow", (Minibatch,), {"name": "slowly"}).name == "slowly"
    assert all(cls.name == name for name, cls in INFERENCES.items())


def test_a_name_of_the_package_is_refused() -> None:
    """Else config.json would say that another inference had been trained."""
    impostor = type("Impostor", (HalfBound,), {"name": "global"})
    with pytest.raises(ValueError, match="needs a name of its own, got 'global'"):
        fit({"inference": impostor})
    with pytest.raises(ValueError, match="needs a name of its own, got 'global'"):
        fit(phases(impostor))


@pytest.mark.parametrize("wrong", ["globl", 3, ["global"], nn.Linear, HalfBound.steps])
def test_what_is_no_inference_is_refused(wrong: Any) -> None:
    with pytest.raises(ValueError, match=r"inference must be auto, one of global, .* or a class, got"):
        fit({"inference": wrong})


def test_options_of_a_phase_reach_the_class(tmp_path: Path) -> None:
    losses = {}
    for weight in (0.25, 4.0):
        rates = {"encoder": 1e-3, "decoder": 1e-3}
        phase = Phase("mine", HalfBound, 2, rates, options={"weight": weight})
        losses[weight] = fit({"phases": [phase]}).history_[0]["neg_entropy"]
    assert losses[4.0] == pytest.approx(16.0 * losses[0.25], rel=0.2)


def test_a_loss_without_backward_is_told() -> None:
    class Forgetful(HalfBound):
        def steps(self, epoch: Epoch) -> Iterator[LossTerms]:
            for terms in super().steps(epoch):
                self.model.zero_grad()
                yield terms

    with pytest.raises(TrainingError, match=r"phase 'joint' .* Forgetful gave none of them a gradient; .*backward\(\)"):
        fit({"inference": Forgetful, "warmup_epochs": 1, "gp_epochs": 1})


# -- networks


def test_the_mask_reaches_an_encoder_that_wants_it() -> None:
    seen: list[Tensor] = []

    class Watching(Encoder):
        def forward(self, y: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
            seen.append(mask)
            return super().forward(y, mask)

    images, table, _, _ = held_out()
    holes = images.copy()
    holes[:, 0, :] = np.nan
    own = networks() | {"encoder": Watching(), "missing": "mask", "inference": "minibatch", "gp_epochs": 1}
    model = estimator(own).fit(holes, table, progress=False)
    seen.clear()
    encoded = model.encode(holes)
    assert seen and all(mask.dtype == torch.bool and mask.shape[1:] == (1, SIZE, SIZE) for mask in seen)
    assert all(not mask[:, 0, 0].any() and mask[:, 0, 1:].all() for mask in seen)
    seen.clear()
    assert not np.array_equal(model.encode(np.nan_to_num(holes)), encoded)  # a measured zero is not a missing one
    assert all(mask.all() for mask in seen)


def test_without_missing_values_the_mask_is_true_everywhere() -> None:
    autoencoder = Autoencoder(*networks().values(), Gaussian())
    y = torch.rand(3, 1, SIZE, SIZE)
    by_none, by_ones = autoencoder.encode(y), autoencoder.encode(y, torch.ones_like(y, dtype=torch.bool))
    assert torch.equal(by_none[0], by_ones[0])


@pytest.mark.parametrize("inference", ["global", "minibatch"])
def test_layers_that_differ_in_training_are_in_evaluation_mode_elsewhere(tmp_path: Path, inference: str) -> None:
    modes: dict[str, set[bool]] = {"decoder": set()}

    class Dropping(Decoder):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(2)
            self.drop = nn.Dropout(0.5)

        def forward(self, z: Tensor) -> Tensor:
            modes["decoder"].add(self.training)
            return super().forward(self.drop(self.norm(z)))

    images, table, wanted_images, wanted = held_out()
    own = networks() | {"decoder": Dropping(), "inference": inference, "gp_epochs": 1}
    model = estimator(own).fit(images, table, validation=(wanted_images, wanted), progress=False)
    assert modes["decoder"] == {True, False}
    modes["decoder"].clear()
    first = model.predict(wanted).mean
    np.testing.assert_array_equal(model.predict(wanted).mean, first)
    np.testing.assert_allclose(model.predict(wanted[:1]).mean, first[:1], atol=1e-6)  # not a matter of the batch
    assert modes["decoder"] == {False}
    model.save(tmp_path)
    loaded = GPPVAE.load(tmp_path, encoder=Encoder(), decoder=Dropping())
    np.testing.assert_array_equal(loaded.predict(wanted).mean, first)
    assert own["decoder"].training and int(own["decoder"].norm.num_batches_tracked) == 0


# -- files


def test_files_hold_names_and_no_code(tmp_path: Path) -> None:
    fit(
        networks() | {"kernel": Turn("angle"), "inference": HalfBound, "warmup_epochs": 1, "gp_epochs": 1}, out=tmp_path
    )
    settings = json.loads((tmp_path / "config.json").read_text())["settings"]
    _, meta = read_tensors(tmp_path / "model.safetensors")
    own = {"kernel": ["Turn"], "encoder": ["Encoder"], "decoder": ["Decoder"], "inference": ["HalfBound"]}
    assert settings["own"] == meta["own"] == own
    assert settings["trained"]["phases"][-1]["inference"] == "HalfBound"
    fit({}).save(tmp_path / "plain")
    assert read_tensors(tmp_path / "plain" / "model.safetensors")[1]["own"] == {}
