"""Where two ways of fitting must agree: a prior without correlation is the plain VAE."""

import math

import numpy as np
import pytest
import torch

import oracles
from gppvae.inference import INFERENCES, Exact, Global, Independent, Minibatch, PosteriorCoding
from gppvae.kernels import Constant
from inference.setting import KERNELS, assert_same_gradients, gradients, make_epoch, make_model, total

OF_THE_GP_MODEL = ("vae", "fixed", "exact", "minibatch", "posterior", "global", "distill")


def test_plain_vae_against_the_oracle() -> None:
    model = make_model(Constant())
    epoch = make_epoch(model, batch_size=6)
    value = sum(total(terms).item() for terms in Independent(model).steps(epoch))
    with torch.no_grad():
        mean, logvar = model.autoencoder.encoder(epoch.y)
        decoded = model.autoencoder.decoder(mean + (0.5 * logvar).exp() * epoch.eps)
        pixel_var = model.autoencoder.likelihood.pixel_var.item()
    var = np.exp(logvar.numpy())
    want = oracles.vae_nll_bound(epoch.y.numpy(), decoded.numpy(), pixel_var, mean.numpy(), var)
    np.testing.assert_allclose(value, want, rtol=1e-10)


def test_plain_vae_has_no_weights_and_leaves_the_prior_alone() -> None:
    model = make_model(KERNELS["learned * periodic"]())
    epoch = make_epoch(model)
    list(Independent(model).steps(epoch))
    assert Independent(model).weights(epoch) is None
    assert not any(gradient.any() for name, gradient in gradients(model).items() if name.startswith("prior"))


@pytest.mark.parametrize("kind", [Exact, Minibatch])
def test_a_prior_without_correlation_is_the_plain_vae(kind) -> None:
    model = make_model(1e-12 * Constant(), alpha=1.0)
    epoch = make_epoch(model)
    (plain,) = Independent(model).steps(epoch)
    want = {name: gradient for name, gradient in gradients(model).items() if name.startswith("autoencoder")}
    inference = kind(model)
    inference.start(epoch, None)
    (terms,) = inference.steps(epoch)
    got = {name: gradient for name, gradient in gradients(model).items() if name.startswith("autoencoder")}
    for key, value in plain.named().items():
        assert abs(value.item() - terms.named()[key].item()) < 1e-6, key
    assert_same_gradients(got, want, 1e-8)


def test_sampled_term_with_identity_prior_is_the_vae_bound_in_expectation() -> None:
    """The paper's single draw: over many draws its mean is the closed form, and single ones differ."""
    model = make_model(1e-12 * Constant(), alpha=1.0)
    (plain,) = Independent(model).steps(make_epoch(model))
    draws = np.array([next(Exact(model, sampled=True).steps(_redrawn(model, s))).gp_nll.item() for s in range(200)])
    assert draws.std() > 0.1
    assert abs(draws.mean() - plain.gp_nll.item()) < 4.0 * draws.std() / math.sqrt(len(draws))


def _redrawn(model, seed: int):
    epoch = make_epoch(model)
    epoch.eps.copy_(
        torch.randn(epoch.eps.shape, generator=torch.Generator().manual_seed(seed + 1), dtype=torch.float64)
    )
    return epoch


def test_latents_without_a_kernel_are_the_plain_vae() -> None:
    """Every inference that encodes, with no kernel at all."""
    model = make_model([(None, 2)])
    epoch = make_epoch(model)
    found = {}
    for kind in (Independent, Exact, Minibatch, PosteriorCoding, Global):
        inference = kind(model)
        inference.start(epoch, None)
        (terms,) = inference.steps(epoch)
        found[kind.name] = terms.named(), gradients(model)
    for terms, by in found.values():
        for key, value in found["vae"][0].items():
            torch.testing.assert_close(terms[key], value, rtol=1e-12, atol=1e-12, check_dtype=False)
        assert_same_gradients(by, found["vae"][1], 1e-11)


@pytest.mark.parametrize("name", OF_THE_GP_MODEL)
def test_inferences_do_not_own_the_model(name: str) -> None:
    model = make_model(KERNELS["learned * periodic"]())
    inference = INFERENCES[name](model)
    assert inference.name == name
    own = {parameter.data_ptr() for parameter in inference.parameters()}
    assert own.isdisjoint(parameter.data_ptr() for parameter in model.parameters())
    assert not any("model" in key for key in inference.state_dict())
