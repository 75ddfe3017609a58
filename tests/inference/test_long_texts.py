"""Texts longer than the model: each mask has a window around it; a text's answer is the mean of its windows'."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest
from click.testing import CliRunner

import bertsmith as bs
import tiny_run
from bertsmith.cli.main import bertsmith
from bertsmith.errors import InputError

FEW = ["train.max_steps=6", "train.learning_rate=5e-3", "train.threads=1", "train.report_to=none"]
LONG = " ".join(tiny_run.WORDS * 3)  # 120 tokens; the model takes 64


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> bs.Model:
    folder = tmp_path_factory.mktemp("base")
    return tiny_run.run(tiny_run.make_shards(folder), folder / "bert", "train.max_steps=6")


def test_a_mask_of_a_long_text_is_guessed_from_the_text_around_it(
    base: bs.Model, caplog: pytest.LogCaptureFixture
) -> None:
    words = LONG.split()
    caplog.set_level(logging.INFO, logger="bertsmith")
    for place, window in ((3, (0, 62)), (118, (58, 120)), (60, (29, 91))):
        masked = [*words[:place], "[MASK]", *words[place + 1 :]]
        (answer,) = base.fill_mask(" ".join(masked), top_k=4)
        (alone,) = base.fill_mask(" ".join(masked[slice(*window)]), top_k=4)
        assert [row.token for row in answer] == [row.token for row in alone]
        assert [row.score for row in answer] == pytest.approx([row.score for row in alone], rel=1e-5)
        filled = [*masked[:place], answer[0].token, *masked[place + 1 :]]
        assert answer[0].text == " ".join(filled)
    messages = [r.getMessage() for r in caplog.records if r.name.startswith("bertsmith.inference")]
    assert messages == 3 * [
        "the text has 122 tokens, of which 64 are read at a time: each mask is predicted from the text around it"
    ]


def test_max_length_narrows_the_window_of_each_mask(base: bs.Model) -> None:
    masked = "kaba lode [MASK] mizu nufo pegi [MASK] riba"
    both = base.fill_mask(masked, max_length=5)
    alone = [base.fill_mask(text) for text in ("lode [MASK] mizu", "pegi [MASK] riba")]
    for answer, (other,) in zip(both, alone, strict=True):
        assert [(row.token, pytest.approx(row.score)) for row in other] == [
            (row.token, row.score) for row in answer
        ]
    assert base.fill_mask(masked, max_length=10_000) == base.fill_mask(masked)
    with pytest.raises(InputError) as caught:
        base.fill_mask(masked, max_length=3)
    assert (caught.value.code, caught.value.argument) == ("max_length_too_small", "max_length")
    call = ["fill-mask", str(base.path), masked, "--max-length", "5", "--json"]
    done = CliRunner().invoke(bertsmith, call)
    assert json.loads(done.stdout) == [[row.to_dict() for row in answer] for answer in both]
    assert "each mask is predicted from the text around it" in done.stderr


@pytest.fixture(scope="module")
def tuned(base: bs.Model, tmp_path_factory: pytest.TempPathFactory) -> bs.Model:
    folder = tmp_path_factory.mktemp("tuned")
    rows = tiny_run.table(folder / "rows.csv", tiny_run.examples(30))
    return bs.finetune("classify", base, folder / "run", train=rows, validation=rows, settings=FEW)


def test_windows_of_a_text_are_averaged_and_all_of_it_is_read(tuned: bs.Model) -> None:
    words = LONG.split()[:100]
    (cut,), (whole,) = (
        [one.to_dict() for one in tuned.predict([" ".join(words)])],
        [one.to_dict() for one in tuned.predict([" ".join(words)], stride=19)],
    )
    assert (cut["tokens"], cut["tokens_read"]) == (100, 62)
    assert (whole["tokens"], whole["tokens_read"]) == (100, 100)
    parts = tuned.predict([" ".join(words[first : first + 62]) for first in (0, 19, 38)])
    for label, share in whole["scores"].items():
        assert share == pytest.approx(sum(part.scores[label] for part in parts) / 3, abs=1e-6)
    short = ["kaba", "lode mizu", " ".join(words)]
    assert tuned.predict(short[:2], stride=5) == tuned.predict(short[:2])
    assert [p.tokens for p in tuned.predict(short, stride=5, max_length=10)] == [1, 2, 100]


def test_training_and_scores_take_windows_too_and_what_is_cut_says_how(
    base: bs.Model, tuned: bs.Model, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="bertsmith")
    rows = [(f"{LONG} {text}", label) for text, label in tiny_run.examples(12)]
    file = tiny_run.table(tmp_path / "long.csv", rows)
    model = bs.finetune("classify", base, tmp_path / "cut", train=file, validation=file, settings=FEW)
    truncated = [message for message in caplog.messages if " truncated: " in message]
    assert ["task.stride" in message for message in truncated] == [True]
    assert "task.stride" in model.report["validation"]["notes"][0]
    caplog.clear()
    settings = [
        *FEW,
        "task.stride=31",
        "train.max_steps=none",
        "train.num_train_epochs=1",
        "train.batch_size=6",
    ]
    model = bs.finetune("classify", base, tmp_path / "read", train=file, validation=file, settings=settings)
    assert not any(" truncated: " in message for message in caplog.messages)
    assert model.report["steps"] > 4  # more items than the 12 texts in batches of 6
    assert tuned.evaluate(file).truncation["cut"]["texts"] == 12
    assert tuned.evaluate(file, stride=31).truncation["cut"]["texts"] == 0


def test_the_longer_text_of_a_pair_is_read_in_windows(base: bs.Model, tmp_path: Path) -> None:
    rows = [(f"{text},{text}", str(i / 7)) for i, (text, _) in enumerate(tiny_run.examples(12))]
    file = tiny_run.table(tmp_path / "pairs.csv", rows, header="text,other,label")
    settings = [*FEW, "task.second_column=other"]
    model = bs.finetune("regress", base, tmp_path / "run", train=file, validation=file, settings=settings)
    answers = model.predict(["kaba lode", LONG, LONG], [LONG, "kaba", LONG], stride=20)
    assert [(a.tokens, a.tokens_read) for a in answers] == [(122, 122), (121, 121), (240, 152)]
