"""Bounds with groups of latents, two with kernels and one without: value and every gradient against dense_bounds.py."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from gppvae.inference import Distill, Exact, FixedLatents, Global, Independent, Inference, Minibatch, PosteriorCoding
from gppvae.models.gppvae import GPPriorVAE
from gppvae.training.phases import parameter_groups
from inference.dense_bounds import (
    ORDERS,
    STANDARD,
    coded_loss,
    encoded,
    exact_loss,
    global_loss,
    minibatch_loss,
    moved,
    parts,
    vae_loss,
)
from inference.setting import (
    N,
    RowEpoch,
    assert_same_gradients,
    dense_recon,
    gradients,
    layouts,
    make_epoch,
    make_model,
    total,
)

every_order = pytest.mark.parametrize("order", ORDERS)


# -- value and every gradient


def compare(model: GPPriorVAE, epoch: RowEpoch, make: Callable[[], Inference], loss: Tensor, tolerance: float) -> None:
    """One batch of all rows, in every layout of every group."""
    inference = make()
    (loss / N).backward()
    want = gradients(model, inference)
    for _ in layouts(model, epoch.rows):
        inference.start(epoch, None)
        (terms,) = inference.steps(epoch)
        np.testing.assert_allclose(total(terms).item(), loss.item(), rtol=1e-8)
        assert_same_gradients(gradients(model, inference), want, tolerance)
        inference = make()


@every_order
def test_plain_vae(order: str) -> None:
    model, epoch = moved(order)
    compare(model, epoch, lambda: Independent(model), vae_loss(model, epoch), 1e-9)


@every_order
def test_exact(order: str) -> None:
    model, epoch = moved(order)
    compare(model, epoch, lambda: Exact(model), exact_loss(model, epoch), 1e-9)


@every_order
def test_fixed_latents_move_the_prior_alone(order: str) -> None:
    model, epoch = moved(order)
    (exact_loss(model, epoch) / N).backward()
    want = {name: gradient for name, gradient in gradients(model).items() if name.startswith("prior")}
    inference = FixedLatents(model)
    inference.start(epoch, None)
    list(inference.steps(epoch))
    got = gradients(model)
    assert_same_gradients({name: got[name] for name in want}, want)
    assert not any(gradient.any() for name, gradient in got.items() if name.startswith("autoencoder"))


@every_order
def test_minibatch(order: str) -> None:
    model, epoch = moved(order)
    compare(model, epoch, lambda: Minibatch(model), minibatch_loss(model, epoch), 1e-8)


@every_order
def test_posterior_coding(order: str) -> None:
    model, epoch = moved(order)
    compare(model, epoch, lambda: PosteriorCoding(model), coded_loss(model, epoch), 1e-7)


@every_order
def test_global(order: str) -> None:
    model, epoch = moved(order)
    inference = Global(model)
    inference.initialise(torch.Generator().manual_seed(1))
    compare(model, epoch, lambda: inference, global_loss(model, epoch, inference), 1e-9)


@pytest.mark.parametrize("kind", [Exact, PosteriorCoding, Global])
@every_order
def test_batches_at_one_posterior_add_up_to_all_rows(order: str, kind: type[Inference]) -> None:
    """Five batches, over which posterior coding keeps its q(B); mini-batch inference conditions it again."""
    model, epoch = moved(order)
    values = []
    for batch_size in (N, 5):
        inference, some = kind(model), RowEpoch(epoch.y, epoch.rows, epoch.eps, batch_size)
        inference.initialise(torch.Generator().manual_seed(1))
        inference.start(some, None)
        values.append(sum(total(terms).item() for terms in inference.steps(some)))
    np.testing.assert_allclose(values[1], values[0], rtol=1e-9)


# -- latents without a kernel


@pytest.mark.parametrize("kind", [PosteriorCoding, Global])
def test_terms_of_latents_without_a_kernel(kind: type[Inference]) -> None:
    """Their E -log N(z; 0, I) is in gp_nll and their entropy in neg_entropy: together KL(q(z | y) || N(0, I))."""
    model, epoch = moved("none last")
    inference = kind(model)
    inference.start(epoch, None)
    (terms,) = inference.steps(epoch)
    q = encoded(model, epoch)
    own = torch.distributions.Normal(q.mean[:, 3:], q.stddev[:, 3:])
    np.testing.assert_allclose(terms.neg_entropy.item(), -own.entropy().sum().item(), rtol=1e-10)
    of_weights = inference.posterior().kl() if isinstance(inference, Global) else inference.weights(epoch).kl()
    want = of_weights + torch.distributions.kl_divergence(own, STANDARD).sum() + own.entropy().sum()
    np.testing.assert_allclose(terms.gp_nll.item(), want.item(), rtol=1e-9)


def test_the_encoder_runs_only_where_some_latents_need_it() -> None:
    """Global inference of latents that all have a kernel has no encoder in its path."""
    for groups, calls in ((ORDERS["none last"]()[:2], 0), (ORDERS["none last"](), 1)):
        model = make_model(groups)
        seen: list[int] = []
        model.autoencoder.encoder.register_forward_hook(lambda *call, seen=seen: seen.append(1))
        list(Global(model).steps(make_epoch(model)))
        assert len(seen) == calls


def test_distillation_keeps_the_bound_of_latents_without_a_kernel() -> None:
    """A Gaussian density at the others' means; for these the plain VAE with the others where q(B) puts them."""
    model, epoch = moved("none between")
    start = Global(model)
    start.initialise(torch.Generator().manual_seed(1))
    weights, q = start.weights(epoch), encoded(model, epoch)
    z, value = [], torch.zeros((), dtype=torch.float64)
    for part, m in zip(parts(model, epoch), start.means, strict=True):
        own = torch.distributions.Normal(q.mean[:, part.at], q.stddev[:, part.at])
        if part.kernel is None:
            value = value + torch.distributions.kl_divergence(own, STANDARD).sum()
            z.append(own.mean + own.stddev * epoch.eps[:, part.at])
        else:
            z.append((part.kernel.features(epoch.rows) @ m).detach())
            value = value - own.log_prob(z[-1]).sum()
    value = value + dense_recon(model, epoch.y, torch.cat(z, dim=1))
    (value / N).backward()
    want = {name: gradient for name, gradient in gradients(model).items() if ".encoder." in name}
    inference = Distill(model)
    inference.start(epoch, weights)
    (terms,) = inference.steps(epoch)
    np.testing.assert_allclose(total(terms).item(), value.item(), rtol=1e-10)
    got = gradients(model)
    assert_same_gradients({name: got[name] for name in want}, want)
    assert not any(gradient.any() for name, gradient in got.items() if name.startswith("prior"))


@pytest.mark.parametrize("kind", [Exact, Global])
def test_their_noise_is_no_parameter_to_train(kind: type[Inference]) -> None:
    model, _ = moved("none between")
    groups = parameter_groups(model, kind(model))
    first, none, last = (group.log_alpha for group in model.prior.groups)
    assert [id(p) for p in groups["noise"]] == [id(first), id(last)] and none.item() == 0.0
