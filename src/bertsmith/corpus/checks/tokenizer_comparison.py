"""Compare tokenizers on the same text: pieces per word, unknown words, coverage by script, pieces used.

It takes one pass in bounded memory; `tokens.py` defines the counts.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bertsmith.corpus.checks.tokens import MAX_TRACKED_WORDS, TokenizerStats, WordCounter
from bertsmith.corpus.shards import batches
from bertsmith.errors import InputError
from bertsmith.formatting import format_percent, pluralize
from bertsmith.io.documents import Reading, read_documents
from bertsmith.io.folders import CorpusNotes, find_files
from bertsmith.io.tables import Table
from bertsmith.tokenizer.tokenizer import Tokenizer

_BATCH_CHARACTERS = 1 << 20  # encoded at a time
MAX_UNKNOWN_RATIO = 0.005  # A tokenizer with more unknown words is not ranked by its pieces per word.


def compare_tokenizers(
    files: Sequence[str | Path | Table],
    tokenizers: Mapping[str, Tokenizer],
    *,
    reading: Reading = Reading(),  # noqa: B008  # frozen
    max_bytes: int | None = None,
    max_examples: int = 20,
    progress: Callable[[int], None] | None = None,
) -> dict[str, Any]:
    """Compare tokenizers on the text of some files.

    Args:
        files: The files.
        tokenizers: The tokenizers by name.
        reading: The rules by which files become documents.
        max_bytes: Bytes of text (UTF-8) to read, divided among the files; None: all.
        max_examples: The most entries of a list in the report.
        progress: A function that receives the bytes of text read so far.

    Returns:
        A report of plain values: `text` describes the text, `tokenizers` has the counts and shares (0 to 1) of
        each tokenizer, `order` their names from best to worst (see `ranked`), and `notes` sentences about the
        limits of the comparison.

    Raises:
        InputError: There are no files or tokenizers, the files hold no text, or `read_documents` fails.
    """
    if not tokenizers:
        message = "there is no tokenizer to inspect"
        hint = "name the folder of a tokenizer"
        raise InputError("tokenizers_missing", message, argument="tokenizers", hint=hint)
    if not files:
        message = "there is no text to inspect the tokenizers on"
        raise InputError("files_missing", message, argument="files", hint="name some text files")
    stats = {name: TokenizerStats(tokenizer) for name, tokenizer in tokenizers.items()}
    words = WordCounter(stats.values())
    skipped = CorpusNotes()
    paths = find_files(files, skipped)
    truncated: list[str] = []
    texts = _texts(paths, reading, max_bytes, truncated, skipped)
    for batch in batches(texts, len, _BATCH_CHARACTERS):
        words.add("\n".join(batch).split("\n"))
        if progress is not None:
            progress(words.bytes)
    words.encode_waiting()
    if not words.bytes:
        message = "there is no text in the files"
        raise InputError("no_text", message, location=f"{paths[0]}:1", hint="check how the files were made")
    rows = {name: entry.summary(words, max_examples) for name, entry in stats.items()}
    for row in rows.values():
        row["many_unknown"] = row["unknown_word_share"] > MAX_UNKNOWN_RATIO
    return {
        "files": [str(path) for path in paths],
        "text": words.summary(truncated),
        "tokenizers": rows,
        "order": ranked(rows),
        "notes": [*_notes(truncated, words.bytes, stats.values(), rows), *skipped.sentences()],
    }


def ranked(rows: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return the names of tokenizers from best to worst.

    Tokenizers with at most 0.5 % unknown words come first, by pieces per word; the others follow, by the share of
    unknown words.
    """

    def key(name: str) -> tuple[float, float]:
        row = rows[name]
        unknown = row["unknown_word_share"]
        return (unknown if unknown > MAX_UNKNOWN_RATIO else 0.0, row["pieces_per_word"] or float("inf"))

    return sorted(rows, key=key)


def _texts(
    files: Sequence[str | Path | Table],
    reading: Reading,
    limit: int | None,
    truncated: list[str],
    skipped: CorpusNotes,
) -> Iterator[str]:
    """Yield the texts of all documents, and append files that `limit` truncates to `truncated`.

    Bytes that a file does not use go to the files after it.
    """
    done = 0
    for index, file in enumerate(files):
        stop = None if limit is None else done + (limit - done) // (len(files) - index)
        for document in read_documents([file], reading, notes=skipped):
            text = document.text if stop is None else _prefix(document.text, stop - done)
            done += len(text.encode("utf-8"))
            yield text
            if len(text) < len(document.text):
                truncated.append(str(file))
                break


def _prefix(text: str, max_bytes: int) -> str:
    """Return the longest prefix of at most `max_bytes` bytes of UTF-8."""
    return codecs.getincrementaldecoder("utf-8")().decode(text.encode("utf-8")[:max_bytes])


def _notes(
    truncated: Sequence[str],
    num_bytes: int,
    stats: Iterable[TokenizerStats],
    rows: Mapping[str, Mapping[str, Any]],
) -> list[str]:
    notes = []
    if truncated:
        files = pluralize(len(truncated), "file") if len(truncated) > 1 else truncated[0]
        notes.append(f"a sample: the first {pluralize(num_bytes, 'byte')}; {files} not read to the end")
    if any(entry.has_dropped_words for entry in stats):
        notes.append(f"the lists of words omit rare ones (at most {MAX_TRACKED_WORDS:,}); the counts do not")
    unknown = {name: row["unknown_word_share"] for name, row in rows.items() if row["many_unknown"]}
    if names := ", to ".join(f"{name} {format_percent(share)}" for name, share in unknown.items()):
        notes.append(
            f"words unknown to {names}: an unknown word is one token of any length, so few tokens are no "
            "advantage there"
        )
    return notes
