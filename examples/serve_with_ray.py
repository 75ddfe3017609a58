"""The server of `bertsmith serve` on several machines: Ray Serve runs replicas, and divides the requests.

    pip install 'bertsmith[serve]' 'ray[serve]'
    cd examples && serve run serve_with_ray:deploy models=moods,en=bert-mini-uncased-en replicas=4

The models are paths or names that each machine can read.
"""

from ray import serve
from starlette.applications import Starlette

from bertsmith.serving.app import create_app
from bertsmith.serving.models import ModelRegistry


def deploy(arguments: dict[str, str]) -> serve.Application:
    def build() -> Starlette:
        return create_app(ModelRegistry(arguments["models"].split(",")))

    replicas = serve.deployment(num_replicas=int(arguments.get("replicas", 2)), max_ongoing_requests=512)
    return replicas(serve.ingress(build)()).bind()
