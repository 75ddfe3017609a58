"""`ablate`: rows and seeds as ordinary runs, the paper's orderings, and each recipe that is shipped."""

from __future__ import annotations

import itertools
import json
import logging
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from scipy.stats import ttest_rel
from transformers import BertForPreTraining

import bertsmith as bs
import tiny_run
from bertsmith import hardware
from bertsmith.cli import tables
from bertsmith.corpus.shards import Shards
from bertsmith.errors import InputError, Stopped
from bertsmith.experiments.ablation import ablate
from bertsmith.experiments.ablation_recipe import AblationRecipe, read_recipe
from bertsmith.experiments.ablation_report import make_report
from bertsmith.pretraining.data import PretrainData
from bertsmith.pretraining.settings import PretrainSettings

RECIPES = sorted((Path(__file__).parents[2] / "recipes" / "ablations").glob("*.yaml"))
FEW = [one for one in tiny_run.SETTINGS if not one.startswith("model.initializer")]
AFFORDED = {
    "train.max_steps": 2,
    "train.batch_size": 4,
    "train.batch_tokens": 128,
    "train.gradient_accumulation_steps": 2,
}
RECIPE = """
title: masks
source: a paper
preset: bert-tiny-uncased
rows:
  dynamic: {}
  "static, once": {data.dynamic_masking: false, data.dupe_factor: 1}
paper:
  SST-2: {dynamic: 92.9, "static, once": 92.5}
"""


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Shards:
    return tiny_run.make_shards(tmp_path_factory.mktemp("shards"))


@pytest.fixture
def world(tmp_path: Path, shards: Shards) -> dict[str, Any]:
    recipe = tmp_path / "masks.yaml"
    recipe.write_text(RECIPE, encoding="utf-8")
    rows = tiny_run.table(tmp_path / "train.csv", tiny_run.examples(30))
    task = {
        "train": str(rows),
        "validation": str(rows),
        "settings": {"train.max_steps": 2, "train.threads": 1},
    }
    pairs = tmp_path / "pairs.csv"
    pairs.write_text("good,bad\nkaba lode,lode kaba\nmi so,so mi so\n", encoding="utf-8")
    return {
        "recipe": recipe,
        "output_dir": tmp_path / "out",
        "data": shards,
        "tasks": {"moods": task},
        "pairs": pairs,
        "settings": [*FEW, "train.max_steps=2"],
        "jobs": 1,
    }


def test_each_row_and_seed_is_an_ordinary_run(world: dict[str, Any]) -> None:
    report = ablate(**world, seeds=2)
    assert list(report.metrics) == ["mlm_loss", "moods", "minimal pairs"]
    for row, folder in (("dynamic", "dynamic"), ("static, once", "static--once")):
        values = []
        for seed in (0, 1):
            run = bs.load(world["output_dir"] / folder / str(seed) / "pretrain")
            values.append(run.report["held_out"]["mlm_loss"])
            assert bs.load(world["output_dir"] / folder / str(seed) / "moods").task.name == "classify"
        assert report.metrics["mlm_loss"][row].values == values
    assert values[0] != values[1]
    assert report.paper == {"SST-2": {"dynamic": 92.9, "static, once": 92.5}}
    assert {one.metric for one in report.orderings} == {"mlm_loss", "moods", "minimal pairs"}
    assert json.loads((world["output_dir"] / "report.json").read_text()) == report.to_dict()
    drawn = sorted(path.name for path in (world["output_dir"] / "figures").iterdir())
    assert drawn == ["minimal-pairs.png", "mlm-loss.png", "moods.png", "paper-SST-2.png"]
    assert all(file.read_bytes()[:4] == b"\x89PNG" for file in (world["output_dir"] / "figures").iterdir())


def test_a_recipe_may_name_what_it_is_run_on(world: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        ablate(world["recipe"], tmp_path / "none", seeds=1)
    assert (caught.value.code, caught.value.location) == ("data_missing", str(world["recipe"]))
    own = yaml.safe_load(RECIPE) | {name: world.pop(name) for name in ("tasks", "data", "pairs")}
    own = own | {"data": str(own["data"].folder), "pairs": str(own["pairs"])}
    world["recipe"].write_text(yaml.safe_dump(own), encoding="utf-8")
    report = ablate(**world, seeds=1)
    assert list(report.metrics) == ["mlm_loss", "moods", "minimal pairs"]
    own["tasks"]["moods"] |= {"train": "nowhere.csv"}
    world["recipe"].write_text(yaml.safe_dump(own), encoding="utf-8")
    with pytest.raises(InputError) as caught:
        ablate(**world, seeds=1, resume=True)
    assert caught.value.code == "not_found"
    assert str(caught.value.location).startswith(f"{world['recipe']}: tasks: 'moods'")
    other = tiny_run.make_shards(tmp_path / "other")
    with pytest.raises(InputError) as caught:
        ablate(**world, seeds=1, resume=True, tasks={}, data=other)
    assert caught.value.code == "arguments_differ"
    (tmp_path / "tasks.yaml").write_text(yaml.safe_dump({"moods": {"train": "x.csv"}}), encoding="utf-8")
    own["tasks"] = str(tmp_path / "tasks.yaml")
    world["recipe"].write_text(yaml.safe_dump(own), encoding="utf-8")
    with pytest.raises(InputError) as caught:
        ablate(**world, seeds=1, resume=True)
    assert caught.value.code == "not_found"
    assert str(caught.value.location).startswith(f"{tmp_path / 'tasks.yaml'}: 'moods'")
    without = ablate(**world, seeds=1, resume=True, tasks={})
    assert list(without.metrics) == ["mlm_loss", "minimal pairs"]


def test_what_is_finished_stays(world: dict[str, Any]) -> None:
    first = ablate(**world, seeds=1)
    weights = world["output_dir"] / "dynamic" / "0" / "pretrain" / "model" / "model.safetensors"
    written = weights.stat().st_mtime_ns
    with pytest.raises(InputError) as caught:
        ablate(**world, seeds=1)
    assert str(world["output_dir"]) in str(caught.value)
    again = ablate(**world, seeds=2, resume=True)
    assert weights.stat().st_mtime_ns == written
    assert [of.values[0] for of in again.metrics["moods"].values()] == [
        of.values[0] for of in first.metrics["moods"].values()
    ]


def test_rows_that_differ_in_fine_tuning_share_a_model(
    world: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    """Table 5's fourth row: the model of the third, with a BiLSTM below the head of each task."""
    caplog.set_level(logging.INFO, "bertsmith")
    shared = RECIPES[0].parent / "pretraining-task.yaml"
    rows = ["left to right", "left to right + BiLSTM"]
    report = ablate(**{**world, "recipe": shared}, seeds=1, rows=rows)
    out = world["output_dir"]
    assert sorted(path.parent.parent.name for path in out.glob("*/*/pretrain")) == ["BERT", "left-to-right"]
    left, with_bilstm = (
        bs.load(out / name / "0" / "moods") for name in ("left-to-right", "left-to-right---BiLSTM")
    )
    assert (
        left.folder.record["base"]
        == with_bilstm.folder.record["base"]
        == str(out / "left-to-right/0/pretrain")
    )
    assert left.folder.architecture == "BertForLastTokenSequenceClassification"
    assert with_bilstm.folder.architecture == "BertForBiLstmSequenceClassification"
    pairs = report.metrics["minimal pairs"]
    assert pairs["left to right"].values == pairs["left to right + BiLSTM"].values
    assert sum("12H² + 16H" in line for line in caplog.messages) == 1


def test_the_first_of_the_rows_alone_need_not_be_asked_for(world: dict[str, Any]) -> None:
    """The model stands where its own row would look for it."""
    shared = RECIPES[0].parent / "pretraining-task.yaml"
    some = {**world, "recipe": shared, "pairs": None, "seeds": 1}
    ablate(**some, rows=["left to right + BiLSTM"])
    weights = world["output_dir"] / "left-to-right" / "0" / "pretrain" / "model" / "model.safetensors"
    written = weights.stat().st_mtime_ns
    again = ablate(**some, rows=["left to right"], resume=True)
    assert weights.stat().st_mtime_ns == written
    assert list(again.metrics["moods"]) == ["BERT", "left to right"]


def test_differences_are_paired_and_orderings_are_judged() -> None:
    recipe = AblationRecipe(
        rows={"a": {}, "b": {}, "c": {}},
        paper={"x": {"a": 3.0, "b": 2.0, "c": 1.0}, "y": {"a": 5.0, "b": 4.0, "c": 4.5}},
    )
    values = {"a": [0.80, 0.82, 0.84], "b": [0.70, 0.725, 0.74], "c": [0.81, 0.81, 0.85]}
    losses = {"a": [1.0, 1.1, 1.2], "b": [0.8, 0.91, 1.0], "c": [1.0, 1.2, 1.1]}
    found = {
        row: {i: {"task": values[row][i], "mlm_loss": losses[row][i]} for i in range(3)} for row in values
    }
    report = make_report(recipe, found)
    of_b = report.metrics["task"]["b"]
    assert of_b.difference == pytest.approx(sum(values["b"]) / 3 - sum(values["a"]) / 3)
    assert of_b.p == pytest.approx(ttest_rel(values["b"], values["a"]).pvalue)
    verdicts = {(one.better, one.worse, one.metric): one.verdict for one in report.orderings}
    assert verdicts == {
        ("a", "b", "task"): "holds",
        ("a", "b", "mlm_loss"): "is reversed",  # less is better, and b has less
        ("a", "c", "task"): "is undecided",
        ("a", "c", "mlm_loss"): "is undecided",
    }  # x and y disagree on b and c
    assert report.describe_orderings() == (
        "2 pairs of rows that the paper orders, 4 comparisons with 3 seeds: 1 held, 1 reversed, 2 undecided "
        "(paired t-tests, p < 0.05 when adjusted for their number)"
    )
    by_p = sorted(one.p for one in report.orderings)
    adjusted = [min(p * len(by_p) / rank for rank, p in enumerate(by_p, 1) if p >= own) for own in by_p]
    assert sorted(one.adjusted_p for one in report.orderings) == pytest.approx(adjusted)


def test_a_figure_is_held_against_the_papers_of_its_name() -> None:
    """Also where the paper's figures disagree; a figure that it does not have against what they agree on."""
    recipe = AblationRecipe(
        rows={"dynamic": {}, "static": {}},
        paper={"SQuAD 2.0": {"dynamic": 78.7, "static": 78.3}, "MNLI-m": {"dynamic": 84.0, "static": 84.3}},
    )
    found = {
        "dynamic": {i: {"mnli_m": 0.5 + i / 100, "mlm_loss": 3.0} for i in range(3)},
        "static": {i: {"mnli_m": 0.6 + i / 99, "mlm_loss": 3.1} for i in range(3)},
    }
    report = make_report(recipe, found)
    assert report.paper_names == {"mnli_m": "MNLI-m"}
    assert [(one.better, one.metric, one.verdict) for one in report.orderings] == [
        ("static", "mnli_m", "holds")
    ]


def test_a_loss_is_ordered_by_the_papers_metrics_of_its_head() -> None:
    """The paper's average has the reverse order of its accuracy of masked LM."""
    recipe = AblationRecipe(
        rows={"SOP": {}, "none": {}},
        losses=["mlm_loss", "mlm_accuracy", "sop_accuracy"],
        paper={"MLM accuracy": {"SOP": 54.0, "none": 54.9}, "average": {"SOP": 80.1, "none": 79.0}},
    )
    metrics = {"task": 0.6, "mlm_loss": 3.0, "sop_accuracy": 0.5}
    found = {row: dict.fromkeys(range(2), metrics) for row in recipe.rows}
    judged = {(one.better, one.metric) for one in make_report(recipe, found).orderings}
    assert judged == {("SOP", "task"), ("none", "mlm_loss"), ("SOP", "sop_accuracy")}


def test_a_head_for_pairs_also_answers_the_other_sentence_task(world: dict[str, Any]) -> None:
    """Its accuracy is that of the same weights in transformers."""
    table = {
        "rows": {name: {"data.sentence_task": name.lower()} for name in ("SOP", "NSP", "none")},
        "losses": ["nsp_accuracy", "sop_accuracy"],
        "settings": {"data.instances": "segment_pair"},
    }
    world["settings"].append("data.validation_split=0.5")
    world["recipe"].write_text(yaml.safe_dump(table, sort_keys=False), encoding="utf-8")
    metrics = ablate(**{**world, "tasks": {}, "pairs": None}, seeds=1).metrics
    assert {name: list(rows) for name, rows in metrics.items()} == {
        "nsp_accuracy": ["SOP", "NSP"],
        "sop_accuracy": ["SOP", "NSP"],
    }
    run = world["output_dir"] / "SOP" / "0" / "pretrain"
    settings = PretrainSettings.from_file(run / "settings.yaml").changed({"data.sentence_task": "nsp"})
    model = BertForPreTraining.from_pretrained(bs.load(run).model_folder)
    is_correct = []
    for batch in PretrainData.from_shards(world["data"], settings).validation_batches[""]:
        lengths = batch.packed.lengths.tolist()
        for tokens, segments, label in zip(
            batch.packed.tokens.split(lengths),
            batch.packed.segments.split(lengths),
            batch.pair_labels,
            strict=True,
        ):
            outputs = model(input_ids=tokens[None], token_type_ids=segments[None])
            is_correct.append(outputs.seq_relationship_logits.argmax() == label)
    assert metrics["nsp_accuracy"]["SOP"].mean == pytest.approx(sum(is_correct) / len(is_correct))


def test_what_would_undo_the_comparison_is_refused(world: dict[str, Any]) -> None:
    undone = {**world, "settings": [*world["settings"], "data.dynamic_masking=true"]}
    with pytest.raises(InputError) as caught:
        ablate(**undone)
    assert (caught.value.code, caught.value.argument) == ("setting_of_row", "data.dynamic_masking")
    with pytest.raises(InputError) as caught:
        ablate(**{**world, "settings": [*world["settings"], "train.seed=3"]})
    assert (caught.value.code, caught.value.argument) == ("seed_set", "settings")
    seeded = {**world["tasks"]["moods"], "settings": {"train": {"seed": 7}}}
    with pytest.raises(InputError) as caught:
        ablate(**{**world, "tasks": {"moods": seeded}})
    assert (caught.value.code, caught.value.location) == ("seed_set", "tasks: 'moods'")
    for name in ("mlm_loss", "minimal pairs"):
        with pytest.raises(InputError) as caught:
            ablate(**{**world, "tasks": {name: world["tasks"]["moods"]}})
        assert caught.value.code == "task_name_reserved"
    assert not world["output_dir"].exists()


def test_all_of_it_is_checked_before_anything_is_trained(world: dict[str, Any], tmp_path: Path) -> None:
    empty = tiny_run.table(tmp_path / "empty.csv", [])
    bad = tmp_path / "bad.yaml"
    bad.write_text("rows:\n  a:\n  b: {data.sentense_task: none}\n", encoding="utf-8")
    for change, said in (
        ({"recipe": bad}, r"bad\.yaml: row 'b': .*data\.sentense_task"),
        ({"pairs": tmp_path / "gone.csv"}, r"gone\.csv"),
        (
            {"tasks": {"moods": {**world["tasks"]["moods"], "train": str(empty)}}},
            r"'moods' of the row 'dynamic': .*empty\.csv",
        ),
        ({"settings": [*world["settings"], "data.sequence_length=999"]}, "row 'dynamic': .*999"),
        ({"tasks": {"moods": None}}, "tasks: 'moods' is None"),
        (
            {"tasks": {"moods": {**world["tasks"]["moods"], "verb": "klassify"}}},
            "tasks: 'moods' of the row 'dynamic': .*klassify",
        ),
    ):
        with pytest.raises(InputError, match=said):
            ablate(**{**world, **change})
        assert not world["output_dir"].exists()


def test_tasks_and_pairs_may_come_later_but_models_stay_what_they_are(world: dict[str, Any]) -> None:
    few = {**world, "tasks": None, "pairs": None}
    first = ablate(**few, seeds=2)
    more = ablate(**world, seeds=2, resume=True)
    assert more.metrics["mlm_loss"] == first.metrics["mlm_loss"]
    assert list(more.metrics) == ["mlm_loss", "moods", "minimal pairs"]
    fewer = world["pairs"].with_name("fewer.csv")
    fewer.write_text("good,bad\nkaba lode,lode kaba\n", encoding="utf-8")
    other = ablate(**{**world, "pairs": fewer}, seeds=2, resume=True)
    assert set(other.metrics["minimal pairs"]["dynamic"].values) <= {0.0, 1.0}
    with pytest.raises(InputError) as caught:
        ablate(**{**world, "settings": [*world["settings"], "train.learning_rate=1e-4"]}, resume=True)
    assert caught.value.code == "arguments_differ"
    world["recipe"].write_text(RECIPE.replace("dupe_factor: 1", "dupe_factor: 2"), encoding="utf-8")
    with pytest.raises(InputError) as caught:
        ablate(**world, resume=True)
    assert caught.value.code == "arguments_differ"
    assert "'static, once'" in caught.value.message
    (world["output_dir"] / "ablation.json").write_text("{", encoding="utf-8")
    with pytest.raises(InputError) as caught:
        ablate(**world, resume=True)
    assert (caught.value.code, caught.value.location) == (
        "file_damaged",
        str(world["output_dir"] / "ablation.json"),
    )


def test_all_runs_compute_in_one_precision(world: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = itertools.cycle(["bf16", "fp32"])
    monkeypatch.setattr(hardware, "choose_precision", lambda device=None: next(chosen))
    world["settings"] = [one for one in world["settings"] if "precision" not in one]
    ablate(**world, seeds=1, rows=["dynamic"])
    ablate(**world, seeds=1, resume=True)
    used = {
        yaml.safe_load(file.read_text(encoding="utf-8"))["train"]["precision"]
        for file in world["output_dir"].glob("*/0/*/settings.yaml")
    }
    assert used == {"bf16"}


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("rows: {a: {}}", "rows_missing"),
        ("rows: {a: {}, b: {}}\npaper: {x: {c: 1.0}}", "row_unknown"),
        ("rows: {a: {}, b: {}}\npapers: {}", None),
        ("rows: {a: {}, b: {train: {seed: 5}}}", "seed_set"),
        ("rows: {a: {}, b: {}}\nforeign: 1", "unknown_setting"),
        ("rows:\n  a: {}\n  a: {}", None),
        ("rows: {l r: {}, l/r: {}}", "folder_ambiguous"),
    ],
)
def test_what_is_no_recipe_is_refused(text: str, code: str | None, tmp_path: Path) -> None:
    file = tmp_path / "recipe.yaml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(InputError) as caught:
        read_recipe(file)
    assert code in (None, caught.value.code)
    assert str(file) in str(caught.value)
    assert "''" not in str(caught.value)


def test_figures_that_some_rows_have_are_theirs_alone_and_seeds_that_are_not_done_are_not_paired() -> None:
    recipe = AblationRecipe(rows={"a": {}, "b": {}, "c": {}}, paper={"x": {"a": 3.0, "b": 2.0, "c": 1.0}})
    found = {
        "a": {0: {"task": 0.8, "mlm_loss": 1.0}, 1: {"task": 0.7, "mlm_loss": 1.1}},
        "b": {1: {"task": 0.6, "mlm_loss": 1.4}},
        "c": {0: {"task": 0.5}, 1: {"task": 0.6}},
    }
    report = make_report(recipe, found)
    assert list(report.metrics["mlm_loss"]) == ["a", "b"]
    assert report.metrics["mlm_loss"]["b"].difference == pytest.approx(0.3)
    assert report.metrics["task"]["b"].difference == pytest.approx(-0.1)
    assert report.metrics["task"]["c"].difference == pytest.approx(-0.2)
    assert report.seeds == 1
    judged = {(one.better, one.worse, one.metric) for one in report.orderings}
    assert judged == {("a", "b", "task"), ("a", "b", "mlm_loss"), ("a", "c", "task"), ("b", "c", "task")}
    found["b"] = {2: {"task": 0.6, "mlm_loss": 1.4}}
    assert make_report(recipe, found).metrics["task"]["b"].difference is None


def test_two_models_at_a_time_are_the_same_models(
    world: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "bertsmith.experiments.process_pool")
    one = ablate(**world, seeds=1)
    caplog.clear()
    two = ablate(**{**world, "output_dir": tmp_path / "two", "jobs": 2}, seeds=1)
    assert two == one
    assert sum(line.startswith("model ") for line in caplog.messages) == 2
    assert "updates" in (tmp_path / "two" / "dynamic" / "0" / "output.txt").read_text(encoding="utf-8")


def test_a_failure_of_one_of_several_names_its_row(world: dict[str, Any], tmp_path: Path) -> None:
    recipe = tmp_path / "bad.yaml"
    recipe.write_text("title: t\nrows:\n  good: {}\n  bad: {train.device: 'cuda:7'}\n", encoding="utf-8")
    with pytest.raises(InputError) as caught:
        ablate(**{**world, "recipe": recipe, "jobs": 2, "tasks": None, "pairs": None}, seeds=1)
    assert str(caught.value.location).startswith("bad, seed 0")
    assert "cuda" in str(caught.value)
    assert caught.value.hint


def test_several_models_save_and_stop_when_asked_to(
    world: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SIGTERM to the parent as soon as one has a checkpoint, long before either can end; --resume then ends with
    the figures of the run that nobody stopped."""
    settings = [one for one in world["settings"] if "max_steps" not in one]
    world = {**world, "settings": [*settings, "train.max_steps=60", "train.save_steps=5"], "tasks": None}
    straight = ablate(**{**world, "output_dir": tmp_path / "straight"}, seeds=1)

    def stop_early() -> None:
        while not any(world["output_dir"].glob("*/0/pretrain/checkpoints/step-*")):
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGTERM)

    def stop(message: str, number: int, *_: object) -> None:
        if number == 2:
            threading.Thread(target=stop_early, daemon=True).start()

    with monkeypatch.context() as patched:
        patched.setattr("bertsmith.experiments.process_pool.logger.info", stop)
        with pytest.raises(Stopped) as caught:
            ablate(**{**world, "jobs": 2}, seeds=1)
    assert caught.value.exit_code == 128 + signal.SIGTERM
    assert ablate(**world, seeds=1, resume=True) == straight


def test_other_mistakes(world: dict[str, Any]) -> None:
    with pytest.raises(InputError) as caught:
        ablate(**world, rows=["fixed"])
    assert (caught.value.code, caught.value.argument) == ("row_unknown", "rows")
    texts = [(word, f"{word} {word}") for word in tiny_run.WORDS[:9]]
    rows = str(tiny_run.table(world["recipe"].with_name("texts.csv"), texts, header="a,b"))
    columns = {"task.text_column": "a", "task.second_column": "b"}
    vectors = {"train": rows, "validation": rows, "verb": "embed", "settings": columns}
    shared = RECIPES[0].parent / "pretraining-task.yaml"
    with pytest.raises(InputError) as caught:
        ablate(**{**world, "recipe": shared, "tasks": {"vectors": vectors}})
    place = "tasks: 'vectors' of the row 'left to right + BiLSTM'"
    assert str(caught.value.location).startswith(place)
    assert "task.head" in str(caught.value)
    for name in ("pretrain", "pretrain!"):
        with pytest.raises(InputError) as caught:
            ablate(**{**world, "tasks": {name: world["tasks"]["moods"]}})
        assert caught.value.code == "task_name_reserved"
    assert not world["output_dir"].exists()


@pytest.mark.parametrize("file", RECIPES, ids=lambda file: file.stem)
def test_each_recipe_takes_two_steps(file: Path, tmp_path: Path, shards: Shards) -> None:
    """Every row of it, at a size that a test can afford; what the rows change stays as it is, but for budgets."""
    values = yaml.safe_load(file.read_text(encoding="utf-8"))
    for row in (values.get("settings", {}), *values["rows"].values()):
        row |= {name: most for name, most in AFFORDED.items() if name in row}
        if (layers := row.get("model.num_hidden_layers", 0)) > 6:
            row["model.num_hidden_layers"] = 6 + layers // 24  # rows stay different
    file = tmp_path / file.name
    file.write_text(yaml.safe_dump(values, sort_keys=False), encoding="utf-8")
    recipe = read_recipe(file)
    assert recipe.title
    assert recipe.source
    assert recipe.paper
    changed = {name for row in (recipe.settings, *recipe.rows.values()) for name in row}
    own = [one for one in FEW if one.partition("=")[0] not in changed]
    if recipe.preset and "albert" in recipe.preset and "model.embedding_size" not in changed:
        own.append("model.embedding_size=16")
    if recipe.settings.get("objective.name") == "distil":
        teacher = tiny_run.run(shards, tmp_path / "teacher", "model.num_hidden_layers=4", "train.max_steps=2")
        own.append(f"objective.teacher={teacher.path}")
    rows = tiny_run.table(tmp_path / "train.csv", tiny_run.examples(12))
    verb = "classify"
    if file.stem == "features":  # its rows are layers that a tagger reads
        verb, rows = "tag", tmp_path / "train.conll"
        own = ["model.num_hidden_layers=4" if "num_hidden_layers" in one else one for one in own]
        rows.write_text("kaba B-PER\nlode O\n\nmiso O\nnuba B-LOC\n" * 3, encoding="utf-8")
    task = {
        "verb": verb,
        "train": str(rows),
        "validation": str(rows),
        "settings": {"train.max_steps": 2, "train.threads": 1},
    }
    tasks = {"moods": task} if recipe.task_settings or recipe.second_encoder else {}
    report = ablate(
        file,
        tmp_path / "out",
        data=shards,
        tasks=tasks,
        seeds=1,
        jobs=1,
        settings=[
            *own,
            *(
                one
                for one in ("train.max_steps=2", "train.batch_size=4")
                if one.partition("=")[0] not in changed
            ),
        ],
    )
    assert report.seeds == 1
    folders = {path.parent.parent.name for path in (tmp_path / "out").glob("*/*/pretrain")}
    assert len(folders) == len({json.dumps(row, sort_keys=True) for row in recipe.rows.values()})
    tuned = {path.parent.parent.name for path in (tmp_path / "out").glob("*/*/moods")}
    assert len(tuned) == (len(recipe.rows) if tasks else 0)
    assert sorted(report.metrics) == sorted([*recipe.losses, *tasks])
    assert list(report.setups) == list(recipe.rows)
    assert all(setup.updates == 2 for setup in report.setups.values())
    assert all(one.verdict == "is undecided" for one in report.orderings)


def test_scores_are_printed_in_points_beside_the_papers_and_less_perplexity_is_better(
    capsys: pytest.CaptureFixture[str],
) -> None:
    recipe = AblationRecipe(
        rows={"a": {}, "b": {}},
        losses=["mlm_perplexity"],
        paper={"SST-2": {"a": 92.9, "b": 92.5}, "MLM perplexity": {"a": 3.54, "b": 3.99}},
        quoted={"SST-2": {"reference": 92.8}},
        departures={"data": "other text"},
    )
    found = {
        row: {i: {"sst2": score + i / 50, "mlm_perplexity": 60.0 + i} for i in range(2)}
        for row, score in (("a", 0.83), ("b", 0.71))
    }
    report = make_report(recipe, found, changes={"train.max_steps": 2})
    tables.print_ablation({"output_dir": "out", **report.to_dict()})
    out, err = capsys.readouterr()
    assert err.index("train.max_steps=2") < err.index("unlike the paper, data: other text")
    assert "84.00" in out  # the mean of 0.83 and 0.85
    assert "61.0" not in out.split("60.5000")[0]  # a perplexity is no fraction
    assert "92.8" in out
    assert {(one.better, one.metric) for one in report.orderings} == {("a", "sst2"), ("a", "mlm_perplexity")}
    assert report.departures == {"data": "other text"}
