"""What all steps share: settings as plain data, and what names weights and machine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from vdr.graph import Step
from vdr.study.catalogue import Arm, Suite
from vdr.study.settings import Profile

if TYPE_CHECKING:
    import pandas as pd

    from vdr.corpus.access import PageSet, TrainCorpus

__all__ = ["PageImages", "StepsBase", "plain", "run_label", "suite_flag", "train_pages", "train_queries", "train_rows"]


def run_label(arm: str, seed: int, recipe: str) -> str:
    """How a run is called everywhere: `N-seed-0-three_epochs`."""
    return f"{arm}-seed-{seed}-{recipe}"


def plain(settings: BaseModel, *leave_out: str) -> dict[str, Any]:
    """Settings as plain data for a key, without the fields that change no result."""
    return settings.model_dump(mode="json", exclude=set(leave_out))


class StepsBase:
    """One profile. The kinds of steps are spread over subclasses; those that they use of one another are declared here."""

    def __init__(self, profile: Profile) -> None:
        self.profile = profile

    def corpus(self) -> Step:
        raise NotImplementedError

    def vision(self) -> Step:
        raise NotImplementedError

    def pools(self) -> Step:
        raise NotImplementedError

    def scored(self) -> Step:
        raise NotImplementedError

    def ratings(self) -> Step:
        raise NotImplementedError

    def oracle(self) -> Step:
        raise NotImplementedError

    def maps(self) -> Step:
        raise NotImplementedError

    def descriptions(self) -> Step:
        raise NotImplementedError

    def rows(self, arm: Arm, seed: int) -> Step:
        raise NotImplementedError

    def _trained(self, stage: str, label: str, arm: Arm, rows: Step, seed: int, epochs: float) -> Step:
        raise NotImplementedError

    def _identity(self, source: str, revision: str | None) -> dict[str, Any]:
        from vdr.models.weights import identity

        return identity(source, revision)

    def _backbone(self) -> dict[str, Any]:
        return self._identity(self.profile.models.backbone, self.profile.models.backbone_revision)

    def _backbone_dir(self) -> Path:
        from vdr.models.weights import locate

        return locate(self.profile.models.backbone, self.profile.models.backbone_revision)

    def _run_on(self) -> dict[str, Any]:
        return {"device": self.profile.hardware.device, "threads": self.profile.hardware.threads}

    def _cache(self) -> dict[str, Step]:
        """The vision cache as an input, where the profile uses one."""
        return {"vision": self.vision()} if self.profile.training.vision_cache else {}

    def _training_config(self) -> dict[str, Any]:
        """The training settings that change a checkpoint or its vectors."""
        return plain(self.profile.training, "checkpoint_every", "vision_cache")


def suite_flag(suite: Suite) -> bool | list[str]:
    """What the evaluation wants to know of a suite: in domain, out of domain, or which of its data sets are."""
    return list(suite.in_domain_datasets) if suite.in_domain_datasets else suite.in_domain


def train_rows(corpus: Path) -> pd.DataFrame:
    """The training split's rows of a corpus artefact, in row_id order."""
    from vdr.corpus.access import load_train

    rows = load_train(corpus).rows
    return rows[rows["split"] == "train"].sort_values("row_id", kind="stable").reset_index(drop=True)


def train_pages(corpus: TrainCorpus) -> list[str]:
    """The pages that are mined: those of the training split (validation rows have pages of their own)."""
    held = set(corpus.rows.loc[corpus.rows["split"] != "train", "page_id"])
    return [page for page in corpus.pages.ids if page not in held]


def train_queries(corpus: Path) -> dict[str, str]:
    """The training split's queries by query id, in row order."""
    rows = train_rows(corpus)
    return dict(zip(rows["query_id"], rows["query"], strict=True))


class PageImages(Mapping[str, Any]):
    """Images by page id, decoded when asked for."""

    def __init__(self, pages: PageSet, ids: list[str]) -> None:
        self.pages, self.ids = pages, ids

    def __getitem__(self, page_id: str) -> Any:
        return self.pages.image(self.pages.index(page_id))

    def __iter__(self) -> Iterator[str]:
        return iter(self.ids)

    def __len__(self) -> int:
        return len(self.ids)
