"""Arrays on disk: the batches of an array in memory, read in chunks, ahead of time, and in shares."""

import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch

from gppvae.data import arrays, stored
from gppvae.data.arrays import Samples
from gppvae.data.batches import MIN_AHEAD, Epoch, batch_order, read_ahead
from gppvae.data.stored import ChunkReader
from gppvae.data.table import Rows
from gppvae.data.world import OneProcess

FORMATS = ("npy", "hdf5", "hdf5 in one piece", "zarr 2", "zarr 3")
DATA = (np.random.default_rng(0).random((203, 4, 3)) * 200).astype(np.uint8)


@dataclass(frozen=True)
class Member(OneProcess):
    """One of several processes as far as the division of batches goes; sums are left to real processes."""

    rank: int
    size: int


def store(kind: str, folder: Path, data: np.ndarray = DATA) -> Any:
    if kind == "npy":
        np.save(folder / "a.npy", data)
        return np.load(folder / "a.npy", mmap_mode="r")
    if kind.startswith("hdf5"):
        chunks = None if kind.endswith("piece") else (8, 2, 3)
        with h5py.File(folder / "a.h5", "w") as file:
            file.create_dataset("y", data=data, chunks=chunks)
        return h5py.File(folder / "a.h5", "r")["y"]
    zarr = pytest.importorskip("zarr", reason="zarr is not installed")
    options = {"zarr_format": int(kind[-1])} if zarr.__version__ >= "3" else {}
    array = zarr.open_array(
        str(folder / "a.zarr"), mode="w", shape=data.shape, chunks=(8, 4, 3), dtype=data.dtype, **options
    )
    array[:] = data
    return zarr.open_array(str(folder / "a.zarr"), mode="r")


def epoch_of(samples: Samples, seed: int | None = 3, rank: int = 0, size: int = 1) -> Epoch:
    world = Member(rank, size)
    return Epoch(samples, Rows({}, len(samples)), 16, seed, torch.device("cpu"), world=world)


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("seed", [None, 3])
def test_every_format_gives_the_samples_of_the_array(kind: str, seed: int | None, tmp_path: Path) -> None:
    seen = []
    for batch in epoch_of(Samples(store(kind, tmp_path)), seed):
        np.testing.assert_allclose(batch.y[:, 0].numpy(), DATA[batch.index.numpy()] / 255.0, rtol=1e-6)
        seen += batch.index.tolist()
    assert sorted(seen) == list(range(len(DATA)))
    assert (seen == sorted(seen)) == (seed is None)


@pytest.mark.parametrize("kind", ["npy", "hdf5 in one piece"])
def test_without_chunks_the_order_is_that_of_an_array_in_memory(kind: str, tmp_path: Path) -> None:
    held = Samples(DATA)
    held.keep_in_memory()
    for stored_batch, batch in zip(epoch_of(Samples(store(kind, tmp_path))), epoch_of(held), strict=True):
        assert torch.equal(stored_batch.index, batch.index) and torch.equal(stored_batch.y, batch.y)


@pytest.mark.parametrize("kind", ["npy", "hdf5", "zarr 3"])
def test_check_reads_in_blocks_and_finds_what_is_wrong(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = DATA.astype(np.float32)
    data[150, 1, 1], data[20, 0, 0] = 999.0, -3.5
    monkeypatch.setattr(arrays, "CHUNK_BYTES", 8 * 12 * 5)
    (tmp_path / "good").mkdir()
    samples = Samples(store(kind, tmp_path / "good", data))
    assert samples.check() == (-3.5, 999.0) and samples.integers is False
    data[202, 3, 2] = np.nan
    with pytest.raises(ValueError, match="in sample 202"):
        Samples(store(kind, tmp_path, data)).check()


def test_processes_share_the_check() -> None:
    data = np.arange(100.0).reshape(50, 2)
    blocks = [[start for start, _ in Samples(data)._blocks(Member(rank, 3))] for rank in range(3)]
    assert [*blocks[0], *blocks[1], *blocks[2]] == [start for start, _ in Samples(data)._blocks(Member(0, 1))]


@pytest.mark.parametrize("size", [1, 2, 3, 12])
@pytest.mark.parametrize("kind", ["npy", "hdf5"])
def test_processes_divide_every_batch_and_its_noise(size: int, kind: str, tmp_path: Path) -> None:
    samples = Samples(store(kind, tmp_path))
    parts = [list(epoch_of(samples, 3, rank, size)) for rank in range(size)]
    for number, whole in enumerate(epoch_of(samples)):
        own = [part[number] for part in parts]
        assert torch.equal(torch.cat([batch.index for batch in own]), whole.index)
        assert torch.equal(torch.cat([batch.y for batch in own]), whole.y)
        assert torch.equal(torch.cat([batch.noise(3) for batch in own]), whole.noise(3))
        assert {batch.total for batch in own} == {len(whole)}
        assert sum(map(len, own)) == own[0].total
    assert size < 12 or 0 in [len(part[-1]) for part in parts]  # 203 = 12 * 16 + 11 rows


@pytest.mark.parametrize(
    ("n", "batch", "unit", "units"), [(203, 16, 8, 3), (64, 7, 64, 2), (10, 100, 3, 2), (9, 2, 4, 1)]
)
def test_chunked_order_has_every_row_once(n: int, batch: int, unit: int, units: int) -> None:
    batches = list(batch_order(n, batch, 5, unit, units))
    assert sorted(torch.cat(batches).tolist()) == list(range(n))
    assert [len(part) for part in batches] == [batch] * (n // batch) + ([n % batch] if n % batch else [])
    assert all(part.tolist() == sorted(part.tolist()) for part in batches)
    again, other = batch_order(n, batch, 5, unit, units), batch_order(n, batch, 6, unit, units)
    assert all(torch.equal(a, b) for a, b in zip(batches, again, strict=True))
    if n > batch:
        assert not all(torch.equal(a, b) for a, b in zip(batches, other, strict=True))


def test_chunked_order_mixes_chunks_and_rows() -> None:
    batches = list(batch_order(4000, 20, 0, unit_rows=10, buffer_units=8))
    chunks = [len(set((part // 10).tolist())) for part in batches]
    assert np.mean(chunks) > 5  # rows of a batch come from many of the 8 chunks that are held
    firsts = torch.tensor([int(part.float().mean()) for part in batches]).float()
    assert abs(torch.corrcoef(torch.stack([firsts, torch.arange(len(firsts)).float()]))[0, 1]) < 0.3


class CountingArray:
    """A chunked array that counts how often each of its rows is read."""

    def __init__(self, data: np.ndarray, chunk_rows: int) -> None:
        self.data, self.shape, self.dtype = data, data.shape, data.dtype
        self.chunks = (chunk_rows, *data.shape[1:])
        self.reads = np.zeros(len(data), dtype=int)

    def __getitem__(self, key: slice) -> np.ndarray:
        self.reads[key] += 1
        return self.data[key]


@pytest.mark.parametrize("seed", [None, 1])
def test_each_chunk_is_read_once_per_epoch(seed: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored, "UNIT_BYTES", 1)
    monkeypatch.setattr(stored, "BUFFER_BYTES", 4 * 8 * 12)
    data = CountingArray(DATA, 8)
    for _ in epoch_of(Samples(data), seed):
        pass
    assert data.reads.tolist() == [1] * len(DATA)


def test_small_chunks_are_read_several_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored, "UNIT_BYTES", 12 * 8 * 3)
    assert ChunkReader(CountingArray(DATA, 8), 8).unit_rows == 24
    assert ChunkReader(CountingArray(DATA, 100), 100).unit_rows == 100


@pytest.mark.parametrize("threads", [0, 1, 3])
def test_reading_ahead_keeps_the_order(threads: int) -> None:
    assert list(read_ahead(lambda k: k * k, range(20), threads)) == [(k, k * k) for k in range(20)]


def test_reading_ahead_is_ahead_and_bounded() -> None:
    started, release = [], threading.Event()

    def read(key: int) -> int:
        started.append(key)
        release.wait(10)
        return key

    batches = read_ahead(read, range(100), 2)
    release.set()
    assert next(batches) == (0, 0)
    assert 1 <= len(started) <= 5
    batches.close()
    assert len(started) <= 5


def test_one_thread_reads_several_batches_ahead() -> None:
    started: list[int] = []
    batches = read_ahead(lambda key: started.append(key), range(100), 1)
    for _ in range(MIN_AHEAD):
        next(batches)
    ends = time.monotonic() + 10
    while len(started) < 2 * MIN_AHEAD and time.monotonic() < ends:  # while nothing is asked for
        time.sleep(0.01)
    assert started == list(range(2 * MIN_AHEAD))
    batches.close()


def test_errors_of_reading_arrive_where_the_batch_is_used() -> None:
    def read(key: int) -> float:
        return 1 / (key - 2)

    batches = read_ahead(read, range(5), 2)
    assert [next(batches)[1], next(batches)[1]] == [-0.5, -1.0]
    with pytest.raises(ZeroDivisionError):
        next(batches)


@pytest.mark.parametrize("part", [slice(None), slice(7, None), slice(3, 90)])
@pytest.mark.parametrize("offset", [0, 5000])
def test_a_mapped_file_is_read_where_its_part_is(part: slice, offset: int, tmp_path: Path) -> None:
    (tmp_path / "raw").write_bytes(b"\1" * offset + DATA.tobytes())
    mapped = np.memmap(tmp_path / "raw", dtype=np.uint8, mode="r", offset=offset, shape=DATA.shape)[part]
    reader = stored.reader_of(mapped)
    assert isinstance(reader, stored.MapReader)
    index = np.array([5, 0, 5, len(mapped) - 1])
    np.testing.assert_array_equal(reader.rows(index), DATA[part][index])
    np.testing.assert_array_equal(reader.block(2, 9), DATA[part][2:9])


def test_maps_that_are_changed_or_strided_are_read_as_arrays(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", DATA)
    own = np.load(tmp_path / "a.npy", mmap_mode="c")
    own[3] = 7
    assert (Samples(own, scale=1.0).read(torch.tensor([3]))[0] == 7.0).all()
    strided = np.load(tmp_path / "a.npy", mmap_mode="r")[::2]
    np.testing.assert_array_equal(stored.reader_of(strided).rows(np.array([4])), DATA[[8]])


def test_a_mapped_file_that_was_cut_is_told(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", DATA)
    reader = stored.reader_of(np.load(tmp_path / "a.npy", mmap_mode="r"))
    with open(tmp_path / "a.npy", "r+b") as file:
        file.truncate(1000)
    with pytest.raises(ValueError, match=r"12 bytes at row 150 of the mapped file, got its end"):
        reader.rows(np.array([150]))
