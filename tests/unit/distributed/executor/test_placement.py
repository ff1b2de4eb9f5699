"""Who is on shared devices when, with roles that only write down what they are told."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest

from roll.distributed.executor.placement import Claim, Placement
from roll.distributed.executor.processes.cluster import Calls
from roll.distributed.strategy.base import ALL_STATES, State

WEIGHTS = frozenset({State.WEIGHTS})


class Role:
    """States come and go at once."""

    def __init__(self, role: str, devices: set[int], moves: list[str]):
        self.role, self.parts = role, (frozenset(devices),)
        self._moves = moves

    @property
    def ready(self) -> Calls:
        return Calls(self.role, "ready", {})

    def offload(self, states: frozenset[State], parts: Sequence[int]) -> Calls:
        return self._move("-", states)

    def hand_over(self, states: frozenset[State], parts: Sequence[int]) -> Calls:
        raise NotImplementedError

    def load(self, states: frozenset[State], parts: Sequence[int]) -> Calls:
        return self._move("+", states)

    def _move(self, sign: str, states: frozenset[State]) -> Calls:
        what = "all" if states == ALL_STATES else "weights" if states == WEIGHTS else "rest"
        self._moves.append(f"{sign}{self.role} {what}")
        return Calls(self.role, sign, {})


class Roles:
    """A trainer and engines, both on devices 0 and 1, and a reference on `reference_on`; engines are in the
    background."""

    def __init__(self, reference_on: set[int], train_on: set[int]) -> None:
        self.moves: list[str] = []
        self.train, self.infer = Role("train", train_on, self.moves), Role("infer", {0, 1}, self.moves)
        self.reference = Role("reference", reference_on, self.moves)
        roles = (self.train, self.infer, self.reference)
        self.placement = Placement(roles, background=[self.infer])
        with self.placement.hold(Claim(self.infer)):
            pass
        self.moves.clear()

    @contextmanager
    def hold(self, *claims: Claim) -> Iterator[list[str]]:
        """What was moved for it."""
        with self.placement.hold(*claims):
            yield self.take()

    def take(self) -> list[str]:
        moves, self.moves[:] = list(self.moves), []
        return moves


def test_who_works_in_the_background_comes_back_when_holds_end() -> None:
    roles = Roles(reference_on={1}, train_on={2})
    with roles.hold(Claim(roles.reference)) as moves:
        assert moves == ["-infer all", "+reference all"]
    assert roles.take() == ["-reference all", "+infer all"]
    with roles.hold(Claim(roles.train)) as moves:  # on devices of its own
        assert moves == ["+train all"]
    assert roles.take() == []
    roles = Roles(reference_on={0}, train_on={2})
    with roles.placement.reserved(Claim(roles.train)):
        with roles.hold(Claim(roles.reference)):
            roles.take()
        assert roles.take() == ["-reference all", "+infer all"]
    roles = Roles(reference_on={0}, train_on={0, 1})
    with roles.hold(Claim(roles.train)):
        roles.take()
        with roles.hold(Claim(roles.train, WEIGHTS)):
            assert roles.take() == []
        assert roles.take() == []
    assert roles.take() == ["-train all", "+infer all"]
    roles = Roles(reference_on={0}, train_on={0, 1})
    with pytest.raises(RuntimeError), roles.placement.reserved(Claim(roles.train)), roles.hold(Claim(roles.train)):
        roles.take()
        raise RuntimeError
    assert roles.take() == []


def test_a_turn_of_several_holds_moves_nothing_twice_and_loads_weights_alone_for_the_publish() -> None:
    roles = Roles(reference_on={0}, train_on={0, 1})
    with roles.placement.reserved(Claim(roles.train)):
        with roles.hold(Claim(roles.reference)) as moves:
            assert moves == ["-infer all", "+reference all"]
        with roles.hold(Claim(roles.train)) as moves:
            assert moves == ["-reference all", "+train all"]
        with roles.hold(Claim(roles.train, WEIGHTS), Claim(roles.infer, WEIGHTS)) as moves:
            assert moves == ["-train rest", "+infer weights"]
        assert roles.take() == []
    assert roles.take() == ["-train weights", "+infer rest"]
