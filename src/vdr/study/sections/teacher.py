"""Settings of the teacher part: how it is asked, and how the mini one is trained."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from vdr.study.base import Section

__all__ = ["TeacherPretrainingSettings", "TeacherSettings"]


class TeacherPretrainingSettings(Section):
    """How the mini teacher learns to judge (`vdr train-teacher-mini`). Not used where a real teacher is loaded."""

    seed: int = Field(23, description="seeds pages, queries and order; its pages are in no other split")
    processes: int = Field(2, ge=1, description="data-parallel processes of one thread")
    layers: int = Field(6, ge=3, description="language layers; those beyond the backbone's start as identities")
    pages: int = Field(8000, ge=48, description="pages of the teacher's own split")
    batch_pages: int = Field(24, ge=2, description="pages a step, over all processes")
    queries_a_page: int = Field(8, ge=1)
    learning_rate: float = Field(1e-3, gt=0)
    full_tasks: tuple[Literal["rate", "yes_no", "describe"], ...] = Field(
        ("rate", "describe", "rate", "yes_no", "describe"),
        min_length=1,
        description="what the full prompts ask, in turn",
    )
    full_learning_rate: float = Field(8e-4, gt=0, description="peak rate of the steps with the full prompts")
    presence_weight: float = Field(1.0, ge=0, description="weight of the auxiliary presence loss")
    hard_share: float = Field(0.7, ge=0, le=1, description="share of hard negatives at the end of the curriculum")
    short_steps: int = Field(1200, ge=1, description="steps that ask for the rating straight after the query")
    full_steps: int = Field(700, ge=1, description="steps with the full prompts")
    graded_steps: int = Field(500, ge=1, description="steps that teach it to reply with the rating it expects")
    graded_learning_rate: float = Field(4e-4, gt=0, description="peak rate of those steps")
    graded_tasks: tuple[Literal["rate", "yes_no", "describe"], ...] = Field(
        ("rate", "describe", "rate", "describe", "yes_no"), min_length=1, description="what those steps ask, in turn"
    )
    sure: float = Field(
        20.0,
        ge=0,
        lt=50,
        description="an expected rating this near to an end is written as the end; most of the paper's ratings are ends",
    )
    rating_width: float = Field(4.0, gt=0, description="standard deviation of the target over neighbouring ratings")


class TeacherSettings(Section):
    """How the teacher is asked."""

    max_new_tokens: int = Field(
        8, ge=1, description="length of a rating reply at most; longer ones are cut and parsed as they are"
    )
    description_tokens: int = Field(24, ge=4, description="length of a description at most")
    batch_pairs: int = Field(256, ge=1, description="(page, query) pairs a forward pass")
    attention_layers: tuple[int, ...] = Field((), description="layers whose attention is read; none given = all")
    max_visual_tokens: int | None = Field(
        None, ge=4, description="cap of merged tokens a page (WT App. B: about 768); none = the checkpoint's own"
    )
    pretraining: TeacherPretrainingSettings = Field(default_factory=TeacherPretrainingSettings)
