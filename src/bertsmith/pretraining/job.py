"""A pre-training run's work: what is trained on what, how it is judged, its course, and what it leaves."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from bertsmith import hardware
from bertsmith.artifacts.folder import write_folder
from bertsmith.corpus.shards import Shards
from bertsmith.device import ComputeContext
from bertsmith.errors import InputError
from bertsmith.formatting import pluralize
from bertsmith.inference.model import Model
from bertsmith.instances.length_buckets import check_batch_tokens
from bertsmith.io import atomic
from bertsmith.models.encoder import Encoder
from bertsmith.objectives.objective import Objective, evaluate_objective
from bertsmith.pretraining.base_model import take_over
from bertsmith.pretraining.data import Source, log_instances
from bertsmith.pretraining.minimal_pairs import (
    ACCURACY,
    PairsOnTheWay,
    expect_pairs,
    log_sample,
    pairs_of,
    pairs_on_the_way,
)
from bertsmith.pretraining.model_init import first_weights
from bertsmith.pretraining.settings import PretrainSettings
from bertsmith.runs.compute_setup import Footing, expect_evaluations, expect_writing, footing
from bertsmith.runs.run_folder import OnTheWay, check_accumulation, numbers, place_of, settled, write_report
from bertsmith.training.autotune import Speeds
from bertsmith.training.distributed import RankGroup
from bertsmith.training.metric_logger import last_loss
from bertsmith.training.train_state import Evaluation, Progress
from bertsmith.training.trainer import Course, fingerprint
from bertsmith.training.training_budget import Aim

logger = logging.getLogger(__name__)

_MANY_PASSES = 10.0  # over the data: from there on a warning is logged before the run
_SOME_PASSES = 2.0
_BY_HEART = 1.0  # nats by which the training text's MLM loss is below that of held-out documents
_LAST_RECORDS = 10  # of the log: what a training loss is the mean of


@dataclass(frozen=True)
class Work:
    """What is trained on what, and how it is judged.

    base: the model whose weights it began with. batches: figures of how these are filled. held_out: the batches
    that the run is judged on, as `Source.held_out_batches` names them.
    """

    chosen: PretrainSettings
    source: Source
    base: Model | None
    encoder: Encoder
    objective: Objective
    place: ComputeContext
    batches: dict[str, float | int]
    held_out: dict[str, list[Any]]
    pairs: PairsOnTheWay | None

    @classmethod
    def of(
        cls,
        shards: Shards,
        chosen: PretrainSettings,
        base: Model | None,
        *,
        restored: bool,
    ) -> Work:
        """Split the documents, draw or take over the first weights, cut the held-out batches; it is logged.

        restored: weights will come from a checkpoint, so that what takes long to begin with is left out.
        """
        check_length(chosen)
        pairs = pairs_of(chosen.evaluate)
        place = place_of(chosen.train, chosen.model)
        _check_memory(chosen, place)
        source = Source.of(shards, chosen)
        folder = None if base is None else base.folder
        vectors = [] if restored else source.vectors()
        encoder, objective = first_weights(chosen, place.init_generator, source.counts, folder, vectors)
        objective.check_tokenizer(shards.tokenizer)
        objective.load_teacher(encoder, fresh=not restored)
        if folder is not None and not restored:
            take_over(folder, encoder, objective, chosen)
        place.prepare_modules(encoder, objective)
        batches, held_out = log_instances(source), source.held_out_batches()
        on_the_way = (
            None
            if pairs is None
            else pairs_on_the_way(pairs, chosen.evaluate, encoder, objective, shards.tokenizer, place)
        )
        return cls(chosen, source, base, encoder, objective, place, batches, held_out, on_the_way)

    def on_footing(self, *, resuming: bool, ranks: RankGroup) -> tuple[Work, Footing]:
        """Time updates here, and expect what else will take time; the work with what was settled by that."""
        chosen, source = self.chosen, self.source
        on = footing(
            self.encoder,
            self.objective,
            source.phases,
            chosen.train,
            self.place,
            self.updates,
            resuming=resuming,
            ranks=ranks,
        )
        expect_evaluations(on.speeds, self.held_out, self._tokens_per_update)
        expect_writing(on.speeds, self.encoder, self.objective)
        if (pairs := self.pairs) is None:
            return replace(self, place=on.place), on
        if (minutes := chosen.train.max_minutes) is not None:
            budget = None if resuming else minutes
            pairs = expect_pairs(on.speeds, pairs, self._tokens_per_update, budget)
        log_sample(pairs)
        chosen = chosen.model_copy(update={"evaluate": pairs.settings})
        return replace(self, place=on.place, pairs=pairs, chosen=chosen), on

    def settled(self, on: Footing) -> Work:
        """The work with what was left open to the machine."""
        train = settled(self.chosen.train, on.place)
        return replace(self, chosen=self.chosen.model_copy(update={"train": train}))

    def updates(self) -> int:
        """How many updates a budget comes to that is not one of minutes."""
        settings = self.chosen.train
        if settings.max_steps:
            return settings.max_steps
        if settings.max_tokens:
            return math.ceil(settings.max_tokens / self._tokens_per_update)
        check_accumulation(settings, self._updates_per_epoch)
        return max(1, math.ceil(settings.num_train_epochs * self._updates_per_epoch))

    @property
    def _updates_per_epoch(self) -> float:
        train, stream = self.chosen.train, self.source.streams[0]
        if train.batch_tokens is None:
            return stream.size(0) / (train.batch_size * train.gradient_accumulation_steps)
        return len(stream.fill_stats(0, train.batch_size).tokens) / train.gradient_accumulation_steps

    @property
    def _tokens_per_update(self) -> float:
        train, source = self.chosen.train, self.source
        return train.gradient_accumulation_steps * sum(
            share * float(stream.fill_stats(0, train.batch_size).tokens.mean())
            for stream, (_, share) in zip(source.streams, source.lengths, strict=True)
        )

    def course(self, aim: Aim, speeds: Speeds, out: Path) -> Course:
        """The run's phases, judged as they should be; its model is written on the way."""

        def write_so_far(progress: Progress, mark: dict[str, Any]) -> None:
            self._write(out, self._record(progress, progress.evaluation) | mark)

        return Course(
            self.source.phases,
            self.chosen.train,
            out,
            title="pretrain",
            fingerprint=fingerprint(
                numbers(self.chosen),
                atomic.sha256_of_file(self.source.shards.folder / "manifest.json"),
                *([self.base.folder.weights_digest()] if self.base is not None else []),
                *self.objective.input_digests,
            ),
            aim=aim,
            evaluation=self._evaluation(),
            speeds=speeds,
            unfinished=OnTheWay(write_so_far),
        )

    def _evaluation(self) -> Evaluation | None:
        """On the held-out documents, at each phase's length where there are two, and on pairs."""
        if not self.held_out and self.pairs is None:
            return None

        def measure() -> dict[str, float]:
            return {
                f"{prefix}{name}": value
                for prefix, batches in self.held_out.items()
                for name, value in evaluate_objective(
                    self.objective, self.encoder, batches, self.place
                ).items()
            } | ({} if self.pairs is None else self.pairs.measure())

        return Evaluation(measure)

    def leave(self, out: Path, progress: Progress) -> None:
        """Write the model and the report, and log what the figures mean."""
        figures = dict(progress.evaluation)
        for prefix, some in self.held_out.items():
            found = self.objective.unigram_baseline(self.source.counts, some)
            figures |= {f"{prefix}{name}": value for name, value in found.items()}
        report = self._report(progress, figures, out)
        for remark in report["remarks"]:
            logger.warning("%s", remark)

        def write() -> None:
            self._write(out, self._record(progress, figures))
            write_report(out, report)

        write()
        if self.pairs is not None:  # what takes long, and may be interrupted, when the model is there
            report["pairs"] = self.pairs.report()
            figures[ACCURACY] = report["pairs"]["accuracy"]
            write()

    def _report(self, progress: Progress, held_out: dict[str, float], out: Path) -> dict[str, Any]:
        train = self.chosen.train
        return {
            "objective": self.chosen.objective.name,
            **({"base": self.chosen.base} if self.chosen.base else {}),
            "steps": progress.step,
            "tokens": progress.tokens,
            "seconds": round(progress.seconds, 1),
            "tokens_per_second": round(progress.tokens / max(progress.seconds, 1e-9), 1),
            "precision": train.precision,
            "device": train.device,
            "threads": progress.threads,
            "processes": progress.processes,
            "held_out": held_out,
            "remarks": [
                *([progress.cut_short] if progress.cut_short else []),
                *self._of_learning(progress, held_out, out),
            ],
            "corpus": self.source.shards.counts,
            "first_epoch": self.source.streams[0].plan(0).counts,
            "batches": self.batches,
        }

    def log_passes(self, updates: int) -> None:
        """Log a warning if the text is small for the number of updates."""
        passes = updates / max(1e-9, self._updates_per_epoch)
        if passes >= _MANY_PASSES:
            logger.warning(
                "there is little text for %s: the run reads it about %s times, and a model that overfits it gets "
                "worse on other text; use more text, or a shorter run",
                pluralize(updates, "update"),
                f"{passes:,.0f}",
            )

    def _of_learning(self, progress: Progress, held_out: dict[str, float], out: Path) -> list[str]:
        """A sentence where the text was learnt by heart, or where the held-out MLM loss is no better than by word
        frequencies alone: what was reached, and what to change, each with its figure."""
        loss, alone = held_out.get("mlm_loss"), held_out.get("unigram_mlm_loss")
        if loss is None or alone is None:
            return []
        train, model = self.chosen.train, self.chosen.model
        updates, passes = progress.step, progress.step / max(1e-9, self._updates_per_epoch)
        learnt = last_loss(out, "mlm", _LAST_RECORDS)
        if learnt is not None and loss - learnt > _BY_HEART and passes >= _SOME_PASSES:
            worse = f", where word frequencies alone reach {alone:.2f}" if loss >= alone else ""
            return [
                f"this model overfits its text: it has read the text {passes:,.0f} times, and its MLM loss is "
                f"{learnt:.2f} there and {loss:.2f} on held-out documents{worse}. More text helps most; otherwise "
                f"make fewer updates (train.max_steps, train.max_minutes; now {pluralize(updates, 'update')}), or "
                "use a smaller preset (now "
                f"{pluralize(model.num_hidden_layers, 'layer')} of {model.hidden_size:,})"
            ]
        if loss < alone:
            return []
        return [
            f"this model has not learned to use the context yet: its held-out MLM loss is {loss:.2f}, and word "
            f"frequencies alone reach {alone:.2f}. Change one of these: more updates (train.max_steps, "
            f"train.max_minutes; now {pluralize(updates, 'update')}, {passes:.2g} passes over the data); another "
            f"train.learning_rate (now {train.learning_rate:g}: higher if the loss in log.jsonl still falls, "
            f"lower if it has risen); a smaller preset (now {pluralize(model.num_hidden_layers, 'layer')} of "
            f"{model.hidden_size:,})"
        ]

    def _record(self, progress: Progress, held_out: dict[str, float]) -> dict[str, Any]:
        """What bertsmith.json says of the training."""
        return {
            "task": "pretrain",
            "objective": self.chosen.objective.name,
            **({"base": self.chosen.base} if self.chosen.base else {}),
            "steps": progress.step,
            "tokens": progress.tokens,
            "precision": self.place.precision,
            "held_out": held_out,
        }

    def _write(self, out: Path, record: dict[str, Any]) -> None:
        """The model folders."""
        for name, parts in self.objective.export(self.encoder).items():
            write_folder(
                out / name,
                parts.config,
                parts.modules,
                tokenizer=self.source.shards.tokenizer,
                record=record | self.objective.training_record(),
            )


def _check_memory(chosen: PretrainSettings, place: ComputeContext) -> None:
    """InputError where weights, gradients and moments do not fit; counted on modules that take no memory."""
    with torch.device("meta"):
        modules = first_weights(chosen, torch.Generator())
    parameters = sum(p.numel() for module in modules for p in module.parameters())
    hardware.check_memory(parameters, hardware.memory_bytes(place.device))


def check_length(chosen: PretrainSettings) -> None:
    longest = max(chosen.data.sequence_length, chosen.data.long_sequence_length or 0)
    if longest > chosen.model.max_length:
        raise InputError(
            "sequence_length_too_large",
            f"sequences of {longest} tokens do not fit {chosen.model.max_length} positions",
            argument="data.sequence_length",
            hint="lower data.sequence_length"
            + ("" if chosen.base else ", or raise model.max_position_embeddings"),
        )
    check_batch_tokens(chosen.train.batch_tokens, longest)
