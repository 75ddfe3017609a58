"""`bertsmith baselines`: the models before BERT and BERT itself, on one corpus, with one yardstick.

Each pre-trained model is an ordinary run in a folder of its own, such as out/lstm/0/pretrain, and so is each
fine-tuning, so that finished ones are kept.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from bertsmith import hardware
from bertsmith.corpus.prepare import prepare
from bertsmith.corpus.shards import Shards, open_prepared
from bertsmith.errors import InputError, option
from bertsmith.experiments import ablation_recipe
from bertsmith.experiments.ablation_recipe import PRETRAIN, folder_name
from bertsmith.experiments.baseline_measures import (
    MEASURES,
    MeasureContext,
    MeasureFiles,
    Measurement,
    measure,
)
from bertsmith.experiments.baseline_models import train_baseline
from bertsmith.experiments.baselines_recipe import HISTORY, BaselinesRecipe, read_recipe
from bertsmith.experiments.baselines_report import BaselinesReport, make_report, write_report_page
from bertsmith.experiments.process_pool import Call, answer_call, make_calls, run_processes
from bertsmith.instances.holdout_split import DocumentSplit
from bertsmith.io import atomic
from bertsmith.io.sources import Sources
from bertsmith.predecessors.ngram_settings import NgramSettings
from bertsmith.predecessors.word2vec import Word2VecSettings
from bertsmith.pretraining.settings import PretrainSettings
from bertsmith.runs.run_folder import keeping_runs, previous_arguments, write_json, write_report
from bertsmith.settings import Changes, check_positive
from bertsmith.tokenizer_training.train import train_tokenizer

logger = logging.getLogger(__name__)

_ARGUMENTS = "baselines.json"
_TOKENIZER, _SHARDS = "tokenizer", "shards"
_DEFAULT_MINUTES = 30.0


class BaselinesJob(BaseModel, frozen=True):
    """The arguments of a comparison, which each process receives as JSON.

    Attributes:
        recipe: The recipe.
        out: The folder of all runs.
        data: The folder of the token shards.
        files: The files that models are measured on.
        budget: The budget of each pre-training: {"train.max_minutes": 5.0} or {"train.max_tokens": 10_000_000}.
        changes: Changed settings of all pre-training runs.
    """

    recipe: BaselinesRecipe
    out: Path
    data: Path
    files: MeasureFiles
    budget: dict[str, Any]
    changes: dict[str, Any]

    def folder(self, name: str, seed: int) -> Path:
        """Return the folder of a model with one seed."""
        return self.out / folder_name(name) / str(seed)

    def measure_model(self, name: str, seed: int) -> Measurement:
        """Train a model, or load it, and measure it; finished measurements are read."""
        folder, recipe = self.folder(name, seed), self.recipe.models[name]
        settings = {**PretrainSettings.dotted(self.recipe.settings), **self.changes, **self.budget}
        base = None if recipe.base is None else self.folder(recipe.base, seed) / PRETRAIN
        shards = Shards.open(self.data)
        baseline = train_baseline(recipe, folder, shards, settings, seed, base)
        task_settings = {**self.recipe.task_settings, **recipe.task_settings}
        if recipe.second_encoder is not None:
            task_settings["task.second_encoder"] = str(self.folder(recipe.second_encoder, seed) / PRETRAIN)
        data = PretrainSettings().changed(settings).data
        context = MeasureContext(self.files, folder, shards, data, task_settings, seed)
        return measure(baseline, context, self.recipe.measures)


def measure_models(job: dict[str, Any], models: Sequence[str], seed: int) -> dict[str, Any]:
    """Train and measure models with one seed, and return their measurements as JSON."""
    parsed = BaselinesJob.model_validate(job)
    return {name: parsed.measure_model(name, seed).model_dump(mode="json") for name in models}


def baselines(
    corpus: Shards | Sources,
    output_dir: str | Path,
    *,
    recipe: str | Path | None = None,
    models: Sequence[str] | None = None,
    tasks: str | Path | Mapping[str, Any] | None = None,
    pairs: str | Path | None = None,
    word_pairs: Sequence[str | Path] = (),
    analogies: str | Path | None = None,
    senses: str | Path | None = None,
    few_labels: Sequence[int] = (),
    minutes: float | None = None,
    tokens: int | None = None,
    seeds: int = 1,
    settings: Changes = (),
    jobs: int | None = None,
    resume: bool = False,
) -> BaselinesReport:
    """Train the models that came before BERT, and BERT, on one corpus, and measure all of them in the same way.

    Neural models have about the same number of parameters, the vocabulary of the shards, and the same budget.

    Args:
        corpus: Token shards of `prepare`, or text; for text, a tokenizer is trained and the text is prepared.
        output_dir: The folder for all runs, report.json, and report.html.
        recipe: A YAML file with the models, as in recipes/comparisons/; None: n-grams to BERT.
        models: Only these models of the recipe, and those that they are made from.
        tasks: The tasks of fine-tuning: a YAML file or a mapping of names to {verb, train, validation, settings}.
        pairs: Minimal pairs.
        word_pairs: Files of word pairs with similarities, such as WordSim-353: two words and a number per line.
        analogies: A file of analogies, four words per line.
        senses: A table with the columns word, text, and sense.
        few_labels: Numbers of training examples per class; the first task is repeated with each.
        minutes: The minutes of training, divided equally among the pre-trained models and word vectors of a seed;
            with several jobs, models are trained at the same time. Measuring comes on top. None: 30, unless
            `tokens` are given.
        tokens: The tokens that each pre-trained model reads, instead of minutes.
        seeds: The number of seeds 0, 1, …
        settings: Settings of all pre-training runs.
        jobs: The number of models at a time, each in its own process with its share of the cores; None: the number
            of cores.
        resume: Keep finished runs and continue unfinished ones.

    Returns:
        The report, which is also in output_dir/report.json and report.html.

    Raises:
        InputError: An argument, the recipe, a task, or a file is invalid; raised before anything is trained.
    """
    counts = {"seeds": [seeds], "few_labels": few_labels, "tokens": [] if tokens is None else [tokens]}
    for argument, values in counts.items():
        for value in values:
            check_positive(value, argument)
    out, table = atomic.output_path(output_dir), read_recipe(recipe or HISTORY)
    location = str(recipe or "the default recipe")
    names = table.select(models, location)
    changes = PretrainSettings.dotted(settings)
    ablation_recipe.check_no_seed(changes, argument="settings")
    jobs = jobs or hardware.available_cores()
    budget = _budget(table, names, minutes, tokens, jobs)
    synthetic = table.agreement_gaps, table.cloze_sides
    files = MeasureFiles.read(tasks, pairs, word_pairs, analogies, senses, few_labels, *synthetic)
    _check_measures(table, location)
    arguments = {
        "recipe": table.model_dump(mode="json"),
        "files": files.model_dump(mode="json"),
        "settings": changes,
        "budget": budget,
    }
    previous = previous_arguments(out / _ARGUMENTS, arguments, resume=resume)
    with atomic.folder_lock(out, "baselines"), keeping_runs(out):
        write_json(out / _ARGUMENTS, {**previous, **arguments})
        try:
            shards = _prepare(corpus, out)
            _check_settings(table, names, shards, {**changes, **budget}, location)
        except InputError:
            if not previous:
                for name in (_TOKENIZER, _SHARDS):
                    shutil.rmtree(out / name, ignore_errors=True)
                (out / _ARGUMENTS).unlink()
            raise
        job = BaselinesJob(
            recipe=table, out=out, data=shards.folder, files=files, budget=budget, changes=changes
        )
        return _measure_all(job, names, seeds, jobs)


def _budget(
    recipe: BaselinesRecipe, names: Sequence[str], minutes: float | None, tokens: int | None, jobs: int
) -> dict[str, Any]:
    """Return the settings of the budget of each pre-trained model."""
    if tokens is not None and minutes is not None:
        message, hint = "there are two budgets, minutes and tokens", f"remove {option('tokens')}"
        raise InputError("two_budgets", message, argument="tokens", hint=hint)
    if tokens is not None:
        return {"train.max_tokens": tokens}
    num_timed = max(1, sum(recipe.models[name].has_time_budget for name in names))
    minutes = _DEFAULT_MINUTES if minutes is None else minutes
    return {"train.max_minutes": minutes * min(jobs, num_timed) / num_timed}


def _prepare(corpus: Shards | Sources, out: Path) -> Shards:
    """Return the shards of a corpus; text is prepared with a tokenizer of its own."""
    corpus = open_prepared(corpus)
    if isinstance(corpus, Shards):
        return corpus
    folder, tokenizer = out / _SHARDS, out / _TOKENIZER
    if folder.exists():
        return Shards.open(folder)
    if not tokenizer.exists():
        train_tokenizer(corpus, tokenizer)
    return prepare(corpus, tokenizer, folder)


def _check_measures(recipe: BaselinesRecipe, location: str) -> None:
    if unknown := [name for name in recipe.measures or () if name not in MEASURES]:
        message, hint = f"there is no measure '{unknown[0]}'", f"the measures are {', '.join(MEASURES)}"
        raise InputError("measure_unknown", message, location=location, argument="measures", hint=hint)


def _check_settings(
    recipe: BaselinesRecipe, names: Sequence[str], shards: Shards, changes: Mapping[str, Any], location: str
) -> None:
    """Raise InputError if a model cannot be trained with its settings, or no documents can be held out."""
    data = PretrainSettings().changed({**PretrainSettings.dotted(recipe.settings), **changes}).data
    DocumentSplit.from_settings(shards, data)
    table = ablation_recipe.AblationRecipe(settings=recipe.settings, rows={})
    for name in names:
        model = recipe.models[name]
        if model.is_trained_by_pretrain:
            row = table.model_copy(update={"preset": model.preset, "rows": {name: model.settings}})
            ablation_recipe.check_rows(row, [name], shards.tokenizer, changes, location)
        elif model.kind == "ngram":
            NgramSettings.of(model.settings, f"{location}: model '{name}'").check()
        elif model.kind == "word_vectors":
            Word2VecSettings.of(model.settings, f"{location}: model '{name}'")


def _measure_all(job: BaselinesJob, names: Sequence[str], seeds: int, jobs: int) -> BaselinesReport:
    """Measure all models with all seeds; write the report after each group of models."""
    values = job.model_dump(mode="json")
    groups = list(_group_models(job.recipe, names))
    calls = [
        Call(
            {"job": values, "models": group, "seed": seed},
            f"{', '.join(group)}, seed {seed}",
            job.folder(group[0], seed) / "output.txt",
        )
        for seed in range(seeds)
        for group in groups
    ]
    results = (
        run_processes("bertsmith.experiments.baselines", calls, min(jobs, len(calls)))
        if jobs > 1 and len(calls) > 1
        else make_calls(measure_models, calls)
    )
    measurements: dict[str, dict[int, Measurement]] = {name: {} for name in names}
    for index, by_name in results:
        for name, measurement in by_name.items():
            measurements[name][calls[index].arguments["seed"]] = Measurement.model_validate(measurement)
        report = make_report(job.recipe, measurements, job.budget)
        write_report(job.out, report.to_dict())
    write_report_page(job.out / "report.html", report)
    return report


def _group_models(recipe: BaselinesRecipe, names: Sequence[str]) -> Iterator[list[str]]:
    """Yield models that are made from each other together, so that one process trains them in order."""
    groups: dict[str, list[str]] = {}
    group_of: dict[str, str] = {}
    for name in names:
        model = recipe.models[name]
        linked = {group_of[other] for other in (model.base, model.second_encoder) if other in group_of}
        group_of[name] = min(linked, key=list(groups).index) if linked else name
        for other in linked - {group_of[name]}:
            groups[group_of[name]] += groups.pop(other)
            group_of |= dict.fromkeys(groups[group_of[name]], group_of[name])
        groups.setdefault(group_of[name], []).append(name)
    yield from groups.values()


if __name__ == "__main__":
    answer_call(measure_models)
