"""Every task's run leaves a report, and so does an evaluation: a page that stands alone, with the numbers of its
report.json; and the losses of single examples are those that training adds up."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

import bertsmith as bs
import tiny_run
from bertsmith.formatting import format_percent
from bertsmith.reports.run import render_run_page
from task_files import FILES, OWN

SETTINGS = [
    "train.max_steps=4",
    "train.batch_size=8",
    "train.learning_rate=2e-3",
    "train.eval_steps=2",
    "train.threads=1",
    "train.precision=fp32",
    "train.report_to=none",
    "train.logging_steps=1",
]

pytestmark = pytest.mark.usefixtures("every_figure")


def paired(file: Path, seed: int, labels: tuple[str, ...]) -> Path:
    draw = random.Random(seed)
    rows = [
        " ".join(draw.choices(tiny_run.WORDS, k=1 + i % 9)) + "," + draw.choice(tiny_run.WORDS)
        for i in range(30)
    ]
    return tiny_run.table(
        file, [(row, labels[i % len(labels)]) for i, row in enumerate(rows)], header="text,second,label"
    )


PAIRS = {
    "embed graded": ("csv", lambda file, seed: paired(file, seed, ("0", "1.5", "3"))),
    "embed labelled": ("csv", lambda file, seed: paired(file, seed, ("same", "other"))),
}
PAIRED = {
    "embed labelled": ["task.label_column=label", "task.same_label=same"],
    "embed graded": ["task.label_column=label"],
}
EVERY = FILES | PAIRS


class Made(NamedTuple):
    """A finished run, its report as the file has it, and its files."""

    kind: str
    out: Path
    report: dict[str, Any]
    model: bs.Model
    train: Path
    validation: Path


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> bs.Model:
    folder = tmp_path_factory.mktemp("base")
    return tiny_run.run(
        tiny_run.make_shards(folder), folder / "base", "model.num_hidden_layers=1", "train.max_steps=1"
    )


@pytest.fixture(scope="module", params=list(EVERY))
def made(request: pytest.FixtureRequest, base: bs.Model, tmp_path_factory: pytest.TempPathFactory) -> Made:
    folder = tmp_path_factory.mktemp(request.param.replace(" ", "-"))
    suffix, write = EVERY[request.param]
    train, validation = (
        write(folder / f"{name}.{suffix}", seed) for seed, name in enumerate(("train", "validation"))
    )
    own = [*OWN.get(request.param, []), *PAIRED.get(request.param, [])]
    model = bs.finetune(
        request.param.split()[0],
        base,
        folder / "run",
        train=train,
        validation=validation,
        settings=[*SETTINGS, *own],
    )
    report = json.loads((folder / "run" / "report.json").read_text(encoding="utf-8"))
    return Made(request.param, folder / "run", report, model, train, validation)


def test_the_page_is_made_of_the_report_alone(made: Made) -> None:
    page = (made.out / "report.html").read_text(encoding="utf-8")
    assert page == render_run_page(made.report)
    chosen = made.report["chosen_on_validation"]
    for name, value in made.report["validation"].items():
        if isinstance(value, float) and name not in {"chance", *chosen}:
            assert f">{value:.4f}<" in page, name
    for name, value in chosen.items():
        assert f"{value:.4g}, chosen on the validation data" in page, name
    if (chance := made.report["validation"].get("chance")) is not None:
        assert f"Random choices would be right in {format_percent(chance)}" in page.replace("\xa0", " ")
    assert "<script" not in page
    assert not re.search(r'(?:src|href)="(?!#)|url\((?!#)|@import', page)
    assert "://" not in re.sub(r'xmlns(?::\w+)?="[^"]*"', "", page)
    assert page.count("<svg") == page.count('role="img" aria-label="')


def test_plots_are_pictures(made: Made) -> None:
    found = {file.name: file.read_bytes() for file in (made.out / "figures").iterdir()}
    assert {"loss.png", "scores.png", "learning_rate.png"} <= set(found)
    assert any(name.startswith("lengths") for name in found)
    assert all(content.startswith(b"\x89PNG") for content in found.values())


def test_time_is_told_by_step(made: Made) -> None:
    seconds = {one["step"]: one["seconds"] for one in made.report["wall_time"]}
    assert set(seconds) == {
        "reading the files", "building the model", "encoding", "training", "evaluations", "checkpoints",
        "writing the model", "the report",
    }  # fmt: skip
    assert all(value >= 0 for value in seconds.values())
    assert seconds["training"] > 0
    assert seconds["evaluations"] > 0


def test_the_hardest_examples_are_of_the_file(made: Made) -> None:
    hardest = made.report["answers"]["hardest"]
    losses = [one["loss"] for one in hardest["examples"]]
    assert losses == sorted(losses, reverse=True)
    assert 0 < len(losses) <= 20
    assert hardest["measure"]
    assert all(one["place"].startswith(str(made.validation)) for one in hardest["examples"])
    assert all(one["asked"] for one in hardest["examples"])


def test_losses_are_those_of_training(made: Made) -> None:
    """Summed over examples of one window; of any number of labels and of pairs without their weights."""
    if made.kind.startswith("embed") or made.kind == "classify many":
        pytest.skip("the loss of a batch is no sum over its examples, or has weights")
    predictor = made.model.predictor
    (answers,) = predictor.answers(predictor.read(made.validation))
    losses = [loss for loss in predictor.task.metrics.example_losses(answers) if loss is not None]
    with torch.inference_mode():
        model = predictor.task.model
        found = model.loss(predictor.encoder, model.collate(answers.items))
    expected = sum(model.loss_weights.get(part, 1.0) * float(value) for part, value in found.sums.items())
    assert sum(losses) == pytest.approx(expected, rel=1e-4)


def test_an_evaluation_has_a_report_of_its_own(made: Made, tmp_path: Path) -> None:
    before = sorted(file for file in made.out.rglob("*"))
    folder = tmp_path / "judged"
    scores = made.model.evaluate(made.validation, report=folder).to_dict()
    assert sorted(file for file in made.out.rglob("*")) == before
    report = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    assert report["scores"] == scores
    assert (folder / "report.html").read_text(encoding="utf-8") == render_run_page(report)
    assert list((folder / "figures").glob("*.png"))
    assert report["answers"].keys() == made.report["answers"].keys()
    assert report["truncation"]["data"] == scores["truncation"] == made.report["truncation"]["validation"]
    with pytest.raises(bs.InputError) as caught:
        made.model.evaluate(made.validation, report=folder)
    assert (caught.value.code, caught.value.argument) == ("output_exists", "report")
