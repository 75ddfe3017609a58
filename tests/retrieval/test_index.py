"""Test that an index is read back, that damaged files are detected, and approximate search."""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from bertsmith.errors import InputError
from bertsmith.io import atomic
from bertsmith.io.tables import TextRow
from bertsmith.retrieval.index import EmbeddingSource, Index, write_index
from bertsmith.retrieval.nearest_neighbors import GRAPH
from bertsmith.retrieval.vector_file import map_vectors, open_vector_file

SOURCE = EmbeddingSource(model="/somewhere", digest="d" * 64, pooling="mean")


def embed(texts: Sequence[str]) -> NDArray[np.float32]:
    """Return a vector per text that depends only on the text."""
    rows = [np.random.default_rng(zlib.crc32(text.encode())).standard_normal(8) for text in texts]
    return np.array(rows, dtype=np.float32).reshape(-1, 8)


def rows(count: int) -> list[TextRow]:
    return [TextRow(f"text {i}", f"f.txt:{i}", str(i)) for i in range(1, count + 1)]


@pytest.fixture
def index(tmp_path: Path) -> Index:
    return write_index(tmp_path / "index", rows(20), embed, SOURCE)


def test_an_index_is_read_back(index: Index) -> None:
    again = Index(index.folder)
    assert (len(again), again.dimension, again.source) == (20, 8, SOURCE)
    assert again.row(6) == TextRow("text 7", "f.txt:7", "7")
    np.testing.assert_allclose(np.linalg.norm(again.vectors, axis=1), 1, atol=1e-6)
    assert isinstance(again.vectors, np.memmap)
    indices, cosines = again.nearest(3 * embed(["text 7", "text 2"]), 3)
    assert indices[:, 0].tolist() == [6, 1]
    assert cosines[:, 0] == pytest.approx([1, 1], abs=1e-6)


def test_an_index_does_not_depend_on_the_chunk_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, index: Index
) -> None:
    monkeypatch.setattr("bertsmith.retrieval.vector_file._CHUNK_SIZE", 3)
    progress: list[int] = []
    other = write_index(tmp_path / "other", rows(20), embed, SOURCE, progress=progress.append)
    assert progress == [3, 6, 9, 12, 15, 18, 20]
    np.testing.assert_array_equal(other.vectors, index.vectors)
    assert [other.row(i) for i in range(20)] == [index.row(i) for i in range(20)]


def test_equal_texts_stay_in_order(tmp_path: Path) -> None:
    index = write_index(tmp_path / "i", [*rows(3), *rows(3)], embed, SOURCE)
    assert index.nearest(embed(["text 2"]), 2)[0].tolist() == [[1, 4]]


@pytest.mark.parametrize("name", ["index.json", "vectors.npy", "texts.arrow"])
@pytest.mark.parametrize("fault", ["missing", "truncated", "empty", "bit_flip"])
def test_a_damaged_file_is_refused(index: Index, name: str, fault: str) -> None:
    path = index.folder / name
    content = path.read_bytes()
    if fault == "missing":
        path.unlink()
    elif fault == "bit_flip":
        middle = len(content) // 2 if name != "index.json" else content.index(b'"texts"') + 1
        path.write_bytes(content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :])
    else:
        path.write_bytes(b"" if fault == "empty" else content[:-9])
    with pytest.raises(InputError) as caught:
        Index(index.folder)
    missing_manifest = name == "index.json" and fault == "missing"
    assert caught.value.location == str(index.folder if missing_manifest else path)
    assert caught.value.code == (
        "not_an_index"
        if missing_manifest
        else "index_manifest_invalid"
        if name == "index.json"
        else "index_corrupt"
    )


@pytest.mark.parametrize(
    ("changes", "code", "file"),
    [
        ({"dimension": 7}, "index_corrupt", "vectors.npy"),
        ({"texts": 19}, "index_corrupt", "vectors.npy"),
        ({"format": 2}, "index_manifest_invalid", "index.json"),
        ({"kind": "shards"}, "index_manifest_invalid", "index.json"),
        ({"source": {}}, "index_manifest_invalid", "index.json"),
        ({"files": {}}, "index_manifest_invalid", "index.json"),
        ({"recall": {"recall_at_10": 1, "queries": 1}}, "index_manifest_invalid", "index.json"),
    ],
)
def test_a_manifest_that_contradicts_its_files_is_refused(
    index: Index, changes: dict[str, Any], code: str, file: str
) -> None:
    path = index.folder / "index.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises(InputError) as caught:
        Index(index.folder)
    assert caught.value.code == code
    assert caught.value.location == str(index.folder / file)


def test_a_manifest_cannot_name_files_outside_the_folder(index: Index, tmp_path: Path) -> None:
    path = index.folder / "index.json"
    (tmp_path / "x").write_text("")
    manifest = json.loads(path.read_text())
    manifest["files"]["../x"] = {"size": 0, "sha256": atomic.sha256_of_file(tmp_path / "x")}
    path.write_text(json.dumps(manifest))
    with pytest.raises(InputError) as caught:
        Index(index.folder)
    assert caught.value.code == "index_manifest_invalid"
    assert caught.value.location == str(path)


def test_a_deep_manifest_is_refused(index: Index) -> None:
    (index.folder / "index.json").write_text(100_000 * "[")
    with pytest.raises(InputError) as caught:
        Index(index.folder)
    assert caught.value.code == "index_manifest_invalid"


def replace_file(folder: Path, name: str, content: bytes) -> None:
    """Replace a file of an index, and its size and hash in the manifest."""
    (folder / name).write_bytes(content)
    manifest = json.loads((folder / "index.json").read_text())
    digest = atomic.sha256_of_file(folder / name)
    manifest["files"][name] = {"size": len(content), "sha256": digest}
    (folder / "index.json").write_text(json.dumps(manifest))


@pytest.mark.parametrize("seed", range(40))
def test_changed_texts_with_matching_hashes_do_not_crash(index: Index, seed: int) -> None:
    content = bytearray((index.folder / "texts.arrow").read_bytes())
    generator = np.random.default_rng(seed)
    for start in 4 * generator.integers(0, len(content) // 4 - 1, 4):
        content[start : start + 4] = int(generator.choice([0xFF, 1 << 20, 0x7FFF_FFFF])).to_bytes(4, "little")
    replace_file(index.folder, "texts.arrow", bytes(content))
    with suppress(InputError):  # any other error fails the test
        changed = Index(index.folder)
        assert all(isinstance(changed.row(i).text, str) for i in range(20))


@pytest.mark.parametrize("value", [np.nan, np.inf, 1.5, 3e38])
def test_vectors_that_are_not_normalized_are_refused(index: Index, value: float) -> None:
    vectors = index.vectors.copy()
    vectors[7, 3] = value
    np.save(index.folder / "vectors.npy", vectors)
    replace_file(index.folder, "vectors.npy", (index.folder / "vectors.npy").read_bytes())
    with pytest.raises(InputError) as caught:
        Index(index.folder)
    assert (caught.value.code, caught.value.location) == ("index_corrupt", str(index.folder / "vectors.npy"))


def test_vectors_of_another_model_are_refused(index: Index) -> None:
    index.check_vectors(embed)
    with pytest.raises(InputError) as caught:
        Index(index.folder).check_vectors(lambda texts: -embed(texts))
    assert caught.value.code == "index_vectors_differ"


def test_a_graph_of_other_vectors_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("faiss", reason="extra `ann`")
    index = write_index(tmp_path / "i", rows(3), embed, SOURCE, approximate=True)
    other = write_index(tmp_path / "j", rows(4), embed, SOURCE, approximate=True)
    replace_file(index.folder, GRAPH, (other.folder / GRAPH).read_bytes())
    with pytest.raises(InputError) as caught:
        Index(index.folder).nearest(embed(["a"]), 1, approximate=True)
    assert (caught.value.code, caught.value.location) == ("graph_unreadable", str(index.folder / GRAPH))


def test_queries_of_another_dimension_are_refused(index: Index) -> None:
    with pytest.raises(InputError) as caught:
        index.nearest(np.ones((1, 9), np.float32), 1)
    assert caught.value.code == "dimension_mismatch"


def test_a_failed_build_leaves_no_files(tmp_path: Path) -> None:
    def failing(texts: Sequence[str]) -> NDArray[np.float32]:
        raise InputError("broken", "no")

    with pytest.raises(InputError) as caught:
        write_index(tmp_path / "i", rows(2), failing, SOURCE)
    assert caught.value.code == "broken"
    with pytest.raises(InputError) as caught:
        write_index(tmp_path / "i", [], embed, SOURCE)
    assert caught.value.code == "no_texts"
    assert list(tmp_path.iterdir()) == []


def test_only_an_index_is_replaced(index: Index, tmp_path: Path) -> None:
    with pytest.raises(InputError):
        write_index(index.folder, rows(2), embed, SOURCE)
    assert len(write_index(index.folder, rows(2), embed, SOURCE, overwrite=True)) == 2
    (index.folder / "mine.txt").write_text("x")
    with pytest.raises(InputError):
        write_index(index.folder, rows(2), embed, SOURCE, overwrite=True)
    with pytest.raises(InputError) as caught:
        Index(tmp_path)
    assert caught.value.code == "not_an_index"
    with pytest.raises(InputError) as caught:
        Index(tmp_path / "nowhere")
    assert caught.value.code == "not_an_index"


def test_approximate_search_needs_a_graph(index: Index) -> None:
    with pytest.raises(InputError) as caught:
        index.nearest(embed(["a"]), 1, approximate=True)
    assert (caught.value.code, caught.value.argument) == ("index_without_graph", "approximate")


def test_approximate_search_reports_its_recall(tmp_path: Path) -> None:
    pytest.importorskip("faiss", reason="extra `ann`")
    index = write_index(tmp_path / "i", rows(500), embed, SOURCE, approximate=True)
    again = Index(index.folder)
    assert again.recall is not None
    assert 0.95 < again.recall.recall_at_10 <= 1
    assert again.recall.queries == 200
    queries = embed([f"query {i}" for i in range(20)])
    exact, cosines = again.nearest(queries, 10)
    approximate, approximate_cosines = again.nearest(queries, 10, approximate=True)
    assert np.mean([len({*a} & {*b}) / 10 for a, b in zip(exact, approximate, strict=True)]) > 0.95
    np.testing.assert_array_equal(cosines[exact == approximate], approximate_cosines[exact == approximate])
    other = write_index(tmp_path / "j", rows(500), embed, SOURCE, approximate=True)
    assert atomic.sha256_of_file(other.folder / GRAPH) == atomic.sha256_of_file(index.folder / GRAPH)


def test_fewer_vectors_than_k(tmp_path: Path) -> None:
    pytest.importorskip("faiss", reason="extra `ann`")
    index = write_index(tmp_path / "i", rows(3), embed, SOURCE, approximate=True)
    assert sorted(index.nearest(embed(["a"]), 10, approximate=True)[0][0]) == [0, 1, 2]


def test_vectors_are_written_in_parts(tmp_path: Path) -> None:
    for count in (0, 1, 12345):
        vectors = np.arange(3 * count, dtype=np.float32).reshape(-1, 3)
        with open_vector_file(tmp_path / "v.npy", 3) as writer:
            for start in range(0, count, 1000):
                writer.write(vectors[start : start + 1000])
        np.testing.assert_array_equal(np.load(tmp_path / "v.npy"), vectors)
        if count:  # an empty file cannot be mapped, and no index is empty
            np.testing.assert_array_equal(map_vectors(tmp_path / "v.npy"), vectors)
    np.save(tmp_path / "double.npy", np.ones((2, 2)))
    with pytest.raises(InputError) as caught:
        map_vectors(tmp_path / "double.npy")
    assert caught.value.code == "vectors_wrong_type"
    (tmp_path / "bad.npy").write_bytes(b"no vectors")
    with pytest.raises(InputError) as caught:
        map_vectors(tmp_path / "bad.npy")
    assert caught.value.code == "vectors_unreadable"
