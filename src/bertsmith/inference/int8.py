"""Answers in int8: the encoder's products in 8 bits, checked against single precision before they are used."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bertsmith.errors import InputError, option
from bertsmith.formatting import pluralize
from bertsmith.inference.answering import Answering
from bertsmith.inference.precision import random_texts
from bertsmith.kernels.backend_selection import select_inference_backend
from bertsmith.models.encoder import Encoder
from bertsmith.models.quantization import quantize_encoder
from bertsmith.settings import read_yaml
from bertsmith.tokenizer.tokenizer import Tokenizer

if TYPE_CHECKING:  # what one verb alone needs: the others begin sooner
    from bertsmith.inference.fill_mask import MaskFiller
    from bertsmith.inference.pseudo_likelihood import Scorer

INT8 = "int8"
_FALL = 0.01  # of the score that decides: a larger fall is refused
_COSINE = 0.995  # of each vector with that in single precision
_NATS = 0.05  # a token, by which scores may differ on average
_SHARE = 0.05  # by which the probability of the likeliest token may differ on average
_MOST = 1_000  # examples of the validation file that are answered twice
_FEW = 64  # texts whose vectors are made twice, or whose masks are filled
_FEW_SCORED = 16  # texts that are scored twice, each with every token of it masked in turn
_GUESSES = 10  # tokens for a mask among which the likeliest is looked for
_SEQUENCES = 128  # of random tokens
_OTHERWISE = f"use {option('precision', 'bf16')} or {option('precision', 'fp32')}"

logger = logging.getLogger(__name__)


def in_int8(encoder: Encoder, tokenizer: Tokenizer) -> Encoder:
    """The encoder with its layers' products in 8 bits; the same for every call."""
    texts = random_texts(encoder, tokenizer, _SEQUENCES)
    return quantize_encoder(encoder, texts, select_inference_backend(encoder.config.hidden_size))


def check_answers(exact: Answering, quick: Answering, run: Path) -> None:
    """Log by how much the score that decides on the run's validation file changes in int8.

    InputError where it falls by more than a hundredth, or where the file is not there.
    """
    file = validation_file(run)
    settings, examples = exact.labelled(file, {})
    some = examples[:: -(-len(examples) // _MOST)]
    task = exact.task
    before, after = (
        task.score(one.answers_of(some, settings), some).numbers[task.decides] for one in (exact, quick)
    )
    comparison = (
        f"on {pluralize(len(some), 'example')} of {file}, {task.decides} is "
        f"{after:.4f} in int8 and {before:.4f} in "
        f"fp32 ({round(after - before, 4) + 0.0:+.4f})"  # adding 0.0 turns -0.0 into 0.0
    )
    if not after >= before - _FALL:  # also where one of them is not a number
        raise InputError(
            "int8_score_too_low",
            f"{comparison}, a loss of more than {_FALL:g}",
            location=run,
            hint=_OTHERWISE,
        )
    logger.info("%s: %s", run, comparison)


def validation_file(run: Path) -> Path:
    """Return the run's validation file, or the part of its training file that was held out."""
    known: Any = None
    for folder in (run, run.parent):  # its model folder may have been named
        if (settings := folder / "settings.yaml").is_file():
            if held_out := sorted((folder / "split").glob("dev.*")):
                return held_out[0]
            known = read_yaml(settings).get("files", {}).get("validation")
            break
    if known and Path(known).is_file():
        return Path(known)
    if known and not Path(known).is_absolute():
        fault, hint = f"{known} is not in {Path.cwd()}", "change to the folder in which the run was started"
    elif known:
        fault, hint = f"{known} does not exist", "restore it"
    else:
        fault, hint = "this folder names none", "name the folder of the run"
    raise InputError(
        "validation_file_missing",
        f"int8 is compared with fp32 on the run's validation file, and {fault}",
        location=run,
        hint=f"{hint}, or {_OTHERWISE}",
    )


def check_vectors(
    exact: Callable[[Sequence[str]], NDArray[np.float32]],
    quick: Callable[[Sequence[str]], NDArray[np.float32]],
    texts: Sequence[str],
    run: Path,
) -> bool:
    """Log how near the vectors of some of the texts are to those in single precision; InputError where they are
    too far apart. Returns whether there was something to compare, as the others do."""
    some = _some(texts, _FEW)
    if not some:
        return False
    a, b = exact(some).astype(np.float64), quick(some).astype(np.float64)
    lengths = np.maximum(np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1), 1e-12)
    least = float(((a * b).sum(1) / lengths).min())
    texts_shown = pluralize(len(some), "text")
    comparison = f"on {texts_shown}, the smallest cosine between vectors in int8 and fp32 is {least:.4f}"
    if not least >= _COSINE:  # also where it is not a number
        raise InputError(
            "int8_vectors_differ", f"{comparison}, below {_COSINE}", location=run, hint=_OTHERWISE
        )
    logger.info("%s: %s", run, comparison)
    return True


def check_scores(exact: Scorer, quick: Scorer, texts: Sequence[str], run: Path) -> bool:
    """Log by how much the scores of some of the texts differ from those in single precision; InputError where it
    is too much."""
    some = _some(texts, _FEW_SCORED)
    before, after = exact.scores(some), quick.scores(some)
    tokens = sum(one.tokens for one in before)
    if not tokens:
        return False
    apart = sum(abs(a.score - b.score) for a, b in zip(before, after, strict=True)) / tokens
    texts_shown = pluralize(len(some), "text")
    comparison = f"on {texts_shown}, scores in int8 and fp32 differ by {apart:.4f} nats per token on average"
    if not apart <= _NATS:  # also where it is not a number
        raise InputError(
            "int8_scores_differ", f"{comparison}, more than {_NATS:g}", location=run, hint=_OTHERWISE
        )
    logger.info("%s: %s", run, comparison)
    return True


def check_guesses(exact: MaskFiller, quick: MaskFiller, texts: Sequence[str], run: Path) -> bool:
    """Log how the guesses for the masks of some of the texts differ from those in single precision; InputError
    where it is too much."""
    some = _some(texts, _FEW)
    before = [best for of_text in exact(some, 1) for best, *_ in of_text]
    after = [guesses for of_text in quick(some, _GUESSES) for guesses in of_text]
    if not before:
        return False
    same = sum(best["token"] == guesses[0]["token"] for best, guesses in zip(before, after, strict=True))
    apart = 0.0
    for best, guesses in zip(before, after, strict=True):
        # a token that is no longer among the likeliest counts as if it had no probability left
        share = next((one["score"] for one in guesses if one["token"] == best["token"]), 0.0)
        apart += abs(best["score"] - share) / len(before)
    comparison = (
        f"on {pluralize(len(before), 'mask')}, the likeliest token in int8 and fp32 is the same for {same:,}, "
        f"and its probability differs by {apart:.4f} on average"
    )
    if not apart <= _SHARE:  # also where it is not a number
        raise InputError(
            "int8_predictions_differ", f"{comparison}, more than {_SHARE:g}", location=run, hint=_OTHERWISE
        )
    logger.info("%s: %s", run, comparison)
    return True


def _some(texts: Sequence[str], most: int) -> Sequence[str]:
    """At most so many of them, evenly spread."""
    return texts[:: -(-len(texts) // most)] if texts else []
