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
from dataclasses import asdict, dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Literal, Unpack

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from bertsmith import console, hardware
from bertsmith.corpus.checks.structure import corpus_warning
from bertsmith.corpus.encode import EncodedPortion, encode_locally, encode_with_ray
from bertsmith.corpus.manifest import FORMAT, FileEntry, Manifest, ShardEntry, file_entry, write_manifest
from bertsmith.corpus.near_duplicates import DEFAULT_THRESHOLD, check_threshold, duplicate_groups
from bertsmith.corpus.prepare_state import LAYOUT, PrepareState, RejectFile
from bertsmith.corpus.sentence_splitter import detect_language
from bertsmith.corpus.shards import Shards, batches, concat_column, list_values, read_batch, write_shard
from bertsmith.errors import InputError, command, option
from bertsmith.formatting import pluralize
from bertsmith.io.compression import check_name
from bertsmith.io.documents import Document, Reading, read_documents
from bertsmith.io.folders import CorpusNotes, find_files
from bertsmith.io.sources import Sources, to_sources
from bertsmith.io.tables import Table
from bertsmith.io.text_io import LineError
from bertsmith.keywords import ReadingKeywords
from bertsmith.settings import with_keywords
from bertsmith.tokenizer.script_coverage import lost_joiners
from bertsmith.tokenizer.text_check import TextCheck
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
    near_duplicate_threshold: float = DEFAULT_THRESHOLD


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
    near_duplicate_threshold: float = DEFAULT_THRESHOLD,
    workers: int | None = None,
    max_ram: int | None = None,
    engine: Literal["local", "ray"] = "local",
    address: str | None = None,
    overwrite: bool = False,
    progress: Callable[[int], None] | None = None,
    **options: Unpack[ReadingKeywords],
) -> Shards:
    """Encode the documents of some files as token shards in a data folder, and open it.

    Files without text, and files of other types in folders, are skipped, counted, and reported. Documents and
    sentences without a token are dropped and counted; long sentences are not split. Exact and near-duplicate
    documents are grouped. A document longer than 4 Mi characters becomes several rows with the hash of the first,
    and `deduplicate` compares these rows one by one. If the call is interrupted, the same call resumes; the bytes
    are those of an uninterrupted one. If a file is invalid, nothing is kept.

    Grouping takes 200 bytes of memory per document, and writing the groups takes the space of the shards on the
    disk once more for a moment.

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
        deduplicate: Drop documents that repeat an earlier one: "exact", those with equal ids; "near", also
            near-duplicates. The counts of characters and bytes include them.
        near_duplicate_threshold: The smallest Jaccard similarity of word 5-grams at which two documents are
            near-duplicates, above 0; 1: only documents with equal ids. Near-duplicates give each other no NotNext
            segments, and are on one side of the validation split.
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
    out, files, reading = Path(output_dir), to_sources(files), with_keywords(reading, options, prepare)
    check_name(out)
    check_threshold(near_duplicate_threshold)
    replaces_folder = LAYOUT.check_replaceable(out, overwrite=overwrite)
    if not files:
        message = "there is no file to prepare"
        raise InputError("files_missing", message, argument="files", hint="name some text files")
    tokenizer = _load_tokenizer(tokenizer)
    hardware.return_freed_memory()
    settings = PrepareSettings(
        language, reading, on_error, max_rejects, deduplicate, near_duplicate_threshold
    )
    encode = _encoder(engine, tokenizer, _num_workers(workers, max_ram, engine), address)
    notes = CorpusNotes()
    paths = find_files(files, notes)
    with PrepareState.open(out, request_key(paths, tokenizer, settings), replace=replaces_folder) as state:
        preparation = _Preparation(state, tokenizer, settings, notes)
        preparation.run(paths, encode, progress or (lambda _: None))
    shards = Shards.open(out)
    preparation.check.tokens, preparation.check.unknown = (
        shards.counts["tokens"],
        shards.counts.get("unknown", 0),
    )
    preparation.check.log(shards.tokenizer)
    if warning := corpus_warning(shards):
        logger.warning("%s", warning)
    return shards


def _load_tokenizer(tokenizer: Tokenizer | str | Path) -> Tokenizer:
    """Load the tokenizer; raise an error now, not after hours of work, if its template is unsupported."""
    if not isinstance(tokenizer, Tokenizer):
        tokenizer = Tokenizer.load(tokenizer)
    if not tokenizer.num_separators:
        message = (
            "this tokenizer does not add special tokens as BERT or RoBERTa does: [CLS] A [SEP], "
            "[CLS] A [SEP] B [SEP]"
        )
        hint = f"use a tokenizer of BERT, RoBERTa, or ALBERT, or train one: {command('tokenizer train')}"
        raise InputError("tokenizer_without_separators", message, argument="tokenizer", hint=hint)
    return tokenizer


class _Preparation:
    """Read, encode, and write one corpus.

    Attributes:
        check: The judgment of the first portion.
    """

    def __init__(
        self, state: PrepareState, tokenizer: Tokenizer, settings: PrepareSettings, notes: CorpusNotes
    ) -> None:
        self._state, self._tokenizer, self._settings = state, tokenizer, settings
        self._notes = notes
        self._dropped: Counter[str] = Counter()
        self._counts: Counter[str] = Counter()
        self.check = TextCheck()

    def run(
        self,
        files: Sequence[str | Path | Table],
        encode: Callable[[Iterable[list[Document]], str], Iterator[EncodedPortion]],
        progress: Callable[[int], None],
    ) -> None:
        """Read, encode, and write the remaining portions, then finish the folder."""
        resumed = self._state.progress
        if resumed.portions:
            shards = pluralize(len(resumed.shards), "finished shard")
            megabytes = resumed.counts["bytes"] / 1e6
            logger.info("resuming after %s (%s MB)", shards, f"{megabytes:,.0f}")
        path = self._state.folder / "rejects.jsonl"
        with closing(RejectFile(path, self._settings.max_rejects)) as rejects:
            on_reject = rejects if self._settings.on_error == "skip" else None
            documents = read_documents(files, self._settings.reading, on_reject=on_reject, notes=self._notes)
            documents = self._count_split_documents(documents)
            portions = batches(documents, lambda document: len(document.text.encode("utf-8")), _PORTION_BYTES)
            first_portion = next(portions, [])
            texts = [document.text for document in first_portion]
            language = self._settings.language or detect_language(texts)
            self.check.add(texts)
            # Finished portions are read again, for their rejects, but not encoded again.
            remaining = islice(chain([first_portion], portions), resumed.portions, None)
            self._write_encoded(encode(remaining, language), progress)
        if not self._state.progress.shards:
            raise self._no_tokens_error(files, first_portion, rejects)
        for sentence in self._notes.sentences():
            logger.info("%s", sentence)
        self._finish(language, rejects.count)

    def _no_tokens_error(
        self, files: Sequence[str | Path | Table], first_portion: Sequence[Document], rejects: RejectFile
    ) -> InputError:
        if rejects.first is not None:
            message = f"nothing in the files can be read; {rejects.first.reason}"
            hint = f"check them with {command('data check')}"
            return InputError("nothing_readable", message, location=rejects.first.file, hint=hint)
        if self._notes.empty and not first_portion:
            hint = "check how the files were made"
            return InputError("no_text", "there is no text in the files", location=f"{files[0]}:1", hint=hint)
        return InputError(
            "no_tokens",
            "no document has a single token",
            location=first_portion[0].location if first_portion else files[0],
            argument="tokenizer",
            hint="check that the tokenizer fits the text",
        )

    def _count_split_documents(self, documents: Iterable[Document]) -> Iterator[Document]:
        try:
            for document in documents:
                self._dropped["documents_parted"] += document.part == 1
                yield document
        except LineError as error:  # Other commands cannot skip lines.
            error.change_hint(lambda hint: f"{hint}; {option('on_error', 'skip')} skips such lines")
            raise

    def _write_encoded(self, encoded: Iterator[EncodedPortion], progress: Callable[[int], None]) -> None:
        portions, counts = self._state.progress.portions, Counter(self._state.progress.counts)

        def count() -> Iterator[pa.RecordBatch]:
            for batch, portion_counts in encoded:
                counts.update(portion_counts)
                yield batch
                progress(counts["bytes"])

        for group in batches(count(), lambda batch: len(list_values(batch, "ids")), _SHARD_TOKENS):
            portions += len(group)
            shard = pa.concat_batches(group)
            if shard.num_rows:
                saved = self._state.progress
                entry = write_shard(self._state.folder / f"encoded-{len(saved.shards):05d}.arrow", shard)
                changes = {"portions": portions, "shards": (*saved.shards, entry), "counts": dict(counts)}
                self._state.save(saved.model_copy(update=changes))
        self._counts = counts

    def _write_shards(self) -> list[ShardEntry]:
        """Write the final shards, with the duplicate group of each document and without dropped duplicates."""
        settings, folder = self._settings, self._state.folder
        encoded = [read_batch(folder / entry.name) for entry in self._state.progress.shards]
        hashes = concat_column(encoded, "hash")
        signatures = np.concatenate([batch.column("signature").values.to_numpy() for batch in encoded])
        signatures = signatures.reshape(len(hashes), -1)
        is_kept = np.ones(len(hashes), dtype=bool)
        if settings.deduplicate != "no":
            threshold = settings.near_duplicate_threshold if settings.deduplicate == "near" else 1
            is_kept = duplicate_groups(hashes, signatures, threshold) == np.arange(len(hashes))
            self._dropped["duplicates_dropped"] = int((~is_kept).sum())
            hashes, signatures = hashes[is_kept], signatures[is_kept]
        hashes = _document_hashes(encoded, is_kept, hashes)
        groups = duplicate_groups(hashes, signatures, settings.near_duplicate_threshold)
        entries: list[ShardEntry] = []
        unknown = start = 0
        batch_ends = np.cumsum([batch.num_rows for batch in encoded])
        for batch, mask in zip(encoded, np.split(is_kept, batch_ends[:-1]), strict=True):
            stop = start + int(mask.sum())
            if stop > start:
                rows = batch if mask.all() else batch.filter(pa.array(mask))
                columns = {name: rows.column(name) for name in ("ids", "sentence_ends", "place")}
                shard = pa.record_batch({**columns, "hash": hashes[start:stop], "group": groups[start:stop]})
                entries.append(write_shard(folder / f"shard-{len(entries):05d}.arrow", shard))
                unknown += int(np.count_nonzero(list_values(rows, "ids") == self._tokenizer.unk_token_id))
            start = stop
        self._counts["unknown"] = unknown
        for name in ("documents", "sentences", "tokens"):
            self._counts[name] = sum(getattr(entry, name) for entry in entries)
        return entries

    def _finish(self, language: str, num_rejected: int) -> None:
        folder = self._state.folder
        entries: list[ShardEntry | FileEntry] = [*self._write_shards()]
        self._tokenizer.save(folder / "tokenizer")
        entries += [file_entry(f, f"tokenizer/{f.name}") for f in sorted((folder / "tokenizer").iterdir())]
        if num_rejected:
            entries.append(file_entry(folder / "rejects.jsonl"))
        self._dropped["files_empty"] = len(self._notes.empty)
        self._dropped["joiners_lost"] = lost_joiners(self.check.characters, self._tokenizer)
        counts = {**self._counts, **{name: n for name, n in self._dropped.items() if n}}
        write_manifest(
            folder,
            Manifest(
                vocab_size=self._tokenizer.vocab_size,
                tokenizer_digest=self._tokenizer.digest,
                language=language,
                near_duplicate_threshold=self._settings.near_duplicate_threshold,
                counts=counts | ({"rejected": num_rejected} if num_rejected else {}),
                skipped=self._notes.skipped_counts(),
                files=entries,
            ),
        )
        self._state.finish()


def _document_hashes(
    batches: Sequence[pa.RecordBatch], is_kept: NDArray[np.bool_], hashes: NDArray[np.uint64]
) -> NDArray[np.uint64]:
    """Return the hash of the document of each kept row: that of its first one, for documents of several rows."""
    heads = pa.chunked_array([batch.column("head") for batch in batches])
    if heads.null_count == len(heads):
        return hashes
    starts = pc.coalesce(heads, pa.chunked_array([batch.column("place") for batch in batches]))
    heads, starts = (column.filter(pa.array(is_kept)) for column in (heads, starts))
    # If the previous row belongs to another document, the document's first rows have no tokens or were dropped.
    is_continuation = heads.is_valid().to_numpy()
    is_continuation &= np.append(False, pc.equal(starts[1:], starts[:-1]).to_numpy())
    first_rows = np.maximum.accumulate(np.where(is_continuation, 0, np.arange(len(hashes))))
    return hashes[first_rows]


def _encoder(
    engine: str, tokenizer: Tokenizer, workers: int | None, address: str | None
) -> Callable[[Iterable[list[Document]], str], Iterator[EncodedPortion]]:
    """Return the function that encodes portions of a language with an engine."""
    if engine == "ray":
        return lambda portions, language: encode_with_ray(portions, tokenizer, language, workers, address)
    return lambda portions, language: encode_locally(portions, tokenizer, language, workers or 1)


def _num_workers(workers: int | None, max_ram: int | None, engine: str) -> int | None:
    if workers is not None and not 1 <= workers <= 1024:
        message, hint = f"{workers} is not from 1 to 1024", "use about as many workers as there are cores"
        raise InputError("workers_out_of_range", message, argument="workers", hint=hint)
    if engine == "ray":
        return workers
    workers = workers or min(hardware.available_cores(), _MAX_WORKERS)
    if max_ram is None:
        return workers
    affordable = (max_ram - _BASE_BYTES) // _WORKER_BYTES
    if affordable < 1:
        minimum = (_BASE_BYTES + _WORKER_BYTES) / 1e6
        message = f"{max_ram / 1e6:,.0f} MB of memory is too little"
        hint = f"give {minimum:,.0f} MB or more"
        raise InputError("max_ram_too_small", message, argument="max_ram", hint=hint)
    return min(workers, affordable)


def request_key(
    files: Sequence[str | Path | Table], tokenizer: Tokenizer, settings: PrepareSettings
) -> dict[str, object]:
    """Return everything that must be equal for an interrupted preparation to resume."""
    return {
        "files": [state for file in files if (state := _file_state(file)) is not None],
        "tokenizer": tokenizer.digest,
        "choices": asdict(settings),
        "format": [FORMAT, _PORTION_BYTES, _SHARD_TOKENS],
    }


def _file_state(file: str | Path | Table) -> tuple[object, ...] | None:
    """Return the name, size, and time or digest of a file; None for a missing file, which its reader reports."""
    if isinstance(file, Table):
        return file.name, file.size, file.digest
    try:
        status = os.stat(file)
    except OSError:
        return None
    return str(file), status.st_size, status.st_mtime_ns
