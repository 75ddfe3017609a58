"""`tokenizer extend`: add the words of a domain to a vocabulary, or to a model and its vocabulary.

The embedding of a new word is the mean of the embeddings of the tokens that it was split into, so that the model
has a rough idea of the word from the start. All other weights stay the same, bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Unpack

import torch
from torch import Tensor

from bertsmith import console
from bertsmith.artifacts.folder import MODEL_FILES, ModelFolder, read_folder, write_folder
from bertsmith.artifacts.locate import locate, locate_tokenizer
from bertsmith.errors import InputError, option
from bertsmith.formatting import pluralize
from bertsmith.io import atomic
from bertsmith.io.documents import Reading
from bertsmith.io.folder_layout import FolderLayout
from bertsmith.io.sources import Sources, to_sources
from bertsmith.io.tables import Table
from bertsmith.keywords import ExtendKeywords
from bertsmith.models.char_cnn import byte_table
from bertsmith.models.config import ModelConfig
from bertsmith.runs.run_folder import check_inputs_outside, write_json
from bertsmith.settings import with_keywords
from bertsmith.tokenizer.folder import TOKENIZER_FILES
from bertsmith.tokenizer.tokenizer import Tokenizer
from bertsmith.tokenizer_training import extend as extension
from bertsmith.tokenizer_training.added_words import VOCABULARY_KINDS
from bertsmith.tokenizer_training.extend import NewWord

Init = Literal["mean", "first"]

RECORD = "extension.json"
_TOKENIZER_LAYOUT = FolderLayout("an extended tokenizer", RECORD, (RECORD, *TOKENIZER_FILES))
_MODEL_LAYOUT = FolderLayout("an extended model", RECORD, (RECORD, *TOKENIZER_FILES, *MODEL_FILES))
_TENSORS_BY_TOKEN = (
    "encoder.embeddings.token.weight",
    "beside.encoder.embeddings.token.weight",
    "encoder.embeddings.backward_token.weight",
    "masked.bias",
    "masked.decoder.weight",
    "masked_backward.bias",
    "masked_backward.decoder.weight",
)


@dataclass(frozen=True)
class Choice:
    """The words to propose; see `tokenizer_training.extend.propose_words`.

    Attributes:
        words: The maximum number of words.
        min_frequency: The minimum number of occurrences.
        min_pieces: The minimum number of tokens in the old vocabulary.
        against: Files of general text; words that are as frequent in it are not proposed.
    """

    words: int = 1000
    min_frequency: int = 5
    min_pieces: int = 2
    against: Sources = ()


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
    **keywords: Unpack[ExtendKeywords],
) -> dict[str, Any]:
    """Add words that a vocabulary splits into several tokens, and write the new tokenizer or model.

    New entries of the token embeddings, and of the masked-LM head's bias and decoder, are initialized from those
    of the tokens that the word was split into. Existing ids, weights, and heads do not change. In byte-level BPE,
    parts of words become entries, too (`tokenizer_training/added_words.py`).

    Args:
        files: Text of the domain: paths, or data in memory, as in `prepare`. It may be empty with `word_list`.
        output_dir: The folder to write; None: only propose words.
        tokenizer: The tokenizer to extend.
        model: The model to extend, with its tokenizer: a run, a model folder, or a published name.
        choice: Which words are proposed.
        word_list: A file with the words to add, one in each line, instead of proposed ones.
        init: Initialize with the mean of the tokens' embeddings, or with the first token's.
        reading: How files are divided into documents.
        overwrite: Replace the result of an earlier call.
        progress: Called with the number of bytes of text so far.
        keywords: Fields of `choice` and `reading`, such as words=500 or text_column="title".

    Returns:
        The report, which is also written to extension.json: sizes, the words with their counts, tokens, and the
        number of tokens that each saves, and the effect on the files.

    Raises:
        InputError: Tokenizer and weights do not belong together, there is no word to add, or input is invalid.
    """
    files, out, replace = to_sources(files), None if output_dir is None else Path(output_dir), False
    reading_keywords = {name: value for name, value in keywords.items() if hasattr(reading, name)}
    choice_keywords = {name: value for name, value in keywords.items() if not hasattr(reading, name)}
    reading = with_keywords(reading, reading_keywords, extend_tokenizer)
    choice = with_keywords(choice, choice_keywords, extend_tokenizer)
    if out is not None:
        layout = _TOKENIZER_LAYOUT if model is None else _MODEL_LAYOUT
        replace = layout.check_replaceable(out, overwrite=overwrite)
        check_inputs_outside(out, tokenizer, model)
    old, folder = _load(tokenizer, model)
    counts = extension.count_domain_words(files, old, reading, progress) if files else None
    existing_words: list[str] = []
    if word_list is None:
        words = _propose_words(files, counts, old, choice, reading)
    else:
        listed, existing_words = extension.read_word_list(word_list, old)
        words = extension.measure_word_list(listed, {} if counts is None else counts.counts, old)
    extended = _add_words(old, words)
    report: dict[str, Any] = {
        "added": len(words),
        "vocab_size_before": old.vocab_size,
        "vocab_size": extended.vocab_size,
        "already_whole": existing_words,
        "words": extension.to_dicts(words),
        "effect": None
        if counts is None
        else extension.compare_tokenizations(counts, old, extended, [new.word for new in words]),
        "init": init if folder is not None else None,
    }
    if out is None:
        return report
    if folder is not None:
        _write_model(out.resolve(), folder, old, extended, report)
    else:
        with atomic.write_errors(out), atomic.atomic_folder(out, replace=replace) as new_folder:
            extended.save(new_folder)
            write_json(new_folder / RECORD, report)
    return {**report, "output_dir": str(out)}


def _load(tokenizer: str | Path | None, model: str | Path | None) -> tuple[Tokenizer, ModelFolder | None]:
    """Load the tokenizer, and the model that it belongs to."""
    if (tokenizer is None) == (model is None):
        hint = f"give one of {option('tokenizer')} and {option('model')}"
        raise InputError("tokenizer_or_model", "either a tokenizer or a model is extended", hint=hint)
    if model is None:
        return Tokenizer.load(locate_tokenizer(str(tokenizer))), None
    folder = read_folder(locate(model))
    return folder.tokenizer(), folder


def _propose_words(
    files: Sequence[str | Path | Table],
    counts: extension.WordCounts | None,
    old: Tokenizer,
    choice: Choice,
    reading: Reading,
) -> list[NewWord]:
    """Propose words of the files; raise InputError if there are none."""
    if counts is None:
        hint = f"give text files, or {option('word_list')}"
        raise InputError("no_files", "there is no file to propose words from", argument="files", hint=hint)
    against = to_sources(choice.against, "against")
    words = extension.propose_words(
        counts,
        old,
        max_words=choice.words,
        min_frequency=choice.min_frequency,
        min_pieces=choice.min_pieces,
        reference_counts=extension.count_domain_words(against, old, reading) if against else None,
    )
    if not words:
        message = (
            f"there is no word to add: no word that occurs at least {pluralize(choice.min_frequency, 'time')} is "
            f"split into {max(2, choice.min_pieces)} pieces or more"
        )
        hint = f"lower {option('min_frequency')}, or name words with {option('word_list')}"
        raise InputError("no_new_words", message, location=files[0], hint=hint)
    return words


def _add_words(old: Tokenizer, words: Sequence[NewWord]) -> Tokenizer:
    """Return the tokenizer with the words; raise InputError if one is still split into several tokens."""
    kind = VOCABULARY_KINDS[old.kind]
    extended = extension.add_words(old, [new.word for new in words])
    encoded = extended.encode_ids([kind.to_text(new.word) for new in words])
    for new, ids in zip(words, encoded, strict=True):
        if [extended.tokens[i] for i in ids] != [kind.to_token(new.word)]:
            message = f"'{new.word[:60]}' would not become one token of this tokenizer"
            raise InputError("word_not_one_token", message, hint="remove the word from the list")
    return extended


def _write_model(
    out: Path, folder: ModelFolder, old: Tokenizer, extended: Tokenizer, report: dict[str, Any]
) -> None:
    """Write the model with new rows in all tensors that have a row for each token."""
    config = folder.config
    pieces = extension.piece_ids_of_new_tokens(old, extended)
    vocab_size = max(config.vocab_size, old.vocab_size + len(pieces))
    parts: dict[str, dict[str, Tensor]] = {}
    for name, tensor in folder.weights().items():
        part, _, tensor_name = name.partition(".")
        if name in _TENSORS_BY_TOKEN:
            if len(tensor) != config.vocab_size:
                raise InputError(
                    "vocab_size_differs",
                    f"the weights have {pluralize(len(tensor), 'row')}, and the vocabulary has "
                    f"{config.vocab_size:,}",
                    location=folder.path,
                    hint="config.json and the weights do not belong together; restore them from the source of the "
                    "model",
                )
            tensor = extend_rows(tensor, old.vocab_size, pieces, report["init"])
        if tensor_name.endswith(".characters"):
            tensor = byte_table(extended.tokens, vocab_size)
        parts.setdefault(part, {})[tensor_name] = tensor
    added = {"words": report["added"], "vocab_size_before": config.vocab_size, "init": report["init"]}
    write_folder(
        out,
        ModelConfig.of({**config.model_dump(), "vocab_size": vocab_size}, str(out)),
        parts,
        architecture=folder.architecture,
        tokenizer=extended,
        labels=folder.labels,
        problem_type=folder.problem_type,
        record={**folder.record, "extended": [*folder.record.get("extended", []), added]},
        json_files={RECORD: report},
    )


def extend_rows(tensor: Tensor, size: int, pieces: Sequence[Sequence[int]], init: Init) -> Tensor:
    """Return a tensor [V, …] with a row for each new word from row `size` on.

    Rows between `size` and V, which have no token, are replaced before the tensor grows.

    Args:
        tensor: The tensor.
        size: The number of tokens before.
        pieces: For each new word, the ids of the tokens that it was split into.
        init: "mean": the mean of their rows, in fp32; "first": the first row.
    """
    rows = [tensor[list(ids)].float().mean(0) if init == "mean" else tensor[ids[0]] for ids in pieces]
    new_rows = torch.stack([row.to(tensor.dtype) for row in rows])
    return torch.cat([tensor[:size], new_rows, tensor[size + len(pieces) :]])
