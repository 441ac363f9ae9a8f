"""Processes that start again meet each other, not what an earlier start left in the store."""

import threading
from datetime import timedelta

import pytest
import torch.distributed as dist

from gppvae.training.distributed import _agree


def meet(store: dist.Store, size: int) -> list[str]:
    names = [""] * size

    def join(rank: int) -> None:
        names[rank] = _agree(store, rank, size)

    threads = [threading.Thread(target=join, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return names


def test_waiting_for_a_process_that_never_comes_ends() -> None:
    store = dist.HashStore()
    store.set_timeout(timedelta(seconds=0.1))
    with pytest.raises(TimeoutError, match=r"expected 3 processes to meet, got no answer from \[1, 2\]"):
        _agree(store, 0, 3)


def test_every_start_has_a_name_of_its_own() -> None:
    store = dist.HashStore()
    store.set_timeout(timedelta(seconds=20))
    store.set("gppvae/ask/1", "word of a dead process")
    first = meet(store, 3)
    second = meet(store, 3)
    assert len(set(first)) == len(set(second)) == 1
    assert first[0] and second[0] and first[0] != second[0]
