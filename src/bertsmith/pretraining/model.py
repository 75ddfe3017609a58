"""The initial encoder and objective of a pre-training run: new weights, or those of a base model."""

from __future__ import annotations

import logging
from itertools import chain
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from bertsmith import hardware
from bertsmith.artifacts.folder import ModelFolder, read_folder
from bertsmith.artifacts.locate import CONFIG_FILE
from bertsmith.corpus.shards import IntArray, Shards
from bertsmith.device import ComputeContext
from bertsmith.errors import InputError, command, option
from bertsmith.formatting import pluralize
from bertsmith.inference.model import Model, load
from bertsmith.instances.cooccurrence_embeddings import compute_cooccurrence_embeddings
from bertsmith.io.word_vectors import read_word_vectors
from bertsmith.models import weight_init
from bertsmith.models.config import DROPOUT_SETTINGS, ModelConfig
from bertsmith.models.encoder import Encoder
from bertsmith.models.family import build_encoder, get_family
from bertsmith.objectives.objective import MODEL, ModelParts, Objective, objective_type
from bertsmith.pretraining.data import PretrainData
from bertsmith.pretraining.settings import PretrainSettings
from bertsmith.settings import read_yaml
from bertsmith.tokenizer.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

_SHARED_EMBEDDINGS = [f"encoder.embeddings.{table}.weight" for table in ("token", "position", "segment")]


def load_base(
    model: str | Path | Model | None, file: str | Path | None, shards: Shards, *, resuming: bool
) -> Model | None:
    """Load the model to start from: the argument, or the `base` in a file of settings; None without one.

    Args:
        model: The model, if the user names one.
        file: The recipe, or the settings of the run to resume.
        shards: The data.
        resuming: True if the run is resumed.

    Raises:
        InputError: The model has another tokenizer than the data, or the run did not start from a model.
    """
    base_name = read_yaml(file).get("base") if file is not None else None
    if resuming and model is not None and not base_name:
        message = "this run did not start from a model"
        hint = f"remove {option('model')}, or choose another {option('output_dir')}"
        raise InputError("run_without_base_model", message, location=file, argument="model", hint=hint)
    if model is None and not base_name:
        return None
    base = load(model or str(base_name))
    if base.tokenizer.digest != shards.tokenizer.digest:
        message = f"this data was prepared with another tokenizer than that of {base.path}"
        hint = (
            "prepare the data again with "
            f"{command('data prepare', 'FILES', tokenizer=base.model_folder, output_dir='SHARDS')}"
        )
        raise InputError("tokenizer_mismatch", message, location=shards.folder, argument="model", hint=hint)
    return base


def build_model(
    settings: PretrainSettings,
    data: PretrainData,
    base: ModelFolder | None,
    context: ComputeContext,
    *,
    from_checkpoint: bool,
) -> tuple[Encoder, Objective]:
    """Return the encoder and the objective before the first update, on the device.

    Args:
        settings: The settings of the run.
        data: The corpus.
        base: The model to start from.
        context: The compute context.
        from_checkpoint: True if the weights will be those of a checkpoint, so that they are not initialized from
            the corpus, the base model's heads, or a teacher.
    """
    encoder, objective = first_weights(settings, context.init_generator, data.token_counts, base)
    if not from_checkpoint:
        _init_embeddings_from_data(encoder, settings, data)
    objective.check_tokenizer(data.shards.tokenizer)
    objective.load_teacher(encoder, fresh=not from_checkpoint)
    if base is not None and not from_checkpoint:
        _load_heads(base, encoder, objective, settings)
    context.prepare_modules(encoder, objective)
    return encoder, objective


def check_memory(settings: PretrainSettings, context: ComputeContext) -> None:
    """Raise InputError if weights, gradients, and optimizer state do not fit into memory."""
    hardware.check_memory(count_trained_parameters(settings), hardware.memory_bytes(context.device))


def count_trained_parameters(settings: PretrainSettings) -> int:
    """Return the number of parameters that a run trains: those of the encoder and of the objective's heads."""
    with torch.device("meta"):
        modules = first_weights(settings, torch.Generator())
    parameters = {p for module in modules for p in module.parameters()}
    return sum(p.numel() for p in parameters)


def first_weights(
    settings: PretrainSettings,
    generator: torch.Generator,
    token_counts: IntArray | None = None,
    base: ModelFolder | None = None,
) -> tuple[Encoder, Objective]:
    """Return an encoder and an objective with the initial weights of a run.

    Args:
        settings: The settings of the run.
        generator: The random number generator.
        token_counts: The number of occurrences of each token [V], for the output bias.
        base: A model with the weights of the encoder.
    """
    config = settings.model
    encoder = build_encoder(config, generator) if base is None else base.encoder(generator, config)
    objective = _create_objective(settings, encoder, generator)
    if settings.start.positions == "sinusoidal":
        weight_init.init_sinusoidal_positions(
            encoder.embeddings.position.weight, config.initializer_range, config.position_offset
        )
    if settings.start.attention == "local":
        if config.embedding_size is not None:
            message = (
                "the value 'local' is for models without a projection between positions and layers, and this "
                f"model has model.embedding_size={config.embedding_size}"
            )
            hint = f"use {option('start.attention', 'normal')}"
            raise InputError("local_attention_not_applicable", message, argument="start.attention", hint=hint)
        weight_init.init_local_attention(encoder.blocks[0].attention.qkv.weight, config.num_attention_heads)  # type: ignore[union-attr,arg-type]
    if settings.start.output_bias == "unigram" and token_counts is not None:
        objective.init_output_bias(token_counts)
    return encoder, objective


def _create_objective(settings: PretrainSettings, encoder: Encoder, generator: torch.Generator) -> Objective:
    """Create the objective with its heads; raise InputError for settings that do not fit together."""
    objective_class = objective_type(settings.objective.name)
    for name, value in objective_class.required_model_settings.items():
        if (model_value := getattr(encoder.config, name)) != value:
            message = (
                f"the setting is {model_value}, and the objective '{objective_class.name}' needs {value}"
            )
            hint = f"remove it, or choose another {option('objective.name')}"
            raise InputError("objective_not_applicable", message, argument=f"model.{name}", hint=hint)
    if get_family(encoder.config.model_type).heads.lm_directions != objective_class.lm_directions:
        message = (
            f"a model of the family {encoder.config.model_type} has no objective '{objective_class.name}'"
        )
        hint = f"use {option('objective.name', get_family(encoder.config.model_type).objective)}"
        raise InputError("objective_not_in_family", message, argument="objective.name", hint=hint)
    objective = objective_class.from_settings(encoder, generator, settings.data, settings.objective)
    if settings.objective.reduction == "sum":
        if any(weight != 1 for weight in objective.loss_weights.values()):
            message = f"the objective '{objective.name}' weighs several losses, and each of them is a mean"
            hint = f"remove {option('objective.reduction', 'sum')}"
            raise InputError("reduction_not_applicable", message, argument="objective.reduction", hint=hint)
        objective.summed_parts = objective.perplexity_parts
    return objective


def _init_embeddings_from_data(encoder: Encoder, settings: PretrainSettings, data: PretrainData) -> None:
    """Initialize token embeddings from co-occurrences in the training documents, and from a file, which wins."""
    start, tokenizer = settings.start, data.shards.tokenizer
    if settings.model.embedding_type == "char_cnn":
        if start.tokens != "normal" or start.token_vectors:
            message = "the vectors are computed from the characters of tokens, so they cannot be initialized"
            hint = f"use {option('model.embedding_type', 'token')}, or omit it"
            argument = "start.token_vectors" if start.token_vectors else "start.tokens"
            raise InputError("no_token_vectors", message, argument=argument, hint=hint)
        encoder.embeddings.set_tokens(tokenizer.tokens)
        return
    embeddings = encoder.embeddings.token.weight
    size, sigma = embeddings.shape[1], settings.model.initializer_range
    if start.tokens == "neighbours":
        logger.info("counting which tokens occur near each other, for the initial token embeddings")
        vectors = compute_cooccurrence_embeddings(
            data.shards, data.split.train, tokenizer.vocab_size, size, settings.train.seed
        )
        weight_init.init_token_embeddings(embeddings, vectors, sigma)
    if start.token_vectors:
        weight_init.init_token_embeddings(
            embeddings, read_token_vectors(start.token_vectors, tokenizer, size), sigma
        )


def read_token_vectors(file: str, tokenizer: Tokenizer, size: int) -> NDArray[np.float32]:
    """Return a vector from a file of word vectors for each token, [V, size]; zeros for tokens without one.

    A token has the vector of its own string (`##ing`, `Ġthe`), or of the word that it starts ("the").

    Raises:
        InputError: The vectors have another size, or no token has a vector.
    """
    words = _words_of_tokens(tokenizer)
    word_vectors, width = read_word_vectors(file, set(chain.from_iterable(words.values())))
    argument = "start.token_vectors"
    if width != size:
        message = f"the vectors have {pluralize(width, 'number')}, and token embeddings have {size}"
        hint = f"use vectors of {size} numbers, or change model.hidden_size or model.embedding_size"
        raise InputError("vector_length_differs", message, location=file, argument=argument, hint=hint)
    vectors = np.zeros((tokenizer.vocab_size, size), dtype=np.float32)
    for token_id, candidates in words.items():
        if words_with_vector := [word for word in candidates if word in word_vectors]:
            vectors[token_id] = word_vectors[words_with_vector[0]]
    has_vector = vectors.any(1)
    num_tokens = int(has_vector.sum())
    if not num_tokens or not np.ptp(vectors[has_vector]):
        message = "no token of the vocabulary has a vector, or all of their numbers are equal"
        hint = "use vectors of the language and the case of the corpus"
        raise InputError("no_usable_vectors", message, location=file, argument=argument, hint=hint)
    count, total = f"{num_tokens:,}", pluralize(len(words), "token")
    logger.info("%s: %s of %s start from these vectors", file, count, total)
    return vectors


def _words_of_tokens(tokenizer: Tokenizer) -> dict[int, list[str]]:
    """Return the words whose vector each token may have, the best first; special tokens have none."""
    words: dict[int, list[str]] = {}
    for token_id, token in enumerate(tokenizer.tokens):
        text = token.replace("▁", " ") if tokenizer.kind == "unigram" else token
        if tokenizer.kind == "byte_level_bpe":
            text = tokenizer.decode([token_id])
        if token_id not in tokenizer.all_special_ids:
            words[token_id] = [token, text[1:]] if text.startswith(" ") and len(text) > 1 else [token]
    return words


def _load_heads(
    base: ModelFolder, encoder: Encoder, objective: Objective, settings: PretrainSettings
) -> None:
    """Load the base model's heads and its generator, if it has them; log the new ones."""
    task, exported = settings.data.sentence_task, dict(objective.export(encoder))
    for name, module in exported.pop(MODEL).modules.items():
        if name == "encoder":
            continue
        if not base.has(name) or (name == "pair" and base.sentence_task != task):
            purpose = f" for {task}" if name == "pair" else ""
            logger.info("%s: the model has no head '%s'%s; a new one is trained", base.path, name, purpose)
            continue
        base.load_into(name, module)
        if name == "pair" and task == "nsp" and base.is_next_label != settings.data.is_next_label:
            swap_labels(module)
            message = "%s: IsNext is %d there and %d here: the outputs of the head for pairs are exchanged"
            logger.info(message, base.path, base.is_next_label, settings.data.is_next_label)
    for folder_name, parts in exported.items():
        folder = base.path.parent / folder_name
        model = read_folder(folder) if (folder / CONFIG_FILE).is_file() else None
        if model is None or not _was_trained_with(base, model, parts):
            logger.info("%s: there is no %s of this model; a new one is trained", folder, folder_name)
            continue
        for name, module in parts.modules.items():
            model.load_into(name, module)


def _was_trained_with(base: ModelFolder, model: ModelFolder, parts: ModelParts) -> bool:
    """Return True if a second model, such as a generator, has these parts and the base model's embeddings."""
    sizes = ModelConfig.model_fields.keys() - set(DROPOUT_SETTINGS)
    if any(getattr(model.config, name) != getattr(parts.config, name) for name in sizes):
        return False
    if not all(map(model.has, parts.modules)):
        return False
    base_weights, weights = base.weights(), model.weights()
    return all(
        torch.allclose(base_weights[table].float(), weights[table].float(), atol=1e-6)
        for table in _SHARED_EMBEDDINGS
        if table in base_weights and table in weights
    )


def swap_labels(head: nn.Module) -> None:
    """Swap the outputs 0 and 1 of a binary classification head."""
    with torch.no_grad():
        for weights in head.parameters():
            weights.copy_(weights.flip(0))
