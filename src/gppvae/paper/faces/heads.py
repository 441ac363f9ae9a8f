"""Made-up turning heads: a stand-in for the face data that needs no download and has known factors.

Each person is drawn from continuous factors of shape and colour and rendered in nine poses, turned about
the vertical axis as in the Face-Place data: pose 30R shows the face turned to the left of the picture.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from rich.progress import track

from .faceplace import VIEWS
from .heads_hair import cover, hair_end, hair_surfaces
from .heads_person import Person, draw_person
from .heads_render import LIGHT, Surface, join, render
from .heads_shape import Skull, ear_surfaces, head_surface, neck_surface

POSES: Mapping[str, float] = MappingProxyType(VIEWS)
"""Name and signed angle in degrees of every pose."""


def make_heads(
    n_people: int, seed: int, size: int = 128, poses: Mapping[str, float] = POSES
) -> tuple[NDArray[np.uint8], pd.DataFrame]:
    """Images and table of the first people of a population, in memory.

    Args:
        n_people: number of people.  seed: which population.  size: pixels per side.  poses: name -> degrees.
    Returns:
        images (n_people * n_poses, size, size, 3) and their table (see `heads_table`), in the same order.
    """
    table = heads_table(n_people, poses)
    images = np.empty((len(table), size, size, 3), np.uint8)
    for i, views in enumerate(iter_heads(n_people, seed, size, poses)):
        images[i * len(poses) : (i + 1) * len(poses)] = views
    return images, table


def iter_heads(
    n_people: int, seed: int, size: int = 128, poses: Mapping[str, float] = POSES
) -> Iterator[NDArray[np.uint8]]:
    """The images of one person after the other, each (n_poses, size, size, 3).

    Person i depends on `seed` and i only, so a longer run starts with the people of a shorter one.
    """
    _check(n_people, size, poses)
    for i in range(n_people):
        surface = person_surface(draw_person(seed, i), size)
        yield np.stack([render(surface, angle, size) for angle in poses.values()])


def heads_table(n_people: int, poses: Mapping[str, float] = POSES) -> pd.DataFrame:
    """One row per image: person ("p0007"), pose ("30L") and angle (-30.0 degrees)."""
    return pd.DataFrame(
        {
            "person": [f"p{i:04d}" for i in range(n_people) for _ in poses],
            "pose": list(poses) * n_people,
            "angle": np.tile(np.array(list(poses.values()), dtype=float), n_people),
        }
    )


def write_heads(
    path: str | os.PathLike[str],
    n_people: int,
    seed: int,
    size: int = 128,
    poses: Mapping[str, float] = POSES,
    progress: bool = True,
) -> pd.DataFrame:
    """Render straight into a .npy file, one person in memory at a time, and return the table of its rows.

    The file appears under its name only when it is complete; open it with `numpy.load(path, mmap_mode="r")`.
    """
    _check(n_people, size, poses)
    path = Path(path)
    table = heads_table(n_people, poses)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        out = np.lib.format.open_memmap(partial, "w+", np.uint8, (len(table), size, size, 3))
        people = iter_heads(n_people, seed, size, poses)
        for i, views in enumerate(track(people, "Rendering heads", total=n_people, disable=not progress)):
            out[i * len(poses) : (i + 1) * len(poses)] = views
        out.flush()
        del out
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
    return table


def person_surface(person: Person, size: int = 128) -> Surface:
    """All surfaces of one person, sampled for pictures of `size` pixels from any angle."""
    skull, detail = Skull(person), size / 128
    turn = np.linspace(-np.pi, np.pi, 300, dtype=np.float32)
    head = head_surface(skull, (turn, hair_end(person, turn)), detail)
    ears = ear_surfaces(skull, cover(person), detail)
    return join([head, *ears, neck_surface(person, detail), *hair_surfaces(skull, detail)])


def render_person(
    person: Person, angle: float, size: int = 128, light: tuple[float, float, float] = LIGHT
) -> NDArray[np.uint8]:
    """Picture of one person at any angle, (size, size, 3); positive angles are poses to the R side."""
    return render(person_surface(person, size), angle, size, light)


def _check(n_people: int, size: int, poses: Mapping[str, float]) -> None:
    if n_people < 1 or size < 8 or not poses:
        raise ValueError(
            f"heads need at least 1 person, 8 pixels and 1 pose, got n_people={n_people}, size={size}, "
            f"{len(poses)} poses; raise the one that is too small"
        )
