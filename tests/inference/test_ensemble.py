"""Which runs answer together and which are compared; what the verbs print of it."""

from __future__ import annotations

import json
import logging
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

import bertsmith as bs
import tiny_run
from bertsmith.cli.main import main
from bertsmith.errors import InputError
from bertsmith.inference.significance import comparison_message
from bertsmith.kernels.reference import REFERENCE, KernelBackend

FEW = {"max_steps": 3, "batch_size": 6, "threads": 1, "precision": "fp32", "report_to": "none"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs: a and b of one task; `fewer` of other labels, `numbers` of another task; files to answer."""
    folder = tmp_path_factory.mktemp("runs")
    base = tiny_run.run(tiny_run.make_shards(folder), folder / "bert", "train.max_steps=1")
    train = tiny_run.table(folder / "train.csv", tiny_run.examples(30))
    two = tiny_run.table(folder / "two.csv", [row for row in tiny_run.examples(30) if row[1] != "joy"])
    numbers = tiny_run.table(folder / "numbers.csv", [(t, str(len(t))) for t, _ in tiny_run.examples(30)])
    tiny_run.table(folder / "test.csv", tiny_run.examples(40, seed=5))
    for seed, name in enumerate(("a", "b")):
        bs.finetune("classify", base, folder / name, train=train, validation=train, seed=seed, **FEW)
    bs.finetune("classify", base, folder / "fewer", train=two, validation=two, **FEW)
    bs.finetune("regress", base, folder / "numbers", train=numbers, validation=numbers, **FEW)
    return folder


def run(capsys: pytest.CaptureFixture[str], *words: object, code: int = 0) -> tuple[str, str]:
    capsys.readouterr()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["bertsmith", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            main()
    out, err = capsys.readouterr()
    assert ended.value.code == code, err
    return out, err


@pytest.mark.parametrize("verb", ["evaluate", "compare"])
def test_runs_that_do_not_fit_together_are_told(
    folder: Path, verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    data = folder / "test.csv"
    _, err = run(capsys, verb, folder / "a", folder / "fewer", "--data", data, code=2)
    assert f"{folder / 'fewer'}: only one of this model and {folder / 'a'} has 1 label: joy" in err
    _, err = run(capsys, verb, folder / "a", folder / "numbers", "--data", data, code=2)
    assert "is for" in err
    _, err = run(capsys, verb, folder / "a", folder / "bert", "--data", data, code=2)
    assert "was not fine-tuned for a task" in err
    _, err = run(capsys, verb, folder / "a", folder / "c", "--data", data, code=2)
    assert err.startswith("error: ")


def test_taggers_of_two_vocabularies_do_not_answer_together(folder: Path, tmp_path: Path) -> None:
    data = tmp_path / "tags.conll"
    data.write_text("kaba X\nlode O\n\nmigi O\nkaba X\n\n" * 6)
    other = tmp_path / "other-base"
    shutil.copytree(folder / "bert" / "model", other)
    words = [*tiny_run.TOKENS[:-2], *tiny_run.TOKENS[:-3:-1]]  # the last two exchanged
    bs.Tokenizer.from_vocabulary(words, lowercase=True, max_length=64).save(other)
    models = [
        bs.finetune("tag", base, tmp_path / name, train=data, validation=data, **FEW)
        for name, base in (("one", folder / "bert"), ("other", other))
    ]
    with pytest.raises(InputError) as caught:
        bs.ensemble(models)
    assert (caught.value.code, caught.value.location) == ("tokenizer_mismatch", str(tmp_path / "other"))
    assert bs.compare(*models, data, rounds=10)["examples"] == 12


def test_windows_that_differ_are_told(tmp_path: Path, folder: Path) -> None:
    base, long = bs.load(folder / "bert"), [("kaba lode mi " * 12, "joy"), ("lode zu " * 12, "fear")] * 6
    data = tiny_run.table(tmp_path / "long.csv", long)
    models = [
        bs.finetune(
            "classify",
            base,
            tmp_path / f"{length}",
            train=data,
            validation=data,
            max_length=length,
            stride=4,
            **FEW,
        )
        for length in (16, 24)
    ]
    both = bs.ensemble(models)
    with pytest.raises(InputError) as caught:
        both.evaluate(data)
    assert (caught.value.code, caught.value.location) == ("windows_differ", f"{data}:2")
    assert both.evaluate(data, max_length=16, stride=4).examples == 12


def test_the_verbs_print_what_python_returns(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = folder / "test.csv"
    out, _ = run(capsys, "evaluate", folder / "a", folder / "b", "--data", data, "--json")
    document = json.loads(out)
    together = bs.ensemble([folder / "a", folder / "b"])
    assert document["accuracy"] == together.evaluate(data).accuracy
    assert [row["accuracy"] for row in document["runs"]] == [
        bs.load(folder / name).evaluate(data).accuracy for name in "ab"
    ]
    out, _ = run(capsys, "evaluate", folder / "a", folder / "b", "--data", data)
    assert "ensemble of 2 on" in out.replace("\n", " ")
    out, _ = run(capsys, "compare", folder / "a", folder / "b", "--data", data, "--json")
    assert json.loads(out) == bs.compare(folder / "a", folder / "b", data)
    out, err = run(capsys, "compare", folder / "a", folder / "b", "--data", data)
    assert "95 % interval" in out
    assert "10,000 rounds of resampling, seed 0" in err


def test_messages_of_several_models_are_printed_once(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def for_answers(width: int) -> KernelBackend:
        logging.getLogger("bertsmith.kernels").info("compiling kernels")
        return REFERENCE

    monkeypatch.setattr("bertsmith.inference.precision.select_inference_backend", for_answers)
    runs = (folder / "a", folder / "b", "--data", folder / "test.csv", "--precision", "int8")
    for verb in ("evaluate", "compare"):
        _, err = run(capsys, verb, *runs)
        said = err.replace("\n", " ")
        assert said.count("compiling kernels") == 1, verb
        for name in "ab":
            assert said.count(f"{folder / name}: on 30 examples of") == 1, verb


def test_what_is_compared_must_be_the_same_texts(folder: Path, tmp_path: Path) -> None:
    rows = [(text, f"other {text}", label) for text, label in tiny_run.examples(12)]
    data = tiny_run.table(tmp_path / "two.csv", rows, header="text,title,label")
    base = bs.load(folder / "bert")
    other = bs.finetune(
        "classify", base, tmp_path / "t", train=data, validation=data, text_column="title", **FEW
    )
    with pytest.raises(InputError) as caught:
        bs.compare(folder / "a", other, data)
    assert (caught.value.code, caught.value.location) == ("examples_differ", f"{data}:2")
    assert bs.compare(folder / "a", other, data, text_column="text", rounds=5)["examples"] == 12
    with pytest.raises(InputError) as caught:
        bs.compare(folder / "a", other, data, rounds=0)
    assert (caught.value.code, caught.value.argument) == ("rounds_too_small", "rounds")


def test_the_sentence_says_who_is_ahead_and_whether_that_is_chance() -> None:
    def report(difference: float, p: float) -> dict[str, object]:
        score = {"difference": difference, "p": p}
        named = {"a": "one", "b": "two", "decided_by": "f1", "examples": 1200}
        return {**named, "scores": {"f1": score}, "told_apart": p < 0.05}

    assert comparison_message(report(0.02, 0.01)).startswith(
        "two has the higher f1 by 0.0200, more than chance"
    )
    assert comparison_message(report(-0.02, 0.4)).startswith(
        "one has the higher f1 by 0.0200, but on these 1,200 examples"
    )
    assert "40 times in 100" in comparison_message(report(-0.02, 0.4))
    assert "cannot be told apart" in comparison_message(report(0, 1))


def test_an_ensemble_of_seven_is_the_mean_of_their_probabilities(folder: Path, tmp_path: Path) -> None:
    """S83: seven restarts, which differ in seeds only; the report has all, and an ensemble of one is the run."""
    train, test = folder / "train.csv", [text for text, _ in tiny_run.examples(12, seed=9)]
    options = {**FEW, "max_steps": 1}
    report = bs.finetune_repeatedly(
        "classify", folder / "bert", tmp_path / "runs", train=train, validation=train, restarts=7, **options
    )
    assert [run.run for run in report.runs] == [f"seed-{seed}" for seed in range(7)]
    assert report.summary.best == max(run.score for run in report.runs if run.score is not None)
    runs = [bs.load(tmp_path / "runs" / run.run, precision="fp32") for run in report.runs]
    labels = list(runs[0].labels or [])
    scores = np.array([[[p.scores[label] for label in labels] for p in run.predict(test)] for run in runs])
    assert len({row.tobytes() for row in scores}) == 7
    seven = bs.ensemble(runs).predict(test)
    assert np.array([[p.scores[label] for label in labels] for p in seven]) == pytest.approx(
        scores.mean(0), abs=1e-6
    )
    assert [p.label for p in seven] == [labels[i] for i in scores.mean(0).argmax(1)]
    (one,) = (bs.ensemble([runs[0]]).predict(test[:1]),)
    assert one == runs[0].predict(test[:1])


def test_an_ensemble_of_nothing_is_told() -> None:
    with pytest.raises(InputError) as caught:
        bs.ensemble([])
    assert caught.value.code == "no_models"
