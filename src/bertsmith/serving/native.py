"""The routes under /v1/models: every task by its own names of inputs, vectors, masked words, and scores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from bertsmith.errors import InputError
from bertsmith.inference.fill_mask import MaskFiller
from bertsmith.inference.predictor import Predictor
from bertsmith.inference.scoring import Variant
from bertsmith.inference.task_predictor import TaskPredictor, mark_empty, to_columns
from bertsmith.serving.errors import JSONResponse
from bertsmith.serving.models import ServedModel
from bertsmith.serving.requests import (
    Body,
    answer,
    check_num_inputs,
    read_body,
    served_model,
    server_state,
    total_tokens,
)
from bertsmith.tasks.batching import Answers

_MAX_FILLED_CHARACTERS = 10_000_000  # of the texts in an answer, one for each token of each mask
_MAX_OVERLAP = 16  # windows that a token may be in: more cost too much before their tokens are counted


class PredictBody(Body):
    """The body of /v1/models/{model}/predict."""

    inputs: dict[str, str | list[Any]] = Field(
        description="the inputs by the task's names: a text each, or a list each for several examples",
        examples=[{"text": ["what a day", "leave me alone"]}],
    )
    settings: dict[str, Any] = Field({}, description="settings of the task for this call, such as max_length")


class TextsBody(Body):
    """The body of a route that takes texts."""

    inputs: str | list[str] = Field(description="a text, or a list of texts", examples=[["what a day"]])

    @property
    def texts(self) -> list[str]:
        """The texts as a list."""
        return [self.inputs] if isinstance(self.inputs, str) else self.inputs


class EmbedBody(TextsBody):
    """The body of /v1/models/{model}/embed."""

    normalize: bool | None = Field(
        None, description="scale vectors to length 1; null: as the model's folder says"
    )


class FillMaskBody(TextsBody):
    """The body of /v1/models/{model}/fill-mask."""

    inputs: str | list[str] = Field(
        description="a text with one or more masks, or a list of them",
        examples=["Paris is the [MASK] of France."],
    )
    top_k: int = Field(5, ge=1, le=100, description="tokens for each mask")


class ScoreBody(TextsBody):
    """The body of /v1/models/{model}/score."""

    variant: Variant | None = Field(
        None, description="the tokens that are masked together; left_to_right for a causal model"
    )


async def list_models(request: Request) -> Response:
    """Describe all models."""
    models = [model.to_dict() for model in server_state(request).registry]
    return JSONResponse({"object": "list", "data": models})


async def show_model(request: Request) -> Response:
    """Describe a model."""
    return JSONResponse(served_model(request).to_dict())


async def predict(request: Request) -> Response:
    """Predict answers by the model's task, as `bertsmith predict` and `Model.predict` do."""
    model = served_model(request)
    body = await read_body(request, PredictBody)
    predictor = with_settings(model.predictor, body.settings)
    names = predictor.task.declaration.inputs
    if unknown := [name for name in body.inputs if name not in names]:
        message = f"the task '{predictor.task.name}' has no input '{unknown[0][:60]}'"
        raise InputError("unknown_input", message, argument="inputs", hint=f"use {', '.join(names)}")
    values = {name: body.inputs[name] for name in names if name in body.inputs}
    first = next(iter(values.values()), [])
    if isinstance(first, str):
        values = {name: [value] for name, value in values.items()}
    check_num_inputs(request, 1 if isinstance(first, str) else len(first))
    columns = to_columns(values)
    examples = predictor.examples(
        columns, [f"input {i}" for i in range(1, len(next(iter(columns.values()))) + 1)]
    )
    answers = await answer(request, predictor, examples)
    predictions = predictor.for_python(mark_empty(answers.predictions, examples))
    return _response(
        model, predictor, answers, predictions=[prediction.to_dict() for prediction in predictions]
    )


async def embed(request: Request) -> Response:
    """Embed texts with the pooling of the model's folder, as `bertsmith embed` and `Model.embed` do."""
    model = served_model(request)
    body = await read_body(request, EmbedBody)
    embedder = model.embedder
    if body.normalize is not None:
        embedder = replace(embedder, config=embedder.config._replace(normalize=body.normalize))
    check_num_inputs(request, len(body.texts))
    answers = await answer(request, embedder, body.texts)
    return _response(model, embedder, answers, embeddings=answers.predictions)


async def fill_mask(request: Request) -> Response:
    """Predict the words behind each mask of texts, as `bertsmith fill-mask` and `Model.fill_mask` do."""
    model = served_model(request)
    body = await read_body(request, FillMaskBody)
    filler = replace(model.mask_filler, top_k=body.top_k)
    answers = await fill_masks(request, filler, body.texts)
    predictions = [[[token.to_dict() for token in mask] for mask in text] for text in answers.predictions]
    return _response(model, filler, answers, predictions=predictions)


async def fill_masks(request: Request, filler: MaskFiller, texts: Sequence[str]) -> Answers:
    """Return the tokens for the masks of texts; raise InputError if the texts with the tokens are very large."""
    check_num_inputs(request, len(texts))
    size = sum(len(filler.check_mask(text)) * text.count(filler.tokenizer.mask_token) for text in texts)
    if size * filler.top_k > _MAX_FILLED_CHARACTERS:
        message = f"the answer would have more than {_MAX_FILLED_CHARACTERS:,} characters"
        raise InputError(
            "answer_too_large", message, argument="inputs", hint="send shorter texts, or fewer masks"
        )
    return await answer(request, filler, texts)


async def score(request: Request) -> Response:
    """Score texts by their pseudo-log-likelihood, as `bertsmith score` and `Model.score` do."""
    model = served_model(request)
    body = await read_body(request, ScoreBody)
    scorer = model.scorer if body.variant is None else replace(model.scorer, variant=body.variant)
    check_num_inputs(request, len(body.texts))
    answers = await answer(request, scorer, body.texts)
    return _response(
        model, scorer, answers, scores=[text_score.to_dict() for text_score in answers.predictions]
    )


ROUTES = [
    Route("/v1/models", list_models, methods=["GET"]),
    Route("/v1/models/{model}", show_model, methods=["GET"]),
    Route("/v1/models/{model}/predict", predict, methods=["POST"]),
    Route("/v1/models/{model}/embed", embed, methods=["POST"]),
    Route("/v1/models/{model}/fill-mask", fill_mask, methods=["POST"]),
    Route("/v1/models/{model}/score", score, methods=["POST"]),
]
BODIES: dict[str, type[Body]] = {
    "predict": PredictBody,
    "embed": EmbedBody,
    "fill-mask": FillMaskBody,
    "score": ScoreBody,
}
"""The body of each route of a model."""


def with_settings(predictor: TaskPredictor, settings: dict[str, Any]) -> TaskPredictor:
    """Return the predictor with the settings of a call; the server decides on the size of batches."""
    if not settings:
        return predictor
    if "batch_size" in settings:
        message, hint = "the server decides on the size of batches", "remove it"
        raise InputError("fixed_setting_changed", message, argument="settings.batch_size", hint=hint)
    predictor = predictor.with_settings(settings, "settings")
    stride, limit = getattr(predictor.task.settings, "stride", None), predictor.task.encoder.max_length
    if stride is not None and stride * _MAX_OVERLAP < limit:
        message, hint = f"{stride} is less than 1/{_MAX_OVERLAP} of {limit} tokens", "increase it"
        raise InputError("stride_too_small", message, argument="settings.stride", hint=hint)
    return predictor


def _response(model: ServedModel, predictor: Predictor, answers: Answers, **values: Any) -> Response:
    usage = {"inputs": len(answers.examples), "tokens": total_tokens(answers, predictor)}
    return JSONResponse({"model": model.name, **values, "usage": usage})
