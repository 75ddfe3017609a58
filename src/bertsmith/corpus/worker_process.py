"""A process that encodes portions: it reads Arrow batches from stdin and writes encoded ones to stdout.

    python -P -m bertsmith.corpus.worker_process TOKENIZER LANGUAGE

`workers` starts it. It does not use the multiprocessing module, which runs the caller's script again (so that the
script needs `if __name__ == "__main__"`) and sends pickles.
"""

from __future__ import annotations

import json
import signal
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

import pyarrow as pa

from bertsmith import hardware
from bertsmith.corpus.encode import PortionEncoder
from bertsmith.corpus.shards import EncodedDocuments, from_record_batch, to_record_batch
from bertsmith.io.documents import Document
from bertsmith.tokenizer.tokenizer import Tokenizer

# The fields of Document.
SCHEMA = pa.schema(
    {"text": pa.large_string(), "location": pa.string(), "part": pa.int64(), "head": pa.string()}
)


def documents_to_batch(documents: Sequence[Document]) -> pa.RecordBatch:
    """Return documents as an Arrow batch, one row per document."""
    columns = [
        pa.array([getattr(document, field.name) for document in documents], field.type) for field in SCHEMA
    ]
    return pa.record_batch(columns, schema=SCHEMA)


def result_from_batch(
    batch: pa.RecordBatch, metadata: Mapping[bytes, bytes]
) -> tuple[EncodedDocuments, Counter[str]]:
    """Return the encoded documents and counts of an Arrow batch and its metadata."""
    continuations = {int(row): location for row, location in json.loads(metadata[b"continuations"]).items()}
    documents = replace(from_record_batch(batch), continuations=continuations)
    return documents, Counter(json.loads(metadata[b"counts"]))


def main() -> None:
    """Encode portions until stdin ends."""
    # Ctrl-C reaches the whole group; the parent ends this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    hardware.return_freed_memory()
    encoder = PortionEncoder(Tokenizer.load(sys.argv[1]), sys.argv[2])
    # A batch is written when its portion is done, so the next write notices that the parent has ended.
    with suppress(BrokenPipeError), pa.ipc.open_stream(sys.stdin.buffer) as source:
        writer = None
        for batch in source:
            columns = [column.to_pylist() for column in batch.columns]
            documents, counts = encoder.encode([Document(*row) for row in zip(*columns, strict=True)])
            result = to_record_batch([documents])
            metadata = {"counts": json.dumps(counts), "continuations": json.dumps(documents.continuations)}
            writer = writer or pa.ipc.new_stream(sys.stdout.buffer, result.schema)
            writer.write_batch(result, custom_metadata=metadata)
            sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
