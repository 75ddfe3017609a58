"""The `bertsmith` command: its verbs, each loaded when called, and how errors end.

A user's mistake exits with 2, the machine's failure with 1, both in a sentence or two and without a traceback.
"""

from __future__ import annotations

import importlib
import io
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from itertools import takewhile
from types import FrameType
from typing import NoReturn

import click

from bertsmith import hardware, log_handlers
from bertsmith.cli.failures import failure_of, stopped
from bertsmith.cli.verbs import Verbs
from bertsmith.suggestions import similar_names

# verb → (module of cli/, command in it, what it does)
_VERBS = {
    "quickstart": ("train", "quickstart", "The whole way in minutes, on text that is already here."),
    "tokenizer": ("tokenizer", "tokenizer", "Train, compare and extend vocabularies."),
    "data": ("data", "data", "Check a corpus, turn it into token shards, look at instances."),
    "pretrain": ("train", "pretrain", "Pre-train a BERT on token shards."),
    "distill": ("distill", "distill", "Train a smaller student of a pre-trained model on token shards."),
    "adapt": ("adapt", "adapt", "Pre-train a model further on your text, and measure the gain on a task."),
    "ablate": ("ablate", "ablate", "A paper's comparison at your size: rows, seeds, tasks, one table."),
    "finetune": ("finetune", "finetune", "Fine-tune a model for a task."),
    "lr-find": ("lr_find", "lr_find", "Find a learning rate for a task."),
    "evaluate": ("use", "evaluate", "Score a fine-tuned model, or an ensemble, on a labelled file."),
    "compare": ("compare", "compare", "Whether two fine-tuned models differ by more than chance."),
    "predict": ("use", "predict", "Answer for new texts with a fine-tuned model."),
    "embed": ("embed", "embed", "Vectors of texts, in a file or an index to search."),
    "search": ("search", "search", "The texts of an index that are nearest to a query."),
    "fill-mask": ("use", "fill_mask", "Guess the words behind [MASK]."),
    "attention": ("attention", "attention", "What each head of a model looks at in a text."),
    "score": ("score", "score", "How likely a model finds texts; accuracy on minimal pairs."),
    "info": ("info", "info", "What a run, a model, data or a tokenizer is; or what this machine is."),
}

_SHARED = ("pretrain", "distill")  # verbs for several processes
_GROUPS = (
    "tokenizer",
    "data",
    "finetune",
)  # of the verbs, those that hold others; the last takes long to import


class _TopVerbs(Verbs):
    """A group that lists its verbs without importing them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _VERBS:
            return None
        module, name, _ = _VERBS[cmd_name]
        command = getattr(importlib.import_module(f"bertsmith.cli.{module}"), name)
        assert isinstance(command, click.Command)
        return command

    def meant(self, ctx: click.Context, name: str) -> Sequence[str]:
        """Verbs of this group, and of the groups below it, whose names are imported only now."""
        found = [*super().meant(ctx, name)]
        for group in _GROUPS:
            command = self.get_command(ctx, group)
            assert isinstance(command, click.Group)
            below = command.list_commands(ctx)
            found += [f"{group} {verb}" for verb in similar_names(name, below) if verb == name or not found]
        return found

    def summary(self, ctx: click.Context, verb: str) -> str:
        return _VERBS[verb][2]


@click.group(cls=_TopVerbs, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="bertsmith")
@click.pass_context
def bertsmith(context: click.Context) -> None:
    """From a folder of text to a BERT of your own.

    \b
    Example, from text to a model:
      bertsmith tokenizer train corpus.txt --output-dir tokenizer --vocab-size 8000
      bertsmith data prepare corpus.txt --tokenizer tokenizer --output-dir shards
      bertsmith pretrain --data shards --output-dir bert --minutes 30
      bertsmith fill-mask bert "Paris is the [MASK] of France."

    \b
    Completion by the shell, in ~/.bashrc:
      eval "$(_BERTSMITH_COMPLETE=bash_source bertsmith)"

    For zsh and fish: zsh_source and fish_source. Each verb has its own --help.
    """
    log_handlers.install(log_handlers.ConsoleHandler())
    if (verb := context.invoked_subcommand) not in _SHARED:
        hardware.check_single_process(f"bertsmith {verb}")


def main() -> NoReturn:
    """Run the command line and exit."""
    begun = hardware.clock()
    hardware.set_thread_wait_policy()  # torch, which reads this when it is loaded, is imported by the verbs
    _open_closed_streams()
    as_json = "--json" in takewhile(lambda word: word != "--", sys.argv[1:])
    with suppress(ValueError):  # not in the main thread
        terminated = partial(_terminated, as_json)
        signal.signal(signal.SIGTERM, terminated)
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup
            signal.signal(signal.SIGHUP, terminated)
    try:
        bertsmith(prog_name="bertsmith", standalone_mode=False, obj=begun)
        sys.stdout.flush()
    except click.exceptions.Exit as error:
        sys.exit(error.exit_code)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        sys.exit(error.exit_code)
    except BrokenPipeError:  # the reader of our output left; nobody is there to be told
        _drop_output()
        sys.exit(1)
    except BaseException as error:
        failure = failure_of(error)
        if failure is None:
            raise
        failure.print(as_json=as_json)
        if isinstance(error, OSError):
            _drop_output()
        sys.exit(failure.exit_code)
    sys.exit(0)


def _open_closed_streams() -> None:
    """Stand the null device in for streams that were closed (`>&-`), before a file of ours gets their numbers.

    What a stream cannot encode goes out as an escape.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            handle = os.open(os.devnull, os.O_RDWR)
            os.set_inheritable(handle, True)
            setattr(sys, name, os.fdopen(handle, mode, encoding="utf-8"))
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def _drop_output() -> None:
    """Forget what stdout still holds, which Python would try to write again when it ends."""
    with suppress(OSError, ValueError):
        sys.stdout.flush()
        return
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _terminated(as_json: bool, number: int, frame: FrameType | None) -> NoReturn:
    """Leave as an exception does, so that nothing half-written stays. Training has a handler that saves."""
    stopped(number).print(as_json=as_json)
    sys.exit(128 + number)
