"""`bertsmith quickstart`: the whole way on the documentation that is installed, from text to a table of scores."""

from __future__ import annotations

import json
import math
import shlex
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from bertsmith import console
from bertsmith.artifacts.folder import write_folder
from bertsmith.corpus.prepare import prepare
from bertsmith.errors import Stopped
from bertsmith.finetuning.run import finetune
from bertsmith.formatting import counted
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
from bertsmith.quickstart.pairs import by_bigrams, by_model, make_pairs
from bertsmith.quickstart.task import QuickstartTask, linear, majority, make_task, write_task
from bertsmith.runs.run_folder import SETTINGS, place_of, write_report, write_whole
from bertsmith.tokenizer_training.train import train_tokenizer

_PRESET = "bert-tiny-uncased"
_VOCABULARY = 6_000
_STEPS = 1_800  # three to four minutes on two idle cores
_MINUTES = 5.0  # of pre-training at most, unless the user names others: then all is done within some six
_REST_OF_READING = 2.0  # vocabulary and shards, in times of the reading before them
_TRIAL_SECONDS = 3.0
_FINETUNING_UPDATES = 150  # what fine-tuning twice and scoring takes, in updates of pre-training
_FEW_STEPS = 100  # below, what is learnt is hardly more than which words are frequent
# Beside what a model of this size learns with anyway (pretraining/recipe.py): short sequences, and more to
# predict in each. benchmarks/tried.md has what was tried.
PRETRAINING = (
    "model.num_attention_heads=4",
    "model.max_position_embeddings=64",
    "data.sequence_length=64",
    "data.mask_share=0.35",
    "data.held_out=0.02",
    "train.batch_size=32",
    "train.checkpoint_every=1000",
    "train.tensorboard=false",
)
# The same for both arms. The encoder has had a high rate already: a classifier on it takes one, too.
FINETUNING = (
    "model.hidden_dropout_prob=0",
    "model.attention_probs_dropout_prob=0",
    "train.max_steps=60",
    "train.batch_size=16",
    "train.learning_rate=0.0005",
    "train.checkpoint_every=1000",
    "train.tensorboard=false",
)
MASKED = (
    "Returns a new [MASK] with the same shape as the input.",
    "If [MASK] is given, it is used as the default value.",
    "Raises an [MASK] if the file does not exist.",
    "The number of [MASK] to wait before the connection is closed.",
)
_ARMS = {"fresh": "BERT without pre-training", "bert": "pre-trained BERT"}


def quickstart(
    out: str | Path,
    *,
    seed: int = 0,
    minutes: float | None = None,
    tell: Callable[[str], None] = lambda text: None,
    libraries: Sequence[Library] | None = None,
    steps: int | None = None,
) -> dict[str, Any]:
    """Text → vocabulary → shards → BERT → masks filled → a task, and what each way to solve it scores.

    out: a new or empty folder; corpus.txt, task/*.csv and each run are written there, for the user to look at
    and to run again. minutes: that pre-training may take (none: 1,800 updates, or as many as five minutes hold).
    libraries: whose documentation to read (none: all that bertsmith requires and is installed). steps: updates of
    pre-training, for tests. Returns the report, which also stands in out/report.json.

    Raises InputError for an `out` that holds something, Stopped after Ctrl-C.
    """
    out = Path(out)
    atomic.refuse_filled(out, in_place=True)
    if steps is None and minutes is None:
        budget = [f"train.max_steps={_STEPS}", f"train.max_minutes={_MINUTES}"]
    else:
        budget = [f"train.max_minutes={minutes}"] if steps is None else [f"train.max_steps={steps}"]
    PretrainSettings().changed(budget)  # refused now, and not after the text was read
    with _stopping(out):
        return _whole_way(out, seed, budget, libraries, tell)


def _whole_way(
    out: Path,
    seed: int,
    budget: Sequence[str],
    libraries: Sequence[Library] | None,
    tell: Callable[[str], None],
) -> dict[str, Any]:
    clock = _Clock()
    libraries = documentation.installed() if libraries is None else libraries
    documents = _read(libraries)
    task = make_task(documents, seed)
    corpus = out / "corpus.txt"
    write_whole(corpus, "\n\n".join(document.text for document in task.rest) + "\n")
    files = write_task(task, out / "task")
    words = documentation.blank_separated_words(task.rest)
    tell(f"1/5 {corpus}: {counted(words, 'word')} of documentation in {counted(len(task.rest), 'document')}")
    clock.passed("read")
    _tell_time(budget, sum(clock.seconds.values()), seed, tell)
    tokenizer = train_tokenizer([corpus], out / "tokenizer", vocab_size=_VOCABULARY)
    shards = prepare([corpus], tokenizer, out / "shards")
    tell(
        f"2/5 {out / 'tokenizer'}: a vocabulary of {tokenizer.vocab_size:,}; {counted(shards.tokens, 'token')}"
    )
    clock.passed("prepare")
    tell(f"3/5 {out / 'bert'}: pre-training a BERT of 2 layers, 128 wide")
    bert = pretrain(
        shards,
        out / "bert",
        preset=_PRESET,
        settings=[*PRETRAINING, f"train.seed={seed}", *budget],
        tell=tell,
    )
    _tell_of_few(bert.report["steps"], budget, tell)
    clock.passed("pretrain")
    masks = [{"text": text, "answers": bert.fill_mask(text, top_k=3)[0]} for text in MASKED]
    tell("4/5 fine-tuning it, and the same BERT with random weights")
    scores = _scores(out, bert, task, files, seed)
    clock.passed("finetune")
    pairs = _pairs(out, bert, task, seed)
    clock.passed("pairs")
    report = {
        "out": str(out),
        "seed": seed,
        "seconds": round(sum(clock.seconds.values()), 1),
        "seconds_of": clock.seconds,
        "machine": {"threads": bert.report["threads"], "precision": bert.report["precision"]},
        "corpus": _corpus(libraries, task, words),
        "pretrain": {k: bert.report[k] for k in ("steps", "tokens", "seconds", "held_out")},
        "masks": masks,
        "task": _task(task, files),
        "scores": scores,
        "pairs": pairs,
    }
    write_report(out, report)
    tell(f"5/5 {out / 'report.json'}")
    return report


def _tell_time(budget: Sequence[str], spent: float, seed: int, tell: Callable[[str], None]) -> None:
    """Before the long part: how long all will take here, as an update takes on random text, and what it costs."""
    sizes = preset(_PRESET).model_dump()
    values = learning_settings(sizes)
    values["model"] = sizes | values["model"] | {"vocab_size": _VOCABULARY}
    chosen = PretrainSettings.of(values, "quickstart").changed([*PRETRAINING, f"train.seed={seed}", *budget])
    place = place_of(chosen.train, chosen.model, tell)
    seconds, _ = timed_on_random_text(chosen, place, _TRIAL_SECONDS)
    train = chosen.train
    in_time = _STEPS if train.max_minutes is None else int(train.max_minutes * 60 / seconds)
    steps = min(in_time, train.max_steps or in_time)
    rest = spent * _REST_OF_READING + _FINETUNING_UPDATES * seconds
    tell(
        f"an update takes about {seconds:.2g} s here: {console.duration(steps * seconds + rest)} or so from now "
        f"on, {console.duration(steps * seconds)} of them for {counted(steps, 'update')} of pre-training"
    )
    if train.max_steps == _STEPS and steps < _STEPS:
        tell(
            f"this machine is slow or busy: all {_STEPS:,} updates would take "
            f"{console.duration(_STEPS * seconds)}, so fewer are made and the BERT learns less; to have them all: "
            f"--minutes {math.ceil(_STEPS * seconds / 60) + 1}"
        )
    if steps < _FEW_STEPS:
        tell(f"in {counted(steps, 'update')} a BERT learns little but which words are frequent")


def _tell_of_few(steps: int, budget: Sequence[str], tell: Callable[[str], None]) -> None:
    """After it: whether the machine had less time than it was expected to have."""
    if steps < _STEPS and any(setting == f"train.max_steps={_STEPS}" for setting in budget):
        tell(f"{counted(steps, 'update')} of {_STEPS:,} were made in the time there was: expect lower scores")


class _Clock:
    """Seconds of each part of the work."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._since = time.perf_counter()

    def passed(self, part: str) -> None:
        now = time.perf_counter()
        self.seconds[part] = round(now - self._since, 1)
        self._since = now


@contextmanager
def _stopping(out: Path) -> Iterator[None]:
    """After Ctrl-C or SIGTERM say what stands there; the runs inside would promise a --resume of theirs."""
    try:
        yield
    except Stopped as stopped:
        number = stopped.exit_code - 128
    except KeyboardInterrupt:
        number = signal.SIGINT
    else:
        return
    if not out.exists():
        raise Stopped(number, f"{out}: the quickstart was stopped before anything was written")
    raise Stopped(
        number,
        f"{out}: the quickstart was stopped; what it had written stays there",
        f"start again: rm -r {shlex.quote(str(out))} first, or name another --out",
    )


def _read(libraries: Sequence[Library]) -> list[Document]:
    total = sum(len(library.files) for library in libraries)
    with console.Bar("reading", total) as bar:
        return list(documentation.documents(libraries, lambda done: bar.advance_to(done, "source files")))


def _scores(
    out: Path, bert: Model, task: QuickstartTask, files: dict[str, Path], seed: int
) -> list[dict[str, Any]]:
    """Each way to solve the task, on the same test sentences, in order of effort."""
    scores: list[dict[str, Any]] = [
        {"model": "majority", **majority(task)},
        {"model": "TF-IDF + linear", **linear(task)},
    ]
    bases = {"fresh": untrained(out / "fresh", bert), "bert": bert.path}
    for arm, base in bases.items():
        run = out / f"classifier-{arm}"
        tuned = finetune(
            "classify",
            base,
            run,
            train=files["train"],
            dev=files["dev"],
            settings=[*FINETUNING, f"train.seed={seed}", f"train.precision={bert.report['precision']}"],
        )
        score = tuned.evaluate(files["test"])
        scores.append(
            {"model": _ARMS[arm], "run": str(run), **{k: score[k] for k in ("accuracy", "macro_f1")}}
        )
    return scores


def _pairs(out: Path, bert: Model, task: QuickstartTask, seed: int) -> dict[str, Any] | None:
    """Which of two sentences is the written one? Asked of both models as they are; None where none were found."""
    pairs = make_pairs(task.unseen, seed)
    if not pairs:
        return None
    file = out / "pairs.jsonl"
    write_whole(file, "".join(json.dumps(pair, ensure_ascii=False) + "\n" for pair in pairs))
    models = {_ARMS["fresh"]: load(out / "fresh"), _ARMS["bert"]: bert}
    return {
        "file": str(file),
        "number": len(pairs),
        "scores": [
            {"model": "two words in a row", **by_bigrams(pairs, task.rest)},
            *({"model": name, **by_model(model, pairs)} for name, model in models.items()),
        ],
    }


def untrained(folder: Path, bert: Model) -> Path:
    """A model folder with the weights that a pre-training run had before its first update, except that nothing in
    them comes from the text: token vectors are random."""
    chosen = PretrainSettings.from_file(bert.path / SETTINGS)
    encoder, objective = first_weights(chosen, torch.Generator().manual_seed(chosen.train.seed))
    parts = objective.folders(encoder)[MODEL]
    return write_folder(folder, parts.config, parts.modules, tokenizer=bert.tokenizer)


def _corpus(libraries: Sequence[Library], task: QuickstartTask, words: int) -> dict[str, Any]:
    of_each: Counter[str] = Counter()
    for document in task.rest:
        of_each[documentation.library_of(document)] += len(document.text.split())
    version = {library.name: library.version for library in libraries}
    return {
        "documents": len(task.rest),
        "words": words,
        "held_out_documents": len(task.held_out),
        "libraries": [
            {"name": name, "version": version[name], "words": count} for name, count in of_each.most_common()
        ],
    }


def _task(task: QuickstartTask, files: dict[str, Path]) -> dict[str, Any]:
    return {
        "kind": task.kind,
        "labels": task.labels,
        "sentences": {part: len(rows) for part, rows in task.parts.items()},
        "files": {part: str(file) for part, file in files.items()},
    }


def show(report: dict[str, Any]) -> None:
    """Print the report: filled masks, one table, what it was measured on, and how to go on."""
    _show_masks(report["masks"])
    task, corpus, trained = report["task"], report["corpus"], report["pretrain"]
    sizes, held, scores = task["sentences"], trained["held_out"], report["scores"]
    console.result("")
    console.result_table(
        f"Which of {len(task['labels'])} {task['kind']} does a sentence come from?",
        ["", "accuracy", "macro F1"],
        [(s["model"], f"{s['accuracy']:.1%}", f"{s['macro_f1']:.1%}") for s in scores],
    )
    gains = ", ".join(
        _gain(100 * (scores[-1]["accuracy"] - other["accuracy"]), name)
        for other, name in ((scores[-2], "random weights"), (scores[-3], scores[-3]["model"]))
    )
    figures = ", ".join(f"{name.replace('_', ' ')} {value:.2f}" for name, value in held.items())
    console.result(f"Pre-training: {gains}.")
    _show_pairs(report["pairs"])
    console.result(f"On held-out documents: {figures}.")
    console.result(
        f"{counted(trained['tokens'], 'token')} in {console.duration(trained['seconds'])}; "
        f"all together {console.duration(report['seconds'])} on {counted(report['machine']['threads'], 'thread')}."
    )
    console.result("")
    console.result(
        f"Labels: {', '.join(task['labels'])}. {sizes['train']} labelled sentences to learn from, "
        f"{sizes['dev']} to choose by, {sizes['test']:,} to test on; those that name a label are left out."
    )
    console.result(f"Text: {_libraries(corpus)}.")
    console.result(
        "The task's sentences come from modules that were held out; the pre-training text comes from other "
        "modules of the same libraries."
    )
    _show_next(report)


def _gain(points: float, name: str) -> str:
    return f"{points:+.1f} points over {name}" if points >= 0 else f"{-points:.1f} points below {name}"


def _show_masks(masks: Sequence[dict[str, Any]]) -> None:
    console.result("Masks filled by the BERT that was just pre-trained:")
    for mask in masks:
        answers = ", ".join(f"{_word(a['token'])} {a['score']:.0%}" for a in mask["answers"])
        console.result(f"  {mask['text']}\n      {answers}")


def _word(token: str) -> str:
    """A token in a list of some; a comma or a full stop in quotes."""
    return token if any(map(str.isalnum, token)) else f'"{token}"'


def _show_pairs(pairs: dict[str, Any] | None) -> None:
    if pairs is None:
        return
    phenomena = list(pairs["scores"][0]["by_phenomenon"])
    console.result("")
    console.result_table(
        f"Which of two sentences was written, which has a word exchanged? ({counted(pairs['number'], 'pair')})",
        ["", "accuracy", *phenomena],
        [
            (s["model"], f"{s['accuracy']:.1%}", *(f"{s['by_phenomenon'][name]:.1%}" for name in phenomena))
            for s in pairs["scores"]
        ],
    )


def _libraries(corpus: dict[str, Any], shown: int = 8) -> str:
    rows = corpus["libraries"]
    named = ", ".join(f"{row['name']} {row['version']}" for row in rows[:shown])
    more = f" and {len(rows) - shown} smaller ones" if len(rows) > shown else ""
    return f"{corpus['words'] / 1e6:.1f} million words of documentation of {named}{more}"


def _show_next(report: dict[str, Any]) -> None:
    """Commands, each on a line of its own, to be copied."""
    out = Path(report["out"])
    bert, tuned = shlex.quote(str(out / "bert")), shlex.quote(report["scores"][-1]["run"])
    console.result("\nTry what was made:")
    console.result(f'  bertsmith fill-mask {bert} "Returns the [MASK] of the array."')
    console.result(f'  bertsmith predict {tuned} "Returns the rank of a matrix."')
    console.result("\nThe same with files of your own:")
    for line in (
        "bertsmith tokenizer train *.txt --out tokenizer --vocab-size 16000",
        "bertsmith data prepare *.txt --tokenizer tokenizer --out shards",
        "bertsmith pretrain --data shards --out bert --minutes 60",
        "bertsmith finetune classify --model bert --train train.csv \\",
        "    --dev dev.csv --out mine",
        "bertsmith evaluate mine --data test.csv",
    ):
        console.result(f"  {line}")
