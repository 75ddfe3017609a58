"""Data sets of the Hugging Face hub, by name: `hub:OWNER/NAME:SPLIT`, or `hub:OWNER/NAME:CONFIG:SPLIT`.

Read from the Parquet files that the hub makes of each data set, through huggingface_hub (extra `hub`) and its
cache; no code of the data set runs. Numbers of classes become their names.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from bertsmith.errors import InputError

PREFIX = "hub:"
_REVISION = "refs/convert/parquet"
_FORM = "write hub:OWNER/NAME:SPLIT, such as hub:stanfordnlp/imdb:train, or hub:OWNER/NAME:CONFIG:SPLIT"


def published(name: str) -> tuple[Any, Mapping[str, Any]]:
    """The rows of a split as a pyarrow table, and by column what the data set says of its classes: an object with
    `names`, or with a `feature` that has them. InputError for what is not there."""
    dataset, config, split = _parts(name)
    folder = _fetched(name, dataset, f"{config or '*'}/{split}/*.parquet")
    found = sorted(folder.glob(f"{config or '*'}/{split}/*.parquet"))
    configs = sorted({file.parents[1].name for file in found})
    if not found:
        raise InputError(
            "no_such_split",
            f"the data set has no split '{split}'{f' of {config}' if config else ''}",
            location=name,
            hint=_FORM,
        )
    if len(configs) > 1:
        raise InputError(
            "several_configurations",
            f"the data set has several configurations: {', '.join(configs)}",
            location=name,
            hint=f"name one: {PREFIX}{dataset}:{configs[0]}:{split}",
        )
    return _read(found)


def _parts(name: str) -> tuple[str, str | None, str]:
    """Data set, configuration, split."""
    parts = name.removeprefix(PREFIX).split(":")
    if len(parts) not in (2, 3) or not all(parts):
        message = "this is not the name of a data set and its split"
        raise InputError("bad_dataset_name", message, location=name, hint=_FORM)
    return parts[0], parts[1] if len(parts) == 3 else None, parts[-1]


def _fetched(name: str, dataset: str, pattern: str) -> Path:
    """The folder of a data set's Parquet files: in the cache, or fetched into it."""
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        raise InputError(
            "package_missing",
            "data sets of the hub need the package huggingface_hub",
            location=name,
            hint="pip install 'bertsmith[hub]'",
        ) from None
    try:
        return Path(
            snapshot_download(dataset, repo_type="dataset", revision=_REVISION, allow_patterns=[pattern])
        )
    except Exception as error:  # the hub's errors are many and its network's more: each means "not found"
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        offline = " (HF_HUB_OFFLINE is set)" if os.environ.get("HF_HUB_OFFLINE") else ""
        raise InputError(
            "dataset_not_found",
            f"there is no such data set in the cache or on the hub{offline}: {reason}",
            location=name,
            hint=f"{_FORM}; or name a file",
        ) from None


def _read(files: Sequence[Path]) -> tuple[Any, Mapping[str, Any]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.concat_tables([pq.read_table(file) for file in files])
    said = json.loads((table.schema.metadata or {}).get(b"huggingface", b"{}"))
    features = said.get("info", {}).get("features", {})
    return table, {column: _kind(features[column]) for column in table.column_names if column in features}


def _kind(feature: Any) -> SimpleNamespace:
    """A column's type as `datasets` has it in memory."""
    if isinstance(feature, list):  # a list of that
        return SimpleNamespace(feature=_kind(feature[0]))
    inner = feature.get("feature")
    return SimpleNamespace(
        names=feature.get("names") if feature.get("_type") == "ClassLabel" else None,
        feature=None if inner is None else _kind(inner),
    )
