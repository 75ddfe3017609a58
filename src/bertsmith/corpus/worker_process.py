"""A process that encodes portions: it reads Arrow batches from stdin and writes encoded ones to stdout.

    python -P -m bertsmith.corpus.worker_process TOKENIZER LANGUAGE

`workers` starts it. It does not use the multiprocessing module, which runs the caller's script again (so that the
script needs `if __name__ == "__main__"`) and sends pickles.
"""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress

import pyarrow as pa

from bertsmith import hardware
from bertsmith.corpus.encode import PortionEncoder
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
            encoded, counts = encoder.encode([Document(*row) for row in zip(*columns, strict=True)])
            writer = writer or pa.ipc.new_stream(sys.stdout.buffer, encoded.schema)
            writer.write_batch(encoded, custom_metadata={"counts": json.dumps(counts)})
            sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
