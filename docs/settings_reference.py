"""Sphinx directives that list settings and presets: `{settings} pretrain`, `{settings} finetune`, `{presets}`.

The other arguments of `{settings}` are the names in `SETTINGS`.
"""

from __future__ import annotations

from typing import Any

from docutils import nodes
from docutils.parsers.rst import Directive
from sphinx.application import Sphinx

from bertsmith.finetuning.settings import settings_type
from bertsmith.models.config import ModelConfig
from bertsmith.models.family import presets
from bertsmith.predecessors.ngram_settings import NgramSettings
from bertsmith.predecessors.word2vec import Word2VecSettings
from bertsmith.pretraining.settings import PretrainSettings
from bertsmith.settings import Settings, may_change
from bertsmith.tasks.registry import TASKS, get_task
from reference_table import table

SETTINGS: dict[str, type[Settings]] = {
    "pretrain": PretrainSettings,
    "ngram": NgramSettings,
    "word_vectors": Word2VecSettings,
}


class SettingsList(Directive):
    """The settings of a command with their defaults, a table for each group; for `finetune`, of each task."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Return the tables."""
        if self.arguments[0] in SETTINGS:
            return list(_tables(SETTINGS[self.arguments[0]]).values())
        sections = []
        for index, name in enumerate(TASKS):
            groups = _tables(settings_type(get_task(name)))
            shared = [] if index else [t for group, t in groups.items() if group != "task"]
            section = nodes.section("", nodes.title("", name), ids=[f"settings-{name}"], names=[name])
            section += [*shared, groups["task"]]
            sections.append(section)
        return sections


class Presets(Directive):
    """The presets with their sizes."""

    def run(self) -> list[nodes.Node]:
        """Return the table."""
        configs = {name: ModelConfig.of(sizes, name) for name, sizes in presets().items()}
        rows = [
            (
                name,
                *(
                    f"{n:,}"
                    for n in (c.num_hidden_layers, c.hidden_size, c.num_attention_heads, c.vocab_size)
                ),
            )
            for name, c in configs.items()
        ]
        return [table(("preset", "layers", "hidden size", "heads", "vocabulary"), rows)]


def _tables(settings: type[Settings]) -> dict[str, nodes.table]:
    groups: dict[str, list[tuple[str, ...]]] = {}
    for name, field in settings.names():
        group = name.rpartition(".")[0]
        default = field.get_default(call_default_factory=True)
        meaning = f"{field.description}" + ("; may change on resume" if may_change(field) else "")
        groups.setdefault(group, []).append((name, _format(group, default), meaning))
    return {group: table(("setting", "default", "meaning"), rows) for group, rows in groups.items()}


def _format(group: str, value: Any) -> str:
    if group == "model":
        return "of the preset"
    return "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directives."""
    app.add_directive("settings", SettingsList)
    app.add_directive("presets", Presets)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
