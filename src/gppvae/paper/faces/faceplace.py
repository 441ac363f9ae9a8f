"""Face-Place 3.0: photographs of turning heads, the paper's second data set.

Nothing is downloaded and nothing of the data ships with this package: the loader takes the unpacked folder,
which holds any of Asian/ Black/ Caucasian/ Hispanic/ Multiracial/ with files such as `MF0918_3310_30L.jpg`.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from fractions import Fraction
from math import floor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from PIL import Image
from rich.progress import track

VIEWS: dict[str, float] = {
    "00F": 0.0,
    "30L": -30.0,
    "30R": 30.0,
    "45L": -45.0,
    "45R": 45.0,
    "60L": -60.0,
    "60R": 60.0,
    "90L": -90.0,
    "90R": 90.0,
}
"""Views that are kept, with their signed angles in degrees (L negative)."""
EXPRESSIONS = ("AN", "CO", "DI", "FE", "HA", "NE", "SA", "SU")
GROUPS = {"A": "Asian", "B": "Black", "C": "Caucasian", "H": "Hispanic", "M": "Multiracial"}
ACKNOWLEDGEMENT = (
    "Stimulus images courtesy of Michael J. Tarr, Center for the Neural Basis of Cognition and Department of "
    "Psychology, Carnegie Mellon University, http://www.tarrlab.org/. Funding provided by NSF award 0339122."
)

_NAME = re.compile(r"(?P<person>(?P<group>[ABCHM])(?P<sex>[FM])\d{4})_(?P<code>\d{4})_(?P<view>[A-Z0-9]+)\.jpe?g", re.I)
_COLUMNS = ["path", "group", "sex", "person", "object", "pose", "angle"]

StrPath = str | os.PathLike[str]
Fractions = tuple[float, float, float]


@dataclass(frozen=True)
class Scan:
    """What lies in a Face-Place folder.

    Attributes:
        table: one row per pose image, sorted by file name: path, group, sex ("F" or "M"), person ("MF0918"),
            object ("MF0918_3310": person and session code, a "person" of the paper), pose ("30L"),
            angle (-30.0).
        expressions: number of expression images, which are left out.
        misnamed: JPEG files whose names do not follow the pattern, left out as well.
    """

    table: pd.DataFrame
    expressions: int
    misnamed: list[Path]

    def report(self) -> str:
        """Counts per group and view, and what was left out, in one line."""
        counts = self.counts()
        groups = [
            f"{group} {row.sum()} ({', '.join(f'{view} {number}' for view, number in row.items())})"
            for group, row in counts.iterrows()
            if row.sum()
        ]
        left_out = [f"{self.expressions} expressions"] if self.expressions else []
        left_out += [f"misnamed {path.name}" for path in self.misnamed]
        return "; ".join(groups) + (f"; left out: {', '.join(left_out)}" if left_out else "")

    def counts(self) -> pd.DataFrame:
        """Number of images per group (rows) and view (columns), with zeros where there are none."""
        table = pd.crosstab(self.table["group"], self.table["pose"])
        return table.reindex(index=list(GROUPS.values()), columns=list(VIEWS), fill_value=0)


@dataclass(frozen=True)
class FacePlace:
    """Loaded images, a read-only memory map (n, size, size, 3) uint8, with one row of `table` each.

    `broken` names the files that could not be decoded and were left out; `scan` is what the folder holds.
    """

    images: NDArray[np.uint8]
    table: pd.DataFrame
    broken: list[Path]
    scan: Scan


def scan(folders: StrPath | Iterable[StrPath]) -> Scan:
    """List the images below one or more folders: the root of the data set or the folder of a group.

    Raises:
        FileNotFoundError: a folder is missing, or there is no pose image in any of them.
    """
    roots = [Path(folders)] if isinstance(folders, (str, os.PathLike)) else [Path(f) for f in folders]
    rows: list[dict[str, Any]] = []
    misnamed: list[Path] = []
    expressions = 0
    for path in _jpegs(roots):
        match = _NAME.fullmatch(path.name)
        view = match["view"].upper() if match else ""
        if match and view in VIEWS:
            rows.append(_row(path, match, view))
        elif view in EXPRESSIONS:
            expressions += 1
        else:
            misnamed.append(path)
    if not rows:
        raise FileNotFoundError(
            f"expected Face-Place images such as MF0918_3310_30L.jpg in {', '.join(map(str, roots))}, "
            f"found none; {_how_to_get_it()}"
        )
    table = pd.DataFrame(rows, columns=_COLUMNS)
    return Scan(table, expressions, misnamed)


def _jpegs(roots: list[Path]) -> Iterator[Path]:
    """JPEG files of the folders and of their group folders, each once, in the order of their names."""
    found: dict[Path, Path] = {}
    for root in roots:
        if not root.is_dir():
            raise FileNotFoundError(f"expected a Face-Place folder at {root}, found none; {_how_to_get_it()}")
        for folder in (root, *(root / name for name in GROUPS.values())):
            for path in folder.iterdir() if folder.is_dir() else ():
                if path.suffix.lower() in (".jpg", ".jpeg"):
                    found.setdefault(path.resolve(), path)
    yield from sorted(found.values(), key=lambda path: (path.name, str(path)))


def _row(path: Path, match: re.Match[str], view: str) -> dict[str, Any]:
    person = match["person"].upper()
    return {
        "path": str(path),
        "group": GROUPS[match["group"].upper()],
        "sex": match["sex"].upper(),
        "person": person,
        "object": f"{person}_{match['code']}",
        "pose": view,
        "angle": VIEWS[view],
    }


def find_folder(folder: StrPath | None = None) -> Path:
    """The Face-Place folder: the argument, else $GPPVAE_DATA/faceplace, else `faceplace` in the cache."""
    if folder is not None:
        places = [Path(folder)]
    else:
        data = os.environ.get("GPPVAE_DATA")
        places = [Path(data) / "faceplace"] if data else []
        places.append(_user_cache() / "faceplace")
    for place in places:
        if place.is_dir():
            return place
    raise FileNotFoundError(
        f"expected the Face-Place images in {' or '.join(map(str, places))}, found no such folder; {_how_to_get_it()}"
    )


def _how_to_get_it() -> str:
    return (
        "get the archives from the Face-Place Database Project (tarrlab.org), unpack and pass the folder, "
        "or set GPPVAE_DATA to the folder above faceplace/; terms: non-commercial research, acknowledged as "
        f'"{ACKNOWLEDGEMENT}"'
    )


def load_faceplace(
    folder: StrPath | Iterable[StrPath] | None = None,
    size: int = 128,
    cache: StrPath | None = None,
    workers: int | None = None,
    progress: bool = True,
) -> FacePlace:
    """Pose images of Face-Place as one memory-mapped array.

    The first call decodes and resizes every JPEG into a .npy file in the cache; later calls map that file, as
    long as names, sizes and dates of the JPEGs and the picture size are the same.

    Args:
        folder: the data set, a group folder or several of them; see `find_folder` for the default.
        size: pixels per side.
        cache: folder for the decoded array; default $XDG_CACHE_HOME/gppvae or ~/.cache/gppvae.
        workers: decoding threads, default one per core.  progress: show a progress bar.
    """
    if size < 1:
        raise ValueError(f"size must be at least 1 pixel, got {size}; the paper uses 128")
    several = folder if folder is not None and not isinstance(folder, (str, os.PathLike)) else [folder]
    found = scan([find_folder(place) for place in several])
    paths = [Path(path) for path in found.table["path"]]
    store = Path(cache) if cache is not None else _user_cache()
    store.mkdir(parents=True, exist_ok=True)
    file = store / f"faceplace-{size}-{_fingerprint(paths, size)}.npy"
    flags = file.with_suffix(".ok.npy")
    if not (file.exists() and flags.exists()):
        _decode_all(paths, size, file, flags, workers, progress)
    good = np.load(flags)
    table = found.table[good].reset_index(drop=True)
    broken = [path for path, ok in zip(paths, good, strict=True) if not ok]
    images: NDArray[np.uint8] = np.load(file, mmap_mode="r")[: len(table)]
    return FacePlace(images, table, broken, found)


def _user_cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "gppvae"


def _fingerprint(paths: list[Path], size: int) -> str:
    """Short hash of names, lengths and dates of the files; 1 is the version of the decoding below."""
    digest = hashlib.sha256(f"1 {size}".encode())
    for path in paths:
        stat = path.stat()
        digest.update(f"{path.name} {stat.st_size} {stat.st_mtime_ns}\n".encode())
    return digest.hexdigest()[:16]


def _decode_all(paths: list[Path], size: int, file: Path, flags: Path, workers: int | None, progress: bool) -> None:
    """Write the good images to `file` and which paths were good to `flags`; spare rows stay at the end."""
    good = np.zeros(len(paths), bool)
    part, flags_part = (path.with_name(f".{os.getpid()}.{path.name}") for path in (file, flags))
    try:
        out = np.lib.format.open_memmap(part, "w+", np.uint8, (len(paths), size, size, 3))
        with ThreadPoolExecutor(workers or os.cpu_count()) as pool:
            decoded = pool.map(lambda path: _decode(path, size), paths)
            for i, image in enumerate(track(decoded, "Reading faces", len(paths), disable=not progress)):
                if image is not None:
                    out[good.sum()] = image
                    good[i] = True
        out.flush()
        del out
        np.save(flags_part, good)
        os.replace(part, file)
        os.replace(flags_part, flags)
    finally:
        part.unlink(missing_ok=True)
        flags_part.unlink(missing_ok=True)


def _decode(path: Path, size: int) -> NDArray[np.uint8] | None:
    """The picture resized to (size, size, 3), or None if the file is damaged."""
    try:
        with Image.open(path) as image:
            image.load()
            return np.asarray(image.convert("RGB").resize((size, size), Image.Resampling.LANCZOS))
    except (OSError, SyntaxError, ValueError):  # what Pillow raises for truncated and malformed files
        return None


class Split(NamedTuple):
    """Sorted row numbers of the three parts of a table."""

    train: NDArray[np.int64]
    valid: NDArray[np.int64]
    test: NDArray[np.int64]


def split_images(table: pd.DataFrame, seed: int, fractions: Fractions = (0.8, 0.1, 0.1)) -> Split:
    """Random split over images, as in the paper: a seeded permutation cut at the fractions.

    Nothing keeps an object's last view in training; `predictable` says which rows can be predicted.
    """
    order = np.random.default_rng(seed).permutation(len(table))
    cuts = np.cumsum(_sizes(len(table), fractions)[:2])
    return Split(*(np.sort(part) for part in np.split(order, cuts)))


def split_people(
    table: pd.DataFrame, seed: int, fractions: Fractions = (0.8, 0.1, 0.1), column: str = "person"
) -> Split:
    """Random split over whole people, for new-object evaluation: no person is in two parts, however dressed.

    Args:
        table: rows with the given column.  seed: of the permutation.
        fractions: shares of the people, not of the images.  column: what must stay together.
    """
    people = np.unique(table[column].to_numpy(dtype=str))
    chosen = np.random.default_rng(seed).permutation(people)
    cuts = np.cumsum(_sizes(len(people), fractions)[:2])
    rows = (np.flatnonzero(table[column].isin(part)) for part in np.split(chosen, cuts))
    return Split(*rows)


def predictable(
    table: pd.DataFrame,
    train_idx: NDArray[np.int64],
    idx: NDArray[np.int64],
    object_column: str = "object",
    view_column: str = "pose",
) -> NDArray[np.bool_]:
    """Rows of `idx` whose object was trained on in another view and whose view with another object.

    Returns: (len(idx),) mask.
    """
    objects, _ = pd.factorize(table[object_column])
    views, _ = pd.factorize(table[view_column])
    seen = np.zeros((objects.max() + 1, views.max() + 1), np.int64)
    np.add.at(seen, (objects[train_idx], views[train_idx]), 1)
    own = seen[objects[idx], views[idx]]
    return (seen.sum(axis=1)[objects[idx]] > own) & (seen.sum(axis=0)[views[idx]] > own)


def _sizes(n: int, fractions: Fractions) -> tuple[int, int, int]:
    """Sizes of the three parts: halves round up for training and validation, testing gets the rest."""
    exact = [Fraction(str(fraction)) for fraction in fractions]  # 0.1 is meant as one tenth
    if len(exact) != 3 or min(exact) < 0 or sum(exact) != 1:
        raise ValueError(f"fractions must be three shares that add up to 1, got {fractions}; use e.g. (0.8, 0.1, 0.1)")
    train, valid = (floor(n * share + Fraction(1, 2)) for share in exact[:2])
    valid = min(valid, n - train)
    return train, valid, n - train - valid
