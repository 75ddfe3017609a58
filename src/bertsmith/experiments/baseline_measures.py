"""The measures of a comparison, the same for every model that they apply to.

Left-to-right perplexities of one vocabulary are comparable with each other, but not with the pseudo-perplexity of
a masked model, which reads both sides (Salazar et al. 2020). Analogies are answered among the words of the
questions alone, since a contextual model has no vocabulary of words.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from bertsmith import hardware, rng
from bertsmith.artifacts.locate import read_report
from bertsmith.corpus.shards import Shards
from bertsmith.errors import InputError, option
from bertsmith.experiments.ablation_recipe import (
    AblationRecipe,
    TaskRecipe,
    check_task_files,
    folder_name,
    read_tasks,
)
from bertsmith.experiments.baseline_models import Baseline, held_out_chunks
from bertsmith.experiments.synthetic_tasks import Side, write_agreement, write_cloze
from bertsmith.finetuning.data import load_examples
from bertsmith.finetuning.report import FROZEN_ENCODER
from bertsmith.finetuning.run import finetune
from bertsmith.finetuning.settings import settings_type
from bertsmith.formatting import pluralize
from bertsmith.inference.minimal_pairs import read_pairs
from bertsmith.instances.settings import DataSettings
from bertsmith.io import atomic
from bertsmith.io.sources import to_source
from bertsmith.io.tables import read_table
from bertsmith.models.encoder import Encoder
from bertsmith.packed import Packed
from bertsmith.predecessors.word_evaluation import (
    evaluate_analogies,
    evaluate_similarity,
    read_analogies,
    read_word_pairs,
)
from bertsmith.predecessors.word_vectors import WordVectors
from bertsmith.runs.run_folder import REPORT, holds_run, write_json
from bertsmith.tasks import tfidf
from bertsmith.tasks.fitted_task import create_report
from bertsmith.tasks.registry import get_task

_MEASUREMENT = "measurement.json"
_RESULTS = {"metrics", "curves", "samples", "cheap_methods"}
_PERPLEXITY_TOKENS = 100_000
_PSEUDO_PERPLEXITY_TOKENS = 2_000  # each of which is a forward pass
_SPEED_LENGTHS = (8, 32, 128, 512)
_SPEED_REPEATS = 7
_PROMPTS = ("The city of", "In the year")
_IMPOSSIBLE = -1e9
_TIE = 1e-9  # nats per pair: equal sums in another order


class Measurement(BaseModel):
    """The results of a model with one seed.

    Attributes:
        parameters: The number of trained numbers.
        units: "pieces" or "words".
        tokens: The tokens of the training; None without one.
        seconds: The time of the training.
        metrics: Results by name; of tasks, fractions of 1.
        curves: Results by name and by length, layer, distance, or number of labels.
        samples: Continuations of prompts.
        cheap_methods: Results of cheap methods on the same examples, by metric and method.
    """

    model_config = ConfigDict(extra="forbid")

    parameters: int
    units: str
    tokens: int | None
    seconds: float
    metrics: dict[str, float] = Field(default_factory=dict)
    curves: dict[str, dict[str, float]] = Field(default_factory=dict)
    samples: dict[str, str] = Field(default_factory=dict)
    cheap_methods: dict[str, dict[str, float]] = Field(default_factory=dict)


class MeasureFiles(BaseModel, frozen=True):
    """The files that models are measured on, and the sizes of measures.

    Attributes:
        tasks: The tasks by name.
        pairs: The file of minimal pairs.
        word_pairs: The files of word pairs with similarities.
        analogies: The file of analogies.
        senses: The table of words, texts, and senses.
        few_labels: Numbers of training examples per class, for the first task.
        agreement_gaps: Distances of the agreement task, in words.
        cloze_sides: The sides of the evidence in the cloze task.
    """

    tasks: dict[str, TaskRecipe]
    pairs: str | None
    word_pairs: list[str]
    analogies: str | None
    senses: str | None
    few_labels: list[int]
    agreement_gaps: list[int]
    cloze_sides: list[Side]

    @classmethod
    def read(
        cls,
        tasks: str | Path | Mapping[str, Any] | None,
        pairs: str | Path | None,
        word_pairs: Sequence[str | Path],
        analogies: str | Path | None,
        senses: str | Path | None,
        few_labels: Sequence[int],
        agreement_gaps: Sequence[int],
        cloze_sides: Sequence[Side],
    ) -> MeasureFiles:
        """Check all files; raise InputError for one that cannot be read."""
        recipes, location = read_tasks(tasks, AblationRecipe(), "tasks")
        for name, task in recipes.items():
            check_task_files(task.verb, _task_settings(task, f"{location}: {name}"))
        if pairs is not None:
            read_pairs(pairs)
        for file in word_pairs:
            list(read_word_pairs(file))
        if analogies is not None:
            list(read_analogies(analogies))
        if senses is not None:
            _read_senses(str(senses))
        if few_labels and not recipes:
            message, hint = "there is no task whose labels could be few", f"name one with {option('tasks')}"
            raise InputError("task_missing", message, argument="few_labels", hint=hint)
        if few_labels:
            _check_few_labels(next(iter(recipes.values())), max(few_labels))
        return cls(
            tasks=recipes,
            pairs=None if pairs is None else str(pairs),
            word_pairs=list(map(str, word_pairs)),
            analogies=None if analogies is None else str(analogies),
            senses=None if senses is None else str(senses),
            few_labels=list(few_labels),
            agreement_gaps=list(agreement_gaps),
            cloze_sides=list(cloze_sides),
        )


@dataclass(frozen=True)
class MeasureContext:
    """The arguments of a measure besides the model.

    Attributes:
        files: The files.
        folder: The folder of the model and seed, for fine-tuning runs.
        shards: The corpus.
        data: The data settings of all pre-training runs, by which documents are held out.
        task_settings: Settings of fine-tuning.
        seed: The seed of fine-tuning and of samples.
    """

    files: MeasureFiles
    folder: Path
    shards: Shards
    data: DataSettings
    task_settings: Mapping[str, Any]
    seed: int


def measure(baseline: Baseline, context: MeasureContext, measures: Sequence[str] | None) -> Measurement:
    """Measure a model by all measures, or by some; finished ones are read from the folder."""
    file = context.folder / _MEASUREMENT
    done = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    sizes = {name: getattr(baseline, name) for name in ("parameters", "units", "tokens", "seconds")}
    result = Measurement(**sizes)
    for name, function in MEASURES.items():
        if measures is not None and name not in measures:
            continue
        if name not in done:
            part = Measurement(**sizes)
            function(baseline, context, part)
            done[name] = part.model_dump(include=_RESULTS)
            write_json(file, done)
        for group in _RESULTS:
            getattr(result, group).update(done[name][group])
    return result


# Each measure adds its results to a measurement, or nothing if it does not apply to the model.


def measure_perplexity(baseline: Baseline, context: MeasureContext, result: Measurement) -> None:
    """Measure the perplexity per piece on validation documents, special tokens excluded."""
    is_left_to_right = baseline.is_left_to_right
    limit = _PERPLEXITY_TOKENS if is_left_to_right else _PSEUDO_PERPLEXITY_TOKENS
    log_probability = baseline.log_probability(held_out_chunks(context.shards, context.data, limit))
    if log_probability is not None:
        name = "perplexity" if is_left_to_right else "pseudo-perplexity"
        mean = -log_probability.total / log_probability.tokens
        result.metrics[name] = math.exp(mean) if mean < 700 else math.inf


def measure_pairs(baseline: Baseline, context: MeasureContext, result: Measurement) -> None:
    """Measure the accuracy on minimal pairs, with ties as wrong and as right answers."""
    if context.files.pairs is None:
        return
    pairs = read_pairs(context.files.pairs)
    scores = baseline.score(pairs.sentences)
    if scores is None:
        return
    finite = np.nan_to_num(scores, neginf=_IMPOSSIBLE)  # an n-gram model without smoothing may say 0
    good, bad = finite.reshape(2, -1)
    is_tie = np.abs(good - bad) < _TIE
    result.metrics["minimal pairs"] = float(np.mean((good > bad) & ~is_tie))
    result.metrics["minimal pairs, ties right"] = float(np.mean((good > bad) | is_tie))


def measure_words(baseline: Baseline, context: MeasureContext, result: Measurement) -> None:
    """Measure the rank correlation of cosines with the similarity of word pairs, and the accuracy of analogies.

    The vector of a word is that of the word alone.
    """
    for file in context.files.word_pairs:
        words = [word for pair in read_word_pairs(file) for word in pair[:2]]
        if (vectors := _word_vectors(baseline, words)) is None:
            return
        similarity, name = evaluate_similarity(vectors, file), Path(file).stem
        result.metrics[f"{name} coverage"] = similarity.coverage
        if not math.isnan(similarity.spearman):  # as that of one-hot vectors, which are all at one distance
            result.metrics[f"{name} Spearman"] = similarity.spearman
    if (analogies := context.files.analogies) is not None:
        words = [word for _, question in read_analogies(analogies) for word in question]
        if (vectors := _word_vectors(baseline, words)) is not None:
            score = evaluate_analogies(vectors, analogies)
            result.metrics["analogies coverage"] = score.coverage
            if score.coverage:
                result.metrics["analogies"] = score.accuracy


def _word_vectors(baseline: Baseline, words: Sequence[str]) -> WordVectors | None:
    """Return the vectors of words that the model knows; None if it has no vectors."""
    distinct = list(dict.fromkeys(word.lower() for word in words))
    if (matrix := baseline.embed(distinct)) is None:
        return None
    rows = np.flatnonzero((matrix != 0).any(axis=1))
    return WordVectors([distinct[row] for row in rows], matrix[rows])


def measure_senses(baseline: Baseline, context: MeasureContext, result: Measurement) -> None:
    """Measure by layer how often the nearest occurrence of a word has the same sense."""
    if context.files.senses is None:
        return
    for word, rows in _read_senses(context.files.senses).items():
        if baseline.model is None:
            if baseline.embed([word]) is not None:  # the same vector in all occurrences
                result.metrics[f"{word}, senses"] = _chance(rows)
            continue
        neighbors = baseline.model.neighbors(word, rows, sense_column="sense")
        curve = {str(s.representation): s.accuracy for s in neighbors.separations if s.accuracy is not None}
        result.curves[f"{word}, senses by layer"] = curve
        layers = [value for name, value in curve.items() if name.isdigit()]
        result.metrics[f"{word}, senses"] = max(layers)


def _chance(rows: Sequence[Mapping[str, str]]) -> float:
    """Return the accuracy of random neighbors."""
    senses = [row["sense"] for row in rows]
    return float(np.mean([(senses.count(sense) - 1) / (len(senses) - 1) for sense in senses]))


def _read_senses(file: str) -> dict[str, list[dict[str, str]]]:
    """Return the texts and senses of each word of a table."""
    table = read_table(to_source(file, "senses"))
    words, texts, senses = (table.strings(column) for column in ("word", "text", "sense"))
    rows: dict[str, list[dict[str, str]]] = {}
    for word, text, sense in zip(words, texts, senses, strict=True):
        rows.setdefault(word, []).append({"text": text, "sense": sense})
    return rows


def measure_tasks(baseline: Baseline, context: MeasureContext, result: Measurement) -> None:
    """Fine-tune for each task; the frozen encoder with a linear head and cheap methods are measured on the way."""
    for name, task in context.files.tasks.items():
        scores = _score_task(baseline, context, name, task)
        result.metrics |= {f"{name}{kind}": score for kind, score in scores.items()}
        result.cheap_methods |= _cheap_scores(context.folder / folder_name(name), name)


def _cheap_scores(run: Path, name: str) -> dict[str, dict[str, float]]:
    """Return the scores of the cheap methods of a task's run, such as TF-IDF; {} without a run."""
    report = read_report(run / REPORT)
    methods = report.get("baselines", {})
    scores = {m: float(methods[m][report["decided_by"]]) for m in methods if m != FROZEN_ENCODER}
    return {name: scores} if scores else {}


def measure_few_labels(baseline: Baseline, context: MeasureContext, result: Measurement) -> None:
    """Repeat the first task with samples of training examples, which have a number of examples of each class."""
    for name, task in list(context.files.tasks.items())[:1]:
        for per_class in context.files.few_labels:
            file = context.folder / f"{folder_name(name)}-{per_class}.jsonl"
            few = task.model_copy(update={"train": str(_write_sample(task, per_class, file, context.seed))})
            scores = _score_task(baseline, context, f"{name} {per_class}", few)
            for kind, score in scores.items():
                curve = result.curves.setdefault(f"{name}{kind} by labels per class", {})
                curve[str(per_class)] = score


def _score_task(baseline: Baseline, context: MeasureContext, name: str, task: TaskRecipe) -> dict[str, float]:
    """Return the task's primary metric: "" fine-tuned, " frozen" for a linear model on frozen vectors."""
    declaration, settings_class = get_task(task.verb), settings_type(get_task(task.verb))
    if baseline.model is not None:
        run = context.folder / folder_name(name)
        files: dict[str, Any] = {"train": task.train, "validation": task.validation}
        settings = settings_class.dotted(task.settings) | settings_class.dotted(context.task_settings)
        settings |= {"train.seed": context.seed, "train.report_to": "none"}
        tuned = finetune(task.verb, baseline.model, run, **files, settings=settings, resume=holds_run(run))
        metric = tuned.task.primary_metric
        scores = {"": float(tuned.report["validation"][metric])}
        if FROZEN_ENCODER in tuned.report["baselines"]:
            scores[" frozen"] = float(tuned.report["baselines"][FROZEN_ENCODER][metric])
        return scores
    settings = _task_settings(task)
    examples = load_examples(declaration, settings.files, settings.task)
    metrics = create_report(declaration, examples.metadata, settings.task).metrics
    vectorize = partial(_embed_examples, baseline)
    if vectorize(examples.train[:1], examples.validation[:1])[0] is None:
        return {}
    results = metrics.text_baselines(examples.train, examples.validation, vectorize)
    if tfidf.NAME not in results:  # the task has no linear model of text vectors
        return {}
    return {" frozen": float(results[tfidf.NAME].values[metrics.primary_metric])}


def _embed_examples(baseline: Baseline, train: Sequence[Any], validation: Sequence[Any]) -> tuple[Any, Any]:
    """Return the vectors of examples; of two texts u and v those of both, |u - v|, and u * v."""

    def embed(examples: Sequence[Any]) -> NDArray[np.float32] | None:
        columns = zip(*([str(t) for t in e.display_inputs.values()] for e in examples), strict=True)
        vectors = [matrix for column in columns if (matrix := baseline.embed(column)) is not None]
        if len(vectors) == 2:
            u, v = vectors
            vectors += [np.abs(u - v), u * v]
        return np.concatenate(vectors, axis=1) if vectors else None

    return embed(train), embed(validation)


def _task_settings(task: TaskRecipe, location: str = "settings") -> Any:
    files = {"files": {"train": task.train, "validation": task.validation}}
    return settings_type(get_task(task.verb)).of(files, location).changed(task.settings)


def _write_sample(task: TaskRecipe, per_class: int, file: Path, seed: int) -> Path:
    """Write random training examples: of each class as many as asked for, or all if it has fewer.

    An example with several labels, such as tags, counts for each of them.
    """
    settings, declaration = _task_settings(task), get_task(task.verb)
    examples, labels = _training_labels(task)
    data = declaration.part("data")(settings.task, {})
    missing = Counter({label: per_class for names in labels for label in names})
    rows = []
    for i in rng.permutation(seed, "few labels", len(examples)).tolist():
        if any(missing[label] > 0 for label in labels[i]):
            missing.subtract(labels[i])
            rows.append(json.dumps(data.to_row(examples[i]), ensure_ascii=False) + "\n")
    atomic.write_text(file, "".join(rows))
    return file


def _training_labels(task: TaskRecipe) -> tuple[list[Any], list[set[str]]]:
    """Return the training examples, and the labels that each has."""
    settings, declaration = _task_settings(task), get_task(task.verb)
    examples = load_examples(declaration, settings.files, settings.task)
    metrics = create_report(declaration, examples.metadata, settings.task).metrics
    return examples.train, list(map(set, metrics.labels(examples.train)))


def _check_few_labels(task: TaskRecipe, per_class: int) -> None:
    """Raise InputError if the task has fewer training examples."""
    examples, labels = _training_labels(task)
    num_labels, num_examples = len(set().union(*labels)), len(examples)
    if not num_labels:
        message, hint = (
            f"the task {task.verb} has no classes",
            "name a task with classes first, such as classify",
        )
        raise InputError("no_classes", message, argument="few_labels", hint=hint)
    if per_class * num_labels > num_examples:
        message = (
            f"{per_class:,} examples of each of {pluralize(num_labels, 'class', 'classes')} are more than the "
            f"{pluralize(num_examples, 'example')} of {task.train}"
        )
        hint = f"name numbers up to {num_examples // num_labels:,}"
        raise InputError("too_few_examples", message, argument="few_labels", hint=hint)


def measure_agreement(baseline: Baseline, context: MeasureContext, result: Measurement) -> None:
    """Fine-tune to tell at the end of a text which of four words its first sentence has."""
    for gap in context.files.agreement_gaps:
        write = partial(write_agreement, gap=gap)
        score = _score_synthetic(baseline, context, "classify", f"agreement {gap}", write)
        if score is not None:
            result.curves.setdefault("agreement by distance", {})[str(gap)] = score


def measure_cloze(baseline: Baseline, context: MeasureContext, result: Measurement) -> None:
    """Fine-tune to fill a gap from the gap's own state, by evidence on the left, on the right, or on both."""
    for side in context.files.cloze_sides:
        write = partial(write_cloze, side=side)
        score = _score_synthetic(baseline, context, "tag", f"cloze {side}", write)
        if score is not None:
            result.metrics[f"cloze, evidence {side}"] = score


def _score_synthetic(
    baseline: Baseline, context: MeasureContext, verb: str, name: str, write: Callable[..., Path]
) -> float | None:
    """Return the score of a neural model that is fine-tuned on made-up examples."""
    if baseline.model is None:
        return None
    suffix = ".csv" if verb == "classify" else ".tsv"
    train, validation = (
        write(context.folder / f"{folder_name(name)}-{part}{suffix}", size=size, seed=seed)
        for part, size, seed in (("train", 800, 1), ("validation", 400, 2))
    )
    length = {"task.max_length": min(512, baseline.model.folder.config.max_length)}
    task = TaskRecipe(verb=verb, train=str(train), validation=str(validation), settings=length)
    return _score_task(baseline, context, name, task)[""]


def measure_speed(baseline: Baseline, context: MeasureContext, result: Measurement) -> None:
    """Measure the time per token of the forward pass of one text, by its length in tokens."""
    if baseline.model is None:
        return
    encoder, config = baseline.model.encoder, baseline.model.folder.config
    lengths = [length for length in _SPEED_LENGTHS if length <= config.max_length]
    curve = {str(length): 1e6 * _seconds(encoder, length) / length for length in lengths}
    result.curves["microseconds per token by tokens of the text"] = curve


def _seconds(encoder: Encoder, length: int) -> float:
    """Return the median time of the forward pass of a text."""
    ids = rng.integers(0, "speed", encoder.config.vocab_size, np.arange(length)).astype(np.int64)
    packed = Packed.from_arrays(ids, np.zeros_like(ids), np.array([length]))
    times = []
    with torch.inference_mode():
        for _ in range(_SPEED_REPEATS):
            start = hardware.clock()
            encoder(packed)
            times.append(hardware.clock() - start)
    return median(times[1:])


def measure_samples(baseline: Baseline, context: MeasureContext, result: Measurement) -> None:
    """Sample continuations of prompts."""
    for prompt in _PROMPTS:
        if (sample := baseline.continue_text(prompt, context.seed)) is not None:
            result.samples[prompt] = sample


MEASURES: dict[str, Callable[[Baseline, MeasureContext, Measurement], None]] = {
    "perplexity": measure_perplexity,
    "pairs": measure_pairs,
    "words": measure_words,
    "senses": measure_senses,
    "tasks": measure_tasks,
    "few_labels": measure_few_labels,
    "agreement": measure_agreement,
    "cloze": measure_cloze,
    "speed": measure_speed,
    "samples": measure_samples,
}
"""The measures by name, in the order in which they are made."""
