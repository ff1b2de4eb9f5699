"""The sending rank's side of a weight sync: each bucket is written once per route, and read by all receivers of that
route while the next bucket is being gathered. No Ray here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from roll.distributed.executor.send_plan import SendPlan
from roll.distributed.executor.weight_lanes import Lane, Peers, PendingReplies, make_lanes
from roll.distributed.strategy.weights import WeightBucket, index_bucket
from roll.errors import StrategyError


class WeightSender:
    """Sends a stream of buckets to all receivers. Keeps groups between calls, and buffers that lie in host memory."""

    def __init__(self, device: torch.device):
        self._device = device
        self._plan: SendPlan | None = None
        self._lanes: list[Lane] = []

    def send(self, buckets: Iterator[WeightBucket], peers: Peers, plan: SendPlan, version: int) -> list[int]:
        """Returns the versions that the receivers report at the end. Raises as soon as a receiver fails.

        While the receivers read bucket k, bucket k + 1 is written and bucket k + 2 is gathered.
        """
        try:
            return self._send(buckets, peers, self._open(peers, plan), version)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Gives buffers, groups and files back."""
        for lane in self._lanes:
            lane.close()
        self._lanes, self._plan = [], None

    def _send(self, buckets: Iterator[WeightBucket], peers: Peers, lanes: Sequence[Lane], version: int) -> list[int]:
        pending: PendingReplies | None = None
        bucket, turn = next(buckets, None), 0
        if bucket is None:
            raise StrategyError("the trainer exports no weights")
        while bucket is not None:
            index = index_bucket(bucket)
            sources = {i: source for lane in lanes for i, source in lane.write(bucket, index, turn).items()}
            bucket = next(buckets, None)
            if pending is not None:
                pending.result()
                for lane in lanes:
                    lane.after(1 - turn)
            last_version = version if bucket is None else None
            arguments = {i: (source, pending is None, last_version) for i, source in sources.items()}
            pending = peers.start("receive_weights", arguments)
            for lane in lanes:
                lane.transmit(pending)
            turn = 1 - turn
        assert pending is not None
        versions = pending.result()
        for lane in lanes:
            lane.after(1 - turn)
            lane.rest()
        return versions

    def _open(self, peers: Peers, plan: SendPlan) -> list[Lane]:
        if plan != self._plan:
            self.close()
            self._lanes = list(make_lanes(peers, plan, self._device))
            self._plan = plan
        return self._lanes
