"""Text to shards: how fast beside `datasets.map` with the reference tokenizer, in how much memory, killed or not.

    python benchmarks/preparing.py [speed|memory|kills|workers …] [--repeats 5]

speed: the call of `prepare` with two workers, from the compressed file to shards on the disk, against the call of
    `map` (batched, two processes or the library's own threads, whichever is faster) on lines that are already
    loaded; both in processes of their own, in turn; the whole command, start-up included, beside them. The ids
    are compared once.
memory: the peak of the command and its workers over 40 MB and 385 MB of text, and under --max-ram 512MB.
kills: ten SIGKILLs at random moments; the shards that the same command then makes, compared byte for byte.
workers: the same bytes with 1, 2 and 4.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import shutil
import signal
import statistics
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import zstandard

from corpus import FILES, prepare_corpus
from record import DATA, WORK, environment, load_records, run_once, write_section

PLAIN = WORK / "preparing-enwiki.txt"
OUT = WORK / "preparing-out"
SEED = 0

THEIRS = """
import json, os, sys, time
file, tokenizer, processes, keep = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
os.environ["TOKENIZERS_PARALLELISM"] = "false" if processes > 1 else "true"
import datasets
from transformers import AutoTokenizer
datasets.disable_progress_bars()
datasets.disable_caching()
tokenizer = AutoTokenizer.from_pretrained(tokenizer)
tokenizer.model_max_length = 10**9
lines = datasets.load_dataset("text", data_files=file, split="train", cache_dir=keep)
def encode(rows):
    return tokenizer(
        rows["text"], add_special_tokens=False, return_attention_mask=False, return_token_type_ids=False
    )
begin = time.perf_counter()
done = lines.map(encode, batched=True, batch_size=1000, num_proc=processes if processes > 1 else None,
                 remove_columns=["text"])
seconds = time.perf_counter() - begin
if len(sys.argv) > 5:
    import numpy as np
    done.with_format("arrow")
    column = done.data.column("input_ids")
    np.concatenate([c.values.to_numpy() for c in column.chunks]).astype(np.uint16).tofile(sys.argv[5])
print(json.dumps(seconds))
"""


OURS = """
import sys, time
import bertsmith as bs
tokenizer = bs.Tokenizer.load(sys.argv[2])
begin = time.perf_counter()
bs.prepare([sys.argv[1]], tokenizer, sys.argv[3], workers=2)
print(time.perf_counter() - begin)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", default=["speed", "memory", "kills", "workers"])
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    tokenizer = prepare_corpus() / "tokenizer"
    if not PLAIN.exists():
        with open(FILES[0], "rb") as packed, PLAIN.open("wb") as plain:
            zstandard.ZstdDecompressor().copy_stream(packed, plain)
    if "speed" in options.parts:
        speed(tokenizer, options.repeats)
    if "memory" in options.parts:
        run_once("preparing", "memory", lambda: memory(tokenizer))
    if "workers" in options.parts:
        run_once("preparing", "workers", lambda: workers(tokenizer))
    if "kills" in options.parts:
        kills(tokenizer)
    report(load_records("preparing"))


def command(files: list[str], tokenizer: Path, *options: str) -> list[str]:
    verb = [sys.executable, "-m", "bertsmith", "data", "prepare", *files, "--tokenizer", str(tokenizer)]
    return [*verb, "--out", str(OUT), *options]


def run(line: list[str]) -> tuple[float, int]:
    """Seconds of a command, and the peak of memory (PSS, bytes) of it and its workers together."""
    shutil.rmtree(OUT, ignore_errors=True)
    begin = time.perf_counter()
    child = subprocess.Popen(line, stdout=subprocess.DEVNULL)
    peak = 0
    while child.poll() is None:
        peak = max(peak, sum(map(proportional, family(child.pid))))
        time.sleep(0.05)
    if child.returncode:
        raise RuntimeError(f"{line} ended with {child.returncode}")
    return time.perf_counter() - begin, peak


def family(pid: int) -> list[int]:
    """A process and what it started."""
    found = [pid]
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            for child in task.read_text().split():
                found += family(int(child))
    return found


def proportional(pid: int) -> int:
    """Memory of a process; what is shared counts by share."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return 0


def theirs(tokenizer: Path, processes: int, ids: Path | None = None) -> float:
    kept = WORK / "preparing-datasets"
    line = [sys.executable, "-c", THEIRS, str(PLAIN), str(tokenizer), str(processes), str(kept)]
    done = subprocess.run([*line, *([str(ids)] if ids else [])], stdout=subprocess.PIPE, check=True)
    return float(json.loads(done.stdout.splitlines()[-1]))


def ours(tokenizer: Path) -> float:
    shutil.rmtree(OUT, ignore_errors=True)
    line = [sys.executable, "-c", OURS, FILES[0], str(tokenizer), str(OUT)]
    return float(subprocess.run(line, stdout=subprocess.PIPE, check=True).stdout)


def speed(tokenizer: Path, repeats: int) -> None:
    """Windows in turn; each is kept when done."""
    best = run_once("preparing", "map settings", lambda: {n: theirs(tokenizer, n) for n in (1, 2)})
    processes = min((1, 2), key=lambda n: best[n] if n in best else best[str(n)])
    for number in range(repeats):
        run_once("preparing", f"ours {number}", lambda: run(command(FILES, tokenizer, "--workers", "2")))
        run_once("preparing", f"call {number}", lambda: ours(tokenizer))
        run_once("preparing", f"map {number}", lambda: theirs(tokenizer, processes))
    run_once("preparing", "same ids", lambda: same_ids(tokenizer, processes))


def same_ids(tokenizer: Path, processes: int) -> dict[str, int]:
    """How many ids, and how many differ."""
    import numpy as np

    import bertsmith as bs

    file = WORK / "preparing-ids.bin"
    theirs(tokenizer, processes, file)
    expected = np.fromfile(file, dtype=np.uint16)
    run(command(FILES, tokenizer))
    shards = bs.Shards.open(OUT)
    ours = shards.take(np.arange(shards.tokens))
    file.unlink()
    if len(ours) != len(expected):
        return {"ids": len(expected), "different": abs(len(ours) - len(expected))}
    return {"ids": len(ours), "different": int((ours != expected).sum())}


def memory(tokenizer: Path) -> dict[str, int]:
    """Peaks in bytes: 40 MB, 385 MB, and the latter under --max-ram 512MB."""
    text = PLAIN.read_bytes()
    for name in ("books", "zhwiki"):
        text += zstandard.ZstdDecompressor().decompress(
            (DATA / f"corpora/{name}.txt.zst").read_bytes(), 1 << 27
        )
    text += PLAIN.read_bytes()
    small, large = WORK / "preparing-40.txt", WORK / "preparing-385.txt"
    small.write_bytes(text[: text.rfind(b"\n", 0, 40_000_000) + 1])
    large.write_bytes(text[: text.rfind(b"\n", 0, 385_000_000) + 1])
    try:
        return {
            "40 MB": run(command([str(small)], tokenizer, "--workers", "2"))[1],
            "385 MB": run(command([str(large)], tokenizer, "--workers", "2"))[1],
            "385 MB, --max-ram 512MB": run(command([str(large)], tokenizer, "--max-ram", "512MB"))[1],
        }
    finally:
        small.unlink()
        large.unlink()


def bytes_of(folder: Path) -> dict[str, str]:
    files = sorted(file for file in folder.rglob("*") if file.is_file())
    return {str(f.relative_to(folder)): hashlib.sha256(f.read_bytes()).hexdigest() for f in files}


def workers(tokenizer: Path) -> dict[str, bool]:
    found = []
    for number in (1, 2, 4):
        run(command(FILES, tokenizer, "--workers", str(number)))
        found.append(bytes_of(OUT))
    return {"same": found[0] == found[1] == found[2]}


def kills(tokenizer: Path) -> None:
    """Each chain: a kill at a random moment of the time that the command takes, then the command again."""
    expected = run_once("preparing", "straight", lambda: (run(command(FILES, tokenizer))[0], bytes_of(OUT)))
    draw = random.Random(SEED)
    for number in range(10):
        moment = draw.uniform(0.05, 1.0) * expected[0]
        run_once("preparing", f"kill {number}", lambda: killed(tokenizer, moment, expected[1]))  # noqa: B023


def killed(tokenizer: Path, moment: float, expected: dict[str, str]) -> dict[str, Any]:
    shutil.rmtree(OUT, ignore_errors=True)
    child = subprocess.Popen(command(FILES, tokenizer), stdout=subprocess.DEVNULL)
    time.sleep(moment)
    child.send_signal(signal.SIGKILL)
    if child.wait() == 0 or OUT.exists():  # killed on its way out counts as finished
        return {"same": bytes_of(OUT) == expected, "moment": moment, "kept": "all"}
    beside = OUT.parent / f".{OUT.name}.unfinished"
    kept = len(list(beside.glob("shard-*.arrow"))) if beside.exists() else 0
    subprocess.run(command(FILES, tokenizer), stdout=subprocess.DEVNULL, check=True)
    return {"same": bytes_of(OUT) == expected, "moment": moment, "kept": kept}


def report(found: dict[str, Any]) -> None:
    parts = [f"`python benchmarks/preparing.py`, {environment(2)}."]
    ours = [value for key, value in found.items() if key.startswith("ours ")]
    maps = [value for key, value in found.items() if key.startswith("map ") and key != "map settings"]
    if ours and maps:
        size = PLAIN.stat().st_size / 1e6
        calls = [value for key, value in found.items() if key.startswith("call ")]
        own, other = statistics.median(calls), statistics.median(maps)
        whole = statistics.median(a[0] for a in ours)
        ratios = sorted(b / a for a, b in zip(calls, maps, strict=True))
        settings = found["map settings"]
        parts.append(
            f"enwiki ({size:.0f} MB), a vocabulary of 30,522. `prepare`, two workers, from the compressed "
            f"file: median {own:.1f} s, {size / own:.1f} MB/s (the whole command {whole:.1f} s, peak "
            f"{max(a[1] for a in ours) / 2**20:.0f} MiB, of which 128 are zstd's window). `map`, from lines: "
            f"median {other:.1f} s, {size / other:.1f} MB/s (one process with the library's threads took "
            f"{settings['1']:.0f} s, two processes {settings['2']:.0f} s; the faster was kept). Ratio, "
            f"{len(ratios)} pairs in turn: median {statistics.median(ratios):.2f} "
            f"({ratios[0]:.2f} to {ratios[-1]:.2f})."
        )
    if same := found.get("same ids"):
        parts.append(f"Ids: {same['ids']:,}, different from the reference's: {same['different']:,}.")
    if peaks := found.get("memory"):
        parts.append(
            "Peak memory of the command and its two worker processes together: "
            + "; ".join(f"{peak / 2**20:.0f} MiB for {name}" for name, peak in peaks.items())
            + "."
        )
    if kinds := [value for key, value in found.items() if key.startswith("kill ")]:
        parts.append(
            f"SIGKILL at {len(kinds)} random moments, then the same command again: shards equal to the unbroken "
            f"ones to the byte {sum(k['same'] for k in kinds)} of {len(kinds)} times "
            f"(finished shards found again: {', '.join(str(k['kept']) for k in kinds)})."
        )
    if same := found.get("workers"):
        parts.append(f"1, 2 and 4 workers: {'the same bytes' if same['same'] else 'DIFFERENT bytes'}.")
    write_section("Corpus preparation", "\n\n".join(parts))


if __name__ == "__main__":
    main()
