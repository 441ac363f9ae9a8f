"""What mini-batch inference and posterior coding share: what steps when, and on which gradient."""

import pytest
import torch

from gppvae.data.table import Table
from gppvae.inference import Minibatch, PosteriorCoding
from gppvae.inference.running import RunningInference
from gppvae.models.gppvae import GPPriorVAE
from inference.setting import KERNELS, K, L, RowEpoch, at_once, columns, gradients, make_model

SLOW, QUICK = "kernel.right.base.raw_lengthscale", "kernel.left.kernel.x"
both = pytest.mark.parametrize("kind", [Minibatch, PosteriorCoding])


def prepared(kind: type[RunningInference], n: int) -> tuple[GPPriorVAE, RowEpoch, RunningInference]:
    """An epoch of n batches of one row."""
    model = make_model(KERNELS["learned * periodic"]())
    generator = torch.Generator().manual_seed(0)
    y, eps = (torch.randn(n, width, generator=generator, dtype=torch.float64) for width in (K, L))
    epoch = RowEpoch(y, model.kernel.code(Table(columns(n))), eps, 1)
    inference = kind(model)
    inference.start(epoch, None)
    return model, epoch, inference


@pytest.mark.parametrize(
    ("kind", "n", "together", "conditioned"),
    [
        (Minibatch, 7, 1, 1),
        (Minibatch, 21, 2, 2),
        (Minibatch, 32, 4, 4),
        (Minibatch, 63, 4, 4),
        (Minibatch, 70, 4, 8),
        (PosteriorCoding, 3, 3, 3),
        (PosteriorCoding, 21, 4, 4),
        (PosteriorCoding, 70, 4, 4),
    ],
)
def test_when_what_steps(
    kind: type[RunningInference], n: int, together: int, conditioned: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Networks with every batch, the prior after some, q(B) after some of these; what is left joins the last.

    Posterior coding steps the encoder with the prior.
    """
    model, epoch, inference = prepared(kind, n)
    stepped: list[set[str]] = []
    seen_at, given = [], inference.given
    monkeypatch.setattr(inference, "given", lambda e: seen_at.append(len(stepped)) or given(e))
    for _ in inference.steps(epoch):
        stepped.append({name for name, parameter in model.named_parameters() if parameter.grad is not None})
        gradients(model)
    everything = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    parts = ("autoencoder.decoder", "autoencoder.likelihood")
    always = {name for name in everything if name.startswith(parts if kind is PosteriorCoding else "autoencoder")}
    assert 0 < len(always) < len(everything)
    ends = {*range(together - 1, n - n % together - 1, together), n - 1}
    assert stepped == [everything if number in ends else always for number in range(n)]
    assert seen_at == [conditioned * time for time in range(n // conditioned)]


def test_the_prior_steps_on_the_mean_gradient() -> None:
    model, epoch, inference = prepared(Minibatch, 34)  # the last two join four others
    given, batches = inference.given(epoch), list(epoch)
    alone = []
    for batch in batches:
        at_once(inference, given, [batch], epoch)
        alone.append({name: gradient for name, gradient in gradients(model).items() if name in (SLOW, QUICK)})
    inference.given = lambda epoch: given  # type: ignore[method-assign]
    steps = [gradients(model) for _ in inference.steps(epoch)]
    for name in (SLOW, QUICK):
        assert alone[0][name].abs().max() > 1e-6
        for end, first in ((3, 0), (7, 4), (33, 28)):
            want = sum(one[name] for one in alone[first : end + 1]) / (end + 1 - first)
            torch.testing.assert_close(steps[end][name], want, rtol=1e-10, atol=1e-12)


@both
def test_an_epoch_that_is_left_early_lets_go(kind: type[RunningInference]) -> None:
    model, epoch, inference = prepared(kind, 32)
    steps = inference.steps(epoch)
    next(steps)
    assert any(leaf.holds for leaf in model.kernel.leaves())
    steps.close()
    assert not any(leaf.holds or leaf.kept is not None for leaf in model.kernel.leaves())
    before = model.kernel.features(epoch.rows).dense().detach().clone()
    with torch.no_grad():
        model.get_parameter(SLOW).add_(0.5)
    assert (model.kernel.features(epoch.rows).dense() - before).abs().max() > 0.01
