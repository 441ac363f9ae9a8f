"""People in nine poses, photographed or generated: the test images of the paper's split."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from gppvae.bench.task import MSE, Question, Target, Task, errors_of
from gppvae.data.image_set import ImageSet
from gppvae.estimator.simple_answers import copy_nearest_view, mean_image, mean_of_nearest_view
from gppvae.paper.faces.data import ANGLE, OBJECT, SPLIT_SEED, VIEW, load_faces, task

KERNEL = "Learned(object) * FreeForm(pose)"
SPLITS = (SPLIT_SEED, 2, 3)
SIZE, HEADS_SIZE, PEOPLE = 128, 64, 30
DISJOINT = {SPLIT_SEED: 0.0302}  # of GPPVAE-dis where it was run, results/faces_faceplace_images.json


def photographs(data: Path, split: int) -> Task:
    """Face-Place photographs, split over images by this seed."""
    folders = sorted(path for path in (data / "faceplace").glob("*") if path.is_dir())
    if not folders:
        raise FileNotFoundError(f"expected folders of Face-Place photographs in {data / 'faceplace'}, found none")
    _, faces = load_faces(folders, 0, SIZE, progress=False, say=lambda line: None)
    target = Target(DISJOINT[split]) if split in DISJOINT else None
    about = f"Face-Place photographs, {SIZE} x {SIZE} colour, the paper's split drawn with seed {split}"
    return _task(f"faces-{split}", faces, split, target, about)


def heads(data: Path) -> Task:
    """Generated heads, small enough for a minute or two; needs no data."""
    _, faces = load_faces([], PEOPLE, HEADS_SIZE)
    return _task("heads", faces, SPLIT_SEED, None, f"{PEOPLE} generated heads, {HEADS_SIZE} x {HEADS_SIZE} colour")


def _task(name: str, faces: ImageSet, seed: int, target: Target | None, about: str) -> Task:
    split = task(name, faces, "images", seed)
    samples, truth = (part.images.astype(np.float32) / 255 for part in (split.train, split.test))
    rows, asked = split.train.table, split.test.table
    answers = {
        "nearest": copy_nearest_view(samples, rows, asked, OBJECT, ANGLE),
        "mean of the view": mean_of_nearest_view(samples, rows, asked, ANGLE),
        "mean": mean_image(samples, len(truth)),
    }
    table, wanted = (part[[OBJECT, VIEW]].to_dict("list") for part in (rows, asked))
    question = Question(name, wanted, truth, errors_of(MSE, truth, answers), target)
    return Task(name, KERNEL, samples, table, [question], about)
