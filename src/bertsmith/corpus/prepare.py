"""Files become token shards: documents, sentences, ids; the same bytes for any engine and number of workers.

Documents are cut into portions of fixed size in the order of the files; each portion is a pure function of its
documents, and the portions are written in order. Nobody sees the folder before it is whole; a preparation that was
killed goes on behind its last whole shard when it is started again.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from itertools import chain, islice
from pathlib import Path
from typing import Any, Literal

from bertsmith import console, hardware
from bertsmith.corpus.deduplication import Duplicates
from bertsmith.corpus.diagnostics import remarks
from bertsmith.corpus.manifest import (
    FORMAT,
    FileEntry,
    Manifest,
    PreparationProgress,
    ShardEntry,
    file_entry,
    write_manifest,
)
from bertsmith.corpus.prepare_state import LAYOUT, Unfinished
from bertsmith.corpus.rejected_rows import RejectFile
from bertsmith.corpus.sentence_splitter import guessed_language
from bertsmith.corpus.shards import Rows, Shards, write_shard
from bertsmith.corpus.workers import Encoded, by_ray, locally
from bertsmith.errors import InputError
from bertsmith.formatting import counted
from bertsmith.io.compressed import check_name
from bertsmith.io.files import Document, Notes, Reading, find_files, read_documents
from bertsmith.io.lines import LineFault
from bertsmith.io.memory import InMemory, Sources, as_files
from bertsmith.keywords import with_keywords
from bertsmith.tokenizer.tokenizer import Tokenizer

_PORTION = 1 << 21  # bytes of UTF-8 of a portion: enough to keep all cores busy, little to hold in memory
_SHARD = 1 << 23  # tokens of a shard: 16 MiB of uint16
_BASE, _A_WORKER = 200 << 20, 200 << 20  # bytes of memory, measured with portions and shards of this size
_MOST_WORKERS = 8  # what reads for them can keep no more busy


@dataclass(frozen=True)
class Choices:
    """All that rules which bytes a corpus becomes, beside its files and the tokenizer."""

    language: str | None = None
    reading: Reading = Reading()  # noqa: RUF009  # frozen
    on_error: Literal["stop", "skip"] = "stop"
    max_rejects: int = 1000
    deduplicate: Literal["no", "exact", "near"] = "no"


@console.with_bar("encoding")
def prepare(
    files: Sources,
    tokenizer: Tokenizer | str | Path,
    out: str | Path,
    *,
    language: str | None = None,
    reading: Reading = Reading(),  # noqa: B008  # frozen
    on_error: Literal["stop", "skip"] = "stop",
    max_rejects: int = 1000,
    deduplicate: Literal["no", "exact", "near"] = "no",
    workers: int | None = None,
    max_ram: int | None = None,
    engine: Literal["local", "ray"] = "local",
    address: str | None = None,
    overwrite: bool = False,
    progress: Callable[[int], None] | None = None,
    tell: Callable[[str], None] = console.tell,
    **how: Any,
) -> Shards:
    """Encode the documents of some files, folders or globs into the data folder `out`, and open it.

    files: one path or several; or data in memory: `Texts([…])`, a table (pandas, polars, pyarrow), a data set, a
    dict of columns, a list of dicts. how: fields of `reading` by name, such as text_column="title". overwrite:
    replace an earlier data folder once the new one is whole; any other folder is refused.

    language: ISO 639-1, rules where sentences end; None looks at the first portion: Chinese where every fifth
    character is an ideograph, else English. reading: how files become documents. on_error: "stop" at the first
    fault, or "skip" what cannot be read into `rejects.jsonl`, `max_rejects` at most. deduplicate: drop documents
    that repeat an earlier one, to the letter or nearly (MinHash). workers portions are made at a time (None: a
    core each, four at most); max_ram: bytes this process may come to, fewer workers if need be. engine "ray":
    on the Ray cluster at `address`, by default one of this machine. progress hears the bytes of text done so
    far, tell what a person should know.

    Files without text, and what folders hold of other kinds, are left out, counted and told. Documents and
    sentences without a token are dropped and counted; long sentences stay whole. Killed and
    called again with the same arguments it goes on; the bytes are those of an unbroken preparation. A document
    too long to be held whole (4 Mi characters) becomes several rows with the hash of the first; `deduplicate`
    compares them one by one, as it does documents.

    Raises `InputError` for an `out` that holds something or that another preparation is writing, files without
    any token, and what `read_documents` raises; `MachineError` for a full disk. Of what a fault in the files
    stopped nothing stays.
    """
    out, files, reading = Path(out), as_files(files), with_keywords(reading, how, prepare)
    check_name(out)
    replace = LAYOUT.is_replaced(out, overwrite=overwrite)
    if not files:
        raise InputError("there is no file to prepare", "name some text files")
    tokenizer = _framing(tokenizer)
    hardware.return_freed_memory()
    choices = Choices(language, reading, on_error, max_rejects, deduplicate)
    encoded = _engine(engine, tokenizer, _workers(workers, max_ram, engine), address)
    notes = Notes()
    found = find_files(files, notes)
    with Unfinished.of(out, _request(found, tokenizer, choices), tell, replace=replace) as unfinished:
        work = _Preparation(unfinished, tokenizer, choices, notes)
        work.run(found, encoded, progress or (lambda _: None), tell)
    shards = Shards.open(out)
    for sentence in remarks(shards, work.first_characters):
        tell(sentence)
    return shards


def _framing(tokenizer: Tokenizer | str | Path) -> Tokenizer:
    """The tokenizer; one without special tokens is refused before the work, not by the training after it."""
    if not isinstance(tokenizer, Tokenizer):
        tokenizer = Tokenizer.load(tokenizer)
    if not tokenizer.separators:
        raise InputError(
            "this tokenizer does not frame texts as a BERT reads them: [CLS] A [SEP], [CLS] A [SEP] B [SEP]",
            "take one of the BERT, RoBERTa or ALBERT kind, or train one: bertsmith tokenizer train",
        )
    return tokenizer


class _Preparation:
    """One preparation: portions in, shards and manifest out."""

    def __init__(self, unfinished: Unfinished, tokenizer: Tokenizer, choices: Choices, notes: Notes) -> None:
        self.unfinished, self._tokenizer, self._choices = unfinished, tokenizer, choices
        self._notes = notes
        self._left_out: Counter[str] = Counter()
        self._counts: Counter[str] = Counter()
        self.first_characters: Counter[str] = Counter()
        """How often each character occurs in the first portion."""

    def run(
        self,
        files: Sequence[str | Path],
        encoded: Callable[[Iterable[list[Document]], str], Iterator[Encoded]],
        progress: Callable[[int], None],
        tell: Callable[[str], None],
    ) -> None:
        """Read, encode and write what is not done yet, then finish the folder."""
        done, folder = self.unfinished.progress, self.unfinished.folder  # as they were at the start
        if done.portions:
            tell(
                f"continuing after {counted(len(done.shards), 'finished shard')} "
                f"({done.counts['bytes'] / 1e6:,.0f} MB)"
            )
        with closing(RejectFile(folder / "rejects.jsonl", self._choices.max_rejects)) as rejects:
            reject = rejects if self._choices.on_error == "skip" else None
            reading = self._choices.reading
            documents = self._counted(read_documents(files, reading, reject=reject, notes=self._notes))
            portions = _portions(self._kept(documents))
            first = next(portions, [])
            texts = [document.text for document in first]
            language = self._choices.language or guessed_language(texts)
            self.first_characters.update("".join(texts))
            # What is done is read again, for the rejects and duplicates in it, but not encoded again.
            left = islice(chain([first], portions), done.portions, None)
            self._write(encoded(left, language), progress)
        nothing = not self.unfinished.progress.shards
        if nothing and rejects.first is not None:
            raise InputError(
                f"{rejects.first.file}: nothing in the files can be read; {rejects.first.reason}",
                "look at them with bertsmith data check",
            )
        if nothing and self._notes.empty and not first:
            raise InputError(f"{files[0]}:1: there is no text in the files", "check how they were made")
        if nothing:
            place = first[0].place if first else str(files[0])
            raise InputError(
                f"{place}: no document holds a single token", "is this the tokenizer for this text?"
            )
        self._notes.tell(tell)
        self._finish(language, rejects.count)

    def _counted(self, documents: Iterable[Document]) -> Iterator[Document]:
        try:
            for document in documents:
                self._left_out["documents_parted"] += document.part == 1
                yield document
        except LineFault as error:  # other verbs cannot leave lines out
            remedy = f"{error.remedy}; --on-error skip leaves such lines out"
            raise InputError(error.sentence, remedy) from None

    def _kept(self, documents: Iterable[Document]) -> Iterator[Document]:
        """The documents that repeat no earlier one, as far as asked; counts what is dropped or parted."""
        kind = self._choices.deduplicate
        if kind == "no":
            yield from documents
            return
        seen = Duplicates(kind)
        for some in _portions(documents):  # many at a time is quicker
            earlier = seen.first_seen_many([d.text for d in some], [d.place for d in some])
            yield from (document for document, place in zip(some, earlier, strict=True) if place is None)
            self._left_out["duplicates_dropped"] += len(earlier) - earlier.count(None)
            self._left_out["duplicates_not_looked_for"] = seen.not_remembered

    def _write(self, encoded: Iterator[Encoded], progress: Callable[[int], None]) -> None:
        waiting: list[Rows] = []
        portions, last = self.unfinished.progress.portions, self.unfinished.progress.last
        counts = Counter(self.unfinished.progress.counts)

        def close_shard() -> None:
            if sum(len(rows.lengths) for rows in waiting):
                done, folder = self.unfinished.progress, self.unfinished.folder
                entry = write_shard(folder / f"shard-{len(done.shards):05d}.arrow", waiting)
                self.unfinished.record(
                    PreparationProgress(
                        request=done.request,
                        portions=portions,
                        shards=(*done.shards, entry),
                        counts=counts,
                        last=last,
                    )
                )
            waiting.clear()

        for rows, found in encoded:
            joined, last = _joined(rows, last)
            waiting.append(joined)
            counts.update(found)
            portions += 1
            if sum(len(rows.ids) for rows in waiting) >= _SHARD:
                close_shard()
            progress(counts["bytes"])
        close_shard()
        self._counts = counts

    def _finish(self, language: str, rejected: int) -> None:
        folder = self.unfinished.folder
        entries: list[ShardEntry | FileEntry] = [*self.unfinished.progress.shards]
        self._tokenizer.save(folder / "tokenizer")
        entries += [file_entry(f, f"tokenizer/{f.name}") for f in sorted((folder / "tokenizer").iterdir())]
        if rejected:
            entries.append(file_entry(folder / "rejects.jsonl"))
        self._left_out["files_empty"] = len(self._notes.empty)
        counts = {**self._counts, **{k: n for k, n in self._left_out.items() if n}}
        write_manifest(
            folder,
            Manifest(
                vocab_size=self._tokenizer.vocab_size,
                tokenizer_digest=self._tokenizer.digest,
                language=language,
                counts=counts | ({"rejected": rejected} if rejected else {}),
                skipped=self._notes.by_number(),
                files=entries,
            ),
        )
        self.unfinished.finish()


def _joined(rows: Rows, last: tuple[str, int] | None) -> tuple[Rows, tuple[str, int] | None]:
    """The rows, those that go on a document with the hash of its first one; and where the last one's document
    begins, with its hash. last: the same of the rows before these."""
    if not len(rows.lengths):
        return rows, last
    hashes = rows.hashes.copy() if rows.heads else rows.hashes
    for row, head in sorted(rows.heads.items()):
        # The row before is of the same document, or this is the first of its rows that was not dropped.
        before = (rows.heads.get(row - 1, rows.places[row - 1]), int(hashes[row - 1])) if row else last
        if before is not None and before[0] == head:
            hashes[row] = before[1]
    end = len(hashes) - 1
    return replace(rows, hashes=hashes), (rows.heads.get(end, rows.places[end]), int(hashes[end]))


def _engine(
    engine: str, tokenizer: Tokenizer, workers: int | None, address: str | None
) -> Callable[[Iterable[list[Document]], str], Iterator[Encoded]]:
    """What encodes portions of one language."""
    if engine == "ray":
        return lambda portions, language: by_ray(portions, tokenizer, language, workers, address)
    return lambda portions, language: locally(portions, tokenizer, language, workers or 1)


def _workers(workers: int | None, max_ram: int | None, engine: str) -> int | None:
    if engine == "ray":
        return workers
    workers = workers or min(hardware.allowed_cores(), _MOST_WORKERS)
    if max_ram is None:
        return workers
    fit = (max_ram - _BASE) // _A_WORKER
    if fit < 1:
        least = (_BASE + _A_WORKER) / 1e6
        raise InputError(f"--max-ram {max_ram / 1e6:,.0f} MB is too little", f"give {least:,.0f} MB or more")
    return min(workers, fit)


def _request(files: Sequence[str | Path], tokenizer: Tokenizer, choices: Choices) -> dict[str, object]:
    """What must be the same for a killed preparation to go on."""
    return {
        "files": [state for file in files if (state := _state(file)) is not None],
        "tokenizer": tokenizer.digest,
        "choices": asdict(choices),
        "format": [FORMAT, _PORTION, _SHARD],
    }


def _state(file: str | Path) -> tuple[object, ...] | None:
    """What tells that a file is still the same; None where there is none, which its reader says."""
    if isinstance(file, InMemory):
        return str(file), file.size, file.digest
    try:
        state = os.stat(file)
    except OSError:
        return None
    return str(file), state.st_size, state.st_mtime_ns


def _portions(documents: Iterable[Document]) -> Iterator[list[Document]]:
    portion: list[Document] = []
    size = 0
    for document in documents:
        portion.append(document)
        size += len(document.text.encode("utf-8"))
        if size >= _PORTION:
            yield portion
            portion, size = [], 0
    if portion:
        yield portion
