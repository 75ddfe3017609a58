"""What a user may set: the base that every room's settings build on, YAML recipes and `--set key=value`.

Every setting has a default, a range and a one-line description (pydantic's `Field`); an unknown name is an
error that names the nearest known one.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.fields import FieldInfo

from bertsmith.errors import InputError

_EXPONENT = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+")  # a number to people; quoted, it stays text
_NUMBERS = re.compile(r"\(?\s*[-+.\deE]+(?:\s*,\s*[-+.\deE]+)+\s*\)?")


class Settings(BaseModel):
    """Typed, bounded settings that refuse unknown names. Groups are fields whose type is another `Settings`."""

    model_config = ConfigDict(
        extra="forbid",
        validate_default=True,
        frozen=True,
        coerce_numbers_to_str=True,
        allow_inf_nan=False,
        protected_namespaces=(),
    )

    @classmethod
    def names(cls, prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
        """Each setting's dotted name with its field, in order of definition."""
        for name, field in cls.model_fields.items():
            if _is_group(field):
                yield from field.annotation.names(f"{prefix}{name}.")  # type: ignore[union-attr]
            else:
                yield f"{prefix}{name}", field

    @classmethod
    def of(cls, values: Mapping[str, Any], place: str) -> Self:
        """Settings from nested values; a fault is an `InputError` that begins with `place`."""
        _refuse_unknown(cls, values, "", place)
        try:
            return cls.model_validate(dict(values))
        except ValidationError as error:
            first = error.errors()[0]
            name = ".".join(str(part) for part in first["loc"])
            said = first["msg"].removeprefix("Value error, ")
            raise InputError(
                f"{place}: setting '{name}': {said[0].lower()}{said[1:]}"
                + (f" (got {first['input']!r})" if not isinstance(first["input"], dict) else ""),
                f"'{name}' means: {meaning}" if (meaning := describe(cls, name)) else None,
            ) from None

    def changed(self, assignments: Sequence[str]) -> Self:
        """These settings with `key=value` assignments applied, as `--set` gives them; values are YAML."""
        values = self.model_dump()
        for assignment in assignments:
            key, equals, text = assignment.partition("=")
            if not equals:
                raise InputError(
                    f"--set {assignment}: there is no '='", "write it as --set train.max_steps=500"
                )
            group = values
            *path, last = key.strip().split(".")
            for part in path:
                group = group.setdefault(part, {})
                if not isinstance(group, dict):
                    raise InputError(f"--set {assignment}: '{part}' is a setting, not a group of settings")
            group[last] = _scalar(text, assignment)
        return type(self).of(values, "--set")

    def to_yaml(self) -> str:
        """The settings as YAML that `from_file` reads back to equal settings."""
        return yaml.safe_dump(self.model_dump(mode="json"), sort_keys=False, allow_unicode=True)

    @classmethod
    def from_file(cls, path: str | Path) -> Self:
        """Read a recipe: YAML of the same names; what it leaves out keeps its default."""
        return cls.of(read_yaml(path), str(path))


def read_yaml(path: str | Path) -> dict[str, Any]:
    """A YAML file that holds one mapping; faults are `InputError`s with file and line."""
    try:
        values = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"{path}: there is no such file") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: byte {error.start} is not UTF-8", "save the recipe as UTF-8") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark else ""
        raise InputError(f"{path}{line}: this is not YAML", "compare it with a recipe in recipes/") from None
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise InputError(f"{path}: a recipe is a mapping of settings, not {type(values).__name__}")
    return values


def describe(cls: type[Settings], name: str) -> str:
    """The one-line description of a setting by its dotted name."""
    return next((f.description or "" for known, f in cls.names() if f"{name}.".startswith(f"{known}.")), "")


def _is_group(field: FieldInfo) -> bool:
    return isinstance(field.annotation, type) and issubclass(field.annotation, Settings)


def _scalar(text: str, assignment: str) -> Any:
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        raise InputError(
            f"--set {assignment}: the value is not YAML", "quote it: --set 'key=\"value\"'"
        ) from None
    if text.strip() == "none":  # as --help shows it; a column of this name is quoted
        return None
    if isinstance(value, str) and _EXPONENT.fullmatch(text.strip()):  # YAML 1.1 reads 1e-4 as text
        return float(value)
    if isinstance(value, str) and _NUMBERS.fullmatch(text.strip()):  # as --help shows them: (0.8, 0.1, 0.1)
        return [float(number) for number in text.strip().strip("()").split(",")]
    return value


def _refuse_unknown(cls: type[Settings], values: Mapping[str, Any], prefix: str, place: str) -> None:
    for key, value in values.items():
        field = cls.model_fields.get(key)
        if field is None:
            known = [name for name, _ in cls.names(prefix)]
            full = f"{prefix}{key}"
            near = difflib.get_close_matches(full, known, n=1, cutoff=0.5) or [
                name for name in known if name.rpartition(".")[2] == str(key)
            ]
            hint = f"did you mean '{near[0]}'?" if near else "known here: " + ", ".join(known)
            raise InputError(f"{place}: there is no setting '{full}'", hint)
        if _is_group(field) and isinstance(value, Mapping):
            _refuse_unknown(field.annotation, value, f"{prefix}{key}.", place)  # type: ignore[arg-type]
