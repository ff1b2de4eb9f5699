"""Lengths of prompts and responses before a run: from its rows, from an earlier run in its folder, or assumed."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from statistics import NormalDist

from roll.configs.plan.batch_plan import BatchPlan
from roll.configs.plan.run_plan import RunPlan
from roll.configs.sections.algorithm import AlgorithmConfig
from roll.configs.sections.run import RunConfig
from roll.datasets.loader import DataSource, Row
from roll.datasets.sources import all_rows
from roll.errors import ConfigError
from roll.pipeline.rlvr.rlvr_config import RLVRConfig
from roll.run.start.first_rows import learners_tokenizer
from roll.run.tracking.local import METRICS_FILE, read_metrics
from roll.utils.text import counted

_ROWS, _STEPS = 64, 10  # that are looked at
_SHORT, _MOST, _USUAL = 150, 0.75, 0.2  # a usual response: at least so many tokens, at most and usually such a share


@dataclass(frozen=True)
class Lengths:
    """Tokens. `spread`: sigma of the logarithm of responses; 0: all have the length `mean`. `error`: of the mean, as a
    share. `skipped`: share of rows that an update does not compute."""

    prompt: float
    mean: float
    cap: int
    spread: float
    source: str
    error: float
    skipped: float = 0.0

    @property
    def row(self) -> float:
        return self.prompt + self.mean

    @property
    def median(self) -> float:
        """Median of the log-normal distribution that has this mean after its end is cut at `cap`."""
        if not self.spread:
            return self.mean
        low, high = math.log(max(self.mean, 1)) - self.spread**2 / 2, math.log(self.cap) + 4 * self.spread
        for _ in range(30):
            middle = (low + high) / 2
            low, high = (middle, high) if self._cut_mean(middle) < self.mean else (low, middle)
        return math.exp(low)

    def _cut_mean(self, mu: float) -> float:
        z, below = (math.log(self.cap) - mu) / self.spread, NormalDist().cdf
        return math.exp(mu + self.spread**2 / 2) * below(z - self.spread) + self.cap * below(-z)


def lengths_of(config: RunConfig, plan: RunPlan) -> Lengths:
    """Expected lengths of a run's rows."""
    if not isinstance(plan, BatchPlan) or not isinstance(config, AlgorithmConfig):
        half = plan.trained_length / 2
        return Lengths(half / 2, half / 2, plan.trained_length, 0.0, f"rows of {half:.0f} tokens, assumed", 0.5)
    cap, args = plan.response_length, config.actor_infer.generating_args
    prompt = _prompt_tokens(config) or plan.prompt_length / 2
    mean = max(min(_MOST * cap, max(_USUAL * cap, _SHORT)), args.min_new_tokens)
    lengths = Lengths(prompt, mean, cap, 0.9, f"responses of {mean:.0f} of {cap} tokens, assumed", 0.5)
    if args.ignore_eos:
        return replace(lengths, mean=cap, spread=0.0, source=f"responses of {cap} tokens (ignore_eos)", error=0.0)
    return _as_before(lengths, Path(config.logging_dir), plan.samples_per_step)


def _as_before(lengths: Lengths, directory: Path, samples: int) -> Lengths:
    """The lengths of the last steps of an earlier run in the same folder, where it is one of the same limits.

    The longest of n responses lies sqrt(2 log n) sigmas above the median, and the mean sigma^2 / 2: so they tell sigma.
    """
    try:
        rows = [row for _, row in read_metrics(directory / METRICS_FILE) if "rollout/response_length_mean" in row]
    except (OSError, ConfigError):
        rows = []
    rows = rows[-_STEPS:]
    if not rows or max(row["rollout/response_length_max"] for row in rows) > lengths.cap:
        return lengths
    mean, longest, prompt = (
        statistics.fmean(row[f"rollout/{name}"] for row in rows)
        for name in ("response_length_mean", "response_length_max", "prompt_length_mean")
    )
    z = math.sqrt(2 * math.log(max(samples, 2)))
    spread = z - math.sqrt(max(0.0, z * z - 2 * math.log(max(longest / max(mean, 1), 1))))
    skipped = statistics.fmean(row.get("actor/skipped_fraction", 0.0) for row in rows)
    source = f"responses of {mean:.0f} of {lengths.cap} tokens, from {counted(len(rows), 'step')} in {directory}"
    return Lengths(prompt, mean, lengths.cap, spread, source, 0.1, skipped)


def _prompt_tokens(config: AlgorithmConfig) -> float | None:
    """Mean of the first rows, with the model's chat template; None where they are not here."""
    if not isinstance(config, RLVRConfig) or (tokenizer := learners_tokenizer(config)) is None:
        return None
    from roll.datasets.encoding import load_tasks
    from roll.pipeline.rlvr.row_operators import data_domains

    def first(sources: Sequence[DataSource]) -> islice[Row]:
        return islice(all_rows(sources), _ROWS)

    args = config.actor_train.data_args.model_copy(update={"operators": (), "truncation": "left"})
    words = config.global_template, config.tag_to_template
    try:
        tasks = load_tasks(
            args, "actor_train.data_args", data_domains(config), tokenizer, config.prompt_length, *words, first
        ).tasks
    except (ConfigError, ImportError, OSError, ValueError):
        return None
    return statistics.fmean(len(task.prompt_ids) for task in tasks) if tasks else None
