"""Fine-tuning from one file: the sample, the split, what is written, what the labels are called."""

from __future__ import annotations

import json
import logging
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import bertsmith as bs
import tiny_run
from bertsmith.errors import InputError
from bertsmith.finetuning.data import split_examples
from bertsmith.finetuning.job import FinetuneJob
from bertsmith.finetuning.settings import DropoutSettings, FileSettings
from bertsmith.models.family import preset
from bertsmith.tasks.registry import get_task
from bertsmith.tasks.settings import ClassSettings

FEW = ["train.max_steps=2", "train.threads=1", "train.precision=fp32", "train.report_to=none"]


def parts(run: Path) -> tuple[list[dict[str, str]], list[dict[str, str]]]:
    train, validation = (
        [json.loads(line) for line in (run / "split" / f"{name}.jsonl").read_text().splitlines()]
        for name in ("train", "validation")
    )
    return train, validation


def test_split_is_exact_stratified_and_repeatable(base: bs.Model, tmp_path: Path) -> None:
    rows = [(f"{text} {i}", label) for i, (text, label) in enumerate(tiny_run.examples(90))]
    rows += [(f"kaba {i}", "joy") for i in range(60)]
    file = tiny_run.table(tmp_path / "all.csv", rows)
    settings = [*FEW, "files.seed=42"]
    bs.finetune("classify", base, tmp_path / "a", train=file, validation_split=0.2, settings=settings)
    train, validation = parts(tmp_path / "a")
    assert (len(train), len(validation)) == (120, 30)
    assert Counter(row["label"] for row in validation) == {"joy": 18, "fear": 6, "anger": 6}
    assert sorted((r["text"], r["label"]) for r in train + validation) == sorted(rows)
    task = get_task("classify")
    splits = [
        split_examples(
            task, FileSettings(train=str(file), validation_split=0.2, seed=seed), task.settings_type()
        )
        for seed in (42, 43)
    ]
    same, other = ([{example.text for example in part} for part in split[:2]] for split in splits)
    assert same == [{row["text"] for row in part} for part in (train, validation)]
    assert other != same


def test_a_split_into_three_keeps_the_test_examples_from_every_choice(base: bs.Model, tmp_path: Path) -> None:
    """S90, S91: 80/20 at seed 42, then a tenth of the 80; the test is scored once, by the best weights."""
    rows = [(f"{text} {i}", label) for i, (text, label) in enumerate(tiny_run.examples(100))]
    file = tiny_run.table(tmp_path / "all.csv", rows)
    settings = ["train.threads=1", "train.precision=fp32", "train.report_to=none", "files.seed=42"]
    splits = {"test_split": 0.2, "validation_split": 0.1}
    options = {"train": file, "settings": [*settings, "train.num_train_epochs=2"], **splits}
    seen: list[int] = []
    evaluate = FinetuneJob.evaluate

    def counted(job: FinetuneJob) -> Any:
        metrics, answers = evaluate(job)
        seen.append(len(answers.examples))
        return metrics, answers

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FinetuneJob, "evaluate", counted)
        run = bs.finetune("classify", base, tmp_path / "a", **options)
    names = ("train", "validation", "test")
    files = {name: tmp_path / "a" / "split" / f"{name}.jsonl" for name in names}
    lines = {name: path.read_text().splitlines() for name, path in files.items()}
    assert {name: len(part) for name, part in lines.items()} == {"train": 72, "validation": 8, "test": 20}
    assert len({line for part in lines.values() for line in part}) == 100
    assert set(seen) == {8}  # whatever chose weights and thresholds saw the validation examples only
    report = run.report["test"]
    assert report["examples"] == 20
    again = bs.load(tmp_path / "a", precision="fp32").evaluate(files["test"])
    assert report["accuracy"] == pytest.approx(again.accuracy)
    assert report["confusion"] == again.confusion
    figure = f"{report['accuracy']:.4f}"
    for page in ((tmp_path / "a" / "report.html").read_text(), bs.card(tmp_path / "a")):
        assert re.search(rf"20 test examples, which chose nothing, .*accuracy (is )?{figure}", page)
    task = get_task("classify")
    parts = [
        [
            {example.text for example in part}
            for part in split_examples(task, file_settings, ClassSettings())[:3]
        ]
        for file_settings in (FileSettings(train=str(file), seed=seed, **splits) for seed in (42, 42, 43))
    ]
    assert parts[0] == parts[1] != parts[2]
    assert parts[0][2] == {json.loads(line)["text"] for line in lines["test"]}


def test_a_test_split_beside_a_validation_file_and_one_that_leaves_nothing(
    base: bs.Model, tmp_path: Path
) -> None:
    file = tiny_run.table(tmp_path / "all.csv", tiny_run.examples(30))
    validation = tiny_run.table(tmp_path / "validation.csv", tiny_run.examples(9, seed=5))
    run = bs.finetune(
        "classify", base, tmp_path / "a", train=file, validation=validation, test_split=0.3, settings=FEW
    )
    assert (run.report["validation"]["examples"], run.report["train_examples"]) == (9, 21)
    assert run.report["test"]["examples"] == 9
    with pytest.raises(InputError) as caught:
        bs.finetune("classify", base, tmp_path / "b", train=file, validation=validation, test_split=0.001)
    assert (caught.value.code, caught.value.argument) == ("split_impossible", "test_split")


def test_scoring_the_examples_that_chose_the_epoch_is_reported_once(
    base: bs.Model, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever their file, order, and columns; also by a copy of the model, and by an ensemble."""
    file = tiny_run.table(tmp_path / "all.csv", tiny_run.examples(30))
    rows = tiny_run.examples(12, seed=5)
    validation = tiny_run.table(tmp_path / "validation.csv", rows)
    bs.finetune("classify", base, tmp_path / "a", train=file, validation=validation, settings=FEW)
    bs.finetune("classify", base, tmp_path / "b", train=file, validation_split=0.3, settings=FEW)
    a, b = (bs.load(bs.load(tmp_path / name).save(tmp_path / f"{name}-copy")) for name in "ab")

    def warnings(model: Any, data: Any, **options: Any) -> int:
        caplog.clear()
        model.evaluate(data, **options)
        return sum(
            "validation examples" in r.getMessage() for r in caplog.records if r.levelname == "WARNING"
        )

    shuffled = [{"what": text, "label": label} for text, label in reversed(rows)]
    held_out = tmp_path / "b" / "split" / "validation.jsonl"
    assert warnings(a, validation) == warnings(a, shuffled, text_column="what") == warnings(b, held_out) == 1
    assert warnings(bs.ensemble([a, b]), validation) == 1
    assert warnings(a, file) == warnings(a, rows[1:]) == warnings(b, validation) == 0
    a.evaluate(validation, report=tmp_path / "page")
    page = json.loads((tmp_path / "page" / "report.json").read_text())
    assert page["findings"][0]["kind"] == "validation examples as a test"
    assert "test_split=0.2" in page["findings"][0]["said"]


@pytest.mark.parametrize("again", ["resume", "overwrite"])
def test_a_run_that_ends_before_its_first_update_can_be_continued_or_replaced(
    base: bs.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, again: str
) -> None:
    file, out = tiny_run.table(tmp_path / "all.csv", tiny_run.examples(40)), tmp_path / "run"
    data = {"train": file, "validation_split": 0.25, "settings": [*FEW, "train.freeze_encoder=true"]}

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(FinetuneJob, "cache_features", interrupt)
        with pytest.raises(KeyboardInterrupt):
            bs.finetune("classify", base, out, **data)
    resumed = bs.finetune("classify", base, out, **data, **{again: True})
    straight = bs.finetune("classify", base, tmp_path / "straight", **data)
    assert parts(out) == parts(tmp_path / "straight")
    assert resumed.report["validation"] == straight.report["validation"]


def test_equal_texts_are_on_one_side_of_a_split(base: bs.Model, tmp_path: Path) -> None:
    """Also where their labels differ; other texts are drawn as before."""
    rows = [(f"kaba lode {i % 20}", ("joy", "fear")[i % 2]) for i in range(100)]
    file = tiny_run.table(tmp_path / "all.csv", rows)
    bs.finetune("classify", base, tmp_path / "run", train=file, validation_split=0.3, settings=FEW)
    train, validation = parts(tmp_path / "run")
    assert (len(train), len(validation)) == (70, 30)
    assert not {row["text"] for row in train} & {row["text"] for row in validation}


def test_a_split_without_a_label_or_an_example_is_reported(
    base: bs.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "bertsmith")
    monkeypatch.setenv("COLUMNS", "300")
    rows = [*((f"kaba {i}", "joy") for i in range(8)), ("lode zu", "fear"), ("lode zu", "fear")]
    file = tiny_run.table(tmp_path / "all.csv", rows)
    bs.finetune("classify", base, tmp_path / "a", train=file, validation_split=0.3, settings=FEW)
    assert any("1 training label missing in validation" in line for line in caplog.messages)
    one = tmp_path / "one.jsonl"
    one.write_text('{"words": ["kaba", "lode"], "tags": ["A", "B"]}\n')
    with pytest.raises(InputError) as caught:
        bs.finetune("tag", base, tmp_path / "b", train=one, validation_split=0.3, settings=FEW)
    assert caught.value.code == "split_impossible"
    assert caught.value.argument == "validation_split"


def test_the_same_file_or_the_same_texts_on_both_sides_are_reported(
    base: bs.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "bertsmith")
    monkeypatch.setenv("COLUMNS", "300")
    train = tiny_run.table(tmp_path / "train.csv", tiny_run.examples(30))
    rows = [*tiny_run.examples(30)[:4], ("zu zu zu", "joy"), ("zu zu", "fear")]
    validation = tiny_run.table(tmp_path / "validation.csv", rows)
    bs.finetune("classify", base, tmp_path / "a", train=train, validation=train, settings=FEW)
    assert any("the validation file is the training file" in line for line in caplog.messages)
    caplog.clear()
    bs.finetune("classify", base, tmp_path / "b", train=train, validation=validation, settings=FEW)
    sides = "4 of 6 validation examples have a text that is also trained on, which raises the scores"
    assert any(
        f"│ {sides} │ validation.csv:2 is train.csv:2 │" in " ".join(line.split()) for line in caplog.messages
    )


def test_written_parts_train_the_same_model(base: bs.Model, tmp_path: Path) -> None:
    file = tiny_run.table(tmp_path / "all.csv", tiny_run.examples(60))
    first = bs.finetune("classify", base, tmp_path / "a", train=file, validation_split=0.25, settings=FEW)
    split = tmp_path / "a" / "split"
    again = bs.finetune(
        "classify",
        base,
        tmp_path / "b",
        train=split / "train.jsonl",
        validation=split / "validation.jsonl",
        settings=FEW,
    )
    weights = [(model.model_folder / "model.safetensors").read_bytes() for model in (first, again)]
    assert weights[0] == weights[1]


def test_sample_takes_that_many_rows_by_the_seed(base: bs.Model, tmp_path: Path) -> None:
    file = tiny_run.table(tmp_path / "all.csv", tiny_run.examples(90))
    model = bs.finetune(
        "classify", base, tmp_path / "run", train=file, validation_split=0.2, sample=40, settings=FEW
    )
    train, validation = parts(tmp_path / "run")
    assert (len(train), len(validation)) == (32, 8)
    assert model.report["train_examples"] == 32


def test_numbers_get_names_that_stay_with_the_model(base: bs.Model, tmp_path: Path) -> None:
    ids = {"joy": "0", "fear": "1", "anger": "2"}
    rows = [(text, ids[label]) for text, label in tiny_run.examples(30)]
    model = bs.finetune(
        "classify",
        base,
        tmp_path / "run",
        train=tiny_run.table(tmp_path / "all.csv", rows),
        validation_split=0.2,
        label_names=["joy", "fear", "anger"],
        settings=FEW,
    )
    assert model.labels == ["joy", "fear", "anger"]
    assert bs.load(tmp_path / "run").predict(["kaba"])[0].label in ids
    named = tiny_run.table(tmp_path / "named.csv", tiny_run.examples(9, seed=4))
    numbered = tiny_run.table(
        tmp_path / "numbered.csv", [(text, ids[label]) for text, label in tiny_run.examples(9, seed=4)]
    )
    assert model.evaluate(named) == model.evaluate(numbered)


def test_settings_are_enough_to_run_it_again(base: bs.Model, tmp_path: Path) -> None:
    train = tiny_run.table(tmp_path / "train.csv", tiny_run.examples(30))
    validation = tiny_run.table(tmp_path / "validation.csv", tiny_run.examples(9, seed=1))
    first = bs.finetune("classify", base, tmp_path / "a", train=train, validation=validation, settings=FEW)
    again = bs.finetune(
        "classify",
        base,
        tmp_path / "b",
        train=train,
        validation=validation,
        recipe=tmp_path / "a" / "settings.yaml",
    )
    assert (tmp_path / "a" / "log.jsonl").read_bytes() == (tmp_path / "b" / "log.jsonl").read_bytes()
    assert first.report["validation"] == again.report["validation"]


def test_a_label_with_one_example_is_learned_and_reported(
    base: bs.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "bertsmith")
    monkeypatch.setenv("COLUMNS", "300")
    file = tiny_run.table(tmp_path / "all.csv", [*tiny_run.examples(30), ("kaba", "awe")])
    bs.finetune("classify", base, tmp_path / "run", train=file, validation_split=0.2, settings=FEW)
    train, validation = parts(tmp_path / "run")
    assert (len(train), len(validation)) == (25, 6)
    assert [row["label"] for row in train].count("awe") == 1
    said = " ".join(" ".join(caplog.messages).split())
    assert "│ 1 training label missing in validation, whose scores say nothing of them │ 'awe' │" in said
    once = "│ 1 label with a single training example: too little to learn from │ 'awe' (all.csv:32) │"
    assert once in said


def test_a_model_of_pairs_takes_no_single_texts(base: bs.Model, tmp_path: Path) -> None:
    rows = [(f"{text},{text}", label) for text, label in tiny_run.examples(12)]
    file = tiny_run.table(tmp_path / "pairs.csv", rows, header="text,other,label")
    settings = [*FEW, "task.second_column=other"]
    model = bs.finetune("classify", base, tmp_path / "run", train=file, validation=file, settings=settings)
    assert len(model.predict(["kaba"], ["lode"])) == 1
    (tmp_path / "lines.txt").write_text("kaba\n")
    for call in (
        lambda: model.predict(["kaba"]),
        lambda: list(model.predict_file(tmp_path / "lines.txt")),
        lambda: list(model.predictor.examples_of_lines([b"kaba\n"], "standard input")),
    ):
        with pytest.raises(InputError) as caught:
            call()
        assert (caught.value.code, caught.value.argument) == ("pairs_expected", "second_column")


def test_a_delimiter_of_training_does_not_stick_to_other_forms(base: bs.Model, tmp_path: Path) -> None:
    rows = tiny_run.examples(30)
    semi = tmp_path / "semi.csv"
    semi.write_text("text;label\n" + "".join(f"{text};{label}\n" for text, label in rows))
    settings = [*FEW, "task.delimiter=;"]
    model = bs.finetune(
        "classify", base, tmp_path / "run", train=semi, validation_split=0.2, settings=settings
    )
    tabs = tmp_path / "rows.tsv"
    tabs.write_text("text\tlabel\n" + "".join(f"{text}\t{label}\n" for text, label in rows))
    split = tmp_path / "run" / "split"
    assert model.evaluate(split / "validation.jsonl").examples == 6
    assert model.evaluate(tabs) == model.evaluate(semi)


def test_files_may_be_set_and_stand_in_a_recipe(base: bs.Model, tmp_path: Path) -> None:
    file = tiny_run.table(tmp_path / "all.csv", tiny_run.examples(60))
    settings = [*FEW, "files.sample=20"]
    model = bs.finetune("classify", base, tmp_path / "a", train=file, validation_split=0.3, settings=settings)
    assert model.report["train_examples"] == 14
    again = bs.finetune("classify", base, tmp_path / "b", train=file, recipe=tmp_path / "a" / "settings.yaml")
    assert again.report["validation"] == model.report["validation"]
    with pytest.raises(InputError) as caught:
        bs.finetune(
            "classify", base, tmp_path / "c", train=file, validation_split=0.3, settings=["base=elsewhere"]
        )
    assert caught.value.code == "base_differs"
    assert caught.value.argument == "base"


def test_a_sample_without_a_rare_label_still_knows_it(base: bs.Model, tmp_path: Path) -> None:
    file = tiny_run.table(tmp_path / "all.csv", [*tiny_run.examples(60), ("kaba", "awe")])
    model = bs.finetune(
        "classify", base, tmp_path / "run", train=file, validation=file, sample=9, settings=FEW
    )
    assert model.labels == ["anger", "awe", "fear", "joy"]


def test_an_update_of_more_passes_than_the_run_has_is_refused(base: bs.Model, tmp_path: Path) -> None:
    file = tiny_run.table(tmp_path / "all.csv", tiny_run.examples(40))
    many = ["train.num_train_epochs=1", "train.gradient_accumulation_steps=5000", "train.threads=1"]
    with pytest.raises(InputError) as caught:
        bs.finetune("classify", base, tmp_path / "run", train=file, validation=file, settings=many)
    assert (caught.value.code, caught.value.argument) == (
        "update_longer_than_run",
        "train.gradient_accumulation_steps",
    )
    assert "one update takes 2,500" in caught.value.message
    assert (caught.value.code, caught.value.argument) == (
        "update_longer_than_run",
        "train.gradient_accumulation_steps",
    )
    shards = tiny_run.make_shards(tmp_path)
    with pytest.raises(InputError) as caught:
        tiny_run.run(shards, tmp_path / "bert", "train.gradient_accumulation_steps=5000")
    assert (caught.value.code, caught.value.argument) == (
        "update_longer_than_run",
        "train.gradient_accumulation_steps",
    )


def test_dropout_of_fine_tuning_is_a_tenth_whatever_the_base_had(tmp_path: Path) -> None:
    """And the user's. ALBERT's published models say 0."""
    small = ["model.hidden_size=32", "model.num_hidden_layers=1", "model.num_attention_heads=2"]
    small += ["model.intermediate_size=32", "model.embedding_size=16", "model.max_position_embeddings=64"]
    small += ["data.sequence_length=32", "train.max_steps=1", "train.threads=1", "train.report_to=none"]
    shards = tiny_run.make_shards(tmp_path)
    model = bs.pretrain(shards, tmp_path / "base", preset="albert-base-v2", settings=small)
    assert model.folder.config.hidden_dropout_prob == 0
    rows = tiny_run.table(tmp_path / "rows.csv", tiny_run.examples(12))
    weights = []
    for name, settings, expected in (
        ("usual", [], 0.1),
        ("a tenth", ["model.hidden_dropout_prob=0.1"], 0.1),
        ("more", ["model.hidden_dropout_prob=0.4", "model.attention_probs_dropout_prob=0.3"], 0.4),
        ("none", ["model.hidden_dropout_prob=0", "model.attention_probs_dropout_prob=0"], 0.0),
    ):
        out = tmp_path / name
        settings = [*FEW, *settings]
        tuned = bs.finetune("classify", model, out, train=rows, validation=rows, settings=settings)
        config = json.loads((tuned.model_folder / "config.json").read_text())
        assert config["hidden_dropout_prob"] == tuned.folder.config.head_dropout == expected
        weights.append((tuned.model_folder / "model.safetensors").read_bytes())
    assert weights[0] == weights[1]
    assert len(set(weights)) == 3


def test_a_head_keeps_the_dropout_that_its_base_names() -> None:
    """DistilBERT's is 0.2; who sets the encoder's dropout means the head's as well."""
    base = preset("distilbert-base-cased")
    for own, expected in (({}, 0.2), ({"hidden_dropout_prob": 0.4}, 0.4), ({"classifier_dropout": 0.3}, 0.3)):
        assert DropoutSettings(**own).within(base).head_dropout == expected
    assert DropoutSettings().within(preset("bert-base-cased")).head_dropout == 0.1
