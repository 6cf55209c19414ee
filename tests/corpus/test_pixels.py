"""One reading of an image file: what a person sees, what is refused, and that every place reads the same."""

from __future__ import annotations

import functools
import io
import struct
import zlib

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from PIL import Image, PngImagePlugin

from vdr import pixels
from vdr.audit.design import design_everyone
from vdr.audit.study import write_study
from vdr.corpus.access import PageSet
from vdr.corpus.hub import PAGES, PageWriter, read_image
from vdr.errors import BadInput, DamagedArtefact
from vdr.models.mini import mini_image_processor, mini_tokenizer
from vdr.models.processing import Processor
from vdr.pixels import open_page, page_image, pixel_hash

RED = np.zeros((2, 3, 3), dtype=np.uint8)
RED[:, 0] = (255, 0, 0)


def saved(image: Image.Image, kind: str = "PNG", **more) -> bytes:
    out = io.BytesIO()
    image.save(out, format=kind, **more)
    return out.getvalue()


def png16(rows: list[list[int]], clear: int | None = None) -> bytes:
    """A PNG of sixteen-bit grey, which Pillow cannot write with a transparent value."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    data = b"".join(b"\0" + struct.pack(f">{len(row)}H", *row) for row in rows)
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", len(rows[0]), len(rows), 16, 0, 0, 0, 0))
    alpha = chunk(b"tRNS", struct.pack(">H", clear)) if clear is not None else b""
    return b"\x89PNG\r\n\x1a\n" + head + alpha + chunk(b"IDAT", zlib.compress(data)) + chunk(b"IEND", b"")


def noise(size: tuple[int, int]) -> Image.Image:
    """Grey noise, the same at every call."""
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, size[::-1], dtype=np.uint8))


def read(content: bytes) -> np.ndarray:
    page = open_page(content, "page p")
    assert page.mode == "RGB"
    return np.asarray(page)


# -- transparency ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("mode", ["RGBA", "LA", "PA", "La", "RGBa"])
def test_transparent_pixels_are_white_and_opaque_ones_stay(mode):
    rgba = Image.new("RGBA", (2, 1), (0, 0, 0, 0))
    rgba.putpixel((1, 0), (0, 0, 0, 255))
    if mode == "PA":
        image = rgba.convert("P").convert("PA")
        image.putpixel((0, 0), (image.getpixel((0, 0))[0], 0))
        image.putpixel((1, 0), (rgba.convert("P").getpixel((1, 0)), 255))
    elif mode == "La":
        image = rgba.convert("LA").convert("La")
    else:
        image = rgba.convert(mode)
    assert np.asarray(page_image(image, "p")).tolist() == [[[255] * 3, [0] * 3]]


@pytest.mark.parametrize("mode", ["1", "L", "P", "RGB"])
def test_one_colour_or_palette_entries_declared_transparent(mode):
    image = Image.new("RGB", (2, 1), (255, 255, 255))
    image.putpixel((0, 0), (0, 0, 0))
    image = image.convert(mode)
    clear = {"1": 0, "L": 0, "RGB": (0, 0, 0), "P": image.convert("P").getpixel((0, 0))}[mode]
    assert (read(saved(image, transparency=clear)) == 255).all()
    assert read(saved(image)).min() == 0


@settings(max_examples=40, deadline=None)
@given(arrays(np.uint8, (3, 2, 4)))
def test_a_page_with_alpha_is_what_lies_over_white(values):
    image = Image.frombytes("RGBA", (2, 3), values.tobytes())
    alpha = values[..., 3:].astype(float) / 255
    seen = values[..., :3] * alpha + 255 * (1 - alpha)
    assert np.abs(read(saved(image)) - seen).max() <= 1


# -- sixteen bits ------------------------------------------------------------------------------------------------------
def test_sixteen_bit_grey_is_scaled_and_one_value_may_be_clear():
    assert read(png16([[0, 257, 32768, 65535]]))[0, :, 0].tolist() == [0, 1, 128, 255]
    assert read(png16([[0, 1000, 65535]], clear=0))[0, :, 0].tolist() == [255, 4, 255]


def test_other_files_of_deep_grey():
    ramp = Image.fromarray(np.array([[0, 32768, 65535]], dtype=np.uint16))
    assert read(saved(ramp, "TIFF"))[0, :, 0].tolist() == [0, 128, 255]
    assert read(saved(ramp, "TIFF", tiffinfo={262: 0}))[0, :, 0].tolist() == [255, 127, 0]
    assert read(b"P5 3 1 65535\n" + struct.pack(">3H", 0, 32768, 65535))[0, :, 0].tolist() == [0, 128, 255]


@pytest.mark.parametrize("mode", ["I", "F"])
def test_numbers_without_a_known_range_are_refused(mode):
    image = Image.new(mode, (2, 2), 7)
    with pytest.raises(BadInput, match=rf"^page p: image mode {mode} has no certain colours; save the page as RGB$"):
        open_page(saved(image, "TIFF"), "page p")


def test_colours_that_need_a_profile_are_refused():
    with pytest.raises(BadInput, match="page p: image mode LAB"):
        open_page(saved(Image.new("LAB", (2, 2)), "TIFF"), "page p")


# -- orientation and frames --------------------------------------------------------------------------------------------
@pytest.mark.parametrize("kind", ["PNG", "TIFF", "WEBP"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_pages_stand_upright(kind, orientation):
    image = Image.fromarray(RED)
    exif = Image.Exif()
    exif[pixels.ORIENTATION] = orientation
    more = {"lossless": True} if kind == "WEBP" else {}
    turned = {1: RED, 2: RED[:, ::-1], 3: RED[::-1, ::-1], 4: RED[::-1], 5: RED.transpose(1, 0, 2),
              6: np.rot90(RED, -1), 7: RED[::-1, ::-1].transpose(1, 0, 2), 8: np.rot90(RED)}[orientation]  # fmt: skip
    assert np.array_equal(read(saved(image, kind, exif=exif, **more)), turned)


def test_several_frames_are_refused_with_their_number():
    first, second = Image.new("RGB", (4, 4), "red"), Image.new("RGB", (4, 4), "blue")
    for kind in ("TIFF", "GIF", "WEBP", "PNG"):
        content = saved(first, kind, save_all=True, append_images=[second])
        with pytest.raises(BadInput, match=r"^page p: has 2 frames; give each its own file"):
            open_page(content, "page p")
    # A camera's file: the page, and a smaller picture of it.
    camera = saved(first, "MPO", save_all=True, append_images=[second])
    assert read(camera)[0, 0, 0] > 200


# -- damage ------------------------------------------------------------------------------------------------------------
def test_damage_is_told_with_the_page(monkeypatch):
    whole = saved(noise((40, 30)))
    for content in (whole[: len(whole) // 2], b"", b"GIF89a", b"not an image", whole[:60] + b"\0" * 40 + whole[100:]):
        with pytest.raises(BadInput, match=r"^page p: image cannot be decoded"):
            open_page(content, "page p")
    monkeypatch.setattr(pixels, "MAX_PIXELS", 1000)
    with pytest.raises(BadInput, match="page p: has 40×30 pixels; scale the page down"):
        open_page(whole, "page p")


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_a_damaged_file_gives_a_page_or_one_line(data):
    kind = data.draw(st.sampled_from(["PNG", "JPEG", "TIFF", "WEBP", "GIF", "BMP", "PPM"]))
    content = bytearray(saved(noise((24, 18)).convert("RGB"), kind))
    for _ in range(data.draw(st.integers(1, 6))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    try:
        assert open_page(bytes(content), "page p").mode == "RGB"
    except BadInput as error:
        assert error.where == "page p"  # noqa: PT017 - either is right, anything else is not


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(["1", "L", "P", "RGB", "RGBA", "LA", "CMYK"]), st.integers(1, 9), st.integers(1, 9))
def test_reading_twice_changes_nothing(mode, width, height):
    once = page_image(noise((width, height)).convert("RGB").convert(mode), "p")
    assert page_image(once, "p") is once


# -- hashes ------------------------------------------------------------------------------------------------------------
def test_different_pages_have_different_hashes_and_equal_ones_equal():
    def hashed(content: bytes) -> str:
        return pixel_hash(read_image({"bytes": content, "path": None}))

    text, other = Image.new("RGBA", (4, 4)), Image.new("RGBA", (4, 4))
    text.putpixel((0, 0), (0, 0, 0, 255))
    other.putpixel((3, 3), (0, 0, 0, 255))
    assert hashed(saved(text)) != hashed(saved(other)), "black text on transparent pages"
    assert hashed(png16([[300, 40000]])) != hashed(png16([[40000, 300]])), "both are white when clipped"
    plain = noise((9, 7)).convert("RGB")
    assert hashed(saved(plain)) == hashed(saved(plain, "TIFF")) == hashed(saved(plain.convert("RGBA"))) == pixel_hash(plain)


# -- models ------------------------------------------------------------------------------------------------------------
tokenizer = functools.cache(mini_tokenizer)


def capped(tokens: int, least: int = 1) -> Processor:
    rules = mini_image_processor()
    unit = (rules.patch_size * rules.merge_size) ** 2
    rules.size = {"shortest_edge": least * unit, "longest_edge": tokens * unit}
    return Processor(tokenizer(), rules)


@settings(max_examples=80, deadline=None)
@given(st.integers(1, 500), st.integers(1, 500), st.integers(1, 40), st.data())
def test_max_visual_tokens_is_a_cap_for_every_shape(width, height, cap, data):
    processor = capped(cap, data.draw(st.integers(1, cap)))
    page = Image.new("RGB", (width, height), "white")
    if max(width, height) > 200 * min(width, height):
        with pytest.raises(BadInput, match=r"^page thin: has \d+×\d+ pixels, more than 200 times as long as wide"):
            processor.pixels([page], ["thin"])
        return
    values, grid = processor.pixels([page])
    tokens = int(processor.merged_grid(grid).prod())
    assert 1 <= tokens <= cap
    assert len(values) == int(grid.prod())


def test_the_cap_leaves_other_pages_to_the_library():
    processor = capped(64)
    batch = [noise(size).convert("RGB") for size in ((90, 61), (112, 112), (300, 500), (30, 300))]
    ours, grids = processor.pixels(batch)
    theirs = processor.image_processor(images=batch, return_tensors="pt")
    assert np.array_equal(ours.numpy(), theirs["pixel_values"].numpy())
    assert np.array_equal(grids.numpy(), theirs["image_grid_thw"].numpy())
    _, strip = capped(20, 4).pixels([Image.new("RGB", (2000, 11))])
    assert int(processor.merged_grid(strip).prod()) == 20  # 27 by the library


def test_a_page_three_pixels_high_is_not_read_sideways():
    flat = np.zeros((3, 200, 3), dtype=np.uint8)
    flat[:, :100] = 255
    values, grid = capped(64).pixels([Image.fromarray(flat)])
    (_, rows, columns), channels = grid[0].tolist(), 3
    assert columns > rows
    patches = values.view(len(values), channels, -1).mean(dim=2)
    # Patches of one merged token follow each other, row by row of tokens: left ones are bright, right ones dark.
    assert (patches[:2] > patches[-2:]).all()


# -- everywhere the same -----------------------------------------------------------------------------------------------
def hard_pages() -> dict[str, bytes]:
    """Pages that a bare conversion to RGB shows otherwise than a person sees them."""
    grey = noise((56, 84))
    clear = grey.convert("RGBA")
    clear.putalpha(grey.point(lambda v: 255 if v > 128 else 0))
    exif = Image.Exif()
    exif[pixels.ORIENTATION] = 6
    note = PngImagePlugin.PngInfo()
    note.add_text("label", "relevant")
    return {
        "clear": saved(clear),
        "deep": png16((np.asarray(grey, dtype=int) * 200).tolist()),
        "turned": saved(grey.convert("RGB"), exif=exif, pnginfo=note),
    }


def test_people_models_and_galleries_see_the_same_pixels(tmp_path):
    import pandas as pd

    from vdr.models.vision_cache import LiveFeatures
    from vdr.report.gallery import _png

    found = hard_pages()
    writer = PageWriter(tmp_path / "pages.parquet")
    for name, content in found.items():
        writer.add(name, content, "s", pixel_hash(read_image({"bytes": content, "path": None})), "train")
    writer.close()
    assert pq.read_schema(tmp_path / "pages.parquet").names == PAGES.names
    pages = PageSet(tmp_path / "pages.parquet")

    pairs = pd.DataFrame([(q, p, 0.5, "mined", 1) for q in ("a", "b") for p in found],
                         columns=["query_id", "page_id", "score", "role", "rank"])  # fmt: skip
    design = design_everyone(pairs, {"a": "one", "b": "two"}, annotators=3, seed=0, hedge=0.5)
    study = write_study(tmp_path / "study", design, lambda p: pages.image(pages.index(p)), title="t")
    graded = {np.asarray(Image.open(file)).tobytes() for file in (study / "open" / "pages").iterdir()}

    processor = capped(400)
    live = LiveFeatures(pages, processor, vision=None)
    for i, name in enumerate(pages.ids):
        seen = read(found[name])
        assert seen.tobytes() in graded
        assert np.array_equal(np.asarray(Image.open(io.BytesIO(_png(pages.image(i))))), seen)
        by_model, by_cache = processor.pixels([pages.image(i)])[0], live._pixels(name)[0]
        assert np.allclose(by_model, processor.pixels([Image.fromarray(seen)])[0])
        assert np.allclose(by_cache, by_model, atol=1e-6)


def test_a_stored_page_that_cannot_be_read_is_named(tmp_path):
    writer = PageWriter(tmp_path / "pages.parquet")
    writer.add("p7", b"none", "s", "0" * 64, "train")
    writer.close()
    with pytest.raises(DamagedArtefact, match=r"pages.parquet: page p7: image cannot be decoded"):
        PageSet(tmp_path / "pages.parquet").image(0)
