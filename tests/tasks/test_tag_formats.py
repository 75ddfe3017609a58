"""Tagging: spellings of tags, comments, tables, spans, and the messages about tags that spoil a scheme."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from bertsmith.errors import InputError
from bertsmith.io.sources import to_table
from bertsmith.tasks.settings import TagSettings
from bertsmith.tasks.tagging.sentences import TagExample, split_as_in_training
from task_files import task_data, task_report

PLAIN = TagSettings()


def read(path: Path, text: str, **settings: Any) -> list[TagExample]:
    path.write_text(text, encoding="utf-8")
    examples: list[TagExample] = task_data("tag", TagSettings(**settings)).read(path)
    return examples


def pairs(examples: Sequence[TagExample]) -> list[list[str]]:
    return [[f"{w}/{t}" for w, t in zip(e.words, e.tags or (), strict=True)] for e in examples]


def fit(*tags: str, names: list[str] | None = None) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the metadata of one sentence's tags, and the diagnostics by kind."""
    table = to_table([{"words": ["a"] * len(tags), "tags": list(tags)}], "train")
    data = task_data("tag", PLAIN)
    examples = data.read(table)
    metadata = dict(data.fit_metadata(examples, names))
    found = task_report("tag", metadata).answer_summary(examples, []).diagnostics
    return metadata, {diagnostic.kind: diagnostic for diagnostic in found}


@pytest.mark.parametrize(
    "tags",
    [
        "B_PER I_PER O", "PER-B PER-I O", "B:PER I:PER O", "PER.B PER.I O", "b-PER i-PER o", "B–PER I–PER O",
        "B-PER I-PER 0", "B-PER I-PER о O".replace("о", "О"), "B-PER I-PER _", "B PER|I PER|O", " B-PER|I-PER |O ",
        "B–PER B-PER I-PER O",
    ],
)  # fmt: skip
def test_other_spellings_of_tags_are_read_and_reported(tags: str) -> None:
    metadata, found = fit(*(tags.split("|") if "|" in tags else tags.split()))
    assert (metadata["file_tags"], metadata["scheme"]) == (["B-PER", "I-PER", "O"], "iob2")
    assert found["tags read as others"].locations[0].startswith("train (in memory):1, word ")
    assert "tags without a scheme" not in found


def test_two_spellings_in_one_file_are_reported() -> None:
    _, found = fit("B_PER", "O", "PER-B", "O")
    assert found["tags without a scheme"].locations


@pytest.mark.parametrize(
    ("tags", "scheme"),
    [("b m e s o", "iobes"), ("B_人名 E_人名 O", "iobes"), ("PER_U PER_L PER_B O", "iobes")],
)
def test_letters_of_all_schemes_are_read_in_other_spellings(tags: str, scheme: str) -> None:
    assert fit(*tags.split())[0]["scheme"] == scheme


@pytest.mark.parametrize("tags", ["NN VB _", "0 1 2", "N.A V.B ADJ.C", "B_PER PER NOUN", "X O"])
def test_tags_without_prefixes_stay(tags: str) -> None:
    metadata, found = fit(*tags.split())
    assert (metadata["file_tags"], metadata["scheme"]) == (sorted(tags.split()), None)
    assert "tags read as others" not in found


@pytest.mark.parametrize("tag", ["PERSON", "b-PER", "B_PER", "misc"])
def test_tags_that_spoil_a_scheme_are_named_with_their_words(tag: str) -> None:
    metadata, found = fit("B-PER", "I-PER", "O", tag, tag)
    assert metadata["scheme"] is None
    at = [f"train (in memory):1, word {number}" for number in (4, 5)]
    assert list(found["tags without a scheme"].locations) == at
    metrics = task_report("tag", metadata).metrics
    assert any(f"'{tag}'" in note or tag in note for note in metrics.compute([], []).notes)


def test_the_spelling_of_training_holds_in_evaluation() -> None:
    metadata, _ = fit("B_PER", "I_PER", "O")
    report = task_report("tag", metadata)
    other = TagExample(("a", "b", "c"), ("B_PER", "0", "PERSON"), "eval:1")
    assert report.metrics.labels([other]) == [("B-PER", "O", "PERSON")]
    kinds = [diagnostic.kind for diagnostic in report.answer_summary([other], []).diagnostics]
    assert {"tags read as others", "tags without a scheme"} <= set(kinds)
    named, _ = fit("0", "1", "2", names=["O", "B_PER", "I_PER"])
    assert (named["file_tags"], named["scheme"]) == (["O", "B-PER", "I-PER"], "iob2")


@pytest.mark.parametrize(
    "comments",
    ["# sent_id = 1\n# text = a b", "# id 7f domain=en", "#\thttp://x.org [1]", "#begin document (a); part 0",
     "#newdoc", "-DOCSTART- -X- O O"],
)  # fmt: skip
def test_comments_in_columns_are_skipped_and_counted(
    tmp_path: Path, comments: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    text = f"{comments}\n\nAda _ _ B-PER \n# _ _ O\n\n{comments}\n#sun _ _ O\n"
    for end in ("\n", "\r\n"):
        assert pairs(read(tmp_path / "a.conll", text.replace("\n", end))) == [
            ["Ada/B-PER", "#/O"],
            ["#sun/O"],
        ]
    assert caplog.records
    hashes = read(tmp_path / "b.conll", "#sun O\n# O\n#1 O\nAda B-PER\n")
    assert pairs(hashes) == [["#sun/O", "#/O", "#1/O", "Ada/B-PER"]]


WORDS = [["Ada/B-PER", "walks/O"], ["rain/O", ",/O"]]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.csv", 'sentence_id,words,labels\n0,Ada,B-PER\n0,walks,O\n1,rain,O\n1,",",O\n'),
        ("a.csv", 'Sentence #,Word,POS,Tag\n1,Ada,N,B-PER\n,walks,V,O\n2,rain,N,O\n,",",P,O\n'),
        ("a.csv", 'sentence;word;tag\n1;Ada;B-PER\n1;walks;O\n2;rain;O\n2;,;O\n'),
        ("a.csv", 'token,ner_tag\nAda,B-PER\nwalks,O\n\nrain,O\n",",O\n'),
        ("a.csv", 'Ada,B-PER\nwalks,O\n,\nrain,O\n",",O\n'),
        ("a.tsv", "token\tner_tag\nAda\tB-PER\nwalks\tO\n\nrain\tO\n,\tO\n"),
        ("a.csv", 'id,words,tags\n1,Ada walks,B-PER O\n2,"rain ,",O O\n'),
        ("a.csv", "words,tags\n\"['Ada', 'walks']\",\"['B-PER', 'O']\"\n\"['rain', ',']\",\"['O', 'O']\"\n"),
        ("a.csv", "Ada,B-PER,\nwalks,O,\n,,\nrain,O,\n\",\",O,\n"),
        ("a.jsonl", '{"tokens": ["Ada", "walks"], "labels": ["B-PER", "O"]}\n{"words": "rain ,", "tag": "O O"}\n'),
    ],
)  # fmt: skip
def test_tables_of_words_and_of_sentences_are_read(tmp_path: Path, name: str, text: str) -> None:
    assert pairs(read(tmp_path / name, text)) == WORDS


@pytest.mark.parametrize("cells", ['"{Ada,walks}","{B-PER,O}"', '"[Ada, walks]","[B-PER, O]"'])
def test_lists_without_quotes_are_read(tmp_path: Path, cells: str) -> None:
    for columns in ("words,tags", "text,tags", "tokens,ner_tags"):
        assert pairs(read(tmp_path / "a.csv", f"{columns}\n{cells}\n")) == WORDS[:1]


@pytest.mark.parametrize("tag", ["(12)", "[PER]", "{X}"])
def test_a_tag_in_brackets_is_no_list(tmp_path: Path, tag: str) -> None:
    assert pairs(read(tmp_path / "a.csv", f"word,tag\nAda,{tag}\nwalks,O\n")) == [[f"Ada/{tag}", "walks/O"]]


def test_a_list_of_words_as_numpy_prints_it_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        read(tmp_path / "a.csv", "words,tags\n\"['Ada' 'walks']\",\"['B-PER' 'O']\"\n")
    assert (caught.value.code, caught.value.location) == ("not_a_list", f"{tmp_path / 'a.csv'}:2")


def test_rows_in_memory_are_grouped_by_the_id_of_the_sentence() -> None:
    columns = {
        "Sentence #": ["1", None, "2", None],
        "Word": ["Ada", "walks", "rain", ","],
        "Tag": ["B-PER", "O", "O", "O"],
    }
    examples = task_data("tag", PLAIN).read(to_table(columns, "train"))
    assert (pairs(examples), examples[1].word_location(1)) == (WORDS, "train (in memory):4")


def test_columns_of_a_table_are_chosen_by_name_or_number(tmp_path: Path) -> None:
    text = "nr,wort,art,etikett\n1,Ada,N,B-PER\n2,walks,V,O\n"
    for columns in (("wort", "etikett"), ("2", "-1")):
        settings = {"word_column": columns[0], "tag_column": columns[1]}
        if columns[0] == "2":
            text = text.replace("nr,wort,art,etikett\n", "")
        assert pairs(read(tmp_path / "a.csv", text, **settings)) == WORDS[:1]


SPANS = [["Ada/B-PER", "walks/O", "in/O", "New/B-LOC", "York/I-LOC", "./O"], ["雨/B-X", "。/O"]]


def test_spans_of_annotation_tools_are_read(tmp_path: Path) -> None:
    texts = ["Ada walks in New York.", "雨。"]
    spans: list[list[tuple[int, int, str]]] = [[(0, 3, "PER"), (13, 21, "LOC")], [(0, 1, "X")]]
    dicts = [[{"start": a, "end": b, "label": c} for a, b, c in row] for row in spans]
    offsets = [
        [{"id": 1, "start_offset": a, "end_offset": b, "label": c} for a, b, c in row] for row in spans
    ]
    results = [
        [{"value": {"start": a, "end": b, "text": text[a:b], "labels": [c]}} for a, b, c in row]
        for text, row in zip(texts, spans, strict=True)
    ]
    exports: list[list[dict[str, Any]]] = [
        [{"text": t, "label": s} for t, s in zip(texts, spans, strict=True)],
        [{"text": t, "entities": s, "relations": []} for t, s in zip(texts, offsets, strict=True)],
        [{"text": t, "tokens": [{"text": "Ada"}], "spans": s} for t, s in zip(texts, dicts, strict=True)],
        [{"data": {"text": t}, "annotations": [{"result": s}]} for t, s in zip(texts, results, strict=True)],
    ]
    for rows in exports:
        (tmp_path / "a.json").write_text(json.dumps(rows), encoding="utf-8")
        data = task_data("tag", PLAIN)
        examples = data.read(tmp_path / "a.json")
        assert pairs(examples) == SPANS
        unlabeled = data.read(tmp_path / "a.json", labeled=False)
        split = split_as_in_training(unlabeled, data.fit_metadata(examples, None))
        assert [e.words for e in split] == [e.words for e in examples]
    spacy = [(t, {"entities": s}) for t, s in zip(texts, spans, strict=True)]
    assert pairs(data.read(to_table(spacy, "train", data.tuple_columns))) == SPANS


def test_spans_that_cut_words_are_extended_and_reported(tmp_path: Path) -> None:
    row = {"text": "Adas walk", "label": [[0, 3, "PER"], [4, 7, "X"]]}
    examples = read(tmp_path / "a.jsonl", json.dumps(row) + '\n{"text": "rain", "label": []}\n')
    assert pairs(examples) == [["Adas/B-PER", "walk/B-X"], ["rain/O"]]
    metadata = task_data("tag", PLAIN).fit_metadata(examples, None)
    found = {d.kind: d for d in task_report("tag", metadata).answer_summary(examples, []).diagnostics}
    assert list(found["extended spans"].locations) == [f"{tmp_path / 'a.jsonl'}:1"] * 2


@pytest.mark.parametrize(
    ("row", "code"),
    [
        ('{"text": "Ada walks", "label": [[0, 3, "P"], [2, 5, "L"]]}', "bad_span"),
        ('{"text": "Ada walks", "label": [[0, 99, "P"]]}', "bad_span"),
        ('{"text": "Ada walks", "label": [[-3, 3, "P"]]}', "bad_span"),
        ('{"text": "Ada walks", "label": [[3, 3, "P"]]}', "bad_span"),
        ('{"text": "Ada walks", "label": [[3, 4, "P"]]}', "bad_span"),
        ('{"text": "Ada walks", "label": [[0, 3]]}', "bad_span"),
        ('{"text": "Ada walks", "label": [["P", 0, 3]]}', "bad_span"),
        ('{"text": "Ada walks", "spans": [{"start": 0, "end": 3, "text": "Bob", "label": "P"}]}', "bad_span"),
        ('{"text": "Ada walks", "annotations": [{"result": null, "value": 3}]}', "bad_span"),
        ('{"text": "Ada walks", "label": {"entities": 3}}', "not_a_list"),
        ('{"words": ["Ada", null], "tags": ["O", "O"]}', "invalid_item"),
        ('{"words": ["Ada", 5], "tags": ["O", "O"]}', "invalid_item"),
        ('{"words": ["Ada", "b"], "tags": ["O", null]}', "invalid_item"),
        ('{"words": ["Ada", "b"], "tags": [[0, 1, "P"]]}', "invalid_item"),
        ('{"text": "the sun sings", "label": "joy"}', "tag_count"),
        ('{"tokens": ["Ada", "b"], "entities": [{"type": "P", "start": 0, "end": 2}]}', "invalid_item"),
        ('{"words": ["Ada", "b"], "spans": [[0, 2, "P"]]}', "invalid_item"),
        ('{"text": "Ada walks", "label": null}', "not_a_list"),
        ('{"words": "", "tag": "O"}', "empty_sentence"),
    ],
)  # fmt: skip
def test_faults_of_rows_have_a_location(tmp_path: Path, row: str, code: str) -> None:
    with pytest.raises(InputError) as caught:
        read(tmp_path / "a.jsonl", row)
    assert (caught.value.code, caught.value.location) == (code, f"{tmp_path / 'a.jsonl'}:1")
    if "null]" in row or "5]" in row:
        assert "s[1]" in str(caught.value)


def test_a_sentence_that_comes_back_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        read(tmp_path / "a.csv", "sentence_id,word,tag\n0,Ada,O\n1,rain,O\n0,walks,O\n")
    assert (caught.value.code, caught.value.location) == ("sentence_interrupted", f"{tmp_path / 'a.csv'}:4")


def test_numbers_as_tags_are_reported_until_they_have_names() -> None:
    assert len(fit("0", "1", "2")[1]["numbers as tags"].locations) == 3
    metadata, found = fit("0", "1", "2", names=["O", "B-PER", "I-PER"])
    assert (metadata["scheme"], "numbers as tags" in found) == ("iob2", False)


def test_tags_of_many_digits_are_tags() -> None:
    assert len(fit("9" * 1000, "1", "8" * 1000)[0]["labels"]) == 3
    with pytest.raises(InputError) as caught:
        fit("9" * 5000, "1")  # more digits than Python reads as a number
    assert caught.value.code == "label_too_long"


def test_numbers_in_another_spelling_are_tags_of_the_model_and_reported() -> None:
    metadata, found = fit("0", "1", "1.0", "01")
    assert metadata["file_tags"] == ["0", "1"]
    assert len(found["tags read as others"].locations) == 2


@pytest.mark.parametrize("num_words", [1000, 1001])
def test_a_file_without_blank_lines_is_reported(
    tmp_path: Path, num_words: int, caplog: pytest.LogCaptureFixture
) -> None:
    read(tmp_path / "a.txt", "Ada\tO\n" * num_words)
    assert (f"{tmp_path / 'a.txt'}:1" in caplog.text) == (num_words > 1000)


@pytest.mark.parametrize(
    "text",
    [
        "#\tn-tv.de\n1\tAda\tB-PER\tO\n2\twalks\tO\tO\n", "1 Ada NNP B-PER\n2 walks VB O\n",
        "0 Ada B-PER\n1 walks O\n", "B-PER\tAda\nO\twalks\n", "Ada B-PER 0.99\nwalks O 1.0\n",
    ],
)  # fmt: skip
def test_other_columns_are_refused_and_read_as_the_advice_says(tmp_path: Path, text: str) -> None:
    for name in ("a.conll", "a.csv")[: 1 + ("#" not in text)]:
        text = re.sub("[\t ]", ",", text) if name == "a.csv" else text
        with pytest.raises(InputError) as caught:
            read(tmp_path / name, text)
        options = re.findall(r"--(\w+)-column (-?\d)", caught.value.hint_for("command line") or "")
        options = options[:1] if "NNP" in text or text.startswith("0") else options
        settings = {f"{column}_column": number for column, number in options}
        assert settings
        assert pairs(read(tmp_path / name, text, **settings)) == WORDS[:1]


@pytest.mark.parametrize(
    "rows",
    [
        [{"words": ["B-PER", "O"], "tags": ["Ada", "walks"]}],
        [[("Ada", "B-PER"), ("walks", "O")], [("Rome", "B-LOC"), ("burns", "O")]],
        [{"words": ["Ada", "walks"], "tags": [1, -100]}],
        [{"words": ["Ada", "walks"], "tags": ["B-PER|O", "O"]}],
        [{"words": ["Ada", "walks"], "tags": ["B-PER", "I-PER+B-LOC"]}],
    ],
)
def test_lists_of_other_contents_are_refused(rows: Any) -> None:
    data = task_data("tag", PLAIN)
    with pytest.raises(InputError) as caught:
        data.read(to_table(rows, "train", data.tuple_columns))
    assert (caught.value.code, caught.value.location) == ("other_columns", "train (in memory):1")


def test_tags_in_brackets_are_read_as_entities(tmp_path: Path) -> None:
    (example,) = read(tmp_path / "a.conll", "Ada (PER)\nin *\nNew (LOC*\nYork *\nCity *)\nburns *\n")
    assert example.tags == ("B-PER", "O", "B-LOC", "I-LOC", "I-LOC", "O")


@pytest.mark.parametrize("spans", ["[[0, 3, 'PER']]", '[{""start"":0,""end"":3,""labels"":[""PER""]}]'])
def test_spans_in_cells_are_read(tmp_path: Path, spans: str) -> None:
    examples = read(tmp_path / "a.csv", f'text,id,label\nAda walks,1,"{spans}"\n"rain ,",2,[]\n')
    assert pairs(examples) == WORDS


def test_tags_without_prefixes_beside_o_are_reported() -> None:
    assert fit("PER", "O", "LOC", "O")[1]["tags without a scheme"].locations


@pytest.mark.parametrize(
    ("cells", "tags"),
    [
        ('"Ada walks","[1, 0]"', ("1", "0")),
        ("\"['Ada', 'walks']\",\"[1 0]\"", ("1", "0")),
        ('"Ada walks","B-PER, O"', ("B-PER", "O")),
        ('"Ada walks","B-PER;O"', ("B-PER", "O")),
        ('", walks",", VB"', (",", "VB")),
    ],
)
def test_a_list_of_tags_in_a_cell(tmp_path: Path, cells: str, tags: tuple[str, ...]) -> None:
    (example,) = read(tmp_path / "a.csv", f"words,tags\n{cells}\n")
    assert example.tags == tags


def test_parentheses_are_words(tmp_path: Path) -> None:
    (example,) = read(tmp_path / "a.csv", 'words,tags\n"( Ada )","( NN )"\n')
    assert example.words == ("(", "Ada", ")")


def test_a_separator_line_is_no_header(tmp_path: Path) -> None:
    assert pairs(read(tmp_path / "a.csv", "sep=;\nword;tag\nAda;B-PER\n")) == [["Ada/B-PER"]]


@pytest.mark.parametrize("tag", ["NaN", "null"])
def test_a_missing_tag_is_an_error_unless_it_is_named(tag: str) -> None:
    with pytest.raises(InputError) as caught:
        fit("NN", tag)
    assert (caught.value.code, str(caught.value.location)[-6:]) == ("empty_label", "word 2")
    assert tag in fit("NN", tag, names=["NN", tag])[0]["labels"]


@pytest.mark.parametrize("text", ["[Ada](PER) walks\n", "The_DT dog_NN runs_VB\n"])
def test_other_texts_with_tags_are_named(tmp_path: Path, text: str) -> None:
    with pytest.raises(InputError) as caught:
        read(tmp_path / "a.txt", text * 2)
    assert caught.value.code == "other_tag_format"


def test_annotations_of_label_studio_that_were_skipped_or_repeat(tmp_path: Path) -> None:
    def task(*annotations: dict[str, Any]) -> dict[str, Any]:
        return {"data": {"text": "Ada walks"}, "annotations": annotations}

    span = {"value": {"start": 0, "end": 3, "text": "Ada", "labels": ["PER"]}}
    done, skipped = {"result": [span]}, {"result": [span], "was_cancelled": True}
    assert pairs(read(tmp_path / "a.json", json.dumps([task(skipped), task(done, skipped)]))) == [
        ["Ada/B-PER", "walks/O"]
    ]
    with pytest.raises(InputError) as caught:
        read(tmp_path / "a.json", json.dumps([task(done, {"result": []})]))
    assert caught.value.code == "several_annotations"
