"""Targets of classification."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from bertsmith.models.config import ModelConfig
from bertsmith.tasks.base import Metadata
from bertsmith.tasks.classification.data import label_ids
from bertsmith.tasks.labels import LabelMap
from bertsmith.tasks.settings import ClassSettings
from bertsmith.tasks.texts import TextEncoder, TextExample


class ClassificationEncoder(TextEncoder):
    """Encode texts; targets are ids of labels, or in multi-label classification 1 for each label of the text."""

    def __init__(self, config: ModelConfig, metadata: Metadata, settings: ClassSettings) -> None:
        super().__init__(config, metadata, settings)
        self._label_map, self._separator = LabelMap.from_metadata(metadata), metadata.get("separator")

    def target(self, example: TextExample) -> int | NDArray[np.float32] | None:
        """Return the id of the label, or float32 [K] of ones and zeros."""
        if example.label is None:
            return None
        ids = label_ids(example, self._label_map, self._separator)
        if self._separator is None:
            return ids[0]
        target = np.zeros(len(self._label_map.ids), dtype=np.float32)
        target[ids] = 1
        return target
