"""Parameter groups of a phase, and checks of the order of phases."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import nn

from gppvae.inference import INFERENCES, Inference
from gppvae.inference.phase import Phase
from gppvae.models.gppvae import GPPriorVAE


def make_inference(phase: Phase, model: GPPriorVAE, seed: int) -> Inference:
    """A new inference, its random initial values drawn from the seed."""
    inference = phase.kind(model, **phase.options)
    inference.initialise(torch.Generator().manual_seed(seed))
    return inference


def parameter_groups(model: GPPriorVAE, inference: Inference) -> dict[str, list[nn.Parameter]]:
    """Trainable parameters by group."""
    autoencoder, prior = model.autoencoder, model.prior
    groups = {
        "encoder": list(autoencoder.encoder.parameters()),
        "decoder": [*autoencoder.decoder.parameters(), *autoencoder.likelihood.parameters()],
        "prior": [parameter for kernel in prior.kernels for parameter in kernel.parameters()],
        "noise": [group.log_alpha for group in prior.groups],
        "weights": list(inference.parameters()),
    }
    return {name: [p for p in parameters if p.requires_grad] for name, parameters in groups.items()}


def optimizer_groups(
    phase: Phase, trained: dict[str, list[nn.Parameter]], networks: list[nn.Module]
) -> list[dict[str, Any]]:
    """Parameter groups for the optimiser; weight decay applies to the networks, not to the noise of the likelihood.

    Parameters with the same settings share a group, since every group has a cost.
    """
    decayed = {id(p) for network in networks for p in network.parameters()}
    by_options: dict[tuple[float, float, bool], list[nn.Parameter]] = {}
    for name, parameters in trained.items():
        for parameter in parameters:
            decay = phase.weight_decay if id(parameter) in decayed else 0.0
            by_options.setdefault((phase.lr[name], decay, name in ("prior", "noise")), []).append(parameter)
    return [
        {"params": members, "base": base, "weight_decay": decay, "prior": prior}
        for (base, decay, prior), members in by_options.items()
    ]


def check_phases(phases: list[Phase]) -> None:
    """Raise ValueError unless some phase computes q(B), before every phase that needs one; options are checked too."""
    conditioned = False
    for phase in phases:
        kind = phase.kind
        _check_options(phase)
        if kind.follows and not conditioned:
            makers = ", ".join(name for name, inference in INFERENCES.items() if inference.conditions)
            raise ValueError(
                f"phase {phase.name!r} ({kind.name}) needs a phase before it that fits the Gaussian process, got "
                f"none; put one of {makers} first"
            )
        conditioned = conditioned or kind.conditions
    if not conditioned:
        raise ValueError("expected a phase that fits the Gaussian process, got none; raise gp_epochs or epochs")


def _check_options(phase: Phase) -> None:
    """Raise ValueError unless the inference of a phase takes its options: the phase may begin after hours."""
    known = list(inspect.signature(phase.kind).parameters.values())[1:]  # without the model
    unknown = [name for name in phase.options if name not in [p.name for p in known]]
    if unknown and not any(p.kind is p.VAR_KEYWORD for p in known):
        words = ", ".join(p.name for p in known) or "none"
        raise ValueError(
            f"phase {phase.name!r} needs options of {phase.kind.name}, which takes {words}, got {unknown[0]!r}; "
            "correct its options"
        )
