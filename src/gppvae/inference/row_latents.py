"""Posterior of the latents of rows given partly observed samples, and of the missing values.

For one row, with the GP's prediction N(m, S) of its latents (S diagonal, latent noise included) as prior:

    p(z | row, y_o)  ~  p(y_o | g(z)) N(z; m, S)

Its mode is found by damped Gauss-Newton steps through the decoder g, its covariance is that of Laplace's approximation.
At rows of added objects, errors r are carried over to the mean g(z) + r, and what is unknown of them has u times the
variance of the noise. Taken to be distributed over the values as the noise is, it makes that 1 + u times as large.
If the noise of values has a covariance Psi, a missing value also depends on the residuals of the observed ones:

    E y_m = g_m + r_m + G (y_o - g_o - r_o),   G = Psi_mo Psi_oo^-1
    Var y_m = A Sigma A' + (1 + u) (Psi_mm - G Psi_om),   A = J_m - G J_o,   J the Jacobian of g at the mode

Source: docs/math.md, "What is missing in a sample".
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
from torch import Tensor

from gppvae.inference.observation_weight import HiddenValues
from gppvae.likelihoods import Likelihood
from gppvae.models.curvature import jacobian
from gppvae.models.refine import Quadratic, levenberg_marquardt
from gppvae.models.vae import Autoencoder
from gppvae.prior.linalg import inverse_root, matvec, steady_cholesky

LEAST_VARIANCE = 1e-12
STEPS = 8


@dataclass(frozen=True)
class Observed:
    """Partly observed samples of some rows, and the GP's prediction of their latents.

    Attributes:
        y: samples, 0 where not observed, (B, *shape).  mask: True where observed.  sizes: of counts, (B,) or None.
        mean, var: of z as the GP predicts it, (B, L) float64 each.
        carried: r, errors carried over to the rows, (B, *shape).  unsure: u, (B,).  None for no errors.
    """

    y: Tensor
    mask: Tensor
    sizes: Tensor | None
    mean: Tensor
    var: Tensor
    carried: Tensor | None = None
    unsure: Tensor | None = None


@dataclass(frozen=True)
class Filled:
    """Moments of all values of the rows given the observed ones, (B, *shape) each.

    Attributes:
        mean: of the values.  var: due to the latents and to errors carried over.  noise: variance of the noise of
            values.
    """

    mean: Tensor
    var: Tensor
    noise: Tensor


class RowLatents:
    """Posterior of the latents of some rows: mode `z`, (B, L), and `root` with root root' its covariance.

    Args:
        autoencoder: fitted.  likelihood: of the values, with measured noise.
        known: what was observed.
        noise: Psi, (K, K) float64, for vectors; None for the variances of the likelihood.
        starts: further starts of the search, (B, L) each; each row starts at the best one.
        weight: of the observed values against the GP's prediction (observation_weight.py).
        steps: Gauss-Newton steps.
    Cost: per step L forward-mode passes of the decoder, and O(B L^2 (K + L)); with Psi O(B K^2 (K + L)) as well.
    """

    def __init__(
        self,
        autoencoder: Autoencoder,
        likelihood: Likelihood,
        known: Observed,
        noise: Tensor | None = None,
        starts: tuple[Tensor, ...] = (),
        weight: float = 1.0,
        steps: int = STEPS,
    ) -> None:
        self.autoencoder, self.likelihood, self.known, self.noise = autoencoder, likelihood, known, noise
        self.seen = known.mask.flatten(1)  # (B, K)
        self.carried = torch.zeros_like(known.y) if known.carried is None else known.carried
        self.unsure = torch.zeros_like(known.mean[:, 0]) if known.unsure is None else known.unsure
        # (1 + u) times the noise has the same gradients as 1 / (1 + u) of the log likelihood, (B,).
        self.power, self.precision = min(weight, 1.0) / (1.0 + self.unsure), 1.0 / (known.var * max(weight, 1.0))
        self.root_noise: Tensor | None = None
        if noise is not None:
            pairs = self.seen.unsqueeze(1) & self.seen.unsqueeze(2)  # (B, K, K)
            own = torch.diag_embed((~self.seen).to(noise))  # missing values: independent, with variance 1
            self.root_noise = torch.linalg.cholesky(torch.where(pairs, noise, 0.0) + own)  # (B, K, K)
        with torch.no_grad():
            start = self._best((known.mean, *starts))
            self.z, around = levenberg_marquardt(self._quadratic, start, steps, until_converged=False)
            self.root = inverse_root(steady_cholesky(around.curvature))

    # -- the mode

    def _best(self, starts: tuple[Tensor, ...]) -> Tensor:
        """The start with the least loss, row by row, (B, L)."""
        z = starts[0]
        loss = self._loss(z, self._decode(z))
        for start in starts[1:]:
            tried = self._loss(start, self._decode(start))
            better = tried < loss
            z, loss = torch.where(better[:, None], start, z), torch.where(better, tried, loss)
        return z

    def _loss(self, z: Tensor, out: Tensor) -> Tensor:
        """-log posterior up to a constant, (B,); `out` is the decoder's output at z."""
        known = self.known
        prior = 0.5 * ((z - known.mean).square() * self.precision).sum(1)
        if self.root_noise is None:
            nll = self.likelihood.nll(known.y - self.carried, out, known.mask)
        else:
            nll = 0.5 * self._whitened(self._residual(out).unsqueeze(2)).square().sum((1, 2))
        return prior + self.power * nll.to(prior)

    def _quadratic(self, z: Tensor) -> Quadratic:
        """The loss around z, with its Gauss-Newton curvature."""
        out, jacobian = self._decode(z), self._jacobian(z) * self.seen.unsqueeze(1)  # (B, L, K)
        residual = self._residual(out)
        if self.root_noise is None:
            # A probability of exactly 0 or 1 has variance 0, and derivative 0: avoid 0 / 0.
            std = self.likelihood.variance(out).clamp_min(LEAST_VARIANCE).sqrt().expand_as(self.known.y).flatten(1)
            jacobian, residual = jacobian / std.unsqueeze(1), residual / std
        else:
            jacobian = self._whitened(jacobian.to(self.root_noise).transpose(1, 2)).transpose(1, 2)  # (B, L, K)
            residual = self._whitened(residual.unsqueeze(2)).squeeze(2)  # Psi_oo^(-1/2) (y - g), (B, K)
        seen = self.power[:, None, None] * (jacobian @ jacobian.transpose(1, 2)).to(z)
        curvature = seen + torch.diag_embed(self.precision)
        pull = self.power[:, None] * matvec(jacobian, residual).to(z)  # gradient of the log likelihood, (B, L)
        return Quadratic(self._loss(z, out), self.precision * (z - self.known.mean) - pull, curvature)

    def _whitened(self, x: Tensor) -> Tensor:
        assert self.root_noise is not None
        return torch.linalg.solve_triangular(self.root_noise, x.to(self.root_noise), upper=False)

    def _residual(self, out: Tensor) -> Tensor:
        """y - E y where observed, 0 elsewhere, (B, K)."""
        error = (self.known.y - self._mean(out)).flatten(1)
        return torch.where(self.seen, error, torch.zeros_like(error))

    def _mean(self, out: Tensor) -> Tensor:
        """g + r, (B, *shape)."""
        return self.likelihood.mean(out) + self.carried

    def _decode(self, z: Tensor) -> Tensor:
        return self.autoencoder.decode(z, self.known.sizes)

    def _jacobian(self, z: Tensor) -> Tensor:
        """d E y / d z, transposed, (B, L, K)."""
        return jacobian(lambda at: self.likelihood.mean(self._decode(at)), self.autoencoder.for_decoder(z))

    # -- choosing the weight of observed values

    @torch.no_grad()
    def linearised(self, row: Tensor, y: Tensor, hidden: Tensor, columns: Tensor) -> HiddenValues:
        """The decoder linearised at the GP's prediction, to score weights by their predictions of hidden values.

        Args:
            row: numbers of the rows, (B,).  y: samples with the hidden values.  hidden: mask of these, (B, *shape).
            columns: values that count in the score, (C,).
        """
        z = self.known.mean
        out, jacobian = self._decode(z), self._jacobian(z)
        std = self.likelihood.variance(out).clamp_min(LEAST_VARIANCE).sqrt().expand_as(y).flatten(1)
        std = std * (1.0 + self.unsure.unsqueeze(1)).sqrt().to(std)
        jacobian = jacobian / std.unsqueeze(1)
        visible, residual = jacobian * self.seen.unsqueeze(1), (y - self._mean(out)).flatten(1) / std
        pull = matvec(visible, residual * self.seen)
        return HiddenValues(
            row=row,
            var=self.known.var,
            curvature=(visible @ visible.transpose(1, 2)).to(z),
            pull=pull.to(z),
            jacobian=jacobian[:, :, columns].to(z),
            residual=residual[:, columns].to(z),
            hidden=hidden.flatten(1)[:, columns],
        )

    # -- the values given the mode

    @functools.cached_property
    def _gain(self) -> Tensor | None:
        """G, the regression of every value's noise on the residuals of observed values, (B, K, K)."""
        if self.noise is None or self.root_noise is None:
            return None
        to_observed = self.noise * self.seen.unsqueeze(2)  # Psi_o., rows of missing values 0, (B, K, K)
        return torch.cholesky_solve(to_observed, self.root_noise).transpose(1, 2) * self.seen.unsqueeze(1)

    @torch.no_grad()
    def mean(self) -> Tensor:
        """All values at the mode, (B, *shape)."""
        out = self._decode(self.z)
        mean = self._mean(out)
        return mean if self._gain is None else self._with_residual(mean, out)

    @torch.no_grad()
    def moments(self) -> Filled:
        """Mean and variances of all values; with Psi, observed values are reproduced, with variance 0."""
        out, jacobian = self._decode(self.z), self._jacobian(self.z)
        mean = self._mean(out)
        if self._gain is None or self.noise is None:
            spread = (jacobian.transpose(1, 2) @ self.root.to(jacobian)).square().sum(2)  # diag(J Sigma J'), (B, K)
            noise = self.likelihood.variance(out).expand_as(mean)
            return Filled(mean, spread.view_as(mean) + self._per_sample(self.unsure, noise) * noise, noise)
        A = jacobian.to(self.z).transpose(1, 2)  # (B, K, L)
        A = A - self._gain @ (A * self.seen.unsqueeze(2))  # J_m - G J_o
        left = (self.noise.diagonal() - (self._gain * self.noise).sum(2)).clamp_min(0.0)  # Psi_mm - G Psi_om, (B, K)
        parts = (A @ self.root).square().sum(2) + self.unsure.unsqueeze(1) * left, left
        return Filled(self._with_residual(mean, out), *(part.to(mean).view_as(mean) for part in parts))

    def _with_residual(self, mean: Tensor, out: Tensor) -> Tensor:
        assert self._gain is not None
        rest = matvec(self._gain, self._residual(out).to(self._gain))
        return mean + rest.to(mean).view_as(mean)

    @torch.no_grad()
    def draw(self, generator: torch.Generator, include_noise: bool) -> Tensor:
        """One draw of all values given the observed ones, (B, *shape)."""
        eps = torch.randn(self.z.shape, generator=generator, dtype=self.z.dtype).to(self.z.device)
        out = self._decode(self.z + matvec(self.root, eps))
        mean, size = self._mean(out), self.unsure + float(include_noise)  # of what is added, relative to the noise
        if self._gain is not None:
            mean = self._with_residual(mean, out)
        if not size.any():
            return mean
        if self._gain is None or self.noise is None:
            var = self.likelihood.variance(out).expand_as(mean)
            return self.likelihood.noisy(mean, self._per_sample(size, var) * var, generator)
        eps = torch.randn(self.seen.shape, generator=generator, dtype=self.z.dtype).to(self.z.device)
        noise = eps @ torch.linalg.cholesky(self.noise).T
        noise = noise - matvec(self._gain, noise * self.seen)  # eps_m - G eps_o has the conditional covariance
        return mean + (size.sqrt().unsqueeze(1) * noise).to(mean).view_as(mean)

    @staticmethod
    def _per_sample(numbers: Tensor, like: Tensor) -> Tensor:
        """(B,) -> (B, 1, ...), to multiply samples."""
        return numbers.to(like).reshape(-1, *(1 for _ in like.shape[1:]))
