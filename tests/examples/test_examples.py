"""The programs in examples/ run as their first lines say, on small data."""

from __future__ import annotations

import json
import random
import re
import runpy
import sys
from collections import Counter
from pathlib import Path

import pytest

import bertsmith as bs
import tiny_run
from bertsmith.inference.model import Model
from bertsmith.io.tables import read_table

EXAMPLES = Path(__file__).parents[2] / "examples"
ONE_THREAD = ["train.threads=1", "train.precision=fp32", "train.report_to=none"]
ONE = {"threads": 1, "precision": "fp32", "report_to": "none"}
QUICK = {"settings": ONE_THREAD, "learning_rate": 3e-3, "num_train_epochs": 8}
PEOPLE = tiny_run.WORDS[:10]
PLAIN = tiny_run.WORDS[10:]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Model:
    folder = tmp_path_factory.mktemp("examples")
    return tiny_run.run(tiny_run.make_shards(folder / "shards"), folder / "bert", "train.max_steps=2")


def run(name: str, *arguments: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [name, *map(str, arguments)])
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")


def test_events(
    base: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    draw = random.Random(0)
    tagged, related = [], []
    for _ in range(96):
        a, b, verb = draw.choice(PEOPLE), draw.choice(PEOPLE), draw.choice(PLAIN)
        tagged.append({"words": [a, verb, b], "tags": ["B-PER", "O", "B-PER"]})
        related.append({"text": f"<e1>{a}</e1> {verb} <e2>{b}</e2>", "relation": "knows(e1,e2)"})
        related.append({"text": f"<e2>{a}</e2> {verb} <e1>{b}</e1>", "relation": "knows(e2,e1)"})
    bs.finetune("tag", base, tmp_path / "names", train=tagged, validation=tagged[:24], **QUICK)
    bs.finetune("relate", base, tmp_path / "relations", train=related, validation=related[:24], **QUICK)
    capsys.readouterr()
    text = f"{PEOPLE[0]} {PLAIN[0]} {PEOPLE[1]}"
    run("events.py", tmp_path / "names", tmp_path / "relations", text, monkeypatch=monkeypatch)
    found = [line.split(" | ") for line in capsys.readouterr().out.splitlines()]
    assert [(head, tail.split(" (")[0]) for head, _, tail in found] == [
        (PEOPLE[0], PEOPLE[1]),
        (PEOPLE[1], PEOPLE[0]),
    ]
    assert {relation for _, relation, _ in found} <= {"knows(e1,e2)", "knows(e2,e1)"}


def test_questions(
    base: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    passages = [" ".join(random.Random(i).choices(PLAIN, k=8)) for i in range(6)]
    rows = [
        {
            "question": "kaba",
            "context": text,
            "answers": {"text": [text.split()[2]], "answer_start": [text.index(" ".join(text.split()[2:]))]},
        }
        for text in passages * 4
    ]
    file = tmp_path / "train.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    bs.finetune("answer", base, tmp_path / "answers", train=file, validation=file, **QUICK)
    base.index(passages, tmp_path / "index")
    capsys.readouterr()
    run("questions.py", tmp_path / "index", tmp_path / "answers", passages[0], monkeypatch=monkeypatch)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 5
    scores = [float(line.split()[0]) for line in lines]
    assert scores == sorted(scores, reverse=True)


def test_chinese_news(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On the bundled sample, with a model that is pre-trained on its titles: 80/20, then a tenth of the 80."""
    options = ("--output-dir", tmp_path / "news", "--epochs", 1, "--pretrain-steps", 2, "--serve")
    monkeypatch.setenv("PYTHONPATH", str(EXAMPLES.parent / "src"))
    run("chinese_news.py", *options, monkeypatch=monkeypatch)
    *lines, stored, served = capsys.readouterr().out.splitlines()
    assert ": 2 stored titles, largest difference " in stored
    assert served.split(": ")[1] == lines[-2].split(": ")[1].split()[0]
    names = ["体育", "娱乐", "教育", "科技", "财经"]
    assert sorted(line.split()[0] for line in lines[-7:-2]) == names
    assert lines[-9].startswith("accuracy on 10 titles that chose the epoch: ")
    assert lines[-8].startswith("accuracy on 24 titles that chose nothing: ")
    assert lines[-1].split(": ")[1].split()[0] in names
    report = bs.load(tmp_path / "news" / "run").report
    assert (report["train_examples"], report["validation"]["examples"], report["test"]["examples"]) == (
        86,
        10,
        24,
    )


def test_the_bundled_sample_is_balanced_and_has_no_text_twice() -> None:
    for name, number, labels in (("emotions.csv", 240, 6), ("chinese_titles.tsv", 120, 5)):
        table = read_table(EXAMPLES / "data" / name)
        texts, classes = ("text", "label") if name.endswith(".csv") else ("content", "class")
        counts = Counter(table.column(classes))
        assert len(set(table.column(texts))) == number
        assert (len(counts), set(counts.values())) == (labels, {number // labels})


FAMILIES = {
    "bert-mini-uncased": "wordpiece",
    "roberta-mini": "byte_level_bpe",
    "distilbert-mini-uncased": "wordpiece",
    "albert-mini": "unigram",
    "electra-mini-discriminator": "wordpiece",
}
"""A preset of each family, and the usual kind of its tokenizer."""


@pytest.fixture(scope="module")
def small_models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return a folder for each preset of FAMILIES: one or two layers of 32 with random weights, and the words of
    the bundled sample."""
    folder = tmp_path_factory.mktemp("families")
    texts = read_table(EXAMPLES / "data" / "emotions.csv").column("text")
    (folder / "corpus.txt").write_text("\n".join(map(str, texts)) + "\n", encoding="utf-8")
    tokenizers = {
        kind: bs.train_tokenizer(folder / "corpus.txt", folder / kind, kind=kind, vocab_size=400)
        for kind in dict.fromkeys(FAMILIES.values())
    }
    sizes = {"hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 64}
    for preset, kind in FAMILIES.items():
        layers = 1 if preset.startswith("distilbert") else 2
        bs.create_model(preset, tokenizers[kind], folder / preset, num_hidden_layers=layers, **sizes)
    return {preset: folder / preset for preset in FAMILIES}


def test_families(
    small_models: dict[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Models of five families differ by their names only; each row has all figures, and two are compared."""
    options = ("--epochs", 1, "--output-dir", tmp_path / "runs")
    run("families.py", *small_models.values(), *options, monkeypatch=monkeypatch)
    lines = capsys.readouterr().out.splitlines()
    (at,) = [i for i, line in enumerate(lines) if line.startswith("model ")]
    heads = re.split(r"\s{2,}", lines[at].strip())
    assert heads[1:] == [
        "accuracy",
        "million parameters",
        "s per epoch",
        "ms per text",
        "tokens per s",
        "peak MiB",
    ]
    rows = {cells[0]: cells[1:] for cells in map(str.split, lines[at + 1 : at + 1 + len(FAMILIES)])}
    assert list(rows) == list(FAMILIES)
    figures = {name: [float(cell) for cell in cells] for name, cells in rows.items()}
    assert all(0 <= row[0] <= 1 and min(row[1:]) > 0 for row in figures.values())
    assert figures["distilbert-mini-uncased"][1] < figures["bert-mini-uncased"][1]
    configs = [bs.load(tmp_path / "runs" / name / "run").info()["config"] for name in FAMILIES]
    families = [config["model_type"] for config in configs]
    assert families == ["bert", "roberta", "distilbert", "albert", "electra"]
    (scored,) = [line for line in lines if line.startswith("Test accuracy on ")]
    assert scored.startswith("Test accuracy on 48 examples")
    (compared,) = [line for line in lines if line.startswith("DistilBERT has ")]
    assert "Sanh et al. 2019" in compared


def write_moods(folder: Path) -> None:
    """train.txt and validation.txt, `text;label` in each line."""
    draw = random.Random(0)
    for name, number in (("train.txt", 64), ("validation.txt", 24)):
        lines = [
            f"{' '.join(draw.choices(PEOPLE if i % 2 else PLAIN, k=6))};{('sad', 'glad')[i % 2]}\n"
            for i in range(number)
        ]
        (folder / name).write_text("".join(lines), encoding="utf-8")


def test_emotion(
    small_models: dict[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """On the bundled sample, as the first line says, for one epoch: 240 rows, 80/20, then a tenth of the 80."""
    out = tmp_path / "emotion"
    options = ("--output-dir", out, "--rate-steps", 12, "--epochs", 1)
    run("emotion.py", small_models["bert-mini-uncased"], *options, monkeypatch=monkeypatch)
    names = ["anger", "fear", "joy", "love", "sadness", "surprise"]
    report = bs.load(out / "run").report
    sizes = [report["train_examples"], report["validation"]["examples"], report["test"]["examples"]]
    assert sizes == [173, 19, 48]
    assert report["steps"] == 29  # batches of 6
    lines = check_emotion(out, names, capsys)
    assert any(re.fullmatch(r"validation, .*: accuracy 0\.\d{4} of 19", line) for line in lines)


def test_emotion_with_three_files(
    base: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_moods(tmp_path)
    out, test = tmp_path / "emotion", tmp_path / "test.txt"
    test.write_bytes((tmp_path / "validation.txt").read_bytes())
    files = ("--train", tmp_path / "train.txt", "--validation", tmp_path / "validation.txt", "--test", test)
    options = ("--output-dir", out, "--rate-steps", 12, "--epochs", 3)
    run("emotion.py", base.path, *files, *options, monkeypatch=monkeypatch)
    check_emotion(out, ["glad", "sad"], capsys)
    assert bs.load(out / "run").report["steps"] == 33


def check_emotion(out: Path, names: list[str], capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Check the plot, the report by class, and the predictor of a run of emotion.py; return its output."""
    lines = capsys.readouterr().out.splitlines()
    assert (out / "rates.png").read_bytes().startswith(b"\x89PNG")
    (at,) = [i for i, line in enumerate(lines) if line.startswith("test: accuracy ")]
    rows = lines[at + 1 : at + 1 + len(names)]
    assert [line.split()[:2] for line in rows] == [[name, "F1"] for name in names]
    assert f"classes: {', '.join(names)}" in lines
    answers = [line.split(" (")[0] for line in lines[-3:-1]]
    assert set(answers) <= set(names)
    assert lines[-1] == f"the same model in another process: {answers[0]}"
    assert bs.load(out / "predictor").labels == names
    return lines


def test_the_notebook(base: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its cells run; the test examples are scored once, by the run, and nothing is scored on validation again."""
    write_moods(tmp_path)
    lines = (tmp_path / "train.txt").read_text().replace(";", ",")
    (tmp_path / "train.csv").write_text("text,label\n" + lines)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "Agg")
    notebook = json.loads((EXAMPLES / "emotion.ipynb").read_text(encoding="utf-8"))
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    cells = ["".join(cell["source"]) for cell in code]
    for name, value in (("MODEL", str(base.path)), ("TRAIN", "train.csv"), ("EPOCHS, BATCH_SIZE", (2, 6))):
        cells[0] = re.sub(rf"^{name} = .*", f"{name} = {value!r}", cells[0], flags=re.M)
    names: dict[str, object] = {}
    for cell in cells:
        exec(cell.replace("steps=50", "steps=12"), names)
    assert bs.load(tmp_path / "predictor").labels == ["glad", "sad"]
    run = bs.load(tmp_path / "emotion")
    assert run.report["settings"]["train"]["lr_scheduler_type"] == "one_cycle_linear"
    assert run.report["test"]["examples"] == 12 or run.report["test"]["examples"] == 13
    assert not any(".evaluate(" in cell for cell in cells)
    shown = [output for cell in code for output in cell["outputs"]]
    assert sum("image/png" in output.get("data", {}) for output in shown) == 2  # the plots are in it
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
