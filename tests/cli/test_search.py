"""`bertsmith embed` and `bertsmith search` as people call them, and the same in Python; what is refused."""

from __future__ import annotations

import io
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import bertsmith as bs
import tiny_run
from bertsmith.cli.main import main
from bertsmith.errors import InputError
from bertsmith.inference.search import read_qrels
from bertsmith.inference.text_input import read_text_rows

Call = Callable[..., SimpleNamespace]
WORDS = tiny_run.WORDS
TEXTS = [f"{a} {b} {c}" for a, b, c in zip(WORDS, WORDS[3:], WORDS[8:], strict=False)]
FEW = {"max_steps": 2, "threads": 1, "report_to": "none"}


class Terminal(io.BytesIO):
    """What nobody pipes anything into."""

    def isatty(self) -> bool:
        return True


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of embed, an index of its texts, classifiers of pairs and of texts, files of texts and queries."""
    folder = tmp_path_factory.mktemp("world")
    bert = tiny_run.run(tiny_run.make_shards(folder), folder / "bert", "train.max_steps=2")
    rows = [(text, " ".join(reversed(text.split()))) for text in TEXTS]
    run = bs.finetune("embed", bert, folder / "near", train=rows, validation=rows[:9], max_length=16, **FEW)
    fits = [{"a": text, "b": other, "label": str(i % 2)} for i, (text, other) in enumerate(rows)]
    pairs: dict[str, Any] = {"text_column": "a", "second_column": "b", **FEW}
    bs.finetune("classify", bert, folder / "fits", train=fits, validation=fits, **pairs)
    bs.finetune("regress", bert, folder / "grade", train=fits, validation=fits, **pairs)
    named = [{**row, "label": ("good", "bad")[i % 2]} for i, row in enumerate(fits)]
    bs.finetune("classify", bert, folder / "named", train=named, validation=named, **pairs)
    singles = tiny_run.table(folder / "rows.csv", tiny_run.examples(12))
    bs.finetune("classify", bert, folder / "moods", train=singles, validation=singles, **FEW)
    (folder / "texts.txt").write_text("\n".join([*TEXTS[:5], "", *TEXTS[5:]]) + "\n")
    lines = [{"_id": f"d{i}", "text": text, "more": [1]} for i, text in enumerate(TEXTS)]
    (folder / "texts.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    queries = [{"query": text, "positives": [text]} for text in TEXTS[:6]]
    (folder / "queries.jsonl").write_text("".join(json.dumps(line) + "\n" for line in queries))
    ids = "".join(f"q{i},{text}\n" for i, text in enumerate(TEXTS[:4]))
    (folder / "queries.csv").write_text("id,text\n" + ids)
    (folder / "qrels.tsv").write_text(
        "query-id\tcorpus-id\tscore\nq0\td0\t1\nq1\td5\t0\nq1\td1\t2\nq2\tdx\t1\n"
    )
    run.index(folder / "texts.jsonl", folder / "index")
    return folder


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], world: Path) -> Call:
    """Run `bertsmith …` in this process, through `main`, beside the world's files."""
    monkeypatch.chdir(world)

    def run(*arguments: object, stdin: bytes = b"", terminal: bool = False) -> SimpleNamespace:
        monkeypatch.setattr(sys, "argv", ["bertsmith", *map(str, arguments)])
        stream = (Terminal if terminal else io.BytesIO)(stdin)
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(stream, encoding="utf-8"))
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        shown = capsys.readouterr()
        return SimpleNamespace(code=ended.value.code, out=shown.out, err=shown.err)

    return run


def test_vectors_are_those_of_python_in_every_format(call: Call, world: Path, tmp_path: Path) -> None:
    wanted = bs.load(world / "near").embed([*TEXTS[:5], "", *TEXTS[5:]])
    for suffix in ("npy", "jsonl"):
        found = call("embed", "near", "--input", "texts.txt", "--output", tmp_path / f"v.{suffix}")
        assert (found.code, found.out) == (0, ""), found.err
        assert f"{len(wanted)} vectors of 32 numbers" in found.err
    np.testing.assert_array_equal(np.load(tmp_path / "v.npy"), wanted)
    lines = [json.loads(line) for line in (tmp_path / "v.jsonl").read_text().splitlines()]
    assert [line["text"] for line in lines] == [*TEXTS[:5], "", *TEXTS[5:]]
    assert [line["id"] for line in lines] == [str(i) for i in range(1, len(wanted) + 1)]
    np.testing.assert_array_equal(np.array([line["vector"] for line in lines], np.float32), wanted)


def test_texts_of_the_command_line_and_of_a_pipe(call: Call) -> None:
    by_words = call("embed", "near", TEXTS[0], "--no-normalize", "--pooling", "cls")
    piped = call("embed", "near", "--no-normalize", "--pooling", "cls", stdin=TEXTS[0].encode() + b"\n")
    assert json.loads(by_words.out)["vector"] == json.loads(piped.out)["vector"]
    document = json.loads(call("embed", "near", *TEXTS[:2], "--json").out)
    assert [row["text"] for row in document] == TEXTS[:2]


def test_chunks_leave_no_trace(call: Call, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    call("embed", "near", "--input", "texts.txt", "--output", tmp_path / "a.npy")
    monkeypatch.setattr("bertsmith.retrieval.vector_file._CHUNK_SIZE", 4)
    call("embed", "near", "--input", "texts.txt", "--output", tmp_path / "b.npy")
    np.testing.assert_allclose(np.load(tmp_path / "a.npy"), np.load(tmp_path / "b.npy"), atol=1e-6)


def test_an_index_is_built_and_searched(call: Call, world: Path, tmp_path: Path) -> None:
    made = call("embed", "near", "--input", "texts.txt", "--index", tmp_path / "index")
    assert made.code == 0, made.err
    assert "1 text is empty and not indexed: texts.txt:6" in made.err
    assert f"{len(TEXTS)} texts, 32 numbers each" in made.err
    found = call("search", tmp_path / "index", TEXTS[7], "--top-k", "2")
    assert found.code == 0, found.err
    assert TEXTS[7] in found.out
    assert "texts.txt:9" in found.out
    (answer,) = json.loads(call("search", "index", TEXTS[7], "--json").out)["queries"]
    assert answer["query"] == TEXTS[7]
    first = answer["results"][0]
    assert (first["rank"], first["id"], first["text"]) == (1, "d7", TEXTS[7])
    assert first["score"] == pytest.approx(1, abs=1e-6)
    assert len(answer["results"]) == 5
    assert answer["results"] == [one.to_dict() for one in bs.search(world / "index", TEXTS[7])]


@pytest.mark.parametrize("name", ["null.jsonl", "null.json", "null.csv"])
def test_a_text_that_is_null_is_reported(name: str, call: Call, tmp_path: Path) -> None:
    (tmp_path / name).write_text('text\n""\n' if name.endswith("csv") else '{"text": null}\n')
    found = call("embed", "near", "--input", tmp_path / name)
    assert (found.code, len(found.out.splitlines())) == (0, 1)
    assert "1 text is empty" in found.err
    assert "1 text is empty" in call("predict", "moods", "--input", tmp_path / name).err


def test_what_the_model_tells_is_a_note(call: Call) -> None:
    found = call("search", "index", TEXTS[7], "--precision", "int8")
    assert found.code == 0, found.err
    assert "on 8 texts, vectors in int8 and fp32 differ by 0.0" in found.err
    assert "Warning" not in found.err


def test_what_is_found_is_what_cosines_say(world: Path) -> None:
    vectors = bs.load(world / "near").embed(TEXTS)
    found = bs.search(world / "index", TEXTS[:3], top_k=len(TEXTS))
    for i, results in enumerate(found):
        cosines = vectors @ vectors[i]
        assert [one.score for one in results] == pytest.approx(sorted(cosines, reverse=True), abs=1e-5)
        assert [one.rank for one in results] == list(range(1, len(TEXTS) + 1))


def test_queries_with_their_passages_are_scored(call: Call, tmp_path: Path) -> None:
    found = call(
        "search", "index", "--input", "queries.jsonl", "--output", tmp_path / "found.jsonl", "--top-k", "1"
    )
    assert found.code == 0, found.err
    assert "6 queries" in found.out
    assert "recall@1" in found.out
    assert found.out.count("1.0000") == 4
    lines = [json.loads(line) for line in (tmp_path / "found.jsonl").read_text().splitlines()]
    assert [len(line["results"]) for line in lines] == [1] * 6
    document = json.loads(call("search", "index", "--input", "queries.jsonl", "--json").out)
    assert document["scores"]["recall@1"] == 1


def test_judgements_by_ids_score_queries(call: Call) -> None:
    found = call("search", "index", "--input", "queries.csv", "--qrels", "qrels.tsv", "--json")
    assert found.code == 0, found.err
    scores = json.loads(found.out)["scores"]
    assert scores["recall@1"] == pytest.approx(2 / 3)  # q2's text is not in the index
    assert scores["queries"] == 3
    assert "1 query has no relevant texts and is not scored: q3" in found.err
    assert "1 of 3 relevant texts are not in the index, so that no search can find them: dx" in found.err


@pytest.mark.parametrize(
    ("ids", "code", "line"),
    [
        (["a", "b", "a"], "duplicate_id", 3),
        ([1, 1], "duplicate_id", 2),
        (["a", None], "id_missing", 2),
        (["a", float("nan")], "id_missing", 2),
        ([None, "a"], "id_missing", 2),
    ],
)
def test_an_id_that_is_repeated_or_missing_is_refused(
    world: Path, tmp_path: Path, call: Call, ids: list[Any], code: str, line: int
) -> None:
    rows = [{"id": value, "text": text} for value, text in zip(ids, TEXTS, strict=False)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(InputError) as caught:
        bs.load(world / "near").index(tmp_path / "rows.jsonl", tmp_path / "index")
    assert (caught.value.code, caught.value.location) == (code, f"{tmp_path / 'rows.jsonl'}:{line}")
    with pytest.raises(InputError) as caught:
        bs.load(world / "near").index(rows, tmp_path / "index")
    assert caught.value.code == code
    found = call("embed", "near", "--input", tmp_path / "rows.jsonl", "--output", tmp_path / "v.npy")
    assert (found.code, "--id-column" in found.err, (tmp_path / "v.npy").exists()) == (2, True, False)


def test_rows_without_an_id_are_counted(world: Path, tmp_path: Path) -> None:
    index = bs.load(world / "near").index(
        [{"id": None, "text": text} for text in TEXTS[:3]], tmp_path / "index"
    )
    assert [index.row(i).id for i in range(3)] == ["1", "2", "3"]


def test_a_query_that_is_null_is_reported(call: Call, tmp_path: Path) -> None:
    (tmp_path / "queries.jsonl").write_text('{"text": null}\n{"text": "kaba"}\n{"text": "\u200b"}\n')
    found = call("search", "index", "--input", tmp_path / "queries.jsonl", "--json")
    assert [row["query"] for row in json.loads(found.out)["queries"]] == ["kaba"]
    assert "2 texts are empty and not searched" in found.err


@pytest.mark.parametrize("queries", [{"kaba", "lode"}, ["kaba", None], ["kaba", "\u200b"]])
def test_queries_in_memory_that_are_refused(world: Path, queries: Any) -> None:
    with pytest.raises(InputError) as caught:
        bs.search(world / "index", queries)
    assert caught.value.code == ("no_order" if isinstance(queries, set) else "query_empty")


def test_judgements_of_trec_and_bad_ones(tmp_path: Path) -> None:
    file = tmp_path / "q.txt"
    file.write_text("1 0 d1 1\n1 0 d2 0\n2 0 d3 2\n")
    assert read_qrels(file) == {"1": {"d1"}, "2": {"d3"}}
    for text, code, location in (
        ("1 0 d1 1\n1 d1 x\n", "invalid_qrels_line", f"{file}:2"),
        ("1 0 d1 0\n", "no_relevant_texts", str(file)),
    ):
        file.write_text(text)
        with pytest.raises(InputError) as caught:
            read_qrels(file)
        assert (caught.value.code, caught.value.location) == (code, location)


@pytest.mark.parametrize("run", ["fits", "grade"])
def test_a_model_of_pairs_puts_the_best_into_its_own_order(call: Call, world: Path, run: str) -> None:
    plain = bs.search(world / "index", TEXTS[3], top_k=6)
    found = bs.search(world / "index", TEXTS[3], top_k=3, rerank=world / run, rerank_top=6)
    answers = bs.load(world / run).predict([TEXTS[3]] * 6, [one.text for one in plain])
    scores = [a.scores["1"] if hasattr(a, "scores") else a.number for a in answers]
    order = sorted(range(6), key=lambda i: -scores[i])[:3]
    assert [one.text for one in found] == [plain[i].text for i in order]
    assert [one.rerank_score for one in found] == pytest.approx([scores[i] for i in order], abs=1e-6)
    assert [one.rank for one in found] == [1, 2, 3]
    shown = call("search", "index", TEXTS[3], "--rerank", run, "--rerank-top", "6", "--top-k", "3")
    assert "reranked" in shown.out


def test_the_label_that_fits_is_said(world: Path) -> None:
    with pytest.raises(InputError) as caught:
        bs.search(world / "index", "kaba", rerank=world / "named")
    assert (caught.value.code, caught.value.argument) == ("rerank_label_unknown", "rerank_label")
    assert bs.search(world / "index", "kaba", rerank=world / "named", rerank_label="good")
    with pytest.raises(InputError) as caught:
        bs.search(world / "index", "kaba", rerank=world / "named", rerank_label="fine")
    assert (caught.value.code, caught.value.argument) == ("rerank_label_unknown", "rerank_label")


def test_another_model_is_refused(world: Path, tmp_path: Path, call: Call) -> None:
    found = call("search", "index", "kaba", "--model", "bert")
    assert found.code == 2
    assert "and bert is another model" in found.err.replace("\n", " ")
    moved = tmp_path / "moved"
    shutil.copytree(world / "near" / "model", moved)
    assert bs.search(world / "index", "kaba", model=moved) == bs.search(world / "index", "kaba")


def test_a_model_that_is_gone_is_told(world: Path, tmp_path: Path) -> None:
    shutil.copytree(world / "near" / "model", tmp_path / "model")
    bs.load(tmp_path / "model").index(["kaba lode", "nude"], tmp_path / "index")
    shutil.rmtree(tmp_path / "model")
    with pytest.raises(InputError) as caught:
        bs.search(tmp_path / "index", "kaba")
    assert (caught.value.code, caught.value.argument) == ("index_model_missing", "model")
    assert bs.search(tmp_path / "index", "nude", model=world / "near")[0].text == "nude"


def test_passages_of_queries_and_tables_in_memory_are_indexed(world: Path, tmp_path: Path) -> None:
    model = bs.load(world / "near")
    rows = [{"query": "q", "positives": ["kaba", "lode"], "negatives": ["kaba", "nude"]}]
    (tmp_path / "q.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    made = model.index(tmp_path / "q.jsonl", tmp_path / "a")
    assert [made.row(i).text for i in range(len(made))] == ["kaba", "lode", "nude"]
    made = model.index({"text": ["kaba", "lode"], "id": [7, 8]}, tmp_path / "b")
    assert [made.row(i).id for i in range(2)] == ["7", "8"]
    with pytest.raises(InputError) as caught:
        model.index(["kaba"], tmp_path / "b")
    assert (caught.value.code, caught.value.argument) == ("output_exists", "output_dir")
    assert len(model.index(["kaba"], tmp_path / "b", overwrite=True)) == 1


def test_approximate_search_says_what_it_finds(call: Call, tmp_path: Path) -> None:
    pytest.importorskip("faiss", reason="extra `ann`")
    made = call("embed", "near", "--input", "texts.jsonl", "--index", tmp_path / "i", "--approximate")
    assert made.code == 0, made.err
    assert "approximate search has a recall@10 of 100.0%" in made.err
    found = call("search", tmp_path / "i", TEXTS[2], "--approximate", "--json")
    assert json.loads(found.out)["queries"][0]["results"][0]["id"] == "d2"
    assert "approximate search has a recall@10" in found.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["embed", "near", "kaba", "--input", "texts.txt"], "both texts and a file are given"),
        (["embed", "near"], "there is no text"),
        (["embed", "near", "kaba", "--output", "v.csv"], "v.csv: this file name does not end in .npy"),
        (["embed", "near", "kaba", "--output", "texts.jsonl"], "texts.jsonl: already exists"),
        (["embed", "near", "kaba", "--output", "v.npy", "--index", "i"], "exclude each other"),
        (["embed", "near", "kaba", "--approximate"], "--approximate has no effect without --index"),
        (["embed", "near", "kaba", "--index", "i", "--no-normalize"], "--no-normalize"),
        (
            ["embed", "near", "--input", "texts.jsonl", "--text-column", "x"],
            "texts.jsonl:1: the field 'x' is missing",
        ),
        (
            ["embed", "near", "--input", "texts.jsonl", "--text-column", "more"],
            ":1: the field 'more' is not a string",
        ),
        (["embed", "near", "--input", "texts.jsonl", "--id-column", "x"], ":1: the field 'x' is missing"),
        (["embed", "near", "--input", "nowhere.txt"], "nowhere.txt"),
        (["search", "nowhere", "kaba"], "nowhere: this is not the folder of an index"),
        (["search", "bert", "kaba"], "bert: this is not the folder of an index"),
        (["search", "index"], "there is no text"),
        (["search", "index", " "], "the query is empty"),
        (["search", "index", "kaba", "--input", "texts.txt"], "both texts and a file are given"),
        (["search", "index", "kaba", "--qrels", "qrels.tsv"], "--qrels has no effect without --input"),
        (["search", "index", "kaba", "--rerank-label", "x"], "--rerank-label has no effect without --rerank"),
        (["search", "index", "kaba", "--approximate"], "index: this index was built for exact search only"),
        (["search", "index", "kaba", "--rerank", "moods"], "moods: this model was not trained on pairs"),
        (
            ["search", "index", "kaba", "--rerank", "fits", "--rerank-top", "2"],
            "--rerank-top: 2 is less than --top-k 5",
        ),
        (
            ["search", "index", "--input", "texts.jsonl", "--qrels", "qrels.tsv"],
            "qrels.tsv: no query of texts.jsonl is in this file; its first query is 'd0'",
        ),
    ],
)
def test_what_cannot_be_is_told_in_a_sentence(call: Call, arguments: list[str], said: str) -> None:
    found = call(*arguments, terminal=True)
    assert found.code == 2
    assert said in " ".join(found.err.split())
    assert "Traceback" not in found.err


@pytest.mark.parametrize("suffix", [".tsv", ".csv"])
def test_a_file_of_ids_and_texts_without_a_header_has_its_first_row(tmp_path: Path, suffix: str) -> None:
    """Read the collections of MS MARCO; with other names, or words, the first row is a header."""
    mark = "\t" if suffix == ".tsv" else ","
    file = tmp_path / f"collection{suffix}"
    file.write_text(f"0{mark}the sun sings\n17{mark}rain falls\n")
    rows = [(row.id, row.text) for row in read_text_rows(file)]
    assert rows == [("0", "the sun sings"), ("17", "rain falls")]
    file.write_text(f"0{mark}text\n17{mark}rain falls\n")
    assert [(row.id, row.text) for row in read_text_rows(file)] == [("2", "rain falls")]
