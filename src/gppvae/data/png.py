"""PNG encoding."""

from __future__ import annotations

import base64
import io

import numpy as np
from PIL import Image


def png_bytes(picture: np.ndarray, optimize: bool = False) -> bytes:
    """A uint8 image, (h, w) or (h, w, 3), as the bytes of a PNG file; `optimize` gives smaller files and is slower."""
    out = io.BytesIO()
    Image.fromarray(picture).save(out, format="PNG", optimize=optimize)
    return out.getvalue()


def png_uri(picture: np.ndarray, optimize: bool = False) -> str:
    """The same as a data URI, for a self-contained page."""
    return "data:image/png;base64," + base64.b64encode(png_bytes(picture, optimize)).decode("ascii")
