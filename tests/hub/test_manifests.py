"""Every real data set that a profile reads has a manifest that says the same of it."""

import re

import pytest

from vdr.manifests import load_manifests
from vdr.study.settings import load_profile

MANIFESTS = load_manifests()
REAL = {name: m for name, m in MANIFESTS.items() if m.kind == "suite" or name == "colpali_train_set"}


def test_the_papers_suites_are_all_there():
    count = {}
    for manifest in REAL.values():
        if manifest.kind == "suite":
            count[manifest.facts["suite"]] = count.get(manifest.facts["suite"], 0) + 1
    assert (count["v1"], count["v2"], count["v3"]) == (10, 4, 8)  # WT Appendix C
    assert count["jina"] >= 22
    domestic = [m for m in REAL.values() if m.facts.get("suite") == "v1" and m.facts["in_domain"]]
    assert len(domestic) == 8


@pytest.mark.parametrize("name", sorted(REAL))
def test_every_manifest_names_its_data(name):
    manifest = REAL[name]
    assert re.fullmatch(r"[\w.-]+/[\w.-]+", manifest.id)
    assert manifest.counts["pages"] > 0
    assert manifest.source
    if manifest.kind == "suite":
        assert re.fullmatch("[0-9a-f]{40}", manifest.revision)
        assert manifest.licence
        assert name == f"{manifest.facts['suite']}-{manifest.facts['dataset']}"


@pytest.mark.parametrize("profile", ["paper", "pilot"])
def test_profiles_read_what_the_manifests_describe(profile):
    corpus = load_profile(profile).corpus
    for dataset in corpus.hub_datasets:
        manifest = REAL[f"{dataset.suite}-{dataset.name}"]
        assert (dataset.id, dataset.revision) == (manifest.id, manifest.revision)
    assert corpus.train.id == REAL["colpali_train_set"].id
    assert len({(d.suite, d.name) for d in corpus.hub_datasets}) == len(corpus.hub_datasets) >= 22
