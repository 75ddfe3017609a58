"""Reports of what a model does not read of texts, alike in each function; texts without a visible character."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import bertsmith as bs
import tiny_run
from bertsmith.cli.main import bertsmith

FEW = ["train.max_steps=1", "train.threads=1", "train.report_to=none"]
LONG = " ".join(tiny_run.WORDS * 3)  # 120 tokens; the model takes 64
TEXTS = {
    "vowel signs": "यह एक किताब है। लड़के ने पानी पिया।",
    "'Ã©' for 'é'": f"cafÃ© {LONG[:200]}",
    "% of the tokens are unknown to this tokenizer": "zzz qqq kaba",
    "not read; the longest takes 122 tokens, and max_length is 64": LONG,
}


@pytest.fixture(scope="module")
def models(base: bs.Model, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bs.Model]:
    folder = tmp_path_factory.mktemp("models")
    rows = tiny_run.examples(12)
    file = tiny_run.table(folder / "rows.csv", rows)
    classifier = bs.finetune("classify", base, folder / "run", train=file, validation=file, settings=FEW)
    base.index([text for text, _ in rows], folder / "index")
    return {"base": base, "classify": classifier}


def cli_embed(models: dict[str, bs.Model], text: str, folder: Path) -> None:
    file = folder / "texts.jsonl"
    file.write_text(json.dumps({"text": text}) + "\n")
    output = folder / "vectors.npy"
    CliRunner().invoke(
        bertsmith,
        ["embed", str(models["base"].path), "--input", str(file), "--output", str(output)],
        catch_exceptions=False,
    )


def evaluate(models: dict[str, bs.Model], text: str, folder: Path) -> None:
    for note in models["classify"].evaluate([(text, "joy")]).notes:
        logging.getLogger("bertsmith").warning(note)


def search(models: dict[str, bs.Model], text: str, folder: Path) -> None:
    index = models["base"].index(tiny_run.WORDS[:9], folder / "words")
    bs.search(index, [text], model=models["base"])


def finetune(models: dict[str, bs.Model], text: str, folder: Path) -> None:
    rows = [(text, "joy"), (text, "fear"), ("kaba", "joy")]
    bs.finetune("classify", models["base"], folder / "r", train=rows, validation=rows, settings=FEW)


VERBS: dict[str, Callable[[dict[str, bs.Model], str, Path], Any]] = {
    "predict": lambda models, text, folder: models["classify"].predict(text),
    "predict_file": lambda models, text, folder: list(models["classify"].predict_file([{"text": text}])),
    "evaluate": evaluate,
    "embed": lambda models, text, folder: models["base"].embed(text),
    "embed --output": cli_embed,
    "index": lambda models, text, folder: models["base"].index([text], folder / "index"),
    "search": search,
    "finetune": finetune,
}


@pytest.mark.parametrize("sign", TEXTS)
@pytest.mark.parametrize("verb", VERBS)
def test_each_function_reports_what_is_not_read(
    models: dict[str, bs.Model], tmp_path: Path, caplog: pytest.LogCaptureFixture, verb: str, sign: str
) -> None:
    VERBS[verb](models, TEXTS[sign], tmp_path)
    messages = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert sum(sign in message for message in messages) == 1, messages


def test_a_comparison_reports_it_for_both_models(
    models: dict[str, bs.Model], caplog: pytest.LogCaptureFixture
) -> None:
    bs.compare(models["classify"], models["classify"], [(LONG, "joy")], rounds=1)
    assert sum(" truncated: " in message for message in caplog.messages) == 2


@pytest.mark.parametrize("sign", ["vowel signs", "'Ã©' for 'é'"])
@pytest.mark.parametrize("verb", ["fill_mask", "score"])
def test_so_do_those_of_single_tokens(
    models: dict[str, bs.Model], caplog: pytest.LogCaptureFixture, verb: str, sign: str
) -> None:
    getattr(models["base"], verb)(f"{TEXTS[sign][:40]} [MASK]")
    assert any(sign in message for message in caplog.messages)


def test_good_texts_are_not_reported(models: dict[str, bs.Model], caplog: pytest.LogCaptureFixture) -> None:
    models["classify"].predict(["kaba lode", "migi", LONG[:100]])
    models["base"].embed(["kaba lode"])
    assert not [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]


@pytest.mark.parametrize("text", ["\u200b", "\ufeff\u2060 \t", "\xad\u200d\u00a0", "\u3164", "\u2800\u0000"])
def test_a_text_without_a_visible_character_is_empty(
    models: dict[str, bs.Model], caplog: pytest.LogCaptureFixture, tmp_path: Path, text: str
) -> None:
    assert [p.empty for p in models["classify"].predict([text, "kaba"])] == [True, None]
    assert len(models["base"].index([text, "kaba"], tmp_path / "index")) == 1
    models["base"].embed(text)
    assert sum("text is empty" in message for message in caplog.messages) == 3
