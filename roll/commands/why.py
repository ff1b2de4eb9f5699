"""`roll why`: a test of what the rules suspect. A run resumes exactly, so its own steps are the control: the same ones
are taken again with one key changed."""

import math
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from roll.commands.fork import checkpoints_of, shell_line, write_fork
from roll.commands.options import why_parser
from roll.errors import ConfigError
from roll.report.run_files import RunFiles, read_run
from roll.run.health.diagnosis import REWARD, Cause
from roll.run.health.history import History
from roll.run.health.verdict import symptoms
from roll.run.records.scorecard import about
from roll.run.tracking.local import METRICS_FILE, read_metrics
from roll.utils.imports import own_folders
from roll.utils.text import counted

LOG = "why.log"
Row = tuple[int, Mapping[str, float]]
Rows = Sequence[Row]
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
    if options.seeds > 1:  # a checkpoint goes on with its own seed
        saved = []
    start = max(saved, default=min(step for step, _ in first.rows if step) - 1)
    last = max(start, began if options.seeds > 1 else 0) + options.steps
    yield f"{label} since step {began}: tested from {f'the checkpoint of step {start}' if saved else 'the start'}"
    test = _Test(first, str(start) if saved else "", last, overrides, options.plan)
    seeds = [f"seed={int(first.config['seed']) + number}" for number in range(1, options.seeds)]
    controls: list[Rows] = [list(first.rows)]
    for seed in seeds:
        yield from test.take(seed)
        controls.append(test.rows)
    for change in [change for cause in causes[: options.causes] for change in _changes(cause)]:
        changed: list[Rows] = []
        for more in ([], *([seed] for seed in seeds)):
            yield from test.take(change, *more)
            changed.append(test.rows)
        if not options.plan:
            effect = _effect(controls, changed, start, last)
            yield f"{change}: {effect}"
            if effect.endswith(HELPS):
                return
    if options.plan:
        seconds = statistics.median([row["time/step_s"] for _, row in first.rows if "time/step_s" in row] or [math.nan])
        steps = min(last, int(first.config.get("max_steps") or last)) - start
        whole = f"~{about(test.count * steps * seconds)} at this run's {about(seconds)} a step, beside their starts"
        yield f"at most {counted(test.count, 'run')} of {counted(steps, 'step')}: {whole}"


class _Test:
    """Takes steps of a run again. `rows`: the metrics of the last time."""

    def __init__(self, first: RunFiles, step: str, last: int, overrides: Sequence[str], is_plan: bool):
        self._first, self._step, self._last, self._overrides = first, step, last, overrides
        self._is_plan = is_plan
        self.rows: Rows = []
        self.count = 0

    def take(self, *changes: str) -> Iterator[str]:
        """Runs with these words up to the last step; returns what there is to say of it."""
        place = self._first.output.absolute()
        out = place.with_name("-".join((place.name, "why", *changes)))
        file = write_fork(self._first, self._step, out, self._overrides, bool(self._step), "why " + " ".join(changes))
        words = [*changes, "overwrite_output_dir=true", "eval_steps=-1", "save_steps=-1", *self._overrides]
        self.count += 1
        if self._is_plan:
            yield shell_line(file, words)
            return
        command = [sys.executable, "-m", "roll", "run", str(file), *words]
        self.rows = _take_steps(command, out, self._last)
        if not any(step > int(self._step or 0) for step, _ in self.rows):
            yield f"{' '.join(changes)}: it took no step: {out / LOG}"


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


def _effect(before: Sequence[Rows], after: Sequence[Rows], start: int, last: int) -> str:
    """The mean difference over equal steps, which see the same prompts, seed by seed. Of one seed with its interval of
    95 % over the steps, of several with their standard deviation; it helps if it does with every seed."""
    name = next((name for name in _METRICS if any(name in row for rows in after for _, row in rows)), REWARD)
    gaps: list[float] = []
    pairs: list[tuple[float, float]] = []
    half: list[int] = []
    for old, new in ((dict(old), dict(new)) for old, new in zip(before, after, strict=True)):
        steps = [step for step in range(start + 1, last + 1) if name in old.get(step, {}) and name in new.get(step, {})]
        half = steps[len(steps) // 2 :]  # a change needs some steps to show
        if len(half) < 2:
            return f"{len(steps)} equal steps are too few to compare"
        pairs += [(old[step][name], new[step][name]) for step in half]
        gaps.append(statistics.fmean(new[step][name] - old[step][name] for step in half))
    sign = 1.0 if name == REWARD else -1.0
    of_steps = [new - old for old, new in pairs]
    error = statistics.stdev(gaps) if len(gaps) > 1 else 2.0 * statistics.stdev(of_steps) / math.sqrt(len(of_steps))
    mean, better = statistics.fmean(gaps), sum(sign * gap > 0 for gap in gaps)
    verdict = HELPS if better == len(gaps) and sign * mean > error else "this is not the cause, or not alone"
    means = [statistics.fmean(values) for values in zip(*pairs, strict=True)]
    seeds = f", better with {better} of {len(gaps)} seeds" if len(gaps) > 1 else ""
    return (
        f"{name} over steps {half[0]} to {half[-1]} {means[0]:.3g} -> {means[1]:.3g} "
        f"({mean:+.3g} +- {error:.2g}{seeds}): {verdict}"
    )
