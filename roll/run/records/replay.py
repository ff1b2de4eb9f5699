"""`roll replay`: recorded sample rollouts of any run, as text. Answers are shown below their prompt, episodes turn by
turn.
"""

import argparse
import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ValidationError, model_validator

from roll.run.saving.manifest import reason
from roll.types.texts import BESIDE
from roll.utils.files import open_regular
from roll.utils.logging import say
from roll.utils.text import visible


class RecordedPicture(BaseModel):
    """A picture of a prompt or a turn, by where it came from; `place` is empty where it was part of its row. A form
    `beside` is a file in the folder of the record."""

    form: str
    place: str
    where: str

    def in_folder(self, folder: Path) -> Self:
        """The same with a place of its own, where the record lies in this folder."""
        if self.form != BESIDE:
            return self
        return self.model_copy(update={"form": "file", "place": str(folder / Path(self.place).name)})


class RecordedMessage(BaseModel):
    role: str
    text: str
    thinking: str = ""
    calls: list[tuple[str, str]] = []


class RecordedTurn(BaseModel):
    """A turn of an episode. `said`: its messages, the policy's last, where their roles are known."""

    observation: str
    response: str
    action: str | None
    reward: float
    metrics: dict[str, float | None]
    pictures: list[RecordedPicture] = []
    said: list[RecordedMessage] = []


class RecordedTokens(BaseModel):
    """The first sampled tokens of an attempt, with the log-prob of each by engine and trainer."""

    texts: list[str]
    engine: list[float | None]
    trainer: list[float | None]

    @model_validator(mode="after")
    def _are_of_the_same_tokens(self) -> Self:
        if not len(self.texts) == len(self.engine) == len(self.trainer):
            raise ValueError("texts, engine and trainer are of different lengths")
        return self


class Recorded(BaseModel):
    """A line of the file: what RolloutRecord holds, and its step."""

    step: int
    domain: str
    group_id: str | int
    prompt_text: str
    response_text: str
    reward: float | None
    advantage: float | None = None
    finish_reason: str
    ground_truth: str | None = None
    extra: dict[str, Any] = {}
    turns: list[RecordedTurn] = []
    response_tokens: int = 0
    tokens: RecordedTokens | None = None
    pictures: list[RecordedPicture] = []


USAGE = """roll replay RUN [--step N] [--kind train] [--tag TAG] [--group ID] [--failed] [--min_reward R]
    [--max_reward R] [--grep TEXT]

RUN is the output_dir of a run, whose last recorded step is shown unless --step names one, or a step_*.jsonl of its
rollouts. Responses are below their prompt, episodes are shown turn by turn; the options select among them."""


@dataclass(frozen=True)
class ReplayFilter:
    """Selection of attempts to show; None selects all."""

    tag: str | None = None
    group: str | None = None
    failed: bool = False
    min_reward: float | None = None
    max_reward: float | None = None
    text: str | None = None

    def takes(self, record: Recorded) -> bool:
        if self.failed and record.reward is not None:
            return False
        return (
            self.tag in (None, record.domain)
            and self.group in (None, str(record.group_id))
            and _is_between(record.reward, self.min_reward, self.max_reward)
            and (self.text is None or self.text in _all_text(record))
        )


def _is_between(reward: float | None, least: float | None, most: float | None) -> bool:
    """Tell whether a reward is within bounds; a failed attempt has no reward, so any bound excludes it."""
    if least is None and most is None:
        return True
    return reward is not None and (least is None or reward >= least) and (most is None or reward <= most)


def _all_text(record: Recorded) -> str:
    turns = [text for turn in record.turns for text in (turn.observation, turn.response)]
    return "\n".join([record.prompt_text, record.response_text, *turns])


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="roll replay", usage=USAGE, allow_abbrev=False)
    parser.add_argument("file", metavar="RUN", type=Path, help="output_dir of a run, or a step_*.jsonl of its rollouts")
    parser.add_argument("--step", type=int, help="step of the run; default: the last recorded one")
    parser.add_argument(
        "--kind", default="train", help="kind of rollouts: train, val, or val.NAME of an evaluation set"
    )
    parser.add_argument("--tag", help="only those of this domain or environment")
    parser.add_argument("--group", help="only those of this group")
    parser.add_argument("--failed", action="store_true", help="only those that failed")
    parser.add_argument("--min_reward", type=float, help="only those with at least this reward")
    parser.add_argument("--max_reward", type=float, help="only those with at most this reward")
    parser.add_argument("--grep", help="only those with this text in prompt, response or a turn")
    options = parser.parse_args(arguments)
    try:
        file = file_of(options.file, options.step, options.kind) if options.file.is_dir() else options.file
        records = list(read(file))
    except (OSError, ValueError) as error:
        sys.stderr.write(visible(f"{options.file} cannot be read: {reason(error)}\n"))
        return 2
    wanted = ReplayFilter(
        options.tag, options.group, options.failed, options.min_reward, options.max_reward, options.grep
    )
    chosen = [record for record in records if wanted.takes(record)]
    with suppress(BrokenPipeError):  # the reader, such as head, has seen enough
        for line in render(chosen):
            say(line)
        say(f"{len(chosen)} of {len(records)} attempts in {file}")
    return 0


def file_of(run: Path, step: int | None, kind: str) -> Path:
    """The recorded rollouts of a run's step, or of its last one. Raises ValueError where there are none."""
    places = [place for place in (run / "rollouts", run) if place.is_dir()]
    middle = "" if kind == "train" else f".{kind}"
    files = {int(match[1]): path for place in reversed(places) for path in place.glob("step_*.jsonl")
             if (match := re.fullmatch(rf"step_(\d+){re.escape(middle)}\.jsonl", path.name))}  # fmt: skip
    if not files:
        raise ValueError(
            f"it and its folder rollouts hold no step_*{middle}.jsonl. Name the folder of rollout_dump_dir"
        )
    if step is not None and step not in files:
        raise ValueError(f"step {step} was not recorded; those are {', '.join(map(str, sorted(files)))}")
    return files[max(files) if step is None else step]


def read(file: Path) -> Iterator[Recorded]:
    """The records of a file. Raises ValueError for what is none, with the line."""
    with open_regular(file) as stream:
        lines = stream.read().decode("utf-8").split("\n")
    if not any(lines):
        raise ValueError("it is empty")
    for number, line in enumerate(lines, 1):
        if not line and number == len(lines):
            return
        yield parse(line, number, file.parent)


def parse(line: str, number: int, folder: Path) -> Recorded:
    """A line of a file in this folder. Raises ValueError for what is no record."""
    try:
        record = Recorded.model_validate(json.loads(line))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the line"
        raise ValueError(f"line {number} is not a record of a rollout: {where}: {first['msg']}") from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"line {number} is not JSON: {error}") from None
    for turn in record.turns:
        turn.pictures = [picture.in_folder(folder) for picture in turn.pictures]
    return record


def render(records: Iterable[Recorded]) -> Iterator[str]:
    """The attempts as lines of text. A prompt stands above the first answer of its group."""
    last: tuple[str, str | int] | None = None
    for record in records:
        failure = record.extra.get("failure")
        outcome = f"failed: {failure}" if record.reward is None else f"reward {record.reward:.4g}"
        how = f", {record.finish_reason}" if record.reward is not None else ""
        how += f", advantage {record.advantage:+.4g}" if record.advantage is not None else ""
        yield f"{'=' * 8} {record.domain}, step {record.step}, group {record.group_id}: {outcome}{how}"
        if record.turns:
            yield from _turns(record.turns)
        else:
            if (record.domain, record.group_id) != last:
                yield from _indented("asked ", record.prompt_text)
                for picture in record.pictures:
                    yield from _indented("shown ", picture.place or picture.where)
                if record.ground_truth is not None:
                    yield from _indented("truth ", record.ground_truth)
            yield from _indented("says  ", record.response_text)
        for name, value in record.extra.items():
            if name != "failure":
                yield from _indented(f"{name}: ", str(value))
        last = record.domain, record.group_id
        yield ""


def _turns(turns: Sequence[RecordedTurn]) -> Iterator[str]:
    total = 0.0
    for number, turn in enumerate(turns, 1):
        total += turn.reward
        action = "no action" if turn.action is None else f"action {turn.action!r}"
        yield f"--- turn {number}: {action}, reward {turn.reward:+.4g}, in all {total:+.4g}{_metrics(turn.metrics)}"
        yield from _indented("sees ", turn.observation)
        for picture in turn.pictures:
            yield from _indented("shown ", picture.place or picture.where)
        yield from _indented("says ", turn.response)


def _metrics(metrics: Mapping[str, float | None]) -> str:
    shown = ", ".join(
        f"{name} {value:g}" for name, value in metrics.items() if name != "answer_cut" and value is not None
    )
    return f" ({shown})" if shown else ""


def _indented(first: str, text: str) -> Iterable[str]:
    return [(first if i == 0 else " " * len(first)) + line for i, line in enumerate(text.split("\n"))]


if __name__ == "__main__":
    sys.exit(main())
