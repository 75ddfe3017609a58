"""`bertsmith finetune TASK`: a pre-trained model and labelled examples → a model for the task, in a run folder."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from pydantic import Field

from bertsmith import disk, draws
from bertsmith.artifacts.folder import ModelFolder, refuse_foreign, write_folder
from bertsmith.errors import InputError
from bertsmith.models.encoder import Encoder
from bertsmith.settings import Settings, read_yaml
from bertsmith.tasks import classify
from bertsmith.tasks.classify import Classify, ClassifySettings, Example
from bertsmith.tasks.task import EncodedRow, RowStream
from bertsmith.text.tokenizer import Tokenizer
from bertsmith.training.loop import Evaluation, Phase, fingerprint, train
from bertsmith.training.settings import TrainSettings
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

TASKS = ("classify",)
_UNKNOWN_SHARE = 0.05  # of the pieces: above, the vocabulary is hardly the one for these texts


class FileSettings(Settings):
    """Which examples a task is learnt from."""

    train: str = Field("", description="the file of training examples")
    dev: str | None = Field(None, description="the file that decides which epoch is kept")
    dev_share: float | None = Field(
        None, gt=0, lt=1, description="without a dev file: share of train to hold out"
    )
    sample: int | None = Field(None, ge=1, description="use only so many examples of train, drawn at random")
    label_names: list[str] | None = Field(None, description="the labels' names in the order of their ids")


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
    task: ClassifySettings = Field(default_factory=ClassifySettings, description="the task")
    train: FinetuneTrainSettings = Field(
        default_factory=FinetuneTrainSettings, description="the training itself"
    )


@dataclass(frozen=True)
class _Examples:
    train: list[Example]
    dev: list[Example]
    labels: list[str]


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
    if task not in TASKS:
        raise InputError(f"{task}: there is no such task", f"known tasks: {', '.join(TASKS)}")
    out = Path(out)
    base = model if isinstance(model, Model) else load(model)
    resuming = resume and (out / SETTINGS).exists()
    values = read_yaml(recipe) if recipe is not None else {}
    given: dict[str, Any] = {"train": str(train), "dev": None if dev is None else str(dev)}
    given |= {"dev_share": dev_share, "sample": sample}
    given |= {"label_names": None if label_names is None else list(label_names)}
    given = {k: v for k, v in given.items() if v is not None}
    if resuming:
        named = [*as_assignments(values), *as_assignments({"files": given}), *settings]
        chosen = settings_of_run(FinetuneSettings, out, named)
    else:
        refuse_existing(out)
        chosen = FinetuneSettings.of(values, str(recipe or "settings")).changed(settings)
        files = FileSettings.of(given, "files")
        chosen = chosen.model_copy(update={"base": str(base.path), "files": files})
    refuse_foreign(out / MODEL)
    precision, threads = prepare_machine(chosen.train, tell)
    examples = _examples(chosen, out, tell, write=not resuming)
    tokenizer = base.tokenizer
    encoder, head = _build(base.folder, chosen, examples.labels, tell)
    longest = encoder.config.max_position_embeddings
    train_rows = head.encode(examples.train, tokenizer, longest)
    dev_rows = head.encode(examples.dev, tokenizer, longest)
    _tell_of_texts(train_rows, tokenizer, tell)
    if not resuming:
        chosen = _budgeted(chosen, train_rows, precision, threads)
        write_whole(out / SETTINGS, chosen.to_yaml())

    def measure() -> dict[str, float]:
        scores = head.score(head.decode(encoder, dev_rows), dev_rows)
        return {name: scores[name] for name in ("accuracy", "macro_f1")}

    progress = _train(
        encoder,
        head,
        [
            Phase(
                RowStream(train_rows, chosen.train.seed), chosen.train.max_steps or 1, chosen.train.batch_size
            )
        ],
        chosen.train,
        out,
        title=f"finetune {task}",
        generator=encoder.generator,
        fingerprint=fingerprint(
            numbers(chosen),
            _content(train_rows),
            _content(dev_rows),
            disk.digest(base.model_folder / "model.safetensors"),
        ),
        precision=precision,
        evaluation=Evaluation(measure, best_by="accuracy"),
        resume=resume,
        tell=tell,
    )
    report = {
        "task": task,
        "base": chosen.base,
        "labels": examples.labels,
        "train_examples": len(train_rows),
        "steps": progress.step,
        "tokens": progress.tokens,
        "seconds": round(progress.seconds, 1),
        "tokens_per_second": round(progress.tokens / max(progress.seconds, 1e-9), 1),
        "precision": chosen.train.precision,
        "threads": chosen.train.threads,
        "best_step": progress.best_step,
        "majority": _majority(train_rows, dev_rows),
        "dev": head.score(head.decode(encoder, dev_rows), dev_rows),
    }
    write_folder(
        out / MODEL,
        encoder.config,
        {"encoder": encoder, "pooler": head.pooler, "classifier": head.classifier},
        architecture="BertForSequenceClassification",
        tokenizer=tokenizer,
        labels=examples.labels,
        record={
            "task": task,
            "settings": chosen.task.model_dump(mode="json"),
            "dev": {k: report["dev"][k] for k in ("accuracy", "macro_f1", "examples")},  # type: ignore[index]
        },
    )
    write_report(out, report)
    return load(out)


_train = train  # `train` is also the name of the file of examples, which people know


def _examples(chosen: FinetuneSettings, out: Path, tell: Callable[[str], None], *, write: bool) -> _Examples:
    """Training and dev examples and the labels, from one file or from two."""
    files, seed = chosen.files, chosen.train.seed
    training = classify.read(files.train, chosen.task)
    if files.sample is not None and files.sample < len(training):
        order = draws.permutation(seed, "sample", len(training))[: files.sample]
        training = [training[i] for i in sorted(order)]
    labels = classify.label_names(training, files.label_names)
    for example in training:
        classify.label_id(example, labels, numbered=files.label_names is not None)
    if files.dev is not None:
        if files.dev_share is not None:
            raise InputError("both a dev file and a dev share are given", "leave --dev or --dev-share out")
        development = classify.read(files.dev, chosen.task)
    elif files.dev_share is not None:
        training, development = _split(training, files.dev_share, seed)
        if write:
            for name, part in (("train", training), ("dev", development)):
                write_whole(out / "split" / f"{name}.jsonl", _jsonl(part, chosen.task))
            tell(
                f"{len(training):,} examples to train on, {len(development):,} held out, both in {out / 'split'}"
            )
    else:
        raise InputError(
            f"{files.train}: there is no dev file",
            "give one with --dev, or hold a part out with --dev-share 0.2",
        )
    for example in development:
        classify.label_id(example, labels, numbered=files.label_names is not None)
    return _Examples(training, development, labels)


def _split(examples: list[Example], share: float, seed: int) -> tuple[list[Example], list[Example]]:
    """Hold out a share of each label's examples, by the seed; sizes are exact and the order stays."""
    from sklearn.model_selection import train_test_split

    alone = [label for label, n in Counter(example.label for example in examples).items() if n == 1]
    if alone:
        place = next(example.place for example in examples if example.label == alone[0])
        raise InputError(
            f"{place}: the label '{alone[0]}' has this one example, which cannot be on both sides of a split",
            "add examples of it, take it out, or give a dev file of your own with --dev",
        )
    try:
        kept, held = train_test_split(
            range(len(examples)),
            test_size=share,
            random_state=seed % 2**32,
            stratify=[example.label for example in examples],
        )
    except ValueError:
        raise InputError(
            f"{len(examples)} examples cannot be split at --dev-share {share:g}: each side needs all labels",
            "take a larger share, or add examples",
        ) from None
    return [examples[i] for i in sorted(kept)], [examples[i] for i in sorted(held)]


def _jsonl(examples: Sequence[Example], task: ClassifySettings) -> str:
    lines = []
    for example in examples:
        row = {task.text_column: example.text, task.label_column: example.label}
        if task.second_column is not None and example.second is not None:
            row[task.second_column] = example.second
        lines.append(json.dumps(row, ensure_ascii=False) + "\n")
    return "".join(lines)


def _build(
    base: ModelFolder, chosen: FinetuneSettings, labels: Sequence[str], tell: Callable[[str], None]
) -> tuple[Encoder, Classify]:
    """The base's encoder and pooler, and a new classifier drawn from the seed."""
    generator = torch.Generator().manual_seed(chosen.train.seed)
    encoder = base.encoder(generator)
    head = Classify(encoder.config, generator, labels, chosen.task)
    if base.has("pooler"):
        base.fill("pooler", head.pooler)
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


def _majority(training: Sequence[EncodedRow], development: Sequence[EncodedRow]) -> dict[str, float]:
    """What always answering the most frequent training label would score on dev."""
    most = Counter(row.target for row in training).most_common(1)[0][0]
    return {"accuracy": sum(row.target == most for row in development) / max(1, len(development))}


def _content(rows: Sequence[EncodedRow]) -> str:
    return fingerprint(*(f"{row.ids}{row.segments}{row.target}" for row in rows))
