"""A Sphinx directive that lists settings from the code: `{settings} pretrain`, `{settings} finetune classify`,
`{settings} presets`."""

from __future__ import annotations

from typing import Any

from bertsmith.tasks.task import task_type
from docutils import nodes
from docutils.parsers.rst import Directive
from sphinx.application import Sphinx

from bertsmith.finetuning import run
from bertsmith.models.config import ModelConfig
from bertsmith.models.family import presets
from bertsmith.pretraining.settings import PretrainSettings
from bertsmith.settings import Settings, may_change
from reference_table import table


class SettingsList(Directive):
    """The settings of a verb, a group a table: name, default, meaning; or the presets with their sizes."""

    required_arguments = 1
    optional_arguments = 1

    def run(self) -> list[nodes.Node]:
        """The tables."""
        if self.arguments[0] == "presets":
            return [table(_PRESET_COLUMNS, _preset_rows())]
        groups: dict[str, list[tuple[str, ...]]] = {}
        for name, field in _type(self.arguments).names():
            group = name.rpartition(".")[0]
            default = field.get_default(call_default_factory=True)
            said = f"{field.description}" + ("; may change on resume" if may_change(field) else "")
            groups.setdefault(group, []).append((name, _shown(group, default), said))
        return [table(("setting", "default", "meaning"), rows) for rows in groups.values()]


_PRESET_COLUMNS = ("preset", "layers", "hidden size", "heads", "vocabulary")


def _preset_rows() -> list[tuple[str, ...]]:
    rows = []
    for name, sizes in presets().items():
        config = ModelConfig.of(sizes, name)
        numbers = (
            config.num_hidden_layers,
            config.hidden_size,
            config.num_attention_heads,
            config.vocab_size,
        )
        rows.append((name, *(f"{number:,}" for number in numbers)))
    return rows


def _type(arguments: list[str]) -> type[Settings]:
    if arguments[0] == "pretrain":
        return PretrainSettings
    return run.settings_type(task_type(arguments[1]))


def _shown(group: str, value: Any) -> str:
    if group == "model":
        return "of the preset"
    return "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def setup(app: Sphinx) -> dict[str, bool]:
    """What Sphinx calls."""
    app.add_directive("settings", SettingsList)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
