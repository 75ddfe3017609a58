"""The price of a task: one that is declared here alone is trained, saved, loaded, evaluated and predicted with.

It has what classification has not: several sequences an item (a text and its reversed copy), several items an
example, a target that is a list of numbers, outputs of as many rows as there are tokens, a loss of two parts, no
labels, a split without strata.
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
from bertsmith.models.pretraining_heads import Pooler
from bertsmith.models.task_heads import LinearHead
from bertsmith.settings import Settings
from bertsmith.tasks.base import Decoder, Example, TaskData, TaskEncoder, TaskMetrics, TaskModel
from bertsmith.tasks.batching import Item, TaskBatch, TokenSequence
from bertsmith.tasks.registry import TASKS, Task
from bertsmith.tasks.report import TaskReport
from bertsmith.tasks.results import Metrics, MetricTable, Prediction


class ToySettings(Settings):
    """Where the text is."""

    words_key: str = Field("words", description="the key of the words")
    part_words: int = Field(4, ge=1, description="words of an item")


@dataclass(frozen=True)
class Line(Example):
    words: list[str]
    lengths: list[float] | None
    location: str

    @property
    def group_key(self) -> tuple[str, ...]:
        return tuple(self.words)


class ToyData(TaskData):
    def read(self, source: Any, *, labeled: bool = True) -> list[Line]:
        rows = [json.loads(line) for line in Path(source).read_text().splitlines()]
        words_of_rows = [row[self.settings.words_key] for row in rows]
        return [
            Line(words, [float(len(w)) for w in words] if labeled else None, f"{source}:{i}")
            for i, words in enumerate(words_of_rows, 1)
        ]

    def from_inputs(self, columns: Mapping[str, Any], locations: Sequence[str]) -> list[Line]:
        return [Line(text.split(), None, at) for text, at in zip(columns["words"], locations, strict=True)]

    def to_row(self, example: Line) -> dict[str, Any]:
        return {self.settings.words_key: example.words}


class ToyEncoder(TaskEncoder):
    """An item for every few words: the words, and the words reversed."""

    def encode(self, examples: Sequence[Line], tokenizer: bs.Tokenizer) -> list[Item]:
        items = []
        for number, example in enumerate(examples):
            for at in range(0, len(example.words), self.settings.part_words):
                part = slice(at, at + self.settings.part_words)
                words = example.words[part]
                both = [
                    TokenSequence.from_encoding(tokenizer.encode(" ".join(w))) for w in (words, words[::-1])
                ]
                items.append(Item(number, tuple(both), example.lengths[part] if example.lengths else None))
        return items


class ToyModel(TaskModel):
    """Each word's number of letters, from the model's rows."""

    loss_weights = {"rows": 1.0, "sums": 0.5}  # noqa: RUF012

    def __init__(self, config: Any, generator: torch.Generator, metadata: Any, settings: ToySettings) -> None:
        super().__init__(config, generator, metadata, settings)
        self.pooler = Pooler(config, generator)
        self.head = LinearHead(config, generator, 1)

    @property
    def heads(self) -> dict[str, nn.Module]:
        return {"pooler": self.pooler, "classifier": self.head}

    def tensors(self, items: Sequence[Item]) -> tuple[dict[str, Tensor], dict[str, int]]:
        tensors, counts = {}, {}
        if all(item.target is not None for item in items):
            tensors["lengths"] = torch.tensor([n for item in items for n in item.target])
            counts = {"rows": len(tensors["lengths"]), "sums": len(items)}
        return tensors, counts

    def outputs(self, encoder: Any, batch: TaskBatch) -> list[Tensor]:
        assert set(batch.sizes) == {2}
        hidden = encoder(batch.packed)
        values = self.head(self.pooler(hidden))[:, 0]
        parts = torch.split(values, batch.packed.lengths.tolist())
        return [(a[1:-1] + b[1:-1].flip(0)) / 2 for a, b in zip(parts[::2], parts[1::2], strict=True)]

    def loss(self, encoder: Any, batch: TaskBatch) -> Loss:
        predicted, lengths = torch.cat(self.outputs(encoder, batch)), batch.tensors["lengths"]
        errors = (predicted - lengths).square().sum()
        return Loss({"rows": errors, "sums": (predicted.sum() - lengths.sum()).abs()}, batch.counts)


@dataclass
class ToyPrediction(Prediction):
    words: list[str]
    lengths: list[float]


class ToyDecoder(Decoder):
    def decode(self, outputs: Any, items: Any, examples: Any) -> list[ToyPrediction]:
        lengths: list[list[float]] = [[] for _ in examples]
        for output, item in zip(outputs.per_item, items, strict=True):
            lengths[item.example] += output.tolist()
        return [ToyPrediction(e.words, n) for e, n in zip(examples, lengths, strict=True)]


class ToyMetrics(TaskMetrics):
    primary_metric = "close"

    def compute(self, predictions: Any, examples: Any) -> Metrics:
        pairs = [
            (guess, truth)
            for p, e in zip(predictions, examples, strict=True)
            for guess, truth in zip(p.lengths, e.lengths, strict=True)
        ]
        close = sum(abs(g - t) < 0.5 for g, t in pairs) / len(pairs)
        table = MetricTable("by hand", ["what", "number"], [["words", str(len(pairs))]])
        return Metrics({"close": close, "examples": len(examples)}, {"words": len(pairs)}, [table])

    def baseline(self, training: Sequence[Line], validation: Sequence[Line]) -> Metrics:
        return self.compute([ToyPrediction(e.words, [4.0] * len(e.words)) for e in validation], validation)


TOY = Task(
    name="toy",
    summary="letters of each word",
    folder=__name__,
    settings_type=ToySettings,
    data=f"{__name__}:ToyData",
    encoder=f"{__name__}:ToyEncoder",
    model=f"{__name__}:ToyModel",
    decoder=f"{__name__}:ToyDecoder",
    metrics=f"{__name__}:ToyMetrics",
    inputs=("words",),
)


def lines(path: Path, number: int, seed: int) -> Path:
    rows = [{"words": text.split()} for text, _ in tiny_run.examples(number, seed)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def base(tmp_path: Path) -> bs.Model:
    return tiny_run.run(
        tiny_run.make_shards(tmp_path), tmp_path / "bert", "model.num_hidden_layers=1", "train.max_steps=2"
    )


def test_it_is_trained_saved_loaded_and_served(
    base: bs.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(TASKS, "toy", TOY)
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
        len((tmp_path / "run" / "split" / f"{n}.jsonl").read_text().splitlines())
        for n in ("train", "validation")
    ]
    assert split == [30, 10]
    assert run.report["decided_by"] == "close"
    assert {"close", "examples", "truncation", "words"} == set(run.report["validation"])
    again = bs.load(tmp_path / "run")
    assert again.task.settings.part_words == 3
    texts = ["kaba kade kagi kafo kazu", "lo", "migi nude pe ri so tuba lode kaba kade kagi"]
    together = [one.to_dict() for one in again.predict(texts)]
    assert [len(answer["lengths"]) for answer in together] == [len(text.split()) for text in texts]
    for text, answer in zip(texts, together, strict=True):
        assert again.predict([text])[0].lengths == pytest.approx(answer["lengths"], abs=1e-5)
    test = lines(tmp_path / "test.jsonl", 12, seed=3)
    assert again.evaluate(test).words == sum(len(p["words"]) for p in again.predict_file(test))


def test_the_verbs_have_its_options_and_print_its_scores(
    base: bs.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(TASKS, "toy", TOY)
    help_text = CliRunner().invoke(bertsmith, ["finetune", "toy", "--help"]).output
    assert "--words-key" in help_text
    assert "--label-column" not in help_text
    train, validation = lines(tmp_path / "a.jsonl", 12, seed=1), lines(tmp_path / "b.jsonl", 6, seed=2)
    call = [
        "finetune",
        "toy",
        "--model",
        str(base.path),
        "--train",
        str(train),
        "--validation",
        str(validation),
    ]
    few = ["--part-words", "2", "--set", "train.max_steps=1", "--set", "train.report_to=none"]
    made = CliRunner().invoke(bertsmith, [*call, "--output-dir", str(tmp_path / "run"), *few])
    assert made.exit_code == 0, made.output
    assert "close" in made.output
    scored = CliRunner().invoke(bertsmith, ["evaluate", str(tmp_path / "run"), "--data", str(validation)])
    assert "by hand" in scored.output
    assert "close" in scored.output
    told = CliRunner().invoke(
        bertsmith,
        ["evaluate", str(tmp_path / "run"), "--data", str(validation), "--part-words", "1", "--json"],
    )
    rows = CliRunner().invoke(
        bertsmith, ["predict", str(tmp_path / "run"), "--input", str(validation), "--format", "csv"]
    )
    assert rows.stdout.splitlines()[0] == "line,words,lengths"
    assert [line.split(",")[0] for line in rows.stdout.splitlines()[1:]] == ["1", "2", "3", "4", "5", "6"]
    assert json.loads(told.stdout)["examples"] == 6


@pytest.mark.parametrize(
    "part", [Example, TaskData, TaskEncoder, TaskModel, Decoder, TaskMetrics, TaskReport]
)
def test_no_part_has_more_than_ten_methods_to_override(part: type) -> None:
    methods = [
        name
        for name, value in vars(part).items()
        if not name.startswith("_") and (callable(value) or isinstance(value, property))
    ]
    assert len(methods) <= 10, methods


def test_the_default_distillation_refuses_outputs_without_classes() -> None:
    """One softmax over outputs [n] would mix all examples of a batch."""
    model: Any = object()
    outputs = [torch.zeros(3), torch.zeros(2)]
    with pytest.raises(NotImplementedError):
        TaskModel.distillation_loss(model, outputs, outputs, None, 1.0)  # type: ignore[arg-type]
