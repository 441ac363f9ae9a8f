"""What a step costs: Cholesky factors of rank or inducing-point size only, and no tensor with N x N elements, ever."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from gppvae.data.arrays import Samples
from gppvae.data.batches import Epoch
from gppvae.data.table import Table
from gppvae.inference import INFERENCES, Exact, Global, Inference, Minibatch, PosteriorCoding
from gppvae.inference.minibatch import REFRESHES_PER_EPOCH
from gppvae.inference.posterior_coding import BATCHES_PER_STEP
from gppvae.kernels import Learned, Periodic
from gppvae.likelihoods import Gaussian
from gppvae.models.gppvae import GPPriorVAE
from gppvae.models.predict import decode_draws, decode_mean, latents_at, row_chunks
from gppvae.models.vae import Autoencoder
from gppvae.nets.mlp import MLPDecoder, MLPEncoder
from gppvae.prior.latent_prior import LatentPrior

N, K, L, BATCH = 1500, 12, 3, 64
INDUCING, DIM = 8, 4
RANK = INDUCING * DIM
OF_THE_GP_MODEL = ("vae", "fixed", "exact", "minibatch", "posterior", "global", "distill")


class NoLargeTensors(TorchDispatchMode):
    """Fails on any operation whose result has as many elements as an N x N matrix."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor) and tensor.numel() >= N * N:
                raise AssertionError(f"{func} made a tensor of shape {tuple(tensor.shape)} for {N} rows")
        return result


@pytest.fixture
def setting() -> tuple[GPPriorVAE, Epoch]:
    rng = np.random.default_rng(0)
    table = Table({"person": rng.integers(0, 60, N), "angle": rng.integers(0, INDUCING, N) * 40.0})
    prior = LatentPrior([(Learned("person", DIM) * Periodic("angle", 360), L), (None, 1)])
    prior.bind(table, torch.Generator().manual_seed(0))
    autoencoder = Autoencoder(MLPEncoder((K,), L + 1, (16,)), MLPDecoder((K,), L + 1, (16,)), Gaussian(0.1))
    rows = prior.code(table)
    prior.plan(rows, BATCH)
    assert prior.groups[0].rank == RANK and prior.groups[0].layout.split == "angle"
    samples = Samples(rng.normal(size=(N, K)).astype(np.float32))
    return GPPriorVAE(autoencoder, prior), Epoch(samples, rows, BATCH, 0, torch.device("cpu"))


@pytest.fixture
def cholesky_sizes(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    sizes: list[int] = []
    factor = torch.linalg.cholesky

    def counted(A: torch.Tensor, **options: Any) -> torch.Tensor:
        sizes.append(A.shape[-1])
        return factor(A, **options)

    monkeypatch.setattr(torch.linalg, "cholesky", counted)
    for name in ("inv", "inv_ex", "solve", "eigh", "svd", "pinv", "cholesky_ex", "lu_factor"):
        monkeypatch.setattr(torch.linalg, name, _forbidden(name))
    monkeypatch.setattr(torch, "inverse", _forbidden("inverse"))
    yield sizes


def _forbidden(name: str):
    def fail(*args: Any, **kwargs: Any) -> None:
        raise AssertionError(f"torch.linalg.{name} was called; nothing is inverted or decomposed but by Cholesky")

    return fail


def one_epoch(inference: Inference, epoch: Epoch) -> int:
    return sum(1 for _ in inference.steps(epoch))


def test_guard_sees_a_large_matrix() -> None:
    with NoLargeTensors(), pytest.raises(AssertionError, match="made a tensor of shape"):
        V = torch.ones(N, 2)
        V @ V.T
    with NoLargeTensors():
        weights = torch.ones(N, 1, requires_grad=True)
        loss = (weights * torch.ones(1, N - 1)).sum()
        assert loss.item() == N * (N - 1)


@pytest.mark.parametrize("name", OF_THE_GP_MODEL)
def test_no_inference_forms_an_n_by_n_tensor(name: str, setting: tuple[GPPriorVAE, Epoch]) -> None:
    model, epoch = setting
    inference = INFERENCES[name](model)
    with NoLargeTensors():
        inference.start(epoch, Global(model).weights(epoch))
        assert one_epoch(inference, epoch) in (1, epoch.n_batches)
        inference.weights(epoch)


def test_prediction_forms_no_n_by_n_tensor(setting: tuple[GPPriorVAE, Epoch]) -> None:
    model, epoch = setting
    weights = Exact(model).weights(epoch)
    generator = torch.Generator().manual_seed(0)
    draws = [weights.sample(generator)]
    with NoLargeTensors(), torch.no_grad():
        for rows in row_chunks(epoch.rows):
            decode_mean(model, weights, rows)
            list(decode_draws(model, draws, rows, generator))
        assert latents_at(model, weights, epoch.rows).mean.shape == (N, L + 1)


def factored(sizes: list[int]) -> dict[int, int]:
    """How often which size; latents without a kernel have none."""
    return {size: sizes.count(size) for size in set(sizes) if size}


def test_one_exact_step_factors_the_capacitance_once(
    setting: tuple[GPPriorVAE, Epoch], cholesky_sizes: list[int]
) -> None:
    model, epoch = setting
    assert one_epoch(Exact(model), epoch) == 1
    assert factored(cholesky_sizes) == {RANK: 1, INDUCING: 1}  # the kernel's own factor once too, for all batches


@pytest.mark.parametrize(
    ("kind", "conditioned"),
    [(Minibatch, REFRESHES_PER_EPOCH), (PosteriorCoding, 24 // BATCHES_PER_STEP)],
)
def test_one_epoch_of_batches_factors_the_capacitance_a_few_times(
    setting: tuple[GPPriorVAE, Epoch], cholesky_sizes: list[int], kind: type[Inference], conditioned: int
) -> None:
    model, epoch = setting
    inference = kind(model)
    inference.start(epoch, None)
    cholesky_sizes.clear()
    assert one_epoch(inference, epoch) == epoch.n_batches == 24
    found = factored(cholesky_sizes)
    assert found.keys() == {RANK, INDUCING}
    assert found[RANK] == conditioned < epoch.n_batches
    # The kernel's own factor is small: once per batch, and for the sums of all rows.
    assert found[INDUCING] <= epoch.n_batches + 2 * found[RANK]


def test_prediction_factors_inducing_points_only(setting: tuple[GPPriorVAE, Epoch], cholesky_sizes: list[int]) -> None:
    model, epoch = setting
    weights = Exact(model).weights(epoch)
    cholesky_sizes.clear()
    decode_mean(model, weights, epoch.rows[:100])
    assert factored(cholesky_sizes) == {INDUCING: 1}


def test_statistics_do_not_grow_with_the_rows(setting: tuple[GPPriorVAE, Epoch]) -> None:
    model, epoch = setting
    inference = Minibatch(model)
    inference.start(epoch, None)
    first, second = inference.running.current()
    assert first.outer.shape == (INDUCING, DIM, DIM + L) and second.outer.shape == (1, 0, 1)
