"""A reward of several parts: their weighted sum."""

from collections.abc import Awaitable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from roll.configs.base import SOLVED
from roll.rewards.base import BatchReward, Reward, RewardInput, RewardResult, Score, finite, takes_batch
from roll.rewards.config import BUILTINS, RewardConfig


@dataclass(frozen=True)
class Link:
    """A part that is built. `is_main`: it says whether an answer is right."""

    name: str
    reward: Reward | BatchReward
    weight: float
    is_main: bool = False
    is_async: bool = False
    takes_batch: bool = False


@dataclass(frozen=True)
class Chain:
    """Judges by one part after the other. A part that fails fails the answer."""

    links: Sequence[Link]

    def __call__(self, sample: RewardInput) -> RewardResult:
        return total((link, cast(Reward, link.reward)(sample)) for link in self.links)


@dataclass(frozen=True)
class AsyncChain:
    """A chain with async parts. While a part that is not async computes, other responses wait."""

    links: Sequence[Link]

    async def __call__(self, sample: RewardInput) -> RewardResult:
        return total([(link, await self._score(link, sample)) for link in self.links])

    async def _score(self, link: Link, sample: RewardInput) -> object:
        if link.takes_batch:
            return scores_of(link.name, cast(BatchReward, link.reward)([sample]), 1)[0]
        returned = cast(Reward, link.reward)(sample)
        return await cast(Awaitable[Score], returned) if link.is_async else returned


@takes_batch
@dataclass(frozen=True)
class BatchChain:
    """The same where a part takes a list of answers, and none is async."""

    links: Sequence[Link]

    def __call__(self, samples: Sequence[RewardInput]) -> list[RewardResult]:
        columns = [self._scores(link, samples) for link in self.links]
        return [total(zip(self.links, row, strict=True)) for row in zip(*columns, strict=True)]

    def _scores(self, link: Link, samples: Sequence[RewardInput]) -> Sequence[object]:
        if link.takes_batch:
            return scores_of(link.name, cast(BatchReward, link.reward)(samples), len(samples))
        return [cast(Reward, link.reward)(sample) for sample in samples]


def chained(links: Sequence[Link]) -> Chain | AsyncChain | BatchChain:
    if any(link.is_async for link in links):
        return AsyncChain(links)
    return BatchChain(links) if any(link.takes_batch for link in links) else Chain(links)


def total(returned: Iterable[tuple[Link, object]]) -> RewardResult:
    """The sum of weight * score. Metrics: `reward_<part>` is what a part adds; the main part's own keep their names,
    those of another begin with its own. `success` is the main part's, or whether its score alone is that of a right
    answer, since penalties must not make it a wrong one.

    Example: 1 of a main part `math_rule` and -.5 of `overlong` at weight .2 give .9, with reward_math_rule 1,
    reward_overlong -.1 and success 1.
    """
    score = 0.0
    metrics: dict[str, float] = {}
    extra: dict[str, object] = {}
    for link, returned_value in returned:
        result = (
            returned_value if isinstance(returned_value, RewardResult) else RewardResult(cast(float, returned_value))
        )
        link_score = finite(result.score)
        if link_score is None:
            raise ValueError(f"the part {link.name} returned {result.score!r}, not a finite number")
        prefix = "" if link.is_main else f"{link.name}_"
        metrics |= {f"{prefix}{name}": value for name, value in result.metrics.items()}
        extra |= {f"{prefix}{name}": value for name, value in result.extra.items()}
        metrics[f"reward_{link.name}"] = link.weight * link_score
        if link.is_main:
            metrics.setdefault("success", float(link_score >= SOLVED))
        score += link.weight * link_score
    return RewardResult(score, metrics, extra)


def scores_of(name: str, returned: object, count: int) -> Sequence[object]:
    """Return the list of scores that a reward returned for `count` answers. Raises TypeError if it is no list,
    ValueError if it is not as long. Arrays and tensors of one dimension are lists."""
    scores = returned if isinstance(returned, list | tuple) else _listed(returned)
    if scores is None:
        raise TypeError(f"{name} takes a batch, so it must return a list of scores, not {returned!r:.200}")
    if len(scores) != count:
        raise ValueError(f"{name} returned {len(scores)} scores for {count} responses")
    return scores


def _listed(returned: object) -> list[object] | None:
    """Entries of a one-dimensional array of numpy or torch; None for anything else."""
    shape = getattr(returned, "shape", ())
    return list(cast(Iterable[object], returned)) if len(shape) == 1 else None


# Which parts make up the reward of a domain: `reward` itself, `reward_manager_config`, and the penalty of
# `response_length_penalty_coef`.

SHORT = "short_response"


@dataclass(frozen=True)
class Part:
    """A reward by its name or path, and what is added of it. `name` is that of its metrics, `key` the YAML's."""

    key: str
    name: str
    reward: str
    args: Mapping[str, Any]
    weight: float = 1.0
    is_main: bool = False


def parts_of(config: RewardConfig, key: str = "") -> tuple[Part, ...]:
    """The parts in the order in which they are judged; none where a reward model judges. `key` is where the domain
    stands in the YAML."""
    if config.is_model:
        return ()
    parts: list[Part] = []
    if config.reward is not None:
        row = BUILTINS.get(config.reward)
        args = {} if row is None else {key: getattr(config, key) for key in row.settings}
        if config.reward_type is not None and (row is None or row.reward_types):  # else it does without, as in ROLL
            args["reward_type"] = config.reward_type
        args |= config.reward_args
        parts.append(Part(key, short_name(config.reward), config.reward, args, is_main=True))
    for index, part in enumerate(config.reward_manager_config):
        name = part.name or short_name(part.reward)
        parts.append(Part(f"{key}.reward_manager_config.{index}", name, part.reward, part.reward_args, part.weight))
    if config.response_length_penalty_coef:
        parts.append(Part(key, SHORT, SHORT, {}, config.response_length_penalty_coef))
    return tuple(parts)


def short_name(reward: str) -> str:
    """Example: my_rewards:brevity -> brevity."""
    return reward.rpartition(":")[2].rpartition(".")[2]
