"""The settings of a pre-training run."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, create_model, model_validator

from bertsmith.instances.settings import DataSettings
from bertsmith.models.config import ModelConfig
from bertsmith.objectives.settings import OBJECTIVES
from bertsmith.settings import MayChange, Settings
from bertsmith.training.settings import TrainSettings

DEFAULT_OBJECTIVE = next(iter(OBJECTIVES))


class EvaluateSettings(Settings):
    """The settings of evaluations on minimal pairs, which do not change the training."""

    pairs: MayChange[str | None] = Field(
        None,
        description="a file of minimal pairs (--evaluate-pairs), on which each evaluation reports the accuracy",
    )
    pairs_encoding: MayChange[str | None] = Field(
        None, description="the encoding of that file if it is not UTF-8: cp1252, gb18030, …"
    )
    pairs_sample: MayChange[int | None] = Field(
        1000,
        ge=1,
        description="pairs scored at each evaluation, always the same ones, in proportion from each group; none: "
        "all",
    )


class StartSettings(Settings):
    """The initial weights, where they differ from the paper's."""

    tokens: Literal["normal", "neighbours"] = Field(
        "normal",
        description="initial token embeddings: random, or from counts of which tokens occur near each other in "
        "the text (takes seconds)",
    )
    token_vectors: str = Field(
        "",
        description="word vectors of the size of the token embeddings: a folder of WordVectors.save, or a file, "
        "word2vec's or GloVe's (also compressed); tokens that are words in it start with their vectors, scaled to "
        "initializer_range; empty: none",
    )
    positions: Literal["normal", "sinusoidal"] = Field(
        "normal",
        description="initial position embeddings: random, or sinusoids of the same standard deviation",
    )
    attention: Literal["normal", "local"] = Field(
        "normal",
        description="initial heads of the first layer: random, or the first four attend to nearby positions "
        "(positions must be sinusoidal)",
    )
    output_bias: Literal["zero", "unigram"] = Field(
        "zero", description="initial masked-LM bias: 0, or the log frequency of each token"
    )

    @model_validator(mode="after")
    def _check_attention(self) -> StartSettings:
        if self.attention == "local" and self.positions != "sinusoidal":
            raise ValueError(
                f"attention local finds what is near by sinusoids, and positions {self.positions} has none: set "
                "start.positions=sinusoidal, or start.attention=normal"
            )
        return self


class PretrainTrainSettings(TrainSettings):
    """The settings of training in pre-training, whose batches may have a number of tokens."""

    batch_tokens: int | None = Field(
        None,
        ge=8,
        le=1 << 27,
        description="maximum number of tokens in a batch, of instances of similar length; replaces batch_size",
    )

    @model_validator(mode="after")
    def _check_scheduler(self) -> PretrainTrainSettings:
        if self.lr_scheduler_type == "reduce_lr_on_plateau":
            raise ValueError(
                "reduce_lr_on_plateau lowers the learning rate if a score on the validation set does not "
                "improve, and pre-training has no such score: set "
                "train.lr_scheduler_type=warmup_stable_decay, or step"
            )
        return self


class ObjectiveSettings(Settings):
    """The objective; `with_objective` adds its settings to this group."""

    name: str = Field(DEFAULT_OBJECTIVE, description=f"the objective: {', '.join(OBJECTIVES)}")
    reduction: Literal["mean", "sum"] = Field(
        "mean",
        description="what an update minimizes: the mean of the losses of predicted tokens, or their sum, whose "
        "gradient is larger by their number, before train.max_grad_norm and train.adam_epsilon apply",
    )


class PretrainSettings(Settings):
    """Everything a pre-training run depends on, besides its data."""

    base: MayChange[str] = Field(
        "",
        description="the model to start from (--model): a run, a model folder or a published name; empty: none",
    )
    objective: ObjectiveSettings = Field(default_factory=ObjectiveSettings, description="training objective")
    model: ModelConfig = Field(default_factory=ModelConfig, description="sizes of the model")
    start: StartSettings = Field(default_factory=StartSettings, description="initial weights")
    data: DataSettings = Field(default_factory=DataSettings, description="instances")
    train: PretrainTrainSettings = Field(default_factory=PretrainTrainSettings, description="training")
    evaluate: EvaluateSettings = Field(default_factory=EvaluateSettings, description="minimal pairs")

    @model_validator(mode="after")
    def _check_positions(self) -> PretrainSettings:
        if self.model.position == "none" and self.start.positions != "normal":
            raise ValueError(
                f"start.positions {self.start.positions} fills a table that model.position none leaves empty: set "
                "start.positions=normal and start.attention=normal"
            )
        return self


def with_objective(name: str, settings_type: type[Settings]) -> type[PretrainSettings]:
    """Return the settings of a run with an objective: the group `objective` also has the objective's settings."""
    if settings_type is Settings:
        return PretrainSettings
    field: Any = (str, Field(name, description="the objective"))
    group: Any = create_model("ObjectiveSettings", __base__=(ObjectiveSettings, settings_type), name=field)
    groups: Any = (group, Field(default_factory=group, description="training objective"))
    return create_model("PretrainSettings", __base__=PretrainSettings, objective=groups)
