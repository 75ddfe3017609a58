"""The embedded corpus: prose only, the same each time, read without running anything."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from bertsmith.demo.documentation import (
    STANDARD,
    Library,
    count_words,
    documents,
    installed,
    library_of,
    paragraphs,
)
from bertsmith.io.documents import Document


@pytest.fixture(scope="module")
def standard() -> list[Document]:
    return list(documents([library for library in installed() if library.name == STANDARD]))


def test_the_standard_library_alone_is_a_corpus(standard: list[Document]) -> None:
    assert count_words(standard).total() > 150_000
    assert len(standard) > 300
    assert {library_of(document) for document in standard} == {STANDARD}
    assert any(document.location == "python:pydoc_data/topics.py#assert" for document in standard)


def test_what_is_installed_holds_our_requirements_and_not_ourselves() -> None:
    libraries = installed()
    names = [library.name for library in libraries]
    assert names[0] == STANDARD
    assert names[1:] == sorted(set(names[1:]))
    assert {"torch", "numpy", "click", "pydantic-core"} <= set(
        names
    )  # pydantic-core: required by a requirement
    assert "bertsmith" not in names
    assert all(file.is_absolute() for library in libraries for _, file in library.files)


def test_it_is_prose(standard: list[Document]) -> None:
    lines = [line for document in standard for line in document.text.split("\n")]
    for line in lines:
        assert line == line.strip()
        assert len(line.split()) >= 5
        assert not line.startswith((">>>", "... ", ".. ", ":param", ":type", "|", "+--", "==="))
        assert "http://" not in line
        assert "https://" not in line


def test_no_paragraph_stands_twice(standard: list[Document]) -> None:
    letters = [
        "".join(filter(str.isalpha, line)).lower()
        for document in standard
        for line in document.text.split("\n")
    ]
    assert len(letters) == len(set(letters))


def test_a_second_reading_gives_the_same() -> None:
    (rich,) = [library for library in installed() if library.name == "rich"]
    assert list(documents([rich])) == list(documents([rich])) != []


def test_nothing_is_imported_and_nothing_runs() -> None:
    code = (
        "import sys; from bertsmith.demo.documentation import documents, installed;"
        "before = set(sys.modules);"
        "n = sum(1 for d in documents([x for x in installed() if x.name in ('rich', 'joblib')]));"
        "new = {m.partition('.')[0] for m in set(sys.modules) - before};"
        "assert n > 50; assert not new & {'this', 'antigravity', 'rich', 'joblib', 'torch', 'tkinter'}, new"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_modules_with_faults_are_passed_over(tmp_path: Path) -> None:
    sources = {
        "bad.py": b'"""This one is no Python at all, sadly."""\n(((',
        "latin.py": b'"""Bytes \xff that are not the encoding which was said."""',
        "loud.py": b'"""This module would stop the program."""\nraise SystemExit(3)\n',
        "zero.py": b'"""A zero byte \0 stands in this one."""',
        "escape.py": b'"""An escape such as \\d warns those who compile."""',
    }
    for name, source in sources.items():
        (tmp_path / name).write_bytes(source)
    files = tuple((name, tmp_path / name) for name in [*sorted(sources), "missing.py"])
    found = list(documents([Library("made", "1", files)]))
    assert [document.location for document in found] == ["made:escape.py", "made:loud.py"]


def test_docstrings_that_are_handed_over_in_a_call_are_read(tmp_path: Path) -> None:
    source = (
        "add_newdoc('numpy', 'abs',\n    '''\n    Calculate the absolute value of each element.\n    ''')\n"
        "if True:\n    add_docstr(f, r'''Computes the sine of {input} and of nothing else.'''.format(**args))\n"
        "print('''This is only printed, it documents nothing.''')\n"
    )
    (tmp_path / "m.py").write_text(source)
    (only,) = documents([Library("made", "1", (("m.py", tmp_path / "m.py"),))])
    assert only.text.split("\n") == [
        "Calculate the absolute value of each element.",
        "Computes the sine of {input} and of nothing else.",
    ]


def test_examples_tables_directives_headings_and_markup_go() -> None:
    docstring = """
Return the *first* item of a :class:`~pkg.Queue`, or ``None`` [1]_.

Parameters
----------
timeout : float, optional
    How many seconds to wait, see https://example.org/timeouts for why.

.. code-block:: python

    this is code that nobody should ever read

.. note:: Two threads may call this at once.

An example follows here::

    queue.get() and other code that is no prose

After it the text goes on as before.

>>> Queue().get(timeout=1.0)
an output that reads like a sentence would

=====  =====
A      B and some more words here
=====  =====

- a list's first item has words
- and so has the second item
:param size: The number of items to keep.

Too short, this.

x = [1, 2, 3]; y = {4: 5}; z = x[0] + y[4]
"""
    assert list(paragraphs(docstring)) == [
        "Return the first item of a Queue, or None.",
        "How many seconds to wait, see for why.",
        "Two threads may call this at once.",
        "After it the text goes on as before.",
        "a list's first item has words",
        "and so has the second item",
        "The number of items to keep.",
    ]
