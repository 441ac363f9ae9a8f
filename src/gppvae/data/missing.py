"""Counts of missing values, made while samples are checked and reported in the log."""

from __future__ import annotations

import numpy as np
import torch

from gppvae.data.world import World


class MissingValues:
    """Counts of missing values (NaN), over samples and over channels of images or values of vectors.

    Attributes:
        total: number of missing values.  n_values: number of all values.
        samples: number of samples without any observed value.  first: index of the first of them.
        channels: indices of the channels (or values of vectors) that are missing in every sample.
    """

    def __init__(self, n_samples: int, n_channels: int, last: bool) -> None:
        self._last = last  # whether channels are the last axis of blocks
        self._observed = torch.zeros(n_channels, dtype=torch.float64)
        self._counts = torch.zeros(3, dtype=torch.float64)  # missing values, all values, samples without any
        self._first = n_samples

    def add(self, start: int, block: np.ndarray) -> None:
        """Add the counts of a block of samples, (B, ...) in the input layout, that begins at sample `start`."""
        missing = np.isnan(block)
        if missing.any():
            empty = missing.reshape(len(block), -1).all(1)
            self._counts[0] += int(missing.sum())
            self._counts[2] += int(empty.sum())
            if empty.any():
                self._first = min(self._first, start + int(np.argmax(empty)))
        self._counts[1] += block.size
        channels = len(self._observed)
        # (B * height * width, channels) or (B, channels, values of a channel)
        by_channel = (~missing).reshape(-1, channels) if self._last else (~missing).reshape(len(block), channels, -1)
        self._observed += torch.from_numpy(by_channel.sum(0 if self._last else (0, 2)).astype(np.float64))

    def sum_over(self, world: World) -> None:
        """Add up the counts of all processes and set the attributes."""
        firsts = torch.zeros(world.size, dtype=torch.float64)
        firsts[world.rank] = self._first
        world.sum_([self._observed, self._counts, firsts])
        self.total, self.n_values, self.samples = (int(n) for n in self._counts)
        self.first = int(firsts.min())
        self.channels: list[int] = torch.nonzero(self._observed == 0.0).flatten().tolist()

    def count(self) -> str:
        """The number of missing values, for the log."""
        return f"{self.total} of {self.n_values} values are missing ({100.0 * self.total / self.n_values:.3g}%)"

    def remarks(self, vectors: bool, names: list[str] | None = None) -> list[str]:
        """Warnings about channels and samples without any observed value; `names` are the names of the values."""
        found = []
        if self.channels:
            kind = ("value" if vectors else "channel") + ("s are" if len(self.channels) > 1 else " is")
            first, more = self.channels[:5], " ..." if len(self.channels) > 5 else ""
            shown = [str(n) for n in first] if names is None else [repr(names[n]) for n in first]
            which = ("number " if names is None else "") + ", ".join(shown) + more
            found.append(
                f"{len(self.channels)} {kind} missing in every sample ({which}); predictions there mean nothing"
            )
        if self.samples:
            many = "s have" if self.samples > 1 else " has"
            found.append(f"{self.samples} sample{many} no observed value (the first is number {self.first})")
        return found
