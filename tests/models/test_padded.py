"""The encoder on padded batches: equal to the encoder on packed ones."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from bertsmith.models.family import build_encoder
from bertsmith.models.padded import PaddedBatch, PaddedEncoder
from family_harness import CASES, a_batch, config_of

CAUSAL: list[dict[str, Any]] = [{}, {"causal": True}, {"causal": True, "backwards": True}, {"norm": "pre"}]


@pytest.mark.parametrize(
    ("case", "changes"), [(case, {}) for case in CASES] + [("bert", changes) for changes in CAUSAL[1:]]
)
def test_padding_changes_no_hidden_state(case: str, changes: dict[str, Any]) -> None:
    config = config_of(case, **changes)
    encoder = build_encoder(config, torch.Generator().manual_seed(1)).eval()
    _, batch = a_batch(config)
    mask = batch["mask"].bool()
    padded = PaddedBatch.create(batch["ids"], batch["mask"], batch["segments"], config)
    with torch.no_grad():
        expected = encoder(batch["ids"], batch["mask"], batch["segments"])
        for states in (PaddedEncoder(encoder)(padded), PaddedEncoder(encoder).hidden_states(padded)[-1]):
            torch.testing.assert_close(states.view_as(expected)[mask], expected[mask], atol=1e-5, rtol=1e-5)
        rows = padded.last_token_rows
        torch.testing.assert_close(
            PaddedEncoder(encoder)(padded, rows),
            torch.stack([states[n - 1] for states, n in zip(expected, mask.sum(1).tolist(), strict=True)]),
            atol=1e-5,
            rtol=1e-5,
        )
