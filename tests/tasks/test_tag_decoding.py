"""How tags are chosen: legal ones only, as many as words, over whole sentences, whatever stands beside them."""

from __future__ import annotations

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
from bertsmith.metrics.tagging import extract_entities, find_violations
from bertsmith.models.encoder import Encoder
from bertsmith.models.task_heads import viterbi_decode
from bertsmith.tasks.batching import Outputs
from bertsmith.tasks.fitted_task import FittedTask
from bertsmith.tasks.results import DataSummary
from bertsmith.tasks.settings import TagSettings
from bertsmith.tasks.tagging.sentences import TagExample
from task_files import fitted_task, task_data, task_report

ROWS = ["B-PER I-PER O", "B-LOC B-LOC I-LOC I-LOC O", "O O"]
ODD = st.text(
    st.sampled_from("ka lo北京🙂é\u0301\u200b\ufeff\u00a0\u3000\u2028\u00ad\U0001f468\u200d'-"), min_size=1
)
WORDS = st.lists(
    st.one_of(st.sampled_from(tiny_run.WORDS), ODD, st.text(min_size=1, max_size=4)), max_size=24
)


def example(words: Sequence[str], tags: str | None = None, place: str = "file.conll:1") -> TagExample:
    return TagExample(tuple(words), tuple(tags.split()) if tags else None, place)


def facts_for(chosen: TagSettings, rows: Sequence[str] = ROWS) -> dict[str, Any]:
    return dict(
        task_data("tag", chosen).fit_metadata([example(["w"] * len(row.split()), row) for row in rows], None)
    )


def tagger(chosen: TagSettings, rows: Sequence[str] = ROWS) -> tuple[FittedTask, Encoder]:
    """A task on an encoder, and with transitions, so wide in their draws that answers differ from word to word."""
    generator = torch.Generator().manual_seed(5)
    config = bs.ModelConfig(
        vocab_size=tiny_run.tokenizer().vocab_size,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=64,
        initializer_range=0.5,
    )
    task = fitted_task("tag", config, generator, facts_for(chosen, rows), chosen)
    if task.model.crf is not None:
        with torch.no_grad():
            for parameter in task.model.crf.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return task, Encoder(config, generator).eval()


def answers(examples: Sequence[TagExample], task: FittedTask, encoder: Encoder) -> list[dict[str, Any]]:
    items = task.encode(examples, tiny_run.tokenizer())
    outputs = task.model.run(encoder, items, ComputeContext.create("cpu", "fp32"))
    return [prediction.to_dict() for prediction in task.decoder.decode(outputs, items, examples)]


CHOICES = [TagSettings(decoder=decoder, max_length=12) for decoder in ("softmax", "crf")]


@pytest.mark.parametrize("chosen", CHOICES, ids=lambda chosen: chosen.decoder)
@settings(max_examples=40, deadline=None)
@given(words=WORDS)
def test_every_word_has_a_tag_and_all_of_them_are_legal(chosen: TagSettings, words: list[str]) -> None:
    task, encoder = tagger(chosen)
    first, second = answers([example(words), example(["kaba"])], task, encoder)
    assert len(first["tags"]) == len(first["scores"]) == len(words)
    assert find_violations(first["tags"], "iob2") == []
    assert all(0 <= score <= 1 + 1e-5 for score in first["scores"])
    assert len(second["tags"]) == 1


@pytest.mark.parametrize("scheme", ["iobes", "iob2", "iob1", "as_written"])
@pytest.mark.parametrize("rows", [ROWS, ["I-A I-A B-A O", "I-B O"], ["B-A I-A L-A U-B O"], ["B M E S S"]])
def test_answers_are_in_the_file_s_scheme_whatever_was_learnt(scheme: Any, rows: list[str]) -> None:
    task, encoder = tagger(TagSettings(scheme=scheme), rows)
    letters = {tag[0] for row in rows for tag in row.split()}
    draw = [tiny_run.WORDS[i * 7 % 40] for i in range(40)]
    for answer in answers([example(draw[:n]) for n in (1, 2, 7, 40)], task, encoder):
        assert find_violations(answer["tags"], task.metadata["scheme"]) == []
        if scheme != "as_written":
            assert {tag[0] for tag in answer["tags"]} <= letters | {"O"}
        assert [e["type"] for e in answer["entities"]] == [e.type for e in extract_entities(answer["tags"])]


@pytest.mark.parametrize("chosen", CHOICES, ids=lambda chosen: chosen.decoder)
def test_an_answer_depends_on_nothing_beside_it(chosen: TagSettings) -> None:
    task, encoder = tagger(chosen)
    some = [example([tiny_run.WORDS[(i * 11 + n) % 40] for i in range(n)]) for n in (1, 31, 4, 12, 2, 25)]
    alone = [answers([one], task, encoder)[0] for one in some]
    for order in (range(6), reversed(range(6)), (3, 0, 5)):
        numbers = list(order)
        for i, found in zip(numbers, answers([some[i] for i in numbers], task, encoder), strict=True):
            assert found["tags"] == alone[i]["tags"]
            assert found["scores"] == pytest.approx(alone[i]["scores"], abs=1e-5)


@pytest.mark.parametrize("chosen", CHOICES, ids=lambda chosen: chosen.decoder)
def test_a_sentence_of_several_windows_is_stitched_and_then_decoded_once(chosen: TagSettings) -> None:
    task, encoder = tagger(chosen)
    whole = example([tiny_run.WORDS[i * 7 % 40] for i in range(33)])
    items = task.encode([whole], tiny_run.tokenizer())
    assert len(items) > 3
    outputs = task.model.outputs(encoder, task.model.collate(items))
    emissions = torch.zeros(1, 33, len(task.labels or ()))
    for logits, item in zip(outputs, items, strict=True):
        emissions[0, list(item.words)] = logits[list(item.token_indices)].log_softmax(-1).detach()
    (path,) = viterbi_decode(
        emissions, torch.tensor([33]), task.decoder.chain(Outputs([], task.model.shared_outputs()))
    )
    (answer,) = answers([whole], task, encoder)
    assert answer["tags"] == task.decoder.tag_map.to_tags([task.labels[tag] for tag in path])


def test_a_word_without_a_token_is_outside_and_what_surrounds_it_legal() -> None:
    task, encoder = tagger(TagSettings(decoder="crf"))
    words = ["kaba", "\u200b", "lode", "\ufeff", "\u00ad", "migi"]
    (answer,) = answers([example(words)], task, encoder)
    assert [answer["tags"][i] for i in (1, 3, 4)] == ["O"] * 3
    assert [answer["scores"][i] for i in (1, 3, 4)] == [0.0] * 3


def test_the_crf_s_loss_is_minus_the_log_likelihood_of_each_run_of_words() -> None:
    """A window inside a sentence begins and ends freely, and words without a token part runs."""
    task, encoder = tagger(TagSettings(decoder="crf", max_length=8))
    tags = "O B-PER I-PER I-PER I-PER I-PER I-PER I-PER I-PER I-PER O"
    some = [
        example([tiny_run.WORDS[i * 7 % 40] for i in range(11)], tags),
        example(["kaba", "\u200b", "lode"], "B-PER I-PER O"),
    ]
    items = task.encode(some, tiny_run.tokenizer())
    batch = task.model.collate(items)
    loss = task.model.loss(encoder, batch)
    assert loss.counts == {"task": 13}  # one word has no token
    total = torch.zeros(())
    chain = task.decoder.chain(Outputs([], task.model.shared_outputs()))
    for logits, item in zip(task.model.outputs(encoder, batch), items, strict=True):
        emissions = logits[list(item.token_indices)]
        runs = [[0], [1]] if item.words == (0, 2) else [list(range(len(item.words)))]
        for run in runs:
            begins, ends = item.words[run[0]] == 0, item.words[run[-1]] == item.length - 1
            golds = [item.target[i] for i in run]
            score = emissions[run, golds].sum() + chain.transitions[golds[:-1], golds[1:]].sum()
            score = score + begins * chain.start[golds[0]] + ends * chain.end[golds[-1]]
            alpha = emissions[run[0]] + begins * chain.start
            for i in run[1:]:
                alpha = (alpha[:, None] + chain.transitions).logsumexp(0) + emissions[i]
            total = total + (alpha + ends * chain.end).logsumexp(0) - score
    assert loss.sums["task"] < 1e5  # no run of gold labels is forbidden
    torch.testing.assert_close(loss.sums["task"], total)
    loss.sums["task"].backward()
    assert all(torch.isfinite(p.grad).all() for p in task.model.parameters() if p.grad is not None)


def test_tags_that_break_their_scheme_are_reported_with_their_lines_and_repaired(tmp_path: Path) -> None:
    file = tmp_path / "a.conll"
    file.write_text("a B-PER\nb I-PER\n\n" * 5 + "c O\nd I-LOC\ne I-PER\n")
    some = task_data("tag", TagSettings()).read(file)
    facts = task_data("tag", TagSettings(scheme="as_written")).fit_metadata(some, None)
    assert (facts["scheme"], facts["labels"]) == ("iob2", ["B-LOC", "B-PER", "I-PER", "O"])
    seen: DataSummary = task_report("tag", facts).data_summary(some, [])
    (said,) = [warning for warning in seen.warnings if "scheme" in warning]
    assert f"I-LOC after O ({file}:17), I-PER after I-LOC ({file}:18)" in said
    task, _ = tagger(TagSettings())
    task = fitted_task("tag", task.model.config, torch.Generator(), facts, TagSettings(scheme="as_written"))
    (item,) = task.encode([TagExample(("kaba", "lode", "migi"), some[-1].tags, "x:1")], tiny_run.tokenizer())
    assert [facts["labels"][i] for i in item.target] == ["O", "B-LOC", "B-PER"]
    listed = TagExample(("a", "b"), ("O", "I-LOC"), "a.jsonl:3")
    warnings = task_report("tag", facts).data_summary([listed], []).warnings
    assert any("(a.jsonl:3, word 2)" in warning for warning in warnings)


def test_a_finished_model_keeps_its_scheme_and_decoder() -> None:
    task, _ = tagger(TagSettings())
    for other, argument in ((TagSettings(decoder="crf"), "decoder"), (TagSettings(scheme="iob2"), "scheme")):
        with pytest.raises(InputError) as caught:
            task.with_settings(other)
        assert (caught.value.code, caught.value.argument) == ("fixed_setting_changed", argument)
    assert task.with_settings(TagSettings(max_length=9)).settings.max_length == 9


def test_a_model_of_before_answers_as_it_did() -> None:
    """Its facts say nothing of what was learnt: its labels are the file's tags, and no order is forbidden."""
    chosen = TagSettings(scheme="as_written")
    task, encoder = tagger(chosen)
    facts = {"labels": ["B-LOC", "B-PER", "I-LOC", "I-PER", "O"], "numbered": False}
    old = fitted_task(
        "tag",
        task.model.config,
        torch.Generator().manual_seed(5),
        {**facts, "scheme": "iob2", "default_label": "O"},
        TagSettings(),
    )
    some = [example([tiny_run.WORDS[i * 7 % 40] for i in range(9)])]
    items = old.encode(some, tiny_run.tokenizer())
    (logits,) = old.model.outputs(encoder, old.model.collate(items))
    (answer,) = answers(some, old, encoder)
    assert answer["tags"] == [facts["labels"][i] for i in logits[1:-1].argmax(-1).tolist()]


@pytest.mark.parametrize("text", ["国正在 北京。", "  kaba  lode\tmigi ", "国 国国"])
def test_of_a_running_text_words_and_entities_have_their_characters(text: str) -> None:
    chosen = TagSettings()
    task, encoder = tagger(chosen)
    task.metadata["characters"] = "国" in text
    (some,) = task_data("tag", chosen).from_inputs({"words": [text]}, ["text 1"])
    (answer,) = answers([some], task, encoder)
    assert [text[a:b] for a, b in answer["offsets"]] == answer["words"]
    assert "".join(answer["words"]) == "".join(text.split())
    for entity in answer["entities"]:
        assert entity["text"] == text[entity["start_char"] : entity["end_char"]]
        assert entity["start_char"] == answer["offsets"][entity["start"]][0]
        assert entity["end_char"] == answer["offsets"][entity["end"] - 1][1]
    (given_words,) = task_data("tag", chosen).from_inputs({"words": [["国正", "在"]]}, ["text 1"])
    (answer,) = answers([given_words], task, encoder)
    assert answer["words"] == ["国正", "在"]
    assert "offsets" not in answer
