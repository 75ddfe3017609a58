"""Relations, semantic roles, and events: each is learned from a toy set to over 95 % on other examples (S75)."""

from __future__ import annotations

import random
import runpy
from pathlib import Path
from typing import Any

import pytest

import bertsmith as bs
import tiny_run

OPTIONS: dict[str, Any] = {
    "learning_rate": 3e-3,
    "batch_size": 16,
    "threads": 1,
    "precision": "fp32",
    "report_to": "none",
}
PEOPLE, VERBS = tiny_run.WORDS[:10], tiny_run.WORDS[10:]
EXAMPLES = Path(__file__).parents[2] / "examples"


def sentences(number: int, seed: int) -> list[tuple[str, str, str]]:
    """Return two people with a verb between them."""
    draw = random.Random(seed)
    pairs = [draw.sample(PEOPLE, 2) for _ in range(number)]
    return [(head, draw.choice(VERBS), tail) for head, tail in pairs]


def relation(verb: str) -> str:
    return "likes" if VERBS.index(verb) % 2 else "meets"


def relation_rows(triples: list[tuple[str, str, str]]) -> list[dict[str, str]]:
    """Return each pair in both directions: the markers and the verb decide together."""
    return [
        row
        for head, verb, tail in triples
        for row in (
            {"text": f"<e1>{head}</e1> {verb} <e2>{tail}</e2>", "relation": f"{relation(verb)}(e1,e2)"},
            {"text": f"<e2>{head}</e2> {verb} <e1>{tail}</e1>", "relation": f"{relation(verb)}(e2,e1)"},
        )
    ]


@pytest.fixture(scope="module")
def relations(base: bs.Model, tmp_path_factory: pytest.TempPathFactory) -> bs.Model:
    train, validation = relation_rows(sentences(200, 0)), relation_rows(sentences(20, 1))
    out = tmp_path_factory.mktemp("toy") / "relations"
    return bs.finetune("relate", base, out, train=train, validation=validation, num_train_epochs=8, **OPTIONS)


def test_relations_of_other_sentences(relations: bs.Model) -> None:
    assert relations.evaluate(relation_rows(sentences(100, 2))).accuracy > 0.95


def write_roles(file: Path, number: int, seed: int) -> Path:
    """Write sentences of two clauses in CoNLL-U Plus: who acts stands before a predicate, who does not behind it.

    The columns of both predicates differ, so that only the predicate decides which clause has the roles.
    """
    blocks = []
    for head, verb, tail in sentences(number, seed):
        verbs = [VERBS[VERBS.index(verb) % 15], VERBS[15 + VERBS.index(verb) % 15]]
        cells = [
            (head, "_", "ARG0", "_"),
            (verbs[0], "go.01", "V", "_"),
            (tail, "_", "ARG1", "ARG0"),
            (verbs[1], "see.01", "_", "V"),
            (head, "_", "_", "ARG1"),
        ]
        lines = ["\t".join([str(i), word, *"_" * 8, *rest]) for i, (word, *rest) in enumerate(cells, 1)]
        blocks.append("\n".join(lines) + "\n")
    file.write_text("\n".join(blocks))
    return file


def test_roles_of_other_sentences(base: bs.Model, tmp_path: Path) -> None:
    parts = ((200, "train"), (20, "validation"), (100, "test"))
    train, validation, test = (
        write_roles(tmp_path / f"{name}.conllu", number, seed) for seed, (number, name) in enumerate(parts, 5)
    )
    options = OPTIONS | {"num_train_epochs": 10}
    run = bs.finetune("tag", base, tmp_path / "run", train=train, validation=validation, **options)
    assert run.evaluate(test).f1 > 0.95


def test_events_of_other_sentences(base: bs.Model, relations: bs.Model, tmp_path: Path) -> None:
    """The program in examples/ composes a tagger of names and the relations: both directions of each pair."""
    rows = [{"words": list(triple), "tags": ["B-PER", "O", "B-PER"]} for triple in sentences(120, 3)]
    options = OPTIONS | {"num_train_epochs": 6}
    tagger = bs.finetune("tag", base, tmp_path / "names", train=rows, validation=rows[:24], **options)
    events = runpy.run_path(str(EXAMPLES / "events.py"))["events"]
    right = 0
    for head, verb, tail in sentences(60, 4):
        answers = {(a, label, b) for a, label, b, _ in events(tagger, relations, f"{head} {verb} {tail}")}
        name = relation(verb)
        right += answers == {(head, f"{name}(e1,e2)", tail), (tail, f"{name}(e2,e1)", head)}
    assert right / 60 > 0.95
