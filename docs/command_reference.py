"""A Sphinx directive that describes verbs from the code: `{command} pretrain`, `{command} data check`."""

from __future__ import annotations

import inspect

import click
from docutils import nodes
from docutils.parsers.rst import Directive
from sphinx.application import Sphinx

from bertsmith.cli.main import bertsmith
from reference_table import table


class Command(Directive):
    """A verb as its --help has it: usage, what it does, examples as code, options as a table."""

    required_arguments = 1
    final_argument_whitespace = True

    def run(self) -> list[nodes.Node]:
        """The description."""
        context, command = _found(self.arguments[0].split())
        usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
        found: list[nodes.Node] = [nodes.literal_block(usage, usage, language="text")]
        for paragraph in inspect.cleandoc(command.help or "").split("\n\n"):
            found += _paragraph(paragraph)
        records = [record for p in command.get_params(context) if (record := p.get_help_record(context))]
        return [*found, table(("option", "meaning"), [record for record in records if record[1]])]


def _found(words: list[str]) -> tuple[click.Context, click.Command]:
    """The command that these words name, and its context."""
    command: click.Command = bertsmith
    context = click.Context(command, info_name="bertsmith")
    for word in words:
        assert isinstance(command, click.Group)
        inner = command.get_command(context, word)
        assert inner is not None, word
        context, command = click.Context(inner, info_name=word, parent=context), inner
    return context, command


def _paragraph(text: str) -> list[nodes.Node]:
    """A paragraph; where click is told to keep its lines, a heading and an indented block of code."""
    if not text.startswith("\b"):
        return [nodes.paragraph("", " ".join(text.split()))]
    heading, *lines = text.removeprefix("\b\n").splitlines()
    code = inspect.cleandoc("\n".join(lines))
    return [nodes.paragraph("", heading), nodes.literal_block(code, code, language="bash")]


def setup(app: Sphinx) -> dict[str, bool]:
    """What Sphinx calls."""
    app.add_directive("command", Command)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
