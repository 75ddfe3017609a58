"""The corpus that is always there: the English documentation which this Python installation carries.

Docstrings are read from source files by their syntax trees; nothing is imported and no code runs. A document
is a module; its lines are paragraphs of prose. Examples, tables, directives, headings and addresses go. What a
library requires is parsed by `packaging`, the standard's own reader.
"""

from __future__ import annotations

import ast
import inspect
import re
import sysconfig
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from bertsmith.io.files import Document

STANDARD = "python"  # the name under which the standard library goes
_ASIDE = {"test", "tests", "testing", "_vendor", "_vendored", "vendor", "site-packages", "externals"}
_FEWEST_WORDS = 5
_LETTERS = 0.78  # of the characters that are not blank: below it a paragraph is code, a list or a formula
# Libraries written in C hand their docstrings over in calls of these functions.
_HANDED_OVER = {"add_newdoc", "add_docstr"}


@dataclass(frozen=True)
class Library:
    """An installed library: its name, its version, and its source files by their paths within it, sorted."""

    name: str
    version: str
    files: tuple[tuple[str, Path], ...]


def installed(root: str = "bertsmith") -> list[Library]:
    """The standard library, then what `root` requires, and what that requires, as far as it is installed.

    `root` itself is left out, so that the corpus does not change with our own source. Sorted by name.
    """
    found: dict[str, Distribution] = {}
    waiting = _requirements(root)
    while waiting:
        name = waiting.pop()
        if name in found or name == canonicalize_name(root):
            continue
        try:
            found[name] = distribution(name)
        except PackageNotFoundError:
            continue
        waiting += _requirements(name)
    return [_standard_library(), *(_library(name, found[name]) for name in sorted(found))]


def documents(
    libraries: Sequence[Library], progress: Callable[[int], None] = lambda done: None
) -> Iterator[Document]:
    """A document a module that holds prose; its place is `library:path`. Same sources, same documents.

    A paragraph that stood before, in whatever library, is left out (compared by its letters alone).
    `progress` hears the number of source files read so far.
    """
    seen: set[str] = set()
    done = 0
    for library in libraries:
        for path, file in library.files:
            progress(done := done + 1)
            for place, texts in _texts(f"{library.name}:{path}", file):
                kept = [p for text in texts for p in paragraphs(text) if _is_new(p, seen)]
                if kept:
                    yield Document("\n".join(kept), place)


def library_of(document: Document) -> str:
    """The name of the library that a document comes from."""
    return document.place.partition(":")[0]


def _requirements(name: str) -> list[str]:
    try:
        lines = distribution(name).requires or []
    except PackageNotFoundError:
        return []
    needed: list[str] = []
    for line in lines:
        # Other conditions than extras do not matter: what they rule out is not installed. What the installers of
        # old took for a requirement and the standard does not, is left out.
        with suppress(InvalidRequirement):
            one = Requirement(line)
            if "extra ==" not in str(one.marker):
                needed.append(canonicalize_name(one.name))
    return needed


def _library(name: str, found: Distribution) -> Library:
    listed = [str(f) for f in found.files or []]
    files = [(path, Path(str(found.locate_file(path)))) for path in listed if _is_wanted(path)]
    return Library(name, found.version, tuple(sorted(files)))


def _standard_library() -> Library:
    root = Path(sysconfig.get_paths()["stdlib"])
    files = [(file.relative_to(root).as_posix(), file) for file in root.rglob("*.py")]
    version = sysconfig.get_python_version()
    return Library(STANDARD, version, tuple(sorted((p, f) for p, f in files if _is_wanted(p))))


def _is_wanted(path: str) -> bool:
    return path.endswith(".py") and ".." not in path and _ASIDE.isdisjoint(path.split("/")[:-1])


def _texts(place: str, file: Path) -> Iterator[tuple[str, list[str]]]:
    """Each document of a source file: its place, its docstrings in order. Unreadable files have none."""
    try:
        source = file.read_bytes()
        if b'"""' not in source and b"'''" not in source and "pydoc_data" not in place:
            return  # a syntax tree costs much more than this look
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of other people's escapes
            tree = ast.parse(source)
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return
    if place.endswith("pydoc_data/topics.py"):
        yield from ((f"{place}#{name}", [text]) for name, text in _topics(tree))
    else:
        yield place, list(_docstrings(tree))


def _topics(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """The chapters of the language reference that help() shows: entries of one dictionary of strings."""
    for table in ast.walk(tree):
        if isinstance(table, ast.Dict):
            for key, value in zip(table.keys, table.values, strict=True):
                if isinstance(key, ast.Constant) and isinstance(value, ast.Constant):
                    yield str(key.value), str(value.value)


def _docstrings(tree: ast.Module) -> Iterator[str]:
    # Only bodies of modules, classes, functions and `if`s are walked, in order: expressions hold none.
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text:
                yield text
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            yield from _handed_over(node.value)
        waiting += reversed(_bodies(node))


def _bodies(node: ast.AST) -> list[ast.AST]:
    return [
        inner for name in ("body", "orelse", "handlers", "finalbody") for inner in getattr(node, name, [])
    ]


def _handed_over(call: ast.Call) -> Iterator[str]:
    name = getattr(call.func, "id", getattr(call.func, "attr", ""))
    if name in _HANDED_OVER and call.args:
        strings = [
            inner.value
            for inner in ast.walk(call.args[-1])
            if isinstance(inner, ast.Constant) and isinstance(inner.value, str)
        ]
        if strings:
            yield inspect.cleandoc(max(strings, key=len))


# What reStructuredText puts around words.
_ROLE = re.compile(r":[\w:+-]+:`(?:~[^`<]*\.)?[~!]?([^`<]+?)(?:\s*<[^`>]*>)?`")
_LINK = re.compile(r"`([^`<]+?)\s*<[^`>]*>`_*")
_ADDRESS = re.compile(r"<?\b(?:https?|ftp)://\S+|\bwww\.\S+")
_QUOTED = re.compile(r"`+([^`]*)`+_*")
_EMPHASIS = re.compile(r"(?<!\w)(\*{1,2})(?=\S)([^*\n]+?)(?<=\S)\1(?!\w)")
_FOOTNOTE = re.compile(r"\s*\[(?:#?\w{1,4}|\d+)\]_")
# Lines that are no prose.
_PROMPT = re.compile(r"(>>>|\.\.\.( |$)|\$ |In \[\d+\]:)")
_DIRECTIVE = re.compile(r"\.\.(\s|$)")
_PROSE_DIRECTIVE = re.compile(r"\.\. (?:note|warning|tip|important|caution|seealso|attention|hint)::\s*")
_RULE = re.compile(r"[=\-~^*#+\"'`_.:|]{3,}[=\-~^*#+\"'`_.:| ]*$")
_PARAMETER = re.compile(r"[*\w., `\\]{1,60}\s:(\s|$)")  # numpydoc: `name : type`, its meaning indented below
_FIELD = re.compile(r":(type|rtype|vartype|raises?|meta|cvar|ivar)\b[^:]*:.*$")
_NAMED = re.compile(
    r"^(?::(?:param|arg|keyword|returns?|return)\b[^:]*:|\*{0,2}\w+ \([^)]*\):|[*+•-]|\d+[.)])\s+"
)


def paragraphs(docstring: str) -> Iterator[str]:
    """The paragraphs of a docstring that are prose, each on one line without markup."""
    for lines in _blocks(docstring.expandtabs().split("\n")):
        text = _plain(" ".join(lines))
        if _is_prose(text):
            yield text


def _blocks(lines: Sequence[str]) -> Iterator[list[str]]:
    """Runs of lines that belong together: ended by a blank line, a list's next item, or less indentation."""
    block: list[str] = []
    depth = 0  # of the block's last line
    literal: int | None = None  # lines deeper than this belong to code or to a directive
    prompt = False  # within an example, which ends at a blank line
    following = [*lines[1:], ""]
    for line, after in zip(lines, following, strict=True):
        text, indent = line.strip(), len(line) - len(line.lstrip())
        if literal is not None and text and indent <= literal:
            literal = None
        prompt = bool(text) and (prompt or _PROMPT.match(text) is not None)
        note = _PROSE_DIRECTIVE.match(text)
        if text and literal is None and not note and _DIRECTIVE.match(text):
            literal = indent
        heading = _RULE.match(after.strip()) and len(after.strip()) >= 3
        prose = text and literal is None and not prompt and not heading and not _is_formal(text)
        fresh = note or _NAMED.match(text) or indent < depth
        if block and (not prose or fresh):
            yield block
            block = []
        if prose:
            block.append(_NAMED.sub("", text[note.end() if note else 0 :], count=1))
            depth = indent
            if text.endswith("::"):
                literal = indent
    if block:
        yield block


def _is_formal(text: str) -> bool:
    parameter = _PARAMETER.match(text) or _FIELD.match(text)
    return bool(parameter or _RULE.match(text) or text.startswith(("|", "+-", "@", "%")))


def _plain(text: str) -> str:
    text = _FOOTNOTE.sub("", _LINK.sub(r"\1", _ROLE.sub(r"\1", text)))
    text = _EMPHASIS.sub(r"\2", _QUOTED.sub(r"\1", _ADDRESS.sub("", text)))
    text = text.replace("::", ":")
    if not text.isprintable():
        text = "".join(c if c.isprintable() else " " for c in text)
    return " ".join(text.split())


def _is_prose(text: str) -> bool:
    bare = text.replace(" ", "")
    if text.count(" ") + 1 < _FEWEST_WORDS or "](" in text:
        return False
    return sum(map(str.isalpha, bare)) >= _LETTERS * len(bare)


def _is_new(paragraph: str, seen: set[str]) -> bool:
    letters = "".join(filter(str.isalpha, paragraph)).lower()
    if letters in seen:
        return False
    seen.add(letters)
    return True


def blank_separated_words(some: Iterable[Document]) -> int:
    """Words of all documents together, as blanks part them."""
    return sum(len(document.text.split()) for document in some)
