"""The models of a server by name: loaded with all predictors, and replaced while requests are answered."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Lock
from typing import Any, TypeVar

from bertsmith.errors import BertsmithError, InputError
from bertsmith.formatting import join_names, shorten
from bertsmith.inference.embedding import Embedder
from bertsmith.inference.fill_mask import MaskFiller
from bertsmith.inference.model import Model, load
from bertsmith.inference.predictor import Predictor
from bertsmith.inference.scoring import Scorer
from bertsmith.inference.search import Reranker
from bertsmith.inference.task_predictor import TaskPredictor
from bertsmith.kernels.backend_selection import select_training_backend
from bertsmith.suggestions import did_you_mean, similar_names

logger = logging.getLogger(__name__)

PredictorT = TypeVar("PredictorT", bound=Predictor)

_NO_ROUTE = (
    "continuation_prefix_missing",
    "directions_not_tied",
    "model_is_causal",
    "model_too_short",
    "no_masked_lm_head",
    "not_fine_tuned",
    "special_token_undefined",
    "unknown_task",
    "unsupported_architecture",
    "unsupported_modules",
    "unsupported_pooling",
)
"""The codes of errors that say that a sound model has no such predictor."""


@dataclass
class ServedModel:
    """A loaded model and its predictors.

    Attributes:
        name: The name, as in URLs.
        source: The run, model folder, or published name.
        model: The model.
        loaded_at: The time at which it was loaded, in seconds since 1970.
        reranker: Scores the predictions for pairs of texts; None if the model does not predict for pairs.
        missing: Why the model has no predictor, by the name of the route.
    """

    name: str
    source: str
    model: Model
    loaded_at: int
    missing: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        model = self.model
        self._predictors = {
            "predict": self._create("predict", lambda: model.predictor),
            "embed": self._create("embed", model.embedder),
            "fill-mask": self._create("fill-mask", model.mask_filler),
            "score": self._create("score", model.scorer),
        }
        self.reranker = self._reranker()
        if (embedder := self._predictors["embed"]) is not None:
            embedder.predict(["warm up"])

    @classmethod
    def load(cls, name: str, source: str, device: str = "auto", precision: str = "auto") -> ServedModel:
        """Load a model with the fastest kernels of the machine, compiled if need be: a server runs for long.

        Raises:
            InputError: There is no model, or it fails the check of its precision or its self-test.
        """
        model = load(source, device, precision=precision)
        if model.context.is_cpu:
            select_training_backend("auto", model.folder.config.hidden_size)  # compiles them and waits
            if precision == "auto":  # an explicit precision uses them
                model = load(source, device, precision=model.context.precision)
        model.self_test()
        return cls(name, source, model, int(time.time()))

    @property
    def routes(self) -> list[str]:
        """The routes that this model answers."""
        return [name for name, predictor in self._predictors.items() if predictor is not None]

    @property
    def predictor(self) -> TaskPredictor:
        """The predictor of the task; raises InputError (`route_missing`) if there is none."""
        return self._get("predict", TaskPredictor)

    @property
    def embedder(self) -> Embedder:
        """The embedder, with the pooling of the folder; raises InputError if its modules are not supported."""
        return self._get("embed", Embedder)

    @property
    def mask_filler(self) -> MaskFiller:
        """The predictor of masked words; raises InputError if there is none."""
        return self._get("fill-mask", MaskFiller)

    @property
    def scorer(self) -> Scorer:
        """The scorer of texts; raises InputError if there is none."""
        return self._get("score", Scorer)

    @property
    def max_length(self) -> int:
        """The tokens that are read of an input of the task, or else of a text to embed."""
        if "predict" in self.routes:
            return self.predictor.task.encoder.max_length
        if "embed" in self.routes:
            return self.embedder.stats.limit
        return self.model.folder.config.max_length

    @property
    def example(self) -> dict[str, Any]:
        """The inputs of a request with an example of the task, with all that this model needs."""
        task = self.predictor.task
        required = [n for n in task.declaration.inputs if n not in task.declaration.optional_inputs]
        example = dict.fromkeys(required, "what a day") | task.data.example_inputs()
        return {name: [value] for name, value in example.items()}

    def to_dict(self) -> dict[str, Any]:
        """Return the model as the routes under /v1/models describe it, with the keys of OpenAI's API first."""
        config = self.model.folder.config
        values: dict[str, Any] = {
            "id": self.name,
            "object": "model",
            "created": self.loaded_at,
            "owned_by": "bertsmith",
            "architecture": self.model.folder.architecture,
            "max_length": self.max_length,
            "hidden_size": config.hidden_size,
            "routes": self.routes,
            "missing": self.missing,
        }
        if "predict" in self.routes:
            task = self.predictor.task
            values |= {
                "task": task.name,
                "inputs": list(task.declaration.inputs),
                "optional_inputs": [n for n in task.declaration.optional_inputs if n not in self.example],
                "example": self.example,
                "labels": task.labels,
            }
        if "embed" in self.routes:
            pooling, normalize, *_ = self.embedder.config
            values["embedding"] = {"pooling": pooling, "normalize": normalize}
        if "fill-mask" in self.routes:
            values["mask_token"] = self.model.tokenizer.mask_token
        return values

    def _create(self, route: str, create: Callable[[], PredictorT]) -> PredictorT | None:
        """Return a predictor whose errors name the model; None, and the reason, if a sound model has none."""
        try:
            predictor = create()
        except InputError as error:
            if error.code not in _NO_ROUTE:
                raise
            self.missing[route] = error.message
            return None
        if predictor.check is not None:
            predictor.check(())
        return replace(predictor, path=Path(self.name))

    def _reranker(self) -> Reranker | None:
        if "predict" not in self.routes:
            return None
        with suppress(InputError):  # the model does not read pairs, or no label says that texts match
            return Reranker(self.model)
        return None

    def _get(self, route: str, predictor_class: type[PredictorT]) -> PredictorT:
        predictor = self._predictors[route]
        if isinstance(predictor, predictor_class):
            return predictor
        message = f"the model '{self.name}' does not {route}: {self.missing[route]}"
        hint = f"it has the routes {join_names(self.routes)}" if self.routes else None
        raise InputError("route_missing", message, hint=hint)


class ModelRegistry:
    """Served models by name; the first one is the default.

    Attributes:
        is_closed: True if no more models are loaded.
    """

    def __init__(self, sources: Sequence[str], device: str = "auto", precision: str = "auto") -> None:
        """Load models.

        Args:
            sources: Runs, model folders, or published names, each also as "NAME=SOURCE"; without a name, the last
                part of the path is the name.
            device: The device, as in `bertsmith.load`.
            precision: The precision, as in `bertsmith.load`.

        Raises:
            InputError: A model cannot be loaded, or two have one name.
        """
        self._device, self._precision, self.is_closed = device, precision, False
        self._waiting, self._reloading = Lock(), Lock()
        self._models: dict[str, ServedModel] = {}
        for source in sources:
            name, path = _name_and_path(source)
            if name in self._models:
                message = f"two models are called '{name}'"
                raise InputError("duplicate_name", message, hint=f"name one of them: other={path}")
            self._models[name] = ServedModel.load(name, path, device, precision)

    def __iter__(self) -> Iterator[ServedModel]:
        return iter(self._models.values())

    def __getitem__(self, name: str) -> ServedModel:
        """Return a model; raise InputError (`model_unknown`) if there is none of this name."""
        if (model := self._models.get(name)) is None:
            similar = similar_names(name, self._models)
            hint = did_you_mean(similar) if similar else f"use one of {join_names(list(self._models))}"
            raise InputError(
                "model_unknown", f"there is no model {shorten(name, 60)!r}", argument="model", hint=hint
            )
        return model

    @property
    def default(self) -> ServedModel:
        """The first model."""
        return next(iter(self))

    def reload(self) -> None:
        """Load all models again and replace each at once; log an error and keep a model that cannot be loaded.

        Requests that were accepted before are answered by the model that accepted them. A call during a reload
        waits for it; further ones then do nothing.
        """
        if not self._waiting.acquire(blocking=False):
            return
        with self._reloading:
            self._waiting.release()
            for name, served in list(self._models.items()):
                if self.is_closed:
                    return
                try:
                    self._models[name] = ServedModel.load(name, served.source, self._device, self._precision)
                    logger.info("%s: loaded again", name)
                except BertsmithError as error:
                    logger.error("%s: not loaded again, the earlier one is kept: %s", name, error.message)


def _name_and_path(source: str) -> tuple[str, str]:
    """Return the name and the path of "NAME=SOURCE" or "SOURCE"."""
    name, equals, path = source.partition("=")
    if equals and "/" not in name and not Path(source).exists():
        if not name or not path:
            message = f"{shorten(source, 60)!r} lacks the {'model' if name else 'name'}"
            raise InputError("invalid_model_name", message, argument="models", hint="write NAME=MODEL")
        return name, path
    return Path(source).resolve().name or source, source
