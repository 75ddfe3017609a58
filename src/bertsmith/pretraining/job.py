"""The training job of a pre-training run: its length, how it is evaluated, and what it writes."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertsmith.artifacts.folder import write_folder
from bertsmith.device import ComputeContext
from bertsmith.inference.model import Model
from bertsmith.io import atomic
from bertsmith.models.encoder import Encoder
from bertsmith.objectives.objective import Objective, evaluate_objective
from bertsmith.pretraining.data import PretrainData
from bertsmith.pretraining.minimal_pairs import ACCURACY, PairsEvaluation
from bertsmith.pretraining.report import run_report
from bertsmith.pretraining.settings import PretrainSettings
from bertsmith.runs.run_folder import IntermediateSaver, write_report
from bertsmith.runs.settings import check_accumulation, fingerprint_settings
from bertsmith.training.run_plan import TrainingBudget
from bertsmith.training.time_budget import Throughput
from bertsmith.training.train_step import TrainModule
from bertsmith.training.training_job import (
    Evaluation,
    EvaluationResult,
    TrainingJob,
    TrainOutput,
    TrainState,
    fingerprint,
)

logger = logging.getLogger(__name__)


@dataclass
class PretrainJob:
    """The model, the data, and the settings of a run.

    Attributes:
        settings: The settings of the run; `train` is completed while the run is prepared.
        data: The corpus.
        base: The model that the run starts from.
        encoder: The encoder to train.
        objective: The heads to train, and their loss.
        context: The device.
        pairs: The evaluation on minimal pairs.
    """

    settings: PretrainSettings
    data: PretrainData
    base: Model | None
    encoder: Encoder
    objective: Objective
    context: ComputeContext
    pairs: PairsEvaluation | None

    @property
    def module(self) -> TrainModule:
        """The encoder and the objective that are trained."""
        return TrainModule(self.encoder, self.objective)

    def num_updates(self) -> int:
        """Return the number of updates of the run's budget, if it is not in minutes."""
        train = self.settings.train
        if train.max_steps:
            return train.max_steps
        if train.max_tokens:
            return math.ceil(train.max_tokens / self.data.tokens_per_update)
        check_accumulation(train, self.data.updates_per_epoch)
        return max(1, math.ceil(train.num_train_epochs * self.data.updates_per_epoch))

    def estimate_time(self, throughput: Throughput, *, resuming: bool) -> None:
        """Add the expected time of evaluations and of writing the model to the throughput.

        If a new run has a time budget, the numbers of minimal pairs are reduced to fit it.
        """
        tokens = sum(batch.tokens for batches in self.data.validation_batches.values() for batch in batches)
        throughput.expect_evaluation(tokens, self.data.tokens_per_update)
        parameters = [*self.encoder.parameters(), *self.objective.parameters()]
        throughput.expect_writing(sum(p.numel() * p.element_size() for p in parameters))
        if self.pairs is None:
            return
        if (minutes := self.settings.train.max_minutes) is not None:
            self.pairs = self.pairs.within_budget(
                throughput, self.data.tokens_per_update, None if resuming else minutes
            )
        self.pairs.log_sample()
        self.settings = self.settings.model_copy(update={"evaluate": self.pairs.settings})

    def training_job(self, budget: TrainingBudget, throughput: Throughput, out: Path) -> TrainingJob:
        """Return what the trainer needs."""
        has_evaluation = self.data.validation_batches or self.pairs is not None
        return TrainingJob(
            self.data.phases,
            self.settings.train,
            out,
            title="pretrain",
            fingerprint=fingerprint(
                fingerprint_settings(self.settings),
                atomic.sha256_of_file(self.data.shards.folder / "manifest.json"),
                *([self.base.folder.weights_digest()] if self.base is not None else []),
                *self.objective.input_digests,
            ),
            budget=budget,
            evaluation=Evaluation(self.evaluate) if has_evaluation else None,
            throughput=throughput,
            callbacks=[IntermediateSaver(lambda state, mark: self._save_intermediate(out, state, mark))],
        )

    def evaluate(self) -> EvaluationResult:
        """Evaluate on the validation documents, at the length of each phase, and on minimal pairs."""
        metrics = {
            f"{prefix}{name}": value
            for prefix, batches in self.data.validation_batches.items()
            for name, value in evaluate_objective(self.objective, self.encoder, batches, self.context).items()
        }
        return EvaluationResult(metrics | ({} if self.pairs is None else self.pairs.evaluate()))

    def save(self, out: Path, output: TrainOutput) -> None:
        """Write the model and the report of a finished run, and log the report's warnings."""
        metrics = dict(output.state.evaluation)
        for prefix, batches in self.data.validation_batches.items():
            baseline = self.objective.unigram_baseline(self.data.token_counts, batches)
            metrics |= {f"{prefix}{name}": value for name, value in baseline.items()}
        report = run_report(self.settings, self.data, output, metrics, out)
        for warning in report["remarks"]:
            logger.warning("%s", warning)
        self._write_model(out, self._record(output.state, metrics))
        write_report(out, report)
        if self.pairs is not None:  # scoring takes long; if it is interrupted, the model is already there
            report["pairs"] = self.pairs.final_report()
            metrics[ACCURACY] = report["pairs"]["accuracy"]
            self._write_model(out, self._record(output.state, metrics))
            write_report(out, report)

    def _save_intermediate(self, out: Path, state: TrainState, mark: dict[str, Any]) -> None:
        self._write_model(out, self._record(state, state.evaluation) | mark)

    def _record(self, state: TrainState, metrics: dict[str, float]) -> dict[str, Any]:
        """Return the content of bertsmith.json."""
        return {
            "task": "pretrain",
            "objective": self.settings.objective.name,
            **({"base": self.settings.base} if self.settings.base else {}),
            "steps": state.step,
            "tokens": state.tokens,
            "precision": self.context.precision,
            "held_out": metrics,
        }

    def _write_model(self, out: Path, record: dict[str, Any]) -> None:
        for name, parts in self.objective.export(self.encoder).items():
            write_folder(
                out / name,
                parts.config,
                parts.modules,
                tokenizer=self.data.shards.tokenizer,
                record=record | self.objective.training_record(),
            )
