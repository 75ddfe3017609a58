"""Measure `bertsmith data prepare`: speed beside `datasets.map`, memory, and kills.

    python benchmarks/preparing.py [speed|memory|kills …] [--repeats 5]

speed: `prepare` with two workers, from the compressed file to shards on disk, against `map` with the reference
    tokenizer (batched; two processes or the library's threads, whichever is faster) on lines that are already
    loaded; each in a process of its own, alternately; and the whole command. The ids are compared once.
memory: the peak of the command and its workers over 40 MB and 385 MB of text, and under --max-ram 512MB.
kills: ten SIGKILLs at random moments; then the same command again, and its shards compared byte for byte.
"""

from __future__ import annotations

import hashlib
import json
import random
import shutil
import statistics
import subprocess
import sys
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import zstandard

import bertsmith as bs
from corpus import FILES, prepare_corpus
from record import (
    DATA,
    WORK,
    argument_parser,
    environment,
    load_records,
    median_and_range,
    ratios,
    run_once,
    write_section,
)

PLAIN_TEXT = WORK / "preparing-enwiki.txt"
OUT = WORK / "preparing-out"

# arguments: text file, tokenizer, number of processes, cache folder, and a file for the ids
MAP_SCRIPT = """
import json, os, sys, time
file, tokenizer, processes, cache = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
os.environ["TOKENIZERS_PARALLELISM"] = "false" if processes > 1 else "true"
import datasets
from transformers import AutoTokenizer
datasets.disable_progress_bars()
datasets.disable_caching()
tokenizer = AutoTokenizer.from_pretrained(tokenizer)
tokenizer.model_max_length = 10**9
lines = datasets.load_dataset("text", data_files=file, split="train", cache_dir=cache)
def encode(rows):
    return tokenizer(
        rows["text"], add_special_tokens=False, return_attention_mask=False, return_token_type_ids=False
    )
start = time.perf_counter()
encoded = lines.map(encode, batched=True, batch_size=1000, num_proc=processes if processes > 1 else None,
                    remove_columns=["text"])
seconds = time.perf_counter() - start
if len(sys.argv) > 5:
    import numpy as np
    column = encoded.data.column("input_ids")
    np.concatenate([c.values.to_numpy() for c in column.chunks]).astype(np.uint16).tofile(sys.argv[5])
print(json.dumps(seconds))
"""

PREPARE_SCRIPT = """
import sys, time
import bertsmith as bs
tokenizer = bs.Tokenizer.load(sys.argv[2])
start = time.perf_counter()
bs.prepare([sys.argv[1]], tokenizer, sys.argv[3], workers=2)
print(time.perf_counter() - start)
"""


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("parts", nargs="*", default=["speed", "memory", "kills"])
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    tokenizer = prepare_corpus() / "tokenizer"
    if not PLAIN_TEXT.exists():
        with open(FILES[0], "rb") as compressed, PLAIN_TEXT.open("wb") as plain:
            zstandard.ZstdDecompressor().copy_stream(compressed, plain)
    if "speed" in options.parts:
        speed(tokenizer, options.repeats)
    if "memory" in options.parts:
        run_once("preparing", "memory", partial(memory, tokenizer))
    if "kills" in options.parts:
        kills(tokenizer)
    report(load_records("preparing"))


def command(tokenizer: Path, files: list[str] = FILES, *options: str) -> list[str]:
    """Return the command line of `prepare`."""
    verb = [sys.executable, "-m", "bertsmith", "data", "prepare", *files]
    return [*verb, "--tokenizer", str(tokenizer), "--output-dir", str(OUT), *options]


def run(line: list[str]) -> tuple[float, int]:
    """Run a command that writes OUT. Return its seconds, and the peak memory of its processes in bytes."""
    shutil.rmtree(OUT, ignore_errors=True)
    start = time.perf_counter()
    child = subprocess.Popen(line, stdout=subprocess.DEVNULL)
    peak = 0
    while child.poll() is None:
        peak = max(peak, memory_bytes(child.pid))
        time.sleep(0.05)
    if child.returncode:
        raise RuntimeError(f"{line} ended with {child.returncode}")
    return time.perf_counter() - start, peak


def memory_bytes(pid: int) -> int:
    """Return the proportional set size (PSS) of a process and its descendants."""
    total = 0
    with suppress(OSError):  # processes end meanwhile
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        total = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
        for children in Path(f"/proc/{pid}/task").glob("*/children"):
            total += sum(memory_bytes(int(child)) for child in children.read_text().split())
    return total


def map_seconds(tokenizer: Path, processes: int, ids_file: Path | None = None) -> float:
    """Return the seconds of `datasets.map`, and write the ids to a file if one is given."""
    arguments = [PLAIN_TEXT, tokenizer, processes, WORK / "preparing-datasets"]
    arguments += [ids_file] if ids_file else []
    line = [sys.executable, "-c", MAP_SCRIPT, *map(str, arguments)]
    output = subprocess.run(line, stdout=subprocess.PIPE, check=True).stdout
    return float(json.loads(output.splitlines()[-1]))


def prepare_seconds(tokenizer: Path) -> float:
    """Return the seconds of a call of `prepare`."""
    shutil.rmtree(OUT, ignore_errors=True)
    line = [sys.executable, "-c", PREPARE_SCRIPT, FILES[0], str(tokenizer), str(OUT)]
    return float(subprocess.run(line, stdout=subprocess.PIPE, check=True).stdout)


def speed(tokenizer: Path, repeats: int) -> None:
    """Time the command, the call, and `map` alternately."""
    settings = run_once(
        "preparing", "map settings", lambda: {str(n): map_seconds(tokenizer, n) for n in (1, 2)}
    )
    processes = min((1, 2), key=lambda n: settings[str(n)])
    for i in range(repeats):
        run_once("preparing", f"ours {i}", lambda: run(command(tokenizer, FILES, "--workers", "2")))
        run_once("preparing", f"call {i}", lambda: prepare_seconds(tokenizer))
        run_once("preparing", f"map {i}", lambda: map_seconds(tokenizer, processes))
    run_once("preparing", "same ids", lambda: compare_ids(tokenizer, processes))


def compare_ids(tokenizer: Path, processes: int) -> dict[str, int]:
    """Return the number of ids, and how many differ from the reference's."""
    file = WORK / "preparing-ids.bin"
    map_seconds(tokenizer, processes, file)
    expected = np.fromfile(file, dtype=np.uint16)
    file.unlink()
    run(command(tokenizer))
    shards = bs.Shards.open(OUT)
    ids = shards.take(np.arange(shards.tokens))
    if len(ids) != len(expected):
        return {"ids": len(expected), "different": abs(len(ids) - len(expected))}
    return {"ids": len(ids), "different": int((ids != expected).sum())}


def memory(tokenizer: Path) -> dict[str, int]:
    """Return peaks in bytes: of 40 MB, of 385 MB, and of the latter under --max-ram 512MB."""
    text = PLAIN_TEXT.read_bytes()
    for name in ("books", "zhwiki"):
        compressed = (DATA / f"corpora/{name}.txt.zst").read_bytes()
        text += zstandard.ZstdDecompressor().decompress(compressed, 1 << 27)
    text += PLAIN_TEXT.read_bytes()
    peaks, file = {}, WORK / "preparing-part.txt"
    for name, size, options in (
        ("40 MB", 40_000_000, ("--workers", "2")),
        ("385 MB", 385_000_000, ("--workers", "2")),
        ("385 MB, --max-ram 512MB", 385_000_000, ("--max-ram", "512MB")),
    ):
        file.write_bytes(text[: text.rfind(b"\n", 0, size) + 1])
        peaks[name] = run(command(tokenizer, [str(file)], *options))[1]
    file.unlink()
    return peaks


def file_hashes(folder: Path) -> dict[str, str]:
    files = sorted(file for file in folder.rglob("*") if file.is_file())
    return {str(f.relative_to(folder)): hashlib.sha256(f.read_bytes()).hexdigest() for f in files}


def kills(tokenizer: Path) -> None:
    """Kill the command at random moments of its usual duration, and run it again."""
    duration, expected = run_once(
        "preparing", "straight", lambda: (run(command(tokenizer))[0], file_hashes(OUT))
    )
    generator = random.Random(0)
    for i in range(10):
        moment = generator.uniform(0.05, 1.0) * duration
        run_once("preparing", f"kill {i}", partial(kill_and_repeat, tokenizer, moment, expected))


def kill_and_repeat(tokenizer: Path, moment: float, expected: dict[str, str]) -> dict[str, Any]:
    """Return True for equal bytes ("same"), and the number of shards that the killed command left ("kept")."""
    shutil.rmtree(OUT, ignore_errors=True)
    child = subprocess.Popen(command(tokenizer), stdout=subprocess.DEVNULL)
    time.sleep(moment)
    child.kill()
    if child.wait() == 0 or OUT.exists():  # it had finished
        return {"same": file_hashes(OUT) == expected, "moment": moment, "kept": "all"}
    num_shards = len(list((OUT.parent / f".{OUT.name}.unfinished").glob("shard-*.arrow")))
    subprocess.run(command(tokenizer), stdout=subprocess.DEVNULL, check=True)
    return {"same": file_hashes(OUT) == expected, "moment": moment, "kept": num_shards}


def report(records: dict[str, Any]) -> None:
    """Write the section of RESULTS.md."""
    commands, calls, maps = (
        [value for key, value in records.items() if key.rstrip("0123456789") == f"{prefix} "]
        for prefix in ("ours", "call", "map")
    )
    parts = [f"`python benchmarks/preparing.py`, {environment(2)}."]
    if commands and calls and maps:
        size = PLAIN_TEXT.stat().st_size / 1e6
        call, other = statistics.median(calls), statistics.median(maps)
        settings = records["map settings"]
        parts.append(
            f"enwiki ({size:.0f} MB), a vocabulary of 30,522. `prepare`, two workers, from the compressed "
            f"file: median {call:.1f} s, {size / call:.1f} MB/s (the whole command "
            f"{statistics.median(seconds for seconds, _ in commands):.1f} s, peak "
            f"{max(peak for _, peak in commands) / 2**20:.0f} MiB, of which 128 are zstd's window). `map`, from "
            f"lines: median {other:.1f} s, {size / other:.1f} MB/s (one process with the library's threads took "
            f"{settings['1']:.0f} s, two processes {settings['2']:.0f} s; the faster was kept). Ratio, "
            f"{len(maps)} interleaved pairs: median {median_and_range(ratios(maps, calls))}."
        )
    if same := records.get("same ids"):
        parts.append(f"Ids: {same['ids']:,}, different from the reference's: {same['different']:,}.")
    if peaks := records.get("memory"):
        parts.append(
            "Peak memory of the command and its two worker processes together: "
            + "; ".join(f"{peak / 2**20:.0f} MiB for {name}" for name, peak in peaks.items())
            + "."
        )
    if chains := [value for key, value in records.items() if key.startswith("kill ")]:
        parts.append(
            f"SIGKILL at {len(chains)} random moments, then the same command again: shards equal to the "
            f"uninterrupted ones to the byte {sum(chain['same'] for chain in chains)} of {len(chains)} times "
            f"(finished shards reused: {', '.join(str(chain['kept']) for chain in chains)})."
        )
    write_section("Corpus preparation", "\n\n".join(parts))


if __name__ == "__main__":
    main()
