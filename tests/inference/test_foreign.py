"""Models of other tools: heads are read as what they are, or refused by name; answers are the reference's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import bertsmith as bs
import tiny_run
from bertsmith.errors import InputError

transformers = pytest.importorskip("transformers")

PAIRS = [("kaba lode migi", "nufo"), ("pezu", "riba soba tude kade"), ("so tu", "kagi kafo")]


def written(folder: Path, kind: str, **more: Any) -> Any:
    """A tiny model of another tool with weights large enough for answers to differ, and its folder."""
    tokenizer = tiny_run.tokenizer()
    config = transformers.BertConfig(
        vocab_size=tokenizer.vocab_size,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=64,
        initializer_range=0.5,
        **more,
    )
    torch.manual_seed(3)
    model = getattr(transformers, kind)(config).eval()
    model.save_pretrained(folder)
    tokenizer.save(folder)
    return model


def written_folder(path: Path) -> Path:
    written(path / "foreign", "BertForSequenceClassification", num_labels=2)
    return path / "foreign"


def logits(model: Any, folder: Path, texts: list[str], seconds: list[str] | None = None) -> torch.Tensor:
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    inputs = tokenizer(texts, seconds, padding=True, return_tensors="pt")
    with torch.inference_mode():
        found: torch.Tensor = model(**inputs).logits
    return found


def table(path: Path) -> Path:
    lines = ["a,b,label", *(f"{a},{b},{i % 2}" for i, (a, b) in enumerate(PAIRS))]
    path.write_text("\n".join(lines) + "\n")
    return path


def test_a_pair_classifier_reads_both_texts(tmp_path: Path) -> None:
    """The answers to the first texts alone are others."""
    model = written(tmp_path / "m", "BertForSequenceClassification", num_labels=2)
    ours = bs.load(tmp_path / "m", precision="fp32")
    firsts, seconds = ([pair[i] for pair in PAIRS] for i in (0, 1))
    shares = logits(model, tmp_path / "m", firsts, seconds).softmax(-1)[:, 1].tolist()
    file = table(tmp_path / "pairs.csv")
    columns = {"text_column": "a", "second_column": "b"}
    told = [
        [one.to_dict() for one in ours.predict(firsts, seconds)],
        list(ours.predict_file(file, **columns)),
    ]
    for answers in told:
        assert [a["scores"]["LABEL_1"] for a in answers] == pytest.approx(shares, abs=1e-5)
    alone = [a.scores["LABEL_1"] for a in ours.predict(firsts)]
    assert alone == pytest.approx(logits(model, tmp_path / "m", firsts).softmax(-1)[:, 1].tolist(), abs=1e-5)
    assert max(abs(a - b) for a, b in zip(alone, shares, strict=True)) > 1e-3
    scores = ours.evaluate(file, **columns)
    right = sum(int(share > 0.5) == i % 2 for i, share in enumerate(shares))
    assert scores.accuracy == pytest.approx(right / 3)


def test_one_output_is_a_number(tmp_path: Path) -> None:
    model = written(tmp_path / "m", "BertForSequenceClassification", num_labels=1)
    texts = [a for a, _ in PAIRS]
    answers = bs.load(tmp_path / "m", precision="fp32").predict(texts)
    numbers = logits(model, tmp_path / "m", texts)[:, 0].tolist()
    assert [answer.number for answer in answers] == pytest.approx(numbers, abs=1e-5)
    assert all(not hasattr(answer, "label") for answer in answers)
    assert max(map(abs, numbers)) > 1e-3


@pytest.mark.parametrize(
    ("kind", "more", "name"),
    [
        (
            "BertForSequenceClassification",
            {"num_labels": 1, "problem_type": "multi_label_classification"},
            "BertForSequenceClassification (multi_label_classification)",
        ),
        ("BertForNextSentencePrediction", {}, "BertForNextSentencePrediction"),
    ],
)
def test_heads_of_no_known_task_are_refused_by_name(
    tmp_path: Path, kind: str, more: dict[str, Any], name: str
) -> None:
    written(tmp_path / "m", kind, **more)
    with pytest.raises(InputError) as caught:
        bs.load(tmp_path / "m").predict(["kaba"])
    assert caught.value.code == "unsupported_architecture"
    assert name in caught.value.message


def test_a_task_of_another_version_is_named(tmp_path: Path) -> None:
    written(tmp_path / "m", "BertForSequenceClassification", num_labels=2)
    (tmp_path / "m" / "bertsmith.json").write_text('{"task": "summarise"}')
    with pytest.raises(InputError) as caught:
        bs.load(tmp_path / "m").predict(["kaba"])
    assert caught.value.code == "unknown_task"
    assert (caught.value.code, caught.value.location) == ("unknown_task", str(tmp_path / "m"))


def test_a_model_without_a_task_says_so(tmp_path: Path) -> None:
    written(tmp_path / "m", "BertForMaskedLM")
    with pytest.raises(InputError) as caught:
        bs.load(tmp_path / "m").predict(["kaba"])
    assert (caught.value.code, caught.value.location) == ("not_fine_tuned", str(tmp_path / "m"))


def test_pairs_for_a_model_of_one_segment_id_are_refused(tmp_path: Path) -> None:
    written(tmp_path / "m", "BertForSequenceClassification", num_labels=2, type_vocab_size=1)
    ours = bs.load(tmp_path / "m", precision="fp32")
    assert len(ours.predict(["kaba"])) == 1
    with pytest.raises(InputError) as caught:
        ours.predict(["kaba"], ["lode"])
    assert (caught.value.code, caught.value.location) == ("segments_unsupported", "text 1")


def test_one_reader_for_all_verbs(tmp_path: Path) -> None:
    """`text;label` in a .txt file: `predict --input` sees the texts that `evaluate` sees."""
    base = tiny_run.run(tiny_run.make_shards(tmp_path), tmp_path / "bert", "train.max_steps=2")
    rows = tiny_run.examples(30)
    file = tmp_path / "all.txt"
    file.write_text("".join(f"{text};{label}\n" for text, label in rows))
    settings = ["task.delimiter=';'", "task.header=false", "task.text_column='1'", "task.label_column='2'"]
    few = ["train.max_steps=3", "train.threads=1", "train.report_to=none"]
    run = bs.finetune(
        "classify", base, tmp_path / "run", train=file, validation_split=0.2, settings=[*settings, *few]
    )
    answers = list(run.predict_file(file))
    assert [a["tokens"] for a in answers] == [len(text.split()) for text, _ in rows]
    right = sum(a["label"] == label for a, (_, label) in zip(answers, rows, strict=True))
    assert run.evaluate(file).accuracy == pytest.approx(right / 30)
    other = tmp_path / "other.txt"  # nobody says how it is written
    other.write_text(file.read_text())
    foreign = bs.load(written_folder(tmp_path))
    assert [a["tokens"] for a in foreign.predict_file(other, text_column="1", header=False)] == [
        a["tokens"] for a in answers
    ]
    plain = tmp_path / "plain.txt"
    plain.write_text("".join(f"{text}\n" for text, _ in rows))
    by_lines = run.predict([text for text, _ in rows])
    assert [a["scores"] for a in run.predict_file(plain, delimiter=None, text_column=None)] == [
        pytest.approx(a.scores) for a in by_lines
    ]


def test_regression_learns_and_keeps_fractions(tmp_path: Path) -> None:
    """0.7 stays 0.7; the folder is the field's regression, with the same numbers there."""
    base = tiny_run.run(tiny_run.make_shards(tmp_path), tmp_path / "bert", "train.max_steps=2")
    rows = [(text, f"{0.25 * len(text.split()) - 0.3:.2f}") for text, _ in tiny_run.examples(60)]
    run = bs.finetune(
        "regress",
        base,
        tmp_path / "run",
        train=tiny_run.table(tmp_path / "train.csv", rows[:45]),
        validation=tiny_run.table(tmp_path / "validation.csv", rows[45:]),
        settings=[
            "train.num_train_epochs=20",
            "train.batch_size=8",
            "train.learning_rate=2e-3",
            "train.threads=1",
            "train.precision=fp32",  # so that it answers in it, as the reference does
            "train.report_to=none",
        ],
    )
    validation = run.report["validation"]
    assert run.report["decided_by"] == "pearson"
    assert validation["pearson"] > 0.6
    assert validation["mean_squared_error"] < run.report["baseline"]["mean_squared_error"]
    theirs = transformers.BertForSequenceClassification.from_pretrained(run.model_folder).eval()
    assert theirs.config.problem_type == "regression"
    texts = [text for text, _ in rows[:6]]
    numbers = logits(theirs, run.model_folder, texts)[:, 0].tolist()
    assert [a.number for a in run.predict(texts)] == pytest.approx(numbers, abs=1e-5)


@pytest.mark.parametrize(
    ("label", "code"),
    [
        ("much", "not_a_number"),
        ("nan", "empty_label"),
        ("inf", "empty_label"),
        ("1e308", "number_too_large"),
        ("1,5", "not_a_number"),
    ],
)
def test_what_is_no_number_is_named(tmp_path: Path, label: str, code: str) -> None:
    base = tiny_run.run(tiny_run.make_shards(tmp_path), tmp_path / "bert", "train.max_steps=1")
    file = tmp_path / "train.tsv"
    file.write_text(f"text\tlabel\nkaba\t1.5\nlode\t{label}\n")
    with pytest.raises(InputError) as caught:
        bs.finetune("regress", base, tmp_path / "run", train=file, validation=file)
    assert (caught.value.code, caught.value.location) == (code, f"{file}:3")


@pytest.mark.parametrize(
    ("task", "change"),
    [
        ("classify", {"labels": [1, None]}),
        ("classify", {"labels": ["y", "x"]}),
        ("classify", {"pairs": "no"}),
        ("classify", {"numbered": 3}),
        ("tag", {"labels": ["B-a", None]}),
        ("tag", {"scheme": "bio"}),
        ("tag", {"default_label": None}),
        ("tag", {"default_label": ...}),
        ("tag", {"scheme": ...}),
    ],
    ids=str,
)
def test_facts_of_the_wrong_kind_are_refused_by_name(
    tmp_path: Path, task: str, change: dict[str, Any]
) -> None:
    """`...`: the fact is missing. Labels that are not config.json's would be answers under wrong names."""
    kind = {"classify": "BertForSequenceClassification", "tag": "BertForTokenClassification"}[task]
    names = {"classify": ["x", "y"], "tag": ["B-a", "O"]}[task]
    written(tmp_path / "model", kind, id2label=dict(enumerate(names)))
    facts = {"labels": names, "numbered": False}
    facts |= {"pairs": False} if task == "classify" else {"scheme": "iob2", "default_label": "O"}
    record = tmp_path / "model" / "bertsmith.json"
    record.write_text(json.dumps({"task": task, "settings": {}, "metadata": facts}))
    assert len(bs.load(tmp_path / "model").predict(["kaba lode"])) == 1
    facts = {name: value for name, value in (facts | change).items() if value is not ...}
    record.write_text(json.dumps({"task": task, "settings": {}, "metadata": facts}))
    with pytest.raises(InputError, match=r"bertsmith\.json") as caught:
        bs.load(tmp_path / "model").predict(["kaba lode"])
    assert next(iter(change)) in str(caught.value)


def test_two_classes_of_one_name_are_refused(tmp_path: Path) -> None:
    """Answers are by name: the probability of one of them would vanish."""
    written(tmp_path / "model", "BertForSequenceClassification", id2label={0: "x", 1: "x", 2: "y"})
    with pytest.raises(InputError) as caught:
        bs.load(tmp_path / "model")
    assert caught.value.code == "duplicate_label"
