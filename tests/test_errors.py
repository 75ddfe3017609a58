"""Errors name the command line's options there, and Python's arguments in Python."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest

import bertsmith as bs
from bertsmith.corpus.checks.check import CheckOptions
from bertsmith.errors import InputError, MachineError, Stopped, command, option, render
from bertsmith.finetuning.settings import FinetuneSettings
from bertsmith.io.documents import Reading
from bertsmith.objectives.objective import OBJECTIVES, objective_type
from bertsmith.predecessors.ngram_settings import NgramSettings
from bertsmith.predecessors.word2vec import Word2VecSettings
from bertsmith.pretraining.extend_vocabulary import Choice
from bertsmith.pretraining.settings import PretrainSettings
from bertsmith.tasks.registry import TASKS, get_task

SOURCE = Path(bs.__file__).parent
COMMAND_LINE_ONLY = {"json", "format", "help"}


@pytest.mark.parametrize(
    ("reference", "command_line", "python"),
    [
        (option("text_column"), "--text-column", "text_column=…"),
        (option("delimiter", "','"), "--delimiter ','", "delimiter=','"),
        (option("resume", True), "--resume", "resume=True"),
        (option("resume", False), "--no-resume", "resume=False"),
        (option("train.max_steps", 500), "--set train.max_steps=500", "train.max_steps=500"),
        (option("train.batch_size"), "--set train.batch_size=…", "train.batch_size=…"),
        (command("data check"), "bertsmith data check", "bertsmith.check_corpus"),
        (
            command("finetune", "TASK", model="/a/b", overwrite=True),
            "bertsmith finetune TASK --model /a/b --overwrite",
            "bertsmith.finetune('TASK', model=/a/b, overwrite=True)",
        ),
    ],
)
def test_each_interface_has_its_own_names(reference: str, command_line: str, python: str) -> None:
    error = InputError("code", "It is wrong.", location="a.csv:3", hint=f"Use {reference} instead.")
    assert str(error) == f"a.csv:3: It is wrong.\nUse {python} instead."
    assert error.sentence_for("command line") == "a.csv:3: It is wrong."
    assert error.hint_for("command line") == f"Use {command_line} instead."
    assert error.hint == f"Use {python} instead."
    error.change_hint(lambda hint: f"{hint} Or omit {reference}.")
    assert error.hint_for("command line") == f"Use {command_line} instead. Or omit {command_line}."
    about = InputError("code", f"{reference} is wrong")
    assert (about.message, about.args) == (f"{python} is wrong", ("code", f"{python} is wrong"))


@pytest.mark.parametrize(
    "text",
    [
        "ls --all; --force overwrites",
        "bertsmith data check --output-dir x",
        "train (in memory):17",
        "--set x=1",
        "a\x02b\x03c",
        "\x02",
        '{option("x")}',
    ],
)
def test_text_of_users_is_never_rewritten(text: str) -> None:
    assert render(text, "python") == text
    assert render(text, "command line") == text
    error = InputError("code", f"the label {text!r} is unknown")
    assert str(error) == f"the label {text!r} is unknown"


def test_an_argument_is_the_location_of_an_error_without_another() -> None:
    error = InputError("bad_delimiter", "it is one character", argument="delimiter")
    assert error.sentence_for("command line") == "--delimiter: it is one character"
    assert str(error) == "delimiter: it is one character"
    error = InputError("bad_delimiter", "a delimiter is one character", argument="delimiter")
    assert str(error) == error.sentence_for("command line") == "a delimiter is one character"
    error = InputError("bad_device", "devices are cpu and cuda", argument="device")
    assert error.sentence_for("command line") == "--device: devices are cpu and cuda"
    error = InputError("bad_device", f"{option('device')} is unknown", argument="device")
    assert error.sentence_for("command line") == "--device is unknown"


@pytest.mark.parametrize(
    "error",
    [
        InputError("a", "b", location="c:1", argument="d", hint="e"),
        MachineError("a", "b"),
        Stopped(15, "a", "b"),
    ],
)
def test_errors_survive_pickling(error: bs.BertsmithError) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert again.to_dict() == error.to_dict()


def calls(name: str) -> Iterator[ast.Call]:
    """Yield the calls of a function of `errors.py` in the source."""
    for file in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name:
                yield node


def arguments() -> set[str]:
    """Return all names that Python's functions take."""
    functions = [getattr(bs, name) for name in dir(bs) if name[0] != "_"]
    functions += [getattr(bs.Model, name) for name in dir(bs.Model) if name[0] != "_"]
    names = {
        name
        for function in functions
        if callable(function) and not inspect.isclass(function)
        for name in inspect.signature(function).parameters
    }
    for options in (Reading, CheckOptions, Choice):
        names |= {field.name for field in dataclasses.fields(options)}
    for settings in (PretrainSettings, FinetuneSettings, *(get_task(task).settings_type for task in TASKS)):
        names |= {name for name, _ in settings.names()}
        names |= {name.rpartition(".")[2] for name, _ in settings.names()}
    names |= Word2VecSettings.model_fields.keys() | NgramSettings.model_fields.keys()
    for objective in OBJECTIVES:
        names |= {f"objective.{name}" for name in objective_type(objective).settings_type.model_fields}
    return names | {"settings"} | COMMAND_LINE_ONLY


def test_messages_name_arguments_that_python_has() -> None:
    names = arguments()
    for call in calls("option"):
        if isinstance(call.args[0], ast.Constant):
            assert call.args[0].value in names, ast.unparse(call)
    for call in calls("command"):
        for keyword in call.keywords:
            assert keyword.arg is None or keyword.arg in names, ast.unparse(call)
