"""Write `rejects.jsonl`: the lines and rows that preparation skipped, one JSON object per line."""

from __future__ import annotations

import base64
import json
from pathlib import Path

from bertsmith.errors import InputError, command, option
from bertsmith.io.text_io import RejectedRow


class RejectFile:
    """Write each reject: file, line (from 1), byte (from 0, of the decompressed file), reason, and raw bytes.

    The bytes are text under the key `raw` if they are UTF-8, else base64 under `raw_base64`.
    """

    def __init__(self, path: Path, max_rejects: int) -> None:
        """Create the file; more than `max_rejects` rejects raise `InputError`."""
        self.count, self._max_rejects = 0, max_rejects
        self.first: RejectedRow | None = None
        self._path = path
        self._file = path.open("w", encoding="utf-8", newline="\n")

    def __call__(self, reject: RejectedRow) -> None:
        """Write one reject."""
        self.count += 1
        self.first = self.first or reject
        if self.count > self._max_rejects:
            raise InputError(
                "too_many_rejects",
                f"more than {self._max_rejects:,} lines or rows cannot be read; this one: {reject.reason}",
                location=reject.file if reject.line is None else f"{reject.file}:{reject.line}",
                argument="max_rejects",
                hint=f"check the files with {command('data check')}, or raise {option('max_rejects')}",
            )
        entry: dict[str, object] = {
            "file": reject.file,
            "line": reject.line,
            "byte": reject.byte,
            "reason": reject.reason,
        }
        try:
            entry["raw"] = reject.raw.decode("utf-8")
        except UnicodeDecodeError:
            entry["raw_base64"] = base64.b64encode(reject.raw).decode("ascii")
        self._file.write(json.dumps(entry, ensure_ascii=False) + "\n")

    def close(self) -> None:
        """Close the file, and remove it if it is empty."""
        self._file.close()
        if not self.count:
            self._path.unlink(missing_ok=True)
