"""Loop that every kind of training shares: set-up, steps, evaluation, checkpoints, tracking, and how a run ends."""

from __future__ import annotations

import gc
import logging
import math
import os
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from rich.console import Console

from roll.configs.plan.run_plan import RunPlan, run_length, schedule_warnings
from roll.configs.sections.run import RunConfig
from roll.errors import ConfigError, RollError, describe
from roll.run.accounting import Accounting
from roll.run.display.console import Display, make_display, open_terminal, terminal_handler
from roll.run.display.view import View, summarise, summary_lines
from roll.run.interrupts import Interrupts, StepAbandoned
from roll.run.records.digests import Digests
from roll.run.records.run_record import RunRecord
from roll.run.saving.checkpoint import Checkpoint, CheckpointStore, DriverState, write_state
from roll.run.tracking.build import make_trackers
from roll.run.tracking.local import METRICS_FILE, MetricHistory, Row, write_metrics
from roll.run.tracking.tracker import Trackers
from roll.utils.imports import resolve, traced
from roll.utils.logging import configure_logging
from roll.utils.secrets import find_secrets
from roll.utils.text import counted
from roll.utils.timing import Timer

if TYPE_CHECKING:
    from roll.run.records.scorecard import Scorecard

logger = logging.getLogger(__name__)

FAILED = 1
BAD_CONFIGURATION = 2
STOPPED = 130
_HEALTH = "roll.run.health.tracker:HealthTracker"
_REPORT = "roll.report.command:write_report"


def measures_after(config: RunConfig, steps_done: int) -> bool:
    """True if the model is evaluated after so many steps."""
    every = config.eval_steps
    return every > 0 and (steps_done == config.max_steps or steps_done % every == 0)


class RunMode:
    """Part of a run that a process does: here all of it. `rl/mode.py` names others."""

    takes_steps: ClassVar[bool] = True
    """False of a process that only measures."""
    saves: ClassVar[bool] = True
    """True if it writes checkpoints."""

    def find_checkpoint(self, store: CheckpointStore, resume_from: bool | str) -> Checkpoint | None:
        """The checkpoint to go on from. `resume_from`: resume_from_checkpoint."""
        return store.resolve(resume_from)

    def steps_done(self, checkpoint: Checkpoint | None) -> int:
        """The steps that are done when the run begins."""
        return checkpoint.state.steps_done if checkpoint is not None else 0

    def measures_first(self, config: RunConfig, steps_done: int, history: MetricHistory) -> bool:
        """True if the model is evaluated before the next step."""
        return steps_done == 0 and config.validates_first

    def show(self, metrics: Mapping[str, float]) -> None:
        """Called with what a process has measured that takes no steps."""


class Run(ABC):
    """A loop over steps. After the first step one step is done: "steps done" is the number that trackers, checkpoints
    and evaluations carry; 0 is the state before training.

    A subclass says what a person sees of it (`view`), how things are built, what one step is, how to evaluate, and what
    a checkpoint holds.
    """

    view: ClassVar[View]

    def __init__(self, config: RunConfig, mode: RunMode | None = None):
        """`mode`: None where the process does the whole run."""
        self.config, self.mode = config, mode or RunMode()
        self.output_dir = Path(config.output_dir)
        self.checkpoints = CheckpointStore(config.checkpoint_dir, config.max_ckpt_to_keep, config.verify_checkpoint)
        self.interrupts = Interrupts(config.interrupt_timeout)
        self.accounting = Accounting(config)
        self.record = RunRecord(Path(config.logging_dir), self.view)
        self.digests = Digests(Path(config.logging_dir))
        self.display: Display = make_display(None, self.view.columns)  # until it is known where the run is shown
        self.trackers = Trackers({})
        self.timer = Timer(on_enter=lambda phase: self.display.phase(phase), on_leave=self.accounting.phase)
        self.exit_code = FAILED
        self.failure: RollError | None = None
        """What the run ended with, where that was an error; known once it has ended."""
        self.history = MetricHistory()
        self.scorecard: Scorecard | None = None
        self._steps_done = self._saved = 0
        self._newest: Path | None = None  # the checkpoint that this run saved last, or began from

    def prepare(self, checkpoint: Checkpoint | None) -> None:
        """Everything that can refuse the run, before `build` starts its processes: the data, and whether this
        configuration can go on from the checkpoint. Where epochs say how long the run is, `config` has its max_steps
        afterwards (`of_known_length`)."""

    @abstractmethod
    def build(self) -> None:
        """Starts everything the run needs. What it opens, `close` closes, also when build fails half way."""

    @abstractmethod
    def step(self, step: int) -> dict[str, float]:
        """One step, counted from 0. Returns its metrics."""

    @abstractmethod
    def evaluate(self, steps_done: int) -> dict[str, float]:
        """Metrics of the present model on held-out data; empty if the run has none."""

    @abstractmethod
    def save(self, directory: Path) -> dict[str, Any]:
        """Writes models below `directory`; returns the driver's own state as JSON values."""

    @abstractmethod
    def restore(self, directory: Path, state: Mapping[str, Any], steps_done: int) -> None:
        """Takes up what `save` wrote."""

    def begin(self, steps_done: int) -> None:
        """Prepares the first step of a run that resumes from no checkpoint."""

    def checkpoint_saved(self, steps_done: int) -> None:
        """The checkpoint of so many steps is whole."""

    @abstractmethod
    def close(self) -> None:
        """Ends all processes of the run. Called once, however the run ends."""

    def run(self) -> int:
        """Runs to the end. Exit code 0, 1 after a failure, 2 for a bad configuration, 128 + the number of a signal."""
        for _ in self.steps():
            pass
        if self.interrupts.has_failed:
            leave(self.exit_code)
        return self.exit_code

    def steps(self) -> Generator[Row, None, None]:
        """The same, one step at a time: each row is there when its step is done, validated and saved. Errors are logged
        and kept in `failure`, the exit code in `exit_code`. Whoever closes the iterator before its end ends the run at
        once, as a second Ctrl-C does: nothing more is saved."""
        terminal = open_terminal()
        try:
            self._configure_logging(terminal, self.config.logging_dir)
        except OSError as error:
            self._configure_logging(terminal, None)
            self.failure = ConfigError(f"logging_dir: {self.config.logging_dir} cannot be written: {error.strerror}")
            logger.error("%s", self.failure)
            self.exit_code = BAD_CONFIGURATION
            return
        try:
            self.exit_code = yield from self._to_the_end(terminal)
        except GeneratorExit:
            self.record.cause, self.exit_code = "stopped", STOPPED
            raise
        finally:
            self.record.end(self.exit_code)
        if self.rows:
            self._write_report()

    @property
    def rows(self) -> Sequence[Row]:
        return self.history.rows

    def save_now(self) -> Path | None:
        """The checkpoint of the steps done, between two steps. None where nothing is to be saved (`mode: explore`)."""
        if self._newest is None or self._saved != self._steps_done:
            self._save(self._steps_done)
        return self._newest

    def _write_report(self) -> None:
        """The page of `roll report`, which needs what the run left on disk. One that cannot be written ends no run."""
        write: Any = resolve(_REPORT)
        try:
            logger.info("report: %s", write(Path(self.config.logging_dir), self.output_dir.absolute() / "report.html"))
        except Exception as error:
            logger.warning("the report of the run is not written: %s", describe(error))

    def _configure_logging(self, terminal: Console | None, directory: str | None) -> None:
        configure_logging(
            tag="driver",
            directory=directory,
            terminal=terminal_handler(terminal) if terminal else None,
            secrets=find_secrets(self.config.model_dump()),
        )

    def _to_the_end(self, terminal: Console | None) -> Generator[Row, None, int]:
        """Returns the exit code."""
        try:
            with self.interrupts, ExitStack() as stack:
                self.display = stack.enter_context(make_display(terminal, self.view.columns, self._known_steps))
                stack.callback(self.close)
                yield from self._run()
        except KeyboardInterrupt:
            self.record.cause = "stopped"
            logger.warning("stopped")
            return self.interrupts.exit_code or STOPPED
        except ConfigError as error:
            self.failure, self.record.cause = error, "\n".join(error.problems)
            for problem in error.problems:
                logger.error("%s", problem)
            return BAD_CONFIGURATION
        except RollError as error:
            self.failure, self.record.cause = error, f"{type(error).__name__}: {error}"
            logger.error("%s", self.record.cause)
            logger.debug("where it was raised", exc_info=True)
            return self._failed()
        except Exception as error:
            self.record.cause = traced(error)
            if not self.interrupts.has_failed:
                logger.error("%s", self.record.cause)
                raise
            logger.debug("what followed from it", exc_info=True)
            return self._failed()
        return self.interrupts.exit_code

    def _failed(self) -> int:
        """A signal to all processes of a job reaches Ray as well: that its end failed is no failure of the run."""
        return (self.interrupts.exit_code if self.interrupts.has_failed else 0) or FAILED

    def _run(self) -> Iterator[Row]:
        started = time.perf_counter()
        checkpoint = self.mode.find_checkpoint(self.checkpoints, self.config.resume_from_checkpoint)
        self.prepare(checkpoint)
        if self.config.counts_epochs and self.mode.takes_steps:
            raise ConfigError("num_train_epochs: a run of this kind does not count rows. Set max_steps.")
        steps_done = self.mode.steps_done(checkpoint)
        self.record.begin(self.config, steps_done)
        if self.has_work(steps_done) and self.mode.takes_steps:
            make: Any = resolve("roll.run.records.scorecard:scorecard_of")
            plan = getattr(self, "plan", None)  # a pipeline of one's own may have none
            self.scorecard = make(self.config, plan)  # before an earlier run's metrics are put aside
        self.trackers = self._start_trackers(steps_done)
        failed = True
        try:
            if self.has_work(steps_done):
                self.build()
                if checkpoint is not None:
                    logger.info("resuming from the checkpoint of step %d", steps_done)
                    self.restore(checkpoint.path, checkpoint.state.run, steps_done)
                else:
                    self.begin(steps_done)
                logger.info("ready in %.1f s", time.perf_counter() - started)
            else:
                epochs = self.config.num_train_epochs
                key = "max_steps" if epochs is None else f"max_steps, for num_train_epochs: {epochs:g},"
                logger.warning(
                    "nothing is left to do: %d steps are done and %s is %d. Raise it to go on",
                    steps_done,
                    key,
                    self.config.max_steps,
                )
            if checkpoint is not None and self.mode.takes_steps:
                self.history.load(checkpoint.path / METRICS_FILE)
            every = {"validate": self.config.eval_steps, "checkpoint": self.config.save_steps}
            self.display.start(steps_done, self.config.max_steps if self.mode.takes_steps else 0, every)
            self._steps_done = self._saved = steps_done
            self._newest = None if checkpoint is None else checkpoint.path
            if self.mode.takes_steps:
                yield from self._loop(steps_done)
            else:
                self._measure(steps_done)
            failed = False
        finally:
            gc.unfreeze()  # the process may have more to do: another stage
            self._finish(failed)

    @property
    def _known_steps(self) -> int | None:
        """Steps of the run; None where rows have to be counted first."""
        return self.config.max_steps if self.mode.takes_steps and not self.config.counts_epochs else None

    def has_work(self, steps_done: int) -> bool:
        """False if nothing is to be started."""
        return not self.mode.takes_steps or steps_done < self.config.max_steps

    def _start_trackers(self, steps_done: int) -> Trackers:
        """Starts the trackers before anything that takes minutes and devices, since a service may refuse."""
        watch: Any = resolve(_HEALTH)
        watchers = {"health": partial(watch, alert_url=self.config.alert_url)}
        return make_trackers(
            self.config.track_with,
            self.config.tracker_kwargs,
            self.config.logging_dir,
            self.config.model_dump(mode="json"),
            steps_done + 1 if steps_done and self.mode.takes_steps else 0,
            watchers if self.mode.takes_steps else None,
        )

    def _measure(self, steps_done: int) -> None:
        metrics = self.evaluate(steps_done)
        self.history.append(steps_done, metrics)
        self._report()
        self.mode.show(metrics)

    def _loop(self, steps_done: int) -> Iterator[Row]:
        config = self.config
        self.interrupts.patient = True
        first = self.mode.measures_first(config, steps_done, self.history)
        if first:
            logger.info("validating before the first step")
            with self.timer("validate"):
                metrics = self.evaluate(steps_done)
            if metrics:
                seconds = self.timer.metrics()["time/validate_s"]
                self.history.append(steps_done, metrics | {"time/validate_s": seconds})
                self._report()
        gc.freeze()  # what was imported and built stays: a full collection over it takes .3 s, in the middle of a step
        self.accounting.start()
        while steps_done < config.max_steps and not self.interrupts.requested:
            self.timer.reset()
            try:
                metrics = self.step(steps_done)
            except StepAbandoned:
                break
            steps_done = self._steps_done = steps_done + 1
            last = steps_done == config.max_steps
            validated = measures_after(config, steps_done) and not self.interrupts.requested
            if validated:
                with self.timer("validate"):
                    metrics |= self.evaluate(steps_done)
            metrics |= self.accounting.metrics(steps_done)
            metrics |= self.scorecard.add(self.timer.metrics()) if self.scorecard is not None else {}
            self.history.append(steps_done, metrics | self.timer.metrics())
            if config.save_steps > 0 and (last or steps_done % config.save_steps == 0):
                with self.timer("checkpoint"):
                    self._save(steps_done)
                self.history.replace_last(steps_done, metrics | self.timer.metrics())
            self.accounting.observe(*self.history.last)
            if last or validated or self.interrupts.requested or steps_done % config.logging_steps == 0:
                self._report()
            yield self.history.last
        if self.interrupts.requested and self._saved < steps_done:
            self._save(steps_done)
        self.accounting.end()
        self.interrupts.patient = False

    def _report(self) -> None:
        steps_done, metrics = self.history.last
        self.trackers.log(steps_done, metrics)
        self.display.step(steps_done, metrics)

    def _save(self, steps_done: int) -> None:
        if not self.mode.saves:
            return
        with self.checkpoints.writing(steps_done) as directory:
            state = self.save(directory)
            write_metrics(directory / METRICS_FILE, self.rows)
            write_state(
                directory, DriverState(steps_done=steps_done, run=state, config=self.config.model_dump(mode="json"))
            )
        self._saved, self._newest = steps_done, self.checkpoints.latest()
        self.checkpoint_saved(steps_done)

    def _finish(self, failed: bool) -> None:
        self.accounting.close()
        if self.scorecard is not None and not failed:
            self.scorecard.close()
        if not self.rows:
            self.trackers.close(failed)
            return
        summary = summarise(self.rows, self.view)
        place = self.output_dir.absolute()
        files: dict[str, Path | str] = {"output": place}
        if self._newest is not None:
            files["checkpoint"] = self._newest
        chats = self._newest is not None and "actor_train" in self.config.roles
        files["next"] = ", ".join([*([f"roll chat {place}"] if chats else []), f"roll studio {place.parent}"])
        self.display.summary(summary_lines(summary, files))
        self.trackers.summary(summary.as_dict())
        self.trackers.close(failed)


def leave(code: int) -> None:
    """Ends this process now: without Ray's own processes, its native threads would hang or crash at an ordinary end."""
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


# Converts epochs to steps, once the rows are counted.

C = TypeVar("C", bound=RunConfig)
P = TypeVar("P", bound=RunPlan)


def of_known_length(config: C, plan: P, num_rows: int, rows_per_step: int) -> tuple[C, P]:
    """The settings and the plan of a run whose training has so many rows: num_train_epochs gives max_steps, and so all
    schedules. The last step is whole, of rows of the next epoch."""
    if config.num_train_epochs is None or not config.counts_epochs:
        return config, plan
    steps = math.ceil(Fraction(str(config.num_train_epochs)) * num_rows / rows_per_step)
    logger.info(
        "%s of %s, %d in a step, are %s",
        run_length(config).split(" (")[0],
        counted(num_rows, "row"),
        rows_per_step,
        counted(steps, "step"),
    )
    plan = plan.over(steps)
    for warning in schedule_warnings(plan):
        logger.warning("%s", warning)
    return config.model_copy(update={"max_steps": steps}), plan
