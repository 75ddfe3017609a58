"""The `bertsmith` command: its verbs, each loaded when called, and how errors end.

A user's mistake exits with 2, the machine's failure with 1, both in a sentence or two and without a traceback.
"""

from __future__ import annotations

import importlib
import io
import os
import signal
import sys
from contextlib import suppress
from types import FrameType
from typing import NoReturn

import click

from bertsmith import disk, machine
from bertsmith.console import visible
from bertsmith.errors import BertsmithError, MachineError, Stopped

# verb → (module of cli/, command in it, what it does)
_VERBS = {
    "quickstart": ("train", "quickstart", "The whole way in five minutes, on text that is already here."),
    "tokenizer": ("tokenizer", "tokenizer", "Train, compare and extend vocabularies."),
    "data": ("data", "data", "Check a corpus, turn it into token shards, look at instances."),
    "pretrain": ("train", "pretrain", "Pre-train a BERT on token shards."),
    "finetune": ("finetune", "finetune", "Fine-tune a model for a task."),
    "evaluate": ("use", "evaluate", "Score a fine-tuned model on a labelled file."),
    "predict": ("use", "predict", "Answer for new texts with a fine-tuned model."),
    "fill-mask": ("use", "fill_mask", "Guess the words behind [MASK]."),
    "info": ("use", "info", "What a model is made of; without one, what this machine is."),
}


class _Verbs(click.Group):
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

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Verbs"):
            formatter.write_dl([(verb, text) for verb, (_, _, text) in _VERBS.items()])


@click.group(cls=_Verbs, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="bertsmith")
def bertsmith() -> None:
    """From a folder of text to a BERT of your own.

    \b
    Example, from one text file to a pre-trained model:
      bertsmith tokenizer train corpus.txt --out tokenizer --vocab-size 8000
      bertsmith data prepare corpus.txt --tokenizer tokenizer --out shards
      bertsmith pretrain --preset bert-mini-uncased --data shards --out bert --minutes 30
      bertsmith fill-mask bert "Paris is the [MASK] of France."
    """


def main() -> NoReturn:
    """Run the command line and exit."""
    machine.have_threads_sleep()  # torch, which reads this when it is loaded, is imported by the verbs
    _open_closed_streams()
    with suppress(ValueError):  # not in the main thread
        signal.signal(signal.SIGTERM, _terminated)
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup
            signal.signal(signal.SIGHUP, _terminated)
    try:
        bertsmith(prog_name="bertsmith", standalone_mode=False)
        sys.stdout.flush()
    except BertsmithError as error:
        _tell(error.sentence, error.remedy, label="" if isinstance(error, Stopped) else "error: ")
        sys.exit(error.exit_code)
    except click.ClickException as error:
        shown = io.StringIO()
        error.show(shown)
        click.echo(visible(shown.getvalue()), nl=False, err=True)
        sys.exit(error.exit_code)
    except click.exceptions.Exit as error:
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        _tell("stopped", None, label="")
        sys.exit(130)
    except BrokenPipeError:  # the reader of our output left; nobody is there to be told
        _drop_output()
        sys.exit(1)
    except UnicodeEncodeError as error:
        if not any("\ud800" <= character <= "\udfff" for character in error.object):
            raise
        _tell(f"{error.object[:200]}: this name is not UTF-8", "rename the file")
        sys.exit(2)
    except OSError as error:
        _tell(*_of_system(error))
        _drop_output()
        sys.exit(2 if isinstance(error, PermissionError | NotADirectoryError | IsADirectoryError) else 1)
    except (MemoryError, RuntimeError) as error:
        if not machine.is_out_of_memory(error):
            raise
        _tell("there is not enough memory", "lower train.batch_size, or choose a smaller preset")
        sys.exit(MachineError.exit_code)
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


def _terminated(number: int, frame: FrameType | None) -> NoReturn:
    """Leave as an exception does, so that nothing half-written stays. Training has a handler that saves."""
    _tell("stopped", None, label="")
    sys.exit(128 + number)


def _of_system(error: OSError) -> tuple[str, str | None]:
    place = f"{error.filename}: " if error.filename else ""
    if disk.is_full(error):
        return f"{place}the disk is full", "free some space and start again"
    return f"{place}{(error.strerror or str(error)).lower()}", None


def _tell(sentence: str, remedy: str | None, label: str = "error: ") -> None:
    with suppress(OSError):  # the terminal was closed
        click.echo(f"{label}{visible(sentence, one_line=True)}", err=True)
        if remedy:
            click.echo(f"{' ' * len(label)}{visible(remedy, one_line=True)}", err=True)
