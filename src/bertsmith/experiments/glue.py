"""Fine-tune a model for GLUE's nine tasks (Wang et al. 2019), each an ordinary run in a folder of its own.

The metrics are those of the benchmark, on the validation data; the average is that of each task's mean.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Unpack

import numpy as np

from bertsmith.errors import InputError
from bertsmith.finetuning.run import finetune
from bertsmith.inference.model import Model, load
from bertsmith.io import atomic
from bertsmith.io.compression import check_name, format_suffix
from bertsmith.io.tables import read_table
from bertsmith.keywords import FinetuneKeywords
from bertsmith.notebook import Result
from bertsmith.runs.run_folder import check_new_or_resume, holds_run, write_report
from bertsmith.settings import Changes

logger = logging.getLogger(__name__)

_POSITIVE_LABELS = ("1", "equivalent", "duplicate", "true", "yes")  # names of paraphrases in files


@dataclass(frozen=True)
class GlueTask:
    """A task of GLUE.

    Attributes:
        name: Its name; folders may omit the hyphen and use other case.
        columns: The text, second text, and label columns of its published files; indices for files without header.
        metrics: The benchmark's metrics, the primary one last.
        verb: The task of `finetune`.
    """

    name: str
    columns: tuple[tuple[str, str | None, str], ...]
    metrics: tuple[str, ...] = ("accuracy",)
    verb: str = "classify"


_PAIR = ("sentence1", "sentence2", "label")
GLUE = (
    GlueTask("CoLA", (("sentence", None, "label"), ("4", None, "2")), ("Matthews",)),
    GlueTask("SST-2", (("sentence", None, "label"),)),
    GlueTask("MRPC", (("#1 String", "#2 String", "Quality"), _PAIR), ("F1", "accuracy")),
    GlueTask("STS-B", (("sentence1", "sentence2", "score"), _PAIR), ("Pearson", "Spearman"), "regress"),
    GlueTask(
        "QQP",
        (("question1", "question2", "is_duplicate"), ("question1", "question2", "label"), ("2", "3", "1")),
        ("F1", "accuracy"),
    ),
    GlueTask("MNLI", (("sentence1", "sentence2", "gold_label"), ("premise", "hypothesis", "label"))),
    GlueTask("QNLI", (("question", "sentence", "label"),)),
    GlueTask("RTE", (_PAIR,)),
    GlueTask("WNLI", (_PAIR,)),
)
"""The tasks in the order of the benchmark's table."""


@dataclass(frozen=True)
class GlueResult(Result):
    """The result of a task.

    Attributes:
        task: Its name.
        train_examples: The number of training examples.
        validation_examples: The number of validation examples.
        metrics: The benchmark's metrics on the validation data, times 100.
        baseline: The last metric of always predicting the most frequent label, times 100.
        seconds: The duration.
    """

    task: str
    train_examples: int
    validation_examples: int
    metrics: dict[str, float]
    baseline: float | None
    seconds: float


@dataclass(frozen=True)
class GlueReport(Result):
    """The results of GLUE.

    Attributes:
        base: The path of the pre-trained model.
        tasks: The result of each task.
        average: The mean over tasks of the mean of their metrics.
    """

    base: str
    tasks: list[GlueResult]
    average: float


def finetune_glue(
    model: str | Path | Model,
    output_dir: str | Path,
    *,
    data: str | Path,
    tasks: Sequence[str] | None = None,
    sample: int | None = None,
    recipe: str | Path | None = None,
    settings: Changes = (),
    resume: bool = False,
    **keywords: Unpack[FinetuneKeywords],
) -> GlueReport:
    """Fine-tune a model for GLUE's tasks, each an ordinary run in output_dir/TASK.

    Args:
        model: The pre-trained model, as in `finetune`.
        output_dir: The folder for the runs and the report.
        data: A folder with one of each task (CoLA or cola, SST-2 or sst2, …), in it train and dev (for MNLI
            dev_matched and dev_mismatched) as .tsv, .csv, or .jsonl, also compressed.
        tasks: Only these tasks; by default those whose folder exists.
        sample: The number of training examples to use of each task.
        recipe: The recipe of all runs.
        settings: Changed settings of all runs.
        resume: Keep finished runs, and continue or start the others.
        **keywords: Settings by name, as in `finetune`.

    Returns:
        The report, which is also in output_dir/report.json.

    Raises:
        InputError: A task has no files or other columns than GLUE's; raised before anything is trained.
    """
    check_name(data)
    out = atomic.output_path(output_dir)
    folders = _find_tasks(Path(data), tasks)
    files: dict[GlueTask, list[Path]] = {}
    columns: dict[GlueTask, dict[str, Any]] = {}
    for task, folder in folders.items():
        files[task] = [_find_file(task, folder, part) for part in ("train", "dev")]
        columns[task] = _find_columns(task, files[task][0])
    is_started = any(holds_run(out / task.name) for task in GLUE)
    check_new_or_resume(out, is_started=is_started, resume=resume)
    base = load(model)
    fine_tune = partial(finetune, sample=sample, recipe=recipe, settings=settings)
    results: list[GlueResult] = []
    with atomic.folder_lock(out, "run"):
        for task, folder in folders.items():
            run = out / task.name
            train, validation = files[task]
            logger.info("task %d of %d: %s, %s", len(results) + 1, len(folders), task.name, run)
            options: dict[str, Any] = {"train": train, "validation": validation, **columns[task], **keywords}
            tuned = fine_tune(task.verb, base, run, **options, resume=holds_run(run))
            results.append(_result(task, folder, tuned))
        average = float(np.mean([np.mean(list(result.metrics.values())) for result in results]))
        report = GlueReport(str(base.path), results, average)
        write_report(out, report.to_dict())
    return report


def _result(task: GlueTask, folder: Path, model: Model) -> GlueResult:
    report = model.report
    metrics = _glue_metrics(task, report["validation"])
    for file in sorted(folder.glob("dev_mismatched.*"))[:1]:
        scores = _glue_metrics(task, model.evaluate(file).to_dict())
        metrics |= {f"mismatched {name}": value for name, value in scores.items()}
    baseline = report["baseline"].get(task.metrics[-1].lower())
    baseline = None if baseline is None else 100 * baseline
    num_examples = report["train_examples"], report["validation"]["examples"]
    return GlueResult(task.name, *num_examples, metrics, baseline, report["seconds"])


def _glue_metrics(task: GlueTask, scores: Mapping[str, Any]) -> dict[str, float]:
    """Return the benchmark's metrics, times 100; macro F1 instead of F1 if the label of paraphrases is unclear."""
    metrics = {}
    for name in task.metrics:
        if name != "F1":
            metrics[name] = 100 * float(scores[name.lower()])
        elif label := next((c for c in scores["classes"] if c.casefold() in _POSITIVE_LABELS), None):
            metrics["F1"] = 100 * scores["classes"][label]["f1"]
        else:
            metrics["macro F1"] = 100 * scores["macro_f1"]
    return metrics


def _find_tasks(folder: Path, names: Sequence[str] | None) -> dict[GlueTask, Path]:
    """Return the folders of the named tasks, or of all tasks that have a folder.

    Raises:
        InputError: A name is not a task, or a folder is missing.
    """
    tasks = {_normalize(task.name): task for task in GLUE}
    if unknown := [name for name in names or () if _normalize(name) not in tasks]:
        hint = f"the tasks are {', '.join(task.name for task in GLUE)}"
        raise InputError("task_unknown", f"'{unknown[0]}' is not a task of GLUE", argument="tasks", hint=hint)
    folders = {_normalize(path.name): path for path in sorted(folder.glob("*/"))}
    keys = [key for key in tasks if key in folders] if names is None else [_normalize(name) for name in names]
    missing = [tasks[key].name for key in keys if key not in folders]
    if missing or not keys:
        message = f"there is no folder for {missing[0] if missing else 'any task of GLUE'}"
        hint = "name the folder that contains a folder for each task: CoLA, SST-2, …"
        raise InputError("task_folder_missing", message, location=folder, argument="data", hint=hint)
    return {tasks[key]: folders[key] for key in keys}


def _normalize(name: str) -> str:
    return name.casefold().replace("-", "")


def _find_file(task: GlueTask, folder: Path, part: str) -> Path:
    """Return the file of a part ("train", "dev"), of MNLI the matched one."""
    files = [*folder.glob(f"{part}.*"), *folder.glob(f"{part}_matched.*")]
    if not files:
        message = f"there is no {part} file for {task.name}"
        hint = f"name it {part}.tsv, {part}.csv, or {part}.jsonl"
        raise InputError("task_file_missing", message, location=folder, hint=hint)
    return min(files)


def _find_columns(task: GlueTask, file: Path) -> dict[str, Any]:
    """Return the settings of the columns of a file, by its header or first row."""
    delimiter = None if format_suffix(file) == ".csv" else "\t"
    table = read_table(file, delimiter=delimiter, header=False)
    header = [*table.columns, *map(str, next(iter(table)).values.values())]
    for columns in task.columns:
        settings = dict(zip(("text_column", "second_column", "label_column"), columns, strict=True))
        if columns[0].isdigit():
            return {"header": False, **settings}
        if {name for name in columns if name} <= set(header):
            return settings
    message = f"the columns ({', '.join(header)}) are not those of {task.name}"
    hint = f"the file needs the columns {', '.join(filter(None, task.columns[0]))}"
    raise InputError("columns_unknown", message, location=file, hint=hint)
