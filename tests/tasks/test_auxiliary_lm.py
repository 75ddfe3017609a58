"""The auxiliary language-modeling loss of fine-tuning, and tasks on a GPT."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import bertsmith as bs
import tiny_run
from bertsmith.artifacts.folder import read_folder, write_folder
from bertsmith.device import ComputeContext
from bertsmith.errors import InputError
from bertsmith.finetuning.model import with_auxiliary_lm
from bertsmith.finetuning.settings import FinetuneTrainSettings
from bertsmith.models.family import build_encoder, preset
from bertsmith.models.pretraining_heads import MaskedLMHead
from bertsmith.tasks.auxiliary_lm import TaskWithLM
from bertsmith.tasks.batching import Item, TokenSequence
from bertsmith.tasks.classification.model import ClassificationModel
from bertsmith.tasks.settings import ClassSettings

SMALL = {"hidden_size": 24, "num_attention_heads": 3, "num_hidden_layers": 2, "intermediate_size": 96}
FEW = {"train.max_steps": 4, "train.threads": 1, "train.precision": "fp32", "train.batch_size": 4}
TEXTS = ["kaba lode mi", "lode kaba", "mi mi kaba lode lode"]


def base_of(folder: Path, name: str = "gpt-mini", **changes: Any) -> Path:
    tokenizer = tiny_run.tokenizer()
    config = preset(name, **SMALL, vocab_size=tokenizer.vocab_size, initializer_range=0.1, **changes)
    generator = torch.Generator().manual_seed(1)
    parts = {"encoder": build_encoder(config, generator), "masked": MaskedLMHead(config, generator)}
    return write_folder(folder, config, parts, tokenizer=tokenizer)


@pytest.mark.parametrize("change", [{}, {"tie_word_embeddings": False}], ids=["tied", "untied"])
def test_gradient_is_the_sum_of_both_means(change: dict[str, Any], tmp_path: Path) -> None:
    """L(task) + 0.5 · L(lm), each computed alone by torch's functions. Sums in another order differ by 1e-6."""
    folder = read_folder(base_of(tmp_path / "gpt", **change))
    encoder, generator = folder.encoder().eval(), torch.Generator().manual_seed(2)
    task = ClassificationModel(folder.config, generator, {"labels": ["a", "b"]}, ClassSettings()).eval()
    context = ComputeContext.create("cpu", "fp32")
    objective = with_auxiliary_lm(task, folder, FinetuneTrainSettings(), context).eval()
    assert isinstance(objective, TaskWithLM)
    encodings = tiny_run.tokenizer().encode_batch(TEXTS)
    items = [Item(i, (TokenSequence.from_encoding(e),), i % 2) for i, e in enumerate(encodings)]
    batch = task.collate(items)
    assert objective.counts(batch) == {"task": 3, "lm": sum(len(e.ids) - 1 for e in encodings)}
    loss = objective.loss(encoder, batch)
    loss.reduce(objective.counts(batch), objective.loss_weights).backward()
    parameters = [*encoder.parameters(), *objective.parameters()]
    grads = [None if parameter.grad is None else parameter.grad.clone() for parameter in parameters]

    for parameter in parameters:
        parameter.grad = None
    hidden = torch.split(encoder(batch.packed), batch.packed.lengths.tolist())
    logits = task.head(torch.stack([states[-1] for states in hidden]))  # the extract token is the last one
    expected = F.cross_entropy(logits, torch.tensor([0, 1, 0]))
    head, embedding = objective.lm.masked, encoder.embeddings.token.weight
    token_logits = torch.cat([head(states[:-1], embedding) for states in hidden])
    labels = torch.tensor([token for encoding in encodings for token in encoding.ids[1:]])
    (expected + 0.5 * F.cross_entropy(token_logits, labels)).backward()
    for parameter, grad in zip(parameters, grads, strict=True):
        torch.testing.assert_close(parameter.grad, grad, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize(
    ("name", "weight", "freeze", "expected"),
    [
        ("gpt-mini", None, False, 0.5),
        ("gpt2-mini", None, False, 0.5),
        ("gpt2-mini", 0.2, False, 0.2),
        ("gpt2-mini", 0.0, False, None),
        ("gpt2-mini", None, True, None),
        ("bert-tiny-uncased", None, False, None),
        ("bert-tiny-uncased", 0.3, False, 0.3),  # a causal BERT
    ],
)
def test_weight_is_the_familys_unless_it_is_set(
    name: str, weight: float | None, freeze: bool, expected: float | None, tmp_path: Path
) -> None:
    folder = read_folder(base_of(tmp_path / "base", name, causal=True))
    task = ClassificationModel(folder.config, torch.Generator(), {"labels": ["a", "b"]}, ClassSettings())
    train = FinetuneTrainSettings(lm_weight=weight, freeze_encoder=freeze)
    objective = with_auxiliary_lm(task, folder, train, ComputeContext.create("cpu", "fp32"))
    assert objective.loss_weights.get("lm") == expected
    assert (objective is task) == (expected is None)


@pytest.mark.parametrize("settings", [{}, {"freeze_encoder": True}])
def test_models_without_such_a_loss(settings: dict[str, Any], tmp_path: Path) -> None:
    folder = read_folder(base_of(tmp_path / "base", "gpt-mini" if settings else "bert-tiny-uncased"))
    task = ClassificationModel(folder.config, torch.Generator(), {"labels": ["a", "b"]}, ClassSettings())
    train = FinetuneTrainSettings(lm_weight=0.5, **settings)
    with pytest.raises(InputError) as caught:
        with_auxiliary_lm(task, folder, train, ComputeContext.create("cpu", "fp32"))
    assert (caught.value.code, caught.value.argument) == ("auxiliary_lm_not_applicable", "train.lm_weight")


ROWS = {
    "classify": [{"text": text, "label": "ab"[i % 2]} for i, text in enumerate(TEXTS * 4)],
    "regress": [{"text": t, "second": t[:9], "label": i / 12} for i, t in enumerate(TEXTS * 4)],
    "choose": [
        {"question": t, "choices": ["kaba", "lode mi"], "label": i % 2} for i, t in enumerate(TEXTS * 4)
    ],
}


@pytest.mark.parametrize("task", ROWS)
@pytest.mark.parametrize("name", ["gpt-mini", "gpt2-mini"])
def test_tasks_on_a_gpt(task: str, name: str, tmp_path: Path) -> None:
    """Texts, pairs, and choices: trained, with the loss logged, saved, and loaded with the same answers."""
    settings = {"task.second_column": "second"} if task == "regress" else {}
    rows = ROWS[task]
    model = bs.finetune(
        task,
        base_of(tmp_path / "base", name),
        tmp_path / "run",
        train=rows,
        validation=rows,
        settings={**FEW, **settings},
    )
    log = (tmp_path / "run" / "log.jsonl").read_text(encoding="utf-8")
    assert '"lm": ' in log
    parts = model.folder.parts
    assert "classifier" in parts or "chooser" in parts
    assert "pooler" not in parts
    again = bs.load(tmp_path / "run")
    assert again.evaluate(rows).values == model.evaluate(rows).values
    assert again.folder.weights_digest() == model.folder.weights_digest()


def test_fine_tuning_marks_texts_with_the_only_special_token_of_gpt2(
    shared_data: Path, tmp_path: Path
) -> None:
    """Start, delimiter, and extract token; the saved tokenizer has them in transformers, too."""
    tokenizer = bs.Tokenizer.load(shared_data / "vocabs/gpt2")
    config = preset("gpt2-mini", **SMALL, vocab_size=tokenizer.vocab_size)
    generator = torch.Generator().manual_seed(1)
    parts = {"encoder": build_encoder(config, generator), "masked": MaskedLMHead(config, generator)}
    base = write_folder(tmp_path / "gpt2", config, parts, tokenizer=tokenizer)
    rows = ROWS["regress"]
    model = bs.finetune(
        "regress",
        base,
        tmp_path / "run",
        train=rows,
        validation=rows,
        settings={**FEW, "task.second_column": "second"},
    )
    text, pair = "Ein Bär  schläft", "a <|endoftext|> b"
    encoding = model.tokenizer.encode(text, pair)
    ids, other_ids = tokenizer.encode_ids([text, pair])
    end = 50256
    assert encoding.ids == [end, *ids, end, *other_ids, end]
    assert set(encoding.type_ids) == {0}
    without = tokenizer.encode(text)
    single = model.tokenizer.encode(text)
    assert single.ids == [end, *without.ids, end]
    assert single.offsets[1:-1] == without.offsets
    assert model.tokenizer.with_end_tokens() is model.tokenizer
    transformers = pytest.importorskip("transformers")
    reference = transformers.AutoTokenizer.from_pretrained(model.model_folder)
    assert reference("a b", "c")["input_ids"] == model.tokenizer.encode("a b", "c").ids
    assert bs.load(base).tokenizer.encode(text).ids == without.ids
    maps = model.attention(text, pair)
    assert maps.sources.tolist() == [-1, *[0] * len(ids), -1, *[1] * len(other_ids), -1]
    why = model.explain(text, text_pair=pair)  # the end token replaces words
    assert (why.words[0].word, why.baseline) == ("Ein", "mask")
