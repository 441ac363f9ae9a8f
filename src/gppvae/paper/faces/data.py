"""The faces of a comparison: generated heads, or photographs from a folder; split over images or over people."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from gppvae.data.image_set import ImageSet
from gppvae.paper.comparison.task import MIRRORED, Task
from gppvae.paper.faces.faceplace import VIEWS, Split, load_faceplace, predictable, split_images, split_people
from gppvae.paper.faces.heads import make_heads

SPLITS = ("images", "people")
SPLIT_SEED, HEADS_SEED = 1, 0
GIVEN_VIEWS = 4
OBJECT, PERSON, VIEW, ANGLE = "object", "person", "pose", "angle"


def check_split(split: str) -> None:
    """Say so when there is no such split, before anything is rendered or read."""
    if split not in SPLITS:
        raise ValueError(f"split must be one of {', '.join(SPLITS)}, got {split!r}; images is the default")


def load_faces(
    folders: Sequence[Path], people: int, size: int, progress: bool = True, say: Callable[[str], None] = print
) -> tuple[str, ImageSet]:
    """Name and images (n, 3, size, size), bytes, with columns object, person, pose, angle and mirrored ("no").

    Args:
        folders: of unpacked Face-Place archives; none: generated heads.  people: how many of those.
        size: pixels per side.  progress: show a bar while photographs are read.
        say: told what the folders hold and which files are left out.
    """
    if not folders:
        images, table = make_heads(people, HEADS_SEED, size)
        name = "generated heads"
    else:
        faces = load_faceplace(folders, size, progress=progress)
        say(faces.scan.report() + "".join(f"; broken {path.name}" for path in faces.broken))
        images, table, name = faces.images, faces.table, "Face-Place photographs"
    rows = table.assign(**{OBJECT: table[OBJECT] if OBJECT in table else table[PERSON], MIRRORED: "no"})
    columns = [OBJECT, PERSON, VIEW, ANGLE, MIRRORED]
    return name, ImageSet(np.ascontiguousarray(images.transpose(0, 3, 1, 2)), rows[columns])


def task(name: str, faces: ImageSet, split: str, seed: int = SPLIT_SEED) -> Task:
    """The comparison's question about these faces; `seed` draws the split.

    "images", the paper's split: 80% of all images are trained on, 10% each are for validation and test; those whose
    person was not trained on in another pose, or whose pose in no other person, are left out of both.
    "people": 80% of the people are trained on. Of every other one a few views are given and the rest is asked for.
    """
    table = faces.table
    if split == "images":
        chosen = split_images(table, seed)
        asked, test = (rows[predictable(table, chosen.train, rows)] for rows in (chosen.valid, chosen.test))
        given = shown = chosen.train
    else:
        chosen = split_people(table, seed)
        (given, asked), (shown, test) = (_some_views(table, rows, seed) for rows in (chosen.valid, chosen.test))
    _check(len(asked), len(test))
    train = faces.take(chosen.train)
    return Task(
        "faces", train, valid=faces.take(chosen.valid), given=faces.take(given), asked=faces.take(asked),
        shown=train if shown is chosen.train else faces.take(shown), test=faces.take(test), object=OBJECT, view=VIEW,
        angle=ANGLE, period=None, views=dict(sorted(VIEWS.items(), key=lambda view: view[1])),
        facts=_facts(name, faces, split, chosen, len(asked), len(test)), stop_on=faces.take(asked),
        new_objects=split == "people", mirrored=with_mirror_images(train),
    )  # fmt: skip


def with_mirror_images(faces: ImageSet) -> ImageSet:
    """The images, then their mirror images: of the same person in the mirrored pose, and marked as such."""
    pose_at = {angle: pose for pose, angle in VIEWS.items()}
    turned = faces.table.assign(**{ANGLE: -faces.table[ANGLE], MIRRORED: "yes"})
    turned[VIEW] = [pose_at[angle] for angle in turned[ANGLE]]
    images = np.concatenate([faces.images, faces.images[..., ::-1]])
    return ImageSet(images, pd.concat([faces.table, turned], ignore_index=True))


def _some_views(table: pd.DataFrame, rows: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows to look at and rows to ask for: a few views of every object drawn at random, and its others."""
    stream = np.random.default_rng(seed)
    given: list[int] = []
    objects = table[OBJECT].to_numpy()[rows]
    for name in np.unique(objects.astype(str)):
        own = rows[objects == name]
        given.extend(stream.permutation(own)[: min(GIVEN_VIEWS, len(own) - 1)])
    return np.sort(np.array(given, dtype=np.int64)), np.setdiff1d(rows, given)


def _check(*sizes: int) -> None:
    if min(sizes) < 2:
        raise ValueError(
            f"expected two or more images to validate on and two or more to predict, got {sizes[0]} and {sizes[1]}; "
            "use more people or the other split"
        )


def _facts(name: str, faces: ImageSet, split: str, chosen: Split, asked: int, test: int) -> dict[str, Any]:
    return {
        "name": name,
        "images": len(faces.table),
        "objects": int(faces.table[OBJECT].nunique()),
        "people": int(faces.table[PERSON].nunique()),
        "size": int(faces.images.shape[-1]),
        "train": len(chosen.train),
        "validation": asked,
        "test": test,
        "left_out": len(chosen.valid) + len(chosen.test) - asked - test if split == "images" else 0,
        "given_views": GIVEN_VIEWS if split == "people" else None,
    }
