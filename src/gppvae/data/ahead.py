"""Reading ahead: threads read batches while the network computes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

LEAST = 4  # batches read ahead: one slow read does not stall the network
Key = TypeVar("Key")
Value = TypeVar("Value")


def read_ahead(read: Callable[[Key], Value], keys: Iterable[Key], threads: int) -> Iterator[tuple[Key, Value]]:
    """(key, read(key)) in the order of the keys; two per thread, at least four, are read in advance.

    Threads are enough: reading files, decompressing, decoding images and converting numbers all happen outside the
    interpreter's lock, nothing has to be copied between processes, and open files need not be shared by a fork.

    Args:
        read: safe to call from several threads.  threads: 0 reads on demand.
    """
    if threads == 0:
        for key in keys:
            yield key, read(key)
        return
    waiting: deque[tuple[Key, Future[Value]]] = deque()
    with ThreadPoolExecutor(threads, thread_name_prefix="gppvae-read") as pool:
        try:
            for key in keys:
                waiting.append((key, pool.submit(read, key)))
                if len(waiting) > max(LEAST, 2 * threads):
                    first, value = waiting.popleft()
                    yield first, value.result()
            while waiting:
                first, value = waiting.popleft()
                yield first, value.result()
        finally:
            for _, value in waiting:
                value.cancel()
