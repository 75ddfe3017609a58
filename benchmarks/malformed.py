"""Malformed and odd corpus files of every form: how many are refused with their place, read, skipped.

    python benchmarks/malformed.py

The table and what holds it are tests/faults/test_malformed.py, a line of 100 MB included; this script runs it and
writes down the counts.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections import Counter
from pathlib import Path

from record import environment, write_section

TABLE = Path(__file__).parent.parent / "tests" / "faults" / "test_malformed.py"


def main() -> None:
    spec = importlib.util.spec_from_file_location("malformed", TABLE)
    assert spec is not None
    assert spec.loader is not None
    cases = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(cases)
    run = [
        sys.executable,
        "-m",
        "pytest",
        str(TABLE),
        "--verbose",
        "-m",
        "slow or not slow",
    ]
    done = subprocess.run(run, stdout=subprocess.PIPE, text=True, check=False)
    said = done.stdout.strip().splitlines()[-1].strip("= ")
    forms = Counter(Path(case[0].split()[0]).suffix or "plain" for case in [*cases.REFUSED, *cases.ODD])
    skipped = sum(bool(case[4]) for case in cases.REFUSED)
    write_section(
        "Malformed input",
        f"`python benchmarks/malformed.py`; {environment(1)}.\n\n"
        f"{len(cases.REFUSED)} malformed files are refused with a message that names the place "
        f"({skipped} of them have "
        f"good rows, which `--on-error skip` keeps), {len(cases.ODD)} unusual ones are read as "
        f"documented. The tests: "
        f"{said} (exit code {done.returncode}). By suffix: "
        + ", ".join(f"{form} {number}" for form, number in forms.most_common())
        + ".",
    )
    print(said)


if __name__ == "__main__":
    main()
