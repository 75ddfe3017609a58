"""What tokenizers make of the same text, side by side: pieces per word, unknowns, coverage by script, pieces used.

One pass in bounded memory; what is counted, and how, is in `tokens.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bertsmith.corpus.checks.tokens import KEPT, Tally, Words, settle
from bertsmith.errors import InputError
from bertsmith.formatting import counted, percent
from bertsmith.io.files import Notes, Reading, find_files, read_documents
from bertsmith.tokenizer.tokenizer import Tokenizer

_SLICE = 1 << 20  # characters encoded at a time
MANY_UNKNOWN = 0.005  # of the words: a tokenizer that does not know more is not judged by its pieces


def measure(
    files: Sequence[str | Path],
    tokenizers: Mapping[str, Tokenizer],
    *,
    reading: Reading = Reading(),  # noqa: B008  # frozen
    limit: int | None = None,
    listed: int = 20,
    progress: Callable[[int], None] | None = None,
) -> dict[str, Any]:
    """Compare tokenizers, by name, on the text of some files; returns the report, a document of plain values.

    `text` tells what was read, `tokenizers` what each made of it (shares are between 0 and 1), `order` their names
    from the best on (see `ranked`), `notes` what to know. limit: bytes of text (UTF-8) to read, shared out over
    the files from their beginnings; None: all. listed: entries a list has at most. progress hears the bytes of
    text done so far.

    Raises `InputError` without files or tokenizers, and what `read_documents` raises.
    """
    if not tokenizers:
        raise InputError("there is no tokenizer to inspect", "name a tokenizer's folder")
    if not files:
        raise InputError("there is no text to inspect the tokenizers on", "name some files with --text")
    text = Words()
    tallies = {name: Tally(tokenizer) for name, tokenizer in tokenizers.items()}
    left_out = Notes()
    found = find_files(files, left_out)
    cut: list[str] = []
    for lines in _slices(found, reading, limit, cut, left_out):
        text.add(lines)
        for tally in tallies.values():
            tally.add(lines)
        if text.is_full:
            settle(text, tallies.values())
        if progress is not None:
            progress(text.bytes)
    settle(text, tallies.values())
    if not text.bytes:
        raise InputError(f"{found[0]}:1: there is no text in the files", "check how they were made")
    characters = text.counted()
    rows = {name: tally.summary(text, characters, listed) for name, tally in tallies.items()}
    for row in rows.values():
        row["many_unknown"] = row["unknown_word_share"] > MANY_UNKNOWN
    return {
        "files": [str(file) for file in found],
        "text": text.summary(cut),
        "tokenizers": rows,
        "order": ranked(rows),
        "notes": [*_notes(cut, text.bytes, tallies.values()), *_unknown(rows), *left_out.sentences()],
    }


def ranked(rows: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Names of tokenizers, the best first: those that know all but 0.5 % of the words, by their pieces per word;
    then the others, by the share of the words that they do not know."""

    def key(name: str) -> tuple[float, float]:
        row = rows[name]
        lost = row["unknown_word_share"]
        return (lost if lost > MANY_UNKNOWN else 0.0, row["pieces_per_word"] or float("inf"))

    return sorted(rows, key=key)


def _slices(
    files: Sequence[str | Path], reading: Reading, limit: int | None, cut: list[str], left_out: Notes
) -> Iterator[list[str]]:
    """The lines of all documents, a slice at a time; adds to `cut` the files that `limit` cut short. What a file
    leaves of its share goes to those behind it."""
    done = 0
    for position, file in enumerate(files):
        stop = None if limit is None else done + (limit - done) // (len(files) - position)
        waiting: list[str] = []
        size = 0
        for document in read_documents([file], reading, notes=left_out):
            text, room = document.text, None if stop is None else stop - done
            if room is not None and len(text.encode("utf-8")) > room:
                text = _beginning(text, room)
                cut.append(str(file))
            done += len(text.encode("utf-8"))
            waiting += text.split("\n")
            size += len(text)
            if size >= _SLICE:
                yield waiting
                waiting, size = [], 0
            if cut and cut[-1] == str(file):
                break
        if waiting:
            yield waiting


def _beginning(text: str, size: int) -> str:
    """As many whole characters of a text as `size` bytes hold."""
    data = text.encode("utf-8")
    while size and data[size] & 0xC0 == 0x80:
        size -= 1
    return data[:size].decode("utf-8")


def _notes(cut: Sequence[str], size: int, tallies: Iterable[Tally]) -> list[str]:
    notes = []
    if cut:
        files = counted(len(cut), "file") if len(cut) > 1 else cut[0]
        notes.append(f"a sample: the first {counted(size, 'byte')} of text; {files} not read to the end")
    if any(tally.forgot for tally in tallies):
        notes.append(f"the lists of words leave out rare ones ({KEPT:,} are remembered); the numbers do not")
    return notes


def _unknown(rows: Mapping[str, Mapping[str, Any]]) -> list[str]:
    found = [
        f"{name} {percent(row['unknown_word_share'])}" for name, row in rows.items() if row["many_unknown"]
    ]
    if not found:
        return []
    return [
        f"words unknown to {', to '.join(found)}: an unknown word is one token whatever it holds, so few tokens "
        "are no merit there"
    ]
