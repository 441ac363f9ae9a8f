"""The full MNIST from its four idx files: find, download, read."""

from __future__ import annotations

import gzip
import hashlib
import math
import os
import urllib.request
import zlib
from collections.abc import Sequence
from http.client import HTTPException
from pathlib import Path

import numpy as np

from gppvae.data.atomic import write_bytes

MD5 = {
    "train-images-idx3-ubyte.gz": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
    "train-labels-idx1-ubyte.gz": "d53e105ee54ea40749a09fcbcd1e9432",
    "t10k-images-idx3-ubyte.gz": "9fb629c4189551a2d022fa330f9573f3",
    "t10k-labels-idx1-ubyte.gz": "ec29112dd5afa0611ce80d1b7f02629c",
}
MIRRORS = (
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
)
_PREFIX = {"train": "train", "test": "t10k"}
_UNSIGNED_BYTE = 0x08


def find_mnist(folder: str | Path | None = None) -> Path:
    """Return the folder that holds the four MNIST idx files, packed (.gz) or plain.

    Args:
        folder: look here and nowhere else; None looks in $GPPVAE_DATA/mnist, then in the user's cache.

    Raises:
        FileNotFoundError: no such folder; the message names the places and how to download.
    """
    places = _default_places() if folder is None else [Path(folder)]
    for place in places:
        if all(_idx_file(place, name) is not None for name in MD5):
            return place
    looked = " or ".join(str(place) for place in places)
    raise FileNotFoundError(
        f"the four MNIST idx files are not in {looked}; pass their folder, or put them in $GPPVAE_DATA/mnist "
        f"or in {_cache_folder()}, or download them with gppvae.paper.mnist.download_mnist()"
    )


def download_mnist(folder: str | Path | None = None, mirrors: Sequence[str] = MIRRORS) -> Path:
    """Fetch the four MNIST files (11 MB) that are missing or damaged, and check their MD5.

    Args:
        folder: where to put them; None means $GPPVAE_DATA/mnist if that is set, else the user's cache.
        mirrors: addresses to try in turn; a mirror that is down or sends wrong bytes is passed over.

    Returns:
        The folder.

    Raises:
        OSError: no mirror gave a file with the right checksum; nothing partial is left behind.
    """
    target = _default_places()[0] if folder is None else Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    for name, md5 in MD5.items():
        path = target / name
        if not path.is_file() or _digest(path.read_bytes()) != md5:
            _fetch(path, md5, mirrors)
    return target


def read_idx(path: str | Path) -> np.ndarray:
    """Read an array of unsigned bytes in idx format, gzip-packed if the name ends in .gz.

    Raises:
        ValueError: the file is not gzip, not idx, or has more or fewer bytes than its header says.
    """
    path = Path(path)
    data = path.read_bytes()
    if path.suffix == ".gz":
        try:
            data = gzip.decompress(data)
        except (OSError, EOFError, zlib.error) as error:
            raise ValueError(f"{path} is not a whole gzip file ({error}); download it again") from error
    if len(data) < 4 or data[:2] != b"\0\0" or data[2] != _UNSIGNED_BYTE or data[3] == 0:
        raise ValueError(
            f"{path} must begin with the idx mark 00 00 08 and a number of dimensions, "
            f"got {data[:4].hex(' ') or 'an empty file'}; download it again"
        )
    start = 4 + 4 * data[3]
    shape = tuple(int.from_bytes(data[i : i + 4], "big") for i in range(4, start, 4))
    expected = start + math.prod(shape)
    if len(data) != expected:
        raise ValueError(f"{path} should hold {expected} bytes for shape {shape}, got {len(data)}; download it again")
    return np.frombuffer(data, np.uint8, offset=start).reshape(shape).copy()


def load_mnist(folder: str | Path | None = None, split: str = "train") -> tuple[np.ndarray, np.ndarray]:
    """Load one half of the full MNIST.

    Args:
        folder: see `find_mnist`.
        split: "train" (60,000 images) or "test" (10,000).

    Returns:
        Images (N, 28, 28) and labels (N,), both uint8.
    """
    if split not in _PREFIX:
        raise ValueError(f'split must be "train" or "test", got {split!r}')
    place = find_mnist(folder)
    images_path = _idx_file(place, f"{_PREFIX[split]}-images-idx3-ubyte.gz")
    labels_path = _idx_file(place, f"{_PREFIX[split]}-labels-idx1-ubyte.gz")
    assert images_path is not None and labels_path is not None  # find_mnist has seen all four
    images, labels = read_idx(images_path), read_idx(labels_path)
    if images.shape[1:] != (28, 28) or labels.shape != images.shape[:1]:
        raise ValueError(
            f"{images_path} and {labels_path} should hold (N, 28, 28) images and (N,) labels, "
            f"got {images.shape} and {labels.shape}; download them again"
        )
    return images, labels


def first_of_each(count: int, folder: str | Path | None = None) -> tuple[np.ndarray, np.ndarray]:
    """The first images of every digit in the training half, digit by digit.

    Args:
        count: of each digit.  folder: see `find_mnist`.

    Returns:
        Images (10 * count, 28, 28), float64 in [0, 1], and labels (10 * count,), int64.
    """
    images, labels = load_mnist(folder)
    picked = np.concatenate([np.flatnonzero(labels == digit)[:count] for digit in range(10)])
    return images[picked] / 255.0, labels[picked].astype(np.int64)


def _cache_folder() -> Path:
    """Return the user's cache folder for MNIST."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gppvae" / "mnist"


def _default_places() -> list[Path]:
    """Return the folders to look in when the caller names none, best first."""
    shared = os.environ.get("GPPVAE_DATA")
    return ([Path(shared) / "mnist"] if shared else []) + [_cache_folder()]


def _idx_file(folder: Path, name: str) -> Path | None:
    """Return the packed or the plain form of the named file, or None if there is neither."""
    for path in (folder / name, folder / name.removesuffix(".gz")):
        if path.is_file():
            return path
    return None


def _digest(data: bytes) -> str:
    """Return the MD5 of some bytes; it guards against damage, not against an attacker."""
    return hashlib.md5(data, usedforsecurity=False).hexdigest()


def _fetch(path: Path, md5: str, mirrors: Sequence[str]) -> None:
    """Download one file from the first mirror that gives the right bytes."""
    faults = []
    for mirror in mirrors:
        url = f"{mirror.rstrip('/')}/{path.name}"
        try:
            with urllib.request.urlopen(url, timeout=60) as answer:
                data = answer.read()
        except (OSError, HTTPException) as error:
            faults.append(f"{url}: {error}")
            continue
        if _digest(data) == md5:
            write_bytes(path, data)
            return
        faults.append(f"{url}: MD5 {_digest(data)} instead of {md5}")
    raise OSError(
        f"could not download {path.name} with MD5 {md5} from any of {len(mirrors)} mirrors "
        f"({'; '.join(faults)}); try again later or copy the file to {path.parent} yourself"
    )
