"""The Python interface in notebooks and scripts."""

from __future__ import annotations

import csv
import json
import os
import pydoc
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

import bertsmith as bs
import tiny_run
from bertsmith.errors import option
from bertsmith.finetuning.settings import FinetuneSettings
from bertsmith.io.documents import read_documents
from bertsmith.io.sources import to_source, to_sources
from bertsmith.io.tables import Table
from bertsmith.pretraining.settings import PretrainSettings
from bertsmith.settings import resolve
from bertsmith.tasks.registry import TASKS, get_task
from task_files import task_data

SHORT: dict[str, Any] = {
    "max_steps": 3,
    "threads": 1,
    "precision": "fp32",
    "report_to": "none",
    "logging_steps": 1,
}
ROWS = [{"title": text, "label": label} for text, label in tiny_run.examples(24)]


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> bs.Model:
    """Return a tiny pre-trained run."""
    folder = tmp_path_factory.mktemp("bert")
    return tiny_run.run(tiny_run.make_shards(folder), folder / "bert", "train.max_steps=3")


@pytest.fixture(scope="module")
def moods(bert: bs.Model, tmp_path_factory: pytest.TempPathFactory) -> bs.Model:
    """Return a classifier that was fine-tuned on data in memory."""
    out = tmp_path_factory.mktemp("moods") / "moods"
    return bs.finetune("classify", bert, out, train=ROWS, validation=ROWS[:9], text_column="title", **SHORT)


class Arrow:
    """A table that offers only the Arrow stream interface."""

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self._table = pa.Table.from_pylist(rows)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self._table.__arrow_c_stream__(requested_schema)


def pandas_frame(rows: list[dict[str, Any]]) -> Any:
    frame = pytest.importorskip("pandas").DataFrame(rows)
    return frame.set_index(frame.index * 10 + 5)


FORMS: dict[str, Callable[[list[dict[str, Any]]], Any]] = {
    "dicts": lambda rows: rows,
    "columns": lambda rows: {key: [row[key] for row in rows] for key in rows[0]},
    "pyarrow": pa.Table.from_pylist,
    "arrow stream": Arrow,
    "pandas": pandas_frame,
    "polars": lambda rows: pytest.importorskip("polars").DataFrame(rows),
    "datasets": lambda rows: pytest.importorskip("datasets").Dataset.from_list(rows),
}


# Files and data in memory


@pytest.mark.parametrize("form", FORMS)
def test_a_table_of_any_library_reads_as_the_file_with_the_same_rows(form: str, tmp_path: Path) -> None:
    rows = [{"title": "one\ntwo", "n": 1}, {"title": "žluť 好 😀", "n": 2}, {"title": ' "quoted", ', "n": 3}]
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    reading = bs.Reading(text_column="title")
    (table,) = to_sources(FORMS[form](rows))
    texts = [document.text for document in read_documents([table], reading)]
    assert texts == [document.text for document in read_documents([file], reading)]
    assert [document.location for document in read_documents([table], reading)][1] == "data (in memory):2"


@pytest.mark.parametrize("files", ["corpus.txt", Path("corpus.txt"), ["corpus.txt"], (Path("corpus.txt"),)])
def test_one_path_needs_no_list(files: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("corpus.txt").write_text(tiny_run.corpus(), encoding="utf-8")
    tokenizer = bs.train_tokenizer(files, "tokenizer", vocab_size=60)
    assert bs.prepare(files, tokenizer, "shards", workers=1).documents == 24
    assert bs.check_corpus(files, benchmark=False)["documents"]["number"] == 24
    assert bs.inspect_tokenizers("tokenizer", files)["files"] == ["corpus.txt"]
    assert bs.extend_tokenizer(files, None, tokenizer="tokenizer", words=2, min_frequency=1)["added"] == 2


def test_texts_in_memory_become_the_shards_of_the_same_file(tmp_path: Path) -> None:
    texts = tiny_run.corpus().strip().split("\n\n")
    (tmp_path / "corpus.txt").write_text(tiny_run.corpus(), encoding="utf-8")
    file, memory = tmp_path / "file", tmp_path / "memory"
    from_file = bs.prepare(tmp_path / "corpus.txt", tiny_run.tokenizer(), file, workers=1)
    from_memory = bs.prepare(bs.Texts(texts), tiny_run.tokenizer(), memory, workers=1)
    everything = np.arange(from_file.tokens)
    assert len(from_file) == 24
    assert from_memory.take(everything).tolist() == from_file.take(everything).tolist()
    assert from_memory.hashes.tolist() == from_file.hashes.tolist()
    assert from_memory.location(4) == "texts (in memory):5"
    trained = [
        bs.train_tokenizer(source, tmp_path / name, vocab_size=60).tokens
        for name, source in (("a", tmp_path / "corpus.txt"), ("b", bs.Texts(texts)))
    ]
    assert trained[0] == trained[1]
    checked = bs.check_corpus([bs.Texts(texts), bs.Texts(texts[:2])], benchmark=False, sample=500)
    assert checked["files"] == ["texts (in memory)", "texts 2 (in memory)"]


def test_data_that_is_neither_a_path_nor_a_table_is_an_error() -> None:
    for data, code, location in (
        (5, "not_a_source", "data"),
        (["corpus.txt", 7], "not_a_source", "data"),
        ({"train": {"text": ["a"]}}, "several_tables", "data"),
        ({"text": ["a", "b"], "label": ["x"]}, "length_mismatch", "data"),
        ({"text": "a"}, "not_a_list", "data: column 'text'"),
    ):
        with pytest.raises(bs.InputError) as caught:
            to_sources(data)
        assert (caught.value.code, caught.value.location) == (code, location)
    with pytest.raises(bs.InputError) as caught:
        bs.Texts("one text")
    assert (caught.value.code, caught.value.argument) == ("single_text", "texts")


def test_class_labels_of_a_dataset_become_names() -> None:
    datasets = pytest.importorskip("datasets")
    names = datasets.ClassLabel(names=["neg", "pos"])
    features = datasets.Features({"label": names, "tags": datasets.Sequence(names)})
    data = datasets.Dataset.from_dict({"label": [1, 0, -1], "tags": [[0, 1], [], [1]]}, features=features)
    table = to_source(data.select([2, 0]), "train")
    assert isinstance(table, Table)
    assert [row.values for row in table] == [
        {"label": None, "tags": ["pos"]},
        {"label": "pos", "tags": ["neg", "pos"]},
    ]


@pytest.mark.parametrize("form", FORMS)
def test_finetuning_on_data_in_memory_equals_finetuning_on_the_file(
    form: str, bert: bs.Model, moods: bs.Model, tmp_path: Path
) -> None:
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    settings = {"task": {"text_column": "title"}, "train.max_steps": 3, "train.logging_steps": 1}
    same = bs.finetune(
        "classify", bert, tmp_path / "run", train=FORMS[form](ROWS), validation=FORMS[form](ROWS[:9]),
        settings=settings, threads=1, precision="fp32", report_to="none",
    )  # fmt: skip
    assert same.folder.weights_digest() == moods.folder.weights_digest()
    scores = moods.evaluate(tmp_path / "train.jsonl")
    assert moods.evaluate(FORMS[form](ROWS)) == scores
    texts = [row["title"] for row in ROWS]
    assert moods.predict(FORMS[form](ROWS)) == moods.predict(texts)


def test_a_run_on_data_in_memory_resumes_only_with_the_same_data(moods: bs.Model, bert: bs.Model) -> None:
    run, data = moods.path, {"train": ROWS, "validation": ROWS[:9]}
    settings = (run / "settings.yaml").read_text(encoding="utf-8")
    assert "train: train (in memory)" in settings
    again = bs.finetune("classify", bert, run, **data, resume=True)
    assert again.report["steps"] == 3
    with pytest.raises(bs.InputError) as caught:
        bs.finetune("classify", bert, run, train=ROWS, resume=True)
    assert (caught.value.code, caught.value.argument) == ("data_missing", "validation")
    with pytest.raises(bs.InputError) as caught:
        bs.finetune("classify", bert, run, train=ROWS[1:], validation=ROWS[:9], resume=True)
    assert caught.value.code == "checkpoint_of_another_run"


def test_the_location_of_an_error_in_memory_is_its_row(moods: bs.Model) -> None:
    with pytest.raises(bs.InputError) as caught:
        moods.evaluate([*ROWS[:2], {"title": "mi"}])
    assert (caught.value.code, caught.value.argument) == ("field_missing", "label_column")
    assert str(caught.value.location).endswith("data (in memory):3")
    with pytest.raises(bs.InputError) as caught:
        moods.evaluate([("mi", "joy"), ("mi",)])
    assert caught.value.code == "bad_row"
    assert str(caught.value.location).endswith("data row 2")


def test_tuples_have_the_columns_of_their_task() -> None:
    names = {name: task_data(name, get_task(name).settings_type()).tuple_columns(2) for name in TASKS}
    assert names["classify"] == names["regress"] == ["text", "label"]
    assert names["tag"] == ["words", "tags"]
    assert names["answer"] == ["question", "context", "answer"]
    pairs = get_task("classify").settings_type(second_column="other")
    assert task_data("classify", pairs).tuple_columns(3) == ["text", "other", "label"]


@pytest.mark.parametrize("column", [np.array, pa.array, pa.chunked_array, tuple])
def test_predict_takes_a_column_of_any_library(column: Callable[[Any], Any], moods: bs.Model) -> None:
    texts = [row["title"] for row in ROWS[:4]]
    array = column([texts]) if column is pa.chunked_array else column(texts)
    assert moods.predict(array) == moods.predict(texts)


# Missing and empty values, and tables instead of lists


def test_a_missing_column_is_an_error_for_tables_of_any_width(moods: bs.Model) -> None:
    for form in FORMS.values():
        for rows in ([{"text": "kaba"}] * 3, [{"text": "kaba", "n": "1"}] * 3):
            with pytest.raises(bs.InputError) as caught:
                moods.predict(form(rows))
            assert (caught.value.code, caught.value.argument) == ("column_missing", "text_column")
            assert str(caught.value.location).endswith("data")
        assert len(moods.predict(form([{"text": "kaba"}] * 3), text_column="text")) == 3


def test_the_keys_of_a_jsonl_file_are_not_texts(moods: bs.Model, tmp_path: Path) -> None:
    file = tmp_path / "new.jsonl"
    file.write_text('{"text": "kaba"}\n' * 3)
    assert [answer["text"] for answer in moods.predict_file(file, text_column="text")] == ["kaba"] * 3


@pytest.mark.parametrize("form", FORMS)
def test_a_table_instead_of_a_list_of_texts_is_an_error(form: str, bert: bs.Model, moods: bs.Model) -> None:
    data = FORMS[form](ROWS[:3])
    for call in (bert.embed, lambda table: moods.predict(table, table)):
        with pytest.raises(bs.InputError) as caught:
            call(data)
        assert caught.value.code == "is_a_table"


def test_the_prediction_of_an_empty_text_is_marked_as_empty(
    moods: bs.Model, caplog: pytest.LogCaptureFixture
) -> None:
    predictions = [one.to_dict() for one in moods.predict(["kaba", "", " \n", "lode"])]
    assert caplog.messages == ["2 texts are empty and not predicted: text 2, text 3"]
    assert [predictions[0], predictions[3]] == [one.to_dict() for one in moods.predict(["kaba", "lode"])]
    assert predictions[1] == {
        "label": None,
        "score": None,
        "scores": None,
        "tokens": 0,
        "tokens_read": 0,
        "empty": True,
    }
    assert predictions[2] == predictions[1]


@pytest.mark.parametrize("missing", [None, float("nan"), np.float32("nan")])
def test_a_missing_text_in_memory_is_an_empty_text(
    missing: Any, bert: bs.Model, moods: bs.Model, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows = [*ROWS[:2], {"title": missing, "label": "joy"}, *ROWS[2:9]]
    predictions = [one.to_dict() for one in moods.predict(rows)]
    assert caplog.messages == ["1 text is empty and not predicted: data (in memory):3"]
    assert predictions[2]["label"] is None
    assert [*predictions[:2], *predictions[3:]] == [one.to_dict() for one in moods.predict(ROWS[:9])]
    assert [one.to_dict() for one in moods.predict([row["title"] for row in rows])] == predictions
    blank = [dict(row, title="") if row["title"] is missing else row for row in rows]
    assert moods.evaluate(rows) == moods.evaluate(blank)
    messages: list[str] = []
    with tiny_run.logged(messages):
        bs.finetune(
            "classify", bert, tmp_path / "run", train=rows, validation=ROWS[:9], text_column="title", **SHORT
        )
    assert any("1 text is empty" in line for line in messages)
    with pytest.raises(bs.InputError) as caught:
        moods.evaluate([{"title": "mi", "label": missing}])
    assert (caught.value.code, caught.value.location) == ("empty_label", "data (in memory):1")


def test_missing_values_of_pandas(moods: bs.Model) -> None:
    pandas = pytest.importorskip("pandas")
    texts = [row["title"] for row in ROWS[:2]]
    for column in (
        pandas.Series([*texts, pandas.NA], dtype="string"),
        pandas.Series([*texts, None], dtype=object),
    ):
        frame = pandas.DataFrame({"title": column})
        for data in (frame, frame["title"], frame.to_dict("records"), frame.to_dict("list")):
            predictions = moods.predict(data)
            assert predictions[2].label is None
            assert predictions[:2] == moods.predict(texts)


# Settings


def test_settings_are_assignments_mappings_or_keywords() -> None:
    expected = FinetuneSettings().changed(
        ["train.num_train_epochs=4", "train.lr_milestones=[0.5, 0.6]", "train.seed=3"]
    )
    for settings, keywords in (
        (["train.num_train_epochs=4", "train.lr_milestones=[0.5, 0.6]"], {"seed": 3}),
        ({"train.num_train_epochs": 4, "train.lr_milestones": (0.5, 0.6)}, {"seed": np.int64(3)}),
        ({"train": {"num_train_epochs": 4, "lr_milestones": [0.5, 0.6], "seed": 3}}, {}),
        ("train.num_train_epochs=4", {"lr_milestones": (0.5, 0.6), "seed": 3}),
    ):
        assert (
            FinetuneSettings().changed(resolve(FinetuneSettings, settings, keywords, bs.finetune)) == expected
        )


@pytest.mark.parametrize("value", ["none", "3", "yes", "a: b", "\t", "'", "1e-3", "žluť", "# no", "{}", "-"])
def test_text_stays_text_even_if_yaml_would_convert_it(value: str) -> None:
    kind = get_task("classify").settings_type
    assert kind().changed(resolve(kind, {}, {"text_column": value}, bs.finetune)).text_column == value


def test_an_unknown_keyword_suggests_the_nearest() -> None:
    with pytest.raises(bs.InputError) as caught:
        resolve(PretrainSettings, (), {"learningrate": 1}, bs.pretrain)
    assert (caught.value.code, caught.value.argument) == ("unknown_setting", "learningrate")
    assert "learning_rate" in str(caught.value.hint)
    with pytest.raises(bs.InputError) as caught:
        bs.prepare(bs.Texts(["a"]), tiny_run.tokenizer(), "out", text_colum="title")
    assert (caught.value.code, caught.value.argument) == ("unknown_setting", "text_colum")
    assert "text_column" in str(caught.value.hint)
    with pytest.raises(bs.InputError) as caught:
        FinetuneSettings().changed(resolve(FinetuneSettings, {"train.epoch": 3}, {}, bs.finetune))
    assert (caught.value.code, caught.value.argument) == ("unknown_setting", "train.epoch")


def test_suggestions_include_arguments_of_the_function(moods: bs.Model) -> None:
    for call, meant in (
        (lambda: bs.train_tokenizer(bs.Texts(["a"]), "t", vocabsize=9), "vocab_size"),
        (lambda: bs.prepare(bs.Texts(["a"]), tiny_run.tokenizer(), "s", worker=1), "workers"),
        (lambda: bs.extend_tokenizer(bs.Texts(["a"]), None, tokenizr="t"), "tokenizer"),
        (lambda: bs.extend_tokenizer(bs.Texts(["a"]), None, text_colum="t"), "text_column"),
        (lambda: bs.check_corpus(bs.Texts(["a"]), preset_nam="x"), "preset_name"),
        (lambda: bs.inspect_tokenizers([], bs.Texts(["a"]), limits=3), "limit"),
        (lambda: bs.finetune("classify", moods, "run", train=ROWS, validationsplit=0.2), "validation_split"),
        (lambda: moods.predict(["a"], max_lenght=3), "max_length"),
        (lambda: moods.predict_file(ROWS, max_lenght=3), "max_length"),
        (lambda: moods.evaluate(ROWS, text_colum="a").to_dict(), "text_column"),
    ):
        with pytest.raises(bs.InputError) as caught:
            call()
        assert (caught.value.hint or "").startswith(f"did you mean '{meant}'")


@pytest.mark.parametrize(
    ("keywords", "name"),
    [
        ({"max_steps": "many"}, "train.max_steps"),
        ({"max_steps": 2.5}, "train.max_steps"),
        ({"learning_rate": "fast"}, "train.learning_rate"),
        ({"learning_rate": 0}, "train.learning_rate"),
        ({"masking": "spann"}, "data.masking"),
        ({"report_to": "perhaps"}, "train.report_to"),
    ],
)
def test_an_invalid_value_is_described(keywords: dict[str, Any], name: str) -> None:
    with pytest.raises(bs.InputError) as caught:
        PretrainSettings().changed(resolve(PretrainSettings, (), keywords, bs.pretrain))
    assert (caught.value.code, caught.value.argument) == ("invalid_setting", name)
    assert caught.value.message.startswith(f"{name} is {next(iter(keywords.values()))!r}: ")
    description = (
        PretrainSettings.model_fields[name.partition(".")[0]]
        .annotation.model_fields[  # type: ignore[union-attr]
            name.partition(".")[2]
        ]
        .description
    )
    assert (caught.value.hint or "").endswith(description)


def test_long_texts_passed_as_files_are_shortened_in_messages(tmp_path: Path) -> None:
    line = "a text of a corpus that somebody gave as it is, and that goes on and on, as texts do. "
    for text in (line, line * 50, "kaba\nlode", "is this a text, or a file?" * 3):
        for call in (
            lambda docs: bs.train_tokenizer(docs, tmp_path / "t"),
            lambda docs: bs.prepare(docs, tiny_run.tokenizer(), tmp_path / "s"),
        ):
            with pytest.raises(bs.InputError) as refused:
                call([text])
            assert refused.value.code == "not_found"
            assert len(str(refused.value).splitlines()[0]) < 60 + 30
            assert refused.value.code == "not_found"


def test_a_missing_folder_of_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "nb_shards").mkdir()
    with pytest.raises(bs.InputError) as caught:
        bs.pretrain("nb_shrds", "run")
    assert caught.value.code == "not_found"
    assert "nb_shards" in str(caught.value.hint)
    with pytest.raises(bs.InputError) as caught:
        bs.Shards.open("elsewhere")
    assert caught.value.code == "not_found"
    with pytest.raises(bs.InputError) as caught:
        bs.Shards.open("nb_shards")
    assert caught.value.code == "not_prepared_data"


def test_an_unknown_name_of_the_package() -> None:
    with pytest.raises(AttributeError, match=r"no attribute 'Tokenizr'; did you mean 'Tokenizer'\?"):
        bs.Tokenizr  # noqa: B018
    with pytest.raises(AttributeError, match=r"it is a method of a Model, load\(…\)\.predict$"):
        bs.predict  # noqa: B018
    assert not hasattr(bs, "zebra")


# Masks and files of predictions


def test_masks_of_several_texts(bert: bs.Model) -> None:
    texts = ["kaba [MASK]", "[MASK] mi [MASK]"]
    tokens = bert.fill_mask(texts, top_k=2)
    assert (
        tokens
        == [bert.fill_mask(text, top_k=2) for text in texts]
        == bert.fill_mask(np.array(texts), top_k=2)
    )
    with pytest.raises(bs.InputError) as caught:
        bert.fill_mask(texts[0], top_k=0)
    assert (caught.value.code, caught.value.argument) == ("number_too_small", "top_k")
    with pytest.raises(bs.InputError) as caught:
        bert.fill_mask([["a"]])  # type: ignore[list-item]
    assert caught.value.code == "not_a_string"
    with pytest.raises(bs.InputError) as caught:
        bert.fill_mask({"text": texts})  # type: ignore[call-overload]
    assert caught.value.code == "is_a_table"


def test_a_text_has_one_result_and_a_list_has_a_list(bert: bs.Model, moods: bs.Model) -> None:
    text = "kaba lode"
    assert moods.predict(text) == moods.predict([text])[0] == moods.predict(text=text)
    assert moods.predict(text).label in moods.labels
    assert bert.score(text) == bert.score([text])[0]
    assert np.array_equal(bert.embed(text), bert.embed([text])[0])
    metrics = moods.evaluate(ROWS[:6], text_column="title")
    assert metrics.accuracy == metrics.to_dict()["accuracy"] == metrics.values["accuracy"]
    with pytest.raises(AttributeError):
        _ = metrics.perplexity


def test_batch_size_limits_the_texts_of_a_forward_pass(bert: bs.Model, moods: bs.Model) -> None:
    texts, sizes = ["kaba lode", "mi", "lode mi kaba", "kaba"], list[int]()
    for model, verb in ((bert, bert.embed), (bert, bert.score), (moods, moods.predict)):
        expected = verb(texts)
        hook = model.encoder.register_forward_pre_hook(
            lambda _, inputs: sizes.append(inputs[0].num_sequences)
        )
        result = verb(texts, batch_size=2)
        hook.remove()
        assert max(sizes) <= 2
        assert np.allclose(result, expected, atol=1e-6) if verb == bert.embed else len(result) == 4
        with pytest.raises(bs.InputError) as caught:
            verb(texts, batch_size=0)
        assert (caught.value.code, caught.value.argument) == ("batch_size_too_small", "batch_size")


def test_integer_labels_come_back_as_integers(bert: bs.Model, tmp_path: Path) -> None:
    rows = [{"text": row["title"], "label": i % 2} for i, row in enumerate(ROWS)]
    numbered = bs.finetune("classify", bert, tmp_path / "run", train=rows, validation=rows[:8], **SHORT)
    prediction = bs.load(tmp_path / "run").predict("kaba")
    assert prediction.label in (0, 1)
    assert sorted(prediction.scores) == [0, 1]
    assert numbered.labels == ["0", "1"]
    assert next(numbered.predict_file(rows[:1]))["label"] in ("0", "1")


def test_all_names_are_listed_and_documented() -> None:
    reference = (Path(__file__).parents[1] / "docs" / "reference" / "python.md").read_text(encoding="utf-8")
    for name in bs.__all__:
        value = getattr(bs, name)
        assert value.__doc__, name
    assert "{python-api}" in reference  # generated from `__all__`
    assert callable(bs.quickstart)


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "json"])
def test_the_suffix_of_out_sets_the_format_of_predictions(
    suffix: str, moods: bs.Model, tmp_path: Path
) -> None:
    rows, out = (
        [{"n": str(i), "title": row["title"]} for i, row in enumerate(ROWS[:3])],
        tmp_path / f"a.{suffix}",
    )
    assert moods.predict_file(rows, output=out) == out
    labels = [answer.label for answer in moods.predict([row["title"] for row in rows])]
    text = out.read_text(encoding="utf-8-sig")
    if suffix == "csv":
        read = list(csv.DictReader(text.splitlines()))
        assert [(row["n"], row["title"], row["prediction"]) for row in read] == [
            (row["n"], row["title"], label) for row, label in zip(rows, labels, strict=True)
        ]
    else:
        read = json.loads(text) if suffix == "json" else [json.loads(line) for line in text.splitlines()]
        assert read == list(moods.predict_file(rows))
    with pytest.raises(bs.InputError) as caught:
        moods.predict_file(rows, output=out)
    assert (caught.value.code, caught.value.argument) == ("output_exists", "output")
    assert moods.predict_file(rows[:1], output=out, overwrite=True) == out
    assert len(out.read_text()) < len(text)
    with pytest.raises(bs.InputError) as caught:
        moods.predict_file(rows, output=tmp_path / "a.xlsx")
    assert (caught.value.code, caught.value.argument) == ("suffix_unsupported", "output")


# Overwriting


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_a_repeated_notebook_cell_replaces_its_output(tmp_path: Path, bert: bs.Model) -> None:
    texts = tiny_run.corpus().strip().split("\n\n")

    def cell(size: int, overwrite: bool) -> tuple[int, int, int, int]:
        tokenizer = bs.train_tokenizer(
            bs.Texts(texts[:size]), tmp_path / "tokenizer", vocab_size=60 + size, overwrite=overwrite
        )
        shards = bs.prepare(
            bs.Texts(texts[:size]), tiny_run.tokenizer(), tmp_path / "shards", workers=1, overwrite=overwrite
        )
        options = {**SHORT, "max_steps": size // 8}
        again = bs.pretrain(
            shards, tmp_path / "run", settings=tiny_run.SETTINGS, overwrite=overwrite, **options
        )
        moods = bs.finetune(
            "classify", bert, tmp_path / "moods", train=ROWS, validation_split=0.3, text_column="title",
            overwrite=overwrite, **options,
        )  # fmt: skip
        return len(tokenizer), shards.documents, again.report["steps"], moods.report["steps"]

    assert cell(16, False)[1:] == (16, 2, 2)
    before = contents(tmp_path)
    for verb in (
        lambda: bs.train_tokenizer(bs.Texts(texts), tmp_path / "tokenizer", vocab_size=60),
        lambda: bs.prepare(bs.Texts(texts), tiny_run.tokenizer(), tmp_path / "shards"),
        lambda: bs.finetune(
            "classify", bert, tmp_path / "moods", train=ROWS, validation=ROWS, text_column="title"
        ),
    ):
        with pytest.raises(bs.InputError) as caught:
            verb()
        assert "overwrite=True" in str(caught.value)
    assert contents(tmp_path) == before
    assert cell(24, True)[1:] == (24, 3, 3)
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]
    assert bs.Shards.open(tmp_path / "shards").documents == 24


def test_a_folder_with_other_files_is_never_replaced(tmp_path: Path, moods: bs.Model) -> None:
    shards = bs.prepare(bs.Texts(["kaba lode."]), tiny_run.tokenizer(), tmp_path / "shards", workers=1)
    (shards.folder / "notes.txt").write_text("mine")
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "thesis.tex").write_text("mine")
    before = contents(tmp_path)
    for out in ("shards", "home"):
        with pytest.raises(bs.InputError) as caught:
            bs.prepare(bs.Texts(["kaba."]), tiny_run.tokenizer(), tmp_path / out, overwrite=True)
        assert caught.value.code == "not_replaceable"
        with pytest.raises(bs.InputError):
            bs.train_tokenizer(bs.Texts(["kaba."]), tmp_path / out, overwrite=True)
        with pytest.raises(bs.InputError):
            bs.finetune("classify", moods, tmp_path / out, train=ROWS, validation=ROWS, overwrite=True)
        with pytest.raises(bs.InputError):
            moods.save(tmp_path / out, overwrite=True)
    assert contents(tmp_path) == before


def test_a_run_that_the_new_run_reads_is_not_removed(moods: bs.Model) -> None:
    before = contents(moods.path)
    options: dict[str, Any] = {"train": ROWS, "validation": ROWS, "text_column": "title", **SHORT}
    with pytest.raises(bs.InputError) as caught:
        bs.finetune("classify", moods, moods.path, overwrite=True, **options)
    assert caught.value.code == "input_inside_output"
    with pytest.raises(bs.InputError) as caught:
        bs.finetune("classify", moods, moods.path, overwrite=True, epoch=3, **options)
    assert (caught.value.code, caught.value.argument) == ("unknown_setting", "epoch")
    with pytest.raises(bs.InputError) as caught:
        bs.finetune("classify", moods, moods.path, overwrite=True, resume=True, **options)
    assert caught.value.code == "resume_and_overwrite"
    assert contents(moods.path) == before


# Tokenizer and Model


def test_a_tokenizer_is_callable() -> None:
    tokenizer = tiny_run.tokenizer()
    assert len(tokenizer) == tokenizer.vocab_size == len(tiny_run.TOKENS)
    assert tokenizer("kaba lode") == tokenizer.encode("kaba lode")
    assert tokenizer("kaba", "lode", max_length=5) == tokenizer.encode("kaba", "lode", max_length=5)
    assert tokenizer(["kaba", "mi"]) == tokenizer.encode_batch(["kaba", "mi"])
    assert tokenizer("kaba lode").tokens == ["[CLS]", "kaba", "lode", "[SEP]"]
    assert repr(tokenizer("kaba lode mi", max_length=4)) == "Encoding(4 tokens, 1 cut: [CLS] kaba lode [SEP])"
    assert repr(tokenizer("kaba " * 30)).endswith("kaba …)")
    assert tokenizer(["kaba"], ["mi"])[0].type_ids == tokenizer.encode("kaba", "mi").type_ids


def test_embeddings_are_the_pooled_hidden_states_of_each_text(bert: bs.Model) -> None:
    texts = ["kaba", "lode kaba migi nufo", "zu" * 50, "", "kaba lode " * 60]
    vectors = bert.embed(texts)
    assert vectors.shape == (5, 32)
    assert vectors.dtype == np.float32
    for row, text in zip(vectors, texts, strict=True):
        encoding = bert.tokenizer.encode(text, max_length=64)
        with torch.inference_mode():
            states = bert.encoder(torch.tensor([encoding.ids]))[0]
        np.testing.assert_allclose(row, states.mean(0), atol=1e-6)
        np.testing.assert_allclose(bert.embed([text], pooling="cls")[0], states[0], atol=1e-6)
        np.testing.assert_allclose(bert.embed([text], pooling="max")[0], states.max(0).values, atol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(bert.embed(texts, normalize=True), axis=1), 1, atol=1e-6)
    assert bert.embed([]).shape == (0, 32)
    assert not np.allclose(bert.embed(texts[1:2], max_length=3), vectors[1])
    np.testing.assert_array_equal(bert.embed("kaba"), bert.embed(["kaba"])[0])
    with pytest.raises(bs.InputError) as caught:
        bert.embed([["kaba"]])
    assert str(caught.value.location) == "text 1"
    with pytest.raises(bs.InputError) as caught:
        bert.embed(texts, pooling="sum")  # type: ignore[arg-type]
    assert (caught.value.code, caught.value.argument) == ("unknown_pooling", "pooling")


def test_a_saved_model_equals_the_model(moods: bs.Model, tmp_path: Path) -> None:
    folder = moods.save(tmp_path / "saved")
    again = bs.load(folder)
    assert again.predict(["kaba lode"]) == moods.predict(["kaba lode"])
    assert contents(folder) == contents(moods.model_folder)
    with pytest.raises(bs.InputError) as caught:
        moods.save(folder)
    assert (caught.value.code, caught.value.argument) == ("output_exists", "folder")
    assert moods.save(folder, overwrite=True) == folder


# Notebooks


def test_html_of_notebooks_escapes_text_of_files(moods: bs.Model, tmp_path: Path) -> None:
    page = moods._repr_html_()
    assert "BertForSequenceClassification" in page
    assert "validation" in page
    shards = bs.prepare(bs.Texts(["kaba lode."]), tiny_run.tokenizer(), tmp_path / "<b>", workers=1)
    assert "<b>shards" not in shards._repr_html_()
    assert "&lt;b&gt;" in shards._repr_html_()
    metrics = moods.evaluate(ROWS)
    assert json.loads(json.dumps(metrics.to_dict())) == metrics.to_dict()
    assert "accuracy" in metrics._repr_html_()


class Display:
    """Stand-in for IPython's display handle."""

    def __init__(self) -> None:
        self.pages: list[str] = []

    def update(self, page: str) -> None:
        self.pages.append(page)

    def display(self, page: str, display_id: bool) -> Display:
        assert display_id
        self.pages.append(page)
        return self


def test_a_notebook_shows_a_bar_and_a_script_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = bs.Texts(tiny_run.corpus().strip().split("\n\n"))
    bs.prepare(texts, tiny_run.tokenizer(), tmp_path / "script", workers=1)
    assert capsys.readouterr() == ("", "")
    display = Display()
    module = type(sys)("IPython")
    module.get_ipython = lambda: type("Shell", (), {"kernel": True})()  # type: ignore[attr-defined]
    pages = type(sys)("IPython.display")
    pages.HTML, pages.display = str, display.display  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", module)
    monkeypatch.setitem(sys.modules, "IPython.display", pages)
    bs.prepare(texts, tiny_run.tokenizer(), tmp_path / "notebook", workers=1)
    assert "encoding" in display.pages[-1]
    assert "<progress value='1'>" in display.pages[-1]
    before = len(display.pages)
    for refused in (
        lambda: bs.prepare(["none.txt"], tiny_run.tokenizer(), "x"),
        lambda: bs.check_corpus("none.txt"),
    ):
        with pytest.raises(bs.InputError) as caught:
            refused()
        assert caught.value.code == "not_found"
    assert len(display.pages) == before


def test_a_notebook_shows_the_message_of_an_error_without_traceback() -> None:
    error = bs.InputError(
        "empty", "is empty", location="a.csv", hint=f"choose another {option('output_dir')}"
    )
    assert error._render_traceback_() == ["InputError: a.csv: is empty\nchoose another output_dir=…"]


# The module


def test_the_docstring_fits_a_screen_and_names_everything() -> None:
    assert bs.__doc__ is not None
    assert len(bs.__doc__.splitlines()) <= 23
    assert max(map(len, bs.__doc__.splitlines())) <= 78
    assert sorted(bs.__all__) == dir(bs)
    for name in (bs.pretrain, bs.finetune, bs.load, bs.search):
        assert len(pydoc.plain(pydoc.render_doc(name)).splitlines()) <= 45
    for name in set(dir(bs)) - {"__version__"}:
        assert getattr(bs, name).__doc__, name
        assert name in bs.__doc__, name


def test_importing_the_package_imports_no_large_library() -> None:
    code = (
        "import sys, bertsmith; print([m for m in ('torch', 'numpy', 'pyarrow', 'rich') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ,
    )
    assert done.stdout == "[]\n"
