"""Test that every integer that a user gives has an upper bound."""

from __future__ import annotations

import typing
from collections.abc import Iterator
from typing import Any

import click
import pytest

from bertsmith.cli.main import COMMANDS, bertsmith
from bertsmith.cli.options import Integer
from bertsmith.errors import InputError
from bertsmith.finetuning.settings import settings_type
from bertsmith.models.config import ModelConfig
from bertsmith.pretraining.settings import PretrainSettings
from bertsmith.settings import Settings
from bertsmith.tasks.registry import TASKS, get_task

SETTINGS = {
    "model": ModelConfig,
    "pretrain": PretrainSettings,
    **{name: settings_type(get_task(name)) for name in TASKS},
}


def holds_integer(annotation: Any) -> bool:
    return annotation is int or any(map(holds_integer, typing.get_args(annotation)))


def integer_settings() -> Iterator[tuple[str, str]]:
    for settings, settings_class in SETTINGS.items():
        for name, field in settings_class.names():
            if holds_integer(field.annotation):
                yield settings, name


@pytest.mark.parametrize(("settings", "name"), list(integer_settings()))
def test_settings_have_an_upper_bound(settings: str, name: str) -> None:
    settings_class: type[Settings] = SETTINGS[settings]
    group: Any = 2**63 - 1
    for part in reversed(name.split(".")):
        group = {part: group}
    if not name.endswith("seed"):  # any number below 2^63 is a seed
        with pytest.raises(InputError):
            settings_class.of(group, "--set")


def test_options_have_an_upper_bound() -> None:
    root, integers = click.Context(bertsmith), 0
    pending: list[click.Command] = [
        command
        for panel in COMMANDS.values()
        for name in panel
        if (command := bertsmith.get_command(root, name)) is not None
    ]
    while pending:
        command = pending.pop()
        if isinstance(command, click.Group):
            context = click.Context(command)
            pending += filter(None, (command.get_command(context, n) for n in command.list_commands(context)))
        for param in command.params:
            assert param.type is not click.INT, param.name
            if isinstance(param.type, Integer):
                integers += 1
                with pytest.raises(click.BadParameter):
                    param.type.convert(str(2**63), param, None)
    assert integers > 50
