"""Relations: markers and their rows, windows, loss, answers, scores, and the verbs."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from click.testing import CliRunner

import bertsmith as bs
import tiny_run
from bertsmith.cli.main import bertsmith
from bertsmith.errors import InputError
from bertsmith.io.sources import to_table
from bertsmith.models.family import build_encoder
from bertsmith.tasks.batching import Item
from bertsmith.tasks.fitted_task import FittedTask
from bertsmith.tasks.relation_extraction import TASK
from bertsmith.tasks.relation_extraction.data import RelationData, RelationExample, parse_tagged_text
from bertsmith.tasks.relation_extraction.model import RelationItem, RelationPrediction, with_markers
from bertsmith.tasks.settings import RelateSettings
from bertsmith.tokenizer.tokenizer import Tokenizer

LABELS = ["Cause(e1,e2)", "Cause(e2,e1)", "Other", "Part(e1,e2)"]
TOKENS = [*tiny_run.TOKENS, "@", "#"]
SIZES = {
    "vocab_size": len(TOKENS), "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
    "intermediate_size": 24, "max_position_embeddings": 64,
}  # fmt: skip


def read_by() -> Tokenizer:
    """The tiny tokenizer, and both markers."""
    return Tokenizer.from_vocabulary(TOKENS, lowercase=True, max_length=64)


def example(text: str, relation: str | None = None, place: str = "here") -> RelationExample:
    return RelationExample(*parse_tagged_text(text, place), relation, place)


def relater(**settings: Any) -> FittedTask:
    examples = [example("<e1>a</e1> <e2>b</e2>", label) for label in LABELS]
    metadata = RelationData(RelateSettings(), {}).fit_metadata(examples, None)
    config = bs.ModelConfig(**SIZES)
    return FittedTask.create(TASK, config, torch.Generator(), metadata, RelateSettings(**settings))


def said(item: Item) -> str:
    return " ".join(TOKENS[i] for i in item.sequences[0].ids)


def at_rows(item: Item) -> list[str]:
    assert isinstance(item, RelationItem)
    return [TOKENS[item.sequences[0].ids[row]] for row in item.marker_indices]


# Markers


def test_the_opening_markers_are_found_by_offsets_not_by_ids() -> None:
    """The text has the markers' own characters, before and between."""
    text = "# @ kaba <e2>lode migi</e2> @ # nufo, <e1>pezu</e1> @"
    (item,) = relater().encode([example(text)], read_by())
    assert said(item) == "[CLS] # @ kaba # lode migi # @ # nufo [UNK] @ pezu @ @ [SEP]"
    assert at_rows(item) == ["@", "#"]
    assert item.marker_indices == (12, 4)
    assert item.target is None


@pytest.mark.parametrize(
    ("text", "marked", "head", "tail"),
    [
        ("<e1>kaba</e1> <e2>lode</e2>", "@ kaba @ # lode #", 0, 9),
        ("(<e1>kaba</e1>)<e2>lode</e2>.", "( @ kaba @ ) # lode # .", 2, 13),
        ("<e1>kaba <e2>lode</e2></e1>", "@ kaba # lode # @", 0, 7),
        ("x <e2> lode</e2>\n<e1>kaba</e1>", "x # lode #\n@ kaba @", 11, 2),
    ],
)
def test_markers_stand_between_blanks(text: str, marked: str, head: int, tail: int) -> None:
    whole, places = with_markers(example(text))
    assert " ".join(whole.split(" ")).replace("  ", " ") == marked
    assert [whole[at] for pair in places for at in pair] == ["@", "@", "#", "#"]
    if "  " not in whole:
        assert [pair[0] for pair in places] == [head, tail]


def test_of_a_long_text_the_window_around_both_entities_is_read() -> None:
    words = tiny_run.WORDS[:15]
    words[6], words[8] = f"<e1>{words[6]}</e1>", f"<e2>{words[8]}</e2>"
    text = example(" ".join(words), "Other")
    (item,) = relater(max_length=13).encode([text], read_by())
    assert said(item) == "[CLS] kazu loba @ lode @ logi # lofo # lozu miba [SEP]"
    assert at_rows(item) == ["@", "#"]
    assert (item.sequences[0].tokens, item.sequences[0].tokens_read) == (19, 11)
    (whole,) = relater().encode([text], read_by())
    assert (whole.sequences[0].tokens, whole.sequences[0].tokens_read) == (19, 19)


@pytest.mark.parametrize(
    ("at", "first", "last"), [((0, 1), "@", "kazu"), ((13, 14), "miba", "#"), ((0, 14), None, None)]
)
def test_windows_end_where_the_text_does(at: tuple[int, int], first: str | None, last: str | None) -> None:
    words = tiny_run.WORDS[:15]
    for i, tag in zip(at, ("e1", "e2"), strict=True):
        words[i] = f"<{tag}>{words[i]}</{tag}>"
    if first is None:
        with pytest.raises(InputError) as caught:
            relater(max_length=11).encode([example(" ".join(words))], read_by())
        assert (caught.value.code, caught.value.location) == ("entities_too_far_apart", "here")
        assert caught.value.argument == "max_length"
        return
    (item,) = relater(max_length=11).encode([example(" ".join(words))], read_by())
    tokens = said(item).split()
    assert (tokens[1], tokens[-2], len(tokens)) == (first, last, 11)
    assert at_rows(item) == ["@", "#"]


@pytest.mark.parametrize("name", ["bert-base-uncased", "bert-base-chinese", "roberta-base", "albert-base"])
@pytest.mark.parametrize(
    "text",
    [
        "(<e1>Anna</e1>)@home#<e2>Ben</e2>.",
        "<e1>Anna</e1><e2>Ben</e2>",
        "##ing @@ <e2>@Ben</e2> ## <e1>#Anna # x</e1> #",
        "\u4eca\u5929<e1>\u5929\u6c14</e1>\u5f88<e2>\u597d</e2>\u3002",
        " \n<e1> Anna </e1>\n\n<e2>B\u0301en</e2> ",
    ],
)
def test_the_rows_are_the_markers_with_every_kind_of_tokenizer(
    shared_data: Path, name: str, text: str
) -> None:
    tokenizer = Tokenizer.load(shared_data / "vocabs" / name)
    (item,) = relater().encode([example(text)], tokenizer)
    assert isinstance(item, RelationItem)
    whole, places = with_markers(example(text))
    (sequence,) = item.sequences
    assert sequence.offsets is not None
    for row, (opened, _), mark in zip(item.marker_indices, places, "@#", strict=True):
        start, end = sequence.offsets[row].tolist()
        assert (whole[start:end].strip(), whole[opened]) == (mark, mark)
        assert start <= opened < end


# Loss, answers, scores


def test_the_loss_reads_the_states_at_both_markers() -> None:
    fitted = relater()
    model = fitted.model.eval()
    encoder = build_encoder(bs.ModelConfig(**SIZES), torch.Generator().manual_seed(0)).eval()
    texts = [
        example("kaba <e1>lode</e1> migi <e2>nufo</e2>", "Cause(e1,e2)"),
        example("<e2>kaba</e2> <e1>lode</e1>", "Part(e1,e2)"),
    ]
    items = fitted.encode(texts, read_by())
    batch = model.collate(items)
    loss = model.loss(encoder, batch)
    linear = model.head.relater.linear
    wanted = torch.tensor(0.0)
    for item, label in zip(items, (0, 3), strict=True):
        hidden = encoder(model.collate([item]).packed)
        states = torch.cat(
            [hidden[item.marker_indices[0]], hidden[item.marker_indices[1]]]
        )  # head first, wherever it stands
        wanted = wanted + F.cross_entropy((linear.weight @ states + linear.bias)[None], torch.tensor([label]))
    torch.testing.assert_close(loss.sums["task"], wanted)
    assert loss.counts == {"task": 2}
    assert linear.weight.shape == (4, 32)


def test_scores_are_semevals_and_tacreds() -> None:
    truth = ["Cause(e1,e2)", "Cause(e1,e2)", "Cause(e2,e1)", "Part(e1,e2)", "Part(e1,e2)", "Other", "Other"]
    guess = ["Cause(e1,e2)", "Cause(e2,e1)", "Cause(e2,e1)", "Part(e1,e2)", "Other", "Part(e1,e2)", "Other"]
    texts = [example("<e1>a</e1> <e2>b</e2>", label) for label in truth]
    answers = [RelationPrediction(label=label, tokens=6, tokens_read=6) for label in guess]
    model = relater()
    scores = model.metrics.compute(answers, texts)
    assert scores.values["macro_f1"] == pytest.approx((2 / 3 + 1 / 2) / 2)
    assert scores.values["micro_f1"] == pytest.approx(6 / 10)
    assert scores.values["accuracy"] == pytest.approx(4 / 7)
    assert scores.details["relations"]["Cause"]["wrong_direction"] == 1
    assert scores.notes == ["answers of the right relation in the wrong direction, which are wrong: 1"]
    assert (model.metrics.primary_metric, scores.details["none_label"]) == ("macro_f1", "Other")
    with pytest.raises(InputError) as caught:
        model.with_settings(RelateSettings(none_label="Part(e1,e2)")).metrics.compute(answers, texts)
    assert (caught.value.code, caught.value.argument) == ("none_label_has_direction", "none_label")
    strange = [*texts[:-1], example("<e1>a</e1> <e2>b</e2>", "New(e1,e2)")]
    scores = model.metrics.compute(answers, strange)
    assert scores.notes[1:] == [
        "examples with a relation that the model never saw: 1 (New(e1,e2)); each counts as wrong"
    ]
    assert scores.values["accuracy"] == pytest.approx(3 / 7)


def test_which_label_means_no_relation() -> None:
    def learnt(*labels: str, **settings: Any) -> dict[str, Any]:
        examples = [example("<e1>a</e1> <e2>b</e2>", label, f"f:{i}") for i, label in enumerate(labels)]
        return dict(RelationData(RelateSettings(**settings), {}).fit_metadata(examples, None))

    assert learnt("b", "no_relation")["none"] == "no_relation"
    assert learnt("b", "a") == {"labels": ["a", "b"], "numbered": False, "none": None}
    assert learnt("b", "Other", none_label="b")["none"] == "b"
    with pytest.raises(InputError) as caught:
        learnt("b", "a", none_label="c")
    assert (caught.value.code, caught.value.argument) == ("unknown_label", "none_label")
    with pytest.raises(InputError) as caught:
        learnt("a", "a")
    assert (caught.value.code, caught.value.location) == ("single_label", "f:0")


def test_relations_of_another_model_are_refused() -> None:
    row = {"text": "<e1>a</e1> <e2>b</e2>", "relation": "per:title"}
    with pytest.raises(InputError) as caught:
        relater().data.read(to_table([row], "data"))
    assert (caught.value.code, caught.value.location) == ("unknown_label", "data (in memory):1")


def test_the_overview_has_labels_contradictions_and_repeats() -> None:
    text = "<e1>kaba</e1> <e2>lode</e2> {}"
    train = [
        example(text.format(1), "a", "f:1"),
        example(text.format(1), "b", "f:2"),
        example("<e2>kaba</e2> <e1>lode</e1> 1", "b", "f:3"),  # the same text, other entities
        example(text.format(2), "b", "f:4"),
        example(text.format(2), "b", "f:5"),
    ]
    metadata = {"labels": ["a", "b"]}
    fitted = FittedTask.create(TASK, bs.ModelConfig(**SIZES), torch.Generator(), metadata, RelateSettings())
    found = fitted.report.data_summary(train, [example(text.format(3), "a", "g:1")])
    assert found.details["labels"]["train"] == {"a": 1, "b": 4}
    assert any(
        "1 text occurs with different labels" in said and "'a' (f:1), 'b' (f:2)" in said
        for said in found.warnings
    )
    assert any(
        said.startswith("1 training example repeats an earlier one: f:5 is f:4") for said in found.warnings
    )
    assert train[0].group_key == train[2].group_key


def test_a_number_that_occurs_twice_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_text('1\t"<e1>a</e1> <e2>b</e2>"\nOther\n\n' * 2)
    with pytest.raises(InputError) as caught:
        RelationData(RelateSettings(), {}).read(file)
    assert (caught.value.code, caught.value.location) == ("duplicate_id", f"{file}:4")
    assert f"{file}:1" in caught.value.message


def test_a_row_is_written_as_it_is_read_again(tmp_path: Path) -> None:
    whole = RelationExample("kaba lode", (0, 4), (5, 9), "r", "here", "7")
    file = tmp_path / "a.jsonl"
    data = RelationData(RelateSettings(), {})
    file.write_text(json.dumps(data.to_row(whole)))
    (again,) = data.read(file)
    assert data.to_row(again) == data.to_row(whole)


# A model


def rows(number: int, seed: int) -> list[dict[str, Any]]:
    """The relation is that of the head's word: its first syllable, and whether it stands before the tail."""
    draw = random.Random(seed)
    found = []
    for _ in range(number):
        words = draw.choices(tiny_run.WORDS, k=draw.randint(4, 9))
        one, two = sorted(draw.sample(range(len(words)), 2))
        head, tail = (one, two) if draw.random() < 0.5 else (two, one)
        words[head] = draw.choice(tiny_run.WORDS[:10])
        name = {"ka": "Part", "lo": "Other"}[words[head][:2]]
        label = name if name == "Other" else f"{name}({'e1,e2' if head < tail else 'e2,e1'})"
        marked = [
            f"<e1>{w}</e1>" if i == head else f"<e2>{w}</e2>" if i == tail else w for i, w in enumerate(words)
        ]
        found.append({"text": " ".join(marked), "relation": label})
    return found


@pytest.fixture(scope="module")
def run(base: bs.Model, tmp_path_factory: pytest.TempPathFactory) -> bs.Model:
    """A tiny model, fine-tuned on data in memory; its tokenizer has neither @ nor #: both are unknown to it."""
    folder = tmp_path_factory.mktemp("relate")
    short = [
        "train.max_steps=120",
        "train.learning_rate=3e-3",
        "train.threads=1",
        "train.precision=fp32",
        "train.report_to=none",
    ]
    return bs.finetune(
        "relate", base, folder / "run", train=rows(300, 0), validation=rows(60, 1), settings=short
    )


def test_answers_depend_on_nothing_but_their_own_example(run: bs.Model) -> None:
    texts = [row["text"] for row in rows(30, 2)]
    together, backwards = (
        [one.to_dict() for one in run.predict(texts)],
        [one.to_dict() for one in run.predict(texts[::-1])][::-1],
    )
    alone = [run.predict([text])[0].to_dict() for text in texts]
    for one, other, third in zip(together, backwards, alone, strict=True):
        assert one["label"] == other["label"] == third["label"]
        assert list(one["scores"].values()) == pytest.approx(list(other["scores"].values()), abs=1e-5)
        assert list(one["scores"].values()) == pytest.approx(list(third["scores"].values()), abs=1e-5)
        assert one["score"] == one["scores"][one["label"]] == max(one["scores"].values())


def test_evaluating_is_predicting_and_counting(run: bs.Model) -> None:
    test = rows(50, 3)
    answers = [one.to_dict() for one in run.predict(test)]
    accuracy = sum(a["label"] == row["relation"] for a, row in zip(answers, test, strict=True)) / 50
    assert run.evaluate(test).accuracy == accuracy


def test_tags_and_spans_say_the_same(run: bs.Model) -> None:
    test = rows(6, 4)
    plain = [parse_tagged_text(row["text"], "here") for row in test]
    texts, heads, tails = zip(*plain, strict=True)
    wanted = run.predict([row["text"] for row in test])
    assert run.predict(list(texts), list(heads), list(tails)) == wanted
    words = [text.split() for text in texts]
    spans = [
        [
            [len(text[: span[0]].split()), len(text[: span[0]].split()) + 1]
            for text, span in zip(texts, some, strict=True)
        ]
        for some in (heads, tails)
    ]
    assert run.predict(words, *spans) == wanted
    tuples = [(*row, label["relation"]) for row, label in zip(plain, test, strict=True)]
    columns = {"text": [row["text"] for row in test], "relation": [row["relation"] for row in test]}
    assert run.evaluate(tuples) == run.evaluate(columns) == run.evaluate(test)


def test_wrong_inputs_are_refused(run: bs.Model, caplog: pytest.LogCaptureFixture) -> None:
    _, empty = run.predict(["<e1>kaba</e1> <e2>lode</e2>", None])
    assert any(message.startswith("1 text is empty and not predicted") for message in caplog.messages)
    assert (empty.label, empty.empty) == (None, True)
    with pytest.raises(InputError) as caught:
        run.predict(["kaba lode"])
    assert str(caught.value).startswith("text 1: ")
    with pytest.raises(InputError) as caught:
        run.predict([b"kaba"])
    assert (caught.value.code, caught.value.location) == ("not_a_string", "text 1")
    with pytest.raises(InputError) as caught:
        run.predict(["kaba"], [[0, 4]])
    assert (caught.value.code, caught.value.argument) == ("head_without_tail", "tail")


def test_the_folder_is_loaded_again_without_its_record(run: bs.Model, tmp_path: Path) -> None:
    """The class in config.json says what the head is; labels are there, too."""
    folder = run.save(tmp_path / "copy")
    (folder / "bertsmith.json").unlink()
    text = ["<e1>kaba</e1> migi <e2>lode</e2>"]
    assert bs.load(folder, precision="fp32").predict(text) == run.predict(text)
    config = json.loads((folder / "config.json").read_text())
    assert config["architectures"] == ["BertForEntityPairClassification"]
    assert sorted(config["label2id"]) == ["Other", "Part(e1,e2)", "Part(e2,e1)"]


def test_the_verbs(run: bs.Model, tmp_path: Path) -> None:
    call = CliRunner()
    text = "<e1>kaba</e1> migi <e2>lode</e2>"
    done = call.invoke(bertsmith, ["predict", str(run.path), text])
    answer = json.loads(done.stdout)
    assert (answer["text"], answer["label"]) == (text, run.predict([text])[0].label)
    blocks = tmp_path / "test.txt"
    test = rows(10, 5)
    blocks.write_text(
        "".join(f'{i}\t"{r["text"]}"\n{r["relation"]}\nComment:\n\n' for i, r in enumerate(test))
    )
    done = call.invoke(bertsmith, ["evaluate", str(run.path), "--data", str(blocks), "--json"])
    assert json.loads(done.stdout)["macro_f1"] == run.evaluate(test).macro_f1
    done = call.invoke(bertsmith, ["predict", str(run.path), "--input", str(blocks), "--format", "csv"])
    header, first, *_ = done.stdout.splitlines()
    assert header == "line,id,text,prediction,score"
    assert first.startswith(f"1,0,{test[0]['text']},")


def test_it_learns(run: bs.Model) -> None:
    assert run.report["decided_by"] == "macro_f1"
    assert run.evaluate(rows(100, 6)).accuracy > 0.7  # always the most frequent: 0.5
