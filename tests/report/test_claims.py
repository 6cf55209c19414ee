"""WT's claims on scores worked out by hand, on the paper's own seeds, on a made record and on the recorded run."""

from __future__ import annotations

import pandas as pd
import pytest

from vdr.errors import BadInput
from vdr.report.claims import check_claim, check_claims, claims_text, write_claims
from vdr.report.record import open_record
from vdr.report.reference import wt_runs
from vdr.study.catalogue import load_claims, load_suites
from vdr.study.settings import repository_root

RECORDED = repository_root() / "outputs" / "recorded" / "mini"
BASELINE = [50.0, 52.0, 51.0]


def scores_of(**arms: list[float]) -> pd.DataFrame:
    runs = {"baseline": BASELINE} | arms
    rows = [(arm, "v2", seed, value) for arm, values in runs.items() for seed, value in enumerate(values)]
    return pd.DataFrame(rows, columns=["arm", "suite", "seed", "value"])


@pytest.mark.parametrize(
    ("claim", "arms", "verdict", "value", "why"),
    [
        ("wt-n-raises-v2", {"N": [51.0, 55.0, 53.0]}, "holds", 2.0, "N +2.00 (by seed +1.00, +3.00, +2.00): stable +"),
        (
            "wt-n-raises-v2",
            {"N": [49.0, 58.0, 52.0]},
            "fails",
            2.0,
            "N +2.00 (by seed -1.00, +6.00, +1.00): sign flips",
        ),
        ("wt-n-raises-v2", {"N": [49.0, 51.0, 50.0]}, "fails", -1.0, "N -1.00 (by seed -1.00, -1.00, -1.00): stable -"),
        (
            "wt-a-leaves-v2",
            {"A": [51.0, 51.0, 51.0]},
            "holds",
            0.0,
            "A +0.00 (by seed +1.00, -1.00, +0.00): sign flips",
        ),
        ("wt-a-leaves-v2", {"A": [51.0, 53.0, 52.0]}, "fails", 1.0, "A +1.00 (by seed +1.00, +1.00, +1.00): stable +"),
        (
            "wt-s-above-d-v2",
            {"S": [53.0, 52.0, 54.0], "D": [51.0, 53.0, 52.0]},
            "holds",
            1.0,
            "S +2.00 (by seed +3.00, +0.00, +3.00); D +1.00 (by seed +1.00, +1.00, +1.00)",
        ),
        ("wt-s-above-d-v2", {"S": [51.0, 53.0, 52.0], "D": [51.0, 53.0, 52.0]}, "fails", 0.0, "S +1.00"),
        ("wt-n-raises-v2", {"S": [51.0, 53.0, 52.0]}, "not run", None, "no run of N on v2"),
        ("wt-s-above-d-v2", {"S": [51.0, 53.0, 52.0]}, "not run", None, "no run of D on v2"),
        ("wt-n-raises-v3", {"N": [51.0, 53.0, 52.0]}, "not run", None, "no run of N on v3"),
        ("wt-n-raises-v2", {"N": [51.0]}, "not run", None, "one seed alone (N +1.00 (by seed +1.00)) decides nothing"),
        ("wt-n-raises-v2", {"N": [51.0, 53.0, 52.0, 60.0]}, "not run", None, "no 'baseline' at seed 3"),
        (
            "wt-s-above-d-v2",
            {"S": [53.0, 52.0, 54.0], "D": [51.0, 53.0]},
            "not run",
            None,
            "seeds [0, 1, 2] of S and [0, 1] of D",
        ),
    ],
)
def test_verdicts_worked_out_by_hand(claim, arms, verdict, value, why):
    found = check_claim(load_claims()[claim], scores_of(**arms))
    assert found.verdict == verdict
    assert found.value == (None if value is None else pytest.approx(value))
    assert why in found.why


def test_every_claim_holds_on_the_papers_own_seeds_with_the_papers_figure():
    runs = wt_runs()
    back = {suite.paper_suite: name for name, suite in load_suites().items()}
    runs = runs[runs["recipe"] == "three_epochs"].assign(suite=lambda table: table["suite"].map(back))
    for claim in load_claims().values():
        found = check_claim(claim, runs)
        assert found.verdict == "holds", found
        assert found.value == pytest.approx(claim.paper_value, abs=0.11)  # the paper rounds every seed


def test_a_record_decides_what_it_has_and_the_file_is_the_same_twice(study, tmp_path):
    found = {v.claim.name: v for v in check_claims(study.record)}
    assert "not run" not in {v.verdict for v in found.values()}
    some = study.record_of(tmp_path / "record", study.store, {k: v for k, v in study.runs.items() if k[0] != "S"})
    fewer = {v.claim.name: v for v in check_claims(some)}
    assert {name for name, v in fewer.items() if v.verdict == "not run"} == {name for name in found if "-s-" in name}
    assert fewer["wt-n-raises-v2"] == found["wt-n-raises-v2"]
    assert claims_text(list(fewer.values())).endswith("not run 3")
    paths = [write_claims(check_claims(some, recompute=False), tmp_path / name) for name in ("one", "two")]
    assert paths[0].read_bytes() == paths[1].read_bytes()
    table = pd.read_csv(paths[0])
    assert list(table.columns) == ["claim", "source", "text", "paper", "this_run", "verdict", "why"]
    assert table["this_run"].isna().sum() == 3


def test_a_record_of_another_metric_decides_nothing(study, tmp_path):
    path = tmp_path / "claims.yaml"
    check = "{kind: no_change, arm: A, suite: v2, metric: nDCG@10}"
    path.write_text(f"x: {{paper: WT, source: s, text: t, table: wt-table1, check: {check}}}\n")
    found = check_claims(study.record, load_claims(path), recompute=False)
    assert {v.verdict for v in found} == {"not run"}
    assert found[0].why == "the record measures nDCG@5, the claim is about nDCG@10"


@pytest.mark.parametrize(
    ("check", "said"),
    [
        ("kind: change_sign, arm: N, suite: v2, sign: '+', metric: recall", r"check\.metric"),
        ("kind: change_sign, arm: N, suite: v2", r"`sign` belongs to a check of kind change_sign"),
        ("kind: no_change, arm: N, suite: v2, above: D", r"`above` belongs to a check of kind change_order"),
        ("kind: no_change, arm: N, suite: v2, recipe: forever", r"unknown recipe 'forever'"),
    ],
)
def test_a_claim_that_cannot_be_checked_is_one_clear_line(tmp_path, check, said):
    path = tmp_path / "claims.yaml"
    path.write_text(f"x: {{paper: WT, source: s, text: t, table: wt-table1, check: {{{check}}}}}\n")
    with pytest.raises(BadInput, match=said) as caught:
        load_claims(path)
    assert "\n" not in str(caught.value)


@pytest.mark.skipif(not (RECORDED / "record.json").is_file(), reason="no recorded run yet")
def test_the_recorded_run_decides_every_claim_as_its_table_says():
    record = open_record(RECORDED, verify=False)
    table = pd.read_csv(RECORDED / "tables" / "wt-table1.csv").set_index(["arm", "suite"])
    for found in check_claims(record, recompute=False):
        check = found.claim.check
        row = table.loc[(check.arm, check.suite)]
        lead = row["change"] - (table.loc[(check.above, check.suite), "change"] if check.above else 0.0)
        assert found.value == pytest.approx(lead, abs=2e-4)
        holds = {
            "change_sign": row["verdict"] == f"stable {check.sign}",
            "no_change": row["verdict"] == "sign flips",
            "change_order": lead > 0,
        }
        assert found.verdict == ("holds" if holds[check.kind] else "fails")
