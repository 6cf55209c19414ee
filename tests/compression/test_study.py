"""From vectors to EV's tables and figures, on synthetic encoders: variants, serving, cases, record, rendering."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
from PIL import Image

from vdr.compression.evidence import box_of, find_cases, maxsim_map
from vdr.compression.figures import FIGURES, make_figure, sweep_figure
from vdr.compression.pooling import Pooling, unit
from vdr.compression.prefix import Widths
from vdr.compression.record import collect, open_record, write_cases
from vdr.compression.report import TABLES, make_table, write_table
from vdr.compression.serving import measure_serving, stratified
from vdr.compression.variants import Variant, score_variants, suite_scores, variants_of
from vdr.errors import BadInput, DamagedArtefact
from vdr.models.vectors import VectorSet, write_vectors
from vdr.store import Artefact
from vdr.study.sections.compression import CompressionSettings

SETTINGS = CompressionSettings(widths=(8, 16, 32), d=8, k=3, second_k=4, payload_widths=(8, 16), budgets=(32, 64), cascade=5,
                               w_pos_sweep=(0.0, 0.1, 0.5), serving_pages=12, serving_queries=6, batch=2, lost_rank=3)
GRID = (3, 4)


class Pages:
    def __init__(self, ids: list[str]) -> None:
        self.ids = ids

    def index(self, page_id: str) -> int:
        return self.ids.index(page_id)

    def image(self, i: int) -> Image.Image:
        return Image.new("RGB", (40, 30), (255, 250 - i, 240))


@dataclass
class Data:
    suite: str
    name: str
    pages: Pages
    queries: dict[str, str]
    qrels: dict[str, dict[str, int]] = field(default_factory=dict)


def encoded(seed: int, pages: int = 14, d: int = 32, context: int = 2) -> tuple[VectorSet, VectorSet]:
    """Pages of regions; each query repeats two tokens of its page with noise, so that retrieval works but not perfectly."""
    rng = np.random.default_rng(seed)
    n = GRID[0] * GRID[1]
    length = n + 2 * context
    rows = unit(rng.standard_normal((pages * length, d)))
    image = np.tile([False] * context + [True] * n + [False] * context, pages)
    page_set = VectorSet([f"p{i:02}" for i in range(pages)], rows, np.arange(pages + 1) * length, image,
                         np.tile(np.array(GRID, np.int32), (pages, 1)))
    asked = np.concatenate([rows[i * length + context + rng.integers(0, n, 3)] for i in range(pages)])
    noisy = unit(asked + 0.25 * rng.standard_normal(asked.shape))
    return page_set, VectorSet([f"q{i:02}" for i in range(pages)], noisy, np.arange(pages + 1) * 3)


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    root = tmp_path_factory.mktemp("vectors")
    datasets = []
    for number, (suite, name) in enumerate([("v1", "a"), ("v2", "b"), ("v3", "c"), ("v3", "d"), ("jina", "e")]):
        pages, queries = encoded(number)
        write_vectors(root / suite / name, pages, queries)
        qrels = {q: {pages.ids[i]: 2, pages.ids[(i + 1) % len(pages)]: 1} for i, q in enumerate(queries.ids)}
        datasets.append(Data(suite, name, Pages(pages.ids), dict.fromkeys(queries.ids, "what stands here?"), qrels))
    return root, datasets


@pytest.fixture(scope="module")
def record(world, tmp_path_factory):
    """A whole record, made by the same functions as a run's."""
    root, datasets = world
    place = tmp_path_factory.mktemp("record")
    widths = Widths((8, 16, 32))
    table = score_variants(root, datasets, variants_of(SETTINGS, 32), widths)
    artefacts = {}
    for stage in ("student", "base", "serving", "cases"):
        (place / stage).mkdir()
        artefacts[stage] = Artefact(stage, stage * 8, place / stage, {})
    for encoder, trained in (("student", "[8, 16, 32]"), ("base", "[32]")):
        table.to_csv(place / encoder / "scores.csv", index=False)
        (place / encoder / "encoder.json").write_text(f'{{"label": "{encoder}", "full": 32, "trained": {trained}}}')
    corpus = stratified(root, [("v3", "c"), ("v3", "d")], SETTINGS.serving_pages, SETTINGS.serving_queries)
    serving = measure_serving(corpus, SETTINGS, widths, place / "indexes", encode=lambda i: None, repeats=1)
    serving.to_csv(place / "serving" / "serving.csv", index=False)
    write_cases(place / "cases", root, [d for d in datasets if d.suite == "v3"], SETTINGS, widths, {})
    return collect(place / "ev", SETTINGS, {k: artefacts[k] for k in ("student", "base")}, artefacts["serving"], artefacts["cases"],
                   profile="test", notes=["synthetic vectors"])


def test_variants_are_each_measured_once_and_fit_the_encoder():
    found = variants_of(SETTINGS, 32)
    assert len({v.name for v in found}) == len(found)
    assert {"raw-d32", "raw-d8", "raw-d8-image", "hac-d8-k3", "ward-d8-k3", "grid-d8-k3", "colpali-d8-k3", "hac-d8-k4",
            "hac-d16-k2", "hac-d8-k8", "hac-d8-k3-w0.5"} <= {v.name for v in found}
    assert max(v.d for v in variants_of(SETTINGS, 16)) == 16


def test_scores_and_sizes_of_variants(world):
    root, datasets = world
    variants = [Variant(32), Variant(8), Variant(8, context=False), Variant(8, Pooling("hac", 8, 3))]
    table = score_variants(root, datasets, variants, Widths((8, 32)))
    sizes = table.groupby("variant")["vectors"].first()
    assert sizes.to_dict() == {"raw-d32": 16, "raw-d8": 16, "raw-d8-image": 12, "hac-d8-k3": 3}
    assert table.groupby("variant")["bytes"].first()["hac-d8-k3"] == 2 * 3 * 8
    means = suite_scores(table)
    assert list(means.columns) == ["v1", "v2", "v3", "jina", "avg"]  # in the order of the data sets
    assert means.loc["raw-d32", "avg"] > means.loc["hac-d8-k3", "avg"] > 0
    own = table[(table.variant == "raw-d32") & (table.suite == "v3")]["ndcg@10"]
    assert means.loc["raw-d32", "v3"] == pytest.approx(own.mean())


def test_vectors_of_another_corpus_are_refused(world):
    root, datasets = world
    strange = Data("v1", "a", Pages(["x"]), dict(datasets[0].queries), datasets[0].qrels)
    with pytest.raises(BadInput, match="another corpus"):
        score_variants(root, [strange], [Variant(32)], Widths((32,)))


def test_a_stratified_corpus_takes_as_many_from_each(world):
    root, _ = world
    pages, queries = stratified(root, [("v3", "c"), ("v3", "d")], 9, 5)
    assert [sum(name.startswith(f"{d}/") for name in pages.ids) for d in "cd"] == [4, 5]
    assert len(queries) == 5
    again, _ = stratified(root, [("v3", "c"), ("v3", "d")], 9, 5)
    assert again.ids == pages.ids
    everything, _ = stratified(root, [("v3", "c"), ("v3", "d")], 1000, 5)
    assert len(everything) == 28


def test_serving_measures_four_forms(record):
    table = record.serving()
    assert len(table) == 4
    assert (table["search_ms"] > 0).all()
    raw, hac = table.iloc[1], table.iloc[2]
    assert raw["memory_mib"] > hac["memory_mib"]
    assert table.iloc[3]["memory_mib"] == pytest.approx(raw["memory_mib"] + hac["memory_mib"])


def test_a_map_sums_to_the_score_and_marks_the_winner():
    tokens = np.eye(6, dtype=np.float32)
    query = np.array([[0, 0, 2, 0, 0, 0], [0, 0, 1, 0, 0, 0.5]], np.float32)
    heat = maxsim_map(query, tokens, (2, 3))
    assert heat.sum() == pytest.approx(3)
    assert heat[0, 2] == pytest.approx(3)
    with pytest.raises(BadInput):
        maxsim_map(query, tokens, (2, 2))


def test_boxes_hold_the_cluster():
    labels = np.array([[0, 0, 1], [0, 1, 1], [2, 2, 1]])
    assert box_of(labels, (0, 2)) == (0, 1, 3, 3)
    assert box_of(labels, (2, 0)) == (2, 0, 3, 2)


def test_cases_are_what_their_names_say(world):
    root, datasets = world
    from vdr.models.vectors import read_vectors

    pages, queries = read_vectors(root / "v3" / "c")
    found = find_cases(pages, queries, datasets[2].qrels, Pooling("hac", 8, 1), Widths((8, 32)), lost_rank=3)
    assert found.queries == 14
    assert found.kept + found.lost <= 14
    for case in found.cases:
        assert case.raw_rank <= 3
        assert case.hac_rank <= 3 if case.kind == "kept" else case.hac_rank > 3
        assert case.map.shape == case.labels.shape == GRID
        assert case.map[case.token] == case.map.max()
        top, left, bottom, right = case.box
        assert top <= case.token[0] < bottom
        assert left <= case.token[1] < right


@pytest.mark.parametrize("name", TABLES)
def test_every_table_renders_and_is_deterministic(record, tmp_path, name):
    table = make_table(record, name)
    assert len(table.frame) >= 2
    first = [path.read_bytes() for path in write_table(table, record, tmp_path / "a")]
    second = [path.read_bytes() for path in write_table(make_table(open_record(record.root), name), record, tmp_path / "b")]
    assert first == second
    assert b"paper" in first[1]
    assert table.title in table.text()


def test_table_8_holds_the_papers_figures_beside_this_runs(record):
    table = make_table(record, "ev-table8").frame.set_index("form")
    assert table.loc["HAC (position-guided)", "paper V3"] == 59.58
    assert table.loc["Ward (semantic only)", "paper V3"] == pytest.approx(58.12)
    assert table.loc["grid pooling", "paper Avg4"] == pytest.approx(63.87)
    assert table.loc["raw, all tokens", "vectors"] == 16
    assert table.loc["raw, image tokens only", "vectors"] == 12


def test_post_hoc_widths_are_said(record):
    assert not any("post-hoc" in note for note in make_table(record, "ev-table9").notes)
    import json
    import shutil

    copy = record.root.with_name("copy")
    shutil.copytree(record.root, copy)
    meta = json.loads((copy / "record.json").read_text())
    meta["encoders"]["student"]["trained"] = [32]
    (copy / "record.json").write_text(json.dumps(meta))
    assert any("8, 16: post-hoc truncation" in note for note in make_table(open_record(copy), "ev-table9").notes)


@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_draws(record, name):
    figure = make_figure(record, name)
    assert figure.axes
    import matplotlib.pyplot as plt

    plt.close(figure)
    plt.close(sweep_figure(record))


def test_claims_are_decided_by_the_record(record):
    from vdr.compression.claims import check_claims

    found = {v.name: v for v in check_claims(record)}
    assert found["ev-payload-128"].verdict == "holds"
    own = suite_scores(record.scores())
    gain = own.loc["hac-d8-k3", "v3"] - own.loc["ward-d8-k3", "v3"]
    assert found["ev-position-helps"].value == pytest.approx(gain)
    assert found["ev-position-helps"].verdict == ("holds" if gain > 0 else "fails")
    assert {v.verdict for v in found.values()} <= {"holds", "fails"}
    (record.root.with_name("bare")).mkdir()
    import json

    meta = {**record.meta, "files": {name: h for name, h in record.meta["files"].items() if name.startswith("scores-student")},
            "encoders": {"student": record.meta["encoders"]["student"]}}
    (record.root.with_name("bare") / "record.json").write_text(json.dumps(meta))
    (record.root.with_name("bare") / "scores-student.csv").write_bytes((record.root / "scores-student.csv").read_bytes())
    bare = {v.name: v.verdict for v in check_claims(open_record(record.root.with_name("bare")))}
    assert {name for name, verdict in bare.items() if verdict == "not run"} == {
        "ev-search-faster", "ev-memory-smaller", "ev-position-helps-elsewhere", "ev-more-kept-than-lost"}


def test_records_are_checked(record):
    import shutil

    with pytest.raises(BadInput, match="no compression record"):
        open_record(record.root.with_name("nothing"))
    with pytest.raises(BadInput, match="no encoder"):
        record.scores("miner")
    with pytest.raises(BadInput, match="unknown EV table"):
        make_table(record, "ev-table7")
    copy = record.root.with_name("damaged")
    shutil.copytree(record.root, copy)
    (copy / "scores-student.csv").write_text("suite\n")
    with pytest.raises(DamagedArtefact, match="SHA-256"):
        open_record(copy)
