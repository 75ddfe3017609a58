"""A process that encodes portions: Arrow batches of documents come in on stdin, batches of rows go out on stdout.

    python -P -m bertsmith.corpus.worker_process TOKENIZER LANGUAGE

Started by `workers`, not by people. Not the multiprocessing module: that one runs the caller's script again, which
then needs an `if __name__ == "__main__"`, and sends pickles.
"""

from __future__ import annotations

import json
import signal
import sys
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pyarrow as pa

from bertsmith import hardware
from bertsmith.corpus.encode import PortionEncoder
from bertsmith.corpus.shards import Rows, batch_of, rows_of
from bertsmith.io.files import Document
from bertsmith.tokenizer.tokenizer import Tokenizer

SCHEMA = pa.schema({"text": pa.large_string(), "place": pa.string(), "head": pa.string()})


def batch_of_documents(documents: Any) -> pa.RecordBatch:
    """What goes in: a document a row."""
    return pa.record_batch(
        [
            pa.array([document.text for document in documents], pa.large_string()),
            pa.array([document.place for document in documents], pa.string()),
            pa.array([document.head for document in documents], pa.string()),
        ],
        schema=SCHEMA,
    )


def result_of(batch: pa.RecordBatch, metadata: Any) -> tuple[Rows, Counter[str]]:
    """What comes out: rows, and beside them their heads and the counts."""
    heads = {int(row): head for row, head in json.loads(metadata[b"heads"]).items()}
    return replace(rows_of(batch), heads=heads), Counter(json.loads(metadata[b"counts"]))


def main() -> None:
    """Encode until stdin ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent ends us
    hardware.return_freed_memory()
    encoder = PortionEncoder(Tokenizer.load(sys.argv[1]), sys.argv[2])
    # A batch is written when its portion is done, so a parent that is gone is noticed at the next one.
    with suppress(BrokenPipeError), pa.ipc.open_stream(sys.stdin.buffer) as source:
        writer = None
        for batch in source:
            rows, counts = encoder.encode([Document(**row) for row in batch.to_pylist()])
            result = batch_of([rows])
            writer = writer or pa.ipc.new_stream(sys.stdout.buffer, result.schema)
            writer.write_batch(
                result, custom_metadata={"counts": json.dumps(counts), "heads": json.dumps(rows.heads)}
            )
            sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
