"""Small files of examples for each task and its variants; for the tests that hold for all tasks."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tiny_run
from bertsmith.tasks.task import task_type


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

# A short fine-tuning that is judged and saved on its way, exact on any machine.
STEPS = [
    "train.max_steps=4",
    "train.batch_size=7",
    "train.learning_rate=5e-3",
    "train.evaluate_every=2",
    "train.checkpoint_every=1",
    "train.threads=1",
    "train.precision=fp32",
    "train.tensorboard=false",
]
# The tasks that may have something between encoder and head; not each of their variants.
HEADED = [
    kind
    for kind in FILES
    if "head" in task_type(kind.split()[0]).settings_type.model_fields
    and kind not in ("tag crf", "tag roles")
]
