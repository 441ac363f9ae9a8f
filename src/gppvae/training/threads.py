"""The number of threads of torch."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch


@contextlib.contextmanager
def limited_threads(n: int | None) -> Iterator[None]:
    """Use `n` threads in the block; None changes nothing."""
    before = torch.get_num_threads()
    torch.set_num_threads(n or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def one_thread() -> contextlib.AbstractContextManager[None]:
    """Use one thread: small networks gain nothing from more, and results do not depend on the number of cores."""
    return limited_threads(1)
