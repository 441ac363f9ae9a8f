"""One data set of an HDF5 file: found by name, checked for missing parts and for links to other files."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py

from gppvae.data.paths import plain_file
from gppvae.data.unwritten import Unwritten, unwritten_part
from gppvae.data.words import reason

MAX_LINKS = 32  # followed in one path; links may form a cycle


def open_hdf5(file: Path, name: str = "", outside: bool = False, fill_unwritten: bool = False) -> Any:
    """The data set of this name, or the only one in the file.

    Args:
        file: the HDF5 file.  name: path of the data set in the file; links are followed.
        outside: whether data may be in other files: external links, external storage, virtual data sets.
        fill_unwritten: whether parts that were never written may be read as the fill value.
    """
    plain_file(file, "an HDF5 file")
    with _readable_errors(file), contextlib.ExitStack() as on_failure:
        content = h5py.File(file, "r")
        on_failure.callback(content.close)
        names: list[str] = []
        content.visititems(lambda path, item: names.append(_text(path)) if isinstance(item, h5py.Dataset) else None)
        wanted = name.strip("/") or (names[0] if len(names) == 1 else "")
        data = _find(content, wanted, outside) if wanted else None
        if not isinstance(data, h5py.Dataset):
            raise ValueError(
                f"expected one data set of {file} by name ({', '.join(names[:20]) or 'it has none'}), "
                f"got {name or 'none'}; write for example {file}:{names[0] if names else 'images'}"
            )
        if data.shape is None:
            raise ValueError(f"expected an array in {file}:{wanted}, got an empty data set; choose another one")
        _check_type(data, f"{file}:{wanted}")
        _check_complete(data, outside, fill_unwritten, set())
        on_failure.pop_all()  # the data set needs its file open
    return data


@contextlib.contextmanager
def _readable_errors(file: Path) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise
    except (OSError, RuntimeError, KeyError) as error:  # from h5py, depending on where a file is damaged
        raise ValueError(
            f"expected an HDF5 file at {file}, got something else or a damaged one "
            f"({reason(error)}); write it with h5py"
        ) from None


def _text(name: str | bytes) -> str:
    """A name as text; h5py returns bytes unless it is UTF-8."""
    return name if isinstance(name, str) else name.decode("utf-8", "replace")


def _check_type(data: h5py.Dataset, name: str) -> None:
    """Raise ValueError if NumPy has no type for the numbers, as in a damaged file."""
    try:
        _ = data.dtype
    except (ValueError, TypeError) as error:
        raise ValueError(
            f"expected numbers in {name}, got a type that cannot be read ({error}); write it again"
        ) from None


def _find(content: h5py.File, path: str, outside: bool) -> Any:
    """The object at a path, or None. Resolved link by link, since h5py would follow links into any other file."""
    item: Any = content
    parts = [part for part in path.split("/") if part]
    links = 0
    while parts:
        if not isinstance(item, h5py.Group):
            return None
        part = parts.pop(0)
        link = item.get(part, getlink=True)
        if isinstance(link, h5py.HardLink):
            item = item[part]
            continue
        links += 1
        if link is None or links > MAX_LINKS:
            return None
        parts = [part for part in link.path.split("/") if part] + parts
        if isinstance(link, h5py.ExternalLink):
            file = item.file.filename
            item = h5py.File(_other_file(file, _relative(file, link.filename), outside), "r")
        elif link.path.startswith("/"):
            item = item.file
    return item


def _relative(file: str, other: str) -> str:
    """The path of another file, given relative to `file`, as in links and virtual data sets."""
    return os.path.join(os.path.dirname(file), other)


def _other_file(file: str, other: str, outside: bool) -> Path:
    """The path of another file that `file` refers to, if that is allowed and it exists."""
    if not outside:
        raise ValueError(
            f"expected all data inside {file}, got a part of it in {other}; "
            "allow other files with outside=True (--outside)"
        )
    return plain_file(other, f"data that {file} refers to")


def _check_complete(data: h5py.Dataset, outside: bool, fill_unwritten: bool, seen: set[tuple[str, str]]) -> None:
    """Raise ValueError if values of the data set, or of the sources of a virtual one, are missing."""
    name = f"{data.file.filename}:{data.name.strip('/')}"
    if (data.file.filename, data.name) in seen:
        return
    seen.add((data.file.filename, data.name))
    unwritten = unwritten_part(data)
    if unwritten is not None and not fill_unwritten:
        raise ValueError(unwritten.error(name))
    left = data.nbytes
    for other, offset, size in data.external or ():
        # HDF5 resolves these names in the working directory, and reads zeros where such a file ends early.
        path = _other_file(data.file.filename, os.path.abspath(other), outside)
        needed, have = offset + min(size, left), os.path.getsize(path)
        if have < needed:
            raise ValueError(f"expected {needed} bytes of {name} in {path}, got {have}; restore the file")
        left -= min(size, left)
    if data.is_virtual:
        _check_sources(data, name, outside, fill_unwritten, seen)


def _check_sources(
    data: h5py.Dataset, name: str, outside: bool, fill_unwritten: bool, seen: set[tuple[str, str]]
) -> None:
    sources = data.virtual_sources()
    mapped = sum(source.vspace.get_select_npoints() for source in sources)
    if mapped < data.size and not fill_unwritten:
        raise ValueError(Unwritten(mapped, data.size, "values", data.fillvalue).error(name))
    for source in sources:
        with contextlib.ExitStack() as opened:
            file = data.file
            if source.file_name != ".":
                path = _other_file(data.file.filename, _relative(data.file.filename, source.file_name), outside)
                file = opened.enter_context(h5py.File(path, "r"))
            found = _find(file, source.dset_name, outside)
            if not isinstance(found, h5py.Dataset) or not _covers(found, source):
                fault = f"shape {found.shape}" if isinstance(found, h5py.Dataset) else "no such data set"
                raise ValueError(
                    f"expected whole sources of {name}, got {file.filename}:{source.dset_name} with {fault}; restore it"
                )
            _check_complete(found, outside, fill_unwritten, seen)


def _covers(found: h5py.Dataset, source: Any) -> bool:
    """Whether a source has all the values that a virtual data set maps; HDF5 would fill in the rest."""
    if found.shape is None:
        return False
    if source.src_space.get_select_type() == h5py.h5s.SEL_ALL:  # stored without a shape
        return int(found.size) >= int(source.vspace.get_select_npoints())
    _, last = source.src_space.get_select_bounds()
    return len(last) == len(found.shape) and all(end < n for end, n in zip(last, found.shape, strict=True))
