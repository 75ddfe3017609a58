"""`bertsmith finetune TASK`: a pre-trained model and labelled examples → a model for the task, in a run folder."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field, create_model

from bertsmith import machine
from bertsmith.artifacts.folder import ModelFolder, write_folder
from bertsmith.errors import InputError
from bertsmith.models.config import ModelConfig
from bertsmith.models.encoder import Encoder
from bertsmith.models.parameters import count_parameters
from bertsmith.place import Place
from bertsmith.settings import MAY_CHANGE, Settings, read_yaml
from bertsmith.tasks.items import Item, ItemStream
from bertsmith.tasks.task import Facts, Scores, Task, task_type
from bertsmith.tasks.texts import IN_WINDOWS, TextSettings
from bertsmith.tokenizer.tokenizer import Tokenizer
from bertsmith.training.checkpoint import load_weights
from bertsmith.training.loop import Course, Evaluation, Phase, Progress, fingerprint, train
from bertsmith.training.settings import TrainSettings
from bertsmith.training.step import Trained
from bertsmith.wording import counted
from bertsmith.workflows.examples import Examples, FileSettings, gather, tell_of_sides, write_split
from bertsmith.workflows.predict import Model, load
from bertsmith.workflows.run import (
    CHECKPOINTS,
    SETTINGS,
    OnTheWay,
    as_assignments,
    check_accumulation,
    check_folders,
    goes_on,
    numbers,
    place_of,
    run_alone,
    settings_of_run,
    write_report,
    write_whole,
)

_UNKNOWN_SHARE = 0.05  # of the pieces: above, the vocabulary is hardly the one for these texts


class FinetuneTrainSettings(TrainSettings):
    """The paper's fine-tuning: a few epochs at a low rate (Devlin et al. 2019, A.3)."""

    epochs: float = Field(3.0, gt=0, description="passes over the examples, where no other budget is given")
    learning_rate: float = Field(
        5e-5, gt=0, le=10, description="the highest learning rate, at the end of warm-up"
    )


class DropoutSettings(Settings):
    """What of the model is fine-tuning's own: its dropout, whatever the base was trained with."""

    hidden_dropout_prob: float = Field(0.1, ge=0, lt=1, description="dropout on embeddings and sub-layers")
    attention_probs_dropout_prob: float = Field(0.1, ge=0, lt=1, description="dropout on attention weights")
    classifier_dropout: float | None = Field(
        None, ge=0, lt=1, description="dropout in the task's head; none: as hidden_dropout_prob"
    )

    def within(self, base: ModelConfig) -> ModelConfig:
        """The base's configuration with this dropout."""
        head = self.classifier_dropout
        if head is None and base.classifier_dropout is not None:
            head = self.hidden_dropout_prob  # where the field's own default would be another
        return base.model_copy(update={**self.model_dump(), "classifier_dropout": head})


class FinetuneSettings(Settings):
    """Everything a fine-tuning run depends on."""

    base: str = Field(
        "",
        description="the model to start from: a run, a model folder or a published name",
        json_schema_extra=MAY_CHANGE,
    )
    files: FileSettings = Field(default_factory=FileSettings, description="examples")
    model: DropoutSettings = Field(default_factory=DropoutSettings, description="dropout")
    task: Settings = Field(default_factory=Settings, description="the task")
    train: FinetuneTrainSettings = Field(
        default_factory=FinetuneTrainSettings, description="the training itself"
    )


@run_alone
def finetune(
    task: str,
    model: str | Path | Model,
    out: str | Path,
    *,
    train: str | Path,
    dev: str | Path | None = None,
    dev_share: float | None = None,
    sample: int | None = None,
    label_names: Sequence[str] | None = None,
    recipe: str | Path | None = None,
    settings: Sequence[str] = (),
    resume: bool = False,
    tell: Callable[[str], None] = lambda text: None,
) -> Model:
    """Fine-tune a model for a task (`bertsmith.tasks.task.TASKS`); the weights of the best epoch on dev are kept.

    train, dev: files as the task reads them; without dev, `dev_share` of train is held out, each label in its
    proportion and equal texts on one side, and both parts are written into out/split. sample: use that many
    examples of train. Sample and split depend on the setting files.seed; train.seed draws the head and the order.
    label_names: names for labels that are numbers, in their order. settings: assignments such as
    "train.learning_rate=1e-4" or "task.text_column=review". Returns the finished model, with its report.

    Raises InputError for what a user can mend, MachineError, or Stopped after a signal.
    """
    out, kind = Path(out), task_type(task)
    base = model if isinstance(model, Model) else load(model, tell=tell)
    resuming = goes_on(out, resume=resume, tell=tell)
    given = {
        "train": str(train),
        "dev": None if dev is None else str(dev),
        "dev_share": dev_share,
        "sample": sample,
        "label_names": None if label_names is None else list(label_names),
    }
    chosen = _settings(kind, base, out, given, recipe, settings, resuming=resuming)
    place, threads = place_of(chosen.train, tell)
    parameters = sum(term.size for term in count_parameters(base.folder.config))
    machine.check_memory(parameters, machine.memory_bytes(place.device))
    work = _Work.of(kind, base, chosen, place, tell)
    check_folders(out, work.head.folders(work.encoder))
    if not resuming:
        if chosen.files.dev_share is not None:
            write_split(work.examples, kind, chosen.task, out / "split", tell)
        chosen = _budgeted(chosen, work.items, place, threads)
        write_whole(out / SETTINGS, chosen.to_yaml())

    def write_so_far(progress: Progress, mark: dict[str, Any]) -> None:
        with _best_so_far(work, out, progress):
            dev = {} if progress.best is None else {"dev": {work.head.decides: progress.best}}
            _write(out, work, _record(work, chosen, progress) | dev | mark)

    course = work.course(chosen, out, OnTheWay(chosen.train.max_steps or 1, write_so_far))
    progress = _train(work.encoder, work.head, course, place, resume=resume, tell=tell)
    dev_scores = work.scores()
    of_dev = {name: dev_scores.numbers[name] for name in (*work.head.logged, "examples")}
    _write(out, work, _record(work, chosen, progress) | {"dev": of_dev})
    write_report(out, _report(chosen, work, progress, dev_scores))
    return load(out)


_train = train  # `train` is also the name of the file of examples, which people know


def settings_type(kind: type[Task]) -> type[FinetuneSettings]:
    """The settings of a run of this task: the group `task` is the task's own."""
    group: Any = (kind.settings_type, Field(default_factory=kind.settings_type, description="the task"))
    return create_model("FinetuneSettings", __base__=FinetuneSettings, task=group)


def _settings(
    kind: type[Task],
    base: Model,
    out: Path,
    files: dict[str, Any],
    recipe: str | Path | None,
    assignments: Sequence[str],
    *,
    resuming: bool,
) -> FinetuneSettings:
    """The run's settings: kept where it goes on; else of the recipe, the assignments and the files given."""
    values = read_yaml(recipe) if recipe is not None else {}
    files = {name: value for name, value in files.items() if value is not None}
    if resuming:
        named = [*as_assignments(values), *as_assignments({"files": files}), *assignments]
        return settings_of_run(settings_type(kind), out, named)
    values = {**values, "base": str(base.path), "files": (values.get("files") or {}) | files}
    chosen = settings_type(kind).of(values, str(recipe or "settings")).changed(assignments)
    if chosen.base != str(base.path):
        raise InputError(f"--set base={chosen.base}: the model is {base.path}", "name the model with --model")
    return chosen


@dataclass(frozen=True)
class _Work:
    """What is trained on what, and how it is judged."""

    base: Model
    encoder: Encoder
    head: Task
    examples: Examples
    items: list[Item]
    dev_items: list[Item]
    place: Place

    @classmethod
    def of(
        cls,
        kind: type[Task],
        base: Model,
        chosen: FinetuneSettings,
        place: Place,
        tell: Callable[[str], None],
    ) -> _Work:
        """Read the examples, build the model, encode."""
        examples = gather(kind, chosen.files, chosen.task)
        tell_of_sides(kind, chosen.files, examples, tell)
        for remark in kind.remarks([*examples.train, *examples.dev]):
            tell(remark)
        encoder, head = _build(kind, base.folder, chosen, examples.facts, place, tell)
        items = head.items(examples.train, base.tokenizer)
        dev_items = head.items(examples.dev, base.tokenizer)
        _tell_of_texts(items, base.tokenizer, isinstance(chosen.task, TextSettings), tell)
        return cls(base, encoder, head, examples, items, dev_items, place)

    def scores(self) -> Scores:
        """On dev."""
        answers = self.head.answers(self.encoder, self.dev_items, self.examples.dev, self.place)
        return self.head.score(answers, self.examples.dev)

    def logged(self) -> dict[str, float]:
        """The scores that the log keeps."""
        found = self.scores().numbers
        return {name: found[name] for name in self.head.logged}

    def course(self, chosen: FinetuneSettings, out: Path, unfinished: OnTheWay) -> Course:
        """All epochs as one phase."""
        train = chosen.train
        stream = ItemStream(self.head, self.items, train.seed)
        weights = self.base.folder.weights_digest()
        return Course(
            [Phase(stream, train.max_steps or 1, train.batch_size)],
            train,
            out,
            title=f"finetune {self.head.name}",
            fingerprint=fingerprint(numbers(chosen), _content(self.items), _content(self.dev_items), weights),
            evaluation=Evaluation(self.logged, best_by=self.head.decides),
            unfinished=unfinished,
        )


def _report(chosen: FinetuneSettings, work: _Work, progress: Progress, dev: Scores) -> dict[str, Any]:
    head, examples = work.head, work.examples
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
        "threads": chosen.train.threads,
        "best_step": progress.best_step,
        "baseline": dict(head.baseline(examples.train, examples.dev).numbers),
        "dev": dev.document(),
    }


def _record(work: _Work, chosen: FinetuneSettings, progress: Progress) -> dict[str, Any]:
    """What bertsmith.json says of the training, with all that is needed to answer as it was trained to."""
    return {
        "task": work.head.name,
        "settings": chosen.task.model_dump(mode="json"),
        "facts": work.head.facts,
        "steps": progress.step,
        "tokens": progress.tokens,
        "base": chosen.base,
        "pretraining_tokens": work.base.folder.record.get("tokens"),
    }


@contextmanager
def _best_so_far(work: _Work, out: Path, progress: Progress) -> Iterator[None]:
    """The weights of the best evaluation in place of the latest, if there was one, as long as this lasts."""
    if progress.best_step is None:
        yield
        return
    trained = Trained(work.encoder, work.head)
    latest = {name: tensor.clone() for name, tensor in trained.saved().items()}
    trained.restore(load_weights(out / CHECKPOINTS, progress.best_step, progress.best_sha256))
    try:
        yield
    finally:
        trained.restore(latest)


def _write(out: Path, work: _Work, record: dict[str, Any]) -> None:
    """The model folder."""
    head, base = work.head, work.base
    for name, parts in head.folders(work.encoder).items():
        write_folder(
            out / name,
            parts.config,
            parts.modules,
            tokenizer=base.tokenizer,
            labels=parts.labels,
            problem_type=parts.problem_type,
            record=record,
        )


def _build(
    kind: type[Task],
    base: ModelFolder,
    chosen: FinetuneSettings,
    facts: Facts,
    place: Place,
    tell: Callable[[str], None],
) -> tuple[Encoder, Task]:
    """The base's encoder, the parts that the task takes over from it, and its own head drawn from the seed."""
    drawing = place.drawing
    config = chosen.model.within(base.config)
    _tell_of_dropout(config, base, tell)
    encoder = base.encoder(drawing, config)
    head = kind(encoder.config, drawing, facts, chosen.task)
    for part in kind.inherits:
        if (module := head.parts.get(part)) is None:
            continue
        if base.has(part):
            base.fill(part, module)
        else:
            tell(f"{base.path}: the base has no {part}, a new one is trained")
    place.settle(encoder, head)
    return encoder, head


def _tell_of_dropout(config: ModelConfig, base: ModelFolder, tell: Callable[[str], None]) -> None:
    """Say so where the dropout is not the base's."""
    own, before = ((c.hidden_dropout_prob, c.attention_probs_dropout_prob) for c in (config, base.config))
    if own == before:
        return
    now, then = (f"{a:g}" if a == b else f"{a:g} (attention {b:g})" for a, b in (own, before))
    tell(
        f"dropout is {now} in fine-tuning; the base was trained with {then} (--set model.hidden_dropout_prob=…)"
    )


def _tell_of_texts(
    items: Sequence[Item], tokenizer: Tokenizer, strides: bool, tell: Callable[[str], None]
) -> None:
    """Say what truncation costs, and whether the vocabulary fits the texts."""
    sequences = [sequence for item in items for sequence in item.sequences]
    cut = [s for s in sequences if s.kept < s.tokens]
    if cut:
        lost = sum(s.tokens - s.kept for s in cut)
        share = lost / max(1, sum(s.tokens for s in sequences))
        tell(
            f"{len(cut):,} of {counted(len(sequences), 'text')} {'is' if len(cut) == 1 else 'are'} longer than "
            f"the model reads; {counted(lost, 'token')} ({share:.1%}) at the end not seen"
            + (IN_WINDOWS if strides else "")
        )
    unknown = sum(int((s.ids == tokenizer.unk_id).sum()) for s in sequences)
    if (share := unknown / max(1, sum(s.kept for s in sequences))) > _UNKNOWN_SHARE:
        tell(
            f"{share:.1%} of the pieces are unknown to the vocabulary: is this the right model for these texts?"
        )


def _budgeted(
    chosen: FinetuneSettings, items: Sequence[Item], place: Place, threads: int
) -> FinetuneSettings:
    """The settings with the budget as a number of updates, and an evaluation an epoch where none was asked."""
    settings = chosen.train
    if settings.max_minutes:
        raise InputError("train.max_minutes is for pre-training", "set train.epochs or train.max_steps")
    an_epoch = math.ceil(len(items) / settings.batch_size) / settings.accumulate
    updates = settings.max_steps or math.ceil(settings.epochs * an_epoch)
    if not settings.max_steps and not settings.max_tokens:
        check_accumulation(settings, an_epoch)
    if settings.max_tokens and not settings.max_steps:
        mean = sum(item.size for item in items) / len(items)
        updates = math.ceil(settings.max_tokens / (mean * settings.batch_size * settings.accumulate))
    fixed: Mapping[str, Any] = {
        "max_steps": updates,
        "max_tokens": None,
        "evaluate_every": settings.evaluate_every or max(1, round(an_epoch)),
        "precision": place.precision,
        "device": str(place.device),
        "threads": threads,
    }
    return chosen.model_copy(update={"train": settings.model_copy(update=fixed)})


def _content(items: Sequence[Item]) -> str:
    """A digest of what is learnt from."""
    return fingerprint(*(part for item in items for part in _parts(item)))


def _parts(item: Item) -> Iterator[str]:
    yield f"{item.example} {item.target}"
    for sequence in item.sequences:
        yield f"{sequence.ids.tolist()}{sequence.segments.tolist()}"
