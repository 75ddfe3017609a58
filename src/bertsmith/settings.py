"""The base class of settings, YAML recipes, and `--set name=value`.

Settings have groups: the dotted name of a setting is "train.max_steps". Python passes values by dotted names, as
nested mappings, or by keywords; a recipe is a nested YAML mapping; the command line has `--set train.max_steps=3`.
A keyword is the last part of a dotted name; if several groups have a setting of that name, the one of the group
`train` is meant, or else the first.

Every setting is a pydantic `Field` with a type, a default, a range, and a one-line description, and is of type
`MayChange` if a resumed run may have another value. The error for an unknown name suggests similar names.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from numbers import Integral
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar, get_args, get_origin

import yaml
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from bertsmith.errors import InputError, option
from bertsmith.formatting import shorten
from bertsmith.suggestions import did_you_mean, not_found_error, similar_names

_EXPONENT = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$")  # YAML 1.1 reads 1e-4, without a dot, as text
_MAX_YAML_BYTES = 1 << 22  # PyYAML reads about 200 kB per second
_MAX_YAML_VALUES = 1_000_000
_MAX_NAME_LENGTH = 100  # characters of a name in a message
_MAX_LISTED_NAMES = 10  # in a message
_MAX_VALUE_LENGTH = 60  # characters of a value in a message

MAY_CHANGE: dict[str, Any] = {"may_change_on_resume": True}
"""The mark of a field that may change on resume."""

Value = TypeVar("Value")
MayChange = Annotated[Value, Field(json_schema_extra=MAY_CHANGE)]
"""The type of such a field: `threads: MayChange[int] = Field(1, ge=1, description="…")`."""

Changes = str | Sequence[str] | Mapping[str, Any]
"""Values of settings from a caller: "name=value" strings, or a mapping by dotted names or with nested mappings."""

Function = Callable[..., Any]  # of the package, which takes settings as keywords
Options = TypeVar("Options")


class Settings(BaseModel):
    """Base class of immutable settings, which refuses unknown names and invalid values.

    A group of settings is a field whose type is another subclass of `Settings`.
    """

    model_config = ConfigDict(
        extra="forbid",
        validate_default=True,
        frozen=True,
        coerce_numbers_to_str=True,
        allow_inf_nan=False,
        protected_namespaces=(),
        defer_build=True,  # most commands use few of these classes
    )

    @model_validator(mode="before")
    @classmethod
    def _replace_none(cls, values: Any) -> Any:
        """Replace None (`--set NAME=none`, `--set NAME=`, YAML's null): a field may have "none" or "" instead."""
        if not isinstance(values, dict):
            return values
        fields = cls.model_fields
        return {
            name: _none_value(fields[name]) if value is None and name in fields else value
            for name, value in values.items()
        }

    @field_validator("*")
    @classmethod
    def _check_size(cls, value: Any, info: ValidationInfo) -> Any:
        if isinstance(value, int) and abs(value) > (2**63 - 1 if info.field_name == "seed" else 10**15):
            raise ValueError("the number is too large")
        return value

    @classmethod
    def names(cls, prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
        """Yield the dotted name and the field of each setting, in order of definition."""
        for name, field in cls.model_fields.items():
            if _is_group(field):
                yield from field.annotation.names(f"{prefix}{name}.")  # type: ignore[union-attr]
            else:
                yield f"{prefix}{name}", field

    @classmethod
    def may_change(cls) -> frozenset[str]:
        """Return the dotted names of the settings that may change on resume (`MAY_CHANGE`)."""
        return frozenset(name for name, field in cls.names() if may_change(field))

    @classmethod
    def of(cls, values: Mapping[str, Any], source: str) -> Self:
        """Return settings with values from nested mappings, and defaults for all others.

        The InputError for an unknown name or an invalid value has the location `source`: the path of a recipe, or
        "--set" or "settings" for values from elsewhere.
        """
        try:
            return cls.model_validate(dict(values))
        except ValidationError as error:
            location = None if source in ("--set", "settings") else source
            raise _settings_error(cls, error, location) from None

    def changed(self, changes: Changes) -> Self:
        """Return a copy with changed values; raise InputError for an unknown name or an invalid value."""
        values = self.model_dump()
        for name, value in self.dotted(changes).items():
            group = values
            *path, last = name.split(".")
            for part in path:
                group = group.setdefault(part, {})
                if not isinstance(group, dict):
                    shown = shorten(name, _MAX_VALUE_LENGTH)
                    message = f"'{part}' in '{shown}' is a setting, not a group of settings"
                    raise InputError("not_a_group", message, argument="settings")
            group[last] = value
        return type(self).of(values, "--set")

    @classmethod
    def dotted(cls, changes: Changes, prefix: str = "") -> dict[str, Any]:
        """Return the values of changes by dotted names, with "name=value" strings parsed as YAML."""
        if not isinstance(changes, Mapping):
            return dict(map(parse_assignment, [changes] if isinstance(changes, str) else changes))
        values: dict[str, Any] = {}
        for name, value in changes.items():
            field = cls.model_fields.get(name)
            if field is not None and _is_group(field) and isinstance(value, Mapping):
                values |= field.annotation.dotted(value, f"{prefix}{name}.")  # type: ignore[union-attr]
            else:
                values[f"{prefix}{name}"] = _to_python(value)
        return values

    def flat(self) -> dict[str, Any]:
        """Return all settings as JSON values by dotted names."""
        return self.dotted(self.model_dump(mode="json"))

    def to_yaml(self) -> str:
        """Return YAML that `from_file` reads back to equal settings."""
        values = self.model_dump(mode="json")
        return yaml.dump(values, Dumper=_Dumper, sort_keys=False, allow_unicode=True)

    @classmethod
    def from_file(cls, path: str | Path) -> Self:
        """Read a YAML recipe; omitted settings have their defaults."""
        return cls.of(read_yaml(path), str(path))


def _none_value(field: FieldInfo) -> str | None:
    """Return the value of a field that stands for none: the choice "none", an empty string, or None."""
    if "none" in _choices(field.annotation):
        return "none"
    return "" if field.annotation is str and field.default == "" else None


def _choices(annotation: Any) -> tuple[Any, ...]:
    """Return the values of a Literal or of a union with Literals."""
    if get_origin(annotation) is Literal:
        return get_args(annotation)
    return tuple(choice for part in get_args(annotation) for choice in _choices(part))


def describe_error(name: str, error: ErrorDetails) -> str:
    """Return a message for a validation error of pydantic."""
    message, value = error["msg"].removeprefix("Value error, "), error["input"]
    message = f"{message[:1].lower()}{message[1:]}"
    if error["type"] == "model_type":
        return f"{name} is {value!r:.40}, and it is a group of settings: give their values, or remove it"
    # An error of a group: the message names its settings, and all settings together have no name.
    if isinstance(value, dict):
        return f"{name}: {message}" if name else message
    return f"{name} is {shorten(repr(value), _MAX_VALUE_LENGTH)}: {message}"


class _Loader(yaml.SafeLoader):
    """A SafeLoader that reads 1e-4 as a number and refuses a name given twice in one mapping."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    raise yaml.MarkedYAMLError(problem="a name occurs twice", problem_mark=key.start_mark)
                seen.add(key.value)
        return node


class _Dumper(yaml.SafeDumper):
    """A SafeDumper that quotes text that `_Loader` would read as a number."""


for _cls in (_Loader, _Dumper):
    _cls.add_implicit_resolver("tag:yaml.org,2002:float", _EXPONENT, list("-+.0123456789"))


def _count_values(node: Any, counts: dict[int, int]) -> int:
    """Return the number of values below a node, those of an alias each time: a few lines may have billions."""
    if isinstance(node, yaml.ScalarNode):
        return 1
    if id(node) not in counts:
        parts = [part for pair in node.value for part in (pair if isinstance(pair, tuple) else (pair,))]
        counts[id(node)] = 1 + sum(_count_values(part, counts) for part in parts)
    return counts[id(node)]


def _parse_yaml(text: str) -> Any:
    """Parse YAML; every error is a yaml.YAMLError."""
    loader = _Loader(text)
    try:
        if (node := loader.get_single_node()) is None:
            return None
        if _count_values(node, {}) > _MAX_YAML_VALUES:
            raise yaml.MarkedYAMLError(problem="its aliases repeat too many values")
        return loader.construct_document(node)
    # PyYAML raises other errors for invalid tags, dates, and numbers, and for deep nesting.
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise yaml.YAMLError(str(error)) from None


def read_yaml(path: str | Path) -> dict[str, Any]:
    """Read a YAML file with one mapping; anything else is an InputError with the file and line."""
    try:
        if not Path(path).is_file():
            raise not_found_error(path)
        if Path(path).stat().st_size > _MAX_YAML_BYTES:
            raise yaml.MarkedYAMLError(problem=f"it has more than {_MAX_YAML_BYTES:,} bytes")
        values = _parse_yaml(Path(path).read_bytes().decode("utf-8"))
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
        raise InputError(
            "not_yaml",
            f"this is not YAML{f': {problem}' if problem else ''}",
            location=f"{path}:{mark.line + 1}" if mark else path,
            hint="compare it with a recipe in recipes/",
        ) from None
    if values is None:
        return {}
    if not isinstance(values, dict):
        message = f"a recipe is a mapping of settings, not {type(values).__name__}"
        hint = "compare it with a recipe in recipes/"
        raise InputError("not_a_mapping", message, location=path, hint=hint)
    return values


def parse_assignment(assignment: str) -> tuple[str, Any]:
    """Return the name and the value, parsed as YAML, of a "name=value" string."""
    name, equals, text = assignment.partition("=")
    if not equals:
        message = f"'{shorten(assignment, _MAX_VALUE_LENGTH)}' has no '='"
        hint = f"write it as {option('train.max_steps', 500)}"
        raise InputError("no_value", message, argument="settings", hint=hint)
    try:
        value = None if text.strip() == "none" else _parse_yaml(text)  # --help shows None as none
    except yaml.YAMLError:
        message = f"the value of '{shorten(assignment, _MAX_VALUE_LENGTH)}' is not YAML"
        hint = "quote it: 'key=\"value\"'"
        raise InputError("not_yaml", message, argument="settings", hint=hint) from None
    return name.strip(), value


def resolve(
    cls: type[Settings],
    changes: Changes,
    keywords: Mapping[str, Any],
    function: Function,
    *,
    hidden: Sequence[str] = (),
) -> dict[str, Any]:
    """Merge changes and keywords into one mapping by dotted names; keywords win (see `full_name`)."""
    by_dotted_name = {
        full_name(cls, name, function, hidden): _to_python(value) for name, value in keywords.items()
    }
    return {**cls.dotted(changes), **by_dotted_name}


def full_name(cls: type[Settings], name: str, function: Function, hidden: Sequence[str] = ()) -> str:
    """Return the dotted name of a setting by its last part, preferring `train` and not in `hidden` groups."""
    all_names = [full for full, _ in cls.names()]
    if "." in name and name in all_names:
        return name
    names = [full for full in all_names if full.partition(".")[0] not in hidden]
    matches = [full for full in names if full.rpartition(".")[2] == name]
    if not matches:
        raise _unknown_keyword(name, function, [full.rpartition(".")[2] for full in names])
    return next((full for full in matches if full.startswith("train.")), matches[0])


def with_keywords(options: Options, keywords: Mapping[str, Any], function: Function) -> Options:
    """Return a copy of a dataclass with fields, or fields of its dataclasses, replaced by keywords."""
    fields = {field.name for field in dataclasses.fields(options)}  # type: ignore[arg-type]
    groups = {name: value for name in fields if dataclasses.is_dataclass(value := getattr(options, name))}
    group_of_field = {
        field.name: name for name, group in groups.items() for field in dataclasses.fields(group)
    }
    changed: dict[str, Any] = {}
    for name, value in keywords.items():
        if name in fields:
            changed[name] = value
        elif name in group_of_field:
            group = group_of_field[name]
            changed[group] = dataclasses.replace(changed.get(group, groups[group]), **{name: value})
        else:
            raise _unknown_keyword(name, function, sorted(fields | set(group_of_field)))
    return dataclasses.replace(options, **changed)  # type: ignore[type-var]


def _unknown_keyword(name: str, function: Function, settings: Sequence[str]) -> InputError:
    """Return the error for a keyword that is neither an argument of a function nor a setting."""
    similar = similar_names(name, dict.fromkeys([*_arguments(function), *settings]))
    message = f"{function.__name__} has no argument or setting '{name}'"
    hint = did_you_mean(similar) if similar else f"known: {', '.join(dict.fromkeys(settings))}"
    return InputError("unknown_setting", message, argument=name, hint=hint)


def _arguments(function: Function) -> Iterator[str]:
    """Yield the names of a function's arguments, and of the fields of arguments whose default is a dataclass."""
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind is not parameter.VAR_KEYWORD:
            yield name
        if dataclasses.is_dataclass(parameter.default):
            yield from (field.name for field in dataclasses.fields(parameter.default))


def _to_python(value: Any) -> Any:
    """Convert paths to strings, and arrays and scalars of NumPy and PyTorch to Python values."""
    if isinstance(value, Path):
        return str(value)
    return value.tolist() if hasattr(value, "tolist") else value


def check_positive(value: Any, argument: str) -> None:
    """Raise InputError for an argument that is not an integer of 1 or more."""
    if not isinstance(value, Integral) or value < 1:
        message = f"{value!r:.40} is not an integer of 1 or more"
        raise InputError(
            "number_too_small", message, argument=argument, hint="use 1 or more, without a fraction"
        )


def may_change(field: FieldInfo) -> bool:
    """Return True if a field is marked with `MAY_CHANGE`."""
    return field.json_schema_extra == MAY_CHANGE


def _is_group(field: FieldInfo) -> bool:
    return isinstance(field.annotation, type) and issubclass(field.annotation, Settings)


def _settings_error(cls: type[Settings], error: ValidationError, location: str | None) -> InputError:
    """Return the error for the first unknown name, or else for the first invalid value."""
    errors = error.errors()
    unknown = [details for details in errors if details["type"] in ("extra_forbidden", "invalid_key")]
    first = (unknown or errors)[0]
    name = ".".join(part for part in first["loc"] if isinstance(part, str))  # without the index in a list
    if unknown:
        name = name[:_MAX_NAME_LENGTH]
        what = "group of settings" if isinstance(first["input"], Mapping) else "setting"
        suggestion = _suggestion(cls, name, first["input"])
        message = f"there is no {what} '{name}'"
        return InputError("unknown_setting", message, location=location, argument=name, hint=suggestion)
    descriptions = (f.description for setting, f in cls.names() if f"{name}.".startswith(f"{setting}."))
    description = next(descriptions, None)
    subject = f"setting '{name}'" if name and isinstance(first["input"], dict) else name
    message = describe_error(subject, first)
    hint = f"'{name}' means: {description}" if description else None
    return InputError("invalid_setting", message, location=location, argument=name or None, hint=hint)


def _suggestion(cls: type[Settings], name: str, value: Any) -> str:
    """Return a hint for an unknown dotted name with its value."""
    known_names = [setting for setting, _ in cls.names()]
    full_name = f"{name}.{next(iter(value))}" if isinstance(value, Mapping) and value else name
    if similar := similar_names(full_name, known_names):
        return did_you_mean(similar)
    prefix = name[: name.rfind(".") + 1]
    names = [setting for setting in known_names if setting.startswith(prefix)]
    if len(names) > _MAX_LISTED_NAMES:
        parts = (setting.removeprefix(prefix).partition(".")[0] for setting in names)
        names = [f"{prefix}{part}" for part in dict.fromkeys(parts)]
    if prefix and len(names) > _MAX_LISTED_NAMES:
        return f"--help lists the settings of '{prefix[:-1]}'"
    listed = f"known here: {', '.join(names)}"
    similar_groups = similar_names(name, cls.model_fields)
    return f"{did_you_mean(similar_groups)} {listed}" if similar_groups else listed
