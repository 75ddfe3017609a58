"""Several processes that train one model: one leads, the others do what it orders. torchrun starts them, or the
run itself on the cores of its machine (`on_cores.py`).

Each batch is cut into as many parts as there are processes. What a loss is divided by is counted over all of
them, and gradients are sums: so how many processes there are changes a run in rounding alone, but for dropout,
which each draws for itself. Only the leader reads the clock, evaluates and writes.
"""

from __future__ import annotations

import atexit
import gc
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import torch
import torch.distributed as dist
import torch.distributed.nn  # here, since what is loaded once a group is made keeps that group for good
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from bertsmith import rng
from bertsmith.device import Place
from bertsmith.errors import BertsmithError, Left, MachineError
from bertsmith.hardware import OfSeveral
from bertsmith.training.data_loader import Batch, CutStream, Lent, Position, Stream, Update
from bertsmith.training.shared_memory import InSharedMemory
from bertsmith.training.train_step import Passes, Trained

_PATIENCE = timedelta(
    days=7
)  # one process waits for another, which may evaluate for long; a dead one is noticed


Whole = Literal["", "weights", "state"]


class Order(NamedTuple):
    """What the leader has the others do.

    step: the update to make; a run begins with the number of those that a checkpoint holds. phase, position: of
    its first batch. threads, rate: to make it with. whole: make no update, but help the leader to have all
    weights ("weights") or the optimiser's state ("state"). trial: make an update that changes nothing. exit_code:
    leave, and with this one; -1: stay.
    """

    step: int
    phase: int = 0
    position: Position = Position()
    threads: int = 1
    rate: float = 0.0
    whole: Whole = ""
    trial: bool = False
    exit_code: int = -1


class Processes:
    """The processes that make a run's updates, of which this is one. Those of a run that is alone: this one."""

    def __init__(self, of: OfSeveral) -> None:
        self.number, self.count, self.here = of.number, of.count, of.local_count
        self._orders: dist.ProcessGroup | None = None

    @property
    def follows(self) -> bool:
        """Whether another process leads."""
        return self.number > 0

    def meet(self) -> None:
        """Have a group for orders alone; by all processes."""
        self._orders = dist.new_group(backend="gloo", timeout=_PATIENCE)

    def part_company(self) -> None:
        """Be done with orders: wait for the threads that passed them on. One that lets go of a tensor while Python
        ends would abort this process; and nothing of torch's holds this group, as much does the one of all."""
        if self._orders is not None:
            dist.destroy_process_group(self._orders)
            self._orders = None

    def order(self, order: Order) -> None:
        """Have the others do it; by the leader, which may be alone."""
        if self._orders is None:
            return
        at = (order.step, order.phase, order.position.epoch, order.position.instance, order.threads)
        whole = get_args(Whole).index(order.whole)
        values = [*at, order.rate, whole, order.trial, order.exit_code]
        dist.broadcast(torch.tensor(values, dtype=torch.float64), 0, self._orders)

    def ordered(self) -> Order:
        """Wait for what the leader wants next. Raises Left where that is to leave."""
        values = torch.zeros(9, dtype=torch.float64)
        dist.broadcast(values, 0, self._orders)
        step, phase, epoch, instance, threads, rate, whole, trial, exit_code = values.tolist()
        if exit_code >= 0:
            raise Left(int(exit_code))
        position = Position(int(epoch), int(instance))
        asked: Whole = get_args(Whole)[int(whole)]
        return Order(int(step), int(phase), position, int(threads), rate, asked, bool(trial))

    def part(self, stream: Stream) -> Stream:
        """The stream whose batches are this process's parts of those of `stream`."""
        return stream if self.count == 1 else _Parts(stream, self.number, self.count)

    def counts(self, counts: Callable[[Any], Mapping[str, int]]) -> Callable[[Any], Mapping[str, int]]:
        """What counts a batch of `part`."""
        return lambda batch: (
            dict.fromkeys(counts(batch.batch), 0) if isinstance(batch, Lent) else counts(batch)
        )

    def together(self, work: Update) -> Update:
        """The update with the counts and tokens of all processes."""
        if self.count == 1:
            return work
        sums = torch.tensor([*work.counts.values(), work.tokens])
        dist.all_reduce(sums)
        *counts, tokens = sums.tolist()
        return replace(work, counts=dict(zip(work.counts, counts, strict=True)), tokens=tokens)

    def passes(self, trained: Trained, *, shard: bool = False) -> Passes:
        """Passes through the model whose gradients are summed over all processes; all of them begin with the
        leader's weights. shard: each process keeps a part of the weights alone from here on; an optimiser made
        now keeps its state of that part."""
        if self.count == 1:
            return Passes(trained)
        if shard:
            from bertsmith.training.fsdp import Sharded  # half a second to import

            return Sharded(trained)
        found = InSharedMemory.of(trained) if self.here == self.count else None
        return found or _Summed(trained)

    def seed(self, place: Place, seed: int, step: int) -> None:
        """Have what this process draws in an update depend on nothing but the update: a checkpoint holds the
        leader's state alone."""
        if self.follows:
            place.generator.manual_seed(int(rng.bits(seed, "process", self.number, step)) >> 1)


@contextmanager
def processes(of: OfSeveral, meeting: Path | None = None) -> Iterator[Processes]:
    """Join the other processes. The leader lets them go when it leaves, however it does.

    meeting: the file that those on one machine find each other by; None: as torchrun has it. Raises MachineError
    where one of them is lost.
    """
    found = Processes(of)
    if of.count == 1:
        yield found
        return
    exit_code = 0
    try:
        if meeting is not None:
            dist.init_process_group(
                "gloo", f"file://{meeting}", timeout=_PATIENCE, rank=of.number, world_size=of.count
            )
        elif not dist.is_initialized():  # once a process: torchrun's, having left, cannot join again
            backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
            dist.init_process_group(backend, timeout=_PATIENCE)
            atexit.register(_leave)
        found.meet()
        yield found
    except BertsmithError as error:
        exit_code = error.exit_code
        raise
    except BaseException as error:
        exit_code = 1
        if _is_of_others(error):
            raise MachineError(
                "a process of this run is lost, or does not answer; the others cannot go on without it",
                "its own error is above, if it could write one; start all of them again, with --resume",
            ) from None
        raise
    finally:
        if not found.follows:
            with suppress(RuntimeError, ValueError):  # the others have gone, or never came
                found.order(Order(0, exit_code=exit_code))
        found.part_company()
        if meeting is not None:
            _leave()


def _leave() -> None:
    if dist.is_initialized():
        gc.collect()  # what wrapped a model holds the group, in cycles
        dist.destroy_process_group()


def _is_of_others(error: BaseException) -> bool:
    """Whether an error is of the connection to other processes; gloo's are of no type of their own."""
    return isinstance(error, dist.DistError) or (isinstance(error, RuntimeError) and "gloo" in str(error))


@dataclass(frozen=True)
class _Parts:
    """A stream of which each batch is cut into `count` parts, and only part `number` built."""

    stream: Stream
    number: int
    count: int

    def size(self, epoch: int) -> int:
        return self.stream.size(epoch)

    def stop(self, epoch: int, start: int, size: int) -> int:
        return self.stream.stop(epoch, start, size) if isinstance(self.stream, CutStream) else start + size

    def batch(self, epoch: int, start: int, stop: int) -> Batch:
        size = stop - start
        begin, end = (start + size * number // self.count for number in (self.number, self.number + 1))
        if begin == end:
            return Lent(self.stream.batch(epoch, start, start + 1))
        return self.stream.batch(epoch, begin, end)


class _Summed(Passes):
    """Passes whose gradients are summed over all processes, on GPUs or on several machines, beside the last one's
    backward pass."""

    def __init__(self, trained: Trained) -> None:
        device = next(trained.parameters()).device
        super().__init__(trained)
        self._wrapped = DistributedDataParallel(
            trained,
            device_ids=None if device.index is None else [device],  # a processor has no number
            gradient_as_bucket_view=True,
        )
        # DDP itself would divide by the number of processes. A function's annotations are not what it asks for.
        self._wrapped.register_comm_hook(None, lambda state, bucket: _summed(bucket.buffer()))
        self._passed = self._wrapped

    def adding(self, *, last: bool) -> AbstractContextManager[object]:
        return nullcontext() if last else self._wrapped.no_sync()

    def over_all(self, values: Tensor) -> Tensor:
        dist.all_reduce(values)
        return values


def _summed(gradients: Tensor) -> torch.futures.Future[Tensor]:
    """A bucket of gradients, added up over all processes."""
    future = dist.all_reduce(gradients, async_op=True).get_future()
    found: torch.futures.Future[Tensor] = future.then(lambda done: done.value()[0])
    return found
