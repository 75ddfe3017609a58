"""A tagger trained, saved, loaded, asked by all verbs, and the same in the reference library, both ways."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

import bertsmith as bs
import tiny_run
from bertsmith.cli.main import bertsmith
from bertsmith.metrics.sufficient_statistics import sum_counts
from bertsmith.metrics.tagging import count_entities, entities_to_tags, extract_entities, find_violations

SHORT = ["train.learning_rate=3e-3", "train.threads=1", "train.report_to=none", "train.precision=fp32"]


def sentences(number: int, seed: int) -> list[tuple[list[str], list[str]]]:
    """Words in ka- begin a person and words in lo- a place; what ends in -zu goes on what is before it."""
    draw = random.Random(seed)
    found = []
    for _ in range(number):
        words = draw.choices(tiny_run.WORDS, k=draw.randint(1, 9))
        tags: list[str] = []
        for word in words:
            kind = {"ka": "PER", "lo": "LOC"}.get(word[:2])
            open_kind = tags[-1][2:] if tags else ""
            if kind is not None:
                tags.append(f"B-{kind}")
            else:
                tags.append(f"I-{open_kind}" if open_kind and word.endswith("zu") else "O")
        found.append((words, tags))
    return found


def conll(path: Path, rows: Sequence[tuple[list[str], list[str]]]) -> Path:
    blocks = ["".join(f"{w} x {t}\n" for w, t in zip(*row, strict=True)) for row in rows]
    path.write_text("-DOCSTART- x O\n\n" + "\n".join(blocks), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> bs.Model:
    """A tiny tagger fine-tuned until it knows more than the usual tag."""
    folder = tmp_path_factory.mktemp("names")
    base = tiny_run.run(tiny_run.make_shards(folder), folder / "bert", "train.max_steps=2")
    return bs.finetune(
        "tag",
        base,
        folder / "run",
        train=conll(folder / "all.txt", sentences(200, seed=0)),
        validation_split=0.2,
        settings=[*SHORT, "train.num_train_epochs=12"],
    )


def test_it_learns_to_find_entities(names: bs.Model, tmp_path: Path) -> None:
    report = names.report
    assert report["decided_by"] == "f1"
    assert report["validation"]["f1"] > 0.8 > 0.0 == report["baseline"]["f1"]
    assert report["labels"] == [
        *(f"{prefix}-{kind}" for prefix in "BEI" for kind in ("LOC", "PER")), "O", "S-LOC", "S-PER",
    ]  # fmt: skip
    assert set(report["examples"]["labels"]["train"]) == {"B-LOC", "B-PER", "I-LOC", "I-PER", "O"}
    split = [
        json.loads(line) for line in (names.path / "split" / "validation.jsonl").read_text().splitlines()
    ]
    assert len(split) == 40
    scores = names.evaluate(names.path / "split" / "validation.jsonl")
    assert scores.f1 == pytest.approx(report["validation"]["f1"])
    answers = names.predict([row["words"] for row in split])
    whole = sum_counts(count_entities([row["tags"] for row in split], [answer.tags for answer in answers]))
    assert scores.f1 == pytest.approx(whole.f1)


def test_the_reference_library_gives_the_same_probabilities(names: bs.Model, tmp_path: Path) -> None:
    """Of all labels; where each word's likeliest ones are legal together, they are the answer."""
    from transformers import AutoModelForTokenClassification, AutoTokenizer

    theirs, report = AutoModelForTokenClassification.from_pretrained(
        names.model_folder, output_loading_info=True
    )
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    words = [["kaba", "(unheard)", "kazu", "."], *(row[0] for row in sentences(9, seed=2))]
    inputs = AutoTokenizer.from_pretrained(names.model_folder)(
        words, is_split_into_words=True, padding=True, return_tensors="pt"
    )
    with torch.inference_mode():
        shares = theirs.eval()(**inputs).logits.softmax(-1)
    label = theirs.config.id2label
    same = 0
    ours = bs.load(names.path, precision="fp32")
    for i, answer in enumerate([one.to_dict() for one in ours.predict(words)]):
        first = [inputs.word_ids(i).index(number) for number in range(len(words[i]))]
        best = shares[i][first].max(-1)
        likeliest = [label[number] for number in best.indices.tolist()]
        if find_violations(likeliest, "iobes"):
            assert find_violations(answer["tags"], "iob2") == []
            continue
        same += 1
        assert extract_entities(answer["tags"]) == extract_entities(likeliest)
        assert answer["scores"] == pytest.approx(best.values.tolist(), abs=1e-5)
    assert same > 5


def test_a_folder_of_the_reference_is_read_as_a_tagger(names: bs.Model, tmp_path: Path) -> None:
    from transformers import AutoModelForTokenClassification, AutoTokenizer

    theirs = AutoModelForTokenClassification.from_pretrained(names.model_folder)
    theirs.save_pretrained(tmp_path / "theirs")
    AutoTokenizer.from_pretrained(names.model_folder).save_pretrained(tmp_path / "theirs")
    foreign = bs.load(tmp_path / "theirs", precision="fp32")
    run = bs.load(names.path, precision="fp32")
    words = [row[0] for row in sentences(9, seed=3)]
    for ours, other in zip(
        [one.to_dict() for one in run.predict(words)],
        [one.to_dict() for one in foreign.predict(words)],
        strict=True,
    ):
        assert ours["scores"] == pytest.approx(other["scores"], abs=1e-5)
        assert ours["entities"] == other["entities"]
    file = conll(tmp_path / "validation.conll", sentences(9, seed=4))
    assert foreign.evaluate(file).f1 == pytest.approx(names.evaluate(file).f1)
    # the options of a folder without a record are those of its heads' task
    called = ["evaluate", str(tmp_path / "theirs"), "--data", str(file), "--tag-column", "3", "--json"]
    assert json.loads(CliRunner().invoke(bertsmith, called).stdout)["examples"] == 9


def test_a_long_sentence_is_answered_whole_whatever_the_window(names: bs.Model) -> None:
    words = [word for row in sentences(40, seed=5) for word in row[0]]
    assert len(words) > names.folder.config.max_length
    whole, short = names.predict([words])[0].to_dict(), names.predict([words], max_length=9)[0].to_dict()
    assert len(whole["tags"]) == len(short["tags"]) == len(words)
    assert whole["tokens_read"] == short["tokens_read"] == len(words)


def test_the_command_line(names: bs.Model, tmp_path: Path) -> None:
    def asked(*call: str, stdin: str | None = None) -> str:
        found = CliRunner().invoke(bertsmith, list(call), input=stdin)
        assert found.exit_code == 0, found.output
        return found.stdout

    run = str(names.path)
    rows = sentences(5, seed=6)
    file = conll(tmp_path / "a.txt", rows)
    answers = [json.loads(line) for line in asked("predict", run, "--input", str(file)).splitlines()]
    assert [answer["words"] for answer in answers] == [row[0] for row in rows]
    assert json.loads(asked("predict", run, "kaba kazu lode", "--json"))[0]["words"] == [
        "kaba",
        "kazu",
        "lode",
    ]
    piped = asked("predict", run, stdin="kaba lode\n\nlode\n").splitlines()
    assert [json.loads(line)["words"] for line in piped] == [["kaba", "lode"], ["lode"]]
    assert [json.loads(line)["line"] for line in piped] == [1, 3]
    table = asked("evaluate", run, "--data", str(file))
    for shown in ("f1", "accuracy", "PER", "support"):
        assert shown in table
    wrong = CliRunner().invoke(bertsmith, ["evaluate", run, "--data", str(file), "--tag-column", "2"])
    assert isinstance(wrong.exception, bs.InputError)
    assert (wrong.exception.code, wrong.exception.argument) == ("unknown_label", "tag_column")


def test_one_sentence_and_one_that_is_already_words(names: bs.Model) -> None:
    assert names.predict("kaba lode") == names.predict(["kaba lode"])[0]
    assert names.predict([["kaba", "lode"]])[0].words == names.predict("kaba lode").words


def test_the_folder_without_its_record_is_a_tagger_still(names: bs.Model, tmp_path: Path) -> None:
    shutil.copytree(names.model_folder, tmp_path / "bare")
    (tmp_path / "bare" / "bertsmith.json").unlink()
    words = [row[0] for row in sentences(3, seed=7)]
    foreign = bs.load(tmp_path / "bare", precision="fp32")
    for bare, own in zip(
        [one.to_dict() for one in foreign.predict(words)],
        [one.to_dict() for one in names.predict(words)],
        strict=True,
    ):
        assert own["tags"] == entities_to_tags(extract_entities(bare["tags"]), len(bare["tags"]), "iob2")
        assert {**own, "tags": 0} == {**bare, "tags": 0}


def test_a_tagger_of_characters_reads_running_text(tmp_path: Path) -> None:
    """In training each character is a word; a text to predict has no blanks between them."""
    shards = tiny_run.make_shards(tmp_path)
    base = tiny_run.run(shards, tmp_path / "bert", "train.max_steps=1")
    rows = [("国正在北京", "B-PER I-PER O B-LOC I-LOC"), ("先生在北京", "O O O B-LOC I-LOC")] * 4
    file = tmp_path / "train.txt"
    lines = ["".join(f"{c}\t{t}\n" for c, t in zip(text, tags.split(), strict=True)) for text, tags in rows]
    file.write_text("\n".join(lines), encoding="utf-8")
    run = bs.finetune(
        "tag", base, tmp_path / "run", train=file, validation=file, settings=[*SHORT, "train.max_steps=2"]
    )
    assert run.folder.record["metadata"]["characters"] is True
    text = "国正先生 in 北京"
    (answer,) = run.predict([text])
    assert answer.words == ["国", "正", "先", "生", "in", "北", "京"]
    assert len(answer.tags) == 7
    spaced = run.predict([list(answer.words)])[0]
    assert spaced.tags == answer.tags
