"""`bertsmith finetune TASK`: a pre-trained model and labelled examples → a model for the task, in a run folder."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import Field, create_model

from bertsmith import console, machine
from bertsmith.artifacts.folder import ModelFolder, write_folder
from bertsmith.errors import InputError
from bertsmith.files.memory import Source, is_path, name_of
from bertsmith.keywords import Chosen, assignments_of
from bertsmith.models.config import ModelConfig
from bertsmith.models.encoder import Encoder
from bertsmith.models.parameters import count_parameters
from bertsmith.place import Place
from bertsmith.settings import MAY_CHANGE, Settings, read_yaml
from bertsmith.tasks.items import Item, ItemStream
from bertsmith.tasks.labels import Names
from bertsmith.tasks.scores import Scores
from bertsmith.tasks.task import Facts, Task, refuse_too_long, task_type
from bertsmith.tasks.texts import IN_WINDOWS, TextSettings
from bertsmith.training.aim import Aim
from bertsmith.training.checkpoint import load_weights
from bertsmith.training.loader import Phase
from bertsmith.training.loop import Course, Evaluation, Progress, fingerprint, train
from bertsmith.training.settings import TrainSettings
from bertsmith.training.step import Trained
from bertsmith.use.predict import Model, load
from bertsmith.workflows.budget import aim_of, budget_of, budgets_aside, footing
from bertsmith.workflows.examples import Examples, FileSettings, gather, write_split
from bertsmith.workflows.finetune_report import (
    evaluations,
    tell_of_dropout,
    tell_of_examples,
    tell_of_texts,
    told_of_learning,
)
from bertsmith.workflows.label_names import names_of
from bertsmith.workflows.run import (
    CHECKPOINTS,
    SETTINGS,
    OnTheWay,
    as_assignments,
    asked_in,
    check_accumulation,
    check_folders,
    goes_on,
    is_written,
    numbers,
    place_of,
    run_alone,
    settings_of_run,
    settled,
    start_over,
    tell_finished,
    write_report,
    write_whole,
)


class FinetuneTrainSettings(TrainSettings):
    """The paper's fine-tuning: a few epochs at a low rate (Devlin et al. 2019, A.3)."""

    epochs: float = Field(
        3.0,
        gt=0,
        description="passes over the examples, where no other budget is given",
        json_schema_extra=MAY_CHANGE,
    )
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
    train: Source,
    dev: Source | None = None,
    dev_share: float | None = None,
    sample: int | None = None,
    label_names: str | Path | Names | None = None,
    recipe: str | Path | None = None,
    settings: Chosen = (),
    resume: bool = False,
    overwrite: bool = False,
    tell: Callable[[str], None] = console.tell,
    **keywords: Any,
) -> Model:
    """Fine-tune a model for a task (`bertsmith.tasks.task.TASKS`); the weights of the best epoch on dev are kept.

    train, dev: files as the task reads them, or data in memory with the same columns: a table (pandas, polars,
    pyarrow), a data set, a dict of columns, a list of dicts, or of tuples such as (text, label). Without dev,
    `dev_share` of train is held out, each label in its proportion and equal texts on one side, and both parts
    are written into out/split. sample: use that many examples of train. Sample and split depend on the setting
    files.seed; train.seed draws the head and the order. label_names: names for labels that are numbers, in
    their order, or the name of each code, or a file of either. settings and keywords: as in `pretrain`
    (epochs=3, text_column="title"); `bertsmith finetune TASK --help` lists them. resume, overwrite: as in
    `pretrain`; what was in memory must be given again, and is compared. Returns the finished model, with its
    report.

    Raises InputError for what a user can fix, MachineError, or Stopped after a signal.
    """
    out, kind, begun = Path(out), task_type(task), machine.clock()
    base = model if isinstance(model, Model) else load(model, tell=tell)
    own = ("files", "base")
    settings = assignments_of(settings_type(kind), settings, keywords, finetune, own=own)
    resuming = goes_on(out, resume=resume, overwrite=overwrite, tell=tell)
    given = {
        "train": name_of(train, "train"),
        "dev": None if dev is None else name_of(dev, "dev"),
        "dev_share": dev_share,
        "sample": sample,
        "label_names": None if label_names is None else _listed(names_of(label_names)),
    }
    chosen = _settings(kind, base, out, given, recipe, settings, resuming=resuming)
    kind = kind.variant(chosen.task)
    if not resuming:
        refuse_too_long(chosen.task, base.folder.config.longest)
    place = place_of(chosen.train)
    parameters = sum(term.size for term in count_parameters(base.folder.config))
    machine.check_memory(parameters, machine.memory_bytes(place.device))
    work = _Work.of(kind, base, chosen, {"train": train, "dev": dev}, place, tell)
    check_folders(out, work.head.folders(work.encoder))
    if not resuming:
        start_over(out, base.path, train if is_path(train) else None, dev if is_path(dev) else None)
        if chosen.files.dev_share is not None:
            write_split(work.examples, kind, chosen.task, out / "split", tell)
        chosen = _evaluated(chosen, work.items)

    def updates() -> int:
        return _updates(chosen, work.items)

    phases = [work.phase(chosen.train)]
    on = footing(work.encoder, work.head, phases, chosen.train, place, updates, tell, resuming=resuming)
    named = asked_in(recipe, settings) if resuming else None
    aim = aim_of(chosen.train, on, updates, begun, named=named, tell=tell)
    work = replace(work, place=on.place)
    if not resuming:
        chosen = chosen.model_copy(update={"train": settled(chosen.train, on.place)})
        write_whole(out / SETTINGS, chosen.to_yaml())

    def write_so_far(progress: Progress, mark: dict[str, Any]) -> None:
        with _best_so_far(work, out, progress):
            dev = {} if progress.best is None else {"dev": {work.head.decides: progress.best}}
            _write(out, work, _record(work, chosen, progress) | dev | mark)

    course = work.course(chosen, aim, out, OnTheWay(write_so_far))
    progress = _train(work.encoder, work.head, course, on.place, resume=resume, tell=tell)
    if resuming and not progress.made and is_written(out, progress.step):
        tell_finished(out, progress, tell)
        return load(out)
    dev_scores = work.scores()
    of_dev = {name: dev_scores.numbers[name] for name in (*work.head.logged, "examples")}
    _write(out, work, _record(work, chosen, progress) | {"dev": of_dev})
    report = _report(chosen, work, progress, dev_scores, out)
    for warning in report["warnings"][len(work.examples.overview.warnings) :]:
        tell(f"warning: {warning}")
    write_report(out, report)
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
    chosen = settings_type(kind).of(values, str(recipe or "settings")).changed(budgets_aside(assignments))
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
        sources: Mapping[str, Source],
        place: Place,
        tell: Callable[[str], None],
    ) -> _Work:
        """Read the examples, build the model, encode."""
        examples = gather(kind, chosen.files, chosen.task, sources)
        tell_of_examples(examples.overview, tell)
        for remark in kind.remarks([*examples.train, *examples.dev]):
            tell(remark)
        encoder, head = _build(kind, base.folder, chosen, examples.facts, place, tell)
        items = head.items(examples.train, base.tokenizer)
        dev_items = head.items(examples.dev, base.tokenizer)
        tell_of_texts(
            items, base.tokenizer, IN_WINDOWS if isinstance(chosen.task, TextSettings) else "", tell
        )
        return cls(base, encoder, head, examples, items, dev_items, place)

    def scores(self) -> Scores:
        """On dev, once what is chosen on it is."""
        head, items, examples = self.head, self.dev_items, self.examples.dev
        outputs = head.outputs_of(self.encoder, items, self.place)
        head.fit(outputs, items, examples)
        return head.score(head.decode(outputs, items, examples), examples)

    def logged(self) -> dict[str, float]:
        """The scores that the log keeps."""
        found = self.scores().numbers
        return {name: found[name] for name in self.head.logged}

    def phase(self, train: TrainSettings) -> Phase:
        """All epochs."""
        return Phase(ItemStream(self.head, self.items, train.seed), 1.0, train.batch_size)

    def course(self, chosen: FinetuneSettings, aim: Aim, out: Path, unfinished: OnTheWay) -> Course:
        """All epochs as one phase."""
        train = chosen.train
        weights = self.base.folder.weights_digest()
        return Course(
            [self.phase(train)],
            train,
            out,
            title=f"finetune {self.head.name}",
            fingerprint=fingerprint(numbers(chosen), _content(self.items), _content(self.dev_items), weights),
            aim=aim,
            evaluation=Evaluation(self.logged, best_by=self.head.decides),
            unfinished=unfinished,
        )


def _report(
    chosen: FinetuneSettings, work: _Work, progress: Progress, dev: Scores, out: Path
) -> dict[str, Any]:
    head, examples = work.head, work.examples
    baseline = head.baseline(examples.train, examples.dev)
    answers = {answer for gold in head.gold(examples.dev, examples.facts) for answer in gold}
    budget = budget_of(chosen.train)
    learning = told_of_learning(
        head.decides, dev, baseline, progress.step, budget, answers, head.baseline_name
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
        "baseline": dict(baseline.numbers),
        "baseline_name": head.baseline_name,
        "dev": dev.document(),
        "evaluations": evaluations(out, _updates_per_epoch(work.items, chosen.train), progress.best_step),
        "examples": dict(examples.overview.details),
        "warnings": [*examples.overview.warnings, *learning],
    }


def _record(work: _Work, chosen: FinetuneSettings, progress: Progress) -> dict[str, Any]:
    """What bertsmith.json says of the training, with all that is needed to answer as it was trained to."""
    return {
        "task": work.head.name,
        "settings": chosen.task.model_dump(mode="json"),
        "facts": work.head.kept_facts,
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
            files=parts.files,
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
    tell_of_dropout(config, base.config, tell)
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


def _evaluated(chosen: FinetuneSettings, items: Sequence[Item]) -> FinetuneSettings:
    """The settings with an evaluation an epoch where none was asked."""
    settings = chosen.train
    if settings.max_minutes:
        raise InputError("train.max_minutes is for pre-training", "set train.epochs or train.max_steps")
    every = settings.evaluate_every or max(1, round(_updates_per_epoch(items, settings)))
    return chosen.model_copy(update={"train": settings.model_copy(update={"evaluate_every": every})})


def _updates(chosen: FinetuneSettings, items: Sequence[Item]) -> int:
    """How many updates the budget comes to."""
    settings = chosen.train
    if settings.max_steps:
        return settings.max_steps
    if settings.max_tokens:
        mean = sum(item.size for item in items) / len(items)
        return math.ceil(settings.max_tokens / (mean * settings.batch_size * settings.accumulate))
    an_epoch = _updates_per_epoch(items, settings)
    check_accumulation(settings, an_epoch)
    return math.ceil(settings.epochs * an_epoch)


def _updates_per_epoch(items: Sequence[Item], settings: TrainSettings) -> float:
    return math.ceil(len(items) / settings.batch_size) / settings.accumulate


def _listed(names: Names) -> list[Any]:
    """As settings have them."""
    return [list(pair) for pair in names.items()] if isinstance(names, Mapping) else list(names)


def _content(items: Sequence[Item]) -> str:
    """A digest of what is learnt from."""
    return fingerprint(*(part for item in items for part in _parts(item)))


def _parts(item: Item) -> Iterator[str]:
    yield f"{item.example} {item.target}"
    for sequence in item.sequences:
        yield f"{sequence.ids.tolist()}{sequence.segments.tolist()}"
