"""Several sides of one policy in one episode: each has its tokens, its reward, and is compared with itself."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from roll.distributed.scheduler.filters import keep_by_mean, keep_by_std
from roll.distributed.scheduler.rollout_core import StepGroups
from roll.errors import AlgorithmError
from roll.features.shaping.builtins import with_rewards
from roll.pipeline.agentic.episode import Counts, failed_row
from roll.pipeline.agentic.proxy.endpoint.reward import outcome_of
from roll.pipeline.agentic.proxy.endpoint.server import Endpoint
from roll.pipeline.agentic.proxy.player import ProgramPlayer
from roll.pipeline.agentic.settings import DropEqualRewards
from roll.rl.evaluation import validation_metrics
from roll.rl.metrics import filter_metrics
from roll.rl.records.recorder import distributions
from roll.types.collate import row_columns
from roll.types.group_codec import RecordedGroup, decode, encode, joined
from roll.types.rollout import Task, Trajectory, TrajectoryGroup
from tests.unit.pipeline.agentic.proxy.parts import ASK, ENCODER, JOB, Engine, Place, check_rows, proxy_rules, serve

openai = pytest.importorskip("openai", reason="the package openai is not installed")
SIDES = ["white", "black"]
EXAMPLE = Path(__file__).parents[5] / "examples" / "tiny-tools"
SELF_PLAY = str(EXAMPLE / "self_play.py")


def played(monkeypatch: pytest.MonkeyPatch, folder: Path, moves: list[str], **rules: Any) -> list[Trajectory]:
    monkeypatch.setattr(sys, "path", [*sys.path, str(EXAMPLE), str(folder)])
    engine = Engine(ENCODER, lambda number: moves[number % len(moves)])

    async def run() -> list[Trajectory]:
        endpoint = Endpoint(ENCODER, engine)
        player = ProgramPlayer(proxy_rules(**{"agent": "self_play:play", "sides": SIDES} | rules), endpoint, folder)
        try:
            return await asyncio.wait_for(player.play(JOB, Counts()), 100)
        finally:
            await player.stop()
            await endpoint.stop()

    rows = asyncio.run(run())
    if rows[0].failure is None:
        sampled = sum(len(sent) for sent in engine.sent) - sum(len(asked.prompt_ids) for asked in engine.requests)
        check_rows(rows, engine, sampled)
    return rows


def test_the_example_of_self_play_rewards_each_side(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    white, black = played(monkeypatch, tmp_path, ["3", "2", "2", "3"])  # 3, 5, 7, 10: black takes the last stone
    assert [(row.reward, row.side, row.turn, row.index) for row in (white, black)] == [(0, 0, 0, 1), (1, 1, 1, 1)]
    assert white.turn_rewards is not None and white.turn_rewards.tolist() == [0, 0]
    assert black.turn_rewards is not None and black.turn_rewards.tolist() == [0, 1]
    assert white.metrics["reward_white"] == 0 and white.metrics["reward_black"] == 1 and white.metrics["rows"] == 2
    assert [turn.observation.split("\n")[0] for turn in white.turns] == ["[white]", "[black]"] * 2
    assert [turn.reward for turn in white.turns] == [0, 0, 0, 1]
    assert white.metrics["broken_requests"] == 0 and white.metrics["continued_requests"] == 2


def test_equal_conversations_of_two_sides_share_no_token() -> None:
    async def play(place: Place) -> None:
        client = place.openai()
        for model in SIDES:
            messages: list[Any] = list(ASK)
            for _ in range(2):
                reply = await client.chat.completions.create(model=model, messages=messages)
                messages += [reply.choices[0].message.model_dump(exclude_none=True), {"role": "user", "content": "on"}]
        seeds = [request.sampling.seed for request in place.engine.requests]
        assert len(set(seeds)) == 4, "sides draw apart from each other"
        assert [len(list(own.root.below())) for own in place.session.transcripts.values()] == [5, 5]
        assert place.session.transcript.counts["continued"] == 2
        assert [model.id async for model in client.models.list()] == SIDES
        with pytest.raises(openai.NotFoundError, match="'policy' is none of the sides white, black"):
            await client.chat.completions.create(model="policy", messages=ASK)
        assert (await client.models.retrieve("black")).id == "black"
        with pytest.raises(openai.NotFoundError, match="'red' is none of the sides"):
            await client.models.retrieve("red")

    serve(["same"], play, sides=SIDES)


@pytest.mark.parametrize(
    ("reported", "sides"),
    [
        ({"white": 1, "black": 0}, {"white": 1.0, "black": 0.0}),
        ({"reward": {"white": 1, "black": -1}, "metrics": {"moves": 4}}, {"white": 1.0, "black": -1.0}),
        (0.5, {"white": 0.5, "black": 0.5}),
    ],
)
def test_a_reward_is_of_each_side_or_of_all(reported: Any, sides: dict[str, float]) -> None:
    outcome = outcome_of(reported, SIDES)
    assert (outcome.sides, outcome.reward) == (sides, sides["white"])
    assert outcome.metrics["reward_black"] == sides["black"]


@pytest.mark.parametrize("reported", [{"white": 1}, {"white": 1, "black": "x"}, {"reward": {"red": 1}}, None, {}])
def test_a_side_without_a_reward_fails_the_episode(reported: Any) -> None:
    with pytest.raises(ValueError, match="a reward is a number"):
        outcome_of(reported, SIDES)
    with pytest.raises(ValueError, match="a reward is a number up to"):
        outcome_of({"white": 1, "black": 0})


def attempt(index: int, white: float, black: float) -> list[Trajectory]:
    ids = np.arange(4, dtype=np.int32)
    mask = np.array([False, False, True, True])
    row = Trajectory(
        input_ids=ids,
        response_mask=mask,
        log_probs=np.where(mask, -1.0, 0.0).astype(np.float32),
        policy_versions=np.where(mask, 0, -1).astype(np.int32),
        reward=white,
        finish_reason="stop",
        index=index,
    )
    return [row, replace(row, reward=black, turn=1, side=1)]


def group_of(*attempts: list[Trajectory]) -> TrajectoryGroup:
    return TrajectoryGroup(Task("t", "Go", np.zeros(0, np.int32)), 7, tuple(row for rows in attempts for row in rows))


def test_every_side_counts_in_means_and_one_that_can_learn_keeps_a_group() -> None:
    failed = failed_row(2, "it fell", {})
    white_won = group_of(attempt(0, 1.0, -3.0), attempt(1, 1.0, -1.0), [failed])
    equal = group_of(attempt(0, 1.0, -1.0), attempt(1, 1.0, -1.0))
    mute = group_of(attempt(0, 1.0, 9.0)[:1], attempt(1, 0.0, 0.5))  # black never spoke in the first
    assert filter_metrics(StepGroups([white_won], []), [white_won])["rollout/reward_mean"] == -0.5
    assert validation_metrics([white_won])["val/reward_mean"] == pytest.approx(-2 / 6), "failed: 0, for both sides"
    assert DropEqualRewards()(white_won) and not DropEqualRewards()(equal)
    assert keep_by_std(white_won, 0.0) and not keep_by_std(equal, 0.0)
    assert keep_by_mean(equal, -2.0, 0.0) and not keep_by_mean(equal, -1.0, 1.0)
    figures = distributions([white_won])
    assert figures["num_attempts"] == 3 and figures["rewards"]["quantiles"][0] == -3.0
    assert [side.rewards.tolist() for side in mute.by_side] == [[1.0, 0.0], [0.5]]
    assert mute.by_side[1].by_side[0].rewards.tolist() == [0.5]


def test_sides_are_compared_with_themselves_and_survive_a_checkpoint() -> None:
    group = group_of(attempt(0, 1.0, 0.0), attempt(1, 0.0, 1.0))
    columns = row_columns([group])
    assert columns["group_ids"].tolist()[::2] == [7, 7]
    assert len(set(columns["group_ids"].tolist())) == 2 and columns["group_ids"][1] == columns["group_ids"][3] < 0
    assert columns["trajectory_ids"].tolist() == [0, 1, 2, 3] and columns["rewards"].tolist() == [1, 0, 0, 1]
    pieces, headers = encode([RecordedGroup(7, "t", group.trajectories, ())])
    (again,) = decode(joined(pieces), headers)
    assert [(row.side, row.reward) for row in again.trajectories] == [(0, 1.0), (1, 0.0), (0, 0.0), (1, 1.0)]
    assert group.rewards.tolist() == [1.0, 0.0], "of an episode the first side's"
    assert [side.rewards.tolist() for side in group.by_side] == [[1.0, 0.0], [0.0, 1.0]]
    with pytest.raises(AlgorithmError, match=r"custom_envs\.TAG\.sides"):
        with_rewards(group, [0.0, 0.0])
