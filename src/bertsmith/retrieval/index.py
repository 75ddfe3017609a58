"""An index on disk: texts, their vectors, the model that computed the vectors, and checksums of these files.

An index is a folder with index.json (the manifest, with the size and hash of each file), vectors.npy (float32
[N, H], L2-normalized, for N texts; memory-mapped), texts.arrow (the texts with their
locations and ids), and optionally hnsw.faiss (an HNSW graph for approximate search).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from importlib.metadata import version
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from bertsmith.errors import InputError, MachineError, option
from bertsmith.formatting import pluralize
from bertsmith.io import atomic
from bertsmith.io.compression import check_name
from bertsmith.io.folder_layout import FolderLayout
from bertsmith.io.tables import TextRow
from bertsmith.models.config import Pooling
from bertsmith.retrieval.nearest_neighbors import (
    GRAPH,
    Recall,
    build_graph,
    exact_products,
    import_faiss,
    normalize_vectors,
    open_graph,
    search_graph,
    search_vectors,
)
from bertsmith.retrieval.vector_file import (
    Embed,
    EmbeddedRows,
    are_normalized,
    embed_rows,
    map_vectors,
    open_vector_file,
)

MANIFEST, VECTORS, TEXTS = "index.json", "vectors.npy", "texts.arrow"
LAYOUT = FolderLayout("an index", MANIFEST, (MANIFEST, VECTORS, TEXTS, GRAPH))
_REBUILD = "build the index again"
_NUM_SAMPLED = 8  # texts that are embedded again to recognize vectors of another model or pooling
_MAX_DISTANCE = 0.2  # of such a text's two vectors; those in int8 and fp32 have a distance below 0.1
_SCHEMA = pa.schema([("text", pa.large_string()), ("location", pa.string()), ("id", pa.string())])


class EmbeddingSource(BaseModel):
    """The model that computed the vectors.

    Attributes:
        model: Its path.
        digest: SHA-256 of its weights and tokenizer.
        pooling: The pooling of hidden states.
        max_length: The length at which texts were truncated; None: the model's maximum.
    """

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
    format: Literal[1] = 1  # of the folder
    version: str  # of bertsmith that wrote it
    texts: int = Field(ge=1)
    dimension: int = Field(ge=1)
    source: EmbeddingSource
    recall: Recall | None = None  # of approximate search; None without a graph
    files: dict[str, _File]

    @model_validator(mode="after")
    def _check_names(self) -> _Manifest:
        expected = {VECTORS, TEXTS} if self.recall is None else {VECTORS, TEXTS, GRAPH}
        if self.files.keys() != expected:
            raise ValueError(f"the files are not {', '.join(sorted(expected))}")
        return self


class Index:
    """An index opened for search; all its files are read once to verify them.

    Args:
        folder: The folder of the index.

    Attributes:
        vectors: The vectors, [N, H].
        dimension: The size H of a vector.
        source: The model that computed the vectors.
        recall: The measured recall of approximate search; None if the index has no graph.

    Raises:
        InputError: The folder is not an index, or a file is missing or has changed.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        manifest = _read_manifest(self.folder)
        self.dimension, self.source, self.recall = manifest.dimension, manifest.source, manifest.recall
        for name, file in manifest.files.items():
            _check_file(self.folder / name, file)
        self.vectors = map_vectors(self.folder / VECTORS)
        expected_shape = (manifest.texts, self.dimension)
        if self.vectors.shape != expected_shape:
            message = f"the shape is {self.vectors.shape}, not {expected_shape}"
            raise InputError("index_corrupt", message, location=self.folder / VECTORS, hint=_REBUILD)
        if not are_normalized(self.vectors):
            message = "a vector does not have the length 1"
            raise InputError("index_corrupt", message, location=self.folder / VECTORS, hint=_REBUILD)
        self._texts = _read_texts(self.folder / TEXTS, manifest.texts)
        self._graph: Any = None
        self._is_sampled = False

    def __len__(self) -> int:
        return len(self._texts)

    def __repr__(self) -> str:
        return f"Index({self.folder}, {pluralize(len(self), 'text')}, dimension {self.dimension})"

    @property
    def recall_message(self) -> str:
        """A message on the recall of approximate search, for an index with a graph."""
        assert self.recall is not None
        texts = pluralize(self.recall.queries, "text")
        return (
            f"{self.folder}: approximate search has a recall@10 of {self.recall.recall_at_10:.1%}, measured on "
            f"{texts} of the index when it was built"
        )

    def row(self, i: int) -> TextRow:
        """Return the text at position i, as `nearest` returns positions."""
        return TextRow(**self._texts.slice(i, 1).to_pylist()[0])

    def missing(self, column: Literal["id", "text"], values: Collection[str]) -> list[str]:
        """Return the values that no text of the index has as its id, or as its text."""
        array = pa.array(values, _SCHEMA.field(column).type)
        is_in_index = pc.is_in(array, value_set=self._texts[column].combine_chunks())
        missing: list[str] = array.filter(pc.invert(is_in_index)).to_pylist()
        return missing

    def check_vectors(self, embed: Embed) -> None:
        """Embed some texts again, once, and raise InputError if the index has other vectors for them."""
        if self._is_sampled:
            return
        rows = np.unique(np.linspace(0, len(self) - 1, _NUM_SAMPLED).astype(np.int64))
        expected = normalize_vectors(embed([self.row(i).text for i in rows.tolist()]))
        if not np.linalg.norm(expected - self.vectors[rows], axis=1).max() <= _MAX_DISTANCE:
            message = "the vectors of the index are not those that its model computes for its texts"
            raise InputError("index_vectors_differ", message, location=self.folder, hint=_REBUILD)
        self._is_sampled = True

    def check_approximate(self, approximate: bool) -> None:
        """Raise InputError if approximate search is requested and the index has no graph."""
        if approximate and self.recall is None:
            message = "this index was built for exact search only"
            hint = f"build it again with {option('approximate', True)}, or search without it"
            raise InputError(
                "index_without_graph", message, location=self.folder, argument="approximate", hint=hint
            )

    def nearest(
        self, queries: NDArray[np.float32], k: int, *, approximate: bool = False
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Return the positions and cosines of the k nearest texts of each query, the nearest first.

        Args:
            queries: The vectors of Q queries, [Q, H]; they need not be normalized.
            k: The number of results per query.
            approximate: Use the graph, which may miss results (-1 with a cosine of -inf).

        Returns:
            Positions of texts, int64, and cosines, float64, both [Q, min(k, N)]; with `approximate` possibly fewer
            columns.

        Raises:
            InputError: The dimensions differ, or the index has no graph.
        """
        if queries.shape[1:] != (self.dimension,):
            message = (
                f"the index has vectors of dimension {self.dimension}, the queries of {queries.shape[-1]}"
            )
            hint = "search with the model that built the index"
            raise InputError("dimension_mismatch", message, location=self.folder, hint=hint)
        queries = normalize_vectors(queries)
        if not approximate:
            return search_vectors(queries, self.vectors, k)
        self.check_approximate(approximate)
        if self._graph is None:
            self._graph = open_graph(self.folder / GRAPH, self.vectors.shape)
        candidates = search_graph(self._graph, queries, min(k, len(self)))
        return _rescore(candidates, queries, self.vectors)


def write_index(
    output_dir: str | Path,
    rows: Iterable[TextRow],
    embed: Embed,
    source: EmbeddingSource,
    *,
    approximate: bool = False,
    overwrite: bool = False,
    progress: Callable[[int], None] = lambda done: None,
) -> Index:
    """Build an index of texts and open it.

    Args:
        output_dir: The folder to write.
        rows: The texts.
        embed: Function from n texts to their vectors [n, H], which need not be normalized.
        source: The model that computes the vectors.
        approximate: Also build a graph for approximate search.
        overwrite: Replace an existing index.
        progress: Called with the number of texts done.

    Raises:
        InputError: The folder exists, or there is no text.
    """
    output_dir = atomic.output_path(output_dir)
    replace = LAYOUT.check_replaceable(output_dir, overwrite=overwrite)
    if approximate:
        import_faiss()  # fail before hours of work
    try:
        with atomic.atomic_folder(output_dir, replace=replace) as folder:
            num_texts, dimension = _write_texts_and_vectors(folder, embed_rows(rows, embed), progress)
            recall = build_graph(folder / GRAPH, map_vectors(folder / VECTORS)) if approximate else None
            files = {
                path.name: _File(size=path.stat().st_size, sha256=atomic.sha256_of_file(path))
                for path in sorted(folder.iterdir())
            }
            manifest = _Manifest(
                version=version("bertsmith"),
                texts=num_texts,
                dimension=dimension,
                source=source,
                recall=recall,
                files=files,
            )
            text = manifest.model_dump_json(indent=2)
            (folder / MANIFEST).write_text(f"{text}\n", encoding="utf-8")
    except OSError as error:
        raise MachineError(
            "index_not_written", f"the index could not be written: {error}", location=output_dir
        ) from error
    return Index(output_dir)


def _write_texts_and_vectors(
    folder: Path, parts: Iterator[EmbeddedRows], progress: Callable[[int], None]
) -> tuple[int, int]:
    """Write the texts and their vectors; return the number of texts and the dimension."""
    first = next(parts, None)
    if first is None:
        raise InputError("no_texts", "there is no text to index", hint="give a file with at least one text")
    dimension = first[1].shape[1]
    with (
        open_vector_file(folder / VECTORS, dimension) as writer,
        pa.OSFile(str(folder / TEXTS), "wb") as sink,
        pa.ipc.new_file(sink, _SCHEMA) as texts,
    ):
        for rows, vectors in chain([first], parts):
            writer.write(normalize_vectors(vectors))
            texts.write_batch(pa.RecordBatch.from_pylist([row._asdict() for row in rows], schema=_SCHEMA))
            progress(writer.rows)
    return writer.rows, dimension


def _read_manifest(folder: Path) -> _Manifest:
    check_name(folder)
    path = folder / MANIFEST
    if not path.is_file():
        message = f"this is not the folder of an index ({MANIFEST} is missing)"
        raise InputError("not_an_index", message, location=folder, hint=_REBUILD)
    try:
        return _Manifest.model_validate_json(atomic.read_file(path))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        field = ".".join(map(str, first["loc"])) or "the file"
        message = f"the manifest is invalid ({field}: {first['msg']})"
        raise InputError("index_manifest_invalid", message, location=path, hint=_REBUILD) from None


def _check_file(path: Path, file: _File) -> None:
    """Raise InputError if a file is missing or has changed."""
    if not path.is_file():
        fault = "this file is missing"
    elif (size := path.stat().st_size) != file.size:
        fault = f"the file has {pluralize(size, 'byte')}, not {file.size:,}"
    elif atomic.sha256_of_file(path) != file.sha256:
        fault = "the file has changed since it was written (sha256 differs)"
    else:
        return
    raise InputError("index_corrupt", fault, location=path, hint=_REBUILD)


def _read_texts(path: Path, num_texts: int) -> pa.Table:
    try:
        with pa.ipc.open_file(pa.memory_map(str(path))) as file:
            table = file.read_all()
        table.validate(full=True)  # offsets out of range would crash the process later
    except (pa.ArrowException, OSError, MemoryError, UnicodeDecodeError):
        raise InputError(
            "index_corrupt", "the Arrow file is incomplete or damaged", location=path, hint=_REBUILD
        ) from None
    has_nulls = any(column.null_count for column in table.columns)
    if table.schema != _SCHEMA or table.num_rows != num_texts or has_nulls:
        message = "the schema or the number of texts differs from the manifest, or a value is missing"
        raise InputError("index_corrupt", message, location=path, hint=_REBUILD)
    return table


def _rescore(
    candidates: Sequence[NDArray[np.int64]], queries: NDArray[np.float32], vectors: NDArray[np.float32]
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Sort the candidates of each query by their exact cosines; rows with fewer candidates end in -1 and -inf."""
    k = max(map(len, candidates), default=0)
    indices = np.full((len(candidates), k), -1, dtype=np.int64)
    cosines = np.full((len(candidates), k), -np.inf)
    for i, (ids, query) in enumerate(zip(candidates, queries, strict=True)):
        exact = exact_products(query, np.asarray(vectors[ids]))
        order = np.lexsort((ids, -exact))  # by descending cosine, then by index
        indices[i, : len(ids)], cosines[i, : len(ids)] = ids[order], exact[order]
    return indices, cosines
