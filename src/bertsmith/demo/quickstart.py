"""`bertsmith quickstart`: all steps from text to a table of scores, on documentation of installed libraries."""

from __future__ import annotations

import logging
import shlex
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from bertsmith import console
from bertsmith.artifacts.folder import write_folder
from bertsmith.corpus.prepare import prepare
from bertsmith.corpus.shards import Shards
from bertsmith.demo import documentation
from bertsmith.demo.documentation import Library
from bertsmith.demo.task import (
    QuickstartTask,
    make_task,
    score_linear_baseline,
    score_majority_baseline,
    write_task,
)
from bertsmith.errors import Stopped, option
from bertsmith.finetuning.run import finetune
from bertsmith.formatting import pluralize
from bertsmith.inference.model import Model
from bertsmith.io import atomic
from bertsmith.io.documents import Document
from bertsmith.objectives.objective import MODEL
from bertsmith.pretraining.model import first_weights
from bertsmith.pretraining.run import pretrain
from bertsmith.pretraining.settings import PretrainSettings
from bertsmith.reports.run import StepTimer
from bertsmith.runs.run_folder import SETTINGS, write_report, write_whole
from bertsmith.tokenizer_training.train import train_tokenizer

_PRESET = "bert-tiny-uncased"
_VOCAB_SIZE = 6_000
_MAX_STEPS = 1_800  # three to four minutes on two idle cores
_MAX_MINUTES = 5.0  # of pre-training, unless the user sets them: the quickstart then takes about six
# In addition to the recipe of a model of this size (pretraining/recipe.py): short sequences with more
# masked tokens. benchmarks/tried.md lists alternatives.
PRETRAINING_SETTINGS = {
    "model.num_attention_heads": 4,
    "model.max_position_embeddings": 64,
    "data.sequence_length": 64,
    "data.mlm_probability": 0.35,
    "data.validation_split": 0.02,
    "train.batch_size": 32,
    "train.save_steps": 1000,
    "train.report_to": "none",
}
# The same for the pre-trained and the untrained BERT. After pre-training at a high learning rate, fine-tuning can
# use a high one, too.
FINETUNING_SETTINGS = {
    "model.hidden_dropout_prob": 0,
    "model.attention_probs_dropout_prob": 0,
    "train.max_steps": 60,
    "train.batch_size": 16,
    "train.learning_rate": 0.0005,
    "train.save_steps": 1000,
    "train.report_to": "none",
}
_MAX_LISTED_LIBRARIES = 8
MASKED_SENTENCES = (
    "Returns a new [MASK] with the same shape as the input.",
    "If [MASK] is given, it is used as the default value.",
    "Raises an [MASK] if the file does not exist.",
    "The number of [MASK] to wait before the connection is closed.",
)

logger = logging.getLogger(__name__)


def quickstart(
    output_dir: str | Path,
    *,
    seed: int = 0,
    minutes: float | None = None,
    libraries: Sequence[Library] | None = None,
    steps: int | None = None,
) -> dict[str, Any]:
    """Train a tokenizer and a BERT on installed documentation, and compare the BERT with baselines on a task.

    Args:
        output_dir: A new or empty folder for corpus.txt, the CSV files of the task, and all runs.
        seed: The seed of all random numbers.
        minutes: The duration of pre-training. The default is 1,800 updates, or as many as fit into five minutes.
        libraries: The libraries whose documentation to read; by default all installed dependencies of bertsmith.
        steps: The number of updates of pre-training, for tests.

    Returns:
        The report, which is also written to output_dir/report.json.

    Raises:
        InputError: The folder is not empty, or there is too little documentation.
        Stopped: Ctrl-C was pressed.
    """
    out = Path(output_dir)
    atomic.check_output_folder(out, in_place=True)
    limits = {"train.max_steps": steps, "train.max_minutes": minutes}
    budget: dict[str, Any] = {name: limit for name, limit in limits.items() if limit is not None}
    if not budget:
        budget = {"train.max_steps": _MAX_STEPS, "train.max_minutes": _MAX_MINUTES}
    PretrainSettings().changed(budget)  # refuse invalid values before reading the text
    with _report_stop(out):
        return _run(out, seed, budget, libraries)


def _run(
    out: Path, seed: int, budget: Mapping[str, Any], libraries: Sequence[Library] | None
) -> dict[str, Any]:
    timer = StepTimer()
    libraries = documentation.installed() if libraries is None else libraries
    with timer.step("read"):
        task = make_task(_read_documents(libraries), seed)
        corpus, files = out / "corpus.txt", write_task(task, out / "task")
        write_whole(corpus, "\n\n".join(document.text for document in task.pretraining_documents) + "\n")
        word_counts = documentation.count_words(task.pretraining_documents)
        num_words = pluralize(word_counts.total(), "word")
        num_documents = pluralize(len(task.pretraining_documents), "document")
        logger.info("1/5 %s: %s of documentation in %s", corpus, num_words, num_documents)
    with timer.step("prepare"):
        tokenizer = train_tokenizer([corpus], out / "tokenizer", vocab_size=_VOCAB_SIZE)
        shards = prepare([corpus], tokenizer, out / "shards")
        vocabulary, tokens = f"{tokenizer.vocab_size:,}", pluralize(shards.tokens, "token")
        logger.info("2/5 %s: a vocabulary of %s; %s", out / "tokenizer", vocabulary, tokens)
    with timer.step("pretrain"):
        bert = _pretrain(shards, out / "bert", seed, budget)
    with timer.step("finetune"):
        logger.info("4/5 fine-tuning it, and the same BERT with random weights")
        scores = _score_models(out, bert, task, files, seed)
    versions = {library.name: library.version for library in libraries}
    report = {
        "output_dir": str(out),
        "seed": seed,
        "seconds": round(timer.total(), 1),
        "wall_time": timer.to_list(),
        "machine": {"threads": bert.report["threads"], "precision": bert.report["precision"]},
        "corpus": {
            "documents": len(task.pretraining_documents),
            "words": word_counts.total(),
            "held_out_documents": len(task.held_out_documents),
            "libraries": [
                {"name": name, "version": versions[name], "words": count}
                for name, count in word_counts.most_common()
            ],
        },
        "pretrain": {k: bert.report[k] for k in ("steps", "tokens", "seconds", "held_out")},
        "masks": [{"text": text, "answers": _fill_mask(bert, text)} for text in MASKED_SENTENCES],
        "task": {
            "labels": task.labels,
            "sentences": {part: len(rows) for part, rows in task.parts.items()},
            "files": {part: str(file) for part, file in files.items()},
        },
        "scores": scores,
    }
    write_report(out, report)
    logger.info("5/5 %s", out / "report.json")
    return report


def _read_documents(libraries: Sequence[Library]) -> list[Document]:
    num_files = sum(len(library.files) for library in libraries)
    with console.ProgressBar("reading", num_files) as bar:
        return list(documentation.documents(libraries, lambda done: bar.update(done, "source files")))


def _pretrain(shards: Shards, run: Path, seed: int, budget: Mapping[str, Any]) -> Model:
    logger.info("3/5 %s: pre-training a BERT with 2 layers and hidden size 128", run)
    settings = {**PRETRAINING_SETTINGS, "train.seed": seed, **budget}
    bert = pretrain(shards, run, preset=_PRESET, settings=settings)
    if bert.report["steps"] < _MAX_STEPS == budget.get("train.max_steps"):
        message = "only %s of %s fit into the time limit: expect lower scores"
        logger.warning(message, pluralize(bert.report["steps"], "update"), f"{_MAX_STEPS:,}")
    return bert


def _fill_mask(bert: Model, text: str) -> list[dict[str, Any]]:
    return [prediction.to_dict() for prediction in bert.fill_mask(text, top_k=3)[0]]


@contextmanager
def _report_stop(out: Path) -> Iterator[None]:
    """On Ctrl-C or SIGTERM raise Stopped without the hint of the inner runs, which tells how to resume them."""
    try:
        yield
    except (Stopped, KeyboardInterrupt) as stop:
        number = stop.exit_code - 128 if isinstance(stop, Stopped) else signal.SIGINT
        if not out.exists():
            raise Stopped(number, f"{out}: the quickstart was stopped before it wrote anything") from None
        remedy = f"run rm -r {shlex.quote(str(out))} first, or use another {option('output_dir')}"
        message = f"{out}: the quickstart was stopped; its files are incomplete"
        raise Stopped(number, message, f"to start again, {remedy}") from None


def _score_models(
    out: Path, bert: Model, task: QuickstartTask, files: Mapping[str, Path], seed: int
) -> list[dict[str, Any]]:
    """Return the test scores of both baselines and both BERTs."""
    scores: list[dict[str, Any]] = [
        {"model": "majority", **score_majority_baseline(task)},
        {"model": "TF-IDF + linear", **score_linear_baseline(task)},
    ]
    settings = {**FINETUNING_SETTINGS, "train.seed": seed, "train.precision": bert.report["precision"]}
    for name, base, run in (
        ("BERT without pre-training", write_untrained_model(out / "fresh", bert), out / "classifier-fresh"),
        ("pre-trained BERT", bert.path, out / "classifier-bert"),
    ):
        classifier = finetune(
            "classify", base, run, train=files["train"], validation=files["validation"], settings=settings
        )
        metrics = classifier.evaluate(files["test"]).values
        values = {metric: metrics[metric] for metric in ("accuracy", "macro_f1")}
        scores.append({"model": name, "run": str(run), **values})
    return scores


def write_untrained_model(folder: Path, bert: Model) -> Path:
    """Write a model folder with the initial weights of a pre-training run, and return its path.

    Unlike in the run, token embeddings are random instead of initialized from the corpus.

    Args:
        folder: The folder to write.
        bert: The model of the run.
    """
    settings = PretrainSettings.from_file(bert.path / SETTINGS)
    encoder, objective = first_weights(settings, torch.Generator().manual_seed(settings.train.seed))
    parts = objective.export(encoder)[MODEL]
    return write_folder(folder, parts.config, parts.modules, tokenizer=bert.tokenizer)


_SUMMARY = """On held-out documents: {metrics}.
{tokens} in {pretraining_time}; all steps {total_time} on {threads}.

Labels: {labels}. {train} labeled sentences for training, {validation} for validation, {test:,} for testing; none \
of them names a label.
Text: {words:.1f} million words of documentation of {libraries}.
The task's sentences come from held-out modules; the pre-training text comes from other modules of the same \
libraries.

Try the models:
  bertsmith fill-mask {bert} "Returns the [MASK] of the array."
  bertsmith predict {classifier} "Returns the rank of a matrix."

The same steps with your own files:
  bertsmith tokenizer train *.txt --output-dir tokenizer --vocab-size 16000
  bertsmith data prepare *.txt --tokenizer tokenizer --output-dir shards
  bertsmith pretrain --data shards --output-dir bert --minutes 60
  bertsmith finetune classify --model bert --train train.csv \\
      --validation validation.csv --output-dir mine
  bertsmith evaluate mine --data test.csv"""


def print_report(report: dict[str, Any]) -> None:
    """Print filled masks, tables of scores, the data behind them, and commands to continue with."""
    task, pretraining, scores = report["task"], report["pretrain"], report["scores"]
    console.print_result("Masks filled by the pre-trained BERT:")
    for mask in report["masks"]:
        answers = ", ".join(f"{_quote_punctuation(a['token'])} {a['score']:.0%}" for a in mask["answers"])
        console.print_result(f"  {mask['text']}\n      {answers}")
    console.print_result("")
    console.print_table(
        f"Which of {len(task['labels'])} libraries does a sentence come from?",
        ["", "accuracy", "macro F1"],
        [(s["model"], f"{s['accuracy']:.1%}", f"{s['macro_f1']:.1%}") for s in scores],
    )
    linear, untrained, pretrained = scores[-3:]  # in the order of _score_models
    gains = ", ".join(
        _format_gain(100 * (pretrained["accuracy"] - baseline["accuracy"]), name)
        for baseline, name in ((untrained, "random weights"), (linear, linear["model"]))
    )
    console.print_result(f"Pre-training: {gains}.")
    metrics = [f"{name.replace('_', ' ')} {value:.2f}" for name, value in pretraining["held_out"].items()]
    summary = _SUMMARY.format(
        metrics=", ".join(metrics),
        tokens=pluralize(pretraining["tokens"], "token"),
        pretraining_time=console.format_duration(pretraining["seconds"]),
        total_time=console.format_duration(report["seconds"]),
        threads=pluralize(report["machine"]["threads"], "thread"),
        labels=", ".join(task["labels"]),
        **task["sentences"],
        words=report["corpus"]["words"] / 1e6,
        libraries=_describe_libraries(report["corpus"]["libraries"]),
        bert=shlex.quote(str(Path(report["output_dir"]) / "bert")),
        classifier=shlex.quote(pretrained["run"]),
    )
    console.print_result(summary)


def _format_gain(points: float, name: str) -> str:
    return f"{points:+.1f} points over {name}" if points >= 0 else f"{-points:.1f} points below {name}"


def _quote_punctuation(token: str) -> str:
    return token if any(map(str.isalnum, token)) else f'"{token}"'


def _describe_libraries(libraries: Sequence[Mapping[str, Any]]) -> str:
    listed = libraries[:_MAX_LISTED_LIBRARIES]
    names = ", ".join(f"{library['name']} {library['version']}" for library in listed)
    more = len(libraries) - _MAX_LISTED_LIBRARIES
    return f"{names} and {more} smaller ones" if more > 0 else names
