"""Training on several ranks, which torchrun starts. Each rank runs the same loop on its part of each batch.

The loss is divided by counts of all ranks, and gradients are summed over all ranks. So the number of ranks
changes a run only by rounding, and by dropout, which each rank draws for itself. Rank 0 alone decides by the
clock, evaluates, and writes; it broadcasts what the other ranks need to know.
"""

from __future__ import annotations

import atexit
import gc
import itertools
import json
import logging
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
import torch.distributed.nn  # imported before a process group exists: a later import would keep that group alive
from torch import Tensor
from torch.distributed.rendezvous import rendezvous
from torch.nn.parallel import DistributedDataParallel

from bertsmith import hardware, rng
from bertsmith.device import ComputeContext
from bertsmith.errors import BertsmithError, MachineError, Stopped, error_from_dict, option
from bertsmith.hardware import RankInfo
from bertsmith.training.cuda_graphs import CudaGraphStrategy, supports_cuda_graphs
from bertsmith.training.data_loader import Batch, EmptyRankBatch, Stream, Update, batch_end
from bertsmith.training.settings import TrainSettings
from bertsmith.training.train_step import GradientStrategy, TrainModule

logger = logging.getLogger(__name__)

_TIMEOUT = timedelta(days=7)  # rank 0 may evaluate for long; a rank that has ended is noticed at once
_LEAVE_SECONDS = 3.0  # ranks that have not left after another rank's error are waiting for it in a collective

Result = TypeVar("Result")


class RankGroup:
    """The ranks of a run. A run without torchrun has one rank, for which nothing is communicated."""

    def __init__(self, info: RankInfo, control: dist.ProcessGroup | None = None) -> None:
        self.info, self._control = info, control

    @property
    def world_size(self) -> int:
        """The number of ranks."""
        return self.info.world_size

    @property
    def is_main(self) -> bool:
        """True on rank 0."""
        return self.info.is_main

    def run_on_main(self, function: Callable[[], Result]) -> Result:
        """Call a function on rank 0 and return its result on every rank. Its error is raised on every rank."""
        if self.world_size == 1:
            return function()
        result: Any = None
        error: BaseException | None = None
        if self.is_main:
            try:
                result = function()
            except BaseException as raised:
                error = raised
        shared = [result, error and _portable(error, 0)]
        dist.broadcast_object_list(shared, 0, self._control)
        if error is not None:
            raise error
        if shared[1] is not None:
            raise shared[1]
        main_result: Result = shared[0]
        return main_result

    @contextmanager
    def on_main(self, context: AbstractContextManager[None]) -> Iterator[None]:
        """Enter a context on rank 0. An error of entering it is raised on every rank."""
        with ExitStack() as stack:
            self.run_on_main(lambda: stack.enter_context(context))
            yield

    def broadcast(self, value: int) -> int:
        """Return rank 0's value on every rank."""
        if self.world_size == 1:
            return value
        shared = torch.tensor([value])
        dist.broadcast(shared, 0, self._control)
        return int(shared.item())

    def all_reduce_counts(self, update: Update) -> Update:
        """Return the update with the counts and tokens of all ranks."""
        if self.world_size == 1:
            return update
        sums = torch.tensor([*update.counts.values(), update.tokens])
        dist.all_reduce(sums, group=self._control)
        *counts, tokens = sums.tolist()
        return replace(update, counts=dict(zip(update.counts, counts, strict=True)), tokens=tokens)

    def rank_stream(self, stream: Stream) -> Stream:
        """Return the stream of this rank's parts of the batches of a stream."""
        return stream if self.world_size == 1 else _RankStream(stream, self.info.rank, self.world_size)

    def seed_step(self, context: ComputeContext, seed: int, step: int) -> None:
        """Seed the generator by the step on other ranks than 0, whose state is not in checkpoints."""
        if not self.is_main:
            context.generator.manual_seed(int(rng.random_bits(seed, "process", self.info.rank, step)) >> 1)


SINGLE_RANK = RankGroup(RankInfo())
_runs = itertools.count()
_active: list[RankGroup] = []


@contextmanager
def rank_group() -> Iterator[RankGroup]:
    """Join the ranks that torchrun has started. Inside another `rank_group`, the same ranks.

    An error on one rank ends the block on all ranks. One rank raises it as it is; the others raise the same error
    with `is_reported` set. MachineError where a rank is lost.
    """
    info = hardware.rank_info()
    if _active or info.world_size == 1:
        yield _active[-1] if _active else RankGroup(info)
        return
    if not dist.is_initialized():  # once a process: torchrun's processes cannot join a second time
        backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
        dist.init_process_group(backend, timeout=_TIMEOUT)
        atexit.register(_destroy_groups)
    store, *_ = next(rendezvous("env://"))
    errors = _ErrorExchange(info, store, f"bertsmith/{next(_runs)}")
    control: dist.ProcessGroup | None = dist.new_group(backend="gloo", timeout=_TIMEOUT)
    _active.append(RankGroup(info, control))
    package_logger = logging.getLogger("bertsmith")
    level = package_logger.level
    if not info.is_main:  # rank 0 logs for all
        package_logger.setLevel(logging.ERROR)
    try:
        yield _active[-1]
    except BaseException as error:
        portable = _portable(error, info.rank)
        first = errors.first(portable)
        if _is_connection_error(error) or not errors.all_have_left():
            traceback.clear_frames(error.__traceback__)  # they hold the groups
            _active[-1], control = RankGroup(info), None
            _destroy_groups()
            atexit.register(errors.wait_for_readers)
        if first is not None:
            first.is_reported = True
            raise first from None
        if _is_connection_error(error):
            raise portable from None
        raise
    finally:
        package_logger.setLevel(level)
        _active.pop()
        # A thread of gloo that releases a tensor while Python ends would abort the process.
        if control is not None:
            dist.destroy_process_group(control)


class _ErrorExchange:
    """Errors of a run, in the key-value store that all ranks reach also where a collective does not end."""

    def __init__(self, info: RankInfo, store: Any, prefix: str) -> None:
        self._info, self._store, self._prefix = info, store, prefix

    def first(self, error: BertsmithError) -> BertsmithError | None:
        """Publish this rank's error; return another rank's where that was published before."""
        message = json.dumps({"rank": self._info.rank, "error": error.to_dict()})
        try:
            published = self._store.compare_set(f"{self._prefix}/error", "", message).decode()
        except RuntimeError:  # the store has ended with the rank that holds it
            return None
        with suppress(RuntimeError):
            self._store.add(f"{self._prefix}/left", 1)
        first = json.loads(published)
        return None if first["rank"] == self._info.rank else error_from_dict(first["error"])

    def all_have_left(self) -> bool:
        """Wait until every rank has an error; False where one does not get to that by itself."""
        end = time.monotonic() + _LEAVE_SECONDS
        try:
            while self._store.add(f"{self._prefix}/left", 0) < self._info.world_size:
                if time.monotonic() > end:
                    return False
                time.sleep(0.02)
        except RuntimeError:  # the store has ended
            pass
        return True

    def wait_for_readers(self) -> None:
        """Keep the store, which may end with this process, until the ranks in a collective have read the error.

        They leave it when this process releases its groups, which callers of `rank_group` hold until they end.
        """
        # Python keeps an error that nobody caught, and with it the callers.
        for name in ("last_exc", "last_value", "last_traceback"):
            vars(sys).pop(name, None)
        gc.collect()
        self.all_have_left()


def _portable(error: BaseException, rank: int) -> BertsmithError:
    """Return an error as other ranks can raise it."""
    if isinstance(error, BertsmithError):
        return error
    if isinstance(error, KeyboardInterrupt):
        return Stopped(signal.SIGINT, "stopped")
    if _is_connection_error(error):
        return MachineError(
            "rank_lost",
            "a process of this run has ended or does not answer, and the others need it",
            hint="see its own error above, if it printed one, and start all processes again with "
            f"{option('resume', True)}",
        )
    return MachineError("rank_failed", f"process {rank} failed: {type(error).__name__}: {error}")


def _is_connection_error(error: BaseException) -> bool:
    """Return True for an error of the connection to other ranks; gloo's have no type of their own."""
    return isinstance(error, dist.DistError) or (isinstance(error, RuntimeError) and "gloo" in str(error))


def _destroy_groups() -> None:
    if dist.is_initialized():
        gc.collect()  # DistributedDataParallel holds the group, in cycles
        dist.destroy_process_group()


@dataclass(frozen=True)
class _RankStream:
    """A stream that builds only this rank's part of each batch."""

    stream: Stream
    rank: int
    world_size: int

    def size(self, epoch: int) -> int:
        return self.stream.size(epoch)

    def stop(self, epoch: int, start: int, size: int) -> int:
        return batch_end(self.stream, epoch, start, size)

    def batch(self, epoch: int, start: int, stop: int) -> Batch:
        size = stop - start
        begin, end = (start + size * number // self.world_size for number in (self.rank, self.rank + 1))
        if begin == end:
            return EmptyRankBatch(self.stream.batch(epoch, start, start + 1))
        return self.stream.batch(epoch, begin, end)


def count_batch(counts: Callable[[Any], Mapping[str, int]], batch: Any) -> Mapping[str, int]:
    """Return an objective's counts of a batch; zeros for an empty one."""
    if isinstance(batch, EmptyRankBatch):
        return dict.fromkeys(counts(batch.batch), 0)
    return counts(batch)


def create_strategy(
    module: TrainModule,
    context: ComputeContext,
    settings: TrainSettings,
    ranks: RankGroup,
    *,
    unfreezes: bool = False,
) -> GradientStrategy:
    """Create the gradient strategy of a run.

    Args:
        module: The module to train.
        context: The compute context.
        settings: The settings of the run.
        ranks: The ranks that train together.
        unfreezes: True if parameters become trainable during the run.
    """
    if ranks.world_size > 1 and settings.fsdp:
        from bertsmith.training.fsdp import FSDPStrategy  # the import takes half a second

        return FSDPStrategy(module, context, settings)
    if ranks.world_size > 1:
        return DDPStrategy(module, context, settings)
    if settings.fsdp:
        logger.warning(
            "train.fsdp has no effect: this run has one process, which holds the whole model; start several with "
            "torchrun"
        )
    if settings.cuda_graphs and supports_cuda_graphs(module, context, settings, unfreezes=unfreezes):
        return CudaGraphStrategy(module, context, settings)
    return GradientStrategy(module, context, settings)


class DDPStrategy(GradientStrategy):
    """Sums gradients over all ranks during the backward pass of an update's last batch. Weights are rank 0's."""

    def __init__(self, module: TrainModule, context: ComputeContext, settings: TrainSettings) -> None:
        super().__init__(module, context, settings)
        device = next(module.parameters()).device
        self._ddp = DistributedDataParallel(
            module,
            device_ids=None if device.index is None else [device],  # a CPU has no index
            gradient_as_bucket_view=True,
        )
        # DDP itself would divide by the number of ranks. The lambda has no annotations, which DDP would check.
        self._ddp.register_comm_hook(None, lambda state, bucket: _all_reduce_bucket(bucket.buffer()))
        self._wrapped_module = self._ddp

    def accumulate(self, *, is_last: bool) -> AbstractContextManager[object]:
        return nullcontext() if is_last else self._ddp.no_sync()

    def all_reduce(self, values: Tensor) -> Tensor:
        dist.all_reduce(values)
        return values


def _all_reduce_bucket(gradients: Tensor) -> torch.futures.Future[Tensor]:
    """Return a bucket of gradients, summed over all ranks."""
    future = dist.all_reduce(gradients, async_op=True).get_future()
    result: torch.futures.Future[Tensor] = future.then(lambda done: done.value()[0])
    return result
