import json

import numpy as np
import pandas as pd
import pytest

from vdr.errors import BadInput
from vdr.mining import scored_pool
from vdr.study.catalogue import Arm, load_arms
from vdr.study.sections.mining import MiningSettings
from vdr.study.sections.supervision import SupervisionSettings
from vdr.supervision import PatchMaps, build_rows, negatives_overlap, oracle_ratings, read_maps, read_rows, row_pools
from vdr.supervision.statistics import negatives_table

PAGES = [f"p{i:03d}" for i in range(120)]
ROW_IDS = list(range(10, 34))


@pytest.fixture(scope="module")
def world():
    """24 rows over 120 pages; rows 10 and 11 repeat a query string and are labelled with different pages."""
    rng = np.random.default_rng(7)
    rows = pd.DataFrame(
        {
            "row_id": ROW_IDS,
            "query": ["what is the date?"] * 2 + [f"query {i}" for i in range(2, 24)],
            "page_id": PAGES[:24],
            "source": ["docvqa", "pdf"] * 12,
            "breadth": ["broad"] * 2 + ["specific"] * 22,
        }
    )
    records = []
    for i, row_id in enumerate(ROW_IDS):
        order = list(rng.permutation(120))
        if i < 2:  # both rows of the repeated query mine both labelled pages first
            order = [0, 1] + [p for p in order if p not in (0, 1)]
        pool = [PAGES[p] for p in order[:100]]
        rank = pool.index(PAGES[i]) + 1 if PAGES[i] in pool else -1
        scores = (20 - np.arange(100) * 0.1).astype(np.float32)
        records.append((row_id, pool, scores, rank, scores[rank - 1] if rank > 0 else 5.0))
    pools = pd.DataFrame(records, columns=["row_id", "candidates", "scores", "labelled_rank", "labelled_score"])
    grades = rng.choice([0, 1, 2, 3], p=[0.4, 0.2, 0.1, 0.3], size=(24, 120)).astype(np.int8)
    scored = scored_pool(pools, rows, MiningSettings())
    value = rng.choice([0.0, 0.2, 0.5, 0.9, 1.0, np.nan], p=[0.5, 0.05, 0.05, 0.1, 0.28, 0.02], size=len(scored))
    ratings = scored[["row_id", "page_id", "rank"]].assign(rating=value.astype(np.float32), reply="")
    maps = PatchMaps(np.array(ROW_IDS[::-1]), [np.full((12, 16), float(r), np.float32) for r in ROW_IDS[::-1]])
    descriptions = pd.DataFrame({"row_id": ROW_IDS, "description": [f"page {r}" for r in ROW_IDS[:-1]] + ["  "]})
    return {
        "rows": rows,
        "pools": pools,
        "scored": scored,
        "ratings": ratings,
        "maps": maps,
        "descriptions": descriptions,
        "grades": grades,
    }


def grid(_page):
    return (6, 8)


def build(world, tmp_path, name, seed=0, **changed):
    parts = {**world, **changed}
    arm = changed.get("arm", load_arms()[name])
    out = tmp_path / f"{name}-{seed}"
    out.mkdir(parents=True, exist_ok=True)
    build_rows(
        arm,
        parts["rows"],
        parts["pools"],
        parts["scored"],
        parts["ratings"],
        parts["maps"],
        parts["descriptions"],
        seed,
        out,
        SupervisionSettings(),
        measures := {},
        student_grid=grid,
    )
    return read_rows(out), measures, out


ALL = [name for name in load_arms() if not name.endswith("oracle")]


def test_rows_and_their_order_are_the_same_for_every_arm_and_seed(world, tmp_path):
    reference, _, _ = build(world, tmp_path, "baseline")
    assert reference["row_id"].tolist() == ROW_IDS
    assert reference["negatives"].map(len).sum() == 0
    for name in ALL:
        for seed in (0, 1):
            shuffled = world["rows"].sample(frac=1, random_state=3)
            frame, _, _ = build(world, tmp_path, name, seed, rows=shuffled)
            same = ["row_id", "query", "page_id", "source"]
            pd.testing.assert_frame_equal(frame[same], reference[same])


@pytest.mark.parametrize("name", ALL)
def test_same_call_same_bytes(world, tmp_path, name):
    for where in ("a", "b"):
        build(world, tmp_path / where, name)
    for file in (tmp_path / f"a/{name}-0").iterdir():
        assert file.read_bytes() == (tmp_path / f"b/{name}-0/{file.name}").read_bytes()


@pytest.mark.parametrize("name", [n for n in ALL if load_arms()[n].negatives is not None])
def test_a_labelled_page_is_never_its_own_negative(world, tmp_path, name):
    frame, measures, _ = build(world, tmp_path, name)
    assert (frame["negatives"].map(len) == 4).all()
    for row in frame.itertuples():
        assert row.page_id not in row.negatives
        assert len(set(row.negatives)) == 4
    assert measures["negatives"]["negatives"] == 4 * len(frame)


def test_the_other_label_of_a_repeated_query_string_may_be_a_negative(world, tmp_path):
    # Rows 10 and 11 ask the same; each has the other's labelled page at rank 1, and only its own is left out (§5).
    frame, measures, _ = build(world, tmp_path, "N-mined")
    first, second = frame.iloc[0], frame.iloc[1]
    assert first["page_id"] == PAGES[0]
    assert first["negatives"][0] == PAGES[1]
    assert second["negatives"][0] == PAGES[0]
    assert measures["negatives"]["labelled_elsewhere_for_the_same_query_string"] == 2


def test_n_takes_what_the_teacher_rejects_and_reports_its_backfill(world, tmp_path):
    frame, measures, _ = build(world, tmp_path, "N")
    by_row = row_pools(world["scored"], world["ratings"], world["pools"])
    table = negatives_table(frame, by_row)
    assert (table.loc[~table["backfill"], "rating"] < 0.5).all()
    assert (table.loc[table["backfill"], "rating"] >= 0.5).all()
    assert measures["negatives"]["rows_with_backfill"] == int((frame["filled"] > 0).sum())
    assert measures["negatives"]["rated_relevant_share"] == pytest.approx((table["rating"] >= 0.5).mean())
    kept = table[~table["backfill"]]
    assert measures["negatives"]["accepted_beyond_rank_10_share"] == pytest.approx((kept["rank"] > 10).mean())


def test_matched_threshold_uses_the_rate_of_its_arm(world, tmp_path):
    _, measures, _ = build(world, tmp_path, "N-perc-matched")
    note = measures["rule"]["matched"]
    assert note["rate"] == pytest.approx(note["target_rate"], abs=0.02)
    assert 0 < measures["rule"]["alpha"] < 2


def test_s_and_its_variants_share_candidates_and_differ_in_targets(world, tmp_path):
    frames = {n: build(world, tmp_path, n)[0] for n in ("S", "S-flat", "S-masked", "S-partition")}
    for frame in frames.values():
        assert frame["candidates"].tolist() == frames["S"]["candidates"].tolist()
        assert frame["negatives"].map(len).sum() == 0
    rating = world["ratings"].set_index(["row_id", "page_id"])["rating"]
    for row in frames["S"].itertuples():
        assert row.targets == [rating[row.row_id, page] for page in row.candidates]
        assert row.target_weight == 1.0
        assert len(row.candidates) == 4
    assert all(set(t) == {0.0} for t in frames["S-flat"]["targets"])
    constant = [len(set(t)) == 1 for t in frames["S"]["targets"]]
    assert any(constant)
    assert (frames["S-masked"]["target_weight"] == 0).tolist() == constant
    assert build(world, tmp_path, "S", 1)[0]["candidates"].tolist() != frames["S"]["candidates"].tolist()


def test_report_of_targets(world, tmp_path):
    frame, measures, out = build(world, tmp_path, "S")
    targets = measures["targets"]
    assert [line["temperature"] for line in targets["entropy"]] == [1.0, 0.5, 0.1, 0.05, 0.02]
    assert targets["shape"]["constant_share"] == pytest.approx(np.mean([len(set(t)) == 1 for t in frame["targets"]]))
    assert targets["labelled_page_among_them_share"] == pytest.approx(
        np.mean([p in c for p, c in zip(frame["page_id"], frame["candidates"], strict=True)])
    )
    assert json.loads((out / "report.json").read_text()) == json.loads(json.dumps(measures))


def test_maps_come_pooled_and_in_the_rows_order(world, tmp_path):
    _, _, out = build(world, tmp_path, "A")
    maps = read_maps(out)
    assert maps.row_ids.tolist() == ROW_IDS
    assert all(m.shape == (6, 8) for m in maps.maps)
    assert maps.maps[3][0, 0] == pytest.approx(4 * ROW_IDS[3])  # four teacher cells a student cell
    assert not (build(world, tmp_path, "baseline")[2] / "maps.npz").exists()


def test_descriptions_and_the_empty_one(world, tmp_path):
    frame, measures, _ = build(world, tmp_path, "D")
    assert frame["description"].tolist()[:2] == ["page 10", "page 11"]
    assert frame["description"].isna().tolist() == [False] * 23 + [True]
    assert measures["rows_with_an_empty_description"] == 1
    assert build(world, tmp_path, "N")[0]["description"].isna().all()


def test_oracle_ratings_come_from_the_truth(world, tmp_path):
    oracle = oracle_ratings(world["scored"], world["grades"], ROW_IDS, PAGES)
    pair = oracle.iloc[17]
    grade = world["grades"][ROW_IDS.index(pair["row_id"]), PAGES.index(pair["page_id"])]
    assert pair["rating"] == np.float32(grade / 3)
    assert pair["reply"] == f"oracle: true grade {grade}"
    frame, _, _ = build(world, tmp_path, "N-oracle", ratings=oracle)
    for row in frame[frame["filled"] == 0].itertuples():
        assert all(world["grades"][ROW_IDS.index(row.row_id), PAGES.index(p)] < 2 for p in row.negatives)


def test_overlap_of_two_arms():
    a = pd.DataFrame({"row_id": [1, 2], "negatives": [["a", "b", "c", "d"], ["a", "b", "c", "d"]]})
    b = pd.DataFrame({"row_id": [2, 1], "negatives": [["x", "b", "c", "y"], ["d", "c", "b", "a"]]})
    assert negatives_overlap(a, b) == {"rows": 2.0, "identical_share": 0.5, "mean_shared": 3.0}


def test_what_is_missing_is_named(world, tmp_path):
    for name, part in [
        ("N", "ratings"),
        ("S-flat", "ratings"),
        ("N-band", "pools"),
        ("A", "maps"),
        ("D", "descriptions"),
    ]:
        with pytest.raises(BadInput, match=part):
            build(world, tmp_path, name, **{part: None})
    with pytest.raises(BadInput, match=r"ratings: 1 scored pairs have no rating"):
        build(world, tmp_path, "N", ratings=world["ratings"].iloc[1:])
    with pytest.raises(BadInput, match="rated twice"):
        build(world, tmp_path, "N", ratings=pd.concat([world["ratings"], world["ratings"].iloc[:1]]))
    with pytest.raises(BadInput, match=r"outside \[0, 1\]"):
        build(world, tmp_path, "N", ratings=world["ratings"].assign(rating=85.0))
    with pytest.raises(BadInput, match="same rows"):
        build(world, tmp_path, "N", rows=world["rows"].iloc[1:])
    with pytest.raises(BadInput, match="labelled with another page"):
        build(world, tmp_path, "N", rows=world["rows"].assign(page_id=PAGES[50]))
    with pytest.raises(BadInput, match=r"e\.g\. row 10"):
        build(world, tmp_path, "D", descriptions=world["descriptions"].iloc[1:])
    assert isinstance(load_arms()["N"], Arm)
