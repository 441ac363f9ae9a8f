"""Running sums as buffers, what posterior coding steps when, and runs that go on from a checkpoint."""

import copy

import pytest
import torch

from gppvae.data.table import Table
from gppvae.inference import Inference, Minibatch, PosteriorCoding
from gppvae.inference.posterior_coding import BATCHES_PER_STEP
from gppvae.inference.running import KeptSums, RunningSums, add
from gppvae.models.gppvae import GPPriorVAE
from gppvae.prior.latent_prior import LatentPrior
from gppvae.prior.statistics import Statistics, Sums
from inference.setting import KERNELS, K, L, RowEpoch, columns, gradients, make_epoch, make_model, step

both = pytest.mark.parametrize("kind", [Minibatch, PosteriorCoding])
TWO_GROUPS = LatentPrior([(None, 1), (None, 2)])


def part(value: float, rows: float) -> Sums:
    """Sums of two groups of latents, the second ten times the first."""
    sums = [torch.tensor([value * scale, 0.0, 0.0, rows], dtype=torch.float64) for scale in (1, 10)]
    return [
        Statistics(torch.full((1, 1, 1 + size), own[0].item(), dtype=torch.float64), own, size)
        for own, size in zip(sums, (1, 2), strict=True)
    ]


def values(sums: Sums) -> list[float]:
    return [own.outer[0, 0, 0].item() for own in sums]


def test_running_sums_replace_last_epochs_share() -> None:
    running = RunningSums(TWO_GROUPS)
    assert running.empty
    running.set(part(10.0, 4.0))
    assert not running.empty and running.n_rows == 4.0 and values(running.current()) == [10.0, 100.0]
    running.add(part(7.0, 1.0))
    assert values(running.current()) == [7.0 + 0.75 * 10.0, 70.0 + 0.75 * 100.0]
    running.add(part(1.0, 3.0))
    assert values(running.current()) == [8.0, 80.0]
    running.end_epoch()
    running.add(part(2.0, 2.0))
    assert values(running.current()) == [2.0 + 0.5 * 8.0, 20.0 + 0.5 * 80.0]


def test_sums_add_with_a_weight() -> None:
    assert values(add(part(1.0, 1.0), part(2.0, 1.0), 0.5)) == [2.0, 20.0]
    assert values(add([], part(2.0, 1.0))) == [2.0, 20.0]


def test_kept_sums_are_buffers() -> None:
    kept, again = KeptSums(TWO_GROUPS), KeptSums(TWO_GROUPS)
    assert set(kept.state_dict()) == {"outer0", "sums0", "outer1", "sums1"}
    kept.set(part(3.0, 4.0))
    for name, value in kept.state_dict().items():
        setattr(again, name, value.clone())
    assert values(again.get()) == [3.0, 30.0] and again.n_rows == 4.0
    assert [own.n_latents for own in again.get()] == [1, 2]


# -- what steps when


def prepared(kind: type[Inference], n: int) -> tuple[GPPriorVAE, RowEpoch, Inference]:
    """An epoch of n batches of one row."""
    model = make_model(KERNELS["learned * periodic"]())
    generator = torch.Generator().manual_seed(0)
    y, eps = (torch.randn(n, width, generator=generator, dtype=torch.float64) for width in (K, L))
    epoch = RowEpoch(y, model.prior.code(Table(columns(n))), eps, 1)
    inference = kind(model)
    inference.start(epoch, None)
    return model, epoch, inference


@pytest.mark.parametrize("n", [1, 3, 4, 7, 8, 21, 70])
def test_encoder_and_prior_wait_for_a_few_batches(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The decoder steps with every batch, the others after some; what is left at the end joins the last step.

    q(B) is conditioned once for each of these steps, before its first batch.
    """
    model, epoch, inference = prepared(PosteriorCoding, n)
    asked, steps, condition = [], [], model.prior.condition_on_pseudo
    monkeypatch.setattr(model.prior, "condition_on_pseudo", lambda *sums: asked.append(len(steps)) or condition(*sums))
    for terms in inference.steps(epoch):
        steps.append(terms)
    together = min(BATCHES_PER_STEP, n)
    starts = [together * time for time in range(n // together)]
    ends = [*(start - 1 for start in starts[1:]), n - 1]
    waits = ("encoder", "prior", "noise")
    assert asked == starts
    assert [terms.waiting for terms in steps] == [() if number in ends else waits for number in range(n)]
    assert [steps[end].gathered for end in ends] == [end - start + 1 for start, end in zip(starts, ends, strict=True)]
    assert all(terms.gathered == 1 for terms in steps if terms.waiting)


# -- checkpoints


def restored(kind: type[Inference], model: GPPriorVAE, saved: dict[str, torch.Tensor]) -> Inference:
    """An inference with the buffers of another, as a checkpoint brings them back."""
    inference = kind(model)
    for name, value in saved.items():
        *path, last = name.split(".")
        setattr(inference.get_submodule(".".join(path)), last, value.clone())
    return inference


@both
def test_a_resumed_run_goes_on_where_it_was(kind: type[Inference]) -> None:
    """Sums of rows at their last visit are not those of the moved networks, so they come from the checkpoint."""
    groups = [(KERNELS["few inducing points"](), 2), (None, 1)]
    model = make_model(groups)
    epoch, inference = make_epoch(model, batch_size=4), kind(model)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], 0.01)
    inference.start(epoch, None)
    for terms in inference.steps(epoch):
        step(optimizer, terms, model, inference)
    model.zero_grad()
    other = copy.deepcopy(model)
    resumed = restored(kind, other, inference.state_dict())
    resumed.start(epoch, None)
    fresh = kind(other)
    fresh.start(epoch, None)
    assert (fresh.running.get()[0].outer - resumed.running.get()[0].outer).abs().max() > 1e-6
    for terms, again in zip(inference.steps(epoch), resumed.steps(epoch), strict=True):
        assert terms.waiting == again.waiting and terms.gathered == again.gathered
        for key, value in terms.named().items():
            assert torch.equal(value, again.named()[key])
        for got, want in zip(gradients(other).values(), gradients(model).values(), strict=True):
            assert torch.equal(got, want)
