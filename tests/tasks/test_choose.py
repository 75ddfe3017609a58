"""Multiple choice: what is read, the loss over each example's own choices, answers, scores, and the verbs."""

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
from bertsmith.artifacts.folder import read_folder
from bertsmith.cli.main import bertsmith
from bertsmith.errors import InputError
from bertsmith.models.family import build_encoder
from bertsmith.tasks.batching import Item, Outputs
from bertsmith.tasks.fitted_task import FittedTask
from bertsmith.tasks.multiple_choice import TASK
from bertsmith.tasks.multiple_choice.data import ChoiceExample, MultipleChoiceData
from bertsmith.tasks.multiple_choice.model import ChoicePrediction
from bertsmith.tasks.settings import ChooseSettings

SIZES = {
    "vocab_size": tiny_run.tokenizer().vocab_size, "hidden_size": 16, "num_hidden_layers": 2,
    "num_attention_heads": 2, "intermediate_size": 24, "max_position_embeddings": 64,
}  # fmt: skip


def example(context: str, question: str, *choices: str, label: int | None = None) -> ChoiceExample:
    return ChoiceExample(context, question, choices, label, "here")


def chooser(**settings: Any) -> FittedTask:
    return FittedTask.create(TASK, bs.ModelConfig(**SIZES), torch.Generator(), {}, ChooseSettings(**settings))


def data(**settings: Any) -> MultipleChoiceData:
    return MultipleChoiceData(ChooseSettings(**settings), {})


def said(item: Item) -> list[str]:
    tokens = tiny_run.tokenizer().tokens
    return [" ".join(tokens[i] for i in sequence.ids) for sequence in item.sequences]


# What is read


def test_a_question_stands_before_each_choice() -> None:
    items = chooser().encode(
        [
            example("kaba lode", "migi", "nufo", "pezu riba", label=1),
            example("kaba", "", "nufo", "pezu", "riba"),
            example("", "migi", "nufo", "pezu"),
        ],
        tiny_run.tokenizer(),
    )
    assert said(items[0]) == [
        "[CLS] kaba lode [SEP] migi nufo [SEP]",
        "[CLS] kaba lode [SEP] migi pezu riba [SEP]",
    ]
    assert said(items[1]) == [f"[CLS] kaba [SEP] {choice} [SEP]" for choice in ("nufo", "pezu", "riba")]
    assert said(items[2]) == ["[CLS] migi [SEP] nufo [SEP]", "[CLS] migi [SEP] pezu [SEP]"]
    assert items[0].sequences[1].segments.tolist() == [0] * 4 + [1] * 4
    assert [item.target for item in items] == [1, None, None]


def test_the_end_of_the_context_is_cut_and_choices_stay_whole() -> None:
    context, model = "kaba lode migi nufo", chooser(max_length=8)
    (item,) = model.encode([example(context, "pezu", "riba", "sode tugi")], tiny_run.tokenizer())
    assert said(item) == [
        "[CLS] kaba lode migi [SEP] pezu riba [SEP]",
        "[CLS] kaba lode [SEP] pezu sode tugi [SEP]",
    ]
    assert [(s.tokens, s.tokens_read) for s in item.sequences] == [(6, 5), (7, 5)]
    text = example(context, "pezu", "riba", "sode tugi", label=0)
    (answer,) = model.decoder.decode(Outputs([torch.zeros(2)]), [item], [text])
    assert (answer.tokens, answer.tokens_read) == (7, 5)
    assert model.text_stats(tiny_run.tokenizer(), [item]).to_dict()["cut"] == {"texts": 1, "tokens": 2}


def test_a_question_longer_than_the_model_is_cut_at_both_ends() -> None:
    (item,) = chooser(max_length=9).encode(
        [example("kaba lode migi nufo", "pezu riba", "sode tugi kade kagi", "kafo")], tiny_run.tokenizer()
    )
    assert said(item) == [
        "[CLS] kaba lode migi [SEP] pezu riba sode [SEP]", "[CLS] kaba lode migi [SEP] pezu riba kafo [SEP]",
    ]  # fmt: skip
    assert [sequence.tokens - sequence.tokens_read for sequence in item.sequences] == [4, 1]


# Loss


def test_logits_loss_and_gradients_are_the_references(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    undropped = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    torch.manual_seed(3)
    theirs = transformers.BertForMultipleChoice(
        transformers.BertConfig(**SIZES, **undropped, initializer_range=0.2)
    )
    theirs.save_pretrained(tmp_path)
    folder = read_folder(tmp_path)
    encoder = folder.encoder()
    fitted = FittedTask.create(TASK, encoder.config, torch.Generator(), {}, ChooseSettings())
    model = fitted.model
    for part, module in model.heads.items():
        folder.load_into(part, module)
    texts = [
        example("kaba lode migi", "nufo", "pezu", "riba sode", label=1),
        example("tugi", "", "kade", "kagi kafo kazu", "lode", label=0),
        example("lozu", "miba", "mide", "migi", "nuba nude", "pefo", label=3),
    ]
    batch = model.collate(fitted.encode(texts, tiny_run.tokenizer()))
    loss = model.loss(encoder, batch)
    total = loss.reduce(model.counts(batch), model.loss_weights)
    total.backward()
    mine = model.outputs(encoder, batch)
    assert [len(row) for row in mine] == [2, 3, 4]

    wanted = []
    for text, row in zip(texts, mine, strict=True):  # the reference takes one number of choices at a time
        (item,) = fitted.encode([text], tiny_run.tokenizer())
        packed = model.collate([item]).packed
        ids, segments = packed.pad(packed.tokens), packed.pad(packed.segments)
        mask = packed.pad(torch.ones_like(packed.tokens))
        out = theirs(ids[None], mask[None], segments[None], labels=torch.tensor([text.label]))
        torch.testing.assert_close(row, out.logits[0], atol=1e-5, rtol=0)
        wanted.append(out.loss)
    torch.stack(wanted).mean().backward()
    torch.testing.assert_close(total, torch.stack(wanted).mean(), atol=1e-5, rtol=0)
    assert int(loss.num_correct["task"]) == sum(
        int(row.argmax()) == t.label for row, t in zip(mine, texts, strict=True)
    )
    for ours, their in (
        (model.head.chooser.linear.weight, theirs.classifier.weight),
        (model.head.pooler.linear.weight, theirs.bert.pooler.dense.weight),
        (encoder.embeddings.token.weight, theirs.bert.embeddings.word_embeddings.weight),
    ):
        assert float(ours.grad.abs().max()) > 1e-4
        torch.testing.assert_close(ours.grad, their.grad, atol=1e-5, rtol=0)


def test_other_examples_in_a_batch_change_no_loss() -> None:
    """Of three choices, beside an example of eight: no softmax over what is not there."""
    fitted = chooser()
    model = fitted.model.eval()
    encoder = build_encoder(bs.ModelConfig(**SIZES), torch.Generator().manual_seed(0)).eval()
    texts = [
        example("kaba", "", "lode", "migi", "nufo", label=2),
        example("kaba", "", *tiny_run.WORDS[:8], label=5),
    ]
    items = fitted.encode(texts, tiny_run.tokenizer())
    alone = [model.loss(encoder, model.collate([item])).sums["task"] for item in items]
    together = model.loss(encoder, model.collate(items)).sums["task"]
    torch.testing.assert_close(together, alone[0] + alone[1])
    row = model.outputs(encoder, model.collate(items))[0]
    torch.testing.assert_close(alone[0], F.cross_entropy(row[None], torch.tensor([2])))


# Answers and scores


def test_an_answer_has_index_text_and_all_scores() -> None:
    texts = [example("kaba", "", "x", "y", "z"), example("kaba", "", "x", "y")]
    model = chooser()
    items = model.encode(
        [example("kaba", "", *("lode",) * len(t.choices)) for t in texts], tiny_run.tokenizer()
    )
    outputs = Outputs([torch.tensor([0.0, 1.0, 0.0]), torch.zeros(2)])
    first, second = model.decoder.decode(outputs, items, texts)
    e = 2.718281828459045
    assert first.scores == pytest.approx([1 / (e + 2), e / (e + 2), 1 / (e + 2)])
    assert (first.choice, first.text, first.score) == (1, "y", pytest.approx(e / (e + 2)))
    assert (second.choice, second.text, second.scores) == (0, "x", [0.5, 0.5])
    assert [(a.tokens, a.tokens_read) for a in (first, second)] == [(2, 2), (2, 2)]
    assert list(first.to_dict()) == ["choice", "text", "score", "scores", "tokens", "tokens_read"]


def test_accuracy_chance_and_a_baseline_that_never_looks() -> None:
    texts = [
        example("a", "", "x", "y", label=1),
        example("b", "", "x", "y", label=0),
        example("c", "", *"vwxyz", label=4),
        example("d", "", *"vwxyz", label=4),
    ]
    guesses = [ChoicePrediction(choice=i, tokens=2, tokens_read=2) for i in (1, 1, 4, 4)]
    metrics = chooser().metrics
    scores = metrics.compute(guesses, texts)
    assert scores.values == {"accuracy": 0.75, "examples": 4}
    assert scores.details["chance"] == pytest.approx((0.5 + 0.5 + 0.2 + 0.2) / 4)
    assert scores.details["choices"] == {
        "2": {"accuracy": 0.5, "examples": 2}, "5": {"accuracy": 1.0, "examples": 2},
    }  # fmt: skip
    assert metrics.baseline(texts, texts).values["accuracy"] == 0.75  # position 4, else the last


def test_the_overview_has_positions_contradictions_and_repeats() -> None:
    train = [
        ChoiceExample("a", "?", ("x", "y"), 0, "f:1"),
        ChoiceExample("a", "?", ("y", "x"), 0, "f:2"),  # another answer to f:1
        ChoiceExample("a", "other?", ("x", "y"), 1, "f:3"),  # another question about one context
        ChoiceExample("b", "?", ("x", "y", "z"), 2, "f:4"),
        ChoiceExample("b", "?", ("z", "x", "y"), 0, "f:5"),  # f:4 again
    ]
    validation = [
        ChoiceExample("c", "?", ("x", "y"), 1, "g:1"),
        ChoiceExample("d", "?", ("x", "y"), 1, "g:2"),
    ]
    found = chooser().report.data_summary(train, validation)
    assert found.details["positions"] == {"train": {"0": 3, "1": 1, "2": 1}, "validation": {"1": 2}}
    assert found.tables[0].title == "position of the right choice"
    assert found.tables[0].rows[0] == ["0", "3", "60.0%", "0", "0.0%"]
    position, repeat, contradiction = found.warnings
    assert "1 text occurs with different labels" in contradiction
    assert "'x' (f:1), 'y' (f:2)" in contradiction
    assert "all validation examples is at position 1" in position
    assert repeat.startswith("1 training example repeats an earlier one: f:5 is f:4")


def test_questions_about_one_context_stay_together() -> None:
    assert example("kaba", "?", "x", "y").group_key == example("kaba", "!", "z", "y").group_key
    assert example("", "kaba", "x", "y").group_key == "kaba"


def test_an_id_that_occurs_twice_is_refused_with_both_places(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    row = json.dumps({"id": "q", "context": "kaba", "choices": ["x", "y"], "label": 0})
    file.write_text(f"{row}\n{row}\n")
    with pytest.raises(InputError) as caught:
        data().read(file)
    assert (caught.value.code, caught.value.location) == ("duplicate_id", f"{file}:2")
    assert f"{file}:1" in caught.value.message


def test_a_row_is_written_as_it_is_read_again(tmp_path: Path) -> None:
    whole = ChoiceExample("kaba", "?", ("B", "1", "A"), 2, "here", "q7")
    file = tmp_path / "a.jsonl"
    file.write_text(json.dumps(data().to_row(whole)))
    (again,) = data().read(file)
    assert data().to_row(again) == data().to_row(whole)


def test_a_row_with_fewer_choices_than_columns_is_written_and_read(tmp_path: Path) -> None:
    """As a split writes the rows of a table whose last columns are empty."""
    reader = data(choices_column="A,B,C,D", label_column="key", first_index=1)
    whole = ChoiceExample("kaba", "?", ("x", "y"), 1, "here", "q7")
    row = reader.to_row(whole)
    assert row == {
        "id": "q7",
        "context": "kaba",
        "question": "?",
        "A": "x",
        "B": "y",
        "C": "",
        "D": "",
        "key": 2,
    }
    file = tmp_path / "a.jsonl"
    file.write_text(json.dumps(row))
    (again,) = reader.read(file)
    assert (again.choices, again.label) == (("x", "y"), 1)


# A model


def rows(number: int, seed: int) -> list[dict[str, Any]]:
    """The right one of two to five choices is one of four words."""
    draw = random.Random(seed)
    found = []
    for _ in range(number):
        choices = draw.sample(tiny_run.WORDS[4:16], draw.randint(2, 5))
        right = draw.randrange(len(choices))
        choices[right] = draw.choice(tiny_run.WORDS[:4])
        found.append(
            {"context": " ".join(draw.choices(tiny_run.WORDS, k=3)), "choices": choices, "label": right}
        )
    return found


@pytest.fixture(scope="module")
def run(base: bs.Model, tmp_path_factory: pytest.TempPathFactory) -> bs.Model:
    """A tiny chooser, fine-tuned on data in memory."""
    folder = tmp_path_factory.mktemp("choose")
    short = ["train.max_steps=40", "train.learning_rate=3e-3", "train.threads=1", "train.report_to=none"]
    return bs.finetune(
        "choose", base, folder / "run", train=rows(200, 0), validation=rows(40, 1), settings=short
    )


def test_answers_depend_on_nothing_but_their_own_example(run: bs.Model) -> None:
    texts = rows(30, 2)
    contexts, choices = [row["context"] for row in texts], [row["choices"] for row in texts]
    together = [one.to_dict() for one in run.predict(contexts, choices)]
    backwards = [one.to_dict() for one in run.predict(contexts[::-1], choices[::-1])][::-1]
    alone = [
        run.predict([context], [some])[0].to_dict() for context, some in zip(contexts, choices, strict=True)
    ]
    for one, other, third in zip(together, backwards, alone, strict=True):
        assert one["choice"] == other["choice"] == third["choice"]
        assert one["scores"] == pytest.approx(other["scores"], abs=1e-5)
        assert one["scores"] == pytest.approx(third["scores"], abs=1e-5)
        assert sum(one["scores"]) == pytest.approx(1)


def test_the_order_of_choices_changes_their_order_alone(run: bs.Model) -> None:
    (one,) = run.predict(["kaba lode"], [["kade", "kaba", "kagi"]])
    (other,) = run.predict(["kaba lode"], [["kaba", "kagi", "kade"]])
    assert [one.scores[i] for i in (1, 2, 0)] == pytest.approx(other.scores, abs=1e-5)
    assert one.text == other.text


def test_evaluating_is_predicting_and_counting(run: bs.Model) -> None:
    test = rows(50, 3)
    answers = [one.to_dict() for one in run.predict(test)]
    accuracy = sum(a["choice"] == row["label"] for a, row in zip(answers, test, strict=True)) / 50
    assert run.evaluate(test).accuracy == accuracy


def test_a_table_tuples_and_lists_say_the_same(run: bs.Model) -> None:
    test = rows(6, 4)
    contexts, choices = [row["context"] for row in test], [row["choices"] for row in test]
    columns = {"context": contexts, "choices": choices, "label": [row["label"] for row in test]}
    tuples = [(row["context"], row["choices"], row["label"]) for row in test]
    wanted = run.evaluate(test)
    assert run.evaluate(columns) == run.evaluate(tuples) == wanted
    assert run.predict(test) == run.predict(contexts, choices) == run.predict(contexts, choices, [""] * 6)


def test_blank_rows_and_wrong_values(run: bs.Model, caplog: pytest.LogCaptureFixture) -> None:
    _, empty = run.predict(["kaba", None], [["kaba", "lode"], None])
    assert any(message.startswith("1 text is empty and not predicted") for message in caplog.messages)
    assert (empty.choice, empty.scores, empty.empty) == (None, [], True)
    with pytest.raises(InputError) as caught:
        run.predict(["kaba"])
    assert (caught.value.code, caught.value.location) == ("choices_missing", "text 1")
    with pytest.raises(InputError) as caught:
        run.predict(["kaba"], [["lode"]])
    assert str(caught.value).startswith("text 1: ")
    with pytest.raises(InputError) as caught:
        run.predict(["kaba"], ["kaba"])
    assert (caught.value.code, caught.value.location) == ("choices_not_a_list", "text 1")


def test_the_reference_opens_the_run_and_says_the_same(run: bs.Model) -> None:
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoModelForMultipleChoice.from_pretrained(run.model_folder).eval()
    assert type(theirs).__name__ == "BertForMultipleChoice"
    read = transformers.AutoTokenizer.from_pretrained(run.model_folder)
    choices = ["kaba", "lode", "migi"]
    inputs = read(["kade kaba"] * 3, choices, return_tensors="pt", padding=True)
    with torch.no_grad():
        logits = theirs(**{name: tensor[None] for name, tensor in inputs.items()}).logits
    (answer,) = bs.load(run.path, precision="fp32").predict(["kade kaba"], [choices])
    assert answer.scores == pytest.approx(logits.softmax(-1)[0].tolist(), abs=1e-5)


def test_a_folder_of_the_reference_answers(run: bs.Model, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoModelForMultipleChoice.from_pretrained(run.model_folder)
    theirs.save_pretrained(tmp_path / "theirs")
    run.tokenizer.save(tmp_path / "theirs")
    texts = (["kade kaba"], [["kaba", "lode", "migi"]])
    foreign = bs.load(tmp_path / "theirs", precision="fp32")
    (other,), (one,) = (
        [one.to_dict() for one in foreign.predict(*texts)],
        [one.to_dict() for one in bs.load(run.path, precision="fp32").predict(*texts)],
    )
    assert other["scores"] == pytest.approx(one["scores"], abs=1e-6)


def test_the_verbs(run: bs.Model, tmp_path: Path) -> None:
    call = CliRunner()
    swag = tmp_path / "new.csv"
    swag.write_text("startphrase,ending0,ending1\nkaba lode,kaba,migi\nlode migi,nufo,lode\n")
    done = call.invoke(bertsmith, ["predict", str(run.path), "--input", str(swag), "--format", "csv"])
    assert done.exit_code == 0, done.output
    header, first, _ = done.stdout.splitlines()
    assert header == "startphrase,ending0,ending1,choice,prediction,score"
    assert first.split(",")[3:5] in (["0", "kaba"], ["1", "migi"])
    done = call.invoke(bertsmith, ["predict", str(run.path), "kaba lode\tkaba\tmigi"])
    assert json.loads(done.stdout)["text"] in ("kaba", "migi")
    done = call.invoke(bertsmith, ["predict", str(run.path), "kaba lode"])
    assert (done.exception.code, done.exception.location) == ("choices_missing", "text 1")
    test = tmp_path / "test.jsonl"
    test.write_text("".join(json.dumps(row) + "\n" for row in rows(10, 5)))
    done = call.invoke(bertsmith, ["evaluate", str(run.path), "--data", str(test), "--json"])
    assert json.loads(done.stdout)["accuracy"] == run.evaluate(test).accuracy


def test_a_folder_of_articles_is_a_file_of_training(run: bs.Model, tmp_path: Path) -> None:
    for i, row in enumerate(rows(12, 7)):
        choices = [*row["choices"], "lode", "migi"][:4]
        article = {"article": row["context"], "questions": ["kaba?"], "options": [choices], "answers": ["A"]}
        file = tmp_path / "race" / "high" / f"{i}.txt"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(article))
    short = ["train.max_steps=1", "train.threads=1", "train.report_to=none"]
    again = bs.finetune(
        "choose", run, tmp_path / "out", train=tmp_path / "race", validation_split=0.25, settings=short
    )
    assert (again.report["train_examples"], again.report["validation"]["examples"]) == (9, 3)
    assert again.evaluate(tmp_path / "race").examples == 12


def test_it_learns(run: bs.Model) -> None:
    assert run.evaluate(rows(100, 6)).accuracy > 0.6  # chance is 0.32
    assert run.report["baseline"]["accuracy"] < 0.5
