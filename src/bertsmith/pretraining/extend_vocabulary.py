"""`tokenizer extend`: a vocabulary, or a model with its vocabulary, grown by the words of a domain.

A new word's vector is made of the vectors of the pieces that it was cut into, so the model knows from the first
step on roughly what the word means. All other weights stay as they are, bit for bit.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from bertsmith import console
from bertsmith.artifacts.folder import MODEL_FILES, ModelFolder, read_folder, write_folder
from bertsmith.artifacts.locate import locate, locate_tokenizer
from bertsmith.errors import InputError, MachineError, option
from bertsmith.formatting import pluralize
from bertsmith.io import atomic
from bertsmith.io.documents import Reading
from bertsmith.io.sources import Sources, to_sources
from bertsmith.io.tables import Table
from bertsmith.models.config import ModelConfig
from bertsmith.settings import with_keywords
from bertsmith.tokenizer.folder import TOKENIZER_FILES
from bertsmith.tokenizer.tokenizer import Tokenizer
from bertsmith.tokenizer_training import extend as extension
from bertsmith.tokenizer_training.added_words import VOCABULARY_KINDS
from bertsmith.tokenizer_training.extend import NewWord

Init = Literal["mean", "first"]

RECORD = "extension.json"
_LAYOUT = atomic.FolderLayout("an extended tokenizer", RECORD, (RECORD, *TOKENIZER_FILES))
_MODEL = atomic.FolderLayout("an extended model", RECORD, (RECORD, *TOKENIZER_FILES, *MODEL_FILES))
_OF_TOKENS = (
    "encoder.embeddings.token.weight",
    "beside.encoder.embeddings.token.weight",
    "masked.bias",
    "masked.decoder.weight",
)
"""What has a row for each token."""


@dataclass(frozen=True)
class Choice:
    """Which words are proposed: see `tokenizer_training.extend.propose_words`. against: files whose words are too
    common to be the domain's."""

    words: int = 1000
    min_frequency: int = 5
    min_pieces: int = 2
    against: Sources = ()
    keep_others: bool = False


@console.with_progress_bar("reading")
def extend_tokenizer(
    files: Sources,
    output_dir: str | Path | None,
    *,
    tokenizer: str | Path | None = None,
    model: str | Path | None = None,
    choice: Choice = Choice(),
    word_list: str | Path | None = None,
    init: Init = "mean",
    reading: Reading = Reading(),  # noqa: B008  # frozen
    overwrite: bool = False,
    progress: Callable[[int], None] | None = None,
    **how: Any,
) -> dict[str, Any]:
    """Add the words of some files that a vocabulary breaks, and write the folder `output_dir`, which must not hold
    anything: a tokenizer, or with `model` (a run, a model folder, a published name) the whole model.

    files: one path or several, or data in memory, as in `prepare`. how: fields of `choice` and `reading` by
    name, such as words=500 or text_column="title". overwrite: replace what an earlier call wrote; any other
    folder is refused. word_list: a file with one word a line to add instead of proposed ones; `files` may then
    be empty. out None: only propose. Returns the report, which also stands in extension.json beside the
    tokenizer: `words` (word, count, pieces, saved), `effect` on the files (see
    `tokenizer_training.extend.compare_tokenizations`), sizes before and after. With byte-level BPE the
    intermediate pieces of words take entries, too (`tokenizer_training/added_words.py`).

    The new rows of the token table (of both, where a model has another beside it), of the masked-LM bias, and of a
    masked-LM decoder that is not the token table, are the mean of their pieces' rows (init "mean") or the first
    piece's ("first"). Ids, weights and heads that were there stay bit-equal.

    Raises `InputError` for a tokenizer and weights that do not belong together, files without a word to add, a
    bad word list (with its line), and what `read_documents` raises.
    """
    files, place, replace = to_sources(files), Path(output_dir) if output_dir is not None else None, False
    of_reading = {name: how.pop(name) for name in [*how] if hasattr(reading, name)}
    reading = with_keywords(reading, of_reading, extend_tokenizer)
    choice = with_keywords(choice, how, extend_tokenizer)
    if place is not None:
        replace = (_LAYOUT if model is None else _MODEL).check_replaceable(place, overwrite=overwrite)
        _refuse_itself(place, tokenizer, model)
    old, folder = _opened(tokenizer, model)
    found = _words(files, old, choice, word_list, reading, progress)
    grown = _grown(old, found.words)
    report = {**found.report(old, grown), "init": init if folder is not None else None}
    if place is None:
        return report
    report["output_dir"] = str(place)
    if folder is None:
        try:
            with atomic.atomic_folder(place, replace=replace) as part:
                _Recorded(grown, report).save(part)
        except OSError as error:
            raise MachineError(
                "tokenizer_not_written", f"the tokenizer could not be written: {error}", location=place
            ) from error
    else:
        pieces = extension.piece_ids_of_new_tokens(old, grown)
        added = {"words": len(found.words), "vocab_size_before": folder.config.vocab_size, "init": init}
        _write_model(place, folder, old.vocab_size, pieces, _Recorded(grown, report), added)
    return report


def _refuse_itself(out: Path, *names: str | Path | None) -> None:
    """InputError where what is extended is in the folder that would be replaced."""
    for name in names:
        if name is not None and Path(name).exists() and Path(name).resolve().is_relative_to(out.resolve()):
            raise InputError(
                "input_inside_output",
                f"this is the input, and it is in {out}, which would be replaced",
                location=name,
                argument="output_dir",
                hint=f"choose another {option('output_dir')}",
            )


def _opened(tokenizer: str | Path | None, model: str | Path | None) -> tuple[Tokenizer, ModelFolder | None]:
    """The tokenizer, and the model that it belongs to."""
    if (tokenizer is None) == (model is None):
        raise InputError(
            "tokenizer_or_model",
            "either a tokenizer or a model is extended",
            hint=f"give one of {option('tokenizer')} and {option('model')}",
        )
    if model is None:
        old = Tokenizer.load(locate_tokenizer(str(tokenizer)))
        return old, None
    folder = read_folder(locate(model))
    return folder.tokenizer(), folder


@dataclass(frozen=True)
class _Found:
    """The words to add, where they came from, and the words of the corpus."""

    words: list[NewWord]
    needless: list[str]
    counts: extension.WordCounts | None

    def report(self, old: Tokenizer, grown: Tokenizer) -> dict[str, Any]:
        written = [new.word for new in self.words]
        return {
            "added": len(self.words),
            "vocab_size_before": old.vocab_size,
            "vocab_size": grown.vocab_size,
            "already_whole": self.needless,
            "words": extension.to_dicts(self.words),
            "effect": None
            if self.counts is None
            else extension.compare_tokenizations(self.counts, old, grown, written),
        }


def _words(
    files: Sequence[str | Path | Table],
    old: Tokenizer,
    choice: Choice,
    word_list: str | Path | None,
    reading: Reading,
    progress: Callable[[int], None] | None,
) -> _Found:
    if not files and word_list is None:
        raise InputError(
            "no_files",
            "there is no file to propose words from",
            argument="files",
            hint=f"give text files, or {option('word_list')}",
        )
    listed, needless = extension.read_word_list(word_list, old) if word_list is not None else ([], [])
    counts = extension.count_domain_words(files, old, reading, progress) if files else None
    if word_list is not None:
        known = counts.counts if counts is not None else {}
        return _Found(extension.measure_word_list(listed, known, old), needless, counts)
    assert counts is not None
    common = to_sources(choice.against, "against")
    against = extension.count_domain_words(common, old, reading) if common else None
    words = extension.propose_words(
        counts,
        old,
        max_words=choice.words,
        min_frequency=choice.min_frequency,
        min_pieces=choice.min_pieces,
        reference_counts=against,
        keep_others=choice.keep_others,
    )
    if not words:
        raise InputError(
            "no_new_words",
            f"there is no word to add: no word that occurs at least {pluralize(choice.min_frequency, 'time')} is "
            f"split into {max(2, choice.min_pieces)} pieces or more",
            location=files[0],
            hint=f"lower {option('min_frequency')}, or name words with {option('word_list')}",
        )
    return _Found(words, needless, counts)


def _grown(old: Tokenizer, words: Sequence[NewWord]) -> Tokenizer:
    """The tokenizer with the words; each must come out as one token (a vocabulary may have limits of its own)."""
    kind = VOCABULARY_KINDS[old.kind]
    grown = extension.add_words(old, [new.word for new in words])
    for new, got in zip(words, grown.encode_ids([kind.to_text(new.word) for new in words]), strict=True):
        if [grown.tokens[i] for i in got] != [kind.to_token(new.word)]:
            raise InputError(
                "word_not_one_token",
                f"'{new.word[:60]}' would not become one token of this tokenizer",
                hint="remove the word from the list",
            )
    return grown


@dataclass(frozen=True)
class _Recorded:
    """A tokenizer that leaves the report beside its files."""

    tokenizer: Tokenizer
    report: Mapping[str, Any]

    def save(self, folder: Path) -> None:
        """Write both into a folder."""
        self.tokenizer.save(folder)
        kept = {key: value for key, value in self.report.items() if key != "output_dir"}
        atomic.write_text(folder / RECORD, json.dumps(kept, indent=1, ensure_ascii=False) + "\n")


def _write_model(
    out: Path,
    folder: ModelFolder,
    size: int,
    pieces: list[list[int]],
    tokenizer: _Recorded,
    added: Mapping[str, Any],
) -> None:
    config = ModelConfig.of(
        {**folder.config.model_dump(), "vocab_size": max(folder.config.vocab_size, size + len(pieces))},
        str(out),
    )
    parts: dict[str, dict[str, Tensor]] = {}
    for name, tensor in folder.weights().items():
        prefix, _, rest = name.partition(".")
        if name in _OF_TOKENS:
            if len(tensor) != folder.config.vocab_size:
                raise InputError(
                    "vocab_size_differs",
                    f"the weights have {pluralize(len(tensor), 'row')}, and the vocabulary has "
                    f"{folder.config.vocab_size:,}",
                    location=folder.path,
                    hint="config.json and the weights do not belong together; restore them from the source of the "
                    "model",
                )
            tensor = grown_rows(tensor, size, pieces, added["init"])
        parts.setdefault(prefix, {})[rest] = tensor
    kept = {key: value for key, value in folder.record.items() if key not in ("version", "weights_sha256")}
    write_folder(
        out,
        config,
        parts,
        architecture=folder.architecture,
        tokenizer=tokenizer,
        labels=folder.labels,
        problem_type=folder.problem_type,
        record={**kept, "extended": [*kept.get("extended", []), added]},
    )


def grown_rows(table: Tensor, size: int, pieces: Sequence[Sequence[int]], init: Init) -> Tensor:
    """A tensor [V, …] with a row for each new word from row `size` on: of its pieces' rows the mean, taken in
    fp32, or the first. Rows between `size` and V, which no token had, are used up before the tensor grows."""
    rows = [table[list(ids)].float().mean(0) if init == "mean" else table[ids[0]] for ids in pieces]
    new = torch.stack([row.to(table.dtype) for row in rows])
    return torch.cat([table[:size], new, table[size + len(pieces) :]])
