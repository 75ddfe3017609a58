"""Where accounts of BERT differ, each choice is a setting with the paper's value as its default, and what no
setting offers is refused with the names of what there is.

A row is one of the spec's table of where accounts of BERT err or disagree (its section 2.9), by its number there.
"""

from __future__ import annotations

from typing import Any

import pytest

from bertsmith.errors import InputError
from bertsmith.finetuning.settings import FinetuneSettings, settings_type
from bertsmith.models.config import ModelConfig
from bertsmith.models.family import preset
from bertsmith.models.parameter_count import count_parameters, omitted_terms
from bertsmith.pretraining.settings import PretrainSettings
from bertsmith.settings import Settings
from bertsmith.tasks.registry import get_task
from bertsmith.tasks.settings import AnswerSettings, ClassSettings, TagSettings

# row, settings, name, default, another value that may be chosen
OPTIONS: list[tuple[str, type[Settings], str, Any, Any]] = [
    ("E1", PretrainSettings, "model.position", "learned", "sinusoidal"),
    ("E11", PretrainSettings, "model.norm", "post", "pre"),
    ("E22", PretrainSettings, "model.tie_word_embeddings", True, False),
    ("E2", PretrainSettings, "model.num_hidden_layers", 12, 2),
    ("E4", PretrainSettings, "model.hidden_act", "gelu", "relu"),
    ("E7", TagSettings, "layers", "last", "sum_all"),
    ("E15", ClassSettings, "specials_in_text", "text", "parse"),
    ("E18", PretrainSettings, "data.replacement_probabilities", (0.8, 0.1, 0.1), (1, 0, 0)),
    ("E20", PretrainSettings, "data.masking", "token", "whole_word"),
    ("E21", PretrainSettings, "data.corruption", "none", "insertion"),
    ("E21", PretrainSettings, "data.corruption", "none", "deletion"),
    ("E22", PretrainSettings, "objective.reduction", "mean", "sum"),
    ("E23", PretrainSettings, "data.nsp_sampling", "other_document", "same_document"),
    ("E24", PretrainSettings, "data.is_next_label", 0, 1),
    ("E25", PretrainSettings, "data.sentence_task", "nsp", "none"),
    ("E26", PretrainSettings, "train.bias_correction", True, False),
    ("E27", PretrainSettings, "train.lr_scheduler_type", "linear", "step"),
    ("E28", PretrainSettings, "model.hidden_dropout_prob", 0.1, 0.0),
    ("E29", PretrainSettings, "start.token_vectors", "", "vectors.txt"),
    ("E29", PretrainSettings, "start.tokens", "normal", "neighbours"),
    ("E33", FinetuneSettings, "train.freeze_encoder", False, True),
    ("E33", FinetuneSettings, "train.freeze_embeddings", False, True),
    ("E33", FinetuneSettings, "train.freeze_layers", 0, 6),
    ("E34", ClassSettings, "init_head_from", "none", "nsp"),
    ("E40", ClassSettings, "pooler", True, False),
    ("E41", AnswerSettings, "transform", False, True),
]


@pytest.mark.parametrize(("row", "kind", "name", "default", "other"), OPTIONS)
def test_each_option_is_there_with_the_papers_value(
    row: str, kind: type[Settings], name: str, default: Any, other: Any
) -> None:
    fields = dict(kind.names())
    assert fields[name].get_default(call_default_factory=True) == default
    assert (fields[name].description or "").strip(), "--help says nothing of it"
    group, _, last = name.rpartition(".")
    chosen = kind.of({group: {last: other}} if group else {last: other}, "settings").model_dump()
    for part in name.split("."):
        chosen = chosen[part]
    assert chosen == other


def test_counts_without_what_a_popular_formula_lacks_are_an_option() -> None:
    """E32: the default is all of them."""
    base = preset("bert-base-uncased")
    sums = [
        sum(term.size for term in terms)
        for terms in (count_parameters(base), count_parameters(base, biases=False, pooler=False))
    ]
    assert sums == [109_482_240, 108_808_704]
    assert [term.size for term in omitted_terms(base)] == [82_944, 590_592]


# what somebody may ask for who has read that there is such a thing, and what the message says
NOT_OFFERED: list[tuple[str, type[Settings], str, str]] = [
    ("E3", PretrainSettings, "model.num_hidden_layers=0", "model.num_hidden_layers is 0"),
    ("E3", PretrainSettings, "model.concatenate_layers=true", "no setting 'model.concatenate_layers'"),
    ("E5", PretrainSettings, "model.feed_forward=narrow", "no setting 'model.feed_forward'"),
    ("E11", PretrainSettings, "model.norm=batch", "model.norm is "),
    ("E9", PretrainSettings, "model.causal=zero", "model.causal is "),
    ("E18", PretrainSettings, "data.replacement_probabilities=[0.8, 0.1, 0.2]", "does not sum to 1"),
    ("E26", PretrainSettings, "train.optim=adam", "train.optim is "),
    ("E27", PretrainSettings, "train.decay=step", "no setting 'train.decay'"),
    ("E27", PretrainSettings, "train.lr_scheduler_type=per_epoch", "train.lr_scheduler_type is "),
    ("E22", PretrainSettings, "objective.reduction=none", "objective.reduction is "),
    ("E22", PretrainSettings, "objective.loss=binary", "no setting 'objective.loss'"),
    ("E23", PretrainSettings, "data.nsp_sampling=same_doc", "data.nsp_sampling is "),
    ("E24", PretrainSettings, "data.is_next_label=2", "data.is_next_label is "),
    ("E21", PretrainSettings, "data.corruption=shuffle", "data.corruption is "),
]


@pytest.mark.parametrize(("row", "kind", "asked", "said"), NOT_OFFERED)
def test_what_is_not_offered_is_refused_by_its_name(
    row: str, kind: type[Settings], asked: str, said: str
) -> None:
    """The message names the setting, and what to write instead: the choices, the nearest name, what it means."""
    with pytest.raises(InputError) as error:
        kind().changed([asked])
    assert said in error.value.sentence_for("command line")
    assert "'" in error.value.sentence_for("command line") or error.value.hint_for("command line")


def test_a_name_of_the_table_leads_to_ours() -> None:
    """Settings that are called otherwise here: the nearest known name is proposed."""
    for asked, ours in (
        ("data.replacement_probability=[1,0,0]", "data.replacement_probabilities"),
        ("model.hidden_activation=relu", "model.hidden_act"),
        ("start.init_token_vectors=v.txt", "start.token_vectors"),
    ):
        with pytest.raises(InputError) as error:
            PretrainSettings().changed([asked])
        assert ours in (error.value.hint_for("command line") or ""), asked


def test_a_head_begins_as_another_only_where_that_is_offered() -> None:
    kind = settings_type(get_task("classify"))
    with pytest.raises(InputError) as caught:
        kind().changed(["task.init_head_from=mlm"])
    assert (caught.value.code, caught.value.argument) == ("invalid_setting", "task.init_head_from")
    assert kind().changed(["task.init_head_from=none"]).model_dump()["task"]["init_head_from"] == "none"


def test_sizes_that_the_table_calls_wrong_are_counted_from_the_config() -> None:
    """E6, E31: the scale is of a head's width, and a vocabulary's size is the file's."""
    assert ModelConfig().head_dim == 64
    assert (ModelConfig().vocab_size, preset("bert-base-cased").vocab_size) == (30_522, 28_996)
