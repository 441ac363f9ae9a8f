"""One image file: its header, and its pixels at the bit depth of the file.

Pillow decodes the files. Its silent changes are corrected here or rejected: 16-bit colours truncated to 8 bits,
transparency dropped, orientation ignored, CMYK converted without its profile.
"""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image, ImageFile, ImageOps, UnidentifiedImageError

from gppvae.data.paths import plain_file
from gppvae.data.words import reason

GREY_MODES = ("1", "L", "I", "I;16", "I;16B", "I;16L", "F", "LA", "La")
ALPHA_MODES = ("LA", "La", "PA", "RGBA", "RGBa")
EIGHT_BIT_MODES = ("1", "L", "LA", "La", "P", "PA", "RGB", "RGBA", "RGBa", "RGBX", "YCbCr")
ORIENTATION, BITS_PER_SAMPLE, PHOTOMETRIC = 0x0112, 258, 262  # TIFF and EXIF tags
SIXTEEN_BITS = (";16B", ";16L", ";16N")  # suffixes of Pillow's raw modes with 16-bit values
WHITE = {8: 255, 16: 65535}


class RefusedImageError(ValueError):
    """A valid image of an unsupported kind; the message is for the user."""


@dataclass(frozen=True)
class Header:
    """Properties of the decoded image.

    Attributes:
        size: (height, width) after rotation by the orientation tag.  colour: False for grey.
        depth: bits per value: 8, 16, or 32 for floats.  alpha: whether it may have transparent pixels.
    """

    size: tuple[int, int]
    colour: bool
    depth: int
    alpha: bool


def read_header(path: str) -> Header:
    """Read the header of a file; no pixels are decoded."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        with _opened(path) as image:
            return _header(image, path)


def read_pixels(path: str) -> np.ndarray:
    """The pixels of a file, (height, width) for grey or (height, width, 3) for colours.

    uint8, uint16 or float32, depending on the depth of the file. The orientation tag is applied, and transparent pixels
    are blended over black.
    """
    with _opened(path) as image:
        header = _header(image, path)
        if header.depth == 8:
            return _eight_bits(image, header)
        if header.depth == 16:
            return _sixteen_bits_of_grey(image) if image.mode in GREY_MODES else _sixteen_bits_of_colour(image, path)
        pixels = np.asarray(_upright(image), dtype=np.float32)
    # Samples rejects infinity, with the number of the sample.
    finite = pixels[np.isfinite(pixels)]
    if finite.size and (finite.min() < 0 or finite.max() > 1):
        raise ValueError(
            f"expected floats from 0 to 1 in {path}, got {finite.min():g} to {finite.max():g}; "
            "divide them by the value of white, or give the pixels as an array"
        )
    return pixels


@contextlib.contextmanager
def _opened(path: str) -> Iterator[ImageFile.ImageFile]:
    plain_file(path, "an image")
    try:
        # Not Image.open(path): that memory-maps uncompressed TIFFs and then returns rows of the wrong length for
        # rotated ones (orientation 5 to 8).
        with open(path, "rb") as file, Image.open(file) as image:
            yield image
    except UnidentifiedImageError:
        raise ValueError(f"expected an image in {path}, got a file of another kind; remove it from the list") from None
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise ValueError(
            f"expected at most {Image.MAX_IMAGE_PIXELS} pixels in {path}, got more; make the image smaller, "
            "or raise PIL.Image.MAX_IMAGE_PIXELS if you trust the file"
        ) from None
    except RefusedImageError:
        raise
    except Exception as error:  # Pillow's parsers raise anything: SyntaxError, struct.error, ...
        if isinstance(error, OSError) and error.errno is not None:
            raise  # the system's own message: no permission, input/output error
        raise ValueError(f"expected a whole image in {path}, got a damaged one ({reason(error)}); replace it") from None


def _header(image: ImageFile.ImageFile, path: str) -> Header:
    # MPO, the format of some cameras, has a preview as a second image.
    if getattr(image, "is_animated", False) and image.format != "MPO":
        raise RefusedImageError(
            f"expected one image in {path}, got several frames or pages; save the one you need on its own"
        )
    depth = _depth(image, path)
    alpha = image.mode in ALPHA_MODES or "transparency" in image.info
    few_bits = image.mode == "1" or bool({"L;2", "L;4"} & _raw_modes(image))
    if "transparency" in image.info and few_bits:
        raise RefusedImageError(
            f"expected 8 or 16 bits of grey beside transparency in {path}, got fewer; save it as 8-bit PNG"
        )
    size = (image.height, image.width)
    if image.format != "TIFF" and _orientation(image) >= 5:  # for TIFF, Pillow's size already is the rotated one
        size = (image.width, image.height)
    grey = image.mode in GREY_MODES or _has_grey_palette(image) or "LA;16B" in _raw_modes(image)
    return Header(size, not grey, depth, alpha)


def _depth(image: ImageFile.ImageFile, path: str) -> int:
    """8, 16 or 32 bits; types with an ambiguous white are rejected."""
    tags = getattr(image, "tag_v2", {})
    raw = _raw_modes(image)
    if image.mode in EIGHT_BIT_MODES:
        deep_tiff = max(tags.get(BITS_PER_SAMPLE, (8,))) > 8
        deep_map = image.format == "PPM" and any(isinstance(t[3], tuple) and t[3][-1] > 255 for t in image.tile)
        if not deep_tiff and not deep_map and not any(name.endswith(SIXTEEN_BITS) for name in raw):
            return 8
        if all(_low_byte_mode(name) for name in raw) and not deep_map:
            return 16
        raise RefusedImageError(
            f"expected 16-bit colours pixel by pixel in {path}, got a layout that cannot be read; save it as PNG"
        )
    if image.mode not in GREY_MODES:
        raise RefusedImageError(f"expected grey or RGB colours in {path}, got {image.mode}; convert it to RGB")
    sixteen = image.mode.startswith("I;16") or (image.mode == "I" and image.format in ("PNG", "PPM"))
    black_is_zero = tags.get(PHOTOMETRIC, 1) == 1
    if black_is_zero and image.mode == "F":
        return 32
    if black_is_zero and sixteen and "I;12" not in raw:
        return 16
    raise RefusedImageError(
        f"expected 8 or 16 bits or floats, with black as 0, in {path}, "
        f"got {image.mode if black_is_zero else 'white as 0'}; save it as 8- or 16-bit PNG"
    )


def _eight_bits(image: Image.Image, header: Header) -> np.ndarray:
    image = _upright(image)
    if not header.alpha:
        return np.asarray(image.convert("RGB" if header.colour else "L"))
    pixels = np.asarray(image.convert("RGBA"))  # (height, width, 4)
    return _over_black(pixels if header.colour else pixels[..., [0, 3]], WHITE[8])


def _sixteen_bits_of_grey(image: Image.Image) -> np.ndarray:
    pixels = np.asarray(_upright(image)).astype(np.uint16)
    key = image.info.get("transparency")
    return pixels if key is None else np.where(pixels == key, 0, pixels).astype(np.uint16)


def _sixteen_bits_of_colour(image: ImageFile.ImageFile, path: str) -> np.ndarray:
    """16-bit colours. Pillow keeps only the high byte; decoding again with swapped byte order gives the low byte."""
    key = image.info.get("transparency")
    grey_and_alpha = "LA;16B" in _raw_modes(image)
    high = np.asarray(_upright(image))  # (height, width, 3 or 4)
    with _opened(path) as again:
        again.tile = [_byte_swapped(tile) for tile in again.tile]
        low = np.asarray(_upright(again))
    if grey_and_alpha:  # decoded as RGBA, which is grey high, grey low, alpha high, alpha low
        high, low = low[..., 0::2], low[..., 1::2]
    pixels = high.astype(np.uint16) * 256 + low
    if key is not None:
        pixels[(pixels == np.array(key)).all(-1)] = 0
    return pixels if pixels.shape[-1] == 3 else _over_black(pixels, WHITE[16])


def _byte_swapped(tile: Any) -> Any:
    args = tile[3]
    other = (_low_byte_mode(args[0]), *args[1:]) if isinstance(args, tuple) else _low_byte_mode(args)
    return tile._replace(args=other) if hasattr(tile, "_replace") else (*tile[:3], other)  # a plain tuple in old Pillow


def _low_byte_mode(raw_mode: str) -> str | None:
    """The raw mode that decodes the low byte where this one decodes the high byte; None if there is none."""
    layout, _, order = raw_mode.partition(";16")
    if raw_mode == "LA;16B":
        return "RGBA"
    native = "L" if sys.byteorder == "little" else "B"
    other = {"B": "L", "L": "B"}.get(native if order == "N" else order)
    return f"{layout};16{other}" if layout in ("RGB", "RGBA") and other else None


def _over_black(pixels: np.ndarray, white: int) -> np.ndarray:
    """Values times opacity: (height, width, 2) -> (height, width), (height, width, 4) -> (height, width, 3)."""
    values, alpha = pixels[..., :-1], pixels[..., -1:]
    shown = np.rint(values * (alpha / white)).astype(pixels.dtype)
    return shown[..., 0] if shown.shape[-1] == 1 else shown


def _upright(image: Image.Image) -> Image.Image:
    """The decoded image, rotated by its orientation tag."""
    ImageOps.exif_transpose(image, in_place=True)
    return image


def _orientation(image: Image.Image) -> int:
    # For a PNG without these, getexif() would decode the pixels.
    if not {"exif", "xmp", "XML:com.adobe.xmp", "Raw profile type exif"} & set(image.info):
        return 1
    return int(image.getexif().get(ORIENTATION, 1))


def _has_grey_palette(image: Image.Image) -> bool:
    """Whether every entry of the palette, used or not, is a shade of grey."""
    if image.mode not in ("P", "PA") or image.palette is None:
        return False
    mode, content = image.palette.getdata()
    flat = np.frombuffer(bytes(content), dtype=np.uint8)
    planar = mode == "RGB;L"  # TIFF: all reds, then all greens, then all blues
    entries = flat.reshape(3, -1).T if planar else flat.reshape(-1, len(mode.partition(";")[0]))  # (256, 3 or 4)
    return bool((entries[:, :1] == entries[:, :3]).all())


def _raw_modes(image: ImageFile.ImageFile) -> set[str]:
    """Pixel layouts of the file, by Pillow's names."""
    names = (tile[3][0] if isinstance(tile[3], tuple) and tile[3] else tile[3] for tile in image.tile)
    return {name for name in names if isinstance(name, str)}
