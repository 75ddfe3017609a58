"""Options that several verbs share, and the list of settings that their --help prints."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from bertsmith.cli.verbs import VerbWithSettings
from bertsmith.errors import InputError

if TYPE_CHECKING:
    from bertsmith.io.files import Reading
    from bertsmith.settings import Settings

as_json = click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON document.")


def parse_changes(context: click.Context, param: click.Parameter, values: tuple[str, ...]) -> dict[str, Any]:
    """The callback of options such as --set NAME=VALUE: typed values by name."""
    if not values:
        return {}
    from bertsmith.settings import parse_assignment

    return dict(map(parse_assignment, values))


changes = click.option(
    "--set",
    "changes",
    multiple=True,
    metavar="NAME=VALUE",
    callback=parse_changes,
    help="Change a setting; may be repeated.",
)
resume = click.option(
    "--resume", is_flag=True, help="Continue from the newest whole checkpoint of --output-dir."
)


class Share(click.ParamType):  # type: ignore[type-arg]  # generic only from click 8.4 on
    """A share between 0 and 1, written 0.01 or 1%."""

    name = "share"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        text = str(value).strip()
        try:
            share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
        except ValueError:
            self.fail(f"{value!r} is not a share; write 0.01 or 1%", param, ctx)
        if not 0 <= share < 1:
            percent = share * 100 if text.endswith("%") else share
            write = f"{percent:g}% or {percent / 100:g}" if 1 <= percent < 100 else "0.01 or 1%"
            self.fail(f"{value!r} is not between 0 and 1; write {write}", param, ctx)
        return share


class FiniteRange(click.FloatRange):
    """A finite number in a range; nan lies in every range of click's."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number: float = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value!r} is not a finite number", param, ctx)
        return number


class Size(click.ParamType):  # type: ignore[type-arg]
    """A number of bytes, written 512MB, 2GB, 1.5GiB or 800000000; an int. Read by pydantic."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        from pydantic import ByteSize, TypeAdapter, ValidationError

        try:
            size = int(
                TypeAdapter(ByteSize).validate_python(value if isinstance(value, int) else str(value).strip())
            )
        except ValidationError:
            size = 0
        if not size:
            self.fail(f"{value!r} is not a size; write 512MB or 2GB", param, ctx)
        return size


def reading_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Options that say how files become documents; `reading_of` takes their values out of the arguments."""
    for option in (
        click.option(
            "--encoding",
            metavar="NAME",
            help="The encoding of files that are not UTF-8: cp1252, utf-16, gb18030, shift_jis, …",
        ),
        click.option(
            "--delimiter",
            metavar="D",
            help="What separates the columns of a .csv or .tsv.  [default: by suffix and header]",
        ),
        click.option(
            "--text-column",
            default="text",
            show_default=True,
            metavar="NAME",
            help="The column or key that holds the text (.csv, .tsv, .parquet, .jsonl).",
        ),
        click.option(
            "--documents",
            type=click.Choice(["blank-line", "file", "line"]),
            default="blank-line",
            show_default=True,
            help="What ends a document in plain text: a blank line, the file's end, each line's end.",
        ),
    ):
        command = option(command)
    return command


def reading_of(arguments: dict[str, Any]) -> Reading:
    """The `Reading` that `reading_options` chose; takes its values out of a verb's arguments."""
    from bertsmith.io.files import Reading

    documents = arguments.pop("documents").replace("-", "_")
    text_column, delimiter = arguments.pop("text_column"), arguments.pop("delimiter")
    return Reading(documents, text_column, delimiter, arguments.pop("encoding"))


def command_with_settings(
    find: Callable[[], type[Settings]],
    sections: Callable[[], list[tuple[str, list[tuple[str, str]]]]] = list,
) -> type[click.Command]:
    """A command whose --help ends with its settings, `sections` before them; both are imported only then."""

    class WithSettings(VerbWithSettings):
        def settings(self) -> type[Settings]:
            return find()

        def sections(self) -> list[tuple[str, list[tuple[str, str]]]]:
            return sections()

    return WithSettings


# option → the setting that it is short for
_SHORT = {
    "epochs": "train.num_train_epochs",
    "steps": "train.max_steps",
    "batch_size": "train.batch_size",
    "learning_rate": "train.learning_rate",
    "seed": "train.seed",
    "threads": "train.threads",
}
_LENGTHS = (
    "train.num_train_epochs",
    "train.max_steps",
    "train.max_minutes",
    "train.max_tokens",
)  # of a training


def short_forms(command: Callable[..., Any]) -> Callable[..., Any]:
    """Options for the settings of training that are changed most; `short_of` takes their values out again."""
    for option in (
        click.option("--threads", type=click.IntRange(1), metavar="N", help="Threads of computation."),
        click.option("--seed", type=click.IntRange(0), metavar="N", help="The seed of everything random."),
        click.option(
            "--learning-rate",
            type=FiniteRange(0, 10, min_open=True),
            metavar="RATE",
            help="The highest learning rate: 1e-4, 3e-5.",
        ),
        click.option(
            "--batch-size",
            type=click.IntRange(1),
            metavar="N",
            help="Sequences, or a task's examples, in a batch.",
        ),
        click.option("--steps", type=click.IntRange(1), metavar="N", help="Updates to make."),
        click.option(
            "--epochs", type=FiniteRange(0, min_open=True), metavar="N", help="Passes over the data."
        ),
    ):
        command = option(command)
    return command


def short_of(arguments: dict[str, Any]) -> dict[str, Any]:
    """Setting → value of each of the `short_forms`, None if it was not given; taken out of a verb's arguments."""
    return {setting: arguments.pop(name) for name, setting in _SHORT.items()}


def changes_of(given: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that options give (None: not given), and those of --set."""
    refuse_twice(given, changes)
    return {**{name: value for name, value in given.items() if value is not None}, **changes}


def refuse_twice(given: Mapping[str, Any], changes: Mapping[str, Any]) -> None:
    """InputError where a setting, or how long to train, is given by an option and once more."""
    options = [name for name, value in given.items() if value is not None]
    twice = [(name, name) for name in options if name in changes]
    lengths = [name for name in _LENGTHS if name in options]
    twice += [(lengths[0], name) for name in _LENGTHS if lengths and name in (*lengths[1:], *changes)]
    for one, other in twice:
        flag = _flag(other) if other in options and other != one else f"--set {other}"
        raise InputError(
            "exclusive_options", f"{_flag(one)} and {flag} exclude each other", hint="give one of them"
        )


def _flag(setting: str) -> str:
    if setting.startswith("evaluate."):
        return f"--{setting.replace('.', '-')}"
    last = setting.rpartition(".")[2].removeprefix("max_") if setting.startswith("train.") else setting
    return "--" + last.rpartition(".")[2].replace("_", "-")


def bytes_of(files: Sequence[str]) -> int | None:
    """The size on disk of all files that some paths name; None where one is compressed, or what they name is not
    there (the reader will say so)."""
    from bertsmith.errors import InputError
    from bertsmith.io.compressed import is_compressed
    from bertsmith.io.files import find_files

    try:
        found = find_files(files)
        return None if any(map(is_compressed, found)) else sum(os.path.getsize(file) for file in found)
    except (InputError, OSError, ValueError):
        return None
