"""What is in an image file is what the model sees: depth, colours, transparency, orientation; the rest is refused."""

import os
import socket
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from data.pictures import orientation, png16, png_chunk, png_file, tiff, turned
from gppvae.data import images
from gppvae.data.arrays import Samples
from gppvae.data.images import ImageFiles

RNG = np.random.default_rng(0)
GREY8 = RNG.integers(0, 256, (4, 5), dtype=np.uint8)
GREY16 = RNG.integers(0, 65536, (4, 5), dtype=np.uint16)
COLOUR8 = RNG.integers(0, 256, (4, 5, 3), dtype=np.uint8)
FLOATS = RNG.random((4, 5)).astype(np.float32)


def seen(*paths: Path, **options: object) -> np.ndarray:
    """The images as networks see them."""
    return Samples(ImageFiles(list(paths), **options)).read(torch.arange(len(paths)))[0].numpy()


def saved(path: Path, image: Image.Image | np.ndarray | bytes, **options: object) -> Path:
    if isinstance(image, bytes):
        path.write_bytes(image)
    else:
        (Image.fromarray(image) if isinstance(image, np.ndarray) else image).save(path, **options)
    return path


# -- depth


@pytest.mark.parametrize("suffix", [".png", ".tif", ".pgm"])
def test_16_bit_grey_is_scaled_by_65535(suffix: str, tmp_path: Path) -> None:
    path = saved(tmp_path / f"a{suffix}", GREY16)
    files = ImageFiles([path])
    assert files.dtype == np.uint16 and files.shape == (1, 4, 5)
    np.testing.assert_array_equal(files[:][0], GREY16)
    np.testing.assert_allclose(seen(path)[0, 0], GREY16 / 65535.0, rtol=1e-6)


def test_grey_maps_of_other_depths_reach_white(tmp_path: Path) -> None:
    twelve = saved(tmp_path / "a.pgm", b"P5 2 1 4095\n" + struct.pack(">2H", 4095, 1000))
    np.testing.assert_allclose(seen(twelve)[0, 0], [[1.0, 1000 / 4095]], atol=1e-5)
    for bits, white in ((1, 1), (2, 3), (4, 15)):
        shades = [white, 0, white // 2, white]
        packed = sum(shade << (8 * 2 - bits * (n + 1)) for n, shade in enumerate(shades))
        path = saved(tmp_path / "b.png", png_file(4, 1, bits, 0, [struct.pack(">H", packed)[: -(-4 * bits // 8)]]))
        np.testing.assert_allclose(seen(path)[0, 0], [[shade / white for shade in shades]], rtol=1e-6)


@pytest.mark.parametrize("channels", [3, 4])
@pytest.mark.parametrize(
    "write",
    [png16, tiff, lambda p: tiff(p, ">"), lambda p: tiff(p, deflate=True), lambda p: tiff(p, ">", deflate=True)],
    ids=["png", "tiff", "big-endian tiff", "deflated tiff", "deflated big-endian tiff"],
)
def test_16_bit_colours_keep_their_16_bits(write: Callable[[np.ndarray], bytes], channels: int, tmp_path: Path) -> None:
    """Pillow alone gives the upper byte only."""
    pixels = RNG.integers(0, 65536, (4, 5, channels), dtype=np.uint16)
    if channels == 4:
        pixels[..., 3] = 65535
    files = ImageFiles([saved(tmp_path / "a.png", write(pixels))])
    assert files.dtype == np.uint16 and files.shape == (1, 3, 4, 5)
    np.testing.assert_array_equal(files[:][0], pixels[..., :3].transpose(2, 0, 1))


def test_16_bit_colours_in_planes_are_refused(tmp_path: Path) -> None:
    pixels = RNG.integers(0, 65536, (4, 5, 3), dtype=np.uint16)
    with pytest.raises(ValueError, match=r"16-bit colours .* in .*a\.tif.*; save it as PNG"):
        ImageFiles([saved(tmp_path / "a.tif", tiff(pixels, planar=2))])
    with pytest.raises(ValueError, match=r"16-bit colours .* in .*a\.ppm.*; save it as PNG"):
        ImageFiles([saved(tmp_path / "a.ppm", b"P6 1 1 65535\n" + bytes(6))])


def test_floats_in_the_unit_interval_stay(tmp_path: Path) -> None:
    path = saved(tmp_path / "a.tif", FLOATS)
    files = ImageFiles([path])
    assert files.dtype == np.float32
    np.testing.assert_array_equal(files[:][0], FLOATS)
    np.testing.assert_array_equal(seen(path)[0, 0], FLOATS)


@pytest.mark.parametrize("factor", [255.0, -1.0])
def test_floats_outside_the_unit_interval_are_refused(factor: float, tmp_path: Path) -> None:
    files = ImageFiles([saved(tmp_path / "a.tif", FLOATS * np.float32(factor))])
    with pytest.raises(ValueError, match=r"from 0 to 1 in .*a\.tif, got .* to .*; divide"):
        files[:]


def test_missing_values_of_floats_stay_missing(tmp_path: Path) -> None:
    holes = FLOATS.copy()
    holes[1, 2] = np.nan
    _, mask = Samples([saved(tmp_path / "a.tif", holes)], missing="mask").read(torch.arange(1))
    assert mask is not None and not mask[0, 0, 1, 2] and mask.sum() == 19


def test_integers_without_an_agreed_white_are_refused(tmp_path: Path) -> None:
    for number, pixels in enumerate((GREY16.astype(np.int32), GREY16[..., None])):
        content = pixels if pixels.ndim == 2 else tiff(pixels, photometric=0)
        with pytest.raises(ValueError, match=rf"in .*{number}\.tif.*; save it as 8- or 16-bit PNG"):
            ImageFiles([saved(tmp_path / f"{number}.tif", content)])


@pytest.mark.parametrize("size", [None, (4, 5)])
def test_mixed_depths_come_as_one_type(size: tuple[int, int] | None, tmp_path: Path) -> None:
    eight, sixteen = saved(tmp_path / "a.png", GREY8), saved(tmp_path / "b.png", GREY16)
    files = ImageFiles([eight, sixteen], size=size)
    assert files.dtype == np.uint16
    np.testing.assert_array_equal(files[:], [GREY8.astype(np.uint16) * 257, GREY16])
    floats = saved(tmp_path / "c.tif", FLOATS)
    assert ImageFiles([eight, sixteen, floats]).dtype == np.float32
    wanted = np.stack([GREY8 / 255.0, GREY16 / 65535.0, FLOATS])
    np.testing.assert_allclose(seen(eight, sixteen, floats, size=size)[:, 0], wanted, rtol=1e-6)


def test_deep_images_are_resized_like_shallow_ones(tmp_path: Path) -> None:
    shallow = RNG.integers(0, 256, (12, 10), dtype=np.uint8)
    paths = [
        saved(tmp_path / "a.png", shallow),
        saved(tmp_path / "b.png", shallow.astype(np.uint16) * 257),
        saved(tmp_path / "c.tif", (shallow / 255.0).astype(np.float32)),
    ]
    small = [seen(path, size=(5, 4))[0, 0] for path in paths]
    np.testing.assert_allclose(small[1], small[0], atol=0.6 / 255)
    np.testing.assert_allclose(small[2], small[1], atol=0.6 / 65535)


# -- colours


def test_one_colour_image_among_grey_ones_keeps_its_colours(tmp_path: Path) -> None:
    paths = [saved(tmp_path / "a.png", GREY8), saved(tmp_path / "b.png", COLOUR8)]
    files = ImageFiles(paths)
    assert files.shape == (2, 3, 4, 5)
    np.testing.assert_array_equal(files[0:1][0], np.stack([GREY8] * 3))
    np.testing.assert_array_equal(files[1:2][0], COLOUR8.transpose(2, 0, 1))
    deep = saved(tmp_path / "c.png", GREY16)
    np.testing.assert_array_equal(ImageFiles([*paths, deep])[2:3][0], np.stack([GREY16] * 3))


def test_colours_become_grey_when_asked(tmp_path: Path) -> None:
    deep = COLOUR8.astype(np.uint16) * 257
    paths = [saved(tmp_path / "a.png", COLOUR8), saved(tmp_path / "b.png", png16(deep))]
    wanted = [[(299 * r + 587 * g + 114 * b) / 255_000 for r, g, b in row] for row in COLOUR8.astype(int).tolist()]
    assert ImageFiles(paths, colour=False).shape == (2, 4, 5)
    np.testing.assert_allclose(seen(*paths, colour=False)[:, 0], [wanted] * 2, atol=1 / 255)


@pytest.mark.parametrize("suffix", [".png", ".gif", ".bmp", ".tif"])
def test_palettes_are_looked_up(suffix: str, tmp_path: Path) -> None:
    indexed = Image.fromarray(RNG.integers(0, 4, (4, 5), dtype=np.uint8)).convert("L")
    colours = [(250, 0, 0), (0, 240, 0), (0, 0, 230), (9, 99, 199)]
    palette = Image.frombytes("P", indexed.size, indexed.tobytes())
    palette.putpalette([value for colour in colours for value in colour])
    wanted = np.array([[colours[n] for n in row] for row in np.asarray(indexed)])
    files = ImageFiles([saved(tmp_path / f"a{suffix}", palette)])
    np.testing.assert_array_equal(files[:][0], wanted.transpose(2, 0, 1))


@pytest.mark.parametrize("suffix", [".png", ".gif", ".tif"])
def test_palettes_of_greys_are_grey(suffix: str, tmp_path: Path) -> None:
    palette = Image.fromarray(GREY8 // 8 * 8).convert("P")
    assert palette.mode == "P"
    files = ImageFiles([saved(tmp_path / f"a{suffix}", palette)])
    assert files.shape == (1, 4, 5)
    np.testing.assert_array_equal(files[:][0], GREY8 // 8 * 8)


def test_black_and_white_is_0_and_1(tmp_path: Path) -> None:
    bits = GREY8 > 100
    for suffix in (".png", ".tif", ".bmp", ".gif"):
        np.testing.assert_array_equal(seen(saved(tmp_path / f"a{suffix}", bits))[0, 0], bits)


def test_colours_for_printers_are_refused(tmp_path: Path) -> None:
    for mode, name in (("CMYK", "a.tif"), ("CMYK", "a.jpg"), ("LAB", "b.tif")):
        path = saved(tmp_path / name, Image.new("RGB", (5, 4), (200, 10, 30)).convert(mode))
        with pytest.raises(ValueError, match=rf"expected grey or RGB .*{name}, got {mode}; convert it to RGB"):
            ImageFiles([path])


# -- transparency


def test_transparent_pixels_are_shown_over_black(tmp_path: Path) -> None:
    alpha = np.array([0, 51, 102, 255], dtype=np.uint8)
    white = np.full((1, 4, 3), 255, dtype=np.uint8)
    path = saved(tmp_path / "a.png", np.concatenate([white, alpha[None, :, None]], axis=2))
    np.testing.assert_allclose(seen(path)[0], np.stack([alpha[None] / 255.0] * 3), atol=1e-6)
    grey = saved(tmp_path / "b.png", np.stack([white[..., 0], alpha[None]], axis=2))
    np.testing.assert_allclose(seen(grey)[0, 0], alpha[None] / 255.0, atol=1e-6)


@pytest.mark.parametrize("channels", [2, 4])
def test_16_bit_transparency(channels: int, tmp_path: Path) -> None:
    pixels = RNG.integers(0, 65536, (4, 5, channels), dtype=np.uint16)
    got = seen(saved(tmp_path / "a.png", png16(pixels)))[0]
    for row in range(4):
        for column in range(5):
            *colour, alpha = (value / 65535 for value in pixels[row, column].tolist())
            np.testing.assert_allclose(got[:, row, column], [value * alpha for value in colour], atol=1e-5)


def test_one_transparent_colour(tmp_path: Path) -> None:
    indexed = Image.frombytes("P", (3, 1), bytes([0, 1, 2]))
    indexed.putpalette([255, 255, 255, 10, 20, 30, 40, 50, 60])
    for suffix in (".png", ".gif"):
        path = saved(tmp_path / f"a{suffix}", indexed, transparency=0)
        np.testing.assert_allclose(255 * seen(path)[0, :, 0].T, [[0, 0, 0], [10, 20, 30], [40, 50, 60]], atol=1e-4)
    key = png_chunk(b"tRNS", struct.pack(">H", 40_000))
    deep = saved(tmp_path / "b.png", png16(np.array([[[40_000], [50_000]]], dtype=np.uint16), key))
    np.testing.assert_allclose(seen(deep)[0, 0], [[0.0, 50_000 / 65535]], rtol=1e-6)
    key = png_chunk(b"tRNS", struct.pack(">3H", 1, 2, 300))
    pixels = np.array([[[1, 2, 300], [1, 2, 301]]], dtype=np.uint16)
    np.testing.assert_array_equal(
        ImageFiles([saved(tmp_path / "c.png", png16(pixels, key))])[:][0, :, 0].T, [[0, 0, 0], [1, 2, 301]]
    )
    shallow = png_file(4, 1, 4, 0, [b"\x12\x34"], png_chunk(b"tRNS", struct.pack(">H", 3)))
    with pytest.raises(ValueError, match=r"8 or 16 bits .*d\.png"):
        ImageFiles([saved(tmp_path / "d.png", shallow)])


# -- orientation, frames


@pytest.mark.parametrize("number", range(1, 9))
@pytest.mark.parametrize(
    ("name", "pixels"),
    [("a.png", GREY8), ("a.webp", GREY8), ("a.tif", GREY8), ("a.tif", GREY16), ("a.png", GREY16), ("a.tif", FLOATS)],
    ids=["png", "webp", "tiff", "16-bit tiff", "16-bit png", "float tiff"],
)
def test_orientation_is_that_of_a_viewer(number: int, name: str, pixels: np.ndarray, tmp_path: Path) -> None:
    path = saved(tmp_path / name, pixels, exif=orientation(number), lossless=True)
    files = ImageFiles([path])
    assert files.shape[-2:] == turned(pixels, number).shape
    got = files[:][0] if files[:].ndim == 3 else files[:][0, 1]
    np.testing.assert_array_equal(got, turned(pixels, number))


@pytest.mark.parametrize("number", [1, 3, 6, 8])
def test_orientation_of_photographs(number: int, tmp_path: Path) -> None:
    smooth = np.add.outer(np.arange(16) * 8, np.arange(24) * 4).astype(np.uint8)
    got = seen(saved(tmp_path / "a.jpg", smooth, exif=orientation(number), quality=100))[0, 0]
    np.testing.assert_allclose(255 * got, turned(smooth, number), atol=3)
    deep = saved(tmp_path / "b.png", png16(np.stack([smooth.astype(np.uint16) * 257] * 3, axis=2)))
    assert ImageFiles([deep]).shape == (1, 3, 16, 24)


@pytest.mark.parametrize("suffix", [".gif", ".tif", ".png", ".webp"])
def test_several_frames_are_refused(suffix: str, tmp_path: Path) -> None:
    first = Image.fromarray(COLOUR8)
    path = saved(tmp_path / f"a{suffix}", first, save_all=True, append_images=[first.rotate(180)])
    with pytest.raises(ValueError, match=r"one image in .*, got several frames or pages; save the one"):
        ImageFiles([path])


def test_the_preview_of_a_photograph_is_no_second_frame(tmp_path: Path) -> None:
    first = Image.fromarray(np.full((8, 8), 100, dtype=np.uint8))
    path = saved(tmp_path / "a.jpg", first, format="MPO", save_all=True, append_images=[first.point(lambda v: v // 2)])
    np.testing.assert_allclose(255 * seen(path), 100, atol=2)


# -- what is no image, and what is too large


def test_pipes_sockets_and_devices_are_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.png")
    for path, what in ((tmp_path / "a.png", "a pipe"), (Path("/dev/zero"), "a device"), (tmp_path, "a folder")):
        with pytest.raises(ValueError, match=rf"expected an image at {path}, found {what}"):
            ImageFiles([path])
    with socket.socket(socket.AF_UNIX) as server:
        name = os.path.relpath(tmp_path / "s.png")  # the address of a socket has 108 characters at most
        server.bind(name if len(name) < 100 else "\0unused")
        if len(name) < 100:
            with pytest.raises(ValueError, match="found a socket"):
                ImageFiles([tmp_path / "s.png"])


@pytest.mark.parametrize("side", [10_000, 50_000])
def test_decompression_bombs_are_refused(side: int, tmp_path: Path) -> None:
    path = saved(tmp_path / "a.png", png_file(side, side, 8, 0, []))
    with pytest.raises(ValueError, match=rf"at most {Image.MAX_IMAGE_PIXELS} pixels in .*a\.png"):
        ImageFiles([path])


@pytest.mark.parametrize(
    ("size", "message"),
    [
        ((100_000, 100_000), rf"at most {images.MAX_PIXELS} pixels, got 100000 x 100000"),
        ((0, 5), "at least 1, got 0 x 5"),
        ((-4, 5), "at least 1, got -4 x 5"),
        ((4,), r"\(height, width\), got \(4,\)"),
        ("ab", "height, width"),
        ((2.5, 4), "whole numbers"),
    ],
)
def test_sizes_are_checked_before_memory_is_taken(size: object, message: str, tmp_path: Path) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        ImageFiles([saved(tmp_path / "a.png", GREY8)], size=size)


@pytest.mark.parametrize("share", [0.1, 0.3, 0.6, 0.9])
@pytest.mark.parametrize("suffix", [".png", ".jpg", ".gif", ".tif", ".bmp", ".webp"])
def test_damaged_images_are_told_in_one_sentence(suffix: str, share: float, tmp_path: Path) -> None:
    path = saved(tmp_path / f"a{suffix}", RNG.integers(0, 256, (40, 50, 3), dtype=np.uint8))
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    with pytest.raises(ValueError, match=r"expected an? (whole )?image in .*a\."):
        ImageFiles([path])[:]


def test_the_size_that_differs_is_told_before_anything_is_decoded(tmp_path: Path) -> None:
    paths = [saved(tmp_path / "a.png", GREY8), saved(tmp_path / "b.png", GREY8.T)]
    with pytest.raises(ValueError, match=r"images of 4 x 5 pixels, got 5 x 4 in .*b\.png"):
        ImageFiles(paths)
