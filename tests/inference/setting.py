"""A small problem in float64 for gradients to the last digits: networks, kernel, and epochs with noise per row."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn

from gppvae.data.table import Rows, Table
from gppvae.data.world import ALONE, World
from gppvae.inference.base import Inference, LossTerms
from gppvae.kernels import RBF, Categorical, Constant, FreeForm, Kernel, Learned, Linear, Matern, Periodic
from gppvae.likelihoods import Gaussian
from gppvae.models.gppvae import GPPriorVAE
from gppvae.models.vae import Autoencoder
from gppvae.nets.mlp import MLPDecoder, MLPEncoder
from gppvae.prior.latent_prior import LatentPrior
from gppvae.prior.layout import Layout
from gppvae.training.phases import parameter_groups

N, K, L = 21, 4, 2
PIXEL_VAR = 0.3

KERNELS: dict[str, Callable[[], Kernel]] = {
    "learned * periodic": lambda: 1.7 * Learned("person", 3) * Periodic("angle", 360, lengthscale=0.8),
    "free form * learned + linear": lambda: FreeForm("pose") * Learned("person", 2) + 0.5 * Linear("time"),
    "sum of products": lambda: Learned("person", 2, normalize=True) * RBF("time", lengthscale=0.7) + 0.3 * Constant(),
    "few inducing points": lambda: Learned("person", 2) * Matern("time", lengthscale=0.9, max_inducing=4),
    "few functions": lambda: Learned("person", 2) * RBF("time", lengthscale=0.9, basis="hilbert", max_inducing=5),
    "ids with features of their own": lambda: (
        Linear("time") + 0.8 * Categorical("person") * Matern("time", lengthscale=0.9, max_inducing=4)
    ),
}


def columns(n: int = N, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {
        "person": rng.integers(0, 4, n),
        "pose": rng.choice(["left", "front", "right"], n),
        "angle": rng.choice([0.0, 45.0, 100.0, 250.0], n),
        "time": np.round(rng.normal(size=n), 1),
    }


@dataclass(frozen=True)
class RowBatch:
    """A batch whose noise belongs to its rows, so that it does not change with the batch size."""

    y: Tensor
    rows: Rows
    index: Tensor
    eps: Tensor
    mask: Tensor | None = None
    of: int | None = None  # rows of the batch over all processes
    start: int = 0  # which of those is the first one here
    seed: int = 0

    def __len__(self) -> int:
        return self.index.shape[0]

    @property
    def total(self) -> int:
        return len(self) if self.of is None else self.of

    @property
    def share(self) -> float:
        return len(self) / self.total

    def noise(self, n_latents: int) -> Tensor:
        assert n_latents == self.eps.shape[1]
        return self.eps


@dataclass(frozen=True)
class RowEpoch:
    """An epoch in float64, like the package's to those who iterate it."""

    y: Tensor
    rows: Rows
    eps: Tensor
    batch_size: int
    order: list[int] = field(default_factory=list)
    world: World = ALONE

    @property
    def n_rows(self) -> int:
        return len(self.y)

    @property
    def n_batches(self) -> int:
        return -(-self.n_rows // self.batch_size)

    def batch(self, index: Tensor, of: int | None = None, start: int = 0, seed: int = 0) -> RowBatch:
        return RowBatch(self.y[index], self.rows[index], index, self.eps[index], of=of, start=start, seed=seed)

    def __iter__(self) -> Iterator[RowBatch]:
        order = torch.tensor(self.order) if self.order else torch.arange(self.n_rows)
        for number, index in enumerate(order.split(self.batch_size)):
            part = self.world.part(len(index))
            yield self.batch(index[part], len(index), part.start, number)


def make_model(
    kernel: Kernel | list[tuple[Kernel | None, int]],
    alpha: float = 0.4,
    hidden: tuple[int, ...] = (5,),
    seed: int = 0,
) -> GPPriorVAE:
    """A model in float64 bound to `columns()`, its prior's parameters away from their regular start.

    Args:
        kernel: of all L latents, or of each group of latents.
    """
    torch.manual_seed(seed)
    prior = LatentPrior([(kernel, L)] if isinstance(kernel, Kernel) else kernel, alpha)
    for group in prior.groups:
        group.least_in_blocks = 0
    prior.bind(Table(columns()), torch.Generator().manual_seed(seed))
    with torch.no_grad():
        for parameter in prior.parameters():
            if parameter.ndim == 2 and parameter.requires_grad:
                parameter.add_(0.3 * torch.randn(parameter.shape, dtype=torch.float64))
    n, likelihood = prior.n_latents, Gaussian(PIXEL_VAR, learn=True)
    autoencoder = Autoencoder(MLPEncoder((K,), n, hidden), MLPDecoder((K,), n, hidden), likelihood).double()
    return GPPriorVAE(autoencoder, prior)


def make_epoch(model: GPPriorVAE, batch_size: int = N, seed: int = 0) -> RowEpoch:
    generator = torch.Generator().manual_seed(seed)
    y = torch.randn(N, K, generator=generator, dtype=torch.float64)
    eps = torch.randn(N, model.prior.n_latents, generator=generator, dtype=torch.float64)
    return RowEpoch(y, model.prior.code(Table(columns())), eps, batch_size)


def kernel_of(model: GPPriorVAE) -> Kernel:
    """The kernel of a model whose latents all share one."""
    (kernel,) = model.prior.kernels
    return kernel


def layouts(model: GPPriorVAE, rows: Rows) -> Iterator[str | None]:
    """Sum the rows of every group in every way, one after the other; each time the name of the column."""
    for split in (None, *rows.columns):
        for group in model.prior.groups:
            reads = group.kernel is not None and split in {leaf.key for leaf in group.kernel.leaves()}
            group.layout = Layout(group.kernel, split if reads else None, rows)
        yield split


def total(terms: LossTerms) -> Tensor:
    """The negative bound: the sum of its named terms."""
    return torch.stack([value.cpu() for value in terms.named().values()]).sum()


def gradients(model: nn.Module, *others: nn.Module) -> dict[str, Tensor]:
    """Gradients by name, taken away from the parameters; one that is missing counts as zero."""
    found = {}
    for module in (model, *others):
        for name, parameter in module.named_parameters():
            if parameter.requires_grad:
                found[name] = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
                parameter.grad = None
    return found


def step(optimizer: torch.optim.Optimizer, terms: LossTerms, model: GPPriorVAE, inference: Inference) -> None:
    """As the training loop does it: groups that wait keep their gradients and stay where they are."""
    groups = parameter_groups(model, inference)
    waiting = [parameter for name in terms.waiting for parameter in groups[name]]
    held = [parameter.grad for parameter in waiting]
    for parameter in waiting:
        parameter.grad = None
    optimizer.step()
    optimizer.zero_grad()
    for parameter, gradient in zip(waiting, held, strict=True):
        parameter.grad = gradient


def assert_same_gradients(got: dict[str, Tensor], want: dict[str, Tensor], tolerance: float = 1e-9) -> None:
    assert got.keys() == want.keys()
    for name in want:
        torch.testing.assert_close(
            got[name], want[name], rtol=tolerance, atol=tolerance, msg=lambda text, name=name: f"{name}: {text}"
        )


def dense_covariance(kernel: Kernel, alpha: Tensor, rows: Rows) -> Tensor:
    """K with noise, (N, N); off the diagonal as the features see it, on it the whole prior variance."""
    V = kernel.features(rows)
    low_rank = V @ V.T
    missed = 0.0 if kernel.carries_training_variance else torch.diag(kernel.diag(rows) - low_rank.diagonal())
    return low_rank + missed + alpha * torch.eye(len(rows), dtype=torch.float64)


def dense_expected_nll(cov: Tensor, mean: Tensor, var: Tensor | None) -> Tensor:
    """E -log N(z_l; 0, cov), summed over latent dimensions, by the density of the multivariate normal."""
    normal = torch.distributions.MultivariateNormal(torch.zeros(len(cov), dtype=cov.dtype), cov)
    nll = -normal.log_prob(mean.T).sum()
    return nll if var is None else nll + 0.5 * (var.sum(1) * torch.linalg.inv(cov).diagonal()).sum()


def dense_recon(model: GPPriorVAE, y: Tensor, z: Tensor) -> Tensor:
    """-log p(y | z) by the density of the normal."""
    pixel_std = model.autoencoder.likelihood.pixel_var.sqrt()
    return -torch.distributions.Normal(model.autoencoder.decoder(z), pixel_std).log_prob(y).sum()
