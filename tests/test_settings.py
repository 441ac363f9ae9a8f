"""Settings live once: what is stored, shown and resumed is what was trained."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone
from torch import nn
from typer.testing import CliRunner

from gppvae import GPPVAE, VAE, Learned, Periodic, Phase
from gppvae.cli import app
from gppvae.data.settings import settings_rows
from gppvae.inference import Minibatch
from gppvae.likelihoods import Gaussian
from gppvae.report.describe import phase_rows
from gppvae.report.plots import curve_rows
from gppvae.report.run import write_report
from gppvae.training.checkpoint import read_tensors
from stops import Stop, stop_after
from tiny import KERNEL, held_out, spots

SHORT: dict[str, Any] = {"latent_dim": 2, "network": "mlp", "batch_size": 16}
WRITES_PHASES = ("inference", "schedule", "epochs", "warmup_epochs", "gp_epochs", "lr", "prior_lr")
PHASES = [
    Phase("alone", "vae", 2, {"encoder": 2e-3, "decoder": 3e-3}, weight_decay=0.01),
    Phase("together", "minibatch", 3, {"encoder": 4e-3, "decoder": 5e-3, "prior": 6e-3}, "cosine", average=0.5),
]


def fit(model: GPPVAE, **options: Any) -> GPPVAE:
    images, table, _, _ = held_out()
    return model.fit(images, table, progress=False, **options)


def stored(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Settings in config.json and in the model file."""
    return json.loads((folder / "config.json").read_text())["settings"], read_tensors(folder / "model.safetensors")[1]


# -- as scikit-learn asks for them


ESTIMATORS = {
    "text": GPPVAE(KERNEL),
    "everything": GPPVAE(
        Learned("spot", 3) * Periodic("angle", 360),
        2,
        encoder=nn.Linear(2, 2),
        decoder=nn.Linear(2, 2),
        likelihood=Gaussian(0.3),
        inference=Minibatch,
        phases=PHASES,
        seed=7,
    ),
    "groups": GPPVAE([(Periodic("angle", 360), 2), (None, 1)], epochs=3),
    "vae": VAE(3, average=0.5),
}
each = pytest.mark.parametrize("model", ESTIMATORS.values(), ids=ESTIMATORS)


@each
def test_parameters_are_the_arguments_as_they_were_given(model: GPPVAE | VAE) -> None:
    params = model.get_params()
    assert type(model)(**params).get_params() == params
    assert all(value is getattr(model, name) for name, value in params.items())


@each
def test_clone_is_an_estimator_with_the_same_settings(model: GPPVAE | VAE) -> None:
    other = clone(model)
    assert type(other) is type(model) and other is not model
    assert repr(other) == repr(model)
    assert not hasattr(other, "model_")


def test_a_clone_shares_nothing_that_a_fit_could_change() -> None:
    model = ESTIMATORS["everything"]
    other = clone(model)
    for name in ("kernel", "encoder", "decoder", "likelihood"):
        assert getattr(other, name) is not getattr(model, name)
    assert other.inference is Minibatch


def test_a_clone_of_a_fitted_model_fits_the_same() -> None:
    model = fit(GPPVAE(KERNEL, **SHORT, epochs=2, seed=4))
    other = fit(clone(model))
    assert [row["loss"] for row in other.history_] == [row["loss"] for row in model.history_]


def test_set_params_changes_what_is_trained() -> None:
    model = GPPVAE(KERNEL, **SHORT, epochs=7)
    assert model.set_params(epochs=2, seed=9) is model
    fit(model)
    assert model.resolved_["seed"] == 9 and model.resolved_["phases"][0]["epochs"] == 2


@pytest.mark.parametrize("model", [GPPVAE(KERNEL), VAE()], ids=["gppvae", "vae"])
def test_unknown_parameters_are_named(model: GPPVAE | VAE) -> None:
    with pytest.raises(ValueError, match=r"has no setting 'latnet_dim'; it has .*latent_dim") as caught:
        model.set_params(seed=1, latnet_dim=3)
    assert "\n" not in str(caught.value) and model.seed == 0  # nothing is set then
    with pytest.raises(TypeError, match="unexpected keyword argument 'latnet_dim'"):
        type(model)(latnet_dim=3)


# -- what was trained


@pytest.fixture(scope="module")
def by_phases(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of explicit phases; inference, epochs and rates of the constructor have no effect in it."""
    folder = tmp_path_factory.mktemp("phases")
    model = GPPVAE(KERNEL, **SHORT, phases=PHASES, inference="exact", epochs=77, lr=0.123, prior_lr=0.456)
    fit(model, out=folder)
    return folder


def test_explicit_phases_are_all_that_files_say_of_the_training(by_phases: Path) -> None:
    config, meta = stored(by_phases)
    for settings in (config, meta):
        for section in ("given", "trained"):
            assert settings[section]["phases"] == [phase.to_json() for phase in PHASES]
            assert not settings[section].keys() & set(WRITES_PHASES)
    assert config["given"] == meta["given"] and config["trained"] == meta["trained"]


def test_explicit_phases_are_all_that_people_see(by_phases: Path) -> None:
    shown = CliRunner().invoke(app, ["info", str(by_phases)], env={"COLUMNS": "200"}).stdout
    page = write_report(by_phases).read_text("utf-8")
    for text in (shown, page):
        assert "vae, 2 epochs, rates encoder 0.002, decoder 0.003 (constant), weight_decay 0.01" in text
        assert "minibatch, 3 epochs, rates encoder 0.004, decoder 0.005, prior 0.006 (cosine), average 0.5" in text
        for wrong in ("exact", "77", "0.123", "0.456", "warmup_epochs"):
            assert wrong not in _words(text), wrong


def _words(text: str) -> set[str]:
    """Words of a page without its script, style and pictures."""
    body = text.split("<main>")[-1].split("</main>")[0]
    for mark in "<>,;:()'\"=":
        body = body.replace(mark, " ")
    return set(body.split())


def test_a_loaded_model_knows_what_was_trained(by_phases: Path) -> None:
    model = GPPVAE.load(by_phases)
    assert model.phases == PHASES
    assert [phase["name"] for phase in model.resolved_["phases"]] == ["alone", "together"]
    assert [name for name, _ in phase_rows(model)] == ["alone", "together"]
    assert not set(WRITES_PHASES) & {name for name, _ in settings_rows(model.resolved_)}


@pytest.mark.parametrize("inference", ["global", "minibatch", "posterior", "exact"])
def test_phases_that_were_written_are_shown_as_they_ran(tmp_path: Path, inference: str) -> None:
    lengths = {"epochs": 3, "warmup_epochs": 2, "gp_epochs": 1}
    model = fit(GPPVAE(KERNEL, **SHORT, **lengths, inference=inference, lr=2e-3), out=tmp_path)
    config, meta = stored(tmp_path)
    assert config["given"]["inference"] == inference and config["given"]["epochs"] == 3
    trained = config["trained"]["phases"]
    assert trained == meta["trained"]["phases"] == model.resolved_["phases"]
    ran = [(row["phase"], row["epoch"]) for row in model.history_]
    assert ran == [(phase["name"], epoch + 1) for phase in trained for epoch in range(phase["epochs"])]


def test_open_choices_are_filled_in(tmp_path: Path) -> None:
    model = fit(GPPVAE("Learned(spot) * Periodic(angle, 360)", epochs=1), out=tmp_path)
    given, trained = (stored(tmp_path)[0][section] for section in ("given", "trained"))
    open_choices = {name for name, value in given.items() if value is None}
    assert {"latent_dim", "width", "alpha", "scale", "validate_every"} <= open_choices
    assert trained["latent_dim"] == 64 and trained["network"] == "image" and trained["width"] == 16
    spots = model.kernel_.leaves()[0].dim
    assert trained["kernel"] == [[f"Learned('spot', dim={spots}) * Periodic('angle', period=360.0)", 64]]
    assert trained["likelihood"] == {"name": "scaled_gaussian", "var": 0.1}
    assert trained["alpha"] == pytest.approx(0.05) and trained["scale"] == 1.0 and trained["validate_every"] == 1
    assert [phase["inference"] for phase in trained["phases"]] == ["leave_out", "leave_out"]
    assert [phase["held_out"] for phase in trained["phases"]] == [True, False]
    assert trained["batch_size"] == 32 and dict(settings_rows(model.resolved_))["network"] == "image"


def test_curves_leave_out_phases_that_fit_the_encoder_alone() -> None:
    model = fit(GPPVAE(KERNEL, **SHORT, inference="global", epochs=3))
    assert {row["phase"] for row in model.history_} == {"global", "encoder"}
    rows = curve_rows(model.history_, model.resolved_["phases"])
    assert {row["phase"] for row in rows} == {"global"} and len(rows) == 3


# -- resumed


def stopped(patch: pytest.MonkeyPatch, model: GPPVAE, out: Path) -> None:
    with patch.context() as context:
        stop_after(context, 3)
        with pytest.raises(Stop):
            fit(model, out=out, checkpoint_seconds=0.0)


def test_a_run_of_explicit_phases_is_resumed_from_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images, table, _, _ = held_out()
    model = GPPVAE(KERNEL, **SHORT, phases=PHASES, epochs=77)
    stopped(monkeypatch, model, tmp_path / "stopped")
    resumed = GPPVAE.resume(tmp_path / "stopped", images, table, progress=False)
    whole = fit(GPPVAE(KERNEL, **SHORT, phases=PHASES))
    assert resumed.phases == PHASES and resumed.resolved_ == whole.resolved_
    assert [row["loss"] for row in resumed.history_] == [row["loss"] for row in whole.history_]


def test_other_phases_do_not_continue_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stopped(monkeypatch, GPPVAE(KERNEL, **SHORT, phases=PHASES), tmp_path)
    with pytest.raises(ValueError, match=r"unfinished run with other settings .*phases was"):
        fit(GPPVAE(KERNEL, **SHORT, phases=PHASES[1:]), out=tmp_path)
    with pytest.raises(ValueError, match="unfinished run with other settings"):
        fit(GPPVAE(KERNEL, **SHORT), out=tmp_path)
    fit(GPPVAE(KERNEL, **SHORT, phases=PHASES, epochs=5, inference="exact"), out=tmp_path)  # no effect, no difference


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ('{"settings": {"given"', "got something else; restore it from a copy"),
        ("[1, 2]", "expected a JSON object"),
        ('{"settings": {"kernel": "RBF(age)", "epochs": 3}}', "was written by another version of gppvae"),
    ],
)
def test_a_folder_that_cannot_be_read_is_told_in_one_sentence(tmp_path: Path, content: str, told: str) -> None:
    images, table, _, _ = held_out()
    (tmp_path / "config.json").write_text(content)
    for attempt in (
        lambda: GPPVAE.resume(tmp_path, images, table, progress=False),
        lambda: fit(GPPVAE(KERNEL, **SHORT, epochs=1), out=tmp_path),
    ):
        with pytest.raises(ValueError, match=told):
            attempt()


# -- the plain VAE


def test_a_vae_says_what_it_trained(tmp_path: Path) -> None:
    images, _ = spots()
    model = VAE(2, network="mlp", epochs=2, lr=5e-3, average=0.5).fit(images, out=tmp_path, progress=False)
    (phase,) = model.resolved_["phases"]
    assert phase["lr"] == {"encoder": 5e-3, "decoder": 5e-3} and phase["epochs"] == 2 and phase["average"] == 0.5
    assert not {"epochs", "lr", "average"} & model.resolved_.keys()
    config, meta = stored(tmp_path)
    assert config["trained"] == meta["trained"] == json.loads(json.dumps(model.resolved_))
    assert config["given"] == meta["given"] and config["given"]["average"] == 0.5
    assert VAE.load(tmp_path).get_params() == model.get_params()


def test_numbers_of_numpy_are_settings_too(tmp_path: Path) -> None:
    samples, table = np.random.default_rng(0).normal(size=(20, 6)).astype(np.float32), {"a": np.arange(20.0)}
    sizes = {"seed": np.int64(3), "epochs": np.int64(1), "batch_size": np.int32(8), "lr": np.float32(0.001)}
    model = GPPVAE("RBF(a)", np.int64(2), network="mlp", **sizes).fit(samples, table, out=tmp_path, progress=False)
    plain = {name: value.item() for name, value in sizes.items()}
    same = GPPVAE("RBF(a)", 2, network="mlp", **plain).fit(samples, table, progress=False)
    np.testing.assert_array_equal(model.predict(table).mean, same.predict(table).mean)
    np.testing.assert_array_equal(GPPVAE.load(tmp_path).predict(table).mean, same.predict(table).mean)
