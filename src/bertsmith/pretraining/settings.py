"""What a pre-training run depends on besides its data: a preset, a recipe, changes of single settings."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, create_model, model_validator

from bertsmith.instances.settings import DataSettings
from bertsmith.models.config import ModelConfig
from bertsmith.objectives.settings import OBJECTIVES
from bertsmith.settings import MAY_CHANGE, Settings
from bertsmith.training.settings import TrainSettings

_USUAL = next(iter(OBJECTIVES))


class EvaluateSettings(Settings):
    """What a run is judged on besides its held-out text. It leaves the training's numbers alone."""

    pairs: str | None = Field(
        None,
        description="a file of minimal pairs (--evaluate-pairs), on which each evaluation reports the accuracy",
        json_schema_extra=MAY_CHANGE,
    )
    pairs_encoding: str | None = Field(
        None,
        description="the encoding of that file, where it is not UTF-8: cp1252, gb18030, …",
        json_schema_extra=MAY_CHANGE,
    )
    pairs_sample: int | None = Field(
        1000,
        ge=1,
        description="pairs scored at each evaluation: of each group its share, always the same ones; none: all; "
        "with max_minutes at most as many as take a twentieth of the time",
        json_schema_extra=MAY_CHANGE,
    )
    pairs_at_end: int | None = Field(
        None,
        ge=1,
        description="pairs scored after the last update; none: all, or with max_minutes as many as take a "
        "tenth of the time",
        json_schema_extra=MAY_CHANGE,
    )


class StartSettings(Settings):
    """What the weights are before the first update, where it departs from the paper."""

    tokens: Literal["normal", "neighbours"] = Field(
        "normal",
        description="the token table starts at random or from which tokens stand near each other in the text "
        "(takes seconds)",
    )
    token_vectors: str = Field(
        "",
        description="a text file of word vectors, word2vec's or GloVe's (also compressed), as wide as the token "
        "table: tokens that are words in it begin with their vectors, scaled to initializer_range; empty: none",
    )
    positions: Literal["normal", "sinusoidal"] = Field(
        "normal", description="the position table starts at random or from sinusoids of the same deviation"
    )
    attention: Literal["normal", "local"] = Field(
        "normal",
        description="the first layer's heads start at random, or the first four of them look at what is near "
        "(positions must be sinusoidal)",
    )
    output_bias: Literal["zero", "unigram"] = Field(
        "zero", description="the masked-LM bias starts at 0 or at the log frequency of each token"
    )

    @model_validator(mode="after")
    def _fits_together(self) -> StartSettings:
        if self.attention == "local" and self.positions != "sinusoidal":
            raise ValueError(
                f"attention local finds what is near by sinusoids, and positions {self.positions} has none: set "
                "start.positions=sinusoidal, or start.attention=normal"
            )
        return self


class PretrainTrainSettings(TrainSettings):
    """What the loop may be told of pre-training, whose instances have no size of their own."""

    batch_tokens: int | None = Field(
        None,
        ge=8,
        description="tokens in a batch at most, of instances of similar length; in place of batch_size",
    )

    @model_validator(mode="after")
    def _has_no_score_to_wait_for(self) -> PretrainTrainSettings:
        if self.lr_scheduler_type == "reduce_lr_on_plateau":
            raise ValueError(
                "reduce_lr_on_plateau lowers the learning rate if a score on the validation set does not "
                "improve, and pre-training has no such score: set "
                "train.lr_scheduler_type=warmup_stable_decay, or step"
            )
        return self


class ObjectiveSettings(Settings):
    """What the text is asked; the objective's own settings are added to this group."""

    name: str = Field(_USUAL, description=f"the objective: {', '.join(OBJECTIVES)}")
    reduction: Literal["mean", "sum"] = Field(
        "mean",
        description="what an update minimises of the predicted tokens' losses: their mean, or their sum, whose "
        "gradient is as many times larger (train.max_grad_norm and train.adam_epsilon see that)",
    )


class PretrainSettings(Settings):
    """Everything a pre-training run depends on, besides its data."""

    base: str = Field(
        "",
        description="the model to start from (--model): a run, a model folder or a published name; empty: none",
        json_schema_extra=MAY_CHANGE,
    )
    objective: ObjectiveSettings = Field(
        default_factory=ObjectiveSettings, description="what the text is asked"
    )
    model: ModelConfig = Field(default_factory=ModelConfig, description="sizes of the model")
    start: StartSettings = Field(default_factory=StartSettings, description="first weights")
    data: DataSettings = Field(default_factory=DataSettings, description="instances")
    train: PretrainTrainSettings = Field(
        default_factory=PretrainTrainSettings, description="the training itself"
    )
    evaluate: EvaluateSettings = Field(
        default_factory=EvaluateSettings, description="what it is judged on besides its held-out text"
    )

    @model_validator(mode="after")
    def _has_positions_to_begin_from(self) -> PretrainSettings:
        if self.model.position == "none" and self.start.positions != "normal":
            raise ValueError(
                f"start.positions {self.start.positions} fills a table that model.position none leaves empty: set "
                "start.positions=normal and start.attention=normal"
            )
        return self


def with_objective(name: str, own: type[Settings]) -> type[PretrainSettings]:
    """Return the settings of a run with this objective: the group `objective` also holds the objective's own."""
    if own is Settings:
        return PretrainSettings
    field: Any = (str, Field(name, description="the objective"))
    group: Any = create_model("ObjectiveSettings", __base__=(ObjectiveSettings, own), name=field)
    groups: Any = (group, Field(default_factory=group, description="what the text is asked"))
    return create_model("PretrainSettings", __base__=PretrainSettings, objective=groups)
