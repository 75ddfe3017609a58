"""`load`, `predict`, `evaluate` and `fill-mask`: a finished model and text → answers. Nothing here trains."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from bertsmith.artifacts.folder import ModelFolder, read_folder
from bertsmith.artifacts.locate import locate
from bertsmith.errors import InputError
from bertsmith.files.files import bare_suffix, read_lines
from bertsmith.models.encoder import Encoder
from bertsmith.models.heads import PARTS, MaskedHead
from bertsmith.models.parameters import count_parameters
from bertsmith.packed import Packed
from bertsmith.settings import Settings
from bertsmith.tasks.task import EncodedRow, Task, task_type
from bertsmith.tokenizer.tokenizer import Tokenizer

_CHUNK = 1024  # texts that are encoded and answered at a time, so that memory does not grow with the file


@dataclass
class Model:
    """A model folder ready for use; its parts are read when first needed.

    path: what it was loaded as. folder: the opened model folder.
    """

    path: Path
    folder: ModelFolder = field(repr=False)
    report: dict[str, Any] = field(default_factory=dict, repr=False)

    @property
    def model_folder(self) -> Path:
        """The folder in the field's layout."""
        return self.folder.path

    @property
    def labels(self) -> list[str] | None:
        """A classifier's labels, by id."""
        return self.folder.labels

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The folder's tokenizer."""
        return Tokenizer.load(self.folder.path)

    @cached_property
    def encoder(self) -> Encoder:
        """The encoder in evaluation: takes a Packed, or (input_ids, attention_mask, token_type_ids)."""
        with torch.inference_mode(False):  # whoever asks first: its weights are ordinary tensors
            encoder = self.folder.encoder()
        encoder.eval()
        return encoder

    @cached_property
    def _masked(self) -> MaskedHead:
        if not self.folder.has("masked"):
            raise InputError(
                f"{self.path}: this model has no masked-LM head, it cannot fill a mask",
                "use a pre-trained run (bertsmith pretrain)",
            )
        with torch.inference_mode(False):
            head = MaskedHead(self.folder.config, torch.Generator())
            self.folder.fill("masked", head)
        return head.eval()

    @cached_property
    def _task(self) -> Task:
        labels, record = self.folder.labels, self.folder.record
        if labels is None:
            raise InputError(
                f"{self.path}: this model was not fine-tuned for a task, it has no labels to predict",
                f"fine-tune it: bertsmith finetune classify --model {self.path} "
                "--train FILE --dev FILE --out RUN",
            )
        # a classifier of another tool has no record of ours
        kind = task_type(record.get("task", "classify"))
        place = str(self.folder.path / "bertsmith.json")
        settings = kind.settings_type.of(record.get("settings", {}), place)
        numbered = bool(record.get("numbered", False))
        with torch.inference_mode(False):
            task = kind(self.folder.config, torch.Generator(), labels, settings, numbered=numbered)
            for prefix, head in task.heads.items():
                self.folder.fill(prefix, head)
        return task.eval()

    def fill_mask(self, text: str, top_k: int = 5) -> list[list[dict[str, Any]]]:
        """For each [MASK] of the text, in order, the `top_k` likeliest tokens with their probabilities.

        Each is {"token", "score", "text"}; `text` is the text with that token in this mask's place.
        """
        mask = self.tokenizer.mask_token
        if mask not in text:
            raise InputError(
                f"there is no {mask} in the text {text!r}", f"put {mask} where a word is to be guessed"
            )
        head = self._masked
        encoding = self.tokenizer.encode(
            text, max_length=self.folder.config.longest, truncation="none", specials="parse"
        )
        packed = Packed.of_lists([encoding.ids], [encoding.segments])
        rows = [i for i, token in enumerate(encoding.ids) if token == self.tokenizer.mask_id]
        with torch.inference_mode():
            hidden = self.encoder(packed)[rows]
            shares = head(hidden, self.encoder.embeddings.token.weight).float().softmax(-1)
            best = shares.topk(min(top_k, shares.shape[1]))
        answers = []
        for row, scores, ids in zip(rows, best.values.tolist(), best.indices.tolist(), strict=True):
            start, end = encoding.offsets[row]
            answers.append(
                [
                    {
                        "token": (token := self.tokenizer.tokens[i]),
                        "score": score,
                        "text": _filled(text, start, end, self._as_text(i, token)),
                    }
                    for score, i in zip(scores, ids, strict=True)
                ]
            )
        return answers

    def _as_text(self, number: int, token: str) -> str:
        """A token as it stands in text: a blank in front where it begins a word, "##" where it goes on one."""
        kind = self.tokenizer.kind
        if kind == "byte_level_bpe":
            return self.tokenizer.decode([number])
        return token.replace("▁", " ") if kind == "unigram" else token

    def predict(self, texts: Sequence[str], seconds: Sequence[str] | None = None) -> list[dict[str, Any]]:
        """One {"label", "score", "scores", "tokens", "tokens_read"} a text; `seconds` for tasks on pairs."""
        if isinstance(texts, str):
            raise InputError(
                f"predict takes a list of texts, not {texts!r} alone", "put it in brackets: [text]"
            )
        self._check_kind(pairs=seconds is not None)
        places = [f"text {i + 1}" for i in range(len(texts))]
        examples = self._task.of_texts(texts, seconds, places)
        return [prediction for _, some in self._answered(examples) for prediction in some]

    def predict_file(self, file: str | Path, **columns: Any) -> Iterator[dict[str, Any]]:
        """`predict` for each row of a csv, tsv or jsonl file, or for each line of a .txt file.

        columns: settings of the task to change, such as text_column or delimiter.
        """
        settings = self._settings(columns, file)
        if bare_suffix(file) == ".txt" and not columns.get("text_column") and not columns.get("delimiter"):
            self._check_kind(pairs=False)
            lines = list(read_lines(file))
            if not lines:
                raise InputError(f"{file}: this file is empty", "give a text a line")
            places = [f"{file}:{number}" for number, _ in lines]
            examples = self._task.of_texts([line for _, line in lines], None, places)
        else:
            examples = self._task.read(file, settings, labelled=False)
        for _, some in self._answered(examples):
            yield from some

    def predict_lines(self, lines: Iterable[bytes], place: str) -> Iterator[dict[str, Any]]:
        """`predict` for each line of a stream of UTF-8 bytes, some at a time."""
        self._check_kind(pairs=False)
        numbered = enumerate(lines, 1)
        while some := list(islice(numbered, _CHUNK)):
            places = [f"{place}:{number}" for number, _ in some]
            texts = [_decoded(line, at) for at, (_, line) in zip(places, some, strict=True)]
            for _, answers in self._answered(self._task.of_texts(texts, None, places)):
                yield from answers

    def evaluate(self, file: str | Path, **columns: Any) -> dict[str, Any]:
        """The task's scores on a labelled file."""
        examples = self._task.read(file, self._settings(columns, file))
        rows: list[EncodedRow] = []
        predictions: list[dict[str, Any]] = []
        for some_rows, some in self._answered(examples):
            rows += some_rows
            predictions += some
        return self._task.score(predictions, rows)

    def _check_kind(self, *, pairs: bool) -> None:
        if pairs != self._task.pairs:
            wants = "pairs of texts" if self._task.pairs else "single texts"
            raise InputError(f"{self.path}: this model was trained on {wants}", f"give it {wants}")

    def _settings(self, columns: dict[str, Any], file: str | Path) -> Settings:
        """The columns of training with those given; a .tsv file has tabs whatever the training file had."""
        given = {name: value for name, value in columns.items() if value is not None}
        if bare_suffix(file) == ".tsv":
            given.setdefault("delimiter", None)
        return self._task.settings_type.of(self._task.settings.model_dump() | given, "columns")

    def _answered(self, examples: Sequence[Any]) -> Iterator[tuple[list[EncodedRow], list[dict[str, Any]]]]:
        longest = self.folder.config.longest
        encoded = (
            self._task.encode(examples[i : i + _CHUNK], self.tokenizer, longest)
            for i in range(0, len(examples), _CHUNK)
        )
        for rows in encoded:
            yield rows, self._task.decode(self.encoder, rows)

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


def load(name: str | Path) -> Model:
    """A run, a model folder, or a published name → a model ready for use.

    InputError where there is none, or where the run has not finished.
    """
    path = Path(name)
    if (path / "settings.yaml").exists() and not (path / "model").exists():
        raise InputError(
            f"{path}: this run has not finished, there is no model in it yet",
            "let it finish: the command it was started with, and --resume",
        )
    folder = read_folder(locate(name))
    report_file = path / "report.json"
    try:
        report = json.loads(report_file.read_text(encoding="utf-8")) if report_file.is_file() else {}
    except ValueError:
        raise InputError(
            f"{report_file}: this is not JSON", "remove it, or run the command again with --resume"
        ) from None
    return Model(path, folder, report)


def _filled(text: str, start: int, end: int, token: str) -> str:
    """The text with a token in place of [start, end); one that goes on a word is joined to it."""
    if token.startswith("##"):
        return text[:start].rstrip() + token.removeprefix("##") + text[end:]
    if token.startswith(" "):
        return text[:start].rstrip() + token + text[end:]
    return text[:start] + token + text[end:]


def _decoded(line: bytes, place: str) -> str:
    try:
        return line.decode("utf-8").rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise InputError(
            f"{place}: byte {error.start} of the line is not UTF-8", "convert it to UTF-8"
        ) from None
