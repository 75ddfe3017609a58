"""Errors name the command line's options there, and Python's arguments in Python."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import pickle
import re
from pathlib import Path

import pytest

import bertsmith as bs
from bertsmith.errors import InputError, MachineError, Stopped, in_python
from bertsmith.files.files import Reading
from bertsmith.survey.check import CheckOptions
from bertsmith.tasks.task import TASKS, task_type
from bertsmith.workflows.extend import Choice
from bertsmith.workflows.finetune_settings import FinetuneSettings
from bertsmith.workflows.pretrain_settings import PretrainSettings

SOURCE = Path(bs.__file__).parent
OF_THE_COMMAND_LINE = {"json", "no_json", "format"}  # options that Python has no use for


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("name another --out, or remove it", "name another out=…, or remove it"),
        (
            "continue it with --resume, or choose another --out",
            "continue it with resume=True, or choose another out=…",
        ),
        ("is this the label column? (--label-column)", "is this the label column? (label_column=…)"),
        ("hold a part out with --dev-share 0.2", "hold a part out with dev_share=0.2"),
        ("say it with --delimiter ','", "say it with delimiter=','"),
        ("for a tab: --delimiter $'\\t'", "for a tab: delimiter='\\t'"),
        ("--documents blank-line, if so", "documents='blank_line', if so"),
        ("write it as --set train.max_steps=500", "write it as train.max_steps=500"),
        ("leave --set train.seed out", "leave train.seed out"),
        ("add --task-set task.label_column=…", "add task.label_column=…"),
        ("--set: there is no setting 'x'", "settings: there is no setting 'x'"),
        ("look at them with bertsmith data check", "look at them with bertsmith.check_corpus"),
        (
            "fine-tune it: bertsmith finetune TASK --model /a/b --train FILE --out RUN (tasks: tag)",
            "fine-tune it: bertsmith.finetune(TASK, model=/a/b, train=FILE, out=RUN) (tasks: tag)",
        ),
        ("bertsmith score RUN --pairs FILE does", "bertsmith.Model.score_pairs(RUN, pairs=FILE) does"),
        ("train (in memory):17: the label is empty", "train row 17: the label is empty"),
        ("a text--with dashes -- and more", "a text--with dashes -- and more"),
    ],
)
def test_python_names_its_own_arguments(said: str, meant: str) -> None:
    assert in_python(said) == meant
    error = InputError("a.csv:3: it is wrong", said)
    assert str(error) == f"a.csv:3: it is wrong\n{meant}"
    assert error.remedy == said


def test_a_remedy_of_python_alone_stands_in_place_of_the_command_line_s() -> None:
    error = InputError("it is there", "use --out", python="give overwrite=True")
    assert str(error) == "it is there\ngive overwrite=True"
    assert error.remedy == "use --out"


@pytest.mark.parametrize(
    "error", [InputError("a", "--out", python="c"), MachineError("a"), Stopped(15, "a", "b")]
)
def test_another_process_gets_the_same_error(error: bs.BertsmithError) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), again.remedy, again.exit_code) == (
        type(error),
        str(error),
        error.remedy,
        error.exit_code,
    )


def messages() -> list[str]:
    """All text in the source that names an option, but for the command line's own and docstrings."""
    found = []
    for file in SOURCE.rglob("*.py"):
        if "cli" in file.relative_to(SOURCE).parts or file.name == "errors.py":
            continue
        tree = ast.parse(file.read_text(encoding="utf-8"))
        documented = {
            id(node.body[0].value)
            for node in ast.walk(tree)
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
            and isinstance(node.body[0], ast.Expr)
        }
        inside = {
            id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.JoinedStr):
                text = "".join(p.value if isinstance(p, ast.Constant) else "x.y" for p in node.values)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inside:
                text = node.value
            else:
                continue
            if id(node) not in documented and re.search(r"(?<!\w)(?<!var\()--[a-z]", text):
                found.append(text)
    return found


def arguments() -> set[str]:
    """All that Python's verbs take by name."""
    verbs = [bs.train_tokenizer, bs.prepare, bs.pretrain, bs.finetune, bs.check_corpus, bs.inspect_tokenizers]
    verbs += [bs.find_rate, bs.finetune_repeatedly, bs.finetune_glue, bs.compare, bs.ensemble]
    verbs += [
        bs.extend_tokenizer,
        bs.show_instance,
        bs.load,
        bs.search,
        *(getattr(bs.Model, name) for name in dir(bs.Model) if name[0] != "_"),
    ]
    known = {name for verb in verbs if callable(verb) for name in inspect.signature(verb).parameters}
    for options in (Reading, CheckOptions, Choice):
        known |= {field.name for field in dataclasses.fields(options)}
    for kind in (PretrainSettings, FinetuneSettings, *(task_type(task).settings_type for task in TASKS)):
        known |= {name.rpartition(".")[2] for name, _ in kind.names()}
    return known | {"settings"}


def test_each_message_of_the_source_names_arguments_that_python_has() -> None:
    known, all_messages = arguments(), messages()
    assert len(all_messages) > 30
    for text in all_messages:
        said = in_python(text)
        assert not re.search(r"(?<!\w)--(?!help)[a-z]", said), said
        for name in re.findall(r"\b([a-z_]+)=…", said):
            assert name in known | OF_THE_COMMAND_LINE, (name, text)
