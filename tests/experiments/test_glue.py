"""GLUE: every task in its published forms, one table, continued where it stopped; what is not GLUE is refused."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import bertsmith as bs
import tiny_run
from bertsmith.cli.main import bertsmith
from bertsmith.errors import InputError
from bertsmith.experiments.glue import GLUE, finetune_glue

WORDS = tiny_run.WORDS
QUICK: dict[str, Any] = {
    "settings": ["train.threads=1", "train.precision=fp32", "train.report_to=none", "train.max_steps=2"]
}
# A task's header, and its cells by a first text, a second one and a label; "" for no header.
FORMS: dict[str, tuple[str, str]] = {
    "CoLA": ("", "gj04\t{label}\t\t{a}"),
    "SST-2": ("sentence\tlabel", "{a}\t{label}"),
    "MRPC": ("\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String", "{label}\t1\t2\t{a}\t{b}"),
    "STS-B": ("index\tsentence1\tsentence2\tscore", "0\t{a}\t{b}\t{score}"),
    "QQP": ("id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate", "0\t1\t2\t{a}\t{b}\t{label}"),
    "MNLI": ("index\tsentence1\tsentence2\tgold_label", "0\t{a}\t{b}\t{name}"),
    "QNLI": ("index\tquestion\tsentence\tlabel", "0\t{a}\t{b}\t{name}"),
    "RTE": ("index\tsentence1\tsentence2\tlabel", "0\t{a}\t{b}\t{name}"),
    "WNLI": ("index\tsentence1\tsentence2\tlabel", "0\t{a}\t{b}\t{label}"),
}


def lines(task: str, number: int, seed: int) -> str:
    draw = random.Random(f"{task}{seed}")
    header, cells = FORMS[task]
    rows = [] if not header else [header]
    for i in range(number):
        a, b = (" ".join(draw.choices(WORDS, k=4)) for _ in range(2))
        name = ("entailment", "not_entailment")[i % 2]
        rows.append(cells.format(a=a, b=b, label=i % 2, name=name, score=i % 6))
    return "\n".join(rows) + "\n"


def write(folder: Path, task: str, *, name: str | None = None) -> Path:
    place = folder / (name or task)
    place.mkdir(parents=True)
    dev = "dev_matched" if task == "MNLI" else "dev"
    (place / "train.tsv").write_text(lines(task, 24, 0), encoding="utf-8")
    (place / f"{dev}.tsv").write_text(lines(task, 12, 1), encoding="utf-8")
    if task == "MNLI":
        (place / "dev_mismatched.tsv").write_text(lines(task, 12, 2), encoding="utf-8")
    return place


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> bs.Model:
    folder = tmp_path_factory.mktemp("glue")
    return tiny_run.run(tiny_run.make_shards(folder / "shards"), folder / "bert", "train.max_steps=1")


def test_the_nine_tasks_as_they_are_published(base: bs.Model, tmp_path: Path) -> None:
    for task in FORMS:
        write(tmp_path / "glue", task)
    report = finetune_glue(base, tmp_path / "runs", data=tmp_path / "glue", **QUICK)
    figures = {row.task: row.metrics for row in report.tasks}
    assert list(figures) == [task.name for task in GLUE] == list(FORMS)
    assert list(figures["CoLA"]) == ["Matthews"]
    assert list(figures["STS-B"]) == ["Pearson", "Spearman"]
    assert list(figures["QQP"]) == list(figures["MRPC"]) == ["F1", "accuracy"]
    assert list(figures["MNLI"]) == ["accuracy", "mismatched accuracy"]
    means = [sum(of.values()) / len(of) for of in figures.values()]
    assert report.average == pytest.approx(sum(means) / 9)
    mrpc = bs.load(tmp_path / "runs" / "MRPC")
    scores = mrpc.evaluate(tmp_path / "glue" / "MRPC" / "dev.tsv")
    assert figures["MRPC"]["F1"] == pytest.approx(100 * scores.classes["1"]["f1"])
    mnli = bs.load(tmp_path / "runs" / "MNLI").evaluate(tmp_path / "glue" / "MNLI" / "dev_mismatched.tsv")
    assert figures["MNLI"]["mismatched accuracy"] == pytest.approx(100 * mnli.accuracy)


def test_other_names_of_folders_and_compressed_files(base: bs.Model, tmp_path: Path) -> None:
    place = write(tmp_path / "glue", "SST-2", name="sst2")
    whole = (place / "train.tsv").read_bytes()
    (place / "train.tsv").unlink()
    (place / "train.tsv.gz").write_bytes(gzip.compress(whole))
    write(tmp_path / "glue", "RTE", name="rte")
    report = finetune_glue(base, tmp_path / "runs", data=tmp_path / "glue", tasks=["rte"], **QUICK)
    assert [row.task for row in report.tasks] == ["RTE"]
    with pytest.raises(InputError) as caught:
        finetune_glue(base, tmp_path / "runs", data=tmp_path / "glue", **QUICK)
    assert str(tmp_path / "runs") in str(caught.value)
    before = (tmp_path / "runs" / "RTE" / "report.json").read_bytes()
    report = finetune_glue(base, tmp_path / "runs", data=tmp_path / "glue", resume=True, **QUICK)
    assert [row.task for row in report.tasks] == ["SST-2", "RTE"]
    assert (tmp_path / "runs" / "RTE" / "report.json").read_bytes() == before


def test_labels_in_words(base: bs.Model, tmp_path: Path) -> None:
    place = write(tmp_path / "glue", "MRPC")
    for names, figure in ((("equivalent", "not_equivalent"), "F1"), (("a", "b"), "macro F1")):
        for part, seed in (("train", 0), ("dev", 1)):
            header, *rows = lines("MRPC", 24, seed).splitlines()
            named = [f"{names[row[0] == '0']}{row[1:]}" for row in rows]
            (place / f"{part}.tsv").write_text("\n".join([header, *named]) + "\n", encoding="utf-8")
        report = finetune_glue(base, tmp_path / names[0], data=tmp_path / "glue", **QUICK)
        assert list(report.tasks[0].metrics) == [figure, "accuracy"]


def test_what_is_not_glue_is_refused_before_anything_is_trained(base: bs.Model, tmp_path: Path) -> None:
    glue, out = tmp_path / "glue", tmp_path / "runs"
    with pytest.raises(InputError) as caught:
        finetune_glue(base, out, data=glue, **QUICK)
    assert (caught.value.code, caught.value.location) == ("task_folder_missing", str(glue))
    (glue / "other").mkdir(parents=True)
    with pytest.raises(InputError) as caught:
        finetune_glue(base, out, data=glue, **QUICK)
    assert (caught.value.code, caught.value.location) == ("task_folder_missing", str(glue))
    write(glue, "CoLA")
    with pytest.raises(InputError) as caught:
        finetune_glue(base, out, data=glue, tasks=["xnli"], **QUICK)
    assert (caught.value.code, caught.value.location) == ("task_unknown", None)
    with pytest.raises(InputError) as caught:
        finetune_glue(base, out, data=glue, tasks=["CoLA", "RTE"], **QUICK)
    assert (caught.value.code, caught.value.location) == ("task_folder_missing", str(glue))
    place = write(glue, "RTE")
    (place / "dev.tsv").unlink()
    with pytest.raises(InputError) as caught:
        finetune_glue(base, out, data=glue, **QUICK)
    assert (caught.value.code, caught.value.location) == ("task_file_missing", str(place))
    (place / "dev.tsv").write_text("a\tb\n", encoding="utf-8")
    (place / "train.tsv").write_text("a\tb\n", encoding="utf-8")
    with pytest.raises(InputError) as caught:
        finetune_glue(base, out, data=glue, **QUICK)
    assert (caught.value.code, caught.value.location) == ("columns_unknown", str(place / "train.tsv"))
    assert not out.exists()


def test_lines_of_json_and_the_verb(base: bs.Model, tmp_path: Path) -> None:
    place = tmp_path / "glue" / "QNLI"
    place.mkdir(parents=True)
    for name in ("train", "dev"):
        rows = [
            {"question": WORDS[i], "sentence": WORDS[-i], "label": ("entailment", "not_entailment")[i % 2]}
            for i in range(16)
        ]
        (place / f"{name}.jsonl").write_text(
            "".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8"
        )
    done = CliRunner().invoke(
        bertsmith,
        [
            *("finetune", "glue", "--model", str(base.path), "--data", str(tmp_path / "glue")),
            *("--output-dir", str(tmp_path / "runs"), "--tasks", "QNLI", "--steps", "2", "--threads", "1"),
        ],
    )
    assert done.exit_code == 0, done.output
    assert "QNLI" in done.stdout
    assert "average: " in done.stdout
