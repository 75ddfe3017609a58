"""The decoders, walked through with probabilities that are given: a text, a pair, tags by word and by character.

The question of the temperature and its answer is in test_answer. No model is trained here, nor asked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
import torch

import bertsmith as bs
from bertsmith.tasks.batching import Outputs
from bertsmith.tasks.fitted_task import FittedTask
from bertsmith.tasks.settings import ClassSettings, TagSettings
from bertsmith.tasks.tagging.sentences import TagExample
from bertsmith.tasks.texts import TextExample
from bertsmith.tokenizer.tokenizer import Tokenizer
from task_files import fitted_task, task_data

SENTENCE = "爱因斯坦在柏林发表演讲"
CHARACTERS = sorted(set(SENTENCE + "海大球星饭茶吃我很喜欢你中意"))
TOKENIZER = Tokenizer.from_vocabulary(
    ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *CHARACTERS], lowercase=True
)
CONFIG = bs.ModelConfig(
    vocab_size=TOKENIZER.vocab_size,
    hidden_size=8,
    num_hidden_layers=1,
    num_attention_heads=1,
    intermediate_size=8,
    max_position_embeddings=64,
)


@pytest.mark.parametrize(
    ("text", "second", "shares", "label"),
    [("海大球星饭茶吃", None, [0.99, 0.01], "0"), ("我很喜欢你", "我很中意你", [0.02, 0.98], "1")],
    ids=["coherent", "similar"],
)
def test_the_likelier_class_of_a_text_and_of_a_pair(
    text: str, second: str | None, shares: list[float], label: str
) -> None:
    settings = ClassSettings(second_column=None if second is None else "second")
    facts = {"labels": ["0", "1"], "pairs": second is not None}
    model = fitted_task("classify", CONFIG, torch.Generator(), facts, settings)
    examples = [TextExample(text, second, None, "here")]
    items = model.encode(examples, TOKENIZER)
    (sequence,) = items[0].sequences
    middle = ["[SEP]", *second] if second else []
    expected = ["[CLS]", *text, *middle, "[SEP]"]
    assert [TOKENIZER.tokens[i] for i in sequence.ids] == expected
    assert sequence.segments.tolist() == [0] * (len(text) + 2) + [1] * len(middle)
    (answer,) = model.decoder.decode(Outputs([torch.tensor([shares]).log()]), items, examples)
    assert answer.label == label
    assert answer.score == pytest.approx(max(shares))
    assert answer.scores == pytest.approx(dict(zip("01", shares, strict=True)))


def tagger(words: Sequence[str], tags: str, decoder: str) -> FittedTask:
    """Of three kinds of entities as IOBES, that was trained on such words."""
    rows = [tags, *(f"B-{kind} I-{kind} E-{kind} S-{kind}" for kind in ("PER", "LOC", "ORG"))]
    settings = TagSettings(decoder=decoder)
    examples = [TagExample(tuple(words[: len(row.split())]), tuple(row.split()), "here") for row in rows]
    model = fitted_task(
        "tag", CONFIG, torch.Generator(), task_data("tag", settings).fit_metadata(examples, None), settings
    )
    assert len(model.labels or ()) == 13
    return model


def logits_of(model: FittedTask, example: TagExample, shares: Sequence[Mapping[str, float]]) -> Outputs:
    """Of a window: at each word's first token these probabilities; all other tags share what is left."""
    (item,) = model.encode([example], TOKENIZER)
    labels = model.labels or []
    found = torch.zeros(len(item.sequences[0].ids), len(labels))
    for row, known in zip(item.token_indices, shares, strict=True):
        rest = (1 - sum(known.values())) / (len(labels) - len(known))
        found[row] = torch.tensor([known.get(label, rest) for label in labels]).log()
    shared = {name: tensor.detach() for name, tensor in model.model.shared_outputs().items()}
    return Outputs([found], shared)


BY_WORD = (["爱", "因", "斯坦", "在", "柏林", "发表", "演讲"], "B-PER I-PER E-PER O S-LOC O O")
BY_CHARACTER = (list(SENTENCE), "B-PER I-PER I-PER E-PER O B-LOC E-LOC O O O O")


@pytest.mark.parametrize("decoder", ["softmax", "crf"])
@pytest.mark.parametrize(("words", "tags"), [BY_WORD, BY_CHARACTER], ids=["words", "characters"])
def test_einstein_speaks_in_berlin(words: list[str], tags: str, decoder: str) -> None:
    model = tagger(words, tags, decoder)
    wanted = tags.split()
    shares = [{tag: 0.9 if tag == "S-LOC" else 0.95} for tag in wanted]
    text = TagExample(tuple(words), None, "here", text=SENTENCE)
    (answer,) = model.decoder.decode(logits_of(model, text, shares), model.encode([text], TOKENIZER), [text])
    assert answer.tags == wanted
    found = [(one["type"], one["start_char"], one["end_char"], one["text"]) for one in answer.entities]
    assert found == [("PER", 0, 4, "爱因斯坦"), ("LOC", 5, 7, "柏林")]
    if decoder == "softmax":
        assert answer.scores == pytest.approx([next(iter(one.values())) for one in shares], abs=1e-5)


@pytest.mark.parametrize("decoder", ["softmax", "crf"])
def test_the_likeliest_tags_that_are_legal_together_win(decoder: str) -> None:
    """Each word by itself would be B-PER O E-PER, which no entity is written as."""
    words, _ = BY_WORD
    model = tagger(words, BY_WORD[1], decoder)
    shares = [{"B-PER": 0.9}, {"O": 0.5, "I-PER": 0.45}, {"E-PER": 0.9}, *({"O": 0.9} for _ in words[3:])]
    text = TagExample(tuple(words), None, "here")
    (answer,) = model.decoder.decode(logits_of(model, text, shares), model.encode([text], TOKENIZER), [text])
    assert answer.tags == ["B-PER", "I-PER", "E-PER", "O", "O", "O", "O"]
