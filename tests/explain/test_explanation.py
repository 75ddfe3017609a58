"""Attributions: their sum, formulas, faithfulness on planted outputs, the page, and the command."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from numpy.typing import NDArray

import bertsmith as bs
import tiny_run
from bertsmith.cli.main import bertsmith
from bertsmith.device import ComputeContext
from bertsmith.errors import InputError
from bertsmith.explain.attribution import ExplainedOutput, baseline_ids
from bertsmith.explain.explanation import explain_task
from bertsmith.explain.faithfulness import measure_faithfulness
from bertsmith.explain.page import render_explanations
from bertsmith.io.sources import to_source
from bertsmith.kernels.backend_selection import is_numba_available
from bertsmith.models.family import build_encoder
from bertsmith.packed import Packed
from bertsmith.tasks.batching import Item, TokenSequence
from bertsmith.tasks.fitted_task import FittedTask
from bertsmith.tasks.registry import get_task

TOKENIZER = tiny_run.tokenizer()
CONTEXT = ComputeContext.create("cpu", "fp32")
TEXT = "kaba lode mi kaba"
ROWS: dict[str, list[dict[str, Any]]] = {
    "classify": [{"text": TEXT, "label": "joy"}, {"text": "mi", "label": "fear"}],
    "regress": [{"text": TEXT, "label": 1.5}, {"text": "mi", "label": 0.5}],
    "tag": [{"words": TEXT.split(), "tags": ["B-PER", "I-PER", "O", "O"]}],
    "answer": [{"question": "kaba", "context": TEXT, "answer": "lode mi", "start": 5}],
    "choose": [{"context": TEXT, "choices": ["mi", "lode"], "label": 1}],
    "relate": [
        {"text": "<e1>kaba</e1> lode <e2>mi</e2>", "label": "a"},
        {"text": "<e1>mi</e1> lode <e2>kaba</e2>", "label": "b"},
    ],
    "embed": [
        {"sentence1": TEXT, "sentence2": "mi lode", "label": 0.5},
        {"sentence1": "mi", "sentence2": "mi", "label": 1.0},
    ],
}
TARGETS = {
    "classify": "fear",
    "tag": "1=I-PER",
    "answer": "none",
    "choose": "0",
    "relate": "b",
    "embed": "cosine",
}


def fitted(name: str, **changes: Any) -> tuple[Any, FittedTask, Any]:
    """Return an encoder and a task with random weights, and the first example.

    changes: settings of the task; with a second encoder the model is causal.
    """
    config = bs.ModelConfig(
        vocab_size=TOKENIZER.vocab_size,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=64,
        initializer_range=0.3,
        causal="second_encoder" in changes,
    )
    generator, declaration = torch.Generator().manual_seed(0), get_task(name)
    settings = declaration.settings_type(**changes)
    data = declaration.part("data")(settings, {})
    examples = data.read(to_source(ROWS[name], "data", data.tuple_columns))
    task = FittedTask.create(declaration, config, generator, data.fit_metadata(examples, None), settings)
    task.model.eval()
    return build_encoder(config, generator).eval(), task, examples[0]


@pytest.mark.parametrize("name", ROWS)
def test_attributions_sum_to_the_difference_of_the_outputs(name: str) -> None:
    encoder, task, example = fitted(name)
    for target in {None, TARGETS.get(name)}:
        result = explain_task(encoder, task, TOKENIZER, CONTEXT, example, {}, target=target)
        difference = result.output - result.baseline_output
        assert result.gap < 0.01
        assert sum(result.attributions) == pytest.approx(difference, abs=0.011 * max(abs(difference), 1e-3))
        assert target is None or result.target.startswith(target)
        assert sum(word.attribution for word in result.words) == pytest.approx(sum(result.attributions))


@pytest.mark.parametrize(
    ("name", "targets"),
    [
        ("classify", ["joy", "fear"]),
        ("tag", ["1=B-PER", "1=E-PER", "1=I-PER", "1=O", "1=S-PER"]),
        ("choose", ["0", "1"]),
        ("relate", ["a", "b"]),
    ],
)
def test_the_probabilities_of_all_targets_sum_to_one(name: str, targets: list[str]) -> None:
    encoder, task, example = fitted(name)
    results = [
        explain_task(encoder, task, TOKENIZER, CONTEXT, example, {}, target=target, probability=True)
        for target in targets
    ]
    assert sum(result.output for result in results) == pytest.approx(1)
    assert all(result.gap < 0.01 for result in results)


@pytest.mark.parametrize("name", ["regress", "answer", "embed"])
def test_outputs_without_a_probability_are_refused(name: str) -> None:
    encoder, task, example = fitted(name)
    with pytest.raises(InputError) as caught:
        explain_task(encoder, task, TOKENIZER, CONTEXT, example, {}, probability=True)
    assert (caught.value.code, caught.value.argument) == ("no_probability", "probability")


@pytest.mark.parametrize("name", ["classify", "regress", "tag"])
def test_attributions_of_two_encoders_sum_to_the_difference(name: str) -> None:
    encoder, task, example = fitted(name, second_encoder="its run")
    result = explain_task(encoder, task, TOKENIZER, CONTEXT, example, {})
    assert result.gap < 0.01
    assert all(word.attribution for word in result.words)


@pytest.mark.parametrize("name", ["classify", "regress", "answer", "embed"])
def test_words_have_their_characters(name: str) -> None:
    encoder, task, example = fitted(name)
    texts = {name: value for name, value in ROWS[name][0].items() if name not in ("label", "answer", "start")}
    result = explain_task(encoder, task, TOKENIZER, CONTEXT, example, texts)
    assert {word.source for word in result.words} == set(texts)
    for word in result.words:
        assert word.source is not None
        assert texts[word.source][word.start : word.end] == word.word


def test_words_of_choices_have_their_characters_in_each_sequence() -> None:
    encoder, task, example = fitted("choose")
    texts = {"context": TEXT, "choices[0]": "mi", "choices[1]": "lode"}
    words = explain_task(encoder, task, TOKENIZER, CONTEXT, example, texts).words
    assert [word.source for word in words] == ["context"] * 4 + ["choices[0]"] + ["context"] * 4 + [
        "choices[1]"
    ]
    assert all(texts[word.source or ""][word.start : word.end] == word.word for word in words)


def test_equal_texts_are_found_in_their_order() -> None:
    encoder, task, example = fitted("embed")
    texts = {"sentence1": "mi", "sentence2": "mi"}
    example = replace(example, query="mi", positives=("mi",))
    words = explain_task(encoder, task, TOKENIZER, CONTEXT, example, texts).words
    assert [word.source for word in words] == ["sentence1", "sentence2"]


def test_unknown_words_are_explained() -> None:
    encoder, task, example = fitted("classify")
    text = "kaba 😀"
    result = explain_task(encoder, task, TOKENIZER, CONTEXT, replace(example, text=text), {"text": text})
    assert "[UNK]" in result.tokens
    assert [(word.word, word.start) for word in result.words] == [("kaba", 0), ("😀", 5)]
    assert all(word.attribution and word.occlusion for word in result.words)


@pytest.mark.parametrize(("name", "count"), [("classify", 1), ("answer", 1), ("choose", 2), ("embed", 2)])
def test_attention_is_that_of_each_sequence_of_the_item(name: str, count: int) -> None:
    encoder, task, example = fitted(name)
    result = explain_task(encoder, task, TOKENIZER, CONTEXT, example, {}, attention=True)
    (item,) = task.encode([example], TOKENIZER)
    assert [len(maps.tokens) for maps in result.attention] == [len(s.ids) for s in item.sequences]
    assert len(result.attention) == count
    assert result.tokens == [token for maps in result.attention for token in maps.tokens]
    sequence, maps = item.sequences[-1], result.attention[-1]
    packed = Packed.from_lists([sequence.ids.tolist()], [sequence.segments.tolist()])
    np.testing.assert_allclose(maps.weights[1], encoder.attention_maps(packed)[1][0].detach(), atol=1e-6)


def test_integrated_gradients_equal_the_formula() -> None:
    encoder, task, example = fitted("classify")
    (item,) = task.encode([example], TOKENIZER)
    ids = torch.from_numpy(item.sequences[0].ids.astype(np.int64))[None]
    start_ids = torch.from_numpy(baseline_ids(item, TOKENIZER, "pad"))[None]
    table, steps = encoder.embeddings.token.weight.detach(), 7
    x, start = table[ids], table[start_ids]
    nodes, weights = np.polynomial.legendre.leggauss(steps)
    expected = torch.zeros(x.shape[1])
    for node, weight in zip(nodes, weights, strict=True):
        point = (start + (1 + node) / 2 * (x - start)).float().requires_grad_()
        hook = encoder.embeddings.token.register_forward_hook(lambda *_, point=point: point[0])
        logits = task.model.head(encoder(ids)[:, 0])
        hook.remove()
        (grad,) = torch.autograd.grad(logits[0, 1], point)
        expected += weight / 2 * (grad * (x - start)).sum(-1)[0]
    result = explain_task(
        encoder, task, TOKENIZER, CONTEXT, example, {}, target=task.labels[1], baseline="pad", steps=steps
    )
    torch.testing.assert_close(torch.tensor(result.attributions), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("baseline", ["mask", "pad", "zero"])
def test_occlusion_is_what_a_masked_word_takes_away(baseline: Any) -> None:
    encoder, task, example = fitted("classify")
    result = explain_task(encoder, task, TOKENIZER, CONTEXT, example, {}, baseline=baseline)
    (item,) = task.encode([example], TOKENIZER)
    if baseline == "zero":
        return
    ids = item.sequences[0].ids.copy()
    ids[result.words[1].tokens] = TOKENIZER.mask_token_id if baseline == "mask" else TOKENIZER.pad_token_id
    sequence = TokenSequence(ids, item.sequences[0].segments, 0, 0)
    outputs = task.model.run(encoder, [item, Item(1, (sequence,))], CONTEXT).per_item
    label = task.labels.index(result.target)
    assert result.words[1].occlusion == pytest.approx(
        float(outputs[0][0, label] - outputs[1][0, label]), abs=1e-5
    )


def test_the_faithfulness_of_a_sum() -> None:
    weights = np.array([4.0, -1.0, 2.0, 1.0])

    def scores(masked: NDArray[np.bool_]) -> NDArray[np.float64]:
        result: NDArray[np.float64] = (~masked) @ weights
        return result

    best, worst = (
        measure_faithfulness(weights.tolist(), scores),
        measure_faithfulness((-weights).tolist(), scores),
    )
    assert best.deletion == [6, 2, 0, -1, 0]
    assert best.insertion == [0, 4, 6, 7, 6]
    assert best.comprehensiveness == pytest.approx(np.mean([4, 6, 7]))
    assert best.sufficiency == pytest.approx(np.mean([2, 0, -1]))
    assert (best.normalized_comprehensiveness, best.normalized_sufficiency) == (1, 0)
    assert (worst.normalized_comprehensiveness, worst.normalized_sufficiency) == (0, 1)
    assert worst.comprehensiveness < best.random_comprehensiveness < best.comprehensiveness


def test_an_output_that_no_word_changes_has_no_normalized_faithfulness() -> None:
    measured = measure_faithfulness([1.0, 2.0, 3.0], lambda masked: np.ones(len(masked)))
    assert (measured.comprehensiveness, measured.normalized_comprehensiveness) == (0, None)


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"target": "nothing"}, "unknown_target"),
        ({"baseline": "blank"}, "unknown_baseline"),
        ({"steps": 0}, "invalid_steps"),
        ({"steps": 10**6}, "invalid_steps"),
    ],
)
def test_unknown_options_are_refused(options: dict[str, Any], code: str) -> None:
    encoder, task, example = fitted("classify")
    with pytest.raises(InputError) as caught:
        explain_task(encoder, task, TOKENIZER, CONTEXT, example, {}, **options)
    assert (caught.value.code, caught.value.argument) == (code, next(iter(options)))


def test_a_text_that_is_not_read_as_a_whole_is_refused() -> None:
    encoder, task, _ = fitted("classify")
    (example,) = task.data.from_inputs({"text": ["kaba " * 100]}, ["text 1"])
    with pytest.raises(InputError) as caught:
        explain_task(encoder, task, TOKENIZER, CONTEXT, example, {})
    assert caught.value.code == "text_too_long"


def test_a_pretrained_model_explains_a_mask(base: bs.Model) -> None:
    result, best = base.explain("kaba [MASK] lode"), base.fill_mask("kaba [MASK] lode", top_k=1)[0][0]
    assert result.target == best.token
    assert base.explain("kaba [MASK] lode", probability=True).output == pytest.approx(best.score, abs=1e-4)
    assert [word.word for word in result.words] == ["kaba", "lode"]
    with pytest.raises(InputError) as caught:
        base.explain("kaba lode")
    assert caught.value.code == "mask_missing"


@pytest.mark.skipif(not is_numba_available(), reason="the compiled kernels need Numba")
def test_compiled_kernels_give_the_same_attributions() -> None:
    text = "Paris is the [MASK] of France."
    exact, compiled = (
        bs.load("bert-mini-uncased-en", precision=precision).explain(text, steps=4)
        for precision in ("auto", "fp32")
    )
    assert compiled.attributions == pytest.approx(exact.attributions, abs=1e-4)


def test_the_page_escapes_texts_and_needs_no_network() -> None:
    encoder, task, _ = fitted("classify")
    text = "kaba </script><img src=x onerror=alert(1)> mi"
    (example,) = task.data.from_inputs({"text": [text]}, ["text 1"])
    explanation = explain_task(encoder, task, TOKENIZER, CONTEXT, example, {"text": text})
    page = render_explanations([replace(explanation, model="</title><b>")])
    assert "<img" not in page
    assert "<b>" not in page
    assert "http://" not in page.replace("http://www.w3.org", "")


def test_the_command_prints_words_and_writes_the_page(base: bs.Model, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    arguments = ["explain", str(base.path), "kaba [MASK] lode", "--json", "--output", str(page)]
    result = CliRunner().invoke(bertsmith, arguments)
    document = json.loads(result.stdout)
    assert document == base.explain("kaba [MASK] lode").to_dict()
    result = CliRunner().invoke(bertsmith, [*arguments, "--probability"])
    assert json.loads(result.stdout) == base.explain("kaba [MASK] lode", probability=True).to_dict()
    assert document["target"] in page.read_text(encoding="utf-8")


def test_the_command_reads_choices_as_a_list(base: bs.Model, tmp_path: Path) -> None:
    rows = [*ROWS["choose"], {"context": "mi", "choices": ["mi", "kaba"], "label": 0}]
    run, page = tmp_path / "run", tmp_path / "page.html"
    bs.finetune(
        "choose", base.path, run, train=rows, validation=rows, max_steps=1, settings=["train.report_to=none"]
    )
    command = ["explain", str(run), TEXT, '["mi", "lode", "kaba"]', "--target", "2", "--output", str(page)]
    result = CliRunner().invoke(bertsmith, command)
    assert result.exit_code == 0, result.output
    assert re.sub("<[^>]+>", "", page.read_text()).count(TEXT) == 3
    words = bs.load(run).explain(context=TEXT, choices=["mi", "lode"]).words
    assert {word.source for word in words} == {"context", "choices[0]", "choices[1]"}


def test_words_between_markers_have_their_place_in_the_text(tmp_path: Path) -> None:
    text = "The <e1>mayor</e1> of Springfield met @ noon with <e2>Ada</e2>, @home."
    rows = [{"text": text, "label": label} for label in "ab"]
    run = bs.finetune(
        "relate", "bert-mini-uncased-en", tmp_path / "run", train=rows, validation=rows, max_steps=1,
        settings=["train.report_to=none"],
    )  # fmt: skip
    words = run.explain(text, steps=1).words
    placed = [word for word in words if word.source is not None]
    assert [word.word for word in words if word.source is None] == ["@", "@", "#", "#"]
    assert " ".join(word.word for word in placed) == "The mayor of Springfield met @ noon with Ada , @ home ."
    assert all(word.word == text[word.start : word.end] for word in placed)


def test_the_page_of_a_model_without_attention_has_none(base: bs.Model, tmp_path: Path) -> None:
    folder, run, page = tmp_path / "lstm", tmp_path / "run", tmp_path / "page.html"
    sizes: dict[str, Any] = {"hidden_size": 16, "num_hidden_layers": 1}
    bs.create_model("lstm-mini", TOKENIZER, folder, **sizes)
    rows, settings = ROWS["classify"], ["train.report_to=none"]
    bs.finetune("classify", folder, run, train=rows, validation=rows, max_steps=1, settings=settings)
    result = CliRunner().invoke(bertsmith, ["explain", str(run), TEXT, "--output", str(page)])
    assert result.exit_code == 0, result.output
    assert "Faithfulness" in page.read_text()
    assert "<script" not in page.read_text()


def test_copies_of_an_item_do_not_depend_on_each_other() -> None:
    encoder, task, example = fitted("choose")
    items = task.encode([example], TOKENIZER)
    _, score = task.decoder.target(torch.zeros(2), items[0], "1")
    explained = ExplainedOutput(
        [encoder.embeddings.token],
        items[0],
        lambda copies: task.model.outputs(encoder, task.model.collate(copies)),
        score,
        baseline_ids(items[0], TOKENIZER, "mask"),
    )
    masks = np.eye(len(explained.ids), dtype=bool)
    alone = [float(explained.scores(mask[None])[0]) for mask in masks]
    assert explained.scores(masks).tolist() == pytest.approx(alone, abs=1e-6)


def test_outputs_that_are_not_finite_are_an_error() -> None:
    encoder, task, example = fitted("classify")
    with torch.no_grad():
        task.model.head.classifier.linear.weight.fill_(3e38)
    with pytest.raises(FloatingPointError):
        explain_task(encoder, task, TOKENIZER, CONTEXT, example, {})
