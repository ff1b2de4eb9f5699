"""The sending ranks' side of a weight sync: every rank fills the buffers of its own readers, and one of them, the lead,
tells the engines where to read. They read one bucket while the next is gathered. No Ray here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import count
from typing import Any

import torch
import torch.distributed as dist

from roll.distributed.executor.weights.lanes import Lane, Peers, PendingReplies, make_lanes
from roll.distributed.executor.weights.send_plan import Reader, SendPlan
from roll.distributed.weights.bucket import BucketPlace, BucketSource, RankedBucket, WeightBucket, index_bucket
from roll.errors import StrategyError, describe

_BUCKETS_AHEAD = 2  # drawn before the first one is announced: itself, and the one to be written meanwhile
Filled = dict[Reader, BucketPlace]


class WeightSender:
    """Sends a stream of buckets to all receivers. Keeps groups between calls, and buffers that lie in host memory."""

    def __init__(self, rank: int, device: torch.device):
        self._rank = rank
        self._device = device
        self._plan: SendPlan | None = None
        self._lanes: list[Lane] = []
        self._meetings: dict[tuple[int, ...], Meeting] = {}
        self.sent_bytes = 0  # of the weights in the last update, whatever their receivers are

    def send(
        self, buckets: Iterator[WeightBucket], peers: Peers, plan: SendPlan, version: int, whole: bool = True
    ) -> list[int] | None:
        """Every rank of the trainer calls it. Returns on the lead the versions that the receivers report at the end,
        None elsewhere and after the failure of another rank. Raises as soon as a receiver fails (on the lead), or what
        this rank cannot do. In any case the buckets are drawn to the end, since that is collective.

        While the receivers read bucket k, bucket k + 1 is written and bucket k + 2 is gathered. `whole`: for the
        receivers, whether these are all the weights.
        """
        if plan.senders not in self._meetings:
            self._meetings[plan.senders] = Meeting(plan.senders)
        rounds = Rounds(buckets, self._meetings[plan.senders])
        if self._rank not in plan.senders:
            rounds.finish()
            return None
        try:
            return self._send(rounds, peers, plan, version, whole)
        except OtherRankFailed:
            self.close()
            rounds.finish()
            return None
        except Exception as error:
            rounds.give_up(error)  # first: engines may still read what was announced
            self.close()
            with suppress(Exception):  # a consequence
                rounds.finish()
            raise
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Gives buffers, groups and files back."""
        for lane in self._lanes:
            lane.close()
        self._lanes, self._plan = [], None

    def _send(self, rounds: Rounds, peers: Peers, plan: SendPlan, version: int, whole: bool) -> list[int] | None:
        """The last meeting is for the lead to say that the last bucket was read."""
        lanes = self._open(peers, plan)
        bucket = rounds.next_bucket()
        if bucket is None:
            raise StrategyError("the trainer exports no weights")
        pending: PendingReplies | None = None
        self.sent_bytes = 0
        for number in count():
            index = index_bucket(bucket)
            self.sent_bytes += sum(entry.num_bytes for entry in index.entries)
            mine = {reader: place for lane in lanes for reader, place in lane.write(bucket, index, number % 2).items()}
            bucket = rounds.next_bucket()
            if pending is not None:
                pending.result()
            filled = rounds.meet(mine)
            if number > 0:
                _after(lanes, 1 - number % 2)
            if self._rank == plan.lead:
                last_version = version if bucket is None else None
                sources = _sources(plan, filled)
                pending = peers.start(
                    "receive_weights", {i: (source, number == 0, last_version, whole) for i, source in sources.items()}
                )
                for lane in lanes:
                    lane.transmit(pending)
            if bucket is None:
                break
        versions = None if pending is None else pending.result()
        rounds.meet({}, is_last=True)
        _after(lanes, number % 2)
        for lane in lanes:
            lane.rest()
        return versions

    def _open(self, peers: Peers, plan: SendPlan) -> list[Lane]:
        if plan != self._plan:
            self.close()
            self._lanes = list(make_lanes(peers, plan, self._rank, self._device))
            self._plan = plan
        return self._lanes


class OtherRankFailed(Exception):
    """Another sending rank has given up, and reports why itself."""


class Meeting:
    """Exchanges what the sending ranks have filled, by gloo: no GPU waits in it. All ranks of the trainer must create
    it."""

    def __init__(self, ranks: Sequence[int]):
        self._ranks = ranks
        self._group = dist.new_group(list(ranks), backend="gloo") if len(ranks) > 1 else None

    @property
    def is_alone(self) -> bool:
        return len(self._ranks) == 1

    def exchange(self, report: Filled | str) -> list[Filled | str]:
        """The reports of all."""
        if self._group is None:
            return [report]
        reports: list[Any] = [None] * len(self._ranks)
        dist.all_gather_object(reports, report, group=self._group)
        return reports


class Rounds:
    """Buckets of one update and meetings of the ranks that send them, in one order on all of them. Drawing a bucket is
    collective, too, so who fails on the way goes on to the next meeting to say so, and nobody waits for it."""

    def __init__(self, buckets: Iterator[WeightBucket], meeting: Meeting):
        self._buckets, self._meeting = buckets, meeting
        self._num_drawn = self._num_meetings = 0
        self._is_over = False  # there is nothing to say to the others any more, or no way

    def next_bucket(self) -> WeightBucket | None:
        self._is_over = True  # unless it succeeds
        bucket = next(self._buckets, None)
        self._is_over = False
        self._num_drawn += 1
        return bucket

    def meet(self, filled: Filled, is_last: bool = False) -> Filled:
        """What all ranks have filled since the last meeting. Raises OtherRankFailed if one has given up."""
        reports = self._exchange(filled)
        self._is_over = is_last
        if any(isinstance(report, str) for report in reports):
            raise OtherRankFailed
        return {reader: source for report in reports if isinstance(report, dict) for reader, source in report.items()}

    def give_up(self, error: Exception) -> None:
        """Tells the others, if there are any. A failure on the way is a consequence."""
        if self._is_over or self._meeting.is_alone:
            return
        with suppress(Exception):
            while self._num_drawn < self._num_meetings + _BUCKETS_AHEAD:
                self.next_bucket()
            self._exchange(describe(error))

    def finish(self) -> None:
        """Draws the rest of the buckets."""
        for _ in self._buckets:
            pass

    def _exchange(self, report: Filled | str) -> list[Filled | str]:
        self._is_over = True
        reports = self._meeting.exchange(report)
        self._is_over = False
        self._num_meetings += 1
        return reports


def _sources(plan: SendPlan, filled: Mapping[Reader, BucketPlace]) -> dict[int, BucketSource]:
    """The source that each receiver reads: one place for all its ranks, or one for each."""
    sources: dict[int, BucketSource] = {}
    for receiver, way in enumerate(plan.ways):
        places = tuple(filled[receiver, rank] for rank in range(len(way.senders)))
        shared = all(place == places[0] for place in places)
        sources[receiver] = places[0] if shared else RankedBucket(places)
    return sources


def _after(lanes: Sequence[Lane], turn: int) -> None:
    for lane in lanes:
        lane.after(turn)
