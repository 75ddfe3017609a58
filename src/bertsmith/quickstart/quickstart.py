"""`bertsmith quickstart`: all steps from text to a table of scores, on documentation of installed libraries."""

from __future__ import annotations

import json
import logging
import math
import shlex
import signal
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from bertsmith import console
from bertsmith.artifacts.folder import write_folder
from bertsmith.corpus.prepare import prepare
from bertsmith.errors import Stopped, option
from bertsmith.finetuning.run import finetune
from bertsmith.formatting import pluralize
from bertsmith.inference.model import Model, load
from bertsmith.io import atomic, documentation
from bertsmith.io.documentation import Library
from bertsmith.io.files import Document
from bertsmith.models.family import preset
from bertsmith.objectives.objective import MODEL
from bertsmith.pretraining.model_init import first_weights
from bertsmith.pretraining.recipe import learning_settings
from bertsmith.pretraining.run import pretrain
from bertsmith.pretraining.settings import PretrainSettings
from bertsmith.pretraining.speed_probe import timed_on_random_text
from bertsmith.quickstart.pairs import make_pairs, score_bigram_model, score_model
from bertsmith.quickstart.task import (
    QuickstartTask,
    make_task,
    score_linear_baseline,
    score_majority_baseline,
    write_task,
)
from bertsmith.runs.run_folder import SETTINGS, place_of, write_report, write_whole
from bertsmith.tokenizer_training.train import train_tokenizer

_PRESET = "bert-tiny-uncased"
_VOCAB_SIZE = 6_000
_MAX_STEPS = 1_800  # three to four minutes on two idle cores
_MAX_MINUTES = 5.0  # of pre-training, unless the user sets them: the quickstart then takes about six
_PREPARE_TIME_RATIO = (
    2.0  # time to train the tokenizer and write shards, relative to the time to read the text
)
_PROBE_SECONDS = 3.0  # to measure the time of an update
_FINETUNING_UPDATES = 150  # updates of pre-training that take as long as fine-tuning twice and scoring
_MIN_USEFUL_STEPS = 100  # with fewer, a model learns little more than word frequencies
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
MASKED_SENTENCES = (
    "Returns a new [MASK] with the same shape as the input.",
    "If [MASK] is given, it is used as the default value.",
    "Raises an [MASK] if the file does not exist.",
    "The number of [MASK] to wait before the connection is closed.",
)
_MODEL_NAMES = {  # by folder
    "fresh": "BERT without pre-training",
    "bert": "pre-trained BERT",
}

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
        output_dir: A new or empty folder for corpus.txt, task/*.csv, and all runs.
        seed: The seed of all random numbers.
        minutes: The duration of pre-training. The default is 1,800 updates, or as many as fit into five minutes.
        libraries: The libraries whose documentation to read; by default all installed dependencies of bertsmith.
        steps: The number of updates of pre-training, for tests.

    Returns:
        The report, which is also written to out/report.json.

    Raises:
        InputError: The folder is not empty, or there is too little documentation.
        Stopped: Ctrl-C was pressed.
    """
    out = Path(output_dir)
    atomic.check_output_folder(out, in_place=True)
    budget: dict[str, Any]
    if steps is None and minutes is None:
        budget = {"train.max_steps": _MAX_STEPS, "train.max_minutes": _MAX_MINUTES}
    else:
        budget = {"train.max_minutes": minutes} if steps is None else {"train.max_steps": steps}
    PretrainSettings().changed(budget)  # refuse invalid values before reading the text
    with _report_stop(out):
        return _run(out, seed, budget, libraries)


def _run(
    out: Path, seed: int, budget: Mapping[str, Any], libraries: Sequence[Library] | None
) -> dict[str, Any]:
    timer = _Timer()
    libraries = documentation.installed() if libraries is None else libraries
    documents = _read_documents(libraries)
    task = make_task(documents, seed)
    corpus = out / "corpus.txt"
    write_whole(corpus, "\n\n".join(document.text for document in task.pretraining_documents) + "\n")
    files = write_task(task, out / "task")
    num_words = documentation.blank_separated_words(task.pretraining_documents)
    logger.info(
        "1/5 %s: %s of documentation in %s",
        corpus,
        pluralize(num_words, "word"),
        pluralize(len(task.pretraining_documents), "document"),
    )
    timer.record("read")
    _log_estimated_time(budget, sum(timer.seconds.values()), seed)
    tokenizer = train_tokenizer([corpus], out / "tokenizer", vocab_size=_VOCAB_SIZE)
    shards = prepare([corpus], tokenizer, out / "shards")
    logger.info(
        "2/5 %s: a vocabulary of %s; %s",
        out / "tokenizer",
        f"{tokenizer.vocab_size:,}",
        pluralize(shards.tokens, "token"),
    )
    timer.record("prepare")
    logger.info("3/5 %s: pre-training a BERT with 2 layers and hidden size 128", out / "bert")
    bert = pretrain(
        shards,
        out / "bert",
        preset=_PRESET,
        settings={**PRETRAINING_SETTINGS, "train.seed": seed, **budget},
    )
    _warn_of_few_steps(bert.report["steps"], budget)
    timer.record("pretrain")
    masks = [{"text": text, "answers": bert.fill_mask(text, top_k=3)[0]} for text in MASKED_SENTENCES]
    logger.info("4/5 fine-tuning it, and the same BERT with random weights")
    scores = _score_models(out, bert, task, files, seed)
    timer.record("finetune")
    pairs = _score_pairs(out, bert, task, seed)
    timer.record("pairs")
    report = {
        "output_dir": str(out),
        "seed": seed,
        "seconds": round(sum(timer.seconds.values()), 1),
        "seconds_of": timer.seconds,
        "machine": {"threads": bert.report["threads"], "precision": bert.report["precision"]},
        "corpus": _describe_corpus(libraries, task, num_words),
        "pretrain": {k: bert.report[k] for k in ("steps", "tokens", "seconds", "held_out")},
        "masks": masks,
        "task": _describe_task(task, files),
        "scores": scores,
        "pairs": pairs,
    }
    write_report(out, report)
    logger.info("5/5 %s", out / "report.json")
    return report


def _log_estimated_time(budget: Mapping[str, Any], seconds_so_far: float, seed: int) -> None:
    """Log an estimate of the remaining time, from the time of updates on random text."""
    sizes = preset(_PRESET).model_dump()
    values = learning_settings(sizes)
    values["model"] = sizes | values["model"] | {"vocab_size": _VOCAB_SIZE}
    settings = PretrainSettings.of(values, "quickstart").changed(
        {**PRETRAINING_SETTINGS, "train.seed": seed, **budget}
    )
    context = place_of(settings.train, settings.model)
    seconds, _ = timed_on_random_text(settings, context, _PROBE_SECONDS)
    train = settings.train
    steps_in_time = _MAX_STEPS if train.max_minutes is None else int(train.max_minutes * 60 / seconds)
    steps = min(steps_in_time, train.max_steps or steps_in_time)
    other_seconds = seconds_so_far * _PREPARE_TIME_RATIO + _FINETUNING_UPDATES * seconds
    logger.info(
        "an update takes about %.2g s on this machine; all steps take about %s, of which %s are for %s of "
        "pre-training",
        seconds,
        console.format_duration(steps * seconds + other_seconds),
        console.format_duration(steps * seconds),
        pluralize(steps, "update"),
    )
    if train.max_steps == _MAX_STEPS and steps < _MAX_STEPS:
        logger.warning(
            "this machine is slow or busy: all %s updates would take %s, so the BERT gets fewer and learns less; "
            "set minutes to %d for all",
            f"{_MAX_STEPS:,}",
            console.format_duration(_MAX_STEPS * seconds),
            math.ceil(_MAX_STEPS * seconds / 60) + 1,
        )
    if steps < _MIN_USEFUL_STEPS:
        logger.warning("in %s a BERT learns little more than word frequencies", pluralize(steps, "update"))


def _warn_of_few_steps(steps: int, budget: Mapping[str, Any]) -> None:
    """Warn if the time limit ended pre-training before the default number of updates."""
    if steps < _MAX_STEPS and budget.get("train.max_steps") == _MAX_STEPS:
        logger.warning(
            "only %s of %s fit into the time limit: expect lower scores",
            pluralize(steps, "update"),
            f"{_MAX_STEPS:,}",
        )


class _Timer:
    """Measure the seconds of consecutive steps."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last_time = time.perf_counter()

    def record(self, step: str) -> None:
        """Attribute the time since the last call to a step."""
        now = time.perf_counter()
        self.seconds[step] = round(now - self._last_time, 1)
        self._last_time = now


@contextmanager
def _report_stop(out: Path) -> Iterator[None]:
    """On Ctrl-C or SIGTERM raise Stopped without the hint of the inner runs, which tells how to resume them."""
    try:
        yield
    except Stopped as stopped:
        signal_number = stopped.exit_code - 128
    except KeyboardInterrupt:
        signal_number = signal.SIGINT
    else:
        return
    if not out.exists():
        raise Stopped(signal_number, f"{out}: the quickstart was stopped before it wrote anything")
    raise Stopped(
        signal_number,
        f"{out}: the quickstart was stopped; its files are incomplete",
        f"to start again, run rm -r {shlex.quote(str(out))} first, or use another {option('output_dir')}",
    )


def _read_documents(libraries: Sequence[Library]) -> list[Document]:
    total = sum(len(library.files) for library in libraries)
    with console.ProgressBar("reading", total) as bar:
        return list(documentation.documents(libraries, lambda done: bar.update(done, "source files")))


def _score_models(
    out: Path, bert: Model, task: QuickstartTask, files: dict[str, Path], seed: int
) -> list[dict[str, Any]]:
    """Return the test scores of both baselines and both BERTs."""
    scores: list[dict[str, Any]] = [
        {"model": "majority", **score_majority_baseline(task)},
        {"model": "TF-IDF + linear", **score_linear_baseline(task)},
    ]
    bases = {"fresh": write_untrained_model(out / "fresh", bert), "bert": bert.path}
    for name, base in bases.items():
        run = out / f"classifier-{name}"
        classifier = finetune(
            "classify",
            base,
            run,
            train=files["train"],
            validation=files["dev"],
            settings={
                **FINETUNING_SETTINGS,
                "train.seed": seed,
                "train.precision": bert.report["precision"],
            },
        )
        score = classifier.evaluate(files["test"])
        scores.append(
            {"model": _MODEL_NAMES[name], "run": str(run), **{k: score[k] for k in ("accuracy", "macro_f1")}}
        )
    return scores


def _score_pairs(out: Path, bert: Model, task: QuickstartTask, seed: int) -> dict[str, Any] | None:
    """Return the accuracy on minimal pairs of a bigram model and both BERTs, or None without pairs."""
    pairs = make_pairs(task.unseen_sentences, seed)
    if not pairs:
        return None
    file = out / "pairs.jsonl"
    write_whole(file, "".join(json.dumps(pair, ensure_ascii=False) + "\n" for pair in pairs))
    models = {_MODEL_NAMES["fresh"]: load(out / "fresh"), _MODEL_NAMES["bert"]: bert}
    return {
        "file": str(file),
        "number": len(pairs),
        "scores": [
            {"model": "two words in a row", **score_bigram_model(pairs, task.pretraining_documents)},
            *({"model": name, **score_model(model, pairs)} for name, model in models.items()),
        ],
    }


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


def _describe_corpus(libraries: Sequence[Library], task: QuickstartTask, num_words: int) -> dict[str, Any]:
    word_counts: Counter[str] = Counter()
    for document in task.pretraining_documents:
        word_counts[documentation.library_of(document)] += len(document.text.split())
    versions = {library.name: library.version for library in libraries}
    return {
        "documents": len(task.pretraining_documents),
        "words": num_words,
        "held_out_documents": len(task.held_out_documents),
        "libraries": [
            {"name": name, "version": versions[name], "words": count}
            for name, count in word_counts.most_common()
        ],
    }


def _describe_task(task: QuickstartTask, files: dict[str, Path]) -> dict[str, Any]:
    return {
        "kind": task.label_noun,
        "labels": task.labels,
        "sentences": {part: len(rows) for part, rows in task.parts.items()},
        "files": {part: str(file) for part, file in files.items()},
    }


def print_report(report: dict[str, Any]) -> None:
    """Print filled masks, tables of scores, the data behind them, and commands to continue with."""
    _show_masks(report["masks"])
    task, pretraining, scores = report["task"], report["pretrain"], report["scores"]
    sizes = task["sentences"]
    console.print_result("")
    console.print_table(
        f"Which of {len(task['labels'])} {task['kind']} does a sentence come from?",
        ["", "accuracy", "macro F1"],
        [(s["model"], f"{s['accuracy']:.1%}", f"{s['macro_f1']:.1%}") for s in scores],
    )
    linear, untrained, pretrained = scores[-3:]  # in the order of _score_models
    gains = ", ".join(
        _format_gain(100 * (pretrained["accuracy"] - baseline["accuracy"]), name)
        for baseline, name in ((untrained, "random weights"), (linear, linear["model"]))
    )
    metrics = ", ".join(
        f"{name.replace('_', ' ')} {value:.2f}" for name, value in pretraining["held_out"].items()
    )
    console.print_result(f"Pre-training: {gains}.")
    _show_pairs(report["pairs"])
    console.print_result(f"On held-out documents: {metrics}.")
    console.print_result(
        f"{pluralize(pretraining['tokens'], 'token')} in {console.format_duration(pretraining['seconds'])}; "
        f"all steps {console.format_duration(report['seconds'])} on "
        f"{pluralize(report['machine']['threads'], 'thread')}."
    )
    console.print_result("")
    console.print_result(
        f"Labels: {', '.join(task['labels'])}. {sizes['train']} labeled sentences for training, "
        f"{sizes['dev']} for validation, {sizes['test']:,} for testing; none of them names a label."
    )
    console.print_result(f"Text: {_describe_libraries(report['corpus'])}.")
    console.print_result(
        "The task's sentences come from held-out modules; the pre-training text comes from other modules of the "
        "same libraries."
    )
    _show_next_commands(report)


def _format_gain(points: float, name: str) -> str:
    return f"{points:+.1f} points over {name}" if points >= 0 else f"{-points:.1f} points below {name}"


def _show_masks(masks: Sequence[dict[str, Any]]) -> None:
    console.print_result("Masks filled by the pre-trained BERT:")
    for mask in masks:
        answers = ", ".join(f"{_quote_punctuation(a['token'])} {a['score']:.0%}" for a in mask["answers"])
        console.print_result(f"  {mask['text']}\n      {answers}")


def _quote_punctuation(token: str) -> str:
    return token if any(map(str.isalnum, token)) else f'"{token}"'


def _show_pairs(pairs: dict[str, Any] | None) -> None:
    if pairs is None:
        return
    phenomena = list(pairs["scores"][0]["by_phenomenon"])
    console.print_result("")
    console.print_table(
        "Which of two sentences is the original (the other has a word replaced)? "
        f"{pluralize(pairs['number'], 'pair')}",
        ["", "accuracy", *phenomena],
        [
            (s["model"], f"{s['accuracy']:.1%}", *(f"{s['by_phenomenon'][name]:.1%}" for name in phenomena))
            for s in pairs["scores"]
        ],
    )


def _describe_libraries(corpus: dict[str, Any], max_libraries: int = 8) -> str:
    rows = corpus["libraries"]
    names = ", ".join(f"{row['name']} {row['version']}" for row in rows[:max_libraries])
    more = f" and {len(rows) - max_libraries} smaller ones" if len(rows) > max_libraries else ""
    return f"{corpus['words'] / 1e6:.1f} million words of documentation of {names}{more}"


def _show_next_commands(report: dict[str, Any]) -> None:
    """Print commands to copy, one per line."""
    out = Path(report["output_dir"])
    bert, classifier = shlex.quote(str(out / "bert")), shlex.quote(report["scores"][-1]["run"])
    console.print_result("\nTry the models:")
    console.print_result(f'  bertsmith fill-mask {bert} "Returns the [MASK] of the array."')
    console.print_result(f'  bertsmith predict {classifier} "Returns the rank of a matrix."')
    console.print_result("\nThe same steps with your own files:")
    for command in (
        "bertsmith tokenizer train *.txt --output-dir tokenizer --vocab-size 16000",
        "bertsmith data prepare *.txt --tokenizer tokenizer --output-dir shards",
        "bertsmith pretrain --data shards --output-dir bert --minutes 60",
        "bertsmith finetune classify --model bert --train train.csv \\",
        "    --validation dev.csv --output-dir mine",
        "bertsmith evaluate mine --data test.csv",
    ):
        console.print_result(f"  {command}")
