"""`bertsmith pretrain`: pre-train a BERT on prepared text; its training job, and its report."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Unpack

from bertsmith import hardware
from bertsmith.corpus.shards import Shards
from bertsmith.device import ComputeContext
from bertsmith.errors import InputError, option
from bertsmith.formatting import pluralize
from bertsmith.inference.minimal_pairs import MinimalPairs, read_pairs, score_pairs
from bertsmith.inference.model import Model, load
from bertsmith.inference.scoring import Scorer, default_variant
from bertsmith.io import atomic
from bertsmith.keywords import PretrainKeywords
from bertsmith.models.encoder import Encoder
from bertsmith.models.pretraining_heads import MaskedLMHead
from bertsmith.objectives.objective import MODEL, Objective, evaluate_objective
from bertsmith.pretraining.data import PretrainData, check_lengths
from bertsmith.pretraining.model import build_model, check_memory, load_base
from bertsmith.pretraining.resolve_settings import (
    choose_preset,
    measured_settings,
    new_settings,
    resumed_settings,
    settings_type_of_arguments,
)
from bertsmith.pretraining.settings import EvaluateSettings, PretrainSettings
from bertsmith.runs import compute_setup, run_folder
from bertsmith.settings import Changes, resolve
from bertsmith.training.budget import Throughput, TrainingBudget
from bertsmith.training.callbacks import last_loss
from bertsmith.training.checkpoint import newest_name
from bertsmith.training.distributed import RankGroup, rank_group
from bertsmith.training.train_step import TrainModule
from bertsmith.training.trainer import Trainer
from bertsmith.training.training_job import Evaluation, EvaluationResult, TrainingJob, TrainOutput, TrainState

logger = logging.getLogger(__name__)

_MANY_EPOCHS = 10.0  # of a planned run, from which on a warning is logged
_MIN_OVERFITTING_EPOCHS = 2.0
_OVERFITTING_NATS = 1.0  # by which the MLM loss is lower on the training text than on validation documents
_NUM_LOSSES = 10  # whose mean is the training loss


def pretrain(
    data: Shards | str | Path,
    output_dir: str | Path,
    *,
    preset: str | None = None,
    recipe: str | Path | None = None,
    model: str | Path | Model | None = None,
    minutes: float | None = None,
    evaluate_pairs: str | Path | None = None,
    settings: Changes = (),
    resume: bool = False,
    overwrite: bool = False,
    start_time: float | None = None,
    **keywords: Unpack[PretrainKeywords],
) -> Model:
    """Pre-train a BERT on prepared text with masked LM and next sentence prediction, or another objective.

    Under torchrun, each process calls this with the same arguments, trains on its part of each batch, and gets the
    same model.

    Args:
        data: The folder that `prepare` has written, or its Shards.
        output_dir: The run folder, for settings.yaml, log.jsonl, checkpoints, the model, and report.json.
        preset: The model's sizes; None: the recipe's, or with `minutes` those that fit this machine, or
            bert-mini-uncased. The vocabulary size comes from the data.
        recipe: A YAML file of settings.
        model: A model to continue from, with its heads: a run, a model folder, or a published name. Its tokenizer
            must be that of the data.
        minutes: The minutes that the whole run may take; the number of updates is corrected during the run.
        evaluate_pairs: A file of minimal pairs. Each evaluation reports the accuracy on a sample of them.
        settings: Settings by dotted or nested names ({"train.max_steps": 500}), or as "train.max_steps=500".
        resume: Continue an interrupted run, or a finished one with a larger budget, with the same settings.
        overwrite: Replace a run.
        start_time: The clock at which the minutes start; None: now.
        keywords: Settings by their last names, such as `max_steps=500`.

    Returns:
        The model, with its report.

    Raises:
        InputError: The user can fix the error.
        MachineError: The machine failed, or the loss is not finite.
        Stopped: A signal stopped the run, which is saved.
    """
    start, out = hardware.clock() if start_time is None else start_time, Path(output_dir)
    with rank_group() as ranks, ranks.on_main(run_folder.exclusive_run(out, resume=resume)):
        shards = data if isinstance(data, Shards) else Shards.open(data)
        shards.verify()
        run_type = settings_type_of_arguments(preset, recipe, settings, keywords)
        changes = resolve(run_type, settings, keywords, pretrain)
        if minutes is not None:
            changes["train.max_minutes"] = minutes
        if evaluate_pairs is not None:
            changes["evaluate.pairs"] = str(evaluate_pairs)
        is_resuming = ranks.run_on_main(
            lambda: run_folder.check_resume(out, resume=resume, overwrite=overwrite)
        )
        model = changes.get("base") if model is None else model
        base = load_base(
            model, out / run_folder.SETTINGS if is_resuming else recipe, shards, resuming=is_resuming
        )
        if is_resuming:
            run_settings, explicit = resumed_settings(out, preset, recipe, changes)
        else:
            if not (base or recipe or preset):
                preset = ranks.run_on_main(lambda: choose_preset(changes, shards.tokenizer))
            run_settings, explicit = new_settings(preset, recipe, changes, shards.tokenizer, base), None
            if not (base or recipe):
                log_settings(run_settings)
        checkpoint = ranks.run_on_main(lambda: newest_name(out / run_folder.CHECKPOINTS))
        job = _prepare_job(run_settings, shards, base, out, from_checkpoint=is_resuming and bool(checkpoint))

        throughput = job.measure_throughput(ranks, resuming=is_resuming)
        budget = ranks.run_on_main(
            lambda: compute_setup.training_budget(
                run_settings.train, throughput, job.num_updates, start, ranks.world_size, explicit=explicit
            )
        )
        if not is_resuming:
            log_epochs(budget.num_updates, job.data.updates_per_epoch)
            train = compute_setup.with_context(run_settings.train, job.context)
            job.settings = job.settings.model_copy(update={"train": train})
            inputs = (shards.folder, model.path if isinstance(model, Model) else model)
            ranks.run_on_main(lambda: run_folder.start_run(out, job.settings, *inputs))

        training_job = job.training_job(budget, throughput)
        output = Trainer(job.module, training_job, job.context, resume=resume, ranks=ranks).fit()
        ranks.run_on_main(lambda: run_folder.finish_run(out, output, job.save, resuming=is_resuming))
        return load(out)


def _prepare_job(
    settings: PretrainSettings, shards: Shards, base: Model | None, out: Path, *, from_checkpoint: bool
) -> PretrainJob:
    """Split the data, build the model, and check that the run can start."""
    check_lengths(settings)
    pairs = read_evaluation_pairs(settings.evaluate)
    context = ComputeContext.for_training(settings.train).with_kernels(
        settings.train, settings.model.hidden_size, settings.train.max_steps
    )
    check_memory(settings, context)
    data = PretrainData.from_shards(shards, settings)
    encoder, objective = build_model(
        settings, data, None if base is None else base.folder, context, from_checkpoint=from_checkpoint
    )
    data.log_instances()
    run_folder.check_folders(out, objective.export(encoder))
    return PretrainJob(settings, data, base, encoder, objective, context, pairs, out)


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
            raise InputError(
                "objective_without_masked_head",
                "minimal pairs are scored with a masked-LM head, and the objective "
                f"'{self.objective.name}' has none",
                argument="evaluate_pairs",
                hint=f"remove {option('evaluate_pairs')}",
            )
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
        if error.hint is not None:
            error.hint = error.hint.replace('"encoding"', '"evaluate.pairs_encoding"')
        raise
    sample = pairs.sample(settings.pairs_sample)
    logger.info(
        "each evaluation scores %s of %s (evaluate.pairs_sample)",
        f"{len(sample):,}",
        pluralize(len(pairs), "minimal pair"),
    )
    return sample


def log_settings(settings: PretrainSettings) -> None:
    """Log the settings that have other defaults for the size of the model than the paper's."""
    measured = PretrainSettings.dotted(measured_settings(settings.model.model_dump()))
    if not measured:
        logger.info("no settings were measured for a model of this size, so the defaults are used")
        return
    values = settings.flat()
    logger.info(
        "settings for a model of this size: %s; recipes/bert-paper.yaml has those of the paper",
        ", ".join(f"{name}={values[name]}" for name in measured),
    )


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
