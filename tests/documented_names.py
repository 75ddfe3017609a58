"""Names in the documentation: those of presets, commands, functions, settings, and files that exist."""

from __future__ import annotations

import importlib
import re
import shlex
from functools import cache
from importlib.metadata import requires
from pathlib import Path

import click

import bertsmith as bs
from bertsmith.cli.main import bertsmith
from bertsmith.errors import InputError
from bertsmith.finetuning.settings import settings_type
from bertsmith.pretraining.settings import PretrainSettings
from bertsmith.tasks.registry import TASKS, get_task

ROOT = Path(__file__).parents[1]
EXTERNAL = {"torchrun"}  # PyTorch's


@cache
def commands() -> dict[str, set[str]]:
    """Return the options of each command, and of each group those of its commands."""
    options: dict[str, set[str]] = {}

    def visit(context: click.Context, path: str) -> set[str]:
        command = context.command
        names = {name for parameter in command.get_params(context) for name in parameter.opts}
        if isinstance(command, click.Group):
            for name in command.list_commands(context):
                inner = command.get_command(context, name)
                assert inner is not None
                names |= visit(click.Context(inner, info_name=name, parent=context), f"{path} {name}".strip())
        options[path] = names
        return names

    visit(click.Context(bertsmith, info_name="bertsmith"), "")
    del options[""]
    return options


def exists(code: str) -> bool:
    """Return True if a code span names something that exists: a preset, command, function, setting, or file."""
    return (
        code in EXTERNAL
        or code in bs.presets()
        or is_command(code)
        or is_setting(code)
        or is_python(code)
        or ("/" in code and (ROOT / code).exists())
        or code in {re.split(r"[ ;<>=\[]", line)[0] for line in requires("bertsmith") or ()}
        or (ROOT / "src" / "bertsmith" / "pretrained" / code / "config.json").exists()
    )


def is_command(code: str) -> bool:
    """Return True for a command of bertsmith, with options that it has; capitals stand for arguments."""
    words = shlex.split(code)
    path = " ".join(
        word for i, word in enumerate(words) if not any(w.startswith("--") for w in words[: i + 1])
    )
    path = re.sub(r"( [A-Z]+| …)+$", "", path)
    options = {word for word in words if word.startswith("--")}
    return path in commands() and options <= commands()[path]


def is_setting(code: str) -> bool:
    """Return True for a setting of pre-training or of a task, and for a value that it accepts."""
    name, _, value = code.partition("=")
    for kind in (PretrainSettings, *(settings_type(get_task(task)) for task in TASKS)):
        if name in dict(kind.names()):
            try:
                kind().changed([code] if value else [])
            except InputError:
                return False
            return True
    return False


def is_python(code: str) -> bool:
    """Return True for a name that bertsmith exports, a method of one, or a module."""
    name, _, rest = code.partition(".")
    if name == "bertsmith":
        try:
            importlib.import_module(code)
        except ImportError:
            return False
        return True
    return name in bs.__all__ and (not rest or hasattr(getattr(bs, name), rest))
