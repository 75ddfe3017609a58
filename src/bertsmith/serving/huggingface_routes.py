"""Routes for `huggingface_hub.InferenceClient`: `POST /models/{model}/{pipeline tag}`, and `POST /`.

The client sends no name of a task; at `/` it follows from the first model and from the form of the inputs. A task
whose pipeline tag has no answers of its own form in `PIPELINES` answers as its native route does.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from bertsmith.errors import InputError
from bertsmith.formatting import join_names
from bertsmith.serving.answers import (
    Function,
    SimilarityInputs,
    VectorOptions,
    can_embed,
    cosines,
    embed,
    pipeline_tag,
    predict,
    score_labels,
    softmax,
    to_texts,
)
from bertsmith.serving.errors import JSONResponse
from bertsmith.serving.models import ServedModel
from bertsmith.serving.requests import answer, check_num_inputs, read_body, server_state, validate

_MAX_TOP_K = 100  # tokens for a mask
Pipeline = Callable[[Request, ServedModel, Any, dict[str, Any]], Awaitable[Any]]
ParametersT = TypeVar("ParametersT", bound=BaseModel)


class PipelineBody(BaseModel):
    """The body of all pipelines; some clients send parameters at the top level."""

    model_config = ConfigDict(extra="allow", strict=True)
    inputs: Any
    parameters: dict[str, Any] = {}


class Parameters(BaseModel):
    """Base class of a pipeline's parameters; an unknown one is an error, since it would change the answer."""

    model_config = ConfigDict(extra="forbid", strict=True)


class ClassificationParameters(Parameters):
    """The parameters of text-classification."""

    top_k: int | None = Field(None, ge=1)
    function_to_apply: Function | None = None


class TaggingParameters(Parameters):
    """The parameters of token-classification; words are never split, so that all strategies but none are equal."""

    aggregation_strategy: Literal["none", "simple", "first", "average", "max"] = "simple"
    ignore_labels: list[str] = ["O"]


class AnsweringParameters(Parameters):
    """The parameters of question-answering."""

    top_k: int = Field(1, ge=1, le=1000)
    max_answer_len: int | None = None
    max_question_len: int | None = None
    max_seq_len: int | None = None
    handle_impossible_answer: bool | None = None


class MaskParameters(Parameters):
    """The parameters of fill-mask."""

    top_k: int = Field(5, ge=1, le=_MAX_TOP_K)
    targets: list[str] = []


class EntailmentParameters(Parameters):
    """The parameters of zero-shot-classification."""

    candidate_labels: list[str] = Field(min_length=1)
    multi_label: bool = False
    hypothesis_template: str = "This example is {}."


async def run_first_model(request: Request) -> Response:
    """Run the pipeline of the first model."""
    body = await read_body(request, PipelineBody)
    model = server_state(request).registry.default
    return await _run(request, model, _infer_tag(model, body), body)


async def run_pipeline(request: Request) -> Response:
    """Run a pipeline of a model."""
    body = await read_body(request, PipelineBody)
    model, tag = server_state(request).registry[request.path_params["model"]], request.path_params["tag"]
    if tag not in (tags := pipeline_tags(model)):
        message = f"the model '{model.name}' has no pipeline '{tag[:60]}'"
        raise InputError("route_missing", message, hint=f"it has {join_names(tags)}")
    return await _run(request, model, tag, body)


async def _run(request: Request, model: ServedModel, tag: str, body: PipelineBody) -> Response:
    pipeline = PIPELINES.get(tag, _native)
    return JSONResponse(
        await pipeline(request, model, body.inputs, {**(body.model_extra or {}), **body.parameters})
    )


def pipeline_tags(model: ServedModel) -> list[str]:
    """Return the pipelines that a model can run, first that of its task."""
    task_tag = pipeline_tag(model)
    tags = [] if task_tag is None else [task_tag]
    if "fill-mask" in model.routes:
        tags.append("fill-mask")
    if can_embed(model):
        tags += ["feature-extraction", "sentence-similarity"]
    if task_tag is not None and _entailment_labels(model) is not None:
        tags.append("zero-shot-classification")
    return list(dict.fromkeys(tags))


def _infer_tag(model: ServedModel, body: PipelineBody) -> str:
    tags = pipeline_tags(model)
    if isinstance(body.inputs, dict) and "source_sentence" in body.inputs:
        return "sentence-similarity"
    if "candidate_labels" in body.parameters and "zero-shot-classification" in tags:
        return "zero-shot-classification"
    return next((tag for tag in tags if tag != "sentence-similarity"), "feature-extraction")


def _columns(model: ServedModel, inputs: Any) -> dict[str, list[Any]]:
    """Return the values of a task's inputs: of a text, of an object with several inputs, or of a list of them."""
    names = model.predictor.task.declaration.inputs
    values = inputs if isinstance(inputs, list) else [inputs]
    rows = [value if isinstance(value, dict) else {names[0]: value} for value in values]
    keys = list(rows[0]) if rows else list(names[:1])
    if any(list(row) != keys for row in rows) or not keys or not set(keys) <= set(names):
        message = "this is neither a text, nor an object with the inputs of the task, nor a list of them"
        raise InputError(
            "invalid_body", message, argument="inputs", hint=f"the inputs are {', '.join(names)}"
        )
    return {name: [row[name] for row in rows] for name in keys}


async def _native(request: Request, model: ServedModel, inputs: Any, parameters: dict[str, Any]) -> Any:
    """Return predictions as the native route does."""
    predictions = await predict(request, model, _columns(model, inputs), parameters)
    values = [prediction.to_dict() for prediction in model.predictor.for_python(predictions)]
    return values if isinstance(inputs, list) else values[0]


async def _text_classification(
    request: Request, model: ServedModel, inputs: Any, parameters: dict[str, Any]
) -> Any:
    options = validate(ClassificationParameters, parameters, "parameters")
    scores = await score_labels(request, model, _columns(model, inputs), options.function_to_apply)
    return [_label_scores(by_label)[: options.top_k] for by_label in scores]


def _label_scores(by_label: dict[str, float]) -> list[dict[str, Any]]:
    return [{"label": label, "score": score} for label, score in by_label.items()]


async def _token_classification(
    request: Request, model: ServedModel, inputs: Any, parameters: dict[str, Any]
) -> Any:
    options = validate(TaggingParameters, parameters, "parameters")
    predictions = await predict(request, model, _columns(model, inputs))
    tokens = [_tokens(prediction, options) for prediction in predictions]
    return tokens if isinstance(inputs, list) else tokens[0]


def _tokens(prediction: Any, options: TaggingParameters) -> list[dict[str, Any]]:
    """Return the entities of a sentence; without a tagging scheme or aggregation its words."""
    offsets = prediction.offsets or [[None, None]] * len(prediction.words)
    entities = prediction.entities if prediction.entities is not None else prediction.roles
    if entities is None or options.aggregation_strategy == "none":
        rows = zip(prediction.tags, prediction.scores, prediction.words, offsets, strict=True)
        return [
            {"entity": tag, "score": score, "index": index, "word": word, "start": start, "end": end}
            for index, (tag, score, word, (start, end)) in enumerate(rows, 1)
            if tag not in options.ignore_labels
        ]
    tokens = []
    for entity in entities:
        scores = prediction.scores[entity["start"] : entity["end"]]
        token = {"entity_group": entity["type"], "score": sum(scores) / len(scores), "word": entity["text"]}
        tokens.append(token | {"start": entity.get("start_char"), "end": entity.get("end_char")})
    return [token for token in tokens if token["entity_group"] not in options.ignore_labels]


async def _question_answering(
    request: Request, model: ServedModel, inputs: Any, parameters: dict[str, Any]
) -> Any:
    options = validate(AnsweringParameters, parameters, "parameters")
    settings = {
        "n_best": options.top_k,
        "max_answer_length": options.max_answer_len,
        "max_query_length": options.max_question_len,
        "max_length": options.max_seq_len,
    }
    predictions = await predict(request, model, _columns(model, inputs), settings)
    answers = []
    for prediction in predictions:
        spans = [
            {name: span[name] for name in ("answer", "score", "start", "end")} for span in prediction.n_best
        ]
        if not prediction.answer and options.handle_impossible_answer is not False:
            spans.insert(0, {"answer": "", "score": prediction.score, "start": 0, "end": 0})
        answers.append(spans[: options.top_k] if options.top_k > 1 else spans[0])
    return answers if isinstance(inputs, list) else answers[0]


async def _fill_mask(request: Request, model: ServedModel, inputs: Any, parameters: dict[str, Any]) -> Any:
    options, filler = validate(MaskParameters, parameters, "parameters"), model.mask_filler
    texts = [inputs] if isinstance(inputs, str) else inputs
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise InputError("invalid_body", "this is neither a text nor a list of texts", argument="inputs")
    check_num_inputs(request, len(texts))
    tokens = model.model.tokenizer.tokens
    if unknown := [target for target in options.targets if target not in tokens]:
        message = f"the vocabulary has no token {unknown[0][:60]!r}"
        raise InputError("unknown_token", message, argument="parameters.targets", hint="use whole tokens")
    filler = replace(filler, top_k=options.top_k, targets=tuple(map(tokens.index, options.targets)))
    answers = await answer(request, filler, [filler.check_mask(text) for text in texts])
    rows: list[Any] = []
    for masks in answers.predictions:
        row = [
            [
                {"score": p.score, "token": tokens.index(p.token), "token_str": p.token, "sequence": p.text}
                for p in mask
            ]
            for mask in masks
        ]
        rows.append(row[0] if len(row) == 1 else row)
    return rows if isinstance(inputs, list) else rows[0]


async def _feature_extraction(
    request: Request, model: ServedModel, inputs: Any, parameters: dict[str, Any]
) -> Any:
    parameters = {name: value for name, value in parameters.items() if name != "encoding_format"}
    options = validate(VectorOptions, parameters, "parameters")
    return (await embed(request, model, to_texts(inputs, "inputs"), options))[0]


async def _sentence_similarity(
    request: Request, model: ServedModel, inputs: Any, parameters: dict[str, Any]
) -> list[float]:
    texts = validate(SimilarityInputs, inputs, "inputs")
    options = validate(VectorOptions, parameters, "parameters")
    return cosines((await embed(request, model, [texts.source_sentence, *texts.sentences], options))[0])


async def _zero_shot_classification(
    request: Request, model: ServedModel, inputs: Any, parameters: dict[str, Any]
) -> Any:
    """Classify by the entailment of a hypothesis for each label (Yin, Hay, and Roth 2019)."""
    options = validate(EntailmentParameters, parameters, "parameters")
    if "{}" not in options.hypothesis_template:
        message = "the template has no place for the label"
        raise InputError(
            "invalid_body", message, argument="parameters.hypothesis_template", hint="write it as {}"
        )
    texts, labels = to_texts(inputs, "inputs"), options.candidate_labels
    hypotheses = [options.hypothesis_template.replace("{}", label) for label in labels]
    pairs: dict[str, list[Any]] = {
        "text": [text for text in texts for _ in labels],
        "text_pair": hypotheses * len(texts),
    }
    logits = await predict(request, model, pairs, logits=True)
    entailment, contradiction = _entailment_labels(model) or ("", "")
    answers = []
    for i in range(0, len(logits), len(labels)):
        of_text = logits[i : i + len(labels)]
        scores = softmax([by_label[entailment] for by_label in of_text])
        if options.multi_label or len(labels) == 1:
            scores = [softmax([by_label[entailment], by_label[contradiction]])[0] for by_label in of_text]
        ranked = sorted(zip(labels, scores, strict=True), key=lambda pair: -pair[1])
        answers.append([{"label": label, "score": score} for label, score in ranked])
    return answers if isinstance(inputs, list) else answers[0]


def _entailment_labels(model: ServedModel) -> tuple[str, str] | None:
    """Return the labels of entailment and contradiction; None for a model of other labels, or of single texts."""
    task = model.predictor.task
    names = [
        next((label for label in task.labels or () if label.casefold().startswith(prefix)), None)
        for prefix in ("entail", "contra")
    ]
    entailment, contradiction = names
    if "text_pair" not in task.declaration.inputs or entailment is None or contradiction is None:
        return None
    return entailment, contradiction


PIPELINES: dict[str, Pipeline] = {
    "text-classification": _text_classification,
    "token-classification": _token_classification,
    "question-answering": _question_answering,
    "fill-mask": _fill_mask,
    "feature-extraction": _feature_extraction,
    "sentence-similarity": _sentence_similarity,
    "zero-shot-classification": _zero_shot_classification,
}
"""The pipelines by their tags."""

ROUTES = [
    Route("/", run_first_model, methods=["POST"]),
    Route("/models/{model}/{tag}", run_pipeline, methods=["POST"]),
]
