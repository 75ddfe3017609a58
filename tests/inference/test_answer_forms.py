"""Files of answers in the form of a task's own field: what conlleval and SQuAD's script read."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import bertsmith as bs
import tiny_run
from bertsmith.cli.main import bertsmith
from bertsmith.errors import InputError
from bertsmith.inference.output import FORMATS, output_format
from bertsmith.tasks.question_answering.data import QuestionExample
from bertsmith.tasks.question_answering.model import AnswerPrediction
from bertsmith.tasks.registry import TASKS, get_task
from bertsmith.tasks.relation_extraction.data import RelationExample
from bertsmith.tasks.relation_extraction.model import RelationPrediction
from bertsmith.tasks.settings import TagSettings
from bertsmith.tasks.tagging.data import TagData
from bertsmith.tasks.tagging.model import TagPrediction

CONLL = "-DOCSTART- -X- O\n\nkaba NN B-PER\nlode VB O\n\nmigi NN B-LOC\n. . O\n"


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> bs.Model:
    folder = tmp_path_factory.mktemp("base")
    return tiny_run.run(tiny_run.make_shards(folder), folder / "bert", "train.max_steps=1")


@pytest.fixture(scope="module")
def tagger(base: bs.Model, tmp_path_factory: pytest.TempPathFactory) -> bs.Model:
    folder = tmp_path_factory.mktemp("tagger")
    (folder / "a.conll").write_text(CONLL)
    short = ["train.max_steps=1", "train.threads=1", "train.report_to=none"]
    return bs.finetune(
        "tag", base, folder / "run", train=folder / "a.conll", validation=folder / "a.conll", settings=short
    )


def predict(*arguments: object) -> Result:
    return CliRunner().invoke(bertsmith, ["predict", *map(str, arguments)])


def output_of(task: str, answered: Iterable[tuple[Any, Any]]) -> str:
    """Return the file of predictions in the task's format."""
    settings = get_task(task).settings_type()
    return "".join(get_task(task).part("report")({}, settings, None).write_output(answered))


def read_tags(file: Path, *, labeled: bool = True, **settings: object) -> list[Any]:
    return TagData(TagSettings(**settings), {}).read(file, labeled=labeled)


def conll_of(file: Path, tags: Sequence[Sequence[str]], **settings: object) -> str:
    """Return the file of predictions for a file, if these are the tags."""
    examples = read_tags(file, labeled=False, **settings)
    answers = [TagPrediction(list(e.words), list(t), []) for e, t in zip(examples, tags, strict=True)]
    return output_of("tag", zip(examples, answers, strict=True))


def test_the_columns_of_the_file_come_back_with_the_tag_behind(tmp_path: Path) -> None:
    file = tmp_path / "a.conll"
    tags = [["B-X", "O"], ["O", "O"]]
    file.write_text(CONLL)
    assert conll_of(file, tags) == "kaba NN B-PER B-X\nlode VB O O\n\nmigi NN B-LOC O\n. . O O\n\n"
    # gold and predicted are the last two, as conlleval reads them, wherever gold was
    assert conll_of(file, tags, tag_column="2").startswith("kaba NN B-PER NN B-X\n")
    file.write_text(CONLL.replace(" ", "\t"))
    assert conll_of(file, tags).startswith("kaba\tNN\tB-PER\tB-X\n")
    file.write_text("kaba\nlode\n\nmigi\n.\n")
    assert conll_of(file, tags) == "kaba B-X\nlode O\n\nmigi O\n. O\n\n"


def test_universal_columns_and_lists_have_their_tag_behind_too(tmp_path: Path) -> None:
    file = tmp_path / "a.conllu"
    file.write_text("# text = do\n1\tdo\tdo\tVERB\tVB\t_\t0\troot\t_\t_\n")
    assert conll_of(file, [["NOUN"]]) == "1\tdo\tdo\tVERB\tVB\t_\t0\troot\t_\t_\tVERB\tNOUN\n\n"
    file = tmp_path / "a.jsonl"
    file.write_text('{"words": ["New\\tYork", "is"], "tags": ["B-X", "O"]}\n{"words": "so far"}\n')
    assert conll_of(file, [["O", "O"], ["B-X", "O"]]) == "New York\tB-X\tO\nis\tO\tO\n\nso\tB-X\nfar\tO\n\n"
    file = tmp_path / "a.txt"
    file.write_text("kaba lode\n\nmigi\n")
    assert conll_of(file, [["O", "B-X"], [], ["O"]]) == "kaba\tO\nlode\tB-X\n\n\nmigi\tO\n\n"


def test_what_was_written_is_scored_as_the_model_is(tagger: bs.Model, tmp_path: Path) -> None:
    file, out = tmp_path / "a.conll", tmp_path / "out.conll"
    file.write_text(CONLL)
    done = predict(tagger.path, "--input", file, "--format", "conll")
    assert done.exit_code == 0, done.output
    assert predict(tagger.path, "--input", file, "--output", out).exit_code == 0
    assert out.read_text() == done.stdout
    assert tagger.predict_file(file, output=tmp_path / "again", format="conll").read_text() == done.stdout
    (gold, guess) = (read_tags(out, tag_column=column) for column in ("-2", "-1"))
    assert [e.tags for e in gold] == [e.tags for e in read_tags(file)]
    assert [list(e.tags or ()) for e in guess] == [a.tags for a in tagger.predict([e.words for e in gold])]


def test_answers_to_questions_are_one_object_by_id() -> None:
    examples = [QuestionExample("q", "kaba lode", (), f"a.json: {n}", n) for n in ("7", "北")]
    answers = [AnswerPrediction(answer=answer) for answer in ("kaba", 'lo"de')]
    text = output_of("answer", zip(examples, answers, strict=True))
    assert json.loads(text) == {"7": "kaba", "北": 'lo"de'}
    for number, code in ((None, "id_missing"), ("7", "duplicate_id")):
        some = [*examples, QuestionExample("q", "migi", (), "a.json: 9", number)]
        with pytest.raises(InputError) as caught:
            output_of("answer", zip(some, [*answers, answers[0]], strict=True))
        assert (caught.value.code, caught.value.location) == (code, "a.json: 9")


def test_relations_are_numbered_lines() -> None:
    examples = [
        RelationExample("kaba lode", (0, 4), (5, 9), None, "a", number) for number in ("7", None, None)
    ]
    answers = [RelationPrediction(label="Other"), None, RelationPrediction(label="Cause-Effect(e2,e1)")]
    text = output_of("relate", zip(examples, answers, strict=True))
    assert text == "7\tOther\n3\tCause-Effect(e2,e1)\n"


def test_a_task_declares_its_form_and_every_form_has_a_writer() -> None:
    names = [*FORMATS.values(), "table"]
    for task in map(get_task, TASKS):
        if (form := task.output_format) is not None:
            assert form.name not in names
            assert form.suffix not in FORMATS
            assert output_of(task.name, []) in ("", "{}\n")


def test_forms_are_offered_by_the_task_of_the_run(tagger: bs.Model, tmp_path: Path) -> None:
    assert "conll, semeval, squad" in predict("--help").stdout
    wrong = predict(tagger.path, "kaba", "--format", "squad")
    assert isinstance(wrong.exception, InputError)
    assert (wrong.exception.code, wrong.exception.argument) == ("unknown_format", "format")
    assert wrong.exception.hint == "use one of csv, json, table, conll"
    assert output_format("a.conll", None, get_task("tag").output_format) == "conll"
    with pytest.raises(InputError) as caught:
        output_format("a.conll", None, get_task("answer").output_format)
    assert (caught.value.code, caught.value.argument) == ("suffix_unsupported", "output")
    assert (caught.value.code, caught.value.location) == ("suffix_unsupported", "a.conll")
    with pytest.raises(InputError) as caught:
        tagger.predict_file([{"words": ["kaba"]}], format="conll")
    assert (caught.value.code, caught.value.argument) == ("output_missing", "format")
