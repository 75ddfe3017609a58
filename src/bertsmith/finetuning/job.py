"""What a fine-tuning run has in hand: the examples, the model and its head, how it is judged, what it leaves."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from bertsmith.artifacts.folder import ModelFolder, write_folder
from bertsmith.device import ComputeContext
from bertsmith.errors import InputError
from bertsmith.finetuning.data import Examples, gather
from bertsmith.finetuning.feature_cache import FEATURES, Frozen
from bertsmith.finetuning.report import (
    chosen_on_dev,
    curve_of,
    evaluations,
    log_dropout,
    log_examples,
    log_texts,
    told_of_learning,
)
from bertsmith.finetuning.second_encoder import fill_other_direction
from bertsmith.finetuning.settings import FinetuneSettings, FinetuneTrainSettings
from bertsmith.finetuning.trainable_layers import settle_layers, thaws
from bertsmith.inference.model import Model, load
from bertsmith.io.memory import Source
from bertsmith.models.config import encoder_parameter_terms
from bertsmith.models.encoder import Encoder
from bertsmith.models.feature_extraction import FEATURE_PARTS
from bertsmith.models.parameter_count import count_parameters
from bertsmith.objectives.objective import Objective
from bertsmith.reports.run import write_figures, write_report
from bertsmith.reports.step_times import StepTimer
from bertsmith.runs.compute_setup import budget_of
from bertsmith.runs.run_folder import (
    CHECKPOINTS,
    OnTheWay,
    check_accumulation,
    numbers,
    settled,
    with_kernels,
)
from bertsmith.tasks.classification.texts import IN_WINDOWS
from bertsmith.tasks.error_analysis import Answers, judged
from bertsmith.tasks.items import Item, ItemStream
from bertsmith.tasks.scores import Finding, Scores
from bertsmith.tasks.settings import TextSettings
from bertsmith.tasks.task import Facts, Task
from bertsmith.tasks.task_distillation import Taught, check_teacher
from bertsmith.tasks.truncation import Account
from bertsmith.training.checkpoint import load_weights
from bertsmith.training.data_loader import Phase
from bertsmith.training.train_state import Evaluation, Progress
from bertsmith.training.train_step import Trained
from bertsmith.training.trainer import Course, fingerprint
from bertsmith.training.training_budget import Aim

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class FineTuning:
    """What is trained on what, and how it is judged.

    account: how much of the training items is read. remarks: how the files were read, of all examples.
    """

    chosen: FinetuneSettings
    base: Model
    encoder: Encoder
    head: Task
    examples: Examples
    items: list[Item]
    dev_items: list[Item]
    account: Account
    remarks: list[Finding]
    place: ComputeContext
    steps: StepTimer = field(default_factory=StepTimer)
    frozen: Frozen | None = None
    taught: Taught | None = None
    teacher_weights: str = ""

    @classmethod
    def of(
        cls,
        kind: type[Task],
        base: Model,
        chosen: FinetuneSettings,
        sources: Mapping[str, Source],
        place: ComputeContext,
    ) -> FineTuning:
        """Read the examples, build the model, encode."""
        steps = StepTimer()
        with steps.step("reading the files"):
            examples = gather(kind, chosen.files, chosen.task, sources)
        files = [file for file in (chosen.files.train, chosen.files.validation) if file]
        remarks = kind.remarks([*examples.train, *examples.dev])
        log_examples(examples.overview, remarks, files)
        with steps.step("building the model"):
            encoder, head = build_model(kind, base.folder, chosen, examples.facts, place)
        with steps.step("encoding"):
            items = head.items(examples.train, base.tokenizer)
            dev_items = head.items(examples.dev, base.tokenizer)
            account = head.account(items)
        if isinstance(chosen.task, TextSettings) and chosen.task.specials_in_text == "parse":
            every = [*examples.train, *examples.dev]
            texts = [text for example in every for text in kind.asked(example).values()]
            if said := base.tokenizer.describe_doubled_special_tokens(texts):
                logger.warning("%s, or keep task.specials_in_text=text", said)
        remedy = IN_WINDOWS if isinstance(chosen.task, TextSettings) else ""
        log_texts(account, items, base.tokenizer, remedy)
        return cls(chosen, base, encoder, head, examples, items, dev_items, account, remarks, place, steps)

    @property
    def read(self) -> Encoder:
        """What the heads read: the encoder, or its states on disk, which answer as it does."""
        return self.encoder if self.frozen is None else cast("Encoder", self.frozen)

    @property
    def objective(self) -> Objective:
        """What is trained: the task, or the task and what a teacher says."""
        return self.head if self.taught is None else self.taught

    def with_teacher(self) -> FineTuning:
        """With the teacher that the settings name, if any. InputError where it answers another question, or reads
        by another tokenizer."""
        asked = self.chosen.teacher
        if not asked.model:
            return self
        teacher = load(asked.model)
        if teacher.tokenizer.digest != self.base.tokenizer.digest:
            raise InputError(
                "teacher_tokenizer_differs",
                f"the teacher's tokenizer differs from that of {self.base.path}",
                location=teacher.path,
                argument="teacher.model",
                hint="choose a student with the teacher's vocabulary",
            )
        check_teacher(self.head, teacher.task, str(teacher.path), teacher.folder.config.max_length)
        taught = Taught(
            self.head,
            teacher.encoder,
            teacher.task,
            temperature=asked.temperature,
            soft_weight=asked.soft_weight,
            task_weight=asked.task_weight,
        )
        self.place.prepare_modules(taught)
        return replace(self, taught=taught, teacher_weights=teacher.folder.weights_digest())

    def with_states(self, out: Path, states: Path | None, *, resuming: bool) -> FineTuning:
        """With the hidden states of an encoder that is not trained: in the run folder, or in `states`, where they
        are left for others. Those of a run that is resumed are computed where it still needs them."""
        if not self.chosen.train.freeze_encoder:
            return self
        frozen = Frozen(self.encoder, self.head.layers_read, self.place, states or out / FEATURES)
        sequences = (one for item in [*self.items, *self.dev_items] for one in item.sequences)
        remember = frozen.remember_when_asked if resuming else frozen.remember
        with self.steps.step("hidden states"):
            remember(sequences, self.base.folder.weights_digest())
        return replace(self, frozen=frozen)

    def scores(self) -> tuple[Scores, Answers]:
        """On dev, once what is chosen on it is; and the answers that have them."""
        head, items, examples = self.head, self.dev_items, self.examples.dev
        with self.steps.step("evaluations"):
            outputs = head.outputs_of(self.read, items, self.place)
            head.fit(outputs, items, examples)
            predictions = head.decode(outputs, items, examples)
            return head.score(predictions, examples), Answers(outputs, items, examples, predictions)

    def logged(self) -> dict[str, float]:
        """The scores that the log keeps."""
        found = self.scores()[0].numbers
        return {name: found[name] for name in self.head.logged}

    def with_kernels(self) -> FineTuning:
        """At its place with the kernels that it computes with, which depend on how long it is."""
        model = self.base.folder.config
        place = with_kernels(self.place, self.chosen.train, model, updates=self.updates())
        place.prepare_modules(self.encoder, self.head)
        return replace(self, place=place)

    @property
    def updates_per_epoch(self) -> float:
        """How many updates read each example once."""
        train = self.chosen.train
        return math.ceil(len(self.items) / train.batch_size) / train.gradient_accumulation_steps

    def updates(self) -> int:
        """How many updates the budget comes to."""
        train = self.chosen.train
        if train.max_steps:
            return train.max_steps
        if train.max_tokens:
            mean = sum(item.size for item in self.items) / len(self.items)
            return math.ceil(train.max_tokens / (mean * train.batch_size * train.gradient_accumulation_steps))
        check_accumulation(train, self.updates_per_epoch)
        return math.ceil(train.num_train_epochs * self.updates_per_epoch)

    def with_evaluations(self) -> FineTuning:
        """With an evaluation an epoch where none was asked."""
        train = self.chosen.train
        every = train.eval_steps or max(1, round(self.updates_per_epoch))
        return self._training(train.model_copy(update={"eval_steps": every}))

    def settled(self, place: ComputeContext) -> FineTuning:
        """At a place, whose device, precision and threads are the run's from now on."""
        return replace(self._training(settled(self.chosen.train, place)), place=place)

    def _training(self, train: FinetuneTrainSettings) -> FineTuning:
        return replace(self, chosen=self.chosen.model_copy(update={"train": train}))

    def phase(self) -> Phase:
        """All epochs."""
        train = self.chosen.train
        return Phase(ItemStream(self.head, self.items, train.seed), 1.0, train.batch_size)

    def course(self, aim: Aim, out: Path) -> Course:
        """All epochs as one phase."""

        def write_so_far(progress: Progress, mark: dict[str, Any]) -> None:
            with self._best_so_far(out, progress):
                dev = {} if progress.best is None else {"dev": {self.head.decides: progress.best}}
                self._write(out, self._record(progress) | dev | mark)

        weights, train = self.base.folder.weights_digest(), self.chosen.train
        return Course(
            [self.phase()],
            self.chosen.train,
            out,
            title=f"finetune {self.head.name}",
            fingerprint=fingerprint(
                numbers(self.chosen),
                _content(self.items),
                _content(self.dev_items),
                weights,
                *([self.teacher_weights] if self.teacher_weights else []),
            ),
            aim=aim,
            evaluation=Evaluation(
                self.logged,
                best_by=self.head.decides,
                patience=train.patience,
                lr_patience=train.lr_patience if train.lr_scheduler_type == "reduce_lr_on_plateau" else None,
            ),
            unfinished=OnTheWay(write_so_far),
            thaws=thaws(self.encoder, self.head, train, self.updates_per_epoch),
        )

    def leave(self, out: Path, progress: Progress) -> None:
        """Write the finished run's model and report, and log the report's warnings."""
        steps = self.steps
        steps.reattribute("training", "checkpoints", progress.saving)
        dev, answers = self.scores()
        of_dev = {name: dev.numbers[name] for name in (*self.head.logged, "examples")}
        with steps.step("writing the model"):
            self._write(out, self._record(progress) | {"dev": of_dev})
        with steps.step("the report"):
            report = self._report(progress, dev, out) | self._details(dev, answers, out)
            drawn = write_figures(out, report)
        for warning in report["warnings"][len(self.examples.overview.warnings) :]:
            logger.warning("%s", warning)
        write_report(out, report | {"wall_time": steps.to_list()}, drawn)

    def _details(self, dev: Scores, answers: Answers, out: Path) -> dict[str, Any]:
        """What the report shows besides: of what people may look for when they ask why."""
        head, examples = self.head, self.examples
        accounts = {"train": self.account, "dev": head.account(self.dev_items)}
        found = [*examples.overview.findings, *self.remarks]
        return {
            "answers": judged(head, dev, answers),
            "curve": curve_of(out),
            "lengths": {part: account.lengths() for part, account in accounts.items()},
            "truncation": {part: account.document() for part, account in accounts.items()},
            "findings": [finding.document() for finding in found],
            "settings": self.chosen.model_dump(mode="json"),
        }

    def _report(self, progress: Progress, dev: Scores, out: Path) -> dict[str, Any]:
        chosen, head, examples = self.chosen, self.head, self.examples
        baseline = head.baseline(examples.train, examples.dev)
        answers = {answer for gold in head.gold(examples.dev, examples.facts) for answer in gold}
        budget = budget_of(chosen.train)
        learning = [progress.cut_short] if progress.cut_short else []
        learning += told_of_learning(
            head.decides,
            dev,
            baseline,
            progress.step,
            budget,
            answers,
            head.baseline_name,
            reads=head.baseline_reads,
        )
        return {
            "task": head.name,
            "base": chosen.base,
            "labels": head.labels,
            "decided_by": head.decides,
            "train_examples": len(examples.train),
            "steps": progress.step,
            "tokens": progress.tokens,
            "seconds": round(progress.seconds, 1),
            "tokens_per_second": round(progress.tokens / max(progress.seconds, 1e-9), 1),
            "precision": chosen.train.precision,
            "device": chosen.train.device,
            "threads": progress.threads,
            "best_step": progress.best_step,
            "stopped_early": progress.early,
            "chosen_on_dev": chosen_on_dev(head),
            "baseline": dict(baseline.numbers),
            "baseline_name": head.baseline_name,
            "baseline_reads": head.baseline_reads,
            "dev": dev.document(),
            "evaluations": evaluations(out, self.updates_per_epoch, progress.best_step),
            "examples": dict(examples.overview.details),
            "warnings": [*examples.overview.warnings, *learning],
        }

    def _record(self, progress: Progress) -> dict[str, Any]:
        """What bertsmith.json says of the training, with all that is needed to answer as it was trained to."""
        return {
            "task": self.head.name,
            "settings": self.chosen.task.model_dump(mode="json"),
            "facts": self.head.kept_facts,
            "steps": progress.step,
            "tokens": progress.tokens,
            "precision": self.place.precision,
            "base": self.chosen.base,
            "pretraining_tokens": self.base.folder.record.get("tokens"),
        }

    @contextmanager
    def _best_so_far(self, out: Path, progress: Progress) -> Iterator[None]:
        """The weights of the best evaluation in place of the latest, if there was one, as long as this lasts."""
        if progress.best_step is None:
            yield
            return
        trained = Trained(self.read, self.objective)
        latest = {name: tensor.clone() for name, tensor in trained.saved().items()}
        trained.restore(load_weights(out / CHECKPOINTS, progress.best_step, progress.best_sha256))
        try:
            yield
        finally:
            trained.restore(latest)

    def _write(self, out: Path, record: dict[str, Any]) -> None:
        """The model folder."""
        for name, parts in self.head.export(self.encoder).items():
            write_folder(
                out / name,
                parts.config,
                parts.modules,
                tokenizer=self.base.tokenizer,
                labels=parts.labels,
                problem_type=parts.problem_type,
                record=record,
                json_files=parts.files,
            )


def build_model(
    kind: type[Task],
    base: ModelFolder,
    chosen: FinetuneSettings,
    facts: Facts,
    place: ComputeContext,
) -> tuple[Encoder, Task]:
    """The base's encoder, the parts that the task takes over from it, and its own head drawn from the seed."""
    drawing = place.init_generator
    config = chosen.model.within(base.config)
    log_dropout(config, base.config)
    encoder = base.encoder(drawing, config)
    head = kind(encoder.config, drawing, facts, chosen.task)
    for term in count_parameters(config, list(head.features.parts))[len(encoder_parameter_terms(config)) :]:
        logger.info("%s below the head: %s more parameters (%s)", term.name, f"{term.size:,}", term.formula)
    alike = not head.features.parts and FEATURE_PARTS.isdisjoint(base.parts)
    for part in kind.inherits:
        if (module := head.parts.get(part)) is None:
            continue
        if base.has(part) and alike:
            base.load_into(part, module)
        else:
            why = f"{part} of the base reads other states" if base.has(part) else f"base has no {part}"
            logger.info("%s: the %s, so a new one is trained", base.path, why)
    for part, of_base in head.begins_as.items():
        _begin_as(base, of_base, head, part)
    if beside := getattr(chosen.task, "beside", ""):
        fill_other_direction(head.features.beside, base, beside, chosen.train)
    place.prepare_modules(encoder, head)
    settle_layers(encoder, head, chosen.train)
    return encoder, head


def _begin_as(base: ModelFolder, of_base: str, head: Task, part: str) -> None:
    """Fill a head of two labels with the base's for the next sentence; InputError where it has none."""
    if not base.has(of_base) or base.sentence_task != "nsp":
        what = f"has one for {base.sentence_task}" if base.has(of_base) else "has no head for sentence pairs"
        raise InputError(
            "nsp_head_missing",
            f"task.init_head_from=nsp needs the head for next sentence prediction, and this model {what}",
            location=base.path,
            argument="task.init_head_from",
            hint="choose a base that was pre-trained with data.sentence_task=nsp, or omit task.init_head_from",
        )
    base.load_into(of_base, head.parts[part])
    names = head.labels or []
    is_next = base.is_next_label
    logger.info(
        "%s: the head is initialized from its head for next sentence prediction: '%s' as IsNext, '%s' as NotNext",
        base.path,
        names[is_next],
        names[1 - is_next],
    )


def _content(items: Sequence[Item]) -> str:
    """A digest of what is learnt from."""
    return fingerprint(*(part for item in items for part in _parts(item)))


def _parts(item: Item) -> Iterator[str]:
    yield f"{item.example} {item.target}"
    for sequence in item.sequences:
        yield f"{sequence.ids.tolist()}{sequence.segments.tolist()}"
