"""Restoring from a checkpoint: optimiser state, buffers of any size, counters."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """State of an Adam optimiser as tensors, by number of the parameter and name of the entry."""
    state = optimizer.state_dict()["state"]
    return {f"{number}.{name}": value for number, entry in state.items() for name, value in entry.items()}


def load_optimizer(
    optimizer: torch.optim.Optimizer, parameters: list[nn.Parameter], tensors: dict[str, Tensor]
) -> None:
    """Restore the state from `optimizer_tensors`; ValueError unless it matches the parameters."""
    entries: dict[int, dict[str, Tensor]] = {}
    for name, value in tensors.items():
        number, key = name.split(".", 1)
        entries.setdefault(int(number), {})[key] = value
    for place, entry in entries.items():
        if entry.keys() != {"step", "exp_avg", "exp_avg_sq"} or not 0 <= place < len(parameters):
            raise ValueError(f"entry {place} of the optimiser has {sorted(entry)}")
        if entry["step"].ndim or entry["step"] < 0 or (entry["exp_avg_sq"] < 0).any():
            raise ValueError(f"entry {place} of the optimiser has negative counts or squares")
    optimizer.load_state_dict({"state": entries, "param_groups": optimizer.state_dict()["param_groups"]})
    for parameter, state in optimizer.state.items():
        for name in state.keys() - {"step"}:
            if state[name].shape != parameter.shape or state[name].dtype != parameter.dtype:
                raise ValueError(f"{name} of the optimiser has shape {tuple(state[name].shape)}")
            # The fused step reads memory in order, so moments need the memory layout of their parameter.
            state[name] = torch.empty_like(parameter).copy_(state[name])


def assign(module: nn.Module, name: str, value: Tensor) -> None:
    """Set a parameter or a buffer by its name; the shape of a buffer may change."""
    path, _, last = name.rpartition(".")
    owner = module.get_submodule(path)
    current = getattr(owner, last)
    if isinstance(current, nn.Parameter):
        if current.shape != value.shape or current.dtype != value.dtype:
            raise ValueError(f"{name} has shape {tuple(value.shape)}")
        with torch.no_grad():
            current.copy_(value)
    else:
        if current.dtype != value.dtype:
            raise ValueError(f"{name} is {value.dtype}")
        setattr(owner, last, value.to(current.device))


def check_numbers(meta: dict[str, Any], n_phases: int) -> None:
    """Raise ValueError unless the counters and metadata of a checkpoint are valid."""
    best_epoch = meta["best_epoch"]
    valid = {name: _is_count(meta[name]) for name in ("epoch", "metrics", "skipped", "stale", "steps", "bad_steps")}
    valid |= {
        name: isinstance(meta[name], float) and 0.0 <= meta[name] < math.inf for name in ("seconds", "cpu_seconds")
    }
    valid |= {
        "phase": _is_count(meta["phase"]) and meta["phase"] <= n_phases,
        "best_epoch": best_epoch is None or _is_count(best_epoch),
        "measured": meta["measured"] is None or isinstance(meta["measured"], dict),
        "best": isinstance(meta["best"], float) and not math.isnan(meta["best"]),
    }
    for name, fits in valid.items():
        if not fits:
            raise ValueError(f"{name} is {meta[name]!r:.80}")


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0
