"""The terms of a bound: one backward per sample, values for the log, and what waits for the next step."""

import pytest
import torch

from gppvae.inference import LossTerms

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
