"""Options that several verbs share, and the list of settings that their --help prints."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
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


def command_with_settings(find: Callable[[], type[Settings]]) -> type[click.Command]:
    """A command whose --help ends with its settings: name, default, meaning. `find` imports them only then."""

    class WithSettings(click.Command):
        def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
            with formatter.section("Settings (--set NAME=VALUE)"):
                rows = [
                    (
                        name,
                        f"{field.description} [{_shown(name, field.get_default(call_default_factory=True))}]",
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
