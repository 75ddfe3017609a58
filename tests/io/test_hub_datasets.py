"""Data sets of the hub by name: through the cache, with names for classes, refused where they are not there."""

from __future__ import annotations

import json
import sys
import types
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import bertsmith as bs
import tiny_run
from bertsmith.errors import InputError
from bertsmith.io.sources import to_source
from bertsmith.io.tables import Table

FEATURES = {
    "text": {"dtype": "string", "_type": "Value"},
    "label": {"names": ["sad", "glad"], "_type": "ClassLabel"},
    "tags": {"feature": {"names": ["O", "B-PER"], "_type": "ClassLabel"}, "_type": "Sequence"},
    "more": [{"names": ["x", "y"], "_type": "ClassLabel"}],
}
ROWS = {"text": ["kaba", "lode"], "label": [1, -1], "tags": [[0, 1], None], "more": [[1], [0, 0]]}


def written(file: Path, rows: dict[str, list[Any]], features: dict[str, Any] | None = None) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    table = pa.table(rows)
    if features is not None:
        said = json.dumps({"info": {"features": features}})
        table = table.replace_schema_metadata({b"huggingface": said.encode("utf-8")})
    pq.write_table(table, file)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a data set that huggingface_hub answers `owner/moods` with."""
    folder = tmp_path / "snapshot"
    folder.mkdir()

    def snapshot_download(name: str, *, repo_type: str, revision: str, allow_patterns: list[str]) -> str:
        assert (repo_type, revision) == ("dataset", "refs/convert/parquet")
        assert all(pattern.endswith(".parquet") for pattern in allow_patterns)
        if name != "owner/moods":
            raise OSError("404: no such data set\nmore")
        return str(folder)

    module = types.SimpleNamespace(snapshot_download=snapshot_download)
    monkeypatch.setitem(sys.modules, "huggingface_hub", module)
    return folder


def test_rows_with_the_names_of_their_classes(hub: Path) -> None:
    written(hub / "default" / "train" / "0000.parquet", ROWS, FEATURES)
    written(hub / "default" / "train" / "0001.parquet", ROWS, FEATURES)
    found = to_source("hub:owner/moods:train", "train")
    assert isinstance(found, Table)
    assert found.name == "hub:owner/moods:train (in memory)"
    assert [row.values for row in found] == 2 * [
        {"text": "kaba", "label": "glad", "tags": ["O", "B-PER"], "more": ["y"]},
        {"text": "lode", "label": None, "tags": None, "more": ["x", "x"]},
    ]


def test_a_struct_with_a_field_named_feature_is_no_list(hub: Path) -> None:
    value = {"feature": 1, "other": "x"}
    features = {"both": {"feature": FEATURES["label"], "other": FEATURES["text"]}}
    written(hub / "default" / "train" / "0000.parquet", {"both": [value]}, features)
    (row,) = to_source("hub:owner/moods:train", "train")
    assert row.values == {"both": value}


def test_a_table_without_types_is_read_as_it_is(hub: Path) -> None:
    written(hub / "default" / "train" / "0000.parquet", {"text": ["kaba"], "label": [1]})
    (row,) = to_source("hub:owner/moods:train", "train")
    assert row.values == {"text": "kaba", "label": 1}


def test_a_task_learns_from_the_hub_and_is_judged_on_it(hub: Path, tmp_path: Path) -> None:
    texts = {"glad": "kaba lode", "sad": "nufo tuzu"}
    rows = {"text": [*texts.values()] * 12, "label": [1, 0] * 12}
    for split in ("train", "validation"):
        written(hub / "plain" / split / "0000.parquet", rows, {n: FEATURES[n] for n in ("text", "label")})
    base = tiny_run.run(tiny_run.make_shards(tmp_path), tmp_path / "bert", "train.max_steps=1")
    names = {"train": "hub:owner/moods:train", "validation": "hub:owner/moods:plain:validation"}
    settings = ["train.threads=1", "train.precision=fp32", "train.max_steps=2"]
    moods = bs.finetune("classify", base, tmp_path / "moods", settings=settings, **names)
    assert moods.labels == ["glad", "sad"]
    assert moods.evaluate("hub:owner/moods:validation").accuracy == moods.report["validation"]["accuracy"]
    assert "files:\n  train: hub:owner/moods:train\n" in (tmp_path / "moods" / "settings.yaml").read_text()
    again = bs.finetune("classify", base, tmp_path / "moods", resume=True, max_steps=3, **names)
    assert again.report["steps"] == 3


@pytest.mark.parametrize(
    ("name", "code", "detail"),
    [
        ("hub:owner/moods", "bad_dataset_name", ""),
        ("hub:owner/moods:a:b:c", "bad_dataset_name", ""),
        ("hub::train", "bad_dataset_name", ""),
        ("hub:owner/moods:test", "no_such_split", "'test'"),
        ("hub:owner/moods:c:train", "no_such_split", "'train' of c"),
        ("hub:owner/moods:train", "several_configurations", "a, b"),
        ("hub:owner/none:train", "dataset_not_found", "404: no such data set"),
    ],
)
def test_a_missing_data_set_is_an_error(hub: Path, name: str, code: str, detail: str) -> None:
    for config in ("a", "b"):
        written(hub / config / "train" / "0000.parquet", ROWS, FEATURES)
    with pytest.raises(InputError) as caught:
        to_source(name, "train")
    assert (caught.value.code, caught.value.location) == (code, name)
    assert detail in caught.value.message


def test_without_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(InputError) as caught:
        to_source("hub:owner/moods:train", "train")
    assert caught.value.code == "package_missing"
    assert "bertsmith[hub]" in (caught.value.hint or "")
