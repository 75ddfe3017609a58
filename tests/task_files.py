"""Write small files of examples for each task and variant, for tests of all tasks."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import tiny_run
from bertsmith.models.config import ModelConfig
from bertsmith.tasks.base import Metadata, TaskData
from bertsmith.tasks.fitted_task import FittedTask, create_report
from bertsmith.tasks.registry import get_task
from bertsmith.tasks.report import TaskReport


def task_data(name: str, settings: Any) -> TaskData:
    """Return the part that reads the examples of a task."""
    data: TaskData = get_task(name).part("data")(settings, {})
    return data


def task_report(name: str, metadata: Metadata, settings: Any = None) -> TaskReport:
    """Return the part that presents the examples of a task, with its metrics."""
    task = get_task(name)
    return create_report(task, metadata, settings or task.settings_type())


def fitted_task(
    name: str, config: ModelConfig, generator: torch.Generator, metadata: Metadata, settings: Any
) -> FittedTask:
    """Return a task whose model is in evaluation mode."""
    task = FittedTask.create(get_task(name), config, generator, metadata, settings)
    task.model.eval()
    return task


def tagged(file: Path, seed: int) -> Path:
    rng = random.Random(seed)
    rows = [rng.choices(tiny_run.WORDS, k=rng.randint(1, 9)) for _ in range(30)]
    lines = [
        {"words": row, "tags": ["B-X" if word[:2] in ("ka", "lo") else "O" for word in row]} for row in rows
    ]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return file


def with_roles(file: Path, seed: int) -> Path:
    rng = random.Random(seed)
    text = ""
    for _ in range(15):
        words = rng.choices(tiny_run.WORDS, k=rng.randint(2, 9))
        predicate = rng.randrange(len(words))
        for i, word in enumerate(words):
            role = "ARG0" if word[:2] in ("ka", "lo") and i != predicate else "_"
            cells = ("go.01", "V") if i == predicate else ("_", role)
            text += "\t".join([str(i + 1), word, *"_" * 8, *cells]) + "\n"
        text += "\n"
    file.write_text(text)
    return file


def asked(file: Path, seed: int) -> Path:
    rng = random.Random(seed)
    paragraphs = []
    for i in range(20):
        words = rng.choices(tiny_run.WORDS[3:], k=rng.randint(3, 30))
        answers = []
        if i % 3:  # a third has no answer, so that a threshold is fit on validation
            words.insert(rng.randrange(len(words) + 1), "kaba")
        context = " ".join(words)
        if i % 3:
            answers = [{"text": "kaba", "answer_start": context.index("kaba")}]
        paragraphs.append(
            {"context": context, "qas": [{"id": str(i), "question": "lode", "answers": answers}]}
        )
    file.write_text(json.dumps({"version": "1.1", "data": [{"title": "t", "paragraphs": paragraphs}]}))
    return file


def chosen(file: Path, seed: int) -> Path:
    rng = random.Random(seed)
    lines = []
    for _ in range(30):
        choices = rng.sample(tiny_run.WORDS, rng.randint(2, 4))
        context = " ".join(rng.choices(tiny_run.WORDS, k=rng.randint(1, 5)))
        lines.append({"context": context, "choices": choices, "label": rng.randrange(len(choices))})
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return file


def related(file: Path, seed: int) -> Path:
    rng = random.Random(seed)
    blocks = []
    for i in range(30):
        words = rng.choices(tiny_run.WORDS, k=rng.randint(2, 9))
        for position, tag in zip(rng.sample(range(len(words)), 2), ("e1", "e2"), strict=True):
            words[position] = f"<{tag}>{words[position]}</{tag}>"
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
    """Write texts with zero, one, or two labels."""
    rows = tiny_run.examples(30, seed)
    return tiny_run.table(
        file, [(text, ("", label, f"{label}|odd")[i % 3]) for i, (text, label) in enumerate(rows)]
    )


def sought(file: Path, seed: int) -> Path:
    """Write queries with one to three positives; every second query has a negative."""
    rng = random.Random(seed)

    def text(max_words: int) -> str:
        return " ".join(rng.choices(tiny_run.WORDS, k=rng.randint(1, max_words)))

    rows: list[dict[str, Any]] = []
    for i in range(30):
        row = {"query": text(4), "positives": [text(9) for _ in range(1 + i % 3)]}
        rows.append(row | ({"negatives": [text(9)]} if i % 2 else {}))
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def translated(file: Path, seed: int) -> Path:
    """Write sentences with their words in reverse order."""
    rows = [(text, " ".join(reversed(text.split()))) for text, _ in tiny_run.examples(30, seed)]
    return tiny_run.table(file, rows, header="source,target")


FILES: dict[str, tuple[str, Callable[[Path, int], Path]]] = {  # by task, or task and variant
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
    "translate": ("csv", translated),
}


OWN = {
    "classify many": ["task.multi_label=true", "task.label_separator='|'", "task.class_weights=balanced"],
    "tag crf": ["task.decoder=crf"],
}

# A short fine-tuning with evaluations and checkpoints, exact on any machine.
STEPS = [
    "train.max_steps=4",
    "train.batch_size=7",
    "train.learning_rate=5e-3",
    "train.eval_steps=2",
    "train.save_steps=1",
    "train.threads=1",
    "train.precision=fp32",
    "train.report_to=none",
]
# Tasks with the setting `head`, without some variants.
HEADED = [
    name
    for name in FILES
    if "head" in get_task(name.split()[0]).settings_type.model_fields and name not in ("tag crf", "tag roles")
]
