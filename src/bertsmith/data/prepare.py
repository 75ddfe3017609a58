"""Files become token shards: documents, sentences, ids; the same bytes for any number of workers.

Documents are cut into pieces of fixed size in the order of the files; each piece is a pure function of its
documents, and the pieces are written in order. Nobody sees the folder before it is whole.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from bertsmith import disk
from bertsmith.data.shards import Rows, Shards, file_entry, hash_of, id_type, write_manifest, write_shard
from bertsmith.errors import InputError, MachineError
from bertsmith.text.files import Document, read_documents
from bertsmith.text.sentences import split
from bertsmith.text.tokenizer import Tokenizer

_PIECE = 1 << 19  # characters of a piece: enough to keep all cores busy, little to hold in memory
_SHARD = 1 << 24  # tokens of a shard: 32 MiB of uint16


def prepare(
    files: Sequence[str | Path],
    tokenizer: Tokenizer | str | Path,
    out: str | Path,
    *,
    language: str | None = None,
    workers: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> Shards:
    """Encode the documents of some files into the data folder `out`, and open it.

    `language` (ISO 639-1) rules where sentences end; None looks at the first half million characters:
    Chinese where every fifth is an ideograph, else English. `workers` pieces are made at a time (None:
    two). `progress` hears the bytes of text done so far. Documents and sentences without a token are dropped
    and counted; long sentences stay whole.

    Raises `InputError` for an `out` that holds something, files without any token, and what `read_documents`
    raises; `MachineError` for a full disk. What was begun is removed.
    """
    out = Path(out)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InputError(f"{out}: there is something already", "name another --out, or remove it")
    if not files:
        raise InputError("there is no file to prepare", "name some text files")
    if not isinstance(tokenizer, Tokenizer):
        tokenizer = Tokenizer.load(tokenizer)
    try:
        with disk.new_folder(out) as folder:
            pieces = _pieces(read_documents(files))
            _write(folder, pieces, tokenizer, language, workers or 2, progress or (lambda _: None))
    except OSError as error:
        if disk.is_full(error):
            raise MachineError(f"{out.parent}: the disk is full", "make room and start again") from None
        raise
    return Shards.open(out)


def encode_piece(
    documents: Sequence[Document], tokenizer: Tokenizer, language: str
) -> tuple[Rows, Counter[str]]:
    """The rows of some documents and what was counted: a pure function, for whatever runs it in parallel."""
    sentences = [split(document.text, language) for document in documents]
    pieces = tokenizer.pieces(list(chain.from_iterable(sentences)))
    flat = np.fromiter(chain.from_iterable(pieces), dtype=id_type(tokenizer.vocab_size))
    lengths = np.fromiter(map(len, pieces), dtype=np.int64, count=len(pieces))
    owner = np.repeat(np.arange(len(documents)), [len(found) for found in sentences])[lengths > 0]
    kept = lengths[lengths > 0]
    counts = np.bincount(owner, minlength=len(documents))
    tokens = np.bincount(owner, weights=kept, minlength=len(documents)).astype(np.int64)
    # Sentence ends count from their document's start: all ends, less what stands before the document.
    ends = np.cumsum(kept) - (np.cumsum(tokens) - tokens)[owner]
    some = counts > 0
    rows = Rows(
        ids=flat,
        lengths=tokens[some],
        sentence_ends=ends.astype(np.int32),
        sentence_counts=counts[some].astype(np.int64),
        places=[document.place for document, full in zip(documents, some, strict=True) if full],
        hashes=np.array(
            [hash_of(ids) for ids in np.split(flat, np.cumsum(tokens[some]))[:-1]], dtype=np.uint64
        ),
    )
    counted = Counter(
        documents=int(some.sum()),
        sentences=len(kept),
        tokens=len(flat),
        unknown=int(np.count_nonzero(flat == tokenizer.unk_id)),
        characters=sum(len(document.text) for document in documents),
        bytes=sum(len(document.text.encode("utf-8")) for document in documents),
        empty_documents_dropped=int((~some).sum()),
        empty_sentences_dropped=len(lengths) - len(kept),
    )
    return rows, counted


def _write(
    folder: Path,
    pieces: Iterator[list[Document]],
    tokenizer: Tokenizer,
    language: str | None,
    workers: int,
    progress: Callable[[int], None],
) -> None:
    first = next(pieces)
    language = language or _guessed(first)
    entries: list[dict[str, Any]] = []
    waiting: list[Rows] = []
    counts: Counter[str] = Counter()

    def close_shard() -> None:
        if sum(len(rows.lengths) for rows in waiting):
            entries.append(write_shard(folder / f"shard-{len(entries):05d}.arrow", waiting))
        waiting.clear()

    for rows, counted in _in_order(chain([first], pieces), tokenizer, language, workers):
        waiting.append(rows)
        counts.update(counted)
        if sum(len(rows.ids) for rows in waiting) >= _SHARD:
            close_shard()
        progress(counts["bytes"])
    close_shard()
    if not entries:
        place = first[0].place
        raise InputError(f"{place}: no document holds a single token", "is this the tokenizer for this text?")
    tokenizer.save(folder / "tokenizer")
    entries += [file_entry(f, f"tokenizer/{f.name}") for f in sorted((folder / "tokenizer").iterdir())]
    write_manifest(
        folder,
        {
            "vocab_size": tokenizer.vocab_size,
            "tokenizer_digest": tokenizer.digest,
            "language": language,
            "counts": dict(counts),
            "files": entries,
        },
    )


def _in_order(
    pieces: Iterable[list[Document]], tokenizer: Tokenizer, language: str, workers: int
) -> Iterator[tuple[Rows, Counter[str]]]:
    # Threads, not processes: the library encodes outside of Python's lock and on all cores, and a script that
    # calls this needs no `if __name__ == "__main__"`. A bounded queue keeps memory bounded.
    if workers == 1:
        for piece in pieces:
            yield encode_piece(piece, tokenizer, language)
        return
    with ThreadPoolExecutor(workers) as pool:
        running: deque[Any] = deque()
        for piece in pieces:
            running.append(pool.submit(encode_piece, piece, tokenizer, language))
            if len(running) > workers:
                yield running.popleft().result()
        while running:
            yield running.popleft().result()


def _pieces(documents: Iterable[Document]) -> Iterator[list[Document]]:
    piece: list[Document] = []
    size = 0
    for document in documents:
        piece.append(document)
        size += len(document.text)
        if size >= _PIECE:
            yield piece
            piece, size = [], 0
    if piece:
        yield piece


def _guessed(documents: Sequence[Document]) -> str:
    text = "".join(document.text for document in documents)
    ideographs = sum("\u4e00" <= character <= "\u9fff" for character in text)
    return "zh" if 5 * ideographs > len(text) else "en"
