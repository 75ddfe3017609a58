"""Static vectors distilled from a model: one vector per token, with which a small machine embeds texts.

The recipe is that of Model2Vec (Tulkens and van Dongen 2024): a forward pass of each token by itself, PCA, and
weights by frequency (SIF; Arora, Liang, and Ma 2017). The vector of a text is the mean over its tokens, scaled to
length 1. A saved folder is read by Model2Vec and by sentence-transformers too.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from bertsmith.artifacts.config_schema import read_json
from bertsmith.artifacts.locate import CONFIG_FILE, STATIC_MODEL_TYPE
from bertsmith.artifacts.sentence_transformers import MODULES
from bertsmith.artifacts.weights import WEIGHTS_FILE
from bertsmith.corpus.shards import Shards
from bertsmith.errors import InputError
from bertsmith.inference.model import Model, load
from bertsmith.instances.epoch_plan import read_portions
from bertsmith.io import atomic
from bertsmith.io.folder_layout import FolderLayout
from bertsmith.io.sources import column_values
from bertsmith.models.config import Pooling
from bertsmith.retrieval.nearest_neighbors import normalize_vectors
from bertsmith.settings import check_positive
from bertsmith.tokenizer.folder import TOKENIZER_FILES
from bertsmith.tokenizer.tokenizer import Tokenizer, validate_texts

logger = logging.getLogger(__name__)

_UNUSED_TOKEN = re.compile(r"\[unused\d+\]")  # BERT's vocabularies have a thousand
_SIF_COEFFICIENT = 1e-4  # the frequency of tokens whose weight is 1/2
_BATCH_SIZE = 1024  # texts embedded at once
_FOLDER_LAYOUT = FolderLayout(
    "static vectors", CONFIG_FILE, (CONFIG_FILE, WEIGHTS_FILE, MODULES, *TOKENIZER_FILES), "folder"
)
_MODULE_CLASSES = ("StaticEmbedding", "Normalize")


@dataclass(frozen=True)
class StaticModel:
    """A vector for each token of a tokenizer.

    Attributes:
        tokenizer: The tokenizer, with V tokens.
        vectors: The vectors of the tokens, fp32 [V, H]; those of tokens that do not count are zeros.
        config: The settings of the distillation.
    """

    tokenizer: Tokenizer
    vectors: NDArray[np.float32]
    config: dict[str, Any] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if self.vectors.ndim != 2 or len(self.vectors) != self.tokenizer.vocab_size:
            tokens, shape = self.tokenizer.vocab_size, list(self.vectors.shape)
            message = f"the tokenizer has {tokens:,} tokens, and the array of vectors has the shape {shape}"
            raise InputError("vector_shape", message, argument="vectors", hint="give a row for each token")

    def embed(self, texts: Any) -> NDArray[np.float32]:
        """Embed texts.

        Args:
            texts: A string, a list, or a column of any library.

        Returns:
            The mean of the vectors of a text's tokens, scaled to length 1, fp32 [n, H]; for a string [H]. Unknown
            tokens do not count; a text without others has zeros.
        """
        values = list(validate_texts([texts] if isinstance(texts, str) else column_values(texts, "texts")))
        vectors = np.zeros((len(values), self.vectors.shape[1]), dtype=np.float32)
        for start in range(0, len(values), _BATCH_SIZE):
            ids = self.tokenizer.encode_ids(values[start : start + _BATCH_SIZE])
            vectors[start : start + len(ids)] = _sum_rows(self.vectors, ids)
        vectors = normalize_vectors(vectors)  # Dividing by the number of tokens before makes no difference.
        return vectors[0] if isinstance(texts, str) else vectors

    def save(self, folder: str | Path, *, overwrite: bool = False) -> Path:
        """Save the model to a folder, which Model2Vec and sentence-transformers read too, and return its path.

        Raises:
            InputError: The folder is not empty, or with `overwrite` holds anything else.
        """
        path = atomic.output_path(folder)
        _FOLDER_LAYOUT.check_replaceable(path, overwrite=overwrite)
        config = {
            "model_type": STATIC_MODEL_TYPE,
            "architectures": ["StaticModel"],
            "hidden_dim": self.vectors.shape[1],
            "normalize": True,
            "max_length": None,
            "embedding_dtype": "float32",
            **self.config,
        }
        modules = [
            {
                "idx": i,
                "name": str(i),
                "path": f"{i}_{name}" if i else ".",
                "type": f"sentence_transformers.models.{name}",
            }
            for i, name in enumerate(_MODULE_CLASSES)
        ]
        with atomic.atomic_folder(path, replace=overwrite) as part:
            self.tokenizer.save(part)
            save_file({"embeddings": np.ascontiguousarray(self.vectors)}, part / WEIGHTS_FILE)
            for name, content in ((CONFIG_FILE, config), (MODULES, modules)):
                (part / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
        return path

    @classmethod
    def load(cls, folder: str | Path) -> StaticModel:
        """Load a folder that `save` wrote.

        Raises:
            InputError: The folder holds no static vectors, or is damaged.
        """
        path = Path(folder)
        config = read_json(path / CONFIG_FILE) if (path / CONFIG_FILE).is_file() else {}
        if config.get("model_type") != STATIC_MODEL_TYPE:
            message, hint = "this folder holds no static vectors", "write one with distill_static_vectors"
            raise InputError("not_static_vectors", message, location=path, hint=hint)
        tokenizer = Tokenizer.load(path)
        try:
            vectors = load_file(path / WEIGHTS_FILE)["embeddings"].astype(np.float32)
        except (OSError, SafetensorError, KeyError):
            vectors = np.zeros((0, 0), dtype=np.float32)
        if len(vectors) != tokenizer.vocab_size or not np.isfinite(vectors).all():
            message = "it does not hold a finite vector for each token of the tokenizer"
            hint = "copy the folder again from its source"
            raise InputError("damaged_vectors", message, location=path / WEIGHTS_FILE, hint=hint)
        return cls(tokenizer, vectors, config)


def distill_static_vectors(
    model: str | Path | Model,
    *,
    dimensions: int | None = 256,
    sif_coefficient: float | None = _SIF_COEFFICIENT,
    corpus: str | Path | Shards | None = None,
    pooling: Pooling | None = None,
) -> StaticModel:
    """Distill a model to one vector per token (Model2Vec).

    Each token is embedded by itself, between the special tokens. The vectors are reduced by PCA and multiplied by
    a / (a + p), where p is the token's frequency.

    Args:
        model: A run, a model folder, a published name, or a loaded model.
        dimensions: The number of principal components, at most the hidden size, which a larger number means and
            is logged; None: no PCA.
        sif_coefficient: The coefficient a of the weights; None: equal weights.
        corpus: Prepared data whose frequencies are used; None: frequencies by Zipf's law, in the order of the
            vocabulary.
        pooling: The pooling, as in `Model.embed`.

    Returns:
        The static model. Special and unused tokens have zeros.

    Raises:
        InputError: There is no such model, a setting is out of range, or the corpus has another tokenizer.
    """
    if dimensions is not None:
        check_positive(dimensions, "dimensions")
    if sif_coefficient is not None and not 0 < sif_coefficient < 1:
        message, hint = f"{sif_coefficient} is not between 0 and 1", "use 1e-4"
        raise InputError("invalid_sif_coefficient", message, argument="sif_coefficient", hint=hint)
    model = load(model)
    embedder = model.embedder(pooling, normalize=False)
    tokenizer, special_ids = embedder.tokenizer, embedder.tokenizer.all_special_ids
    token_ids = np.array(
        [
            i
            for i, token in enumerate(tokenizer.tokens)
            if i not in special_ids and not _UNUSED_TOKEN.fullmatch(token)
        ]
    )
    frequencies = _zipf_frequencies(len(token_ids))
    if corpus is not None:
        frequencies = _corpus_frequencies(corpus, tokenizer)[token_ids]
    vectors = np.array(list(embedder.predict_stream([i] for i in token_ids.tolist())), dtype=np.float64)
    if dimensions is not None and dimensions > vectors.shape[1]:
        logger.info("%s dimensions, since the model has no more", f"{vectors.shape[1]:,}")
        dimensions = vectors.shape[1]
    if dimensions is not None:
        vectors = _principal_components(vectors, dimensions)
    if sif_coefficient is not None:
        vectors *= (sif_coefficient / (sif_coefficient + frequencies))[:, None]
    table = np.zeros((tokenizer.vocab_size, vectors.shape[1]), dtype=np.float32)
    table[token_ids] = vectors
    return StaticModel(tokenizer, table, {"apply_pca": dimensions, "sif_coefficient": sif_coefficient})


def _zipf_frequencies(num_tokens: int) -> NDArray[np.float64]:
    """Return frequencies proportional to 1 / rank, whose first rank is 2, as in Model2Vec."""
    weights = 1 / np.arange(2, num_tokens + 2)
    frequencies: NDArray[np.float64] = weights / weights.sum()
    return frequencies


def _corpus_frequencies(corpus: str | Path | Shards, tokenizer: Tokenizer) -> NDArray[np.float64]:
    """Return the frequencies of all tokens in prepared data [V]."""
    shards = corpus if isinstance(corpus, Shards) else Shards.open(corpus)
    if shards.tokenizer.digest != tokenizer.digest:
        message, hint = (
            "this data was prepared with another tokenizer",
            "prepare it with the model's tokenizer",
        )
        raise InputError("tokenizer_mismatch", message, location=shards.folder, argument="corpus", hint=hint)
    counts = np.zeros(tokenizer.vocab_size)
    for ids, _ in read_portions(shards, np.arange(shards.documents)):
        counts += np.bincount(ids, minlength=len(counts))
    frequencies: NDArray[np.float64] = counts / counts.sum()
    return frequencies


def _principal_components(vectors: NDArray[np.float64], dimensions: int) -> NDArray[np.float64]:
    """Return centered vectors [n, H] in the directions of the largest variance [n, dimensions]."""
    centered = vectors - vectors.mean(0)
    _, directions = np.linalg.eigh(centered.T @ centered)
    components: NDArray[np.float64] = centered @ directions[:, ::-1][:, :dimensions]
    # The sign of a direction is arbitrary: its largest component is positive, on every machine.
    largest = np.take_along_axis(components, np.abs(components).argmax(0)[None], axis=0)
    return components * np.sign(largest)


def _sum_rows(vectors: NDArray[np.float32], ids: Sequence[Sequence[int]]) -> NDArray[np.float32]:
    """Return the sum of the rows of each list of ids [n, H]; zeros for an empty list."""
    sums = np.zeros((len(ids), vectors.shape[1]), dtype=np.float32)
    lengths = np.array([len(row) for row in ids])
    is_filled = lengths > 0
    if is_filled.any():
        flat = np.concatenate([np.array(row, dtype=np.int64) for row in ids])
        starts = (np.cumsum(lengths) - lengths)[is_filled]
        sums[is_filled] = np.add.reduceat(vectors[flat], starts, axis=0)
    return sums
