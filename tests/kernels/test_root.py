"""Features of the anchors, against the formula for any other value and against finite differences."""

import numpy as np
import pytest
import torch
from gppvae.kernels.root import root_at_anchors


def covariance(size: int, seed: int = 0) -> torch.Tensor:
    x = np.random.default_rng(seed).normal(size=(size, 3))
    return torch.from_numpy(x @ x.T / 3 + 0.5 * np.eye(size))


@pytest.mark.parametrize("nugget", [1e-8, 0.3])
@pytest.mark.parametrize("size", [1, 4])
def test_value_and_gradient(size: int, nugget: float) -> None:
    K = covariance(size)
    lower = np.linalg.cholesky(K.numpy() + nugget * np.eye(size))
    np.testing.assert_allclose(
        root_at_anchors(K, nugget).numpy(), np.linalg.solve(lower, K.numpy()).T, rtol=1e-10, atol=1e-14
    )
    raw = K.clone().requires_grad_()  # along symmetric changes: no other K comes from a kernel
    assert torch.autograd.gradcheck(lambda raw: root_at_anchors(0.5 * (raw + raw.T), nugget), (raw,))


def test_gradient_of_a_nearly_singular_covariance_is_that_of_autograd() -> None:
    x = torch.linspace(0.0, 1.0, 12, dtype=torch.float64)
    weight = torch.from_numpy(np.random.default_rng(1).normal(size=(12, 12)))

    def squared_exponential(scale: torch.Tensor) -> torch.Tensor:
        return (-(((x[:, None] - x[None, :]) / scale) ** 2)).exp()

    found, want = (torch.tensor(0.5, dtype=torch.float64, requires_grad=True) for _ in range(2))
    (root_at_anchors(squared_exponential(found), 1e-8) * weight).sum().backward()
    K = squared_exponential(want)
    lower = torch.linalg.cholesky(K + 1e-8 * torch.eye(12, dtype=torch.float64))
    (torch.linalg.solve_triangular(lower, K, upper=False).T * weight).sum().backward()
    assert found.grad is not None and want.grad is not None
    np.testing.assert_allclose(found.grad.item(), want.grad.item(), rtol=1e-6)
