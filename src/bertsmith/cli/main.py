"""The `bertsmith` command: its commands, each imported when it is called, and the report of errors.

The exit code is 2 for errors of the user, 1 for failures of the machine, and 128 + N after the signal N; each
prints a message and a hint, no traceback, and with --json one JSON document.
"""

from __future__ import annotations

import errno
import importlib
import io
import os
import signal
import sys
from contextlib import suppress
from functools import partial
from itertools import takewhile
from types import FrameType
from typing import Any, NoReturn

import rich_click as click
from click.exceptions import Exit, NoArgsIsHelpError

from bertsmith import console, hardware, log_handlers
from bertsmith.cli.commands import HELP_STYLE, Group, resume_hint
from bertsmith.errors import BertsmithError, InputError, MachineError, Stopped

# Panel of the help → command → (module of cli/, summary); `_` in a function's name is `-` in the command's.
COMMANDS = {
    "Start": {"quickstart": ("pretrain", "Run all steps in minutes, on text that is already here.")},
    "Prepare data": {
        "tokenizer": ("tokenizer", "Train, compare, and extend vocabularies."),
        "data": ("data", "Check a corpus, turn it into token shards, show training instances."),
    },
    "Train": {
        "pretrain": ("pretrain", "Pre-train a BERT on token shards."),
        "distill": ("pretrain", "Train a smaller student of a model."),
        "create": ("pretrain", "Write a model with random weights, to train for a task."),
        "finetune": ("finetune", "Fine-tune a model for a task."),
        "lr-find": ("finetune", "Find a learning rate for a task."),
    },
    "Experiment": {
        "adapt": ("experiments", "Pre-train a model further on your text, and measure the gain on a task."),
        "ablate": ("experiments", "Repeat a paper's comparison at your size."),
        "baselines": ("experiments", "Compare the models before BERT with BERT."),
        "watch": ("watch", "Show the curves of runs while they train."),
        "runs": ("watch", "List runs with their settings and scores."),
    },
    "Evaluate": {
        "evaluate": ("evaluate", "Score a fine-tuned model, or an ensemble, on labeled examples."),
        "compare": ("evaluate", "Test if two fine-tuned models differ by more than chance."),
        "score": ("evaluate", "Score texts by pseudo-log-likelihood; accuracy on minimal pairs."),
    },
    "Use": {
        "predict": ("predict", "Predict answers for new texts."),
        "fill-mask": ("predict", "Predict the words behind [MASK]."),
        "generate": ("generate", "Continue texts with a left-to-right model, such as GPT."),
        "embed": ("embed", "Turn texts into vectors, in a file or an index."),
        "search": ("embed", "Find the texts of an index that are nearest to a query."),
        "serve": ("serve", "Serve models over HTTP."),
    },
    "Inspect": {
        "explain": ("inspect", "Show which words an answer depends on."),
        "attention": ("inspect", "Show where each attention head looks in a text."),
        "neighbors": ("representations", "Compare the vectors of a word in its occurrences."),
        "probe": ("representations", "Measure how well each layer holds the tags of words."),
        "info": ("inspect", "Describe a run, a model, data, a tokenizer, or this machine."),
    },
    "Share": {
        "export": ("export", "Write a model for ONNX Runtime, transformers.js, or OpenVINO."),
        "card": ("export", "Write the model card of a model."),
        "push": ("export", "Upload a model and its card to the Hugging Face hub."),
    },
}
_MODULES = {name: module for panel in COMMANDS.values() for name, (module, _) in panel.items()}
_CONTEXT = {"help_option_names": ["-h", "--help"], "rich_help_config": HELP_STYLE, "show_default": True}
_DISTRIBUTED = ("pretrain", "distill")  # commands that several processes may run together


class _MainGroup(Group):
    """The commands; the help lists them without importing them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_MODULES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _MODULES:
            return None
        module = importlib.import_module(f"bertsmith.cli.{_MODULES[cmd_name]}")
        command = getattr(module, cmd_name.replace("-", "_"))
        assert isinstance(command, click.Command)
        return command

    def format_options(self, ctx: click.Context, formatter: Any) -> None:
        listing = _Listing(name="bertsmith", params=self.params)
        for panel, commands in COMMANDS.items():
            for name, (_, summary) in commands.items():
                listing.add_command(click.RichCommand(name=name, short_help=summary, panel=panel))
        listing.format_options(click.RichContext(listing, parent=ctx), formatter)


class _Listing(click.RichGroup):
    """The commands as the help lists them, in their order."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)


@click.group(cls=_MainGroup, context_settings=_CONTEXT)
@click.version_option(package_name="bertsmith")
@click.pass_context
def bertsmith(context: click.Context) -> None:
    """Train a BERT on your own text.

    \b
    Example, from text to a model:
      bertsmith tokenizer train corpus.txt --output-dir tokenizer
      bertsmith data prepare corpus.txt --tokenizer tokenizer --output-dir shards
      bertsmith pretrain --data shards --output-dir bert --minutes 30
      bertsmith fill-mask bert "Paris is the [MASK] of France."

    \b
    Shell completion, in ~/.bashrc (zsh_source and fish_source for others):
      eval "$(_BERTSMITH_COMPLETE=bash_source bertsmith)"
    """
    log_handlers.install(log_handlers.ConsoleHandler())
    if (command := context.invoked_subcommand) not in _DISTRIBUTED:
        hardware.check_single_process(f"bertsmith {command}")


def main() -> NoReturn:
    """Run the command line and exit."""
    start_time = hardware.clock()
    os.environ.update(hardware.thread_wait_policy())  # torch reads them when commands import it
    _open_closed_streams()
    as_json = "--json" in takewhile(lambda word: word != "--", sys.argv[1:])
    with suppress(ValueError):  # not in the main thread
        handler = partial(_handle_signal, as_json)
        signal.signal(signal.SIGTERM, handler)
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup ignores it
            signal.signal(signal.SIGHUP, handler)
    try:
        for word in sys.argv:
            word.encode("utf-8")  # before anything is written under a name that is not UTF-8
        bertsmith(prog_name="bertsmith", standalone_mode=False, obj=start_time)
        sys.stdout.flush()
    except Exit as error:
        sys.exit(error.exit_code)
    except NoArgsIsHelpError as error:
        click.echo(error.message, err=True)
        sys.exit(error.exit_code)
    except BrokenPipeError:  # the reader of the output ended
        _drop_output()
        sys.exit(1)
    except BaseException as error:
        reported = error_to_report(error)
        if reported is None:
            raise
        print_error(reported, as_json=as_json)
        if isinstance(error, OSError):
            _drop_output()
        sys.exit(reported.exit_code)
    sys.exit(0)


def error_to_report(error: BaseException) -> BertsmithError | None:
    """Return an exception as an error of bertsmith; None for a bug, whose traceback Python prints."""
    match error:
        case BertsmithError():
            return error
        case click.ClickException():
            context = error.ctx if isinstance(error, click.UsageError) else None
            hint = f"see `{context.command_path if context else 'bertsmith'} --help`"
            return InputError("usage", error.format_message().removesuffix("."), hint=hint)
        case click.Abort() | KeyboardInterrupt():
            return Stopped(signal.SIGINT, "stopped")
        case UnicodeEncodeError() if any("\ud800" <= character <= "\udfff" for character in error.object):
            name, hint = error.object[:200], "rename the file"
            return InputError("name_not_utf8", "this name is not UTF-8", location=name, hint=hint)
        case OSError() if hardware.is_disk_full(error):
            hint = "free some space, or write to another disk"
            return MachineError("disk_full", "the disk is full", location=error.filename, hint=hint)
        case OSError():
            is_input = isinstance(error, PermissionError | NotADirectoryError | IsADirectoryError)
            is_input = is_input or error.errno == errno.ENAMETOOLONG
            message = (error.strerror or str(error)).lower()
            return (InputError if is_input else MachineError)("os_error", message, location=error.filename)
        case MemoryError() | RuntimeError() | ImportError() if hardware.is_out_of_memory(error):
            hint = "lower train.batch_size, or choose a smaller preset"
            return MachineError("out_of_memory", "there is not enough memory", hint=hint)
    return None


def print_error(error: BertsmithError, *, as_json: bool) -> None:
    """Print message and hint on stderr, and {"error": {…}} on stdout if the user asked for JSON."""
    if error.is_reported:
        return
    message, hint = error.sentence_for("command line"), error.hint_for("command line")
    label = "" if isinstance(error, Stopped) else "error: "
    with suppress(OSError):  # the terminal was closed
        click.echo(f"{label}{message}", err=True)
        if hint:
            click.echo(f"{' ' * len(label)}{hint}", err=True)
    if not as_json:
        return
    kinds = {"usage": error.code == "usage", "input": isinstance(error, InputError), "stopped": not label}
    document = {
        "kind": next((kind for kind, holds in kinds.items() if holds), "machine"),
        "message": message,
        "hint": hint,
        **{name: getattr(error, name) for name in ("code", "location", "argument", "exit_code")},
    }
    with suppress(OSError, ValueError):  # stdout is full or closed
        console.print_json({"error": document})


def _open_closed_streams() -> None:
    """Replace closed streams (`>&-`) by the null device, and escape characters that stdout cannot encode.

    Otherwise a file of ours would get the number of a closed stream.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            handle = os.open(os.devnull, os.O_RDWR)
            os.set_inheritable(handle, True)
            setattr(sys, name, os.fdopen(handle, mode, encoding="utf-8"))
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def _drop_output() -> None:
    """Discard what stdout still buffers, which Python would try to write again at exit."""
    with suppress(OSError, ValueError):
        sys.stdout.flush()
        return
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _handle_signal(as_json: bool, number: int, frame: FrameType | None) -> NoReturn:
    """Exit by an exception, so that no partial file stays. Training has its own handler, which saves."""
    context = click.get_current_context(silent=True)
    hint = None if context is None else resume_hint(context)
    print_error(Stopped(number, "stopped", hint), as_json=as_json)
    sys.exit(128 + number)
