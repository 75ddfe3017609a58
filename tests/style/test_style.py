"""Names and docstrings follow the glossary: counted per package, and the counts may only fall."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import bertsmith

SOURCE = Path(bertsmith.__file__).parent
VAGUE_NAMES = frozenset(
    [
        "found",
        "told",
        "said",
        "asked",
        "made",
        "kept",
        "apart",
        "together",
        "beside",
        "whole",
        "lent",
        "left",
        "sought",
        "learnt",
        "settled",
        "outcome",
        "vote",
        "here",
        "own",
        "given",
        "chosen",
        "some",
        "known",
        "wanted",
        "tell",
    ]
)
BAD_OPENING = re.compile(r"(What|Where|Whether|Of|How|As|Those|That|Both|Who)\b")
ERRORS = ("InputError", "MachineError", "Diverged")

REMAINING: dict[str, int] = {}
"""Packages that are not rewritten yet, with the number of their violations; lower a count when it falls."""


def package_of(path: Path) -> str:
    """Return the package of a file, or the file's name for a module at the top."""
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def names_of(node: ast.AST) -> Iterator[str]:
    """Yield the identifiers that a node defines."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        arguments = node.args
        yield node.name
        yield from (a.arg for a in [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs])
    elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        yield node.id


def documented_names(docstring: str, section: str) -> Iterator[str]:
    """Yield the names that a section of a Google-style docstring describes."""
    match = re.search(rf"^{section}:\n((?: +.*\n?|\n)+)", docstring, re.MULTILINE)
    for line in match[1].split("\n") if match else []:
        if entry := re.match(r" {4}\*{0,2}(\w+(?:, \w+)*)(?: \(.*?\))?:", line):
            yield from entry[1].split(", ")


def missing_names(node: ast.AST, docstring: str) -> Iterator[str]:
    """Yield the documented parameters and attributes that a function or class does not have."""
    if isinstance(node, ast.FunctionDef):
        parameters = {argument.arg for argument in ast.walk(node.args) if isinstance(argument, ast.arg)}
        yield from (name for name in documented_names(docstring, "Args") if name not in parameters)
    elif isinstance(node, ast.ClassDef):
        attributes = {inner.attr for inner in ast.walk(node) if isinstance(inner, ast.Attribute)}
        attributes |= {name for inner in ast.walk(node) for name in names_of(inner)}
        yield from (name for name in documented_names(docstring, "Attributes") if name not in attributes)


def violations(tree: ast.AST) -> Iterator[str]:
    """Yield a line for each vague name, wrong docstring, and error without a code."""
    for node in ast.walk(tree):
        line = getattr(node, "lineno", 1)
        yield from (f"{line}: name {name}" for name in names_of(node) if name.strip("_") in VAGUE_NAMES)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module):
            docstring = ast.get_docstring(node)
            if docstring and BAD_OPENING.match(docstring):
                yield f"{line}: docstring {docstring.split(maxsplit=4)[:4]}"
            yield from (f"{line}: documented {name}" for name in missing_names(node, docstring or ""))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ERRORS:
            code = node.args[0] if len(node.args) == 2 else None
            if not isinstance(code, ast.Constant) or not re.fullmatch("[a-z0-9_]+", str(code.value)):
                yield f"{line}: {node.func.id} without a code"


def violations_by_package() -> dict[str, list[str]]:
    """Return the violations of each package that has some."""
    by_package: dict[str, list[str]] = {}
    for path in sorted(SOURCE.rglob("*.py")):
        lines = [
            f"{path.relative_to(SOURCE)}:{violation}"
            for violation in violations(ast.parse(path.read_text(encoding="utf-8")))
        ]
        if lines:
            by_package.setdefault(package_of(path), []).extend(lines)
    return by_package


def test_violations_of_the_style_only_become_fewer() -> None:
    by_package = violations_by_package()
    counts = Counter({package: len(lines) for package, lines in by_package.items()})
    for package, lines in by_package.items():
        assert counts[package] <= REMAINING.get(package, 0), "\n".join(lines)
    assert {package: counts[package] for package in REMAINING} == REMAINING, "lower the counts of REMAINING"


@pytest.mark.parametrize(
    "source",
    [
        "found = 1",
        "def told(): ...",
        "def f(given): ...",
        'def f():\n    """What it does."""',
        'raise InputError("a.csv:3: it is wrong", "mend it")',
        "raise InputError(code, message)",
        'def f(text):\n    """Return it.\n\n    Args:\n        txt: The text.\n    """',
        'class A:\n    """A thing.\n\n    Attributes:\n        size: Its size.\n    """',
    ],
)
def test_the_check_finds_violations(source: str) -> None:
    assert len(list(violations(ast.parse(source)))) == 1


def test_the_check_accepts_plain_code() -> None:
    source = 'def load(path):\n    """Return the rows."""\n    raise InputError("missing", "no such file")'
    assert not list(violations(ast.parse(source)))
