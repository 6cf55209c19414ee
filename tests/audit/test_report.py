"""Tables, figures and the whole stage on a small corpus artefact; the commands a newcomer types."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image
from typer.testing import CliRunner

from vdr.audit.commands import app
from vdr.audit.report import render_text, table4, write_report
from vdr.audit.stage import build_audit, design_for_people
from vdr.corpus.access import load_train
from vdr.errors import BadInput
from vdr.study.sections.audit import AuditSettings, EvidenceAuditSettings, SimulatedSettings

SETTINGS = AuditSettings(
    queries=15,
    with_labelled=5,
    annotators=5,
    evidence=EvidenceAuditSettings(per_tier=12),
    simulated=SimulatedSettings(repeats=3),
)
PAPER = {
    "table4_audit": {
        "precision_of_protection": [0.71, 0.59, 0.8, 197],
        "on_specific_queries": [0.83, 0.71, 0.92, 138],
        "on_broad_queries": [0.42, 0.24, 0.58, 59],
        "miss_rate": [0.14, 0.08, 0.22, 141],
        "teacher_human_kappa": [0.54, 338],
        "human_human_kappa_mean_of_10": [0.41, 161],
        "kappa_range": [-0.13, 0.87],
        "relevant_per_query_of_four": [2.04, 1.46, 2.61],
    },
    "table13_raters": [["v01", 41, 0.0, 0.47, 0.75, "3/4"]],
    "table13_pairings": [["v01-v02", 17, 0.85]],
}


def png(value: int) -> bytes:
    import io

    handle = io.BytesIO()
    Image.fromarray(np.full((12, 8, 3), value, dtype=np.uint8)).save(handle, format="PNG")
    return handle.getvalue()


@pytest.fixture(scope="module")
def artefacts(tmp_path_factory) -> dict[str, Path]:
    """A corpus with known truth, a scored pool and ratings, in the study's own formats."""
    root = tmp_path_factory.mktemp("artefacts")
    rng = np.random.default_rng(0)
    rows, pages = 40, 60
    (root / "train").mkdir()
    ids = [f"page-{i:02d}" for i in range(pages)]
    images = [{"bytes": png(i * 4), "path": None} for i in range(pages)]
    table = pd.DataFrame({"page_id": ids, "image": images, "source": "forms", "split": "train", "sha256": "0"})
    table.to_parquet(root / "train" / "pages.parquet")
    truth = rng.choice([0, 1, 2, 3], p=[0.3, 0.2, 0.2, 0.3], size=(rows, pages)).astype(np.int8)
    np.savez(root / "train" / "truth.npz", grades=truth)
    entries, scored, ratings = [], [], []
    for r in range(rows):
        chosen = rng.permutation(pages)[:8]
        breadth = "broad" if r % 3 == 0 else "specific"
        entries.append((100 + r, f"q{r}", f"Which page is number {r}?", ids[chosen[0]], "forms", "train", breadth))
        for rank, page in enumerate(chosen):
            says = truth[r, page] >= 2 if rng.random() < 0.85 else truth[r, page] < 2
            rating = rng.choice([0.5, 0.8, 1.0]) if says else rng.choice([0.0, 0.1])
            scored.append((100 + r, ids[page], rank, 1.0 - rank / 10))
            ratings.append((100 + r, ids[page], rank, rating, str(rating)))
    columns = ["row_id", "query_id", "query", "page_id", "source", "split", "breadth"]
    pd.DataFrame(entries, columns=columns).to_parquet(root / "train" / "rows.parquet")
    pd.DataFrame(scored, columns=["row_id", "page_id", "rank", "score"]).to_parquet(root / "scored_pool.parquet")
    pd.DataFrame(ratings, columns=["row_id", "page_id", "rank", "rating", "reply"]).to_parquet(root / "ratings.parquet")
    return {"corpus": root, "scored": root, "ratings": root}


@pytest.fixture(scope="module")
def audit(artefacts, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("audit")
    measures: dict = {}
    build_audit(out, measures, SETTINGS, **artefacts)
    assert measures["simulated"] is True
    assert measures["judgements"] == 2 * 60 + 3 * 36
    return out


def test_stage_writes_results_that_say_simulated(audit):
    result = json.loads((audit / "analysis.json").read_text())
    assert result["simulated"]
    assert result["counts"] == {
        "annotators": 5, "queries": 15, "pages": 60, "judgements": 120,
        "cannot_judge": result["counts"]["cannot_judge"], "rated_judgements": result["counts"]["rated_judgements"],
    }  # fmt: skip
    assert "SIMULATED" in render_text(result)
    evidence = json.loads((audit / "evidence.json").read_text())
    assert evidence["simulated"]
    assert "cut from the teacher's ratings" in render_text(evidence)
    assert len(pd.read_csv(audit / "recovery.csv")) == 4
    assert (pd.read_csv(audit / "coverage.csv")["repeats"] == 3).all()
    assert len(pd.read_csv(audit / "simulated_annotators.csv")) == 5


def test_stage_gives_the_same_bytes_again(audit, artefacts, tmp_path):
    build_audit(tmp_path, {}, SETTINGS, **artefacts)
    files = sorted(file.relative_to(audit) for file in audit.rglob("*") if file.is_file())
    assert files == sorted(file.relative_to(tmp_path) for file in tmp_path.rglob("*") if file.is_file())
    for file in files:
        assert (audit / file).read_bytes() == (tmp_path / file).read_bytes(), file


def test_table4_beside_the_paper(audit):
    result = json.loads((audit / "analysis.json").read_text())
    table = table4(result, PAPER).set_index("figure")
    assert table.loc["precision of protection", "paper"] == "71%"
    assert table.loc["precision of protection", "paper_interval"] == "[59, 80]"
    assert table.loc["precision of protection", "paper_n"] == 197
    assert table.loc["relevant pages per query, of 4", "paper"] == "2.04"
    assert table.loc["relevant pages per query, of 4", "paper_interval"] == "[1.46, 2.61]"
    assert table.loc["teacher–human κ", "paper_n"] == 338
    shown = table.loc["precision of protection", "value"]
    assert shown == f"{100 * result['headline']['precision']['value']:.0f}%"
    assert "paper" not in table4(result)


def test_report_files_carry_the_word(audit, tmp_path):
    result = json.loads((audit / "analysis.json").read_text())
    paths = write_report(result, tmp_path / "one", reference=PAPER, recovery=audit)
    paths += write_report(json.loads((audit / "evidence.json").read_text()), tmp_path / "one")
    assert all("simulated" in path.name for path in paths)
    for path in paths:
        if path.suffix in (".md", ".csv"):
            assert "simulated" in path.read_text().lower(), path
    names = {path.name for path in paths}
    assert {"wt-table4-simulated.md", "wt-table13-pairings-simulated.csv", "ev-table6-simulated.csv"} <= names
    assert {f"audit-{n}-simulated.png" for n in ("kappa", "threshold", "leave-one-out", "tiers", "recovery")} <= names
    again = write_report(result, tmp_path / "two", reference=PAPER, recovery=audit)
    for first, second in zip(sorted(paths), sorted(again), strict=False):
        if first.name == second.name:
            assert first.read_bytes() == second.read_bytes(), first.name
    with pytest.raises(BadInput, match="no wt-table5"):
        write_report(result, tmp_path / "three", only="wt-table5")


def test_people_get_a_design_without_breadth(artefacts):
    design, source = design_for_people(SETTINGS, **artefacts)
    assert set(design.queries["breadth"]) == {""}
    assert source(design.pairs["page_id"][0]).size == (8, 12)


def test_no_truth_no_simulation(artefacts, tmp_path):
    train = load_train(artefacts["corpus"])
    file = artefacts["corpus"] / "train" / "truth.npz"
    kept = file.read_bytes()
    file.unlink()
    try:
        with pytest.raises(BadInput, match="no known truth"):
            build_audit(tmp_path, {}, SETTINGS, **artefacts)
    finally:
        file.write_bytes(kept)
    assert train.truth() is not None


# --- the commands ---------------------------------------------------------------------------------------------------


def run(*arguments: object) -> str:
    answer = CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)
    assert answer.exit_code == 0, answer.output
    return answer.output


def test_own_pages_from_design_to_tables(tmp_path):
    """What docs/audit.md tells a newcomer to type, with three people's answers put straight into their journals."""
    from vdr.audit.journal import Journal
    from vdr.audit.study import load_frozen

    pages = tmp_path / "pages"
    pages.mkdir()
    for n in range(5):
        Image.new("RGB", (40, 50), (50 * n, 80, 120)).save(pages / f"page{n}.png")
    queries = tmp_path / "queries.csv"
    queries.write_text("query_id,query\nq1,What is the total?\nq2,Who signed?\n")
    study = tmp_path / "study"
    told = run("design", study, "--pages", pages, "--queries", queries, "--annotators", 3)
    assert "classify every query" in told
    blank = study / "breadth_to_fill.csv"
    blank.write_text(
        blank.read_text()
        .replace("What is the total?,", "What is the total?,specific")
        .replace("signed?,", "signed?,broad")
    )
    run("freeze", study, "--breadth", blank)
    frozen = load_frozen(study)
    for name, items in frozen.orders.items():
        journal = Journal(
            study / "judgements" / f"{name}.jsonl",
            study_id=frozen.study_id,
            annotator=name,
            items=items,
            grades="3210x",
        )
        journal.consent()
        for place, item in enumerate(items):
            journal.judge(item, "3210"[(place + int(item[1:])) % 4], 4.0, revision=0)
        if name == "v01":
            assert "v02    0 of 10" in run("check", study)
    assert "v03   10 of 10" in run("check", study)
    told = run("analyse", study, "--out", tmp_path / "tables")
    assert "human–human κ (mean of 3 pairings)" in told
    assert "SIMULATED" not in told
    assert (tmp_path / "tables" / "tables" / "wt-table4.md").is_file()


def test_released_judgements_with_a_bad_row_are_refused(tmp_path):
    (tmp_path / "j.csv").write_text("annotator,query_id,page_id,grade,seconds\nv01,q1,a,7,3\n")
    (tmp_path / "p.csv").write_text("query_id,page_id,role,rank,score\nq1,a,mined,1,0.5\n")
    (tmp_path / "q.csv").write_text("query_id,breadth\nq1,broad\n")
    with pytest.raises(BadInput, match=r"j.csv: row 1, field grade: unknown grade '7'.*1 such rows"):
        run(
            "analyse", "--judgements", tmp_path / "j.csv", "--pairs", tmp_path / "p.csv", "--queries", tmp_path / "q.csv",
            "--out", tmp_path / "out",
        )  # fmt: skip
    assert pd.read_csv(tmp_path / "out" / "problems.csv")["field"].tolist() == ["grade"]
    assert sorted(file.name for file in (tmp_path / "out").iterdir()) == ["problems.csv"]


def test_figures_show_themselves_in_a_notebook(audit):
    from vdr.audit.figures import kappa_figure

    figure = kappa_figure(json.loads((audit / "analysis.json").read_text()))
    assert figure._repr_png_()[:8] == b"\x89PNG\r\n\x1a\n"
