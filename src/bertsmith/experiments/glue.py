"""`bertsmith finetune glue`: GLUE's nine tasks (Wang et al. 2019), by one recipe, as one table.

Each task is an ordinary run in a folder of its own. The figures are those that the benchmark reports, on dev;
where it reports two, the average takes their mean.
"""

from __future__ import annotations

import csv
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from bertsmith.errors import InputError
from bertsmith.finetuning.run import finetune
from bertsmith.inference.model import Model, load
from bertsmith.io import atomic
from bertsmith.io.files import bare_suffix, json_object, read_lines
from bertsmith.notebook import Report
from bertsmith.runs.run_folder import holds_run, write_report
from bertsmith.settings import Changes

logger = logging.getLogger(__name__)

_SUFFIXES = (".tsv", ".tsv.gz", ".csv", ".csv.gz", ".jsonl", ".jsonl.gz", ".txt", ".txt.gz")
_PAIR = {"text_column": "sentence1", "second_column": "sentence2"}
_F1 = ("F1", "positive f1")
_POSITIVE = ("1", "equivalent", "duplicate", "true", "yes")  # what files call a paraphrase
_ACCURACY = ("accuracy", "accuracy")


@dataclass(frozen=True)
class GlueTask:
    """One of the nine. folders: what its folder may be called, in lower case. forms: settings of its columns, as
    its published files have them; without a header last. figures: a name, and which of the scores it is. second: a
    further dev file, by its name."""

    name: str
    folders: tuple[str, ...]
    forms: tuple[Mapping[str, Any], ...]
    figures: tuple[tuple[str, str], ...] = (_ACCURACY,)
    verb: str = "classify"
    second: str | None = None


def _no_header(**columns: str) -> dict[str, Any]:
    return {"header": False, **columns}


GLUE = (
    GlueTask(
        "CoLA",
        ("cola",),
        ({"text_column": "sentence"}, _no_header(text_column="4", label_column="2")),
        (("Matthews", "matthews"),),
    ),
    GlueTask("SST-2", ("sst-2", "sst2"), ({"text_column": "sentence"},)),
    GlueTask(
        "MRPC",
        ("mrpc",),
        (
            {"text_column": "#1 String", "second_column": "#2 String", "label_column": "Quality"},
            _PAIR,
        ),
        (_F1, _ACCURACY),
    ),
    GlueTask(
        "STS-B",
        ("sts-b", "stsb"),
        ({**_PAIR, "label_column": "score"}, _PAIR),
        (("Pearson", "pearson"), ("Spearman", "spearman")),
        "regress",
    ),
    GlueTask(
        "QQP",
        ("qqp",),
        (
            {"text_column": "question1", "second_column": "question2", "label_column": "is_duplicate"},
            {"text_column": "question1", "second_column": "question2"},
            _no_header(text_column="2", second_column="3", label_column="1"),
        ),
        (_F1, _ACCURACY),
    ),
    GlueTask(
        "MNLI",
        ("mnli",),
        (
            {**_PAIR, "label_column": "gold_label"},
            {"text_column": "premise", "second_column": "hypothesis"},
        ),
        second="dev_mismatched",
    ),
    GlueTask("QNLI", ("qnli",), ({"text_column": "question", "second_column": "sentence"},)),
    GlueTask("RTE", ("rte",), (_PAIR,)),
    GlueTask("WNLI", ("wnli",), (_PAIR,)),
)
"""In the order of the benchmark's table."""


@dataclass(frozen=True)
class _Files:
    """What a task's folder holds."""

    train: Path
    dev: Path
    second: Path | None
    columns: Mapping[str, Any]


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
    **keywords: Any,
) -> Report:
    """Fine-tune a model for GLUE's tasks, each an ordinary run in output_dir/TASK (see `finetune`).

    data: a folder with one of each task (CoLA or cola, SST-2 or sst2, …), in it train and dev (for MNLI dev or
    dev_matched, and dev_mismatched where it is there) as .tsv, .csv or .jsonl, also compressed. tasks: only these;
    without it those whose files are there. sample, recipe, settings, keywords: as in `finetune`, for all tasks.
    resume: finished runs stay, an interrupted one continues exactly, the rest follow.

    Returns the report, also in output_dir/report.json: each task with its figures on dev, in points of 100, and
    their average. InputError for a task without files, or files whose columns are not GLUE's, before anything is
    trained.
    """
    out, folder = Path(output_dir), Path(data)
    chosen = list(_chosen(folder, tasks))
    if not resume:
        atomic.check_output_folder(out, in_place=True)
    base = model if isinstance(model, Model) else load(model)
    rows = []
    with atomic.folder_lock(out, "run"):
        for number, (task, files) in enumerate(chosen, start=1):
            run = out / task.name
            logger.info("task %d of %d: %s, %s", number, len(chosen), task.name, run)
            made = finetune(
                task.verb,
                base,
                run,
                train=files.train,
                validation=files.dev,
                sample=sample,
                recipe=recipe,
                settings=settings,
                resume=holds_run(run),
                **{**files.columns, **keywords},
            )
            rows.append(_row(task, files, made))
        found = {
            "base": str(base.path),
            "tasks": rows,
            "average": fmean(fmean(row["figures"].values()) for row in rows),
        }
        write_report(out, found)
    return Report(found, ("tasks", "average"))


def _row(task: GlueTask, files: _Files, made: Model) -> dict[str, Any]:
    """A task's figures on dev; of a second dev file under its name."""
    figures = _figures(task, made.report["dev"])
    if task.second is not None and files.second is not None:
        scores = made.evaluate(files.second)
        figures |= {f"mismatched {name}": value for name, value in _figures(task, scores).items()}
    baseline = made.report["baseline"].get(task.figures[-1][1])
    return {
        "task": task.name,
        "train_examples": made.report["train_examples"],
        "dev_examples": made.report["dev"]["examples"],
        "figures": figures,
        "baseline": None if baseline is None else 100 * baseline,
        "seconds": made.report["seconds"],
    }


def _figures(task: GlueTask, scores: Mapping[str, Any]) -> dict[str, float]:
    """A task's figures by their names. F1 is the mean of both labels' where they do not show which is a
    paraphrase."""
    found = {}
    for name, where in task.figures:
        if where != "positive f1":
            found[name] = 100 * float(scores[where])
            continue
        classes = scores["classes"]
        label = next((one for one in classes if one.casefold() in _POSITIVE), None)
        found[name if label else "macro F1"] = 100 * (classes[label]["f1"] if label else scores["macro_f1"])
    return found


def _chosen(folder: Path, tasks: Sequence[str] | None) -> Iterator[tuple[GlueTask, _Files]]:
    """The tasks with their files. InputError for a name that is none, for one without files, and where there are
    none at all."""
    if not folder.is_dir():
        raise InputError(
            "folder_not_found",
            "there is no such folder",
            location=folder,
            argument="data",
            hint="name the folder that contains a folder for each task: CoLA, SST-2, …",
        )
    known = {name: task for task in GLUE for name in (task.name.lower(), *task.folders)}
    if tasks is not None and (unknown := [name for name in tasks if name.lower() not in known]):
        listed = ", ".join(task.name for task in GLUE)
        raise InputError(
            "task_unknown",
            f"'{unknown[0]}' is not a task of GLUE",
            argument="tasks",
            hint=f"the tasks are {listed}",
        )
    wanted = GLUE if tasks is None else [known[name.lower()] for name in dict.fromkeys(tasks)]
    here = {below.name.lower(): below for below in sorted(folder.iterdir()) if below.is_dir()}
    found = 0
    for task in wanted:
        place = next((here[name] for name in task.folders if name in here), None)
        if place is None:
            if tasks is not None:
                raise InputError(
                    "task_folder_missing",
                    f"there is no folder for {task.name}",
                    location=folder,
                    argument="tasks",
                    hint=f"name it {' or '.join(task.folders)}",
                )
            continue
        found += 1
        yield task, _files(task, place)
    if not found:
        raise InputError(
            "tasks_missing",
            "the folder contains none of GLUE's tasks",
            location=folder,
            argument="data",
            hint="name a folder that contains folders such as CoLA, SST-2, and MRPC",
        )


def _files(task: GlueTask, place: Path) -> _Files:
    train = _named(place, "train")
    dev = _named(place, "dev") or _named(place, "dev_matched")
    if train is None or dev is None:
        missing = "train" if train is None else "dev"
        raise InputError(
            "task_file_missing",
            f"there is no {missing} file for {task.name}",
            location=place,
            hint=f"name it {missing}.tsv, {missing}.csv, or {missing}.jsonl",
        )
    second = None if task.second is None else _named(place, task.second)
    return _Files(train, dev, second, _columns(task, train))


def _named(place: Path, name: str) -> Path | None:
    return next(
        (place / f"{name}{suffix}" for suffix in _SUFFIXES if (place / f"{name}{suffix}").is_file()), None
    )


def _header(file: Path) -> list[str]:
    """The names of the columns, or the first row where there are none."""
    number, line = next(iter(read_lines(file)), (1, ""))
    if bare_suffix(file) == ".jsonl":
        return list(json_object(file, number, line))
    return next(csv.reader([line], delimiter="," if bare_suffix(file) == ".csv" else "\t"), [])


def _columns(task: GlueTask, file: Path) -> Mapping[str, Any]:
    """The form of a task's files that this one has."""
    header = _header(file)
    for form in task.forms:
        wanted = {"label_column": "label", **form}
        names = {str(value) for name, value in wanted.items() if name.endswith("_column")}
        if form.get("header") is False or names <= set(header):
            return form
    needed = ", ".join(dict.fromkeys({"label_column": "label", **task.forms[0]}.values()))
    raise InputError(
        "columns_unknown",
        f"the columns ({', '.join(header)}) are not those of {task.name}",
        location=file,
        hint=f"the file needs the columns {needed}",
    )
