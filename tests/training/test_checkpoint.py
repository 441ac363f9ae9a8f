"""Checkpoint files: whole or not there, and one clear sentence for whatever else lies at their place."""

import os
import pickle
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from gppvae.data import atomic
from gppvae.training.checkpoint import read_tensors, under, with_prefix, write_json, write_tensors

META = {"phase": 2, "best": 0.25, "text": "ä"}


def tensors() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {
        "a": torch.randn(3, 4, generator=generator, dtype=torch.float64),
        "b.c": torch.arange(5),
        "scalar": torch.tensor(2.5),
        "empty": torch.zeros(0, 3),
        "strided": torch.randn(4, 6, generator=generator)[:, ::2].T,
    }


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "checkpoint.safetensors"
    write_tensors(file, tensors(), META)
    return file


def test_what_is_written_is_read_bit_by_bit(path: Path) -> None:
    found, meta = read_tensors(path)
    assert meta == META
    assert found.keys() == tensors().keys()
    for name, tensor in tensors().items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name], tensor), name


def test_infinite_numbers_in_the_meta_data_survive(tmp_path: Path) -> None:
    write_tensors(tmp_path / "file", {}, {"best": float("inf")})
    assert read_tensors(tmp_path / "file")[1] == {"best": float("inf")}


@pytest.mark.parametrize("share", [0.0, 0.001, 0.3, 0.7, 0.999])
def test_a_truncated_file_is_named_as_such(path: Path, share: float) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    with pytest.raises(ValueError, match="cut short or not a gppvae file"):
        read_tensors(path)


def test_every_flipped_bit_in_the_tensors_is_found(path: Path) -> None:
    content = path.read_bytes()
    start = 8 + int.from_bytes(content[:8], "little")
    assert start < len(content)
    for position in range(start, len(content), 7):
        damaged = bytearray(content)
        damaged[position] ^= 1 << (position % 8)
        path.write_bytes(bytes(damaged))
        with pytest.raises(ValueError, match="damaged"):
            read_tensors(path)


def test_a_flipped_bit_in_the_header_is_one_sentence(path: Path) -> None:
    content = path.read_bytes()
    end = 8 + int.from_bytes(content[:8], "little")
    refused = 0
    for position in range(0, end, 5):
        damaged = bytearray(content)
        damaged[position] ^= 0x10
        path.write_bytes(bytes(damaged))
        with pytest.raises(ValueError) as caught:
            read_tensors(path)
        assert "\n" not in str(caught.value)
        assert path.name in str(caught.value)
        refused += 1
    assert refused > 20


def test_a_foreign_safetensors_file_is_refused(tmp_path: Path) -> None:
    save_file({"a": torch.zeros(2)}, tmp_path / "other.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match=r"not written by this version of gppvae .*expected format gppvae-2, got pt"):
        read_tensors(tmp_path / "other.safetensors")
    save_file({"a": torch.zeros(2)}, tmp_path / "bare.safetensors")
    with pytest.raises(ValueError, match="got none"):
        read_tensors(tmp_path / "bare.safetensors")


class Bomb:
    """Writes a file when it is unpickled."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str, int]]:
        return os.mkdir, (self.path, 0o777)


def test_a_pickle_is_refused_and_never_executed(tmp_path: Path) -> None:
    mark = tmp_path / "executed"
    (tmp_path / "model.safetensors").write_bytes(pickle.dumps(Bomb(str(mark))))
    with pytest.raises(ValueError, match="not a gppvae file"):
        read_tensors(tmp_path / "model.safetensors")
    assert not mark.exists()
    pickle.loads((tmp_path / "model.safetensors").read_bytes())
    assert mark.exists()  # the file would have done harm


def test_a_missing_file_says_where_it_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nothing_here"):
        read_tensors(tmp_path / "nothing_here")


@pytest.mark.parametrize("failing", ["replace", "fsync"])
def test_a_failing_write_leaves_the_old_file(path: Path, monkeypatch: pytest.MonkeyPatch, failing: str) -> None:
    before = path.read_bytes()

    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(atomic.os, failing, full)
    with pytest.raises(OSError, match="No space left"):
        write_tensors(path, {"a": torch.ones(1000)}, {})
    assert path.read_bytes() == before
    assert sorted(os.listdir(path.parent)) == [path.name]
    assert read_tensors(path)[1] == META


def test_nothing_but_the_file_stays_in_the_folder(path: Path) -> None:
    write_tensors(path, tensors(), META)
    write_json(path.with_name("config.json"), {"a": 1})
    assert sorted(os.listdir(path.parent)) == ["checkpoint.safetensors", "config.json"]


def test_prefixes_are_taken_off_as_they_were_put_on() -> None:
    joined = with_prefix("model", {"a": torch.ones(1)}) | with_prefix("model2", {"a": torch.zeros(1)})
    assert joined.keys() == {"model.a", "model2.a"}
    assert torch.equal(under("model", joined)["a"], torch.ones(1))
