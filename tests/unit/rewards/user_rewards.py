"""Rewards as a user would write them: good, slow, broken."""

import asyncio
import itertools
import re
import sys
import time
from collections.abc import Sequence

import numpy as np

from roll.rewards.base import RewardInput, RewardResult, takes_batch

NOT_A_REWARD = 5


def length(sample: RewardInput, scale: float = 1.0) -> float:
    return scale * len(sample.response_text)


class Meeting:
    """Answers that meet wait for one another: for three of them at once. One that is alone waits for ever."""

    def __init__(self) -> None:
        self.present = 0
        self.everybody = asyncio.Event()

    async def __call__(self, sample: RewardInput) -> float:
        match sample.response_text:
            case "meets":
                self.present += 1
                if self.present == 3:
                    self.everybody.set()
                await self.everybody.wait()
            case "alone":
                await asyncio.Event().wait()
            case "os_timeout":
                raise TimeoutError("judge did not answer")
            case other:
                raise KeyError(other)
        return float(self.present)


async def blocking(sample: RewardInput) -> float:
    match sample.response_text:
        case "block":
            while True:
                pass
        case "hold":
            time.sleep(1.5)
        case "waits":
            await asyncio.sleep(0.05)
    return 1.0


class Panic(BaseException):
    """What a panic in Rust becomes, in bindings."""


class Mute(Exception):
    """An error whose text is an error."""

    def __str__(self) -> str:
        raise RuntimeError("not even that")


class Odd:
    """A number that leaves the process when it is looked at."""

    shape = ()

    def __float__(self) -> float:
        sys.exit("looked at")


def escapes(sample: RewardInput) -> object:
    """Leaves in the way that the response says, past every `except Exception`."""
    match sample.response_text:
        case "interrupt":
            raise KeyboardInterrupt("as Ctrl-C")
        case "exit":
            sys.exit(3)
        case "panic":
            raise Panic("unwrap on None")
        case "cancel":
            raise asyncio.CancelledError
        case "close":
            raise GeneratorExit
        case "mute":
            raise Mute
        case "odd":
            return Odd()
    return 0.25


async def escapes_async(sample: RewardInput) -> object:
    await asyncio.sleep(0.01)
    return escapes(sample)


async def escapes_in_a_task(sample: RewardInput) -> object:
    return await asyncio.create_task(escapes_async(sample))


def unstoppable(sample: RewardInput) -> float:
    """No alarm is heard while an iterator of C is added up."""
    return float(sum(itertools.repeat(0)) if sample.response_text == "endless" else len(sample.response_text))


async def unstoppable_async(sample: RewardInput) -> float:
    await asyncio.sleep(0.01)
    return unstoppable(sample)


def by_name(sample: RewardInput) -> object:
    """Does what the response says."""
    name = sample.response_text
    if name == "spin":
        while True:
            pass
    if name == "sleep":
        time.sleep(600)
    if name == "swallow":
        while True:
            try:
                while True:
                    pass
            except Exception:
                pass
    if name == "backtrack":
        re.match(r"(a+)+$", "a" * 60 + "b")
    if name == "raise":
        raise KeyError("no such thing")
    if name == "os_timeout":
        raise TimeoutError("judge did not answer")
    return {
        "nan": float("nan"),
        "inf": float("inf"),
        "large": 1e39,
        "none": None,
        "text": "1.0",
        "list": [1.0],
        "bad_result": RewardResult(None),  # type: ignore[arg-type]
        "bool": True,
        "int": 2,
        "result": RewardResult(0.5, {"m": 1, "n": float("nan")}, {"x": "y"}),
        "unsendable": RewardResult(0.5, {"m\ud800": 1}, {"file": open(__file__), "f": lambda: 0, "odd": {(1,): 2}}),
    }.get(name, 0.25)


class Counter:
    """Built once, keeps state."""

    def __init__(self, start: int):
        self.count = start

    async def __call__(self, sample: RewardInput) -> float:
        self.count += 1
        return float(self.count)


class Uncallable:
    pass


class Broken:
    def __init__(self) -> None:
        raise OSError("no licence file")

    def __call__(self, sample: RewardInput) -> float:
        return 0.0


@takes_batch
def batched(samples: Sequence[RewardInput], scale: float = 1.0) -> object:
    """The number of answers seen at once, times `scale`; or what one of them says."""
    texts = [sample.response_text for sample in samples]
    if "raise" in texts:
        raise KeyError("no such thing")
    if "exit" in texts:
        sys.exit(3)
    if "spin" in texts:
        while True:
            pass
    if "short" in texts:
        return [0.0] * (len(texts) - 1)
    if "number" in texts:
        return 1.0
    scores = [float("nan") if text == "nan" else len(texts) * scale for text in texts]
    return np.array(scores) if "array" in texts else scores


class Nameless:
    """A name that cannot be read."""

    def __str__(self) -> str:
        raise RuntimeError("no name")


@takes_batch
def batched_results(samples: Sequence[RewardInput]) -> list[RewardResult]:
    """Each with what its text says beside a score of 1."""
    beside: dict[str, object] = {"nothing": None, "list": [("a", 1)], "nameless": {Nameless(): 1.0}, "m": {"m": 1.0}}
    return [RewardResult(1.0, beside[s.response_text], None) for s in samples]  # type: ignore[arg-type]


@takes_batch
def unstoppable_batch(samples: Sequence[RewardInput]) -> list[float]:
    return [unstoppable(sample) for sample in samples]


@takes_batch
class Batched:
    def __init__(self, bonus: float = 0.0):
        self.bonus = bonus

    def __call__(self, samples: Sequence[RewardInput]) -> list[RewardResult]:
        return [RewardResult(len(samples) + self.bonus, {"length": len(s.response_text)}) for s in samples]


@takes_batch
async def batched_async(samples: Sequence[RewardInput]) -> list[float]:
    return [1.0 for _ in samples]


async def waits(sample: RewardInput) -> float:
    await asyncio.sleep(0)
    return 0.25


def picky(sample: RewardInput) -> RewardResult:
    """1 with a word of its own on success."""
    return RewardResult(0.5, {"success": 1.0, "tries": 3.0}, {"seen": sample.response_text})


def typed(sample: RewardInput, reward_type: str = "hard") -> float:
    return 0.5 if reward_type == "soft" else 1.0
