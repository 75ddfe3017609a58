"""What Python says of settings becomes what the command line says: `epochs=3` is `--set train.epochs=3`.

Settings come as assignments ("train.epochs=3"), as a mapping (dotted or nested names), or as keywords: a setting's
own last name. Where several groups have a setting of that name, the training's is meant, else the first group's.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from bertsmith.errors import InputError
from bertsmith.settings import Settings
from bertsmith.suggestions import did_you_mean, nearest

Chosen = Sequence[str] | Mapping[str, Any]
"""Settings as a caller gives them: assignments, or values by dotted or nested names."""

Verb = Callable[..., Any]
"""A function of the package as people call it, whose keywords are looked at."""

Options = TypeVar("Options")


def assignments_of(
    kind: type[Settings],
    settings: Chosen | str,
    keywords: Mapping[str, Any],
    verb: Verb,
    *,
    own: Sequence[str] = (),
) -> list[str]:
    """All that was said of settings as assignments, keywords last. verb: whose keywords they are, for messages,
    which know its other arguments; own: groups that keywords do not reach.

    InputError for a keyword that is no setting, with the nearest that is.
    """
    if isinstance(settings, str):
        settings = [settings]
    found = list(_flat(kind, settings, verb)) if isinstance(settings, Mapping) else list(settings)
    return found + [
        f"{full_name(kind, name, verb, own)}={as_yaml(value)}" for name, value in keywords.items()
    ]


def with_keywords(options: Options, keywords: Mapping[str, Any], verb: Verb) -> Options:
    """A dataclass with some fields changed; fields that are dataclasses themselves are looked into.

    InputError for a keyword that is no field, with the nearest that is.
    """
    fields = {field.name for field in dataclasses.fields(options)}  # type: ignore[arg-type]
    inner = {name: value for name in fields if dataclasses.is_dataclass(value := getattr(options, name))}
    below = {field.name: name for name, value in inner.items() for field in dataclasses.fields(value)}
    changed: dict[str, Any] = {}
    for name, value in keywords.items():
        if name in fields:
            changed[name] = value
        elif name in below:
            group = below[name]
            changed[group] = dataclasses.replace(changed.get(group, inner[group]), **{name: value})
        else:
            raise _unknown(name, verb, sorted(fields | set(below)))
    return dataclasses.replace(options, **changed)  # type: ignore[type-var]


def _flat(kind: type[Settings], values: Mapping[str, Any], verb: Verb, prefix: str = "") -> Iterator[str]:
    known = {name for name, _ in kind.names()}
    groups = {name.rpartition(".")[0] for name in known}
    for name, value in values.items():
        full = f"{prefix}{name}"
        if isinstance(value, Mapping) and full in groups:
            yield from _flat(kind, value, verb, f"{full}.")
        else:
            if "." not in full and full not in known:
                full = full_name(kind, full, verb, ())
            yield f"{full}={as_yaml(value)}"


def full_name(kind: type[Settings], name: str, verb: Verb, own: Sequence[str]) -> str:
    """The dotted name of the setting that a caller means by its last part, in no group of `own`. InputError, with
    the nearest that is there, where there is none."""
    names = [full for full, _ in kind.names() if full.partition(".")[0] not in own]
    found = [full for full in names if full.rpartition(".")[2] == name]
    if not found:
        known = [full.rpartition(".")[2] for full in names]
        raise _unknown(name, verb, known, kind.why_absent(name))
    return next((full for full in found if full.startswith("train.")), found[0])


def _unknown(name: str, verb: Verb, known: Sequence[str], why: str | None = None) -> InputError:
    near = nearest(name, dict.fromkeys([*_arguments(verb), *known]))
    return InputError(
        f"{verb.__name__}: there is no argument or setting '{name}'",
        why or (did_you_mean(near) if near else f"known: {', '.join(dict.fromkeys(known))}"),
    )


def _arguments(verb: Verb) -> Iterator[str]:
    """The names that a verb takes itself, and the fields of dataclasses among their defaults."""
    for name, parameter in inspect.signature(verb).parameters.items():
        if parameter.kind is not parameter.VAR_KEYWORD:
            yield name
        if dataclasses.is_dataclass(parameter.default):
            yield from (field.name for field in dataclasses.fields(parameter.default))


def as_yaml(value: Any) -> str:
    """A Python value as an assignment has it; text is quoted, so that it stays text."""
    return json.dumps(value, ensure_ascii=False, default=_plain)


def _plain(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    if hasattr(value, "item"):  # a number of numpy or torch
        return value.item()
    return list(value) if isinstance(value, set | frozenset) else str(value)
