"""Rows and image files: each row gets the file that its table names, and what was paired how is told."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from gppvae.data.images import ImageFiles
from gppvae.data.open import open_samples
from gppvae.data.pairing import pair_images

NAMES = ["a.png", "b.png", "c.png", "d.png"]
SHADES = {name: 10 * (n + 1) for n, name in enumerate(NAMES)}
ROWS = ["c.png", "a.png", "d.png", "b.png"]  # the order of the table, which is not that of the names


def fill(folder: Path, shades: dict[str, int]) -> Path:
    for name, shade in shades.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((2, 3), shade, dtype=np.uint8)).save(folder / name)
    return folder


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    return fill(tmp_path / "photos", SHADES)


def shades(files: ImageFiles) -> list[int]:
    return files[:][:, 0, 0].tolist()


WANTED = [SHADES[name] for name in ROWS]


@pytest.mark.parametrize(
    "spelled",
    [
        lambda name: name,
        lambda name: name.removesuffix(".png"),
        lambda name: f"./{name}",
        lambda name: f"photos/{name}",
    ],
    ids=["name", "no suffix", "dot", "with the folder"],
)
@pytest.mark.parametrize("given", [False, True], ids=["found", "given"])
def test_a_column_of_file_names_is_followed(spelled: object, given: bool, photos: Path) -> None:
    """Sorted names would give each row the image of another."""
    table = pd.DataFrame({"time": [4.0, 3.0, 2.0, 1.0], "where": [spelled(name) for name in ROWS]})
    files, sentence = pair_images(photos, table, "where" if given else None)
    assert shades(files) == WANTED
    assert sentence == f"paired 4 rows with 4 of 4 files of {photos}/ by column 'where'"


def test_absolute_paths_inside_the_folder_are_followed(photos: Path) -> None:
    table = {"where": [str(photos / name) for name in ROWS]}
    assert shades(pair_images(photos, table)[0]) == WANTED
    assert shades(pair_images(photos, table, "where")[0]) == WANTED


def test_numbers_name_files_too(tmp_path: Path) -> None:
    fill(tmp_path, {"7.png": 7, "11.png": 11, "3.png": 3})
    for values in ([11, 3], [11.0, 3.0], ["11", "3"]):
        files, _ = pair_images(tmp_path, {"time": [0.5, 1.5], "scan": values})
        assert shades(files) == [11, 3]


def test_files_of_subfolders_are_found_by_path_or_by_name(tmp_path: Path) -> None:
    fill(tmp_path, {"x/a.png": 1, "y/b.png": 2})
    assert shades(pair_images(tmp_path, {"file": ["y/b.png", "x/a.png"]})[0]) == [2, 1]
    assert shades(pair_images(tmp_path, {"file": ["b.png", "a"]})[0]) == [2, 1]


def test_names_that_stand_twice_in_subfolders_need_the_path(tmp_path: Path) -> None:
    fill(tmp_path, {"x/a.png": 1, "y/a.png": 2})
    assert shades(pair_images(tmp_path, {"file": ["y/a.png", "x/a.png"]}, "file")[0]) == [2, 1]
    with pytest.raises(ValueError, match=r"column 'file' .*'a\.png'.*x/a\.png and y/a\.png; write the path"):
        pair_images(tmp_path, {"file": ["a.png"]}, "file")


def test_without_a_column_the_order_of_names_is_told(photos: Path) -> None:
    files, sentence = pair_images(photos, {"time": [4.0, 3.0, 2.0, 1.0], "person": list("wxyz")})
    assert shades(files) == [SHADES[name] for name in NAMES]
    assert sentence == (
        f"paired 4 rows with 4 files of {photos}/ in the order of their names (a.png first, d.png last); "
        "name a column with --image-column if that is wrong"
    )
    files, sentence = pair_images(photos, None)
    assert shades(files) == [SHADES[name] for name in NAMES]
    assert sentence == f"read 4 files of {photos}/ in the order of their names (a.png first, d.png last)"


def test_an_order_that_is_not_that_of_numbers_is_told(tmp_path: Path) -> None:
    fill(tmp_path, {f"{n}.png": n for n in range(8, 12)})
    _, sentence = pair_images(tmp_path, {"person": list("abcd")})
    assert "(10.png first, 9.png last; 11.png comes before 8.png)" in sentence


def test_ids_that_happen_to_be_names_are_not_taken_for_a_pairing(tmp_path: Path) -> None:
    """Four rows of two persons, and pictures of the persons beside those of the rows."""
    fill(tmp_path, {"anna.png": 1, "ben.png": 2, "x.png": 3, "y.png": 4})
    files, sentence = pair_images(tmp_path, {"person": ["ben", "anna", "ben", "anna"]})
    assert shades(files) == [1, 2, 3, 4] and "order of their names" in sentence


def test_images_are_resized(photos: Path) -> None:
    assert pair_images(photos, {"file": ROWS}, size=(5, 4))[0].shape == (4, 5, 4)


@pytest.mark.parametrize(
    ("columns", "given", "message"),
    [
        ({"time": [1, 2, 3]}, None, r"one image .* per row, got 3 rows and 4 files; .*--image-column"),
        ({"file": ["a.png", "b.png", "a.png"]}, None, r"'file' .* a\.png twice, in rows 0 and 2"),
        ({"file": ["a.png", "b.png", "a"]}, "file", r"'file' .* a\.png twice, in rows 0 and 2"),
        ({"file": ["a.png", "b.png", "q.png", "d.png"]}, None, r"'file' .*'q\.png' in row 2.* no such file"),
        ({"file": ["a.png", "b.png", "q.png", "d.png"]}, "file", r"'file' .*'q\.png' in row 2.* no such file"),
        ({"file": ["a.png", None, "b.png", "d.png"]}, None, r"'file' .*missing value in row 1"),
        ({"file": ["a.png", None, "b.png", "d.png"]}, "file", r"'file' .*missing value in row 1"),
        ({"x": ["b", "a"], "y": ["c", "d"]}, None, r"columns 'x' and 'y' .* --image-column"),
        ({"file": ["a.png"]}, "flie", "did you mean 'file'"),
        (None, "file", r"--table together with --image-column"),
    ],
)
def test_what_cannot_be_paired_is_refused(
    columns: dict[str, list] | None, given: str | None, message: str, photos: Path
) -> None:
    with pytest.raises(ValueError, match=message):
        pair_images(photos, columns, given)


def test_two_columns_that_agree_are_no_contradiction(photos: Path) -> None:
    table = {"stem": [name[0] for name in ROWS], "file": ROWS}
    assert shades(pair_images(photos, table)[0]) == WANTED


def test_names_that_lead_out_of_the_folder(photos: Path) -> None:
    fill(photos.parent, {"secret.png": 99})
    for name in ("../secret.png", str(photos.parent / "secret.png"), "x/../../secret.png"):
        table = {"file": ["a.png", name]}
        for given in (None, "file"):
            with pytest.raises(ValueError, match=r"names inside .*photos, got .*secret\.png.*outside=True"):
                pair_images(photos, table, given)
        with pytest.raises(ValueError, match=r"outside=True"):
            open_samples(photos, names=table["file"])
        assert shades(pair_images(photos, table, "file", outside=True)[0]) == [10, 99]
        assert shades(open_samples(photos, names=table["file"], outside=True)) == [10, 99]
    assert shades(ImageFiles([photos / "a.png", photos / "../secret.png"])) == [10, 99], "a list is one's own pointing"


def test_a_linked_subfolder_does_not_turn_dots_elsewhere(tmp_path: Path) -> None:
    fill(tmp_path / "elsewhere", {"inner/b.png": 1, "a.png": 66})
    photos = fill(tmp_path / "photos", {"a.png": 5})
    (photos / "link").symlink_to(tmp_path / "elsewhere" / "inner")
    assert shades(open_samples(photos, names=["link/../a.png"])) == [5]


def test_a_folder_is_expected(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"a folder of images at .*none, found no such file"):
        pair_images(tmp_path / "none", {"a": [1]})
