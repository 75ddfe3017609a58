"""An index: texts with their vectors in a folder that is whole or not there, and knows whose vectors they are.

index.json (what it is, and each file's size and hash), vectors.npy (float32, of length 1, mapped into memory),
texts.arrow (the texts with their places and ids), and hnsw.faiss where approximate search was asked for.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from bertsmith.errors import InputError, MachineError
from bertsmith.formatting import counted
from bertsmith.io import atomic
from bertsmith.models.pooling import Pooling
from bertsmith.retrieval.approximate import GRAPH, Recall, build_graph, candidates, library, open_graph
from bertsmith.retrieval.exact import exact_products, nearest_vectors, unit_length
from bertsmith.retrieval.vector_file import mapped, vector_file

MANIFEST, VECTORS, TEXTS = "index.json", "vectors.npy", "texts.arrow"
LAYOUT = atomic.FolderLayout("an index", MANIFEST, (MANIFEST, VECTORS, TEXTS, GRAPH))
_AGAIN = "build it again: bertsmith embed MODEL --file FILE --index DIR"
_AGAIN_PYTHON = "build it again: model.index(texts, out)"
_CHUNK = 4096  # texts at a time
_SCHEMA = pa.schema([("text", pa.large_string()), ("place", pa.string()), ("id", pa.string())])


class TextRow(NamedTuple):
    """A text, where it is, and what it is called there (its line, where it has no name)."""

    text: str
    place: str
    id: str


class Whose(BaseModel):
    """What makes an index's vectors. model: the path it was loaded by; digest: of its weights and tokenizer."""

    model_config = ConfigDict(frozen=True)
    model: str
    digest: str
    pooling: Pooling
    max_length: int | None = Field(None, ge=1)


class _File(BaseModel):
    size: int = Field(ge=0)
    sha256: str


class _Manifest(BaseModel):
    kind: Literal["bertsmith index"] = "bertsmith index"
    format: Literal[1] = 1
    version: str
    texts: int = Field(ge=1)
    dimension: int = Field(ge=1)
    whose: Whose
    approximate: Recall | None = None
    files: dict[str, _File]


class Index:
    """An index that was opened: every file is as it was written, or it is refused by an InputError."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self._manifest = _manifest(self.folder)
        for name, file in self._manifest.files.items():
            if name not in LAYOUT.names:
                raise _broken(f"{self.folder / MANIFEST}: '{name}' is no file of an index")
            _check(self.folder / name, file)
        self.vectors = mapped(self.folder / VECTORS)
        wanted = (self._manifest.texts, self._manifest.dimension)
        if self.vectors.shape != wanted:
            raise _broken(f"{self.folder / VECTORS}: its shape is {self.vectors.shape}, not {wanted}")
        self._texts = _texts(self.folder / TEXTS, self._manifest.texts)
        self._graph: Any = None

    def __len__(self) -> int:
        return self._manifest.texts

    def __repr__(self) -> str:
        return f"Index({self.folder}, {counted(len(self), 'text')}, {self.dimension} numbers each)"

    @property
    def dimension(self) -> int:
        """H, the numbers in a vector."""
        return self._manifest.dimension

    @property
    def whose(self) -> Whose:
        """The model that its vectors are of, and how they were made."""
        return self._manifest.whose

    @property
    def approximate(self) -> Recall | None:
        """What approximate search finds of the exact one's answers, as measured; None without it."""
        return self._manifest.approximate

    def row(self, number: int) -> TextRow:
        """The text of a vector."""
        row = self._texts.slice(number, 1).to_pylist()[0]
        return TextRow(row["text"], row["place"], row["id"])

    def refuse_without_graph(self, approximately: bool) -> None:
        """InputError where approximate search is asked for and the index has no graph."""
        if approximately and self.approximate is None:
            raise InputError(
                f"{self.folder}: this index was built for exact search alone",
                "build it with --index DIR --approximate, or leave --approximate out",
                python="build it with approximate=True, or leave approximate out",
            )

    def nearest(
        self, queries: NDArray[np.float32], k: int, *, approximately: bool = False
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """The numbers and the cosines of the k nearest texts of each query [Q, H], the best first, equal ones in
        their order. approximately: by the graph, which may miss some; InputError where the index has none."""
        if queries.shape[1:] != (self.dimension,):
            raise InputError(
                f"{self.folder}: its vectors have {self.dimension} numbers, and the queries' {queries.shape[-1]}",
                "search with the model that the index was built with",
            )
        queries = unit_length(queries)
        if not approximately:
            return nearest_vectors(queries, self.vectors, k)
        self.refuse_without_graph(approximately)
        if self._graph is None:
            self._graph = open_graph(self.folder / GRAPH)
        found = candidates(self._graph, queries, min(k, len(self)))
        return _ordered(found, queries, self.vectors)


def write_index(
    out: str | Path,
    rows: Iterable[TextRow],
    embed: Callable[[Sequence[str]], NDArray[np.float32]],
    whose: Whose,
    *,
    approximately: bool = False,
    overwrite: bool = False,
    progress: Callable[[int], None] = lambda done: None,
) -> Index:
    """Build an index of texts, some thousand at a time, and open it. embed: texts → vectors [n, H].

    InputError where something else is at its place, or there is no text."""
    out = Path(out)
    replace = LAYOUT.is_replaced(out, overwrite=overwrite)
    if approximately:
        library()  # before hours of work
    try:
        with atomic.new_folder(out, replace=replace) as part:
            number, size = _write(part, iter(rows), embed, progress)
            measured = build_graph(part / GRAPH, mapped(part / VECTORS)) if approximately else None
            files = {
                path.name: _File(size=path.stat().st_size, sha256=atomic.digest(path))
                for path in sorted(part.iterdir())
            }
            manifest = _Manifest(
                version=version("bertsmith"),
                texts=number,
                dimension=size,
                whose=whose,
                approximate=measured,
                files=files,
            )
            (part / MANIFEST).write_text(manifest.model_dump_json(indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise MachineError(f"{out}: the index could not be written: {error}") from error
    return Index(out)


def _write(
    part: Path,
    rows: Iterator[TextRow],
    embed: Callable[[Sequence[str]], NDArray[np.float32]],
    progress: Callable[[int], None],
) -> tuple[int, int]:
    """The texts and their vectors; how many there are, of how many numbers."""
    some = list(islice(rows, _CHUNK))
    if not some:
        raise InputError("there is no text to index", "give a file with at least one")
    vectors = embed([row.text for row in some])
    size = vectors.shape[1]
    with (
        vector_file(part / VECTORS, size) as writer,
        pa.OSFile(str(part / TEXTS), "wb") as sink,
        pa.ipc.new_file(sink, _SCHEMA) as texts,
    ):
        while some:
            writer.write(unit_length(vectors))
            columns = zip(*some, strict=True)
            arrays = [pa.array(values, field.type) for values, field in zip(columns, _SCHEMA, strict=True)]
            texts.write_batch(pa.record_batch(arrays, schema=_SCHEMA))
            progress(writer.rows)
            some = list(islice(rows, _CHUNK))
            vectors = embed([row.text for row in some])
    return writer.rows, size


def _manifest(folder: Path) -> _Manifest:
    path = folder / MANIFEST
    if not path.is_file():
        what = "no such folder" if not folder.exists() else f"this is no index ({MANIFEST} is not in it)"
        raise _broken(f"{folder}: {what}")
    try:
        return _Manifest.model_validate(json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, ValidationError) as error:
        raise _broken(f"{path}: this is no index of this version ({_first(error)})") from None


def _broken(sentence: str) -> InputError:
    return InputError(sentence, _AGAIN, python=_AGAIN_PYTHON)


def _first(error: Exception) -> str:
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False, include_input=False)[0]
        return f"{'.'.join(map(str, first['loc']))}: {first['msg'][:1].lower()}{first['msg'][1:]}"
    return "it is not JSON"


def _check(path: Path, file: _File) -> None:
    """InputError where a file is not the one that was written."""
    if not path.is_file():
        raise _broken(f"{path}: this file is missing")
    if (size := path.stat().st_size) != file.size:
        raise _broken(f"{path}: it has {counted(size, 'byte')} and should have {file.size:,}")
    if atomic.digest(path) != file.sha256:
        raise _broken(f"{path}: its contents changed since it was written (sha256 differs)")


def _texts(path: Path, number: int) -> pa.Table:
    try:
        with pa.ipc.open_file(pa.memory_map(str(path))) as file:
            table = file.read_all()
    except (pa.ArrowException, OSError):
        raise _broken(f"{path}: this is not a whole Arrow file") from None
    if table.schema != _SCHEMA or table.num_rows != number:
        raise _broken(f"{path}: it does not hold as many texts as the manifest says")
    return table


def _ordered(
    found: Sequence[NDArray[np.int64]], queries: NDArray[np.float32], vectors: NDArray[np.float32]
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Candidates with their exact cosines, the best first; where a graph found fewer, -1 and -inf at the end."""
    k = max((len(one) for one in found), default=0)
    numbers = np.full((len(found), k), -1, dtype=np.int64)
    products = np.full((len(found), k), -np.inf)
    for i, (some, query) in enumerate(zip(found, queries, strict=True)):
        exact = exact_products(query, np.asarray(vectors[some]))
        order = np.lexsort((some, -exact))
        numbers[i, : len(some)], products[i, : len(some)] = some[order], exact[order]
    return numbers, products
