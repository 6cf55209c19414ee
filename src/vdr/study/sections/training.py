"""Settings of the training part: the student's form, the optimiser, the losses of an arm, recipes."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from vdr.study.base import Section

__all__ = [
    "ArmLosses",
    "AttentionLoss",
    "DescriptionLoss",
    "InfoNce",
    "LoraSettings",
    "RecipeSettings",
    "ScoreLoss",
    "TrainingSettings",
]


class InfoNce(Section):
    """InfoNCE over in-batch MaxSim scores, and over an arm's appended negatives (WT §3)."""

    temperature: float = Field(0.02, gt=0, description="divides query-mean MaxSim scores")
    widths: tuple[int, ...] = Field(
        (),
        description="nested prefix widths of the vectors that are trained, the full one included (EV §3.2); empty: the full width alone",
    )

    @model_validator(mode="after")
    def _rising(self) -> InfoNce:
        if any(width < 1 for width in self.widths) or list(self.widths) != sorted(set(self.widths)):
            raise ValueError(f"widths must be positive and rise, got {list(self.widths)}")
        return self


class ScoreLoss(Section):
    """S: KL of the teacher's over the student's softmax on a query's candidates (WT §3, App. A)."""

    weight: float = Field(1.0, ge=0)
    teacher_temperature: float = Field(0.02, gt=0)
    student_temperature: float = Field(0.02, gt=0)


class AttentionLoss(Section):
    """A: one minus the cosine of the student's mean per-patch similarity and the teacher's map (WT §3)."""

    weight: float = Field(0.1, ge=0)


class DescriptionLoss(Section):
    """D: KL between the query's and the description's distributions over the batch's pages (WT §3, App. H).

    WT names neither the direction nor what carries gradient. The defaults are those of the released code it takes D
    from (ReAlign): KL(query ‖ description), gradients through both sides.
    """

    weight: float = Field(0.2, ge=0)
    temperature: float = Field(0.05, gt=0)
    direction: Literal["query_over_description", "description_over_query"] = "query_over_description"
    detach: Literal["none", "query", "description"] = Field("none", description="which side is held constant")


class ArmLosses(Section):
    """Every arm optimises InfoNCE plus the weighted terms it names; a term left out is not computed."""

    infonce: InfoNce = Field(default_factory=InfoNce)
    score: ScoreLoss | None = None
    attention: AttentionLoss | None = None
    description: DescriptionLoss | None = None


class RecipeSettings(Section):
    """How long a student trains."""

    name: str
    title: str = ""
    epochs: float = Field(gt=0, description="passes over the training rows")


class LoraSettings(Section):
    """Adapters on the language tower's linear layers (WT App. E)."""

    rank: int = Field(32, ge=1)
    alpha: float = Field(32, gt=0)
    dropout: float = Field(0.0, ge=0, lt=1)
    impl: Literal["merged", "peft"] = Field(
        "merged", description="W + BA formed each step, or peft's modules; equal at dropout 0"
    )

    @model_validator(mode="after")
    def _no_dropout_when_merged(self) -> LoraSettings:
        if self.impl == "merged" and self.dropout:
            raise ValueError("the merged form has no dropout: set dropout 0, or impl peft")
        return self


class TrainingSettings(Section):
    """What the training part reads from a profile."""

    batch_size: int = Field(16, ge=2, description="rows a step; also the number of in-batch labelled pages")
    gradient_accumulation: int = Field(1, description="must be 1: InfoNCE's denominator is the batch")
    learning_rate: float = Field(1e-3, gt=0)
    warmup: float = Field(0.025, ge=0, lt=1, description="share of the steps over which the rate rises linearly")
    weight_decay: float = Field(0.0, ge=0)
    betas: tuple[float, float] = (0.9, 0.999)
    epsilon: float = Field(1e-8, gt=0)
    max_grad_norm: float | None = Field(1.0, gt=0, description="gradients are scaled down to this norm; null: never")
    projection_dim: int = Field(128, ge=1, description="width D of a token vector")
    lora: LoraSettings = Field(default_factory=LoraSettings)
    forward: Literal["lean", "library"] = Field(
        "lean", description="this package's forward pass of the language tower, or transformers'"
    )
    dtype: Literal["float32", "bfloat16"] = Field(
        "float32", description="of the frozen weights; what trains is always fp32"
    )
    gradient_checkpointing: bool = False
    vision_cache: bool = Field(
        True, description="read the frozen vision tower's output from a cache, computed once a page"
    )
    checkpoint_every: int = Field(50, ge=1, description="steps between the checkpoints that a killed run resumes from")
    validate_epochs: float | None = Field(1.0, gt=0, description="epochs between validations; null: only at the end")
    validation_batch: int = Field(64, ge=1)
    encode_batch: int = Field(64, ge=1, description="pages (or queries) encoded at a time")
    vector_dtype: Literal["float32", "float16"] = "float32"
    max_visual_tokens: int | None = Field(None, ge=1, description="cap on a page's merged tokens")
    augmentation_tokens: int = Field(10, ge=0, description="augmentation tokens behind a query")
    max_description_tokens: int = Field(128, ge=1, description="a description is cut behind this many tokens")

    @model_validator(mode="after")
    def _consistent(self) -> TrainingSettings:
        if self.gradient_accumulation != 1:
            raise ValueError(
                "gradient_accumulation must be 1: InfoNCE takes its negatives from the batch, and accumulating "
                "over smaller batches is another loss"
            )
        if self.forward == "lean" and self.lora.impl != "merged":
            raise ValueError("forward lean needs lora.impl merged")
        if self.forward == "lean" and (self.dtype != "float32" or self.gradient_checkpointing):
            raise ValueError("forward lean computes in float32 without gradient checkpointing")
        return self
