"""Phases as data: the inference, the trained parameter groups, their learning rates and the number of epochs."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gppvae.inference.base import Inference

GROUPS = ("encoder", "decoder", "prior", "noise", "weights")


@dataclass(frozen=True)
class Phase:
    """One stretch of training.

    Attributes:
        name: for logs.
        inference: a class, or the name of one of the package's own (see gppvae.inference.INFERENCES).
        epochs: passes over the data.
        lr: learning rate of each trained parameter group; the others are fixed. Groups: encoder, decoder (with the
            likelihood), prior (the kernels), noise (alpha), weights (of q(B), where they are learned).
        decay: "constant", or "cosine" to zero over the phase.
        warmup: share of the phase in which the rate rises linearly.
        weight_decay: of the networks, decoupled from the gradient as in AdamW.
        average: decay of a running average of the parameters, which replaces them at the end (0: none).
        options: further arguments of the inference.
        held_out: whether rows held out to measure errors stay out of this phase; errors are measured at its end.
        restart: whether the model is reset to the start of the fit.
        until_best: whether it ends after the number of epochs at which the phase with rows held out had its least error
            there; zero if the start was best.

    Example:
        >>> from gppvae import Phase
        >>> phase = Phase("joint", "minibatch", epochs=40, lr={"encoder": 1e-3, "decoder": 1e-3}, decay="cosine")
        >>> phase.rate(0.0), phase.rate(0.5)
        (1.0, 0.5)
    """

    name: str
    inference: str | type[Inference]
    epochs: int
    lr: dict[str, float]
    decay: str = "constant"
    warmup: float = 0.0
    weight_decay: float = 0.0
    average: float = 0.0
    options: dict[str, Any] = field(default_factory=dict)
    held_out: bool = False
    restart: bool = False
    until_best: bool = False

    def __post_init__(self) -> None:
        for name in ("lr", "options"):
            if not isinstance(getattr(self, name), dict):
                raise TypeError(f"phase {self.name!r} needs a dict for {name}, got {getattr(self, name)!r}")
        unknown = [group for group in self.lr if group not in GROUPS]
        if unknown:
            raise ValueError(f"phase {self.name!r} can train {', '.join(GROUPS)}, got {unknown}; correct its lr")
        if not self.lr:
            raise ValueError(f"phase {self.name!r} must train at least one of {', '.join(GROUPS)}, got none")
        for group, rate in self.lr.items():
            if not (isinstance(rate, (int, float)) and 0.0 <= rate <= MAX_RATE):
                raise ValueError(
                    f"phase {self.name!r} needs a learning rate from 0 to {MAX_RATE:g} for {group}, got {rate!r}"
                )
        if isinstance(self.epochs, bool) or not isinstance(self.epochs, int) or self.epochs < 0:
            raise ValueError(f"phase {self.name!r} needs whole epochs of at least 0, got {self.epochs!r}")
        for name, most in (("warmup", 1.0), ("average", 1.0), ("weight_decay", math.inf)):
            value = getattr(self, name)
            if not (isinstance(value, (int, float)) and 0.0 <= value < most):
                raise ValueError(f"phase {self.name!r} needs {name} of at least 0 and below {most:g}, got {value!r}")
        for name in ("held_out", "restart", "until_best"):
            if not isinstance(getattr(self, name), bool):
                raise TypeError(f"phase {self.name!r} needs True or False for {name}, got {getattr(self, name)!r}")
        if self.decay not in ("constant", "cosine"):
            raise ValueError(f"phase {self.name!r}: decay must be 'constant' or 'cosine', got {self.decay!r}")

    def rate(self, progress: float) -> float:
        """Factor on the learning rates at `progress` in [0, 1) through the phase."""
        if progress < self.warmup:
            return (progress + 1e-3) / self.warmup
        return 1.0 if self.decay == "constant" else 0.5 * (1.0 + math.cos(math.pi * progress))

    @property
    def kind(self) -> type[Inference]:
        """The class of the inference; an unknown name is an error that lists the known ones."""
        from gppvae.inference import find_inference  # the package imports this module first

        return find_inference(self.inference)

    def to_json(self) -> dict[str, Any]:
        """All fields as JSON values, the inference by its name."""
        plain = {item.name: getattr(self, item.name) for item in fields(self)}
        return plain | {"inference": self.inference if isinstance(self.inference, str) else self.inference.name}


MAX_RATE = 1e3


@dataclass(frozen=True)
class Budget:
    """Epochs and learning rates from which an inference writes the phases of a fit.

    Attributes:
        schedule: "joint" trains everything in the last phase, "disjoint" keeps the networks of the VAE warm-up (the
            paper's GPPVAE-joint and -dis).
        epochs, warmup_epochs, gp_epochs: of the joint, VAE and GP-only phases.
        lr: of the networks.  prior_lr: of kernel, latent noise and weights outside of joint phases.
        unexplained: whether some latents have no kernel, so that the encoder is always in the path.
    """

    schedule: str = "joint"
    epochs: int = 100
    warmup_epochs: int = 50
    gp_epochs: int = 100
    lr: float = 1e-3
    prior_lr: float = 1e-2
    unexplained: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.schedule, str) or self.schedule not in ("joint", "disjoint"):
            raise ValueError(f"schedule must be 'joint' or 'disjoint', got {self.schedule!r}; 'joint' is the default")

    def warm_up(self) -> list[Phase]:
        """The networks as a plain VAE, then kernel and latent noise on its latents."""
        rates = {"prior": self.prior_lr, "noise": self.prior_lr}
        return [
            Phase("vae_warmup", "vae", self.warmup_epochs, {"encoder": self.lr, "decoder": self.lr}),
            Phase("gp_only", "fixed", self.gp_epochs, rates),
        ]

    def joint(self, inference: type[Inference], **options: Any) -> list[Phase]:
        """Networks and prior together; nothing for a disjoint schedule.

        Args:
            inference: of the phase.  options: fields of Phase other than the defaults.
        """
        if self.schedule == "disjoint":
            return []
        lr = dict.fromkeys(("encoder", "decoder", "prior", "noise"), self.lr) | options.pop("lr", {})
        return [Phase("joint", inference, self.epochs, lr, **options)]
