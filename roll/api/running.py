"""A run that a Python program starts and follows."""

import atexit
import logging
import threading
from collections.abc import Generator, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from roll.api.composing import Composed
from roll.api.saved import Rollouts, SavedRun, Table, metric_table, open_run, rollouts_in
from roll.configs.sections.run import RunConfig
from roll.errors import ConfigError, ResourceError
from roll.run.start.memory_report import memory_report
from roll.run.start.preflight import multimodal_notes
from roll.run.start.start_checks import refusals
from roll.utils.logging import logging_given_back

logger = logging.getLogger(__name__)

_ONE_AT_A_TIME = threading.Lock()
_SIGNALS, _INTERRUPTED = 128, 130  # exit codes: above 128 that of a signal, 130 of Ctrl-C
_BUSY = (
    "Another run of this process has not ended yet. End it first: leave its loop, or call its close(). (If its Ray "
    "has died, restart Python.)"
)


@dataclass(frozen=True)
class Step:
    """A step that is done. `number`: the steps done with it, from 1. `metrics`: as in metrics.jsonl (docs/metrics.md).

    Example: step.number == 3, step.metrics["rollout/reward_mean"] == 0.53
    """

    number: int
    metrics: Mapping[str, float]
    rollouts: Rollouts = field(repr=False)

    @property
    def samples(self) -> list[dict[str, Any]]:
        """Recorded samples of the step, those that `recorder` keeps: prompt_text, response_text, reward, group_id and
        others. Empty where a run samples nothing (sft, dpo ...)."""
        return self.rollouts.at(self.number)


class TrainingRun:
    """A run, from its start to its end; made by `roll.start`. Iterate over it once: each Step comes when it is done.

    Engines start with the first step. Ray and all workers are ended with the loop: at the last step, on `break`, on an
    exception, on Ctrl-C (which lets the step finish and be saved), and at the end of a `with`. Errors of the run are
    raised as they are: ConfigError, ResourceError, WorkerError and the other kinds of RollError.
    """

    def __init__(self, composed: Composed):
        """Checks everything that can be checked before engines start. Raises ConfigError with all that is wrong."""
        if _ONE_AT_A_TIME.locked():
            raise ConfigError(_BUSY)
        self._composed = composed
        with composed.code_at_hand():
            loaded = composed.check()
            memory = memory_report(loaded.config, loaded.plan)
            if problems := refusals(composed.spec, loaded, memory):
                raise ConfigError(*problems)
            for warning in (*loaded.warnings, *multimodal_notes(loaded.config), *memory.warnings):
                logger.warning("%s", warning)
            self._run = composed.spec.make_run(loaded.config, loaded.plan)
        self._steps: Generator[Step, None, None] | None = None
        self._is_over = False

    @property
    def config(self) -> RunConfig:
        """All settings, as they were checked."""
        return self._run.config

    @property
    def output_dir(self) -> Path:
        """The folder that the run writes to."""
        return self._run.output_dir

    @property
    def metrics(self) -> Table:
        """The rows so far: `step` (0: before training) and the metrics of each."""
        return metric_table(self._run.rows)

    def __iter__(self) -> Iterator[Step]:
        if self._steps is not None:
            state = "has ended" if self._is_over else "is being iterated over"
            raise ConfigError(f"This run {state}. Call roll.start again for another one.")
        return self._follow()

    def save(self) -> Path | None:
        """The checkpoint of the step that is done, written unless it is there. Call it in the loop. None where the run
        has no model to save (`mode: explore`)."""
        if self._steps is None or self._is_over:
            raise ConfigError(
                "save() works only inside the loop: nothing can be saved before its first step or after its end."
            )
        return self._run.save_now()

    def stop(self) -> None:
        """Ends the loop after this step, whose checkpoint is saved. `break` ends it without."""
        self._run.interrupts.requested = True

    def close(self) -> None:
        """Ends the run at once, if it has not ended."""
        if self._steps is not None:
            self._steps.close()
        self._steps, self._is_over = self._steps or _no_steps(), True

    def finish(self) -> SavedRun:
        """Runs to the end; what the run has left on disk."""
        for _ in self:
            pass
        return open_run(self.output_dir, self.config, self._run.rows)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _follow(self) -> Iterator[Step]:
        """Closes the run when the caller leaves the loop, even if other references to the run exist."""
        steps = self._steps = self._started()
        try:
            yield from steps
        finally:
            steps.close()

    def _started(self) -> Generator[Step, None, None]:
        if not _ONE_AT_A_TIME.acquire(blocking=False):
            raise ConfigError(_BUSY)
        run, rollouts = self._run, rollouts_in(self.output_dir, self.config)
        try:
            with self._composed.code_at_hand(), logging_given_back(), closing(run.steps()) as steps:
                for number, metrics in steps:
                    yield Step(number, dict(metrics), rollouts)
        finally:
            self._is_over = True
            self._release()
        self._raise_what_ended_it()

    def _release(self) -> None:
        """Lets another run start, unless Ray died: its threads would hang whoever calls it again, or the end of this
        process, which is therefore cut short."""
        if not self._run.interrupts.has_failed:
            _ONE_AT_A_TIME.release()
            return
        from roll.run.loop import leave

        atexit.register(leave, self._run.exit_code)

    def _raise_what_ended_it(self) -> None:
        if self._run.failure is not None:
            raise self._run.failure
        if self._run.exit_code == _INTERRUPTED:
            raise KeyboardInterrupt
        if self._run.exit_code > _SIGNALS:
            raise SystemExit(self._run.exit_code)
        if self._run.exit_code:
            raise ResourceError(f"The run ended with code {self._run.exit_code}: {self._run.record.cause}.")


def _no_steps() -> Generator[Step, None, None]:
    yield from ()
