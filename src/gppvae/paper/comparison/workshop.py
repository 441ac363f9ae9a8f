"""Fits that several methods stand on, each made once and found again in its folder."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import numpy as np
import torch

from gppvae.data.image_set import ImageSet
from gppvae.estimator import GPPVAE, VAE
from gppvae.estimator.base import Estimator
from gppvae.inference.phase import Phase
from gppvae.paper.comparison.setup import Setup, recipe_key
from gppvae.paper.comparison.task import Task
from gppvae.paper.cvae.estimator import CVAE
from gppvae.training.folder import RunFolder

Model = TypeVar("Model", bound=Estimator)


@dataclass(frozen=True)
class Workshop:
    """Where and with what the methods of one comparison are trained.

    Attributes:
        folder: of the experiment; every fit has a folder below it.  task: the data.  setup: shared settings.
        recipe: arguments of the GPPVAE of the global row.  progress: show progress bars.
        folders: of the models that were made or found here.
    """

    folder: Path
    task: Task
    setup: Setup
    recipe: dict[str, Any]
    progress: bool = True
    folders: WeakKeyDictionary[Estimator, Path] = field(default_factory=WeakKeyDictionary, repr=False)

    def seed_folder(self, seed: int) -> Path:
        return self.folder / f"seed{seed}"

    def selection_vae(self, seed: int, pixel_var: float) -> VAE:
        """A VAE trained to choose the trade-off."""
        if self.setup.selects_by_warmup():
            return self.warmup(seed, pixel_var)
        return self._vae(f"select_{pixel_var:g}", seed, pixel_var, self.setup.select_epochs, None)

    def warmup(self, seed: int, pixel_var: float) -> VAE:
        """The VAE that GPPVAE-joint starts from."""
        return self._vae(f"warmup_{pixel_var:g}", seed, pixel_var, self.setup.warmup_epochs, None)

    def vae(self, seed: int, pixel_var: float) -> VAE:
        """The warm-up, trained on for as long as GPPVAE-joint is."""
        start = self.warmup(seed, pixel_var)
        return self._vae(f"vae_{pixel_var:g}", seed, pixel_var, self.setup.epochs, start)

    def cvae(self, seed: int, pixel_var: float, epochs: int) -> CVAE:
        folder = self.seed_folder(seed) / f"cvae_{pixel_var:g}_{epochs}"
        if RunFolder(folder).finished():
            return self._in(folder, CVAE.load(folder))
        setup, train = self.setup, self.task.train
        model = CVAE(
            self.task.view, self.task.period, setup.latent_dim, network=setup.architecture, pixel_var=pixel_var,
            epochs=epochs, lr=setup.network_rate, batch_size=setup.batch_size, average=setup.average, seed=seed,
            **setup.stopping(),
        )  # fmt: skip
        model.fit(train.images, train.table, validation=self._pair(), out=folder, progress=self.progress)
        return self._in(folder, model)

    def gppvae(
        self, name: str, seed: int, pixel_var: float, phases: list[Phase], start: VAE, batch_size: int | None = None
    ) -> GPPVAE:
        """A GPPVAE with the paper's kernel whose networks start as those of `start`."""
        folder, setup, train = self.seed_folder(seed) / name, self.setup, self.task.train
        encoder, decoder = copy.deepcopy((start._autoencoder.encoder, start._autoencoder.decoder))
        if RunFolder(folder).finished():
            return self._in(folder, GPPVAE.load(folder, encoder=encoder, decoder=decoder))
        model = GPPVAE(
            setup.kernel, setup.latent_dim, encoder=encoder, decoder=decoder, pixel_var=pixel_var, alpha=setup.alpha,
            phases=phases, batch_size=batch_size or setup.batch_size, seed=seed, **setup.stopping(),
        )  # fmt: skip
        model.fit(train.images, train.table, validation=self._pair(), out=folder, progress=self.progress)
        return self._in(folder, model)

    def global_(self, seed: int) -> GPPVAE:
        """The GPPVAE of the global row, by its own recipe."""
        folder = self.seed_folder(seed) / f"global_{recipe_key(self.recipe)}"
        if RunFolder(folder).finished():
            return self._in(folder, GPPVAE.load(folder))
        model = GPPVAE(**({"network": self.setup.architecture} | self.recipe), seed=seed, **self.setup.stopping())
        train = self.task.train
        model.fit(train.images, train.table, validation=self._pair(), out=folder, progress=self.progress)
        return self._in(folder, model)

    def default(self, seed: int, name: str, train: ImageSet, further: str = "") -> GPPVAE:
        """A GPPVAE that is given a kernel and nothing else; it chooses without the validation images.

        Args:
            further: terms of the kernel, after a plus.
        """
        folder = self.seed_folder(seed) / name
        if self.setup.default_kernel is None:
            raise ValueError(f"the method {name} needs a kernel, and this experiment names none; leave the method out")
        kernel = self.setup.default_kernel + (f" + {further}" if further else "")
        if RunFolder(folder).finished():
            return self._in(folder, GPPVAE.load(folder))
        model = GPPVAE(kernel, seed=seed).fit(train.images, train.table, out=folder, progress=self.progress)
        return self._in(folder, model)

    def _in(self, folder: Path, model: Model) -> Model:
        self.folders[model] = folder
        return model

    def _pair(self) -> tuple[np.ndarray, Any] | None:
        held = self.task.stop_on
        return None if held is None else (held.images, held.table)

    def _vae(self, name: str, seed: int, pixel_var: float, epochs: int, start: VAE | None) -> VAE:
        folder, setup = self.seed_folder(seed) / name, self.setup
        encoder, decoder = self._networks(start)
        if RunFolder(folder).finished():
            return self._in(folder, VAE.load(folder, encoder=encoder, decoder=decoder))
        model = VAE(
            setup.latent_dim, network=setup.architecture, encoder=encoder, decoder=decoder, pixel_var=pixel_var,
            epochs=epochs, lr=setup.network_rate, batch_size=setup.batch_size, average=setup.average, seed=seed,
            **setup.stopping(),
        )  # fmt: skip
        held = None if self.task.stop_on is None else self.task.stop_on.images
        model.fit(self.task.train.images, validation=held, out=folder, progress=self.progress)
        return self._in(folder, model)

    def _networks(self, start: VAE | None) -> tuple[torch.nn.Module | None, torch.nn.Module | None]:
        if start is None:
            return None, None
        return copy.deepcopy((start._autoencoder.encoder, start._autoencoder.decoder))


def encoded(model: VAE, part: ImageSet) -> tuple[np.ndarray, np.ndarray]:
    """Mean and variance of q(z | y) of a part's images, (N, L) each."""
    mean, std = model.encode(part.images, return_std=True)
    return mean, std**2


@torch.no_grad()
def decoded(model: VAE, z: np.ndarray) -> np.ndarray:
    """Images (n, channels, height, width) of latents."""
    autoencoder = model._autoencoder
    latents = torch.from_numpy(np.asarray(z, dtype=np.float32))
    return autoencoder.likelihood.mean(autoencoder.decode(latents.to(model._torch_device()))).cpu().numpy()


def seconds_of(model: VAE | CVAE | GPPVAE) -> float:
    """Wall time of a fit, from its log."""
    return float(model.history_[-1]["seconds"]) if model.history_ else 0.0
