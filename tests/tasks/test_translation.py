"""Translation: toy pairs are learned exactly, texts are searched, scored, and reported."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from click.testing import CliRunner

import bertsmith as bs
import tiny_run
from bertsmith.cli.main import bertsmith
from bertsmith.models.decoder import EncodedSource
from bertsmith.tasks.settings import TranslateSettings
from task_files import translated

PAIRS = [
    ("je suis etudiant", "I am a student"),
    ("我爱中国", "I love China"),
    ("机器学习", "machine learning"),
]
ROWS = [{"source": source, "target": target} for source, target in PAIRS]
SOURCES = [source for source, _ in PAIRS]
TARGETS = [target for _, target in PAIRS]
SIZES = {
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "max_position_embeddings": 32,
}
FEW = {"threads": 1, "precision": "fp32", "report_to": "none", "kernels": "torch"}


def tokenizer() -> bs.Tokenizer:
    words = {word for pair in PAIRS for text in pair for word in text.split() if word.isascii()}
    pieces = [*tiny_run.TOKENS[:5], *sorted(words), *"我爱中国机器学习"]
    return bs.Tokenizer.from_vocabulary(pieces, lowercase=False, max_length=32)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> bs.Model:
    folder = tmp_path_factory.mktemp("fresh") / "model"
    return bs.create_model("bert-mini-uncased", tokenizer(), folder, initializer_range=0.1, **SIZES)


@pytest.fixture(scope="module", params=["transformer dot", "lstm dot", "lstm additive", "lstm none"])
def learned(
    request: pytest.FixtureRequest, base: bs.Model, tmp_path_factory: pytest.TempPathFactory
) -> bs.Model:
    decoder, score = request.param.split()
    return bs.finetune(
        "translate",
        base,
        tmp_path_factory.mktemp("run") / "run",
        train=ROWS,
        validation=ROWS,
        num_train_epochs=100,
        eval_steps=50,
        learning_rate=5e-3,
        batch_size=3,
        hidden_dropout_prob=0.0,
        decoder_type=decoder,
        attention_score=score,
        **FEW,
    )


def test_toy_pairs_are_learned_exactly(learned: bs.Model) -> None:
    assert learned.evaluate(ROWS).exact_match == 1
    again = bs.load(learned.path)
    for num_beams in (1, 4):
        assert [p.translation for p in again.predict(SOURCES, num_beams=num_beams)] == TARGETS


def test_the_decoder_is_saved_as_a_part(learned: bs.Model) -> None:
    settings = learned.task.settings
    part = {"dot": "recurrent_decoder", "none": "recurrent_decoder", "additive": "additive_decoder"}
    expected = "decoder" if settings.decoder_type == "transformer" else part[settings.attention_score]
    assert learned.folder.parts == {"encoder", expected}
    weights = sum(tensor.numel() for tensor in learned.folder.weights().values())
    assert learned.info()["parameters"] == weights


def test_beams_never_lower_the_score(learned: bs.Model) -> None:
    sources = ["je 爱", "机 suis 国", "学 etudiant 我 je", "am", "China love 习"]  # which it has not learned
    greedy, beams = (learned.predict(sources, num_beams=count) for count in (1, 5))
    assert all(b.score >= g.score - 1e-6 for g, b in zip(greedy, beams, strict=True))


def test_the_score_is_the_mean_log_probability_of_the_text(learned: bs.Model) -> None:
    """The step-wise probabilities of the text are those that the model gives it as a target."""
    (prediction,) = learned.predict(SOURCES[:1], num_beams=2)
    smoothing_free = learned.task.settings.model_copy(update={"label_smoothing": 0.0})
    model = learned.task.model
    items = learned.predictor.preprocess(learned.predictor.read([ROWS[0]]))
    settings, model.settings = model.settings, smoothing_free
    try:
        with torch.inference_mode():
            loss = model.loss(learned.encoder, model.collate(items))
    finally:
        model.settings = settings
    assert loss.counts == {"task": 5}  # four words and [SEP]
    assert -float(loss.sums["task"]) / 5 == pytest.approx(prediction.score, abs=1e-5)


def test_label_smoothing_is_the_papers(learned: bs.Model) -> None:
    """0.9 of the target distribution is on the label, and 0.1 is spread over the whole vocabulary."""
    model, encoder = learned.task.model, learned.encoder
    batch = model.collate(learned.predictor.preprocess(learned.predictor.read(ROWS)))
    logits: list[torch.Tensor] = []
    handle = model.decoder.register_forward_hook(lambda module, inputs, output: logits.append(output))
    try:
        with torch.inference_mode():
            loss = model.loss(encoder, batch)
            log_probabilities = (logits[0] @ encoder.embeddings.token.weight.T).log_softmax(-1)
    finally:
        handle.remove()
    labels = F.one_hot(batch.tensors["target_labels"], log_probabilities.shape[1])
    smoothed = 0.9 * labels + 0.1 / log_probabilities.shape[1]
    assert float(loss.sums["task"]) == pytest.approx(-float((smoothed * log_probabilities).sum()), rel=1e-5)


def test_the_decoder_of_a_trained_model_stays(learned: bs.Model) -> None:
    other = "lstm" if learned.task.settings.decoder_type == "transformer" else "transformer"
    with pytest.raises(bs.InputError) as caught:
        learned.predict(SOURCES, decoder_type=other, attention_score="dot")
    assert caught.value.code == "fixed_setting_changed"


def test_scores_belong_to_recurrent_decoders() -> None:
    with pytest.raises(bs.InputError) as caught:
        TranslateSettings.of({"attention_score": "additive"}, "settings")
    assert "attention_score" in str(caught.value)


def test_an_empty_target_is_named(base: bs.Model, tmp_path: Path) -> None:
    file = tiny_run.table(tmp_path / "pairs.csv", [("je suis", "I am"), ("je", " ")], header="source,target")
    with pytest.raises(bs.InputError) as caught:
        bs.finetune("translate", base, tmp_path / "run", train=file, validation=file)
    assert caught.value.code == "target_missing"
    assert str(caught.value.location).endswith("pairs.csv:3")
    assert not (tmp_path / "run").exists()


def test_long_texts_are_truncated_and_counted(base: bs.Model, tmp_path: Path) -> None:
    rows = [{"fr": "je " * 50, "en": "I " * 60}, *({"fr": s, "en": t} for s, t in PAIRS)]
    columns = {"text_column": "fr", "target_column": "en", "max_target_length": 12}
    run = bs.finetune(
        "translate", base, tmp_path / "run", train=rows, validation=rows, max_steps=1, **columns, **FEW
    )
    cut = run.evaluate(rows).truncation["cut"]
    assert cut == {**cut, "texts": 1, "tokens": 50 + 60 - 30 - 10}
    assert all(p.translation.count(" ") < 11 for p in run.predict(["je " * 50], num_beams=3))


def test_a_frozen_encoder_and_an_empty_text(base: bs.Model, tmp_path: Path) -> None:
    run = bs.finetune(
        "translate",
        base,
        tmp_path / "run",
        train=ROWS,
        validation=ROWS,
        freeze_encoder=True,
        max_steps=2,
        **FEW,
    )
    before, after = (model.encoder.embeddings.token.weight for model in (base, run))
    assert torch.equal(before, after)
    assert run.predict([" "])[0].to_dict() == {
        "translation": None, "score": None, "tokens": 0, "tokens_read": 0, "empty": True,
    }  # fmt: skip


def test_the_text_and_each_of_its_tokens_are_explained(learned: bs.Model, tmp_path: Path) -> None:
    prediction = learned.predict(SOURCES[0])
    explanation = learned.explain(SOURCES[0], attention=True)
    assert explanation.target == prediction.translation == TARGETS[0]
    assert explanation.output == pytest.approx(5 * prediction.score, abs=1e-4)  # the tokens and [SEP]
    assert explanation.gap < 0.01
    assert [word.word for word in explanation.words] == SOURCES[0].split()
    token = learned.explain(SOURCES[0], target="3")
    assert token.target == "3=student"
    assert token.gap < 0.01
    assert max(abs(value) for value in token.attributions) > 0
    *_, maps = explanation.attention
    if "recurrent_decoder" in learned.folder.parts and learned.task.settings.attention_score == "none":
        assert not maps.title
        return
    assert maps.title
    assert maps.tokens == [*explanation.tokens, "[CLS]", *TARGETS[0].split()]
    own, weights = maps.weights[..., :5, :], maps.weights[..., 5:, :]
    assert not own.any()
    assert not weights[..., 5:].any()
    np.testing.assert_allclose(weights.sum(-1), 1, atol=1e-5)
    explanation.save(tmp_path / "page.html")
    assert maps.title in (tmp_path / "page.html").read_text(encoding="utf-8")


def test_what_a_translator_cannot_explain(learned: bs.Model) -> None:
    for options, code in (({"target": "9"}, "unknown_target"), ({"probability": True}, "no_probability")):
        with pytest.raises(bs.InputError) as caught:
            learned.explain(SOURCES[0], **options)
        assert caught.value.code == code


def test_the_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From a tokenizer to a prediction, without pre-training."""
    monkeypatch.chdir(tmp_path)
    tiny_run.tokenizer().save(tmp_path / "tokenizer")
    translated(tmp_path / "pairs.csv", 0)
    sizes = " ".join(f"--set model.{name}={value}" for name, value in SIZES.items())
    few = "--steps 2 --threads 1 --set train.report_to=none"
    files = "--train pairs.csv --validation pairs.csv --output-dir run"
    calls = [
        f"create bert-mini-uncased --tokenizer tokenizer --output-dir fresh --json {sizes}",
        f"finetune translate --model fresh {files} {few}",
        "evaluate run --data pairs.csv --num-beams 2 --json",
        "predict run kaba --json",
    ]
    outputs = []
    for call in calls:
        result = CliRunner().invoke(bertsmith, call.split())
        assert result.exit_code == 0, result.output
        outputs.append(result.stdout)
    created, _, scores, predictions = outputs
    assert json.loads(created)["parameters"] > 0
    assert {"chrf", "exact_match", "examples"} <= json.loads(scores).keys()
    assert "translation" in json.dumps(json.loads(predictions))


def test_the_noam_schedule_is_inverse_sqrt() -> None:
    """lr d^−0.5 · min(t^−0.5, t · 4000^−1.5), with the peak (d · 4000)^−0.5 at the end of the warm-up."""
    from bertsmith.training.lr_schedule import learning_rate
    from bertsmith.training.settings import TrainSettings

    settings = TrainSettings(lr_scheduler_type="inverse_sqrt", learning_rate=(512 * 4000) ** -0.5)
    for update in (1, 100, 3999, 4000, 4001, 100_000):
        expected = 512**-0.5 * min(update**-0.5, update * 4000**-1.5)
        assert math.isclose(learning_rate(update, 4000, 100_000, settings), expected, rel_tol=1e-12)


@pytest.mark.parametrize("decoder", ["transformer", "lstm"])
@pytest.mark.parametrize(
    ("preset", "changes"),
    [
        ("transformer-mini", {}),
        ("albert-mini", {"embedding_size": 16}),
        ("roberta-mini", {}),
        ("lstm-mini", {"num_attention_heads": 1}),
        ("lstm-mini", {"num_attention_heads": 1, "causal": True}),
        ("elmo-mini", {"num_attention_heads": 1, "embedding_size": 16}),
    ],
)
def test_any_encoder_with_token_vectors(
    preset: str, changes: dict[str, Any], decoder: str, tmp_path: Path
) -> None:
    """It is trained, saved, and opened; a target is as probable as a whole as it is token by token."""
    base = bs.create_model(preset, tokenizer(), tmp_path / "fresh", **{**SIZES, **changes})
    few = {"max_steps": 2, "label_smoothing": 0.0, "decoder_type": decoder, **FEW}
    run = bs.finetune("translate", base, tmp_path / "run", train=ROWS, validation=ROWS, **few)
    assert run.info()["parameters"] == sum(tensor.numel() for tensor in run.folder.weights().values())
    model, embeddings = run.task.model, run.encoder.embeddings
    items = run.predictor.preprocess(run.predictor.read([{**ROWS[0], "target": "am China"}]))
    batch, target = model.collate(items), items[0].target
    with torch.inference_mode():
        state = model.decoder.start(EncodedSource(run.encoder(batch.packed), batch.packed))
        steps = [
            model.decoder.step(embeddings, token[None], state) for token in torch.from_numpy(target[:-1])
        ]
        logits = torch.cat(steps) @ embeddings.token.weight.T
        expected = F.cross_entropy(logits, torch.from_numpy(target[1:]), reduction="sum")
        loss = model.loss(run.encoder, batch).sums["task"]
    assert float(loss) == pytest.approx(float(expected), rel=1e-5)


@pytest.mark.parametrize(
    ("preset", "changes"),
    [("nnlm-mini", {}), ("elmo-mini", {"embedding_type": "char_cnn", "tie_word_embeddings": False})],
)
def test_a_decoder_needs_token_vectors(preset: str, changes: dict[str, Any], tmp_path: Path) -> None:
    base = bs.create_model(preset, tokenizer(), tmp_path / "fresh", **changes)
    with pytest.raises(bs.InputError) as caught:
        bs.finetune("translate", base, tmp_path / "run", train=ROWS, validation=ROWS, max_steps=1, **FEW)
    assert caught.value.code == "no_token_vectors"
