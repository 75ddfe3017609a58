"""Options that several verbs share, and the list of settings that their --help prints."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from bertsmith.files.files import Reading
    from bertsmith.settings import Settings

as_json = click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON document.")
assignments = click.option(
    "--set", "assignments", multiple=True, metavar="KEY=VALUE", help="Change a setting; may be given often."
)
resume = click.option("--resume", is_flag=True, help="Go on from the newest whole checkpoint of --out.")


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
            self.fail(f"{value!r} is not between 0 and 1; write 0.01 or 1%", param, ctx)
        return share


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
    from bertsmith.files.files import Reading

    documents = arguments.pop("documents").replace("-", "_")
    text_column, delimiter = arguments.pop("text_column"), arguments.pop("delimiter")
    return Reading(documents, text_column, delimiter, arguments.pop("encoding"))


def reading_again(reading: Reading) -> str:
    """The options that say the same to the next verb, each with a blank before it."""
    from bertsmith.files.files import Reading

    usual = Reading()
    chosen = {
        f"--{name.replace('_', '-')}": str(value).replace("_", "-") if name == "documents" else str(value)
        for name, value in asdict(reading).items()
        if value != getattr(usual, name)
    }
    return "".join(f" {option} {shlex.quote(value)}" for option, value in chosen.items())


def command_with_settings(find: Callable[[], type[Settings]]) -> type[click.Command]:
    """A command whose --help ends with its settings: name, default, meaning. `find` imports them only then."""

    class WithSettings(click.Command):
        def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
            from bertsmith.settings import may_change

            with formatter.section("Settings (--set NAME=VALUE)"):
                rows = [
                    (
                        name,
                        f"{field.description} [{_shown(name, field.get_default(call_default_factory=True))}]"
                        + ("; may change on --resume" if may_change(field) else ""),
                    )
                    for name, field in find().names()
                ]
                formatter.write_dl(rows)

    return WithSettings


def _shown(name: str, value: Any) -> str:
    if name.startswith("model."):
        return "of the preset"
    return "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def bytes_of(files: Sequence[str]) -> int:
    """The size of files on disk together; files that are missing count nothing (the reader will say so)."""
    return sum(os.path.getsize(file) for file in files if os.path.isfile(file))
