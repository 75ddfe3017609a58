"""What `test_processes` has torchrun start in several processes: small runs, one after the other.

python of_several.py SHARDS OUT runs|sharded|lost|fails
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from torch.distributed.tensor import DTensor

import bertsmith as bs
import tiny_run
from bertsmith.errors import BertsmithError, InputError
from bertsmith.hardware import rank_info
from bertsmith.training import trainer

NO_DROPOUT = tuple(
    f"model.{name}=0"
    for name in ("hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout")
)
MUON = ("train.optim=muon", "train.muon_learning_rate=3e-3")
STEPS = ("train.max_steps=9", "train.save_steps=4")
SHARD = "train.fsdp=true"
STUDENT = (
    *NO_DROPOUT,
    "data.sequence_length=32",
    "train.max_steps=4",
    "train.batch_size=8",
    "train.optim=adamw",
    "train.precision=fp32",
    "train.report_to=none",
)
FAMILIES = ("roberta-mini", "albert-small", "electra-mini-discriminator")


@contextmanager
def after(step: int, what: Callable[[], Any], *, leader: bool) -> Iterator[None]:
    """Something happens after update number `step`, in the process that leads or in the others."""
    update = trainer.train_step

    def watched(*given: Any) -> Any:
        found = update(*given)
        if given[3] == step and leader == rank_info().is_main:
            what()
        return found

    trainer.train_step = watched
    yield
    trainer.train_step = update


@contextmanager
def held(file: Path) -> Iterator[None]:
    """Write down how many numbers of weights, gradients and the optimiser's state this process holds."""
    update = trainer.train_step

    def watched(*given: Any) -> Any:
        found = update(*given)
        trained, optimizer = given[0].module, given[0].optimizer
        own = [*trained.parameters(), *(p.grad for p in trained.parameters())]
        own += [tensor for state in optimizer.state.values() for tensor in state.values()]
        here = sum((one.to_local() if isinstance(one, DTensor) else one).numel() for one in own)
        file.write_text(str(here))
        return found

    trainer.train_step = watched
    yield
    trainer.train_step = update


def fake_wandb(file: Path) -> Any:
    """Return a module in place of wandb that writes the logged steps of this process to a file."""

    def log(values: Any, step: int) -> None:
        with file.open("a") as lines:
            lines.write(f"{step}\n")

    run = SimpleNamespace(id="run", log=log, finish=lambda exit_code: None)
    return SimpleNamespace(init=lambda **_: run)


def threads_of_gloo() -> int:
    """How many threads of this process work for gloo; Linux alone tells."""
    return sum("pt_gloo" in task.read_text() for task in Path("/proc/self/task").glob("*/comm"))


def fail() -> None:
    raise InputError("rank_failed", "this rank has failed")


def told(run: Callable[[], Any]) -> int:
    """Run; the exit code of an error, which one rank prints in full and the others by its type and code."""
    try:
        run()
    except BertsmithError as error:
        said = f"exit code {error.exit_code}" if error.is_reported else error.sentence_for("command line")
        # In one write: torchrun starts Python unbuffered, and lines of several processes must not mix.
        print(f"{rank_info().rank}: {type(error).__name__}: {said}\n", end="", flush=True)
        return error.exit_code
    return 0


def forked_rank(out: Path) -> str | None:
    """Fork two ranks that nobody supervises, for an error on each of them in turn; all have imported torch once.

    Returns:
        In a rank, "fails-main" or "fails-other". In the process that forks, None, after it has written the exit
        codes, stdout, and stderr of all ranks to `out`.
    """
    for what in ("fails-main", "fails-other"):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        ranks = []
        for rank in ("0", "1"):
            if (process := os.fork()) == 0:
                os.environ |= {"RANK": rank, "WORLD_SIZE": "2", "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": "2"}
                os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
                for stream, suffix in ((1, "out"), (2, "err")):
                    os.dup2(os.open(out / f"{what}-{rank}.{suffix}", os.O_WRONLY | os.O_CREAT), stream)
                return what
            ranks.append(process)
        codes = [os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) for process in ranks]
        (out / f"{what}.json").write_text(json.dumps(codes))
    return None


def main() -> None:
    shards, out = Path(sys.argv[1]), Path(sys.argv[2])
    what = sys.argv[3] if sys.argv[3] != "fails" else forked_rank(out)
    if what is None:
        return
    at_exit = out / f"at-exit-{rank_info().rank}"
    atexit.register(lambda: at_exit.write_text(str(threads_of_gloo())))  # the last of all to be called

    def run(name: str, *settings: str, resume: bool = False) -> bs.Model:
        return tiny_run.run(shards, out / name, *settings, resume=resume)

    if what == "runs":
        run("plain", *NO_DROPOUT, *STEPS)
        run(
            "halved",
            *NO_DROPOUT,
            "train.max_steps=3",
            "train.batch_size=8",
            "train.gradient_accumulation_steps=1",
        )
        run("uneven", *NO_DROPOUT, *STEPS, *MUON, "train.batch_size=7")
        run("straight", *STEPS, *MUON)
        with after(6, lambda: signal.raise_signal(signal.SIGTERM), leader=True):
            told(lambda: run("resumed", *STEPS, *MUON))
            told(lambda: run("moved", *NO_DROPOUT, *STEPS))
        run("resumed", *STEPS, *MUON, resume=True)
        told(lambda: run("plain", *NO_DROPOUT, *STEPS))  # there is a run already
        for name in FAMILIES:
            chosen = [*tiny_run.SETTINGS, *NO_DROPOUT, "train.max_steps=3"]
            bs.pretrain(shards, out / name, preset=name, settings=chosen)
        tiny_run.run(shards, out / "minutes", *NO_DROPOUT, minutes=0.03)
        sys.modules["wandb"] = fake_wandb(out / f"wandb-{rank_info().rank}")
        run("tracked", "train.max_steps=2", "train.report_to=wandb")
    elif what == "sharded":
        with held(out / f"held-{rank_info().rank}"):
            run("plain", *NO_DROPOUT, *STEPS, SHARD, "train.eval_steps=2")
        bs.distill(shards, out / "student", out / "plain", settings=[*STUDENT, SHARD])
        run("uneven", *NO_DROPOUT, *STEPS, SHARD, "train.batch_size=7", "train.gradient_accumulation_steps=2")
        run("straight", *STEPS, SHARD)
        with after(6, lambda: signal.raise_signal(signal.SIGTERM), leader=True):
            told(lambda: run("resumed", *STEPS, SHARD))
            told(lambda: run("moved", *NO_DROPOUT, *STEPS, SHARD))
        run("resumed", *STEPS, SHARD, resume=True)
        run("resumed", *STEPS, SHARD, resume=True)  # it is finished: nothing is computed
        for name, *ways in (("turned", "false", "true"), ("turned back", "true", "false")):
            for number, shard in enumerate(ways):  # what leaves the run's numbers alone may change
                steps = ("train.max_steps=4", "train.max_steps=9")[number]
                others = (steps, "train.save_steps=4", f"train.fsdp={shard}")
                run(name, *NO_DROPOUT, *others, resume=number > 0)
        for name in FAMILIES:
            chosen = [*tiny_run.SETTINGS, *NO_DROPOUT, "train.max_steps=3", SHARD]
            bs.pretrain(shards, out / name, preset=name, settings=chosen)
    elif what == "lost":
        with after(6, lambda: os.kill(os.getpid(), signal.SIGKILL), leader=False):
            sys.exit(told(lambda: run("lost", *NO_DROPOUT, *STEPS)))
    else:
        with after(6, fail, leader=what == "fails-main"):
            sys.exit(told(lambda: run(what, *NO_DROPOUT, *STEPS)))


if __name__ == "__main__":
    main()
