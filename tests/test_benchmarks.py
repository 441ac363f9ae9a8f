"""Benchmarks are commands, not tests; here is only whether they still fit the package and time what they say."""

import dataclasses
import importlib
import math
import runpy
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from gppvae.data.rotated_digits import small_split

FOLDER = Path(__file__).parents[1] / "benchmarks"
MODULES = sorted(path.name for path in FOLDER.glob("*.py"))


def script(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module(name)


def test_there_are_benchmarks() -> None:
    assert {"epoch.py", "faces.py", "gp_term.py", "scale.py", "step.py", "time_to_accuracy.py"} <= set(MODULES)


@pytest.mark.parametrize("name", MODULES)
def test_all_that_a_benchmark_imports_exists(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    ran = runpy.run_path(str(FOLDER / name), run_name="imported")  # raises when a name is gone
    assert ran["__doc__"], f"{name} says in its first line what it measures"


@pytest.mark.parametrize("batch_size", [60, 7])
@pytest.mark.parametrize("form", ["sampled", "expected"])
def test_every_way_that_gp_term_times_gives_the_gradient_of_the_papers_formulas(
    form: str, batch_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    gp_term = script("gp_term", monkeypatch)
    found = gp_term.differences(gp_term.Size((60, 3, 4, 2), batch_size), form, 0)
    assert found.keys() == {"gppvae", "autograd", "whole features", "paper32"}
    assert max(value for name, value in found.items() if name != "paper32") < 1e-9


def test_both_predictions_that_gp_term_times_give_the_same_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    gp_term = script("gp_term", monkeypatch)
    ours, plain = (run() for run in gp_term.predictions(gp_term.Size((60, 3, 4, 2), 60), 0).values())
    torch.testing.assert_close([ours[0], ours[1] + ours[1].T, ours[2]], [plain[0], plain[1] + plain[1].T, plain[2]])


def test_the_layouts_that_gp_term_compares_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    gp_term = script("gp_term", monkeypatch)
    for size in gp_term.SIZES.values():
        split, whole = (gp_term.Problem(size.shape, size.batch_size, 0, split=split) for split in (True, False))
        assert split.prior.groups[0].layout.split == "view (id)" and whole.prior.groups[0].layout.split is None


def test_every_way_that_scale_times_gives_the_same_value_however_often_rows_are_repeated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scale = script("_scale", monkeypatch)
    monkeypatch.setattr("_gp_problem.MOST_DISTINCT", 30)
    problem = scale.Problem((60, 3, 4, 2), 20, 0)
    ours, *others = (run(problem, False) for run in scale.METHODS.values())
    assert problem.repeats == 2 and all(math.isclose(ours, other, rel_tol=1e-9) for other in others)


def test_the_page_of_scale_names_the_methods_that_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    assert script("_scale", monkeypatch).METHODS.keys() == script("_scale_page", monkeypatch).METHODS.keys()


def test_the_epochs_that_are_timed_train_by_the_inference_of_their_name(monkeypatch: pytest.MonkeyPatch) -> None:
    common, epoch = script("_common", monkeypatch), script("epoch", monkeypatch)
    training = epoch.make_training("conv", seed=0, n_rows=200)
    names = ("vae", *common.INFERENCES)
    assert [common.phase_of(name).kind.name for name in names] == list(names)
    runs = {name: training.epochs(name, seed=0) for name in names} | {"encoder pass": training.encoder_pass()}
    found = common.compared(common.interleave(runs, rounds=1, warm_up=0), most=math.inf)
    assert found["exact_limit"] > 1.0
    assert all(found["inferences"][name]["ratio"] > 0.0 for name in common.INFERENCES)


@pytest.mark.parametrize("name", ["global, 8 channels", "minibatch, 8 channels"])
def test_time_to_accuracy_measures_after_every_epoch(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    timed = script("time_to_accuracy", monkeypatch)
    digits = small_split(10, 4)
    candidate = timed.CANDIDATES[name]
    phases = [dataclasses.replace(phase, epochs=2) for phase in candidate.phases]
    never = timed.measure(dataclasses.replace(candidate, phases=phases, target=0.0), digits, 60.0, 0)
    assert never["seconds"] is None and never["cpu_seconds"] is None
    assert never["trained_seconds"] > 0.0 and never["trained_cpu_seconds"] > 0.0
    assert len(never["curve"]) >= 2 and never["best_mse"] == min(mse for *_, mse in never["curve"])
    at_once = timed.measure(dataclasses.replace(candidate, phases=phases, target=1.0), digits, 60.0, 0)
    assert len(at_once["curve"]) == 1 and 0.0 < at_once["seconds"] < at_once["curve"][0][0] + 0.01


@pytest.fixture
def small_step(monkeypatch: pytest.MonkeyPatch) -> tuple[ModuleType, Any]:
    step = script("step", monkeypatch)
    return step, step.Steps(step.Case((3, 32, 32), 8, 8, step.ANGLES, 45.0, 64), seed=0)


def test_the_parts_of_a_step_are_all_of_it(small_step: tuple[ModuleType, Any]) -> None:
    step, steps = small_step
    assert steps.settings["inference"] == "leave_out" and steps.settings["members"] == 3
    found, milliseconds = step.shares(steps, 1)
    assert tuple(found) == step.PARTS and sum(found.values()) == pytest.approx(1.0)
    assert min(found.values()) > 0.0 and milliseconds > 0.0
    assert found["convolutions"] > found["optimiser"]


def test_whatever_a_step_is_compared_with_trains_the_same(small_step: tuple[ModuleType, Any]) -> None:
    step, steps = small_step
    model, (batch, *_) = steps.model, steps.data
    z = torch.randn(len(batch), model.prior.n_latents, generator=torch.Generator().manual_seed(0))
    for own in model.autoencoder.decoder.members:  # blocks that do something
        torch.nn.init.normal_(own.convolutions[0].layers[-1].weight, std=0.1)
    contexts, found = step.candidates(model, compiles=False), {}
    assert {"former", "grouped convolutions", "bfloat16", "channels last everywhere"} < contexts.keys()
    for name, context in contexts.items():
        with context():
            encoded = model.autoencoder.encode(batch.y)[0].sum(1)
            found[name] = torch.cat([encoded, model.autoencoder.training_nll(batch, z)])
    for name, values in found.items():
        torch.testing.assert_close(values, found["as it is"], rtol=0.02 if name == "bfloat16" else 1e-4, atol=0.02)
    assert step.compare(steps, rounds=1, compiles=False).keys() == contexts.keys()
