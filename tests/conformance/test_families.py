"""Every family by one harness: parity with the reference in both directions, folders there and back, the verbs."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest
import torch
import yaml
from torch import nn

import tiny_run
from bertsmith.artifacts.config_schema import config_to_hf
from bertsmith.artifacts.folder import read_folder, write_folder
from bertsmith.artifacts.weights import canonical_name, from_hf_names, to_hf_names
from bertsmith.errors import InputError
from bertsmith.finetuning.run import finetune
from bertsmith.models.family import build_encoder, get_family
from bertsmith.models.feature_extraction import BiLSTM
from bertsmith.models.layers import Dropout, set_generator
from bertsmith.models.parameter_count import count_parameters
from bertsmith.models.task_heads import RelationHead, SequenceClassificationHead, TokenClassificationHead
from bertsmith.pretraining.run import pretrain
from family_harness import (
    CASES,
    KINDS,
    LABELS,
    WITH_OURS,
    Ours,
    a_batch,
    asked,
    assert_equal,
    config_of,
    opened_here,
    opened_there,
    ours_at_random,
    reference,
    told_segments,
    transformers,
)


@pytest.mark.parametrize("train", [False, True], ids=["evaluation", "training"])
@pytest.mark.parametrize(("case", "parts"), KINDS)
def test_a_folder_of_the_reference_is_the_same_model_here(
    case: str, parts: frozenset[str], train: bool, tmp_path: Path
) -> None:
    config = config_of(case)
    other = reference(config, parts)
    other.save_pretrained(tmp_path)
    folder = read_folder(tmp_path)
    assert folder.config == config
    assert folder.architecture == type(other).__name__
    assert folder.parts == parts
    assert folder.labels == (
        [f"LABEL_{i}" for i in range(LABELS)] if {"classifier", "tagger"} & parts else None
    )
    assert_equal(opened_here(folder, config, parts), config, other, parts, train=train)


@pytest.mark.parametrize(("case", "parts"), KINDS)
def test_our_folder_is_the_same_model_in_the_reference(
    case: str, parts: frozenset[str], tmp_path: Path
) -> None:
    config = config_of(case)
    ours = ours_at_random(config, parts)
    labels = ["good", "bad", "ugly"] if {"classifier", "tagger"} & parts else None
    write_folder(tmp_path / "m", config, ours.parts, labels=labels)
    other, report = opened_there(tmp_path / "m", config, parts)
    assert {key: list(found) for key, found in report.items() if found} == {}
    if labels:
        assert other.config.id2label == dict(enumerate(labels))
    assert_equal(ours, config, other, parts, train=False)


@pytest.mark.parametrize("case", CASES)
def test_config_json_is_what_the_reference_makes_of_it(case: str, tmp_path: Path) -> None:
    config = config_of(case, hidden_dropout_prob=0.2, classifier_dropout=0.3)
    write_folder(tmp_path / "m", config, {"encoder": build_encoder(config, torch.Generator())})
    loaded = transformers().AutoConfig.from_pretrained(tmp_path / "m")
    assert type(loaded).__name__ == f"{get_family(config.model_type).class_prefix}Config"
    written = json.loads((tmp_path / "m/config.json").read_text())
    assert all(getattr(loaded, key) == value for key, value in config_to_hf(config).items())
    assert written.keys() == config_to_hf(config).keys() | {"architectures"}
    assert read_folder(tmp_path / "m").config == config


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("case", CASES)
def test_the_padded_call_is_the_references(case: str, side: str) -> None:
    """Padding on either side, and padding ids that nobody masked."""
    config = config_of(case)
    other = reference(config, frozenset({"encoder"})).eval()
    encoder = build_encoder(config, torch.Generator()).eval()
    with torch.no_grad():
        weights = {**other.state_dict()}
        table = get_family(config.model_type).names(config)
        named = from_hf_names(
            {canonical_name(n, table.base_model_prefix): w for n, w in weights.items()}, table, "here"
        )
    encoder.load_state_dict({name.removeprefix("encoder."): weight for name, weight in named.items()})
    _, batch = a_batch(config, (5, 31, 1, 8))
    if side == "left":
        for name in ("ids", "mask", "segments"):
            batch[name] = batch[name].flip(1)
    call = (batch["ids"], batch["mask"], batch["segments"])
    kept, told = batch["mask"].bool(), told_segments(other, batch)
    with torch.no_grad():
        theirs = other(call[0], attention_mask=call[1], **told).last_hidden_state
        torch.testing.assert_close(encoder(*call)[kept], theirs[kept], atol=1e-5, rtol=0)
        theirs = other(call[0], **told).last_hidden_state
        torch.testing.assert_close(encoder(call[0], None, call[2]), theirs, atol=1e-5, rtol=0)


@pytest.mark.parametrize(("case", "parts"), WITH_OURS)
def test_names_and_weights_come_back_to_the_bit(case: str, parts: frozenset[str], tmp_path: Path) -> None:
    config = config_of(case)
    ours = ours_at_random(config, parts)
    folder = read_folder(write_folder(tmp_path / "m", config, ours.parts, record={"task": "none"}))
    assert (folder.config, folder.parts) == (config, parts)
    assert folder.architecture == get_family(config.model_type).architecture(parts)
    terms = count_parameters(config, parts - {"encoder"}, LABELS)
    assert sum(term.size for term in terms) == sum(tensor.numel() for tensor in folder.weights().values())
    again = Ours(config, parts, folder.encoder())
    for part, module in again.parts.items():
        folder.load_into(part, module)
        for name, tensor in ours.parts[part].state_dict().items():
            assert torch.equal(tensor, module.state_dict()[name]), f"{part}.{name}"
    with torch.no_grad():
        packed, batch = a_batch(config)
        assert torch.equal(ours.eval()(packed, batch)[1], again.eval()(packed, batch)[1])


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("share", ["all", "attention", "feed_forward"])
def test_what_is_shared_is_one_tensor_everywhere(share: str, groups: int, tmp_path: Path) -> None:
    """Saved once, updated once, its gradients summed; the reference opens the folder and answers the same."""
    config = config_of("albert", share=share, share_groups=groups)
    parts = frozenset({"encoder", "masked"})
    ours = ours_at_random(config, parts)
    state = ours.encoder.state_dict()
    assert len({tensor.data_ptr() for tensor in state.values()}) == len(state)
    assert state.keys() == dict(ours.encoder.named_parameters()).keys()
    table = get_family("albert").names(config)
    assert {f"encoder.{name}" for name in state} == {n for n in table.tensors if n.startswith("encoder.")}

    path = write_folder(tmp_path / "m", config, ours.parts)
    again = read_folder(path)
    assert again.config == config
    assert again.encoder().state_dict().keys() == state.keys()
    assert sum(term.size for term in count_parameters(config, ())) == sum(w.numel() for w in state.values())
    made = transformers().AlbertForMaskedLM
    other, report = made.from_pretrained(path, output_loading_info=True, attn_implementation="eager")
    assert {key: list(found) for key, found in report.items() if found} == {}
    packed, batch = a_batch(config)
    mine, loss = ours(packed, batch)
    theirs, their_loss = asked(other, parts, batch)
    torch.testing.assert_close(mine["masked"], theirs["masked"], atol=1e-5, rtol=1e-5)
    loss.backward()
    their_loss.backward()
    wanted = {name: weight.grad for name, weight in other.named_parameters()}
    for copied, first in table.duplicates.items():  # the reference has copies: the sum of theirs is ours
        wanted[first] = wanted[first] + wanted[copied]
    grads = {f"encoder.{name}": weight.grad for name, weight in ours.encoder.named_parameters()}
    for name, grad in to_hf_names(grads, table, is_base_model=False).items():
        if name not in table.duplicates:
            torch.testing.assert_close(
                grad, wanted[name], atol=1e-5, rtol=1e-5, msg=lambda m, n=name: f"{n}: {m}"
            )


def test_a_copy_of_a_sharing_encoder_shares_its_own() -> None:
    encoder = build_encoder(config_of("albert", share="attention"), torch.Generator())
    twin = copy.deepcopy(encoder)
    packed, _ = a_batch(encoder.config)
    with torch.no_grad():
        before = encoder.eval()(packed)
        twin.blocks[0].attention.qkv.weight.zero_()
        assert torch.equal(encoder(packed), before)
        assert not torch.equal(twin.eval()(packed), before)


@pytest.mark.parametrize("case", CASES)
def test_another_generator_reaches_every_dropout(case: str) -> None:
    config = config_of(
        case, hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1, classifier_dropout=0.4
    )
    kind = get_family(config.model_type)
    ours = Ours(config, max(kind.architectures, key=len), build_encoder(config, torch.Generator()))
    tasks = nn.ModuleList(
        [
            ours,
            SequenceClassificationHead(config, torch.Generator(), 2),
            TokenClassificationHead(config, torch.Generator(), 2),
        ]
    )
    fresh = torch.Generator().manual_seed(5)
    set_generator(tasks, fresh)
    drops = [module for module in tasks.modules() if isinstance(module, Dropout)]
    assert drops
    assert all(drop.generator is fresh for drop in drops)
    assert 0.4 in {drop.p for drop in drops}  # the heads' own


@pytest.mark.parametrize(
    ("name", "sentence_task", "more"),
    [
        ("bert-tiny-uncased", "nsp", ()),
        ("roberta-base", "none", ("data.instances=full_sentences",)),
        ("albert-base-v2", "sop", ("model.embedding_size=16",)),
        ("albert-base-v2", "none", ("model.embedding_size=16", "model.share=attention")),
        ("distilbert-base-uncased", "none", ("data.instances=full_sentences",)),
        ("electra-small-generator", "none", ("objective.name=mlm_nsp", "model.embedding_size=16")),
    ],
)
def test_pre_training_needs_the_presets_name_alone(
    name: str, sentence_task: str, more: tuple[str, ...], tmp_path: Path
) -> None:
    """Trained, its checkpoint written, loaded, asked; and opened by the reference without a key too many."""
    shards = tiny_run.make_shards(tmp_path)
    settings = [*tiny_run.SETTINGS, f"data.sentence_task={sentence_task}", "train.max_steps=4", *more]
    model = pretrain(shards, tmp_path / "run", preset=name, settings=settings)
    assert len(model.fill_mask("kaba [MASK] lode")[0]) == 5
    assert model.info()["parameters"] == sum(t.numel() for t in model.folder.weights().values())
    made = getattr(transformers(), model.folder.architecture)
    _, report = made.from_pretrained(model.model_folder, output_loading_info=True)
    assert {key: list(found) for key, found in report.items() if found} == {}


@pytest.mark.parametrize("case", ["bert", "roberta", "albert", "distilbert", "electra"])
def test_fine_tuning_needs_the_folder_alone(case: str, tmp_path: Path) -> None:
    """The family's own classifier: trained, loaded, and its answers are those of the reference."""
    tokenizer = tiny_run.tokenizer()
    sizes = {"vocab_size": tokenizer.vocab_size, "pad_token_id": tokenizer.pad_token_id}
    config = config_of(case, **sizes, hidden_dropout_prob=0.1, classifier_dropout=0.2, initializer_range=0.05)
    encoder = build_encoder(config, torch.Generator().manual_seed(1))
    base = write_folder(tmp_path / "base", config, {"encoder": encoder}, tokenizer=tokenizer)
    rows = tiny_run.table(tmp_path / "train.csv", tiny_run.examples(30))
    few = ["train.max_steps=6", "train.threads=1", "train.precision=fp32", "train.batch_size=4"]
    model = finetune("classify", base, tmp_path / "moods", train=rows, validation=rows, settings=few)
    kind = get_family(config.model_type)
    assert model.folder.architecture == f"{kind.class_prefix}ForSequenceClassification"
    other, report = getattr(transformers(), model.folder.architecture).from_pretrained(
        model.model_folder, output_loading_info=True
    )
    assert {key: list(found) for key, found in report.items() if found} == {}
    text = "kaba lode mi"
    encoding = tokenizer.encode(text)
    with torch.no_grad():
        shares = other.eval()(torch.tensor([encoding.ids])).logits[0].softmax(-1)
    answer = model.predict([text])[0]
    assert list(answer.scores) == list(other.config.id2label.values())
    assert list(answer.scores.values()) == pytest.approx(shares.tolist(), abs=1e-6)


@pytest.mark.parametrize(
    ("name", "instances", "task"),
    [("roberta-base", "full_sentences", "none"), ("albert-base-v2", "segment_pair", "sop")],
)
def test_a_preset_brings_what_its_paper_is_trained_on(
    name: str, instances: str, task: str, tmp_path: Path
) -> None:
    few = [*tiny_run.SETTINGS, "model.embedding_size=16"] if "albert" in name else tiny_run.SETTINGS
    run = pretrain(
        tiny_run.make_shards(tmp_path), tmp_path / "run", preset=name, settings=[*few, "train.max_steps=2"]
    )
    kept = yaml.safe_load((run.path / "settings.yaml").read_text())
    assert (kept["data"]["instances"], kept["data"]["sentence_task"]) == (instances, task)


def test_heads_that_a_family_has_no_class_for_are_refused_before_training(tmp_path: Path) -> None:
    shards = tiny_run.make_shards(tmp_path)
    pairs = ["data.instances=segment_pair", "data.sentence_task=nsp", "model.type_vocab_size=2"]
    with pytest.raises(InputError) as caught:
        pretrain(shards, tmp_path / "run", preset="roberta-base", settings=[*tiny_run.SETTINGS, *pairs])
    assert caught.value.code == "no_class_for_heads"
    assert not (tmp_path / "run" / "checkpoints").exists()


@pytest.mark.parametrize("head", ["SequenceClassification", "QuestionAnswering", "MultipleChoice"])
@pytest.mark.parametrize("case", ["bert", "roberta", "albert", "distilbert", "electra"])
def test_a_head_on_a_bilstm_has_a_class_of_ours(case: str, head: str, tmp_path: Path) -> None:
    """Every tensor is there and back, and counted; the class is none of the reference's."""
    config = config_of(case)
    kind, g = get_family(config.model_type), torch.Generator().manual_seed(5)
    (plain,) = (
        parts for parts, name in kind.architectures.items() if name == f"{kind.class_prefix}For{head}"
    )
    made = ours_at_random(config, plain)
    parts = {**made.parts, "recurrent": BiLSTM(config, g, config.hidden_size)}
    labels = ["a", "b", "c"] if "classifier" in plain else None
    folder = read_folder(write_folder(tmp_path / "m", config, parts, labels=labels))
    assert folder.architecture == f"{kind.class_prefix}ForBiLstm{head}"
    assert not hasattr(transformers(), folder.architecture)
    assert folder.parts == plain | {"recurrent"}
    again = BiLSTM(config, torch.Generator(), config.hidden_size)
    folder.load_into("recurrent", again)
    mine = again.state_dict()
    assert all(torch.equal(mine[name], tensor) for name, tensor in parts["recurrent"].state_dict().items())
    terms = count_parameters(config, folder.parts - {"encoder"}, LABELS)
    assert sum(term.size for term in terms) == sum(tensor.numel() for tensor in folder.weights().values())


@pytest.mark.parametrize("case", ["bert", "roberta", "albert", "distilbert", "electra"])
def test_the_encoder_under_heads_of_our_own_is_read_by_the_reference(case: str, tmp_path: Path) -> None:
    """The field has no class for relations: the name is ours, the encoder everybody's."""
    config = config_of(case)
    g = torch.Generator().manual_seed(5)
    parts = {"encoder": build_encoder(config, g), **RelationHead(config, g, LABELS).parts}
    labels = ["cause", "part", "Other"]
    path = write_folder(tmp_path / "m", config, parts, labels=labels)
    folder = read_folder(path)
    assert folder.architecture == f"{get_family(config.model_type).class_prefix}ForEntityPairClassification"
    assert (folder.parts, folder.labels) == (frozenset({"encoder", "relater"}), labels)
    again = RelationHead(config, torch.Generator(), LABELS)
    folder.load_into("relater", again.relater)
    assert torch.equal(again.relater.linear.weight, parts["relater"].linear.weight)
    terms = count_parameters(config, ["relater"], LABELS)
    assert sum(term.size for term in terms) == sum(tensor.numel() for tensor in folder.weights().values())

    other = transformers().AutoModel.from_pretrained(path, attn_implementation="eager").eval()
    packed, batch = a_batch(config)
    with torch.no_grad():
        mine = folder.encoder().eval()(packed)
        theirs = other(batch["ids"], attention_mask=batch["mask"], **told_segments(other, batch))
    torch.testing.assert_close(mine, theirs.last_hidden_state[batch["mask"].bool()], atol=1e-5, rtol=0)
