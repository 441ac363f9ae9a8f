"""The terms of a bound: one backward per sample, values for the log, and what waits for the next step."""

import pytest
import torch

from gppvae.inference import LossTerms
from gppvae.inference.base import SlowGroups

NAMES = ["recon_nll", "gp_nll", "neg_entropy", "penalty"]


def terms_of(x: torch.Tensor, n: int = 5) -> LossTerms:
    """x^2, 3 x, a constant and -x, of n samples."""
    return LossTerms(x.square(), 3.0 * x, torch.tensor(7.0), -x, n=n)


def test_gradients_are_of_the_sum_per_sample() -> None:
    """d/dx (x^2 + 3 x + 7 - x) / 5 at x = 4; terms without a graph are passed over."""
    x = torch.tensor(4.0, requires_grad=True)
    terms_of(x).backward()
    assert x.grad == pytest.approx((8.0 + 3.0 - 1.0) / 5.0)
    terms_of(x).backward()
    assert x.grad == pytest.approx(4.0)  # gradients of batches add up


def test_a_shared_part_of_the_graph_is_gone_through_once() -> None:
    x, visits = torch.tensor(4.0, requires_grad=True), []
    shared = 2.0 * x
    shared.register_hook(lambda gradient: visits.append(gradient))
    LossTerms(shared, shared.square(), shared, shared, n=1).backward()
    assert len(visits) == 1 and x.grad == pytest.approx(2.0 * (3.0 + 16.0))


def test_values_by_name_are_copies() -> None:
    x = torch.tensor(4.0, requires_grad=True)
    terms = terms_of(x)
    named = terms.named()
    assert list(named) == NAMES and [value.item() for value in named.values()] == [16.0, 12.0, 7.0, -4.0]
    assert not any(value.requires_grad for value in named.values())
    named["neg_entropy"].add_(1.0)  # as processes do when they add up
    assert terms.neg_entropy == 7.0


def test_what_waits_is_said_beside_the_same_terms() -> None:
    terms = terms_of(torch.tensor(4.0))
    assert terms.waiting == () and terms.gathered == 1
    waits, stands = terms.waiting_for("encoder", "prior"), terms.standing_for(4)
    assert waits.waiting == ("encoder", "prior") and waits.gathered == 1
    assert stands.waiting == () and stands.gathered == 4
    for other in (waits, stands):
        assert other.n == 5 and all(getattr(other, name) is getattr(terms, name) for name in NAMES)


@pytest.mark.parametrize(
    ("n_batches", "per_step", "steps"),
    [(6, 3, {3: 3, 6: 3}), (7, 3, {3: 3, 7: 4}), (5, 3, {5: 5}), (2, 3, {2: 2}), (3, 1, {1: 1, 2: 1, 3: 1})],
)
def test_slow_groups_step_once_per_several_batches(n_batches: int, per_step: int, steps: dict[int, int]) -> None:
    """By the number of the batch: how many batches a step stands for. Too few left for a step join the last one."""
    slow, found = SlowGroups(n_batches, per_step, "prior", "noise"), {}
    for batch in range(1, n_batches + 1):
        assert slow.stepped == (batch == 1 or batch - 1 in steps)
        terms = slow.step(terms_of(torch.tensor(4.0)))
        if terms.waiting:
            assert terms.waiting == ("prior", "noise") and terms.gathered == 1
        else:
            found[batch] = terms.gathered
    assert found == steps
