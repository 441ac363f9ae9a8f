"""What a step costs: Cholesky factors of rank or anchor size only, and no tensor with N x N elements, ever."""

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
from gppvae.inference.running import RunningInference
from gppvae.kernels import Learned, Periodic
from gppvae.likelihoods import Gaussian
from gppvae.models.gppvae import GPPriorVAE
from gppvae.models.predict import decode_draws, decode_mean, latents_at, row_chunks
from gppvae.models.vae import Autoencoder
from gppvae.nets.mlp import MLPDecoder, MLPEncoder

N, K, L, BATCH = 1500, 12, 3, 64
ANCHORS, DIM = 8, 4
RANK = ANCHORS * DIM
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
    table = Table({"person": rng.integers(0, 60, N), "angle": rng.integers(0, ANCHORS, N) * 40.0})
    kernel = Learned("person", DIM) * Periodic("angle", 360)
    kernel.bind(table, torch.Generator().manual_seed(0))
    autoencoder = Autoencoder(MLPEncoder((K,), L, (16,)), MLPDecoder((K,), L, (16,)), Gaussian(0.1))
    model = GPPriorVAE(autoencoder, kernel, 0.1, L)
    rows = kernel.code(table)
    model.split = kernel.best_split(rows)
    assert kernel.rank == RANK and model.split == "angle"
    samples = Samples(rng.normal(size=(N, K)).astype(np.float32))
    return model, Epoch(samples, rows, BATCH, 0, torch.device("cpu"))


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
        for _, rows in row_chunks(epoch.rows):
            decode_mean(model, weights, rows)
            list(decode_draws(model, draws, rows, generator))
        assert latents_at(model, weights, epoch.rows).mean.shape == (N, L)


def test_one_exact_step_factors_the_capacitance_once(
    setting: tuple[GPPriorVAE, Epoch], cholesky_sizes: list[int]
) -> None:
    model, epoch = setting
    assert one_epoch(Exact(model), epoch) == 1
    assert sorted(cholesky_sizes) == sorted([RANK, ANCHORS])  # the kernel's own factor once too, for all batches


@pytest.mark.parametrize("kind", [Minibatch, PosteriorCoding])
def test_one_epoch_of_batches_factors_the_capacitance_a_few_times(
    setting: tuple[GPPriorVAE, Epoch], cholesky_sizes: list[int], kind: type[RunningInference]
) -> None:
    model, epoch = setting
    inference = kind(model)
    inference.start(epoch, None)
    cholesky_sizes.clear()
    assert one_epoch(inference, epoch) == epoch.n_batches
    assert set(cholesky_sizes) == {RANK, ANCHORS}
    assert 1 <= cholesky_sizes.count(RANK) < 2 * REFRESHES_PER_EPOCH


def test_prediction_factors_anchors_only(setting: tuple[GPPriorVAE, Epoch], cholesky_sizes: list[int]) -> None:
    model, epoch = setting
    weights = Exact(model).weights(epoch)
    cholesky_sizes.clear()
    decode_mean(model, weights, epoch.rows[:100])
    assert set(cholesky_sizes) == {ANCHORS}


def test_statistics_do_not_grow_with_the_rows(setting: tuple[GPPriorVAE, Epoch]) -> None:
    model, epoch = setting
    inference = Minibatch(model)
    inference.start(epoch, None)
    outer = inference.running.current().outer
    assert outer.shape == (ANCHORS, DIM, DIM + L)
