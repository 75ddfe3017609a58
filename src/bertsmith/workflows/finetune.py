"""`bertsmith finetune TASK`: a pre-trained model and labelled examples → a model for the task, in a run folder."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from pydantic import Field, create_model

from bertsmith.artifacts.folder import ModelFolder, refuse_foreign, write_folder
from bertsmith.errors import InputError
from bertsmith.models.encoder import Encoder
from bertsmith.settings import Settings, read_yaml
from bertsmith.tasks.task import EncodedRow, RowStream, Task, task_type
from bertsmith.tokenizer.tokenizer import Tokenizer
from bertsmith.training.loop import Evaluation, Phase, Progress, fingerprint, train
from bertsmith.training.settings import TrainSettings
from bertsmith.workflows.examples import FileSettings, gather, write_split
from bertsmith.workflows.predict import Model, load
from bertsmith.workflows.run import (
    MODEL,
    SETTINGS,
    as_assignments,
    numbers,
    prepare_machine,
    refuse_existing,
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


class FinetuneSettings(Settings):
    """Everything a fine-tuning run depends on."""

    base: str = Field("", description="the model to start from: a run, a model folder or a published name")
    files: FileSettings = Field(default_factory=FileSettings, description="examples")
    task: Settings = Field(default_factory=Settings, description="the task")
    train: FinetuneTrainSettings = Field(
        default_factory=FinetuneTrainSettings, description="the training itself"
    )


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
    """Fine-tune a model for a task ("classify"); the weights of the best epoch on dev are kept.

    train, dev: csv, tsv or jsonl files; without dev, `dev_share` of train is held out, each label in its
    proportion, and both parts are written into out/split. sample: use that many rows of train, drawn by the
    seed. label_names: names for labels that are numbers, in their order. settings: assignments such as
    "train.learning_rate=1e-4" or "task.text_column=review". Returns the finished model, with its report.

    Raises InputError for what a user can mend, MachineError, or Stopped after a signal.
    """
    out, kind = Path(out), task_type(task)
    base = model if isinstance(model, Model) else load(model)
    resuming = resume and (out / SETTINGS).exists()
    given = {
        "train": str(train),
        "dev": None if dev is None else str(dev),
        "dev_share": dev_share,
        "sample": sample,
        "label_names": None if label_names is None else list(label_names),
    }
    if resume and not resuming:
        tell(f"there is no run in {out} to go on with; a new one starts")
    chosen = _settings(kind, base, out, given, recipe, settings, resuming=resuming)
    refuse_foreign(out / MODEL)
    precision, threads = prepare_machine(chosen.train, tell)
    examples = gather(kind, chosen.files, chosen.task, chosen.train.seed)
    if chosen.files.dev_share is not None and not resuming:
        write_split(examples, kind, chosen.task, out / "split", tell)
    encoder, head = _build(kind, base.folder, chosen, examples.labels, tell)
    longest = encoder.config.longest
    rows = head.encode(examples.train, base.tokenizer, longest)
    dev_rows = head.encode(examples.dev, base.tokenizer, longest)
    _tell_of_texts(rows, base.tokenizer, tell)
    if not resuming:
        chosen = _budgeted(chosen, rows, precision, threads)
        write_whole(out / SETTINGS, chosen.to_yaml())

    def measure() -> dict[str, float]:
        scores = head.score(head.decode(encoder, dev_rows), dev_rows)
        return {name: scores[name] for name in head.summary}

    stream = RowStream(rows, chosen.train.seed)
    weights = base.folder.weights_digest()
    progress = _train(
        encoder,
        head,
        [Phase(stream, chosen.train.max_steps or 1, chosen.train.batch_size)],
        chosen.train,
        out,
        title=f"finetune {task}",
        generator=encoder.generator,
        fingerprint=fingerprint(numbers(chosen), _content(rows), _content(dev_rows), weights),
        precision=precision,
        evaluation=Evaluation(measure, best_by=head.decides),
        resume=resume,
        tell=tell,
    )
    dev_scores = head.score(head.decode(encoder, dev_rows), dev_rows)
    report = _report(chosen, head, progress, len(rows)) | {
        "majority": head.baseline(rows, dev_rows),
        "dev": dev_scores,
    }
    write_folder(
        out / MODEL,
        encoder.config,
        {"encoder": encoder, **head.heads},
        tokenizer=base.tokenizer,
        labels=head.labels,
        record={
            "task": task,
            "settings": chosen.task.model_dump(mode="json"),
            "numbered": head.numbered,
            "steps": progress.step,
            "tokens": progress.tokens,
            "pretraining_tokens": base.folder.record.get("tokens"),
            "dev": {name: dev_scores[name] for name in (*head.summary, "examples")},
        },
    )
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
    refuse_existing(out)
    values = {**values, "base": str(base.path), "files": (values.get("files") or {}) | files}
    chosen = settings_type(kind).of(values, str(recipe or "settings")).changed(assignments)
    if chosen.base != str(base.path):
        raise InputError(f"--set base={chosen.base}: the model is {base.path}", "name the model with --model")
    return chosen


def _report(chosen: FinetuneSettings, head: Task, progress: Progress, examples: int) -> dict[str, Any]:
    return {
        "task": head.name,
        "base": chosen.base,
        "labels": head.labels,
        "train_examples": examples,
        "steps": progress.step,
        "tokens": progress.tokens,
        "seconds": round(progress.seconds, 1),
        "tokens_per_second": round(progress.tokens / max(progress.seconds, 1e-9), 1),
        "precision": chosen.train.precision,
        "threads": chosen.train.threads,
        "best_step": progress.best_step,
    }


def _build(
    kind: type[Task],
    base: ModelFolder,
    chosen: FinetuneSettings,
    labels: Sequence[str],
    tell: Callable[[str], None],
) -> tuple[Encoder, Task]:
    """The base's encoder and pooler, and the task's own head drawn from the seed."""
    generator = torch.Generator().manual_seed(chosen.train.seed)
    encoder = base.encoder(generator)
    numbered = chosen.files.label_names is not None
    head = kind(encoder.config, generator, labels, chosen.task, numbered=numbered)
    if (pooler := head.heads.get("pooler")) is not None:
        if base.has("pooler"):
            base.fill("pooler", pooler)
        else:
            tell(f"{base.path}: the base has no pooler, a new one is trained")
    return encoder, head


def _tell_of_texts(rows: Sequence[EncodedRow], tokenizer: Tokenizer, tell: Callable[[str], None]) -> None:
    """Say what truncation costs, and whether the vocabulary fits the texts."""
    cut = [row for row in rows if row.kept < row.tokens]
    if cut:
        lost = sum(row.tokens - row.kept for row in cut)
        share = lost / max(1, sum(row.tokens for row in rows))
        tell(
            f"{len(cut):,} of {len(rows):,} texts are longer than the model reads; "
            f"{lost:,} tokens ({share:.1%}) at their ends are not seen"
        )
    unknown = sum(row.ids.count(tokenizer.unk_id) for row in rows) / max(1, sum(row.kept for row in rows))
    if unknown > _UNKNOWN_SHARE:
        tell(
            f"{unknown:.1%} of the pieces are unknown to the vocabulary: is this the right model for these texts?"
        )


def _budgeted(
    chosen: FinetuneSettings, rows: Sequence[EncodedRow], precision: str, threads: int
) -> FinetuneSettings:
    """The settings with the budget as a number of updates, and an evaluation an epoch where none was asked."""
    settings = chosen.train
    if settings.max_minutes:
        raise InputError("train.max_minutes is for pre-training", "set train.epochs or train.max_steps")
    an_epoch = math.ceil(len(rows) / settings.batch_size) / settings.accumulate
    updates = settings.max_steps or math.ceil(settings.epochs * an_epoch)
    if settings.max_tokens and not settings.max_steps:
        mean = sum(len(row.ids) for row in rows) / len(rows)
        updates = math.ceil(settings.max_tokens / (mean * settings.batch_size * settings.accumulate))
    fixed: Mapping[str, Any] = {
        "max_steps": updates,
        "max_tokens": None,
        "evaluate_every": settings.evaluate_every or max(1, round(an_epoch)),
        "precision": precision,
        "threads": threads,
    }
    return chosen.model_copy(update={"train": settings.model_copy(update=fixed)})


def _content(rows: Sequence[EncodedRow]) -> str:
    return fingerprint(*(f"{row.ids}{row.segments}{row.target}" for row in rows))
