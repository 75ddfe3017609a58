"""`rejects.jsonl`: what a preparation left out because it could not be read, a JSON object a line."""

from __future__ import annotations

import base64
import json
from pathlib import Path

from bertsmith.errors import InputError
from bertsmith.io.files import Reject


class RejectFile:
    """Writes each reject: file, line (from 1), byte (from 0, of the decompressed file), reason, and its raw bytes
    as text where they are UTF-8 (`raw`), else in base64 (`raw_base64`)."""

    def __init__(self, path: Path, most: int) -> None:
        """Begin the file anew; more than `most` rejects are an `InputError`."""
        self.count, self._most = 0, most
        self.first: Reject | None = None
        self._path = path
        self._out = path.open("w", encoding="utf-8", newline="\n")

    def __call__(self, reject: Reject) -> None:
        """Write one."""
        self.count += 1
        self.first = self.first or reject
        if self.count > self._most:
            place = reject.file if reject.line is None else f"{reject.file}:{reject.line}"
            raise InputError(
                f"{place}: more than {self._most:,} lines or rows cannot be read; this one: {reject.reason}",
                "look at the files with bertsmith data check, or raise --max-rejects",
            )
        line: dict[str, object] = {
            "file": reject.file,
            "line": reject.line,
            "byte": reject.byte,
            "reason": reject.reason,
        }
        try:
            line["raw"] = reject.raw.decode("utf-8")
        except UnicodeDecodeError:
            line["raw_base64"] = base64.b64encode(reject.raw).decode("ascii")
        self._out.write(json.dumps(line, ensure_ascii=False) + "\n")

    def close(self) -> None:
        """Close the file; without a reject there is none."""
        self._out.close()
        if not self.count:
            self._path.unlink(missing_ok=True)
