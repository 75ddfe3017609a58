"""Names that no file can have: one error at every door of Python and the command line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import bertsmith as bs
from bertsmith.corpus.shards import Shards
from bertsmith.errors import InputError
from bertsmith.io.tables import read_table
from bertsmith.retrieval.index import Index
from bertsmith.settings import read_yaml
from bertsmith.tasks.labels import read_label_names
from bertsmith.tokenizer.tokenizer import Tokenizer


@pytest.mark.parametrize("name", ["x" * 300, "x" * 300 + "/a.csv", "a\0b.csv"])
@pytest.mark.parametrize(
    "door",
    [
        bs.load,
        bs.info,
        bs.check_corpus,
        Tokenizer.load,
        Shards.open,
        Index,
        read_table,
        read_yaml,
        read_label_names,
        lambda name: bs.finetune_glue("bert-mini-uncased-en", "out", data=name),
        lambda name: bs.prepare(name, "bert-mini-uncased-en", "out"),
    ],
)
def test_a_name_that_no_file_can_have_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, door: Callable[[str], object], name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError):
        door(name)
    assert list(tmp_path.iterdir()) == []
