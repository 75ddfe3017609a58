"""Load data sets of the Hugging Face hub by name: `hub:OWNER/NAME:SPLIT`, or `hub:OWNER/NAME:CONFIG:SPLIT`.

The hub provides each data set as Parquet files, which huggingface_hub (extra `hub`) downloads into its cache; no
code of the data set runs.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bertsmith.errors import InputError

PREFIX = "hub:"
_REVISION = "refs/convert/parquet"
_NAME_HINT = "write hub:OWNER/NAME:SPLIT, such as hub:stanfordnlp/imdb:train, or hub:OWNER/NAME:CONFIG:SPLIT"


def load_split(name: str) -> tuple[Any, Mapping[str, Any]]:
    """Return a split as a pyarrow table, and its features, as `datasets.Features.to_dict` returns them.

    Raises:
        InputError: There is no such data set or split.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    dataset, config, split = _parse_name(name)
    pattern = f"{config or '*'}/{split}/*.parquet"
    files = sorted(_download(name, dataset, pattern).glob(pattern))
    configs = sorted({file.parents[1].name for file in files})
    if not files:
        message = f"the data set has no split '{split}'{f' of {config}' if config else ''}"
        raise InputError("no_such_split", message, location=name, hint=_NAME_HINT)
    if len(configs) > 1:
        message = f"the data set has several configurations: {', '.join(configs)}"
        hint = f"name one: {PREFIX}{dataset}:{configs[0]}:{split}"
        raise InputError("several_configurations", message, location=name, hint=hint)
    table = pa.concat_tables([pq.read_table(file) for file in files])
    metadata = json.loads((table.schema.metadata or {}).get(b"huggingface", b"{}"))
    return table, metadata.get("info", {}).get("features", {})


def _parse_name(name: str) -> tuple[str, str | None, str]:
    """Return the data set, the configuration, and the split."""
    parts = name.removeprefix(PREFIX).split(":")
    if len(parts) not in (2, 3) or not all(parts):
        message = "this is not the name of a data set and its split"
        raise InputError("bad_dataset_name", message, location=name, hint=_NAME_HINT)
    return parts[0], parts[1] if len(parts) == 3 else None, parts[-1]


def _download(name: str, dataset: str, pattern: str) -> Path:
    """Download Parquet files into the cache, and return their folder."""
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        message = "data sets of the hub need the package huggingface_hub"
        hint = "pip install 'bertsmith[hub]'"
        raise InputError("package_missing", message, location=name, hint=hint) from None
    try:
        return Path(
            snapshot_download(dataset, repo_type="dataset", revision=_REVISION, allow_patterns=[pattern])
        )
    except Exception as error:  # the hub's errors are many and its network's more: each means "not found"
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        offline = " (HF_HUB_OFFLINE is set)" if os.environ.get("HF_HUB_OFFLINE") else ""
        message = f"no such data set could be loaded from the cache or the hub{offline}: {reason}"
        hint = f"{_NAME_HINT}; or name a file"
        raise InputError("dataset_not_found", message, location=name, hint=hint) from None
