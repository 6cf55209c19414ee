"""The draw, the ring, the orders, the freeze and the blinding of the study's files."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, PngImagePlugin

from vdr.audit.design import Design, design_ring, design_tiers, pairs_from_artefacts
from vdr.audit.judgements import study_from_folder
from vdr.audit.plan import load_plan
from vdr.audit.sampling import Sizes, query_complete, separated_order
from vdr.audit.simulate import SimulatedAnnotator, write_simulated_journals
from vdr.audit.study import freeze, load_frozen, make_links, read_breadth, write_study
from vdr.errors import BadInput, DamagedArtefact

SENTINEL = 0.8371  # a rating that occurs nowhere else


def scored_pool(queries: int = 120, hedge_every: int = 4, seed: int = 0) -> pd.DataFrame:
    """Ranks 0–6 per query; every `hedge_every`-th query has a rating of exactly 0.5 among its top four."""
    rng = np.random.default_rng(seed)
    rows = []
    for q in range(queries):
        for rank in range(7):
            score = float(rng.choice([0.0, SENTINEL, 1.0]))
            if rank == 2 and q % hedge_every == 0:
                score = 0.5
            rows.append((f"q{q:03d}", f"source-page-{q}-{rank}", rank, 1.0 if rank == 0 else score))
    return pd.DataFrame(rows, columns=["query_id", "page_id", "rank", "score"])


TEXTS = {f"q{q:03d}": f"Query number {q}?" for q in range(200)}
BREADTH = {f"q{q:03d}": "broad" if q % 3 == 0 else "specific" for q in range(200)}
SIZES = Sizes(queries=20, with_labelled=10, pages_per_query=4, annotators=5)


def page(page_id: str) -> Image.Image:
    rng = np.random.default_rng(sum(page_id.encode()))
    image = Image.fromarray(rng.integers(0, 255, (24, 16, 3), dtype=np.uint8))
    image.info["secret"] = page_id
    return image


@pytest.fixture
def design() -> Design:
    return design_ring(scored_pool(), TEXTS, SIZES, seed=3, breadth=BREADTH)


@pytest.fixture
def folder(tmp_path, design) -> Path:
    return write_study(tmp_path / "study", design, page, title="A small audit", transcripts={}, simulated=True)


def test_paper_sizes_make_400_judgements():
    design = design_ring(scored_pool(200), TEXTS, Sizes(), seed=1)
    shown = design.pairs
    assert len(design.queries) == 50
    assert (shown["role"] == "labelled").sum() == 20
    assert (shown.groupby("query_id").size() == 4).all()
    assert sum(len(items) for items in design.orders.values()) == 400
    assert {len(items) for items in design.orders.values()} == {40}


def test_hedge_rate_is_kept_not_enriched(design):
    assert design.notes["hedge_rate_pool"] == pytest.approx(0.25)
    assert design.queries["hedge"].sum() == 5  # a quarter of twenty


def test_blocks_are_alike(design):
    blocks = design.queries.groupby("block")
    assert (blocks.size() == 4).all()
    assert (blocks["shows_labelled"].sum() == 2).all()
    assert blocks["hedge"].sum().tolist() == [1, 1, 1, 1, 1]


def test_labelled_queries_show_three_mined_candidates_the_others_four(design):
    for _, shown in design.pairs.groupby("query_id"):
        ranks = sorted(shown["rank"])
        assert ranks in ([0, 1, 2, 3], [1, 2, 3, 4])


def test_ring_gives_two_graders_and_distinct_pairings(design):
    graders: dict[str, set[str]] = {}
    for annotator, items in design.orders.items():
        for item in items:
            graders.setdefault(item, set()).add(annotator)
    assert {len(names) for names in graders.values()} == {2}
    assert len({frozenset(names) for names in graders.values()}) == 5


def test_pages_of_a_query_never_follow_one_another(design):
    query = design.pairs.set_index("item")["query_id"]
    for items in design.orders.values():
        run = [query[item] for item in items]
        assert all(a != b for a, b in itertools.pairwise(run))
    shared = set(design.orders["v01"]) & set(design.orders["v02"])
    first = [item for item in design.orders["v01"] if item in shared]
    assert first != [item for item in design.orders["v02"] if item in shared]


def test_design_depends_on_the_seed_alone(design):
    again = design_ring(scored_pool().sample(frac=1, random_state=5), TEXTS, SIZES, seed=3, breadth=BREADTH)
    pd.testing.assert_frame_equal(design.pairs, again.pairs)
    assert design.orders == again.orders
    other = design_ring(scored_pool(), TEXTS, SIZES, seed=4, breadth=BREADTH)
    assert other.queries["query_id"].tolist() != design.queries["query_id"].tolist()


def test_incomplete_queries_are_left_out():
    scored = scored_pool(10)
    scored.loc[(scored["query_id"] == "q003") & (scored["rank"] == 0), "score"] = np.nan
    scored = scored[~((scored["query_id"] == "q004") & (scored["rank"] == 4))]
    assert set(query_complete(scored, top=4)["query_id"]) == set(scored["query_id"]) - {"q003", "q004"}


@pytest.mark.parametrize(
    ("wrong", "what"),
    [
        ({"queries": 52}, "does not divide into 10 equal blocks"),
        ({"with_labelled": 15}, "with_labelled=15"),
        ({"annotators": 2, "queries": 50}, "no ring"),
        ({"with_labelled": 60}, "cannot show"),
        ({"queries": 0, "with_labelled": 0}, "cannot fill"),
        ({"pages_per_query": 1}, "nothing to mix"),
    ],
)
def test_infeasible_sizes_are_refused(wrong, what):
    with pytest.raises(BadInput, match=what):
        Sizes(**{"queries": 50, "with_labelled": 20, "pages_per_query": 4, "annotators": 10, **wrong})


def test_too_small_a_pool_is_refused():
    with pytest.raises(BadInput, match="12 queries have a rating"):
        design_ring(scored_pool(12), TEXTS, SIZES, seed=0)


@given(st.lists(st.integers(1, 6), min_size=1, max_size=12), st.integers(0, 1000))
@settings(max_examples=150, deadline=None)
def test_separated_order(counts, seed):
    groups = [f"q{index}" for index, count in enumerate(counts) for _ in range(count)]
    feasible = max(counts) <= (len(groups) + 1) // 2
    if not feasible:
        with pytest.raises(BadInput, match="kept apart"):
            separated_order(groups, np.random.default_rng(seed))
        return
    order = separated_order(groups, np.random.default_rng(seed))
    assert sorted(order) == list(range(len(groups)))
    assert all(groups[a] != groups[b] for a, b in itertools.pairwise(order))


def test_tiers_have_equal_numbers():
    judged = pd.DataFrame(
        [(f"q{i % 30:03d}", f"p{i}", ("full", "partial", "none")[i % 3]) for i in range(300)],
        columns=["query_id", "page_id", "tier"],
    )
    design = design_tiers(judged, TEXTS, per_tier=20, annotators=3, seed=0)
    assert design.pairs["tier"].value_counts().to_dict() == {"full": 20, "partial": 20, "none": 20}
    assert [len(items) for items in design.orders.values()] == [60, 60, 60]
    with pytest.raises(BadInput, match="majority"):
        design_tiers(judged, TEXTS, per_tier=20, annotators=4, seed=0)
    with pytest.raises(BadInput, match="100 candidates, 101 are wanted"):
        design_tiers(judged, TEXTS, per_tier=101, annotators=3, seed=0)
    judged.loc[0, "tier"] = "fulll"
    with pytest.raises(BadInput, match="fulll"):
        design_tiers(judged, TEXTS, per_tier=20, annotators=3, seed=0)


def test_artefacts_become_pairs():
    scored = pd.DataFrame({"row_id": [7, 7], "page_id": ["a", "b"], "rank": [0, 1], "score": [0.3, 0.2]})
    ratings = pd.DataFrame({"row_id": [7, 7], "page_id": ["b", "a"], "rank": [1, 0], "rating": [np.nan, 0.5]})
    pairs = pairs_from_artefacts(scored, ratings)
    assert pairs["score"].tolist()[0] == 0.5  # the teacher's rating, not the retriever's score
    assert np.isnan(pairs["score"].tolist()[1])
    with pytest.raises(BadInput, match="twice"):
        pairs_from_artefacts(pd.concat([scored, scored]), ratings)


# --- files
# --------------------------------------------------------------------------------------------------------------------


def test_open_files_hold_no_rating_label_or_page_id(folder):
    freeze(folder)
    sealed = pd.read_csv(folder / "sealed" / "pairs.csv")
    assert SENTINEL in sealed["score"].tolist()  # so that the search below can fail
    words = [str(SENTINEL), "labelled", "mined", "score", "rank", "rating", "hedge", "breadth", "broad", "source-page"]
    words += sealed["page_id"].astype(str).tolist() + sealed["query_id"].astype(str).tolist()
    files = [file for file in (folder / "open").rglob("*") if file.is_file()]
    assert len(files) > 30
    for file in files:
        data = file.read_bytes() + str(file.relative_to(folder)).encode()
        for word in words:
            assert word.encode() not in data, f"{word} in {file}"


def test_page_files_carry_no_metadata(tmp_path, design):
    def with_metadata(page_id: str) -> Image.Image:
        info = PngImagePlugin.PngInfo()
        info.add_text("label", page_id)
        file = tmp_path / "page.png"
        page(page_id).save(file, pnginfo=info)
        with Image.open(file) as image:
            image.load()
            return image

    folder = write_study(tmp_path / "study", design, with_metadata, title="t")
    for file in (folder / "open" / "pages").iterdir():
        with Image.open(file) as saved:
            assert saved.info == {}


def test_ids_say_nothing_about_rank(design):
    order = design.pairs.sort_values("item")
    by_rank = order.groupby("rank")["item"].apply(lambda items: np.mean([int(i[1:]) for i in items]))
    assert by_rank.between(20, 61).all()  # every rank is spread over i0001–i0080
    assert not order["rank"].is_monotonic_increasing


def test_freeze_needs_every_breadth(tmp_path):
    design = design_ring(scored_pool(), TEXTS, SIZES, seed=3)
    folder = write_study(tmp_path / "study", design, page, title="t")
    with pytest.raises(BadInput, match="20 queries are not classified"):
        freeze(folder)
    with pytest.raises(BadInput, match="no frozen study"):
        load_frozen(folder)
    chosen = dict.fromkeys(design.queries["query_id"], "broad")
    with pytest.raises(BadInput, match="wide"):
        freeze(folder, breadth={design.queries["query_id"][0]: "wide"})
    with pytest.raises(BadInput, match="not in the study"):
        freeze(folder, breadth={**chosen, "q999": "broad"})
    frozen = freeze(folder, breadth=chosen)
    assert frozen.manifest["breadth_frozen"]
    assert set(frozen.queries["breadth"]) == {"broad"}
    with pytest.raises(BadInput, match="frozen already"):
        freeze(folder, breadth=chosen)


def test_freeze_after_a_grade_is_refused(folder):
    (folder / "judgements").mkdir()
    (folder / "judgements" / "v01.jsonl").write_text("")
    with pytest.raises(BadInput, match="judgements exist already"):
        freeze(folder)


@pytest.mark.parametrize("name", ["plan.yaml", "sealed/queries.csv", "sealed/pairs.csv", "open/design.json"])
def test_a_change_after_the_freeze_is_found(folder, name):
    freeze(folder)
    file = folder / name
    file.write_text(file.read_text().replace("0", "1", 1))
    with pytest.raises(DamagedArtefact, match="changed after the freeze"):
        load_frozen(folder)


def test_a_rewritten_manifest_is_found(folder):
    freeze(folder)
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["breadth_frozen"] = False
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(DamagedArtefact, match="manifest was changed"):
        load_frozen(folder)


def test_a_study_is_never_overwritten(folder, design):
    with pytest.raises(BadInput, match="exists"):
        write_study(folder, design, page, title="again")


def test_a_failed_write_leaves_nothing(tmp_path, design):
    def broken(page_id: str) -> Image.Image:
        raise BadInput("no such page", where=page_id)

    with pytest.raises(BadInput):
        write_study(tmp_path / "study", design, broken, title="t")
    assert list(tmp_path.iterdir()) == []


def test_links_are_secret_distinct_and_kept(folder):
    frozen = freeze(folder)
    links = make_links(frozen)
    assert set(links) == set(frozen.orders)
    assert len(set(links.values())) == 5
    assert min(len(token) for token in links.values()) >= 22
    assert make_links(frozen) == links
    assert make_links(frozen, renew=True) != links
    assert (folder / "links.csv").stat().st_mode & 0o077 == 0


def test_breadth_file(tmp_path):
    file = tmp_path / "breadth.csv"
    file.write_text("query_id,breadth\nq1,specific\nq2,\n")
    assert read_breadth(file) == {"q1": "specific"}
    file.write_text("query_id,breadth\nq1,specific\nq1,broad\n")
    with pytest.raises(BadInput, match="twice"):
        read_breadth(file)


def test_simulated_judgements_come_back_as_a_study(folder):
    frozen = freeze(folder)
    annotators = [SimulatedAnnotator(name, error=0.0, cannot_judge=0.0) for name in frozen.orders]
    write_simulated_journals(frozen, lambda q, p: 3 if p.endswith(("0", "1")) else 0, annotators, seed=0)
    study = study_from_folder(frozen)
    assert study.simulated
    assert study.missing.empty
    assert len(study.judgements) == 160
    expected = np.where(study.judgements["rank"] <= 1, "3", "0")
    assert (study.judgements["grade"] == expected).all()
    assert load_plan() == study.plan
    with pytest.raises(BadInput, match="exist already"):
        write_simulated_journals(frozen, lambda q, p: 3, annotators, seed=0)


def test_simulated_annotators_cannot_enter_a_human_study(tmp_path, design):
    frozen = freeze(write_study(tmp_path / "study", design, page, title="t"))
    with pytest.raises(BadInput, match="for people"):
        write_simulated_journals(frozen, lambda q, p: 3, [], seed=0)
