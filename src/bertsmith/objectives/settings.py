"""The names of the objectives and their settings; importing them does not load PyTorch."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from bertsmith.settings import Settings

OBJECTIVES: dict[str, str | type[Any]] = {
    "mlm_nsp": "bertsmith.objectives.language_modeling:MaskedLM",
    "causal": "bertsmith.objectives.language_modeling:CausalLM",
    "bilm": "bertsmith.objectives.language_modeling:BidirectionalLM",
    "distil": "bertsmith.objectives.distillation:Distillation",
    "replaced": "bertsmith.objectives.electra:Electra",
}
"""Each objective's name with its class, or with the module and name by which the class is imported on first use.
The first is the default."""


class DistillationSettings(Settings):
    """Settings of distillation; the defaults are those of the example in DistilBERT's release."""

    teacher: str = Field("", description="the teacher: a run, a model folder, or a published name")
    temperature: float = Field(2.0, gt=0, description="temperature of both models' logits in `soft`")
    soft_weight: float = Field(
        5.0, ge=0, description="weight of the divergence from the teacher's distributions; 0: omitted"
    )
    mlm_weight: float = Field(2.0, ge=0, description="weight of masked LM; 0: omitted")
    cosine_weight: float = Field(
        1.0, ge=0, description="weight of the distance to the teacher's hidden states; 0: omitted"
    )
    soft_on: Literal["masked", "all"] = Field(
        "masked",
        description="tokens whose distributions are compared: the masked ones, or all, as in the release (slower)",
    )
    start: Literal["teacher", "drawn"] = Field(
        "teacher", description="first weights: those of evenly spaced layers of the teacher, or drawn"
    )


class ElectraSettings(Settings):
    """Settings of ELECTRA: the generator, and the weight of the discriminator's loss."""

    generator_size: float = Field(
        0.25,
        gt=0,
        le=1,
        description="the generator's hidden size, heads, and intermediate size, as a fraction of the model's",
    )
    replaced_weight: float = Field(
        50.0, gt=0, description="weight of the loss on replaced tokens; the generator's has weight 1"
    )
