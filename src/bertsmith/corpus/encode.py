"""Encode portions of a corpus in parallel and in order, with local processes or on a Ray cluster.

Each portion goes through one `PortionEncoder`, a pure function from documents to token ids, so the results are the
same bytes for any engine and any number of workers.
"""

from __future__ import annotations

import json
import logging
import signal
import socket
import subprocess
import sys
import tempfile
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from itertools import chain, islice
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from bertsmith import hardware
from bertsmith.corpus.near_duplicates import SIGNATURE_BYTES, minhash_signatures
from bertsmith.corpus.sentence_splitter import split_sentences
from bertsmith.corpus.shards import batches, document_hash, id_dtype, list_array
from bertsmith.errors import InputError, MachineError, option
from bertsmith.io.documents import Document
from bertsmith.tokenizer.fast_words import text_encoder
from bertsmith.tokenizer.tokenizer import Tokenizer

EncodedPortion = tuple[pa.RecordBatch, Counter[str]]
"""Encoded documents and counts.

Of a document that is several rows, `head` is the location of its start in each row but the first; else it is null.
The other columns are those of shards, and `signature` for near-duplicates.
"""
_BATCH_CHARACTERS = 1 << 20  # encoded at once: it takes a dozen arrays as long as the text


class PortionEncoder:
    """Encode documents of one language; the result depends on the documents alone.

    It caches words, so only one thread may use it at a time.
    """

    def __init__(self, tokenizer: Tokenizer, language: str) -> None:
        self._tokenizer, self._language = tokenizer, language
        self._encode_texts = text_encoder(tokenizer)

    def encode(self, documents: Sequence[Document]) -> EncodedPortion:
        """Return the encoded documents and counts; documents and sentences without a token are dropped."""
        sentences = [split_sentences(document.text, self._language) for document in documents]
        if self._tokenizer.kind == "byte_level_bpe":  # Its pieces include the space before a word.
            sentences = [[*texts[:1], *(f" {sentence}" for sentence in texts[1:])] for texts in sentences]
        ids, sentence_lengths = self._encode_sentences(list(chain.from_iterable(sentences)))
        document_index = np.repeat(np.arange(len(documents)), [len(texts) for texts in sentences])
        is_nonempty = sentence_lengths > 0
        sentence_lengths, document_index = sentence_lengths[is_nonempty], document_index[is_nonempty]
        sentence_counts = np.bincount(document_index, minlength=len(documents))
        lengths = np.zeros(len(documents), dtype=np.int64)
        np.add.at(lengths, document_index, sentence_lengths)
        # Sentence ends are relative to the start of their document.
        ends = np.cumsum(sentence_lengths) - (np.cumsum(lengths) - lengths)[document_index]
        has_tokens = lengths > 0
        encoded = [document for document, keep in zip(documents, has_tokens, strict=True) if keep]
        texts = [document.text.encode("utf-8") for document in documents]
        signatures = minhash_signatures([text for text, keep in zip(texts, has_tokens, strict=True) if keep])
        hashes = [document_hash(part) for part in np.split(ids, np.cumsum(lengths[has_tokens]))[:-1]]
        batch = pa.record_batch(
            {
                "ids": list_array(lengths[has_tokens], ids),
                "sentence_ends": list_array(sentence_counts[has_tokens], ends.astype(np.int32)),
                "place": pa.array([document.location for document in encoded], pa.string()),
                "head": pa.array([document.head for document in encoded], pa.string()),
                "hash": pa.array(hashes, pa.uint64()),
                "signature": pa.FixedSizeListArray.from_arrays(signatures.ravel(), SIGNATURE_BYTES),
            }
        )
        return batch, Counter(
            documents=int(has_tokens.sum()),
            sentences=len(sentence_lengths),
            tokens=len(ids),
            unknown=int(np.count_nonzero(ids == self._tokenizer.unk_token_id)),
            characters=sum(len(document.text) for document in documents),
            bytes=sum(map(len, texts)),
            empty_documents_dropped=int((~has_tokens).sum()),
            empty_sentences_dropped=len(is_nonempty) - len(sentence_lengths),
        )

    def _encode_sentences(self, sentences: Sequence[str]) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """Return the concatenated ids of all sentences, [N], and the sentence lengths, [S]."""
        dtype = id_dtype(self._tokenizer.vocab_size)
        ids, lengths = [np.empty(0, dtype=dtype)], [np.empty(0, dtype=np.int64)]
        for batch in batches(sentences, len, _BATCH_CHARACTERS):
            batch_ids, batch_lengths = self._encode_texts(batch)
            ids.append(batch_ids.astype(dtype))
            lengths.append(batch_lengths)
        return np.concatenate(ids), np.concatenate(lengths)


Portion = Sequence[Document]

# The fields of Document.
_SCHEMA = pa.schema(
    {"text": pa.large_string(), "location": pa.string(), "part": pa.int64(), "head": pa.string()}
)

_MIN_PORTIONS = 4  # fewer are encoded before a process has started


def encode_locally(
    portions: Iterable[Portion], tokenizer: Tokenizer, language: str, workers: int
) -> Iterator[EncodedPortion]:
    """Encode with `workers` processes while this one reads; at most `workers` + 1 portions are in memory.

    One worker, or few portions, run in this process.

    Raises:
        MachineError: A process ended early.
    """
    portions = iter(portions)
    first = list(islice(portions, _MIN_PORTIONS)) if workers > 1 else []
    portions = chain(first, portions)
    if len(first) < _MIN_PORTIONS:
        yield from map(PortionEncoder(tokenizer, language).encode, portions)
        return
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        tokenizer.save(folder)
        idle: SimpleQueue[_WorkerProcess] = SimpleQueue()
        for _ in range(workers):
            process = _WorkerProcess(folder, language)
            stack.callback(process.close)
            idle.put(process)

        def encode(portion: Portion) -> EncodedPortion:
            process = idle.get()
            try:
                return process.encode(portion)
            finally:
                idle.put(process)

        # Each thread only waits for the pipe of its process.
        pool = stack.enter_context(ThreadPoolExecutor(workers))
        stack.callback(pool.shutdown, cancel_futures=True)
        running: deque[Future[EncodedPortion]] = deque()
        for portion in portions:
            running.append(pool.submit(encode, portion))
            if len(running) > workers:
                yield running.popleft().result()
        while running:
            yield running.popleft().result()


class _WorkerProcess:
    """A process that runs `main` of this module, and its two pipes.

    It does not use the multiprocessing module, which runs the caller's script again (so that the script needs
    `if __name__ == "__main__"`) and sends pickles.
    """

    def __init__(self, tokenizer: Path, language: str) -> None:
        # One thread per process is enough; freed memory goes back to the system.
        environment = {
            "TOKENIZERS_PARALLELISM": "false",
            "ARROW_DEFAULT_MEMORY_POOL": "system",
            "MALLOC_ARENA_MAX": "1",
        }
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", __name__, str(tokenizer), language],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=hardware.subprocess_environment(**environment),
        )
        self._writer: Any = None
        self._reader: Any = None

    def encode(self, portion: Portion) -> EncodedPortion:
        """Send a portion and wait for the result."""
        try:
            if self._writer is None:
                self._writer = pa.ipc.new_stream(self._process.stdin, _SCHEMA)
            self._writer.write_batch(pa.RecordBatch.from_pylist(list(map(vars, portion)), schema=_SCHEMA))
            self._process.stdin.flush()  # type: ignore[union-attr]
            if self._reader is None:
                self._reader = pa.ipc.open_stream(self._process.stdout, memory_pool=pa.system_memory_pool())
            batch, metadata = self._reader.read_next_batch_with_custom_metadata()
            return batch, Counter(json.loads(metadata[b"counts"]))
        except (OSError, StopIteration, pa.ArrowException):
            code = self._process.wait()
            reason = "killed, perhaps since memory ran out" if code < 0 else "its error is above"
            raise MachineError(
                "worker_ended",
                f"a worker process of the preparation ended with {code} ({reason})",
                hint=f"start again, with {option('workers', 1)} or a smaller {option('max_ram')}; "
                "the preparation resumes after the finished shards",
            ) from None

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            with suppress(OSError):
                if pipe:
                    pipe.close()


def encode_with_ray(
    portions: Iterable[Portion], tokenizer: Tokenizer, language: str, workers: int | None, address: str | None
) -> Iterator[EncodedPortion]:
    """Encode with actors on a Ray cluster; Ray restarts a lost actor and repeats its portions.

    Args:
        portions: Portions of documents.
        tokenizer: The tokenizer.
        language: The language of the documents.
        workers: The number of actors; None: one per CPU of the cluster.
        address: The address of the cluster; None: the cluster that this process is connected to, else a local one
            that runs during the call.

    Raises:
        InputError: Ray is not installed.
        MachineError: No cluster answers.
    """
    ray: Any
    try:
        import ray
    except ImportError:
        hint = "pip install 'bertsmith[ray]'"
        raise InputError("ray_missing", "the engine ray needs Ray", argument="engine", hint=hint) from None

    connect = not ray.is_initialized()
    if connect:
        try:
            _check_reachable(address)
            # Ray lets actors import from the current folder, where a downloaded corpus may bring a json.py, unless
            # they have another working folder.
            with tempfile.TemporaryDirectory() as empty:
                ray.init(
                    address=address,
                    include_dashboard=None if address else False,
                    log_to_driver=False,
                    logging_level=logging.WARNING,
                    runtime_env={"working_dir": empty},
                )
        except (OSError, RuntimeError, ValueError) as error:
            message = f"there is no Ray cluster at {address}: {error}"
            hint = "look at `ray status`"
            raise MachineError("ray_unreachable", message, argument="address", hint=hint) from None
    try:
        workers = workers or max(1, int(ray.cluster_resources().get("CPU", 1)))
        actor_class: Any = ray.remote(num_cpus=1, max_restarts=-1, max_task_retries=-1)(PortionEncoder)
        shared_tokenizer = ray.put(tokenizer)
        actors: list[Any] = [actor_class.remote(shared_tokenizer, language) for _ in range(workers)]
        running: deque[Any] = deque()
        for index, portion in enumerate(portions):
            running.append(actors[index % workers].encode.remote(portion))
            if len(running) > 2 * workers:
                yield ray.get(running.popleft())
        while running:
            yield ray.get(running.popleft())
    finally:
        if connect:
            ray.shutdown()


def _check_reachable(address: str | None) -> None:
    """Raise OSError if nothing listens at HOST:PORT; Ray itself would try for a quarter of an hour."""
    host, colon, port = (address or "").removeprefix("ray://").rpartition(":")
    if colon and port.isdigit():
        socket.create_connection((host, int(port)), timeout=10).close()


def main() -> None:
    """Encode portions: read Arrow batches of documents from stdin and write encoded ones to stdout."""
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
