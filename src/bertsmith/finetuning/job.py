"""The settings and the training job of a fine-tuning run."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from bertsmith.device import ComputeContext
from bertsmith.errors import InputError, option
from bertsmith.finetuning.data import Examples
from bertsmith.finetuning.defaults import complete_length, default_learning_rate
from bertsmith.finetuning.head_probe import can_evaluate, probe_items, train_head
from bertsmith.finetuning.model import cached_encoder, load_teacher, unfreeze_steps, with_auxiliary_lm
from bertsmith.finetuning.report import data_report, log_texts, run_report
from bertsmith.finetuning.settings import FinetuneSettings, settings_type
from bertsmith.inference.model import Model
from bertsmith.models.encoder import Encoder
from bertsmith.objectives.objective import Objective
from bertsmith.reports.run import StepTimer, write_figures, write_report
from bertsmith.runs import compute_setup, run_folder
from bertsmith.settings import read_yaml
from bertsmith.tasks.base import TaskData
from bertsmith.tasks.batching import Answers, Item, ItemStream
from bertsmith.tasks.data_checks import examples_digest
from bertsmith.tasks.fitted_task import FittedTask, check_max_length
from bertsmith.tasks.registry import Task
from bertsmith.tasks.results import Metrics
from bertsmith.tasks.windows import TextStats
from bertsmith.tokenizer.tokenizer import Tokenizer
from bertsmith.training.budget import TrainingBudget
from bertsmith.training.callbacks import EarlyStopping, ReduceLROnPlateau, TrainerCallback
from bertsmith.training.checkpoint import load_best_weights
from bertsmith.training.data_loader import Phase
from bertsmith.training.train_step import TrainModule
from bertsmith.training.training_job import (
    Evaluation,
    EvaluationResult,
    TrainingJob,
    TrainOutput,
    TrainState,
    fingerprint,
)


def new_settings(
    task: Task, base: Model, files: Mapping[str, Any], recipe: str | Path | None, changes: Mapping[str, Any]
) -> FinetuneSettings:
    """Return the settings of a new run: of the recipe, the files, and the changes.

    Values that the task leaves open are those of the base model.

    Args:
        task: The task.
        base: The base model.
        files: The settings of the group `files`, as from `file_settings`.
        recipe: A YAML file of settings.
        changes: Settings by their full names.

    Raises:
        InputError: The settings name another model, or the model does not support them.
    """
    path, folder = str(base.path), base.folder
    values = read_yaml(recipe) if recipe is not None else {}
    values = {**values, "base": path, "files": {**(values.get("files") or {}), **files}}
    settings = settings_type(task).of(values, str(recipe or "settings"))
    defaults = {"train.learning_rate": default_learning_rate(folder.config)}
    if "train.learning_rate" in settings_type(task).dotted(values):
        defaults = {}
    settings = settings.changed({**defaults, **compute_setup.without_other_budgets(changes)})
    if settings.base != path:
        message = f"base is {settings.base} in the settings, and the model is {path}"
        hint = f"name the model with {option('model')} only"
        raise InputError("base_differs", message, argument="base", hint=hint)
    data: TaskData = task.part("data")(settings.task, {})
    task_settings = data.resolve_settings(folder.path, folder.config.max_length)
    check_max_length(task_settings, folder.config.max_length)
    return settings.model_copy(update={"task": task_settings})


def resumed_settings(
    task: Task, out: Path, files: Mapping[str, Any], recipe: str | Path | None, changes: Mapping[str, Any]
) -> tuple[FinetuneSettings, dict[str, Any]]:
    """Return the settings of a run that is resumed, and those of recipe, files, and changes by dotted names.

    Raises:
        InputError: Recipe, files, or changes differ from the run's settings where these must not change.
    """
    run_type = settings_type(task)
    values = read_yaml(recipe) if recipe is not None else {}
    named = {**run_type.dotted(values), **run_type.dotted({"files": dict(files)}), **changes}
    return run_folder.settings_of_run(run_type, out, named), named


@dataclass
class FinetuneJob:
    """The model, the examples, and the settings of a run.

    Attributes:
        settings: The settings of the run; `train` is completed while the run is prepared.
        base: The base model.
        encoder: The encoder to train.
        task: The task, with the heads to train.
        examples: The examples.
        context: The device, the precision, the random numbers, and the kernels.
        timer: The wall time of each step of the workflow.
        out: The run folder.
        items: The training items.
        validation_items: The validation items.
        text_stats: The statistics of the training and validation texts.
        objective: The loss: the task's, or that of a distillation, with an auxiliary one of language modeling.
        teacher_digest: A digest of the teacher's weights; "" without a teacher.
        trained_encoder: The encoder, or after `cache_features` the cache of its hidden states.
    """

    settings: FinetuneSettings
    base: Model
    encoder: Encoder
    task: FittedTask
    examples: Examples
    context: ComputeContext
    timer: StepTimer
    out: Path
    items: list[Item] = field(init=False)
    validation_items: list[Item] = field(init=False)
    text_stats: dict[str, TextStats] = field(init=False)
    objective: Objective = field(init=False)
    teacher_digest: str = ""
    trained_encoder: Encoder = field(init=False)

    def prepare(self) -> None:
        """Encode the examples, choose the kernels, which depend on the number of updates, and load the teacher."""
        tokenizer = self.tokenizer
        with self.timer.step("encoding"):
            self.items = self.task.encode(self.examples.train, tokenizer)
            self.validation_items = self.task.encode(self.examples.validation, tokenizer)
        self.text_stats = {
            "train": self.task.text_stats(tokenizer, self.items, self.examples.train),
            "validation": self.task.text_stats(tokenizer, self.validation_items, self.examples.validation),
        }
        log_texts(self.task, self.examples, self.text_stats["train"])
        if not self.task.model.head_init:
            self.task.model.init_bias(self.items)
        config, updates = self.base.folder.config, self.updates_per_epoch
        train = complete_length(self.settings.train, config, updates, can_probe=self._can_probe)
        self.settings = self.settings.model_copy(update={"train": train})
        self.context = self.context.with_kernels(self.settings.train, config.hidden_size, self.num_updates())
        self.context.prepare_modules(self.encoder, self.task.model)
        self.trained_encoder, self.objective = self.encoder, self.task.model
        if self.settings.teacher.model:
            self.objective, self.teacher_digest = load_teacher(
                self.settings.teacher, self.base, self.task, self.context
            )
        self.objective = with_auxiliary_lm(self.objective, self.base.folder, train, self.context)

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The base's tokenizer, which adds special tokens."""
        return self.base.tokenizer.with_end_tokens()

    @property
    def module(self) -> TrainModule:
        """The encoder and the objective that are trained."""
        return TrainModule(self.trained_encoder, self.objective)

    @property
    def updates_per_epoch(self) -> float:
        """The number of updates in an epoch."""
        train = self.settings.train
        return math.ceil(len(self.items) / train.batch_size) / train.gradient_accumulation_steps

    @property
    def _can_probe(self) -> bool:
        """True if a new head reads the encoder's states, and is not trained alone anyway."""
        model, train = self.task.model, self.settings.train
        is_new = bool(model.heads) and not model.head_init and not model.features.parts
        return is_new and not train.freeze_encoder and train.unfreeze_every is None

    def num_updates(self) -> int:
        """Return the number of updates of the run's budget."""
        train = self.settings.train
        mean_tokens = sum(item.size for item in self.items) / max(1, len(self.items))
        tokens_per_update = mean_tokens * train.batch_size * train.gradient_accumulation_steps
        return compute_setup.updates_in_budget(train, self.updates_per_epoch, tokens_per_update)

    def complete_train_settings(self) -> None:
        """Set the precision, the device, and the kernels that the user left open."""
        train = compute_setup.with_context(self.settings.train, self.context)
        self.settings = self.settings.model_copy(update={"train": train})

    def cache_features(self, folder: Path, items: Sequence[Item]) -> None:
        """Compute the encoder's states for these items, or read those of a run on the same data."""
        with self.timer.step("hidden states"):
            self.trained_encoder = cached_encoder(
                self.base.folder, self.encoder, self.task, items, self.context, folder
            )

    def fit_head(self, folder: Path) -> None:
        """Train the head alone on the states of the frozen encoder, which are kept in a folder meanwhile."""
        train, encoder, metric = self.settings.train, self.trained_encoder, self.task.primary_metric
        items, validation = probe_items(self.items, train.seed), self.validation_items

        def evaluate() -> float:
            return self.evaluate()[0].values[metric]

        with self.timer.step("fitting the head"):
            evaluates = can_evaluate(validation)
            self.cache_features(folder, [*items, *validation] if evaluates else items)
            module = TrainModule(self.trained_encoder, self.task.model)
            train_head(module, items, self.context, train, evaluate if evaluates else None)
        self.trained_encoder = encoder

    def training_job(self, budget: TrainingBudget) -> TrainingJob:
        """Return what the trainer needs; all epochs are one phase."""
        train = self.settings.train
        stream = ItemStream(self.task.model.collate, self.items, train.seed)
        return TrainingJob(
            [Phase(stream, 1.0, train.batch_size)],
            train,
            self.out,
            title=f"finetune {self.task.name}",
            fingerprint=compute_setup.run_fingerprint(
                self.settings,
                _content_digest(self.items),
                _content_digest(self.validation_items),
                self.base.folder.weights_digest(),
                *filter(None, [self.teacher_digest]),
            ),
            budget=budget,
            evaluation=Evaluation(
                self.evaluate_in_training,
                self.task.primary_metric,
                at_start=bool(train.head_probe) and (train.eval_steps or 0) <= self.num_updates(),
            ),
            callbacks=self._callbacks(),
            unfreeze_steps=unfreeze_steps(self.encoder, self.task.model, train, self.updates_per_epoch),
        )

    def _callbacks(self) -> list[TrainerCallback]:
        train = self.settings.train
        callbacks: list[TrainerCallback] = []
        if train.lr_scheduler_type == "reduce_lr_on_plateau":
            callbacks.append(ReduceLROnPlateau(train.lr_patience))
        if train.patience is not None:
            callbacks.append(EarlyStopping(train.patience, self.task.primary_metric))
        return [*callbacks, run_folder.IntermediateSaver(self._save_intermediate)]

    def evaluate(self) -> tuple[Metrics, Answers]:
        """Calibrate the decoder on the validation examples, and return their metrics and answers."""
        task, items, examples = self.task, self.validation_items, self.examples.validation
        with self.timer.step("evaluations"):
            outputs = task.model.run(self.trained_encoder, items, self.context)
            task.decoder.calibrate(outputs, items, examples)
            predictions = task.decoder.decode(outputs, items, examples)
            metrics = task.score(predictions, examples, self.text_stats["validation"])
        return metrics, Answers(outputs, items, examples, predictions)

    def evaluate_test(self) -> Metrics:
        """Return the metrics of the test examples, with the decoder as the validation examples calibrated it."""
        task, examples = self.task, self.examples.test
        items = task.encode(examples, self.tokenizer)
        with self.timer.step("the test"):
            outputs = task.model.run(self.encoder, items, self.context)
            predictions = task.decoder.decode(outputs, items, examples)
            return task.score(predictions, examples, task.text_stats(self.tokenizer, items, examples))

    def evaluate_in_training(self) -> EvaluationResult:
        """Evaluate, and return the metrics for the log and the decoder's state."""
        values = self.evaluate()[0].values
        metrics = {name: values[name] for name in self.task.metrics.logged_metrics}
        return EvaluationResult(metrics, dict(self.task.decoder.state))

    def save(self, output: TrainOutput) -> None:
        """Write the model and the report of a finished run."""
        self.timer.reattribute("training", "checkpoints", output.saving_seconds)
        metrics, answers = self.evaluate()
        saved_metrics = {
            name: metrics.values[name] for name in (*self.task.metrics.logged_metrics, "examples")
        }
        with self.timer.step("writing the model"):
            self._write_model(self._record(output.state) | {"validation": saved_metrics})
        with self.timer.step("the report"):
            report = run_report(
                self.task, self.examples, self.settings, output, metrics, self.out, self.updates_per_epoch
            )
            report |= data_report(self.task, self.examples, self.text_stats, metrics, answers)
            if self.examples.test:
                report["test"] = self.evaluate_test().to_dict()
            report |= {"settings": self.settings.model_dump(mode="json")}
            figures = write_figures(self.out, report)
        write_report(self.out, report | {"wall_time": self.timer.to_list()}, figures)

    def _save_intermediate(self, state: TrainState, mark: dict[str, Any]) -> None:
        """Write the model of a run that has not finished, with the weights of the best evaluation so far."""
        if state.best_step is None:
            self._write_model(self._record(state) | mark)
            return
        module, decoder, decoder_state = self.module, self.task.decoder, self.task.decoder.state
        weights = {name: tensor.clone() for name, tensor in module.saved_tensors().items()}
        module.load_tensors(load_best_weights(self.out / run_folder.CHECKPOINTS, state))
        decoder.state = dict(state.best_state)
        metrics = {"validation": {self.task.primary_metric: state.best_score}}
        try:
            self._write_model(self._record(state) | metrics | mark)
        finally:
            module.load_tensors(weights)
            decoder.state = decoder_state

    def _record(self, state: TrainState) -> dict[str, Any]:
        """Return what bertsmith.json always has."""
        return {
            "task": self.task.name,
            "settings": self.settings.task.model_dump(mode="json"),
            "metadata": dict(self.task.metadata),
            "decoder_state": self.task.decoder.state,
            "steps": state.step,
            "tokens": state.tokens,
            "precision": self.context.precision,
            "validation_digest": examples_digest(self.examples.validation),
            "base": self.settings.base,
            "pretraining_tokens": self.base.folder.record.get("tokens"),
        }

    def _write_model(self, record: dict[str, Any]) -> None:
        run_folder.write_models(self.out, self.task.model.export(self.encoder), self.tokenizer, record)


def _content_digest(items: Sequence[Item]) -> str:
    """Return a digest of the items' texts and targets."""
    parts = []
    for item in items:
        parts.append(f"{item.example} {item.target}")
        parts += [f"{sequence.ids.tolist()}{sequence.segments.tolist()}" for sequence in item.sequences]
    return fingerprint(*parts)
