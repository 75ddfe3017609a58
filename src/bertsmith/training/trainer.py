"""The training loop of pre-training and fine-tuning."""

from __future__ import annotations

import logging
import signal
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import partial

import torch
from torch import Tensor

from bertsmith import hardware
from bertsmith.device import ComputeContext
from bertsmith.errors import MachineError, Stopped, option
from bertsmith.training import checkpoint
from bertsmith.training.budget import TimeBudget
from bertsmith.training.callbacks import EarlyStopping, MetricLogger, StepResult
from bertsmith.training.data_loader import START, Update, iterate_updates
from bertsmith.training.distributed import SINGLE_RANK, RankGroup, count_batch, create_strategy
from bertsmith.training.optimizer import create_optimizer, expected_state, set_adam_beta1
from bertsmith.training.run_plan import RunPlan, read_plan, write_plan
from bertsmith.training.signals import stop_signals
from bertsmith.training.train_step import DeferredFiniteCheck, TrainModule, train_step
from bertsmith.training.training_job import TrainingJob, TrainOutput, TrainState

logger = logging.getLogger(__name__)


class Trainer:
    """Trains a module through the phases of a job.

    Attributes:
        state: The state of the run.
        plan: The length of the run, its learning rates, and its number of threads.
        strategy: Computes gradients, and owns the optimizer.
        throughput: The measured speed.
    """

    def __init__(
        self,
        module: TrainModule,
        job: TrainingJob,
        context: ComputeContext,
        *,
        resume: bool = False,
        ranks: RankGroup = SINGLE_RANK,
    ) -> None:
        """Load the newest complete checkpoint of the run if `resume` is set, and write plan.jsonl.

        Every rank calls this.

        Raises:
            InputError: There are checkpoints and none is complete, the newest is of another run, or the budget is
                invalid.
            MachineError: The ranks see different checkpoints, or plan.jsonl could not be written.
        """
        self.module, self.job, self.context, self.ranks = module, job, context, ranks
        self.settings, self.saving_seconds = job.settings, 0.0
        self.state = TrainState(fingerprint=job.fingerprint)
        self._finite_check = DeferredFiniteCheck()
        saved = self._load_checkpoint() if resume else None
        if saved is not None:
            self.state = saved.state
            module.load_tensors(saved.tensors["weights"])
            context.generator.set_state(saved.tensors["generator"]["state"])
        self._first_step = self.state.step
        self.plan = ranks.run_on_main(partial(self._create_plan, resume=resume))
        if resume and self.plan.restarts_schedule_after(self.state.step):
            self.state.num_bad_evals = self.state.num_lr_reductions = 0
        unfreezes = bool(job.unfreeze_steps)
        self.strategy = create_strategy(module, context, self.settings, ranks, unfreezes=unfreezes)
        if saved is not None:
            self.strategy.load_optimizer_state(saved.tensors["optimizer"])
        start_time = hardware.clock() if job.budget.start_time is None else job.budget.start_time
        self._start_time = start_time - self.state.seconds
        self.throughput = job.throughput
        self._time_budget = self._create_time_budget()
        self._callbacks = list(job.callbacks)
        self._metric_logger: MetricLogger | None = None

    def fit(self) -> TrainOutput:
        """Make all remaining updates; every rank calls this.

        The module then has the weights of the best evaluation, or without a metric for the best, the last ones.

        Raises:
            MachineError: A loss or gradient is not finite. The update was not made.
            Stopped: Rank 0 received SIGTERM, SIGINT, or SIGHUP. The latest update is saved.
        """
        state = self.state
        with self._session() as signals, closing(self._updates()) as updates:
            if self._evaluates_at_start:
                self._evaluate()
            start = hardware.clock()
            for update in updates:
                step, learning_rate = state.step + 1, self._learning_rate(state.step + 1)
                self._prepare_step(step)
                losses = train_step(self.strategy, update, learning_rate, step, self._finite_check)
                state.step, state.position = step, update.next_position
                state.tokens += update.tokens
                self._update_plan(hardware.clock() - start)
                metrics = self._metrics(update, losses, learning_rate)
                result = StepResult(update.tokens, learning_rate, metrics)
                for callback in self._callbacks:
                    callback.on_step_end(self, result)
                if self._is_evaluation_step:
                    self._evaluate()
                self._save_or_stop(signals)
                start = hardware.clock()
        return self._finish()

    @property
    def is_finished(self) -> bool:
        """True after the last update."""
        return self.state.step >= self.plan.num_updates

    @property
    def seconds(self) -> float:
        """The seconds of the run in all commands, without those after the last checkpoint before a crash."""
        return hardware.clock() - self._start_time

    @property
    def seconds_left(self) -> float | None:
        """The remaining seconds of a time budget that ends the run."""
        budget = self._time_budget
        return None if budget is None else budget.seconds_left(self.seconds, self.plan.num_updates)

    def end_run(self, why: str) -> None:
        """End the run after the update that was just made, before its budget."""
        step = self.state.step
        self.plan.entries.append(self.plan.changed_entry(step, updates=step, why=why))
        self.ranks.run_on_main(partial(write_plan, self.job.run, self.plan))

    # Start and end

    def _load_checkpoint(self) -> checkpoint.Checkpoint | None:
        """Return the newest complete checkpoint; the same on every rank."""
        optimizer = create_optimizer(self.module, self.settings)
        expected = self._checkpoint(expected_state(optimizer, dict(self.module.named_parameters())))
        newest: checkpoint.Checkpoint | None = None

        def load() -> int | None:
            nonlocal newest
            newest = checkpoint.load_newest(self.job.checkpoints, expected)
            return None if newest is None else newest.state.step

        step = self.ranks.run_on_main(load)
        if step is not None and not self.ranks.is_main and (local_step := load()) != step:
            local = "no checkpoint" if local_step is None else f"step-{local_step}"
            message = f"rank 0 continues from step-{step}, and another rank sees {local} here"
            hint = "give all processes the same run folder, on a file system that they share"
            raise MachineError(
                "checkpoint_differs_between_ranks", message, location=self.job.checkpoints, hint=hint
            )
        return newest

    def _create_plan(self, *, resume: bool) -> RunPlan:
        job, state = self.job, self.state
        plan = job.budget.new_plan()
        if resume:
            entries = read_plan(job.run, state.plan) or plan.entries
            plan = job.budget.resumed_plan(job.run, entries, state.step, state.seconds)
            if 0 < state.step < plan.num_updates:
                logger.info("resumed after update %s of %s", f"{state.step:,}", f"{plan.num_updates:,}")
        write_plan(job.run, plan)
        return plan

    def _create_time_budget(self) -> TimeBudget | None:
        limits = self.plan.last.budget
        if (minutes := limits.get("max_minutes")) is None:
            return None
        return TimeBudget(minutes, limits.get("max_steps"), self.job.phases, self.settings, self.throughput)

    @contextmanager
    def _session(self) -> Iterator[Sequence[int]]:
        """Open the log, catch signals, and set training mode and determinism; yield the received signals.

        At the end all parameters require gradients again.
        """
        with ExitStack() as stack:
            if self.ranks.is_main:
                self._metric_logger = MetricLogger(
                    self.job.run,
                    title=self.job.title,
                    num_updates=self.plan.num_updates,
                    step=self.state.step,
                    log_bytes=self.state.log_bytes,
                    trackers=self.settings.report_to,
                )
                self._callbacks.insert(0, stack.enter_context(self._metric_logger))
            stack.enter_context(self.context.deterministic(self.settings.deterministic))
            signals = stack.enter_context(stop_signals())
            self.module.train()
            try:
                yield signals
            finally:
                for parameter in self.job.unfreeze_steps:
                    parameter.requires_grad_(True)

    def _finish(self) -> TrainOutput:
        self.state.seconds = self.seconds
        self.strategy.unshard()
        self._use_threads_of_all_ranks()
        if self.job.evaluation and self.job.evaluation.best_metric:
            # If updates after the best evaluation were lost in a crash and repeated, their evaluations have
            # written the same weights again.
            self.module.load_tensors(checkpoint.load_best_weights(self.job.checkpoints, self.state))
        self.module.eval()
        state, last, num_new = self.state, self.plan.last, self.state.step - self._first_step
        why = self._early_stop_reason
        return TrainOutput(state, num_new, last.threads, last.processes, self.saving_seconds, why)

    @property
    def _early_stop_reason(self) -> str | None:
        last = self.plan.last
        has_stopped = any(
            isinstance(callback, EarlyStopping) and callback.should_stop_early(self.state.num_bad_evals)
            for callback in self._callbacks
        )
        return last.why if has_stopped and last.step == last.updates == self.state.step else None

    # Before an update

    def _updates(self) -> Generator[Update]:
        """Yield this rank's part of the remaining updates of all phases, with the counts of all ranks."""
        state, num_workers = self.state, self.settings.dataloader_num_workers
        num_batches = self.settings.gradient_accumulation_steps
        counts = partial(count_batch, self.module.objective.counts)
        while not self.is_finished:
            phase_index = self._next_phase_index()
            if state.phase != phase_index:
                state.phase, state.position = phase_index, START
            phase = self.job.phases[phase_index]
            stream, size = self.ranks.rank_stream(phase.stream), phase.batch_size
            updates = iterate_updates(stream, size, num_batches, state.position, num_workers, counts)
            with closing(updates):
                while not self.is_finished and self._next_phase_index() == phase_index:
                    yield self.ranks.all_reduce_counts(next(updates))

    def _next_phase_index(self) -> int:
        """Return the phase of the next update. A longer budget does not return to an earlier phase."""
        shares = [phase.share for phase in self.job.phases]
        return max(self.state.phase, self.plan.phase_index(self.state.step + 1, shares))

    def _learning_rate(self, step: int) -> float:
        reductions = self.state.num_lr_reductions
        return self.plan.learning_rate(step, self.settings) * self.settings.lr_decay_factor**reductions

    def _prepare_step(self, step: int) -> None:
        hardware.set_num_threads(self.plan.entry_at(step).threads)
        self.ranks.seed_step(self.context, self.settings.seed, step)
        set_adam_beta1(self.strategy.optimizer, self.plan.adam_beta1(step, self.settings))
        for parameter, first_step in self.job.unfreeze_steps.items():
            parameter.requires_grad_(step >= first_step)

    # After an update

    def _update_plan(self, update_seconds: float) -> None:
        """Add an entry to the plan if the time allows more or fewer updates than rank 0 had planned."""
        self.throughput.observe(self.state.phase, update_seconds)
        if self._time_budget is None:
            return
        propose = partial(self._time_budget.propose, self.plan, self.state.step, self.seconds)
        if (entry := self.ranks.run_on_main(propose)) is not None:
            self.plan.entries.append(entry)
            self.ranks.run_on_main(partial(write_plan, self.job.run, self.plan))

    def _metrics(
        self, update: Update, losses: Mapping[str, Tensor], learning_rate: float
    ) -> dict[str, float] | None:
        """Return the metrics of an update that is logged; otherwise None, without waiting for the device."""
        if self.state.step % self.settings.logging_steps and not self._is_evaluation_step:
            return None
        self._finite_check.wait()
        values = dict(zip(losses, torch.stack(list(losses.values())).tolist(), strict=True))
        gradient_norm = values.pop("gradient_norm")
        counts = {"epoch": update.epoch, "tokens": update.tokens}
        return {**counts, **values, "learning_rate": learning_rate, "gradient_norm": gradient_norm}

    @property
    def _evaluates_at_start(self) -> bool:
        """True if the task wants it at the first start, or if the weights of the best evaluation are lost."""
        evaluation, state = self.job.evaluation, self.state
        if evaluation is None:
            return False
        is_lost = evaluation.best_metric is not None and bool(state.evaluation) and state.best_step is None
        return is_lost or (state.step == 0 and evaluation.at_start)

    @property
    def _is_evaluation_step(self) -> bool:
        eval_steps = self.settings.eval_steps
        return self.is_finished or bool(eval_steps and self.state.step % eval_steps == 0)

    def _evaluate(self) -> None:
        evaluation, state = self.job.evaluation, self.state
        if evaluation is None:
            return
        start = hardware.clock()
        self._use_threads_of_all_ranks()
        with self.strategy.unsharded():
            result = self.ranks.run_on_main(partial(evaluation.run, self.module, state.step))
        self.throughput.evaluation_seconds = hardware.clock() - start
        state.evaluation = result.metrics
        if evaluation.best_metric is not None:
            score = result.metrics[evaluation.best_metric]
            if state.best_score is None or score > state.best_score:
                state.best_sha256 = self._save_best_weights()
                state.best_score, state.best_step, state.best_state = score, state.step, result.state
                state.num_bad_evals = 0
            else:
                state.num_bad_evals += 1
        for callback in self._callbacks:
            callback.on_evaluate(self)

    def _save_best_weights(self) -> str:
        start = hardware.clock()
        save = partial(checkpoint.save_best_weights, self.job.checkpoints, self.state.step)
        with self.strategy.unsharded():
            sha256 = self.ranks.run_on_main(lambda: save(self.module.saved_tensors()))
        self.saving_seconds += hardware.clock() - start
        return sha256

    def _save_or_stop(self, signals: Sequence[int]) -> None:
        """Save a checkpoint if it is time to, or if the run ends; raise Stopped after a signal."""
        signal_number = self.ranks.broadcast(signals[0] if signals else 0)
        is_stopping = signal_number > 0 and not self.is_finished
        if not (self.is_finished or is_stopping or self.state.step % self.settings.save_steps == 0):
            return
        self._save_checkpoint()
        for callback in self._callbacks:
            callback.on_save(self, is_stopping=is_stopping)
        if is_stopping:
            hint = f"continue with the same command and {option('resume', True)}"
            if any(callback.saves_unfinished_model for callback in self._callbacks):
                hint += f", or use the unfinished model in {self.job.run}"
            raise Stopped(
                signal_number,
                f"{self.job.run}: stopped by {signal.Signals(signal_number).name} after step "
                f"{self.state.step:,} of {self.plan.num_updates:,}, which is saved",
                hint,
            )

    def _save_checkpoint(self) -> None:
        self._finite_check.wait()
        start, self.state.seconds = hardware.clock(), self.seconds
        optimizer_state = self.strategy.optimizer_state()
        with self.strategy.unsharded():
            self.ranks.run_on_main(partial(self._write_checkpoint, optimizer_state))
        seconds = self.throughput.checkpoint_seconds = hardware.clock() - start
        self.saving_seconds += seconds

    def _write_checkpoint(self, optimizer_state: Mapping[str, Tensor]) -> None:
        assert self._metric_logger is not None
        self.state.log_bytes = self._metric_logger.sync()
        self.state.plan = self.plan.entries_until(self.state.step)
        content = self._checkpoint(optimizer_state)
        checkpoint.save(self.job.checkpoints, content, self.settings.save_total_limit)

    def _checkpoint(self, optimizer_state: Mapping[str, Tensor]) -> checkpoint.Checkpoint:
        tensors = {
            "weights": self.module.saved_tensors(),
            "optimizer": optimizer_state,
            "generator": {"state": self.context.generator.get_state()},
        }
        return checkpoint.Checkpoint(self.state, tensors)

    def _use_threads_of_all_ranks(self) -> None:
        """Let rank 0 use the threads that are planned for all ranks of this machine, which wait for it."""
        if self.ranks.is_main:
            hardware.set_num_threads(self.plan.last.threads * self.ranks.info.local_world_size)
