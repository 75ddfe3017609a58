"""A task's settings as options of the command line, made of its own declarations: no verb knows a task."""

from __future__ import annotations

import types
import typing
from typing import TYPE_CHECKING, Any

import click
import yaml

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

    from bertsmith.settings import Settings


def options_of(kind: type[Settings], *, defaults: bool = True) -> list[click.Parameter]:
    """An option a setting: `text_column` is --text-column, a truth value --header/--no-header. Each is None where
    it was not given. defaults: whether --help tells them (no: they are the training's)."""
    return [_option(name, field, defaults) for name, field in kind.model_fields.items()]


_WIDE = 60  # characters of choices that a terminal's line has no room for


def _option(name: str, field: FieldInfo, defaults: bool) -> click.Option:
    flag = f"--{name.replace('_', '-')}"
    known = field.get_default(call_default_factory=True)
    text = (field.description or "").replace("; none:", "; default:")
    said = f"{text[:1].upper()}{text[1:]}" + (f" [{_shown(known)}]" if defaults and known is not None else "")
    if _is(field, bool):
        return click.Option([f"{flag}/--no-{flag[2:]}", name], default=None, help=said)
    kind: click.ParamType[Any] | None = None
    for number, parameter in ((int, click.INT), (float, click.FLOAT)):
        if _is(field, number):
            kind = parameter
    if typing.get_origin(field.annotation) is typing.Literal:
        kind = click.Choice([str(choice) for choice in typing.get_args(field.annotation)])
    return click.Option([flag, name], type=kind, default=None, metavar=_metavar(name, kind), help=said)


def _is(field: FieldInfo, kind: type) -> bool:
    """Whether the setting is of this type, or of this type or none."""
    annotation = field.annotation
    if isinstance(annotation, types.UnionType) or typing.get_origin(annotation) is typing.Union:
        return kind in typing.get_args(annotation)
    return annotation is kind


def _metavar(name: str, kind: Any) -> str | None:
    if isinstance(kind, click.Choice):
        return None if len("|".join(kind.choices)) < _WIDE else "NAME"  # the help has the names then
    return (
        "N"
        if kind is not None
        else "C"
        if name.endswith("column")
        else "D"
        if name == "delimiter"
        else "TEXT"
    )


def _shown(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def as_settings(values: dict[str, Any], assignments: tuple[str, ...]) -> dict[str, Any]:
    """The options that were given, and `--set task.NAME=VALUE`, as changes of a task's settings."""
    from bertsmith.cli.options import refuse_twice
    from bertsmith.errors import InputError

    refuse_twice({f"task.{name}": value for name, value in values.items()}, assignments)
    changed = {name: value for name, value in values.items() if value is not None}
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        if not equals or not key.strip().startswith("task."):
            raise InputError(
                f"--set {assignment}: a finished model has only its task's settings to change",
                "write it as --set task.max_length=128",
            )
        changed[key.strip().removeprefix("task.")] = yaml.safe_load(text)
    return changed
