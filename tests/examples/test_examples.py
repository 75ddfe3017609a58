"""The programs in examples/ run as their first lines say, on small data."""

from __future__ import annotations

import json
import random
import runpy
import sys
from pathlib import Path

import pytest

import bertsmith as bs
import tiny_run
from bertsmith.inference.model import Model

EXAMPLES = Path(__file__).parents[2] / "examples"
ONE_THREAD = ["train.threads=1", "train.precision=fp32", "train.report_to=none"]
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
    tmp_path: Path, shared_data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    data = shared_data / "tasks" / "thucnews"
    chinese = shared_data / "vocabs" / "bert-base-chinese"
    shards = bs.prepare([shared_data / "corpora" / "sample" / "chinese.txt"], chinese, tmp_path / "shards")
    bert = tiny_run.run(shards, tmp_path / "bert", "train.max_steps=1")
    run(
        "chinese_news.py",
        bert.path,
        data / "train.txt.gz",
        *("--names", data / "class.txt", "--output-dir", tmp_path / "news", "--sample", 200, "--epochs", 1),
        monkeypatch=monkeypatch,
    )
    lines = capsys.readouterr().out.splitlines()
    names = (data / "class.txt").read_text(encoding="utf-8").split()
    assert [line.split()[0] for line in lines[-12:-2]] == names
    assert lines[-13].startswith("accuracy on the titles that were held out: 0.")
    assert lines[-1].split(": ")[1].split()[0] in names
    assert bs.load(tmp_path / "news").report["validation"]["examples"] == 40


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
    base: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_moods(tmp_path)
    out = tmp_path / "emotion"
    files = (tmp_path / "train.txt", tmp_path / "validation.txt")
    run("emotion.py", base.path, *files, "--output-dir", out, "--rate-steps", 12, monkeypatch=monkeypatch)
    told = capsys.readouterr().out.splitlines()
    assert (out / "rates.png").read_bytes().startswith(b"\x89PNG")
    (at,) = [i for i, line in enumerate(told) if line.startswith(("accuracy 0.", "accuracy 1."))]
    assert [line.split()[:2] for line in told[at + 1 : at + 3]] == [["glad", "F1"], ["sad", "F1"]]
    assert "classes: glad, sad" in told
    assert {line.split(" (")[0] for line in told[-2:]} <= {"glad", "sad"}
    assert bs.load(out / "predictor").labels == ["glad", "sad"]
    assert bs.load(out / "run").report["steps"] == 6


def test_the_notebook(base: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_moods(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "Agg")
    notebook = json.loads((EXAMPLES / "emotion.ipynb").read_text(encoding="utf-8"))
    cells = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    cells[0] = cells[0].replace('"bert-base-uncased"', repr(str(base.path)))
    names: dict[str, object] = {}
    for cell in cells:
        exec(cell.replace("sample=SAMPLE, **", "sample=SAMPLE, steps=12, **"), names)
    assert bs.load(tmp_path / "predictor").labels == ["glad", "sad"]
    shown = [output for cell in notebook["cells"] for output in cell.get("outputs", [])]
    assert sum("image/png" in output.get("data", {}) for output in shown) == 2  # the plots are in it
