"""The model card and the upload."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import pytest
import yaml
from click.testing import CliRunner

import bertsmith as bs
import tiny_run
from bertsmith.cli.main import bertsmith
from bertsmith.errors import InputError, MachineError

ODD_LABEL = "<img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def moods(base: bs.Model, tmp_path_factory: pytest.TempPathFactory) -> bs.Model:
    folder = tmp_path_factory.mktemp("card")
    names = {"joy": ODD_LABEL}
    rows = [{"text": text, "label": names.get(label, label)} for text, label in tiny_run.examples(24)]
    return bs.finetune(
        "classify",
        base,
        folder / "moods",
        train=rows,
        validation=rows[:12],
        settings=[
            "train.max_steps=2",
            "train.batch_size=4",
            "train.threads=1",
            "train.report_to=none",
            "task.max_length=20",
        ],
    )


def metadata(card: str) -> dict[str, Any]:
    assert card.startswith("---\n")
    values: dict[str, Any] = yaml.safe_load(card.split("---\n")[1])
    return values


def test_a_card_has_scores_with_intervals_beside_the_baselines(moods: bs.Model) -> None:
    card = bs.card(moods, language="en", license="cc0-1.0")
    values, report = metadata(card), moods.report
    assert (values["pipeline_tag"], values["language"], values["license"]) == (
        "text-classification",
        "en",
        "cc0-1.0",
    )
    (result,) = values["model-index"][0]["results"]
    assert result["metrics"][0]["value"] == pytest.approx(report["validation"]["accuracy"], abs=1e-4)
    low, high = report["intervals"]["accuracy"]
    assert low <= report["validation"]["accuracy"] <= high
    row = next(line for line in card.splitlines() if line.startswith("| accuracy"))
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    baselines = [f"{values['accuracy']:.4f}" for values in report["baselines"].values()]
    assert cells[1:] == [f"{report['validation']['accuracy']:.4f}", f"{low:.4f} to {high:.4f}", *baselines]


def test_a_card_escapes_labels_and_names_no_folder(moods: bs.Model) -> None:
    card = bs.card(moods)
    assert "<img" not in re.sub("(`+).+?\\1", "", card)  # nothing is markup in code
    assert str(moods.path.parent) not in card


def test_a_card_states_how_much_the_task_reads(moods: bs.Model, tmp_path: Path) -> None:
    assert "up to 20 tokens; longer ones are truncated" in bs.card(moods)
    moods.save(tmp_path)
    record = json.loads((tmp_path / "bertsmith.json").read_text())
    record["settings"]["stride"] = 5
    (tmp_path / "bertsmith.json").write_text(json.dumps(record))
    assert "up to 20 tokens; longer ones are read in windows" in bs.card(tmp_path)


def test_the_card_of_a_pretrained_model(tmp_path: Path) -> None:
    shards = tiny_run.make_shards(tmp_path / "shards")
    card = bs.card(tiny_run.run(shards, tmp_path / "bert", "train.max_steps=2"))
    assert metadata(card)["pipeline_tag"] == "fill-mask"
    assert "fill_mask" in card
    assert "| updates | 2 |" in card


def test_the_hub_does_not_allow_every_name(moods: bs.Model) -> None:
    with pytest.raises(InputError) as caught:
        bs.card(moods, name="my moods")
    assert (caught.value.code, caught.value.argument) == ("invalid_hub_name", "name")


def test_card_command_writes_a_file(moods: bs.Model, tmp_path: Path) -> None:
    result = CliRunner().invoke(bertsmith, ["card", str(moods.path), "--output", str(tmp_path / "README.md")])
    assert result.exit_code == 0
    assert (tmp_path / "README.md").read_text(encoding="utf-8") == bs.card(moods)


def test_a_dry_run_uploads_nothing(moods: bs.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub, "HfApi", None)
    result = CliRunner().invoke(bertsmith, ["push", str(moods.path), "owner/moods", "--dry-run", "--json"])
    document = json.loads(result.stdout)
    assert document["url"] is None
    assert {"README.md", "config.json", "model.safetensors"} <= set(document["files"])


class Hub:
    """Receives a commit; `fails` raises as the network would."""

    def __init__(self, *, fails: bool = False) -> None:
        self.fails, self.private = fails, False
        self.files: dict[str, bytes] = {}

    def create_repo(self, repository: str, *, private: bool, exist_ok: bool) -> None:
        if self.fails:
            raise ConnectionError("no route")
        self.private = private

    def create_commit(self, repository: str, operations: list[Any], commit_message: str) -> SimpleNamespace:
        for operation in operations:
            content = operation.path_or_fileobj
            self.files[operation.path_in_repo] = (
                content if isinstance(content, bytes) else Path(content).read_bytes()
            )
        return SimpleNamespace(repo_url=f"hub/{repository}")


def test_push_uploads_the_folder_and_its_card(moods: bs.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = Hub()
    monkeypatch.setattr(huggingface_hub, "HfApi", lambda: hub)
    result = bs.push(moods, "owner/moods", private=True)
    assert (result["url"], hub.private) == ("hub/owner/moods", True)
    assert hub.files["README.md"].decode() == bs.card(moods, name="owner/moods")
    assert "/" not in json.loads(hub.files["bertsmith.json"])["base"]


def test_a_failed_upload_is_a_failure_of_the_machine(
    moods: bs.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(huggingface_hub, "HfApi", lambda: Hub(fails=True))
    with pytest.raises(MachineError) as caught:
        bs.push(moods, "owner/moods")
    assert caught.value.code == "upload_failed"


def test_push_refuses_links_and_leaves_hidden_files_out(moods: bs.Model, tmp_path: Path) -> None:
    folder = moods.save(tmp_path / "moods")
    (folder / ".env").write_text("TOKEN=x", encoding="utf-8")
    files = bs.push(folder, "owner/moods", dry_run=True)["files"]
    assert ".env" not in files
    (tmp_path / "secret").write_text("key", encoding="utf-8")
    (folder / "notes.txt").symlink_to(tmp_path / "secret")
    with pytest.raises(InputError) as caught:
        bs.push(folder, "owner/moods", dry_run=True)
    assert caught.value.code == "not_a_file"


def test_push_reads_the_links_of_a_hub_cache_only(moods: bs.Model, tmp_path: Path) -> None:
    cache = tmp_path / "models--owner--moods"
    snapshot, blobs = cache / "snapshots" / "0123", cache / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    for file in filter(Path.is_file, moods.model_folder.iterdir()):
        shutil.copyfile(file, blobs / f"blob-{file.name}")
        (snapshot / file.name).symlink_to(Path("../../blobs") / f"blob-{file.name}")
    files = bs.push(snapshot, "owner/moods", dry_run=True)["files"]
    assert {"config.json", "model.safetensors", "README.md"} <= files.keys()
    (tmp_path / "mine.txt").write_text("mine")
    (snapshot / "mine.txt").symlink_to(tmp_path / "mine.txt")
    with pytest.raises(InputError) as caught:
        bs.push(snapshot, "owner/moods", dry_run=True)
    assert caught.value.code == "not_a_file"


@pytest.mark.parametrize(
    "name", ["../x", "moods", "owner/..", "owner/x.git", "owner/naïve", "a--b/c", "a/b/c"]
)
def test_push_checks_the_name_first(moods: bs.Model, name: str) -> None:
    with pytest.raises(InputError) as caught:
        bs.push(moods, name, dry_run=True)
    assert (caught.value.code, caught.value.argument) == ("invalid_hub_name", "repository")
