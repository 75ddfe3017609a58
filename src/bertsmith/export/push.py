"""Upload a model with its card to the Hugging Face hub."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from bertsmith.errors import InputError, MachineError
from bertsmith.export.card import card, check_hub_name
from bertsmith.inference.model import Model, load
from bertsmith.io.atomic import check_files

_CARD_FILE, _RECORD_FILE = "README.md", "bertsmith.json"


def push(
    model: str | Path | Model,
    repository: str,
    *,
    private: bool = False,
    language: str | None = None,
    license: str | None = None,
    dry_run: bool = False,
) -> dict[str, Any]:
    """Upload a model folder in one commit; the repository is created if there is none.

    Without a README.md in the model folder, the model card is added.

    Args:
        model: A run, a model folder, or a published name.
        repository: The name of the repository, "owner/name".
        private: Create a private repository.
        language: As in `card`.
        license: As in `card`.
        dry_run: Upload nothing.

    Returns:
        `repository`, `files` (bytes by name), and `url`, which is None for a dry run.

    Raises:
        InputError: There is no model, the name is invalid, or the extra `hub` is missing.
        MachineError: The upload failed.
    """
    model = load(model)
    if "/" not in repository:
        message, hint = f"{repository!r} has no owner", "use OWNER/NAME"
        raise InputError("invalid_hub_name", message, argument="repository", hint=hint)
    check_hub_name(repository, "repository")
    text = card(model, name=repository, language=language, license=license)
    contents = {_CARD_FILE: text.encode(), **_contents(model)}
    sizes = {
        name: content.stat().st_size if isinstance(content, Path) else len(content)
        for name, content in contents.items()
    }
    result = {"repository": repository, "files": sizes, "url": None}
    if dry_run:
        return result
    try:
        from huggingface_hub import CommitOperationAdd, HfApi
    except ImportError:
        message, hint = "the upload needs the package huggingface_hub", "pip install 'bertsmith[hub]'"
        raise InputError("hub_not_installed", message, hint=hint) from None
    operations = [CommitOperationAdd(name, content) for name, content in contents.items()]
    try:
        hub = HfApi()
        hub.create_repo(repository, private=private, exist_ok=True)
        commit = hub.create_commit(repository, operations, commit_message="Upload the model")
    except Exception as error:  # huggingface_hub and the network raise many types
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        message = f"the upload to {repository} failed ({reason})"
        hint = "check the network, and log in with a token that may write: hf auth login"
        raise MachineError("upload_failed", message, hint=hint) from None
    return result | {"url": str(commit.repo_url)}


def _contents(model: Model) -> dict[str, Path | bytes]:
    """Return the files of the model folder by name, without hidden ones.

    The record loses the path of the base model.

    Raises:
        InputError: The folder has a link, whose target may be no part of the model.
    """
    if not _is_hub_snapshot(model.model_folder):
        check_files(model.model_folder)
    names = [file.relative_to(model.model_folder) for file in sorted(model.model_folder.rglob("*"))]
    visible = [name for name in names if not any(part.startswith(".") for part in name.parts)]
    contents: dict[str, Path | bytes] = {
        name.as_posix(): file for name in visible if (file := model.model_folder / name).is_file()
    }
    if model.folder.record.get("base"):
        record = model.folder.record | {"base": Path(model.folder.record["base"]).name}
        contents[_RECORD_FILE] = json.dumps(record, indent=2, ensure_ascii=False).encode()
    return contents


def _is_hub_snapshot(folder: Path) -> bool:
    """Return True for models--OWNER--NAME/snapshots/ID of a hub cache, whose files link to those in blobs."""
    snapshots = folder.absolute().parent
    blobs = (snapshots.parent / "blobs").resolve()
    is_cache = snapshots.name == "snapshots" and snapshots.parent.name.startswith("models--")
    links = (path for path in folder.rglob("*") if path.is_symlink())
    return is_cache and all(link.resolve().parent == blobs for link in links)
