"""Rendered heads: reproducible, turning, and different from person to person."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gppvae.paper.faces.heads import (
    POSES,
    draw_person,
    heads_table,
    iter_heads,
    make_heads,
    render_person,
    write_heads,
)

SIZE = 48
BACKGROUND = 243  # the corners of every picture


@pytest.fixture(scope="module")
def population() -> np.ndarray:
    """Six people in nine poses, (6, 9, SIZE, SIZE, 3) as floats."""
    images, _ = make_heads(6, seed=1, size=SIZE)
    return images.reshape(6, 9, SIZE, SIZE, 3).astype(float)


def test_images_and_table_match() -> None:
    images, table = make_heads(2, seed=0, size=SIZE)
    assert images.shape == (18, SIZE, SIZE, 3)
    assert images.dtype == np.uint8
    assert table["person"].tolist() == ["p0000"] * 9 + ["p0001"] * 9
    assert table["pose"].tolist() == list(POSES) * 2
    for pose, angle in zip(table["pose"], table["angle"], strict=True):
        assert angle == int(pose[:2]) * {"F": 0, "L": -1, "R": 1}[pose[2]]
    one = render_person(draw_person(0, 1), 60.0, SIZE)
    row = table.index[(table["person"] == "p0001") & (table["pose"] == "60R")][0]
    np.testing.assert_array_equal(images[row], one)


def test_same_seed_same_heads_other_seed_other_heads() -> None:
    first, _ = make_heads(2, seed=3, size=SIZE)
    again, _ = make_heads(2, seed=3, size=SIZE)
    other, _ = make_heads(2, seed=4, size=SIZE)
    np.testing.assert_array_equal(first, again)
    assert np.abs(first.astype(float) - other).mean() > 5


def test_a_person_does_not_depend_on_how_many_there_are() -> None:
    few = list(iter_heads(2, seed=7, size=SIZE))
    many = list(iter_heads(4, seed=7, size=SIZE))
    for a, b in zip(few, many, strict=False):
        np.testing.assert_array_equal(a, b)


def test_people_are_distinguishable_in_every_pose(population: np.ndarray) -> None:
    """In a pose, any two people differ by far more than one person differs from a neighbouring angle."""
    for pose in range(9):
        for i in range(6):
            for j in range(i):
                assert np.abs(population[i, pose] - population[j, pose]).mean() > 6
    person = draw_person(1, 0)
    nearby = np.abs(render_person(person, 31.0, SIZE).astype(float) - render_person(person, 30.0, SIZE)).mean()
    between = np.abs(population[1:, 2] - population[0, 2]).mean()
    assert between > 5 * nearby


def test_every_pose_of_a_person_is_different(population: np.ndarray) -> None:
    for person in population:
        for i in range(9):
            for j in range(i):
                assert np.abs(person[i] - person[j]).mean() > 1.5


def test_heads_stand_on_a_light_background_and_fill_the_frame(population: np.ndarray) -> None:
    corners = population[:, :, :2, [0, 1, -2, -1]]
    assert np.abs(corners - BACKGROUND).max() <= 3
    covered = (np.abs(population - BACKGROUND).max(axis=-1) > 12).mean(axis=(2, 3))
    assert covered.min() > 0.25
    assert covered.max() < 0.75


@pytest.mark.parametrize("angle", [30.0, 60.0, 90.0])
def test_left_and_right_mirror_each_other_under_a_central_light(angle: float) -> None:
    """With symmetric hair and light, right is the mirror image of left; only the strands differ."""
    person = replace(draw_person(1, 2), parting=0.0, curl=0.0, hair_length=0.05)
    light = (0.0, 0.5, 0.85)
    right = render_person(person, angle, SIZE, light).astype(float)
    left = render_person(person, -angle, SIZE, light).astype(float)
    mirrored = np.abs(right - left[:, ::-1]).mean()
    plain = np.abs(right - left).mean()
    assert mirrored < 3.5
    assert plain > 4 * mirrored
    side_light = render_person(person, angle, SIZE, (-0.8, 0.3, 0.5)).astype(float)
    assert np.abs(side_light - left[:, ::-1]).mean() > 2 * mirrored


def test_the_nose_points_the_way_of_the_pose() -> None:
    """At face height the outline reaches further to the left of the picture in 90R, as in the photographs."""
    person = replace(draw_person(1, 2), hair_length=0.0, bun=0.0, fringe=0.0)

    def reach(nose_height: float, angle: float) -> tuple[int, int]:
        image = render_person(replace(person, nose_height=nose_height), angle, 128).astype(int)
        band = (np.abs(image[70:78] - BACKGROUND).max(axis=-1) > 30).any(axis=0)
        columns = np.flatnonzero(band)
        return int(columns[0]), int(columns[-1])

    for angle, side, sign in ((90.0, 0, -1), (-90.0, 1, 1)):
        small, large = reach(0.6, angle), reach(1.6, angle)
        assert sign * (large[side] - small[side]) >= 4, "a larger nose must show in profile"
        assert large[1 - side] == small[1 - side], "and nowhere at the back of the head"


@pytest.mark.parametrize(
    ("factor", "low", "high"),
    [
        ("face_width", 0.85, 1.12),
        ("jaw", 0.8, 1.2),
        ("nose_length", 0.85, 1.15),
        ("eye_distance", 0.88, 1.12),
        ("eye_size", 0.8, 1.3),
        ("brow_thickness", 0.4, 1.8),
        ("lip_fullness", 0.6, 1.6),
        ("hair_length", 0.0, 0.9),
        ("hair_volume", 0.3, 1.6),
        ("fringe", 0.0, 1.0),
        ("hairline", -0.08, 0.15),
        ("beard", 0.0, 1.0),
        ("collar", -0.12, 0.12),
    ],
)
def test_factors_act_and_act_smoothly(factor: str, low: float, high: float) -> None:
    """Half the step of a factor changes the picture less than the whole step, and both change it."""
    person = replace(draw_person(0, 3), parting=0.3)
    frames = [
        render_person(replace(person, **{factor: value}), 30.0, SIZE).astype(float)
        for value in (low, (low + high) / 2, high)
    ]
    whole = np.abs(frames[2] - frames[0]).mean()
    halves = [np.abs(frames[1] - frames[0]).mean(), np.abs(frames[2] - frames[1]).mean()]
    assert whole > 0.15
    assert min(halves) > 0.02
    assert max(halves) < 1.15 * whole


def test_the_eye_has_white_iris_and_pupil() -> None:
    person = replace(draw_person(0, 3), iris=(0.1, 0.3, 0.9), skin=(0.8, 0.6, 0.5), fringe=0.0)
    image = render_person(person, 0.0, 256).astype(float)
    row = int((1.50 - 0.05) / 3.2 * 256)
    patch = image[row - 8 : row + 8, 128 + 10 : 128 + 40].reshape(-1, 3)
    assert (patch.min(axis=1) > 165).any(), "white"
    assert (patch[:, 2] - patch[:, 0] > 60).any(), "blue iris"
    assert (patch.max(axis=1) < 60).any(), "pupil"


def test_size_changes_the_sampling_not_the_person() -> None:
    """A picture of twice the size, averaged down, is nearly the smaller picture."""
    person = draw_person(1, 1)
    large = render_person(person, -45.0, 128).astype(float)
    pooled = large.reshape(64, 2, 64, 2, 3).mean(axis=(1, 3))
    assert np.abs(pooled - render_person(person, -45.0, 64)).mean() < 4


def test_written_file_equals_the_images_in_memory(tmp_path: Path) -> None:
    path = tmp_path / "new" / "heads.npy"
    table = write_heads(path, 2, seed=5, size=16, progress=False)
    images, expected = make_heads(2, seed=5, size=16)
    np.testing.assert_array_equal(np.load(path, mmap_mode="r"), images)
    assert table.equals(expected)
    assert [p.name for p in path.parent.iterdir()] == ["heads.npy"]


def test_other_poses_can_be_asked_for() -> None:
    poses = {"15L": -15.0, "15R": 15.0}
    images, table = make_heads(1, seed=0, size=16, poses=poses)
    assert images.shape == (2, 16, 16, 3)
    assert table["angle"].tolist() == [-15.0, 15.0]
    assert heads_table(3, poses)["person"].tolist() == ["p0000", "p0000", "p0001", "p0001", "p0002", "p0002"]


@pytest.mark.parametrize(("n_people", "size"), [(0, 32), (1, 4)])
def test_bad_sizes_are_refused(n_people: int, size: int, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="at least 1 person"):
        make_heads(n_people, seed=0, size=size)
    with pytest.raises(ValueError, match="at least 1 person"):
        write_heads(tmp_path / "heads.npy", n_people, seed=0, size=size)
    assert not list(tmp_path.iterdir())
