"""Phases as data: what is trained, how, for how long."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import nn

from gppvae.inference import INFERENCES, Inference
from gppvae.inference.base import TOGETHER
from gppvae.models.gppvae import GPPriorVAE
from gppvae.models.vae import Autoencoder

InferenceChoice = str | type[Inference]
GROUPS = ("encoder", "decoder", "prior", "noise", "weights")
PRIOR = ("prior", "noise")  # whose steps may stand for several batches


def inference_class(inference: InferenceChoice) -> type[Inference]:
    """The class that a phase names, or the class itself where one of your own is given."""
    if isinstance(inference, type) and issubclass(inference, Inference):
        return inference
    if not isinstance(inference, str) or inference not in INFERENCES:
        raise ValueError(f"inference must be one of {', '.join(INFERENCES)}, got {inference!r}")
    return INFERENCES[inference]


@dataclass(frozen=True)
class Phase:
    """One stretch of training.

    Attributes:
        name: for logs.  inference: a name of INFERENCES, or a class.  epochs: passes over the data.
        lr: learning rate of each trained group; the others stay fixed. Groups: encoder, decoder (with the
            likelihood), prior (the kernel), noise (alpha), weights (of q(B), where they are learned). Where kernel and
            alpha take one step for several batches, it is as many times as long.
        decay: "constant", or "cosine" to zero over the phase.
        warmup: share of the phase in which the rate climbs linearly.
        weight_decay: of the networks, decoupled from the gradient as in AdamW.
        average: decay of a running average of the parameters, taken over at the end (0: none).
        options: further arguments of the inference.
    """

    name: str
    inference: InferenceChoice
    epochs: int
    lr: dict[str, float]
    decay: str = "constant"
    warmup: float = 0.0
    weight_decay: float = 0.0
    average: float = 0.0
    options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        inference_class(self.inference)
        unknown = [group for group in self.lr if group not in GROUPS]
        if unknown:
            raise ValueError(f"phase {self.name!r} can train {', '.join(GROUPS)}, got {unknown}; correct its lr")
        if not self.lr:
            raise ValueError(f"phase {self.name!r} must train at least one of {', '.join(GROUPS)}, got none")
        if self.epochs < 0:
            raise ValueError(f"phase {self.name!r} needs epochs of at least 0, got {self.epochs}")
        if not 0.0 <= self.average < 1.0:
            raise ValueError(f"phase {self.name!r} needs an average of at least 0 and below 1, got {self.average}")
        if self.decay not in ("constant", "cosine"):
            raise ValueError(f"phase {self.name!r}: decay must be 'constant' or 'cosine', got {self.decay!r}")

    def rate(self, progress: float) -> float:
        """Factor on the learning rates at `progress` in [0, 1) through the phase."""
        if progress < self.warmup:
            return (progress + 1e-3) / self.warmup
        return 1.0 if self.decay == "constant" else 0.5 * (1.0 + math.cos(math.pi * progress))

    def config(self) -> dict[str, Any]:
        """The phase as JSON values, its inference by name."""
        return asdict(self) | {"inference": inference_class(self.inference).name}

    def make_inference(self, model: GPPriorVAE | Autoencoder, seed: int) -> Inference:
        """A fresh inference, what it draws at the start drawn from the seed."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return inference_class(self.inference)(model, **self.options)


def parameter_groups(model: GPPriorVAE | Autoencoder, inference: Inference) -> dict[str, list[nn.Parameter]]:
    """Parameters by group, those that can be trained at all."""
    autoencoder = model.autoencoder if isinstance(model, GPPriorVAE) else model
    groups = {
        "encoder": list(autoencoder.encoder.parameters()),
        "decoder": [*autoencoder.decoder.parameters(), *autoencoder.likelihood.parameters()],
        "prior": list(model.kernel.parameters()) if isinstance(model, GPPriorVAE) else [],
        "noise": [model.log_alpha] if isinstance(model, GPPriorVAE) else [],
        "weights": list(inference.parameters()),
    }
    return {name: [p for p in parameters if p.requires_grad] for name, parameters in groups.items()}


def optimizer_groups(
    phase: Phase, trained: dict[str, list[nn.Parameter]], networks: list[nn.Module]
) -> list[dict[str, Any]]:
    """Trained parameters with their rates; weight decay is for the networks, not for the noise of the likelihood.

    Those that are treated alike are one group: an optimiser's time is a time per group.
    """
    decayed = {id(p) for network in networks for p in network.parameters()}
    alike: dict[tuple[float, float, bool], list[nn.Parameter]] = {}
    for name, parameters in trained.items():
        for parameter in parameters:
            decay = phase.weight_decay if id(parameter) in decayed else 0.0
            alike.setdefault((phase.lr[name], decay, name in PRIOR), []).append(parameter)
    return [
        {"params": members, "base": base, "weight_decay": decay, "prior": prior}
        for (base, decay, prior), members in alike.items()
    ]


def check_phases(phases: list[Phase]) -> None:
    """Raise ValueError unless the phases leave q(B) behind and none needs one that no phase before it made."""
    conditioned = False
    for phase in phases:
        kind = inference_class(phase.inference)
        if kind.follows and not conditioned:
            makers = ", ".join(name for name, inference in INFERENCES.items() if inference.conditions)
            raise ValueError(
                f"phase {phase.name!r} ({kind.name}) needs a phase before it that fits the Gaussian process, got "
                f"none; put one of {makers} first"
            )
        conditioned = conditioned or kind.conditions
    if not conditioned:
        raise ValueError("expected a phase that fits the Gaussian process, got none; raise gp_epochs or epochs")


def joint_phase(inference: str, epochs: int, lr: dict[str, float], average: float = 0.0) -> Phase:
    """Networks and prior learn together.

    Posterior coding steps the encoder once per four batches, and gets further with half of its rate. Its steps are
    noisy, as what a row does to others is estimated from the few seen last, so the rates fall to zero.

    Args:
        inference: its name.  lr: of each group.  average: as in `Phase`.
    """
    if inference != "posterior":
        return Phase("joint", inference, epochs, lr, average=average)
    return Phase("joint", inference, epochs, lr | {"encoder": 0.5 * lr["encoder"]}, "cosine", average=average)


def plan(
    schedule: str = "joint",
    inference: str = "exact",
    epochs: int = 100,
    warmup_epochs: int = 100,
    gp_epochs: int = 100,
    lr: float = 1e-3,
    prior_lr: float = 1e-2,
) -> list[Phase]:
    """The standard phases of a fit.

    Args:
        schedule: "joint" trains everything in the last phase, "disjoint" leaves the networks as the VAE
            warm-up made them (the paper's GPPVAE-joint and -dis).
        inference: of the joint phase.
        epochs, warmup_epochs, gp_epochs: of the joint, VAE and GP-only phases.
        lr: of the networks.  prior_lr: of kernel and weights where the networks are fixed or not coded.
    """
    if schedule not in ("joint", "disjoint"):
        raise ValueError(f"schedule must be 'joint' or 'disjoint', got {schedule!r}; 'joint' is the default")
    networks = {"encoder": lr, "decoder": lr}
    if inference == "global":
        # The decoder alone bears higher rates than networks that are trained through each other.
        rates = {"decoder": 4.0 * lr, "prior": prior_lr, "weights": prior_lr}
        learn = Phase("global", "global", epochs, rates, "cosine", warmup=0.02, weight_decay=0.05)
        distil = Phase("encoder", "distill", max(1, epochs // 10), {"encoder": 2.0 * lr}, "cosine")
        return [phase for phase in (learn, distil) if phase.epochs > 0 and epochs > 0]
    phases = [
        Phase("vae_warmup", "vae", warmup_epochs, networks),
        Phase("gp_only", "fixed", gp_epochs, {"prior": prior_lr, "noise": prior_lr}),
    ]
    if schedule == "joint":
        rates = networks | {"prior": lr, "noise": lr}
        phases.append(joint_phase(inference, epochs, rates))
    return [phase for phase in phases if phase.epochs > 0]


def sums_at_once(phases: list[Phase], n_rows: int, batch_size: int) -> tuple[int, int | None]:
    """How many rows the GP sums at a time, and after how many such sums some phase conditions q(B) again.

    None when all phases do that once per epoch.
    """
    found = [inference_class(phase.inference).batches_between(-(-n_rows // batch_size)) for phase in phases]
    between = min((batches for batches in found if batches is not None), default=None)
    if between is None:
        return TOGETHER * batch_size, None
    together = min(TOGETHER, between)
    return together * batch_size, between // together
