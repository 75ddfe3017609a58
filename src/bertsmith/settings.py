"""What a user may set: the base that every room's settings build on, YAML recipes and `--set key=value`.

Every setting has a default, a range and a one-line description (pydantic's `Field`), and says with `MAY_CHANGE`
whether a run may continue with another value; an unknown name is an error that names the nearest known one.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal, Self, get_args, get_origin

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError, model_validator
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from bertsmith.errors import InputError
from bertsmith.suggestions import absent, did_you_mean, nearest

_EXPONENT = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+")  # a number to people; quoted, it stays text
_NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
_NUMBERS = re.compile(rf"\(?\s*{_NUMBER}(?:\s*,\s*{_NUMBER})+\s*\)?", re.ASCII)
_LARGEST_FILE = 2**20  # bytes of a recipe
_MOST_NODES, _DEEPEST = 10_000, 50  # of one YAML document, with each alias counted as what it stands for
_TOO_DEEP, _TOO_MANY = "nested too deeply", "too many values"
_TWICE = "this name stands here for the second time"
_LARGEST_INT = 2**63  # torch, numpy and Arrow count so far
_FEW = 10  # names that are listed in a message
_LONGEST_SHOWN = 60  # characters of a value in a message

# In a field: `Field(1, ge=0, description="…", json_schema_extra=MAY_CHANGE)`. A run's numbers so far do not
# depend on it.
MAY_CHANGE: dict[str, Any] = {"may_change_on_resume": True}
# A setting that runs of earlier versions do not have: at its default it means what they did, so it is no part of
# what they are known by, and they continue.
ADDED_LATER: dict[str, Any] = {"added_later": True}


class Settings(BaseModel):
    """Typed, bounded settings that refuse unknown names. Groups are fields whose type is another `Settings`.

    absent: names that people may look for among these, each with why there is no such setting.
    """

    absent: ClassVar[Mapping[str, str]] = {}

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

    @classmethod
    def names(cls, prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
        """Each setting's dotted name with its field, in order of definition."""
        for name, field in cls.model_fields.items():
            if _is_group(field):
                yield from field.annotation.names(f"{prefix}{name}.")  # type: ignore[union-attr]
            else:
                yield f"{prefix}{name}", field

    @classmethod
    def why_absent(cls, name: str) -> str | None:
        """Why there is no setting with this last name, here or in a group; None where nothing is said of it."""
        groups = (field.annotation for field in cls.model_fields.values() if _is_group(field))
        found = (group.why_absent(name) for group in groups)  # type: ignore[union-attr]
        return cls.absent.get(name) or next(filter(None, found), None)

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
        _refuse_huge(values, "", place)
        try:
            return cls.model_validate(dict(values))
        except ValidationError as error:
            first = error.errors()[0]
            name = ".".join(str(part) for part in first["loc"])
            near = _nearest_choice(first)
            meaning = describe(cls, name)
            meant = f"'{name}' means: {meaning}" if meaning else None
            raise InputError(
                f"{place}: {_fault(name, first)}", did_you_mean(near) if near else meant
            ) from None

    def changed(self, assignments: Sequence[str]) -> Self:
        """These settings with `key=value` assignments applied, as `--set` gives them; values are YAML."""
        values = self.model_dump()
        for assignment in assignments:
            key, equals, text = assignment.partition("=")
            if not equals:
                raise InputError(
                    f"--set {_cut(assignment)}: there is no '='", "write it as --set train.max_steps=500"
                )
            group = values
            *path, last = key.strip().split(".")
            for part in path:
                group = group.setdefault(part, {})
                if not isinstance(group, dict):
                    raise InputError(
                        f"--set {_cut(assignment)}: '{part}' is a setting, not a group of settings"
                    )
            group[last] = _scalar(text, assignment)
        return type(self).of(values, "--set")

    def to_yaml(self) -> str:
        """The settings as YAML that `from_file` reads back to equal settings."""
        return yaml.safe_dump(self.model_dump(mode="json"), sort_keys=False, allow_unicode=True)

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
    """YAML of mappings, lists, text, numbers, true, false and null; a date is text.

    Depth and size are bounded, and an alias counts as all that it stands for: a few lines of aliases of aliases
    would else become more than any memory holds.
    """

    yaml_constructors: ClassVar[dict[Any, Any]] = {
        tag: build
        for tag, build in yaml.SafeLoader.yaml_constructors.items()
        if tag is None or tag.rpartition(":")[2] in ("null", "bool", "int", "float", "str", "seq", "map")
    }
    yaml_implicit_resolvers = {  # noqa: RUF012  # PyYAML's way to say it
        first: [(tag, pattern) for tag, pattern in known if not tag.endswith(":timestamp")]
        for first, known in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self._depth = 0
        self._sizes: dict[int, int] = {}

    def compose_node(self, parent: Any, index: Any) -> Any:
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        mark: Any = event.start_mark
        self._depth += 1
        if self._depth > _DEEPEST:
            raise yaml.MarkedYAMLError(problem=_TOO_DEEP, problem_mark=mark)
        node = super().compose_node(parent, index)
        self._depth -= 1
        if not isinstance(event, yaml.AliasEvent):
            self._sizes[id(node)] = 1 + sum(self._sizes[id(child)] for child in _children(node))
        elif id(node) not in self._sizes:  # an alias of what it is in
            raise yaml.MarkedYAMLError(problem=_TOO_DEEP, problem_mark=mark)
        if self._sizes[id(node)] > _MOST_NODES:
            raise yaml.MarkedYAMLError(problem=_TOO_MANY, problem_mark=mark)
        _refuse_twice(node)
        return node


def _refuse_twice(node: Any) -> None:
    """YAML's error where a mapping has a name twice: the first value would be lost."""
    seen: set[str] = set()
    for key, _ in node.value if isinstance(node, yaml.MappingNode) else ():
        if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
            if key.value in seen:
                raise yaml.MarkedYAMLError(problem=_TWICE, problem_mark=key.start_mark)
            seen.add(key.value)


def _children(node: Any) -> list[Any]:
    if isinstance(node, yaml.MappingNode):
        return [child for pair in node.value for child in pair]
    return list(node.value) if isinstance(node, yaml.SequenceNode) else []


def _parsed(text: str) -> Any:
    """YAML's value of a text. Raises yaml.YAMLError, and no other error whatever the text."""
    try:
        return _Loader(text).get_single_data()
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise yaml.YAMLError(str(error)) from None  # of tags that do not fit, and of numbers without end


def read_yaml(path: str | Path) -> dict[str, Any]:
    """A YAML file that holds one mapping; faults are `InputError`s with file and line."""
    try:
        if Path(path).stat().st_size > _LARGEST_FILE:
            raise InputError(f"{path}: is larger than any recipe", "name a recipe, as those in recipes/")
        values = _parsed(Path(path).read_bytes().decode("utf-8"))
    except FileNotFoundError:
        raise absent(path) from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({(error.strerror or str(error)).lower()})") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: byte {error.start} is not UTF-8", "save the recipe as UTF-8") from None
    except yaml.YAMLError as error:
        mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
        line = f":{mark.line + 1}" if mark else ""
        if problem == _TWICE:
            raise InputError(f"{path}{line}: {_TWICE}", "remove one of the two") from None
        said = f" ({problem})" if problem in (_TOO_DEEP, _TOO_MANY) else ""
        raise InputError(
            f"{path}{line}: this is not YAML{said}", "compare it with a recipe in recipes/"
        ) from None
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise InputError(
            f"{path}: a recipe is a mapping of settings, not {type(values).__name__}",
            "compare it with a recipe in recipes/",
        )
    return values


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


def _scalar(text: str, assignment: str) -> Any:
    try:
        value = _parsed(text)
    except yaml.YAMLError:
        raise InputError(
            f"--set {_cut(assignment)}: the value is not YAML", "quote it: --set 'key=\"value\"'"
        ) from None
    if text.strip() == "none":  # as --help shows it; a column of this name is quoted
        return None
    if isinstance(value, str) and _EXPONENT.fullmatch(text.strip()):  # YAML 1.1 reads 1e-4 as text
        return float(value)
    if isinstance(value, str) and _NUMBERS.fullmatch(text.strip()):  # as --help shows them: (0.8, 0.1, 0.1)
        return [float(number) for number in text.strip().strip("()").split(",")]
    return value


def _refuse_unknown(
    cls: type[Settings], values: Mapping[str, Any], prefix: str, place: str, top: type[Settings]
) -> None:
    """InputError for the first name that `cls`, the group of `top` at this prefix, does not have."""
    for key, value in values.items():
        field = cls.model_fields.get(key)
        if field is None:
            full = f"{prefix}{key}"[:100]
            what = "group of settings" if isinstance(value, Mapping) else "setting"
            meant = cls.absent.get(key) or _meant(cls, full, value, prefix, top)
            raise InputError(f"{place}: there is no {what} '{full}'", meant)
        if _is_group(field) and isinstance(value, Mapping):
            _refuse_unknown(field.annotation, value, f"{prefix}{key}.", place, top)  # type: ignore[arg-type]


def _meant(cls: type[Settings], full: str, value: Any, prefix: str, top: type[Settings]) -> str:
    """What to write instead of a name that is not there."""
    names = [name for name, _ in top.names()]
    groups = [name for name, field in cls.model_fields.items() if _is_group(field)]
    if isinstance(value, Mapping) and groups:
        near = difflib.get_close_matches(full, groups, n=1)
        inner = nearest(f"{near[0] if near else full}.{next(iter(value), '')}", names)
        near = [name for name in inner if not near or name.startswith(f"{near[0]}.")] or near
        listed = f"the groups are: {', '.join(groups)}"
        return f"{did_you_mean(near)} {listed}" if near else listed
    if near := nearest(full, names):
        return did_you_mean(near)
    here = [name for name in names if name.startswith(prefix)]
    if len(here) <= _FEW or not (groups or prefix):
        return f"known here: {', '.join(here)}"
    if not prefix:
        return f"the groups are: {', '.join(groups)}; --help lists their settings"
    return f"--help lists the settings of '{prefix[:-1]}'"


def _refuse_huge(value: Any, name: str, place: str) -> None:
    """InputError for a whole number that nothing here can count to."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            _refuse_huge(inner, f"{name}.{key}" if name else str(key), place)
    elif isinstance(value, list | tuple):
        for inner in value:
            _refuse_huge(inner, name, place)
    elif isinstance(value, int) and abs(value) >= _LARGEST_INT:
        raise InputError(f"{place}: setting '{name}': the number is too large", "give one below 2^63")


def _cut(text: str) -> str:
    """What somebody wrote, as a message shows it."""
    return text if len(text) <= _LONGEST_SHOWN else f"{text[: _LONGEST_SHOWN - 1]}…"
