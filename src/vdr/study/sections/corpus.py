"""Settings of the corpus part: a corpus that is drawn, or one that is read from the papers' data sets."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from vdr.study.base import Section

__all__ = ["CorpusSettings", "DrawnDataset", "DrawnSource", "HubDataset", "HubTrain"]

Domain = Literal["form", "finance", "report", "chart", "stat"]


class DrawnSource(Section):
    """One source of the drawn training corpus, named after the paper's kind of data set."""

    domain: Domain
    families: tuple[str, ...] = Field(min_length=1, description="layout families its pages are drawn in")
    pages: int = Field(ge=1)
    specificity: dict[str, float] = Field(
        min_length=1, description="condition sets of its queries (slots joined by +, or none) and their probabilities"
    )


class DrawnDataset(Section):
    """One data set of a drawn suite."""

    suite: str
    name: str
    domain: Domain
    families: tuple[str, ...] = Field(min_length=1)
    pages: int = Field(ge=1)
    queries: int = Field(ge=1)
    phrasing: Literal["train", "other"] = "other"
    labels: Literal["single", "complete"] = Field("complete", description="the labelled page alone, or graded and complete")
    rare_share: float = Field(0.0, ge=0, le=1, description="share of slot values that retrieval training never sees")
    specificity: dict[str, float] = Field(min_length=1)


class HubTrain(Section):
    """A training set in the format of vidore/colpali_train_set."""

    id: str = Field(description="hub id or local directory")
    revision: str | None = None


class HubDataset(Section):
    """A data set in BEIR form on the hub."""

    suite: str
    name: str
    id: str
    revision: str | None = None
    languages: tuple[str, ...] | None = None


class CorpusSettings(Section):
    """What the corpus part reads from a profile: either ``sources`` and ``datasets``, or ``train`` and ``hub_datasets``."""

    seed: int = Field(2026, description="seed of everything that is drawn")
    sources: dict[str, DrawnSource] = Field(default_factory=dict)
    queries_a_page: int = Field(3, ge=1)
    validation_share: float = Field(0.1, ge=0, lt=1, description="share of a source's pages kept, with their queries, for validation")
    distractor_share: float = Field(0.25, ge=0, le=1, description="pages with a footer that names something they are not about")
    datasets: tuple[DrawnDataset, ...] = ()
    train: HubTrain | None = None
    hub_datasets: tuple[HubDataset, ...] = ()
    manifest: str | None = Field(None, description="file of data_manifests/ whose checksum the corpus must have")

    @model_validator(mode="after")
    def _one_kind(self) -> CorpusSettings:
        if bool(self.sources) == (self.train is not None):
            raise ValueError("give either sources (a drawn corpus) or train (a corpus from the hub)")
        return self
