"""`load`, and the model that it returns: embed, index, save.

Its base classes predict and evaluate (`TaskInterface`), fill masks, generate, and score (`LanguageModel`), and
show why (`ExplainableModel`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bertsmith.artifacts.folder import ModelFolder, copy_model, read_folder
from bertsmith.artifacts.locate import locate
from bertsmith.device import check_precision, is_cpu, resolve_device
from bertsmith.errors import InputError, option
from bertsmith.inference.embedding import Embedder, embedding_config
from bertsmith.inference.explanations import ExplainableModel
from bertsmith.inference.precision import INT8, compare_task, compare_vectors
from bertsmith.inference.self_test import FILE as SELF_TEST_FILE
from bertsmith.inference.self_test import run_self_test, stored_examples
from bertsmith.inference.task_predictor import TaskPredictor
from bertsmith.io.compression import check_name
from bertsmith.io.jsonl import load_json
from bertsmith.io.sources import Source, column_values
from bertsmith.io.values import is_blank
from bertsmith.models.config import Pooling
from bertsmith.models.parameter_count import count_parameters
from bertsmith.models.task_heads import PART_BUILDERS
from bertsmith.notebook import Report, render_page
from bertsmith.tasks.fitted_task import FittedTask, load_task
from bertsmith.tokenizer.tokenizer import validate_texts

if TYPE_CHECKING:  # each verb imports only what it needs
    from bertsmith.retrieval.index import Index

logger = logging.getLogger(__name__)


@dataclass
class Model(ExplainableModel):
    """A model folder; its parts are read when they are first needed. `load` makes one.

    Attributes:
        path: The path or name that it was loaded from.
        folder: The opened model folder.
        report: The report of its run.
        device: The requested device; "auto": a GPU if there is one.
        precision: The requested precision of predictions, fp32, bf16, int8, or auto; `encoder` computes in fp32.
        mapped: True if the encoder's weights stay in the pages of their file.
    """

    path: Path
    folder: ModelFolder = field(repr=False)
    report: dict[str, Any] = field(default_factory=dict, repr=False)
    device: str = "auto"
    precision: str = "auto"
    mapped: bool = field(default=False, repr=False)

    @property
    def model_folder(self) -> Path:
        """The folder, in the Hugging Face layout."""
        return self.folder.path

    @property
    def labels(self) -> list[str] | None:
        """The labels of a classifier, by id."""
        return self.folder.labels

    @property
    def unfinished(self) -> str | None:
        """A message if the model's run has not finished."""
        if (mark := self.folder.record.get("unfinished")) is None:
            return None
        return f"{self.path}: this model is of an unfinished run (step {mark['step']:,} of {mark['of']:,})"

    @cached_property
    def task(self) -> FittedTask:
        """The task that the model was fine-tuned for. Raises InputError if there is none."""
        return load_task(self.path, self.folder, self._requested_context)

    @property
    def predictor(self) -> TaskPredictor:
        """The predictor of the task. Raises InputError if the model was not fine-tuned for one."""
        digest = self.folder.record.get("validation_digest")
        fields: dict[str, Any] = {
            "task": self.task,
            "validation_digests": frozenset([digest] if digest else []),
        }
        create = partial(self._create_predictor, TaskPredictor, compare_task, **fields)
        return self._once("predictor", create)

    def embedder(
        self,
        pooling: Pooling | None = None,
        normalize: bool | None = None,
        max_length: int | None = None,
        batch_size: int | None = None,
    ) -> Embedder:
        """Return an object that embeds texts as `embed` does, also a stream of them."""
        config = embedding_config(self.folder.path, pooling, normalize, max_length)
        return self._create_predictor(Embedder, compare_vectors, batch_size, config=config)

    def embed(
        self,
        texts: Any,
        *,
        pooling: Pooling | None = None,
        normalize: bool | None = None,
        max_length: int | None = None,
        batch_size: int | None = None,
    ) -> NDArray[np.float32]:
        """Embed texts.

        Args:
            texts: A string, a list, or a column of any library (pandas, polars, pyarrow, NumPy).
            pooling: "mean" or "max" over the hidden states of all tokens, special tokens included, or "cls". None:
                as the folder says if it is one of sentence-transformers or of `finetune("embed", …)`, else "mean".
            normalize: Scale vectors to unit length, so that products are cosines.
            max_length: Tokens that are read of a text, special tokens included.
            batch_size: The maximum number of texts per forward pass; None: as many as a budget of tokens allows.

        Returns:
            A vector per text, float32 [n, H]; for a string [H]. An empty or missing text, which is logged, has the
            vector of the special tokens.
        """
        from bertsmith.inference.text_input import EMPTY_VECTOR, log_empty

        embedder = self.embedder(pooling, normalize, max_length, batch_size)
        values = list(validate_texts([texts] if isinstance(texts, str) else column_values(texts, "texts")))
        log_empty([f"text {i}" for i, text in enumerate(values, 1) if is_blank(text)], EMPTY_VECTOR)
        vectors = embedder(values)
        embedder.stats.log()
        return vectors[0] if isinstance(texts, str) else vectors

    def index(
        self,
        texts: Source,
        output_dir: str | Path,
        *,
        text_column: str | None = None,
        id_column: str | None = None,
        encoding: str | None = None,
        pooling: Pooling | None = None,
        max_length: int | None = None,
        approximate: bool = False,
        overwrite: bool = False,
        progress: Callable[[int], None] = lambda done: None,
    ) -> Index:
        """Build an index of texts for `bertsmith.search`.

        Args:
            texts: A list, a table in memory, or a file: the lines of a .txt, a column of a .jsonl, .csv, .tsv, or
                .parquet, or the passages of queries. Empty texts are left out, and logged.
            output_dir: The new folder, written atomically.
            text_column: The column of the texts; None: "text".
            id_column: The column of the ids; None: "_id" or "id" if there is one.
            encoding: The encoding of a file that is not UTF-8.
            pooling: As in `embed`; vectors have unit length.
            max_length: As in `embed`.
            approximate: Also build a graph for fast search (extra `ann`).
            overwrite: Replace an index.
            progress: Receives the number of texts that are done.
        """
        from bertsmith.inference.text_input import count_empty, read_text_rows
        from bertsmith.retrieval.index import EmbeddingSource, write_index

        embedder = self.embedder(pooling, True, max_length)
        source = EmbeddingSource(
            model=str(self.path.resolve() if self.path.exists() else self.path),
            digest=self.vectors_digest,
            pooling=embedder.config.pooling,
            max_length=embedder.config.max_length,
        )
        rows = count_empty(read_text_rows(texts, text_column, id_column, encoding), keep=False)
        options: dict[str, Any] = {"approximate": approximate, "overwrite": overwrite, "progress": progress}
        index = write_index(output_dir, rows, embedder, source, **options)
        embedder.stats.log()
        if index.recall is not None:
            logger.info("%s", index.recall_message)
        return index

    def info(self) -> dict[str, Any]:
        """Return the architecture, the sizes, the parameters by term, the labels, and the training record."""
        heads = [name for name in PART_BUILDERS if self.folder.has(name)]
        terms = count_parameters(self.folder.config, heads, labels=len(self.labels or []))
        return {
            "path": str(self.folder.path),
            "architecture": self.folder.architecture,
            "config": self.folder.config.model_dump(mode="json"),
            "parameters": sum(term.size for term in terms),
            "terms": [{"term": t.name, "formula": t.formula, "parameters": t.size} for t in terms],
            "labels": self.labels,
            "record": self.folder.record,
        }

    def save(self, folder: str | Path, *, examples: Source | None = None, overwrite: bool = False) -> Path:
        """Copy the model in the Hugging Face layout (config.json, safetensors, tokenizer) and return the path.

        Args:
            folder: The new folder, written atomically.
            examples: Examples of the task, of which the first 32 are stored with their answers for `self_test`:
                whoever gets the folder can read them.
            overwrite: Replace a model folder; other folders are refused.
        """
        files = {} if examples is None else {SELF_TEST_FILE: stored_examples(self, examples)}
        return copy_model(self.folder.path, Path(folder), files, overwrite=overwrite)

    def self_test(self) -> Report | None:
        """Predict the examples that `save` stored in the folder again; `bertsmith serve` does so on loading.

        Returns:
            The number of `examples`, the largest `difference` of a number from the stored answers, and the
            `max_difference`, which depends on the precision; None if no examples are stored.

        Raises:
            InputError: An answer differs (`self_test_failed`).
        """
        return run_self_test(self)

    def _repr_html_(self) -> str:
        info, record = self.info(), self.folder.record
        values = {
            "path": str(self.path),
            "architecture": info["architecture"],
            "parameters": info["parameters"],
            "task": record.get("task"),
            "labels": ", ".join(self.labels) if self.labels else None,
            "updates": record.get("steps"),
        }
        scores = {
            name: record[name] for name in ("held_out", "validation") if isinstance(record.get(name), dict)
        }
        return render_page("Model", {name: v for name, v in values.items() if v is not None} | scores)


def load(
    name: str | Path | Model, device: str = "auto", *, precision: str = "auto", mapped: bool = False
) -> Model:
    """Load a model.

    In int8, the first answer is preceded by a comparison with fp32: on up to 1,000 examples of the run's
    validation file, or, for a model without a task, on some of the first texts. A loss of the primary metric of
    more than 0.01, vectors with a cosine below 0.995, scores that differ by more than 0.05 nats per token, and
    probabilities of the most probable token for a mask that differ by more than 0.05 are errors.

    Args:
        name: A run, a model folder, or a published name. A model is returned as it is; the other arguments are
            then ignored.
        device: "cpu", "cuda", "cuda:1", or "auto": a GPU if there is one.
        precision: The precision of matrix products: fp32; bf16 (about three digits); int8 (about two; on a CPU);
            or auto: bf16 if it is faster on the device, unless the model was trained in fp32 or bf16 would change
            its answers more than usual. On a CPU, an explicit precision uses compiled kernels if the extra `fast`
            is installed: many texts are answered sooner, the first one later. They are compiled once, in the
            background; a model that is loaded before then uses PyTorch, whose last digits differ. They keep a
            copy of the layers' weights in the order in which they read them.
        mapped: Leave fp32 weights in the pages of their file instead of copying them: the first answer comes
            sooner, and processes share the memory. The file must not change while the model is in use.

    Returns:
        The model. That of an unfinished run is logged as a warning.

    Raises:
        InputError: There is no model, or the run has not written one yet.
    """
    if isinstance(name, Model):
        return name
    check_name(name)
    path = Path(name)
    if (path / "settings.yaml").exists() and not (path / "model").exists():
        message = "this run is not finished and has no model yet"
        hint = f"run its command again with {option('resume', True)}; interrupting it saves a model"
        raise InputError("model_not_written", message, location=path, hint=hint)
    folder = read_folder(locate(name))
    resolve_device(device)  # refuse unknown names
    check_precision(precision, INT8)
    if precision == INT8 and not is_cpu(device):
        message = "int8 runs on a CPU only"
        hint = f"add {option('device', 'cpu')}, or omit {option('precision', 'int8')}"
        raise InputError("int8_needs_cpu", message, argument="precision", hint=hint)
    model = Model(path, folder, {}, device, precision, mapped)
    if model.unfinished is not None:
        logger.warning("%s", model.unfinished)
        return model
    report_file = path / "report.json"
    try:
        if report_file.is_file():
            model.report = Report(load_json(report_file.read_text(encoding="utf-8")))
    except (ValueError, TypeError):
        message = "the file is not a JSON object"
        hint = f"remove it, or run the command again with {option('resume', True)}"
        raise InputError("invalid_json", message, location=report_file, hint=hint) from None
    return model
