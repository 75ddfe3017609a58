"""NNLM, RNN, LSTM, and ELMo in the whole library: trained, resumed, scored, fine-tuned, frozen, and described."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import bertsmith as bs
import tiny_run
from bertsmith.corpus.shards import Shards
from bertsmith.errors import InputError
from bertsmith.inference.model import Model
from bertsmith.pretraining.run import pretrain
from run_equality import assert_same, killed_in, outcome
from task_files import FILES, HEADED, OWN, STEPS

SIZES = {
    "rnn": ["model.hidden_size=16", "model.intermediate_size=24"],
    "lstm": ["model.hidden_size=16", "model.intermediate_size=24"],
    "bilstm": ["model.hidden_size=16", "model.intermediate_size=24", "objective.name=mlm_nsp"],
    "backwards": ["model.hidden_size=16", "model.intermediate_size=24", "model.backwards=true"],
    "elmo": ["model.hidden_size=16", "model.intermediate_size=24", "model.embedding_size=8"],
    "nnlm": [
        "model.hidden_size=20",
        "model.intermediate_size=8",
        "model.embedding_size=4",
        "model.context_size=3",
    ],
}
SIZES["characters"] = [*SIZES["elmo"], "model.embedding_type=char_cnn", "model.tie_word_embeddings=false"]
SIZES["untied"] = [*SIZES["elmo"], "model.tie_directions=false"]
PRESETS = {"bilstm": "lstm", "backwards": "lstm", "characters": "elmo", "untied": "elmo"}
TRAINING = (
    "model.max_position_embeddings=64",
    "model.hidden_dropout_prob=0.1",
    "data.sequence_length=32",
    "data.validation_split=0.1",
    "train.batch_size=4",
    "train.gradient_accumulation_steps=2",
    "train.learning_rate=1e-2",
    "train.max_steps=6",
    "train.save_steps=2",
    "train.threads=1",
    "train.precision=fp32",
    "train.logging_steps=1",
)


def run(shards: Shards, out: Path, name: str, *settings: str, **options: Any) -> Model:
    preset = f"{PRESETS.get(name, name)}-mini"
    changes = [*TRAINING, *SIZES[name], *settings]
    return pretrain(shards, out, preset=preset, settings=changes, **options)


def write_files(task: str, folder: Path) -> list[Path]:
    suffix, write = FILES[task]
    return [
        write(folder / f"{name}.{suffix}", seed) for seed, name in enumerate(("train", "validation", "other"))
    ]


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Shards:
    return tiny_run.make_shards(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="module")
def models(shards: Shards, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Model]:
    folder = tmp_path_factory.mktemp("runs")
    return {name: run(shards, folder / name, name) for name in SIZES}


@pytest.mark.parametrize("name", SIZES)
def test_a_run_learns_and_is_resumed_to_the_bit(
    name: str, shards: Shards, models: dict[str, Model], tmp_path: Path
) -> None:
    log = [json.loads(line) for line in (models[name].path / "log.jsonl").read_text().splitlines()]
    losses = [line["loss"] for line in log if line["kind"] == "train"]
    assert len(losses) == 6
    assert losses[-1] < losses[0]
    with killed_in(4):
        run(shards, tmp_path / "run", name)
    run(shards, tmp_path / "run", name, resume=True)
    assert_same(tmp_path / "run", outcome(models[name].path))


@pytest.mark.parametrize("name", SIZES)
def test_a_loaded_model_embeds_and_is_described(name: str, models: dict[str, Model]) -> None:
    model = bs.load(models[name].path)
    vectors = model.embed(["kaba lode", "mi", ""])
    assert vectors.shape == (3, model.folder.config.hidden_size)
    assert model.info()["config"]["model_type"] == PRESETS.get(name, name)
    with pytest.raises(InputError) as caught:
        model.attention("kaba lode")
    assert caught.value.code == "no_attention"
    if name == "bilstm":
        assert len(model.fill_mask("kaba [MASK]")[0]) == 5
        return
    with pytest.raises(InputError):
        model.fill_mask("kaba [MASK]")


def _log_probabilities(model: Model, ids: list[int]) -> dict[str, list[float]]:
    """Return log p of each token but the first, forward, and of each but the last, backward, from all logits."""
    batch = bs.Packed.from_lists([ids], [[0] * len(ids)])
    head, encoder = model._vocabulary_head, model.encoder
    hidden = encoder(batch)
    weight = encoder.embeddings.token.weight
    halves = hidden.chunk(2, 1) if model.folder.config.model_type == "elmo" else [hidden] * 2
    forward = head(halves[0], weight).log_softmax(1)
    backward = head(halves[1], weight).log_softmax(1)
    last = len(ids) - 1
    return {
        "forward": [forward[i, ids[i + 1]].item() for i in range(last)],
        "backward": [backward[i + 1, ids[i]].item() for i in range(last)],
    }


@pytest.mark.parametrize("name", ["rnn", "lstm", "backwards", "elmo", "characters", "nnlm"])
def test_scores_are_sums_of_log_probabilities(name: str, models: dict[str, Model]) -> None:
    model = bs.load(models[name].path, precision="fp32")
    texts = ["kaba lode mide.", "nu", "soba soba tude kagi."]
    for text, score in zip(texts, model.score(texts), strict=True):
        ids = model.tokenizer.encode(text).ids
        logs = _log_probabilities(model, ids)
        # Special tokens are not part of the text: [SEP] is last, [CLS] first.
        forward, backward = sum(logs["forward"][:-1]), sum(logs["backward"][1:])
        expected = {"backwards": backward, "elmo": (forward + backward) / 2}
        expected["characters"] = expected["elmo"]
        assert score.score == pytest.approx(expected.get(name, forward), abs=1e-4)


def test_windows_of_a_long_text_are_scored_in_both_directions(models: dict[str, Model]) -> None:
    model = bs.load(models["elmo"].path, precision="fp32")
    score = model.score(" ".join(["kaba lode mide."] * 40))
    assert not score.is_complete
    assert score.tokens == 160
    assert score.score is not None
    assert score.score < 0


def test_directions_with_their_own_outputs_have_no_score(models: dict[str, Model]) -> None:
    with pytest.raises(InputError) as caught:
        bs.load(models["untied"].path).score("kaba")
    assert caught.value.code == "directions_not_tied"


@pytest.mark.parametrize(
    ("name", "objective"), [("elmo", "causal"), ("elmo", "mlm_nsp"), ("lstm", "bilm"), ("nnlm", "mlm_nsp")]
)
def test_objectives_of_other_families_are_refused(
    name: str, objective: str, shards: Shards, tmp_path: Path
) -> None:
    with pytest.raises(InputError):
        run(shards, tmp_path / "run", name, f"objective.name={objective}")


def test_words_start_with_vectors_of_a_file(shards: Shards, tmp_path: Path) -> None:
    file = tmp_path / "vectors.txt"
    rows = [
        f"{word} " + " ".join(str((i * 7 + j * 3) % 11 - 5) for j in range(16))
        for i, word in enumerate(tiny_run.WORDS)
    ]
    file.write_text("\n".join(rows) + "\n", encoding="utf-8")
    vectors = f"start.token_vectors={file}"
    model = run(shards, tmp_path / "run", "lstm", vectors, "train.learning_rate=1e-9", "train.max_steps=1")
    table = model.encoder.embeddings.token.weight
    first = torch.tensor([float(x) for x in rows[0].split()[1:]])
    similarity = torch.cosine_similarity(table[len(tiny_run.TOKENS) - len(tiny_run.WORDS)], first, dim=0)
    assert similarity.item() == pytest.approx(1, abs=1e-4)
    with pytest.raises(InputError) as caught:
        run(shards, tmp_path / "other", "characters", vectors)
    assert caught.value.argument == "start.token_vectors"


@pytest.mark.parametrize("name", ["lstm", "bilstm", "elmo", "nnlm"])
@pytest.mark.parametrize("task", HEADED)
def test_every_task_is_fine_tuned_saved_and_answered(
    task: str, name: str, models: dict[str, Model], tmp_path: Path
) -> None:
    train, validation, other = write_files(task, tmp_path)
    settings = [*STEPS, *OWN.get(task, [])]
    tuned = bs.finetune(
        task.split()[0], models[name], tmp_path / "run", train=train, validation=validation, settings=settings
    )
    again = bs.load(tmp_path / "run", precision="fp32")
    examples = again.predictor.read(other)
    items = again.task.encode(examples, again.tokenizer)
    outputs, before = (
        model.task.model.run(model.encoder, items, model.context).per_item for model in (again, tuned)
    )
    assert len(outputs) == len(items) > 0
    assert all(map(torch.equal, outputs, before))


@pytest.mark.parametrize("task", [name for name in HEADED if name != "classify many"])
def test_frozen_layers_of_an_elmo_are_mixed(task: str, models: dict[str, Model], tmp_path: Path) -> None:
    """The features of Peters et al. 2018: three layers, weights learned per task, and the encoder unchanged."""
    train, validation, _ = write_files(task, tmp_path)
    settings = [*STEPS, "task.layers=sum_with_embeddings", "train.freeze_encoder=true"]
    tuned = bs.finetune(
        task, models["elmo"], tmp_path / "run", train=train, validation=validation, settings=settings
    )
    before, after = models["elmo"].encoder.state_dict(), tuned.encoder.state_dict()
    assert all(torch.equal(before[name], tensor) for name, tensor in after.items())
    weights = bs.load(tmp_path / "run").folder.weights()["mix.weights"]
    assert len(weights) == 3
    assert weights.softmax(0).sum().item() == pytest.approx(1)
    assert len(set(weights.tolist())) == 3  # they were trained


@pytest.mark.parametrize("preset", ["lstm-mini", "elmo-mini"])
def test_a_tagger_without_pre_training_reads_both_sides(preset: str, tmp_path: Path) -> None:
    sizes = {"hidden_size": 16, "intermediate_size": 24, "max_position_embeddings": 64}
    elmo = {"embedding_size": 8, "embedding_type": "char_cnn", "tie_word_embeddings": False}
    changes = elmo if preset == "elmo-mini" else {"causal": False}
    base = bs.create_model(preset, tiny_run.tokenizer(), tmp_path / "base", **sizes, **changes)
    if preset == "elmo-mini":
        assert (base.encoder.embeddings.token.characters.count_nonzero(1) > 2).all()
    train, validation, _ = write_files("tag", tmp_path)
    tuned = bs.finetune(
        "tag",
        base,
        tmp_path / "run",
        train=train,
        validation=validation,
        settings=[*STEPS, "train.max_steps=20"],
    )
    assert tuned.folder.architecture == f"{preset.split('-')[0].title()}ForTokenClassification"
    assert tuned.report["validation"]["accuracy"] > 0.6


@pytest.mark.parametrize("name", ["lstm", "characters", "untied"])
def test_words_are_added_to_a_model(name: str, models: dict[str, Model], tmp_path: Path) -> None:
    words = tmp_path / "words.txt"
    words.write_text("zebra\nquagga\n", encoding="utf-8")
    bs.extend_tokenizer([], tmp_path / "more", model=models[name].path, word_list=words)
    more, before = (bs.load(path, precision="fp32") for path in (tmp_path / "more", models[name].path))
    assert more.folder.config.vocab_size == before.folder.config.vocab_size + 2
    assert (more.embed(["kaba lode"]) == before.embed(["kaba lode"])).all()
    first, second = (more.embed([word]) for word in ("zebra", "quagga"))
    assert (first != second).any() == (name == "characters")  # both were [UNK], and characters differ


@pytest.mark.parametrize("name", SIZES)
def test_exported_hidden_states_of_mixed_lengths_equal_the_original(
    name: str, models: dict[str, Model], tmp_path: Path
) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    model = models[name]
    (file,) = bs.export_model(model, tmp_path / "out").files
    assert file["difference"] <= 1e-4
    session = onnxruntime.InferenceSession(tmp_path / "out" / "onnx" / "model.onnx")
    draw = np.random.default_rng(0)
    for lengths in ([1], [1, 2], [9, 1, 30, 9], [2, 64, 3]):
        rows = [draw.integers(5, model.tokenizer.vocab_size, n).tolist() for n in lengths]
        length = max(lengths)
        inputs = {
            "input_ids": np.array([row + [0] * (length - len(row)) for row in rows]),
            "attention_mask": np.array([[1] * n + [0] * (length - n) for n in lengths]),
        }
        (padded,) = session.run(["last_hidden_state"], inputs)
        expected = model.encoder(bs.Packed.from_lists(rows, [[0] * n for n in lengths])).detach().numpy()
        states = np.concatenate([states[:n] for states, n in zip(padded, lengths, strict=True)])
        np.testing.assert_allclose(states, expected, atol=1e-4)


@pytest.mark.parametrize("name", SIZES)
def test_a_plan_has_the_parameters_of_the_run(name: str, shards: Shards, models: dict[str, Model]) -> None:
    changes = [*TRAINING, *SIZES[name]]
    plan = bs.plan_pretraining(
        shards, preset=f"{PRESETS.get(name, name)}-mini", settings=changes, benchmark=False
    )
    assert plan.parameters == models[name].info()["parameters"]
    assert plan.updates == 6


@pytest.mark.parametrize("name", ["lstm", "elmo"])
def test_a_card_shows_what_the_model_can_do(name: str, models: dict[str, Model]) -> None:
    text = bs.card(models[name], name="someone/model")
    assert "fill_mask" not in text
    assert "transformers has no class with these layers" in text


def test_an_nnlm_is_fine_tuned_on_words_anywhere_in_a_text(tmp_path: Path) -> None:
    """With default settings; the last four tokens, on which the last state depends, are always the same."""
    sizes = {"hidden_size": 60, "intermediate_size": 20, "embedding_size": 10, "context_size": 4}
    base = bs.create_model("nnlm-mini", tiny_run.tokenizer(), tmp_path / "nnlm", **sizes)
    rows = [
        {"text": f"{text} {' '.join(tiny_run.WORDS[10:16])}", "label": label}
        for text, label in tiny_run.examples(240)
    ]
    settings = {"train.threads": 1, "train.head_probe": False}
    model = bs.finetune(
        "classify", base, tmp_path / "run", train=rows[:180], validation=rows[180:], settings=settings
    )
    assert model.evaluate(rows[180:]).accuracy > 0.9  # chance is 0.33
