"""The command that serves models: `serve`."""

from __future__ import annotations

import logging
from typing import Any

import rich_click as click

from bertsmith import hardware, log_handlers
from bertsmith.cli import options
from bertsmith.cli.commands import Command, task_options
from bertsmith.cli.options import MODEL, Integer
from bertsmith.errors import InputError
from bertsmith.serving.limits import Limits


@click.command(cls=Command)
@click.argument("models", nargs=-1, required=True, type=MODEL, metavar="MODELS...")
@click.option("--host", default="127.0.0.1", metavar="ADDRESS", help="Address to listen on.")
@click.option("--port", type=Integer(0, 65_535), default=8000, help="Port to listen on; 0: any free one.")
@click.option(
    "--api-key",
    metavar="KEY",
    envvar="BERTSMITH_API_KEY",
    help="Key that requests must send. Prefer the variable BERTSMITH_API_KEY, which other users do not see.",
)
@click.option("--no-auth", is_flag=True, help="Serve other machines without a key.")
@click.option("--cors-origin", "cors_origins", multiple=True, metavar="URL", help="Site whose pages may ask.")
@click.option("--json-logs", is_flag=True, help="Write a JSON object per request and message to stderr.")
@options.model_device
@options.precision
def serve(models: tuple[str, ...], no_auth: bool, json_logs: bool, **arguments: Any) -> None:
    """Serve MODELS over HTTP, for every task: runs, model folders, or published names, each also as NAME=MODEL.

    \b
    Example:
      bertsmith serve moods
      bertsmith serve moods en=bert-mini-uncased-en --port 8080
      curl -d '{"inputs": {"text": "what a day"}}' http://127.0.0.1:8000/v1/models/moods/predict

    http://127.0.0.1:8000/ is a page to try the models, /openapi.json describes the routes, and /metrics has the
    metrics for Prometheus. SIGTERM and Ctrl-C finish the accepted requests; SIGHUP loads the models again. Other
    addresses than that of this machine need a key. The command needs the extra `serve`.
    """
    log_handlers.logger.handlers = [
        log_handlers.JSONHandler() if json_logs else log_handlers.ConsoleHandler()
    ]
    for name, level in (
        ("serving.access", logging.INFO if json_logs else logging.ERROR),
        ("inference", logging.WARNING),
    ):
        logging.getLogger(f"bertsmith.{name}").setLevel(level)
    names = list(Limits.model_fields)
    limits = {name: value for name in names if (value := arguments.pop(name)) is not None}
    try:
        with hardware.import_without_gc():
            from bertsmith.serving.server import serve as run
    except ImportError as error:
        message, hint = f"serving needs the package {error.name}", "pip install 'bertsmith[serve]'"
        raise InputError("package_missing", message, hint=hint) from None
    hardware.configure_process()
    run(list(models), auth=not no_auth, limits=Limits.of(limits, "serve"), **arguments)


serve.params += task_options(Limits, "Limits")
