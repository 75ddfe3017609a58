"""Collect the messages and hints of all errors in the source.

    python tests/collect_messages.py    # writes tests/style/messages.txt

Each error is one entry: code, file, message, and hint, with `{expression}` for what the program fills in. Wording
is reviewed in this one file; other tests assert codes, locations, and arguments.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ERRORS = (
    *("InputError", "MachineError", "Diverged", "FileError", "LineError"),
    *("damaged_data_error", "corrupt_file_error", "_unsupported_error"),
)
MAX_DISTANCE = 12  # lines from the assignment of a message or hint to its error
SOURCE = Path(__file__).parents[1] / "src" / "bertsmith"
GOLDEN = Path(__file__).parent / "style" / "messages.txt"


def template(node: ast.expr) -> str:
    """Return a string expression as text with its placeholders in braces."""
    match node:
        case ast.Constant():
            return str(node.value)
        case ast.JoinedStr():
            return "".join(template(part) for part in node.values)
        case ast.FormattedValue():
            return f"{{{ast.unparse(node.value)}}}"
        case ast.BinOp(op=ast.Add()):
            return template(node.left) + template(node.right)
        case ast.IfExp():
            return f"{template(node.body)} / {template(node.orelse)}"
    return f"{{{ast.unparse(node)}}}"


def assignments(tree: ast.AST) -> Iterator[tuple[int, str, ast.expr]]:
    """Yield the line, name, and value of each assignment to variables."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            target, value = node.targets[0], node.value
            pairs = [(target, value)]
            if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
                pairs = list(zip(target.elts, value.elts, strict=False))
            yield from ((node.lineno, name.id, part) for name, part in pairs if isinstance(name, ast.Name))


def entries() -> Iterator[str]:
    """Yield an entry for each error with a code."""
    for path in sorted(SOURCE.rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        assigned = sorted(assignments(tree), key=lambda item: item[0])
        for node in ast.walk(tree):
            if not (
                isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ERRORS
            ):
                continue
            if len(node.args) != 2 or not isinstance(node.args[0], ast.Constant):
                continue
            values = {
                name: value
                for line, name, value in assigned
                if node.lineno - MAX_DISTANCE <= line < node.lineno and name in ("message", "hint")
            }
            texts = [node.args[1], *(keyword.value for keyword in node.keywords if keyword.arg == "hint")]
            message, *hints = (
                template(values.get(text.id, text) if isinstance(text, ast.Name) else text) for text in texts
            )
            header = f"{node.args[0].value} ({path.relative_to(SOURCE)})"
            yield "\n    ".join([header, message, *(hint for hint in hints if hint != "None")])


def golden() -> str:
    """Return the text of the golden file."""
    return "\n".join(sorted(entries())) + "\n"


if __name__ == "__main__":
    GOLDEN.write_text(golden(), encoding="utf-8")
