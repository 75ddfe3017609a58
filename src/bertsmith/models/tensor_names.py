"""Our tensors' names and the field's: what a family's table holds, and the parts such tables are made of.

Ours are those of the modules' state_dict under the name of their part (`encoder.`, `pooler.`, `masked.`, …: see
`heads.PARTS`); the field's are those of its classes with a head, or ours where it has no such class.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from bertsmith.models.config import ModelConfig

BOTH = ("weight", "bias")

Modules = Mapping[str, tuple[str, ...]]
"""Our module → the field's, or the field's whose rows ours joins."""

EMBEDDINGS: Modules = {
    "encoder.embeddings.token": ("{base}.embeddings.word_embeddings",),
    "encoder.embeddings.position": ("{base}.embeddings.position_embeddings",),
    "encoder.embeddings.segment": ("{base}.embeddings.token_type_embeddings",),
    "encoder.embeddings.norm": ("{base}.embeddings.LayerNorm",),
}
LAYER: Modules = {
    "attention.qkv": ("attention.self.query", "attention.self.key", "attention.self.value"),
    "attention.output": ("attention.output.dense",),
    "attention_norm": ("attention.output.LayerNorm",),
    "feed_forward.inner": ("intermediate.dense",),
    "feed_forward.output": ("output.dense",),
    "output_norm": ("output.LayerNorm",),
}
TASKS: Modules = {
    "classifier.linear": ("classifier",),
    "tagger.linear": ("classifier",),
    "mix": ("mix",),
    "joined.linear": ("joined",),
    "recurrent.lstm": ("lstm",),
    "recurrent4.lstm": ("lstm4",),
    "crf": ("crf",),
    "span": ("qa_outputs",),
    "span_transform.linear": ("qa_transform",),
    "chooser.linear": ("classifier",),
    "relater.linear": ("relater",),
}
_LSTM = tuple(
    f"{kind}_{of}_l{layer}{direction}"
    for layer in (0, 1)
    for direction in ("", "_reverse")
    for kind in BOTH
    for of in ("ih", "hh")
)
# Tables have no bias; the masked head's own bias stands by itself. A chain's are pytorch-crf's.
_KINDS = {
    "encoder.embeddings.token": ("weight",),
    "encoder.embeddings.position": ("weight",),
    "encoder.embeddings.segment": ("weight",),
    "masked": ("bias",),
    "masked.decoder": ("weight",),
    "crf": ("start_transitions", "transitions", "end_transitions"),
    "mix": ("weights", "scale"),
    "recurrent.lstm": _LSTM,
    "recurrent4.lstm": _LSTM,
}
_SHARED: Mapping[str, tuple[str, ...]] = {
    "none": (),
    "all": ("attention.", "attention_norm", "feed_forward.", "output_norm"),
    "attention": ("attention.", "attention_norm"),
    "feed_forward": ("feed_forward.", "output_norm"),
}


@dataclass(frozen=True)
class NameTable:
    """A family's tensors by both names.

    base: what the field puts before the encoder's names, and a bare encoder leaves away. tensors: our name → the
    field's names whose rows it joins. copies: the field's name of a tied tensor → that of its original; read and
    compared, never written. repeated: the same, but written, since the field has no name for what is shared.
    idle: the field's name of a tensor that it keeps and nothing depends on → that in whose place it stands;
    written as a copy of it, read only where that is not there.
    """

    base: str
    tensors: Mapping[str, tuple[str, ...]]
    copies: Mapping[str, str] = field(default_factory=dict)
    repeated: Mapping[str, str] = field(default_factory=dict)
    idle: Mapping[str, str] = field(default_factory=dict)

    @property
    def constants(self) -> frozenset[str]:
        """What older files carry beside the weights: no weights, so never read."""
        return frozenset({f"{self.base}.embeddings.position_ids", f"{self.base}.embeddings.token_type_ids"})

    def without(self, part: str) -> NameTable:
        """The table of files that do not have this part."""
        kept = {ours: theirs for ours, theirs in self.tensors.items() if not ours.startswith(f"{part}.")}
        return replace(self, tensors=kept)


def name_table(
    config: ModelConfig,
    base: str,
    *,
    heads: Modules,
    decoder: str | None = None,
    extra: Modules | None = None,
    layer: Modules = LAYER,
    layer_name: str = "encoder.layer.{layer}",
) -> NameTable:
    """A family's table from its modules: what surrounds the layers, what is in each, the heads.

    decoder: the field's module of the masked head's decoder, whose bias is that of our `masked`; None where there
    is no such head.
    """
    surroundings = {**EMBEDDINGS, **(extra or {})}
    if not config.type_vocab_size:
        del surroundings["encoder.embeddings.segment"]
    if config.norm == "pre":
        surroundings["encoder.norm"] = ("{base}.LayerNorm",)
    modules = {
        ours: tuple(name.format(base=base) for name in theirs) for ours, theirs in surroundings.items()
    }
    modules |= {ours: tuple(name.format(base=base) for name in theirs) for ours, theirs in heads.items()}
    repeated: dict[str, str] = {}
    for i in range(config.num_hidden_layers):
        first = config.first_of_group(i)
        block = config.group_of(i) if config.share == "all" else i
        for ours, theirs in layer.items():
            fields = _in_layer(base, layer_name, block, theirs)
            if i == first or not ours.startswith(_SHARED[config.share]):
                modules[f"encoder.blocks.{block}.{ours}"] = fields
            elif config.share != "all":
                for name, original in zip(fields, _in_layer(base, layer_name, first, theirs), strict=True):
                    repeated |= {f"{name}.{kind}": f"{original}.{kind}" for kind in BOTH}
    tensors = {
        f"{ours}.{kind}": tuple(f"{name}.{kind}" for name in theirs)
        for ours, theirs in modules.items()
        for kind in _KINDS.get(ours, BOTH)
    }
    if config.causal:  # another model like it may stand beside it
        tensors |= {
            f"beside.{ours}": tuple(f"beside.{name}" for name in theirs)
            for ours, theirs in tensors.items()
            if ours.startswith("encoder.")
        }
        tensors |= {f"beside.linear.{kind}": (f"beside.linear.{kind}",) for kind in BOTH}
    copies, idle = {}, {}
    if decoder is not None and config.tie_word_embeddings:
        copies[f"{decoder}.weight"] = f"{base}.embeddings.word_embeddings.weight"
        copies[f"{decoder}.bias"] = tensors["masked.bias"][0]
    elif decoder is not None:  # here the reference adds the decoder's bias, and only keeps the head's
        (bias,) = tensors["masked.bias"]
        tensors["masked.bias"] = (f"{decoder}.bias",)
        tensors["masked.decoder.weight"] = (f"{decoder}.weight",)
        idle = {bias: f"{decoder}.bias"} if bias != f"{decoder}.bias" else {}
    return NameTable(base, tensors, copies, repeated, idle)


def _in_layer(base: str, layer_name: str, layer: int, theirs: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(f"{base}.{layer_name.format(layer=layer)}.{name}" for name in theirs)
