"""Fine-tune a model several times: with several seeds, on several folds, or with a grid of settings.

Each run is an ordinary one in a folder of its own. The report summarizes their scores, and names degenerate runs,
which score no better than a baseline that ignores the text (as Devlin et al. 2019 and Dodge et al. 2020 saw among
restarts on small data).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any, ClassVar, Unpack

import numpy as np

from bertsmith.artifacts.locate import RUNS_FILE, RUNS_REPORT_FILE, run_names
from bertsmith.errors import Diverged, InputError, option
from bertsmith.experiments.grid import Grid, PlannedRun, plan_runs
from bertsmith.finetuning.data import split_examples
from bertsmith.finetuning.model import FEATURES, remove_features
from bertsmith.finetuning.run import finetune
from bertsmith.finetuning.settings import OWN_ARGUMENTS, FinetuneSettings, settings_type
from bertsmith.formatting import join_names, pluralize
from bertsmith.inference.model import Model, load
from bertsmith.io import atomic
from bertsmith.io.folder_layout import FolderLayout, in_folder
from bertsmith.io.sources import Source
from bertsmith.keywords import FinetuneKeywords
from bertsmith.log_handlers import RepeatFilter, without_repeats
from bertsmith.notebook import Result
from bertsmith.runs import run_folder
from bertsmith.settings import Changes, read_yaml, resolve
from bertsmith.tasks.labels import LabelNames
from bertsmith.tasks.registry import get_task

logger = logging.getLogger(__name__)

_LAYOUT = FolderLayout(
    "a folder of runs",
    RUNS_FILE,
    (
        RUNS_FILE,
        RUNS_REPORT_FILE,
        f"{FEATURES}/*.f32",
        *(
            path
            for run in ("seed-*", "fold-*", "run-*", "*=*")
            for path in in_folder(run, run_folder.RUN_LAYOUT.patterns)
        ),
    ),
)
_RESOLVED_BY_FIRST_RUN = ("train.precision", "train.device", "train.kernels", "train.threads")


@dataclass(frozen=True)
class RunResult(Result):
    """A run and its score on the validation set.

    Attributes:
        run: The name of its folder.
        settings: The settings in which it differs from the other runs.
        cell: Those of them that the grid gives it.
        score: The primary metric; None if the run diverged.
        baseline: The baseline's value of the primary metric.
        test_score: The primary metric on the test examples of `test_split`.
        degenerate: True if the run diverged or scores no better than a baseline that ignores the text.
        failure: The reason if the run diverged.
        best_step: The step whose weights were saved.
        steps: The number of steps.
        seconds: The duration.
        validation: All metrics.
    """

    run: str
    settings: dict[str, Any]
    cell: dict[str, Any]
    score: float | None = None
    baseline: float | None = None
    test_score: float | None = None
    degenerate: bool = True
    failure: str | None = None
    best_step: int | None = None
    steps: int | None = None
    seconds: float | None = None
    validation: dict[str, float] | None = None

    @classmethod
    def from_report(cls, run: PlannedRun, report: Mapping[str, Any]) -> RunResult:
        """Return the result of a finished run."""
        metric, metrics = report["decided_by"], report["validation"]
        score, baseline = metrics[metric], report["baseline"][metric]
        return cls(
            run.name,
            run.changes,
            run.cell,
            score,
            baseline,
            report.get("test", {}).get(metric),
            degenerate=score <= baseline and not report.get("baseline_reads", False),
            validation={name: value for name, value in metrics.items() if isinstance(value, int | float)},
            **{name: report[name] for name in ("best_step", "steps", "seconds")},
        )


@dataclass
class ScoreSummary(Result):
    """Statistics of the scores of several runs; None if there are too few.

    Attributes:
        settings: The settings of the grid of the first run.
        runs: The names of the runs.
        scores: The number of scores.
        mean: Their mean.
        median: Their median.
        best: The highest score.
        deviation: The standard deviation of the sample (n - 1).
        degenerate: The names of degenerate runs.
        mean_without_degenerate: The mean of the other runs, if there are degenerate runs.
        pooled: The metrics of the predictions of all folds taken as one set.
    """

    settings: dict[str, Any]
    runs: list[str]
    scores: int
    mean: float | None
    median: float | None
    best: float | None
    deviation: float | None
    degenerate: list[str]
    mean_without_degenerate: float | None
    pooled: dict[str, Any] | None = None


@dataclass(frozen=True)
class HeldOutScores(Result):
    """The primary metric on test examples, which no run was trained on and which chose none.

    Attributes:
        best: The score of the run that validation chose.
        mean: The mean over the runs with the settings of that run.
        deviation: The standard deviation of these (n - 1); None of one run.
        scores: Their number.
    """

    best: float
    mean: float
    deviation: float | None
    scores: int


@dataclass(frozen=True)
class MultirunReport(Result):
    """The results of several fine-tuning runs.

    Attributes:
        task: The name of the task.
        base: The path of the pre-trained model.
        decided_by: The primary metric.
        runs: The result of each run.
        summary: The statistics of all runs.
        cells: The statistics of each combination of settings of a grid.
        best: The name of the run with the highest score.
        test: The scores on the test examples of `test_split`.
        warnings: A sentence about degenerate runs, if there are some.
    """

    display_fields: ClassVar = ("runs", "summary", "best")

    task: str | None
    base: str | None
    decided_by: str
    runs: list[RunResult]
    summary: ScoreSummary
    cells: list[ScoreSummary]
    best: str | None
    test: HeldOutScores | None
    warnings: list[str]


def finetune_repeatedly(
    task: str,
    model: str | Path | Model,
    output_dir: str | Path,
    *,
    train: Source,
    validation: Source | None = None,
    validation_split: float | None = None,
    test_split: float | None = None,
    sample: int | None = None,
    label_names: str | Path | LabelNames | None = None,
    restarts: int | None = None,
    folds: int | None = None,
    grid: Grid | None = None,
    recipe: str | Path | None = None,
    settings: Changes = (),
    resume: bool = False,
    overwrite: bool = False,
    **keywords: Unpack[FinetuneKeywords],
) -> MultirunReport:
    """Fine-tune a model several times, each run in a subfolder of `output_dir`.

    The precision, device, kernels, and threads that the first run chooses hold for all runs. Hidden states of a
    frozen encoder are computed once. A run that diverges is reported, and the others follow.

    Args:
        task: The task, as in `finetune`.
        model: The pre-trained model, as in `finetune`.
        output_dir: The folder for all runs and the report.
        train: The training data, as in `finetune`.
        validation: The validation data, as in `finetune`.
        validation_split: The ratio of training examples to hold out instead, as in `finetune`.
        test_split: The ratio of training examples to hold out from all runs and folds, as in `finetune`. Each run
            scores them once; they choose no run.
        sample: The number of training examples to draw at random.
        label_names: Names of labels that are numbers, as in `finetune`.
        restarts: The number of runs with different seeds, from train.seed on. The data stay the same; the initial
            weights of the head and the order of examples vary.
        folds: The number of cross-validation folds of `train`: each is the validation data of one run. Folds are
            stratified by label, and equal texts are in the same fold.
        grid: Values to try by setting; a run for each combination: {"learning_rate": [5e-5, 3e-5]}. It may be
            combined with restarts or folds.
        recipe: The recipe of all runs.
        settings: Changed settings of all runs.
        resume: Keep finished runs, resume unfinished ones, and make the rest; there may be more runs than before.
        overwrite: Replace a folder of runs.
        **keywords: Settings by name, as in `finetune`.

    Returns:
        The report, which is also in output_dir/report.json.

    Raises:
        InputError: As in `finetune`; or the folder contains other runs.
    """
    out, declaration = atomic.output_path(output_dir), get_task(task)
    run_type = settings_type(declaration)
    changes = resolve(run_type, settings, keywords, finetune_repeatedly, hidden=OWN_ARGUMENTS)
    if folds is not None and (validation, validation_split) != (None, None):
        message = f"{option('folds')} excludes validation data, since each fold is the validation data once"
        name = "validation" if validation is not None else "validation_split"
        raise InputError("folds_with_validation", message, argument=name, hint=f"omit {option(name)}")
    runs = plan_runs(
        declaration, recipe, changes, restarts=restarts, folds=folds, grid=grid, function=finetune_repeatedly
    )
    base = load(model)  # before the folder exists, which a mistyped name would resemble
    with atomic.folder_lock(out, "run"), run_folder.keeping_runs(out), without_repeats() as repeat_filter:
        _prepare_folder(out, runs, [train, validation], resume=resume, overwrite=overwrite)
        data = {"train": train, "validation": validation, "validation_split": validation_split}
        options: dict[str, Any] = {
            "test_split": test_split,
            "sample": sample,
            "label_names": label_names,
            "recipe": recipe,
        }
        fine_tune = partial(finetune, task, base, **data, **options, states=out / FEATURES)
        report = summarize_runs(*_make_runs(fine_tune, out, runs, changes, repeat_filter))
        if folds is not None:
            for summary in report.cells or [report.summary]:
                summary.pooled = _score_pooled_folds(out, summary, train)
        run_folder.write_report(out, report.to_dict())
        remove_features(out / FEATURES)
    for warning in report.warnings:
        logger.warning("%s", warning)
    return report


def _make_runs(
    fine_tune: Callable[..., Model],
    out: Path,
    runs: Sequence[PlannedRun],
    changes: Mapping[str, Any],
    repeat_filter: RepeatFilter,
) -> tuple[list[RunResult], Mapping[str, Any]]:
    """Make or resume the runs; return their results, and the first report, which is empty if all diverged."""
    results: list[RunResult] = []
    first_report: Mapping[str, Any] = {}
    for number, run in enumerate(runs, start=1):
        folder = out / run.name
        logger.info("run %d of %d: %s", number, len(runs), folder)
        repeat_filter.is_first_run = number == 1
        settings = {**_resolved_by_first_run(out / runs[0].name), **changes, **run.changes}
        try:
            report = fine_tune(folder, settings=settings, resume=run_folder.holds_run(folder)).report
        except Diverged as error:
            logger.warning("%s: %s", folder, error.message)
            results.append(RunResult(run.name, run.changes, run.cell, failure=error.message))
            continue
        result = RunResult.from_report(run, report)
        logger.info("%s: %s %.4f on the validation data", folder, report["decided_by"], result.score)
        results.append(result)
        first_report = first_report or report
    return results, first_report


def _prepare_folder(
    out: Path, runs: Sequence[PlannedRun], inputs: Sequence[Any], *, resume: bool, overwrite: bool
) -> None:
    """Write the names of the runs to the folder. Raise InputError if it holds something else or other runs."""
    names, previous_names = [run.name for run in runs], run_names(out)
    run_folder.check_resume_or_overwrite(out, resume=resume, overwrite=overwrite)
    if overwrite and previous_names is not None:
        run_folder.check_inputs_outside(out, *inputs)
        if _LAYOUT.check_replaceable(out, overwrite=True, in_place=True):
            atomic.clear_folder(out)
        previous_names = None
    run_folder.check_new_or_resume(
        out, is_started=previous_names is not None, resume=resume, can_overwrite=True
    )
    others = [name for name in previous_names or () if name not in names and run_folder.holds_run(out / name)]
    if others:
        message = (
            f"this folder contains the run {others[0]}, which is none of the requested ones ({names[0]}, …)"
        )
        hint = (
            f"continue with the same {option('restarts')}, {option('folds')}, and {option('grid')}, or with "
            f"more runs, or choose another folder with {option('output_dir')}"
        )
        raise InputError("runs_differ", message, location=out, hint=hint)
    run_folder.write_json(out / RUNS_FILE, {"runs": names})


def _resolved_by_first_run(run: Path) -> dict[str, Any]:
    """Return the settings that the first run, if it has started, chose for this machine."""
    if not (run / run_folder.SETTINGS).is_file():
        return {}
    resolved = FinetuneSettings.dotted(read_yaml(run / run_folder.SETTINGS))
    return {name: resolved[name] for name in _RESOLVED_BY_FIRST_RUN if name in resolved}


def summarize_runs(results: Sequence[RunResult], first_report: Mapping[str, Any]) -> MultirunReport:
    """Return the report of several runs.

    Args:
        results: The results of the runs.
        first_report: The report of the first finished run; empty if all diverged.
    """
    metric = str(first_report.get("decided_by", "score"))
    scores = {result.run: result.score for result in results if result.score is not None}
    cells = [list(group) for _, group in groupby(results, key=lambda result: result.cell)]
    degenerate = [result.run for result in results if result.degenerate]
    baseline = first_report.get("baseline_name", "the baseline")
    warning = (
        f"{len(degenerate)} of {pluralize(len(results), 'run')} diverged, or no better than {baseline} by "
        f"{metric}: {join_names(degenerate)}"
    )
    best = max(scores, key=scores.__getitem__, default=None)
    return MultirunReport(
        task=first_report.get("task"),
        base=first_report.get("base"),
        decided_by=metric,
        runs=list(results),
        summary=summarize_scores(results),
        cells=[summarize_scores(cell) for cell in cells] if len(cells) > 1 else [],
        best=best,
        test=next((_summarize_test(result, results) for result in results if result.run == best), None),
        warnings=[warning] if degenerate else [],
    )


def _summarize_test(best: RunResult, results: Sequence[RunResult]) -> HeldOutScores | None:
    """Return the scores on test examples of the best run and of the runs of its cell; None without any."""
    if best.test_score is None:
        return None
    cell = [
        result.test_score for result in results if result.cell == best.cell and result.test_score is not None
    ]
    deviation = float(np.std(cell, ddof=1)) if len(cell) > 1 else None
    return HeldOutScores(best.test_score, float(np.mean(cell)), deviation, len(cell))


def summarize_scores(results: Sequence[RunResult]) -> ScoreSummary:
    """Return statistics of the scores of runs of one cell of the grid, or of all runs."""
    scores = [result.score for result in results if result.score is not None]
    sound = [result.score for result in results if result.score is not None and not result.degenerate]
    degenerate = [result.run for result in results if result.degenerate]
    return ScoreSummary(
        settings=results[0].cell,
        runs=[result.run for result in results],
        scores=len(scores),
        mean=float(np.mean(scores)) if scores else None,
        median=float(np.median(scores)) if scores else None,
        best=max(scores, default=None),
        deviation=float(np.std(scores, ddof=1)) if len(scores) > 1 else None,
        degenerate=degenerate,
        mean_without_degenerate=float(np.mean(sound)) if degenerate and sound else None,
    )


def _score_pooled_folds(out: Path, summary: ScoreSummary, train: Source) -> dict[str, Any] | None:
    """Score the predictions of all folds as one set.

    Returns:
        The metrics; None if a run diverged or if outputs of different models are not comparable.
    """
    if summary.scores < len(summary.runs):
        return None
    models = [load(out / run) for run in summary.runs]
    examples: list[Any] = []
    predictions: list[Any] = []
    for model in models:
        if not model.task.metrics.comparable_across_models:
            return None
        task = model.task.declaration
        settings = settings_type(task).from_file(model.path / run_folder.SETTINGS)
        held_out = split_examples(task, settings.files, settings.task, {"train": train})[1]
        examples += held_out
        predictions += model.predictor.predict(held_out)
    return models[0].task.metrics.compute(predictions, examples).to_dict()
