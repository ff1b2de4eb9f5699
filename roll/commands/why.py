"""`roll why`: a test of what the rules suspect. A run resumes exactly, so its own steps are the control: the same ones
are taken again with one key changed."""

import math
import os
import shlex
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from roll.commands.fork import checkpoints_of, write_fork
from roll.commands.options import why_parser
from roll.errors import ConfigError
from roll.report.run_files import RunFiles, read_run
from roll.run.health.history import History
from roll.run.health.rules import REWARD, Cause
from roll.run.health.verdict import symptoms
from roll.run.tracking.local import METRICS_FILE, read_metrics
from roll.utils.imports import own_folders

LOG = "why.log"
HELPS = "this makes the difference"
_POLL_S = 0.5
_WINDOW = 10  # steps that a rule looks back
_METRICS = (REWARD, "train/nll_mean", "train/loss", "train/divergence_mean")  # the first that the run has


def run(argv: Sequence[str]) -> Iterator[str]:
    """Lines of what was found. Raises ConfigError where there is nothing to test."""
    options, overrides = why_parser().parse_known_args(argv)
    first = read_run(Path(options.run).absolute())
    history = History.of(read_metrics(first.metrics), first.config)
    found = symptoms(history)
    yield from (line for symptom in found for line in symptom.lines())
    causes = [cause for symptom in found for cause in symptom.diagnosis.causes if cause.key and cause.value]
    if not causes:
        raise ConfigError("no rule applies to this run that names a key and a value to test: docs/health.md.")
    label = found[0].label
    began = _began(first, label)
    saved = [step for step in map(_step_of, checkpoints_of(first)) if step <= began - _WINDOW]
    start = max(saved, default=min(step for step, _ in first.rows if step) - 1)
    yield f"{label} since step {began}: tested from {f'the checkpoint of step {start}' if saved else 'the start'}"
    for change in [change for cause in causes[: options.causes] for change in _changes(cause)]:
        out = first.output.absolute().with_name(f"{first.output.absolute().name}-why-{change}")
        file = write_fork(first, str(start) if start else "", out, overrides, resumes=bool(saved))
        words = [change, "overwrite_output_dir=true", "eval_steps=-1", "save_steps=-1", *overrides]
        command = [sys.executable, "-m", "roll", "run", str(file), *words]
        if options.plan:
            yield shlex.join(["roll", *command[3:]])
            continue
        rows = _take_steps(command, out, start + options.steps)
        taken = any(step > start for step, _ in rows)
        effect = _effect(first.rows, rows, start, start + options.steps) if taken else f"it took no step: {out / LOG}"
        yield f"{change}: {effect}"
        if effect.endswith(HELPS):
            return


def _changes(cause: Cause) -> Iterator[str]:
    """The proposed value of a key; of a learning rate a tenth of it, too."""
    yield f"{cause.key}={cause.value}"
    if cause.key.endswith("learning_rate"):
        yield f"{cause.key}={float(cause.value) / 10:.0e}"


def _began(run: RunFiles, label: str) -> int:
    """The first step at which a rule applied."""
    history = History(run.config)
    for step, metrics in read_metrics(run.metrics):
        history.add(step, metrics)
        if any(symptom.label == label for symptom in symptoms(history)):
            return step
    return history.step


def _step_of(checkpoint: Path) -> int:
    return int(checkpoint.name.removeprefix("step_"))


def _take_steps(command: Sequence[str], out: Path, last: int) -> list[tuple[int, dict[str, float]]]:
    """Runs until a step is written, and ends the run then. Returns its metrics."""
    metrics = out / "logs" / METRICS_FILE
    metrics.unlink(missing_ok=True)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(own_folders())}  # code of the user's own
    with (out / LOG).open("wb") as log:
        child = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment)
        try:
            while child.poll() is None and max((step for step, _ in read_metrics(metrics)), default=0) < last:
                time.sleep(_POLL_S)
        finally:
            if child.poll() is None:
                child.send_signal(signal.SIGINT)
            child.wait()
    return read_metrics(metrics)


def _effect(
    before: Sequence[tuple[int, Mapping[str, Any]]],
    after: Sequence[tuple[int, Mapping[str, Any]]],
    start: int,
    last: int,
) -> str:
    """The mean difference over equal steps, which see the same prompts, and its interval of 95 %."""
    old, new = dict(before), dict(after)
    name = next((name for name in _METRICS if any(name in row for row in new.values())), REWARD)
    steps = [step for step in range(start + 1, last + 1) if name in old.get(step, {}) and name in new.get(step, {})]
    half = steps[len(steps) // 2 :]  # a change needs some steps to show
    if len(half) < 2:
        return f"{len(steps)} equal steps are too few to compare"
    gaps = [new[step][name] - old[step][name] for step in half]
    mean, error = statistics.fmean(gaps), 2.0 * statistics.stdev(gaps) / math.sqrt(len(gaps))
    is_better = mean > error if name == REWARD else mean < -error
    verdict = HELPS if is_better else "this is not the cause, or not alone"
    means = [statistics.fmean(rows[step][name] for step in half) for rows in (old, new)]
    return (
        f"{name} over steps {half[0]} to {half[-1]} {means[0]:.3g} -> {means[1]:.3g} "
        f"({mean:+.3g} +- {error:.2g}): {verdict}"
    )
