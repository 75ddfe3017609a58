"""`load`, `predict`, `evaluate`, `fill-mask`, `score`: a finished model, and text → answers. Nothing trains."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, overload

import numpy as np
import torch
from numpy.typing import NDArray

from bertsmith import console
from bertsmith.artifacts.copy import copy_model
from bertsmith.artifacts.folder import ModelFolder, read_folder
from bertsmith.artifacts.locate import locate
from bertsmith.artifacts.schema import typed
from bertsmith.artifacts.sentence import sentence_vectors
from bertsmith.display import Report
from bertsmith.errors import InputError, in_python
from bertsmith.files.files import bare_suffix
from bertsmith.files.memory import Source, as_file, column_of, is_missing, is_path, is_table
from bertsmith.files.tables import table_delimiter
from bertsmith.models.encoder import Encoder
from bertsmith.models.heads import PARTS, MaskedHead
from bertsmith.models.parameters import count_parameters
from bertsmith.models.pooling import Pooling
from bertsmith.packed import Packed
from bertsmith.place import Place, check_device
from bertsmith.retrieval.index import Index
from bertsmith.settings import Settings
from bertsmith.tasks.overview import told_of_empty
from bertsmith.tasks.scores import Scores
from bertsmith.tasks.task import TASKS, Facts, Task, refuse_too_long, task_of, task_type
from bertsmith.tasks.windows import UNCUT
from bertsmith.tokenizer.tokenizer import Tokenizer
from bertsmith.use.lines import texts_of_lines
from bertsmith.use.mask_windows import MaskWindow, mask_windows
from bertsmith.use.minimal_pairs import read_pairs, score_pairs, told_of_pairs, told_of_scores
from bertsmith.use.predictions import (
    Answered,
    answered_of,
    as_json,
    format_of,
    refuse_existing,
    told_of_unanswered,
    write_answers,
)
from bertsmith.use.pseudo_likelihood import Scorer, Variant
from bertsmith.use.score import as_row, strings, told_of_unscored
from bertsmith.use.vectors import Embedder, made_so

_HEADLESS = re.compile(r"(Model|ForPreTraining|ForMaskedLM|ForCausalLM)$")  # classes that answer no task
_SHOWN = 40  # characters of a text in a message
_CHUNK = 1024  # examples that are encoded and answered at a time, so that memory does not grow with the file


@dataclass
class Model:
    """A model folder ready for use; its parts are read when first needed.

    path: what it was loaded as. folder: the opened model folder. device: where it computes, "auto" for a GPU if
    there is one.
    """

    path: Path
    folder: ModelFolder = field(repr=False)
    report: dict[str, Any] = field(default_factory=dict, repr=False)
    device: str = "auto"

    @cached_property
    def place(self) -> Place:
        """Where it computes, in fp32."""
        return Place.of(self.device, "fp32")

    @property
    def model_folder(self) -> Path:
        """The folder, in the Hugging Face layout."""
        return self.folder.path

    @property
    def labels(self) -> list[str] | None:
        """A classifier's labels, by id."""
        return self.folder.labels

    def _repr_html_(self) -> str:
        from bertsmith.use.model_page import model_page

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
            raise _wants_list("embed", texts)
        return self.embedder(pooling, normalize, max_length)(column_of(texts, "texts"))

    def embedder(
        self,
        pooling: Pooling | None = None,
        normalize: bool | None = None,
        max_length: int | None = None,
    ) -> Embedder:
        """What makes vectors of texts, as `embed` does, also some at a time."""
        if max_length is not None and max_length < 2:
            raise InputError(f"--max-length {max_length}: is less than 2", "the special tokens take two")
        try:
            known = sentence_vectors(self.folder.path)
        except InputError:
            if pooling is None:
                raise
            known = None  # its own steps are none of ours, and left out on request
        made = made_so(known, pooling, normalize, max_length)
        return Embedder(self.encoder, self.tokenizer, self.place, made)

    def index(
        self,
        texts: Any,
        out: str | Path,
        *,
        text_column: str | None = None,
        id_column: str | None = None,
        encoding: str | None = None,
        pooling: Pooling | None = None,
        max_length: int | None = None,
        approximate: bool = False,
        overwrite: bool = False,
        tell: Callable[[str], None] = console.tell,
    ) -> Index:
        """An index of texts to search (`bertsmith.search`), in the new folder `out`, whole or not there.

        texts: a list, a table in memory, or a file: the lines of a .txt, a column of a .jsonl, .csv, .tsv or
        .parquet, the passages of queries. id_column: what texts are called there ("_id" or "id" if there is one).
        pooling, max_length: as in `embed`; vectors get the length 1. approximate: also build a graph for fast
        search (extra `ann`). overwrite: replace an index. Empty texts are left out, and told.
        """
        from bertsmith.use.search import build_index

        return build_index(
            self,
            texts,
            out,
            text_column=text_column,
            id_column=id_column,
            encoding=encoding,
            pooling=pooling,
            max_length=max_length,
            approximate=approximate,
            overwrite=overwrite,
            tell=tell,
        )

    @property
    def unfinished(self) -> str | None:
        """That the model's run has not finished, in a sentence; None where it has."""
        if (mark := self.folder.record.get("unfinished")) is None:
            return None
        return f"{self.path}: a model of an unfinished run, of step {mark['step']:,} of {mark['of']:,}"

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The folder's tokenizer."""
        return Tokenizer.load(self.folder.path)

    @cached_property
    def encoder(self) -> Encoder:
        """The encoder in evaluation: takes a Packed, or (input_ids, attention_mask, token_type_ids)."""
        with torch.inference_mode(False):  # whoever asks first: its weights are ordinary tensors
            encoder = self.folder.encoder(self.place.drawing)
            self.place.settle(encoder)
        encoder.eval()
        return encoder

    @cached_property
    def _masked(self) -> MaskedHead:
        if not self.folder.has("masked"):
            raise InputError(
                f"{self.path}: this model has no masked-LM head, it cannot guess masked words",
                "use a pre-trained run (bertsmith pretrain)",
            )
        with torch.inference_mode(False):
            head = MaskedHead(self.folder.config, torch.Generator())
            self.folder.fill("masked", head)
            self.place.settle(head)
        return head.eval()

    @cached_property
    def task(self) -> Task:
        """The task that it was fine-tuned for, ready to answer. InputError where it was for none."""
        kind, facts = self._kind
        place = str(self.folder.path / "bertsmith.json")
        settings = kind.settings_type.of(self.folder.record.get("settings", {}), place)
        with torch.inference_mode(False):
            try:  # a task reads its facts when it is made
                task = kind(self.folder.config, self.place.drawing, facts, settings)
            except (KeyError, TypeError, ValueError, AttributeError):
                raise InputError(
                    f"{place}: its facts are not those of the task '{kind.name}'",
                    "it was damaged or changed: copy it again",
                ) from None
            for part, head in task.parts.items():
                self.folder.fill(part, head)
            self.place.settle(task)
        return task.eval()

    @cached_property
    def _kind(self) -> tuple[type[Task], Facts]:
        """What was recorded, or what the heads of another tool's model say."""
        record, path = self.folder.record, self.folder.path
        if (name := record.get("task")) in TASKS:
            kind = task_type(name)
            facts = record["facts"] if "facts" in record else kind.facts_before(record, self.folder)
            if facts is None:
                raise InputError(f"{path}: bertsmith.json and config.json do not belong together")
            settings = kind.settings_type.of(record.get("settings", {}), str(path / "bertsmith.json"))
            kind = kind.variant(settings, facts)
            typed(kind.facts_type, facts, f"{path / 'bertsmith.json'}: facts")
            if facts.get("labels", self.folder.labels) != self.folder.labels:
                raise InputError(
                    f"{path}: bertsmith.json and config.json name other labels",
                    "one was changed: copy both again",
                )
            return kind, facts
        if name not in (None, "pretrain"):
            raise InputError(
                f"{path}: this model is for the task '{name}', which this version does not know",
                f"known tasks: {', '.join(TASKS)}",
            )
        if record or _HEADLESS.search(self.folder.architecture):
            raise InputError(
                f"{self.path}: this model was not fine-tuned for a task, it has nothing to predict",
                f"fine-tune it: bertsmith finetune TASK --model {self.path} --train FILE --dev FILE --out RUN "
                f"(tasks: {', '.join(TASKS)})",
            )
        return task_of(self.folder, str(path))

    @overload
    def fill_mask(  # type: ignore[overload-overlap]  # a str is a sequence of str, too
        self, text: str, top_k: int = 5, max_length: int | None = None, tell: Callable[[str], None] = ...
    ) -> list[list[dict[str, Any]]]: ...

    @overload
    def fill_mask(
        self,
        text: Sequence[str],
        top_k: int = 5,
        max_length: int | None = None,
        tell: Callable[[str], None] = ...,
    ) -> list[list[list[dict[str, Any]]]]: ...

    def fill_mask(
        self,
        text: Any,
        top_k: int = 5,
        max_length: int | None = None,
        tell: Callable[[str], None] = lambda text: None,
    ) -> list[Any]:
        """For each [MASK] of the text, in order, the `top_k` likeliest tokens with their probabilities; of a list
        of texts, or a column of them, a list of that.

        Each is {"token", "score", "text"}; `text` is the text with that token in this mask's place. max_length:
        tokens read at a time, special ones included, at most what the model can take; of a longer text, which is
        told, each mask is guessed from a window around it.
        """
        if top_k < 1:
            raise InputError(f"--top-k {top_k}: is less than 1", "give the number of guesses for each mask")
        if not isinstance(text, str):
            return [self._filled_in(one, top_k, max_length, tell) for one in column_of(text, "texts")]
        return self._filled_in(text, top_k, max_length, tell)

    def _filled_in(
        self, text: str, top_k: int, max_length: int | None, tell: Callable[[str], None]
    ) -> list[list[dict[str, Any]]]:
        mask = self.tokenizer.mask_token
        if not isinstance(text, str):
            raise InputError(f"{text!r:.60} is not a string", "give each text as a string")
        if mask not in text:
            raise InputError(
                f"there is no {mask} in the text {text!r}", f"put {mask} where a word is to be guessed"
            )
        encoding = self.tokenizer.encode(text, max_length=UNCUT, specials="mask")
        longest = self.folder.config.longest
        limit = min(longest, max_length or longest)
        answers = []
        for window in mask_windows(encoding, self.tokenizer.mask_id, limit, tell):
            scores, ids = self._best(window, top_k)
            for (_, row), of_mask, tokens in zip(window.masks, scores, ids, strict=True):
                start, end = encoding.offsets[row]
                answers.append(
                    [
                        {
                            "token": (token := self.tokenizer.tokens[i]),
                            "score": score,
                            "text": _filled(text, start, end, self._as_text(i, token)),
                        }
                        for score, i in zip(of_mask, tokens, strict=True)
                    ]
                )
        return answers

    def _best(self, window: MaskWindow, top_k: int) -> tuple[list[list[float]], list[list[int]]]:
        """For each mask of a window the likeliest tokens: their probabilities, and their ids."""
        head = self._masked
        packed = self.place.send(Packed.of_lists([window.ids], [window.segments]))
        with torch.inference_mode():
            hidden = self.encoder(packed)[[row for row, _ in window.masks]]
            shares = head(hidden, self.encoder.embeddings.token.weight).float().softmax(-1)
            best = shares.topk(min(top_k, shares.shape[1]))
        return best.values.tolist(), best.indices.tolist()

    def scorer(self, variant: Variant = "within_word") -> Scorer:
        """What scores texts by their pseudo-log-likelihood with this model. InputError where it has no masked-LM
        head."""
        return Scorer(self.encoder, self._masked, self.tokenizer, self.place, variant)

    def score(
        self, texts: Any, *, variant: Variant = "within_word", tell: Callable[[str], None] = console.tell
    ) -> list[dict[str, Any]]:
        """How likely the model finds each text of a list or column: its pseudo-log-likelihood `score` in nats, the
        sum over its tokens of log p(token | the others), each masked in turn (Salazar et al. 2020); the `tokens`
        and `words` it is of, special tokens not counted; of the tokens, those `unknown` to the vocabulary; and
        `pseudo_perplexity`, exp(-score / tokens). Sums rank hypotheses, such as the lines of a recogniser's list;
        perplexities compare texts of different lengths, under one tokenizer.

        variant: "within_word" masks with a token the later ones of its word, which otherwise give it away (Kauf
        and Ivanova 2023); "token" masks it alone. Of a text longer than the model, which is told, each token is
        guessed from a window around it. A text without a token, or a missing one, has the score None, and a
        warning says how many there are.
        """
        if isinstance(texts, str):
            raise _wants_list("score", texts)
        found = self.scorer(variant).scores(strings(column_of(texts, "texts")))
        for sentence in told_of_scores(found):
            tell(sentence)
        if empty := [f"text {i}" for i, one in enumerate(found, start=1) if not one.tokens]:
            warnings.warn(in_python(told_of_unscored(empty)), stacklevel=2)
        return [as_row(one) for one in found]

    def score_pairs(
        self,
        pairs: Source,
        *,
        variant: Variant = "within_word",
        good_column: str | None = None,
        bad_column: str | None = None,
        group_columns: Sequence[str] = (),
        sample: int | None = None,
        seed: int = 0,
        tell: Callable[[str], None] = console.tell,
    ) -> dict[str, Any]:
        """The accuracy on minimal pairs: the share in which the good sentence has a higher `score` than the bad
        one; ties are wrong, and counted. Chance is 0.5.

        pairs: a table, or data in memory, as `use.minimal_pairs.read_pairs` takes it with its columns. sample:
        only so many of them, of each group its share, by the seed. Returns the figures over all pairs, by each
        column of groups (`by_phenomenon`), and the mean over these (`mean_over`).
        """
        if isinstance(group_columns, str):
            group_columns = [group_columns]
        found = read_pairs(pairs, good_column=good_column, bad_column=bad_column, group_columns=group_columns)
        if sample is not None and sample < 1:
            raise InputError(f"--sample {sample}: is less than 1", "give the number of pairs to draw")
        scores = score_pairs(found.sampled(sample, seed), self.scorer(variant))
        for sentence in told_of_pairs(scores):
            tell(sentence)
        return Report(scores.document())

    def _as_text(self, number: int, token: str) -> str:
        """A token as it stands in text: a blank in front where it begins a word, "##" where it goes on one."""
        kind = self.tokenizer.kind
        if kind == "byte_level_bpe":
            return self.tokenizer.decode([number])
        return token.replace("▁", " ") if kind == "unigram" else token

    def predict(self, *inputs: Any, **changes: Any) -> list[dict[str, Any]]:
        """One answer for each example. inputs: a list or column (of pandas, polars, pyarrow, numpy) for each of
        the task's `inputs`, all of one length: texts, and for pairs the second texts; questions and passages;
        sentences, each a list of words. Or one table with the columns of training, whose answers are not looked
        at. changes: settings of the task, such as max_length or text_column, for this call.

        An empty text, or a missing one (None, NaN), is answered {"label": None, …, "empty": True}, and a warning
        says how many there are."""
        names = self.task.inputs
        if len(inputs) == 1 and is_table(inputs[0]):
            settings = self._settings(changes, "predict", inputs[0])
            examples = self.task.read(self._source(inputs[0], settings), settings, labelled=False)
            return self._aligned(examples, settings)
        if len(inputs) > len(names):
            raise InputError(
                f"predict was given {len(inputs)} lists; the task '{self.task.name}' takes {', '.join(names)}",
                "give one list each",
            )
        for values in inputs:
            if isinstance(values, str):
                raise _wants_list("predict", values)
        columns = {
            name: ["" if is_missing(value) else value for value in column_of(values, name)]
            for name, values in zip(names, inputs, strict=False)
            if values is not None
        }
        return self._aligned(self._examples(columns), self._settings(changes, "predict"))

    def _aligned(self, examples: Sequence[Any], settings: Settings) -> list[dict[str, Any]]:
        """An answer for each example; what is empty has one that says so, and is warned of."""
        found = list(self._answers_of(settings)(examples))
        empty = {i: example.place for i, example in enumerate(examples) if self.task.is_empty(example)}
        if empty:
            warnings.warn(in_python(told_of_unanswered([*empty.values()])), stacklevel=3)
        return [self.task.unanswered(one) if i in empty else one for i, one in enumerate(found)]

    def _examples(self, columns: dict[str, list[Any]], places: Sequence[str] | None = None) -> list[Any]:
        """Examples from values that are in no file; each of the task's inputs is needed but the optional ones."""
        task = self.task
        if missing := [n for n in task.inputs if n not in columns and n not in task.optional]:
            raise InputError(
                f"the task '{task.name}' also takes {' and '.join(missing)}",
                "give a file of examples with --file",
                python="give a list of each, or a table with these columns",
            )
        number = len(next(iter(columns.values())))
        if wrong := [name for name, values in columns.items() if len(values) != number]:
            raise InputError(f"there are {len(columns[wrong[0]])} of {wrong[0]} for {number} examples", None)
        return task.of_inputs(columns, task.settings, places or [f"text {i + 1}" for i in range(number)])

    @overload
    def predict_file(self, file: Source, *, out: None = None, **columns: Any) -> Iterator[dict[str, Any]]: ...

    @overload
    def predict_file(
        self,
        file: Source,
        *,
        out: str | Path,
        format: str | None = None,
        overwrite: bool = False,
        **columns: Any,
    ) -> Path: ...

    def predict_file(
        self,
        file: Source,
        *,
        out: str | Path | None = None,
        format: str | None = None,
        overwrite: bool = False,
        **columns: Any,
    ) -> Iterator[dict[str, Any]] | Path:
        """`predict` for each example of a file (or of a table in memory), which is read as `evaluate` reads it,
        but for the answers; of a .txt file that is no table, for each line.

        Without `out` an iterator, so that answers of any number need no memory: list(model.predict_file(file)) has
        them all. An answer has its line in the file and what was asked; an empty text has none. With `out` the
        answers are written there, and its path is returned: .csv (each row of the file with its answer behind
        it), .jsonl, .json, or .txt, a table for reading. format: csv, json, table, or the form of the task's own
        field (`task.answer_form`), whatever the name ends in. overwrite: replace a file that is there.

        columns: settings of the task to change, such as text_column, delimiter or max_length.
        """
        if out is None:
            if format is not None:
                raise InputError(f"format={format!r} is for a file of answers", "name the file, too: out=…")
            return as_json(self.task, self.answered_file(file, console.tell, **columns))
        form, out = format_of(out, format, self.task.answer_form), Path(out)
        if not overwrite:
            refuse_existing(out)
        answered = self.answered_file(file, console.tell, **columns)
        write_answers(self.task, answered, form, self.delimiter_of(file, **columns), out)
        return out

    def predict_lines(self, lines: Iterable[bytes], place: str, **changes: Any) -> Iterator[dict[str, Any]]:
        """`predict` for each line of a stream of UTF-8 bytes but the blank ones, some at a time."""
        return as_json(self.task, self.answered_lines(lines, place, **changes))

    def answered_file(
        self, file: Source, tell: Callable[[str], None] = lambda text: None, **columns: Any
    ) -> Iterator[Answered]:
        """Each example of a file with its answer, None for an empty one. tell: how the file was read, how many
        were empty or cut."""
        settings = self._settings(columns, "predict", file)
        examples = self.task.read(self._source(file, settings), settings, labelled=False)
        for remark in self.task.remarks(examples):
            tell(remark)
        return answered_of(self.task, [examples], self._answers_of(settings), tell)

    def answered_lines(
        self,
        lines: Iterable[bytes],
        place: str,
        tell: Callable[[str], None] = lambda text: None,
        **changes: Any,
    ) -> Iterator[Answered]:
        """The same for the lines of a stream of UTF-8 bytes, some at a time."""
        parts = self._in_chunks(texts_of_lines(lines, place))
        return answered_of(self.task, parts, self._answers_of(self._settings(changes, "predict")), tell)

    def answered_texts(
        self, texts: Sequence[str], tell: Callable[[str], None] = lambda text: None, **changes: Any
    ) -> Iterator[Answered]:
        """The same for texts, as the command line has them."""
        examples = self._examples({self.task.inputs[0]: list(texts)})
        return answered_of(self.task, [examples], self._answers_of(self._settings(changes, "predict")), tell)

    def delimiter_of(self, file: Source, **columns: Any) -> str:
        """What separates the columns of a .csv, as its answers should have it; a comma for other files."""
        if not is_path(file):
            return ","
        given = getattr(self._settings(columns, "predict", file), "delimiter", None)
        return table_delimiter(file, given) or "," if bare_suffix(file) == ".csv" else ","

    def _in_chunks(self, lines: Iterator[tuple[str, str]]) -> Iterator[list[Any]]:
        while some := list(islice(lines, _CHUNK)):
            texts = [text for _, text in some]
            yield self._examples({self.task.inputs[0]: texts}, [place for place, _ in some])

    def evaluate(self, file: Source, **columns: Any) -> dict[str, Any]:
        """The task's scores on a labelled file, or on data in memory as `finetune` takes it, as one object."""
        return Report(self.scores(file, **columns).document())

    def scores(self, file: Source, **columns: Any) -> Scores:
        """The task's scores on a labelled file or data in memory. columns: settings of the task to change."""
        settings = self._settings(columns, "evaluate", file)
        examples = self.task.read(self._source(file, settings), settings)
        predictions = list(self._answers_of(settings)(examples))
        scores = self.task.score(predictions, examples)
        empty = [example.place for example in examples if self.task.is_empty(example)]
        return replace(scores, notes=[*scores.notes, told_of_empty(empty)]) if empty else scores

    def _source(self, data: Source, settings: Settings) -> str | Path:
        """A file, or data in memory by the columns that the settings name."""
        return as_file(data, "data", lambda width: self.task.columns_of_tuples(settings, width))

    def _settings(self, columns: dict[str, Any], verb: str, file: Source = "") -> Settings:
        """The columns of training with those given; a .tsv file has tabs whatever the training file had."""
        given = {name: value for name, value in columns.items() if value is not None}
        known = self.task.settings_type.model_fields
        if is_path(file) and bare_suffix(file) == ".tsv" and "delimiter" in known:
            given.setdefault("delimiter", None)
        settings = self.task.settings_type.of(self.task.settings.model_dump() | given, verb)
        if "max_length" in given:
            refuse_too_long(settings, self.folder.config.longest)
        return settings

    def _answers_of(self, settings: Settings) -> Callable[[Sequence[Any]], Iterator[dict[str, Any]]]:
        """What answers examples under some settings: one answer each, in their order."""
        task = self.task.under(settings)

        def answers(examples: Sequence[Any]) -> Iterator[dict[str, Any]]:
            for i in range(0, len(examples), _CHUNK):
                some = examples[i : i + _CHUNK]
                yield from task.answers(self.encoder, task.items(some, self.tokenizer), some, self.place)

        return answers

    def info(self) -> dict[str, Any]:
        """What the model is: sizes, parameters term by term, labels, training record."""
        config = self.folder.config
        heads = [name for name in PARTS if self.folder.has(name)]
        terms = count_parameters(config, heads, labels=len(self.folder.labels or []))
        return {
            "path": str(self.folder.path),
            "architecture": self.folder.architecture,
            "config": config.model_dump(mode="json"),
            "parameters": sum(term.size for term in terms),
            "terms": [{"term": t.term, "formula": t.formula, "parameters": t.size} for t in terms],
            "labels": self.folder.labels,
            "record": self.folder.record,
        }


def load(
    name: str | Path,
    device: str = "auto",
    tell: Callable[[str], None] = lambda text: warnings.warn(text, stacklevel=3),
) -> Model:
    """A run, a model folder, or a published name → a model ready for use.

    device: where it computes: cpu, cuda, cuda:1, auto. tell: is told that the model's run has not finished; by
    default that is a warning. InputError where no model is found, or none is written yet.
    """
    path = Path(name)
    if (path / "settings.yaml").exists() and not (path / "model").exists():
        raise InputError(
            f"{path}: this run has not finished, and has no model yet",
            "continue it: the command it was started with, and --resume (Ctrl-C then leaves a model)",
        )
    folder = read_folder(locate(name))
    check_device(device)
    model = Model(path, folder, {}, device)
    if model.unfinished is not None:
        tell(model.unfinished)
        return model
    report_file = path / "report.json"
    try:
        if report_file.is_file():
            model.report = Report(json.loads(report_file.read_text(encoding="utf-8")))
    except ValueError:
        raise InputError(
            f"{report_file}: this is not JSON", "remove it, or run the command again with --resume"
        ) from None
    return model


def _wants_list(verb: str, text: str) -> InputError:
    shown = text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"
    return InputError(f"{verb} takes a list, not one text alone", f"write {verb}([{json.dumps(shown)}])")


def _filled(text: str, start: int, end: int, token: str) -> str:
    """The text with a token in place of [start, end); one that goes on a word is joined to it."""
    if token.startswith("##"):
        return text[:start].rstrip() + token.removeprefix("##") + text[end:]
    if token.startswith(" "):
        return text[:start].rstrip() + token + text[end:]
    return text[:start] + token + text[end:]
