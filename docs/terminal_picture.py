"""Runs a command as in a terminal of 80 columns and draws what it printed: `python docs/terminal_picture.py
PICTURE.svg COMMAND …`."""

from __future__ import annotations

import os
import pty
import re
import shlex
import subprocess
import sys

from rich.console import Console
from rich.text import Text

_COLUMNS = 84


def main() -> None:
    """Run, draw, and print the same as text."""
    picture, *command = sys.argv[1:]
    printed = as_in_a_terminal(command)
    console = Console(record=True, width=_COLUMNS, file=open(os.devnull, "w"))  # noqa: SIM115  (to the end)
    console.print(Text(f"$ {shlex.join(command)}", style="bold"))
    console.print(Text.from_ansi(printed))
    svg = re.sub(
        r"@font-face \{.*?\}", "", console.export_svg(title="bertsmith"), flags=re.S
    )  # fetched from elsewhere
    with open(picture, "w", encoding="utf-8") as file:
        file.write(svg.replace("Fira Code, monospace", "monospace"))
    print(Text.from_ansi(printed).plain)


def as_in_a_terminal(command: list[str]) -> str:
    """What the command writes to stdout, which is a terminal to it; its notes go where ours go."""
    ours, its = pty.openpty()
    environment = os.environ | {"COLUMNS": str(_COLUMNS), "LINES": "60", "TERM": "xterm-256color"}
    with subprocess.Popen(command, stdout=its, env=environment) as running:
        os.close(its)
        parts = []
        while True:
            try:
                part = os.read(ours, 1 << 16)
            except OSError:  # the other end was closed
                break
            if not part:
                break
            parts.append(part)
    if running.returncode:
        sys.exit(running.returncode)
    return b"".join(parts).decode().replace("\r\n", "\n")


if __name__ == "__main__":
    main()
