"""Arrays filled batch by batch, in memory or in .npy files that may be larger than it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from torch import Tensor

from gppvae.data.atomic import part_of, remove_leftovers, write_error

Folder = str | os.PathLike[str] | None


class Outputs:
    """Named arrays of N rows, filled in order; files get their names when they are complete.

    Args:
        out: folder for name.npy, created if missing; None keeps the arrays in memory.
        names: of the arrays.  shape: of each, N first.  dtype: of each.
    """

    def __init__(self, out: Folder, names: tuple[str, ...], shape: tuple[int, ...], dtype: Any = np.float32) -> None:
        self.folder = None if out is None else Path(out)
        self.names, self.shape, self.dtype, self.filled = names, shape, np.dtype(dtype), 0
        self.arrays: dict[str, np.ndarray] = {}
        if self.folder is None:
            self.arrays = {name: np.empty(shape, dtype=dtype) for name in names}
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        for name in names:
            if (self.folder / f"{name}.npy").exists():
                raise FileExistsError(f"{self.folder} already holds {name}.npy; choose another folder or remove it")
        for name in names:
            remove_leftovers(self.folder / f"{name}.npy")
            with self._writing(name), open(self._unfinished(name), "wb") as file:
                described = {"descr": self.dtype.str, "fortran_order": False, "shape": shape}
                np.lib.format.write_array_header_2_0(file, described)

    def _unfinished(self, name: str) -> Path:
        assert self.folder is not None
        return part_of(self.folder / f"{name}.npy")

    @contextlib.contextmanager
    def _writing(self, name: str) -> Iterator[None]:
        """On an OSError, remove all unfinished files and raise an error that names the file."""
        assert self.folder is not None
        try:
            yield
        except OSError as error:
            for other in self.names:
                with contextlib.suppress(OSError):
                    self._unfinished(other).unlink(missing_ok=True)
            raise write_error(error, self.folder / f"{name}.npy", "no file was left") from error

    def put(self, **parts: Tensor | np.ndarray) -> None:
        """Append rows to each array, by name."""
        for name, part in parts.items():
            rows = part.cpu().numpy() if isinstance(part, Tensor) else part
            if self.folder is None:
                self.arrays[name][self.filled : self.filled + len(rows)] = rows
            else:
                # Appended, since written pages of a memory map would count as memory in use.
                with self._writing(name), open(self._unfinished(name), "ab") as file:
                    file.write(np.ascontiguousarray(rows, dtype=self.dtype).tobytes())
        self.filled += len(rows)

    def __getitem__(self, name: str) -> np.ndarray:
        return self.arrays[name]

    def __enter__(self) -> Outputs:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        for name in self.names if self.folder is not None else ():
            assert self.folder is not None
            if kind is not None:
                self._unfinished(name).unlink(missing_ok=True)
                continue
            with self._writing(name):
                os.replace(self._unfinished(name), self.folder / f"{name}.npy")
            self.arrays[name] = np.load(self.folder / f"{name}.npy", mmap_mode="r", allow_pickle=False)
