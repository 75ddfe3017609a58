"""Tagging: files, which token is whose, windows, answers for every word, scores."""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import bertsmith as bs
import tiny_run
from bertsmith.device import ComputeContext
from bertsmith.errors import InputError
from bertsmith.io.sources import to_table
from bertsmith.metrics.sufficient_statistics import sum_counts
from bertsmith.metrics.tagging import count_entities
from bertsmith.models.encoder import Encoder
from bertsmith.tasks.fitted_task import FittedTask, infer_task
from bertsmith.tasks.settings import TagSettings
from bertsmith.tasks.tagging.encode import first_tokens
from bertsmith.tasks.tagging.model import TagPrediction
from bertsmith.tasks.tagging.sentences import TagExample
from bertsmith.tokenizer.tokenizer import Tokenizer
from bertsmith.tokenizer_training.train import train_tokenizer
from task_files import fitted_task, task_data

PLAIN = TagSettings()
CONLL = "-DOCSTART- -X- O\n\nKaba NN B-PER\nlode VB O\n\nmigi NN B-LOC\nnufo NN I-LOC\n. . O\n"


def written(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def example(text: str, tags: str | None = None) -> TagExample:
    return TagExample(tuple(text.split()), tuple(tags.split()) if tags else None, "file.conll:1")


def tagger(facts: dict[str, Any] | None = None, settings: TagSettings = PLAIN) -> tuple[FittedTask, Encoder]:
    """A task on an encoder so wide in its draws that its answers differ from token to token."""
    generator = torch.Generator().manual_seed(3)
    config = bs.ModelConfig(
        vocab_size=tiny_run.tokenizer().vocab_size,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=64,
        initializer_range=0.5,
    )
    facts = facts or {"labels": ["B-LOC", "B-PER", "I-LOC", "O"], "scheme": "iob2", "default_label": "O"}
    return fitted_task("tag", config, generator, facts, settings), Encoder(config, generator).eval()


def answers(examples: Sequence[TagExample], task: FittedTask, encoder: Encoder) -> list[dict[str, Any]]:
    items = task.encode(examples, tiny_run.tokenizer())
    outputs = task.model.run(encoder, items, ComputeContext.create("cpu", "fp32"))
    return [prediction.to_dict() for prediction in task.decoder.decode(outputs, items, examples)]


# Files


@pytest.mark.parametrize("blank", [" ", "\t", "  "])
def test_columns_are_read_by_blanks_or_tabs(tmp_path: Path, blank: str) -> None:
    file = written(tmp_path / "a.conll", CONLL.replace(" ", blank))
    first, second = task_data("tag", PLAIN).read(file)
    assert (first.words, first.tags, first.location) == (("Kaba", "lode"), ("B-PER", "O"), f"{file}:3")
    assert (second.words, second.tags) == (("migi", "nufo", "."), ("B-LOC", "I-LOC", "O"))
    middle = task_data("tag", TagSettings(tag_column="2")).read(file)
    assert middle[0].tags == ("NN", "VB")
    assert task_data("tag", TagSettings(tag_column="-2")).read(file) == middle


def test_characters_with_tags_keep_wide_blanks_as_characters(tmp_path: Path) -> None:
    file = tmp_path / "a.tsv.gz"
    file.write_bytes(gzip.compress("北\tB-LOC\n\u3000\tO\n京\tO\n\n人\tO\n".encode()))
    assert [e.words for e in task_data("tag", PLAIN).read(file)] == [("北", "\u3000", "京"), ("人",)]


def test_conllu_has_names_and_leaves_out_what_is_no_word(tmp_path: Path) -> None:
    rows = ["1-2\tdon't", "1\tdo", "2\tn't", "2.1\tgone", "3\tgo"]
    table = "".join(f"{row}\t_\tVERB\tVB\t_\t0\troot\t_\t_\n" for row in rows)
    file = written(tmp_path / "a.conllu", f"# text = don't go\n{table}\n# next\n{table}")
    (one, two) = task_data("tag", PLAIN).read(file)
    assert (one.words, one.tags) == (("do", "n't", "go"), ("VERB",) * 3)
    assert two.words == one.words
    assert task_data("tag", TagSettings(tag_column="XPOS")).read(file)[0].tags == ("VB",) * 3
    with pytest.raises(InputError) as caught:
        task_data("tag", TagSettings(tag_column="NER")).read(file)
    assert str(caught.value).startswith(f"{file}:3: ")
    renamed = written(tmp_path / "b.conllu", "# global.columns = ID FORM UPOS\n1\tdo\tX\n")
    assert task_data("tag", PLAIN).read(renamed)[0].tags == ("X",)


def test_jsonl_has_lists_and_what_a_split_wrote_is_read_again(tmp_path: Path) -> None:
    file = written(tmp_path / "a.jsonl", '{"words": ["Kaba", "lode"], "tags": ["B-PER", 3]}\n')
    (found,) = task_data("tag", PLAIN).read(file)
    assert found.tags == ("B-PER", "3")
    assert task_data("tag", PLAIN).to_row(found) == {"words": ["Kaba", "lode"], "tags": ["B-PER", "3"]}
    assert task_data("tag", TagSettings(word_column="1", tag_column="4")).to_row(found) == task_data(
        "tag", PLAIN
    ).to_row(found)
    named = TagSettings(word_column="tokens", tag_column="ner")
    assert task_data("tag", named).to_row(found) == {"tokens": ["Kaba", "lode"], "ner": ["B-PER", "3"]}


@pytest.mark.parametrize(
    ("name", "text", "line"),
    [
        ("a.conll", "Kaba NN B-PER\nlode VB\n", 2),
        ("a.conll", "Kaba O\nlode\n", 2),
        ("a.conll", "Kaba NN B-PER\nlode VB O O\n", 2),
        ("a.conll", "Kaba\nlode\n", 1),
        ("a.tsv", "Kaba\tO\nlode\t\n", 2),
        ("a.tsv", "Kaba\tO\n\tO\n", 2),
    ],
)
def test_faults_of_columns_have_a_location(tmp_path: Path, name: str, text: str, line: int) -> None:
    file = written(tmp_path / name, text)
    with pytest.raises(InputError) as caught:
        task_data("tag", PLAIN).read(file)
    assert str(caught.value).startswith(f"{file}:{line}: ")
    assert caught.value.hint


@pytest.mark.parametrize(
    ("name", "text", "code"),
    [
        ("a.conll", "\n\n", "no_examples"),
        ("a.jsonl", '{"words": ["a"], "tags": ["O", "O"]}', "tag_count"),
        ("a.jsonl", '{"words": ["a"]}', "column_missing"),
        ("a.jsonl", '{"words": ["a", ""], "tags": ["O", "O"]}', "invalid_item"),
        ("a.jsonl", '{"words": ["a", "b"], "tags": ["O", ""]}', "invalid_item"),
        ("a.jsonl", '{"words": ["a"], "tags": "O"}', "not_a_list"),
        ("a.jsonl", '{"words": [], "tags": []}', "empty_sentence"),
        ("a.jsonl", '{"words": [["a"]], "tags": ["O"]}', "invalid_item"),
    ],
)
def test_faults_of_sentences_have_a_code_and_a_location(
    tmp_path: Path, name: str, text: str, code: str
) -> None:
    file = written(tmp_path / name, text)
    with pytest.raises(InputError) as caught:
        task_data("tag", PLAIN).read(file)
    assert (caught.value.code, caught.value.location) == (code, f"{file}:1")
    assert caught.value.hint


def test_a_row_too_short_for_a_numbered_column_is_refused(tmp_path: Path) -> None:
    file = written(tmp_path / "a.conll", "a B O x\nb B O\nc B\n")
    with pytest.raises(InputError) as caught:
        task_data("tag", TagSettings(tag_column="3")).read(file)
    assert str(caught.value).startswith(f"{file}:3: ")


def test_a_file_to_predict_is_read_as_columns_or_a_sentence_a_line(tmp_path: Path) -> None:
    def words(name: str, text: str, settings: TagSettings = PLAIN) -> list[tuple[str, ...]]:
        return [
            e.words for e in task_data("tag", settings).read(written(tmp_path / name, text), labeled=False)
        ]

    assert words("a.txt", CONLL) == [("Kaba", "lode"), ("migi", "nufo", ".")]
    assert words("a.txt", "kaba\nlode\n\nmigi\n") == [("kaba", "lode"), ("migi",)]
    assert words("a.txt", "kaba lode migi\nnufo\n\n") == [("kaba", "lode", "migi"), ("nufo",), ()]
    assert words("a.txt", "kaba lode\nmigi nufo\n") == [("kaba", "lode"), ("migi", "nufo")]
    assert words("a.conll", "kaba lode\nmigi nufo\n") == [("kaba", "migi")]
    assert words("a.jsonl", '{"words": ["kaba"]}\n{"words": "lode migi"}') == [("kaba",), ("lode", "migi")]


# What is learnt


def test_the_tags_are_sorted_and_depend_on_the_data_alone() -> None:
    some = [example("a b c", "O I-PER B-PER"), example("d", "O"), example("e f", "I-LOC O")]
    facts = task_data("tag", PLAIN).fit_metadata(some, None)
    assert facts == {
        "labels": [
            *(f"{prefix}-{kind}" for prefix in "BEI" for kind in ("LOC", "PER")),
            "O",
            "S-LOC",
            "S-PER",
        ],
        "file_tags": ["B-PER", "I-LOC", "I-PER", "O"],
        "numbered": False,
        "scheme": "iob1",
        "label_scheme": "iobes",
        "letters": {},
        "default_label": "O",
        "decoder": "softmax",
        "characters": False,
        "split_text": False,
        "roles": False,
        "tag_format": "B-TYPE",
        "outside": [],
    }
    assert task_data("tag", PLAIN).fit_metadata(some[::-1], None) == facts
    parts = task_data("tag", PLAIN).fit_metadata([example("a b c", "NOUN VERB NOUN")], None)
    assert (parts["scheme"], parts["default_label"]) == (None, "NOUN")
    with pytest.raises(InputError) as caught:
        task_data("tag", PLAIN).fit_metadata([example("a b", "O O")], None)
    assert (caught.value.code, caught.value.argument) == ("single_label", "tag_column")


def test_tags_by_number_take_the_names_that_are_given() -> None:
    some = [example("a b c", "0 1 2")]
    facts = task_data("tag", TagSettings(scheme="as_written")).fit_metadata(some, ["O", "B-PER", "I-PER"])
    assert (facts["labels"], facts["scheme"], facts["numbered"]) == (["O", "B-PER", "I-PER"], "iob2", True)
    task, _ = tagger(dict(facts))
    (item,) = task.encode(some, Tokenizer.from_vocabulary([*tiny_run.TOKENS, "a", "b", "c"], lowercase=True))
    assert item.target == (0, 1, 2)
    assert task.metrics.compute(predictions("O B-PER I-PER"), some).values["f1"] == 1.0
    as_iobes = task_data("tag", PLAIN).fit_metadata(some, ["O", "B-PER", "I-PER"])
    assert as_iobes["labels"] == ["B-PER", "E-PER", "I-PER", "O", "S-PER"]
    assert as_iobes["file_tags"] == ["O", "B-PER", "I-PER"]
    other, _ = tagger(dict(as_iobes))
    (item,) = other.encode(some, Tokenizer.from_vocabulary([*tiny_run.TOKENS, "a", "b", "c"], lowercase=True))
    assert item.target == (3, 0, 1)
    with pytest.raises(InputError) as caught:
        task_data("tag", PLAIN).fit_metadata(some, ["O", "B-PER"])
    assert (caught.value.code, caught.value.argument) == ("label_not_named", "label_names")


def test_a_token_classifier_of_another_tool_is_this_task() -> None:
    class Folder:
        architecture, problem_type = "BertForTokenClassification", None
        labels = ["O", "B-PER", "I-PER"]  # noqa: RUF012

    kind, facts = infer_task(Folder(), "here")
    assert (kind.name, facts["labels"], facts["default_label"]) == ("tag", Folder.labels, "O")
    assert facts["scheme"] is not None
    Folder.labels = ["NOUN", "VERB"]
    assert infer_task(Folder(), "here")[1]["scheme"] is None


# Words and tokens


def whose(words: Sequence[str], tokenizer: Tokenizer) -> dict[str, str]:
    """Each word that has one with its first token."""
    encoding = tokenizer.encode(" ".join(words), max_length=10**6)
    numbers, tokens = first_tokens(words, encoding)
    own = [i for i, source in enumerate(encoding.sequence_ids) if source == 0]
    return {words[w]: tokenizer.tokens[encoding.ids[own[t]]] for w, t in zip(numbers, tokens, strict=True)}


def test_each_word_has_its_first_piece_and_some_have_none() -> None:
    wordpiece = Tokenizer.from_vocabulary(
        [*tiny_run.TOKENS, "don", "'", "t", "北", "京", "##ba", "k", "é"], lowercase=True
    )
    words = ["kaba", "don't", "北京", "\u200b", "kba", "(", ".", "\ufeff"]
    assert whose(words, wordpiece) == {
        "kaba": "kaba", "don't": "don", "北京": "北", "kba": "k", "(": "[UNK]", ".": ".",
    }  # fmt: skip
    assert whose(["\u200b"], wordpiece) == whose([], wordpiece) == {}


@pytest.mark.parametrize("kind", ["byte_level_bpe", "unigram"])
def test_a_piece_that_begins_with_the_blank_is_the_next_word_s(tmp_path: Path, kind: Any) -> None:
    file = written(tmp_path / "a.txt", "the cat sat on the mat near the old cat house.\n" * 40)
    tokenizer = train_tokenizer([file], tmp_path / "tokenizer", vocab_size=300, kind=kind)
    words = ["the", "cat's", "🙂", "mat", "北京", "(sat)", "the", "."]
    encoding = tokenizer.encode(" ".join(words), max_length=10**6)
    numbers, tokens = first_tokens(words, encoding)
    assert numbers.tolist() == list(range(len(words)))
    own = [i for i, source in enumerate(encoding.sequence_ids) if source == 0]
    text = " ".join(words)
    starts = [len(" ".join(words[:i])) + (i > 0) for i in range(len(words))]
    for number, token in zip(numbers, tokens, strict=True):
        begin, end = encoding.offsets[own[token]]
        assert not text[starts[number - 1] if number else 0 : begin].endswith(words[number][:1])
        assert begin in (starts[number], starts[number] - 1)
        assert end <= starts[number] + len(words[number])


@settings(max_examples=40)
@given(st.lists(st.text(max_size=4).filter(bool), max_size=30), st.integers(3, 12))
def test_every_word_has_a_tag_whatever_it_is_made_of(words: list[str], length: int) -> None:
    task, encoder = tagger(settings=TagSettings(max_length=length))
    some = [TagExample(tuple(words), None, "here:1"), example("kaba lode")]
    first, second = answers(some, task, encoder)
    assert len(first["tags"]) == len(first["scores"]) == len(words)
    assert len(second["tags"]) == 2
    assert all(tag in task.metadata["labels"] for tag in first["tags"])
    assert first["tokens_read"] == first["tokens"]


# Windows


def test_each_word_is_decided_once_by_the_window_where_it_has_most_context() -> None:
    task, encoder = tagger(settings=TagSettings(max_length=12))
    words = [tiny_run.WORDS[i % 40] for i in range(37)]
    sentence = TagExample(tuple(words), tuple("O" for _ in words), "here:1")
    items = task.encode([sentence], tiny_run.tokenizer())
    assert sorted(word for item in items for word in item.words) == list(range(37))
    assert task.model.collate(items).counts == {"task": 37}
    (answer,) = answers([sentence], task, encoder)
    # one token a word: the window of words [first, first + 10) is the sentence of these words alone
    for word in range(37):
        starts = [first for first in range(0, 31, 5) if first <= word < first + 10]
        best = max(starts, key=lambda s: 100 * min(word - s, min(s + 10, 37) - 1 - word) + min(10, 37 - s))
        part = TagExample(tuple(words[best : best + 10]), None, "here:1")
        (alone,) = answers([part], task, encoder)
        assert answer["tags"][word] == alone["tags"][word - best]
        assert answer["scores"][word] == pytest.approx(alone["scores"][word - best], abs=1e-5)


def test_the_loss_is_the_cross_entropy_at_first_pieces_over_all_words() -> None:
    task, encoder = tagger()
    some = [example("kaba lode.", "B-PER O"), example("migi nufo kaba", "B-LOC I-LOC O")]
    items = task.encode(some, tiny_run.tokenizer())
    batch = task.model.collate(items)
    loss = task.model.loss(encoder, batch)
    logits = task.model.outputs(encoder, batch)
    first = torch.cat([logits[0][[1, 2]], logits[1][[1, 2, 3]]])
    wanted = torch.tensor([1, 3, 0, 2, 3])
    torch.testing.assert_close(
        loss.sums["task"], torch.nn.functional.cross_entropy(first, wanted, reduction="sum")
    )
    assert (loss.counts, int(loss.num_correct["task"])) == (
        {"task": 5},
        int((first.argmax(-1) == wanted).sum()),
    )


# Scores


def predictions(*rows: str) -> list[TagPrediction]:
    tags = [row.split() for row in rows]
    return [TagPrediction(["w"] * len(row), row, [1.0] * len(row)) for row in tags]


def test_scores_are_those_of_the_entities_and_of_the_words() -> None:
    task, _ = tagger()
    some = [example("a b c", "B-PER O O"), example("d e f g", "B-LOC I-LOC O B-NEW")]
    found = task.metrics.compute(predictions("B-PER O B-LOC", "B-LOC I-LOC O O"), some)
    assert found.values == pytest.approx(
        {"precision": 2 / 3, "recall": 2 / 3, "f1": 2 / 3, "strict_f1": 2 / 3}
        | {"accuracy": 5 / 7, "words": 7, "examples": 2}
    )
    assert {name: row["f1"] for name, row in found.details["types"].items()} == pytest.approx(
        {"LOC": 2 / 3, "NEW": 0.0, "PER": 1.0}
    )
    (note,) = found.notes
    assert "1 (B-NEW)" in note
    assert (task.primary_metric, task.metrics.logged_metrics) == ("f1", ("f1", "accuracy"))


def test_tags_without_a_scheme_are_scored_word_by_word() -> None:
    task, encoder = tagger({"labels": ["NOUN", "VERB"], "scheme": None, "default_label": "NOUN"})
    some = [example("kaba lode", "NOUN VERB")]
    assert task.metrics.compute(predictions("NOUN NOUN"), some).values == {
        "accuracy": 0.5,
        "words": 2,
        "examples": 1,
    }
    assert task.primary_metric == "accuracy"
    assert "entities" not in answers(some, task, encoder)[0]


def test_a_file_of_other_tags_is_refused_and_a_rare_new_one_is_not() -> None:
    task, _ = tagger()
    known, new = {"words": ["kaba"], "tags": ["B-PER"]}, {"words": ["a", "b"], "tags": ["NN", "VB"]}
    with pytest.raises(InputError) as caught:
        task.data.read(to_table([new, new], "data"))
    assert (caught.value.code, caught.value.argument) == ("unknown_label", "tag_column")
    assert caught.value.location == "data (in memory):1"
    examples = task.data.read(to_table([*[known] * 600, new], "data"))
    assert len(task.encode(examples[600:], tiny_run.tokenizer())) == 1  # as a part of a file
    (item,) = task.encode([example("kaba lode", "B-PER B-NEW")], tiny_run.tokenizer())
    assert item.target == (1, -1)


def test_no_sentences_have_no_entities() -> None:
    task, _ = tagger()
    numbers = dict.fromkeys(("precision", "recall", "f1", "strict_f1", "accuracy", "words", "examples"), 0)
    assert task.metrics.compute([], []).values == numbers
    assert set(task.metrics.sufficient_statistics([], []).scores().values()) == {0}


def test_the_baseline_never_looks_at_the_words() -> None:
    task, _ = tagger()
    training = [example("a b c", "O O B-PER")]
    validation = [example("a b", "O B-PER")]
    assert task.metrics.baseline(training, validation).values["accuracy"] == 0.5
    assert task.metrics.baseline(training, validation).values["f1"] == 0.0


def test_the_words_are_a_list_or_a_string_and_entities_are_spans_of_words() -> None:
    task, encoder = tagger()
    some = task_data("tag", PLAIN).from_inputs(
        {"words": ["kaba lode  migi", ["nufo", "New York"], ""]}, ["1", "2", "3"]
    )
    assert [e.words for e in some] == [("kaba", "lode", "migi"), ("nufo", "New York"), ()]
    for answer in answers(some, task, encoder):
        assert sum_counts(count_entities([answer["tags"]], [answer["tags"]])).num_references == len(
            answer["entities"]
        )
        for entity in answer["entities"]:
            assert (
                entity["text"].split() == " ".join(answer["words"][entity["start"] : entity["end"]]).split()
            )
    assert answers(some, task, encoder)[2] == {
        "words": [], "tags": [], "scores": [], "offsets": [], "entities": [], "tokens": 0, "tokens_read": 0,
    }  # fmt: skip
    with pytest.raises(InputError) as caught:
        task_data("tag", PLAIN).from_inputs({"words": [["kaba", ""]]}, ["text 1"])
    assert (caught.value.code, caught.value.location) == ("invalid_item", "text 1")
