"""Read the English documentation in this Python installation as a corpus.

Docstrings come from the syntax trees of source files; no module is imported or run. A document is a module; its
lines are paragraphs of prose, without examples, tables, directives, headings, and addresses.
"""

from __future__ import annotations

import ast
import inspect
import re
import sysconfig
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from bertsmith.io.documents import Document

STANDARD = "python"  # the name of the standard library
_SKIPPED = {"test", "tests", "testing", "_vendor", "_vendored", "vendor", "site-packages", "externals"}
_MIN_WORDS = 5
_MIN_LETTER_RATIO = 0.78  # of the characters except for spaces, of a paragraph that is prose
# Libraries written in C pass their docstrings to these functions.
_DOCSTRING_FUNCTIONS = {"add_newdoc", "add_docstr"}


@dataclass(frozen=True)
class Library:
    """An installed library: its name, its version, and its source files with their paths within it, sorted."""

    name: str
    version: str
    files: tuple[tuple[str, Path], ...]


def installed() -> list[Library]:
    """Return the standard library, and the installed libraries that bertsmith requires, directly or not.

    They are sorted by name, without bertsmith, so that the corpus does not depend on its source.
    """
    distributions: dict[str, Distribution] = {}
    pending = ["bertsmith"]
    while pending:
        name = pending.pop()
        if name not in distributions:
            with suppress(PackageNotFoundError):
                distributions[name] = distribution(name)
                pending += _requirements(distributions[name])
    distributions.pop("bertsmith", None)
    return [_standard_library(), *(_library(name, distributions[name]) for name in sorted(distributions))]


def documents(
    libraries: Sequence[Library], progress: Callable[[int], None] = lambda done: None
) -> Iterator[Document]:
    """Yield one document for each module that contains prose, with the location `library:path`.

    Args:
        libraries: The libraries; a paragraph whose letters occurred before, in any of them, is omitted.
        progress: A function that receives the number of source files read so far.
    """
    seen: set[str] = set()
    done = 0
    for library in libraries:
        for path, file in library.files:
            progress(done := done + 1)
            for location, texts in _texts(f"{library.name}:{path}", file):
                new = [p for text in texts for p in paragraphs(text) if is_new(p, seen)]
                if new:
                    yield Document("\n".join(new), location)


def library_of(document: Document) -> str:
    """Return the name of the library that a document comes from."""
    return document.location.partition(":")[0]


def _requirements(source: Distribution) -> list[str]:
    needed: list[str] = []
    for line in source.requires or []:
        # Other conditions than extras do not matter: what they exclude is not installed. Old installers accepted
        # requirements that the standard does not allow.
        with suppress(InvalidRequirement):
            requirement = Requirement(line)
            if "extra ==" not in str(requirement.marker):
                needed.append(canonicalize_name(requirement.name))
    return needed


def _library(name: str, source: Distribution) -> Library:
    paths = [str(file) for file in source.files or []]
    files = [(path, Path(str(source.locate_file(path)))) for path in paths if _is_source(path)]
    return Library(name, source.version, tuple(sorted(files)))


def _standard_library() -> Library:
    root = Path(sysconfig.get_paths()["stdlib"])
    files = [(file.relative_to(root).as_posix(), file) for file in root.rglob("*.py")]
    version = sysconfig.get_python_version()
    return Library(STANDARD, version, tuple(sorted((p, f) for p, f in files if _is_source(p))))


def _is_source(path: str) -> bool:
    return path.endswith(".py") and ".." not in path and _SKIPPED.isdisjoint(path.split("/")[:-1])


def _texts(location: str, file: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield each document of a source file: its location and docstrings; unreadable files have none."""
    try:
        source = file.read_bytes()
        if b'"""' not in source and b"'''" not in source and "pydoc_data" not in location:
            return  # Parsing costs much more than this search.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of invalid escapes
            tree = ast.parse(source)
        docstrings = list(_docstrings(tree))
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return
    if location.endswith("pydoc_data/topics.py"):
        yield from ((f"{location}#{name}", [text]) for name, text in _topics(tree))
    else:
        yield location, docstrings


def _topics(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Yield the chapters of the language reference that help() shows: a dictionary of strings."""
    for table in ast.walk(tree):
        if isinstance(table, ast.Dict):
            for key, value in zip(table.keys, table.values, strict=True):
                if isinstance(key, ast.Constant) and isinstance(value, ast.Constant):
                    yield str(key.value), str(value.value)


def _docstrings(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        if text := ast.get_docstring(node):
            yield text
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        yield from _passed_docstrings(node.value)
    # Only bodies of modules, classes, functions, and conditions contain docstrings, not expressions.
    for name in ("body", "orelse", "handlers", "finalbody"):
        for inner in getattr(node, name, ()):
            yield from _docstrings(inner)


def _passed_docstrings(call: ast.Call) -> Iterator[str]:
    name = getattr(call.func, "id", getattr(call.func, "attr", ""))
    if name in _DOCSTRING_FUNCTIONS and call.args:
        strings = [
            inner.value
            for inner in ast.walk(call.args[-1])
            if isinstance(inner, ast.Constant) and isinstance(inner.value, str)
        ]
        if strings:
            yield inspect.cleandoc(max(strings, key=len))


# Inline markup of reStructuredText.
_ROLE = re.compile(r":[\w:+-]+:`(?:~[^`<]*\.)?[~!]?([^`<]+?)(?:\s*<[^`>]*>)?`")
_LINK = re.compile(r"`([^`<]+?)\s*<[^`>]*>`_*")
_ADDRESS = re.compile(r"<?\b(?:https?|ftp)://\S+|\bwww\.\S+")
_QUOTED = re.compile(r"`+([^`]*)`+_*")
_EMPHASIS = re.compile(r"(?<!\w)(\*{1,2})(?=\S)([^*\n]+?)(?<=\S)\1(?!\w)")
_FOOTNOTE = re.compile(r"\s*\[(?:#?\w{1,4}|\d+)\]_")
# Lines that are not prose.
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
    """Yield the paragraphs of a docstring that are prose, each on one line without markup."""
    for lines in _blocks(docstring.expandtabs().split("\n")):
        text = _plain(" ".join(lines))
        if _is_prose(text):
            yield text


def _blocks(lines: Sequence[str]) -> Iterator[list[str]]:
    """Yield paragraphs as lines; a blank line, a list item, and less indentation end one."""
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
    if text.count(" ") + 1 < _MIN_WORDS or "](" in text:
        return False
    return sum(map(str.isalpha, bare)) >= _MIN_LETTER_RATIO * len(bare)


def is_new(text: str, seen: set[str]) -> bool:
    """Return True if no text in `seen` has the same letters, ignoring case; add these letters to it."""
    letters = letters_of(text)
    if letters in seen:
        return False
    seen.add(letters)
    return True


def letters_of(text: str) -> str:
    """Return the letters of a text in lower case, which are equal for texts that differ only in form."""
    return "".join(filter(str.isalpha, text)).lower()


def count_words(documents: Iterable[Document]) -> Counter[str]:
    """Return the number of words, separated by white space, of each library."""
    counts: Counter[str] = Counter()
    for document in documents:
        counts[library_of(document)] += len(document.text.split())
    return counts
