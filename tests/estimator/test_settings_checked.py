"""Settings of the wrong type or an absurd size are refused in one sentence of our own, before anything is trained."""

import traceback
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gppvae
from gppvae import GPPVAE, VAE, Phase
from tiny import KERNEL, spots

PACKAGE = str(Path(gppvae.__file__).parent)
SMALL = {"latent_dim": 2, "network": "mlp", "width": 4, "epochs": 1, "batch_size": 64}
ABSURD = [
    *({"lr": x} for x in (float("nan"), float("inf"), -1.0, 1e9, "fast", True)),
    *({"prior_lr": x} for x in (float("nan"), -1e-9, 1e300)),
    *({"alpha": x} for x in (0.0, -1.0, 1e300, float("nan"), "small")),
    *({"pixel_var": x} for x in (0.0, -1.0, 1e300, 1e-300, float("nan"), float("inf"), "0.1")),
    *({"batch_size": x} for x in (0, -3, 2.5, 10**400, "64", True)),
    *({"epochs": x} for x in (-1, 1.5, 10**300)),
    *({"latent_dim": x} for x in (0, 10**9, "many")),
    *({"width": x} for x in (0, 10**9)),
    *({"scale": x} for x in (0.0, float("nan"), float("inf"), "255")),
    *({"seed": x} for x in (-1, 2**40, 1.5, None, "zero")),
    *({"kernel": x} for x in ("2.0", "1e300 * RBF(angle)", "RBF(angle, lengthscale=1e-300)", 7, None, [], [3])),
    {"device": "abc"},
    {"device": "cuda:99"},
]


def refused(call: Any) -> str:
    """The sentence of a ValueError or TypeError that the package itself raised."""
    with pytest.raises((ValueError, TypeError)) as caught:
        call()
    last = traceback.extract_tb(caught.value.__traceback__)[-1]
    assert last.filename.startswith(PACKAGE) and str(last.line).startswith("raise"), caught.value
    return str(caught.value)


def shown(value: object) -> str:
    text = repr(value)
    return text if len(text) < 40 else f"{text[:30]}...{len(text)}"


@pytest.mark.parametrize("setting", ABSURD, ids=shown)
def test_absurd_settings_are_refused(setting: dict[str, Any], tmp_path: Path) -> None:
    images, table = spots(3, 4)
    chosen = {"kernel": KERNEL, **SMALL, "warmup_epochs": 1, "gp_epochs": 1} | setting
    sentence = refused(lambda: GPPVAE(**chosen).fit(images, table, out=tmp_path / "run", progress=False))
    assert len(sentence) < 300 and "\n" not in sentence
    assert not (tmp_path / "run").exists()


WRONG = [None, True, -1, 0, 7, 1.5, float("nan"), "", "x", b"x", [], [1], (1, 2), {}, {"a": 1}, object(), np.zeros(3)]


@pytest.mark.parametrize("kind", [GPPVAE, VAE])
def test_no_constructor_argument_gives_a_fault_of_python(kind: type) -> None:
    """Every argument of every type is taken, or refused by an error that the package raises itself."""
    images, table = spots(2, 3)
    data = (images, table) if kind is GPPVAE else (images,)
    first = {"kernel": "Linear(angle)", "warmup_epochs": 0, "gp_epochs": 1} if kind is GPPVAE else {}
    for item in fields(kind):
        for value in WRONG:
            settings = first | SMALL | {item.name: value}
            try:
                fitted = kind(**settings).fit(*data, progress=False)
            except (ValueError, TypeError) as error:
                last = traceback.extract_tb(error.__traceback__)[-1]
                assert last.filename.startswith(PACKAGE) and str(last.line).startswith("raise"), (item.name, value)
            else:
                assert np.isfinite(fitted.reconstruct(images)).all(), (item.name, value)


def test_options_of_fit_are_checked_too(tmp_path: Path) -> None:
    images, table = spots(2, 3)
    for seconds in (float("nan"), -1.0, "soon"):
        fit = lambda given=seconds: GPPVAE("Linear(angle)", **SMALL).fit(  # noqa: E731
            images, table, checkpoint_seconds=given, progress=False
        )
        assert "checkpoint_seconds must be" in refused(fit)


CALLS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "predict": ({"n_samples": 2}, ["n_samples", "seed"]),
    "sample": ({}, ["n_samples", "seed"]),
    "explain": ({}, ["n_rows", "seed"]),
    "impute": ({"n_samples": 1}, ["n_samples", "seed"]),
    "calibrate": ({}, ["n_samples"]),
    "update": ({}, ["steps"]),
    "add_objects": ({}, ["steps"]),
}


@pytest.mark.parametrize("name", CALLS)
def test_no_argument_of_a_fitted_model_gives_a_fault_of_python(name: str) -> None:
    images, table = spots(3, 4)
    model = GPPVAE("Learned(spot, 2) * Linear(angle)", inference="global", **SMALL).fit(images, table, progress=False)
    rows = table.assign(spot="new") if name == "add_objects" else table
    data = (rows,) if name in ("predict", "sample", "explain") else (images, rows)
    given, names = CALLS[name]
    ask = getattr(model, name)
    ask(*data, **given)
    for argument in names:
        taken = []
        for value in (value for value in WRONG if value is not None or argument != "seed"):
            try:
                ask(*data, **(given | {argument: value}))
            except ValueError as error:
                last = traceback.extract_tb(error.__traceback__)[-1]
                assert last.filename.startswith(PACKAGE) and str(last.line).startswith("raise"), (argument, value)
                assert str(error).startswith(argument)
            else:
                taken.append(value)
        assert taken in ([7], [0, 7]), argument


@pytest.mark.parametrize(
    "bad", [{"lr": {"decoder": "fast"}}, {"epochs": "3"}, {"warmup": "x"}, {"average": None}, {"lr": 1e-3}]
)
def test_phases_check_their_types(bad: dict[str, Any]) -> None:
    settings = {"name": "p", "inference": "vae", "epochs": 1, "lr": {"decoder": 1e-3}} | bad
    assert "phase 'p'" in refused(lambda: Phase(**settings))


@pytest.mark.parametrize(
    ("inference", "options", "told"),
    [
        ("leave_out", {"shar": 0.5}, "takes share, what, together, got 'shar'"),
        ("minibatch", {"share": 0.5}, "takes none, got 'share'"),
        ("leave_out", {"share": "half"}, "a share above 0 and at most 1, got 'half'"),
        ("global", {"std": 0.0}, "a std above 0, got 0.0"),
        ("global", {"std": "small"}, "a std above 0, got 'small'"),
    ],
)
def test_options_of_a_phase_are_checked(inference: str, options: dict[str, Any], told: str, tmp_path: Path) -> None:
    images, table = spots(2, 3)
    rates = {"decoder": 1e-3, "prior": 1e-2} | ({"weights": 1e-2} if inference == "global" else {"encoder": 1e-3})
    phases = [Phase("first", "vae", 1, {"decoder": 1e-3}), Phase("p", inference, 1, rates, options=options)]
    model = GPPVAE("Linear(angle)", phases=phases, **SMALL)
    assert told in refused(lambda: model.fit(images, table, out=tmp_path / "run", progress=False))
    assert (tmp_path / "run").exists() is told.startswith("a ")  # names are checked before anything is trained
