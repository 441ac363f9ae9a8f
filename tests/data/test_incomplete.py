"""Stored arrays of which a part is missing, damaged, elsewhere or absurd: refused in one sentence, never filled in."""

import json
import logging
import os
import shutil
import struct
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch

from gppvae.data import stored
from gppvae.data.arrays import Samples
from gppvae.data.open import open_samples

DATA = np.arange(1.0, 61.0, dtype=np.float32).reshape(10, 6)


def zarr_array(path: Path, zarr_format: int = 3, data: np.ndarray = DATA, **options: object) -> Path:
    zarr = pytest.importorskip("zarr", reason="zarr is not installed")
    if zarr.__version__ >= "3":
        options["zarr_format"] = zarr_format
    elif zarr_format == 3:
        pytest.skip("this zarr knows format 2 only")
    array = zarr.open_array(str(path), mode="w", shape=data.shape, chunks=(3, 4), dtype=data.dtype, **options)
    array[:] = data
    return path


def one_chunk(path: Path, zarr_format: int) -> Path:
    return path / ("1.1" if zarr_format == 2 else "c/1/1")


# -- Zarr


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_a_zarr_array_with_a_lost_chunk_is_refused(zarr_format: int, tmp_path: Path) -> None:
    path = zarr_array(tmp_path / "a.zarr", zarr_format)
    np.testing.assert_array_equal(open_samples(path)[:], DATA)
    one_chunk(path, zarr_format).unlink()
    with pytest.raises(ValueError, match=r"8 chunks of .*a\.zarr, got 7; .* read as 0\.0.*fill_unwritten=True"):
        open_samples(path)
    filled = open_samples(path, fill_unwritten=True)[:]
    assert (filled[3:6, 4:] == 0).all() and (filled[:3] == DATA[:3]).all()


def test_nested_chunk_names_are_counted(tmp_path: Path) -> None:
    path = zarr_array(tmp_path / "a.zarr", 2, dimension_separator="/")
    assert (path / "1" / "1").is_file()
    np.testing.assert_array_equal(open_samples(path)[:], DATA)
    (path / "1" / "1").unlink()
    with pytest.raises(ValueError, match=r"8 chunks .* got 7"):
        open_samples(path)


def test_shards_are_counted(tmp_path: Path) -> None:
    zarr = pytest.importorskip("zarr", minversion="3", reason="shards came with zarr 3")
    path = tmp_path / "a.zarr"
    array = zarr.create_array(str(path), shape=(11, 11), chunks=(1, 1), shards=(10, 10), dtype="f4")
    array[:] = 1.0
    assert open_samples(path).shape == (11, 11)
    (path / "c" / "1" / "1").unlink()
    with pytest.raises(ValueError, match=r"4 shards of .*, got 3"):
        open_samples(path)


def test_chunks_that_are_only_fill_value_need_a_word(tmp_path: Path) -> None:
    """Zarr 3 does not write them, so they look like lost ones."""
    data = DATA.copy()
    data[3:6] = 0.0
    path = zarr_array(tmp_path / "a.zarr", 2, data)
    if not one_chunk(path, 2).exists():
        with pytest.raises(ValueError, match="if they hold nothing else"):
            open_samples(path)
    np.testing.assert_array_equal(open_samples(path, fill_unwritten=True)[:], data)


def test_nan_as_fill_value_tells_for_itself(tmp_path: Path) -> None:
    path = zarr_array(tmp_path / "a.zarr", 2, fill_value=np.nan)
    one_chunk(path, 2).unlink()
    opened = open_samples(path)
    with pytest.raises(ValueError, match="NaN or infinity in sample 3"):
        Samples(opened).check()
    assert not Samples(opened, missing="mask").read(torch.tensor([3]))[1][0, 4:].any()  # type: ignore[index]


def test_arrays_opened_elsewhere_are_told_in_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    zarr = pytest.importorskip("zarr", reason="zarr is not installed")
    path = zarr_array(tmp_path / "a.zarr", 2)
    one_chunk(path, 2).unlink()
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("y", DATA.shape, "f4", chunks=(2, 6))[:4] = 1.0
    with h5py.File(tmp_path / "a.h5") as file, caplog.at_level(logging.WARNING):
        Samples(zarr.open_array(str(path), mode="r"))
        Samples(file["y"])
    assert [record.message for record in caplog.records] == [
        "1 of 8 chunks of the Zarr array are not stored and read as 0.0",
        "3 of 5 chunks of the HDF5 data set are not stored and read as 0.0",
    ]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"chunks": [0, 4]}, "Zarr array"),
        ({"chunks": [3]}, "Zarr array"),
        ({"shape": [-10, 6]}, "Zarr array"),
        ({"shape": [10**15, 6]}, r"chunks of .*, got 8"),
        ({"chunks": [10**12, 10**6]}, r"chunks of at most|chunks of .*, got"),
        ({"dtype": "nonsense"}, "Zarr array"),
        ({"compressor": {"id": "nonsense"}}, "Zarr array"),
    ],
)
def test_zarr_arrays_with_absurd_metadata(change: dict, message: str, tmp_path: Path) -> None:
    path = zarr_array(tmp_path / "a.zarr", 2)
    about = json.loads((path / ".zarray").read_text())
    (path / ".zarray").write_text(json.dumps({**about, **change}))
    with pytest.raises(ValueError, match=message):
        open_samples(path)


def test_zarr_arrays_with_damaged_files(tmp_path: Path) -> None:
    path = zarr_array(tmp_path / "a.zarr", 2)
    one_chunk(path, 2).write_bytes(b"not compressed")
    with pytest.raises(ValueError, match=r"rows 0 to 9 .* whole.*a\.zarr"):
        Samples(open_samples(path)).check()
    (path / ".zarray").write_text("{")
    with pytest.raises(ValueError, match=r"a Zarr array at .*a\.zarr, got"):
        open_samples(path)
    (path / ".zarray").unlink()
    with pytest.raises(ValueError, match=r"a Zarr array at .*a\.zarr, got"):
        open_samples(path)
    (tmp_path / "b.zarr").write_text("a file")
    with pytest.raises(ValueError, match=r"a Zarr array at .*b\.zarr, got"):
        open_samples(tmp_path / "b.zarr")


def test_an_array_of_a_zarr_group_is_opened_by_its_path(tmp_path: Path) -> None:
    zarr = pytest.importorskip("zarr", reason="zarr is not installed")
    group = zarr.open_group(str(tmp_path / "g.zarr"), mode="w")
    group.create_dataset("y", shape=DATA.shape, dtype="f4", chunks=(3, 6)) if zarr.__version__ < "3" else (
        group.create_array("y", shape=DATA.shape, dtype="f4", chunks=(3, 6))
    )
    group["y"][:] = DATA
    np.testing.assert_array_equal(open_samples(tmp_path / "g.zarr" / "y")[:], DATA)


# -- HDF5


def hdf5(path: Path, data: np.ndarray = DATA, name: str = "y", **options: object) -> Path:
    with h5py.File(path, "a") as file:
        file.create_dataset(name, data=data, **options)
    return path


@pytest.mark.parametrize("compression", [None, "gzip"])
def test_hdf5_chunks_that_were_never_written_are_refused(compression: str | None, tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        data = file.create_dataset("y", DATA.shape, "f4", chunks=(3, 6), compression=compression, fillvalue=7)
        data[:3] = DATA[:3]
    with pytest.raises(ValueError, match=r"4 chunks of .*a\.h5:y, got 1; .* read as 7\.0"):
        open_samples(tmp_path / "a.h5")
    assert (open_samples(tmp_path / "a.h5", fill_unwritten=True)[3:] == 7).all()
    with h5py.File(tmp_path / "a.h5", "a") as file:
        file["y"][:] = DATA
    np.testing.assert_array_equal(open_samples(tmp_path / "a.h5")[:], DATA)


def test_an_hdf5_data_set_that_was_never_written_is_refused(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("y", (10, 6), "f4")
    with pytest.raises(ValueError, match=r"values of .*a\.h5:y, got none; .* read as 0\.0"):
        open_samples(tmp_path / "a.h5")
    with h5py.File(tmp_path / "b.h5", "w") as file:
        file.create_dataset("y", (10**15, 6), "f4", chunks=(1000, 6))
    with pytest.raises(ValueError, match=r"1000000000000 chunks .* got none"):
        open_samples(tmp_path / "b.h5")


def virtual(folder: Path, sources: list[str], rows: int = 10) -> Path:
    """v.h5 over y of each source, row after row."""
    layout = h5py.VirtualLayout((rows * len(sources), 6), "f4")
    for number, source in enumerate(sources):
        layout[number * rows : (number + 1) * rows] = h5py.VirtualSource(source, "y", (rows, 6))
    with h5py.File(folder / "v.h5", "w") as file:
        file.create_virtual_dataset("v", layout, fillvalue=-5)
    return folder / "v.h5"


def test_virtual_data_sets_need_their_sources(tmp_path: Path) -> None:
    hdf5(tmp_path / "a.h5")
    path = virtual(tmp_path, ["a.h5", "b.h5"])
    with pytest.raises(ValueError, match=r"inside .*v\.h5, got .*a\.h5.*outside=True"):
        open_samples(path)
    with pytest.raises(FileNotFoundError, match=r"b\.h5, found no such file"):
        open_samples(path, outside=True)
    hdf5(tmp_path / "b.h5", DATA + 100)
    np.testing.assert_array_equal(open_samples(path, outside=True)[:], np.concatenate([DATA, DATA + 100]))


def test_virtual_data_sets_need_whole_sources(tmp_path: Path) -> None:
    hdf5(tmp_path / "a.h5")
    path = virtual(tmp_path, ["a.h5", "b.h5"])
    hdf5(tmp_path / "b.h5", DATA[:7])
    with pytest.raises(ValueError, match=r"whole sources .*b\.h5:y.*\(7, 6\)"):
        open_samples(path, outside=True)
    (tmp_path / "b.h5").unlink()
    hdf5(tmp_path / "b.h5", name="z")
    with pytest.raises(ValueError, match=r"whole sources .*b\.h5:y.* no such data set"):
        open_samples(path, outside=True)
    with h5py.File(tmp_path / "b.h5", "w") as file:
        file.create_dataset("y", (10, 6), "f4", chunks=(2, 6))[:4] = 1.0
    with pytest.raises(ValueError, match=r"5 chunks of .*b\.h5:y, got 2"):
        open_samples(path, outside=True)


def test_virtual_data_sets_of_parts_of_their_sources(tmp_path: Path) -> None:
    layout = h5py.VirtualLayout((4, 6), "f4")
    layout[:] = h5py.VirtualSource("a.h5", "y", (10, 6))[4:8]
    with h5py.File(tmp_path / "v.h5", "w") as file:
        file.create_virtual_dataset("v", layout)
    hdf5(tmp_path / "a.h5", DATA[:8])
    np.testing.assert_array_equal(open_samples(tmp_path / "v.h5", outside=True)[:], DATA[4:8])
    (tmp_path / "a.h5").unlink()
    hdf5(tmp_path / "a.h5", DATA[:7])
    with pytest.raises(ValueError, match=r"whole sources .*a\.h5:y.*\(7, 6\)"):
        open_samples(tmp_path / "v.h5", outside=True)


def test_virtual_data_sets_with_gaps_are_refused(tmp_path: Path) -> None:
    hdf5(tmp_path / "v.h5")
    layout = h5py.VirtualLayout((12, 6), "f4")
    layout[:10] = h5py.VirtualSource(".", "y", (10, 6))
    with h5py.File(tmp_path / "v.h5", "a") as file:
        file.create_virtual_dataset("v", layout)
    with pytest.raises(ValueError, match=r"72 values of .*v\.h5:v, got 60"):
        open_samples(f"{tmp_path / 'v.h5'}:v")
    layout = h5py.VirtualLayout((10, 6), "f4")
    layout[:] = h5py.VirtualSource(".", "y", (10, 6))
    with h5py.File(tmp_path / "v.h5", "a") as file:
        file.create_virtual_dataset("w", layout)
    np.testing.assert_array_equal(open_samples(f"{tmp_path / 'v.h5'}:w")[:], DATA)


def test_hdf5_data_in_other_files_needs_a_word(tmp_path: Path) -> None:
    (tmp_path / "raw.bin").write_bytes(DATA.tobytes())
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("y", DATA.shape, "f4", external=[(str(tmp_path / "raw.bin"), 0, DATA.nbytes)])
    with pytest.raises(ValueError, match=r"inside .*a\.h5, got .*raw\.bin.*outside=True \(--outside\)"):
        open_samples(tmp_path / "a.h5")
    np.testing.assert_array_equal(open_samples(tmp_path / "a.h5", outside=True)[:], DATA)
    (tmp_path / "raw.bin").write_bytes(DATA.tobytes()[:100])
    with pytest.raises(ValueError, match=r"240 bytes of .* in .*raw\.bin, got 100"):
        open_samples(tmp_path / "a.h5", outside=True)
    (tmp_path / "raw.bin").unlink()
    os.mkfifo(tmp_path / "raw.bin")
    with pytest.raises(ValueError, match="found a pipe"):
        open_samples(tmp_path / "a.h5", outside=True)


def test_hdf5_links(tmp_path: Path) -> None:
    hdf5(tmp_path / "b.h5", DATA + 1)
    hdf5(tmp_path / "a.h5", name="group/y")
    with h5py.File(tmp_path / "a.h5", "a") as file:
        file["soft"] = h5py.SoftLink("/group/y")
        file["group/up"] = h5py.SoftLink("y")
        file["far"] = h5py.ExternalLink("b.h5", "/y")
        file["farther"] = h5py.SoftLink("/far")
        file["lost"] = h5py.SoftLink("/none")
        file["round"] = h5py.SoftLink("/round")
        file["twice"] = file["group/y"]
        file["pipe"] = h5py.ExternalLink("pipe.h5", "/y")
    os.mkfifo(tmp_path / "pipe.h5")
    for name in ("soft", "group/up", "twice", "group/y", "/group/y"):
        np.testing.assert_array_equal(open_samples(f"{tmp_path / 'a.h5'}:{name}")[:], DATA)
    for name in ("far", "farther"):
        with pytest.raises(ValueError, match=r"inside .*a\.h5, got .*b\.h5.*outside=True"):
            open_samples(f"{tmp_path / 'a.h5'}:{name}")
        np.testing.assert_array_equal(open_samples(f"{tmp_path / 'a.h5'}:{name}", outside=True)[:], DATA + 1)
    for name in ("lost", "round", "group", "none/y"):
        with pytest.raises(ValueError, match=rf"one data set of .* by name .*got {name}"):
            open_samples(f"{tmp_path / 'a.h5'}:{name}", outside=True)
    with pytest.raises(ValueError, match="found a pipe"):
        open_samples(f"{tmp_path / 'a.h5'}:pipe", outside=True)


def test_hdf5_data_sets_that_are_no_arrays(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["empty"] = h5py.Empty("f4")
        file["number"] = 3.0
        file["texts"] = ["a", "b"]
        file["complex"] = DATA.astype(complex)
        file["records"] = np.zeros((3, 2), dtype=[("a", "f4"), ("b", "i4")])
    with pytest.raises(ValueError, match=r"expected an array .*empty, got"):
        open_samples(f"{tmp_path / 'a.h5'}:empty")
    for name in ("number", "texts", "complex", "records"):
        with pytest.raises((ValueError, TypeError), match=r"expected samples of"):
            Samples(open_samples(f"{tmp_path / 'a.h5'}:{name}"))


@pytest.mark.parametrize("share", [0.02, 0.3, 0.9])
def test_hdf5_files_that_were_cut(share: float, tmp_path: Path) -> None:
    path = hdf5(tmp_path / "a.h5", chunks=(2, 6), compression="gzip")
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    with pytest.raises(ValueError, match=r"HDF5 file at .*a\.h5, got"):
        open_samples(path)


def test_hdf5_files_with_damaged_chunks(tmp_path: Path) -> None:
    path = hdf5(tmp_path / "a.h5", chunks=(2, 6), compression="gzip")
    with h5py.File(path) as file:
        place = file["y"].id.get_chunk_info(2).byte_offset
    content = bytearray(path.read_bytes())
    content[place : place + 4] = b"\xff" * 4
    path.write_bytes(bytes(content))
    with pytest.raises(ValueError, match=r"rows 0 to 9 .* whole.*a\.h5:/?y"):
        Samples(open_samples(path)).check()


def test_hdf5_files_with_damaged_groups(tmp_path: Path) -> None:
    path = hdf5(tmp_path / "a.h5", name="group/y")
    content = bytearray(path.read_bytes())
    for place in (content.find(b"TREE"), content.find(b"HEAP"), content.find(b"SNOD")):
        damaged = bytearray(content)
        damaged[place : place + 4] = b"\0\0\0\0"
        path.write_bytes(bytes(damaged))
        with pytest.raises(ValueError, match=r"HDF5 file at .*a\.h5, got"):
            open_samples(f"{path}:group/y")


def test_chunks_of_absurd_size_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = hdf5(tmp_path / "a.h5", chunks=(10, 6))
    monkeypatch.setattr(stored, "MAX_CHUNK_BYTES", 100)
    with pytest.raises(ValueError, match=r"chunks of at most 100 bytes, got 240 .*; store it in smaller chunks"):
        Samples(open_samples(path))


# -- NumPy files


def npy(shape: object, descr: object = "<f4", body: bytes = b"\0" * 96) -> bytes:
    text = (
        shape if isinstance(shape, bytes) else repr({"descr": descr, "fortran_order": False, "shape": shape}).encode()
    )
    text += b" " * (63 - (10 + len(text)) % 64) + b"\n"
    return b"\x93NUMPY\1\0" + struct.pack("<H", len(text)) + text + body


@pytest.mark.parametrize(
    "shape",
    [(-4, 6), (4, -6), (10**12, 6), (10**30, 6), (2**62, 4), (2**63, 2**63), (5, 6), b"(" * 300, b"{'a':", b"[]", b""],
)
def test_npy_headers_that_promise_what_is_not_there(shape: object, tmp_path: Path) -> None:
    (tmp_path / "a.npy").write_bytes(npy(shape))
    with pytest.raises(ValueError, match=r"a whole \.npy file of numbers at .*a\.npy"):
        open_samples(tmp_path / "a.npy")


@pytest.mark.parametrize("descr", ["<c8", "<M8[s]", "|V4", "<U1", [("a", "<f4")]])
def test_npy_files_of_other_types(descr: object, tmp_path: Path) -> None:
    (tmp_path / "a.npy").write_bytes(npy((4, 2), descr))
    with pytest.raises(TypeError, match="expected samples of an integer or float type"):
        Samples(open_samples(tmp_path / "a.npy"))


def test_an_archive_cut_short_is_no_npy_file(tmp_path: Path) -> None:
    (tmp_path / "a.npy").write_bytes(b"PK\3\4 rest")
    with pytest.raises(ValueError, match="an archive of several"):
        open_samples(tmp_path / "a.npy")


# -- pipes and devices


@pytest.mark.parametrize("name", ["a.npy", "a.h5", "a.zarr", "a.csv"])
def test_pipes_are_refused_at_once(name: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / name)
    with pytest.raises(ValueError, match=rf"expected .* at .*{name}, found a pipe"):
        open_samples(tmp_path / name)


def test_devices_and_pipes_inside_folders_are_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"expected .* at /dev/zero, found a device"):
        open_samples("/dev/zero")
    path = zarr_array(tmp_path / "a.zarr", 2)
    one_chunk(path, 2).unlink()
    os.mkfifo(one_chunk(path, 2))
    with pytest.raises(ValueError, match=r"found a pipe"):
        open_samples(path)
    shutil.rmtree(path)
    path.mkdir()
    os.mkfifo(path / ".zarray")
    with pytest.raises(ValueError, match=r"found a pipe"):
        open_samples(path)
    (tmp_path / "photos").mkdir()
    os.mkfifo(tmp_path / "photos" / "a.png")
    with pytest.raises(ValueError, match=r"found a pipe"):
        open_samples(tmp_path / "photos")
