import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vdr.errors import BadInput, DamagedArtefact
from vdr.supervision import PatchMaps, pool_map, read_maps, write_maps
from vdr.supervision.maps import maps_for_rows


def test_halving_adds_up_cells():
    values = np.arange(16, dtype=float).reshape(4, 4)
    assert pool_map(values, (2, 2)).tolist() == [[0 + 1 + 4 + 5, 2 + 3 + 6 + 7], [8 + 9 + 12 + 13, 10 + 11 + 14 + 15]]


def test_a_cell_is_shared_in_proportion_to_its_overlap():
    # Three columns onto two: the middle one lies half in each.
    assert pool_map(np.array([[1.0, 2.0, 3.0]]), (1, 2)).tolist() == [[2.0, 4.0]]
    assert pool_map(np.array([[4.0]]), (2, 2)).tolist() == [[1.0, 1.0], [1.0, 1.0]]


def test_the_same_grid_is_unchanged():
    values = np.random.default_rng(0).random((6, 8)).astype(np.float32)
    assert np.array_equal(pool_map(values, (6, 8)), values)


sides = st.integers(1, 9)


@given(sides, sides, sides, sides)
def test_mass_is_kept_and_even_maps_stay_even(h, w, th, tw):
    values = np.random.default_rng(h * w).random((h, w))
    assert pool_map(values, (th, tw)).sum() == pytest.approx(values.sum(), rel=1e-5)
    assert np.allclose(pool_map(np.ones((h, w)), (th, tw)), h * w / (th * tw), rtol=1e-5)


def test_bad_maps():
    for bad in (np.ones(4), np.array([[np.nan]]), np.array([[-1.0]])):
        with pytest.raises(BadInput):
            pool_map(bad, (1, 1))
    with pytest.raises(BadInput):
        pool_map(np.ones((2, 2)), (0, 2))


@pytest.mark.parametrize("shapes", [[(2, 3), (2, 3)], [(2, 3), (1, 4)], []])
def test_round_trip_with_one_grid_and_with_several(tmp_path, shapes):
    rng = np.random.default_rng(1)
    maps = PatchMaps(np.arange(len(shapes), dtype=np.int64) + 5, [rng.random(s).astype(np.float32) for s in shapes])
    for name in ("a.npz", "b.npz"):
        write_maps(tmp_path / name, maps)
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()
    back = read_maps(tmp_path / "a.npz")
    assert back.row_ids.tolist() == maps.row_ids.tolist()
    assert all(np.array_equal(x, y) for x, y in zip(back.maps, maps.maps, strict=True))


def test_a_plain_file_of_one_grid_needs_to_be_told_it(tmp_path):
    np.savez(tmp_path / "maps.npz", row_id=np.array([3, 4]), maps=np.ones((2, 6), np.float32))
    assert read_maps(tmp_path, (2, 3)).maps[0].shape == (2, 3)
    with pytest.raises(BadInput, match="no grid"):
        read_maps(tmp_path)
    with pytest.raises(DamagedArtefact, match="do not fit"):
        read_maps(tmp_path, (2, 4))
    (tmp_path / "maps.npz").write_bytes(b"PK not a zip")
    with pytest.raises(DamagedArtefact, match="cannot be read"):
        read_maps(tmp_path, (2, 3))


def test_rows_get_their_own_map_on_their_pages_student_grid():
    maps = PatchMaps(np.array([1, 2]), [np.ones((2, 2), np.float32), np.full((4, 4), 2, np.float32)])
    grids = {"wide": (1, 2), "square": (2, 2)}
    own = maps_for_rows(maps, [2, 1], ["square", "wide"], grids.__getitem__)
    assert own.row_ids.tolist() == [2, 1]
    assert own.maps[0].tolist() == [[8, 8], [8, 8]]
    assert own.maps[1].tolist() == [[2, 2]]
    with pytest.raises(BadInput, match=r"e\.g\. row 9"):
        maps_for_rows(maps, [9], ["wide"], grids.__getitem__)
