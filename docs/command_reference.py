"""A Sphinx directive that describes every command from the code: `{commands}`."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import click
from docutils import nodes
from docutils.parsers.rst import Directive
from sphinx.application import Sphinx

from bertsmith.cli.main import bertsmith
from reference_table import table


class Commands(Directive):
    """A section for each command, as its --help: usage, description, examples, and a table of options."""

    def run(self) -> list[nodes.Node]:
        """Return the sections."""
        root = click.Context(bertsmith, info_name="bertsmith")
        return [_section(context) for context in _commands(root)]


def _commands(context: click.Context) -> Iterator[click.Context]:
    """Yield the context of each command below a group, in the order of --help."""
    command = context.command
    if not isinstance(command, click.Group):
        yield context
        return
    for name in command.list_commands(context):
        inner = command.get_command(context, name)
        assert inner is not None
        if not inner.hidden:
            yield from _commands(click.Context(inner, info_name=name, parent=context))


def _section(context: click.Context) -> nodes.section:
    command, path = context.command, context.command_path
    usage = " ".join([path, *command.collect_usage_pieces(context)])
    section = nodes.section("", nodes.title("", path), ids=[nodes.make_id(path)], names=[path])
    section += nodes.literal_block(usage, usage, language="text")
    for paragraph in inspect.cleandoc(command.help or "").split("\n\n"):
        section += _paragraph(paragraph)
    records = [record for p in command.get_params(context) if (record := p.get_help_record(context))]
    section += table(("option", "meaning"), [record for record in records if record[1]])
    return section


def _paragraph(text: str) -> list[nodes.Node]:
    """Return a paragraph; a heading and a block of code if click keeps the paragraph's lines."""
    if not text.startswith("\b"):
        return [nodes.paragraph("", " ".join(text.split()))]
    heading, *lines = text.removeprefix("\b\n").splitlines()
    code = inspect.cleandoc("\n".join(lines))
    return [nodes.paragraph("", heading), nodes.literal_block(code, code, language="bash")]


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directive."""
    app.add_directive("commands", Commands)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
