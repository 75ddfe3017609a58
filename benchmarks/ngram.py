"""Compare n-gram models with KenLM's lmplz: processor time, memory, and perplexity.

    python benchmarks/ngram.py speed|quality --kenlm BIN

BIN is the folder of the programs `lmplz` and `query`, built from KenLM's source archive (`pip download --no-deps
--no-binary kenlm kenlm`). `speed` trains on all lines of enwiki (27.9 million words); ours writes a model folder
(`fit`) or an ARPA file, as lmplz does (`arpa`). `quality` trains on 929,000 tokens of its first paragraphs,
validates on the next 74,000, and tests on the next 82,000: words and full stops, lower-cased, a paragraph per
sentence, 10,000 words.
"""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import zstandard

from record import DATA, WORK, argument_parser, markdown_table, run_once

ORDERS = (2, 3, 5)
SIZES = {"train": 929_000, "validation": 74_000, "test": 82_000}  # tokens
NUM_WORDS = 10_000
_TRAIN = (
    "import sys; from bertsmith.predecessors.ngram import train_ngram; "
    "text, order, out = sys.argv[1:]; model = train_ngram(text, order=int(order)); "
    "model.write_arpa(out) if out.endswith('.arpa') else model.save(out)"
)


def lines() -> Iterator[str]:
    """Yield the paragraphs of enwiki; a whole text in memory would count as that of the programs it starts."""
    with (DATA / "corpora" / "enwiki.txt.zst").open("rb") as file:
        reader = zstandard.ZstdDecompressor().stream_reader(file)
        for line in io.TextIOWrapper(reader, encoding="utf-8", newline="\n"):
            if line.strip():
                yield line.rstrip("\n")


def measure(command: list[str], **options: Any) -> dict[str, float]:
    """Run a program and return its processor time and wall time in seconds, and its peak memory in GB."""
    start = time.perf_counter()
    process = subprocess.Popen(command, **options)
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"{command[0]} failed")
    wall = time.perf_counter() - start
    return {"cpu": usage.ru_utime + usage.ru_stime, "wall": wall, "memory": usage.ru_maxrss * 1024 / 1e9}


def lmplz(kenlm: Path, order: int, text: Path, arpa: Path) -> dict[str, float]:
    """Measure lmplz, with sorting memory of 2 GB as a peer of programs in memory."""
    command = [kenlm / "lmplz", "-o", order, "-S", "2G", "-T", f"{WORK}/", "--text", text, "--arpa", arpa]
    return measure([str(part) for part in command], stderr=subprocess.DEVNULL)


def speed(kenlm: Path) -> str:
    """Return the table of processor time and memory."""
    text = WORK / "enwiki-lines.txt"
    if not text.exists():
        with text.open("w", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in lines())
    rows = []
    for order in (3, 5):
        for side in ("lmplz", "ours, fit", "ours, arpa"):
            out = WORK / ("ngram-model" if side == "ours, fit" else "ngram.arpa")
            subprocess.run(["rm", "-rf", out], check=True)
            command = [sys.executable, "-c", _TRAIN, str(text), str(order), str(out)]
            figures = run_once(
                "ngram",
                f"speed order {order} {side}",
                lambda o=order, c=command, s=side, a=out: (
                    lmplz(kenlm, o, text, a) if s == "lmplz" else measure(c)
                ),
            )
            rows.append([order, side, *(f"{figures[name]:.1f}" for name in ("cpu", "wall", "memory"))])
    return markdown_table(["order", "program", "processor s", "wall s", "GB"], rows)


def cut() -> dict[str, list[str]]:
    """Return the lines of each part, with rare words as OOV, which is a word for lmplz as well."""
    sentences = (re.findall(r"\w+|[.]", line.lower()) for line in lines())
    parts: dict[str, list[list[str]]] = {}
    for name, size in SIZES.items():
        parts[name], tokens = [], 0
        while tokens < size:
            parts[name].append(next(sentences))
            tokens += len(parts[name][-1])
    counts = Counter(word for sentence in parts["train"] for word in sentence)
    frequent = {word for word, _ in counts.most_common(NUM_WORDS)}
    return {
        name: [
            " ".join(word if word in frequent else "OOV" for word in sentence)
            for sentence in part
            if sentence
        ]
        for name, part in parts.items()
    }


def quality(kenlm: Path) -> str:
    """Return the table of perplexities: lmplz's model by KenLM's query, and ours."""
    from bertsmith.predecessors.ngram import train_ngram

    texts = {}
    for name, part in cut().items():
        texts[name] = WORK / f"ngram-{name}.txt"
        texts[name].write_text("\n".join(part) + "\n", encoding="utf-8")
    names = ("validation", "test")

    def query(arpa: Path) -> list[float]:
        results = []
        for name in names:
            with texts[name].open("rb") as file:
                command = [str(kenlm / "query"), "-v", "summary", str(arpa)]
                output = subprocess.run(
                    command, stdin=file, capture_output=True, text=True, check=True
                ).stdout
            results.append(float(re.findall(r"including OOVs:\s*([\d.]+)", output)[0]))
        return results

    def reference(order: int) -> list[float]:
        lmplz(kenlm, order, texts["train"], WORK / "ngram.arpa")
        return query(WORK / "ngram.arpa")

    def ours(order: int) -> list[float]:
        model = train_ngram(texts["train"], order=order)
        arpa = WORK / "ngram-ours.arpa"
        arpa.unlink(missing_ok=True)
        model.write_arpa(arpa)
        return [model.perplexity(texts[name]).perplexity for name in names] + query(arpa)

    rows = []
    for order in ORDERS:
        theirs = run_once("ngram", f"quality order {order} lmplz", lambda o=order: reference(o))
        own = run_once("ngram", f"quality order {order} ours", lambda o=order: ours(o))
        rows.append(
            [order, *("/".join(f"{value:.2f}" for value in pair) for pair in (theirs, own[:2], own[2:]))]
        )
    return markdown_table(["order", "lmplz", "ours", "our ARPA file in KenLM"], rows)


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("part", choices=["speed", "quality"])
    parser.add_argument("--kenlm", type=Path, required=True, help="the folder of lmplz and query")
    arguments = parser.parse_args()
    WORK.mkdir(parents=True, exist_ok=True)
    print(speed(arguments.kenlm) if arguments.part == "speed" else quality(arguments.kenlm))


if __name__ == "__main__":
    main()
