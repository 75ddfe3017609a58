"""The price of a task: one that is written here alone is trained, saved, loaded, evaluated and predicted with.

It has what classification has not: several sequences an item (a text and its halves, which stay together), several
items an example, a target that is a list of numbers, outputs of as many rows as there are tokens, a loss of two
parts, no labels, a split without strata.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from pydantic import Field
from torch import Tensor, nn

import bertsmith as bs
import tiny_run
from bertsmith.cli.main import bertsmith
from bertsmith.loss import Loss
from bertsmith.models.heads import LinearHead, Pooler
from bertsmith.settings import Settings
from bertsmith.tasks.items import Encoded, Item, TaskBatch
from bertsmith.tasks.registry import TASKS
from bertsmith.tasks.scores import Scores, ScoreTable
from bertsmith.tasks.task import Prediction, Task


class ToySettings(Settings):
    """Where the text is."""

    words_key: str = Field("words", description="the key of the words")
    part_words: int = Field(4, ge=1, description="words of an item")


@dataclass(frozen=True)
class Line:
    words: list[str]
    lengths: list[float] | None
    place: str


class Toy(Task):
    """Each word's number of letters, from the model's rows; one item for every few words, each with a copy of it
    turned round."""

    name = "toy"
    summary = "letters of each word"
    inputs = ("words",)
    settings_type = ToySettings
    loss_weights = {"rows": 1.0, "sums": 0.5}  # noqa: RUF012

    def __init__(self, config: Any, generator: torch.Generator, facts: Any, settings: ToySettings) -> None:
        super().__init__(config, generator, facts, settings)
        self.pooler = Pooler(config, generator)
        self.head = LinearHead(config, generator, 1)

    @classmethod
    def read(cls, file: Any, settings: ToySettings, *, labelled: bool = True) -> list[Line]:
        rows = [json.loads(line) for line in Path(file).read_text().splitlines()]
        found = []
        for i, row in enumerate(rows, 1):
            words = row[settings.words_key]
            found.append(Line(words, [float(len(w)) for w in words] if labelled else None, f"{file}:{i}"))
        return found

    @classmethod
    def of_inputs(cls, columns: Mapping[str, Any], settings: Any, places: Sequence[str]) -> list[Line]:
        return [Line(text.split(), None, place) for text, place in zip(columns["words"], places, strict=True)]

    @classmethod
    def as_row(cls, example: Line, settings: ToySettings) -> dict[str, Any]:
        return {settings.words_key: example.words}

    @classmethod
    def content(cls, example: Line) -> tuple[str, ...]:
        return tuple(example.words)

    def encode(self, examples: Sequence[Line], tokenizer: bs.Tokenizer) -> list[Item]:
        items = []
        for number, example in enumerate(examples):
            for at in range(0, len(example.words), self.settings.part_words):
                some = slice(at, at + self.settings.part_words)
                words = example.words[some]
                both = [Encoded.of(tokenizer.encode(" ".join(w))) for w in (words, words[::-1])]
                items.append(Item(number, tuple(both), example.lengths[some] if example.lengths else None))
        return items

    def tensors(self, items: Sequence[Item]) -> tuple[dict[str, Tensor], dict[str, int]]:
        tensors, counts = {}, {}
        if all(item.target is not None for item in items):
            tensors["lengths"] = torch.tensor([n for item in items for n in item.target])
            counts = {"rows": len(tensors["lengths"]), "sums": len(items)}
        return tensors, counts

    @property
    def heads(self) -> dict[str, nn.Module]:
        return {"pooler": self.pooler, "classifier": self.head}

    def outputs(self, encoder: Any, batch: TaskBatch) -> list[Tensor]:
        assert set(batch.sizes) == {2}
        hidden = encoder(batch.packed)
        values = self.head(self.pooler(hidden))[:, 0]
        parts = torch.split(values, batch.packed.lengths.tolist())
        return [(a[1:-1] + b[1:-1].flip(0)) / 2 for a, b in zip(parts[::2], parts[1::2], strict=True)]

    def loss(self, encoder: Any, batch: TaskBatch) -> Loss:
        found, wanted = torch.cat(self.outputs(encoder, batch)), batch.tensors["lengths"]
        miss = (found - wanted).square().sum()
        return Loss({"rows": miss, "sums": (found.sum() - wanted.sum()).abs()}, batch.counts)

    def decode(self, outputs: Any, items: Any, examples: Any) -> list[Prediction]:
        lengths: list[list[float]] = [[] for _ in examples]
        for output, item in zip(outputs, items, strict=True):
            lengths[item.example] += output.tolist()
        return [{"words": e.words, "lengths": n} for e, n in zip(examples, lengths, strict=True)]

    @property
    def decides(self) -> str:
        return "close"

    def score(self, predictions: Any, examples: Any) -> Scores:
        pairs = [
            (guess, truth)
            for p, e in zip(predictions, examples, strict=True)
            for guess, truth in zip(p["lengths"], e.lengths, strict=True)
        ]
        close = sum(abs(g - t) < 0.5 for g, t in pairs) / len(pairs)
        table = ScoreTable("by hand", ["what", "number"], [["words", str(len(pairs))]])
        return Scores({"close": close, "examples": len(examples)}, {"words": len(pairs)}, [table])

    def baseline(self, training: Sequence[Line], dev: Sequence[Line]) -> Scores:
        return self.score([{"lengths": [4.0] * len(e.words)} for e in dev], dev)


def lines(path: Path, number: int, seed: int) -> Path:
    rows = [{"words": text.split()} for text, _ in tiny_run.examples(number, seed)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def base(tmp_path: Path) -> bs.Model:
    return tiny_run.run(tiny_run.make_shards(tmp_path), tmp_path / "bert", "train.max_steps=2")


def test_it_is_trained_saved_loaded_and_served(
    base: bs.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(TASKS, "toy", Toy)
    short = ["train.max_steps=4", "train.learning_rate=1e-3", "train.threads=1", "train.report_to=none"]
    run = bs.finetune(
        "toy",
        base,
        tmp_path / "run",
        train=lines(tmp_path / "all.jsonl", 40, seed=0),
        validation_split=0.25,
        settings=[*short, "task.part_words=3"],
    )
    split = [
        len((tmp_path / "run" / "split" / f"{n}.jsonl").read_text().splitlines()) for n in ("train", "dev")
    ]
    assert split == [30, 10]
    assert run.report["decided_by"] == "close"
    assert {"close", "examples", "words"} == set(run.report["dev"])
    again = bs.load(tmp_path / "run")
    assert again.task.settings.part_words == 3
    texts = ["kaba kade kagi kafo kazu", "lo", "migi nude pe ri so tuba lode kaba kade kagi"]
    together = again.predict(texts)
    assert [len(answer["lengths"]) for answer in together] == [len(text.split()) for text in texts]
    for text, answer in zip(texts, together, strict=True):
        assert again.predict([text])[0]["lengths"] == pytest.approx(answer["lengths"], abs=1e-5)
    test = lines(tmp_path / "test.jsonl", 12, seed=3)
    assert again.evaluate(test)["words"] == sum(len(p["words"]) for p in again.predict_file(test))


def test_the_verbs_have_its_options_and_print_its_scores(
    base: bs.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(TASKS, "toy", Toy)
    help_text = CliRunner().invoke(bertsmith, ["finetune", "toy", "--help"]).output
    assert "--words-key" in help_text
    assert "--label-column" not in help_text
    train, dev = lines(tmp_path / "a.jsonl", 12, seed=1), lines(tmp_path / "b.jsonl", 6, seed=2)
    call = ["finetune", "toy", "--model", str(base.path), "--train", str(train), "--validation", str(dev)]
    few = ["--part-words", "2", "--set", "train.max_steps=1", "--set", "train.report_to=none"]
    made = CliRunner().invoke(bertsmith, [*call, "--output-dir", str(tmp_path / "run"), *few])
    assert made.exit_code == 0, made.output
    assert "close" in made.output
    scored = CliRunner().invoke(bertsmith, ["evaluate", str(tmp_path / "run"), "--data", str(dev)])
    assert "by hand" in scored.output
    assert "close" in scored.output
    told = CliRunner().invoke(
        bertsmith, ["evaluate", str(tmp_path / "run"), "--data", str(dev), "--part-words", "1", "--json"]
    )
    rows = CliRunner().invoke(
        bertsmith, ["predict", str(tmp_path / "run"), "--input", str(dev), "--format", "csv"]
    )
    assert rows.stdout.splitlines()[0] == "line,words,lengths"
    assert [line.split(",")[0] for line in rows.stdout.splitlines()[1:]] == ["1", "2", "3", "4", "5", "6"]
    assert json.loads(told.stdout)["examples"] == 6
