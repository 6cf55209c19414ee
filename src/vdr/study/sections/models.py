"""Settings of the models part: which weights play which role, and how the mini backbone is pretrained."""

from __future__ import annotations

from pydantic import Field, model_validator

from vdr.study.base import Section

__all__ = ["MinerSettings", "ModelsSettings", "PretrainingSettings"]


class MinerSettings(Section):
    """The retriever that mines candidates (WT §3: jina-embeddings-v4): a finished one, or one trained here.

    A miner trained here is a student of the baseline arm, with a seed of its own that no student shares.
    """

    source: str | None = Field(None, description="a finished retriever: a directory, or a hub id")
    revision: str | None = Field(None, description="revision of a hub id")
    seed: int | None = Field(None, ge=0, description="seed of one trained here; not one of the profile's training seeds")
    epochs: float | None = Field(None, gt=0, description="how long one trained here is trained")

    @model_validator(mode="after")
    def _one_way(self) -> MinerSettings:
        trained = self.seed is not None and self.epochs is not None
        if trained == (self.source is not None) or (self.seed is None) != (self.epochs is None):
            raise ValueError("give either source, or seed and epochs")
        return self


class PretrainingSettings(Section):
    """How the mini backbone learns to read (`vdr pretrain-mini`). Not used where a real backbone is loaded."""

    seed: int = Field(11, description="seeds pages, initial weights and order")
    processes: int = Field(2, ge=1, description="data-parallel processes of one thread")
    compile: bool = Field(True, description="compile the towers (needs a C++ compiler)")
    pages: int = Field(16000, ge=64, description="pages drawn to learn reading from")
    batch: int = Field(64, ge=2, description="pages a step, over all processes")
    learning_rate: float = Field(2e-3, gt=0)
    read_steps: int = Field(1000, ge=1, description="steps of the vision tower's stage")
    language_pages: int = Field(8000, ge=64, description="pages of the language tower's stage")
    language_steps: int = Field(1000, ge=1, description="steps of the language tower's stage")


class ModelsSettings(Section):
    """Backbones by checkpoint directory or hub id and revision."""

    backbone: str = Field("vdr:mini-backbone", description="student backbone: `vdr:NAME` for a shipped one, a directory, or a hub id")
    backbone_revision: str | None = Field(None, description="40-digit revision of a hub id")
    teacher: str = Field("vdr:mini-teacher", description="the teacher that rates, answers yes or no, and describes; as backbone")
    teacher_revision: str | None = Field(None, description="revision of a hub id")
    attention_teacher: str | None = Field(None, description="the teacher whose attention is read, if another one; as backbone")
    attention_teacher_revision: str | None = Field(None, description="revision of a hub id")
    miner: MinerSettings = Field(default_factory=lambda: MinerSettings(seed=1000, epochs=1.0))
    pretraining: PretrainingSettings = Field(default_factory=PretrainingSettings)
