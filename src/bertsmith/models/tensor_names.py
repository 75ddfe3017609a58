"""Tables of bertsmith's tensor names and Hugging Face's.

bertsmith's names are those of the modules' state_dict with the prefix of their part (`encoder.`, `pooler.`,
`masked.`, …: see `task_heads.PART_BUILDERS`). Hugging Face's are those of its classes with a head. One tensor of
bertsmith may be several of Hugging Face, concatenated along dimension 0: `attention.qkv` is query, key, and value.
GPT's classes have the transposed weights of linear layers (`Conv1D`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from bertsmith.models.config import ModelConfig

WEIGHT_AND_BIAS = ("weight", "bias")

ModuleNames = Mapping[str, tuple[str, ...]]
"""Maps a module of bertsmith to the module of Hugging Face, or to several that it concatenates."""

EMBEDDING_MODULES: ModuleNames = {
    "encoder.embeddings.token": ("{base}.embeddings.word_embeddings",),
    "encoder.embeddings.position": ("{base}.embeddings.position_embeddings",),
    "encoder.embeddings.segment": ("{base}.embeddings.token_type_embeddings",),
    "encoder.embeddings.norm": ("{base}.embeddings.LayerNorm",),
}
LAYER_MODULES: ModuleNames = {
    "attention.qkv": ("attention.self.query", "attention.self.key", "attention.self.value"),
    "attention.output": ("attention.output.dense",),
    "attention_norm": ("attention.output.LayerNorm",),
    "feed_forward.inner": ("intermediate.dense",),
    "feed_forward.output": ("output.dense",),
    "output_norm": ("output.LayerNorm",),
}
TASK_MODULES: ModuleNames = {
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
RECURRENT_DECODERS = ("recurrent_decoder", "bilinear_decoder", "concat_decoder", "additive_decoder")
"""The recurrent decoders: without learned scores of attention, and with each kind of them."""
_DECODER_LAYER = (
    "attention.qkv",
    "attention.output",
    "attention_norm",
    "cross_attention.query",
    "cross_attention.key_value",
    "cross_attention.output",
    "cross_attention_norm",
    "feed_forward.inner",
    "feed_forward.output",
    "output_norm",
)
_LSTM = tuple(
    f"{parameter}_{source}_l{layer}{direction}"
    for layer in (0, 1)
    for direction in ("", "_reverse")
    for parameter in WEIGHT_AND_BIAS
    for source in ("ih", "hh")
)
_LSTM_LAYER = tuple(f"{parameter}_{source}_l0" for parameter in WEIGHT_AND_BIAS for source in ("ih", "hh"))
# Modules whose parameters are not a weight and a bias; the CRF's are pytorch-crf's.
_PARAMETERS = {
    "encoder.embeddings.token": ("weight",),
    "encoder.embeddings.position": ("weight",),
    "encoder.embeddings.segment": ("weight",),
    "masked": ("bias",),
    "masked.decoder": ("weight",),
    "crf": ("start_transitions", "transitions", "end_transitions"),
    "mix": ("weights", "scale"),
    "recurrent.lstm": _LSTM,
    "recurrent4.lstm": _LSTM,
    **{f"{decoder}.lstm": _LSTM_LAYER for decoder in RECURRENT_DECODERS},
    **{
        f"{decoder}.score.{matrix}": ("weight",)
        for decoder in RECURRENT_DECODERS
        for matrix in ("query", "key", "vector")
    },
}


@dataclass(frozen=True)
class NameTable:
    """A family's tensors by bertsmith's and Hugging Face's names.

    Hugging Face's files may have copies of a tensor of which bertsmith has one. They are of three kinds, each a
    mapping from the copy's name to the original's, both Hugging Face's.

    Attributes:
        base_model_prefix: The prefix of the encoder's names, which base models omit, as in transformers.
        tensors: Maps bertsmith's name to Hugging Face's name, or to several whose tensors it concatenates.
        tied: Copies that transformers ties to the original and does not save today; older files have them.
        duplicates: Copies that transformers saves for each layer although layers share them.
        unused: Copies that transformers saves and never reads.
        transposed: bertsmith's names of the tensors that are transposed in Hugging Face's files.
        buffers: Tensors of older files that are no weights, such as attention masks; they are ignored.
    """

    base_model_prefix: str
    tensors: Mapping[str, tuple[str, ...]]
    tied: Mapping[str, str] = field(default_factory=dict)
    duplicates: Mapping[str, str] = field(default_factory=dict)
    unused: Mapping[str, str] = field(default_factory=dict)
    transposed: frozenset[str] = frozenset()
    buffers: frozenset[str] = frozenset()

    def without_part(self, part: str) -> NameTable:
        """Return the table without the tensors of a part."""
        tensors = {name: names for name, names in self.tensors.items() if not name.startswith(f"{part}.")}
        return replace(self, tensors=tensors)


def name_table(
    config: ModelConfig,
    base: str,
    *,
    heads: ModuleNames,
    decoder: str | None = None,
    projection: str | None = None,
    embeddings: ModuleNames = EMBEDDING_MODULES,
    layer: ModuleNames = LAYER_MODULES,
    layer_name: str = "encoder.layer.{layer}",
    last_norm: str = "{base}.LayerNorm",
) -> NameTable:
    """Build a family's table from its modules.

    Args:
        config: The model's sizes and switches.
        base: The prefix of the encoder's names; it replaces "{base}" in Hugging Face's names.
        heads: The modules of the heads.
        decoder: Hugging Face's decoder of the masked LM head, whose bias is that of `masked`; None without one.
        projection: Hugging Face's projection of embeddings whose size is not the hidden size.
        embeddings: The modules of the embeddings.
        layer: The modules of a layer.
        layer_name: Hugging Face's name of a layer, with "{layer}" for its index.
        last_norm: Hugging Face's LayerNorm after the last layer of a pre-norm model.
    """
    outside_layers = dict(embeddings)
    if projection is not None and config.embedding_size is not None:
        outside_layers["encoder.embeddings.projection"] = (projection,)
    if not config.type_vocab_size:
        outside_layers.pop("encoder.embeddings.segment", None)
    if config.norm == "pre":
        outside_layers["encoder.norm"] = (last_norm,)
    modules = {
        name: tuple(hf_name.format(base=base) for hf_name in hf_names)
        for name, hf_names in (outside_layers | dict(heads)).items()
    }
    layer_modules, duplicates = _layer_modules(config, f"{base}.{layer_name}", layer)
    modules |= layer_modules | {name: (name,) for name in decoder_modules(config)}
    tensors = with_second_encoder(config, module_tensors(modules))
    tied: dict[str, str] = {}
    unused: dict[str, str] = {}
    has_bias = "masked.bias" in tensors
    if decoder is not None and config.tie_word_embeddings:
        tied[f"{decoder}.weight"] = tensors["encoder.embeddings.token.weight"][0]
        if has_bias:
            tied[f"{decoder}.bias"] = tensors["masked.bias"][0]
    elif decoder is not None:
        tensors["masked.decoder.weight"] = (f"{decoder}.weight",)
        if has_bias:  # transformers then adds the decoder's bias, and saves but ignores the head's
            (head_bias,) = tensors["masked.bias"]
            decoder_bias = f"{decoder}.bias"
            tensors["masked.bias"] = (decoder_bias,)
            if head_bias != decoder_bias:
                unused[head_bias] = decoder_bias
    return NameTable(base, tensors, tied, duplicates, unused)


def module_tensors(modules: ModuleNames) -> dict[str, tuple[str, ...]]:
    """Return the tensors of modules, by bertsmith's and Hugging Face's names."""
    return {
        f"{name}.{parameter}": tuple(f"{hf_name}.{parameter}" for hf_name in hf_names)
        for name, hf_names in modules.items()
        for parameter in _PARAMETERS.get(name, WEIGHT_AND_BIAS)
    }


def with_second_encoder(
    config: ModelConfig, tensors: Mapping[str, tuple[str, ...]]
) -> dict[str, tuple[str, ...]]:
    """Return a model's tensors and, if it is causal, those of a second encoder of the other direction."""
    if not config.causal:
        return dict(tensors)
    second_encoder = {name: hf_names for name, hf_names in tensors.items() if name.startswith("encoder.")}
    second_encoder |= {f"linear.{parameter}": (f"linear.{parameter}",) for parameter in WEIGHT_AND_BIAS}
    return {
        **tensors,
        **{
            f"beside.{name}": tuple(f"beside.{hf_name}" for hf_name in hf_names)
            for name, hf_names in second_encoder.items()
        },
    }


def decoder_modules(config: ModelConfig) -> list[str]:
    """Return the modules of all decoders; Hugging Face has no names for them."""
    modules = [
        f"decoder.blocks.{layer}.{name}"
        for layer in range(config.num_hidden_layers)
        for name in _DECODER_LAYER
    ]
    modules += ["decoder.norm"] if config.norm == "pre" else []
    modules += [
        f"{decoder}.{name}" for decoder in RECURRENT_DECODERS for name in ("lstm", "initial", "combine")
    ]
    modules += ["bilinear_decoder.score.key", "concat_decoder.score.vector"]
    modules += [f"additive_decoder.score.{matrix}" for matrix in ("query", "key", "vector")]
    if config.embedding_size is not None:
        modules += [f"{decoder}.projection" for decoder in ("decoder", *RECURRENT_DECODERS)]
    return modules


def _layer_modules(
    config: ModelConfig, layer_name: str, layer: ModuleNames
) -> tuple[dict[str, tuple[str, ...]], dict[str, str]]:
    """Return the modules of all layers, and the duplicates of those that layers share (`NameTable.duplicates`)."""
    modules: dict[str, tuple[str, ...]] = {}
    duplicates: dict[str, str] = {}
    for i in range(config.num_hidden_layers):
        first = config.first_layer_of_group(i)
        block = config.group_index(i) if config.share == "all" else i  # index in Encoder.blocks
        hf_layer, first_hf_layer = layer_name.format(layer=block), layer_name.format(layer=first)
        for name, hf_names in layer.items():
            if i == first or name.partition(".")[0] not in config.shared_submodules:
                modules[f"encoder.blocks.{block}.{name}"] = tuple(f"{hf_layer}.{hf}" for hf in hf_names)
            elif config.share != "all":
                duplicates |= {
                    f"{hf_layer}.{hf}.{parameter}": f"{first_hf_layer}.{hf}.{parameter}"
                    for hf in hf_names
                    for parameter in WEIGHT_AND_BIAS
                }
    return modules, duplicates
