"""Sample rollouts on disk, to be read by a person (text) and by a program (JSONL)."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np

from roll.configs.sections.rollout import RecorderConfig
from roll.datasets.sight import sight
from roll.rl.records.token_records import RowKey, TokenLogProbs
from roll.types.failures import causes_of
from roll.types.media import Media, Picture, PictureSource
from roll.types.rollout import TrajectoryGroup
from roll.types.texts import BESIDE, ParsedMessage, RowTexts, Turn
from roll.utils.json_values import NOT_RECORDED, plain_fields
from roll.utils.secrets import mask
from roll.utils.text import middle_left_out, storable, visible

# How rewards and lengths of a step are spread, and why attempts failed: what means do not tell.

QUANTILES = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)
_NUM_BINS = 20
_MOST_CAUSES = 10
_MOST_CHARACTERS = 1500
_MOST_MESSAGES = 40  # of a turn


def distributions(groups: Sequence[TrajectoryGroup]) -> dict[str, Any]:
    """`rewards` and `response_lengths` of attempts that did not fail, `num_attempts`, and the most frequent
    `failures`."""
    rewards = np.concatenate([side.rewards for group in groups for side in group.by_side])
    lengths = np.concatenate([group.response_lengths for group in groups])
    there = ~np.isnan(np.concatenate([group.rewards for group in groups]))
    return {
        "num_attempts": len(lengths),
        "rewards": spread_of(rewards[~np.isnan(rewards)]),
        "response_lengths": spread_of(lengths[there]),
        "failures": [
            {
                "cause": storable(middle_left_out(cause.text, _MOST_CHARACTERS)),
                "count": cause.count,
                "first": cause.task_id,
            }
            for cause in causes_of(groups)[:_MOST_CAUSES]
        ],
    }


def spread_of(values: np.ndarray) -> dict[str, list[float]] | None:
    """`quantiles` (QUANTILES) and a histogram of 20 bins between the smallest and the largest; None without values."""
    if not len(values):
        return None
    counts, edges = np.histogram(values, bins=_NUM_BINS)
    return {
        "quantiles": np.quantile(values, QUANTILES).tolist(),
        "edges": edges.tolist(),
        "counts": counts.astype(float).tolist(),
    }


logger = logging.getLogger(__name__)
T = TypeVar("T")


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
    prompt_tokens: int = 0
    """Tokens that were not sampled."""
    response_tokens: int = 0
    """Tokens that were sampled in the whole attempt."""
    turns: tuple[Turn, ...] = ()
    """Turns of an attempt in an environment; in the JSONL only."""
    tokens: TokenLogProbs | None = None
    """Log-probs of the tokens; in the JSONL only, where `recorder.log_prob_steps` asks for them."""
    pictures: tuple[PictureSource, ...] = ()
    """Pictures of the prompt, by their source; pictures that are part of their rows have no description of their
    own."""
    turn_pictures: tuple[tuple[Picture, ...], ...] = ()
    """Pictures that an environment showed, by turns; files of their own beside the record."""
    advantage: float | None = None
    """Mean advantage of the attempt's response tokens as the loss takes it; None: it was not trained on."""
    rows: tuple[int, ...] = ()
    """Numbers of the attempt's rows in its group; not in the files."""


def rollout_records(
    group: TrajectoryGroup,
    texts: Sequence[RowTexts],
    tokens: Mapping[RowKey, TokenLogProbs] = MappingProxyType({}),
    media: Sequence[Media] = (),
) -> list[RolloutRecord]:
    """The attempts of a group as a person wants to see them; `texts` of each of its rows, `tokens` of those of which
    they are known, `media` of each row where an environment showed pictures."""
    truth = group.task.payload.get("ground_truth")
    lengths = dict(zip((t.index for t in group.attempts), group.response_lengths.tolist(), strict=True))
    rows: dict[tuple[int, int], tuple[int, ...]] = {}
    for number, trajectory in enumerate(group.trajectories):
        key = trajectory.index, trajectory.side
        rows[key] = (*rows.get(key, ()), number)
    return [
        RolloutRecord(
            prompt_text=group.task.prompt_text or (said.turns[0].observation if said.turns else ""),
            response_text=said.response_text,
            reward=None if trajectory.failure else trajectory.reward,
            group_id=group.group_id,
            domain=group.task.domain,
            finish_reason=trajectory.finish_reason,
            ground_truth=None if truth is None else str(truth),
            extra=({"failure": trajectory.failure} if trajectory.failure else {}) | dict(trajectory.extra),
            prompt_tokens=trajectory.facts.num_tokens - trajectory.facts.num_sampled,
            response_tokens=lengths[trajectory.index],
            turns=said.turns,
            tokens=tokens.get((group.group_id, trajectory.index, trajectory.turn)),
            pictures=tuple(
                replace(picture, place="" if picture.form == "inline" else mask(picture.place))
                for picture in group.task.pictures
            ),
            turn_pictures=_by_turn(said.turns, shown),
            rows=rows[trajectory.index, trajectory.side],
        )
        for trajectory, said, shown in zip(group.trajectories, texts, media or [()] * len(texts), strict=True)
        if said.turns or trajectory.failure or not any(other.turns for other in texts)
    ]


def _by_turn(turns: Sequence[Turn], media: Media) -> tuple[tuple[Picture, ...], ...]:
    """The pictures of a row, by the turns that showed them; empty where none did."""
    pictures = iter(shown.picture for shown in media)
    return tuple(tuple(islice(pictures, turn.num_pictures)) for turn in turns) if media else ()


VALIDATION_GROUPS = 64


@dataclass(frozen=True)
class RecordLimits:
    """How much is kept. The defaults bound a run at 256 MB, whatever its length."""

    num_groups: int = 4
    num_samples_per_group: int = 8
    num_characters: int = 8_000
    """Characters of a prompt, a response or an observation; the middle of a longer one is left out."""
    total_bytes: int = 256_000_000
    """Bytes of all files together; what was written first goes first."""

    @staticmethod
    def of(keys: RecorderConfig) -> RecordLimits:
        return RecordLimits(keys.num_groups, keys.num_samples_per_group)

    def of_kind(self, kind: str) -> RecordLimits:
        """The limits of a step ("train"), or of a validation, whose groups are all held out and worth a look."""
        if kind == "train" or not self.num_groups:
            return self
        return replace(self, num_groups=max(self.num_groups, VALIDATION_GROUPS))


class RolloutRecorder:
    """Writes `<directory>/step_000012.txt` and `.jsonl` (validation: `step_000012.val.*`), where 12 steps are done, as
    in metrics and checkpoints. A step that is recorded again after a resume is written again. A disk that fails ends
    the recording, not the run; an extra that cannot be written is left out, and that is said once."""

    def __init__(self, directory: Path | str, limits: RecordLimits | None = None):
        self.directory = Path(directory)
        self.limits = limits or RecordLimits()
        self._working = True
        self._warned: set[tuple[str, str]] = set()
        self._sizes: dict[Path, int] | None = None  # of the files, the oldest first; looked at once

    def choose(self, groups: Sequence[TrajectoryGroup], kind: str = "train") -> list[TrajectoryGroup]:
        """The groups of which `record` is to write, none when nothing can be written any more."""
        if not self._working:
            return []
        return spread([(group.task.domain, group) for group in groups], self.limits.of_kind(kind).num_groups)

    def record(
        self, step: int, records: Sequence[RolloutRecord], kind: str = "train", num_groups: int | None = None
    ) -> Path | None:
        """Writes a choice of the records, whole groups spread over the domains; `num_groups` there were, if these are a
        choice already. Returns the text file, None where nothing is written."""
        if not records or not self._working:
            return None
        groups = choose_groups(records, self.limits.of_kind(kind))
        for name, value in (pair for group in groups for record in group for pair in record.extra.items()):
            self._tell_if_dropped(name, value)
        num_groups = num_groups or len({record.group_id for record in records})
        stem = _stem(step, kind)
        pictures: dict[str, bytes] = {}
        rows = [json.dumps(_row(step, record, stem, pictures), allow_nan=False) for group in groups for record in group]
        texts = {f"{stem}.jsonl": "\n".join(rows) + "\n", f"{stem}.txt": render(step, kind, groups, num_groups)}
        files = pictures | {name: text.encode() for name, text in texts.items()}
        return self.directory / f"{stem}.txt" if self._write(files) else None

    def measure(self, step: int, groups: Sequence[TrajectoryGroup], kind: str = "train") -> None:
        """Writes `step_000012.distributions.json`, of all groups."""
        if groups and self._working:
            record = {"step": step, "kind": kind, **distributions(groups)}
            text = json.dumps(record, allow_nan=False) + "\n"
            self._write({f"{_stem(step, kind)}.distributions.json": text.encode()})

    def _write(self, files: Mapping[str, bytes]) -> bool:
        """Writes files, by name. Returns False, and never writes again, if the disk fails."""
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            for name, contents in files.items():
                (self.directory / name).write_bytes(contents)
            self._remove_oldest([self.directory / name for name in files])
        except OSError as error:
            self._working = False
            logger.warning("sample rollouts are no longer recorded; the run continues: %s", error)
        return self._working

    def _tell_if_dropped(self, name: str, value: object) -> None:
        if isinstance(value, str) and value.startswith(NOT_RECORDED) and (name, value) not in self._warned:
            self._warned.add((name, value))
            logger.warning("extra.%s is left out of the recorded rollouts: %s", name, value.strip("()"))

    def _remove_oldest(self, written: Sequence[Path]) -> None:
        """Remove the oldest records beyond the limits; the files just written stay."""
        if self._sizes is None:
            self._sizes = _sizes_by_age(self.directory)
        for path in written:
            self._sizes.pop(path, None)
            self._sizes[path] = path.stat().st_size
        total = sum(self._sizes.values())
        for path in list(self._sizes)[: -len(written)]:
            if total <= self.limits.total_bytes:
                return
            path.unlink(missing_ok=True)
            total -= self._sizes.pop(path)


def _stem(step: int, kind: str) -> str:
    return f"step_{step:06d}" + ("" if kind == "train" else f".{kind}")


def _sizes_by_age(directory: Path) -> dict[Path, int]:
    """File sizes, the file that was written first first."""
    stats = {path: path.stat() for path in directory.glob("step_*")}
    return {path: stats[path].st_size for path in sorted(stats, key=lambda path: (stats[path].st_mtime_ns, path.name))}


def _row(step: int, record: RolloutRecord, stem: str, files: dict[str, bytes]) -> dict[str, Any]:
    """The record as JSON values. Adds the `files` of pictures that its turns showed, under names that begin so."""
    row = {"step": step, **{of.name: getattr(record, of.name) for of in fields(record)}}
    del row["turn_pictures"], row["rows"]
    row["turns"] = [_turn_row(turn) for turn in record.turns]
    for turn, pictures in zip(row["turns"], record.turn_pictures, strict=False):
        turn["pictures"] = [_picture_row(picture, stem, files) for picture in pictures]
    row["tokens"] = None if record.tokens is None else asdict(record.tokens)
    row["pictures"] = [asdict(picture) for picture in record.pictures]
    absent = {name for name in ("turns", "tokens", "pictures") if not row[name]}
    absent |= {"advantage"} if record.advantage is None else set()
    return {name: value for name, value in row.items() if name not in absent}


def _turn_row(turn: Turn) -> dict[str, Any]:
    row = {**asdict(turn), "metrics": plain_fields(turn.metrics)}
    del row["num_pictures"]  # they stand in the row
    if not turn.said:
        del row["said"]
    return row


def _picture_row(picture: Picture, stem: str, files: dict[str, bytes]) -> dict[str, str]:
    """A picture that goes into a file beside the record, by its name there."""
    assert picture.source is not None, "a picture of an environment has its file for a source"
    contents, ending = sight().read_file(picture.source)
    name = f"{stem}.{picture.digest[:16]}.{ending}"
    files[name] = contents
    return {"form": BESIDE, "place": name, "where": picture.source.where}


def choose_groups(records: Iterable[RolloutRecord], limits: RecordLimits) -> list[list[RolloutRecord]]:
    """Chooses at most num_groups groups in their order, domains taking turns. Long texts are cut."""
    by_group: dict[str | int, list[RolloutRecord]] = {}
    for record in records:
        by_group.setdefault(record.group_id, []).append(record)
    chosen = spread([(group[0].domain, group) for group in by_group.values()], limits.num_groups)
    return [[_cut(record, limits) for record in group[: limits.num_samples_per_group]] for group in chosen]


def spread(groups: Sequence[tuple[str, T]], count: int) -> list[T]:
    """Chooses at most `count` groups in their order, domains (the first of each pair) taking turns."""
    turns: dict[str, int] = {}
    ranked = []
    for position, (domain, group) in enumerate(groups):
        turn = turns[domain] = turns.get(domain, -1) + 1
        ranked.append((turn, position, group))
    return [group for _, _, group in sorted(ranked, key=lambda entry: entry[:2])[:count]]


def render(step: int, kind: str, groups: Sequence[Sequence[RolloutRecord]], num_groups: int) -> str:
    """The text file: groups with their prompt once, and the responses below it. Nothing in it steers a terminal."""
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
        if first.pictures:
            shown = "\n".join(picture.place or picture.where for picture in first.pictures)
            blocks.append(f"pictures:\n{_indent(shown)}")
        if first.ground_truth is not None:
            blocks.append(f"ground truth:\n{_indent(first.ground_truth)}")
        for number, record in enumerate(group, 1):
            outcome = f"reward {_reward(record.reward)}"
            if record.advantage is not None:
                outcome += f" | advantage {record.advantage:+.4g}"
            head = f"{'-' * 4} sample {number} | {outcome} | {record.finish_reason} "
            blocks.append(f"{head:-<100}\n{_indent(record.response_text)}")
            if record.extra:
                blocks.append(_indent("\n".join(f"{key}: {value}" for key, value in record.extra.items()), "  * "))
    return visible("\n\n".join(blocks)) + "\n"


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _reward(value: float | None) -> str:
    return "failed" if value is None else f"{value:.4g}"


def _indent(text: str, prefix: str = "    ") -> str:
    return "\n".join(prefix + line for line in text.split("\n"))


def _few(messages: Sequence[ParsedMessage]) -> list[ParsedMessage]:
    """The messages of a turn without the middle of a long history."""
    left_out = len(messages) - _MOST_MESSAGES
    if left_out <= 0:
        return list(messages)
    half = _MOST_MESSAGES // 2
    return [*messages[:half], ParsedMessage("system", f"[... {left_out} messages left out ...]"), *messages[-half:]]


def _cut(record: RolloutRecord, limits: RecordLimits) -> RolloutRecord:
    def cut(text: str) -> str:
        return middle_left_out(storable(text), limits.num_characters)

    return replace(
        record,
        prompt_text=cut(record.prompt_text),
        response_text=cut(record.response_text),
        ground_truth=None if record.ground_truth is None else cut(record.ground_truth),
        extra=plain_fields(record.extra),
        turns=tuple(
            replace(
                turn,
                observation=cut(turn.observation),
                response=cut(turn.response),
                action=None if turn.action is None else cut(turn.action),
                said=tuple(
                    ParsedMessage(
                        cut(each.role),
                        cut(each.text),
                        cut(each.thinking),
                        tuple((cut(name), cut(arguments)) for name, arguments in each.calls),
                    )
                    for each in _few(turn.said)
                ),
            )
            for turn in record.turns
        ),
    )
