"""`task.specials_in_text`: strings such as [SEP] in the texts of a task."""

from __future__ import annotations

from pathlib import Path

import pytest

import bertsmith as bs
import tiny_run

FEW = ["train.max_steps=2", "train.threads=1", "train.precision=fp32", "train.report_to=none"]


@pytest.mark.parametrize("how", [None, "parse"])
def test_they_are_text_unless_they_are_parsed(
    how: str | None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """In training, in a loaded model's answers, and on request otherwise; doubled ones get a warning."""
    base = tiny_run.run(tiny_run.make_shards(tmp_path), tmp_path / "bert", "train.max_steps=1")
    rows = [(f"{text} [SEP] kaba", label) for text, label in tiny_run.examples(28)]
    rows += [("[CLS] kaba lode [SEP]", "joy"), ("lode", "fear")]
    file = tiny_run.table(tmp_path / "train.csv", rows)
    more = {} if how is None else {"specials_in_text": how}
    bs.finetune("classify", base, tmp_path / "run", train=file, validation=file, settings=FEW, **more)
    messages = list(caplog.messages)
    model = bs.load(tmp_path / "run")
    assert model.task.settings.specials_in_text == (how or "text")
    task, tokenizer = model.task, model.tokenizer
    (item,) = task.encode(task.data.from_inputs({"text": ["kaba [SEP] lode"]}, ["here"]), tokenizer)
    found = [tokenizer.tokens[i] for i in item.sequences[0].ids]
    unknown = ["[UNK]"] * 3  # the brackets and the word between them
    assert found == ["[CLS]", "kaba", *(["[SEP]"] if how else unknown), "lode", "[SEP]"]
    said = [line for line in messages if "[SEP]" in line and "twice" in line]
    assert [line[:15] for line in said] == (["2 of 60 texts b"] if how else [])
    answers = [
        model.predict(["kaba [SEP] lode"], specials_in_text=kind)[0].tokens for kind in ("text", "parse")
    ]
    assert answers == [5, 3]
