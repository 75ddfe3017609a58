"""LayerNorm before the sub-layers: the reference has it as RoBERTa-PreLayerNorm, whose numbers are ours."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch import nn

from bertsmith.artifacts.config_schema import config_to_hf
from bertsmith.artifacts.folder import read_folder, write_folder
from bertsmith.artifacts.weights import to_hf_names
from bertsmith.models.config import ModelConfig
from bertsmith.models.encoder import Encoder
from bertsmith.models.families import ROBERTA
from bertsmith.models.family import build_encoder
from bertsmith.models.parameter_count import count_parameters
from bertsmith.models.pretraining_heads import MaskedLMHead
from family_harness import a_batch, config_of, transformers

PARTS = frozenset({"encoder", "masked"})
# RoBERTa's name of a layer's LayerNorm → that of the reference's class, where each stands before its sub-layer.
THEIRS = (
    (r"attention\.output\.LayerNorm", "attention.LayerNorm"),
    (r"(\d\.)output\.LayerNorm", r"\1intermediate.LayerNorm"),
)


def ours(config: ModelConfig) -> nn.ModuleDict:
    g = torch.Generator().manual_seed(5)
    parts = nn.ModuleDict({"encoder": build_encoder(config, g), "masked": MaskedLMHead(config, g)})
    with torch.no_grad():
        for weight in parts.parameters():
            if weight.dim() == 1:
                weight.add_(torch.randn(weight.shape, generator=g) * 0.1)
    return parts


def renamed(name: str) -> str:
    for pattern, other in THEIRS:
        name = re.sub(pattern, other, name)
    return re.sub(r"^roberta\.", "roberta_prelayernorm.", name)


def test_states_loss_and_gradients() -> None:
    config = config_of("roberta", norm="pre")
    model = ours(config)
    values = {**config_to_hf(config), "attn_implementation": "eager"}
    values.pop("model_type")
    library = transformers()
    other = library.RobertaPreLayerNormForMaskedLM(library.RobertaPreLayerNormConfig(**values))
    fields = to_hf_names(model.state_dict(), ROBERTA.names(config), is_base_model=False)
    missing, unexpected = other.load_state_dict({renamed(n): w for n, w in fields.items()}, strict=False)
    assert not unexpected
    assert {*missing} <= {"lm_head.decoder.weight", "lm_head.decoder.bias"}

    packed, batch = a_batch(config)
    kept = batch["mask"].bool()
    theirs = other(
        input_ids=batch["ids"],
        attention_mask=batch["mask"],
        labels=batch["labels"],
        output_hidden_states=True,
    )
    encoder = model["encoder"]
    assert isinstance(encoder, Encoder)
    states = encoder.hidden_states(packed)
    for mine, wanted in zip(states[:-1], theirs.hidden_states[:-1], strict=True):
        torch.testing.assert_close(mine, wanted[kept], atol=1e-5, rtol=0)
    hidden = encoder(packed)
    assert torch.equal(states[-1], hidden)
    rows = (batch["labels"][kept] != -100).nonzero()[:, 0]
    table = encoder.embeddings.token.weight
    torch.testing.assert_close(model["masked"](hidden, table), theirs.logits[kept], atol=1e-5, rtol=1e-5)
    loss = model["masked"].loss(hidden[rows], table, batch["labels"][kept][rows])[0] / len(rows)
    torch.testing.assert_close(loss, theirs.loss, atol=1e-5, rtol=0)
    loss.backward()
    theirs.loss.backward()
    grads = {name: torch.zeros_like(w) if w.grad is None else w.grad for name, w in model.named_parameters()}
    wanted_grads = dict(other.named_parameters())
    for name, grad in to_hf_names(grads, ROBERTA.names(config), is_base_model=False).items():
        their = wanted_grads[renamed(name)].grad
        torch.testing.assert_close(
            grad, torch.zeros_like(grad) if their is None else their, atol=1e-5, rtol=1e-5
        )
    assert float(encoder.norm.weight.grad.abs().max()) > 1e-3


@pytest.mark.parametrize("case", ["bert", "roberta", "albert", "distilbert", "electra"])
def test_a_folder_comes_back_and_no_other_library_takes_it_for_what_it_is_not(
    case: str, tmp_path: Path
) -> None:
    config = config_of(case, norm="pre")
    model = ours(config)
    write_folder(tmp_path / "m", config, dict(model.items()))
    folder = read_folder(tmp_path / "m")
    assert folder.config == config
    assert folder.parts == PARTS
    again = folder.encoder()
    for name, weight in model["encoder"].state_dict().items():
        assert torch.equal(again.state_dict()[name], weight), name
    packed, _ = a_batch(config)
    assert torch.equal(again(packed), model["encoder"](packed))
    write_folder(tmp_path / "bare", config, {"encoder": again})
    assert torch.equal(read_folder(tmp_path / "bare").encoder()(packed), model["encoder"](packed))
    numbers = sum(weight.numel() for weight in model["encoder"].parameters())
    assert sum(term.size for term in count_parameters(config, ())) == numbers
    with pytest.raises(ValueError, match=f"bertsmith-{config.model_type}"):
        transformers().AutoModel.from_pretrained(tmp_path / "m")
