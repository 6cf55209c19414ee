"""A page's pixels: one reading of an image file for people, models and hashes alike.

Image formats leave room for guesses (transparency, sixteen bits, a camera's orientation, several frames). Every place
that turns a file into pixels comes here, so that the page an annotator grades, the page a model reads and the page that
is hashed are the same one, and what cannot be read for certain is refused with the page's name.
"""

from __future__ import annotations

import hashlib
import io
import warnings
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from vdr.errors import BadInput

__all__ = ["MAX_PIXELS", "open_page", "page_image", "pixel_hash"]

#: About twice a page scanned at 600 dots per inch; more is a mistake or an attack on memory.
MAX_PIXELS = 160_000_000

ORIENTATION, BITS, PHOTOMETRIC, WHITE_IS_ZERO = 0x0112, 258, 262, 0
#: Modes that Pillow turns into RGB without a guess.
PLAIN = ("1", "L", "P", "CMYK", "YCbCr", "HSV")
#: Modes with transparency in the pixels themselves, the last two with colours already multiplied by it.
TRANSPARENT = ("RGBA", "LA", "PA", "RGBa", "La")


def open_page(content: bytes | Path, page: str) -> Image.Image:
    """Decode a page's file completely, into RGB as `page_image` gives it; ``page`` names it in errors.

    Raises `BadInput` for a file that is no image, is cut off or damaged, is larger than `MAX_PIXELS`, or that
    `page_image` refuses.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # on size, checked below, and on odd tags: what matters is an error
            with Image.open(io.BytesIO(content) if isinstance(content, bytes) else content) as image:
                if image.width * image.height > MAX_PIXELS:
                    raise BadInput(f"has {image.width}×{image.height} pixels", where=page, todo="scale the page down")
                return page_image(image, page)
    except BadInput:
        raise
    except UnidentifiedImageError:
        raise BadInput("image cannot be decoded (unknown format)", where=page) from None
    except Exception as error:  # as below
        raise _undecoded(error, page) from error


def page_image(image: Image.Image, page: str) -> Image.Image:
    """The pixels that a person sees, RGB: upright by EXIF, transparency on white, sixteen bits of grey scaled to eight.

    An RGB page without any of these is returned as it is. Raises `BadInput` naming ``page`` for several frames (a
    camera's MPO file stands for its first), for numbers whose range the file does not tell, and for colours that need a
    profile (LAB).
    """
    try:
        frames = getattr(image, "n_frames", 1)
        if frames > 1 and image.format != "MPO":
            raise BadInput(f"has {frames} frames", where=page, todo="give each its own file: a page is one image")
        image.load()
        kind = image.format
        if image.getexif().get(ORIENTATION) in range(2, 9):
            image = ImageOps.exif_transpose(image)
    except BadInput:
        raise
    except Exception as error:  # damaged files make Pillow raise nearly anything, a TypeError among others
        raise _undecoded(error, page) from error
    if min(image.size) < 1:
        raise BadInput("image without pixels", where=page)
    if image.mode == "RGB" and "transparency" not in image.info:
        return image
    if image.mode.startswith("I;16") or (image.mode == "I" and kind == "PPM"):
        return _from_deep_grey(image)
    if image.mode in TRANSPARENT or (image.mode in (*PLAIN, "RGB") and "transparency" in image.info):
        return _on_white(image)
    if image.mode in PLAIN:
        return image.convert("RGB")
    raise BadInput(f"image mode {image.mode} has no certain colours", where=page, todo="save the page as RGB")


def _undecoded(error: Exception, page: str) -> Exception:
    if isinstance(error, MemoryError):
        return error
    return BadInput(f"image cannot be decoded ({error or type(error).__name__})", where=page)


def _on_white(image: Image.Image) -> Image.Image:
    # Pillow has a way from premultiplied grey to grey with alpha, but none to RGBA.
    image = image.convert("LA") if image.mode == "La" else image
    image = image.convert("RGBA")
    white = Image.new("RGBA", image.size, (255, 255, 255, 255))
    return Image.alpha_composite(white, image).convert("RGB")


def _from_deep_grey(image: Image.Image) -> Image.Image:
    values = np.asarray(image).astype(np.float64)
    tags = getattr(image, "tag_v2", {})
    bits = tags.get(BITS, (16,))
    top = 2 ** int(bits[0] if isinstance(bits, tuple) else bits) - 1
    clear = image.info.get("transparency")
    grey = np.clip(np.rint(values * (255 / top)), 0, 255).astype(np.uint8)
    if tags.get(PHOTOMETRIC) == WHITE_IS_ZERO:
        grey = 255 - grey
    if isinstance(clear, int):
        grey[values == clear] = 255
    return Image.fromarray(grey).convert("RGB")


def pixel_hash(page: Image.Image) -> str:
    """sha256 of an RGB page's pixels with their size: equal pages are equal whatever file they came in.

    ``page`` comes from `open_page` or `page_image`. Raises `ValueError` for another mode, which would be a guess.
    """
    if page.mode != "RGB":
        raise ValueError(f"a page to hash is RGB, not {page.mode}: read it through open_page or page_image")
    digest = hashlib.sha256(f"RGB {page.width}x{page.height}\n".encode())
    digest.update(page.tobytes())
    return digest.hexdigest()
