"""The loop: what a phase freezes, what a bad step does, when it stops, and that a seed decides everything."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook

from gppvae.data.arrays import Samples
from gppvae.data.batches import Epoch
from gppvae.data.table import Table
from gppvae.inference import Exact, Minibatch, PosteriorCoding
from gppvae.inference.phase import Budget, Phase
from gppvae.kernels.parse import parse_kernel
from gppvae.likelihoods import Gaussian
from gppvae.models.gppvae import GPPriorVAE
from gppvae.models.vae import Autoencoder
from gppvae.nets.mlp import MLPDecoder, MLPEncoder
from gppvae.prior.latent_prior import LatentPrior
from gppvae.training.average import RunningAverage
from gppvae.training.checkpoint import read_tensors, under
from gppvae.training.folder import RunFolder
from gppvae.training.loop import Settings, Trainer, TrainingError
from gppvae.training.phases import check_phases
from gppvae.training.steps import MAX_BAD_STEPS
from gppvae.training.validated import Validated
from tiny import KERNEL, spots

LATENTS, BATCH = 3, 16
ALL = ("encoder", "decoder", "prior", "noise", "weights")
QUIET = Settings(seed=3, progress=False)


def problem() -> tuple[GPPriorVAE, Epoch]:
    images, table = spots(n_objects=5, n_views=8)  # 40 rows, three batches
    samples, kernel = Samples(images), parse_kernel(KERNEL)
    kernel.bind(Table(table), torch.Generator().manual_seed(1))
    with torch.random.fork_rng():
        torch.manual_seed(2)
        shape = samples.shape
        networks = MLPEncoder(shape, LATENTS, (16,)), MLPDecoder(shape, LATENTS, (16,))
    model = GPPriorVAE(Autoencoder(*networks, Gaussian(0.02)), LatentPrior([(kernel, LATENTS)], 0.1))
    return model, Epoch(samples, kernel.code(Table(table)), BATCH, None, torch.device("cpu"))


def train(
    phases: list[Phase], settings: Settings = QUIET, given: tuple[GPPriorVAE, Epoch] | None = None, **options: Any
) -> Trainer:
    model, data = given or problem()
    trainer = Trainer(model, phases, data, settings, **options)
    trainer.run()
    return trainer


def state(model: nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


def group_of(name: str) -> str:
    if name.endswith("log_alpha"):
        return "noise"
    return "prior" if name.startswith("prior") else name.split(".")[1]


# -- what is trained


@pytest.mark.parametrize(
    ("inference", "groups"),
    [
        ("vae", ("encoder",)),
        ("vae", ("encoder", "decoder")),
        ("fixed", ("prior",)),
        ("fixed", ("noise",)),
        ("fixed", ("prior", "noise")),
        ("exact", ("encoder", "prior")),
        ("minibatch", ("decoder", "noise")),
        ("minibatch", ("encoder", "decoder", "prior", "noise")),
        ("posterior", ("encoder", "decoder")),
        ("global", ("decoder", "weights")),
        ("global", ("prior", "noise", "weights")),
    ],
)
def test_a_phase_changes_only_the_groups_it_names(inference: str, groups: tuple[str, ...]) -> None:
    before = state(problem()[0])
    model = train([Phase("only", inference, 2, dict.fromkeys(groups, 1e-2))]).model
    frozen = {"likelihood", *(group for group in ALL if group not in groups)}
    changed = {name for name, value in state(model).items() if not torch.equal(value, before[name])}
    assert {group_of(name) for name in changed} == set(groups) - {"weights"}
    assert not [name for name in changed if group_of(name) in frozen]


def test_distillation_changes_the_encoder_alone_and_keeps_the_weights() -> None:
    first = Phase("global", "global", 3, dict.fromkeys(("decoder", "prior", "noise", "weights"), 1e-2))
    second = Phase("encoder", "distill", 3, {"encoder": 1e-2})
    alone, both = train([first]), train([first, second])
    moved = {
        group_of(name) for name, value in state(both.model).items() if not torch.equal(value, state(alone.model)[name])
    }
    assert moved == {"encoder"}
    assert alone.weights is not None and both.weights is not None
    assert torch.equal(alone.weights.parts[0].mean, both.weights.parts[0].mean)


def test_parameters_can_be_trained_again_after_a_phase_that_froze_them() -> None:
    before = {name: p.requires_grad for name, p in problem()[0].named_parameters()}
    model = train([Phase("gp", "fixed", 1, {"prior": 1e-2})]).model
    assert {name: p.requires_grad for name, p in model.named_parameters()} == before
    assert before["prior.members.0.kernel.right.base.raw_period_length"] is False  # stays as the user gave it


def test_an_inference_may_be_given_as_a_class_of_ones_own() -> None:
    class Own(Minibatch):
        name = "own"

    rates = dict.fromkeys(ALL[:4], 1e-2)
    own, named = (Phase("joint", inference, 2, rates) for inference in (Own, "minibatch"))
    first, second = state(train([own]).model), state(train([named]).model)
    assert all(torch.equal(value, second[name]) for name, value in first.items())
    assert json.loads(json.dumps(own.to_json())) == named.to_json() | {"inference": "own"}
    check_phases([own])
    for wrong in (Gaussian, None, "magic"):
        with pytest.raises(ValueError, match=r"inference must be auto, one of .*, got"):
            check_phases([Phase("wrong", wrong, 1, {"encoder": 1e-3})])  # type: ignore[arg-type]


def test_unknown_groups_and_names_are_refused() -> None:
    with pytest.raises(ValueError, match=r"can train encoder, decoder, prior, noise, weights, got .'kernel'."):
        Phase("wrong", "vae", 1, {"kernel": 1e-3})
    with pytest.raises(ValueError, match="epochs of at least 0, got -1"):
        Phase("wrong", "vae", -1, {"encoder": 1e-3})
    with pytest.raises(ValueError, match="'constant' or 'cosine', got 'linear'"):
        Phase("wrong", "vae", 1, {"encoder": 1e-3}, decay="linear")
    with pytest.raises(ValueError, match="must train at least one of encoder"):
        Phase("wrong", "vae", 1, {})
    with pytest.raises(ValueError, match="'joint' or 'disjoint', got 'both'"):
        Budget("both")


@pytest.mark.parametrize("rate", [math.nan, math.inf, -1.0, 1e9, "fast"])
def test_rates_that_cannot_train_are_refused(rate: float) -> None:
    with pytest.raises(ValueError, match="needs a learning rate from 0 to 1000 for encoder"):
        Phase("wrong", "vae", 1, {"encoder": rate})


def test_the_disjoint_plan_never_trains_networks_after_the_warm_up() -> None:
    phases = Exact.phases(Budget("disjoint", epochs=5, warmup_epochs=2, gp_epochs=3))
    assert [(phase.kind.name, phase.epochs) for phase in phases] == [("vae", 2), ("fixed", 3)]
    assert not {"encoder", "decoder"} & set(phases[1].lr)
    assert [phase.kind.name for phase in Exact.phases(Budget())] == ["vae", "fixed", "exact"]
    last = {kind.name: kind.phases(Budget(lr=0.002))[-1] for kind in (Exact, Minibatch, PosteriorCoding)}
    rates = {name: phase.lr["encoder"] for name, phase in last.items()}
    assert rates == {"exact": 0.002, "minibatch": 0.002, "posterior": 0.001}
    decays = {name: phase.decay for name, phase in last.items()}
    assert decays == {"exact": "constant", "minibatch": "constant", "posterior": "cosine"}


# -- bad steps


def spoil_gradients(model: GPPriorVAE, bad: Callable[[int], bool]) -> list[Tensor]:
    """Make the decoder's first gradient NaN in the steps that `bad` says; the weights at each step are kept."""
    weight = next(model.autoencoder.decoder.parameters())
    seen: list[Tensor] = []

    def hook(gradient: Tensor) -> Tensor:
        seen.append(weight.detach().clone())
        return gradient * math.nan if bad(len(seen) - 1) else gradient

    weight.register_hook(hook)
    return seen


def test_a_step_with_a_nan_gradient_is_skipped_and_counted() -> None:
    given = problem()
    weights = spoil_gradients(given[0], {2, 5}.__contains__)
    trainer = train([Phase("vae", "vae", 4, {"encoder": 1e-2, "decoder": 1e-2})], given=given)
    assert trainer.skipped_steps == 2
    assert [k for k in range(len(weights) - 1) if torch.equal(weights[k], weights[k + 1])] == [2, 5]
    assert all(torch.isfinite(parameter).all() for parameter in trainer.model.parameters())


def test_a_few_bad_steps_that_are_not_in_a_row_do_not_stop_the_run() -> None:
    given = problem()
    spoil_gradients(given[0], lambda step: step % 10 == 9)
    trainer = train([Phase("vae", "vae", 60, {"decoder": 1e-2})], given=given)
    assert trainer.skipped_steps == 18


def test_bad_steps_are_counted_over_a_phase_and_not_only_in_a_row() -> None:
    given = problem()
    spoil_gradients(given[0], lambda step: step % MAX_BAD_STEPS != 0)
    with pytest.raises(TrainingError, match="the gradient was not finite in 11 of 13 steps"):
        train([Phase("vae", "vae", 10, {"decoder": 1e-2})], given=given)


def test_a_short_phase_that_is_mostly_bad_is_not_finished() -> None:
    given = problem()
    spoil_gradients(given[0], lambda step: step % 3 != 0)
    with pytest.raises(TrainingError, match="because 6 of 9 gradients were not finite"):
        train([Phase("vae", "vae", 3, {"decoder": 1e-2})], given=given)


def test_bad_gradients_in_a_row_stop_the_run_and_leave_the_parameters() -> None:
    given = problem()
    before = state(given[0])
    spoil_gradients(given[0], lambda step: True)
    with pytest.raises(
        TrainingError, match=f"phase 'stuck' because the gradient was not finite in {MAX_BAD_STEPS} steps"
    ):
        train([Phase("stuck", "vae", 9, {"encoder": 1e-2, "decoder": 1e-2})], given=given)
    assert all(torch.equal(value, before[name]) for name, value in state(given[0]).items())


class Failing(Gaussian):
    """Turns NaN after a number of batches."""

    def __init__(self, good: int) -> None:
        super().__init__(0.02)
        self.good = good

    def nll(self, y: Tensor, out: Tensor, mask: Tensor | None = None) -> Tensor:
        self.good -= 1
        return super().nll(y, out, mask) * (1.0 if self.good >= 0 else math.nan)


def test_the_stop_names_the_term_and_the_last_good_state_is_kept(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    given = problem()
    given[0].autoencoder.likelihood = Failing(good=6)  # two epochs of three batches
    settings = Settings(seed=3, progress=False, checkpoint_seconds=0.0)
    with pytest.raises(TrainingError) as caught:
        train([Phase("vae", "vae", 50, {"encoder": 1e-2, "decoder": 1e-2})], settings, given, folder=folder)
    assert "recon_nll was not finite" in str(caught.value)
    assert str(tmp_path) in str(caught.value)
    tensors, meta = folder.load_checkpoint()
    good = train([Phase("vae", "vae", 2, {"encoder": 1e-2, "decoder": 1e-2})])
    saved = under("model", tensors)
    assert meta["epoch"] >= 2
    assert saved and all(torch.equal(saved[name], value) for name, value in state(good.model).items())


def test_a_failing_factorisation_is_a_training_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object, **options: object) -> None:
        raise torch.linalg.LinAlgError("the leading minor of order 2 is not positive-definite")

    given = problem()
    monkeypatch.setattr(torch.linalg, "cholesky", fail)
    with pytest.raises(TrainingError, match="phase 'gp' because a Cholesky factor failed"):
        train([Phase("gp", "fixed", 1, {"prior": 1e-2})], given=given)


# -- stopping early


@pytest.mark.parametrize("average", [0.0, 0.9])
def test_early_stopping_takes_back_the_best_state(average: float) -> None:
    errors = [5.0, 3.0, 1.0, 2.0, 4.0, 0.5, 0.4]
    given = problem()
    seen: list[dict[str, Tensor]] = []

    def validate(*_: object) -> Validated:
        seen.append(state(given[0]))
        return Validated.by_one_number("valid_mse", errors[len(seen) - 1])

    settings = Settings(seed=3, patience=1, progress=False)
    phase = Phase("vae", "vae", 7, {"encoder": 1e-2, "decoder": 1e-2}, average=average)
    trainer = train([phase], settings, given, validate=validate)
    assert [row["valid_mse"] for row in trainer.history] == errors[:5]
    assert all(torch.equal(value, seen[2][name]) for name, value in state(given[0]).items())
    assert any(not torch.equal(value, seen[4][name]) for name, value in state(given[0]).items())


def test_without_patience_every_epoch_runs_and_the_last_state_stays() -> None:
    errors = iter([1.0, 2.0, 3.0, 4.0])
    phase = Phase("vae", "vae", 4, {"encoder": 1e-2, "decoder": 1e-2})
    trainer = train([phase], validate=lambda *_: Validated.by_one_number("valid_mse", next(errors)))
    assert len(trainer.history) == 4
    assert all(torch.equal(v, state(train([phase]).model)[name]) for name, v in state(trainer.model).items())


def test_validation_comes_every_so_many_epochs() -> None:
    settings = Settings(seed=3, validate_every=3, progress=False)
    validated = Validated.by_one_number("valid_mse", 1.0)
    trainer = train([Phase("vae", "vae", 7, {"decoder": 1e-3})], settings, validate=lambda *_: validated)
    assert [row["epoch"] for row in trainer.history if "valid_mse" in row] == [3, 6]


# -- the log


def test_the_log_has_one_row_per_epoch_whose_terms_add_up(tmp_path: Path) -> None:
    phases = [Phase("vae", "vae", 2, {"encoder": 1e-3}), Phase("joint", "exact", 3, {"prior": 1e-3})]
    history = train(phases, folder=RunFolder(tmp_path)).history
    assert [(row["phase"], row["epoch"]) for row in history] == [
        ("vae", 1), ("vae", 2), ("joint", 1), ("joint", 2), ("joint", 3),
    ]  # fmt: skip
    for row in history:
        parts = row["recon_nll"] + row["gp_nll"] + row["neg_entropy"] + row["penalty"]
        assert row["loss"] == pytest.approx(parts, rel=1e-9)
    assert RunFolder(tmp_path).truncate_metrics(99) == history


def test_the_finished_checkpoint_says_that_no_phase_is_left(tmp_path: Path) -> None:
    phases = [Phase("a", "vae", 1, {"encoder": 1e-3}), Phase("b", "fixed", 1, {"prior": 1e-3})]
    trainer = train(phases, folder=RunFolder(tmp_path))
    tensors, meta = read_tensors(tmp_path / "checkpoint.safetensors")
    assert (meta["phase"], meta["epoch"], meta["metrics"]) == (2, 0, 2)
    assert trainer.weights is not None
    assert torch.equal(under("carried", tensors)["0.mean"], trainer.weights.parts[0].mean)


# -- repeatability


@pytest.mark.parametrize("inference", ["exact", "minibatch", "posterior", "global", "leave_out"])
def test_the_seed_decides_everything(inference: str) -> None:
    rates = dict.fromkeys(ALL if inference == "global" else ALL[:4], 1e-2)
    first, again, other = (
        state(train([Phase("p", inference, 3, rates)], Settings(seed=seed, progress=False)).model) for seed in (7, 7, 8)
    )
    assert all(torch.equal(value, again[name]) for name, value in first.items())
    assert not all(torch.equal(value, other[name]) for name, value in first.items())


# -- learning rates and averages


@pytest.mark.parametrize("progress", [0.0, 0.1, 0.25, 0.5, 0.9, 0.999])
def test_rates_follow_the_cosine_and_the_warm_up(progress: float) -> None:
    plain = Phase("p", "vae", 1, {"encoder": 1.0})
    cosine = Phase("p", "vae", 1, {"encoder": 1.0}, decay="cosine")
    warm = Phase("p", "vae", 1, {"encoder": 1.0}, warmup=0.2)
    assert plain.rate(progress) == 1.0
    assert cosine.rate(progress) == pytest.approx((1 + math.cos(math.pi * progress)) / 2, abs=1e-12)
    assert warm.rate(progress) == (1.0 if progress >= 0.2 else pytest.approx(progress / 0.2, abs=0.01))


@pytest.mark.parametrize(("decay", "warmup"), [("constant", 0.0), ("cosine", 0.0), ("constant", 0.5), ("cosine", 0.25)])
def test_the_optimiser_uses_the_rate_of_the_step(decay: str, warmup: float) -> None:
    used: list[float] = []

    def note(optimizer: Optimizer, *_: object) -> None:
        used.append(optimizer.param_groups[0]["lr"])

    handle = register_optimizer_step_post_hook(note)
    train([Phase("p", "vae", 4, {"encoder": 0.01}, decay, warmup)])
    handle.remove()
    n_rows, sizes = 40, [16, 16, 8]
    expected = []
    for epoch in range(4):
        for k in range(3):
            progress = (epoch + sum(sizes[:k]) / n_rows) / 4
            rate = 1.0 if decay == "constant" else (1 + math.cos(math.pi * progress)) / 2
            expected.append(0.01 * ((progress + 1e-3) / warmup if progress < warmup else rate))
    assert used == pytest.approx(expected, rel=1e-9)


def test_the_running_average_is_that_of_its_definition() -> None:
    rng = np.random.default_rng(0)
    parameter = nn.Parameter(torch.tensor(rng.standard_normal(4)))
    average = RunningAverage([parameter], 0.7)
    expected = parameter.detach().numpy().copy()
    for step in range(20):
        value = rng.standard_normal(4)
        parameter.data = torch.tensor(value)
        average.update()
        decay = min(0.7, (1 + step) / (10 + step))
        expected = decay * expected + (1 - decay) * value
    average.swap()
    np.testing.assert_allclose(parameter.detach().numpy(), expected, rtol=1e-12)
    average.swap()
    np.testing.assert_array_equal(parameter.detach().numpy(), value)


def test_a_saved_average_continues_where_it_was() -> None:
    parameter = nn.Parameter(torch.zeros(3))
    one = RunningAverage([parameter], 0.9)
    for value in (1.0, 2.0, 3.0):
        parameter.data = torch.full((3,), value)
        one.update()
    two = RunningAverage([parameter], 0.9)
    two.load(one.state())
    parameter.data = torch.full((3,), 7.0)
    one.update()
    two.update()
    assert torch.equal(one.values[0], two.values[0])
    assert two.steps == 4


def test_a_phase_with_an_average_ends_on_it() -> None:
    given = problem()
    weight = next(given[0].autoencoder.encoder.parameters())
    expected, steps = weight.detach().numpy().astype(np.float64), 0

    def follow(*_: object) -> None:
        nonlocal expected, steps
        decay = min(0.95, (1 + steps) / (10 + steps))
        expected = decay * expected + (1 - decay) * weight.detach().numpy()
        steps += 1

    handle = register_optimizer_step_post_hook(follow)
    train([Phase("p", "vae", 5, {"encoder": 1e-2}, average=0.95)], given=given)
    handle.remove()
    assert steps == 15
    np.testing.assert_allclose(weight.detach().numpy(), expected, rtol=1e-4, atol=1e-6)


def test_one_step_of_the_prior_for_three_batches_is_three_times_as_long() -> None:
    """The first step of Adam is as long as the rate, whatever the gradient."""
    given = problem()
    before = {name: p.detach().clone() for name, p in given[0].named_parameters()}
    train([Phase("p", "posterior", 1, dict.fromkeys(("encoder", "prior", "noise"), 1e-3))], given=given)
    moved = {name: (p.detach() - before[name]).abs().max().item() for name, p in given[0].named_parameters()}
    np.testing.assert_allclose(
        [moved["prior.members.0.log_alpha"], moved["prior.members.0.kernel.left.x"]], 3e-3, rtol=1e-4
    )
    np.testing.assert_allclose(moved["autoencoder.encoder.layers.0.weight"], 1e-3, rtol=1e-3)
