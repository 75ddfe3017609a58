"""Encode files as token shards: the same bytes for any engine and any number of workers.

Documents are split into portions of fixed size in the order of the files. Each portion is a pure function of its
documents, and portions are written in order. The folder appears when it is complete; an interrupted preparation
resumes after its last finished shard.
"""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from itertools import chain, islice
from pathlib import Path
from typing import Any, Literal

from bertsmith import console, hardware
from bertsmith.corpus.batching import batches
from bertsmith.corpus.deduplication import DuplicateIndex
from bertsmith.corpus.diagnostics import corpus_warnings
from bertsmith.corpus.manifest import FORMAT, FileEntry, Manifest, ShardEntry, file_entry, write_manifest
from bertsmith.corpus.prepare_state import LAYOUT, PrepareState
from bertsmith.corpus.rejected_rows import RejectFile
from bertsmith.corpus.sentence_splitter import detect_language
from bertsmith.corpus.shards import EncodedDocuments, Shards, write_shard
from bertsmith.corpus.workers import EncodedPortion, encode_locally, encode_with_ray
from bertsmith.errors import InputError, command, option
from bertsmith.formatting import pluralize
from bertsmith.io.compressed import check_name
from bertsmith.io.files import Document, Notes, Reading, find_files, read_documents
from bertsmith.io.lines import LineFault
from bertsmith.io.memory import InMemory, Sources, as_files
from bertsmith.settings import with_keywords
from bertsmith.tokenizer.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

_PORTION_BYTES = 1 << 21  # UTF-8 of a portion: enough to keep all cores busy, little to hold in memory
_SHARD_TOKENS = 1 << 23  # 16 MiB of uint16
# Memory of this process and of each worker, measured with portions and shards of this size.
_BASE_BYTES, _WORKER_BYTES = 200 << 20, 200 << 20
_MAX_WORKERS = 8  # The one process that reads the files cannot supply more.


@dataclass(frozen=True)
class PrepareSettings:
    """The settings that determine the bytes of the shards, besides the files and the tokenizer."""

    language: str | None = None
    reading: Reading = Reading()  # noqa: RUF009  # frozen
    on_error: Literal["stop", "skip"] = "stop"
    max_rejects: int = 1000
    deduplicate: Literal["no", "exact", "near"] = "no"


@console.with_progress_bar("encoding")
def prepare(
    files: Sources,
    tokenizer: Tokenizer | str | Path,
    output_dir: str | Path,
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
    **options: Any,
) -> Shards:
    """Encode the documents of some files as token shards in a data folder, and open it.

    Files without text, and files of other types in folders, are skipped, counted, and reported. Documents and
    sentences without a token are dropped and counted; long sentences are not split. A document longer than 4 Mi
    characters becomes several rows with the hash of the first, and `deduplicate` compares these rows one by one.
    If the call is interrupted, the same call resumes; the bytes are those of an uninterrupted one. If a file is
    invalid, nothing is kept.

    Args:
        files: One path, folder, or glob, or several; or data in memory: `Texts([…])`, a table (pandas, polars,
            pyarrow), a dataset, a dict of columns, or a list of dicts.
        tokenizer: A tokenizer or its folder.
        output_dir: The data folder to write.
        language: ISO 639-1 code, which determines the sentence ends; None: Chinese if at least a fifth of the
            characters of the first portion are ideographs, else English.
        reading: The rules by which files become documents.
        on_error: "stop" at the first error, or "skip" unreadable lines and rows, and list them in `rejects.jsonl`.
        max_rejects: The most lines and rows to skip.
        deduplicate: Drop documents that repeat an earlier one, exactly or nearly (MinHash).
        workers: Portions to encode at a time; None: one per core, at most eight ("local").
        max_ram: Bytes of memory to stay below; fewer workers run if necessary ("local").
        engine: "local" processes, or a "ray" cluster.
        address: The address of the Ray cluster; None: one on this machine.
        overwrite: Replace an earlier data folder when the new one is complete; any other folder is refused.
        progress: A function that receives the bytes of text encoded so far.
        options: Fields of `reading` by name, such as `text_column="title"`.

    Returns:
        The opened shards.

    Raises:
        InputError: `output_dir` is not empty or another preparation writes it, the files hold no token, or
            `read_documents` fails.
        MachineError: The disk is full, or a worker process ended.
    """
    out, files, reading = Path(output_dir), as_files(files), with_keywords(reading, options, prepare)
    check_name(out)
    replaces_folder = LAYOUT.check_replaceable(out, overwrite=overwrite)
    if not files:
        raise InputError(
            "files_missing", "there is no file to prepare", argument="files", hint="name some text files"
        )
    tokenizer = _load_tokenizer(tokenizer)
    hardware.return_freed_memory()
    settings = PrepareSettings(language, reading, on_error, max_rejects, deduplicate)
    encode = _encoder(engine, tokenizer, _num_workers(workers, max_ram, engine), address)
    notes = Notes()
    paths = find_files(files, notes)
    with PrepareState.open(out, request_key(paths, tokenizer, settings), replace=replaces_folder) as state:
        preparation = _Preparation(state, tokenizer, settings, notes)
        preparation.run(paths, encode, progress or (lambda _: None))
    shards = Shards.open(out)
    for warning in corpus_warnings(shards, preparation.first_characters):
        logger.warning("%s", warning)
    return shards


def _load_tokenizer(tokenizer: Tokenizer | str | Path) -> Tokenizer:
    """Load the tokenizer; raise an error now, not after hours of work, if its template is unsupported."""
    if not isinstance(tokenizer, Tokenizer):
        tokenizer = Tokenizer.load(tokenizer)
    if not tokenizer.num_separators:
        raise InputError(
            "tokenizer_without_separators",
            "this tokenizer does not add special tokens as BERT or RoBERTa does: [CLS] A [SEP], "
            "[CLS] A [SEP] B [SEP]",
            argument="tokenizer",
            hint=f"use a tokenizer of BERT, RoBERTa, or ALBERT, or train one: {command('tokenizer train')}",
        )
    return tokenizer


class _Preparation:
    """Read, encode, and write one corpus.

    Attributes:
        first_characters: How often each character occurs in the first portion.
    """

    def __init__(
        self, state: PrepareState, tokenizer: Tokenizer, settings: PrepareSettings, notes: Notes
    ) -> None:
        self._state, self._tokenizer, self._settings = state, tokenizer, settings
        self._notes = notes
        self._dropped: Counter[str] = Counter()
        self._counts: Counter[str] = Counter()
        self.first_characters: Counter[str] = Counter()

    def run(
        self,
        files: Sequence[str | Path],
        encode: Callable[[Iterable[list[Document]], str], Iterator[EncodedPortion]],
        progress: Callable[[int], None],
    ) -> None:
        """Read, encode, and write the remaining portions, then finish the folder."""
        resumed = self._state.progress
        if resumed.portions:
            shards, megabytes = (
                pluralize(len(resumed.shards), "finished shard"),
                resumed.counts["bytes"] / 1e6,
            )
            logger.info("resuming after %s (%s MB)", shards, f"{megabytes:,.0f}")
        path = self._state.folder / "rejects.jsonl"
        with closing(RejectFile(path, self._settings.max_rejects)) as rejects:
            reject = rejects if self._settings.on_error == "skip" else None
            documents = read_documents(files, self._settings.reading, reject=reject, notes=self._notes)
            portions = _portions(self._drop_duplicates(self._count_split_documents(documents)))
            first_portion = next(portions, [])
            texts = [document.text for document in first_portion]
            language = self._settings.language or detect_language(texts)
            self.first_characters.update("".join(texts))
            # Finished portions are read again, for their rejects and duplicates, but not encoded again.
            remaining = islice(chain([first_portion], portions), resumed.portions, None)
            self._write(encode(remaining, language), progress)
        if not self._state.progress.shards:
            raise self._no_tokens_error(files, first_portion, rejects)
        for sentence in self._notes.sentences():
            logger.info("%s", sentence)
        self._finish(language, rejects.count)

    def _no_tokens_error(
        self, files: Sequence[str | Path], first_portion: Sequence[Document], rejects: RejectFile
    ) -> InputError:
        if rejects.first is not None:
            return InputError(
                "nothing_readable",
                f"nothing in the files can be read; {rejects.first.reason}",
                location=rejects.first.file,
                hint=f"check them with {command('data check')}",
            )
        if self._notes.empty and not first_portion:
            return InputError(
                "no_text",
                "there is no text in the files",
                location=f"{files[0]}:1",
                hint="check how the files were made",
            )
        return InputError(
            "no_tokens",
            "no document has a single token",
            location=first_portion[0].place if first_portion else files[0],
            argument="tokenizer",
            hint="check that the tokenizer fits the text",
        )

    def _count_split_documents(self, documents: Iterable[Document]) -> Iterator[Document]:
        try:
            for document in documents:
                self._dropped["documents_parted"] += document.part == 1
                yield document
        except LineFault as error:  # Other commands cannot skip lines.
            error.hint = f"{error.hint}; {option('on_error', 'skip')} skips such lines"
            raise

    def _drop_duplicates(self, documents: Iterable[Document]) -> Iterator[Document]:
        method = self._settings.deduplicate
        if method == "no":
            yield from documents
            return
        index = DuplicateIndex(method)
        for portion in _portions(documents):  # Many documents in one call are faster.
            duplicates = index.find_duplicates([d.text for d in portion], [d.place for d in portion])
            yield from (d for d, original in zip(portion, duplicates, strict=True) if original is None)
            self._dropped["duplicates_dropped"] += len(duplicates) - duplicates.count(None)
            self._dropped["duplicates_not_looked_for"] = index.num_not_indexed

    def _write(self, encoded: Iterator[EncodedPortion], progress: Callable[[int], None]) -> None:
        unwritten: list[EncodedDocuments] = []
        portions, last = self._state.progress.portions, self._state.progress.last
        counts = Counter(self._state.progress.counts)

        def close_shard() -> None:
            if any(len(part.lengths) for part in unwritten):
                saved = self._state.progress
                path = self._state.folder / f"shard-{len(saved.shards):05d}.arrow"
                shards = (*saved.shards, write_shard(path, unwritten))
                changes = {"portions": portions, "shards": shards, "counts": dict(counts), "last": last}
                self._state.save(saved.model_copy(update=changes))
            unwritten.clear()

        for portion, portion_counts in encoded:
            documents, last = _share_hashes(portion, last)
            unwritten.append(documents)
            counts.update(portion_counts)
            portions += 1
            if sum(len(part.ids) for part in unwritten) >= _SHARD_TOKENS:
                close_shard()
            progress(counts["bytes"])
        close_shard()
        self._counts = counts

    def _finish(self, language: str, num_rejected: int) -> None:
        folder = self._state.folder
        entries: list[ShardEntry | FileEntry] = [*self._state.progress.shards]
        self._tokenizer.save(folder / "tokenizer")
        entries += [file_entry(f, f"tokenizer/{f.name}") for f in sorted((folder / "tokenizer").iterdir())]
        if num_rejected:
            entries.append(file_entry(folder / "rejects.jsonl"))
        self._dropped["files_empty"] = len(self._notes.empty)
        counts = {**self._counts, **{name: n for name, n in self._dropped.items() if n}}
        write_manifest(
            folder,
            Manifest(
                vocab_size=self._tokenizer.vocab_size,
                tokenizer_digest=self._tokenizer.digest,
                language=language,
                counts=counts | ({"rejected": num_rejected} if num_rejected else {}),
                skipped=self._notes.by_number(),
                files=entries,
            ),
        )
        self._state.finish()


def _share_hashes(
    documents: EncodedDocuments, last: tuple[str, int] | None
) -> tuple[EncodedDocuments, tuple[str, int] | None]:
    """Give rows that continue a document the hash of its first row.

    `last` is the start location and hash of the last document before these, None at the start of the corpus. The
    second value that is returned is `last` for the next call.
    """
    if not len(documents.lengths):
        return documents, last
    starts = documents.continuations
    hashes = documents.hashes.copy() if starts else documents.hashes
    for row, start in sorted(starts.items()):
        # The previous row belongs to the same document, unless the document's earlier rows were dropped.
        previous = (starts.get(row - 1, documents.locations[row - 1]), int(hashes[row - 1])) if row else last
        if previous is not None and previous[0] == start:
            hashes[row] = previous[1]
    end = len(hashes) - 1
    last = starts.get(end, documents.locations[end]), int(hashes[end])
    return replace(documents, hashes=hashes), last


def _encoder(
    engine: str, tokenizer: Tokenizer, workers: int | None, address: str | None
) -> Callable[[Iterable[list[Document]], str], Iterator[EncodedPortion]]:
    """Return the function that encodes portions of a language with an engine."""
    if engine == "ray":
        return lambda portions, language: encode_with_ray(portions, tokenizer, language, workers, address)
    return lambda portions, language: encode_locally(portions, tokenizer, language, workers or 1)


def _num_workers(workers: int | None, max_ram: int | None, engine: str) -> int | None:
    if engine == "ray":
        return workers
    workers = workers or min(hardware.available_cores(), _MAX_WORKERS)
    if max_ram is None:
        return workers
    affordable = (max_ram - _BASE_BYTES) // _WORKER_BYTES
    if affordable < 1:
        minimum = (_BASE_BYTES + _WORKER_BYTES) / 1e6
        raise InputError(
            "max_ram_too_small",
            f"{max_ram / 1e6:,.0f} MB of memory is too little",
            argument="max_ram",
            hint=f"give {minimum:,.0f} MB or more",
        )
    return min(workers, affordable)


def request_key(
    files: Sequence[str | Path], tokenizer: Tokenizer, settings: PrepareSettings
) -> dict[str, object]:
    """Return everything that must be equal for an interrupted preparation to resume."""
    return {
        "files": [state for file in files if (state := _file_state(file)) is not None],
        "tokenizer": tokenizer.digest,
        "choices": asdict(settings),
        "format": [FORMAT, _PORTION_BYTES, _SHARD_TOKENS],
    }


def _file_state(file: str | Path) -> tuple[object, ...] | None:
    """Return the name, size, and time or digest of a file; None for a missing file, which its reader reports."""
    if isinstance(file, InMemory):
        return str(file), file.size, file.digest
    try:
        status = os.stat(file)
    except OSError:
        return None
    return str(file), status.st_size, status.st_mtime_ns


def _portions(documents: Iterable[Document]) -> Iterator[list[Document]]:
    return batches(documents, lambda document: len(document.text.encode("utf-8")), _PORTION_BYTES)
