"""The documentation is true: the commands and the Python of each page run as they stand, with a smaller budget."""

import csv
import json
import os
import random
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bertsmith.cli.main import main

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "docs" / "getting-started.md", *sorted((ROOT / "docs" / "journeys").glob("*.md"))]
WORDS = [
    "the",
    "a",
    "day",
    "night",
    "rain",
    "sun",
    "walks",
    "sings",
    "falls",
    "over",
    "under",
    "river",
    "old",
    "town",
    "snow",
]
CHARACTERS = "山上有一棵老树河里的水很清人们在城中走路说话"
NOT_RUN = ("pip ", "bertsmith quickstart")  # the quickstart has tests of its own

_BLOCK = re.compile(r"^```(console|python)\n(.*?)^```", re.M | re.S)


@pytest.fixture
def readers_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What the pages' reader has: texts, labelled rows, a Chinese novel, and the runs of pages read before."""
    draw = random.Random(0)

    def sentence() -> str:
        return " ".join(draw.choices(WORDS, k=9)).capitalize() + "."

    texts = tmp_path / "texts"
    texts.mkdir()
    for number in range(2):
        documents = ["\n".join(" ".join(sentence() for _ in range(4)) for _ in range(3)) for _ in range(20)]
        (texts / f"{number}.txt").write_text("\n\n".join(documents) + "\n", encoding="utf-8")
    for name in ("train", "dev", "test"):
        _write(
            tmp_path / f"{name}.csv",
            ["text", "label"],
            [[sentence(), ("glad", "sad")[i % 2]] for i in range(24)],
        )
    rows = [[i, sentence(), ("weather", "travel")[i % 2]] for i in range(40)]
    for name in ("reviews", "later"):
        _write(tmp_path / f"{name}.csv", ["id", "title", "topic"], rows)
    _write(tmp_path / "new.csv", ["id", "title"], [row[:2] for row in rows[:5]])
    quiz = [
        {"context": sentence(), "question": "what?", "choices": draw.sample(WORDS, 2 + i % 3), "label": i % 2}
        for i in range(20)
    ]
    (tmp_path / "quiz.jsonl").write_text("".join(json.dumps(row) + "\n" for row in quiz), encoding="utf-8")
    related = [
        f'{i}\t"The <e1>rain</e1> {sentence()} <e2>town</e2>."\n{("Other", "A-B(e1,e2)")[i % 2]}\nComment:\n\n'
        for i in range(20)
    ]
    (tmp_path / "pairs.txt").write_text("".join(related), encoding="utf-8")
    pairs = [[f"the old {noun} sings", f"the {noun} old sings", "order"] for noun in ("river", "town", "sun")]
    _write(tmp_path / "pairs.csv", ["good", "bad", "phenomenon"], pairs)
    for name in ("train", "dev", "test", "new"):
        tags = {"river": "B-PLACE", "town": "B-PLACE"}
        some = ["".join(f"{word} {tags.get(word, 'O')}\n" for word in sentence().split()) for _ in range(12)]
        (tmp_path / f"{name}.conll").write_text("\n".join(some), encoding="utf-8")
        roles = "1\tAda\t" + "_\t" * 9 + "ARG0\n2\tsmiles\t" + "_\t" * 8 + "smile.01\tV\n\n"
        (tmp_path / f"{name}.conllu").write_text(roles * 4, encoding="utf-8")
    graded = [[sentence(), sentence(), i % 6] for i in range(30)]
    _write(tmp_path / "graded.csv", ["text", "second", "score"], graded)
    passages = [sentence() for _ in range(12)]
    lines_of = {
        "passages": [{"text": passage} for passage in passages],
        "queries": [{"query": passage[:20], "positives": [passage]} for passage in passages[:3]],
    }
    for name, objects in lines_of.items():
        text = "".join(json.dumps(one) + "\n" for one in objects)
        (tmp_path / f"{name}.jsonl").write_text(text, encoding="utf-8")
    shutil.copytree(ROOT / "recipes", tmp_path / "recipes")
    moods = {"verb": "classify", "train": "train.csv", "validation": "dev.csv"}
    moods["settings"] = {"task.text_column": "text", "train.num_train_epochs": 1}
    (tmp_path / "tasks.yaml").write_text(json.dumps({"moods": moods}), encoding="utf-8")
    words = ["snowfall", "riverwalk", "underrain"]
    field = [" ".join(draw.choices([*WORDS, *words], k=9)) + ". " + sentence() for _ in range(60)]
    (tmp_path / "field.txt").write_text("\n\n".join(field) + "\n", encoding="utf-8")
    lines = ["".join("".join(draw.choices(CHARACTERS, k=12)) + "。" for _ in range(5)) for _ in range(80)]
    novel = "\n".join(lines)
    (tmp_path / "novel.txt").write_text(novel + "\n", encoding="utf-8")
    (tmp_path / "old.txt").write_text(novel + "\n", encoding="gb18030")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _write(file: Path, columns: list[str], rows: list[list[object]]) -> None:
    with file.open("w", newline="", encoding="utf-8") as out:
        csv.writer(out).writerows([columns, *rows])


def blocks(page: Path) -> Iterator[tuple[str, str]]:
    """The page's blocks that are to be run, in order."""
    yield from _BLOCK.findall(page.read_text(encoding="utf-8"))


def commands(block: str) -> list[str]:
    return [line.removeprefix("$ ") for line in block.splitlines() if line.startswith("$ ")]


def run(line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """One command as a reader would give it, in this process; `--minutes` becomes three updates, on one thread."""
    words = shlex.split(re.sub(r"--minutes \d+", "--steps 3", line))
    if words[0] == "torchrun":  # as its script does, and on a free port
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", *words[1:]]
        path = os.pathsep.join([str(ROOT / "src"), *sys.path])
        done = subprocess.run(
            torchrun, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        return
    target = words.index(">") if ">" in words else len(words)
    given = words[:target]
    if given[1] in ("pretrain", "distill", "finetune", "lr-find") and "--threads" not in given:
        given += ["--threads", "1"]
    monkeypatch.setattr(sys, "argv", given)
    with pytest.raises(SystemExit) as exit_:
        main()
    shown = capsys.readouterr()
    assert exit_.value.code == 0, f"{line}\n{shown.err}"
    if target < len(words):
        Path(words[target + 1]).write_text(shown.out, encoding="utf-8")


BEFORE = {
    "choices-and-relations.md": ("texts", "bert"),
    "classifier.md": ("texts", "bert"),
    "tagger.md": ("texts", "bert"),
    "repeats.md": ("texts", "bert"),
    "training-aids.md": ("texts", "bert"),
    "resume.md": ("texts",),
    "search.md": ("texts", "bert"),
    "family.md": ("texts", "bert"),
    "shared-machine.md": ("texts",),
    "gpu.md": ("texts",),
    "several-processes.md": ("texts",),
}
"""What an earlier page left: shards of the texts, and a finished run."""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_page_runs(
    page: Path, readers_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = BEFORE.get(page.name, ())
    if "texts" in before:
        run("bertsmith tokenizer train texts --output-dir tokenizer --vocab-size 300", monkeypatch, capsys)
        run("bertsmith data prepare texts --tokenizer tokenizer --output-dir shards", monkeypatch, capsys)
    if "bert" in before:
        line = "bertsmith pretrain --preset bert-tiny-uncased --data shards --output-dir bert --minutes 1"
        run(line, monkeypatch, capsys)
    names: dict[str, object] = {}
    ran = 0
    for kind, block in blocks(page):
        if kind == "python":
            exec(re.sub(r"minutes=\d+", "max_steps=3", block), names)
            ran += 1
            continue
        for line in commands(block):
            if not line.startswith(NOT_RUN):
                run(line, monkeypatch, capsys)
                ran += 1
    assert ran, "the page shows nothing that can be run"


def test_every_page_is_reached_from_the_first() -> None:
    """A page that no table of contents names would be built and found by nobody."""
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    found = {str(p.relative_to(ROOT / "docs").with_suffix("")) for p in (ROOT / "docs").rglob("*.md")} - {
        "index"
    }
    listed = set(re.findall(r"^([a-z-]+(?:/[a-z-]+)?)$", index, re.M))
    assert {name for name in found if not name.startswith("_build")} == listed
