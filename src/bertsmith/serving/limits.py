"""The limits of a server: how much it reads, queues, and computes."""

from __future__ import annotations

from pydantic import Field

from bertsmith.settings import Settings


class Limits(Settings):
    """The limits of a server."""

    max_waiting: int = Field(
        512, ge=1, le=100_000, description="requests that wait or are computed; more get 429"
    )
    max_waiting_tokens: int = Field(262_144, ge=1, description="tokens of these requests; more get 429")
    max_queue_seconds: float = Field(
        10.0,
        gt=0,
        le=86_400,
        description="expected seconds in the queue; requests that would wait longer get 429",
    )
    max_inputs: int = Field(32, ge=1, le=100_000, description="inputs of a request; more get 413")
    max_tokens: int = Field(65_536, ge=1, description="tokens that a request may cost; more get 413")
    max_batch_tokens: int = Field(
        8_192, ge=1, description="tokens of a batch; an input with more is a batch by itself"
    )
    batch_wait: float = Field(
        0.002, ge=0, le=1, description="seconds that a batch waits for requests that are being tokenized"
    )
    max_body_bytes: int = Field(2_000_000, ge=100, description="bytes of a request's body; more get 413")
    max_body_seconds: float = Field(
        10.0, gt=0, le=86_400, description="seconds in which a body must arrive, else 408; also its head"
    )
    max_json_depth: int = Field(
        16, ge=3, le=500, description="nested lists and objects of a body; more get 400"
    )
    max_seconds: float = Field(
        30.0,
        gt=0,
        le=86_400,
        description="seconds from a request's first byte to its answer, else 504; also to read the answer",
    )
