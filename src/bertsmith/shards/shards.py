"""Token shards on disk: Arrow files, a row a document, memory-mapped, with a manifest that vouches for them.

Any Arrow tool opens them. Columns: `ids` (list<uint16>, or uint32 from 65,536 tokens on), `sentence_ends`
(list<int32>, exclusive ends within the document), `place` (string, `path:line`), `hash` (uint64, of the
ids). `manifest.json` is written last: a folder without it is no data folder. `tokenizer/` is a copy of the
tokenizer.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from bertsmith import disk
from bertsmith.errors import InputError
from bertsmith.tokenizer.tokenizer import Tokenizer

FORMAT = 1
_AGAIN = "prepare the data again, or copy the folder from its source again"


@dataclass(frozen=True)
class Rows:
    """Some documents, encoded: what preparation makes of one portion and one shard holds.

    `ids` [N] of all documents end to end (uint16 or uint32); `lengths` int64 [D] tokens of each document;
    `sentence_ends` int32 [S] within their documents; `sentence_counts` int64 [D]; `places` D strings;
    `hashes` uint64 [D].
    """

    ids: NDArray[Any]
    lengths: NDArray[np.int64]
    sentence_ends: NDArray[np.int32]
    sentence_counts: NDArray[np.int64]
    places: list[str]
    hashes: NDArray[np.uint64]


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
    """What `batch_of` was given."""
    return Rows(
        ids=_values(batch, "ids"),
        lengths=_sizes(batch, "ids"),
        sentence_ends=_values(batch, "sentence_ends"),
        sentence_counts=_sizes(batch, "sentence_ends"),
        places=batch.column("place").to_pylist(),
        hashes=batch.column("hash").to_numpy(zero_copy_only=False),
    )


def write_shard(path: Path, rows: Sequence[Rows]) -> dict[str, Any]:
    """Write one Arrow file of some rows, flushed to the disk; its entry for the manifest."""
    # One batch a file: each column is then one array over the mapped bytes.
    batch = batch_of(rows)
    with open(path, "wb") as file, pa.ipc.new_file(file, batch.schema) as writer:
        writer.write_batch(batch)
    disk.synchronise(path)
    sizes = {"documents": batch.num_rows, "sentences": len(_values(batch, "sentence_ends"))}
    return {**file_entry(path), **sizes, "tokens": len(_values(batch, "ids"))}


def file_entry(path: Path, name: str | None = None) -> dict[str, Any]:
    """A file's entry for the manifest: name, size in bytes, sha256."""
    return {"name": name or path.name, "size": path.stat().st_size, "sha256": disk.digest(path)}


def write_manifest(folder: Path, manifest: dict[str, Any]) -> None:
    """Write `manifest.json`, whole or not at all. The last file of a data folder."""
    text = json.dumps({"format": FORMAT, **manifest}, indent=1, ensure_ascii=False) + "\n"
    disk.write_text(folder / "manifest.json", text)


class Shards:
    """A prepared corpus of D documents, S sentences and N tokens, opened for reading.

    `documents` D; `tokens` N; `sentence_ends` int64 [S], where each sentence ends among all tokens;
    `document_sentences` int64 [D+1], how many sentences stand before each document; `hashes` uint64 [D];
    `counts`, what preparation counted; `vocab_size`, `tokenizer_digest`, `language`. The ids stay on disk
    until `take` asks for some.
    """

    def __init__(self, folder: Path, manifest: dict[str, Any]) -> None:
        """Use `Shards.open`."""
        self.folder = folder
        self._files: list[dict[str, Any]] = manifest["files"]
        self.vocab_size = int(manifest["vocab_size"])
        self.tokenizer_digest = str(manifest["tokenizer_digest"])
        self.language = str(manifest["language"])
        self.counts: dict[str, int] = manifest["counts"]
        self._batches = [_batch(folder, entry) for entry in self._files if "documents" in entry]
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

    @classmethod
    def open(cls, folder: str | Path) -> Shards:
        """Open a data folder; sizes and counts are checked, contents by `verify`.

        Raises `InputError` that names the file for one that is missing, torn, or not what the manifest says.
        """
        folder = Path(folder)
        manifest = _manifest(folder)
        try:
            if manifest["format"] != FORMAT:
                raise InputError(
                    f"{folder / 'manifest.json'}: format {manifest['format']} is not known here",
                    "prepare the data again, or use the version of bertsmith that did",
                )
            for entry in manifest["files"]:
                _check_size(folder, entry)
            return cls(folder, manifest)
        except (KeyError, TypeError, AttributeError):
            raise InputError(
                f"{folder / 'manifest.json'}: an entry is missing or of another kind", _AGAIN
            ) from None

    def verify(self) -> None:
        """Read every file and compare its sha256; the first that differs is an `InputError`."""
        for entry in self._files:
            path = self.folder / entry["name"]
            if file_entry(path)["sha256"] != entry["sha256"]:
                raise InputError(
                    f"{path}: its contents changed since it was written (sha256 differs)", _AGAIN
                )

    def take(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """The ids at some positions among all N tokens: int64 [n] → int64 [n]. Only their pages are read."""
        if len(self._ids) == 1:
            return self._ids[0][positions].astype(np.int64)
        if len(positions) and (positions.min() < 0 or positions.max() >= self.tokens):
            raise IndexError(f"positions lie outside of 0 to {self.tokens - 1}")
        found = np.empty(len(positions), dtype=np.int64)
        shard = np.searchsorted(self._token_starts, positions, side="right") - 1
        for i in np.unique(shard):
            here = shard == i
            found[here] = self._ids[i][positions[here] - self._token_starts[i]]
        return found

    def lay(
        self,
        starts: NDArray[np.int64],
        lengths: NDArray[np.int64],
        out: NDArray[np.int64],
        at: NDArray[np.int64],
    ) -> None:
        """Copy runs of ids, each within a document: run k becomes out[at[k] : at[k] + lengths[k]].

        Quicker than `take` for runs: what is contiguous on disk is copied so.
        """
        shard = np.searchsorted(self._token_starts, starts, side="right") - 1
        begin = starts - self._token_starts[shard]
        for i, source, target, n in zip(
            shard.tolist(), begin.tolist(), at.tolist(), lengths.tolist(), strict=True
        ):
            out[target : target + n] = self._ids[i][source : source + n]

    def place(self, document: int) -> str:
        """Where a document stood: `path:line` of its first line."""
        shard = int(np.searchsorted(self._document_starts, document, side="right")) - 1
        return str(self._batches[shard].column("place")[document - int(self._document_starts[shard])].as_py())

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer that made the ids, from the folder's own copy."""
        tokenizer = Tokenizer.load(self.folder / "tokenizer")
        if tokenizer.digest != self.tokenizer_digest:
            raise InputError(
                f"{self.folder / 'tokenizer'}: this is not the tokenizer of these shards", _AGAIN
            )
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


def _batch(folder: Path, entry: dict[str, Any]) -> pa.RecordBatch:
    path = folder / entry["name"]
    try:
        batch = pa.ipc.open_file(pa.memory_map(str(path))).get_batch(0)
        batch.validate(full=True)  # offsets in bounds and in order; does not read the ids
        found = (batch.num_rows, len(batch.column("sentence_ends").values), len(batch.column("ids").values))
    except (pa.ArrowException, OSError, KeyError, AttributeError):
        raise InputError(f"{path}: this is not a whole Arrow file", _AGAIN) from None
    if found != (entry["documents"], entry["sentences"], entry["tokens"]):
        raise InputError(f"{path}: it does not hold as many documents as the manifest says", _AGAIN)
    ends, counts = _values(batch, "sentence_ends"), _sizes(batch, "sentence_ends")
    last = np.cumsum(counts) - 1
    inside = np.diff(ends, prepend=0) > 0
    inside[last[:-1] + 1] = ends[last[:-1] + 1] > 0  # a document's first sentence has none before it
    if counts.min() < 1 or not inside.all() or (ends[last] != _sizes(batch, "ids")).any():
        raise InputError(f"{path}: its sentences do not fill its documents", _AGAIN)
    return batch


def _check_size(folder: Path, entry: dict[str, Any]) -> None:
    path = folder / entry["name"]
    if not path.is_file():
        raise InputError(f"{path}: this file is missing", _AGAIN)
    if path.stat().st_size != entry["size"]:
        raise InputError(
            f"{path}: it has {path.stat().st_size} bytes and should have {entry['size']}", _AGAIN
        )


def _manifest(folder: Path) -> dict[str, Any]:
    path = folder / "manifest.json"
    try:
        manifest = json.loads(path.read_bytes().decode("utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise InputError(
            f"{folder}: there is no manifest.json, so this is no prepared data",
            "make it with bertsmith data prepare",
        ) from None
    except (UnicodeDecodeError, json.JSONDecodeError):
        raise InputError(f"{path}: this is not whole JSON", _AGAIN) from None
    if not isinstance(manifest, dict):
        raise InputError(f"{path}: this is not a JSON object", _AGAIN)
    return manifest
