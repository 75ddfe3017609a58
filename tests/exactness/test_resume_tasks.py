"""Fine-tuning of every kind, killed anywhere and resumed, is the run that was not: weights, log, scores."""

from __future__ import annotations

import json
import os
import random
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import bertsmith as bs
import tiny_run
from bertsmith.errors import Stopped
from bertsmith.tasks.texts.many_labels import ManyLabels
from bertsmith.training import checkpoint
from bertsmith.training.progress import Recorder
from bertsmith.workflows.finetune import finetune
from outcomes import Killed, assert_same, outcome

SETTINGS = [
    "train.max_steps=11",
    "train.batch_size=5",
    "train.accumulate=2",
    "train.learning_rate=2e-3",
    "train.evaluate_every=3",
    "train.checkpoint_every=4",
    "train.threads=1",
    "train.precision=fp32",
    "train.tensorboard=false",
    "train.log_every=1",
]


class Tuning(NamedTuple):
    """A task with settings of its own, its files, and the run that nothing stopped."""

    task: str
    own: list[str]
    base: Path
    train: Path
    dev: Path
    straight: dict[str, Any]
    dev_scores: dict[str, Any]

    def run(self, out: Path, *, resume: bool = False) -> bs.Model:
        return finetune(
            self.task,
            self.base,
            out,
            train=self.train,
            dev=self.dev,
            settings=[*SETTINGS, *self.own],
            resume=resume,
        )


def tagged(file: Path, seed: int) -> Path:
    draw = random.Random(seed)
    rows = [draw.choices(tiny_run.WORDS, k=draw.randint(1, 9)) for _ in range(30)]
    lines = [
        {"words": row, "tags": ["B-X" if word[:2] in ("ka", "lo") else "O" for word in row]} for row in rows
    ]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return file


def with_roles(file: Path, seed: int) -> Path:
    draw = random.Random(seed)
    text = ""
    for _ in range(15):
        words = draw.choices(tiny_run.WORDS, k=draw.randint(2, 9))
        at = draw.randrange(len(words))
        for i, word in enumerate(words):
            role = "ARG0" if word[:2] in ("ka", "lo") and i != at else "_"
            cells = ("go.01", "V") if i == at else ("_", role)
            text += "\t".join([str(i + 1), word, *"_" * 8, *cells]) + "\n"
        text += "\n"
    file.write_text(text)
    return file


def asked(file: Path, seed: int) -> Path:
    draw = random.Random(seed)
    paragraphs = []
    for i in range(20):
        words = draw.choices(tiny_run.WORDS[3:], k=draw.randint(3, 30))
        gold = []
        if i % 3:  # a third has no answer, so that a threshold is chosen on dev
            words.insert(draw.randrange(len(words) + 1), "kaba")
        context = " ".join(words)
        if i % 3:
            gold = [{"text": "kaba", "answer_start": context.index("kaba")}]
        paragraphs.append({"context": context, "qas": [{"id": str(i), "question": "lode", "answers": gold}]})
    file.write_text(json.dumps({"version": "1.1", "data": [{"title": "t", "paragraphs": paragraphs}]}))
    return file


def chosen(file: Path, seed: int) -> Path:
    draw = random.Random(seed)
    lines = []
    for _ in range(30):
        choices = draw.sample(tiny_run.WORDS, draw.randint(2, 4))
        context = " ".join(draw.choices(tiny_run.WORDS, k=draw.randint(1, 5)))
        lines.append({"context": context, "choices": choices, "label": draw.randrange(len(choices))})
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return file


def related(file: Path, seed: int) -> Path:
    draw = random.Random(seed)
    blocks = []
    for i in range(30):
        words = draw.choices(tiny_run.WORDS, k=draw.randint(2, 9))
        for at, tag in zip(draw.sample(range(len(words)), 2), ("e1", "e2"), strict=True):
            words[at] = f"<{tag}>{words[at]}</{tag}>"
        label = ("Cause(e1,e2)", "Cause(e2,e1)", "Other")[i % 3]
        blocks.append(f'{i}\t"{" ".join(words)}"\n{label}\nComment:\n\n')
    file.write_text("".join(blocks))
    return file


def numbered(file: Path, seed: int) -> Path:
    rows = [(text, str(len(text) / 10)) for text, _ in tiny_run.examples(30, seed)]
    return tiny_run.table(file, rows)


def labelled(file: Path, seed: int) -> Path:
    return tiny_run.table(file, tiny_run.examples(30, seed))


def labelled_often(file: Path, seed: int) -> Path:
    """Of any number of labels, none among them."""
    rows = tiny_run.examples(30, seed)
    return tiny_run.table(
        file, [(text, ("", label, f"{label}|odd")[i % 3]) for i, (text, label) in enumerate(rows)]
    )


def sought(file: Path, seed: int) -> Path:
    """Queries with one to three passages, some of them with a passage that does not answer."""
    draw = random.Random(seed)

    def text(most: int) -> str:
        return " ".join(draw.choices(tiny_run.WORDS, k=draw.randint(1, most)))

    rows: list[dict[str, Any]] = []
    for i in range(30):
        row = {"query": text(4), "positives": [text(9) for _ in range(1 + i % 3)]}
        rows.append(row | ({"negatives": [text(9)]} if i % 2 else {}))
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


FILES: dict[str, tuple[str, Callable[[Path, int], Path]]] = {  # of a task, or of a task and a variant
    "classify": ("csv", labelled),
    "classify many": ("csv", labelled_often),
    "regress": ("csv", numbered),
    "tag": ("jsonl", tagged),
    "tag crf": ("jsonl", tagged),
    "tag roles": ("conllu", with_roles),
    "answer": ("json", asked),
    "choose": ("jsonl", chosen),
    "relate": ("txt", related),
    "embed": ("jsonl", sought),
}


OWN = {
    "classify many": ["task.multi_label=true", "task.label_separator='|'", "task.class_weights=balanced"],
    "tag crf": ["task.decoder=crf"],
}


@pytest.fixture(scope="module", params=list(FILES))
def tuning(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tuning:
    folder = tmp_path_factory.mktemp(request.param.replace(" ", "-"))
    base = tiny_run.run(tiny_run.make_shards(folder), folder / "base", "train.max_steps=1").path
    suffix, write = FILES[request.param]
    files = [write(folder / f"{name}.{suffix}", seed) for seed, name in enumerate(("train", "dev"))]
    tuning = Tuning(request.param.split()[0], OWN.get(request.param, []), base, *files, {}, {})
    model = tuning.run(folder / "straight")
    return tuning._replace(straight=outcome(folder / "straight"), dev_scores=model.report["dev"])


def die_at(patch: pytest.MonkeyPatch, owner: Any, name: str, call: int, *, after: bool) -> None:
    """Die in the so-manieth call of a function, before or after it did its work."""
    function, calls = getattr(owner, name), [0]

    def deadly(*arguments: Any, **named: Any) -> Any:
        calls[0] += 1
        if calls[0] == call and not after:
            raise Killed
        answer = function(*arguments, **named)
        if calls[0] == call:
            raise Killed
        return answer

    patch.setattr(owner, name, deadly)


@pytest.mark.parametrize(
    ("where", "call", "after"),
    [
        ("stepped", 2, True),
        ("stepped", 7, True),
        ("score", 1, False),  # in an evaluation
        ("score", 2, True),
        ("save_weights", 1, True),  # between the best weights and the checkpoint that refers to them
        ("save", 1, False),
        ("save", 2, True),
        ("save", 3, True),  # the last checkpoint; the model is not yet written
    ],
)
def test_killed_there_and_resumed_is_straight(
    tuning: Tuning, tmp_path: Path, where: str, call: int, after: bool
) -> None:
    from bertsmith.tasks.task import task_type

    kind = ManyLabels if "task.multi_label=true" in tuning.own else task_type(tuning.task)
    owner: Any = {"stepped": Recorder, "score": kind}.get(where, checkpoint)
    with pytest.MonkeyPatch.context() as patch:
        die_at(patch, owner, where, call, after=after)
        with pytest.raises(Killed):
            tuning.run(tmp_path / "run")
    model = tuning.run(tmp_path / "run", resume=True)
    assert_same(tmp_path / "run", tuning.straight)
    assert model.report["dev"] == tuning.dev_scores


def test_killed_again_and_again(tuning: Tuning, tmp_path: Path) -> None:
    """At random moments of one run, each time of another kind."""
    draw = random.Random(tuning.task)
    for number in range(5):
        owner, name = draw.choice([(Recorder, "stepped"), (checkpoint, "save"), (checkpoint, "save_weights")])
        with pytest.MonkeyPatch.context() as patch:
            die_at(patch, owner, name, draw.randint(1, 4), after=draw.random() < 0.5)
            try:
                tuning.run(tmp_path / "run", resume=number > 0)
            except Killed:
                continue
    tuning.run(tmp_path / "run", resume=True)
    assert_same(tmp_path / "run", tuning.straight)


@pytest.mark.parametrize("step", [1, 3, 8, 10])
def test_stopped_by_a_signal_and_resumed_is_straight(tuning: Tuning, tmp_path: Path, step: int) -> None:
    """The unfinished model that is left, of the best weights so far, does not touch the run."""
    stepped = Recorder.stepped

    def signal_then_step(self: Recorder, number: int, *rest: Any) -> None:
        if number == step:
            os.kill(os.getpid(), signal.SIGINT)
        stepped(self, number, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Recorder, "stepped", signal_then_step)
        with pytest.raises(Stopped):
            tuning.run(tmp_path / "run")
    with pytest.warns(UserWarning, match="of an unfinished run, of step .* of 11"):
        assert bs.load(tmp_path / "run").evaluate(tuning.dev)["examples"] > 0
    tuning.run(tmp_path / "run", resume=True)
    assert_same(tmp_path / "run", tuning.straight)
