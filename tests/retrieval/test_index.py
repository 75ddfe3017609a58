"""An index is whole or refused: torn, exchanged and foreign files, other sizes; approximate search."""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from bertsmith.errors import InputError
from bertsmith.io import atomic
from bertsmith.retrieval.approximate import GRAPH
from bertsmith.retrieval.index import Index, TextRow, Whose, write_index
from bertsmith.retrieval.vector_file import mapped, vector_file

WHOSE = Whose(model="/somewhere", digest="d" * 64, pooling="mean")


def embed(texts: Sequence[str]) -> NDArray[np.float32]:
    """A vector that a text alone decides."""
    rows = [np.random.default_rng(zlib.crc32(text.encode())).standard_normal(8) for text in texts]
    return np.array(rows, dtype=np.float32).reshape(-1, 8)


def rows(number: int) -> list[TextRow]:
    return [TextRow(f"text {i}", f"f.txt:{i}", str(i)) for i in range(1, number + 1)]


@pytest.fixture
def index(tmp_path: Path) -> Index:
    return write_index(tmp_path / "index", rows(20), embed, WHOSE)


def test_it_holds_texts_vectors_and_whose_they_are(index: Index) -> None:
    again = Index(index.folder)
    assert (len(again), again.dimension, again.whose) == (20, 8, WHOSE)
    assert again.row(6) == TextRow("text 7", "f.txt:7", "7")
    np.testing.assert_allclose(np.linalg.norm(again.vectors, axis=1), 1, atol=1e-6)
    assert isinstance(again.vectors, np.memmap)
    numbers, cosines = again.nearest(3 * embed(["text 7", "text 2"]), 3)
    assert numbers[:, 0].tolist() == [6, 1]
    assert cosines[:, 0] == pytest.approx([1, 1], abs=1e-6)


def test_chunks_leave_no_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, index: Index) -> None:
    monkeypatch.setattr("bertsmith.retrieval.index._CHUNK", 3)
    done: list[int] = []
    other = write_index(tmp_path / "other", rows(20), embed, WHOSE, progress=done.append)
    assert done == [3, 6, 9, 12, 15, 18, 20]
    np.testing.assert_array_equal(other.vectors, index.vectors)
    assert [other.row(i) for i in range(20)] == [index.row(i) for i in range(20)]


def test_equal_texts_come_in_their_order(tmp_path: Path) -> None:
    made = write_index(tmp_path / "i", [*rows(3), *rows(3)], embed, WHOSE)
    assert made.nearest(embed(["text 2"]), 2)[0].tolist() == [[1, 4]]


@pytest.mark.parametrize("name", ["index.json", "vectors.npy", "texts.arrow"])
@pytest.mark.parametrize("fault", ["gone", "cut", "empty", "flipped"])
def test_a_file_that_is_not_as_it_was_written_is_refused(index: Index, name: str, fault: str) -> None:
    path = index.folder / name
    whole = path.read_bytes()
    if fault == "gone":
        path.unlink()
    elif fault == "flipped":
        middle = len(whole) // 2 if name != "index.json" else whole.index(b'"texts"') + 1
        path.write_bytes(whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :])
    else:
        path.write_bytes(b"" if fault == "empty" else whole[:-9])
    with pytest.raises(InputError, match=name.replace(".", r"\.")) as error:
        Index(index.folder)
    assert "build it again" in str(error.value.remedy)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"dimension": 7}, r"vectors\.npy: its shape is \(20, 8\), not \(20, 7\)"),
        ({"texts": 19}, "its shape is"),
        ({"format": 2}, "format"),
        ({"kind": "shards"}, "kind"),
        ({"whose": {}}, "whose.model: field required"),
    ],
)
def test_a_manifest_that_its_files_do_not_bear_out_is_refused(
    index: Index, changes: dict[str, Any], said: str
) -> None:
    path = index.folder / "index.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises(InputError, match=said):
        Index(index.folder)


def test_a_manifest_cannot_lead_out_of_the_folder(index: Index, tmp_path: Path) -> None:
    path = index.folder / "index.json"
    (tmp_path / "x").write_text("")
    manifest = json.loads(path.read_text())
    manifest["files"]["../x"] = {"size": 0, "sha256": atomic.digest(tmp_path / "x")}
    path.write_text(json.dumps(manifest))
    with pytest.raises(InputError, match=r"'\.\./x' is no file of an index"):
        Index(index.folder)


def test_queries_of_another_size_are_refused(index: Index) -> None:
    with pytest.raises(InputError, match="its vectors have 8 numbers, and the queries' 9"):
        index.nearest(np.ones((1, 9), np.float32), 1)


def test_nothing_is_left_of_an_index_that_failed(tmp_path: Path) -> None:
    def failing(texts: Sequence[str]) -> NDArray[np.float32]:
        raise InputError("no")

    with pytest.raises(InputError, match="no"):
        write_index(tmp_path / "i", rows(2), failing, WHOSE)
    with pytest.raises(InputError, match="there is no text to index"):
        write_index(tmp_path / "i", [], embed, WHOSE)
    assert list(tmp_path.iterdir()) == []


def test_only_an_index_is_replaced(index: Index, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="already exists and is not empty"):
        write_index(index.folder, rows(2), embed, WHOSE)
    assert len(write_index(index.folder, rows(2), embed, WHOSE, overwrite=True)) == 2
    (index.folder / "mine.txt").write_text("x")
    with pytest.raises(InputError, match=r"it holds 'mine\.txt'"):
        write_index(index.folder, rows(2), embed, WHOSE, overwrite=True)
    with pytest.raises(InputError, match="this is no index"):
        Index(tmp_path)
    with pytest.raises(InputError, match="no such folder"):
        Index(tmp_path / "nowhere")


def test_without_a_graph_there_is_no_approximate_search(index: Index) -> None:
    with pytest.raises(InputError, match="was built for exact search alone"):
        index.nearest(embed(["a"]), 1, approximately=True)


def test_a_graph_finds_nearly_all_and_says_how_much(tmp_path: Path) -> None:
    pytest.importorskip("faiss", reason="extra `ann`")
    made = write_index(tmp_path / "i", rows(500), embed, WHOSE, approximately=True)
    again = Index(made.folder)
    assert again.approximate is not None
    assert 0.95 < again.approximate.recall_at_10 <= 1
    assert again.approximate.queries == 200
    queries = embed([f"query {i}" for i in range(20)])
    exact, cosines = again.nearest(queries, 10)
    found, near = again.nearest(queries, 10, approximately=True)
    assert np.mean([len({*a} & {*b}) / 10 for a, b in zip(exact, found, strict=True)]) > 0.95
    np.testing.assert_array_equal(cosines[exact == found], near[exact == found])
    other = write_index(tmp_path / "j", rows(500), embed, WHOSE, approximately=True)
    assert atomic.digest(other.folder / GRAPH) == atomic.digest(made.folder / GRAPH)


def test_few_vectors_have_few_neighbours(tmp_path: Path) -> None:
    pytest.importorskip("faiss", reason="extra `ann`")
    made = write_index(tmp_path / "i", rows(3), embed, WHOSE, approximately=True)
    assert sorted(made.nearest(embed(["a"]), 10, approximately=True)[0][0]) == [0, 1, 2]


def test_vectors_of_any_number_are_a_npy(tmp_path: Path) -> None:
    for number in (0, 1, 12345):
        vectors = np.arange(3 * number, dtype=np.float32).reshape(-1, 3)
        with vector_file(tmp_path / "v.npy", 3) as writer:
            for start in range(0, number, 1000):
                writer.write(vectors[start : start + 1000])
        np.testing.assert_array_equal(np.load(tmp_path / "v.npy"), vectors)
        if number:  # nothing cannot be mapped, and no index is empty
            np.testing.assert_array_equal(mapped(tmp_path / "v.npy"), vectors)
    np.save(tmp_path / "double.npy", np.ones((2, 2)))
    with pytest.raises(InputError, match="float64"):
        mapped(tmp_path / "double.npy")
    (tmp_path / "bad.npy").write_bytes(b"no vectors")
    with pytest.raises(InputError, match="these are no vectors"):
        mapped(tmp_path / "bad.npy")
