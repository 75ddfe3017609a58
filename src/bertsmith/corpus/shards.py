"""Token shards: memory-mapped Arrow files with one row per document, and a manifest with their digests.

Any Arrow tool opens them. Columns: `ids` (list<uint16>, or uint32 for vocabularies of 65,536 tokens or more),
`sentence_ends` (list<int32>, exclusive ends within the document), `place` (string, `path:line`), `hash` (uint64,
of the ids), `group` (int64, the index of the first document of the corpus that is an exact or near-duplicate). A
document too long for memory is several rows, each with the hash of the first, so that whatever is decided by hash
(such as the validation split) is decided for the whole document. `manifest.json` is written last: a folder without
it is no data folder. `tokenizer/` is a copy of the tokenizer.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from bertsmith import notebook
from bertsmith.corpus.manifest import (
    MANIFEST_FILE,
    FileEntry,
    Manifest,
    ShardEntry,
    damaged_data_error,
    file_entry,
    read_manifest,
)
from bertsmith.formatting import pluralize
from bertsmith.io import atomic
from bertsmith.tokenizer.tokenizer import Tokenizer

IntArray = NDArray[np.int64]
HashArray = NDArray[np.uint64]
BoolArray = NDArray[np.bool_]
_Item = TypeVar("_Item")
_Corpus = TypeVar("_Corpus")


def id_dtype(vocab_size: int) -> type[np.uint16] | type[np.uint32]:
    """Return the smallest dtype that holds the ids of a vocabulary."""
    return np.uint16 if vocab_size < 65_536 else np.uint32


def document_hash(ids: NDArray[Any]) -> int:
    """Return the hash of a document: the first 8 bytes (little-endian) of blake2b over its ids as uint32."""
    return int.from_bytes(hashlib.blake2b(ids.astype("<u4").tobytes()).digest()[:8], "little")


def list_array(lengths: IntArray, values: NDArray[Any]) -> pa.ListArray:
    """Return the Arrow array of lists with these lengths [D] and concatenated values."""
    return pa.ListArray.from_arrays(pa.array(_offsets(lengths).astype(np.int32)), pa.array(values))


def list_values(batch: pa.RecordBatch, column: str) -> NDArray[Any]:
    """Return the concatenated values of the lists of a column."""
    values: NDArray[Any] = batch.column(column).values.to_numpy(zero_copy_only=True)
    return values


def concat_column(batches: Sequence[pa.RecordBatch], column: str) -> NDArray[Any]:
    """Return the values of a column of numbers of all batches."""
    values: NDArray[Any] = pa.chunked_array([batch.column(column) for batch in batches]).to_numpy()
    return values


def write_shard(path: Path, batch: pa.RecordBatch) -> ShardEntry:
    """Write documents to an Arrow file of one batch, flush it to the disk, and return its manifest entry."""
    with open(path, "wb") as file, pa.ipc.new_file(file, batch.schema) as writer:
        writer.write_batch(batch)
    atomic.fsync(path)
    counts = {"documents": batch.num_rows, "sentences": len(list_values(batch, "sentence_ends"))}
    return ShardEntry(**file_entry(path).model_dump(), **counts, tokens=len(list_values(batch, "ids")))


def read_batch(path: Path) -> pa.RecordBatch:
    """Return the batch of an Arrow file that `write_shard` wrote, over the mapped file.

    Raises:
        InputError: The file is damaged. Offsets out of range would crash the process later.
    """
    try:
        with pa.ipc.open_file(pa.memory_map(str(path))) as file:
            batch = file.get_batch(0)
        batch.validate(full=True)  # does not read the ids
    except (pa.ArrowException, OSError, MemoryError):
        message = "this is not a complete Arrow file"
        raise damaged_data_error("shard_damaged", message, location=path) from None
    return batch


class Shards:
    """A prepared corpus of D documents, S sentences, and N tokens, opened for reading.

    The token ids stay on disk until `copy_spans` reads some.

    Attributes:
        folder: The data folder.
        documents: D.
        tokens: N.
        sentence_ends: int64 [S], the end of each sentence among all tokens.
        document_sentence_offsets: int64 [D + 1], the number of sentences before each document, and S.
        hashes: uint64 [D], the hash of each document.
        duplicate_groups: int64 [D], the index of the first document of each document's duplicate group.
        counts: Counts from preparation.
        skipped: The number of files that preparation skipped, by suffix.
        vocab_size: The size of the vocabulary.
        tokenizer_digest: The digest of the tokenizer.
        language: The language code.
    """

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        """Open the shards; use `Shards.open`."""
        self.folder = folder
        self._files = manifest.files
        self._shards = manifest.shards
        self.vocab_size = manifest.vocab_size
        self.tokenizer_digest = manifest.tokenizer_digest
        self.language = manifest.language
        self.counts, self.skipped = manifest.counts, manifest.skipped
        self._batches = [_open_batch(folder, entry, self.vocab_size) for entry in self._shards]
        self._ids: list[NDArray[Any]] = [list_values(batch, "ids") for batch in self._batches]
        self._token_offsets = _offsets([len(ids) for ids in self._ids])
        self._document_offsets = _offsets([batch.num_rows for batch in self._batches])
        self.tokens = int(self._token_offsets[-1])
        self.documents = int(self._document_offsets[-1])
        self.sentence_ends = self._global_sentence_ends()
        self.document_sentence_offsets = _offsets(
            np.concatenate([_list_lengths(batch, "sentence_ends") for batch in self._batches])
        )
        self.hashes: HashArray = concat_column(self._batches, "hash")
        self.duplicate_groups: IntArray = concat_column(self._batches, "group")

    def __repr__(self) -> str:
        return f"Shards({str(self.folder)!r}, {self.documents:,} documents, {self.tokens:,} tokens)"

    def __len__(self) -> int:
        """Return the number of documents."""
        return self.documents

    def _repr_html_(self) -> str:
        rows = {"folder": str(self.folder), "language": self.language, "vocabulary": self.vocab_size}
        return notebook.render_page("Token shards", {**rows, **self.counts})

    @classmethod
    def open(cls, folder: str | Path) -> Shards:
        """Open a data folder; check sizes and counts, but not contents (see `verify`).

        Args:
            folder: A folder that `prepare` wrote.

        Returns:
            The opened corpus.

        Raises:
            InputError: A file is missing, damaged, or differs from the manifest.
        """
        folder = Path(folder)
        manifest = read_manifest(folder)
        for entry in manifest.files:
            _check_size(folder, entry)
        return cls(folder, manifest)

    def verify(self) -> None:
        """Read every file and compare its SHA-256.

        Raises:
            InputError: A file differs; the location is the first such file.
        """
        for entry in self._files:
            path = self.folder / entry.name
            _check_size(self.folder, entry)
            if atomic.sha256_of_file(path) != entry.sha256:
                message = "its contents changed since it was written (the SHA-256 differs)"
                raise damaged_data_error("file_changed", message, location=path)

    def take(self, positions: IntArray) -> IntArray:
        """Return the token ids at some positions.

        Args:
            positions: int64 [n], positions among all N tokens.

        Returns:
            int64 [n], the token ids.

        Raises:
            IndexError: A position is out of range.
            InputError: An id is outside the vocabulary.
        """
        if len(positions) and (positions.min() < 0 or positions.max() >= self.tokens):
            raise IndexError(f"positions are not all in 0 to {self.tokens - 1}")
        ids = np.empty(len(positions), dtype=np.int64)
        self.copy_spans(positions, np.ones_like(positions), ids, np.arange(len(positions)))
        return ids

    def copy_spans(self, starts: IntArray, lengths: IntArray, out: IntArray, target_starts: IntArray) -> None:
        """Copy spans of token ids, each within a document.

        Span k goes to out[target_starts[k] : target_starts[k] + lengths[k]]. Only the pages of the spans are
        read.

        Args:
            starts: int64 [K], the start of each span among all N tokens.
            lengths: int64 [K], tokens per span.
            out: int64, the array to write to.
            target_starts: int64 [K], the start of each span in `out`.

        Raises:
            InputError: An id is outside the vocabulary. Ids are checked when they are read, so that opening the
                corpus does not read all of them.
        """
        shards = np.searchsorted(self._token_offsets, starts, side="right") - 1
        local_starts = starts - self._token_offsets[shards]
        for i, source, target, n in zip(
            shards.tolist(), local_starts.tolist(), target_starts.tolist(), lengths.tolist(), strict=True
        ):
            out[target : target + n] = self._ids[i][source : source + n]
        # One check for all spans: a check of each costs more than copying.
        if out.max(initial=0) >= self.vocab_size:
            for i, target, n in zip(shards.tolist(), target_starts.tolist(), lengths.tolist(), strict=True):
                token_id = int(out[target : target + n].max(initial=0))
                if token_id >= self.vocab_size:
                    message = f"the token id {token_id} is outside the vocabulary of {self.vocab_size}"
                    location = self.folder / self._shards[i].name
                    raise damaged_data_error("token_id_out_of_range", message, location=location)

    def location(self, document: int) -> str:
        """Return the location of the first line of a document, `path:line`."""
        shard = int(np.searchsorted(self._document_offsets, document, side="right")) - 1
        row = document - int(self._document_offsets[shard])
        return str(self._batches[shard].column("place")[row].as_py())

    def files(self) -> list[str]:
        """Return the source files of the documents, in order."""
        locations = pa.chunked_array([batch.column("place") for batch in self._batches])
        files: list[str] = pc.unique(pc.replace_substring_regex(locations, r":\d+$", "")).to_pylist()
        return files

    def info(self) -> dict[str, Any]:
        """Return a description of the corpus as plain JSON values."""
        return {
            "path": str(self.folder),
            **self.counts,
            "files": self.files(),
            "shards": len(self._shards),
            "bytes_on_disk": sum(entry.size for entry in self._files),
            "language": self.language,
            "tokenizer": self.tokenizer.info(),
        }

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """Load the tokenizer that encoded the corpus, from its copy in the folder."""
        folder = self.folder / "tokenizer"
        tokenizer = Tokenizer.load(folder)
        if (tokenizer.digest, tokenizer.vocab_size) != (self.tokenizer_digest, self.vocab_size):
            message = "this is not the tokenizer of these shards"
            raise damaged_data_error("tokenizer_mismatch", message, location=folder)
        return tokenizer

    def _global_sentence_ends(self) -> IntArray:
        ends = []
        for batch, offset in zip(self._batches, self._token_offsets[:-1], strict=True):
            document_starts = _offsets(_list_lengths(batch, "ids"))[:-1] + offset
            sentence_counts = _list_lengths(batch, "sentence_ends")
            ends.append(list_values(batch, "sentence_ends") + document_starts.repeat(sentence_counts))
        return np.concatenate(ends)


def open_prepared(corpus: _Corpus) -> _Corpus | Shards:
    """Open a corpus that is the path of prepared data; return any other corpus as it is."""
    if isinstance(corpus, str | Path) and os.path.isfile(Path(corpus, MANIFEST_FILE)):
        return Shards.open(corpus)
    return corpus


def _offsets(lengths: Sequence[int] | NDArray[Any]) -> IntArray:
    """Return the start of each of n parts and the total, [n + 1], from their lengths, [n]."""
    return np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]).astype(np.int64)


def _list_lengths(batch: pa.RecordBatch, column: str) -> IntArray:
    offsets: NDArray[np.int32] = batch.column(column).offsets.to_numpy()
    return np.diff(offsets).astype(np.int64)


def _open_batch(folder: Path, entry: ShardEntry, vocab_size: int) -> pa.RecordBatch:
    """Return the batch of a shard over the mapped file, and check everything but the ids."""
    path = folder / entry.name
    batch = read_batch(path)
    if batch.schema != pa.schema(_column_types(vocab_size)):
        message = "its columns are not those of a shard of this vocabulary"
        raise damaged_data_error("shard_columns", message, location=path)
    lists = [batch.column("ids"), batch.column("sentence_ends")]
    if any(column.null_count for column in (*batch.columns, *(column.values for column in lists))):
        raise damaged_data_error("shard_value_missing", "a value is missing", location=path)
    num_values = [len(column.values) for column in lists]
    if (batch.num_rows, *num_values) != (entry.documents, entry.tokens, entry.sentences):
        message = "it does not hold as many documents as the manifest says"
        raise damaged_data_error("shard_counts", message, location=path)
    is_complete = all(
        (column.offsets[0].as_py(), column.offsets[-1].as_py()) == (0, count)
        for column, count in zip(lists, num_values, strict=True)
    )
    if not is_complete or not _sentences_fill_documents(batch):
        raise damaged_data_error("shard_sentences", "its sentences do not fill its documents", location=path)
    return batch


def _column_types(vocab_size: int) -> dict[str, pa.DataType]:
    ids = pa.list_(pa.from_numpy_dtype(id_dtype(vocab_size)))
    columns = {"ids": ids, "sentence_ends": pa.list_(pa.int32()), "place": pa.string()}
    return columns | {"hash": pa.uint64(), "group": pa.int64()}


def _sentences_fill_documents(batch: pa.RecordBatch) -> bool:
    """Check that each document has sentences, none is empty, and the last one ends with the document."""
    ends, counts = list_values(batch, "sentence_ends"), _list_lengths(batch, "sentence_ends")
    if counts.min() < 1:
        return False
    last = np.cumsum(counts) - 1
    is_ascending = np.diff(ends, prepend=0) > 0
    first = last[:-1] + 1
    is_ascending[first] = ends[first] > 0  # The first sentence of a document has no predecessor.
    return bool(is_ascending.all() and (ends[last] == _list_lengths(batch, "ids")).all())


def _check_size(folder: Path, entry: FileEntry) -> None:
    path = folder / entry.name
    if not path.is_file():
        raise damaged_data_error("file_missing", "this file is missing", location=path)
    if path.stat().st_size != entry.size:
        message = f"it has {pluralize(path.stat().st_size, 'byte')} and should have {entry.size:,}"
        raise damaged_data_error("file_size", message, location=path)


def batches(items: Iterable[_Item], size_of: Callable[[_Item], int], size: int) -> Iterator[list[_Item]]:
    """Yield consecutive items in batches; a batch ends with the item with which it reaches `size`."""
    batch: list[_Item] = []
    total = 0
    for item in items:
        batch.append(item)
        total += size_of(item)
        if total >= size:
            yield batch
            batch, total = [], 0
    if batch:
        yield batch
