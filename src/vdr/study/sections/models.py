"""Settings of the models part: which weights play which role."""

from __future__ import annotations

from pydantic import Field, model_validator

from vdr.study.base import Section

__all__ = ["MinerSettings", "ModelSource", "ModelsSettings"]


class ModelSource(Section):
    """Where weights come from: `asset:NAME` (shipped with the package), a directory, or a repository of the hub."""

    id: str = Field(min_length=1, description="asset:NAME, a directory, or OWNER/NAME on the hub")
    revision: str | None = Field(None, description="commit of the hub's repository; must be given for a hub id")

    @property
    def kind(self) -> str:
        """asset, directory or hub."""
        if self.id.startswith("asset:"):
            return "asset"
        return "directory" if self.id.startswith(("/", "./", "../", "~")) else "hub"


class MinerSettings(Section):
    """The retriever that mines candidates (WT §3: jina-embeddings-v4): a finished one, or one trained here.

    A miner trained here is a student of the baseline arm, with a seed of its own that no student shares.
    """

    source: ModelSource | None = Field(None, description="a finished retriever")
    seed: int | None = Field(None, ge=0, description="seed of one trained here; not one of the profile's training seeds")
    epochs: float | None = Field(None, gt=0, description="how long one trained here is trained")

    @model_validator(mode="after")
    def _one_way(self) -> MinerSettings:
        trained = self.seed is not None and self.epochs is not None
        if trained == (self.source is not None) or (self.seed is None) != (self.epochs is None):
            raise ValueError("give either source, or seed and epochs")
        return self


class ModelsSettings(Section):
    """What the models part reads from a profile."""

    backbone: ModelSource = Field(description="the student's backbone")
    teacher: ModelSource = Field(description="the teacher that rates, answers yes or no, and describes")
    attention_teacher: ModelSource | None = Field(None, description="the teacher whose attention is read, if another one")
    miner: MinerSettings
