"""Bands: figures of several seeds of a recipe, and whether those of another run lie between them."""

import json
import math
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from statistics import mean, median

from pydantic import BaseModel, ConfigDict

from roll.report.conversation import messages_of_prompt
from roll.report.figures import phase_table
from roll.report.run_files import RunFiles
from roll.run.display.view import series
from roll.run.records.replay import read
from roll.utils.imports import is_installed

REWARD, ACCURACY = "rollout/reward_mean", "val/reward_mean"
LENGTH, SAMPLES = "rollout/response_length_mean", "throughput/samples_per_s"
WINDOW = 5  # steps whose rewards are compared as one mean
NUM_ANSWERS = 3
_DEVIATIONS = 2
_PACKAGES = ("torch", "transformers", "ray", "reasoning_gym")


class HeldOut(BaseModel):
    """Accuracies of the seeds on held-out rows after a step, and Wilson's bounds of the lowest and the highest."""

    model_config = ConfigDict(frozen=True)

    step: int
    rows: int
    accuracies: tuple[float, ...]
    low: float
    high: float


class Band(BaseModel):
    """Figures of runs of one recipe.

    - `means`, `lows`, `highs`: the reward of step 1, 2, ...: mean, lowest and highest of the seeds
    - `prompts_per_step`: of one step; rewards lie in [0, 1]
    - `seconds_per_step`, `tokens_per_s`: medians over steps and seeds; tokens are those of the sampled answers
    - `phases`: name, time in all runs, share
    - `answers`: held-out prompts: text, what is right, answers of the first seed before and after
    """

    model_config = ConfigDict(frozen=True)

    seeds: tuple[int, ...]
    means: tuple[float, ...]
    lows: tuple[float, ...]
    highs: tuple[float, ...]
    prompts_per_step: int
    held_out: tuple[HeldOut, ...]
    answers: tuple[tuple[str, str, str, str], ...]
    seconds_per_step: float
    tokens_per_s: float
    phases: tuple[tuple[str, str, str], ...]
    model: str
    date: str
    commit: str
    machine: str
    versions: dict[str, str]

    @property
    def of_seeds(self) -> str:
        """Example: "3 seeds"."""
        return f"{len(self.seeds)} seed{'s' if len(self.seeds) > 1 else ''}"

    def as_json(self) -> str:
        """A line for each field."""
        fields = self.model_dump(mode="json").items()
        return "{\n" + ",\n".join(f' "{name}": {json.dumps(value)}' for name, value in fields) + "\n}\n"


def measured(runs: Sequence[RunFiles], model: str) -> Band:
    """The band of finished runs, one for each seed, that trained the same steps."""
    rewards = [[value for _, value in series(run.rows, REWARD)] for run in runs]
    by_step = [tuple(round(value, 4) for value in values) for values in zip(*rewards, strict=True)]
    first, start = runs[0], runs[0].starts[-1]
    rows = [row for run in runs for row in run.rows]
    steps = [metrics for _, metrics in rows if REWARD in metrics]
    prompts = int(first.config["rollout_batch_size"])
    if (envs := first.config.get("train_env_manager")) is not None:  # of agents it counts conversations
        prompts //= int(envs["group_size"])
    threads = first.config["actor_train"]["system_envs"].get("OMP_NUM_THREADS")
    return Band(
        seeds=tuple(int(run.config["seed"]) for run in runs),
        means=tuple(round(mean(values), 4) for values in by_step),
        lows=tuple(map(min, by_step)),
        highs=tuple(map(max, by_step)),
        prompts_per_step=prompts,
        held_out=tuple(_held_out(runs)),
        answers=tuple(_answers(first)),
        seconds_per_step=round(median(each["time/step_s"] for each in steps), 2),
        tokens_per_s=round(median(each[SAMPLES] * each[LENGTH] for each in steps), 1),
        phases=tuple(phase for phase in phase_table(rows) if phase[2] != "0.0%"),
        model=model,
        date=start.started[:10],
        commit=start.commit,
        machine=f"{start.machine}, {threads} threads a worker" if threads else start.machine,
        versions={"roll": first.roll_version, **{name: version(name) for name in _PACKAGES if is_installed(name)}},
    )


def _held_out(runs: Sequence[RunFiles]) -> Iterator[HeldOut]:
    values = [dict(series(run.rows, ACCURACY)) for run in runs]
    for spread in sorted(runs[0].spreads(), key=lambda spread: spread.step):
        if spread.kind == "val":
            each, count = tuple(round(value[spread.step], 4) for value in values), spread.num_attempts
            low, high = round(wilson(min(each), count)[0], 4), round(wilson(max(each), count)[1], 4)
            yield HeldOut(step=spread.step, rows=count, accuracies=each, low=low, high=high)


def _answers(run: RunFiles) -> Iterator[tuple[str, str, str, str]]:
    """The first rows of the validation, whatever came of them."""
    files = run.record_files("val")
    before, after = (list(read(files[step]))[:NUM_ANSWERS] for step in (min(files), max(files)))
    for first, last in zip(before, after, strict=True):
        question = messages_of_prompt(first.prompt_text)[-1].text.strip()
        yield question, first.ground_truth or "", first.response_text.strip(), last.response_text.strip()


def wilson(share: float, count: float) -> tuple[float, float]:
    """Wilson's interval of a share of `count` trials: the probabilities at most two standard deviations from it.

    Example: wilson(0.5, 100) -> (0.402, 0.598).
    """
    z2 = _DEVIATIONS**2
    middle = share + z2 / (2 * count)
    reach = _DEVIATIONS * math.sqrt(share * (1 - share) / count + z2 / (4 * count**2))
    return (middle - reach) / (1 + z2 / count), (middle + reach) / (1 + z2 / count)


def outside(band: Band, run: Band) -> list[str]:
    """Places where a run of one seed leaves the band, and how far; empty if it does not.

    A mean reward of five steps may lie as low as Wilson's lower bound of the band's mean low in these steps, and as
    high as his upper bound of its mean high. Prompts are the trials, since answers to one prompt are alike. A held-out
    accuracy lies in its interval.
    """
    problems = list[str]()
    num_steps = min(len(band.means), len(run.means))
    for start in range(0, num_steps, WINDOW):
        steps = slice(start, min(start + WINDOW, num_steps))
        count = band.prompts_per_step * (steps.stop - start)
        low, high = wilson(mean(band.lows[steps]), count)[0], wilson(mean(band.highs[steps]), count)[1]
        problems += _beyond(f"steps {start + 1} to {steps.stop}: mean reward", mean(run.means[steps]), low, high)
    known = {each.step: each for each in band.held_out}
    for each in run.held_out:
        if (of_band := known.get(each.step)) is not None:
            title = f"step {each.step}: held-out accuracy"
            problems += _beyond(title, each.accuracies[0], of_band.low, of_band.high)
    return problems


def _beyond(title: str, value: float, low: float, high: float) -> list[str]:
    if low <= value <= high:
        return []
    side, bound = ("below", low) if value < low else ("above", high)
    return [f"{title} {value:.3f} is {abs(value - bound):.3f} {side} the band ({low:.3f} to {high:.3f})"]
