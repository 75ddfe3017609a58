"""What a user may set: the base that every room's settings build on, YAML recipes and `--set key=value`.

In Python settings are values by dotted names ("train.epochs"), nested names, or keywords, which are a setting's
last name; where several groups have that name, the training's is meant, else the first group's. They stay typed
from there to the model; `--set` is parsed once.

Every setting has a default, a range and a one-line description (pydantic's `Field`), and says with `MAY_CHANGE`
whether a run may continue with another value; an unknown name is an error that names the nearest known one.
"""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Self, TypeVar, get_args, get_origin

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError, field_validator, model_validator
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from bertsmith.errors import InputError, option
from bertsmith.suggestions import did_you_mean, not_found_error, similar_names

_EXPONENT = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$")  # text in YAML 1.1 where there is no dot
_TWICE = "this name stands here for the second time"
_FEW = 10  # names that are listed in a message
_LONGEST_SHOWN = 60  # characters of a value in a message

# In a field: `Field(1, ge=0, description="…", json_schema_extra=MAY_CHANGE)`. A run's numbers so far do not
# depend on it.
MAY_CHANGE: dict[str, Any] = {"may_change_on_resume": True}
# A setting that runs of earlier versions do not have: at its default it means what they did, so it is no part of
# what they are known by, and they continue.
ADDED_LATER: dict[str, Any] = {"added_later": True}


Changes = str | Sequence[str] | Mapping[str, Any]
"""Settings as a caller gives them: "name=value" strings, or values by dotted or nested names."""

Function = Callable[..., Any]
"""A function of the package that takes settings as keywords."""

Options = TypeVar("Options")


class Settings(BaseModel):
    """Typed, bounded settings that refuse unknown names. Groups are fields whose type is another `Settings`."""

    model_config = ConfigDict(
        extra="forbid",
        validate_default=True,
        frozen=True,
        coerce_numbers_to_str=True,
        allow_inf_nan=False,
        protected_namespaces=(),
        defer_build=True,  # most commands ask few of these classes
    )

    @model_validator(mode="before")
    @classmethod
    def _none_may_be_a_choice(cls, values: Any) -> Any:
        """`--set NAME=none`, `--set NAME=` and YAML's null are "none" where that is one of the choices, and an
        empty text where that stands for none."""
        if not isinstance(values, dict):
            return values
        fields = cls.model_fields
        return {
            name: _none_of(fields[name]) if value is None and name in fields else value
            for name, value in values.items()
        }

    @field_validator("*")
    @classmethod
    def _fits_in_64_bits(cls, value: Any) -> Any:
        if isinstance(value, int) and abs(value) >= 2**63:
            raise ValueError("the number is too large: give one below 2^63")
        return value

    @classmethod
    def names(cls, prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
        """Each setting's dotted name with its field, in order of definition."""
        for name, field in cls.model_fields.items():
            if _is_group(field):
                yield from field.annotation.names(f"{prefix}{name}.")  # type: ignore[union-attr]
            else:
                yield f"{prefix}{name}", field

    @classmethod
    def may_change(cls) -> frozenset[str]:
        """The dotted names of the settings that may change when a run continues (`MAY_CHANGE`)."""
        return frozenset(name for name, field in cls.names() if may_change(field))

    @classmethod
    def added_later(cls) -> frozenset[str]:
        """The dotted names of the settings that earlier versions did not have (`ADDED_LATER`)."""
        return frozenset(name for name, field in cls.names() if _is_marked(field, "added_later"))

    @classmethod
    def of(cls, values: Mapping[str, Any], place: str) -> Self:
        """Settings from nested values; a fault is an `InputError` that begins with `place`."""
        _refuse_unknown(cls, values, "", place, cls)
        try:
            return cls.model_validate(dict(values))
        except ValidationError as error:
            first = error.errors()[0]
            name = ".".join(str(part) for part in first["loc"])
            near = _nearest_choice(first)
            meaning = describe(cls, name)
            meant = f"'{name}' means: {meaning}" if meaning else None
            raise InputError(
                "invalid_setting",
                _fault(name, first),
                location=_file(place),
                argument=name or None,
                hint=did_you_mean(near) if near else meant,
            ) from None

    def changed(self, changes: Changes) -> Self:
        """These settings with some changed. InputError for names and values that do not fit."""
        values = self.model_dump()
        for name, value in self.dotted(changes).items():
            group = values
            *path, last = name.split(".")
            for part in path:
                group = group.setdefault(part, {})
                if not isinstance(group, dict):
                    raise InputError(
                        "not_a_group",
                        f"'{part}' in '{_cut(name)}' is a setting, not a group of settings",
                        argument="settings",
                    )
            group[last] = value
        return type(self).of(values, "--set")

    @classmethod
    def dotted(cls, changes: Changes, prefix: str = "") -> dict[str, Any]:
        """Return the values of changes by dotted names; those of "name=value" strings are parsed as YAML."""
        if not isinstance(changes, Mapping):
            return dict(map(parse_assignment, [changes] if isinstance(changes, str) else changes))
        values: dict[str, Any] = {}
        for name, value in changes.items():
            field = cls.model_fields.get(name)
            if field is not None and _is_group(field) and isinstance(value, Mapping):
                values |= field.annotation.dotted(value, f"{prefix}{name}.")  # type: ignore[union-attr]
            else:
                values[f"{prefix}{name}"] = _plain(value)
        return values

    def flat(self) -> dict[str, Any]:
        """Return the values, as JSON has them, by dotted names."""
        return self.dotted(self.model_dump(mode="json"))

    def to_yaml(self) -> str:
        """The settings as YAML that `from_file` reads back to equal settings."""
        values = self.model_dump(mode="json")
        return yaml.dump(values, Dumper=_Dumper, sort_keys=False, allow_unicode=True)

    @classmethod
    def from_file(cls, path: str | Path) -> Self:
        """Read a recipe: YAML of the same names; what it leaves out keeps its default."""
        return cls.of(read_yaml(path), str(path))


def _none_of(field: FieldInfo) -> str | None:
    """What stands for none in a setting: one of its choices, an empty text, or None itself."""
    if "none" in _choices(field.annotation):
        return "none"
    return "" if field.annotation is str and field.default == "" else None


def _choices(annotation: Any) -> tuple[Any, ...]:
    """The values of a Literal, also where it is one of several types."""
    if get_origin(annotation) is Literal:
        return get_args(annotation)
    return tuple(choice for part in get_args(annotation) for choice in _choices(part))


_WANTED = {  # pydantic's names of a wrong kind of value → what it is not
    "int_parsing": "a whole number",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_parsing": "a number",
    "float_type": "a number",
    "bool_parsing": "true or false",
    "bool_type": "true or false",
    "string_type": "text",
    "finite_number": "a finite number",
}


def _fault(name: str, error: ErrorDetails) -> str:
    """What is wrong with a value, in words of this house."""
    said, value = error["msg"].removeprefix("Value error, "), error["input"]
    if isinstance(value, dict):  # several settings together, which are named; as one they may have no name
        whole = f"setting '{name}': " if name else ""
        return f"{whole}{said[0].lower()}{said[1:]}"
    got = _cut(repr(value))
    if error["type"] in _WANTED:
        return f"{name} is {got}, not {_WANTED[error['type']]}"
    if error["type"] == "literal_error":
        return f"{name} is {got}, not {error['ctx']['expected']}"
    if said.startswith("Input should be "):
        return f"{name} is {got}, and should be {said.removeprefix('Input should be ')}"
    return f"setting '{name}': {said[0].lower()}{said[1:]} (got {got})"


def _nearest_choice(error: ErrorDetails) -> list[str]:
    """The choices that a wrong one may stand for."""
    if error["type"] != "literal_error" or not isinstance(error["input"], str):
        return []
    choices = re.findall("'([^']*)'", error["ctx"]["expected"])
    return difflib.get_close_matches(error["input"].replace("-", "_"), choices, n=1)


class _Loader(yaml.SafeLoader):
    """A SafeLoader that reads 1e-4 as a number and refuses a name given twice in one mapping."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    raise yaml.MarkedYAMLError(problem=_TWICE, problem_mark=key.start_mark)
                seen.add(key.value)
        return node


class _Dumper(yaml.SafeDumper):
    """A SafeDumper that quotes text which `_Loader` would read as a number."""


for _cls in (_Loader, _Dumper):
    _cls.add_implicit_resolver("tag:yaml.org,2002:float", _EXPONENT, list("-+.0123456789"))


def _parsed(text: str) -> Any:
    """Return YAML's value of a text. Raises yaml.YAMLError, and no other error whatever the text."""
    try:
        return _Loader(text).get_single_data()
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise yaml.YAMLError(str(error)) from None  # a tag or a number that cannot be built, deep nesting


def read_yaml(path: str | Path) -> dict[str, Any]:
    """A YAML file that holds one mapping; faults are `InputError`s with file and line."""
    try:
        values = _parsed(Path(path).read_bytes().decode("utf-8"))
    except FileNotFoundError:
        raise not_found_error(path) from None
    except OSError as error:
        raise InputError(
            "unreadable", f"cannot read the file ({(error.strerror or str(error)).lower()})", location=path
        ) from None
    except UnicodeDecodeError as error:
        raise InputError(
            "not_utf8", f"byte {error.start} is not UTF-8", location=path, hint="save the recipe as UTF-8"
        ) from None
    except yaml.YAMLError as error:
        mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
        line = f":{mark.line + 1}" if mark else ""
        if problem == _TWICE:
            raise InputError(
                "duplicate_key", _TWICE, location=f"{path}{line}", hint="remove one of the two"
            ) from None
        raise InputError(
            "not_yaml",
            "this is not YAML",
            location=f"{path}{line}",
            hint="compare it with a recipe in recipes/",
        ) from None
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise InputError(
            "not_a_mapping",
            f"a recipe is a mapping of settings, not {type(values).__name__}",
            location=path,
            hint="compare it with a recipe in recipes/",
        )
    return values


def parse_assignment(assignment: str) -> tuple[str, Any]:
    """Return the name and the YAML value of "name=value", as `--set` takes it."""
    name, equals, text = assignment.partition("=")
    if not equals:
        raise InputError(
            "no_value",
            f"'{_cut(assignment)}' has no '='",
            argument="settings",
            hint=f"write it as {option('train.max_steps', 500)}",
        )
    try:
        value = None if text.strip() == "none" else _parsed(text)  # as --help shows it
    except yaml.YAMLError:
        raise InputError(
            "not_yaml",
            f"the value of '{_cut(assignment)}' is not YAML",
            argument="settings",
            hint="quote it: 'key=\"value\"'",
        ) from None
    return name.strip(), value


def resolve(
    cls: type[Settings],
    changes: Changes,
    keywords: Mapping[str, Any],
    function: Function,
    *,
    hidden: Sequence[str] = (),
) -> dict[str, Any]:
    """Return all changes by dotted names; a keyword is the last part of a setting's name.

    function: whose keywords they are, for messages. hidden: groups that keywords do not reach. InputError for a
    keyword that is no setting.
    """
    own = {full_name(cls, name, function, hidden): _plain(value) for name, value in keywords.items()}
    return {**cls.dotted(changes), **own}


def full_name(cls: type[Settings], name: str, function: Function, hidden: Sequence[str] = ()) -> str:
    """Return the dotted name of the setting with this last part: that of training, else the first one."""
    names = [full for full, _ in cls.names() if full.partition(".")[0] not in hidden]
    matches = [full for full in names if full.rpartition(".")[2] == name]
    if not matches:
        raise _unknown_keyword(name, function, [full.rpartition(".")[2] for full in names])
    return next((full for full in matches if full.startswith("train.")), matches[0])


def with_keywords(options: Options, keywords: Mapping[str, Any], function: Function) -> Options:
    """Return a dataclass with some fields, or fields of the dataclasses in it, changed. InputError for others."""
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
            raise _unknown_keyword(name, function, sorted(fields | set(below)))
    return dataclasses.replace(options, **changed)  # type: ignore[type-var]


def _unknown_keyword(name: str, function: Function, known: Sequence[str]) -> InputError:
    near = similar_names(name, dict.fromkeys([*_arguments(function), *known]))
    return InputError(
        "unknown_setting",
        f"{function.__name__} has no argument or setting '{name}'",
        argument=name,
        hint=did_you_mean(near) if near else f"known: {', '.join(dict.fromkeys(known))}",
    )


def _arguments(function: Function) -> Iterator[str]:
    """Yield the names of a function's arguments, and of the fields of dataclasses among their defaults."""
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind is not parameter.VAR_KEYWORD:
            yield name
        if dataclasses.is_dataclass(parameter.default):
            yield from (field.name for field in dataclasses.fields(parameter.default))


def _plain(value: Any) -> Any:
    """Return paths as text, and arrays and scalars of NumPy and PyTorch as Python's values."""
    if isinstance(value, Path):
        return str(value)
    return value.tolist() if hasattr(value, "tolist") else value


def may_change(field: FieldInfo) -> bool:
    """Whether a field is marked with `MAY_CHANGE`."""
    return _is_marked(field, "may_change_on_resume")


def _is_marked(field: FieldInfo, mark: str) -> bool:
    extra = field.json_schema_extra
    return isinstance(extra, dict) and bool(extra.get(mark))


def describe(cls: type[Settings], name: str) -> str:
    """The one-line description of a setting by its dotted name."""
    return next((f.description or "" for known, f in cls.names() if f"{name}.".startswith(f"{known}.")), "")


def _is_group(field: FieldInfo) -> bool:
    return isinstance(field.annotation, type) and issubclass(field.annotation, Settings)


def _refuse_unknown(
    cls: type[Settings], values: Mapping[str, Any], prefix: str, place: str, top: type[Settings]
) -> None:
    """InputError for the first name that `cls`, the group of `top` at this prefix, does not have."""
    for key, value in values.items():
        field = cls.model_fields.get(key)
        if field is None:
            full = f"{prefix}{key}"[:100]
            what = "group of settings" if isinstance(value, Mapping) else "setting"
            raise InputError(
                "unknown_setting",
                f"there is no {what} '{full}'",
                location=_file(place),
                argument=full,
                hint=_meant(cls, full, value, prefix, top),
            )
        if _is_group(field) and isinstance(value, Mapping):
            _refuse_unknown(field.annotation, value, f"{prefix}{key}.", place, top)  # type: ignore[arg-type]


def _meant(cls: type[Settings], full: str, value: Any, prefix: str, top: type[Settings]) -> str:
    """What to write instead of a name that is not there."""
    names = [name for name, _ in top.names()]
    groups = [name for name, field in cls.model_fields.items() if _is_group(field)]
    if isinstance(value, Mapping) and groups:
        near = difflib.get_close_matches(full, groups, n=1)
        inner = similar_names(f"{near[0] if near else full}.{next(iter(value), '')}", names)
        near = [name for name in inner if not near or name.startswith(f"{near[0]}.")] or near
        listed = f"the groups are: {', '.join(groups)}"
        return f"{did_you_mean(near)} {listed}" if near else listed
    if near := similar_names(full, names):
        return did_you_mean(near)
    here = [name for name in names if name.startswith(prefix)]
    if len(here) <= _FEW or not (groups or prefix):
        return f"known here: {', '.join(here)}"
    if not prefix:
        return f"the groups are: {', '.join(groups)}; --help lists their settings"
    return f"--help lists the settings of '{prefix[:-1]}'"


def _file(place: str) -> str | None:
    """Return the recipe that settings come from, None for settings of the command line or of keywords."""
    return None if place in ("--set", "settings") else place


def _cut(text: str) -> str:
    """What somebody wrote, as a message shows it."""
    return text if len(text) <= _LONGEST_SHOWN else f"{text[: _LONGEST_SHOWN - 1]}…"
