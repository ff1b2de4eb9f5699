"""Sample rollouts on disk, to be read by a person (text) and by a program (JSONL)."""

import json
import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from roll.types.rollout import Turn

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class RolloutRecord:
    """One trajectory as a person wants to see it. reward is None where scoring failed."""

    prompt_text: str
    response_text: str
    reward: float | None
    group_id: str | int
    domain: str
    finish_reason: str
    ground_truth: str | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)
    turns: tuple[Turn, ...] = ()
    """Of an attempt in an environment; in the JSONL only."""


@dataclass(frozen=True)
class RecordLimits:
    """How much is kept. The defaults bound a run at 256 MB, whatever its length."""

    num_groups: int = 4
    num_samples_per_group: int = 8
    num_characters: int = 8_000
    """Of a prompt or a response; the middle is left out beyond."""
    total_bytes: int = 256_000_000
    """Of all files together; the oldest steps go first."""


class RolloutRecorder:
    """Writes `<directory>/step_000012.txt` and `.jsonl` (validation: `step_000012.val.*`) for the steps it is given.

    A step that is recorded again after a resume is written again. A disk that fails ends the recording, not the run.
    """

    def __init__(self, directory: Path | str, limits: RecordLimits | None = None):
        self.directory = Path(directory)
        self.limits = limits or RecordLimits()
        self._working = True

    def record(self, step: int, records: Sequence[RolloutRecord], kind: str = "train") -> Path | None:
        """Writes a choice of the records, whole groups spread over the domains. Returns the text file.

        None where there is nothing to write, or nothing can be written any more."""
        if not records or not self._working:
            return None
        groups = choose_groups(records, self.limits)
        num_groups = len({record.group_id for record in records})
        stem = f"step_{step:06d}" + ("" if kind == "train" else f".{kind}")
        text = self.directory / f"{stem}.txt"
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            text.write_text(render(step, kind, groups, num_groups), encoding="utf-8")
            rows = [json.dumps(_row(step, record), default=str) for group in groups for record in group]
            (self.directory / f"{stem}.jsonl").write_text("\n".join(rows) + "\n", encoding="utf-8")
            self._remove_oldest()
        except OSError as error:
            self._working = False
            logger.warning("sample rollouts are not recorded any more, the run goes on: %s", error)
            return None
        return text

    def _remove_oldest(self) -> None:
        files = sorted(self.directory.glob("step_*"))
        sizes = {path: path.stat().st_size for path in files}
        total = sum(sizes.values())
        for path in files[:-2]:  # the step just written stays
            if total <= self.limits.total_bytes:
                return
            path.unlink()
            total -= sizes[path]


def _row(step: int, record: RolloutRecord) -> dict[str, Any]:
    row = {"step": step, **asdict(record)}
    if not record.turns:
        del row["turns"]
    return row


def choose_groups(records: Iterable[RolloutRecord], limits: RecordLimits) -> list[list[RolloutRecord]]:
    """At most num_groups groups, the domains taking turns, in the order in which they come; long texts cut.

    Example: groups 0 and 1 of `math`, 2 of `code`, num_groups 2 -> groups 0 and 2.
    """
    by_group: dict[str | int, list[RolloutRecord]] = {}
    for record in records:
        by_group.setdefault(record.group_id, []).append(record)
    turns: dict[str, int] = {}
    ranked = []
    for position, group in enumerate(by_group.values()):
        turn = turns[group[0].domain] = turns.get(group[0].domain, -1) + 1
        ranked.append((turn, position, group))
    chosen = [group for _, _, group in sorted(ranked, key=lambda entry: entry[:2])[: limits.num_groups]]
    return [[_cut(record, limits) for record in group[: limits.num_samples_per_group]] for group in chosen]


def render(step: int, kind: str, groups: Sequence[Sequence[RolloutRecord]], num_groups: int) -> str:
    """The text file: groups with their prompt once, and the responses below it."""
    blocks = [f"step {step} ({kind}): {len(groups)} of {num_groups} groups"]
    for group in groups:
        first = group[0]
        rewards = [record.reward for record in group if record.reward is not None]
        spread = (
            f"reward {_reward(_mean(rewards))} mean, {_reward(min(rewards))} to {_reward(max(rewards))}"
            if rewards
            else "no reward"
        )
        blocks.append(f"{'=' * 100}\ngroup {first.group_id} | {first.domain} | {len(group)} samples | {spread}")
        blocks.append(f"prompt:\n{_indent(first.prompt_text)}")
        if first.ground_truth is not None:
            blocks.append(f"ground truth:\n{_indent(first.ground_truth)}")
        for number, record in enumerate(group, 1):
            head = f"{'-' * 4} sample {number} | reward {_reward(record.reward)} | {record.finish_reason} "
            blocks.append(f"{head:-<100}\n{_indent(record.response_text)}")
            if record.extra:
                blocks.append(_indent("\n".join(f"{key}: {value}" for key, value in record.extra.items()), "  * "))
    return "\n\n".join(blocks) + "\n"


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _reward(value: float | None) -> str:
    return "failed" if value is None else f"{value:.4g}"


def _indent(text: str, prefix: str = "    ") -> str:
    return "\n".join(prefix + line for line in _visible(text).split("\n"))


def _visible(text: str) -> str:
    r"""The text with control characters spelled out, so that what a model wrote cannot steer the reader's terminal.

    Example: an escape character becomes the four characters \x1b."""
    return re.sub(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", lambda match: f"\\x{ord(match[0]):02x}", text)


def _cut(record: RolloutRecord, limits: RecordLimits) -> RolloutRecord:
    return replace(
        record,
        prompt_text=_middle_left_out(record.prompt_text, limits.num_characters),
        response_text=_middle_left_out(record.response_text, limits.num_characters),
    )


def _middle_left_out(text: str, num_characters: int) -> str:
    if len(text) <= num_characters:
        return text
    half = num_characters // 2
    return f"{text[:half]}\n[... {len(text) - 2 * half} characters left out ...]\n{text[len(text) - half :]}"
