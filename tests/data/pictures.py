"""Image files that Pillow cannot write, put together byte by byte from their specifications."""

import struct
import zlib

import numpy as np
from PIL import Image

PNG_COLOUR_TYPES = {1: 0, 2: 4, 3: 2, 4: 6}  # by number of channels


def png_chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def png_file(width: int, height: int, bits: int, colour_type: int, rows: list[bytes], before: bytes = b"") -> bytes:
    """A PNG file of unfiltered rows; `before` are chunks that stand before the pixels."""
    header = struct.pack(">IIBBBBB", width, height, bits, colour_type, 0, 0, 0)
    pixels = zlib.compress(b"".join(b"\0" + row for row in rows))
    return (
        b"\x89PNG\r\n\x1a\n"
        + png_chunk(b"IHDR", header)
        + before
        + png_chunk(b"IDAT", pixels)
        + png_chunk(b"IEND", b"")
    )


def png16(pixels: np.ndarray, before: bytes = b"") -> bytes:
    """A 16-bit PNG of (height, width, channels): grey, grey and alpha, RGB or RGBA."""
    height, width, channels = pixels.shape
    rows = [row.astype(">u2").tobytes() for row in pixels]
    return png_file(width, height, 16, PNG_COLOUR_TYPES[channels], rows, before)


def tiff(pixels: np.ndarray, order: str = "<", deflate: bool = False, photometric: int = 2, planar: int = 1) -> bytes:
    """A TIFF of one strip, of (height, width, channels) uint16."""
    height, width, channels = pixels.shape
    stored = pixels if planar == 1 else pixels.transpose(2, 0, 1)
    data = stored.astype(f"{order}u2").tobytes()
    data = zlib.compress(data) if deflate else data
    bits = struct.pack(f"{order}{channels}H", *[16] * channels)
    strips = 1 if planar == 1 else channels
    places = struct.pack(f"{order}{strips}I", *[8 + len(bits) + n * len(data) // strips for n in range(strips)])
    sizes = struct.pack(f"{order}{strips}I", *[len(data) // strips] * strips)
    body = bits + data
    at_places, at_sizes = 8 + len(body), 8 + len(body) + len(places)
    entries = [
        (256, 3, 1, width),
        (257, 3, 1, height),
        (258, 3, channels, 8 if channels > 2 else 16),
        (259, 3, 1, 8 if deflate else 1),
        (262, 3, 1, photometric),
        (273, 4, strips, at_places if strips > 1 else 8 + len(bits)),
        (277, 3, 1, channels),
        (278, 3, 1, height),
        (279, 4, strips, at_sizes if strips > 1 else len(data)),
        (284, 3, 1, planar),
        *([(338, 3, 1, 2)] if channels in (2, 4) else []),
    ]
    body += places + sizes
    directory = struct.pack(f"{order}H", len(entries))
    for tag, kind, count, value in entries:
        short = kind == 3 and count == 1
        directory += struct.pack(f"{order}HHI", tag, kind, count)
        directory += struct.pack(f"{order}HH", value, 0) if short else struct.pack(f"{order}I", value)
    start = (b"II*\0" if order == "<" else b"MM\0*") + struct.pack(f"{order}I", 8 + len(body))
    return start + body + directory + struct.pack(f"{order}I", 0)


def orientation(number: int) -> Image.Exif:
    exif = Image.Exif()
    exif[0x0112] = number
    return exif


def turned(pixels: np.ndarray, number: int) -> np.ndarray:
    """What a viewer shows of (height, width) pixels stored under an EXIF orientation, pixel by pixel.

    The EXIF standard says which edge of the scene the stored first row and first column are.
    """
    stored_rows, stored_columns = pixels.shape
    rows, columns = (stored_rows, stored_columns) if number < 5 else (stored_columns, stored_rows)
    shown = np.empty((rows, columns), dtype=pixels.dtype)
    for r in range(stored_rows):
        for c in range(stored_columns):
            bottom, right = rows - 1, columns - 1
            place = {
                1: (r, c),  # row 0 at the top, column 0 at the left
                2: (r, right - c),  # top, right
                3: (bottom - r, right - c),  # bottom, right
                4: (bottom - r, c),  # bottom, left
                5: (c, r),  # left, top
                6: (c, right - r),  # right, top
                7: (bottom - c, right - r),  # right, bottom
                8: (bottom - c, r),  # left, bottom
            }[number]
            shown[place] = pixels[r, c]
    return shown
