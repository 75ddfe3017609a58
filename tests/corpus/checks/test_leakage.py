"""Rows of evaluation sets in a corpus are found with both locations, and other rows are not."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bertsmith.corpus.checks.check import CheckOptions, check_files
from bertsmith.corpus.checks.leakage import task_rows
from bertsmith.errors import InputError

WORDS = [a + b + c for a in "bdfgklmnprst" for b in "aeiou" for c in "nrstlm"]


def random_words(count: int, seed: int) -> str:
    return " ".join(random.Random(seed).choices(WORDS, k=count))


def corpus(folder: Path, *planted: str) -> Path:
    """Write ten documents of three lines, with planted texts inside the second lines of the first documents."""
    documents = [[random_words(40, 10_000 + 10 * d + line) + "." for line in range(3)] for d in range(10)]
    for document, text in zip(documents, planted, strict=False):
        document[1] = f"{random_words(5, 990)} {text} {random_words(5, 991)}."
    path = folder / "corpus.txt"
    path.write_text("\n\n".join("\n".join(lines) for lines in documents) + "\n", encoding="utf-8")
    return path


def check_leakage(corpus_file: Path, *files: Path, n: int = 13) -> dict:
    return check_files([corpus_file], CheckOptions(ngram=n), against=files)["against"]


def test_rows_are_found_with_both_locations(tmp_path: Path) -> None:
    full, partial = random_words(20, 1), random_words(30, 2)
    file = tmp_path / "validation.tsv"
    file.write_text(
        f"sentence\tlabel\n{random_words(20, 3)}\t0\n{full.upper()}!\t1\nx {partial}\t0\n", encoding="utf-8"
    )
    report = check_leakage(corpus(tmp_path, full, partial[: len(partial) // 2]), file)
    assert report["files"] == [
        {"file": str(file), "rows": 4, "too_short": 1, "hit": 2, "share": round(2 / 3, 6)}
    ]
    assert [(row["row"], row["corpus"].rsplit(":", 1)[0]) for row in report["rows"]] == [
        (f"{file}:3", f"{tmp_path / 'corpus.txt'}:2"),
        (f"{file}:4", f"{tmp_path / 'corpus.txt'}:6"),
    ]
    assert report["rows"][0]["share"] == 1.0
    assert 0 < report["rows"][1]["share"] < 0.5
    assert report["rows"][0]["text"].startswith(full[:50])


@pytest.mark.parametrize(("words", "is_hit"), [(7, False), (8, True), (12, True), (13, True)])
def test_rows_of_eight_words_are_compared_completely(tmp_path: Path, words: int, is_hit: bool) -> None:
    text = random_words(words, 4)
    file = tmp_path / "validation.txt"
    file.write_text(text + "\n", encoding="utf-8")
    report = check_leakage(corpus(tmp_path, text), file)
    assert report["hit"] == int(is_hit)
    assert report["files"][0]["too_short"] == int(words < 8)
    half = tmp_path / "half"
    half.mkdir()
    assert check_leakage(corpus(half, text.rsplit(" ", 1)[0]), file)["hit"] == 0


def test_shorter_overlaps_are_no_leakage(tmp_path: Path) -> None:
    text = random_words(30, 5).split()
    file = tmp_path / "validation.txt"
    file.write_text(" ".join(text) + "\n", encoding="utf-8")
    twelve = corpus(tmp_path, " ".join(text[5:17]))
    assert check_leakage(twelve, file)["hit"] == 0
    assert check_leakage(twelve, file, n=12)["hit"] == 1


def test_chinese_counts_characters(tmp_path: Path) -> None:
    rng = random.Random(3)
    text = "".join(chr(rng.randrange(0x4E00, 0x9F00)) for _ in range(40))
    file = tmp_path / "validation.jsonl"
    file.write_text(json.dumps({"q": text}) + "\n" + json.dumps({"q": text[::-1]}) + "\n", encoding="utf-8")
    path = tmp_path / "zh.txt"
    path.write_text(f"天地玄黄。\n{text[3:16]}。日月盈昃，\n\n辰宿列张。\n", encoding="utf-8")
    report = check_files([path], against=[file])["against"]
    assert [(row["row"], row["corpus"]) for row in report["rows"]] == [(f"{file}:1", f"{path}:2:1")]


def test_all_formats_of_task_files_are_read(tmp_path: Path) -> None:
    hit = random_words(20, 6)
    words = hit.split()
    files = {
        "a.csv": f'id,text\n1,"{random_words(20, 7)}"\n2,"he said ""so"", {hit}"\n',
        "b.jsonl": json.dumps({"context": {"paragraphs": [hit]}, "n": 3}) + "\n",
        "c.json": json.dumps({"data": [{"qas": [{"question": hit}]}]}),
        "d.txt": "\n".join(f"{word} NN O" for word in words) + "\n\n",
        "e.conllu": "# text = x\n" + "\n".join(f"{i}\t{w}\t_\t_" for i, w in enumerate(words, 1)) + "\n",
        "f.jsonl": json.dumps({"tokens": words}) + "\n",
    }
    paths = []
    for name, text in files.items():
        paths.append(tmp_path / name)
        paths[-1].write_text(text, encoding="utf-8")
    paths.append(tmp_path / "g.tsv.gz")
    paths[-1].write_bytes(gzip.compress(f"{random_words(20, 8)}\t{hit}\n".encode()))
    paths.append(tmp_path / "h.parquet")
    pq.write_table(pa.table({"label": [1, 2], "text": ["x", hit]}), paths[-1])
    report = check_leakage(corpus(tmp_path, hit), *paths)
    assert [file["hit"] for file in report["files"]] == [1] * 8
    assert report["files"][-1]["file"] == str(tmp_path / "h.parquet")
    assert {row["row"] for row in report["rows"]} >= {
        f"{tmp_path / 'a.csv'}:3",
        f"{tmp_path / 'c.json'}#/data/0/qas/0/question",
        f"{tmp_path / 'h.parquet'}:2",
    }


def test_missing_and_damaged_task_files_are_refused(tmp_path: Path) -> None:
    path = corpus(tmp_path)
    with pytest.raises(InputError) as caught:
        check_files([path], against=[tmp_path / "none.tsv"])
    assert caught.value.code == "not_found"
    assert str(caught.value.location).endswith("none.tsv")
    (tmp_path / "bad.json").write_text('{"a": [1,', encoding="utf-8")
    with pytest.raises(InputError) as caught:
        check_files([path], against=[tmp_path / "bad.json"])
    assert (caught.value.code, caught.value.location) == ("not_json", f"{tmp_path / 'bad.json'}:1:10")
    (tmp_path / "bad.parquet").write_bytes(b"no parquet at all")
    with pytest.raises(InputError) as caught:
        check_files([path], against=[tmp_path / "bad.parquet"])
    assert (caught.value.code, caught.value.location) == ("bad_parquet", str(tmp_path / "bad.parquet"))


def test_lines_are_rows_in_tab_separated_files(tmp_path: Path) -> None:
    path = tmp_path / "t.txt"
    path.write_text("one two three\t0\nfour five\t1\n\nsix\n", encoding="utf-8")
    assert list(task_rows(path)) == [
        (f"{path}:1", ["one two three", "0"]),
        (f"{path}:2", ["four five", "1"]),
        (f"{path}:4", ["six"]),
    ]


def test_the_label_in_a_txt_file_is_no_word_of_its_text(tmp_path: Path) -> None:
    """Rows of 8 to 12 words are compared completely, and would not be found with their labels."""
    rows = [random_words(8 + i % 5, 500 + i) for i in range(200)]
    file = tmp_path / "validation.txt"
    labels = ["joy", "anger", "fear"]
    file.write_text("".join(f"{row};{labels[i % 3]}\n" for i, row in enumerate(rows)), encoding="utf-8")
    path = tmp_path / "corpus.txt"
    path.write_text(
        "".join(f"{random_words(9, i)} {row} {random_words(9, 300 + i)}.\n\n" for i, row in enumerate(rows))
    )
    report = check_leakage(path, file)
    assert report["files"][0]["rows"] == report["hit"] == 200
