"""The calls that the project promises, one after the other on a tiny corpus; `--json` and `--help` of each."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import tiny_run
from bertsmith.cli.main import main
from bertsmith.cli.options import size_of
from bertsmith.settings import Settings
from bertsmith.tasks.registry import TASKS

TINY = [word for setting in tiny_run.SETTINGS for word in ("--set", setting)]
ONE = ["--set", "train.threads=1", "--set", "train.precision=fp32", "--set", "train.report_to=none"]


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[str, str]:
    """stdout and stderr of `bertsmith …`, which must succeed."""
    capsys.readouterr()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["bertsmith", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
    out, told = capsys.readouterr()
    assert ended.value.code == 0, told
    return out, told


def one_json(capsys: pytest.CaptureFixture[str], *arguments: object) -> Any:
    """With --json, stdout is exactly one JSON document."""
    out, _ = run(capsys, *arguments, "--json")
    assert out.endswith("\n")
    document, end = json.JSONDecoder(parse_constant=lambda name: pytest.fail(name)).raw_decode(out)
    assert out[end:] == "\n"
    return document


@pytest.mark.parametrize("as_json", [True, False], ids=["json", "tables"])
def test_the_whole_way(capsys: pytest.CaptureFixture[str], tmp_path: Path, as_json: bool) -> None:
    def call(*arguments: object) -> Any:
        return one_json(capsys, *arguments) if as_json else run(capsys, *arguments)[0]

    def has(found: Any, *names: str) -> None:
        for name in names:
            assert name in found

    (tmp_path / "corpus.txt").write_text(tiny_run.corpus(), encoding="utf-8")
    tiny_run.table(tmp_path / "train.csv", tiny_run.examples(30))
    tiny_run.table(tmp_path / "validation.csv", tiny_run.examples(9, seed=3))
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("preset: bert-tiny-uncased\ntrain:\n  num_train_epochs: 1\n")

    tokenizer, shards, bert, moods = (tmp_path / name for name in ("tokenizer", "shards", "bert", "moods"))
    call("tokenizer", "train", tmp_path / "corpus.txt", "--output-dir", tokenizer, "--vocab-size", 70)
    has(
        call("data", "prepare", tmp_path / "corpus.txt", "--tokenizer", tokenizer, "--output-dir", shards),
        "documents",
    )
    pretrain = ["pretrain", recipe, "--preset", "bert-mini-uncased", "--data", shards]
    pretrain += ["--output-dir", bert, *TINY, "--set", "train.max_steps=5"]
    report = call(*pretrain)
    call(*pretrain, "--resume")
    finetune = ["finetune", "classify", "--model", bert, "--train", tmp_path / "train.csv", "--validation"]
    finetune += [
        tmp_path / "validation.csv",
        "--output-dir",
        moods,
        "--text-column",
        "text",
        "--label-column",
        "label",
    ]
    tuned = call(*finetune, "--delimiter", ",", "--set", "train.max_steps=4", *ONE)
    scores = call("evaluate", moods, "--data", tmp_path / "validation.csv")
    has(scores, "accuracy", "macro_f1")
    filled = call("fill-mask", bert, "kaba [MASK] lode [MASK].", "--top-k", 3)
    info, machine = call("info", bert), call("info")
    call("info", moods)
    apart = call("info", "--diff", bert, "albert-base-v2")
    assert ("share" if as_json else "parameters of the encoders") in (
        {row["what"] for row in apart["settings"]} if as_json else apart
    )
    answers = call("predict", moods, "kaba lode", "mi")
    if not as_json:
        assert [set(json.loads(line)) >= {"label", "score"} for line in answers.splitlines()] == [True, True]
        return
    assert report["steps"] == 5
    assert {"mlm_loss", "mlm_accuracy", "mlm_perplexity", "nsp_accuracy", "unigram_mlm_loss"} <= set(
        report["held_out"]
    )
    assert tuned["labels"] == ["anger", "fear", "joy"]
    assert tuned["validation"]["accuracy"] == scores["accuracy"]
    whole = json.loads(
        Path(tuned["report"]).read_text(encoding="utf-8")
    )  # the rest of the page is there alone
    assert whole.keys() - tuned.keys() == {"answers", "curve", "lengths", "findings", "settings"}
    assert [len(row) for row in filled] == [3, 3]
    assert all(1 >= row[0]["score"] >= row[1]["score"] >= row[2]["score"] > 0 for row in filled)
    assert info["parameters"] == sum(term["parameters"] for term in info["terms"])
    assert machine["cores"] >= 1
    assert machine["precision"] in ("fp32", "bf16")
    assert [set(answer) >= {"label", "score"} for answer in answers] == [True, True]
    assert (bert / "settings.yaml").exists()
    assert json.loads((bert / "report.json").read_text())["steps"] == 5


def test_one_file_is_split_stratified_and_both_parts_are_written(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    shards = tiny_run.make_shards(tmp_path)
    tiny_run.run(shards, tmp_path / "bert", "train.max_steps=1")
    rows = [(text, str(i % 3)) for i, (text, _) in enumerate(tiny_run.examples(60))]
    file = tiny_run.table(tmp_path / "all.csv", rows)
    (tmp_path / "names.txt").write_text("joy\nfear\nanger\n")
    for number, names in enumerate(["joy,fear,anger", tmp_path / "names.txt"]):
        out = tmp_path / f"moods-{number}"
        report = one_json(
            capsys, "finetune", "classify", "--model", tmp_path / "bert", "--train", file,
            "--validation-split", "0.2", "--seed", 42, "--sample", 45, "--label-names", names, "--output-dir", out,
            "--set", "train.max_steps=2", *ONE,
        )  # fmt: skip
        assert report["labels"] == ["joy", "fear", "anger"]
        parts = {
            name: [json.loads(line) for line in (out / "split" / f"{name}.jsonl").read_text().splitlines()]
            for name in ("train", "validation")
        }
        assert (len(parts["train"]), len(parts["validation"])) == (36, 9)
        counts = {label: sum(row["label"] == label for row in parts["validation"]) for label in "012"}
        assert max(counts.values()) - min(counts.values()) <= 1
        seen = [(row["text"], row["label"]) for part in parts.values() for row in part]
        assert len(seen) == 45
        assert set(seen) <= set(rows)
    answer = one_json(capsys, "predict", tmp_path / "moods-0", "kaba")[0]
    assert set(answer["scores"]) == {"joy", "fear", "anger"}


def test_help_lists_each_setting_once(capsys: pytest.CaptureFixture[str]) -> None:
    from bertsmith.finetuning.settings import settings_type
    from bertsmith.pretraining.settings import PretrainSettings
    from bertsmith.tasks.registry import get_task

    verbs: list[tuple[list[str], type[Settings]]] = [(["pretrain"], PretrainSettings)]
    verbs += [(["finetune", task], settings_type(get_task(task))) for task in TASKS]
    for verb, kind in verbs:
        out = run(capsys, *verb, "--help")[0]
        for name, field in kind.names():
            assert len(re.findall(rf"│ {re.escape(name)}(?:  |\s*│)", out)) == 1, name
            assert field.description


def test_asking_for_help_never_imports_torch() -> None:
    code = (
        "import sys; sys.argv = ['bertsmith', *sys.argv[1:]]\n"
        "from bertsmith.cli.main import main\n"
        "try: main()\n"
        "except SystemExit as ended: assert ended.code == 0\n"
        "heavy = {'torch', 'transformers', 'numpy', 'pyarrow', 'sklearn', 'tokenizers'} & set(sys.modules)\n"
        "sys.stderr.write(' '.join(sorted(heavy)))"
    )
    for arguments in (["--help"], ["--version"], []):
        line = [sys.executable, "-c", code, *arguments]
        done = subprocess.run(line, capture_output=True, text=True, check=False)
        heavy = done.stderr.rpartition("\n")[2] if arguments else ""
        assert heavy == "", arguments
    code = "import sys, bertsmith; bertsmith.__version__; assert not {'torch', 'numpy'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("task", ["sop", "none"])
def test_pretraining_without_next_sentence_prints_its_own_figures(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, task: str
) -> None:
    shards = tiny_run.make_shards(tmp_path).folder
    settings = [*TINY, "--set", f"data.sentence_task={task}", "--set", "train.max_steps=2"]
    command = ("pretrain", "--preset", "bert-tiny-uncased", "--data", shards, *settings)
    out, _ = run(capsys, *command, "--output-dir", tmp_path / "bert")
    assert ("SOP accuracy" in out) == (task == "sop")
    assert "NSP" not in out
    assert "no padding" in out
    found = one_json(
        capsys, *command, "--output-dir", tmp_path / "bert", "--resume"
    )  # the same words name the run
    assert found["batches"]["padding"] == 0


def test_the_size_of_a_folder_is_that_of_its_text_files(tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    (tmp_path / "a.txt").write_text("12345")
    (tmp_path / "below" / "b.md").write_text("123")
    (tmp_path / "c.png").write_bytes(b"\x89PNG")
    assert size_of([str(tmp_path)]) == 8
    (tmp_path / "d.txt.gz").write_bytes(b"12")
    assert size_of([str(tmp_path)]) is None
    assert size_of([str(tmp_path / "none")]) is None
