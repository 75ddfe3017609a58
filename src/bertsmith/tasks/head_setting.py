"""The settings of what a task's head reads: the same of every task that has a head."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from bertsmith.settings import ADDED_LATER

Head = Annotated[
    Literal["linear", "bilstm"],
    Field(
        description="what reads the encoder's states: linear: the task's own layers; bilstm: two layers of a "
        "bidirectional LSTM below them",
        json_schema_extra=ADDED_LATER,
    ),
]
Beside = Annotated[
    str,
    Field(
        description="of a left-to-right model: a run of the same size that reads the other way, whose states are "
        "joined to this one's; empty: none",
        json_schema_extra=ADDED_LATER,
    ),
]
