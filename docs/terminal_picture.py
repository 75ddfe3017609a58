"""Run a command in a terminal and draw its output: `python docs/terminal_picture.py PICTURE.svg COMMAND …`."""

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
    """Draw the output, and print it as text."""
    picture, *command = sys.argv[1:]
    printed = run_in_terminal(command)
    console = Console(record=True, width=_COLUMNS, file=open(os.devnull, "w"))  # noqa: SIM115
    console.print(Text(f"$ {shlex.join(command)}", style="bold"))
    console.print(Text.from_ansi(printed))
    svg = re.sub(
        r"@font-face \{.*?\}", "", console.export_svg(title="bertsmith"), flags=re.S
    )  # browsers would download the fonts
    with open(picture, "w", encoding="utf-8") as file:
        file.write(svg.replace("Fira Code, monospace", "monospace"))
    print(Text.from_ansi(printed).plain)


def run_in_terminal(command: list[str]) -> str:
    """Return the command's output to a terminal; its stderr is that of this process."""
    parent, child = pty.openpty()
    environment = os.environ | {"COLUMNS": str(_COLUMNS), "LINES": "60", "TERM": "xterm-256color"}
    with subprocess.Popen(command, stdout=child, env=environment) as running:
        os.close(child)
        parts = []
        while True:
            try:
                part = os.read(parent, 1 << 16)
            except OSError:  # the child closed its end
                break
            if not part:
                break
            parts.append(part)
    if running.returncode:
        sys.exit(running.returncode)
    return b"".join(parts).decode().replace("\r\n", "\n")


if __name__ == "__main__":
    main()
