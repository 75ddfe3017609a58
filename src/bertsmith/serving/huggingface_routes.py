"""Routes for `huggingface_hub.InferenceClient`: `POST /models/{model}/{pipeline tag}`, and `POST /`.

The client sends no name of a task; at `/` it follows from the first model and from the form of the inputs. A task
whose pipeline tag is not in `PIPELINES` answers as its native route does.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field
from scipy.special import softmax
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from bertsmith.errors import InputError
from bertsmith.formatting import join_names
from bertsmith.serving import compatible
from bertsmith.serving.errors import JSONResponse
from bertsmith.serving.models import ServedModel
from bertsmith.serving.native import fill_masks
from bertsmith.serving.requests import Body, read_body, server_state, validate

BodyT = TypeVar("BodyT", bound=BaseModel)


class PipelineBody(BaseModel):
    """The body of all pipelines; some clients send parameters at the top level."""

    model_config = ConfigDict(extra="allow", strict=True)
    inputs: Any
    parameters: dict[str, Any] = {}


class ClassificationParameters(Body):
    """The parameters of text-classification; as for all pipelines, an unknown one is an error."""

    top_k: int | None = Field(None, ge=1)
    function_to_apply: compatible.Function | None = None


class TaggingParameters(Body):
    """The parameters of token-classification; all strategies but "none" are equal, since words have one tag."""

    aggregation_strategy: Literal["none", "simple", "first", "average", "max"] = "simple"
    ignore_labels: list[str] = ["O"]  # noqa: RUF012, since pydantic copies it


class AnsweringParameters(Body):
    """The parameters of question-answering; `align_to_words` has no effect."""

    top_k: int = Field(1, ge=1, le=100)
    max_answer_len: int | None = None
    max_question_len: int | None = None
    max_seq_len: int | None = None
    handle_impossible_answer: bool | None = None
    doc_stride: int | None = None
    align_to_words: bool | None = None


class MaskParameters(Body):
    """The parameters of fill-mask."""

    top_k: int = Field(5, ge=1, le=100)
    targets: list[str] = []  # noqa: RUF012, since pydantic copies it


class EntailmentParameters(Body):
    """The parameters of zero-shot-classification."""

    candidate_labels: list[str] = Field(min_length=1)
    multi_label: bool = False
    hypothesis_template: str = "This example is {}."


@dataclass(frozen=True)
class PipelineCall:
    """A call of a pipeline."""

    request: Request
    model: ServedModel
    inputs: Any
    parameters: Mapping[str, Any]

    def validate(self, parameters_class: type[BodyT]) -> BodyT:
        """Return the parameters; raise InputError for an invalid one."""
        return validate(parameters_class, self.parameters, "parameters")

    def columns(self) -> dict[str, list[Any]]:
        """Return the task's inputs by name: of a text, an object with several inputs, or a list of either."""
        names = self.model.predictor.task.declaration.inputs
        values = self.inputs if isinstance(self.inputs, list) else [self.inputs]
        rows = [value if isinstance(value, dict) else {names[0]: value} for value in values]
        keys = list(rows[0]) if rows else list(names[:1])
        if any(list(row) != keys for row in rows) or not keys or not set(keys) <= set(names):
            message = "this is neither a text, nor an object with the inputs of the task, nor a list of them"
            hint = f"the inputs are {', '.join(names)}"
            raise InputError("invalid_body", message, argument="inputs", hint=hint)
        return {name: [row[name] for row in rows] for name in keys}

    def answers(self, values: list[Any]) -> Any:
        """Return the values for a list of inputs, and the only one for a single input."""
        return values if isinstance(self.inputs, list) else values[0]


async def run_first_model(request: Request) -> Response:
    """Run the pipeline of the first model."""
    body, model = await read_body(request, PipelineBody), server_state(request).registry.default
    tags = pipeline_tags(model)
    tag = next((tag for tag in tags if tag != "sentence-similarity"), "feature-extraction")
    if isinstance(body.inputs, dict) and "source_sentence" in body.inputs:
        tag = "sentence-similarity"
    elif "candidate_labels" in body.parameters and "zero-shot-classification" in tags:
        tag = "zero-shot-classification"
    return await _run(request, model, tag, body)


async def run_pipeline(request: Request) -> Response:
    """Run a pipeline of a model."""
    body = await read_body(request, PipelineBody)
    model, tag = server_state(request).registry[request.path_params["model"]], request.path_params["tag"]
    if tag not in (tags := pipeline_tags(model)):
        message = f"the model '{model.name}' has no pipeline '{tag[:60]}'"
        raise InputError("route_missing", message, hint=f"it has {join_names(tags)}")
    return await _run(request, model, tag, body)


async def _run(request: Request, model: ServedModel, tag: str, body: PipelineBody) -> Response:
    parameters = {**(body.model_extra or {}), **body.parameters}
    return JSONResponse(
        await PIPELINES.get(tag, _native)(PipelineCall(request, model, body.inputs, parameters))
    )


def pipeline_tags(model: ServedModel) -> list[str]:
    """Return the pipelines that a model can run, first that of its task."""
    tags = {
        compatible.pipeline_tag(model): True,
        "fill-mask": "fill-mask" in model.routes,
        "feature-extraction": compatible.can_embed(model),
        "sentence-similarity": compatible.can_embed(model),
        "zero-shot-classification": _entailment_labels(model) is not None,
    }
    return [tag for tag, is_available in tags.items() if tag is not None and is_available]


async def _native(call: PipelineCall) -> Any:
    """Return predictions as the native route does."""
    predictions = await compatible.predict(call.request, call.model, call.columns(), call.parameters)
    return call.answers([prediction.to_dict() for prediction in call.model.predictor.for_python(predictions)])


async def _text_classification(call: PipelineCall) -> Any:
    options = call.validate(ClassificationParameters)
    function = options.function_to_apply
    scores = await compatible.score_labels(call.request, call.model, call.columns(), function)
    return [_label_scores(by_label)[: options.top_k] for by_label in scores]


def _label_scores(by_label: Mapping[str, float]) -> list[dict[str, Any]]:
    return [{"label": label, "score": score} for label, score in by_label.items()]


async def _token_classification(call: PipelineCall) -> Any:
    options = call.validate(TaggingParameters)
    predictions = await compatible.predict(call.request, call.model, call.columns())
    return call.answers([_tokens(prediction, options) for prediction in predictions])


def _tokens(prediction: Any, options: TaggingParameters) -> list[dict[str, Any]]:
    """Return the entities of a sentence; without a tagging scheme or aggregation its words."""
    entities = prediction.entities if prediction.entities is not None else prediction.roles
    if entities is None or options.aggregation_strategy == "none":
        offsets = prediction.offsets or [[None, None]] * len(prediction.words)
        rows = zip(prediction.tags, prediction.scores, prediction.words, offsets, strict=True)
        return [
            {"entity": tag, "score": score, "index": index, "word": word, "start": start, "end": end}
            for index, (tag, score, word, (start, end)) in enumerate(rows, 1)
            if tag not in options.ignore_labels
        ]
    return [
        {
            "entity_group": entity["type"],
            "score": fmean(prediction.scores[entity["start"] : entity["end"]]),
            "word": entity["text"],
            "start": entity.get("start_char"),
            "end": entity.get("end_char"),
        }
        for entity in entities
        if entity["type"] not in options.ignore_labels
    ]


async def _question_answering(call: PipelineCall) -> Any:
    options = call.validate(AnsweringParameters)
    settings = {
        "n_best": options.top_k,
        "max_answer_length": options.max_answer_len,
        "max_query_length": options.max_question_len,
        "max_length": options.max_seq_len,
        "stride": options.doc_stride,
    }
    answers = []
    for prediction in await compatible.predict(call.request, call.model, call.columns(), settings):
        spans = [
            {name: span[name] for name in ("answer", "score", "start", "end")} for span in prediction.n_best
        ]
        if not prediction.answer and (options.handle_impossible_answer is not False or not spans):
            spans.insert(0, {"answer": "", "score": prediction.score, "start": 0, "end": 0})
        answers.append(spans[: options.top_k] if options.top_k > 1 else spans[0])
    return call.answers(answers)


async def _fill_mask(call: PipelineCall) -> Any:
    options, tokens = call.validate(MaskParameters), call.model.model.tokenizer.tokens
    texts = call.inputs if isinstance(call.inputs, list) else [call.inputs]
    if not all(isinstance(text, str) for text in texts):
        raise InputError("invalid_body", "this is neither a text nor a list of texts", argument="inputs")
    if unknown := [target for target in options.targets if target not in tokens]:
        message = f"the vocabulary has no token {unknown[0][:60]!r}"
        raise InputError("unknown_token", message, argument="parameters.targets", hint="use whole tokens")
    targets = tuple(map(tokens.index, options.targets))
    filler = replace(call.model.mask_filler, top_k=options.top_k, targets=targets)
    rows = [
        [
            [
                {"score": p.score, "token": tokens.index(p.token), "token_str": p.token, "sequence": p.text}
                for p in mask
            ]
            for mask in masks
        ]
        for masks in (await fill_masks(call.request, filler, texts)).predictions
    ]
    return call.answers([row[0] if len(row) == 1 else row for row in rows])


async def _feature_extraction(call: PipelineCall) -> Any:
    texts, options = compatible.to_texts(call.inputs, "inputs"), call.validate(compatible.VectorOptions)
    return (await compatible.embed(call.request, call.model, texts, options))[0]


async def _sentence_similarity(call: PipelineCall) -> list[float]:
    inputs = validate(compatible.SimilarityInputs, call.inputs, "inputs")
    texts, options = [inputs.source_sentence, *inputs.sentences], call.validate(compatible.VectorOptions)
    return compatible.cosines((await compatible.embed(call.request, call.model, texts, options))[0])


async def _zero_shot_classification(call: PipelineCall) -> Any:
    """Classify by the entailment of a hypothesis for each label (Yin, Hay, and Roth 2019)."""
    options = call.validate(EntailmentParameters)
    if "{}" not in options.hypothesis_template:
        message, argument = "the template has no place for the label", "parameters.hypothesis_template"
        raise InputError("invalid_body", message, argument=argument, hint="write it as {}")
    texts, labels = compatible.to_texts(call.inputs, "inputs"), options.candidate_labels
    hypotheses = [options.hypothesis_template.replace("{}", label) for label in labels]
    premises: list[Any] = [text for text in texts for _ in labels]
    pairs = {"text": premises, "text_pair": hypotheses * len(texts)}
    logits = await compatible.predict(call.request, call.model, pairs, logits=True)
    entailment, contradiction = _entailment_labels(call.model) or ("", "")
    answers = []
    for i in range(0, len(logits), len(labels)):
        of_text = logits[i : i + len(labels)]
        scores = softmax([by_label[entailment] for by_label in of_text]).tolist()
        if options.multi_label or len(labels) == 1:
            both = [[by_label[entailment], by_label[contradiction]] for by_label in of_text]
            scores = [float(softmax(pair)[0]) for pair in both]
        ranked = sorted(zip(labels, scores, strict=True), key=lambda pair: -pair[1])
        answers.append([{"label": label, "score": score} for label, score in ranked])
    return call.answers(answers)


def _entailment_labels(model: ServedModel) -> tuple[str, str] | None:
    """Return the labels of entailment and contradiction; None for a model of other labels, or of single texts."""
    if not compatible.can_rerank(model):
        return None
    labels = model.predictor.task.labels or []
    names = [
        label for prefix in ("entail", "contra") for label in labels if label.casefold().startswith(prefix)
    ]
    return (names[0], names[1]) if len(names) == 2 else None


PIPELINES: dict[str, Callable[[PipelineCall], Awaitable[Any]]] = {
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
