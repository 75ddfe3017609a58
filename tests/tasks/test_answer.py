"""Question answering: files, windows and their targets, the loss, the best span, scores."""

from __future__ import annotations

import json
import logging
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from click.testing import CliRunner
from safetensors.torch import load_file
from torch import Tensor

import bertsmith as bs
import tiny_run
from bertsmith.artifacts.folder import read_folder
from bertsmith.cli.main import bertsmith
from bertsmith.errors import InputError
from bertsmith.tasks.fitted_task import FittedTask
from bertsmith.tasks.question_answering import TASK
from bertsmith.tasks.question_answering.data import QuestionExample, ReferenceAnswer
from bertsmith.tasks.question_answering.model import AnswerPrediction
from bertsmith.tasks.settings import AnswerSettings
from squad_data import PASSAGE, answerer, asked, data, decode, item_of, logits_of, read, squad, written


def example(answer: str | None = None, context: str = PASSAGE) -> QuestionExample:
    gold = (ReferenceAnswer(answer, context.index(answer)),) if answer else ()
    return QuestionExample("kaba lode", context, gold, "here")


# Files


def test_every_form_of_file_holds_the_same_examples(tmp_path: Path) -> None:
    row = {"id": "q", "question": "kaba?", "context": PASSAGE}
    answers = [{"text": "migi nufo", "answer_start": 10}]
    columns = {"text": ["migi nufo"], "answer_start": [10]}
    forms = {
        "a.json": squad({"id": "q", "question": "kaba?", "answers": answers}),
        "a.json.gz": squad({"id": "q", "question": "kaba?", "answers": answers}),
        "b.json": [{**row, "answer": "migi nufo", "start": 10}],
        "c.jsonl": json.dumps({**row, "answer": "migi nufo", "start": 10}) + "\n\n",
        "d.jsonl": json.dumps({**row, "answers": columns}),
        "e.csv": f"id,question,context,answer,start\nq,kaba?,{PASSAGE},migi nufo,10\n",
        "f.tsv": f"id\tquestion\tcontext\tanswer\tstart\nq\tkaba?\t{PASSAGE}\tmigi nufo\t10\n",
    }
    for name, document in forms.items():
        (found,) = read(written(tmp_path, document, name))
        assert (found.question, found.context, found.id) == ("kaba?", PASSAGE, "q")
        assert [(gold.text, gold.start, gold.moved) for gold in found.answers] == [("migi nufo", 10, False)]
        again = json.dumps(data().to_row(found))
        (same,) = read(written(tmp_path, again, "again.jsonl"))
        assert (same.question, same.context, same.answers, same.id) == (
            found.question, found.context, found.answers, found.id,
        )  # fmt: skip


FIRST = r"a\.json: data\[0\]\.paragraphs\[0\]\.qas\[0\]"
QUESTION = ": data[0].paragraphs[0].qas[{}]"
COLUMNS = {"text": ["kaba"], "answer_start": []}
ROW = {"question": "?", "context": "kaba", "answer": "kaba"}


@pytest.mark.parametrize(
    ("name", "document", "location"),
    [
        ("a.json", '{"data": [{"paragraphs": [{"con', r"a\.json: "),
        ("a.json", "", r"a\.json: "),
        ("a.json", "[" * 100_000, r"a\.json: "),
        ("a.json", '"text"', r"a\.json: "),
        ("a.json", {"version": "1.1"}, r"a\.json: "),
        ("a.json", squad({"answers": []}), FIRST + ": "),
        ("a.json", squad({"question": ["?"]}), FIRST + r"\.question: "),
        ("a.json", squad(asked("", 0)), FIRST + r"\.answers\[0\]\.text: "),
        ("a.json", squad(asked("kaba", -1)), FIRST + r"\.answers\[0\]\.answer_start: "),
        ("a.json", [ROW, {"question": "?"}], r"a\.json: \[1\]: "),
        ("b.jsonl", json.dumps(ROW) + '\n{"question": "?"}', r"b\.jsonl:2: "),
        ("b.jsonl", '{"question": "?"\n', r"b\.jsonl:1:\d+: "),
        ("b.jsonl", json.dumps({**ROW, "answers": COLUMNS}), r"b\.jsonl:1: "),
        ("c.csv", "question,context,answer,start\n?,kaba,kaba,x\n", r"c\.csv:2: "),
        ("c.csv", "question,answer\n?,kaba\n", r"c\.csv:2: "),
    ],
)
def test_faults_of_files_have_a_location(tmp_path: Path, name: str, document: Any, location: str) -> None:
    with pytest.raises(InputError, match=location):
        read(written(tmp_path, document, name))


@pytest.mark.parametrize(
    ("document", "code", "location"),
    [
        ("[]", "no_examples", ""),
        ('{"data": []}', "no_examples", ""),
        (squad({"question": 3}), "no_answers", ""),
        (squad(asked("zzz", 4)), "answer_not_in_passage", QUESTION.format(0)),
        (squad(asked("kaba", 0, is_impossible=True)), "impossible_with_answer", QUESTION.format(0)),
        (squad(asked("kaba", 0), asked("kaba", 0)), "duplicate_id", QUESTION.format(1)),
        (squad(asked("kaba", 0), context=" \n"), "empty_text", QUESTION.format(0)),
        (squad(asked("kaba", 0, question="")), "empty_text", QUESTION.format(0)),
    ],
)
def test_faults_of_questions_have_a_code_and_a_location(
    tmp_path: Path, document: Any, code: str, location: str
) -> None:
    file = written(tmp_path, document, "a.json")
    with pytest.raises(InputError) as caught:
        read(file)
    assert (caught.value.code, caught.value.location) == (code, f"{file}{location}")


def test_a_json_that_is_not_utf8_or_not_bounded_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.json").write_bytes(b'{"data": "\xff"}')
    with pytest.raises(InputError) as caught:
        read(tmp_path / "a.json")
    assert caught.value.code == "not_json"
    assert str(caught.value.location).endswith("a.json")
    monkeypatch.setattr("bertsmith.io.jsonl._MAX_JSON_BYTES", 100)
    with pytest.raises(InputError) as caught:
        read(written(tmp_path, squad(asked("kaba", 0)), "b.json.gz"))
    assert caught.value.code == "file_too_large"


def test_a_byte_order_mark_is_no_part_of_json(tmp_path: Path) -> None:
    assert len(read(written(tmp_path, "\ufeff" + json.dumps(squad(asked("kaba", 0)))))) == 1


@pytest.mark.parametrize(
    ("given", "start"), [(5, 5), (4, 5), (6, 5), (7, 5), (12, 15), (16, 15), (500, 15), (None, 5)]
)
def test_an_answer_elsewhere_is_found_at_the_nearest_place(
    tmp_path: Path, given: int | None, start: int
) -> None:
    answers = [{"text": "kaba", "answer_start": given}]
    row = {"question": "?", "context": "lode kaba lode kaba lode", "answers": answers}
    found = read(written(tmp_path, [row]))
    assert found[0].answers == (ReferenceAnswer("kaba", start, given != start),)
    assert [one.locations for one in data().read_warnings(found)] == (
        [[found[0].location]] if given != start else []
    )


def test_without_labels_answers_are_not_looked_at(tmp_path: Path) -> None:
    (found,) = read(written(tmp_path, squad(asked("zzz", 4, is_impossible=True))), labeled=False)
    assert found.answers == ()


def test_questions_about_one_passage_stay_together() -> None:
    assert example("migi").group_key == example("lode").group_key == PASSAGE
    assert example("migi").stratify_key is None


# Windows and targets


def test_windows_hold_the_question_and_point_at_the_answer_or_at_their_first_token() -> None:
    tokenizer = tiny_run.tokenizer()
    asked_in = [example("riba sode"), example("nude"), example()]
    items = answerer(max_length=11, stride=3).encode(asked_in, tokenizer)
    assert [item.example for item in items] == [0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2]
    assert [item.text_start for item in items] == [0, 3, 6, 9] * 3
    tokens = [[tokenizer.tokens[i] for i in item.sequences[0].ids] for item in items]
    assert " ".join(tokens[1]) == "[CLS] kaba lode [SEP] nufo pezu riba sode tugi kade [SEP]"
    assert items[1].sequences[0].segments.tolist() == [0] * 4 + [1] * 7
    assert [item.target for item in items[:4]] == [(0, 0), (6, 7), (0, 0), (0, 0)]
    assert [item.target for item in items[4:8]] == [(0, 0), (0, 0), (9, 9), (6, 6)]
    assert [item.target for item in items[8:]] == [None] * 4


@pytest.mark.parametrize(("answer", "tokens"), [("aba lo", "kaba lode"), ("de.", "nude ."), ("igi", "migi")])
def test_an_answer_within_words_is_all_tokens_that_it_touches(answer: str, tokens: str) -> None:
    tokenizer = tiny_run.tokenizer()
    (item,) = answerer().encode([example(answer)], tokenizer)
    start, end = item.target
    ids = item.sequences[0].ids[start : end + 1]
    assert [tokenizer.tokens[i] for i in ids] == tokens.split()


def test_a_long_question_is_cut_and_that_is_counted() -> None:
    model = answerer(max_length=12, max_query_length=2)
    whole = QuestionExample("kaba lode migi nufo", PASSAGE, (), "here")
    items = model.encode([whole], tiny_run.tokenizer())
    outputs = [torch.zeros(len(item.sequences[0].ids), 2) for item in items]
    (answer,) = decode(model, outputs, items, [whole])
    assert (answer.tokens, answer.tokens_read) == (4 + 13, 2 + 13)
    assert model.text_stats(tiny_run.tokenizer(), items).to_dict()["cut"] == {
        "texts": 1,
        "tokens": 2,
        "answers": 0,
    }


def test_a_passage_that_does_not_fit_beside_its_question_is_refused() -> None:
    whole = QuestionExample("kaba " * 60, PASSAGE, (), "file: [3]")
    with pytest.raises(InputError) as caught:
        answerer(max_length=20).encode([whole], tiny_run.tokenizer())
    assert (caught.value.code, caught.value.location) == ("other_text_too_long", "file: [3]")


@pytest.mark.parametrize(
    ("context", "code"), [("\u200b", "passage_without_tokens"), ("kaba \u200b", "answer_without_tokens")]
)
def test_what_has_no_token_is_refused(context: str, code: str) -> None:
    whole = QuestionExample("kaba", context, (ReferenceAnswer("\u200b", context.index("\u200b")),), "here")
    with pytest.raises(InputError) as caught:
        answerer().encode([whole], tiny_run.tokenizer())
    assert (caught.value.code, caught.value.location) == (code, "here")


# Loss


def test_logits_loss_and_gradients_are_the_references(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    sizes = {
        "vocab_size": tiny_run.tokenizer().vocab_size, "hidden_size": 16, "num_hidden_layers": 2,
        "num_attention_heads": 2, "intermediate_size": 24, "max_position_embeddings": 64,
        "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
    }  # fmt: skip
    torch.manual_seed(3)
    theirs = transformers.BertForQuestionAnswering(transformers.BertConfig(**sizes, initializer_range=0.2))
    theirs.bert.save_pretrained(tmp_path)
    encoder = read_folder(tmp_path).encoder()
    fitted = FittedTask.create(TASK, encoder.config, torch.Generator(), {}, AnswerSettings())
    model = fitted.model
    model.head.span.load_state_dict(theirs.qa_outputs.state_dict())

    texts = [example("riba sode"), example("kaba"), example("migi", "lode migi."), example("miba nude.")]
    items = fitted.encode(texts, tiny_run.tokenizer())
    assert len(items) == len(texts)
    batch = model.collate(items)
    loss = model.loss(encoder, batch)
    total = loss.reduce(model.counts(batch), model.loss_weights)
    total.backward()

    longest = max(item.size for item in items)
    rows = [item.sequences[0] for item in items]
    ids, segments, mask = (
        torch.tensor(np.stack([np.pad(row, (0, longest - len(row))) for row in some])).long()
        for some in (
            [row.ids for row in rows], [row.segments for row in rows], [np.ones_like(row.ids) for row in rows],
        )
    )  # fmt: skip
    starts, ends = torch.tensor([item.target for item in items]).T
    found = theirs(ids, mask, token_type_ids=segments, start_positions=starts, end_positions=ends)
    for logits, row, start, end in zip(
        model.outputs(encoder, batch), rows, found.start_logits, found.end_logits, strict=True
    ):
        torch.testing.assert_close(logits[:, 0], start[: len(row.ids)], atol=1e-5, rtol=0)
        torch.testing.assert_close(logits[:, 1], end[: len(row.ids)], atol=1e-5, rtol=0)

    # The reference lets padding take part in the softmax; by itself its loss is ours on windows of one length.
    alone = [
        theirs(
            ids[i : i + 1, : len(row.ids)],
            token_type_ids=segments[i : i + 1, : len(row.ids)],
            start_positions=starts[i : i + 1],
            end_positions=ends[i : i + 1],
        ).loss
        for i, row in enumerate(rows)
    ]
    wanted = torch.stack(alone).mean()
    wanted.backward()
    torch.testing.assert_close(total, wanted, atol=1e-5, rtol=0)
    pairs = [
        (model.head.span.weight, theirs.qa_outputs.weight),
        (model.head.span.bias, theirs.qa_outputs.bias),
        (encoder.embeddings.token.weight, theirs.bert.embeddings.word_embeddings.weight),
        (encoder.embeddings.norm.weight, theirs.bert.embeddings.LayerNorm.weight),
    ]
    for mine, their in pairs:
        torch.testing.assert_close(mine.grad, their.grad, atol=1e-5, rtol=0)


# The best span


def test_a_layer_before_the_two_vectors_is_trained_kept_and_asked(base: bs.Model, tmp_path: Path) -> None:
    """Off, the head is S and E alone; on, the logits are those of its formula, by the folder's own tensors."""
    rows = [asked("migi nufo", 10), asked("kaba", 0), asked("sode", 30)]
    file = written(tmp_path, squad(*({**row, "id": str(i)} for i, row in enumerate(rows))))
    few = {
        "settings": ["train.max_steps=4", "train.threads=1", "train.precision=fp32"],
        "train": file,
        "validation": file,
    }
    plain = bs.finetune("answer", base, tmp_path / "plain", **few)
    assert plain.folder.parts == {"encoder", "span"}
    assert plain.folder.architecture == "BertForQuestionAnswering"

    made = bs.finetune("answer", base, tmp_path / "more", transform=True, **few)
    assert made.folder.parts == {"encoder", "span", "span_transform"}
    assert made.info()["parameters"] == sum(tensor.numel() for tensor in made.folder.weights().values())
    again = bs.load(tmp_path / "more")
    assert again.predict(["kaba?"], [PASSAGE]) == made.predict(["kaba?"], [PASSAGE])
    weights = load_file(made.model_folder / "model.safetensors")
    (item,) = again.task.encode([example()], again.tokenizer)
    batch = again.task.model.collate([item])
    with torch.no_grad():
        hidden = again.encoder(batch.packed)
        inner = F.gelu(hidden @ weights["qa_transform.weight"].T + weights["qa_transform.bias"])
        wanted = inner @ weights["qa_outputs.weight"].T + weights["qa_outputs.bias"]
        torch.testing.assert_close(again.task.model.logits(again.encoder, batch), wanted, atol=1e-6, rtol=0)
    assert weights["qa_transform.bias"].abs().sum() > 0  # it began at 0: it was trained
    with pytest.raises(InputError) as caught:
        made.predict(["kaba?"], [PASSAGE], transform=False)
    assert (caught.value.code, caught.value.argument) == ("fixed_setting_changed", "transform")


def test_the_temperature() -> None:
    context = "天气预报显示今天最高温度 37 摄氏度"
    units = [(0, 2), (2, 4), (4, 6), (6, 8), (8, 12), (13, 15), (16, 19)]
    logits = logits_of([0.01, 0.01, 0.01, 0.04, 0.10, 0.80, 0.03], [0.01, 0.01, 0.01, 0.03, 0.04, 0.10, 0.80])
    asked_in = [QuestionExample("今天的最高温度是多少", context, (), "here")]
    (answer,) = decode(answerer(), [logits], [item_of(units)], asked_in)
    assert (answer.answer, answer.start, answer.end) == ("37 摄氏度", 13, 19)
    assert answer.score == pytest.approx(0.64, abs=1e-6)
    assert answer.n_best[0] == {key: getattr(answer, key) for key in ("answer", "start", "end", "score")}
    assert len(answer.n_best) == 20
    assert all(context[row["start"] : row["end"]] == row["answer"] for row in answer.n_best)


def test_an_end_before_the_start_is_no_answer() -> None:
    logits = logits_of([0.1, 0.2, 0.7], [0.6, 0.3, 0.1])
    (answer,) = decode(
        answerer(), [logits], [item_of([(0, 1), (2, 3), (4, 5)])], [QuestionExample("q", "a b c", (), "here")]
    )
    assert (answer.answer, answer.score) == ("c", pytest.approx(0.07))


def test_an_answer_is_no_longer_than_allowed_and_never_outside_of_the_passage() -> None:
    logits = logits_of([0.9, 0.06, 0.04], [0.01, 0.01, 0.98])
    logits[:3] = 50.0  # [CLS], question, [SEP]
    units, asked_in = [(0, 1), (2, 3), (4, 5)], [QuestionExample("q", "a b c", (), "here")]
    assert decode(answerer(max_answer_length=3), [logits], [item_of(units)], asked_in)[0].answer == "a b c"
    assert decode(answerer(max_answer_length=2), [logits], [item_of(units)], asked_in)[0].answer == "b c"


def test_blanks_that_tokens_hold_are_no_part_of_answers_and_words_are_listed_once() -> None:
    context = "so  so on "
    units = [(0, 2), (2, 6), (6, 9), (9, 10)]
    logits = logits_of([0.1, 0.2, 0.6, 0.1], [0.1, 0.2, 0.1, 0.6])
    (answer,) = decode(answerer(), [logits], [item_of(units)], [QuestionExample("q", context, (), "here")])
    assert (answer.answer, answer.start, answer.end) == ("on", 7, 9)
    said = [row["answer"] for row in answer.n_best]
    assert len(said) == len(set(said))
    assert {"so", "so  so", "so on"} <= set(said)
    assert all(context[row["start"] : row["end"]] == row["answer"] for row in answer.n_best)


def test_an_answer_is_never_blank() -> None:
    logits = logits_of([0.9, 0.1], [0.9, 0.1])
    (answer,) = decode(
        answerer(n_best=1), [logits], [item_of([(0, 1), (1, 2)])], [QuestionExample("q", "\nb", (), "here")]
    )
    assert (answer.answer, answer.start, answer.end) == ("b", 1, 2)


def as_the_release(
    logits: Sequence[Tensor], firsts: Sequence[int], sizes: Sequence[int], longest: int
) -> list[tuple[float, int, int]]:
    """run_squad.py's write_predictions for one question, its beam as wide as a window: logit, first and last token
    of the passage, the best first."""
    found = []
    for number, (rows, first, size) in enumerate(zip(logits, firsts, sizes, strict=True)):
        for start in range(size):
            token = first + start
            best, best_number = None, None
            for other, (begin, length) in enumerate(zip(firsts, sizes, strict=True)):
                last = begin + length - 1
                if begin <= token <= last:
                    score = min(token - begin, last - token) + 0.01 * length
                    if best is None or score > best:
                        best, best_number = score, other
            if best_number != number:
                continue
            found += [
                (float(rows[3 + start, 0] + rows[3 + end, 1]), token, first + end)
                for end in range(start, size)
                if end - start + 1 <= longest
            ]
    return sorted(found, reverse=True)


@pytest.mark.parametrize("seed", range(8))
def test_spans_over_windows_are_ranked_as_by_the_release(seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    firsts, sizes = [0, 4, 8, 12], [9, 9, 9, 5]
    context = " ".join(f"w{i:02}" for i in range(17))
    spans = [(4 * i, 4 * i + 3) for i in range(17)]
    items = [item_of(spans[f : f + n], 0, f) for f, n in zip(firsts, sizes, strict=True)]
    logits = [torch.randn(n + 4, 2, generator=draw) for n in sizes]
    wanted = as_the_release(logits, firsts, sizes, 4)
    (answer,) = decode(
        answerer(stride=4, max_answer_length=4), logits, items, [QuestionExample("q", context, (), "here")]
    )
    assert [(row["start"], row["end"]) for row in answer.n_best] == [
        (4 * first, 4 * last + 3) for _, first, last in wanted[:20]
    ]


def test_examples_keep_their_order_and_each_has_an_answer() -> None:
    texts = [example(), example(context="lode migi"), example(context="nufo")]
    model = answerer(max_length=12, stride=2)
    items = model.encode(texts, tiny_run.tokenizer())
    draw = torch.Generator().manual_seed(0)
    outputs = [torch.randn(len(item.sequences[0].ids), 2, generator=draw) for item in items]
    answers = decode(model, outputs, items, texts)
    assert len(answers) == 3
    for answer, text in zip(answers, texts, strict=True):
        assert answer.answer
        assert text.context[answer.start : answer.end] == answer.answer
    assert answers[2].answer == "nufo"


# Scores


def test_scores_are_means_over_questions_of_the_nearest_gold_answer() -> None:
    golds = (ReferenceAnswer("the cat", 0), ReferenceAnswer("a black cat", 0))
    texts = [
        QuestionExample("q", "x", golds, "here"),
        QuestionExample("q", "x", (ReferenceAnswer("dog", 0),), "here"),
    ]
    said = [
        AnswerPrediction(answer=answer, tokens=1, tokens_read=1) for answer in ("Black cat.", "dog house")
    ]
    scores = answerer().metrics.compute(said, texts)
    assert scores.values == {
        "f1": pytest.approx((1 + 2 / 3) / 2), "exact_match": 0.5, "examples": 2,
    }  # fmt: skip
    assert list(scores.notes) == []


def test_the_baseline_is_the_most_frequent_answer() -> None:
    training = [example("migi"), example("Migi".lower()), example("lode")]
    scores = answerer().metrics.baseline(training, [example("migi"), example("nufo")])
    assert scores.values["f1"] == 0.5


def test_answers_that_were_moved_are_told_with_the_scores(tmp_path: Path) -> None:
    found = read(written(tmp_path, squad(asked("migi", 0), asked("migi", 10, id="r"))))
    said = [AnswerPrediction(answer="migi", tokens=1, tokens_read=1)] * 2
    scores = answerer().metrics.compute(said, found)
    assert scores.details["moved_answers"] == 1
    (note,) = scores.notes
    assert note.startswith("1 answer was found by its text, at another start than the file gives")
    assert note.endswith(f": {found[0].location}")


# From a file to a finished model


def passages(number: int, seed: int) -> dict[str, Any]:
    """Two questions a passage; the answer is the one word of the first three that it holds, anywhere."""
    draw = random.Random(seed)
    paragraphs = []
    for i in range(number):
        words = draw.choices(tiny_run.WORDS[3:], k=draw.randint(3, 30))
        words.insert(draw.randrange(len(words) + 1), tiny_run.WORDS[i % 3])
        context = " ".join(words)
        gold = [{"text": tiny_run.WORDS[i % 3], "answer_start": context.index(tiny_run.WORDS[i % 3])}]
        qas = [{"id": f"{i}.{n}", "question": "kade lofo", "answers": gold} for n in range(2)]
        paragraphs.append({"context": context, "qas": qas})
    return {"version": "1.1", "data": [{"title": "t", "paragraphs": paragraphs}]}


@pytest.fixture(scope="module")
def trained(base: bs.Model, tmp_path_factory: pytest.TempPathFactory) -> bs.Model:
    """A tiny model that has learnt to find the word."""
    folder = tmp_path_factory.mktemp("answer")
    settings = ["task.max_length=20", "task.stride=8", "train.num_train_epochs=6", "train.learning_rate=3e-3"]
    return bs.finetune(
        "answer",
        base,
        folder / "run",
        train=written(folder, passages(60, 0)),
        validation_split=0.25,
        settings=[*settings, "train.batch_size=8", "train.threads=1", "train.report_to=none"],
    )


def test_it_is_learnt_saved_and_scored(trained: bs.Model, tmp_path: Path) -> None:
    sides = [read(trained.path / "split" / f"{name}.jsonl") for name in ("train", "validation")]
    assert [len(side) for side in sides] == [90, 30]
    assert not {e.context for e in sides[0]} & {e.context for e in sides[1]}
    file = written(tmp_path, passages(30, 1))
    scores = bs.load(trained.path).evaluate(file)
    assert scores.examples == 60
    assert scores.f1 == scores.exact_match > 0.9 > 2 * trained.report["baseline"]["f1"]
    answers = list(trained.predict_file(file))
    assert [answer["id"] for answer in answers] == [f"{i}.{n}" for i in range(30) for n in range(2)]
    for answer, text in zip(answers, read(file), strict=True):
        assert text.context[answer["start"] : answer["end"]] == answer["answer"]
        assert answer["tokens"] == answer["tokens_read"] == 2 + len(text.context.split())
    prediction = AnswerPrediction(**{k: v for k, v in answers[0].items() if k not in ("place", "question")})
    (cells,) = trained.task.report.table_rows(read(file)[0], prediction)
    assert list(cells) == ["id", "question", "prediction", "start", "end", "score"]
    assert cells["prediction"] == answers[0]["answer"]
    assert answers[0]["place"] == "data[0].paragraphs[0].qas[0]"
    alone = trained.predict(["kade lofo"], [read(file)[0].context])
    assert alone[0].answer == answers[0]["answer"]
    assert alone[0].score == pytest.approx(answers[0]["score"], abs=1e-6)


def test_settings_of_the_call_reach_windows_and_answers(trained: bs.Model) -> None:
    context = " ".join(tiny_run.WORDS[3:40])
    (answer,) = trained.predict(["kade"], [context], n_best=2, max_answer_length=1)
    assert len(answer.n_best) == 2
    assert all(" " not in row["answer"] for row in answer.n_best)


def test_the_reference_opens_the_folder_and_its_own_is_answered_with(
    trained: bs.Model, tmp_path: Path
) -> None:
    transformers = pytest.importorskip("transformers")
    theirs, report = transformers.BertForQuestionAnswering.from_pretrained(
        trained.model_folder, output_loading_info=True
    )
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    theirs.eval().save_pretrained(tmp_path / "theirs")
    trained.tokenizer.save(tmp_path / "theirs")
    foreign = bs.load(tmp_path / "theirs")
    asked_in = [example(context="lode lofo kaba migi"), example(context=" ".join(tiny_run.WORDS[::-1]))]
    for model in (trained, foreign):
        items = model.task.encode(asked_in, model.tokenizer)
        with torch.inference_mode():
            rows = model.task.model.outputs(model.encoder, model.task.model.collate(items))
            for item, logits in zip(items, rows, strict=True):
                ids, segments = (
                    torch.from_numpy(some).long()[None]
                    for some in (item.sequences[0].ids, item.sequences[0].segments)
                )
                found = theirs(ids, token_type_ids=segments)
                torch.testing.assert_close(logits[:, 0], found.start_logits[0], atol=1e-5, rtol=0)
                torch.testing.assert_close(logits[:, 1], found.end_logits[0], atol=1e-5, rtol=0)
    file = written(tmp_path, passages(6, 2))
    said = [list(m.predict_file(file, max_length=20, stride=8)) for m in (trained, foreign)]
    assert [row["answer"] for row in said[0]] == [row["answer"] for row in said[1]]
    # Options of the command line are those of the heads that the folder has.
    again = [
        "evaluate",
        str(foreign.path),
        "--data",
        str(file),
        "--stride",
        "8",
        "--max-length",
        "20",
        "--json",
    ]
    result = CliRunner().invoke(bertsmith, again, catch_exceptions=False)
    assert json.loads(result.stdout)["f1"] == pytest.approx(trained.evaluate(file).f1)


def test_a_question_without_its_passage_is_refused(trained: bs.Model) -> None:
    with pytest.raises(InputError) as caught:
        trained.predict(["kade lofo"])
    assert caught.value.code == "input_missing"
    with pytest.raises(InputError) as caught:
        trained.predict(["kade", "lofo"], ["kaba", " "])
    assert (caught.value.code, caught.value.location) == ("empty_text", "text 2")
    with pytest.raises(InputError) as caught:
        trained.predict([["kade"]], ["kaba"])
    assert (caught.value.code, caught.value.location) == ("not_a_string", "text 1")


def test_moved_answers_are_told_before_training(
    trained: bs.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "bertsmith")
    monkeypatch.setenv("COLUMNS", "300")
    rows = [{"question": "?", "context": f"kaba lode {w}", "answer": "lode"} for w in tiny_run.WORDS[:4]]
    file = written(tmp_path, rows)
    settings = ["train.max_steps=1", "train.threads=1", "train.report_to=none"]
    bs.finetune("answer", trained, tmp_path / "run", train=file, validation_split=0.5, settings=settings)
    assert any("4 answers were found by their texts" in " ".join(one.split()) for one in caplog.messages)


def test_official_files_are_read(shared_data: Path) -> None:
    found = read(shared_data / "tasks/squad1.1/dev.json.gz")
    assert len(found) == 5_397
    assert data().read_warnings(found) == []
    found = read(shared_data / "tasks/squad2.0/dev.json")
    assert (len(found), sum(example.unanswerable for example in found)) == (567, 270)
    assert len(read(shared_data / "tasks/cmrc2018/dev.json.gz")) == 1_608


@pytest.mark.parametrize(
    ("vocabulary", "file", "between"),
    [
        ("bert-base-uncased", "squad1.1", 1),
        ("roberta-base", "squad1.1", 2),
        ("albert-base", "squad1.1", 1),
        ("bert-base-chinese", "cmrc2018", 1),
    ],
)
def test_a_model_that_points_right_answers_right_with_every_tokenizer(
    shared_data: Path, vocabulary: str, file: str, between: int
) -> None:
    """From characters to tokens to windows and back: what is left are answers of half a token."""
    tokenizer = bs.Tokenizer.load(shared_data / "vocabs" / vocabulary)
    texts = [
        text
        for text in read(shared_data / f"tasks/{file}/dev.json.gz")[::50]
        if len(text.answers[0].text) < 20
    ]
    model = answerer(max_length=64, stride=24)
    items = model.encode(texts, tokenizer)
    assert len(items) > 1.5 * len(texts)
    outputs = []
    for item in items:
        sequence = item.sequences[0]
        ids = sequence.ids.tolist()
        assert (ids[0], ids[-1]) == (tokenizer.cls_token_id, tokenizer.sep_token_id)
        assert ids.count(tokenizer.sep_token_id) == 1 + between
        assert set(sequence.segments.tolist()) == ({0, 1} if tokenizer.uses_segments else {0})
        outputs.append(torch.zeros(len(ids), 2))
        if item.target != (0, 0):
            outputs[-1][item.target, (0, 1)] = 20.0
    answers = decode(model, outputs, items, texts)
    for text, answer in zip(texts, answers, strict=True):
        assert text.context[answer.start : answer.end] == answer.answer
        assert text.answers[0].text.strip() in answer.answer
    same = [text.answers[0].text == answer.answer for text, answer in zip(texts, answers, strict=True)]
    assert sum(same) >= 0.95 * len(same)
