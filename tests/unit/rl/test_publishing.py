"""Weights of now for engines that took the place of those that died."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest

from roll.rl.publishing import Publisher


class Clusters:
    """Records which states are held, and which versions go to the engines."""

    def __init__(self) -> None:
        self.events: list[object] = []
        self.placement = self
        self.actor_train = SimpleNamespace(weights="train weights")
        self.actor_infer = SimpleNamespace(
            role="actor_infer", weights="weights", everything="engine", waits_for_weights=False
        )

    @contextmanager
    def hold(self, *claims: str) -> Iterator[None]:
        self.events.append(claims)
        yield

    def publish_weights(self, version: int) -> int:
        self.events.append(version)
        return 8


class Scheduler:
    def __init__(self) -> None:
        self.versions: list[int] = []

    def trained(self) -> None: ...

    def published(self, version: int) -> None:
        self.versions.append(version)


@pytest.mark.parametrize(("frequency", "told"), [(1, [1, 2]), (3, [2])])
def test_new_engines_get_the_newest_weights_and_groups_hear_of_those_that_are_new(
    frequency: int, told: list[int]
) -> None:
    """With frequency 3 the engines had version 0 after two steps of a run ahead."""
    publisher, clusters, scheduler = Publisher(frequency, runs_ahead=True), Clusters(), Scheduler()
    for version in (1, 2):
        publisher.publish(cast(Any, clusters), scheduler, version, is_last=False)
    clusters.events.clear()
    publisher.revive(cast(Any, clusters), scheduler)
    assert clusters.events == [("train weights", "weights"), 2, ("engine",)]
    assert scheduler.versions == told
    assert publisher.engine_version == 2
