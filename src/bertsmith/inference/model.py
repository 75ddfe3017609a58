"""`load`, and a finished model: predict, evaluate, fill-mask, score, embed, index. Nothing trains."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, overload

import numpy as np
import torch
from numpy.typing import NDArray

from bertsmith.artifacts.copy import copy_model
from bertsmith.artifacts.folder import ModelFolder, read_folder
from bertsmith.artifacts.locate import locate
from bertsmith.artifacts.sentence_transformers import read_sentence_embedding_config
from bertsmith.device import ComputeContext, check_device, check_precision, is_cpu
from bertsmith.errors import InputError, command, option
from bertsmith.inference.answering import Answering
from bertsmith.inference.embedding import Embedder, made_so
from bertsmith.inference.int8 import INT8, check_answers, check_guesses, check_scores, check_vectors, in_int8
from bertsmith.inference.loaded_task import load_task
from bertsmith.inference.precision import NEAR, cosine_in_bf16, told_of_bf16
from bertsmith.inference.predictor import Predictor, wants_list
from bertsmith.io.sources import Source, column_values
from bertsmith.kernels.backend_selection import select_gpu_backend, select_inference_backend
from bertsmith.kernels.reference import WeightVersions, set_kernel_backend
from bertsmith.models.config import Pooling
from bertsmith.models.encoder import Encoder
from bertsmith.models.heads import PART_BUILDERS, MaskedLMHead
from bertsmith.models.parameter_count import count_parameters
from bertsmith.notebook import Report
from bertsmith.objectives.objective import GENERATOR
from bertsmith.tasks.fitted import FittedTask
from bertsmith.tokenizer.tokenizer import Tokenizer

if TYPE_CHECKING:  # what one verb alone needs is imported by it: the others begin sooner
    from bertsmith.explain.attention import AttentionMaps
    from bertsmith.inference.fill_mask import MaskFiller
    from bertsmith.inference.pseudo_likelihood import Scorer, Variant
    from bertsmith.retrieval.index import Index

_Reads = TypeVar("_Reads", Embedder, "MaskFiller", "Scorer")
_Check = Callable[[_Reads, _Reads, Sequence[str], Path], bool]

logger = logging.getLogger(__name__)


class _Quick(NamedTuple):
    """An encoder in int8, and the weights that it was made of."""

    weights: WeightVersions
    encoder: Encoder


class _Tried(NamedTuple):
    """How near an encoder's hidden states in bf16 are to those in fp32, and with which weights."""

    weights: WeightVersions
    cosine: float


@dataclass(frozen=True)
class _Trial:
    """What has a model tried in bf16 before it answers. It is not pickled, with all of the model in it."""

    model: Model

    def __call__(self, texts: Sequence[str] = ()) -> None:
        """Whatever is to be answered."""
        self.model._check_bf16()

    def __reduce__(self) -> tuple[Any, ...]:
        return type(None), ()


@dataclass
class Model(Predictor):
    """A model folder ready for use; its parts are read when first needed.

    path: what it was loaded as. folder: the opened model folder. device: where it computes, "auto" for a GPU if
    there is one. precision: of the products that answers come from: fp32; bf16; int8; "auto" for bf16 where it is
    faster on the device, unless the model was trained in fp32 or bf16 would change its answers more than usual.
    `encoder` itself, when called, computes in fp32. mapped: whether the encoder's weights stay in their file's
    pages.
    """

    path: Path
    folder: ModelFolder = field(repr=False)
    report: dict[str, Any] = field(default_factory=dict, repr=False)
    device: str = "auto"
    precision: str = "auto"
    mapped: bool = field(default=False, repr=False)
    _checked: set[object] = field(default_factory=set, init=False, repr=False)  # what was compared, in int8
    _quick: _Quick | None = field(default=None, init=False, repr=False)
    _tried: _Tried | None = field(default=None, init=False, repr=False)
    _told: _Tried | None = field(default=None, init=False, repr=False)
    _answering: Answering | None = field(default=None, init=False, repr=False)
    # threads may share a model
    _once: RLock = field(default_factory=RLock, init=False, repr=False, compare=False)

    def __getstate__(self) -> dict[str, Any]:
        """Without what is made of its weights, which a copy makes itself."""
        state = vars(self) | {"_quick": None, "_tried": None, "_told": None, "_answering": None}
        return {name: value for name, value in state.items() if name != "_once"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """The reverse."""
        vars(self).update(state, _once=RLock())

    @cached_property
    def _asked(self) -> ComputeContext:
        """Where it computes, and in the precision that its settings and the device ask for."""
        if self.precision in ("auto", INT8):
            trained_in = self.folder.record.get("precision")
            return ComputeContext.create(self.device, "fp32" if trained_in == "fp32" else "auto")
        return ComputeContext.create(self.device, self.precision)

    @cached_property
    def _in_full(self) -> ComputeContext:
        return ComputeContext.create(self.device, "fp32")

    @property
    def place(self) -> ComputeContext:
        """Where it computes, and in what precision; in int8, all but the products. Under "auto" in fp32 where
        bf16 would make another model of it."""
        return self._asked if self.precision != "auto" or self._is_near_in_bf16() else self._in_full

    @property
    def _is_tried(self) -> bool:
        """Whether it is to answer in bf16, and was not trained so: else its weights were rounded in each pass, and
        learnt like that."""
        return self._asked.precision == "bf16" and self.folder.record.get("precision") != "bf16"

    def _is_near_in_bf16(self) -> bool:
        """Whether bf16 makes no other model of it than fp32, where that is to be tried; once for these weights."""
        if not self._is_tried:
            return True
        weights = list(self.encoder.parameters())
        with self._once:
            if self._tried is None or not self._tried.weights.matches(weights):
                cosine = cosine_in_bf16(self.encoder, self.tokenizer, self._asked)
                self._tried = _Tried(WeightVersions(weights), cosine)
            return self._tried.cosine >= NEAR

    @property
    def _is_told(self) -> bool:
        """Whether it answers in bf16 all the same, since that is asked for by name."""
        return self.precision == "bf16" and self._is_tried

    def _check_bf16(self) -> None:
        """Before an answer: warn, once for these weights, where bf16 makes another model of it."""
        with self._once:
            if not self._is_near_in_bf16() and self._tried is not self._told:
                assert self._tried is not None
                logger.warning("%s", told_of_bf16(self.path, self._tried.cosine))
                self._told = self._tried

    @property
    def model_folder(self) -> Path:
        """The folder, in the Hugging Face layout."""
        return self.folder.path

    @property
    def labels(self) -> list[str] | None:
        """A classifier's labels, by id."""
        return self.folder.labels

    def _repr_html_(self) -> str:
        from bertsmith.inference.model_page import model_page

        return model_page(self.path, self.folder)

    def save(self, folder: str | Path, *, overwrite: bool = False) -> Path:
        """Copy the model in the field's layout (config.json, safetensors, the tokenizer's files) to a new folder,
        whole or not there, and return it. overwrite: replace a model folder; any other is refused."""
        return copy_model(self.folder.path, Path(folder), overwrite=overwrite)

    def embed(
        self,
        texts: Any,
        *,
        pooling: Pooling | None = None,
        normalize: bool | None = None,
        max_length: int | None = None,
    ) -> NDArray[np.float32]:
        """A vector a text, float32 [n, H]. texts: a list, or a column of pandas, polars, pyarrow or numpy.

        pooling: the mean or the maximum of all tokens' last hidden states, the special ones among them, or the
        first token's ("cls"). normalize: to the length 1, so that products are cosines. max_length: tokens read.
        What is not given is as the folder says, where it is one of sentence-transformers or of
        `finetune("embed", …)`; else the mean, as it is, of all that the model takes.
        """
        if isinstance(texts, str):
            raise wants_list("embed", texts)
        return self.embedder(pooling, normalize, max_length)(column_values(texts, "texts"))

    def embedder(
        self,
        pooling: Pooling | None = None,
        normalize: bool | None = None,
        max_length: int | None = None,
    ) -> Embedder:
        """What makes vectors of texts, as `embed` does, also some at a time."""
        if max_length is not None and max_length < 2:
            raise InputError(
                "max_length_too_small",
                f"{max_length} is less than 2",
                argument="max_length",
                hint="the special tokens need two tokens",
            )
        try:
            known = read_sentence_embedding_config(self.folder.path)
        except InputError:
            if pooling is None:
                raise
            known = None  # its own steps are none of ours, and left out on request
        made = made_so(known, pooling, normalize, max_length)
        return self._compared(
            lambda encoder, place: Embedder(encoder, self.tokenizer, place, made), check_vectors
        )

    def index(
        self,
        texts: Any,
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
        """An index of texts to search (`bertsmith.search`), in the new folder `output_dir`, whole or not there.

        texts: a list, a table in memory, or a file: the lines of a .txt, a column of a .jsonl, .csv, .tsv or
        .parquet, the passages of queries. id_column: what texts are called there ("_id" or "id" if there is one).
        pooling, max_length: as in `embed`; vectors get the length 1. approximate: also build a graph for fast
        search (extra `ann`). overwrite: replace an index. Empty texts are left out, which is logged. progress:
        receives how many texts are done.
        """
        from bertsmith.inference.indexing import build_index  # it loads Arrow

        return build_index(
            self.embedder(pooling, True, max_length),
            str(self.path.resolve() if self.path.exists() else self.path),
            self.vectors_digest,
            texts,
            output_dir,
            text_column=text_column,
            id_column=id_column,
            encoding=encoding,
            approximate=approximate,
            overwrite=overwrite,
            progress=progress,
        )

    @property
    def vectors_digest(self) -> str:
        """What distinguishes this model's vectors from another's: its weights and its tokenizer."""
        both = f"{self.folder.weights_digest()} {self.tokenizer.digest}"
        return hashlib.sha256(both.encode("ascii")).hexdigest()

    @property
    def unfinished(self) -> str | None:
        """That the model's run has not finished, in a sentence; None where it has."""
        if (mark := self.folder.record.get("unfinished")) is None:
            return None
        return f"{self.path}: this model is of an unfinished run (step {mark['step']:,} of {mark['of']:,})"

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The folder's tokenizer."""
        return self.folder.tokenizer()

    @cached_property
    def encoder(self) -> Encoder:
        """The encoder in evaluation: takes a Packed, or (input_ids, attention_mask, token_type_ids)."""
        with torch.inference_mode(False):  # whoever asks first: its weights are ordinary tensors
            encoder = self.folder.encoder(self._asked.init_generator, copy=not self.mapped)
            self._asked.prepare_modules(encoder)
        # by name alone: they take half a second to load, and under "auto" one text is to be answered soon
        if self.precision in ("fp32", "bf16") and self._asked.is_cpu:
            set_kernel_backend(encoder, select_inference_backend(encoder.config.hidden_size))
        elif self._asked.is_async and self._asked.precision == "bf16":
            set_kernel_backend(encoder, select_gpu_backend("auto", self._asked.device, is_long=False))
        encoder.eval()
        return encoder

    @property
    def _in_int8(self) -> Encoder:
        """Made anew, and compared again, when weights have changed."""
        weights = list(self.encoder.parameters())
        with self._once:
            quick = self._quick
            if quick is None or not quick.weights.matches(weights):
                quick = _Quick(WeightVersions(weights), in_int8(self.encoder, self.tokenizer))
                self._quick, self._checked = quick, set()
            return quick.encoder

    def _compared(self, made: Callable[[Encoder, ComputeContext], _Reads], check: _Check[_Reads]) -> _Reads:
        """What is made of the encoder and where it computes. In int8 `check` compares it with the same in single
        precision on the first texts that there is something to compare of; once for these weights."""
        if self.precision != INT8:
            found = made(self.encoder, self.place)
            return replace(found, check=_Trial(self)) if self._is_told else found
        exact, quick = made(self.encoder, self._in_full), made(self._in_int8, self.place)
        return replace(quick, check=partial(self._check_int8, check, exact, quick))

    def _check_int8(self, check: _Check[_Reads], exact: _Reads, quick: _Reads, texts: Sequence[str]) -> None:
        with self._once:
            if check not in self._checked and check(exact, quick, texts, self.path):
                self._checked.add(check)

    @property
    def _direction(self) -> str:
        return "from right to left" if self.folder.config.backwards else "from left to right"

    @cached_property
    def _masked(self) -> MaskedLMHead:
        if self.folder.config.causal:
            raise InputError(
                "model_is_causal",
                f"this model reads {self._direction}, so it cannot predict a word from both sides",
                location=self.path,
                hint=f"use a model that was pre-trained with {option('objective.name', 'mlm_nsp')}",
            )
        return self._vocabulary_head

    @cached_property
    def _vocabulary_head(self) -> MaskedLMHead:
        """What makes logits over the vocabulary of hidden states."""
        if not self.folder.has("masked"):
            generator = self.path / GENERATOR
            raise InputError(
                "no_masked_lm_head",
                "this model has no masked-LM head, so it cannot predict masked words",
                location=self.path,
                hint=f"use its generator, which has one: {generator}"
                if generator.is_dir()
                else f"use a pre-trained run ({command('pretrain')})",
            )
        with torch.inference_mode(False):
            head = MaskedLMHead(self.folder.config, torch.Generator())
            self.folder.load_into("masked", head)
            self._asked.prepare_modules(head)
        return head.eval()

    @cached_property
    def task(self) -> FittedTask:
        """The task that it was fine-tuned for, ready to answer. InputError where it was for none."""
        return load_task(self.path, self.folder, self._asked)

    @property
    def answering(self) -> Answering:
        """What answers by that task. InputError where it was fine-tuned for none."""
        task, encoder = self.task, self._in_int8 if self.precision == INT8 else self.encoder
        place, known = self.place, self._answering
        if known is None or known.encoder is not encoder or known.place is not place:
            known = Answering(task, encoder, self.tokenizer, place)
            if self.precision == INT8:
                known = replace(known, check=partial(self._check_answers, known))
            elif self._is_told:
                known = replace(known, check=_Trial(self))
            self._answering = known
        return known

    def _check_answers(self, quick: Answering) -> None:
        """Compare what answers in int8 on the run's dev file, once for these weights."""
        with self._once:
            if check_answers not in self._checked:
                exact = replace(quick, encoder=self.encoder, place=self._in_full)
                check_answers(exact, quick, self.path)
                self._checked.add(check_answers)

    @overload
    def fill_mask(  # type: ignore[overload-overlap]  # a str is a sequence of str, too
        self, text: str, top_k: int = 5, max_length: int | None = None
    ) -> list[list[dict[str, Any]]]: ...

    @overload
    def fill_mask(
        self,
        text: Sequence[str],
        top_k: int = 5,
        max_length: int | None = None,
    ) -> list[list[list[dict[str, Any]]]]: ...

    def fill_mask(
        self,
        text: Any,
        top_k: int = 5,
        max_length: int | None = None,
    ) -> list[Any]:
        """For each [MASK] of the text, in order, the `top_k` likeliest tokens with their probabilities; of a list
        of texts, or a column of them, a list of that.

        Each is {"token", "score", "text"}; `text` is the text with that token in this mask's place. max_length:
        tokens read at a time, special ones included, at most what the model can take; of a longer text, which is
        logged, each mask is guessed from a window around it.
        """
        from bertsmith.inference.fill_mask import MaskFiller

        if top_k < 1:
            raise InputError(
                "top_k_too_small",
                f"{top_k} is less than 1",
                argument="top_k",
                hint="use the number of tokens per mask",
            )
        fill = self._compared(
            lambda encoder, place: MaskFiller(encoder, self._masked, self.tokenizer, place, max_length),
            check_guesses,
        )
        if not isinstance(text, str):
            return fill(column_values(text, "texts"), top_k)
        return fill([text], top_k)[0]

    def attention(self, text: str, second: str | None = None) -> AttentionMaps:
        """What each head looks at in a text, or in a pair: `weights` [L, A, T, T] of its `tokens`, `habits()` of
        the heads, `plot("heads.png")`. InputError where it is longer than the model reads at once."""
        from bertsmith.explain.attention import attention_of

        for one in (text, second):
            if one is not None and not isinstance(one, str):
                raise InputError(
                    "text_not_a_string",
                    f"{one!r:.60} is not a string",
                    hint="pass a text, or a text and a second text",
                )
        return attention_of(self.encoder, self.tokenizer, self._in_full, text, second)

    def scorer(self, variant: Variant | None = None) -> Scorer:
        """What scores texts with this model: by their pseudo-log-likelihood ("within_word" if no variant is
        named), or where it reads from left to right by their log-likelihood. InputError where it has no masked-LM
        head."""
        from bertsmith.inference.causal_scoring import LeftToRight
        from bertsmith.inference.pseudo_likelihood import Scorer

        def made(encoder: Encoder, place: ComputeContext) -> Scorer:
            if self.folder.config.causal:
                return LeftToRight(
                    encoder, self._vocabulary_head, self.tokenizer, place, variant or "left_to_right"
                )
            return Scorer(encoder, self._masked, self.tokenizer, place, variant or "within_word")

        return self._compared(made, check_scores)

    def score(self, texts: Any, *, variant: Variant | None = None) -> list[dict[str, Any]]:
        """How likely the model finds each text of a list or column: its pseudo-log-likelihood `score` in nats, the
        sum over its tokens of log p(token | the others), each masked in turn (Salazar et al. 2020); the `tokens`
        and `words` it is of, special tokens not counted; of the tokens, those `unknown` to the vocabulary; and
        `pseudo_perplexity`, exp(-score / tokens). Sums rank hypotheses, such as the lines of a recogniser's list;
        perplexities compare texts of different lengths, under one tokenizer.

        variant: "within_word", the usual one, masks with a token the later ones of its word, which otherwise give
        it away (Kauf and Ivanova 2023); "token" masks it alone. A model that reads from left to right has no
        variant: its score is the log-likelihood, the sum of log p(token | those before it). Of a text longer than
        the model, which is logged, each token is guessed from a window around it. A text without a token, or a
        missing one, has the score None, and a logged warning says how many there are.
        """
        from bertsmith.inference.minimal_pairs import told_of_scores
        from bertsmith.inference.scoring import as_row, strings, told_of_unscored

        if isinstance(texts, str):
            raise wants_list("score", texts)
        found = self.scorer(variant).scores(strings(column_values(texts, "texts")))
        for sentence in told_of_scores(found):
            logger.info("%s", sentence)
        if empty := [f"text {i}" for i, one in enumerate(found, start=1) if not one.tokens]:
            logger.warning("%s", told_of_unscored(empty))
        return [as_row(one) for one in found]

    def score_pairs(
        self,
        pairs: Source,
        *,
        variant: Variant | None = None,
        good_column: str | None = None,
        bad_column: str | None = None,
        group_columns: Sequence[str] = (),
        encoding: str | None = None,
        sample: int | None = None,
        seed: int = 0,
    ) -> dict[str, Any]:
        """The accuracy on minimal pairs: the share in which the good sentence has a higher `score` than the bad
        one; ties are wrong, and counted. Chance is 0.5.

        pairs: a table, or data in memory, as `use.minimal_pairs.read_pairs` takes it with its columns. sample:
        only so many of them, of each group its share, by the seed. Returns the figures over all pairs, by each
        column of groups (`by_phenomenon`), and the mean over these (`mean_over`).
        """
        from bertsmith.inference.minimal_pairs import read_pairs, score_pairs, told_of_pairs

        if isinstance(group_columns, str):
            group_columns = [group_columns]
        found = read_pairs(
            pairs,
            good_column=good_column,
            bad_column=bad_column,
            group_columns=group_columns,
            encoding=encoding,
        )
        if sample is not None and sample < 1:
            raise InputError(
                "sample_too_small",
                f"{sample} is less than 1",
                argument="sample",
                hint="use the number of pairs to draw",
            )
        scores = score_pairs(found.sampled(sample, seed), self.scorer(variant))
        for sentence in told_of_pairs(scores):
            logger.info("%s", sentence)
        return Report(scores.document())

    def info(self) -> dict[str, Any]:
        """What the model is: sizes, parameters term by term, labels, training record."""
        config = self.folder.config
        heads = [name for name in PART_BUILDERS if self.folder.has(name)]
        terms = count_parameters(config, heads, labels=len(self.folder.labels or []))
        return {
            "path": str(self.folder.path),
            "architecture": self.folder.architecture,
            "config": config.model_dump(mode="json"),
            "parameters": sum(term.size for term in terms),
            "terms": [{"term": t.name, "formula": t.formula, "parameters": t.size} for t in terms],
            "labels": self.folder.labels,
            "record": self.folder.record,
        }


def load(
    name: str | Path,
    device: str = "auto",
    *,
    precision: str = "auto",
    mapped: bool = False,
) -> Model:
    """A run, a model folder, or a published name → a model ready for use.

    device: where it computes: cpu, cuda, cuda:1, auto. precision: of the products that answers come from: fp32,
    bf16 (about three digits), int8 (about two; on a processor, see below), or auto: bf16 where it is faster on the
    device, unless the model was trained in fp32 or bf16 would change its answers more than usual. On a processor
    one that is asked for by name computes with compiled kernels where the extra `fast` is installed: many texts
    are answered sooner, the first one later. Until they have been compiled, which is then done in the background,
    torch computes; the last digits differ, and a model that is loaded before then keeps to torch. mapped: leave
    fp32 weights in the pages of their file instead of copying them, so that the first answer comes sooner and
    processes share the memory; the file must then stay as it is while the model is in use. InputError where no
    model is found, or none is written yet. A model of an unfinished run is logged as a warning.

    Before the first answer in int8 the run's dev file, or up to 1,000 examples of it, is answered in fp32 as well;
    where the score that decides falls by more than 0.01, that is an InputError. What a model gives without a task
    is compared on some of the first texts instead, and refused in the same way: vectors whose cosine is below
    0.995, scores that differ by more than 0.05 nats a token on average, and guesses for masks where the
    probability of the likeliest token differs by more than 0.05 on average.
    """
    path = Path(name)
    if (path / "settings.yaml").exists() and not (path / "model").exists():
        raise InputError(
            "model_not_written",
            "this run is not finished and has no model yet",
            location=path,
            hint=f"run its command again with {option('resume', True)}; interrupting it saves a model",
        )
    folder = read_folder(locate(name))
    check_device(device)
    check_precision(precision, INT8)
    if precision == INT8 and not is_cpu(device):
        raise InputError(
            "int8_needs_cpu",
            "int8 runs on a CPU only",
            argument="precision",
            hint=f"add {option('device', 'cpu')}, or omit {option('precision', 'int8')}",
        )
    model = Model(path, folder, {}, device, precision, mapped)
    if model.unfinished is not None:
        logger.warning("%s", model.unfinished)
        return model
    report_file = path / "report.json"
    try:
        if report_file.is_file():
            model.report = Report(json.loads(report_file.read_text(encoding="utf-8")))
    except ValueError:
        raise InputError(
            "invalid_json",
            "the file is not JSON",
            location=report_file,
            hint=f"remove it, or run the command again with {option('resume', True)}",
        ) from None
    return model
