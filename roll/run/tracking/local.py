"""Trackers that write on this machine and need no account: jsonl, stdout, tensorboard."""

from __future__ import annotations

import errno
import io
import json
import logging
import math
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from roll.run.bottleneck import bottleneck_of
from roll.run.tracking.tracker import Metrics, TrackedRun, TrackedSample, Tracker
from roll.utils.files import open_regular, write_whole
from roll.utils.text import visible

logger = logging.getLogger(__name__)

METRICS_FILE = "metrics.jsonl"
SUMMARY_FILE = "summary.json"
NO_METRICS = (ValueError, KeyError, TypeError, OverflowError, RecursionError)  # of a killed run, its last line
Row = tuple[int, Metrics]
"""The steps done, and the metrics of the last of them."""
_OTHER_KEYS = frozenset({"step", "time", "bound"})  # of a line, beside its metrics


class JsonlTracker(Tracker):
    """`metrics.jsonl`: one line `{"step": 3, "time": "2026-03-01T12:00:00.000+00:00", "rollout/reward_mean": 0.5, ...}`
    per call, on the disk when log returns; NaN and infinities are null. Resuming at step s drops the lines of steps >=
    s. A new run in the directory of an old one puts the old file aside (`metrics.1.jsonl`)."""

    asks_a_service = False

    def __init__(self, run: TrackedRun, settings: Mapping[str, Any]):
        self._directory = Path(settings.get("log_dir") or run.directory)
        self._directory.mkdir(parents=True, exist_ok=True)
        path = self._directory / METRICS_FILE
        if run.resumed:
            _keep_before(path, run.first_step)
        else:
            _put_aside(path)
        self._file = path.open("ab", buffering=0)

    def log(self, step: int, metrics: Metrics) -> None:
        line = _line(step, metrics, datetime.now(UTC).isoformat(timespec="milliseconds")).encode()
        end = self._file.tell()
        if self._file.write(line) != len(line):  # the disk is full: the line is written again, whole
            self._file.truncate(end)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self._file.name)

    def summary(self, values: Mapping[str, Any]) -> None:
        write_whole(self._directory / SUMMARY_FILE, json.dumps(values, indent=1, default=str) + "\n")

    def close(self, failed: bool = False) -> None:
        self._file.close()


def write_metrics(path: Path, rows: Iterable[tuple[int, Metrics]]) -> None:
    path.write_text("".join(_line(step, metrics) for step, metrics in rows), encoding="utf-8")


def read_metrics(path: Path) -> list[tuple[int, dict[str, float]]]:
    """The steps and metrics of a metrics.jsonl, [] when there is none.

    Calls for the same step are merged into one row. Numbers that JSON could not hold come back as NaN."""
    rows: dict[int, dict[str, float]] = {}
    for _, line in _lines(path):
        step, metrics = read_line(line)
        rows.setdefault(step, {}).update(metrics)
    return list(rows.items())


class MetricHistory:
    """The rows of a run so far, those before a resume included."""

    def __init__(self) -> None:
        self.rows: list[Row] = []

    @property
    def last(self) -> Row:
        return self.rows[-1]

    def load(self, path: Path, last: int | None = None) -> None:
        """Takes the rows of a metrics.jsonl in place of its own. `last`: the last step of which it wants any."""
        self.rows = [row for row in read_metrics(path) if last is None or row[0] <= last]

    def append(self, steps_done: int, metrics: Metrics) -> None:
        self.rows.append((steps_done, metrics))

    def replace_last(self, steps_done: int, metrics: Metrics) -> None:
        self.rows[-1] = (steps_done, metrics)


def read_line(line: str) -> tuple[int, dict[str, float]]:
    """Step and metrics of a line. Raises one of NO_METRICS for what is none."""
    row = json.loads(line, parse_int=float)  # an integer may be too large for arithmetic
    step = int(row["step"])
    return step, {name: math.nan if v is None else v for name, v in row.items() if name not in _OTHER_KEYS}


def _line(step: int, metrics: Metrics, moment: str | None = None) -> str:
    head = {"step": step} if moment is None else {"step": step, "time": moment}
    row = {**head, **{name: float(value) if math.isfinite(value) else None for name, value in metrics.items()}}
    if (bound := bottleneck_of(metrics)) is not None:
        row["bound"] = bound.text
    return json.dumps(row) + "\n"


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    if not path.exists():
        return
    with io.TextIOWrapper(open_regular(path), encoding="utf-8", errors="replace") as file:
        for number, line in enumerate(file, 1):
            try:
                yield int(json.loads(line)["step"]), line
            except NO_METRICS:
                logger.warning("%s: line %d holds no metrics of a step and is skipped", path, number)


def _keep_before(path: Path, step: int) -> None:
    write_whole(path, "".join(line for line_step, line in _lines(path) if line_step < step))


def _put_aside(path: Path) -> None:
    if path.exists() and path.stat().st_size:
        number = next(n for n in range(1, 10**6) if not path.with_name(f"metrics.{n}.jsonl").exists())
        path.rename(path.with_name(f"metrics.{number}.jsonl"))


class StdoutTracker(Tracker):
    """One line per step with every number, on standard output: for runs whose output is collected."""

    asks_a_service = False

    def __init__(self, run: TrackedRun, settings: Mapping[str, Any]):
        del run, settings

    def log(self, step: int, metrics: Metrics) -> None:
        self._write(f"step {step}", metrics)

    def summary(self, values: Mapping[str, Any]) -> None:
        self._write("summary", values)

    def _write(self, head: str, values: Mapping[str, Any]) -> None:
        texts = [f"{name}={_short(value)}" for name, value in values.items()]
        sys.stdout.write(" ".join([head, *texts]) + "\n")
        sys.stdout.flush()


def _short(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


class TensorboardTracker(Tracker):
    """TensorBoard event files below `<directory>/tensorboard` (or `log_dir`); steps that are run again replace the
    old."""

    asks_a_service = False

    def __init__(self, run: TrackedRun, settings: Mapping[str, Any]):
        from torch.utils.tensorboard import SummaryWriter

        directory = str(settings.get("log_dir") or run.directory / "tensorboard")
        self._writer: Any = SummaryWriter(directory, purge_step=run.first_step if run.resumed else None)

    def log(self, step: int, metrics: Metrics) -> None:
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def samples(self, step: int, kind: str, samples: Sequence[TrackedSample]) -> None:
        """TensorBoard reads Markdown: the texts of others are indented, which leaves them as they are."""
        self._writer.add_text(f"samples/{kind}", _markdown(samples), step)
        self._writer.flush()

    def close(self, failed: bool = False) -> None:
        self._writer.close()


def _markdown(samples: Sequence[TrackedSample]) -> str:
    blocks = []
    for sample in samples:
        reward = "failed" if sample.reward is None else f"reward {sample.reward:.4g}"
        said = [f"{sample.domain}, group {sample.group}: {reward}, {sample.finish_reason}", "", sample.prompt, ""]
        said += [f"--- {sample.response_tokens} tokens", sample.response]
        said += [f"--- ground truth: {sample.ground_truth}"] if sample.ground_truth else []
        blocks.append("\n".join(f"    {line}" for part in said for line in visible(part).split("\n")))
    return "\n\n---\n\n".join(blocks)
