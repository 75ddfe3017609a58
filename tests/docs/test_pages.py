"""The commands and the Python code of each page run as written, with a smaller budget."""

import csv
import json
import os
import random
import re
import shlex
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

import bertsmith as bs
from bertsmith.cli.main import main

ROOT = Path(__file__).parents[2]
OWN_TEST = "from-n-grams-to-bert.md"  # in test_tutorial.py
PAGES = [
    *sorted(page for page in (ROOT / "docs" / "tutorials").glob("*.md") if page.name != OWN_TEST),
    *sorted((ROOT / "docs" / "how-to").glob("*.md")),
]
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
NOT_RUN = ("pip ", "bertsmith quickstart")  # tests/demo runs it
BLOCK = re.compile(r"^ *```(console|python)\n(.*?)^ *```", re.M | re.S)


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the files of the pages, and the tokenizer, shards, and run of an earlier page."""
    folder = tmp_path_factory.mktemp("workspace")
    write_files(folder)
    tokenizer = bs.train_tokenizer(folder / "texts", folder / "tokenizer", vocab_size=300)
    shards = bs.prepare(folder / "texts", tokenizer, folder / "shards", workers=1)
    bs.pretrain(shards, folder / "bert", preset="bert-tiny-uncased", max_steps=3, threads=1)
    return folder


def write_files(tmp_path: Path) -> None:
    """Write texts, labeled examples of each task, a Chinese novel, and the recipes."""
    draw = random.Random(0)

    def sentence() -> str:
        return " ".join(draw.choices(WORDS, k=9)).capitalize() + "."

    texts = tmp_path / "texts"
    texts.mkdir()
    for number in range(2):
        documents = ["\n".join(" ".join(sentence() for _ in range(4)) for _ in range(3)) for _ in range(20)]
        (texts / f"{number}.txt").write_text("\n\n".join(documents) + "\n", encoding="utf-8")
    for name in ("train", "validation", "test"):
        _write(
            tmp_path / f"{name}.csv",
            ["text", "label"],
            [[sentence(), ("glad", "sad")[i % 2]] for i in range(24)],
        )
    rows = [[i, sentence(), ("weather", "travel")[i % 2]] for i in range(40)]
    for name in ("reviews", "later"):
        _write(tmp_path / f"{name}.csv", ["id", "title", "topic"], rows)
    _write(tmp_path / "new.csv", ["id", "title"], [row[:2] for row in rows[:5]])
    _write(tmp_path / "codes.csv", ["text", "label"], [[sentence(), i % 2] for i in range(40)])
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
    for name in ("train", "validation", "test", "new"):
        tags = {"river": "B-PLACE", "town": "B-PLACE"}
        sentences = [
            "".join(f"{word} {tags.get(word, 'O')}\n" for word in sentence().split()) for _ in range(12)
        ]
        (tmp_path / f"{name}.conll").write_text("\n".join(sentences), encoding="utf-8")
        roles = "1\tAda\t" + "_\t" * 9 + "ARG0\n2\tsmiles\t" + "_\t" * 8 + "smile.01\tV\n\n"
        (tmp_path / f"{name}.conllu").write_text(roles * 4, encoding="utf-8")
    _write(
        tmp_path / "sentences.csv",
        ["source", "target"],
        [[f"{i} {word}", f"{word} {i}"] for i in range(4) for word in WORDS],
    )
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
    moods = {"verb": "classify", "train": "train.csv", "validation": "validation.csv"}
    moods["settings"] = {"task.text_column": "text", "train.num_train_epochs": 1}
    (tmp_path / "tasks.yaml").write_text(json.dumps({"moods": moods}), encoding="utf-8")
    words = ["snowfall", "riverwalk", "underrain"]
    field = [" ".join(draw.choices([*WORDS, *words], k=9)) + ". " + sentence() for _ in range(60)]
    (tmp_path / "field.txt").write_text("\n\n".join(field) + "\n", encoding="utf-8")
    lines = ["".join("".join(draw.choices(CHARACTERS, k=12)) + "。" for _ in range(5)) for _ in range(80)]
    novel = "\n".join(lines)
    (tmp_path / "novel.txt").write_text(novel + "\n", encoding="utf-8")
    (tmp_path / "old.txt").write_text(novel + "\n", encoding="gb18030")


def _write(file: Path, columns: list[str], rows: list[list[object]]) -> None:
    with file.open("w", newline="", encoding="utf-8") as out:
        csv.writer(out).writerows([columns, *rows])


def blocks(page: Path) -> Iterator[tuple[str, str]]:
    """Yield the language and the text of each block to run, in order."""
    for language, block in BLOCK.findall(page.read_text(encoding="utf-8")):
        yield language, textwrap.dedent(block)


def commands(block: str) -> list[str]:
    """Return the commands of a console block."""
    return [line.removeprefix("$ ") for line in block.splitlines() if line.startswith("$ ")]


def reduce_budget(line: str) -> str:
    """Return a command with a tiny model, three small updates, two folds, two values in a grid, short curves."""
    line = line.replace("--steps 20", "--steps 10 --seeds 1") if "lr-find" in line else line
    if "bertsmith pretrain" in line and "--preset" not in line:
        line += " --preset bert-tiny-uncased"
    if re.search("bertsmith (pretrain|ablate)", line) and "batch_size" not in line:
        line += " --set train.batch_size=8"
    if "bertsmith baselines" in line:
        models = "" if "--models" in line else " --models trigram,word2vec,bert"
        line = re.sub(r"--minutes \d+", "--tokens 2000", line) + models
    line = re.sub(r"--folds \d+", "--folds 2", re.sub(r"--minutes \d+", "--steps 3", line))
    return re.sub(r"(=[^, ]+,[^, ]+),\S+", r"\1", line) if "--grid" in line else line


def run(line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Run a command in this process on one thread, or start torchrun on a free port."""
    words = shlex.split(reduce_budget(line))
    if words[0] == "torchrun":
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", *words[1:]]
        path = os.pathsep.join([str(ROOT / "src"), *sys.path])
        done = subprocess.run(
            torchrun, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        return
    if words[1] in ("pretrain", "distill", "finetune", "lr-find") and "--threads" not in words:
        words += ["--threads", "1"]
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit) as exit_:
        main()
    assert exit_.value.code == 0, f"{line}\n{capsys.readouterr().err}"


CREATED = {
    "chinese.md": ("tokenizer", "shards", "bert"),
    "corpus.md": ("tokenizer", "shards", "bert"),
    "first-classifier.md": ("tokenizer", "shards", "bert"),
    "gpu.md": ("bert",),
    "inside-one-step.md": ("tokenizer", "shards", "bert"),
    "python.md": ("tokenizer", "shards", "bert"),
    "resume.md": ("bert",),
    "several-processes.md": ("bert",),
    "shared-machine.md": ("bert",),
}
"""The folders of the workspace that a page creates itself."""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_page_runs(
    page: Path,
    workspace: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = tmp_path / "reader"
    shutil.copytree(
        workspace, folder, ignore=lambda at, _: CREATED.get(page.name, ()) if at == str(workspace) else ()
    )
    monkeypatch.chdir(folder)
    names: dict[str, object] = {}
    num_runs = 0
    for language, block in blocks(page):
        if language == "python":
            exec(re.sub(r"minutes=\d+", "max_steps=3", block), names)
            num_runs += 1
            continue
        for line in commands(block):
            if not line.startswith(NOT_RUN):
                run(line, monkeypatch, capsys)
                num_runs += 1
    assert num_runs, "the page has nothing to run"


def test_the_table_of_contents_has_every_page() -> None:
    docs = ROOT / "docs"
    index = (docs / "index.md").read_text(encoding="utf-8")
    pages = {str(p.relative_to(docs).with_suffix("")) for p in docs.rglob("*.md")} - {"index"}
    listed = set(re.findall(r"^([a-z-]+/[a-z-]+)$", index, re.M))
    assert {name for name in pages if not name.startswith("_build")} == listed


def test_error_codes_of_troubleshooting_exist() -> None:
    page = (ROOT / "docs" / "how-to" / "troubleshooting.md").read_text(encoding="utf-8")
    messages = (ROOT / "tests" / "style" / "messages.txt").read_text(encoding="utf-8")
    known = set(re.findall(r"^(\w+) \(", messages, re.M))
    codes = {
        code for group in re.findall(r"\((`\w+`(?:,\s+`\w+`)*)\)", page) for code in re.findall(r"\w+", group)
    }
    assert len(codes) > 20
    assert codes <= known


def test_readme_and_contributing_link_to_existing_files() -> None:
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md"]:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            assert (ROOT / target).exists(), f"{page.name}: {target}"
