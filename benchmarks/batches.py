"""Shards to packed masked batches on one core: tokens a second, beside the reference library's collator.

    python benchmarks/batches.py [--repeats 7] [--batches 100]

Segment pairs of 128 tokens with next sentence, token masks drawn anew for each epoch, 15 % exactly in every
sequence. Ours: from the memory-mapped shards to tensors, with its share of the epoch's plan. The reference:
`DataCollatorForLanguageModeling` on the same rows, which it is handed as lists of ids; making them is not timed.
Both in turn, one thread; the median of the windows.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import numpy as np
import torch

from bertsmith.corpus.shards import Shards
from bertsmith.instances.batches import InstanceStream, MaskedBatch, special_token_ids_of
from bertsmith.instances.holdout_split import DocumentSplit
from bertsmith.instances.settings import DataSettings
from bertsmith.instances.word_boundaries import word_start_function
from corpus import prepare_corpus
from record import environment, markdown_table, write_section

SIZES = (32, 64, 256)
OTHERS: list[dict[str, Any]] = [
    {"masking": "whole_word"},
    {"masking": "span"},
    {"sentence_task": "sop"},
    {"instances": "full_sentences", "sentence_task": "none"},
]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--batches", type=int, default=100, help="in a window of ours")
    options = parser.parse_args()
    torch.set_num_threads(1)
    shards = Shards.open(prepare_corpus())
    stream = stream_of(shards, {})
    plan_seconds = [timed(lambda epoch=epoch: stream.plan(epoch)) for epoch in range(options.repeats)]
    tokens = stream.plan(0).tokens
    plan = statistics.median(plan_seconds)
    rows = [beside(stream, size, options, plan / tokens) for size in SIZES]
    others = [alone(shards, data, options) for data in OTHERS]
    text = [
        f"`python benchmarks/batches.py`; {environment(1)}.",
        "From shards to packed, masked batches: segment pairs of 128 tokens, dynamic masks of "
        "exactly 15 % of each "
        f"sequence; enwiki, {tokens:,} tokens an epoch; one core. The plan of an epoch takes {plan:.2f} s "
        f"({min(plan_seconds):.2f} to {max(plan_seconds):.2f}), {plan / tokens * 1e9:.0f} ns a token, which the "
        "first column includes. The collator of transformers gets the same rows as lists. Medians of "
        f"{options.repeats} windows in turn (least to most), beside other processes.",
        markdown_table(
            ["batch", "ours, M tokens/s", "without the plan", "collator, M tokens/s", "ratio"],
            rows,
        ),
        "Ours with other settings, batches of 64, the plan included, in M tokens/s: "
        + "; ".join(f"{name} {rate}" for name, rate in others)
        + ".",
    ]
    print("\n\n".join(text))
    write_section("Batches", "\n\n".join(text))


def stream_of(shards: Shards, data: dict[str, Any]) -> InstanceStream:
    """The training instances of the usual split."""
    settings = DataSettings.of(data, "benchmark")
    split = DocumentSplit.from_settings(shards, settings)
    return InstanceStream(
        shards,
        split.train,
        special_token_ids_of(shards.tokenizer),
        settings,
        length=128,
        seed=0,
        word_starts=word_start_function(shards.tokenizer, settings),
        kin=split.duplicate_groups,
    )


def timed(call: Any) -> float:
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def beside(stream: InstanceStream, size: int, options: argparse.Namespace, plan: float) -> list[str]:
    """One row: ours and the collator in turn. plan: seconds a token."""
    collator = collator_of(stream)
    ours, theirs = [], []
    for window in range(options.repeats):
        first = window * options.batches * size
        rate, batches = rate_of(stream, first, size, options.batches)
        ours.append(rate)
        some = batches[: max(1, options.batches // 20)]
        features = [rows_of(batch) for batch in some]
        seconds = timed(lambda features=features: [collator(rows) for rows in features])
        theirs.append(sum(batch.tokens for batch in some) / seconds)
    whole = [1 / (1 / rate + plan) for rate in ours]
    return [
        str(size),
        spread(whole),
        spread(ours),
        spread(theirs),
        f"{statistics.median(w / t for w, t in zip(whole, theirs, strict=True)):.0f} ×",
    ]


def alone(shards: Shards, data: dict[str, Any], options: argparse.Namespace) -> list[str]:
    stream = stream_of(shards, data)
    plan = timed(lambda: stream.plan(0)) / stream.plan(0).tokens
    rates = [
        1 / (1 / rate_of(stream, window * options.batches * 64, 64, options.batches)[0] + plan)
        for window in range(options.repeats)
    ]
    return [", ".join(f"{name}={value}" for name, value in data.items()), spread(rates)]


def rate_of(stream: InstanceStream, first: int, size: int, number: int) -> tuple[float, list[MaskedBatch]]:
    """Tokens a second over some batches in a row, and the batches."""
    stream.plan(0)
    begin = time.perf_counter()
    batches = [stream.batch(0, first + k * size, first + (k + 1) * size) for k in range(number)]
    seconds = time.perf_counter() - begin
    return sum(batch.tokens for batch in batches) / seconds, batches


def collator_of(stream: InstanceStream) -> Any:
    from transformers import BertTokenizerFast, DataCollatorForLanguageModeling

    words = BertTokenizerFast.from_pretrained(prepare_corpus() / "tokenizer")
    return DataCollatorForLanguageModeling(words, mlm=True, mlm_probability=0.15, return_tensors="pt")


def rows_of(batch: MaskedBatch) -> list[dict[str, list[int]]]:
    """The batch's sequences before masking, as a data set of the reference gives them."""
    original = batch.packed.tokens.clone()
    original[batch.rows] = batch.labels
    cuts = batch.packed.cu_seqlens[1:-1].numpy()
    return [
        {"input_ids": ids.tolist(), "token_type_ids": segments.tolist()}
        for ids, segments in zip(
            np.split(original.numpy(), cuts), np.split(batch.packed.segments.numpy(), cuts), strict=True
        )
    ]


def spread(rates: list[float]) -> str:
    """Median (least to most), in millions."""
    return f"{statistics.median(rates) / 1e6:.2f} ({min(rates) / 1e6:.2f} to {max(rates) / 1e6:.2f})"


if __name__ == "__main__":
    main()
