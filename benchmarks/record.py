"""Where measurements go: records that a killed script finds again, also elsewhere, and sections of RESULTS.md."""

from __future__ import annotations

import json
import os
import platform
import re
import statistics
import sys
from collections.abc import Callable, Iterable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from held import held_to

HERE = Path(__file__).parent
WORK = Path(os.environ.get("BERTSMITH_BENCHMARK_WORK", HERE / "work"))
DATA = HERE.parent.parent / "shared" / "data"
RECORDS = Path(os.environ.get("BERTSMITH_BENCHMARK_RECORDS", HERE / "records"))
RESULTS = HERE / "RESULTS.md"
MATRIX_UNITS = {  # the newest first: the first that a processor has names its class
    "amx_bf16": "AMX",
    "avx512_bf16": "AVX512-BF16",
    "avx512_vnni": "AVX512-VNNI",
    "avx512f": "AVX-512",
    "avx2": "AVX2",
}


def load_records(name: str) -> dict[str, Any]:
    """What earlier runs of a script measured, by key: the lines of records/NAME.jsonl, which are committed."""
    file = RECORDS / f"{name}.jsonl"
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    return {known["key"]: known["value"] for known in map(json.loads, lines)}


def run_once(name: str, key: str, measure: Callable[[], Any]) -> Any:
    """What `measure` gave for this key, now or in an earlier run of the script."""
    if key in (known := load_records(name)):
        print(f"measured before, see records/{name}.jsonl: {key}", file=sys.stderr)
        return known[key]
    value = measure()
    RECORDS.mkdir(parents=True, exist_ok=True)
    with (RECORDS / f"{name}.jsonl").open("a", encoding="utf-8") as out:
        out.write(json.dumps({"key": key, "value": value, "machine": machine_name()}) + "\n")
    return value


def environment(threads: int, precision: str = "") -> str:
    """The machine and the versions, for the line above a table; precision: of runs that have their own."""
    from bertsmith import hardware

    found = hardware.describe()
    used = f"{threads} thread{'s' if threads != 1 else ''} of {found.cores} cores"
    return (
        f"{found.processor}, {used}, {', '.join(found.instruction_sets)}, "
        f"{precision or hardware.choose_precision().precision}; {versions()}"
    )


def versions(*more: str) -> str:
    """Python's and the packages', those of `more` too."""
    names = ("torch", "transformers", "tokenizers", "numpy", *more)
    require(*names)
    return ", ".join((f"Python {platform.python_version()}", *(f"{name} {version(name)}" for name in names)))


def require(*packages: str) -> None:
    """Exit with the command that installs the packages if one of them is missing."""
    missing = []
    for name in packages:
        try:
            version(name)
        except PackageNotFoundError:
            missing.append(name)
    if missing:
        raise SystemExit(f"{', '.join(missing)}: not installed; run pip install -e '.[bench]'")


def machine_name() -> str:
    """The processor and its instruction sets, for a record: scripts that resume may go on elsewhere."""
    from bertsmith import hardware

    found = hardware.describe()
    held = f"; held to {held_to()}" if held_to() else ""
    return f"{found.processor}, {found.cores} cores, {', '.join(found.instruction_sets)}{held}"


def processor_class(key: str) -> str:
    """Return the GPU, or the processor's maker and newest matrix unit, that a record's key names."""
    if gpu := re.search(r"NVIDIA \w+", key):
        return gpu[0]
    maker = "AMD EPYC" if "AMD" in key else "Intel Xeon"
    if limit := re.search(r"held to (\w+)", key):
        unit = next(name for unit, name in MATRIX_UNITS.items() if unit.removesuffix("f") == limit[1])
        return f"{maker}, limited to {unit}"
    return f"{maker}, {next(name for unit, name in MATRIX_UNITS.items() if unit in key)}"


def versions_in(keys: Iterable[str]) -> str:
    """Return the versions of packages that the keys of records name."""
    return "; ".join(dict.fromkeys(key.rpartition("; ")[2] for key in keys))


def ratios(own: Sequence[float], other: Sequence[float]) -> list[float]:
    """Of what two sides had, window by window."""
    return [a / b for a, b in zip(own, other, strict=True)]


def median_and_range(values: Sequence[float], form: str = ".2f") -> str:
    """The median, with the least and the most."""
    middle, least, most = statistics.median(values), min(values), max(values)
    return f"{middle:{form}} ({least:{form}} to {most:{form}})"


def markdown_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A Markdown table."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)


def write_section(title: str, text: str) -> None:
    """Write a section of RESULTS.md, in the place of an earlier one of the same title."""
    whole = RESULTS.read_text(encoding="utf-8") if RESULTS.exists() else "# Results\n"
    head, *parts = whole.split("\n## ")
    sections = {part.partition("\n")[0]: part for part in parts}
    sections[title] = f"{title}\n\n{text.strip()}\n"
    beside = RESULTS.with_name(".RESULTS.md.writing")
    beside.write_text(
        "\n## ".join([head.rstrip() + "\n", *(part.rstrip() + "\n" for part in sections.values())]),
        encoding="utf-8",
    )
    os.replace(beside, RESULTS)
