"""Compare building masked batches from shards with the collator of transformers, on one core.

    python benchmarks/batches.py [--repeats 7] [--batches 100]

Segment pairs of 128 tokens with next sentence; token masks are drawn anew for each epoch, exactly 15 % of every
sequence. Ours: from the memory-mapped shards to tensors, with its share of the time that the epoch's plan takes.
The reference: `DataCollatorForLanguageModeling` on the same rows; making its lists of ids is not timed.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch

from bertsmith.corpus.shards import Shards
from bertsmith.instances.batches import InstanceStream, MaskedBatch
from corpus import prepare_corpus
from record import argument_parser, environment, markdown_table, median_and_range, ratios, write_section
from reference import instance_streams, make_settings

BATCH_SIZES = (32, 64, 256)
OTHER_SETTINGS = (
    ["data.masking=whole_word"],
    ["data.masking=span"],
    ["data.sentence_task=sop"],
    ["data.instances=full_sentences", "data.sentence_task=none"],
)


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--batches", type=int, default=100, help="in a window of ours")
    options = parser.parse_args()
    torch.set_num_threads(1)
    shards = Shards.open(prepare_corpus())
    stream = training_stream(shards)
    plan_seconds = [seconds_of(partial(stream.plan, epoch)) for epoch in range(options.repeats)]
    tokens = int(stream.plan(0).sizes.sum())
    plan = statistics.median(plan_seconds)
    rows = [compare(stream, size, options, plan / tokens) for size in BATCH_SIZES]
    columns = ["batch", "ours, M tokens/s", "without the plan", "collator, M tokens/s", "ratio"]
    others = "; ".join(rate_with(shards, settings, options) for settings in OTHER_SETTINGS)
    text = f"""`python benchmarks/batches.py`; {environment(1)}.

From shards to packed, masked batches: segment pairs of 128 tokens, dynamic masks of exactly 15 % of each sequence;
enwiki, {tokens:,} tokens an epoch; one core. The plan of an epoch takes {plan:.2f} s ({min(plan_seconds):.2f} to
{max(plan_seconds):.2f}), {plan / tokens * 1e9:.0f} ns a token, which the first column includes. The collator of
transformers gets the same rows as lists. Medians of {options.repeats} interleaved windows (minimum to maximum).

{markdown_table(columns, rows)}

Ours with other settings, batches of 64, the plan included, in M tokens/s: {others}."""
    print(text)
    write_section("Batches", text)


def training_stream(shards: Shards, *assignments: str) -> InstanceStream:
    """Return the training instances of a run with these settings."""
    return instance_streams(shards, make_settings(shards, "data.sequence_length=128", *assignments))[0]


def seconds_of(function: Callable[[], object]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def compare(
    stream: InstanceStream, size: int, options: argparse.Namespace, plan_seconds_per_token: float
) -> list[str]:
    """Time ours and the collator alternately, and return the table's row."""
    from transformers import AutoTokenizer, DataCollatorForLanguageModeling

    tokenizer = AutoTokenizer.from_pretrained(prepare_corpus() / "tokenizer")
    collator = DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.15)
    ours, theirs = [], []
    for window in range(options.repeats):
        rate, batches = build_batches(stream, window * options.batches * size, size, options.batches)
        ours.append(rate)
        batches = batches[: max(1, options.batches // 20)]
        features = [unmasked_rows(batch) for batch in batches]
        seconds = seconds_of(partial(list, map(collator, features)))
        theirs.append(sum(batch.tokens for batch in batches) / seconds)
    with_plan = [1 / (1 / rate + plan_seconds_per_token) for rate in ours]
    ratio = f"{statistics.median(ratios(with_plan, theirs)):.0f} ×"
    return [str(size), *map(in_millions, (with_plan, ours, theirs)), ratio]


def rate_with(shards: Shards, assignments: list[str], options: argparse.Namespace) -> str:
    """Time ours with other settings, the plan included."""
    stream = training_stream(shards, *assignments)
    plan = seconds_of(lambda: stream.plan(0)) / int(stream.plan(0).sizes.sum())
    starts = [window * options.batches * 64 for window in range(options.repeats)]
    rates = [build_batches(stream, start, 64, options.batches)[0] for start in starts]
    name = ", ".join(assignment.removeprefix("data.") for assignment in assignments)
    return f"{name} {in_millions([1 / (1 / rate + plan) for rate in rates])}"


def build_batches(
    stream: InstanceStream, start: int, size: int, count: int
) -> tuple[float, list[MaskedBatch]]:
    """Build batches of consecutive instances. Return tokens per second, and the batches."""
    stream.plan(0)
    begin = time.perf_counter()
    batches = [stream.batch(0, start + i * size, start + (i + 1) * size) for i in range(count)]
    seconds = time.perf_counter() - begin
    return sum(batch.tokens for batch in batches) / seconds, batches


def unmasked_rows(batch: MaskedBatch) -> list[dict[str, Any]]:
    """Return the sequences before masking, as a data set of the reference gives them."""
    tokens = batch.packed.tokens.clone()
    tokens[batch.rows] = batch.labels
    splits = batch.packed.cu_seqlens[1:-1].numpy()
    arrays = (np.split(x.numpy(), splits) for x in (tokens, batch.packed.segments))
    return [
        {"input_ids": ids.tolist(), "token_type_ids": segments.tolist()}
        for ids, segments in zip(*arrays, strict=True)
    ]


def in_millions(rates: list[float]) -> str:
    """Format rates in millions."""
    return median_and_range([rate / 1e6 for rate in rates])


if __name__ == "__main__":
    main()
