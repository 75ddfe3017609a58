"""Parts of the routes of other servers' clients: the choice of a model, vectors, scores, and relevance."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field
from scipy.special import expit, softmax
from starlette.requests import Request

from bertsmith.artifacts.sentence_transformers import read_prompts
from bertsmith.errors import InputError
from bertsmith.formatting import join_names
from bertsmith.inference.embedding import Embedder
from bertsmith.inference.logits import LogitPredictor
from bertsmith.inference.predictor import with_class
from bertsmith.inference.task_predictor import to_columns
from bertsmith.serving.models import ServedModel
from bertsmith.serving.native import with_settings
from bertsmith.serving.requests import answer, check_num_inputs, server_state, total_tokens
from bertsmith.tasks.labels import UNNAMED_LABEL

Function = Literal["none", "sigmoid", "softmax"]
Text = str | list[int]
"""A text, or the ids of its tokens."""


class CompatibleBody(BaseModel):
    """Base class of the bodies of other servers' clients; names that this server does not know are ignored."""

    model_config = ConfigDict(extra="ignore", strict=True)


class VectorOptions(CompatibleBody):
    """Options of embedding texts.

    Attributes:
        normalize: Scale vectors to unit length; None: as the model's folder says.
        truncate: Truncate texts that are too long; otherwise they are an error.
        truncation_direction: The side at which they are truncated.
        prompt_name: The prompt of the folder that is put before each text; None: none.
        dimensions: The number of first dimensions to return; None: all.
    """

    normalize: bool | None = None
    truncate: bool | None = True
    truncation_direction: Literal["right", "left", "Right", "Left"] = "right"
    prompt_name: str | None = None
    dimensions: int | None = Field(None, ge=1)


class SimilarityInputs(CompatibleBody):
    """A text, and the texts that it is compared with."""

    source_sentence: str
    sentences: list[str]


def choose_model(
    request: Request, name: str | None, can: Callable[[ServedModel], bool], verb: str
) -> ServedModel:
    """Return the model of a name, or without one the first that can answer; raise InputError if it cannot.

    Args:
        request: The request.
        name: The name that the client sent; None or "" if it sent none.
        can: Returns True for a model that can answer.
        verb: What it must be able to do, for the error.
    """
    registry = server_state(request).registry
    models = [registry[name]] if name else registry
    if (model := next(filter(can, models), None)) is None:
        message = f"the model '{name}' cannot {verb}" if name else f"none of the served models can {verb}"
        raise InputError("route_missing", message, hint="GET /v1/models lists the models and their routes")
    return model


def can_embed(model: ServedModel) -> bool:
    """Return True if a model embeds texts."""
    return "embed" in model.routes


def can_classify(model: ServedModel) -> bool:
    """Return True if the answers of a model are scores of labels, or a number."""
    return pipeline_tag(model) == "text-classification"


def can_rerank(model: ServedModel) -> bool:
    """Return True if a model scores pairs of texts."""
    return model.reranker is not None


def pipeline_tag(model: ServedModel) -> str | None:
    """Return the hub's name of a model's task; None without a task."""
    return model.predictor.task.declaration.pipeline_tag if "predict" in model.routes else None


def to_texts(value: Any, argument: str) -> list[Text]:
    """Return the texts of a text, the ids of its tokens, or a list of such texts.

    Raises:
        InputError: The value is something else.
    """
    if isinstance(value, str) or (value and _are_ids(value)):
        return [value]
    if not isinstance(value, list) or not all(isinstance(text, str) or _are_ids(text) for text in value):
        message = "this is not a text, a list of texts, the ids of tokens, or a list of lists of ids"
        raise InputError("invalid_body", message, argument=argument)
    return value


def _are_ids(value: Any) -> bool:
    return isinstance(value, list) and all(type(token_id) is int for token_id in value)


async def embed(
    request: Request, model: ServedModel, texts: Sequence[Text], options: VectorOptions
) -> tuple[list[NDArray[np.float32]], int]:
    """Return the vector of each text, and the number of tokens that were read."""
    check_num_inputs(request, len(texts))
    embedder = with_options(model.embedder, options)
    answers = await answer(request, embedder, add_prompt(model, texts, options.prompt_name))
    vectors = [vector[: options.dimensions] for vector in answers.predictions]
    if options.dimensions is not None and embedder.config.normalize:
        vectors = [vector / max(float(np.linalg.norm(vector)), 1e-12) for vector in vectors]
    return vectors, total_tokens(answers, embedder)


def with_options(embedder: Embedder, options: VectorOptions) -> Embedder:
    """Return the embedder with the options of a request; raise InputError for more dimensions than it has."""
    if options.dimensions is not None and options.dimensions > embedder.size:
        message = f"the vectors have {embedder.size:,} dimensions"
        raise InputError(
            "too_many_dimensions", message, argument="dimensions", hint="omit it, or decrease it"
        )
    config = embedder.config
    if options.normalize is not None:
        config = config._replace(normalize=options.normalize)
    side: Any = None if options.truncate is False else options.truncation_direction.lower()
    return replace(embedder, config=config, truncation_side=side)


def add_prompt(model: ServedModel, texts: Sequence[Text], name: str | None) -> Sequence[Text]:
    """Return the texts with a prompt of the model's folder before each.

    Raises:
        InputError: The folder has no such prompt, or a text is given as ids.
    """
    if name is None:
        return texts
    prompts = read_prompts(model.model.model_folder)
    if name not in prompts:
        hint = f"use one of {join_names(list(prompts))}" if prompts else "omit it: the folder has no prompts"
        message = f"the model '{model.name}' has no prompt '{name[:60]}'"
        raise InputError("unknown_prompt", message, argument="prompt_name", hint=hint)
    if not all(isinstance(text, str) for text in texts):
        message, hint = "a prompt cannot be put before the ids of tokens", "send texts"
        raise InputError("prompt_before_ids", message, argument="prompt_name", hint=hint)
    return [f"{prompts[name]}{text}" for text in texts]


async def predict(
    request: Request,
    model: ServedModel,
    inputs: Mapping[str, Sequence[Any]],
    settings: Mapping[str, Any] | None = None,
    *,
    logits: bool = False,
    truncate: bool = True,
) -> list[Any]:
    """Return the prediction of each example.

    Args:
        request: The request.
        model: The model.
        inputs: The values of each input by its name.
        settings: Settings of the task for this call; None leaves a setting as it is.
        logits: Return the logits of the labels by name instead of predictions.
        truncate: Truncate texts that are too long; otherwise they are an error.
    """
    check_num_inputs(request, len(next(iter(inputs.values()))))
    changes = {name: value for name, value in (settings or {}).items() if value is not None}
    predictor = with_settings(model.predictor, changes)
    if logits:
        predictor = with_class(predictor, LogitPredictor)
    answers = await answer(request, predictor, predictor.examples(to_columns(inputs)))
    if not truncate and predictor.task.text_stats(predictor.tokenizer, answers.items).num_truncated:
        message, hint = "a text is longer than the model reads", "shorten it, or let it be truncated"
        raise InputError("text_too_long", message, hint=hint)
    return list(answers.predictions)


async def score_labels(
    request: Request,
    model: ServedModel,
    inputs: Mapping[str, Sequence[Any]],
    function: Function | None = None,
    *,
    truncate: bool = True,
) -> list[dict[str, float]]:
    """Return the scores of the labels of each example, the best first.

    Args:
        request: The request.
        model: The model, which `can_classify`.
        inputs: The values of each input by its name.
        function: The function of the logits; None: what the model was trained with, so that scores are
            probabilities, or the number of a regression.
        truncate: Truncate texts that are too long; otherwise they are an error.
    """
    if not can_classify(model):
        message = f"the model '{model.name}' does not classify texts"
        raise InputError("route_missing", message, hint=f"it has the routes {join_names(model.routes)}")
    labels = model.predictor.task.labels or [UNNAMED_LABEL]
    predictions = await predict(request, model, inputs, logits=function is not None, truncate=truncate)
    if function is not None:
        values = [_apply(function, list(logits.values())) for logits in predictions]
    elif hasattr(predictions[0], "scores"):
        values = [[float(prediction.scores[label]) for label in labels] for prediction in predictions]
    else:
        values = [[prediction.number] for prediction in predictions]
    return [dict(sorted(zip(labels, scores, strict=True), key=lambda pair: -pair[1])) for scores in values]


def _apply(function: Function, logits: Sequence[float]) -> list[float]:
    functions: Mapping[Function, Any] = {"none": np.asarray, "sigmoid": expit, "softmax": softmax}
    values: list[float] = functions[function](np.array(logits, dtype=np.float64)).tolist()
    return values


async def rerank(
    request: Request,
    model: ServedModel,
    query: str,
    texts: Sequence[str],
    *,
    logits: bool = False,
    truncate: bool = True,
) -> list[tuple[int, float]]:
    """Return the indices of texts with their relevance to a query, the best first.

    Args:
        request: The request.
        model: A model that scores pairs of texts.
        query: The query.
        texts: The texts.
        logits: Return logits; otherwise the probability of the label of relevant texts, or a number's sigmoid.
        truncate: Truncate pairs that are too long; otherwise they are an error.
    """
    reranker = model.reranker
    assert reranker is not None  # the route has chosen the model by `can_rerank`
    inputs = {"text": [query] * len(texts), "text_pair": list(texts)}
    predictions = await predict(request, model, inputs, logits=logits, truncate=truncate)
    if logits:
        scores = [by_label.get(reranker.label, max(by_label.values())) for by_label in predictions]
    else:
        scores = [float(expit(p.number)) if hasattr(p, "number") else reranker.score(p) for p in predictions]
    return sorted(enumerate(scores), key=lambda pair: -pair[1])


def cosines(vectors: Sequence[NDArray[np.float32]]) -> list[float]:
    """Return the cosine of the first vector and each other one."""
    first, *others = (vector / max(float(np.linalg.norm(vector)), 1e-12) for vector in vectors)
    return [float(first @ other) for other in others]
