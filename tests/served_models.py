"""A server with a model of each kind, for tests of routes."""

from __future__ import annotations

import bertsmith as bs
from served import Client


class World:
    """A server, and its models by name."""

    def __init__(self, client: Client, models: dict[str, bs.Model]) -> None:
        self.client, self.models, self.url = client, models, client.url

    def __getitem__(self, name: str) -> bs.Model:
        return self.models[name]
