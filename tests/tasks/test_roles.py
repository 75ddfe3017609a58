"""Semantic roles: columns of predicates are one example each, and a predicate is the second text."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path

import pytest
from click.testing import CliRunner

import bertsmith as bs
import tiny_run
from bertsmith.cli.main import bertsmith
from bertsmith.errors import InputError
from bertsmith.tasks.settings import TagSettings
from task_files import fitted_task, task_data

PLAIN = TagSettings()
DATA = Path(__file__).parents[2] / ".." / "shared" / "data" / "tasks"


def row(number: int, word: str, *columns: str) -> str:
    return "\t".join([str(number), word, *"_" * 8, *columns]) + "\n"


TWO = (
    "# text = kaba lode migi\n"
    + row(1, "kaba", "_", "ARG0", "_")
    + row(2, "lode", "go.01", "V", "ARGM-TMP")
    + row(3, "migi", "see.02", "_", "V")
)
NONE = row(1, "kaba", "_", "") + row(2, "lode", "_", "")


def written(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_a_predicate_is_an_example_and_its_own_v_no_role(tmp_path: Path) -> None:
    file = written(tmp_path / "a.conllu", f"{TWO}\n{NONE}\n{TWO}")
    found = task_data("tag", PLAIN).read(file)
    assert [(e.predicate, e.tags) for e in found[:2]] == [
        (1, ("B-ARG0", "O", "O")),
        (2, ("O", "B-ARGM-TMP", "O")),
    ]
    assert [e.location for e in found] == [f"{file}:2"] * 2 + [f"{file}:10"] * 2
    assert len({e.group_key for e in found}) == 1  # on one side of a split
    assert len({e.question_key for e in found}) == 2  # and no contradiction
    assert found[1].display_inputs == {"words": "kaba lode migi", "predicate": "migi"}
    tags = task_data("tag", TagSettings(tag_column="UPOS")).read(file)  # a column that is named is read
    assert [(e.predicate, e.tags) for e in tags[:1]] == [(None, ("_", "_", "_"))]


def test_roles_may_be_spans_and_stand_in_any_column(tmp_path: Path) -> None:
    file = written(tmp_path / "a.conll", "kaba - B-A0\nlode - I-A0\nmigi go B-V\n")
    (found,) = task_data("tag", TagSettings(predicate_column="2")).read(file)
    assert (found.predicate, found.tags) == (2, ("B-A0", "I-A0", "O"))
    line = {"words": ["kaba", "lode"], "tags": ["B-A0", "O"], "predicate": 1}
    (found,) = task_data("tag", PLAIN).read(written(tmp_path / "a.jsonl", json.dumps(line)))
    assert (found.predicate, task_data("tag", PLAIN).to_row(found)) == (1, line)


@pytest.mark.parametrize(
    ("name", "text", "line", "code"),
    [
        ("a.conllu", TWO.replace("\tARG0\t_", "\tARG0"), 2, "role_column_count"),
        ("a.conllu", NONE, 1, "no_examples"),
        ("a.conllu", TWO.replace("ARG0", "(A0*"), 2, "role_in_brackets"),
        ("a.jsonl", '{"words": ["a"], "tags": ["O"], "predicate": 1}', 1, "unknown_predicate"),
        ("a.jsonl", '{"words": ["a", "a"], "tags": ["O", "O"], "predicate": "a"}', 1, "unknown_predicate"),
    ],
)
def test_faults_have_a_code_and_a_location(
    tmp_path: Path, name: str, text: str, line: int, code: str
) -> None:
    file = written(tmp_path / name, text)
    with pytest.raises(InputError) as caught:
        task_data("tag", PLAIN).read(file)
    assert (caught.value.code, caught.value.location) == (code, f"{file}:{line}")


@pytest.fixture(scope="module")
def roles(tmp_path_factory: pytest.TempPathFactory) -> bs.Model:
    folder = tmp_path_factory.mktemp("roles")
    base = tiny_run.run(tiny_run.make_shards(folder), folder / "bert", "train.max_steps=1")
    short = ["train.max_steps=2", "train.threads=1", "train.report_to=none"]
    file = written(folder / "a.conllu", f"{TWO}\n{NONE}\n{TWO}")
    return bs.finetune("tag", base, folder / "run", train=file, validation=file, settings=short)


def test_a_model_of_roles_is_asked_with_predicates(roles: bs.Model, tmp_path: Path) -> None:
    assert roles.report["labels"] == ["O", "S-ARG0", "S-ARGM-TMP"]  # heads alone: no other tag of IOBES
    assert roles.report["warnings"] == [w for w in roles.report["warnings"] if "different labels" not in w]
    words = ["kaba", "lode", "migi"]
    by_place, by_word = roles.predict([words, words], [2, "migi"])
    assert by_place == by_word
    assert by_place.predicate == 2
    assert all(span["end"] - span["start"] == 1 for span in by_place.roles)
    with pytest.raises(InputError) as caught:
        roles.predict([words])
    assert (caught.value.code, caught.value.location) == ("predicate_missing", "text 1")
    (item,) = roles.task.encode(
        task_data("tag", PLAIN).from_inputs({"words": [words], "predicate": [1]}, ["1"]), roles.tokenizer
    )
    (sequence,) = item.sequences
    tokens = [roles.tokenizer.tokens[i] for i in sequence.ids]
    assert tokens == ["[CLS]", "kaba", "lode", "migi", "[SEP]", "lode", "[SEP]"]
    assert sequence.segments.tolist() == [0] * 5 + [1] * 2
    with pytest.raises(InputError) as caught:
        roles.predict([words], ["lod"])
    assert caught.value.code == "unknown_predicate"


def test_files_of_roles_are_scored_predicted_and_written(roles: bs.Model, tmp_path: Path) -> None:
    file = written(tmp_path / "a.conllu", TWO)
    assert {"f1", "strict_f1", "accuracy"} <= set(roles.evaluate(file).to_dict())
    done = CliRunner().invoke(
        bertsmith, ["predict", str(roles.path), "--input", str(file), "--format", "conll"]
    )
    first, second = done.stdout.strip().split("\n\n")
    assert [line.split("\t")[:-1] for line in first.splitlines()] == [
        [*line.split("\t"), gold]
        for line, gold in zip(TWO.splitlines()[1:], ["B-ARG0", "O", "O"], strict=True)
    ]
    assert second.splitlines()[1].split("\t")[-2] == "B-ARGM-TMP"
    bare = written(tmp_path / "b.conllu", row(1, "kaba", "_") + row(2, "lode", "go.01"))
    (answer,) = roles.predict_file(bare)
    assert (answer["predicate"], len(answer["tags"])) == (1, 2)


def test_a_tagger_of_other_tags_refuses_a_file_of_roles(roles: bs.Model, tmp_path: Path) -> None:
    plain = dict(roles.task.metadata) | {"roles": False}
    task = fitted_task("tag", roles.folder.config, roles.context.init_generator, plain, PLAIN)
    with pytest.raises(InputError) as caught:
        task.encode(task_data("tag", PLAIN).read(written(tmp_path / "a.conllu", TWO)), roles.tokenizer)
    assert (caught.value.code, caught.value.argument) == ("predicates_unsupported", "tag_column")


def test_universal_propositions_are_read_as_they_are() -> None:
    """One example a predicate of the whole dev file, counted in its text by itself."""
    file = DATA / "up_ewt_srl" / "dev.conllu.gz"
    if not file.exists():
        pytest.skip("the data of up_ewt_srl is not beside this checkout")
    with gzip.open(file, "rt", encoding="utf-8") as lines:
        rows = [line.rstrip("\n").split("\t") for line in lines if line[0].isdigit()]
    words = [cells for cells in rows if cells[0].isdecimal()]
    found = task_data("tag", PLAIN).read(file)
    assert len(found) == sum(len(cells) > 10 and cells[10] not in ("_", "") for cells in words) > 900
    wanted = Counter(role for cells in words for role in cells[11:] if role not in ("_", "", "V"))
    assert Counter(tag[2:] for e in found for tag in e.tags or () if tag != "O") == wanted
