"""Integrated gradients equal those of captum on the reference library's model of the same weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import bertsmith as bs
import tiny_run
from bertsmith.artifacts.folder import write_folder
from bertsmith.device import ComputeContext
from bertsmith.explain.attribution import baseline_ids
from bertsmith.explain.explanation import explain_task
from bertsmith.io.sources import to_source
from bertsmith.models.family import build_encoder
from bertsmith.objectives.objective import MODEL
from bertsmith.tasks.fitted_task import FittedTask
from bertsmith.tasks.registry import get_task

STEPS, TARGET = 13, 1


@pytest.mark.parametrize("baseline", ["mask", "pad"])
def test_integrated_gradients_equal_captums(tmp_path: Path, baseline: Any) -> None:
    captum, transformers = pytest.importorskip("captum.attr"), pytest.importorskip("transformers")
    tokenizer, generator = tiny_run.tokenizer(), torch.Generator().manual_seed(0)
    config = bs.ModelConfig(
        vocab_size=tokenizer.vocab_size,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=64,
        initializer_range=0.3,
    )
    declaration = get_task("classify")
    settings = declaration.settings_type()
    data = declaration.part("data")(settings, {})
    rows = [{"text": "kaba lode mi kaba", "label": "joy"}, {"text": "mi", "label": "fear"}]
    examples = data.read(to_source(rows, "data", data.tuple_columns))
    task = FittedTask.create(declaration, config, generator, data.fit_metadata(examples, None), settings)
    task.model.eval()
    encoder = build_encoder(config, generator).eval()
    parts = task.model.export(encoder)[MODEL]
    folder = write_folder(tmp_path / "model", config, parts.modules, labels=parts.labels, tokenizer=tokenizer)
    model_class = transformers.AutoModelForSequenceClassification
    reference = model_class.from_pretrained(folder, attn_implementation="eager").eval()

    (item,) = task.encode(examples[:1], tokenizer)
    ids = torch.from_numpy(item.sequences[0].ids.astype(np.int64))[None]
    method = captum.LayerIntegratedGradients(
        lambda ids: reference(input_ids=ids).logits, reference.bert.embeddings.word_embeddings
    )
    base_ids = torch.from_numpy(baseline_ids(item, tokenizer, baseline))[None]
    theirs = method.attribute(ids, baselines=base_ids, target=TARGET, n_steps=STEPS).sum(-1)[0]
    ours = explain_task(
        encoder,
        task,
        tokenizer,
        ComputeContext.create("cpu", "fp32"),
        examples[0],
        {},
        target=task.labels[TARGET],
        baseline=baseline,
        steps=STEPS,
    )
    assert float(theirs.abs().max()) > 1e-2
    np.testing.assert_allclose(ours.attributions, theirs.detach().numpy(), atol=1e-5, rtol=1e-4)
