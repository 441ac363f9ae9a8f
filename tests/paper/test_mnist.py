"""MNIST files: reading, finding and downloading, checked on hand-made files and a server on this computer."""

from __future__ import annotations

import gzip
import hashlib
import os
import struct
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from gppvae.paper import mnist

NAMES = (
    "train-images-idx3-ubyte.gz",
    "train-labels-idx1-ubyte.gz",
    "t10k-images-idx3-ubyte.gz",
    "t10k-labels-idx1-ubyte.gz",
)


def idx_bytes(array: np.ndarray) -> bytes:
    """Write the idx format from its definition: two zeros, type 8, dimensions, big-endian sizes, bytes."""
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def toy_arrays() -> dict[str, np.ndarray]:
    """Return images and labels for the four files, different in each half."""
    rng = np.random.default_rng(7)
    images = rng.integers(0, 256, (8, 28, 28), dtype=np.uint8)
    labels = np.arange(8, dtype=np.uint8)
    return dict(zip(NAMES, (images[:5], labels[:5], images[5:], labels[5:]), strict=True))


def fill(folder: Path, plain: bool = False) -> Path:
    """Put the four toy files into a folder."""
    folder.mkdir(parents=True)
    for name, array in toy_arrays().items():
        data = idx_bytes(array)
        path = folder / (name.removesuffix(".gz") if plain else name)
        path.write_bytes(data if plain else gzip.compress(data))
    return folder


@pytest.fixture
def empty_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Hide the real data folder and the real cache."""
    monkeypatch.delenv("GPPVAE_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


@pytest.fixture
def mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that acts as a mirror; the expected checksums are those of its files."""
    folder = fill(tmp_path / "mirror")
    sums = {name: hashlib.md5((folder / name).read_bytes()).hexdigest() for name in NAMES}
    monkeypatch.setattr(mnist, "MD5", sums)
    return folder


@pytest.fixture
def web(mirror: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Serve the mirror on 127.0.0.1: /whole/ gives the files, /cut/ hangs up half way, the rest is absent."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            _, kind, name = self.path.split("/")
            if kind not in ("whole", "cut"):
                self.send_error(404)
                return
            data = (mirror / name).read_bytes()
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data if kind == "whole" else data[: len(data) // 2])

        def log_message(self, format: str, *args: object) -> None:
            """Keep the test output clean."""

    monkeypatch.setenv("no_proxy", "127.0.0.1")
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize("name", ["a.gz", "a"])
@pytest.mark.parametrize("shape", [(4,), (2, 3), (2, 3, 5), (0, 28, 28)])
def test_read_idx_gives_the_array_back(tmp_path: Path, name: str, shape: tuple[int, ...]) -> None:
    array = np.arange(np.prod(shape), dtype=np.uint8).reshape(shape)
    data = idx_bytes(array)
    (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    read = mnist.read_idx(tmp_path / name)
    assert read.dtype == np.uint8 and read.flags.writeable
    np.testing.assert_array_equal(read, array)
    np.testing.assert_array_equal(mnist.read_idx(str(tmp_path / name)), array)


WHOLE = idx_bytes(np.arange(24, dtype=np.uint8).reshape(2, 3, 4))
DAMAGED = {
    "not gzip": ("x.gz", WHOLE, "not a whole gzip file"),
    "gzip cut short": ("x.gz", gzip.compress(WHOLE)[:-12], "not a whole gzip file"),
    "gzip with a wrong byte": ("x.gz", gzip.compress(WHOLE)[:-6] + b"\xff" * 6, "not a whole gzip file"),
    "empty .gz": ("x.gz", b"", "an empty file"),
    "packed without .gz": ("x", gzip.compress(WHOLE), "idx mark 00 00 08.*got 1f 8b 08"),
    "empty": ("x", b"", "an empty file"),
    "web page": ("x", b"<html>404</html>", "idx mark"),
    "floats": ("x", b"\0\0\x0d" + WHOLE[3:], "got 00 00 0d 03"),
    "no dimensions": ("x", b"\0\0\x08\0", "number of dimensions"),
    "header cut short": ("x", WHOLE[:9], r"should hold \d+ bytes"),
    "one byte missing": ("x", WHOLE[:-1], r"should hold 40 bytes for shape \(2, 3, 4\), got 39"),
    "one byte too many": ("x", WHOLE + b"\0", r"should hold 40 bytes for shape \(2, 3, 4\), got 41"),
    "huge sizes": ("x", b"\0\0\x08\x03" + b"\xff" * 12 + b"\0" * 8, "got 24"),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_read_idx_says_what_is_wrong_with_which_file(tmp_path: Path, case: str) -> None:
    name, data, message = DAMAGED[case]
    (tmp_path / name).write_bytes(data)
    with pytest.raises(ValueError, match=message) as caught:
        mnist.read_idx(tmp_path / name)
    assert str(tmp_path / name) in str(caught.value)


@pytest.mark.parametrize("plain", [False, True])
def test_load_mnist_reads_both_halves(tmp_path: Path, plain: bool) -> None:
    folder = fill(tmp_path / "mnist", plain)
    expected = toy_arrays()
    for split, prefix in (("train", "train"), ("test", "t10k")):
        images, labels = mnist.load_mnist(folder, split)
        np.testing.assert_array_equal(images, expected[f"{prefix}-images-idx3-ubyte.gz"])
        np.testing.assert_array_equal(labels, expected[f"{prefix}-labels-idx1-ubyte.gz"])


def test_load_mnist_refuses_unknown_half_and_unequal_files(tmp_path: Path) -> None:
    folder = fill(tmp_path / "mnist")
    with pytest.raises(ValueError, match='split must be "train" or "test"'):
        mnist.load_mnist(folder, "valid")
    (folder / NAMES[1]).write_bytes(gzip.compress(idx_bytes(np.zeros(4, np.uint8))))
    with pytest.raises(ValueError, match=r"got \(5, 28, 28\) and \(4,\)"):
        mnist.load_mnist(folder, "train")


def test_find_mnist_prefers_argument_then_variable_then_cache(
    empty_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = fill(empty_home / "cache" / "gppvae" / "mnist")
    assert mnist.find_mnist() == cache
    monkeypatch.setenv("GPPVAE_DATA", str(empty_home / "shared"))
    assert mnist.find_mnist() == cache
    shared = fill(empty_home / "shared" / "mnist")
    assert mnist.find_mnist() == shared
    own = fill(empty_home / "own")
    assert mnist.find_mnist(own) == own and mnist.find_mnist(str(own)) == own


def test_find_mnist_without_xdg_uses_the_home_cache(empty_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", lambda: empty_home / "home")
    cache = fill(empty_home / "home" / ".cache" / "gppvae" / "mnist")
    assert mnist.find_mnist() == cache


def test_find_mnist_names_the_places_when_nothing_is_there(empty_home: Path) -> None:
    cache = fill(empty_home / "cache" / "gppvae" / "mnist")
    with pytest.raises(FileNotFoundError, match=r"GPPVAE_DATA/mnist.*download_mnist\(\)") as caught:
        mnist.find_mnist(empty_home / "absent")
    assert str(empty_home / "absent") in str(caught.value) and str(cache) in str(caught.value)
    (cache / NAMES[3]).unlink()
    with pytest.raises(FileNotFoundError, match="four MNIST idx files are not in"):
        mnist.find_mnist()


def test_download_fetches_over_http_and_passes_over_bad_mirrors(tmp_path: Path, web: str) -> None:
    target = tmp_path / "new" / "folder"
    assert mnist.download_mnist(target, [f"{web}/gone/", f"{web}/cut", f"{web}/whole/"]) == target
    assert sorted(path.name for path in target.iterdir()) == sorted(NAMES)
    images, labels = mnist.load_mnist(target)
    np.testing.assert_array_equal(images, toy_arrays()[NAMES[0]])
    np.testing.assert_array_equal(labels, toy_arrays()[NAMES[1]])


def test_download_without_a_good_mirror_leaves_nothing(tmp_path: Path, web: str) -> None:
    with pytest.raises(OSError, match="from any of 2 mirrors") as caught:
        mnist.download_mnist(tmp_path / "new", [f"{web}/gone", f"{web}/cut"])
    assert "404" in str(caught.value) and "IncompleteRead" in str(caught.value)
    assert list((tmp_path / "new").iterdir()) == []


def test_download_refuses_a_wrong_checksum(tmp_path: Path, mirror: Path) -> None:
    (mirror / NAMES[0]).write_bytes(b"something else")
    got = hashlib.md5(b"something else").hexdigest()
    with pytest.raises(OSError, match=f"MD5 {got} instead of {mnist.MD5[NAMES[0]]}"):
        mnist.download_mnist(tmp_path / "new", [mirror.as_uri()])
    assert list((tmp_path / "new").iterdir()) == []


def test_download_keeps_good_files_and_replaces_damaged_ones(tmp_path: Path, mirror: Path) -> None:
    target = mnist.download_mnist(tmp_path / "new", [mirror.as_uri()])
    wanted = {name: (target / name).read_bytes() for name in NAMES}
    (target / NAMES[2]).write_bytes(b"half")
    for name in set(NAMES) - {NAMES[2]}:
        (mirror / name).unlink()
    mnist.download_mnist(target, [mirror.as_uri()])
    assert {path.name: path.read_bytes() for path in target.iterdir()} == wanted


def test_download_goes_to_the_variable_or_else_the_cache(
    empty_home: Path, mirror: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert mnist.download_mnist(mirrors=[mirror.as_uri()]) == empty_home / "cache" / "gppvae" / "mnist"
    monkeypatch.setenv("GPPVAE_DATA", str(empty_home / "shared"))
    assert mnist.download_mnist(mirrors=[mirror.as_uri()]) == empty_home / "shared" / "mnist"
    assert mnist.find_mnist() == empty_home / "shared" / "mnist"


def test_real_files_have_the_expected_checksums_and_counts() -> None:
    folder = Path(os.environ.get("GPPVAE_DATA", "")) / "mnist"
    if not (folder / NAMES[0]).is_file():
        pytest.skip("needs the four MNIST files in $GPPVAE_DATA/mnist")
    for name in NAMES:
        assert hashlib.md5((folder / name).read_bytes()).hexdigest() == mnist.MD5[name]
    images, labels = mnist.load_mnist(folder, "train")
    assert images.shape == (60000, 28, 28) and int((labels == 3).sum()) == 6131
    images, labels = mnist.load_mnist(folder, "test")
    assert images.shape == (10000, 28, 28) and int((labels == 3).sum()) == 1010
