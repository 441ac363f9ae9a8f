"""Face-Place loader and splits, on tiny JPEGs made here and, where present, on the real photographs."""

from __future__ import annotations

import os
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from gppvae.paper.faces.faceplace import (
    VIEWS,
    find_folder,
    load_faceplace,
    predictable,
    scan,
    split_images,
    split_people,
)

NINE = ["00F", "30L", "30R", "45L", "45R", "60L", "60R", "90L", "90R"]


def write_jpeg(path: Path, colour: tuple[int, int, int], side: int = 24) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (side, side), colour).save(path, quality=95)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Two groups, three objects of two people, two expressions, two misnamed files, one other file."""
    folder = tmp_path / "faceplace"
    for i, view in enumerate(NINE):
        write_jpeg(folder / "Asian" / f"AM0101_1100_{view}.jpg", (20 * i, 100, 50))
        write_jpeg(folder / "Multiracial" / f"MF0918_3310_{view}.jpg", (50, 20 * i, 100))
    write_jpeg(folder / "Multiracial" / "MF0918_2201_45L.jpg", (200, 30, 60))
    write_jpeg(folder / "Multiracial" / "MF0918_3310_HA.jpg", (0, 0, 0))
    write_jpeg(folder / "Multiracial" / "MF0918_3310_NE.jpg", (0, 0, 0))
    write_jpeg(folder / "Multiracial" / "MF918_3310_00F.jpg", (0, 0, 0))
    write_jpeg(folder / "Asian" / "AM0101_1100_15L.jpg", (0, 0, 0))
    (folder / "Asian" / "readme.txt").write_text("not an image")
    return folder


def test_scan_sorts_files_into_poses_expressions_and_misnamed(root: Path) -> None:
    found = scan(root)
    assert len(found.table) == 19
    assert found.expressions == 2
    assert sorted(path.name for path in found.misnamed) == ["AM0101_1100_15L.jpg", "MF918_3310_00F.jpg"]
    row = found.table[found.table["path"].str.endswith("MF0918_2201_45L.jpg")].iloc[0]
    assert (row["group"], row["sex"], row["person"]) == ("Multiracial", "F", "MF0918")
    assert (row["object"], row["pose"], row["angle"]) == ("MF0918_2201", "45L", -45.0)


def test_counts_have_every_group_and_view(root: Path) -> None:
    counts = scan(root).counts()
    assert list(counts.columns) == NINE
    assert counts.loc["Asian"].tolist() == [1] * 9
    assert counts.loc["Multiracial", "45L"] == 2
    assert counts.loc["Black"].sum() == 0
    said = scan(root).report()
    assert said.startswith("Asian 9 (00F 1, 30L 1,") and "Multiracial 10 (00F 1," in said and "45L 2" in said
    assert said.endswith("left out: 2 expressions, misnamed AM0101_1100_15L.jpg, misnamed MF918_3310_00F.jpg")
    assert "Black" not in said


def test_scan_takes_a_group_folder_or_several_without_counting_twice(root: Path) -> None:
    assert len(scan(root / "Asian").table) == 9
    assert len(scan([root / "Asian", root / "Multiracial", root]).table) == 19


def test_angles_are_the_numbers_in_the_view_names() -> None:
    for view, angle in VIEWS.items():
        assert abs(angle) == int(view[:2])
        assert np.sign(angle) == {"F": 0, "L": -1, "R": 1}[view[2]]


def test_several_folders_are_loaded_together(root: Path, tmp_path: Path) -> None:
    both = load_faceplace([root / "Asian", root / "Multiracial"], size=8, cache=tmp_path, progress=False)
    assert len(both.table) == len(both.images) == 19


def test_load_gives_each_row_its_own_picture(root: Path, tmp_path: Path) -> None:
    faces = load_faceplace(root, size=8, cache=tmp_path / "cache", workers=3, progress=False)
    assert faces.images.shape == (19, 8, 8, 3)
    assert faces.images.dtype == np.uint8
    assert isinstance(faces.images, np.memmap)
    assert faces.broken == []
    for i, view in enumerate(NINE):
        asian = (faces.table["object"] == "AM0101_1100") & (faces.table["pose"] == view)
        mean = faces.images[np.flatnonzero(asian)[0]].mean(axis=(0, 1))
        np.testing.assert_allclose(mean, [20 * i, 100, 50], atol=4)


def test_broken_files_are_named_and_left_out(root: Path, tmp_path: Path) -> None:
    whole = root / "Asian" / "AM0101_1100_30R.jpg"
    pixels = np.random.default_rng(0).integers(0, 255, (64, 64, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(whole)
    whole.write_bytes(whole.read_bytes()[: whole.stat().st_size // 2])
    empty = root / "Multiracial" / "MF0918_3310_00F.jpg"
    empty.write_bytes(b"")
    for _ in range(2):  # decoded, then from the cache
        faces = load_faceplace(root, size=8, cache=tmp_path / "cache", progress=False)
        assert sorted(faces.broken) == sorted([whole, empty])
        assert len(faces.images) == len(faces.table) == 17
        last = faces.table.index[faces.table["path"].str.endswith("MF0918_3310_90R.jpg")][0]
        np.testing.assert_allclose(faces.images[last].mean(axis=(0, 1)), [50, 160, 100], atol=4)


def test_cache_is_reused_and_follows_changes(root: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    first = load_faceplace(root, size=8, cache=cache, progress=False)
    stamps = {path.name: path.stat().st_mtime_ns for path in cache.iterdir()}
    again = load_faceplace(root, size=8, cache=cache, progress=False)
    assert {path.name: path.stat().st_mtime_ns for path in cache.iterdir()} == stamps
    np.testing.assert_array_equal(first.images, again.images)

    write_jpeg(root / "Asian" / "AM0101_1100_00F.jpg", (250, 250, 250), side=30)
    changed = load_faceplace(root, size=8, cache=cache, progress=False)
    assert changed.images[0].mean() > 240 > first.images[0].mean()

    write_jpeg(root / "Asian" / "AM0102_1100_00F.jpg", (1, 2, 3))
    assert len(load_faceplace(root, size=8, cache=cache, progress=False).images) == 20
    assert load_faceplace(root, size=6, cache=cache, progress=False).images.shape[1:] == (6, 6, 3)
    assert not [path for path in cache.iterdir() if path.name.startswith(".")]


def test_folder_comes_from_the_environment_then_the_cache(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setenv("GPPVAE_DATA", str(root.parent))
    assert find_folder() == root
    assert len(load_faceplace(size=4, progress=False).images) == 19
    assert list((tmp_path / "xdg" / "gppvae").glob("faceplace-4-*.npy"))
    monkeypatch.delenv("GPPVAE_DATA")
    (tmp_path / "xdg" / "gppvae" / "faceplace").mkdir()
    assert find_folder() == tmp_path / "xdg" / "gppvae" / "faceplace"


def test_missing_data_names_source_and_terms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("GPPVAE_DATA", raising=False)
    with pytest.raises(
        FileNotFoundError, match=r"Face-Place Database Project \(tarrlab.org\).*non-commercial.*0339122"
    ):
        load_faceplace()
    with pytest.raises(FileNotFoundError, match="found none"):
        scan(tmp_path)
    with pytest.raises(FileNotFoundError, match="nowhere"):
        load_faceplace(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="size must be at least 1"):
        load_faceplace(tmp_path, size=0)


def grid_table(n_people: int, codes: int = 2) -> pd.DataFrame:
    rows = [
        {"person": f"MF{i:04d}", "object": f"MF{i:04d}_{c:04d}", "pose": view}
        for i, c, view in product(range(n_people), range(codes), NINE)
    ]
    return pd.DataFrame(rows)


def test_split_images_has_the_papers_sizes() -> None:
    table = pd.DataFrame({"object": np.arange(4835)})
    split = split_images(table, seed=0)
    assert [len(part) for part in split] == [3868, 484, 483]
    assert sorted(np.concatenate(split)) == list(range(4835))
    assert all(np.array_equal(a, b) for a, b in zip(split, split_images(table, seed=0), strict=True))
    assert not np.array_equal(split.test, split_images(table, seed=1).test)
    assert split.test.std() > 1000, "the test rows must be spread over the table"


@pytest.mark.parametrize("n", [1, 2, 3, 5, 24, 25, 437])
@pytest.mark.parametrize("fractions", [(0.8, 0.1, 0.1), (0.5, 0.5, 0.0), (1.0, 0.0, 0.0), (0.7, 0.2, 0.1)])
def test_split_sizes_follow_the_fractions(n: int, fractions: tuple[float, float, float]) -> None:
    split = split_images(pd.DataFrame({"object": np.arange(n)}), 3, fractions)
    assert sorted(np.concatenate(split)) == list(range(n))
    for part, share in zip(split, fractions, strict=True):
        assert abs(len(part) - share * n) <= 1 + 1e-9


@pytest.mark.parametrize("fractions", [(0.8, 0.1, 0.2), (1.1, -0.1, 0.0)])
def test_wrong_fractions_are_refused(fractions: tuple[float, float, float]) -> None:
    with pytest.raises(ValueError, match="add up to 1"):
        split_images(grid_table(3), 0, fractions)


def test_split_people_keeps_every_person_whole() -> None:
    table = grid_table(24)
    split = split_people(table, seed=5)
    people = [set(table["person"].iloc[part]) for part in split]
    assert [len(group) for group in people] == [19, 2, 3]
    assert sorted(np.concatenate(split)) == list(range(len(table)))
    for a, b in ((0, 1), (0, 2), (1, 2)):
        assert not people[a] & people[b]
    assert not np.array_equal(split.test, split_people(table, seed=6).test)
    shuffled = table.sample(frac=1, random_state=0)
    assert set(shuffled["person"].iloc[split_people(shuffled, seed=5).test]) == people[2]


def test_predictable_agrees_with_a_plain_loop() -> None:
    table = grid_table(6, codes=1)
    rng = np.random.default_rng(0)
    order = rng.permutation(len(table))
    train, rest = np.sort(order[:9]), np.sort(order[9:])
    idx = np.concatenate([rest, train[:3]])
    objects, views = table["object"].tolist(), table["pose"].tolist()
    expected = []
    for i in idx:
        other_view = any(objects[j] == objects[i] and views[j] != views[i] for j in train)
        other_object = any(views[j] == views[i] and objects[j] != objects[i] for j in train)
        expected.append(other_view and other_object)
    mask = predictable(table, train, idx)
    assert mask.tolist() == expected
    assert 0 < mask.sum() < len(idx)


def test_new_people_are_never_predictable_from_training_alone() -> None:
    table = grid_table(10)
    split = split_people(table, seed=0)
    assert len(split.test) > 0
    assert not predictable(table, split.train, split.test).any()


def test_real_multiracial_folder(tmp_path: Path) -> None:
    folder = Path(os.environ.get("GPPVAE_DATA", "")) / "faceplace" / "Multiracial"
    if "GPPVAE_DATA" not in os.environ or not folder.is_dir():
        pytest.skip("needs the Face-Place Multiracial folder below $GPPVAE_DATA/faceplace")
    faces = load_faceplace(folder, size=32, cache=tmp_path, progress=False)
    assert faces.images.shape == (437, 32, 32, 3)
    assert faces.broken == []
    assert faces.table["person"].nunique() == 24
    assert faces.table["object"].nunique() == 49
    assert (faces.table.groupby("object")["pose"].nunique() == 9).sum() == 45
    assert len(faces.table) + faces.scan.expressions + len(faces.scan.misnamed) == 497
    counts = faces.scan.counts().loc["Multiracial"]
    assert counts.tolist() == [49, 48, 49, 49, 49, 48, 49, 49, 47]
    corners = faces.images[:, :2, :2].mean()
    assert corners > 200, "the photographs have a white background"
    people = split_people(faces.table, seed=0)
    assert not set(faces.table["person"].iloc[people.train]) & set(faces.table["person"].iloc[people.test])
