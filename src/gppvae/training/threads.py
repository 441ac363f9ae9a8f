"""How many threads a fit takes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch


@contextlib.contextmanager
def limited_threads(n: int | None) -> Iterator[None]:
    """So many threads inside the context; as many as before for None."""
    before = torch.get_num_threads()
    torch.set_num_threads(n or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def one_thread() -> contextlib.AbstractContextManager[None]:
    """Networks this small gain nothing from more, and the numbers do not depend on the machine's cores."""
    return limited_threads(1)
