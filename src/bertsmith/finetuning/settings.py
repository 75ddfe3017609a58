"""The settings of a fine-tuning run: files, task, dropout, teacher, training."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BeforeValidator, Field, create_model, model_validator

from bertsmith.models.config import ModelConfig
from bertsmith.settings import MayChange, Settings
from bertsmith.training.settings import TrainSettings

if TYPE_CHECKING:
    from bertsmith.tasks.labels import LabelNames
    from bertsmith.tasks.registry import Task

OWN_ARGUMENTS = ("files", "base")
"""Groups of settings that keywords do not set, because `finetune` has arguments for them."""


def _updates_or_epoch(value: Any) -> Any:
    if value is None or value == "epoch" or (type(value) is int and 1 <= value <= 10**15):
        return value
    raise ValueError("this is a number of updates, or epoch")


class FileSettings(Settings):
    """The examples of a run."""

    train: MayChange[str] = Field("", description="the file of training examples")
    validation: MayChange[str | None] = Field(
        None, description="the file that decides which evaluation's weights are kept"
    )
    validation_split: float | None = Field(
        None, gt=0, lt=1, description="without a validation file: share of train to hold out"
    )
    test_split: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="share of train to hold out before the validation examples, scored once at the end",
    )
    folds: int | None = Field(
        None,
        ge=2,
        le=1000,
        description="without a validation file: into how many parts to split train, one of them held out",
    )
    fold: int | None = Field(None, ge=1, description="with folds: the part that is held out, from 1 on")
    sample: int | None = Field(None, ge=1, description="use only so many examples of train, drawn at random")
    seed: int = Field(
        0, ge=0, lt=2**63, description="the seed of sample and split; train.seed leaves them alone"
    )
    label_names: list[str] | list[tuple[str, str]] | None = Field(
        None, description="the labels' names in the order of their ids, or pairs of a code and its name"
    )

    @property
    def parsed_label_names(self) -> LabelNames | None:
        """The label names as a list in the order of ids, or by code."""
        if self.label_names is None:
            return None
        names = [name for name in self.label_names if isinstance(name, str)]
        return names or dict(pair for pair in self.label_names if not isinstance(pair, str))


class FinetuneTrainSettings(TrainSettings):
    """Settings of training. The size of the model and the number of examples decide what is left open."""

    num_train_epochs: MayChange[float | None] = Field(
        None,
        gt=0,
        le=1e6,
        description="passes over the examples, if no other budget is set; none: 3, or for few examples up to 20, "
        "so that there are 400 updates",
    )
    learning_rate: float = Field(
        5e-5,
        gt=0,
        le=10,
        description="the highest learning rate, at the end of warm-up; if it is not set, 5e-5 at a hidden size of "
        "768 or more, and higher for smaller models",
    )
    head_probe: bool | None = Field(
        None,
        description="first train the head alone on the frozen encoder's states, which also shows what they are "
        "worth (LP-FT, Kumar et al. 2022); none: if the number of epochs is none and the head is new",
    )
    patience: int | None = Field(
        None,
        ge=1,
        description="early stopping: evaluations in a row without a better score after which the run ends; none: "
        "never, or after 10 if the number of epochs is none",
    )
    lr_patience: int = Field(
        2,
        ge=1,
        description="evaluations in a row without a better score after which reduce_lr_on_plateau lowers the rate",
    )
    freeze_encoder: bool = Field(
        False,
        description="train the head alone: the encoder stays as it is, without dropout, and its hidden states are "
        "computed once and kept on disk until the run finishes",
    )
    freeze_embeddings: bool = Field(False, description="leave the embeddings as the base has them")
    freeze_layers: int = Field(
        0, ge=0, description="number of first layers that are not trained, nor the embeddings below them"
    )
    unfreeze_every: Annotated[int | Literal["epoch"] | None, BeforeValidator(_updates_or_epoch)] = Field(
        None,
        description="gradual unfreezing: the head alone at first, then one more layer from the top down each so "
        "many updates, or each epoch, the embeddings last; none: all from the first update on",
    )
    layerwise_lr_decay: float = Field(
        1.0,
        gt=0,
        le=1,
        description="the rate of each layer as a multiple of the one above; the top layer and the head have the "
        "whole rate, the embeddings the lowest",
    )

    lm_weight: float | None = Field(
        None,
        ge=0,
        le=100,
        description="weight of an auxiliary language-modeling loss on the examples' texts (Radford et al. 2018); "
        "none: 0.5 for GPT and GPT-2, 0 for other families, and 0 if the encoder is frozen",
    )

    @model_validator(mode="after")
    def _check_no_minutes(self) -> FinetuneTrainSettings:
        if self.max_minutes is not None:
            raise ValueError(
                "train.max_minutes is a setting of pre-training only: set train.num_train_epochs, or "
                "train.max_steps"
            )
        return self


class DropoutSettings(Settings):
    """Dropout of fine-tuning, whatever the base was trained with."""

    hidden_dropout_prob: float = Field(0.1, ge=0, lt=1, description="dropout on embeddings and sub-layers")
    attention_probs_dropout_prob: float = Field(0.1, ge=0, lt=1, description="dropout on attention weights")
    classifier_dropout: float | None = Field(
        None,
        ge=0,
        lt=1,
        description="dropout in the task's head; none: the base's, where it names one and hidden_dropout_prob is "
        "its default, else as that",
    )

    def within(self, base: ModelConfig) -> ModelConfig:
        """Return the base's configuration with this dropout."""
        dropout = self.classifier_dropout
        if dropout is None and base.classifier_dropout is not None:
            is_default = self.hidden_dropout_prob == type(self).model_fields["hidden_dropout_prob"].default
            dropout = base.classifier_dropout if is_default else self.hidden_dropout_prob
        return base.model_copy(update={**self.model_dump(), "classifier_dropout": dropout})


class TeacherSettings(Settings):
    """A fine-tuned model whose outputs are learned besides the labels."""

    model: str = Field("", description="the teacher: a run of the same task, or a model folder; empty: none")
    temperature: float = Field(2.0, gt=0, description="what both models' logits are divided by")
    soft_weight: float = Field(0.5, gt=0, description="weight of the distance to the teacher's answers")
    task_weight: float = Field(0.5, ge=0, description="weight of the examples' own answers")


class FinetuneSettings(Settings):
    """All settings of a fine-tuning run."""

    base: MayChange[str] = Field(
        "", description="the model to start from: a run, a model folder or a published name"
    )
    files: FileSettings = Field(default_factory=FileSettings, description="examples")
    model: DropoutSettings = Field(default_factory=DropoutSettings, description="dropout")
    task: Settings = Field(default_factory=Settings, description="the task")
    teacher: TeacherSettings = Field(
        default_factory=TeacherSettings, description="who is learnt from besides"
    )
    train: FinetuneTrainSettings = Field(
        default_factory=FinetuneTrainSettings, description="the training itself"
    )


def settings_type(task: Task) -> type[FinetuneSettings]:
    """Return the type of a task's settings of a run, in which the group `task` has the task's own settings."""
    group: Any = (task.settings_type, Field(default_factory=task.settings_type, description="the task"))
    return create_model("FinetuneSettings", __base__=FinetuneSettings, task=group)
