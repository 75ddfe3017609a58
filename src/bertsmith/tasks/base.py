"""The contract of a fine-tuning task: a folder with six small parts, from a labeled row to a score.

    row -> Example          data.py     `TaskData`
    Example -> Item         model.py    `TaskEncoder`
    Item -> batch -> loss   model.py    `TaskModel`
    outputs -> Prediction   model.py    `Decoder`
    Prediction -> Metrics   metrics.py  `TaskMetrics`
    Metrics -> report       metrics.py  `report.TaskReport` (optional)

These are the usual files. A part that would make its file too long has a file of its own: the encoder of tagging,
and readers of published formats. The folder's `__init__.py` declares the parts as a `registry.Task`, and
`registry.TASKS` lists it. Workflows, the command line, and pages know tasks only by this contract. Evaluation,
prediction, and serving share one `decode`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bertsmith.artifacts.folder import ModelFolder
from bertsmith.device import ComputeContext
from bertsmith.errors import InputError, option
from bertsmith.io.sources import Source
from bertsmith.loss import distillation_kl
from bertsmith.metrics.sufficient_statistics import SufficientStatistics
from bertsmith.models.config import ModelConfig, ProblemType
from bertsmith.models.encoder import Encoder
from bertsmith.models.feature_extraction import FeatureExtractor
from bertsmith.objectives.objective import MODEL, ModelParts, Objective
from bertsmith.tasks.batching import (
    Answers,
    Item,
    Outputs,
    TaskBatch,
    logits_from_probabilities,
    mean_of_values,
    pack,
    run_batched,
)
from bertsmith.tasks.labels import LabelNames
from bertsmith.tasks.results import Diagnostic, Metrics
from bertsmith.tasks.targets import Target, class_target
from bertsmith.tasks.windows import Coverage, count_tokens
from bertsmith.tokenizer.tokenizer import Tokenizer

Metadata = Mapping[str, Any]
"""What a task takes from its training examples besides weights (labels, a tag scheme): plain JSON."""


class Example(ABC):
    """One labeled or unlabeled example as a user gave it. Subclasses are frozen dataclasses."""

    location: str  # the file and line, or the row of data in memory, for messages

    @property
    @abstractmethod
    def group_key(self) -> Hashable:
        """The text that must not occur on both sides of a split."""

    @property
    def question_key(self) -> Hashable:
        """The input with one correct answer: equal keys with different `TaskMetrics.labels` contradict."""
        return self.group_key

    @property
    def stratify_key(self) -> Hashable | None:
        """The label whose proportion a split keeps; None if there is none."""
        return None

    @property
    def is_empty(self) -> bool:
        """True if there is nothing to read: the example is reported and not predicted."""
        return False

    @property
    def display_inputs(self) -> dict[str, str]:
        """The inputs as texts by name, beside a prediction; all examples have the same names."""
        return {}

    @property
    def texts(self) -> Sequence[str]:
        """All texts that the model reads."""
        return tuple(self.display_inputs.values())

    @property
    def table_row(self) -> Mapping[str, Any] | None:
        """The row of the user's table by column, which CSV output repeats; None without a table."""
        return None


Vectorize = Callable[[Sequence[Any], Sequence[Any]], tuple[Any, Any]]
"""Returns the vectors of training and of validation examples, [examples, features] each, dense or sparse."""


class TaskData(ABC):
    """Read examples and derive the metadata of a task; `metadata` is empty in the part that fits it."""

    def __init__(self, settings: Any, metadata: Metadata) -> None:
        self.settings, self.metadata = settings, metadata

    @abstractmethod
    def read(self, source: Source, *, labeled: bool = True) -> list[Any]:
        """Return the examples of a file or of a table in memory, in order."""

    @abstractmethod
    def from_inputs(self, columns: Mapping[str, Sequence[Any]], locations: Sequence[str]) -> list[Any]:
        """Return unlabeled examples from lists of equal length, named as in `Task.inputs`."""

    def example_inputs(self) -> dict[str, Any]:
        """Return inputs of an example to try the model, where it needs more than a text for each required one."""
        return {}

    @abstractmethod
    def to_row(self, example: Any) -> dict[str, Any]:
        """Return an example as a JSON row that `read` reads again."""

    def tuple_columns(self, num_values: int) -> list[str]:
        """Return the column names of examples that are given as tuples of `num_values` values."""
        columns = [value for name, value in self.settings if name.endswith("_column")]
        return [column for column in columns if column is not None]

    def read_warnings(self, examples: Sequence[Any]) -> list[Diagnostic]:
        """Return what `read` corrected or left out."""
        return []

    def fit_metadata(self, examples: Sequence[Any], label_names: LabelNames | None) -> Metadata:
        """Return the metadata of the training examples; `label_names` if the user gave names to labels.

        Raises:
            InputError: The examples cannot be learned from.
        """
        if label_names is not None:
            message = "this task has no labels to name"
            hint = f"remove {option('label_names')}"
            raise InputError("label_names_not_applicable", message, argument="label_names", hint=hint)
        return {}

    def check_validation(self, examples: Sequence[Any], metadata: Metadata) -> None:  # noqa: B027
        """Raise InputError for a validation example whose answer the training examples rule out."""

    def metadata_from_hf(self, folder: ModelFolder) -> Metadata | None:
        """Return the metadata of a model that another tool wrote; None if its heads are for another task."""
        return None

    def resolve_settings(self, base: Path, max_length: int) -> Any:
        """Return the settings with open values taken from a base model, which reads `max_length` tokens."""
        return self.settings


class TaskEncoder(ABC):
    """Turn examples into items: token sequences that the model can read."""

    truncation_hint: ClassVar[str] = ""  # the end of a message that texts are truncated: " (…)"

    def __init__(self, config: ModelConfig, metadata: Metadata, settings: Any) -> None:
        self.config, self.metadata, self.settings = config, metadata, settings

    @property
    def max_length(self) -> int:
        """The largest number of tokens of a sequence, special tokens included."""
        return min(
            self.config.max_length, getattr(self.settings, "max_length", None) or self.config.max_length
        )

    @abstractmethod
    def encode(self, examples: Sequence[Any], tokenizer: Tokenizer) -> list[Item]:
        """Return the items of the examples in order: one for each, or several (windows)."""

    def coverage(self, items: Sequence[Item]) -> Coverage:
        """Return how much of an example the model reads, from all of the example's items."""
        return count_tokens(items)


class TaskModel(Objective):
    """Heads on the encoder, their loss, and their outputs.

    Attributes:
        inherited_heads: Heads that are copied from the base model if it has them; all others are drawn anew.
        head_init: Heads that start as a head of the base model with another name: the name here to the name there.
        labels: The names of the classes by id; None if there are none.
        problem_type: The `problem_type` of Hugging Face's config.json.
        outputs_per_token: True if outputs depend on the tokenization, so that an ensemble needs one tokenizer.
        supports_distillation: True if `distillation_loss` fits the outputs.
        logit_names: The names of the outputs of an exported model; several ones are the columns of `logits`.
        has_choices: True if the sequences of an item are its choices.
        token_inputs: The `tensors` with indices of tokens, long [B, n], that `logits` needs: n by name.
    """

    inherited_heads: ClassVar[tuple[str, ...]] = ("pooler",)
    outputs_per_token: ClassVar[bool] = False
    supports_distillation: ClassVar[bool] = True
    logit_names: ClassVar[tuple[str, ...]] = ("logits",)
    has_choices: ClassVar[bool] = False
    token_inputs: ClassVar[Mapping[str, int]] = {}
    head_init: Mapping[str, str] = {}
    problem_type: ProblemType | None = None
    head: Any

    def __init__(
        self, config: ModelConfig, generator: torch.Generator, metadata: Metadata, settings: Any
    ) -> None:
        super().__init__()
        self.config, self.metadata, self.settings = config, metadata, settings
        self.labels: list[str] | None = metadata.get("labels")
        self.features = FeatureExtractor(
            config,
            generator,
            getattr(settings, "layers", "last"),
            recurrent=getattr(settings, "head", "linear") == "bilstm",
            second_encoder=bool(getattr(settings, "second_encoder", "")),
        )

    @property
    def heads(self) -> Mapping[str, nn.Module]:
        """The heads by their names in a model folder (`TASK_MODULES`); the default is the parts of `self.head`."""
        heads: Mapping[str, nn.Module] = self.head.parts
        return heads

    def init_bias(self, items: Sequence[Item]) -> None:
        """Initialize the bias of a new head by the training labels, for the best answer without the text."""

    @abstractmethod
    def tensors(self, items: Sequence[Item]) -> tuple[dict[str, Tensor], dict[str, int]]:
        """Return the tensors of a batch by name, with targets if items have them, and the counts of the loss."""

    @abstractmethod
    def outputs(self, encoder: Encoder, batch: TaskBatch) -> Sequence[Tensor]:
        """Return one tensor [r, ...] for each item, where r may differ between items."""

    def logits(self, encoder: Encoder, batch: TaskBatch) -> Tensor:
        """Return the outputs of all items in one tensor, before `outputs` splits it: [sequences or tokens, …].

        Only the export of a model with heads calls it.
        """
        raise NotImplementedError

    def shared_outputs(self) -> dict[str, Tensor]:
        """Return learned weights that decoding needs, by name, such as the transitions of a CRF."""
        return {}

    def distillation_loss(
        self, outputs: Sequence[Tensor], targets: Sequence[Tensor], batch: TaskBatch, temperature: float
    ) -> Tensor:
        """Return the divergence from a teacher's outputs, summed over what the loss counts.

        By default, outputs are logits [n, C] of C exclusive classes.
        """
        if outputs[0].dim() != 2:
            raise NotImplementedError(f"{type(self).__name__} needs its own distillation_loss")
        return distillation_kl(torch.cat(list(outputs)), torch.cat(list(targets)), temperature)

    def collate(self, items: Sequence[Item], epoch: int = 0, first: int = 0) -> TaskBatch:
        """Pack items into a batch; `first` is the index of the first item in the order of the epoch."""
        tensors, counts = self.tensors(items)
        sizes = tuple(len(item.sequences) for item in items)
        return TaskBatch(pack(items), sizes, tensors, counts, epoch, first)

    def run(self, encoder: Encoder, items: Sequence[Item], context: ComputeContext) -> Outputs:
        """Return the outputs of all items in order, on the CPU, computed in batches of similar lengths."""
        autocast_encoder = context.autocast_encoder(encoder)
        per_item = run_batched(
            items, self.collate, lambda batch: self.outputs(autocast_encoder, batch), context
        )
        return Outputs(per_item, {name: t.detach().cpu() for name, t in self.shared_outputs().items()})

    def export(self, encoder: Encoder) -> dict[str, ModelParts]:
        """Return the model to save: the encoder and the heads."""
        modules = {"encoder": encoder, **self.features.parts, **self.heads}
        return {MODEL: ModelParts(self.config, modules, self.labels, self.problem_type)}


TargetLogits = Callable[[Sequence[Item], NDArray[np.int64]], Tensor]
"""Returns the logits [n, t, V] of the next token after each token of n target texts, [n, t], given their items."""


class WritingModel(TaskModel):
    """A model that writes text: an item's output is a text, found by search, and a target text has logits.

    For an exported model, `logits` are those of targets whose tokens are the tensor `decoder_input_ids`, long
    [B, t], and `write` searches for the best texts.
    """

    @abstractmethod
    def written_item(self, item: Item, output: Tensor) -> Item:
        """Return an item whose target is the text in its output."""

    @abstractmethod
    def target_logits(self, encoder: Encoder, batch: TaskBatch) -> Sequence[Tensor]:
        """Return the differentiable logits of the tokens of each target, [t, V], which `Decoder.target` reads."""

    @abstractmethod
    def cross_attention(self, encoder: Encoder, batch: TaskBatch) -> tuple[Tensor, list[Tensor]]:
        """Return the target's tokens, long [t], and their attention weights to those of a single item.

        The weights are a tensor [A, t, T] for each layer; none without a decoder that attends.
        """

    @abstractmethod
    def write(self, items: Sequence[Item], logits: TargetLogits) -> list[Tensor]:
        """Return what `outputs` returns, by the logits of an exported model."""


class Decoder(ABC):
    """Turn outputs into predictions. It has no weights: what it needs of the model is in the outputs.

    Attributes:
        state: Values calibrated on validation data, such as a threshold, as plain JSON; saved with the model.
    """

    def __init__(self, metadata: Metadata, settings: Any, state: Mapping[str, Any]) -> None:
        self.metadata, self.settings, self.state = metadata, settings, dict(state)

    def calibrate(  # noqa: B027
        self, outputs: Outputs, items: Sequence[Item], examples: Sequence[Any]
    ) -> None:
        """Choose `state` on validation data. It is called before each evaluation of a training run."""

    @abstractmethod
    def decode(self, outputs: Outputs, items: Sequence[Item], examples: Sequence[Any]) -> list[Any]:
        """Return one `Prediction` per example. There is no other way from outputs to answers."""

    def target(self, output: Tensor, item: Item, name: str | None) -> Target:
        """Return the number to explain in an item's output; None: that of the predicted answer."""
        return class_target(output, self.metadata.get("labels") or ["number"], name)

    def probabilities(self, output: Tensor) -> Tensor | None:
        """Return the probability of each number of an item's output; None if these are no logits of classes."""
        return None

    def ensemble_output(self, output: Tensor) -> Tensor:
        """Return one model's contribution to an ensemble: probabilities if there are any."""
        probabilities = self.probabilities(output)
        return output if probabilities is None else probabilities

    def combine_outputs(self, outputs: Sequence[Tensor]) -> Tensor:
        """Combine the contributions of several models to one item into the output that `decode` takes."""
        return torch.stack(list(outputs)).mean(0)

    def combine_states(self, states: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Return the mean of several decoders' states."""
        names = states[0] if states else ()
        return {name: mean_of_values([state[name] for state in states]) for name in names}


class SoftmaxDecoder(Decoder):
    """A decoder of logits, of which an ensemble averages the probabilities."""

    def probabilities(self, output: Tensor) -> Tensor:
        """Return the softmax of the logits."""
        return output.double().softmax(-1)

    def combine_outputs(self, outputs: Sequence[Tensor]) -> Tensor:
        """Return the mean of probabilities as logits."""
        return logits_from_probabilities(super().combine_outputs(outputs))


class TaskMetrics(ABC):
    """Score predictions, and a baseline that ignores the model.

    Attributes:
        decoder: The decoder of the predictions.
        baseline_name: The heading of the baseline's scores, which also ends "is no better than …".
        baseline_reads_text: True if the baseline is a rival model that reads the texts.
        comparable_across_models: True if predictions of several models, such as those of cross-validation folds,
            can be scored as one set; False if their scores are on different scales.
        loss_name: The name of `example_losses`, for display.
    """

    baseline_name: ClassVar[str] = "without looking at the text"
    baseline_reads_text: ClassVar[bool] = False
    comparable_across_models: ClassVar[bool] = True
    loss_name: str = ""

    def __init__(self, metadata: Metadata, settings: Any, decoder: Any) -> None:
        self.metadata, self.settings, self.decoder = metadata, settings, decoder

    @property
    @abstractmethod
    def primary_metric(self) -> str:
        """The metric that chooses the best checkpoint; higher is better."""

    @property
    def logged_metrics(self) -> tuple[str, ...]:
        """The metrics that evaluations during training log, `primary_metric` among them."""
        return (self.primary_metric,)

    def labels(self, examples: Sequence[Any]) -> Sequence[tuple[str, ...]]:
        """Return the reference labels of each example by name; empty tuples if answers are not labels.

        An example has one label, or one for each word. Labels unknown to the model are included.
        """
        return [()] * len(examples)

    @abstractmethod
    def compute(self, predictions: Sequence[Any], examples: Sequence[Any]) -> Metrics:
        """Return the metrics of predictions on labeled examples."""

    @abstractmethod
    def baseline(self, training: Sequence[Any], validation: Sequence[Any]) -> Metrics:
        """Return the metrics of the best cheap method on the validation examples."""

    def text_baselines(
        self, training: Sequence[Any], validation: Sequence[Any], vectorize: Vectorize | None = None
    ) -> dict[str, Metrics]:
        """Return, by name, the metrics of cheap methods that read the text.

        Args:
            training: The training examples.
            validation: The validation examples.
            vectorize: The vectors of a linear model; None: TF-IDF. A method without vectors ignores it.
        """
        return {}

    def example_losses(self, answers: Answers) -> list[float | None]:
        """Return the loss of each example; None if it is undefined."""
        return [None] * len(answers.examples)

    def sufficient_statistics(
        self, predictions: Sequence[Any], examples: Sequence[Any]
    ) -> SufficientStatistics | None:
        """Return per-example sums from which the metrics of any resample follow; None if there are none."""
        return None
