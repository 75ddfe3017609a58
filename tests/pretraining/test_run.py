"""Budgets, presets and resumes of pre-training as people type them; the finished model in any order of calls."""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import numpy as np
import pytest
import torch

import bertsmith as bs
import tiny_run
from bertsmith import hardware
from bertsmith.corpus.shards import Shards
from bertsmith.errors import InputError
from bertsmith.instances.holdout_split import split_documents
from bertsmith.pretraining import job as workflow
from bertsmith.pretraining.resolve_settings import SIZES, new_settings, resumed_settings
from bertsmith.pretraining.settings import PretrainSettings
from bertsmith.training import trainer
from bertsmith.training.callbacks import last_loss
from bertsmith.training.lr_schedule import learning_rate, warmup_updates


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Shards:
    return tiny_run.make_shards(tmp_path_factory.mktemp("pretrain"))


def stopped_at(step: int, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """From now on a run is torn before this update."""
    update = trainer.train_step

    def torn(*arguments: object) -> object:
        if arguments[3] == step:
            raise KeyboardInterrupt
        return update(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(trainer, "train_step", torn)
    return monkeypatch


def test_the_same_command_in_minutes_resumes(
    shards: Shards, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, ticks = ("train.save_steps=1",), itertools.count()
    monkeypatch.setattr(hardware, "clock", lambda: next(ticks) / 50)  # a clock that only work moves
    with monkeypatch.context() as patch:
        stopped_at(2, patch)
        with pytest.raises(KeyboardInterrupt):
            tiny_run.run(shards, tmp_path / "run", *settings, minutes=0.05)
    model = tiny_run.run(shards, tmp_path / "run", *settings, minutes=0.05, resume=True)
    assert model.report["steps"] >= 2


def test_minutes_and_assignments_stand_in_place_of_a_recipes_budget(shards: Shards, tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("train:\n  max_tokens: 100000000\n")
    model = tiny_run.run(shards, tmp_path / "a", "train.max_steps=3", recipe=recipe)
    assert model.report["steps"] == 3
    with pytest.raises(InputError) as caught:
        tiny_run.run(shards, tmp_path / "b", "train.max_tokens=3", recipe=recipe, minutes=1)
    assert (caught.value.code, caught.value.argument) == ("invalid_setting", "train")
    assert "max_tokens and max_minutes" in caught.value.message
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize(
    "asked",
    [
        "train.max_minutes=1e9",
        "train.max_minutes=1e300",
        "train.max_steps=1e16",
        "train.num_train_epochs=1e300",
    ],
)
def test_a_budget_that_no_plan_counts_is_refused(shards: Shards, tmp_path: Path, asked: str) -> None:
    name = asked.partition("=")[0]
    with pytest.raises(InputError) as caught:
        bs.pretrain(shards, tmp_path / "run", settings=[asked])
    assert (caught.value.code, caught.value.argument) == ("invalid_setting", name)
    assert not (tmp_path / "run").exists()


def test_another_preset_at_resume_is_refused(tmp_path: Path) -> None:
    settings = new_settings("bert-tiny-uncased", None, {}, tiny_run.tokenizer())
    (tmp_path / "settings.yaml").write_text(settings.to_yaml(), encoding="utf-8")
    assert resumed_settings(tmp_path, "bert-tiny-uncased", None, {})[0] == settings
    with pytest.raises(InputError) as caught:
        resumed_settings(tmp_path, "bert-mini-uncased", None, {})
    assert caught.value.code == "setting_differs_from_run"


def test_other_kernels_at_resume_are_logged(
    shards: Shards, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tiny_run.run(shards, tmp_path / "run", "train.max_steps=1")
    settings = tmp_path / "run" / "settings.yaml"
    begun = settings.read_text(encoding="utf-8")
    settings.write_text(begun.replace("kernels: torch", "kernels: numba"))
    caplog.clear()
    other = ["train.max_steps=2", "train.kernels=torch"]
    tiny_run.run(shards, tmp_path / "run", *other, resume=True)
    assert [line.partition(":")[0] for line in caplog.messages if "bit-identical" in line] == [
        "computing with train.kernels=torch from here on, not numba"
    ]


def test_the_encoder_is_an_ordinary_module_whoever_asked_first(shards: Shards, tmp_path: Path) -> None:
    tiny_run.run(shards, tmp_path / "run", "train.max_steps=1")
    model = bs.load(tmp_path / "run")
    model.fill_mask("kaba [MASK].")
    hidden = model.encoder(torch.tensor([[2, 7, 3]]))
    hidden.sum().backward()
    assert all(p.grad is not None for p in model.encoder.embeddings.token.parameters())


def test_two_masks_give_two_answers(shards: Shards, tmp_path: Path) -> None:
    model = tiny_run.run(shards, tmp_path / "run", "train.max_steps=1")
    answers = model.fill_mask("kaba [MASK] lode [MASK].", top_k=3)
    assert [len(answer) for answer in answers] == [3, 3]
    assert answers[1][0].text == f"kaba [MASK] lode {answers[1][0].token}."


def test_only_the_mask_is_parsed_in_a_users_text(shards: Shards, tmp_path: Path) -> None:
    model = tiny_run.run(shards, tmp_path / "run", "train.max_steps=1")
    scores = [
        [answer.score for answer in model.fill_mask(f"kaba {text} lode [MASK]")[0]]
        for text in ("[SEP] [CLS]", "[xyz] [xyz]")  # to this vocabulary the same unknown words
    ]
    assert scores[0] == scores[1]


def test_many_documents_of_one_sentence_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "corpus.txt"
    file.write_text("\n\n".join(f"{word} lode." for word in tiny_run.WORDS) + "\n\n" + tiny_run.corpus(6))
    shards = bs.prepare([file], tiny_run.tokenizer(), tmp_path / "shards")
    caplog.clear()
    tiny_run.run(shards, tmp_path / "run", "train.max_steps=1")
    assert any("of the pairs are IsNext" in line for line in caplog.messages)


@pytest.mark.parametrize("sampling", ["other_document", "same_document"])
@pytest.mark.parametrize("balance", [False, True])
def test_too_few_or_too_many_is_next_pairs_are_told_with_their_cause(
    sampling: str, balance: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Documents of three sentences: single ones are left, and none has a place for B before or after a pair."""
    file = tmp_path / "corpus.txt"
    rng = random.Random(0)
    texts = ["\n".join(" ".join(rng.choices(tiny_run.WORDS, k=6)) + "." for _ in range(3)) for _ in range(60)]
    file.write_text("\n\n".join(texts) + "\n", encoding="utf-8")
    shards = bs.prepare([file], tiny_run.tokenizer(), tmp_path / "shards")
    caplog.clear()
    changes = {"data.nsp_sampling": sampling, "data.nsp_balance": balance}
    bs.plan_pretraining(
        shards, preset="bert-tiny-uncased", settings={**changes, "train.max_steps": 1}, benchmark=False
    )
    warnings = [line for line in caplog.messages if "of the pairs are IsNext" in line]
    assert [("short documents have no sentences" in line) for line in warnings] == (
        [True] if sampling == "same_document" else [] if balance else [False]
    )
    assert all(("data.nsp_balance=true" in line) != balance for line in warnings)


def test_equal_documents_fall_on_one_side() -> None:
    hashes = np.array([5, 5, 5, 900, 901, 901, 902, 903], dtype=np.uint64)
    training, held_out = split_documents(hashes, 1e-18)
    assert not set(hashes[training].tolist()) & set(hashes[held_out].tolist())
    assert set(hashes[held_out].tolist()) == {5, 900}


# --- other objectives, instances and batches ----------------------------------------------------------------

FORMATS = {
    "sop": ["data.sentence_task=sop", "data.masking=whole_word"],
    "mlm": ["data.instances=full_sentences", "data.sentence_task=none", "data.masking=span"],
    "doc": [
        "data.instances=doc_sentences",
        "data.sentence_task=none",
        "data.dynamic_masking=false",
        "data.dupe_factor=1",
        "train.batch_tokens=128",
    ],
}


@pytest.mark.parametrize("name", list(FORMATS))
def test_what_was_trained_is_what_the_folder_holds(shards: Shards, tmp_path: Path, name: str) -> None:
    transformers = pytest.importorskip("transformers")
    model = tiny_run.run(shards, tmp_path / "run", "train.max_steps=3", *FORMATS[name])
    held_out = model.report["held_out"]
    assert ("sop_accuracy" in held_out) == (name == "sop")
    assert "nsp_accuracy" not in held_out
    architecture = "BertForPreTraining" if name == "sop" else "BertForMaskedLM"
    reader = getattr(transformers, architecture)
    reference, report = reader.from_pretrained(tmp_path / "run" / "model", output_loading_info=True)
    assert not any(report[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert reference.config.architectures == [architecture]
    assert len(model.fill_mask("kaba [MASK] lode.", top_k=3)[0]) == 3
    assert model.report["first_epoch"]["tokens_left_out"] == 0


def test_a_budget_of_tokens_is_told_and_reported(
    shards: Shards, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.clear()
    settings = ("train.batch_tokens=100", "train.num_train_epochs=1", "train.gradient_accumulation_steps=1")
    model = tiny_run.run(shards, tmp_path / "run", *settings)
    batches = model.report["batches"]
    assert model.report["steps"] == batches["number"]
    assert 0 < batches["fill_min"] <= batches["fill_mean"] <= batches["fill_max"] <= 1
    assert batches["padding"] == 0
    assert batches["tokens_mean"] <= 100
    assert any("filled to" in line and "no padding" in line for line in caplog.messages)
    lines = (tmp_path / "run" / "log.jsonl").read_text().splitlines()
    assert len([line for line in lines if '"train"' in line]) == model.report["steps"]
    again = tiny_run.run(shards, tmp_path / "two", "train.batch_tokens=100", "train.max_tokens=1000")
    assert abs(again.report["tokens"] - 1000) < 400


def test_what_cannot_be_is_told_before_a_run_is_written(shards: Shards, tmp_path: Path) -> None:
    for setting, message in (
        ("train.batch_tokens=31", "tokens per batch"),
        ("data.instances=doc_sentences", "sentence_task"),
        ("data.masking=letters", "data.masking"),
    ):
        with pytest.raises(InputError, match=message):
            tiny_run.run(shards, tmp_path / "run", "train.max_steps=1", setting)
        assert not (tmp_path / "run").exists()


def test_one_document_can_be_pretrained_on_without_next_sentence(tmp_path: Path) -> None:
    file = tmp_path / "corpus.txt"
    file.write_text(" ".join(f"{word.capitalize()} lode kaba." for word in tiny_run.WORDS))
    shards = bs.prepare([file], tiny_run.tokenizer(), tmp_path / "shards")
    with pytest.raises(InputError) as caught:
        tiny_run.run(shards, tmp_path / "nsp", "train.max_steps=1", "data.validation_split=0")
    assert caught.value.code == "too_few_documents"
    model = tiny_run.run(
        shards, tmp_path / "sop", "train.max_steps=1", "data.validation_split=0", "data.sentence_task=sop"
    )
    assert model.report["steps"] == 1


def test_runs_of_all_seeds_are_scored_on_the_same_instances_and_masks(shards: Shards, tmp_path: Path) -> None:
    """What a unigram model loses there depends on the predicted tokens alone."""
    found = [
        tiny_run.run(shards, tmp_path / str(seed), "train.max_steps=1", f"train.seed={seed}").report[
            "held_out"
        ]
        for seed in (0, 1, 2)
    ]
    assert len({held_out["unigram_mlm_loss"] for held_out in found}) == 1
    assert len({held_out["mlm_loss"] for held_out in found}) == 3


def test_one_segment_id_is_told_where_pairs_need_two(shards: Shards, tmp_path: Path) -> None:
    one = ("train.max_steps=1", "model.type_vocab_size=1")
    with pytest.raises(InputError) as caught:
        tiny_run.run(shards, tmp_path / "pairs", *one)
    assert caught.value.code == "type_vocab_size_too_small"
    assert not (tmp_path / "pairs").exists()
    texts = ("data.instances=full_sentences", "data.sentence_task=none")
    assert tiny_run.run(shards, tmp_path / "texts", *one, *texts).report["steps"] == 1


def test_what_little_is_left_to_train_on_is_told(
    shards: Shards, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.clear()
    tiny_run.run(shards, tmp_path / "run", "train.max_steps=1", "data.validation_split=0.9999")
    assert any("remain to train on: data.validation_split" in line for line in caplog.messages)


def test_the_papers_recipe_is_the_papers() -> None:
    """And the release's, to the letter: spec 2.7 and its create_pretraining_data."""
    recipe = Path(__file__).parents[2] / "recipes" / "bert-paper.yaml"
    chosen = new_settings(None, recipe, {}, tiny_run.tokenizer())
    rate = {
        t: learning_rate(
            t, warmup_updates(chosen.train.warmup_steps, 1_000_000), chosen.train.max_steps or 0, chosen.train
        )
        for t in (5_000, 500_000)
    }
    assert rate == {5_000: pytest.approx(5e-5), 500_000: pytest.approx(5e-5)}
    assert chosen.train.bias_correction is False
    data = chosen.data
    assert (data.dynamic_masking, data.dupe_factor) == (False, 10)
    assert (data.mlm_probability_of, data.maskable_tokens, data.random_tokens) == ("all",) * 3
    assert (data.max_predictions_per_seq, data.long_max_predictions_per_seq) == (20, 77)


def test_the_folder_says_what_was_asked_of_pairs(tmp_path: Path) -> None:
    """Other tools have one name for the head of next sentence and of sentence order."""
    shards = tiny_run.make_shards(tmp_path)
    for task in ("nsp", "sop"):
        run = tiny_run.run(shards, tmp_path / task, f"data.sentence_task={task}", "train.max_steps=1")
        assert run.folder.record["sentence_task"] == task
        assert run.folder.architecture == "BertForPreTraining"


def test_the_second_phase_is_judged_at_its_own_length(tmp_path: Path) -> None:
    run = tiny_run.run(
        tiny_run.make_shards(tmp_path, documents=60),
        tmp_path / "run",
        "data.sequence_length=16",
        "data.long_sequence_length=48",
        "data.long_sequence_ratio=0.5",
        "train.max_steps=4",
    )
    held = run.report["held_out"]
    assert {"mlm_loss", "long_mlm_loss", "unigram_mlm_loss", "long_unigram_mlm_loss"} <= held.keys()
    assert held["mlm_loss"] != held["long_mlm_loss"]


def test_a_model_worse_than_word_frequencies_says_so_and_what_to_change(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """In the log and in the report; a better model is not mentioned."""
    file = tmp_path / "corpus.txt"
    file.write_text(
        "\n\n".join(f"kaba kaba kaba {word}. kaba kaba kaba. kaba." for word in tiny_run.WORDS[1:])
    )
    shards = bs.prepare([file], tiny_run.tokenizer(), tmp_path / "shards")
    for name, steps, rate, worse in (("short", 1, 1e-5, True), ("long", 40, 5e-3, False)):
        caplog.clear()
        settings = (f"train.max_steps={steps}", f"train.learning_rate={rate}", "data.validation_split=0.2")
        model = tiny_run.run(shards, tmp_path / name, *settings)
        held = model.report["held_out"]
        assert (held["mlm_loss"] >= held["unigram_mlm_loss"]) == worse
        said = [line for line in caplog.messages if "has not learned to use the context" in line]
        assert said == model.report["remarks"]
        assert len(said) == worse
    caplog.clear()
    tiny_run.run(shards, tmp_path / "again", "train.max_steps=1", "data.validation_split=0.2")
    (line,) = (line for line in caplog.messages if "has not learned" in line)
    assert "train.learning_rate (now 0.001)" in line
    tiny_run.run(shards, tmp_path / "none", "train.max_steps=1", "data.validation_split=0")
    assert sum("has not learned" in line for line in caplog.messages) == 1


def test_a_text_read_many_times_is_told_and_a_model_that_knows_it_by_heart_is_not_to_be_trained_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    shards = tiny_run.make_shards(tmp_path, documents=6)
    for name, learnt, steps in (("by heart", 1.5, 24), ("not yet", 3.6, 24), ("read once", 1.5, 1)):
        monkeypatch.setattr(workflow, "last_loss", lambda run, part, records, learnt=learnt: learnt)
        caplog.clear()
        settings = (f"train.max_steps={steps}", "data.validation_split=0.3", "model.hidden_dropout_prob=0")
        model = tiny_run.run(shards, tmp_path / name, *settings)
        before = [
            line for line in caplog.messages if line.startswith(f"there is little text for {steps} updates:")
        ]
        assert len(before) == (steps > 1)
        passes = 24 * 8 / model.report["first_epoch"]["instances"]  # two batches of four an update
        assert all(f"the run reads it about {passes:.0f} times" in line for line in before)
        by_heart = [line for line in model.report["remarks"] if "overfits its text" in line]
        assert by_heart == [line for line in caplog.messages if "overfits its text" in line]
        assert len(by_heart) == (name == "by heart")
        assert not (by_heart and any("has not learned" in line for line in caplog.messages))
    monkeypatch.undo()
    assert last_loss(model.path, "mlm", 10) == pytest.approx(3.7, abs=0.5)


@pytest.mark.parametrize("preset", ["bert-tiny-uncased", "bert-mini-cased", "bert-small-chinese"])
def test_small_models_have_settings_that_they_learn_with(preset: str) -> None:
    """Where nobody says otherwise: below a recipe, even an empty one, and below assignments (RESULTS.md)."""
    own = new_settings(preset, None, {"train.warmup_steps": 0.2}, tiny_run.tokenizer())
    size = next(size for size in SIZES if size.preset.split("-")[1] == preset.split("-")[1])
    assert (own.train.learning_rate, own.model.initializer_range) == (
        size.learning_rate,
        size.initializer_range,
    )
    assert (own.train.optim, own.train.muon_learning_rate) == ("muon", size.muon_learning_rate)
    assert (own.train.lr_scheduler_type, own.train.weight_decay) == ("warmup_stable_decay", 0.01)
    assert own.train.muon_weight_decay == size.muon_weight_decay
    assert own.model.hidden_dropout_prob == own.model.attention_probs_dropout_prob == 0
    assert (own.start.positions, own.start.attention) == ("sinusoidal", "local")
    assert (own.start.tokens, own.start.output_bias) == ("neighbours", "unigram")
    assert own.train.warmup_steps == 0.2
    assert (own.data.sequence_length, own.data.mlm_probability, own.train.batch_size) == (128, 0.15, 32)
    minutes = new_settings(preset, None, {"train.max_minutes": 5}, tiny_run.tokenizer())
    found = (minutes.data.sequence_length, minutes.data.mlm_probability, minutes.train.batch_size)
    assert found == (64, 0.3, size.batch_size)
    minutes = new_settings(
        preset, None, {"data.sequence_length": 96, "train.max_minutes": 5}, tiny_run.tokenizer()
    )
    assert (minutes.data.sequence_length, minutes.train.batch_size) == (96, size.batch_size)


@pytest.mark.parametrize(
    "preset", ["roberta-mini", "albert-small", "distilbert-mini-uncased", "electra-mini-discriminator"]
)
def test_small_models_of_other_families_learn_with_what_their_width_does(preset: str) -> None:
    """So that a comparison of families compares them alone."""
    own = new_settings(preset, None, {"train.max_minutes": 5}, tiny_run.tokenizer())
    size = next(size for size in SIZES if size.preset.split("-")[1] == preset.split("-")[1])
    assert (own.train.optim, own.train.learning_rate) == ("muon", size.learning_rate)
    assert (own.train.muon_learning_rate, own.model.initializer_range) == (
        size.muon_learning_rate,
        size.initializer_range,
    )
    assert (own.start.tokens, own.start.output_bias) == ("neighbours", "unigram")
    between = own.model.embedding_size is not None  # a projection, before the first layer
    assert own.start.attention == ("normal" if between else "local")
    assert (own.data.sequence_length, own.train.batch_size) == (64, size.batch_size)
    left = new_settings(
        None, None, {"objective.name": "causal", "data.sentence_task": None}, tiny_run.tokenizer()
    )
    assert (left.start.tokens, left.start.attention) == ("neighbours", "local")
    taught = new_settings(
        None, None, {"objective.name": "distil", "data.sentence_task": None}, tiny_run.tokenizer()
    )
    assert (taught.start.tokens, taught.start.output_bias) == ("normal", "zero")


def test_a_recipe_and_larger_models_keep_the_papers_settings(tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("preset: bert-tiny-uncased\n")
    for preset, file in ((None, recipe), ("bert-base-uncased", None), ("roberta-base", None)):
        chosen = new_settings(preset, file, {}, tiny_run.tokenizer())
        assert (chosen.train.learning_rate, chosen.model.initializer_range) == (1e-4, 0.02)
        assert chosen.train.adam_beta2 == (0.98 if preset == "roberta-base" else 0.999)
        assert chosen.model.hidden_dropout_prob == 0.1
        assert (chosen.train.optim, chosen.train.lr_scheduler_type) == ("adamw", "linear")


def test_a_size_by_settings_learns_with_what_was_measured_for_it_or_with_the_defaults() -> None:
    """Not with what the usual preset learns with, which is mini's."""

    def chosen(*sizes: str) -> PretrainSettings:
        return new_settings(
            None, None, PretrainSettings.dotted([*sizes, "train.max_minutes=60"]), tiny_run.tokenizer()
        )

    large = ["model.num_hidden_layers=24", "model.hidden_size=1024", "model.num_attention_heads=16"]
    found = chosen(*large, "model.intermediate_size=4096")
    assert (found.train.optim, found.train.learning_rate) == ("adamw", 1e-4)
    assert (found.start.tokens, found.data.sequence_length) == ("normal", 128)
    tiny = chosen("model.num_hidden_layers=2", "model.hidden_size=128", "model.num_attention_heads=2")
    assert (tiny.train.muon_weight_decay, tiny.train.batch_size) == (
        SIZES[0].muon_weight_decay,
        SIZES[0].batch_size,
    )


def test_a_size_without_settings_of_its_own_is_told(
    shards: Shards, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.clear()
    tiny_run.run(shards, tmp_path / "run", "train.max_steps=1")
    (line,) = (
        line for line in caplog.messages if "no settings were measured for a model of this size" in line
    )
    assert "the defaults are used" in line


def test_the_settings_of_a_small_model_are_told_and_resume_without_being_repeated(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.clear()
    workflow.log_settings(new_settings("bert-tiny-uncased", None, {}, tiny_run.tokenizer()))
    own = {"train.learning_rate": 1e-4, "model.hidden_dropout_prob": 0.1}
    settings = new_settings("bert-tiny-uncased", None, own, tiny_run.tokenizer())
    workflow.log_settings(settings)
    usual, changed = caplog.messages
    assert "train.learning_rate=0.002" in usual
    assert "train.muon_learning_rate=0.005" in usual
    assert "model.hidden_dropout_prob=0.0" in usual
    assert "train.learning_rate" not in changed  # it is the paper's
    assert "train.muon_learning_rate=0.00025" in changed  # in the same ratio to it
    assert "hidden_dropout_prob" not in changed
    (tmp_path / "settings.yaml").write_text(settings.to_yaml(), encoding="utf-8")
    assert resumed_settings(tmp_path, "bert-tiny-uncased", None, {})[0] == settings


def test_heads_look_at_what_is_near_only_where_positions_are_sinusoids_that_reach_them(
    shards: Shards, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match="attention local finds what is near by sinusoids"):
        tiny_run.run(shards, tmp_path / "a", "start.attention=local")
    sinusoids = ("start.positions=sinusoidal", "start.attention=local", "train.max_steps=1")
    small = ["model.embedding_size=16", "model.hidden_size=48", "model.intermediate_size=64"]
    for size in (16, 48):  # as wide as the layers is a projection too
        own = [*sinusoids, *small, f"model.embedding_size={size}"]
        with pytest.raises(InputError) as caught:
            bs.pretrain(shards, tmp_path / "b", preset="albert-base-v2", settings=own)
        assert caught.value.argument == "start.attention"
        assert not (tmp_path / "b").exists()
    near = tiny_run.run(shards, tmp_path / "c", *sinusoids, "train.learning_rate=1e-30")
    far = tiny_run.run(shards, tmp_path / "d", sinusoids[0], sinusoids[2], "train.learning_rate=1e-30")
    weights = [model.encoder.blocks[0].attention.qkv.weight for model in (near, far)]
    changed = (weights[0] - weights[1]).detach().view(3, -1).abs().amax(1)
    assert changed[0] > 1
    assert changed[1] > 1
    assert changed[2] == 0
    others = [model.encoder.blocks[1].attention.qkv.weight for model in (near, far)]
    assert torch.equal(*others)
