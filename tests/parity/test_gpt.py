"""GPT and GPT-2 against transformers' classes with the same random weights.

The tolerance is 1e-5 for logits, losses, and gradients of size up to 10 in fp32: they are sums of some hundred
terms in another order.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from bertsmith.artifacts.folder import ModelFolder, read_folder, write_folder
from bertsmith.artifacts.weights import to_hf_names
from bertsmith.models.encoder import Encoder
from bertsmith.models.family import get_family
from bertsmith.models.pretraining_heads import MaskedLMHead
from bertsmith.models.task_heads import SpanHead, TokenClassificationHead
from bertsmith.packed import Packed
from family_harness import transformers

SIZES = {"vocab_size": 97, "n_positions": 40, "n_embd": 24, "n_head": 3, "n_layer": 2}
UNDROPPED = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
LENGTHS = (7, 13, 1, 29)
PREFIXES = ("OpenAIGPT", "GPT2")
TOLERANCE = {"atol": 1e-5, "rtol": 1e-5}


def reference(name: str, **changes: Any) -> nn.Module:
    """Return a reference model with random weights, norms and biases included."""
    library = transformers()
    prefix = next(prefix for prefix in PREFIXES if name.startswith(prefix))
    values = {**SIZES, **UNDROPPED, "attn_implementation": "eager", "initializer_range": 0.15, **changes}
    torch.manual_seed(3)
    model: nn.Module = getattr(library, name)(getattr(library, f"{prefix}Config")(**values))
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() == 1:
                weight.add_(torch.randn(weight.shape) * 0.1)
    return model


def save(model: Any, folder: Path) -> ModelFolder:
    model.save_pretrained(folder)
    return read_folder(folder)


def batch() -> tuple[Packed, Tensor, Tensor]:
    """Return sequences of any tokens, packed, and padded with their mask."""
    generator = torch.Generator().manual_seed(23)
    mask = torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS)[:, None]
    ids = torch.randint(SIZES["vocab_size"], mask.shape, generator=generator)
    ids[0, :3] = 0  # which is padding in other families
    rows = [ids[i, :n].tolist() for i, n in enumerate(LENGTHS)]
    return Packed.from_lists(rows, [[0] * n for n in LENGTHS]), ids, mask


def lm_loss(encoder: Encoder, head: MaskedLMHead, packed: Packed) -> Tensor:
    """Return the mean loss of every token but the first of each sequence."""
    rows = torch.tensor([row for row in range(len(packed.tokens) - 1) if row + 1 not in packed.cu_seqlens])
    loss = head.loss(encoder(packed)[rows], encoder.embeddings.token.weight, packed.tokens[rows + 1])
    return loss[0] / len(rows)


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("prefix", PREFIXES)
def test_language_model_has_the_logits_loss_and_gradients_of_the_reference(
    prefix: str, tied: bool, tmp_path: Path
) -> None:
    other = reference(f"{prefix}LMHeadModel", tie_word_embeddings=tied)
    folder = save(other, tmp_path / "theirs")
    assert folder.parts == {"encoder", "masked"}
    encoder, head = folder.encoder(), MaskedLMHead(folder.config, torch.Generator())
    folder.load_into("masked", head)
    assert len(list(head.parameters())) == (not tied)

    packed, ids, mask = batch()
    labels = torch.where(mask, ids, -100)
    theirs = other(ids, attention_mask=mask.long(), labels=labels, output_hidden_states=True)
    encoder.eval()
    states = encoder.hidden_states(packed)
    for mine, expected in zip(states, theirs.hidden_states, strict=True):
        torch.testing.assert_close(mine, expected[mask], **TOLERANCE)
    logits = head(encoder(packed), encoder.embeddings.token.weight)
    torch.testing.assert_close(logits, theirs.logits[mask], **TOLERANCE)
    loss = lm_loss(encoder, head, packed)
    torch.testing.assert_close(loss, theirs.loss, **TOLERANCE)
    loss.backward()
    theirs.loss.backward()
    parameters = {
        **{f"encoder.{name}": weight for name, weight in encoder.named_parameters()},
        **{f"masked.{name}": weight for name, weight in head.named_parameters()},
    }
    grads = {name: weight.grad for name, weight in parameters.items() if weight.grad is not None}
    table = get_family(folder.config.model_type).names(folder.config)
    expected_grads = {name: weight.grad for name, weight in other.named_parameters()}
    mine_grads = to_hf_names(grads, table, is_base_model=False)
    assert mine_grads.keys() == expected_grads.keys()
    for name, grad in mine_grads.items():
        torch.testing.assert_close(grad, expected_grads[name], **TOLERANCE, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize("prefix", PREFIXES)
def test_folder_of_ours_is_the_same_model_in_the_reference(prefix: str, tmp_path: Path) -> None:
    other = reference(f"{prefix}LMHeadModel")
    folder = save(other, tmp_path / "theirs")
    parts = {"encoder": folder.encoder(), "masked": MaskedLMHead(folder.config, torch.Generator())}
    write_folder(tmp_path / "ours", folder.config, parts)
    library: Any = getattr(transformers(), f"{prefix}LMHeadModel")
    again, report = library.from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert {key: list(names) for key, names in report.items() if names} == {}
    assert again.config.n_layer == SIZES["n_layer"]
    for name, weight in other.state_dict().items():
        assert torch.equal(again.state_dict()[name], weight), name
    assert read_folder(tmp_path / "ours").config == folder.config


@pytest.mark.parametrize("prefix", PREFIXES)
def test_files_of_base_models_and_of_older_versions_are_read(prefix: str, tmp_path: Path) -> None:
    """Published GPT-2 has the names of the base model, and the attention masks among its tensors."""
    other = reference(f"{prefix}Model")
    folder = save(other, tmp_path / "base")
    file = tmp_path / "base" / "model.safetensors"
    tensors = load_file(file)
    assert all(not name.startswith("transformer.") for name in tensors)
    for layer in range(SIZES["n_layer"]):
        tensors[f"h.{layer}.attn.bias"] = torch.ones(1, 1, 40, 40, dtype=torch.bool).tril()
        tensors[f"h.{layer}.attn.masked_bias"] = torch.tensor(-1e4)
    save_file(tensors, file)
    packed, ids, mask = batch()
    with torch.no_grad():
        expected = other(ids, attention_mask=mask.long()).last_hidden_state[mask]
        for read in (folder, read_folder(tmp_path / "base")):
            torch.testing.assert_close(read.encoder().eval()(packed), expected, **TOLERANCE)


def test_token_heads_of_gpt2(tmp_path: Path) -> None:
    packed, ids, mask = batch()
    tagger = reference("GPT2ForTokenClassification", num_labels=3, classifier_dropout=0.0).eval()
    folder = save(tagger, tmp_path / "tagger")
    head = TokenClassificationHead(folder.config, torch.Generator(), 3)
    folder.load_into("tagger", head.tagger)
    with torch.no_grad():
        expected = tagger(ids, attention_mask=mask.long()).logits[mask]
        torch.testing.assert_close(head.eval()(folder.encoder().eval()(packed)), expected, **TOLERANCE)
    reader = reference("GPT2ForQuestionAnswering").eval()
    folder = save(reader, tmp_path / "reader")
    span = SpanHead(folder.config, torch.Generator())
    folder.load_into("span", span.span)
    with torch.no_grad():
        theirs = reader(ids, attention_mask=mask.long())
        expected = torch.stack([theirs.start_logits, theirs.end_logits], -1)[mask]
        torch.testing.assert_close(span.eval()(folder.encoder().eval()(packed)), expected, **TOLERANCE)
