"""What mini-batch inference and posterior coding share: when parts of the kernel step, and on which gradient."""

import pytest
import torch
from torch import Tensor

from gppvae.inference import Minibatch, PosteriorCoding
from gppvae.inference.running import BATCHES_HELD, RunningInference
from gppvae.models.gppvae import GPPriorVAE
from inference.setting import KERNELS, RowEpoch, at_once, make_epoch, make_model

SLOW, QUICK = "kernel.right.base.raw_lengthscale", "kernel.left.kernel.x"
both = pytest.mark.parametrize("kind", [Minibatch, PosteriorCoding])


def prepared(kind: type[RunningInference], batch_size: int) -> tuple[GPPriorVAE, RowEpoch, RunningInference]:
    model = make_model(KERNELS["learned * periodic"]())
    epoch = make_epoch(model, batch_size)
    inference = kind(model)
    inference.start(epoch, None)
    return model, epoch, inference


def taken(model: GPPriorVAE) -> dict[str, Tensor | None]:
    """Gradients of the two parameters, taken away from them."""
    found = {}
    for name in (SLOW, QUICK):
        parameter = model.get_parameter(name)
        found[name], parameter.grad = parameter.grad, None
    return found


def test_slow_parts_step_on_the_mean_gradient_of_some_batches() -> None:
    model, epoch, inference = prepared(Minibatch, batch_size=4)  # 6 batches: 4 and 2 are held together
    given = inference.given(epoch)
    alone = []
    for batch in epoch:
        at_once(inference, given, [batch], epoch)
        alone.append(taken(model)[SLOW])
    inference.given = lambda epoch: given  # type: ignore[method-assign]
    steps = [taken(model) for _ in inference.steps(epoch)]
    assert BATCHES_HELD == 4 and len(steps) == 6
    assert [step[SLOW] is not None for step in steps] == [False, False, False, True, False, True]
    assert all(step[QUICK] is not None for step in steps)
    torch.testing.assert_close(steps[3][SLOW], sum(alone[:4]) / 4, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(steps[5][SLOW], sum(alone[4:]) / 2, rtol=1e-10, atol=1e-12)


@both
def test_an_epoch_that_is_left_early_lets_go(kind: type[RunningInference]) -> None:
    model, epoch, inference = prepared(kind, batch_size=4)
    steps = inference.steps(epoch)
    next(steps)
    assert any(leaf.holds for leaf in model.kernel.leaves())
    steps.close()
    assert not any(leaf.holds or leaf.kept is not None for leaf in model.kernel.leaves())
    before = model.kernel.features(epoch.rows).dense().detach().clone()
    with torch.no_grad():
        model.get_parameter(SLOW).add_(0.5)
    assert (model.kernel.features(epoch.rows).dense() - before).abs().max() > 0.01
