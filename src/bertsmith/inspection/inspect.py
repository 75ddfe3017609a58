"""`tokenizer inspect`: compare tokenizers on the same text."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any, Unpack

from bertsmith import console
from bertsmith.artifacts.locate import locate_tokenizer
from bertsmith.corpus.checks.tokenizer_comparison import compare_tokenizers
from bertsmith.errors import InputError, option
from bertsmith.io import atomic
from bertsmith.io.documents import Reading
from bertsmith.io.sources import Sources, to_sources
from bertsmith.keywords import ReadingKeywords
from bertsmith.notebook import Report
from bertsmith.settings import with_keywords
from bertsmith.tokenizer.tokenizer import Tokenizer


@console.with_progress_bar("reading")
def inspect_tokenizers(
    tokenizers: str | Path | Sequence[str | Path],
    files: Sources,
    *,
    cased: Collection[str | Path] = (),
    reading: Reading = Reading(),  # noqa: B008  # frozen
    limit: int | None = None,
    max_examples: int = 20,
    html: str | Path | None = None,
    progress: Callable[[int], None] | None = None,
    **keywords: Unpack[ReadingKeywords],
) -> dict[str, Any]:
    """Compare tokenizers on the text of files.

    Args:
        tokenizers: Folders, files, runs, or published names.
        files: One path or several, or data in memory, as in `prepare`.
        cased: Those of the tokenizers that are a bare vocab.txt, which does not record case, and keep case.
        reading: How to read the files.
        limit: The number of bytes of text to read; None reads all.
        max_examples: The maximum number of examples in each list of the report.
        html: Also write the report as a page.
        progress: Called with the number of bytes done.
        **keywords: Fields of `reading` by name, such as text_column="title".

    Returns:
        The report of `bertsmith.corpus.checks.tokenizer_comparison.compare_tokenizers`, in which the name of each
        tokenizer is the shortest unambiguous end of its path.

    Raises:
        InputError: A path is not a tokenizer, one is named twice, or the page cannot be written there.
    """
    if html is not None:
        atomic.check_output_file(Path(html), overwrite=True, argument="html")
    names = [str(name) for name in ([tokenizers] if isinstance(tokenizers, str | Path) else tokenizers)]
    if repeated := [name for name in names if names.count(name) > 1]:
        message = "this tokenizer is named twice"
        raise InputError("tokenizer_repeated", message, location=repeated[0], hint="name each once")
    cased_names = [str(name) for name in cased]
    if unknown := [name for name in cased_names if name not in names]:
        message = "this is not one of the tokenizers"
        hint = f"name it as a tokenizer, too, or omit {option('cased')}"
        raise InputError("cased_not_a_tokenizer", message, location=unknown[0], argument="cased", hint=hint)
    loaded = {
        label: Tokenizer.load(locate_tokenizer(name), lowercase=False if name in cased_names else None)
        for label, name in zip(_short_names(names), names, strict=True)
    }
    reading = with_keywords(reading, keywords, inspect_tokenizers)
    options: dict[str, Any] = {"reading": reading, "max_bytes": limit, "max_examples": max_examples}
    report = compare_tokenizers(to_sources(files), loaded, **options, progress=progress)
    if html is not None:
        from bertsmith.reports.corpus import tokenizers_page
        from bertsmith.reports.page import write_page

        write_page(html, tokenizers_page(report))
    return Report(report, display_keys=("text", "tokenizers", "notes"))


def _short_names(names: Sequence[str]) -> list[str]:
    """Shorten paths to as few of their last parts as distinguish them."""
    parts = [Path(os.path.abspath(name)).parts if os.path.exists(name) else (name,) for name in names]
    for depth in range(1, max(map(len, parts), default=1) + 1):
        labels = ["/".join(part[-depth:]) for part in parts]
        if len(set(labels)) == len(labels):
            return labels
    return list(names)
