"""Records of measurements (records/NAME.jsonl, which let a killed script resume) and sections of RESULTS.md."""

from __future__ import annotations

import argparse
import json
import logging
import os
import platform
import re
import statistics
import sys
from collections.abc import Callable, Iterable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from cpu_isa import isa_limit

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


def argument_parser(description: str | None) -> argparse.ArgumentParser:
    """Return a parser whose help is the script's docstring, and show bertsmith's log messages from now on."""
    logging.basicConfig(format="%(message)s")
    logging.getLogger("bertsmith").setLevel(logging.INFO)
    return argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )


def load_records(name: str) -> dict[str, Any]:
    """Return the values in records/NAME.jsonl by key."""
    file = RECORDS / f"{name}.jsonl"
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    return {record["key"]: record["value"] for record in map(json.loads, lines)}


def run_once(name: str, key: str, measure: Callable[[], Any]) -> Any:
    """Return the recorded value of this key; without one, call `measure` and record its value."""
    records = load_records(name)
    if key in records:
        print(f"already measured, see records/{name}.jsonl: {key}", file=sys.stderr)
        return records[key]
    value = measure()
    RECORDS.mkdir(parents=True, exist_ok=True)
    with (RECORDS / f"{name}.jsonl").open("a", encoding="utf-8") as out:
        out.write(json.dumps({"key": key, "value": value, "machine": machine_name()}) + "\n")
    return value


def environment(threads: int, precision: str = "") -> str:
    """Return the machine and the versions of packages, for the line above a table.

    precision: the one that was measured, if it is not this machine's default.
    """
    from bertsmith import hardware

    machine = hardware.describe()
    precision = precision or hardware.choose_precision()
    return (
        f"{machine['processor']}, {threads} thread{'s' if threads != 1 else ''} of {machine['cores']} cores, "
        f"{', '.join(machine['instruction_sets'])}, {precision}; {versions()}"
    )


def versions(*more: str) -> str:
    """Return the versions of Python, the usual packages, and those in `more`; exit if one is missing."""
    names = ("torch", "transformers", "tokenizers", "numpy", *more)
    require_packages(*names)
    return ", ".join((f"Python {platform.python_version()}", *(f"{name} {version(name)}" for name in names)))


def require_packages(*packages: str) -> None:
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
    """Return the processor and its instruction sets: a script may resume on another machine."""
    from bertsmith import hardware

    machine = hardware.describe()
    limit = f"; held to {isa_limit()}" if isa_limit() else ""
    return (
        f"{machine['processor']}, {machine['cores']} cores, {', '.join(machine['instruction_sets'])}{limit}"
    )


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


def ratios(numerators: Sequence[float], denominators: Sequence[float]) -> list[float]:
    """Divide one side's figures by the other's, window by window."""
    return [a / b for a, b in zip(numerators, denominators, strict=True)]


def median_and_range(values: Sequence[float], form: str = ".2f") -> str:
    """Format values as "median (min to max)"."""
    return f"{statistics.median(values):{form}} ({min(values):{form}} to {max(values):{form}})"


def markdown_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a Markdown table."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)


def write_section(title: str, text: str) -> None:
    """Write a section of RESULTS.md, or replace the one of the same title."""
    page = RESULTS.read_text(encoding="utf-8") if RESULTS.exists() else "# Results\n"
    head, *parts = page.split("\n## ")
    sections = {part.partition("\n")[0]: part for part in parts}
    sections[title] = f"{title}\n\n{text.strip()}\n"
    temporary = RESULTS.with_name(".RESULTS.md.writing")
    temporary.write_text(
        "\n## ".join([head.rstrip() + "\n", *(part.rstrip() + "\n" for part in sections.values())]),
        encoding="utf-8",
    )
    os.replace(temporary, RESULTS)
