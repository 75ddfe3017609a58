"""Pre-train a model further on a corpus, and measure what that gains on a task.

Each step has a folder of its own and is that of another function: `extend_tokenizer` (if words are to be added),
`prepare`, `pretrain`, and `finetune` from the model before and after, with the same seeds.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from bertsmith.corpus.prepare import prepare
from bertsmith.corpus.shards import Shards
from bertsmith.experiments.ablation_recipe import check_no_seed, check_task_files
from bertsmith.finetuning.job import new_settings
from bertsmith.finetuning.run import finetune
from bertsmith.finetuning.settings import settings_type
from bertsmith.formatting import pluralize
from bertsmith.inference.model import Model, load
from bertsmith.inference.significance import compare
from bertsmith.io import atomic
from bertsmith.io.folders import CorpusNotes, find_files
from bertsmith.io.sources import Sources, to_sources
from bertsmith.notebook import Result
from bertsmith.pretraining.extend_vocabulary import RECORD, Choice, extend_tokenizer
from bertsmith.pretraining.resolve_settings import new_settings as new_pretraining_settings
from bertsmith.pretraining.run import pretrain
from bertsmith.pretraining.settings import PretrainSettings
from bertsmith.runs.run_folder import holds_run, keeping_runs, previous_arguments, write_json, write_report
from bertsmith.settings import Changes
from bertsmith.tasks.registry import get_task

logger = logging.getLogger(__name__)

_ARGUMENTS = "adapt.json"
_PRETRAINING = ("steps", "tokens", "seconds", "held_out")


@dataclass(frozen=True)
class SeedResult(Result):
    """The validation score of the models before and after, and their comparison (`compare`)."""

    seed: int
    before: float
    after: float
    comparison: dict[str, Any]


@dataclass(frozen=True)
class AdaptationReport(Result):
    """The gain on a task from further pre-training.

    Attributes:
        arguments: The arguments.
        metric: The primary metric.
        before: Its mean without further pre-training.
        after: Its mean with further pre-training.
        gain: The mean gain.
        deviation: The standard deviation of the gains (n - 1); None with one seed.
        baseline: The baseline's value of the metric.
        baseline_name: The name of the baseline.
        runs: The results by seed.
        pretraining: The steps, tokens, seconds, and held-out metrics of pre-training.
    """

    display_fields: ClassVar = ("metric", "before", "after", "gain")

    arguments: dict[str, Any]
    metric: str
    before: float
    after: float
    gain: float
    deviation: float | None
    baseline: float | None
    baseline_name: str
    runs: list[SeedResult]
    pretraining: dict[str, Any]


def adapt(
    model: str | Path,
    corpus: Sources,
    output_dir: str | Path,
    *,
    task: str,
    train: str | Path,
    validation: str | Path,
    words: int = 0,
    seeds: int = 1,
    minutes: float | None = None,
    settings: Changes = (),
    task_settings: Changes = (),
    resume: bool = False,
) -> AdaptationReport:
    """Pre-train a model further on text, fine-tune it before and after, and compare.

    Args:
        model: A run, a model folder, or a published name, with a masked-LM head.
        corpus: The text, as in `prepare`.
        output_dir: The folder for all steps; out/model is the run of further pre-training.
        task: The task, as in `finetune`.
        train: The training data, as in `finetune`.
        validation: The validation data, as in `finetune`.
        words: The number of words of the corpus to add to the vocabulary.
        seeds: The number of seeds 0, 1, … of fine-tuning.
        minutes: The time of pre-training.
        settings: Changed settings of `pretrain`.
        task_settings: Changed settings of `finetune`.
        resume: Keep finished steps, and continue the interrupted one.

    Returns:
        The report, which is also in output_dir/report.json.

    Raises:
        InputError: An argument or a file is invalid; raised before anything is trained.
    """
    out, changes = atomic.output_path(output_dir), PretrainSettings.dotted(settings)
    task_changes = settings_type(get_task(task)).dotted(task_settings)
    arguments: dict[str, Any] = {
        "model": str(model),
        "corpus": [str(file) for file in ([corpus] if isinstance(corpus, str | Path) else corpus)],
        "task": task,
        "train": str(train),
        "validation": str(validation),
        "words": words,
        "settings": changes,
        "task_settings": task_changes,
    }
    previous_arguments(out / _ARGUMENTS, arguments, resume=resume)
    base = load(model)
    _check_inputs(base, corpus, arguments)
    with atomic.folder_lock(out, "adaptation"), keeping_runs(out):
        write_json(out / _ARGUMENTS, arguments)
        adapted = _pretrain_further(out, base, corpus, arguments, minutes)
        pairs = [
            (
                _fine_tune(out / f"before-{seed}", base, arguments, seed),
                _fine_tune(out / f"after-{seed}", adapted, arguments, seed),
            )
            for seed in range(seeds)
        ]
        report = _make_report(arguments, adapted, pairs)
        write_report(out, report.to_dict())
    return report


def _check_inputs(base: Model, corpus: Sources, arguments: Mapping[str, Any]) -> None:
    """Raise InputError for invalid settings and for files that cannot be read, before anything is trained."""
    new_pretraining_settings(None, None, arguments["settings"], base.tokenizer, base)
    check_no_seed(arguments["task_settings"], argument="task_settings")
    find_files(to_sources(corpus), CorpusNotes())
    files = {"train": arguments["train"], "validation": arguments["validation"]}
    task = get_task(arguments["task"])
    settings = new_settings(task, base, files, None, arguments["task_settings"])
    check_task_files(arguments["task"], settings)


def _pretrain_further(
    out: Path, base: Model, corpus: Sources, arguments: Mapping[str, Any], minutes: float | None
) -> Model:
    """Extend the vocabulary, prepare the corpus, and pre-train; steps that are finished are kept."""
    words, extended, shards_folder, run = arguments["words"], out / "extended", out / "shards", out / "model"
    if words and not (extended / RECORD).exists():
        logger.info("adding %s of the corpus to the vocabulary", pluralize(words, "word"))
        extend_tokenizer(corpus, extended, model=arguments["model"], choice=Choice(words=words))
    initial = load(extended) if words else base
    if (shards_folder / "manifest.json").exists():
        shards = Shards.open(shards_folder)
    else:
        shards = prepare(corpus, initial.tokenizer, shards_folder)
    logger.info("pre-training: %s", run)
    changes = arguments["settings"]
    return pretrain(shards, run, model=initial, minutes=minutes, settings=changes, resume=holds_run(run))


def _fine_tune(run: Path, model: Model, arguments: Mapping[str, Any], seed: int) -> Model:
    logger.info("fine-tuning: %s", run)
    data = {name: arguments[name] for name in ("train", "validation")}
    settings = {**arguments["task_settings"], "train.seed": seed}
    return finetune(arguments["task"], model, run, **data, settings=settings, resume=holds_run(run))


def _make_report(
    arguments: dict[str, Any], adapted: Model, pairs: Sequence[tuple[Model, Model]]
) -> AdaptationReport:
    """Return the report of the fine-tuned models before and after, by seed."""
    first = pairs[0][0]
    metric = first.task.primary_metric
    scores = np.array([[model.report["validation"][metric] for model in pair] for pair in pairs])
    gains = scores[:, 1] - scores[:, 0]
    before, after = scores.mean(axis=0).tolist()
    return AdaptationReport(
        arguments=arguments,
        metric=metric,
        before=before,
        after=after,
        gain=float(gains.mean()),
        deviation=float(gains.std(ddof=1)) if len(gains) > 1 else None,
        baseline=first.report["baseline"].get(metric),
        baseline_name=first.report["baseline_name"],
        runs=[
            SeedResult(seed, a, b, compare(*models, arguments["validation"])["scores"][metric])
            for seed, ((a, b), models) in enumerate(zip(scores.tolist(), pairs, strict=True))
        ],
        pretraining={name: adapted.report[name] for name in _PRETRAINING if name in adapted.report},
    )
