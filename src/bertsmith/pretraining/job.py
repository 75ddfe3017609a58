"""The training job of a pre-training run, and its report."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertsmith.device import ComputeContext
from bertsmith.errors import InputError, option
from bertsmith.formatting import pluralize
from bertsmith.inference.minimal_pairs import MinimalPairs, read_pairs, score_pairs
from bertsmith.inference.model import Model
from bertsmith.inference.scoring import Scorer, default_variant
from bertsmith.io import atomic
from bertsmith.models.encoder import Encoder
from bertsmith.models.pretraining_heads import MaskedLMHead
from bertsmith.objectives.objective import MODEL, Objective, evaluate_objective
from bertsmith.pretraining.data import PretrainData
from bertsmith.pretraining.paper_settings import differences_from_paper
from bertsmith.pretraining.resolve_settings import measured_settings
from bertsmith.pretraining.settings import EvaluateSettings, PretrainSettings
from bertsmith.runs import compute_setup, run_folder
from bertsmith.training.budget import Throughput, TrainingBudget
from bertsmith.training.callbacks import last_loss
from bertsmith.training.distributed import RankGroup
from bertsmith.training.train_step import TrainModule
from bertsmith.training.training_job import Evaluation, EvaluationResult, TrainingJob, TrainOutput, TrainState

logger = logging.getLogger(__name__)

_MANY_EPOCHS = 10.0  # of a planned run, from which on a warning is logged
_MIN_OVERFITTING_EPOCHS = 2.0
_OVERFITTING_NATS = 1.0  # by which the MLM loss is lower on the training text than on validation documents
_NUM_LOSSES = 10  # whose mean is the training loss


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
        pairs: The minimal pairs that each evaluation scores.
        out: The run folder.
    """

    settings: PretrainSettings
    data: PretrainData
    base: Model | None
    encoder: Encoder
    objective: Objective
    context: ComputeContext
    pairs: MinimalPairs | None
    out: Path

    @property
    def module(self) -> TrainModule:
        """The encoder and the objective that are trained."""
        return TrainModule(self.encoder, self.objective)

    def num_updates(self) -> int:
        """Return the number of updates of the run's budget, if it is not in minutes."""
        data = self.data
        return compute_setup.updates_in_budget(
            self.settings.train, data.updates_per_epoch, data.tokens_per_update
        )

    def measure_throughput(self, ranks: RankGroup, *, resuming: bool) -> Throughput:
        """Measure the time of an update, and estimate that of evaluations and of writing the model."""
        throughput = compute_setup.measure_throughput(
            self.module, self.data.phases, self.settings.train, self.context, resuming=resuming, ranks=ranks
        )
        tokens = sum(batch.tokens for batches in self.data.validation_batches.values() for batch in batches)
        if self.pairs is not None:
            tokens += self.pairs.cost(self.scorer())
        throughput.expect_evaluation(tokens, self.data.tokens_per_update)
        parameters = [*self.encoder.parameters(), *self.objective.parameters()]
        throughput.expect_writing(sum(p.numel() * p.element_size() for p in parameters))
        return throughput

    def scorer(self) -> Scorer:
        """Return what scores the sentences of minimal pairs; raise InputError if there is no masked-LM head."""
        head = self.objective.export(self.encoder)[MODEL].modules.get("masked")
        if not isinstance(head, MaskedLMHead):
            message = (
                "minimal pairs are scored with a masked-LM head, and the objective "
                f"'{self.objective.name}' has none"
            )
            hint = f"remove {option('evaluate_pairs')}"
            raise InputError("objective_without_masked_head", message, argument="evaluate_pairs", hint=hint)
        variant = default_variant(self.encoder.config)
        return Scorer(self.encoder, self.data.shards.tokenizer, self.context, head, variant)

    def training_job(self, budget: TrainingBudget, throughput: Throughput) -> TrainingJob:
        """Return what the trainer needs."""
        has_evaluation = self.data.validation_batches or self.pairs is not None
        return TrainingJob(
            self.data.phases,
            self.settings.train,
            self.out,
            title="pretrain",
            fingerprint=compute_setup.run_fingerprint(
                self.settings,
                atomic.sha256_of_file(self.data.shards.folder / "manifest.json"),
                *([self.base.folder.weights_digest()] if self.base is not None else []),
                *self.objective.input_digests,
            ),
            budget=budget,
            evaluation=Evaluation(self.evaluate) if has_evaluation else None,
            throughput=throughput,
            callbacks=[
                run_folder.IntermediateSaver(
                    lambda state, mark: self._write_model(state, state.evaluation, mark)
                )
            ],
        )

    def evaluate(self) -> EvaluationResult:
        """Evaluate on the validation documents, at the length of each phase, and on minimal pairs."""
        metrics = {
            f"{prefix}{name}": value
            for prefix, batches in self.data.validation_batches.items()
            for name, value in evaluate_objective(self.objective, self.encoder, batches, self.context).items()
        }
        if self.pairs is not None:
            metrics["pairs_accuracy"] = score_pairs(self.pairs, self.scorer()).accuracy
        return EvaluationResult(metrics)

    def save(self, output: TrainOutput) -> None:
        """Write the model and the report of a finished run, and log the report's warnings."""
        metrics = dict(output.state.evaluation)
        for prefix, batches in self.data.validation_batches.items():
            baseline = self.objective.unigram_baseline(self.data.token_counts, batches)
            metrics |= {f"{prefix}{name}": value for name, value in baseline.items()}
        report = run_report(self.settings, self.data, output, metrics, self.out)
        for warning in report["remarks"]:
            logger.warning("%s", warning)
        self._write_model(output.state, metrics)
        run_folder.write_report(self.out, report)

    def _write_model(
        self, state: TrainState, metrics: dict[str, float], mark: dict[str, Any] | None = None
    ) -> None:
        """Write the models with their records, bertsmith.json; `mark` is for the model of an unfinished run."""
        record = {
            "task": "pretrain",
            "objective": self.settings.objective.name,
            **({"base": self.settings.base} if self.settings.base else {}),
            "steps": state.step,
            "tokens": state.tokens,
            "precision": self.context.precision,
            "held_out": metrics,
            **self.objective.training_record(),
            **(mark or {}),
        }
        run_folder.write_models(
            self.out, self.objective.export(self.encoder), self.data.shards.tokenizer, record
        )


def read_evaluation_pairs(settings: EvaluateSettings) -> MinimalPairs | None:
    """Read the minimal pairs that each evaluation scores, if there are any."""
    if settings.pairs is None:
        return None
    try:
        pairs = read_pairs(settings.pairs, encoding=settings.pairs_encoding)
    except InputError as error:
        # The encoding of this file is a setting, not the argument `encoding` that the hint refers to.
        error.argument = "evaluate.pairs_encoding" if error.argument == "encoding" else "evaluate_pairs"
        error.change_hint(lambda hint: hint.replace('"encoding"', '"evaluate.pairs_encoding"'))
        raise
    sample = pairs.sample(settings.pairs_sample)
    message = "each evaluation scores %s of %s (evaluate.pairs_sample)"
    logger.info(message, f"{len(sample):,}", pluralize(len(pairs), "minimal pair"))
    return sample


def log_settings(settings: PretrainSettings) -> None:
    """Log all settings of a new model, besides its size, that differ from those of BERT's paper."""
    if not measured_settings(settings.model.model_dump()):
        logger.info("no settings were measured for a model of this size, so the defaults are used")
    differences = [f"{name}={value}" for name, value in differences_from_paper(settings).items()]
    if differences:
        message = "settings that differ from BERT's paper: %s; recipes/bert-paper.yaml has those of the paper"
        logger.info(message, ", ".join(differences))


def log_epochs(num_updates: int, updates_per_epoch: float) -> None:
    """Log a warning if the run reads its text many times."""
    epochs = num_updates / max(1e-9, updates_per_epoch)
    if epochs >= _MANY_EPOCHS:
        logger.warning(
            "there is little text for %s: the run reads it about %s times, and a model that overfits it gets "
            "worse on other text; use more text, or a shorter run",
            pluralize(num_updates, "update"),
            f"{epochs:,.0f}",
        )


def run_report(
    settings: PretrainSettings, data: PretrainData, output: TrainOutput, metrics: dict[str, float], out: Path
) -> dict[str, Any]:
    """Return the content of report.json."""
    warning = _learning_warning(settings, data, output, metrics, out)
    return {
        "objective": settings.objective.name,
        **({"base": settings.base} if settings.base else {}),
        **run_folder.training_record(settings.train, output),
        "processes": output.processes,
        "held_out": metrics,
        "remarks": [] if warning is None else [warning],
        "corpus": data.shards.counts,
        "first_epoch": data.streams[0].plan(0).counts,
        "batches": data.batch_report,
    }


def _learning_warning(
    settings: PretrainSettings, data: PretrainData, output: TrainOutput, metrics: dict[str, float], out: Path
) -> str | None:
    """Return a warning if the model overfits, or is no better than a unigram model; otherwise None."""
    loss, unigram_loss = metrics.get("mlm_loss"), metrics.get("unigram_mlm_loss")
    if loss is None or unigram_loss is None:
        return None
    updates = output.state.step
    epochs = updates / max(1e-9, data.updates_per_epoch)
    train_loss = last_loss(out, "mlm", _NUM_LOSSES)
    is_overfitting = train_loss is not None and loss - train_loss > _OVERFITTING_NATS
    if is_overfitting and epochs >= _MIN_OVERFITTING_EPOCHS:
        return (
            f"this model overfits its text: after {epochs:,.0f} passes its MLM loss is {train_loss:.2f} there and "
            f"{loss:.2f} on held-out documents. More text helps most; otherwise make fewer updates "
            f"(now {updates:,}), or use a smaller preset"
        )
    if loss < unigram_loss:
        return None
    return (
        f"this model has not learned to use the context yet: its held-out MLM loss is {loss:.2f}, and word "
        f"frequencies alone reach {unigram_loss:.2f}. Make more updates (now {updates:,}, {epochs:.2g} passes "
        f"over the data), change train.learning_rate (now {settings.train.learning_rate:g}), or use a smaller "
        "preset"
    )
