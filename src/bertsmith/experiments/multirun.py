"""`bertsmith finetune TASK` with `--restarts N`, `--folds K`, `--grid …`: several runs, and what they come to.

Each is an ordinary run in a folder of its own. The report has for all of them mean, median, best and deviation of
the score that decides, and which runs are degenerate, no better than an answer that never looks at the text (as
Devlin et al. 2019 and Dodge et al. 2020 saw among restarts on small data).
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bertsmith.artifacts.run_collection import RUNS_FILE, RUNS_REPORT_FILE, run_names
from bertsmith.errors import Diverged, InputError, option
from bertsmith.experiments.multirun_plan import Grid, Planned, planned
from bertsmith.experiments.multirun_report import report_of
from bertsmith.finetuning.data import parts_of
from bertsmith.finetuning.feature_cache import FEATURES, forget_states
from bertsmith.finetuning.repeated_logs import drop_repeated_logs
from bertsmith.finetuning.run import finetune
from bertsmith.finetuning.settings import OWN_ARGUMENTS, FinetuneSettings, settings_type
from bertsmith.inference.model import Model, load
from bertsmith.io import atomic
from bertsmith.io.memory import Source
from bertsmith.notebook import Report
from bertsmith.runs.run_folder import SETTINGS, holds_run, keeping_runs, write_report, write_whole
from bertsmith.settings import Changes, read_yaml, resolve
from bertsmith.tasks.task import Task, task_type

logger = logging.getLogger(__name__)

_LAYOUT = atomic.FolderLayout(
    "a folder of runs", RUNS_FILE, (RUNS_FILE, RUNS_REPORT_FILE, FEATURES, "seed-*", "fold-*", "run-*", "*=*")
)
_FROM_THE_FIRST = (
    "train.precision",
    "train.device",
    "train.kernels",
)  # left open, these are one run's findings, and all runs'


def finetune_repeatedly(
    task: str,
    model: str | Path | Model,
    output_dir: str | Path,
    *,
    train: Source,
    validation: Source | None = None,
    restarts: int | None = None,
    folds: int | None = None,
    grid: Grid | None = None,
    recipe: str | Path | None = None,
    settings: Changes = (),
    resume: bool = False,
    overwrite: bool = False,
    **keywords: Any,
) -> Report:
    """Fine-tune a model several times, each an ordinary run in a folder of its own in `output_dir`.

    restarts: with so many seeds, from train.seed on: the data stay as they are, the head's first weights and the
    order vary. folds: so many times on train, each time without another part of it, which validates; classes keep
    their proportion, equal texts stay together. grid: with each combination of settings, {"learning_rate": [5e-5,
    3e-5], "batch_size": [16, 32]}; goes with either of the others. train, validation, recipe, settings, keywords
    (validation_split, sample, num_train_epochs=3 …): as in `finetune`, for all runs. resume: finished runs stay,
    an interrupted one continues exactly, the rest follow; there may be more of them now. overwrite: replace a
    folder of runs. What the first run found out about precision and kernels holds for all, and so do the hidden
    states of a frozen base, which are computed once.

    Returns the report, which is also in output_dir/report.json: each run with its validation score, the mean,
    median, best and standard deviation (of a sample: n - 1), the names of degenerate runs; with folds the scores
    of all held-out answers together, where the task supports it. Raises as `finetune`; a run whose loss is no
    longer finite is reported, and the others follow.
    """
    out, kind = Path(output_dir), task_type(task)
    own = {
        name: keywords.pop(name) for name in ("validation_split", "sample", "label_names") if name in keywords
    }
    changes = resolve(settings_type(kind), settings, keywords, finetune_repeatedly, hidden=OWN_ARGUMENTS)
    if folds is not None and (validation is not None or own.get("validation_split") is not None):
        given = option("validation" if validation is not None else "validation_split")
        raise InputError(
            "folds_with_validation",
            f"{option('folds')} and {given} exclude each other, because each fold is the validation data once",
            hint=f"omit {given}",
        )
    runs = planned(
        kind,
        recipe,
        changes,
        restarts=restarts,
        folds=folds,
        grid=grid,
        function=finetune_repeatedly,
    )
    with atomic.folder_lock(out, "run"), keeping_runs(out), drop_repeated_logs() as repeat_filter:
        _begin(out, runs, [train, validation], resume=resume, overwrite=overwrite)
        base = model if isinstance(model, Model) else load(model)
        reports: dict[str, dict[str, Any] | str] = {}
        for number, run in enumerate(runs, start=1):
            logger.info("run %d of %d: %s", number, len(runs), out / run.name)
            repeat_filter.is_first_run = number == 1
            asked = {**changes, **_of_the_first(out / runs[0].name, changes), **run.varied}
            try:
                made = finetune(
                    task,
                    base,
                    out / run.name,
                    train=train,
                    validation=validation,
                    recipe=recipe,
                    settings=asked,
                    states=out / FEATURES,
                    resume=holds_run(out / run.name),
                    **own,
                )
            except Diverged as error:
                reports[run.name] = error.message
                logger.warning("%s: %s", out / run.name, error.message)
                continue
            reports[run.name] = dict(made.report)
            decides = made.report["decided_by"]
            logger.info(
                "%s: %s %.4f on the validation data", out / run.name, decides, made.report["dev"][decides]
            )
        pooled = None if folds is None else _pooled(out, runs, reports, train)
        found = report_of(runs, reports, pooled)
        write_report(out, found)
        forget_states(out / FEATURES)
        for warning in found["warnings"]:
            logger.warning("%s", warning)
    return Report(found, ("runs", "summary", "best"))


def _begin(out: Path, runs: Sequence[Planned], used: Sequence[Any], *, resume: bool, overwrite: bool) -> None:
    """Write down which runs there will be. InputError where the folder is another's, or its runs are others."""
    known, names = run_names(out), [run.name for run in runs]
    if resume and overwrite:
        raise InputError(
            "resume_with_overwrite",
            f"{option('resume', True)} and {option('overwrite', True)} exclude each other",
            location=out,
            hint="omit one of them",
        )
    if holds_run(out):
        raise InputError(
            "folder_of_single_run",
            f"this folder contains a single run, not {len(runs)}",
            location=out,
            argument="output_dir",
            hint=f"choose another folder with {option('output_dir')}",
        )
    if known is None:
        if resume:
            raise InputError(
                "runs_missing",
                "this folder contains no runs to continue",
                location=out,
                argument="resume",
                hint=f"to start new runs, omit {option('resume', True)}",
            )
        atomic.check_output_folder(out, in_place=True)
    elif overwrite:
        _refuse_needed(out, used)
        if _LAYOUT.check_replaceable(out, overwrite=True, in_place=True):
            atomic.clear_folder(out)
    elif not resume:
        raise InputError(
            "runs_exist",
            "this folder contains runs already",
            location=out,
            argument="output_dir",
            hint=f"continue them with {option('resume', True)}, replace them with {option('overwrite', True)}, or "
            f"choose another folder with {option('output_dir')}",
        )
    elif others := [name for name in known if name not in names and holds_run(out / name)]:
        raise InputError(
            "runs_differ",
            f"this folder contains the run {others[0]}, which is not one of the requested runs ({names[0]}, …)",
            location=out,
            hint=f"continue with the same {option('restarts')}, {option('folds')}, and {option('grid')}, or with "
            f"more runs, or choose another folder with {option('output_dir')}",
        )
    write_whole(out / RUNS_FILE, json.dumps({"runs": names}, indent=2) + "\n")


def _refuse_needed(out: Path, used: Sequence[Any]) -> None:
    for path in used:
        if isinstance(path, str | Path) and Path(path).resolve().is_relative_to(out.resolve()):
            raise InputError(
                "input_in_out",
                f"this file is needed and is in the folder that would be replaced, {out}",
                location=path,
                argument="output_dir",
                hint=f"choose another folder with {option('output_dir')}",
            )


def _of_the_first(run: Path, changes: Mapping[str, Any]) -> dict[str, Any]:
    """What the first run, once it has begun, found out of what settings leave open."""
    if not (run / SETTINGS).is_file():
        return {}
    kept = FinetuneSettings.dotted(read_yaml(run / SETTINGS))
    return {name: kept[name] for name in _FROM_THE_FIRST if name in kept and name not in changes}


def _pooled(
    out: Path, runs: Sequence[Planned], reports: dict[str, dict[str, Any] | str], train: Source
) -> dict[str, dict[str, Any]] | None:
    """The scores of all held-out answers together, of each cell of the grid by the name of its first run; None
    where the task has none, or an answer is missing."""
    found: dict[str, dict[str, Any]] = {}
    cells: dict[str, list[Planned]] = {}
    for run in runs:
        cells.setdefault(json.dumps(run.cell), []).append(run)
    for some in cells.values():
        if any(isinstance(reports[run.name], str) for run in some):
            continue
        first: Task | None = None
        examples: list[Any] = []
        predictions: list[Any] = []
        for run in some:
            model = load(out / run.name)
            first = first or model.task
            if not first.pooled:
                return None
            held = _held_out(type(model.task), out / run.name, train)
            examples += held
            predictions += model.answering.answers(model.task.settings)(held)
        assert first is not None
        found[some[0].name] = first.score(predictions, examples).document()
    return found


def _held_out(kind: type[Task], run: Path, train: Source) -> list[Any]:
    """The part of the training examples that a run did not train on."""
    chosen = settings_type(task_type(kind.name)).from_file(run / SETTINGS)
    return parts_of(kind, chosen.files, chosen.task, {"train": train})[1]
