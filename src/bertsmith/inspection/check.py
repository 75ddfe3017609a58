"""`bertsmith data check`: check a corpus and estimate tokens, disk space, and training time on this machine."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Unpack

from bertsmith import console
from bertsmith.artifacts.locate import locate_tokenizer
from bertsmith.corpus.checks.check import CheckOptions, check_files
from bertsmith.errors import InputError, option
from bertsmith.formatting import format_percent
from bertsmith.instances.settings import MEAN_FILL_RATIO, TOKEN_REPETITION
from bertsmith.io import atomic
from bertsmith.io.compression import is_compressed
from bertsmith.io.folders import find_files
from bertsmith.io.sources import Sources, size_of, to_sources
from bertsmith.io.tables import Table
from bertsmith.keywords import CheckKeywords
from bertsmith.models.config import ModelConfig
from bertsmith.models.family import preset
from bertsmith.models.parameter_count import count_parameters
from bertsmith.notebook import Report
from bertsmith.settings import with_keywords
from bertsmith.tokenizer.tokenizer import Tokenizer
from bertsmith.training.settings import TrainSettings

_SEQUENCE_LENGTH, _MLM_PROBABILITY = 128, 0.15  # of the forecast's training
_PIECES_PER_WORD = 1.12  # measured with the published uncased vocabulary; a Chinese character is one piece
_BYTES_PER_SENTENCE = 4  # in a shard: the sentence's end
_BYTES_PER_DOCUMENT = 60  # in a shard: the document's location, hash, and offsets
_SPECIAL_TOKENS = 3  # in a segment pair: [CLS] and two [SEP]
_MAX_EPOCHS = 1_000_000

logger = logging.getLogger(__name__)


@console.with_progress_bar("looking")
def check_corpus(
    files: Sources,
    options: CheckOptions | None = None,
    *,
    tokenizer: Tokenizer | str | Path | None = None,
    against: Sources = (),
    preset_name: str | None = None,
    epochs: float = 1.0,
    benchmark: bool = True,
    html: str | Path | None = None,
    progress: Callable[[int], None] | None = None,
    **keywords: Unpack[CheckKeywords],
) -> dict[str, Any]:
    """Check a corpus and estimate the tokens, disk space, and time of training a preset on it.

    Args:
        files: One path or several, or data in memory, as in `prepare`.
        options: Options of the check.
        tokenizer: A tokenizer, or its folder, to count tokens with instead of estimating them.
        against: Evaluation data to search for in the corpus.
        preset_name: The preset of the forecast; by default bert-mini-chinese for Chinese text, else
            bert-mini-uncased.
        epochs: The number of epochs to forecast.
        benchmark: Measure a few updates on this machine; otherwise the forecast has no training time.
        html: Also write the report as a page.
        progress: Called with the number of bytes done.
        **keywords: Fields of the options and of their `reading` by name, such as sample=10_000_000 or
            text_column="title".

    Returns:
        The report of `bertsmith.corpus.checks.check.check_files`: `findings`, the worst first, and the counts
        behind them. `forecast` is added, with the estimated tokens, disk space, updates, and time.

    Raises:
        InputError: A file is missing, a name is unknown, `epochs` is out of range, or the page cannot be written.
    """
    if not 0 < epochs <= _MAX_EPOCHS:  # also refuses NaN
        message = f"{epochs} is not above 0 and at most {_MAX_EPOCHS:,}"
        hint = f"use, for example, {option('epochs', '1')}"
        raise InputError("epochs_out_of_range", message, argument="epochs", hint=hint)
    if preset_name is not None:
        preset(preset_name)  # refuse unknown names before reading the text
    if html is not None:
        atomic.check_output_file(Path(html), overwrite=True, argument="html")
    if tokenizer is not None and not isinstance(tokenizer, Tokenizer):
        tokenizer = Tokenizer.load(locate_tokenizer(str(tokenizer)))
    options, files = with_keywords(options or CheckOptions(), keywords, check_corpus), to_sources(files)
    report = check_files(
        files, options, tokenizer=tokenizer, against=to_sources(against, "against"), progress=progress
    )
    if preset_name is None:
        preset_name = "bert-mini-chinese" if report["language"] == "zh" else "bert-mini-uncased"
    config = preset(preset_name, **({"vocab_size": tokenizer.vocab_size} if tokenizer is not None else {}))
    report["forecast"] = _forecast(report, config, preset_name, epochs, benchmark, options.sample, files)
    if html is not None:
        from bertsmith.reports.corpus import corpus_page
        from bertsmith.reports.page import write_page

        write_page(html, corpus_page(report))
    return Report(report, display_keys=("findings", "forecast"))


def _forecast(
    report: dict[str, Any],
    config: ModelConfig,
    preset_name: str,
    epochs: float,
    benchmark: bool,
    sample: int | None,
    sources: Sequence[str | Path | Table],
) -> dict[str, Any]:
    """Estimate the tokens, bytes of shards, updates, and seconds of training on a corpus.

    Args:
        report: The report of `check_files`.
        config: The model to train.
        preset_name: Its name.
        epochs: The number of epochs.
        benchmark: Also estimate the seconds, by a measurement on this machine.
        sample: The bytes that the check was limited to; the estimate is extrapolated from them.
        sources: The corpus, for its size.

    Returns:
        The estimates, and in `rests_on` their basis.
    """
    tokenizer_report = report.get("tokenizer")
    scale, coverage = _scale(report, sample, sources)
    tokens = round((tokenizer_report["tokens"] if tokenizer_report else _estimate_tokens(report)) * scale)
    bytes_per_token = 2 if config.vocab_size <= 1 << 16 else 4
    documents = report["documents"]
    other_bytes = documents["sentences"] * _BYTES_PER_SENTENCE + documents["number"] * _BYTES_PER_DOCUMENT
    settings = TrainSettings()
    batch_size = settings.batch_size * settings.gradient_accumulation_steps
    instances = round(TOKEN_REPETITION * tokens / (MEAN_FILL_RATIO * _SEQUENCE_LENGTH - _SPECIAL_TOKENS))
    steps = max(1, round(epochs * instances / batch_size)) if instances else 0
    seconds, time_basis = None, "the time was not measured"
    if benchmark and steps:
        from bertsmith.pretraining.settings import PretrainSettings
        from bertsmith.pretraining.speed_probe import estimate_update_seconds

        seconds, time_basis = estimate_update_seconds(PretrainSettings(model=config))
    return {
        "preset": preset_name,
        "epochs": epochs,
        "covers": coverage,
        "tokens": tokens,
        "tokens_are": "counted" if tokenizer_report and scale == 1 else "estimated",
        "shard_bytes": round(tokens * bytes_per_token + other_bytes * scale),
        "sequence_length": _SEQUENCE_LENGTH,
        "batch_size": settings.batch_size,
        "instances_an_epoch": instances,
        "steps": steps,
        "parameters": sum(term.size for term in count_parameters(config, ("pooler", "masked", "pair"))),
        "seconds_per_update": None if seconds is None else round(seconds, 5),
        "seconds": None if seconds is None else round(seconds * steps, 1),
        "rests_on": f"{_describe_basis(tokenizer_report is not None)}; {time_basis}",
    }


def _scale(
    report: dict[str, Any], sample: int | None, sources: Sequence[str | Path | Table]
) -> tuple[float, str]:
    """Return the factor by which to extrapolate from a sample, and a description of the text that this covers."""
    if sample is None or not any(limit.startswith("a sample") for limit in report["limits"]):
        return 1.0, "the whole corpus"
    if any(is_compressed(file) or file.lower().endswith(".parquet") for file in report["files"]):
        return 1.0, "only the sample: the size of the text in compressed files is unknown until they are read"
    total = sum(size_of(source) for source in find_files(sources))
    scale = max(1.0, total / max(1, report["bytes"]))
    return scale, "the whole corpus, from the sample by the size of the files"


def _estimate_tokens(report: dict[str, Any]) -> int:
    """Estimate the tokens of the text: pieces of words, a token per Chinese character and per sign."""
    classes = report["characters"]["classes"]
    num_signs: int = sum(classes[name]["number"] for name in ("punctuation", "symbols") if name in classes)
    num_han = int(report["scripts"].get("Han", {"number": 0})["number"])
    words = int(report["words"])
    return round(_PIECES_PER_WORD * max(0, words - num_han) + min(num_han, words) + num_signs)


def _describe_basis(has_tokenizer: bool) -> str:
    tokens = (
        "tokens counted with this tokenizer"
        if has_tokenizer
        else f"tokens estimated: {_PIECES_PER_WORD:g} pieces per word, one per sign (--tokenizer counts them)"
    )
    return (
        f"{tokens}; segment pairs of {_SEQUENCE_LENGTH} tokens filled to {format_percent(MEAN_FILL_RATIO)}, "
        f"{TOKEN_REPETITION:g} tokens in them for each token of the text"
    )
