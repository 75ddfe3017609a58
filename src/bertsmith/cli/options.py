"""Types of options, and the options that several commands share."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import rich_click as click

from bertsmith.errors import InputError, option, render

if TYPE_CHECKING:
    from bertsmith.inference.model import Model
    from bertsmith.io.documents import Reading

_INTEGER_LIMIT = 2**63
Decorator = Callable[[Any], Any]


class PathName(click.Path):
    """A path, or a name such as that of a published model. A shell completes the names of files."""

    def __init__(self, name: str) -> None:
        super().__init__(readable=False)  # the commands check the path
        self.name = name

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not str(value).strip():
            self.fail("the name is empty", param, ctx)
        return super().convert(value, param, ctx)


FILE, DIR, RUN, MODEL = PathName("file"), PathName("dir"), PathName("run"), PathName("dir|name")


class Integer(click.IntRange):
    """An integer in a range; the help leaves out the limit that all integers have."""

    name = "n"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        number: int = super().convert(value, param, ctx)
        if abs(number) >= _INTEGER_LIMIT:
            self.fail("the number is too large: give one below 2^63", param, ctx)
        return number


class Number(click.FloatRange):
    """A finite number in a range; click's ranges include nan."""

    name = "x"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number: float = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value!r} is not a finite number", param, ctx)
        return number


POSITIVE = Number(0, min_open=True)
RATE = Number(0, 10, min_open=True)


class Fraction(click.ParamType):  # type: ignore[type-arg]
    """A fraction between 0 and 1, written 0.01 or 1%."""

    name = "fraction"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        text = str(value).strip()
        try:
            fraction = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
        except ValueError:
            fraction = math.nan
        if not 0 <= fraction < 1:
            self.fail(f"{value!r} is not between 0 and 1; write 0.01 or 1%", param, ctx)
        return fraction


class Size(click.ParamType):  # type: ignore[type-arg]
    """A number of bytes, written 512MB, 2GB, 1.5GiB, or 800000000."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        from pydantic import ByteSize, TypeAdapter, ValidationError

        try:
            size = int(TypeAdapter(ByteSize).validate_python(str(value).strip()))
        except ValidationError:
            size = 0
        if not size:
            self.fail(f"{value!r} is not a size; write 512MB or 2GB", param, ctx)
        return size


class SettingOption(click.RichOption):
    """An option that stands for `--set NAME=VALUE`; its value is passed in the argument `settings`."""

    def __init__(
        self, flags: Sequence[str], *, setting: str, is_argument: bool = False, **attributes: Any
    ) -> None:
        """Create the option.

        Args:
            flags: As click has them.
            setting: The dotted name of the setting.
            is_argument: Pass the value in an argument of its own instead.
            attributes: As click has them.
        """
        super().__init__(flags, **attributes)
        self.setting, self.is_argument = setting, is_argument


def split_names(context: click.Context, param: click.Parameter, value: str | None) -> list[str] | None:
    """Callback of options with names that are separated by commas."""
    return None if value is None else [name.strip() for name in value.split(",")]


def parse_settings(context: click.Context, param: click.Parameter, values: tuple[str, ...]) -> dict[str, Any]:
    """Callback of `--set NAME=VALUE`: return typed values by name."""
    if not values:
        return {}
    from bertsmith.settings import parse_assignment

    return dict(map(parse_assignment, values))


def combine(*options: Decorator, panel: str | None = None) -> Decorator:
    """Return a decorator that adds several options, in the order of the help, in a panel."""

    def decorate(command: Any) -> Any:
        for add_option in reversed(options):
            command = add_option(command)
            if panel is not None:
                vars(command)["__click_params__"][-1].panel = panel
        return command

    return decorate


def choice(flag: str, *choices: str, default: str | None, help: str) -> Decorator:
    """Return the decorator for an option with a choice of values."""
    return click.option(flag, type=click.Choice(choices), default=default, help=help)


def setting(flag: str, name: str, **attributes: Any) -> Decorator:
    """Return the decorator for an option that stands for a setting."""
    return click.option(flag, cls=SettingOption, setting=name, **attributes)


files = click.argument("files", nargs=-1, required=True, type=FILE)
model = click.argument("model", type=MODEL)
run = click.argument("run", type=RUN)
texts = click.argument("texts", nargs=-1)
as_json = click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON document.")
html = click.option("--html", type=FILE, help="Also write the report as an HTML page, with all details.")
resume = click.option("--resume", is_flag=True, help="Continue what is in the output folder.")
output_dir = click.option("--output-dir", type=DIR, required=True, help="Folder to write, empty or new.")
base_model = click.option(
    "--model", type=MODEL, required=True, help="Model to start from: a run, a folder, or a published name."
)
recipe = click.option("--recipe", type=FILE, help="A YAML file with settings; --set overrides it.")
labeled = click.option("--data", required=True, type=FILE, help="Labeled examples, in a format of the task.")
language = click.option("--language", metavar="CODE", help="Language, such as en; default: detected.")
max_ram = click.option("--max-ram", type=Size(), help="Memory limit, such as 512MB or 2GB.")
id_column = click.option(
    "--id-column", metavar="NAME", help="Column of --input with the ids; default: _id, id, or the line."
)
text_column = click.option("--text-column", metavar="NAME", help="Column of the texts; default: text.")
encoding = click.option("--encoding", metavar="NAME", help="Encoding of files that are not UTF-8.")
settings = click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="NAME=VALUE",
    callback=parse_settings,
    help="Change a setting; can be repeated.",
)
run_options = combine(settings, resume, as_json)
threads = setting("--threads", "train.threads", type=Integer(1, 1024), help="Number of computation threads.")
seed = setting("--seed", "train.seed", type=Integer(0), help="Seed of all random numbers.")
random_seed = click.option("--seed", type=Integer(0), default=0, help="Seed of all random numbers.")
batch_size = setting(
    "--batch-size", "train.batch_size", type=Integer(1), help="Sequences, or examples of a task, per batch."
)
device = setting(
    "--device", "train.device", metavar="NAME", help="cpu, cuda, or cuda:1; default: a GPU if there is one."
)
minutes = setting(
    "--minutes",
    "train.max_minutes",
    is_argument=True,
    type=POSITIVE,
    help="Time limit of the run, including measurements, evaluations, and checkpoints; with --resume, earlier "
    "parts count.",
)
training = combine(
    setting("--epochs", "train.num_train_epochs", type=POSITIVE, help="Passes over the data."),
    setting("--steps", "train.max_steps", type=Integer(1), help="Number of updates."),
    batch_size,
    setting("--learning-rate", "train.learning_rate", type=RATE, help="Peak learning rate, such as 1e-4."),
    seed,
    threads,
    panel="Training",
)
"""Options for the training settings that are changed most."""
reading = combine(
    choice(
        "--documents", "blank-line", "file", "line", default="blank-line", help="Document end in plain text."
    ),
    click.option(
        "--text-column", default="text", metavar="NAME", help="Column or key of the text in tables and JSON."
    ),
    click.option("--delimiter", metavar="C", help="Column separator of .csv and .tsv; default: detected."),
    click.option("--encoding", metavar="NAME", help="Encoding of files that are not UTF-8, such as cp1252."),
    panel="Reading files",
)
"""Options that control how files become documents."""
model_device = click.option("--device", default="auto", metavar="NAME", help="cpu, cuda, or auto.")
precision = choice(
    "--precision",
    "auto",
    "fp32",
    "bf16",
    "int8",
    default="auto",
    help="Precision of the encoder. auto: as in training, or bf16 where it is faster. int8 and bf16 are compared "
    "with fp32 first.",
)
inference = combine(model_device, precision, as_json)
"""Options of the commands that compute with a finished model."""


def pop_reading(arguments: dict[str, Any]) -> Reading:
    """Remove the values of `reading` from a command's arguments and return them."""
    from bertsmith.io.documents import Reading

    documents = arguments.pop("documents").replace("-", "_")
    return Reading(documents, *(arguments.pop(name) for name in ("text_column", "delimiter", "encoding")))


def load_model(path: str, device: str, precision: str = "auto") -> Model:
    """Load a finished model for a command that only reads it."""
    from importlib import import_module

    from bertsmith import hardware

    with hardware.import_without_gc():
        import_module("bertsmith.inference.model")
    from bertsmith.inference.model import load

    hardware.configure_process()
    return load(path, device=device, precision=precision, mapped=True)


def require(names: Sequence[str], arguments: dict[str, Any], needed: str) -> None:
    """Raise an error if options are set that have no effect without another one."""
    for name in names:
        if arguments[name] not in (None, (), False) and not arguments[needed]:
            message = f"{option(name)} has no effect without {option(needed)}"
            raise click.UsageError(render(message, "command line"))


def size_of(files: Sequence[str]) -> int | None:
    """Return the bytes on disk of files; None if a file is compressed or missing (reading reports that)."""
    from bertsmith.io.compression import is_compressed
    from bertsmith.io.folders import find_files

    try:
        paths = find_files(files)
        return None if any(map(is_compressed, paths)) else sum(os.path.getsize(str(path)) for path in paths)
    except (InputError, OSError, ValueError):
        return None


def check_texts(texts: Sequence[str], file: str | None) -> None:
    """Raise an error if a command has no texts, or texts from two sources."""
    if texts and file:
        raise click.UsageError("both texts and a file are given; give one of them")
    if not texts and not file and sys.stdin.isatty():
        raise click.UsageError("there is no text; give texts, --input FILE, or lines on standard input")


def read_lines(texts: Sequence[str]) -> list[tuple[str, str]]:
    """Return texts of the command line, or else the lines of standard input, with their locations."""
    from bertsmith.inference.text_input import texts_of_lines

    if texts:
        return [(f"text:{i}", text) for i, text in enumerate(texts, start=1)]
    return list(texts_of_lines(sys.stdin.buffer, "standard input"))
