"""Which of a step's recorded rollouts the trackers get."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, zip_longest

from roll.rl.records.recorder import RecordLimits, RolloutRecord, choose_groups
from roll.run.tracking.tracker import TrackedSample


def tracked_samples(records: Sequence[RolloutRecord], limits: RecordLimits, count: int) -> list[TrackedSample]:
    """Chooses up to `count` records, one of each group in turn, with long texts cut.

    Example: groups a and b of 3 attempts each, count 3 -> the first of a, the first of b, the second of a.
    """
    in_turn = chain.from_iterable(zip_longest(*choose_groups(records, limits)))
    return [
        TrackedSample(
            group=str(record.group_id),
            domain=record.domain,
            prompt=record.prompt_text,
            response=_said(record),
            reward=record.reward,
            ground_truth=record.ground_truth or "",
            finish_reason=record.finish_reason,
            response_tokens=record.response_tokens,
        )
        for record in [record for record in in_turn if record is not None][:count]
    ]


def _said(record: RolloutRecord) -> str:
    """Text of the response; the exchanges of an episode one after the other."""
    turns = [f"[sees] {turn.observation}\n[says] {turn.response}" for turn in record.turns]
    return "\n".join(turns) or record.response_text
