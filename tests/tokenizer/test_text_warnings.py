"""Warnings of characters that a tokenizer loses: in its training, in `prepare`, and in `pretrain`."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

import bertsmith as bs
from bertsmith.pretraining.data import PretrainData
from bertsmith.pretraining.settings import PretrainSettings

HINDI = "\n\n".join(f"यह एक किताब है {i}। लड़के ने पानी पिया।" for i in range(12))
MOJIBAKE = "\n\n".join(f"un cafÃ© aprÃ¨s le dÃ©jeuner. encore {i}." for i in range(12))
PERSIAN = "\n\n".join(f"من می\u200cخواهم کتاب\u200cها را {i} بخوانم." for i in range(12))


@pytest.mark.parametrize(
    ("text", "options", "reported"),
    [
        (HINDI, {}, "vowel signs"),
        (HINDI, {"cased": True}, None),
        (PERSIAN, {}, "U+200C"),
        (PERSIAN, {"cased": True}, "U+200C"),
        (PERSIAN, {"kind": "byte_level_bpe"}, None),
        (f"{PERSIAN}\n\n{'A text in English. ' * 40}", {}, "U+200C"),
        (PERSIAN.replace("\u200c", " "), {}, None),
        (MOJIBAKE, {}, "read as another encoding"),
        (MOJIBAKE.encode("cp1252").decode(), {}, None),
    ],
)
def test_each_step_reports_it(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    text: str,
    options: dict[str, object],
    reported: str | None,
) -> None:
    file = tmp_path / "a.txt"
    file.write_text(text, encoding="utf-8")

    def is_reported() -> bool:
        messages = "".join(r.getMessage() for r in caplog.records if r.levelno == logging.WARNING)
        caplog.clear()
        return any(sign in messages for sign in ("vowel signs", "U+200C", "another encoding"))

    caplog.set_level(logging.INFO, "bertsmith")
    tokenizer = bs.train_tokenizer(file, tmp_path / "tokenizer", vocab_size=300, **options)  # type: ignore[arg-type]
    assert is_reported() == (reported is not None)
    shards = bs.prepare(file, tokenizer, tmp_path / "shards", workers=1)
    assert is_reported() == (reported is not None)
    settings = PretrainSettings().changed({"data.sentence_task": "none", "data.validation_split": 0})
    PretrainData.from_shards(shards, settings)
    assert is_reported() == (reported is not None and text != MOJIBAKE)  # of which few tokens remain
