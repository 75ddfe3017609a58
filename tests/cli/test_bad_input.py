"""Bad input through the real command line: one sentence with its place, the exit code, nothing half-written."""

from __future__ import annotations

import errno
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import tiny_run
from bertsmith import hardware
from bertsmith.cli.main import main
from bertsmith.corpus.shards import Shards
from bertsmith.training import checkpoint

TINY = [word for setting in tiny_run.SETTINGS for word in ("--set", setting)]
TINY_WITHOUT_VALIDATION_SPLIT = [
    word for setting in tiny_run.SETTINGS if "validation_split" not in setting for word in ("--set", setting)
]
FEW = ["--set", "train.max_steps=4", "--set", "train.save_steps=1", "--set", "train.save_total_limit=2"]
TUNE = ["--set", "train.max_steps=3", "--set", "train.threads=1", "--set", "train.precision=fp32"]
TUNE += ["--set", "train.report_to=none"]

Result = SimpleNamespace
Call = Callable[..., Result]


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    """Run `bertsmith …` in this process, through `main`."""

    def run(*arguments: object, stdin: bytes | None = None) -> Result:
        monkeypatch.setattr(sys, "argv", ["bertsmith", *map(str, arguments)])
        if stdin is not None:
            monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin), encoding="utf-8"))
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        out, told = capsys.readouterr()
        assert "Traceback" not in told
        return Result(code=ended.value.code, out=out, told=told)

    return run


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """corpus, tokenizer, shards, a finished pre-training run `bert` and a classifier `moods`, made by the CLI."""
    folder = tmp_path_factory.mktemp("world")
    (folder / "corpus.txt").write_text(tiny_run.corpus(), encoding="utf-8")
    tiny_run.table(folder / "train.csv", tiny_run.examples(30))
    tiny_run.table(folder / "validation.csv", tiny_run.examples(9, seed=3))
    for arguments in (
        ["tokenizer", "train", folder / "corpus.txt", "--output-dir", folder / "tokenizer", "--vocab-size", 60],
        ["data", "prepare", folder / "corpus.txt", "--tokenizer", folder / "tokenizer", "--output-dir",
         folder / "shards"],
        ["pretrain", "--preset", "bert-tiny-uncased", "--data", folder / "shards", "--output-dir",
         folder / "bert", *TINY, *FEW],
        ["finetune", "classify", "--model", folder / "bert", "--train", folder / "train.csv", "--validation",
         folder / "validation.csv", "--output-dir", folder / "moods", *TUNE],
    ):  # fmt: skip
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "argv", ["bertsmith", *map(str, arguments)])
            with pytest.raises(SystemExit) as ended:
                main()
            assert ended.value.code == 0, arguments
    return folder


def refused(result: Result, code: int, *parts: str) -> None:
    """One sentence, at most one remedy, the parts in it; nothing on stdout, or with --json the error."""
    assert result.code == code, result.told
    if result.out:
        error = json.loads(result.out)["error"]
        assert f"error: {error['message']}\n" in result.told
        assert error["exit_code"] == code
    lines = [line for line in result.told.splitlines() if line.startswith("error:")]
    assert len(lines) == 1, result.told
    for part in parts:
        assert part in result.told


def pretrain(world: Path, out: Path, *more: object) -> list[object]:
    return [
        "pretrain",
        "--preset",
        "bert-tiny-uncased",
        "--data",
        world / "shards",
        "--output-dir",
        out,
        *(TINY_WITHOUT_VALIDATION_SPLIT if "--validation-split" in more else TINY),
        *FEW,
        *more,
    ]


def finetune(world: Path, out: Path, train: Path, validation: Path | None, *more: object) -> list[object]:
    side = ["--validation", validation] if validation else []
    return [
        "finetune",
        "classify",
        "--model",
        world / "bert",
        "--train",
        train,
        *side,
        "--output-dir",
        out,
        *TUNE,
        *more,
    ]


# --- files --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "parts"),
    [
        (b"fine\n\nbad \xff\xfe here\n", ("corpus.txt:3", "UTF-8")),
        (b"", ("corpus.txt",)),
        (b" \n\n \n", ("corpus.txt",)),
    ],
    ids=["invalid UTF-8", "empty", "blanks only"],
)
def test_a_corpus_that_cannot_be_read(
    call: Call, world: Path, tmp_path: Path, content: bytes, parts: tuple[str, ...]
) -> None:
    file = tmp_path / "corpus.txt"
    file.write_bytes(content)
    refused(call("tokenizer", "train", file, "--output-dir", tmp_path / "t", "--vocab-size", 60), 2, *parts)
    refused(
        call("data", "prepare", file, "--tokenizer", world / "tokenizer", "--output-dir", tmp_path / "s"),
        2,
        *parts,
    )
    assert [path.name for path in tmp_path.iterdir()] == ["corpus.txt"]


@pytest.mark.parametrize(
    ("name", "content", "parts"),
    [
        ("a.csv", b"text,mood\nkaba,joy\nlode,fear\n", ("a.csv", "'label'", "--label-column")),
        ("a.csv", b"text,label\nkaba,joy\nlode,fear,more\n", ("a.csv:3",)),
        ("a.csv", b"text,label\nkaba,joy\nlode\n", ("a.csv:3",)),
        ("a.csv", b"text,label\nkaba,joy\nlo\xffde,fear\n", ("a.csv:3", "UTF-8")),
        ("a.csv", b"text,label\nkaba,joy\nlode,\n", ("a.csv:3", "missing")),
        ("a.csv", b"text,label\nkaba,joy\nlode,joy\n", ("a.csv:2", "joy")),
        ("a.csv", b"text,label\n", ("a.csv:1", "no row")),
        ("a.csv", b"", ("a.csv",)),
        ("a.jsonl", b'{"text": "kaba", "label": "joy"}\n{"text": "lode"}\n', ("a.jsonl:2", "label")),
        ("a.jsonl", b'{"text": "kaba", "label": "joy"}\n{"text": \n', ("a.jsonl:2",)),
        ("a.jsonl", b'{"text": "kaba", "label": "joy"}\n[1]\n', ("a.jsonl:2",)),
    ],
)
def test_a_table_that_cannot_be_learnt_from(
    call: Call, world: Path, tmp_path: Path, name: str, content: bytes, parts: tuple[str, ...]
) -> None:
    (tmp_path / name).write_bytes(content)
    refused(call(*finetune(world, tmp_path / "run", tmp_path / name, world / "validation.csv")), 2, *parts)
    assert not (tmp_path / "run").exists()


def test_an_unknown_label_on_validation_and_at_evaluation(call: Call, world: Path, tmp_path: Path) -> None:
    validation = tiny_run.table(tmp_path / "validation.csv", [("kaba", "joy"), ("lode", "rage")])
    told = ("validation.csv:3", "'rage'", "anger, fear, joy")
    refused(call(*finetune(world, tmp_path / "run", world / "train.csv", validation)), 2, *told)
    refused(call("evaluate", world / "moods", "--data", validation, "--json"), 2, *told)
    assert not (tmp_path / "run").exists()


def test_no_validation_side_or_two(call: Call, world: Path, tmp_path: Path) -> None:
    refused(
        call(*finetune(world, tmp_path / "r", world / "train.csv", None)),
        2,
        "train.csv",
        "--validation-split",
    )
    both = finetune(
        world, tmp_path / "r", world / "train.csv", world / "validation.csv", "--validation-split", "20%"
    )
    refused(call(*both), 2, "--validation")
    for share in ("0", "1", "150%", "-0.1", "many"):
        arguments = finetune(world, tmp_path / "r", world / "train.csv", None, "--validation-split", share)
        refused(call(*arguments), 2)
    assert not (tmp_path / "r").exists()


def test_missing_files_and_folders_are_named(call: Call, world: Path, tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    for arguments in (
        ["tokenizer", "train", gone, "--output-dir", tmp_path / "t"],
        ["data", "prepare", world / "corpus.txt", "--tokenizer", gone, "--output-dir", tmp_path / "s"],
        ["pretrain", "--data", gone, "--output-dir", tmp_path / "r"],
        [
            "adapt",
            "--model",
            world / "bert",
            "--corpus",
            gone,
            "--task",
            "classify",
            "--train",
            world / "validation.csv",
            "--validation",
            world / "validation.csv",
            "--output-dir",
            tmp_path / "a",
        ],
        ["ablate", gone, "--data", world / "shards", "--output-dir", tmp_path / "a"],
        ["distill", "--teacher", gone, "--data", world / "shards", "--output-dir", tmp_path / "r"],
        ["pretrain", gone, "--data", world / "shards", "--output-dir", tmp_path / "r"],
        finetune(world, tmp_path / "r", gone, world / "validation.csv"),
        ["evaluate", gone, "--data", world / "validation.csv"],
        ["evaluate", world / "moods", "--data", gone],
        ["predict", gone, "text"],
        ["predict", world / "moods", "--input", gone],
        ["fill-mask", gone, "[MASK]"],
        ["info", gone],
    ):
        refused(call(*arguments), 2, "gone")
    assert list(tmp_path.iterdir()) == []


# --- models -------------------------------------------------------------------------------------------------


def test_the_wrong_verb_for_a_model(call: Call, world: Path) -> None:
    refused(call("fill-mask", world / "bert", "nothing to fill"), 2, "[MASK]", "nothing to fill")
    refused(call("fill-mask", world / "moods", "a [MASK]"), 2, "masked-LM head")
    refused(call("predict", world / "bert", "text"), 2, "not fine-tuned")
    refused(call("evaluate", world / "bert", "--data", world / "validation.csv"), 2, "not fine-tuned")
    done = call("fill-mask", world / "bert", "[MASK] " + "kaba " * 100)
    assert done.code == 0
    assert "each mask is predicted from the text around it" in done.told


def test_one_document_only(call: Call, world: Path, tmp_path: Path) -> None:
    (tmp_path / "one.txt").write_text("Kaba lode mi. Lode mi kaba. Mi.\n")
    made = call(
        "data",
        "prepare",
        tmp_path / "one.txt",
        "--tokenizer",
        world / "tokenizer",
        "--output-dir",
        tmp_path / "s",
    )
    assert made.code == 0
    base = [
        "pretrain",
        "--preset",
        "bert-tiny-uncased",
        "--data",
        tmp_path / "s",
        "--output-dir",
        tmp_path / "r",
        *TINY_WITHOUT_VALIDATION_SPLIT,
        *FEW,
    ]
    refused(call(*base), 2, "documents")
    refused(call(*base, "--validation-split", "0"), 2, "documents")
    assert not (tmp_path / "r").exists()


# --- settings -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("setting", "parts"),
    [
        ("train.max_step=5", ("train.max_step'", "did you mean 'train.max_steps'")),
        ("max_steps=5", ("did you mean 'train.max_steps'",)),
        ("train.max_steps", ("no '='",)),
        ("train.max_steps=many", ("train.max_steps", "many")),
        ("train.learning_rate=.inf", ("train.learning_rate",)),
        ("train.adam_beta1=2", ("train.adam_beta1",)),
        ("train.adam_epsilon=1e308", ("train.adam_epsilon",)),
        ("data.replacement_probabilities=[1.2, -0.2, 0]", ("data.replacement_probabilities",)),
        ("train.batch_size={", ("not YAML",)),
        ("model=5", ("model",)),
    ],
)
def test_a_setting_that_does_not_exist_or_fit(
    call: Call, world: Path, tmp_path: Path, setting: str, parts: tuple[str, ...]
) -> None:
    refused(call(*pretrain(world, tmp_path / "r", "--set", setting)), 2, *parts)
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("train:\n  max_stepz: 5\n")
    refused(
        call("pretrain", recipe, "--data", world / "shards", "--output-dir", tmp_path / "r"),
        2,
        "recipe.yaml",
        "max_steps",
    )
    recipe.write_bytes(b"train: {\n")
    refused(
        call("pretrain", recipe, "--data", world / "shards", "--output-dir", tmp_path / "r"),
        2,
        "recipe.yaml:",
        "YAML",
    )
    recipe.write_bytes(b"preset: [1]\n")
    refused(call("pretrain", recipe, "--data", world / "shards", "--output-dir", tmp_path / "r"), 2)
    assert not (tmp_path / "r").exists()


@pytest.mark.parametrize("share", ["2%", "0.1", "10 %", "0", ".5"])
def test_the_validation_split_is_a_fraction_or_a_percentage(
    call: Call, world: Path, tmp_path: Path, share: str
) -> None:
    done = call(*pretrain(world, tmp_path / "r", "--validation-split", share, "--json"))
    assert done.code == 0, done.told
    wanted = float(share.removesuffix("%")) / (100 if "%" in share else 1)
    assert f"validation_split: {wanted}" in (tmp_path / "r" / "settings.yaml").read_text()
    assert json.loads(done.out)["held_out"] or not wanted


@pytest.mark.parametrize("share", ["1", "100%", "-1%", "some", "", "nan", "1%%"])
def test_an_invalid_validation_split(call: Call, world: Path, tmp_path: Path, share: str) -> None:
    refused(call(*pretrain(world, tmp_path / "r", "--validation-split", share)), 2, "validation-split")


def test_an_unknown_preset_verb_option_and_choice(call: Call, world: Path, tmp_path: Path) -> None:
    refused(
        call("pretrain", "--preset", "bert-mini", "--data", world / "shards", "--output-dir", tmp_path / "r"),
        2,
        "bert-mini-uncased",
    )
    for arguments in (
        ["pretend"],
        ["info", "--nothing"],
        ["finetune", "sing", "--model", "m", "--train", "t", "--output-dir", "o"],
    ):
        refused(call(*arguments), 2)


# --- runs ---------------------------------------------------------------------------------------------------


def test_an_existing_run_is_never_mixed_with_another(call: Call, world: Path, tmp_path: Path) -> None:
    before = {p: p.read_bytes() for p in (world / "bert").rglob("*") if p.is_file()}
    refused(call(*pretrain(world, world / "bert")), 2, "--resume")
    refused(call(*pretrain(world, world / "bert", "--resume", "--set", "train.seed=4")), 2, "train.seed")
    shorter = pretrain(world, world / "bert", "--resume", "--set", "train.max_steps=1")
    refused(call(*shorter), 2, "4 updates", "train.max_steps=1")
    refused(
        call(*finetune(world, world / "moods", world / "train.csv", world / "validation.csv")), 2, "--resume"
    )
    again = finetune(
        world, world / "moods", world / "train.csv", world / "validation.csv", "--resume", "--sample", "5"
    )
    refused(call(*again), 2, "files.sample")
    file = tmp_path / "file"
    file.write_text("mine")
    refused(call(*pretrain(world, file)), 2, "file")
    assert file.read_text() == "mine"
    assert before == {p: p.read_bytes() for p in (world / "bert").rglob("*") if p.is_file()}


def test_an_unfinished_run_is_no_model(call: Call, world: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(world / "bert", run)
    shutil.rmtree(run / "model")
    for arguments in (["fill-mask", run, "[MASK]"], ["predict", run, "x"]):
        refused(call(*arguments), 2, "not finished", "--resume")
    assert "none yet" in call("info", run).out


@pytest.mark.parametrize("fault", ["torn", "flipped", "pickle"])
def test_a_bad_newest_checkpoint_and_nothing_but_bad_ones(
    call: Call, world: Path, tmp_path: Path, fault: str
) -> None:
    run = tmp_path / "run"
    shutil.copytree(world / "bert", run)

    def harm(step: int) -> str:
        folder = run / "checkpoints" / f"step-{step}"
        file = folder / "weights.safetensors"
        raw = bytearray(file.read_bytes())
        if fault == "torn":
            file.write_bytes(raw[: len(raw) // 2])
        elif fault == "flipped":
            raw[-5] ^= 4
            file.write_bytes(raw)
        else:
            file = folder / "pytorch_model.bin"
            file.write_bytes(b"\x80\x04N.")
        return f"step-{step}/{file.name}"

    named = harm(4)
    done = call(*pretrain(world, run, "--resume", "--json"))
    assert done.code == 0
    assert named in done.told
    assert "step-3" in done.told
    assert json.loads(done.out)["steps"] == 4
    if fault == "pickle":
        assert (run / "checkpoints" / "step-4" / "manifest.json").exists()
    names = [harm(int(path.name[5:])) for path in (run / "checkpoints").glob("step-*")]
    refused(call(*pretrain(world, run, "--resume")), 2, max(names))


def test_a_full_disk_while_saving(
    call: Call, world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_room(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "save_file", no_room)
        refused(call(*pretrain(world, tmp_path / "run")), 1, "disk is full", "step-1")
    assert list((tmp_path / "run" / "checkpoints").iterdir()) == []
    assert not (tmp_path / "run" / "model").exists()
    done = call(*pretrain(world, tmp_path / "run", "--resume"))
    assert done.code == 0


@pytest.mark.parametrize("what", ["best", "settings", "model", "shards", "tokenizer"])
def test_a_full_disk_anywhere_else(
    call: Call, world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """Every write finds no room: exit 1, the sentence says so, and no file under its final name."""
    from bertsmith.artifacts import folder as model_folders
    from bertsmith.io import atomic

    def no_room(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    run = tmp_path / "run"
    arguments: list[object] = pretrain(world, run)
    with monkeypatch.context() as patch:
        if what == "best":
            patch.setattr(checkpoint, "save_file", no_room)
            arguments = finetune(world, run, world / "train.csv", world / "validation.csv")
        elif what == "settings":
            patch.setattr(atomic.os, "replace", no_room)
        elif what == "model":
            patch.setattr(model_folders, "save_file", no_room)
        elif what == "shards":
            patch.setattr(atomic.os, "fsync", no_room)
            arguments = [
                "data",
                "prepare",
                world / "corpus.txt",
                "--tokenizer",
                world / "tokenizer",
                "--output-dir",
                run,
            ]
        else:
            patch.setattr(atomic.os, "fsync", no_room)
            arguments = ["tokenizer", "train", world / "corpus.txt", "--output-dir", run, "--vocab-size", 60]
        refused(call(*arguments), 1)
    left = [path for path in tmp_path.rglob("*") if path.is_file() and path.name.startswith(".")]
    assert left == []
    assert not (run / "model").exists()
    if what in ("shards", "tokenizer"):
        assert not run.exists()


# --- odd input that is fine ---------------------------------------------------------------------------------


def test_texts_from_arguments_a_file_and_standard_input(call: Call, world: Path, tmp_path: Path) -> None:
    texts = ["kaba lode", "", "[SEP] [MASK] \t <b>", "ka" * 5000, "zażółć 日本"]
    lines = ("\n".join(texts) + "\n").encode()
    (tmp_path / "texts.txt").write_bytes(lines)
    by = {
        "arguments": call("predict", world / "moods", *texts),
        "file": call("predict", world / "moods", "--input", tmp_path / "texts.txt"),
        "stdin": call("predict", world / "moods", stdin=lines),
        "crlf": call("predict", world / "moods", stdin=lines.replace(b"\n", b"\r\n")),
    }
    answers = {name: [json.loads(line) for line in result.out.splitlines()] for name, result in by.items()}
    assert [len(found) for found in answers.values()] == [4, 4, 4, 4]
    for name, found in answers.items():
        assert "1 text is empty and not predicted: " in by[name].told
        lines_of = [answer.pop("line", None) for answer in found]
        assert lines_of == ([None] * 4 if name == "arguments" else [1, 3, 4, 5])
        assert found == answers["arguments"]
        assert [answer["text"] for answer in found] == [text for text in texts if text]
        for answer in found:
            assert answer["label"] in ("anger", "fear", "joy")
            assert abs(sum(answer["scores"].values()) - 1) < 1e-5
            assert answer["tokens_read"] <= answer["tokens"]
    refused(call("predict", world / "moods", stdin=b"fine\nba\xffd\n"), 2, "standard input:2", "UTF-8")
    refused(call("predict", world / "moods", "text", "--input", tmp_path / "texts.txt"), 2, "both")


def test_arguments_that_are_no_unicode(world: Path) -> None:
    """A byte that is not UTF-8 in a text of the command line: refused, not a traceback."""
    line = [sys.executable, "-m", "bertsmith", "predict", str(world / "moods"), b"caf\xe9"]
    done = subprocess.run(line, capture_output=True, check=False)
    assert done.returncode == 2, done.stderr
    assert b"Traceback" not in done.stderr
    assert done.stdout == b""


def test_columns_by_number_and_odd_names(call: Call, world: Path, tmp_path: Path) -> None:
    rows = tiny_run.examples(30)
    (tmp_path / "bare.csv").write_text("".join(f"{text},{label}\n" for text, label in rows))
    bare = finetune(world, tmp_path / "a", tmp_path / "bare.csv", None, "--validation-split", "0.3", "--no-header",
                    "--text-column", "1", "--label-column", "2")  # fmt: skip
    assert call(*bare).code == 0
    assert call("evaluate", tmp_path / "a", "--data", tmp_path / "bare.csv").code == 0
    tiny_run.table(tmp_path / "odd.csv", rows, header="1e5,none")
    odd = finetune(world, tmp_path / "b", tmp_path / "odd.csv", None, "--validation-split", "0.3",
                   "--text-column", "1e5", "--label-column", "none")  # fmt: skip
    assert call(*odd).code == 0


# --- signals, closed streams, names and memory ---------------------------------------------------------------


def test_a_model_that_does_not_fit_into_memory_is_refused_before_any_work(
    call: Call, world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hardware, "memory_bytes", lambda _: 10**5)
    before = (world / "moods" / "settings.yaml").read_bytes()
    refused(call(*pretrain(world, tmp_path / "run")), 2, "million parameters", "may be used here")
    tuning = finetune(world, tmp_path / "tuned", world / "train.csv", world / "validation.csv")
    refused(call(*tuning), 2, "million parameters", "may be used here")
    assert list(tmp_path.iterdir()) == []
    assert (world / "moods" / "settings.yaml").read_bytes() == before


def test_torchs_own_lack_of_memory_is_one_sentence(
    call: Call, world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_memory(*_: Any, **__: Any) -> None:
        torch.empty(2**50, dtype=torch.float64)

    monkeypatch.setattr("bertsmith.runs.compute_setup.measure_throughput", no_memory)
    refused(call(*pretrain(world, tmp_path / "run")), 1, "there is not enough memory")


def test_a_hang_up_saves_as_a_termination_does(world: Path, tmp_path: Path) -> None:
    """… and does not where the process was started with it ignored, as nohup does."""
    for ignored in (False, True):
        run = tmp_path / f"run-{ignored}"
        arguments = [*pretrain(world, run)]
        updates = 30 if ignored else 300
        settings = ["--set", f"train.max_steps={updates}", "--set", "train.save_steps=100000"]
        process = subprocess.Popen(
            [sys.executable, "-m", "bertsmith", *map(str, arguments), *settings],
            stderr=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            preexec_fn=lambda how=ignored: signal.signal(
                signal.SIGHUP, signal.SIG_IGN if how else signal.SIG_DFL
            ),
        )
        log, give_up = run / "log.jsonl", time.monotonic() + 60
        while process.poll() is None and not (log.is_file() and log.stat().st_size):
            assert time.monotonic() < give_up
            time.sleep(0.005)
        process.send_signal(signal.SIGHUP)
        _, told = process.communicate(timeout=120)
        assert "Traceback" not in told
        assert process.returncode == (0 if ignored else 129), told
        newest = checkpoint.newest_name(run / "checkpoints")
        assert newest is not None
        assert (newest == f"step-{updates}") == ignored
        assert ("--resume" in told) == (not ignored)


@pytest.mark.parametrize(
    ("verb", "closed"),
    [
        *(("prepare", closed) for closed in ("<&-", ">&-", "2>&-", "<&- >&- 2>&-", "> /dev/full")),
        ("info", "> /dev/full"),
        ("predict", "<&-"),
        ("nonsense", "<&- >&- 2>&-"),
    ],
)
def test_closed_or_full_streams_make_no_traceback(
    world: Path, tmp_path: Path, verb: str, closed: str
) -> None:
    arguments = {
        "info": ["info", str(world / "bert")],
        "predict": ["predict", str(world / "moods")],
        "prepare": ["data", "prepare", str(world / "corpus.txt"), "--tokenizer", str(world / "tokenizer"),
                    "--output-dir", str(tmp_path / "out"), "--json"],
        "nonsense": ["nonsense"],
    }[verb]  # fmt: skip
    line = f'"$@" {closed}' + ("" if "<" in closed else " < /dev/null")
    done = subprocess.run(
        ["sh", "-c", line, "sh", sys.executable, "-m", "bertsmith", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert "Traceback" not in done.stderr
    assert "Exception" not in done.stderr
    assert done.returncode in (0, 1, 2)
    if verb == "prepare" and "full" not in closed:
        Shards.open(tmp_path / "out").verify()
    if "full" in closed and verb in ("info", "prepare"):
        assert done.returncode == 1
        assert "the disk is full" in done.stderr


def test_characters_of_others_do_nothing_on_the_terminal(call: Call, world: Path, tmp_path: Path) -> None:
    labels = [("kaba", "joy\x1b[31m"), ("lode", "fe\x9bar")]
    rows = tiny_run.table(tmp_path / "a\x1b]0;b\x07.csv", labels * 6)
    made = call(*finetune(world, tmp_path / "moods", rows, rows))
    assert made.code == 0, made.told
    for result in (
        call("evaluate", tmp_path / "moods", rows),
        call("predict", tmp_path / "moods", "kaba"),
        call("predict", tmp_path / "moods", "--input", tmp_path / "none\x1b[2J.csv"),
        call("info", tmp_path / "no\x1b[2Jne"),
        call("--wrong\x1b[2J"),
        call("pretrain", "--data", world / "shards", "--output-dir", tmp_path / "x", "--set", "a\x1b[2J=1"),
    ):
        assert not set(result.out + result.told) & set("\x1b\x9b\x07"), result


def test_a_file_name_that_is_not_utf_8_is_shown_and_never_a_traceback(
    call: Call, world: Path, tmp_path: Path
) -> None:
    odd = Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9"))
    missing = call(
        "data", "prepare", odd, "--tokenizer", world / "tokenizer", "--output-dir", tmp_path / "out"
    )
    refused(missing, 2, r"caf\xe9")
    refused(call("info", odd), 2, r"caf\xe9")
    rows = shutil.copy(world / "train.csv", f"{odd}.csv")
    for result in (
        call("data", "prepare", shutil.copy(world / "corpus.txt", f"{odd}.txt"), "--tokenizer",
             world / "tokenizer", "--output-dir", tmp_path / "out"),
        call(*finetune(world, tmp_path / "moods", Path(rows), Path(rows))),
        call(*pretrain(world, odd)),
        call("tokenizer", "train", world / "corpus.txt", "--output-dir", f"{odd}-t", "--vocab-size", 60),
        call("evaluate", world / "moods", rows),
        call("evaluate", world / "moods", rows, "--json"),
    ):  # fmt: skip
        assert result.code in (0, 2), result.told
        assert "\udce9" not in result.out + result.told


@pytest.mark.parametrize(
    "verb", [["predict", "g1", "--input", "a.csv"], ["evaluate", "g1", "--data", "a.csv"]]
)
def test_a_missing_run_is_told_before_an_option_of_its_task(
    call: Call, world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    for more in (["--no-header"], ["--text-column", "body"]):
        refused(call(*verb, *more), 2, "g1: no such folder")
    refused(call("predict", "--no-header", "runs/g/1", "--input", "a.csv"), 2, "runs/g/1: no such folder")
    refused(call("predict", world / "bert", "--no-header", "a"), 2, "was not fine-tuned for a task")
    refused(call("predict", world / "moods", "--nonsense", "a"), 2, "--nonsense")
    refused(call("predict", world / "moods", "--word-column", "w", "a"), 2, "no setting 'word_column'")


@pytest.mark.parametrize(("share", "write"), [("10", "0.01 or 1%"), ("150%", "0.01 or 1%")])
def test_a_share_above_one_is_read_back_as_a_percentage(
    call: Call, world: Path, tmp_path: Path, share: str, write: str
) -> None:
    train = world / "train.csv"
    tune = [
        "finetune",
        "classify",
        "--model",
        world / "bert",
        "--train",
        train,
        "--output-dir",
        tmp_path / "r",
    ]
    refused(call(*tune, "--validation-split", share), 2, f"is not between 0 and 1; write {write}")


@pytest.mark.parametrize(
    "arguments",
    [
        ("predict", "run", "text", "--output"),
        ("embed", "model", "text", "--index"),
        ("evaluate", "run", "--data", "a.csv", "--report"),
        ("attention", "model", "text", "--output"),
        ("data", "check", "a.txt", "--html"),
        ("tokenizer", "train", "a.txt", "--output-dir"),
        ("lr-find", "classify", "--model", "model", "--train", "a.csv", "--output"),
        ("finetune", "classify", "--model", "model", "--train", "a.csv", "--output-dir"),
    ],
)
def test_an_empty_name_is_not_the_current_folder(call: Call, arguments: tuple[str, ...]) -> None:
    for name in ("", " "):
        refused(call(*arguments, name), 2, arguments[-1], "the name is empty")


@pytest.mark.parametrize(
    ("command", "argument"),
    [
        (["push", "bert-mini-uncased-en", "moods", "--dry-run"], "OWNER/NAME"),
        (["neighbors", "zzz", "bert-mini-uncased-en", "--corpus", "TEXTS"], "WORD"),
        (["explain", "bert-mini-uncased-en", "a [MASK]", "--target", "zzz"], "--target"),
    ],
)
def test_errors_name_arguments_as_the_usage_does(
    command: list[str], argument: str, tmp_path: Path, call: Call
) -> None:
    (texts := tmp_path / "texts.txt").write_text("a bank\n" * 5)
    result = call(*(str(texts) if word == "TEXTS" else word for word in command))
    assert (result.code, result.told.startswith(f"error: {argument}: ")) == (2, True), result.told
