"""The C library itself: built for a level, refused when it answers wrongly, its ways round counted, its overruns seen."""

from __future__ import annotations

import logging
import os
import subprocess
import sys

import numpy as np
import pytest
import torch

from vdr import instructions
from vdr.kernels import native, reference
from vdr.kernels.maxsim import maxsim_search
from vdr.kernels.ward import ward_labels, ward_reference
from vdr.store import Store

CLIP = "const int64_t wide = ld - j < 2 * VL ? ld - j : 2 * VL;"
needs_compiler = pytest.mark.skipif(native._compiler() is None, reason="no C compiler on this machine")


def doctored(tmp_path, name: str, old: str, new: str) -> list:
    """The sources with one of them changed."""
    for source in [*native.SOURCES, *native.HEADERS]:
        text = source.read_text()
        if source.name == name:
            assert text.count(old) == 1
            text = text.replace(old, new)
        (tmp_path / source.name).write_text(text)
    return [tmp_path / source.name for source in native.SOURCES]


@pytest.fixture
def own_library(tmp_path, monkeypatch):
    """A library of this test's own: nothing loaded, nothing counted, a cache folder for itself."""
    monkeypatch.setenv("VDR_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(native, "_off", {})
    monkeypatch.setattr(native, "_fallbacks", type(native._fallbacks)())
    native.load.cache_clear()
    yield
    native.load.cache_clear()


@needs_compiler
@pytest.mark.skipif("x86-64-v4" not in instructions.runnable(), reason="shows itself with registers of sixteen floats only")
def test_a_library_that_overwrites_the_next_row_is_not_used_and_said_once(tmp_path, own_library, monkeypatch, caplog):
    """As released once: where a register has sixteen floats, the last tile of a row of Ward's matrix ran into the next row."""
    monkeypatch.setattr(native, "SOURCES", doctored(tmp_path, "ward.c", CLIP, "const int64_t wide = 2 * VL;"))
    monkeypatch.setenv(instructions.VARIABLE, "x86-64-v4")
    x = np.random.default_rng(0).standard_normal((40, 8)).astype(np.float32)
    with caplog.at_level(logging.WARNING):
        assert np.array_equal(ward_labels(x, 4), ward_reference(x, 4))
        ward_labels(x, 4)
    said = [record.message for record in caplog.records if "native kernels are off" in record.message]
    assert len(said) == 1
    assert "Ward's clustering of" in said[0]
    assert native.fallbacks() == {f"library: {said[0].split(': ', 1)[1]}": 1}


@needs_compiler
@pytest.mark.skipif("x86-64-v4" not in instructions.runnable(), reason="this processor has no registers of 512 bits")
@pytest.mark.parametrize("splits", [True, False])
def test_both_forms_of_the_machines_own_level_answer_rightly(splits, own_library, monkeypatch):
    """A processor that splits wide registers gets lanes of half the width; the other form is another machine's."""
    monkeypatch.setattr(native, "_splits_registers", lambda: splits)
    monkeypatch.setenv(instructions.VARIABLE, instructions.NATIVE)
    library = native.library()
    assert library is not None, native.fallbacks()
    assert library.vdr_lanes() == (8 if splits else 16)
    q, p = (torch.randn(rows, 70, generator=torch.Generator().manual_seed(rows)).bfloat16() for rows in (53, 211))
    po, qo = np.array([0, 1, 40, 64, 211]), np.array([0, 20, 53])
    for pages in (p, p.float()):
        twin = reference.maxsim_search(q.float().numpy(), qo, p.float().numpy(), po)
        assert np.allclose(maxsim_search(q, qo, pages, po).numpy(), twin, rtol=1e-5, atol=1e-4)


@needs_compiler
def test_wrong_products_are_not_used_either(tmp_path, own_library, monkeypatch):
    monkeypatch.setattr(native, "SOURCES", doctored(tmp_path, "maxsim.c", "acc[a][v] += u[v] * y;", "acc[a][v] += u[v] * y * 1.01f;"))
    assert native.library() is None
    assert "MaxSim" in next(iter(native.fallbacks()))


@needs_compiler
def test_a_chain_that_does_not_close_is_answered_by_the_twin_and_counted(own_library, tmp_path):
    """The matrix's window makes this impossible; so the C function's answer is replaced."""
    library = native.library()
    assert library is not None
    real = library.vdr_ward
    library.vdr_ward = lambda *arguments: 2
    try:
        x = np.random.default_rng(0).standard_normal((20, 4)).astype(np.float32)
        made = Store(tmp_path).make("stage", {}, {}, lambda out, measures: np.save(out / "labels.npy", ward_labels(x, 3)))
    finally:
        library.vdr_ward = real
    assert np.array_equal(np.load(made.file("labels.npy")), ward_reference(x, 3))
    assert made.manifest["fallbacks"] == {"Ward: the chain did not close": 1}


def test_without_a_compiler_the_twins_answer_and_the_manifest_says_so(own_library, tmp_path, monkeypatch):
    monkeypatch.setattr(native, "_compiler", lambda: None)
    assert native.library() is None
    made = Store(tmp_path).make("stage", {}, {}, lambda out, measures: (out / "a").write_text("a"))
    assert made.manifest["fallbacks"] == {"library: no C compiler (cc, gcc or clang)": 1}


@needs_compiler
def test_libraries_of_two_levels_lie_side_by_side(own_library):
    if len(instructions.runnable()) < 2:
        pytest.skip("this machine has one level")
    paths = [native.build(level, native.FLAGS) for level in instructions.runnable()]
    assert len(set(paths)) == len(paths)
    assert all(level in path.name for level, path in zip(instructions.runnable(), paths, strict=True))


@pytest.mark.skipif(os.environ.get("VDR_TEST_SANITIZED") != "1", reason="only under make test-sanitized")
@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("ward.c", "*xt = calloc(d * ld + 16, 4)", "*xt = calloc(d * ld - 1, 4)"),
        ("ward.c", CLIP, "const int64_t wide = 2 * VL + 64;"),
        ("maxsim.c", "for (; r < pe[j] && n < strip; r++)", "for (; r < pe[j] + 1 && n < strip; r++)"),
    ],
)
def test_the_sanitizer_sees_an_overrun(tmp_path, name, old, new):
    """The sanitized run itself: with an overrun planted in the library, in its scratch or in the caller's pages, it ends."""
    sources = doctored(tmp_path, name, old, new)
    code = f"""
from pathlib import Path
import vdr, torch
from vdr.kernels import native, probe
native.SOURCES, native.FLAGS = [Path(p) for p in {[str(p) for p in sources]!r}], {native.FLAGS!r}
probe.wrong_answer = lambda library: None
assert native.library() is not None, native.fallbacks()
from vdr.kernels.maxsim import maxsim_search
from vdr.kernels.ward import ward_labels
ward_labels(torch.randn(33, 5).numpy(), 3)
maxsim_search(torch.randn(4, 8), [0, 4], torch.randn(10, 8), [0, 4, 10])
"""
    done = subprocess.run([sys.executable, "-c", code], env={**os.environ, "VDR_CACHE": str(tmp_path)}, capture_output=True, text=True)
    assert done.returncode != 0, code
    assert "ERROR: AddressSanitizer" in done.stderr, done.stderr
    assert name in done.stderr
