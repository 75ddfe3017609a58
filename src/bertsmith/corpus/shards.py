"""Token shards on disk: Arrow files, a row a document, memory-mapped, with a manifest that vouches for them.

Any Arrow tool opens them. Columns: `ids` (list<uint16>, or uint32 from 65,536 tokens on), `sentence_ends`
(list<int32>, exclusive ends within the document), `place` (string, `path:line`), `hash` (uint64, of the
ids). A document too long to be held whole is several rows, and each has the hash of the first: what is decided by
hashes, as which documents are held out, is decided for all of it. `manifest.json` is written last: a folder
without it is no data folder. `tokenizer/` is a copy of the tokenizer.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from bertsmith import notebook
from bertsmith.corpus.manifest import AGAIN, FileEntry, Manifest, ShardEntry, file_entry, read_manifest
from bertsmith.errors import InputError
from bertsmith.formatting import counted
from bertsmith.io import atomic
from bertsmith.tokenizer.tokenizer import Tokenizer


@dataclass(frozen=True)
class Rows:
    """Some documents, encoded: what preparation makes of one portion and one shard holds.

    `ids` [N] of all documents end to end (uint16 or uint32); `lengths` int64 [D] tokens of each document;
    `sentence_ends` int32 [S] within their documents; `sentence_counts` int64 [D]; `places` D strings;
    `hashes` uint64 [D]. `heads`, by the numbers of rows that go on a document: the place that it begins at (not
    in a shard; empty there).
    """

    ids: NDArray[Any]
    lengths: NDArray[np.int64]
    sentence_ends: NDArray[np.int32]
    sentence_counts: NDArray[np.int64]
    places: list[str]
    hashes: NDArray[np.uint64]
    heads: dict[int, str] = field(default_factory=dict)


def id_type(vocab_size: int) -> type[np.uint16] | type[np.uint32]:
    """The narrowest type that holds the ids of a vocabulary."""
    return np.uint16 if vocab_size < 65_536 else np.uint32


def hash_of(ids: NDArray[Any]) -> int:
    """A document's identity: the first 8 bytes (little-endian) of blake2b over its ids as uint32."""
    return int.from_bytes(hashlib.blake2b(ids.astype("<u4").tobytes()).digest()[:8], "little")


def batch_of(rows: Sequence[Rows]) -> pa.RecordBatch:
    """Some rows as one Arrow batch, a document a row: what a shard holds, and what workers send."""
    lengths = np.concatenate([r.lengths for r in rows])
    counts = np.concatenate([r.sentence_counts for r in rows])
    return pa.record_batch(
        {
            "ids": _lists(lengths, np.concatenate([r.ids for r in rows])),
            "sentence_ends": _lists(counts, np.concatenate([r.sentence_ends for r in rows])),
            "place": pa.array([place for r in rows for place in r.places], pa.string()),
            "hash": pa.array(np.concatenate([r.hashes for r in rows])),
        }
    )


def rows_of(batch: pa.RecordBatch) -> Rows:
    """What `batch_of` was given, but for the heads."""
    return Rows(
        ids=_values(batch, "ids"),
        lengths=_sizes(batch, "ids"),
        sentence_ends=_values(batch, "sentence_ends"),
        sentence_counts=_sizes(batch, "sentence_ends"),
        places=batch.column("place").to_pylist(),
        hashes=batch.column("hash").to_numpy(zero_copy_only=False),
    )


def write_shard(path: Path, rows: Sequence[Rows]) -> ShardEntry:
    """Write one Arrow file of some rows, flushed to the disk; its entry for the manifest."""
    # One batch a file: each column is then one array over the mapped bytes.
    batch = batch_of(rows)
    with open(path, "wb") as file, pa.ipc.new_file(file, batch.schema) as writer:
        writer.write_batch(batch)
    atomic.synchronise(path)
    sizes = {"documents": batch.num_rows, "sentences": len(_values(batch, "sentence_ends"))}
    return ShardEntry(**file_entry(path).model_dump(), **sizes, tokens=len(_values(batch, "ids")))


class Shards:
    """A prepared corpus of D documents, S sentences and N tokens, opened for reading.

    `documents` D; `tokens` N; `sentence_ends` int64 [S], where each sentence ends among all tokens;
    `document_sentences` int64 [D+1], how many sentences stand before each document; `hashes` uint64 [D];
    `counts`, what preparation counted; `skipped`, the files that it passed over, by suffix; `vocab_size`,
    `tokenizer_digest`, `language`. The ids stay on disk until `take` asks for some.
    """

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        """Use `Shards.open`."""
        self.folder = folder
        self._files = manifest.files
        self._shards = manifest.shards
        self.vocab_size = manifest.vocab_size
        self.tokenizer_digest = manifest.tokenizer_digest
        self.language = manifest.language
        self.counts, self.skipped = manifest.counts, manifest.skipped
        self._batches = [_batch(folder, entry, self.vocab_size) for entry in self._shards]
        self._ids: list[NDArray[Any]] = [_values(batch, "ids") for batch in self._batches]
        self._token_starts = _starts([len(ids) for ids in self._ids])
        self._document_starts = _starts([batch.num_rows for batch in self._batches])
        self.tokens = int(self._token_starts[-1])
        self.documents = int(self._document_starts[-1])
        self.sentence_ends = self._sentence_ends()
        self.document_sentences = _starts(np.concatenate([_sizes(b, "sentence_ends") for b in self._batches]))
        self.hashes: NDArray[np.uint64] = np.concatenate(
            [batch.column("hash").to_numpy(zero_copy_only=False) for batch in self._batches]
        )

    def __repr__(self) -> str:
        return f"Shards({str(self.folder)!r}, {self.documents:,} documents, {self.tokens:,} tokens)"

    def __len__(self) -> int:
        """D, as `documents`."""
        return self.documents

    def _repr_html_(self) -> str:
        facts = {"folder": str(self.folder), "language": self.language, "vocabulary": self.vocab_size}
        return notebook.page("Token shards", {**facts, **self.counts})

    @classmethod
    def open(cls, folder: str | Path) -> Shards:
        """Open a data folder; sizes and counts are checked, contents by `verify`.

        Raises `InputError` that names the file for one that is missing, torn, or not what the manifest says.
        """
        folder = Path(folder)
        manifest = read_manifest(folder)
        for entry in manifest.files:
            _check_size(folder, entry)
        return cls(folder, manifest)

    def verify(self) -> None:
        """Read every file and compare its sha256; the first that differs is an `InputError`."""
        for entry in self._files:
            path = self.folder / entry.name
            _check_size(self.folder, entry)
            if atomic.digest(path) != entry.sha256:
                raise InputError(f"{path}: its contents changed since it was written (sha256 differs)", AGAIN)

    def take(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """The ids at some positions among all N tokens: int64 [n] → int64 [n]. Only their pages are read.

        Raises `InputError` for an id outside of the vocabulary: ids are looked at when they are read, so that
        opening costs no pass over all of them.
        """
        if len(positions) and (positions.min() < 0 or positions.max() >= self.tokens):
            raise IndexError(f"positions lie outside of 0 to {self.tokens - 1}")
        if len(self._ids) == 1:
            found: NDArray[np.int64] = self._ids[0][positions].astype(np.int64)
        else:
            found = np.empty(len(positions), dtype=np.int64)
            shard = np.searchsorted(self._token_starts, positions, side="right") - 1
            for i in np.unique(shard):
                here = shard == i
                found[here] = self._ids[i][positions[here] - self._token_starts[i]]
        if len(found) and found.max() >= self.vocab_size:
            raise self._outside(int(positions[found.argmax()]))
        return found

    def lay(
        self,
        starts: NDArray[np.int64],
        lengths: NDArray[np.int64],
        out: NDArray[np.int64],
        at: NDArray[np.int64],
    ) -> None:
        """Copy runs of ids, each within a document: run k becomes out[at[k] : at[k] + lengths[k]].

        Quicker than `take` for runs: what is contiguous on disk is copied so. Raises as `take`.
        """
        shard = np.searchsorted(self._token_starts, starts, side="right") - 1
        begin = starts - self._token_starts[shard]
        for i, source, target, n in zip(
            shard.tolist(), begin.tolist(), at.tolist(), lengths.tolist(), strict=True
        ):
            out[target : target + n] = self._ids[i][source : source + n]
        if out.max(initial=0) >= self.vocab_size:  # asked once: for each run it would cost more than copying
            for start, target, n in zip(starts.tolist(), at.tolist(), lengths.tolist(), strict=True):
                run = out[target : target + n]
                if run.max(initial=0) >= self.vocab_size:
                    raise self._outside(start + int(run.argmax()))

    def _outside(self, position: int) -> InputError:
        shard = int(np.searchsorted(self._token_starts, position, side="right")) - 1
        found = int(self._ids[shard][position - int(self._token_starts[shard])])
        return InputError(
            f"{self.folder / self._shards[shard].name}: the token id {found} is outside of the vocabulary of "
            f"{self.vocab_size}",
            AGAIN,
        )

    def place(self, document: int) -> str:
        """Where a document stood: `path:line` of its first line."""
        shard = int(np.searchsorted(self._document_starts, document, side="right")) - 1
        return str(self._batches[shard].column("place")[document - int(self._document_starts[shard])].as_py())

    def files(self) -> list[str]:
        """The files that the documents stood in, in their order."""
        places = pa.chunked_array([batch.column("place") for batch in self._batches])
        found: list[str] = pc.unique(pc.replace_substring_regex(places, r":\d+$", "")).to_pylist()
        return found

    def info(self) -> dict[str, Any]:
        """What there is to say of the data: plain JSON."""
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
        """The tokenizer that made the ids, from the folder's own copy."""
        tokenizer = Tokenizer.load(self.folder / "tokenizer")
        if (tokenizer.digest, tokenizer.vocab_size) != (self.tokenizer_digest, self.vocab_size):
            raise InputError(f"{self.folder / 'tokenizer'}: this is not the tokenizer of these shards", AGAIN)
        return tokenizer

    def _sentence_ends(self) -> NDArray[np.int64]:
        ends = []
        for batch, before in zip(self._batches, self._token_starts[:-1], strict=True):
            document_starts = _starts(_sizes(batch, "ids"))[:-1] + before
            ends.append(
                _values(batch, "sentence_ends") + document_starts.repeat(_sizes(batch, "sentence_ends"))
            )
        return np.concatenate(ends)


def _starts(lengths: Sequence[int] | NDArray[Any]) -> NDArray[np.int64]:
    """[n] lengths → [n+1] where each begins, and the total."""
    return np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]).astype(np.int64)


def _lists(lengths: NDArray[np.int64], values: NDArray[Any]) -> pa.ListArray:
    return pa.ListArray.from_arrays(pa.array(_starts(lengths).astype(np.int32)), pa.array(values))


def _values(batch: pa.RecordBatch, column: str) -> NDArray[Any]:
    values: NDArray[Any] = batch.column(column).values.to_numpy(zero_copy_only=True)
    return values


def _sizes(batch: pa.RecordBatch, column: str) -> NDArray[np.int64]:
    offsets: NDArray[np.int32] = batch.column(column).offsets.to_numpy()
    return np.diff(offsets).astype(np.int64)


def _batch(folder: Path, entry: ShardEntry, vocab_size: int) -> pa.RecordBatch:
    """The batch of a shard, over the mapped file. All but the ids is read and checked."""
    path = folder / entry.name
    try:
        with pa.ipc.open_file(pa.memory_map(str(path))) as file:
            columns = {field.name: field.type for field in file.schema}
            if columns != _columns(vocab_size) or file.num_record_batches != 1:
                raise InputError(f"{path}: its columns are not those of a shard of this vocabulary", AGAIN)
            batch = file.get_batch(0)
        batch.validate(full=True)  # offsets in bounds and in order; does not read the ids
    except (pa.ArrowException, OSError, UnicodeDecodeError):  # the last: of a name of a column
        raise InputError(f"{path}: this is not a whole Arrow file", AGAIN) from None
    lists = [batch.column("ids"), batch.column("sentence_ends")]
    if any(column.null_count for column in (*batch.columns, *(column.values for column in lists))):
        raise InputError(f"{path}: a value is missing in it", AGAIN)
    sizes = [len(column.values) for column in lists]
    if (batch.num_rows, *sizes) != (entry.documents, entry.tokens, entry.sentences):
        raise InputError(f"{path}: it does not hold as many documents as the manifest says", AGAIN)
    whole = all(
        (column.offsets[0].as_py(), column.offsets[-1].as_py()) == (0, size)
        for column, size in zip(lists, sizes, strict=True)
    )
    if not whole or not _filled(batch):
        raise InputError(f"{path}: its sentences do not fill its documents", AGAIN)
    return batch


def _columns(vocab_size: int) -> dict[str, pa.DataType]:
    ids = pa.list_(pa.from_numpy_dtype(id_type(vocab_size)))
    return {"ids": ids, "sentence_ends": pa.list_(pa.int32()), "place": pa.string(), "hash": pa.uint64()}


def _filled(batch: pa.RecordBatch) -> bool:
    """Whether each document has sentences, none of them empty, and the last one ends where the document does."""
    ends, counts = _values(batch, "sentence_ends"), _sizes(batch, "sentence_ends")
    if counts.min() < 1:
        return False
    last = np.cumsum(counts) - 1
    rises = np.diff(ends, prepend=0) > 0
    rises[last[:-1] + 1] = ends[last[:-1] + 1] > 0  # a document's first sentence has none before it
    return bool(rises.all() and (ends[last] == _sizes(batch, "ids")).all())


def _check_size(folder: Path, entry: FileEntry) -> None:
    path = folder / entry.name
    if not path.is_file():
        raise InputError(f"{path}: this file is missing", AGAIN)
    if path.stat().st_size != entry.size:
        raise InputError(
            f"{path}: it has {counted(path.stat().st_size, 'byte')} and should have {entry.size:,}", AGAIN
        )
