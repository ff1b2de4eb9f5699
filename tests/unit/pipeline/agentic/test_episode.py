"""Episodes played against a scripted policy: tokens, masks, rewards, and what goes wrong."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace

import numpy as np
import pytest
from transformers import PreTrainedTokenizerFast

from roll.errors import EnvError
from roll.pipeline.agentic import env_calls
from roll.pipeline.agentic.env_calls import EnvThread
from roll.pipeline.agentic.episode import Counts
from roll.pipeline.agentic.sample_forms import FORMS, ChatEncoder
from roll.types.rollout import Trajectory
from tests.helpers.cases import cases
from tests.unit.pipeline.agentic.parts import GO, Crowded, Misbehaving, Script, env_config, job, player


@pytest.fixture(scope="module")
def encoder(tiny_tokenizer: PreTrainedTokenizerFast) -> ChatEncoder:
    return ChatEncoder(tiny_tokenizer)


def sampled(row: Trajectory, encoder: ChatEncoder) -> list[str]:
    """Texts of the unbroken runs of the response mask."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], row.response_mask.astype(int), [0]])))
    return [encoder.show(row.input_ids[a:b]) for a, b in zip(edges[::2], edges[1::2], strict=True)]


def test_a_trajectory_is_the_whole_conversation_with_every_answer_trained(encoder: ChatEncoder) -> None:
    script = Script(encoder, [GO, "hm", GO])
    config = env_config(
        format_penalty=-0.25, agent_system_template="Be quick.", agent_template="{turn_idx}: {observation}"
    )
    (row,) = asyncio.run(player(encoder, script, config).play(job()))
    expected = (
        "<|im_start|>system\nBe quick.<|im_end|>\n<|im_start|>user\n1: at 0 of 3<|im_end|>\n<|im_start|>assistant\n"
        "<answer>go</answer><|im_end|>\n<|im_start|>user\n2: at 1 of 3<|im_end|>\n<|im_start|>assistant\n"
        "hm<|im_end|>\n<|im_start|>user\n3: at 1 of 3<|im_end|>\n<|im_start|>assistant\n"
        "<answer>go</answer><|im_end|>\n<|im_start|>user\n4: at 2 of 3<|im_end|>\n<|im_start|>assistant\n"
        "<answer>go</answer><|im_end|>"
    )
    assert encoder.show(row.input_ids) == expected
    assert sampled(row, encoder) == [GO + "<|im_end|>", "hm<|im_end|>", GO + "<|im_end|>", GO + "<|im_end|>"]
    assert row.turn_rewards is not None
    np.testing.assert_allclose(row.turn_rewards, [0.5, -0.25, 0.5, 0.5])
    assert row.reward == pytest.approx(1.25)
    assert (row.finish_reason, row.failure) == ("stop", None)
    assert row.metrics["success"] == 1.0
    assert row.metrics["num_turns"] == 4.0
    assert row.metrics["action_is_valid"] == 0.75
    assert [turn.action for turn in row.turns] == ["go", None, "go", "go"]


def test_log_probs_and_versions_stand_at_the_tokens_they_speak_of(encoder: ChatEncoder) -> None:
    (row,) = asyncio.run(player(encoder, Script(encoder, [GO]), env_config()).play(job()))
    assert (row.log_probs[~row.response_mask] == 0).all()
    assert (row.policy_versions[~row.response_mask] == -1).all()
    versions = row.policy_versions[row.response_mask]
    answer = len(encoder.encode(GO + "<|im_end|>"))
    assert versions.tolist() == [0] * answer + [1] * answer + [2] * answer
    expected = np.concatenate([-(turn + np.arange(answer) / 100) for turn in range(3)])
    np.testing.assert_allclose(row.log_probs[row.response_mask], expected, atol=1e-6)


def test_every_request_holds_exactly_the_row_so_far(encoder: ChatEncoder) -> None:
    script = Script(encoder, [GO])
    (row,) = asyncio.run(player(encoder, script, env_config()).play(job()))
    for request in script.requests:
        assert np.array_equal(request.prompt_ids, row.input_ids[: len(request.prompt_ids)])
        assert row.response_mask[len(request.prompt_ids)]
    assert len({request.sampling.seed for request in script.requests}) == 3


def test_episodes_that_are_too_long_are_cut_and_marked(encoder: ChatEncoder) -> None:
    (row,) = asyncio.run(
        player(encoder, Script(encoder, ["abcdefgh"]), env_config(max_tokens_per_step=3, max_steps=2)).play(job())
    )
    assert sampled(row, encoder) == ["abc", "abc"]
    assert "abc<|im_end|>\n<|im_start|>user\n" in encoder.show(row.input_ids)
    assert row.metrics["answer_cut"] == 1.0
    config = env_config(agent_system_template="x" * 500)
    (row,) = asyncio.run(player(encoder, Script(encoder, [GO]), config, max_length=60).play(job()))
    assert row.failure is None
    assert (row.finish_reason, row.metrics["sequence_cut"]) == ("length", 1.0)
    assert len(row.input_ids) <= 60
    config = env_config(max_steps=50, env_config={"length": 50})
    (row,) = asyncio.run(player(encoder, Script(encoder, [GO]), config, max_length=120).play(job()))
    assert (row.failure, row.finish_reason) == (None, "length")
    assert 90 < len(row.input_ids) <= 120


def test_step_samples_are_one_row_per_turn_with_a_window_of_history(encoder: ChatEncoder) -> None:
    config = env_config(
        env_manager_cls="step",
        history_length=1,
        max_steps=5,
        agent_template="{history_length}|{history}|{current_observation}|{step_count}",
    )
    rows = asyncio.run(player(encoder, Script(encoder, [GO]), config).play(job(index=6)))
    texts = [encoder.show(row.input_ids) for row in rows]
    head, tail = "<|im_start|>user\n", f"<|im_end|>\n<|im_start|>assistant\n{GO}<|im_end|>"
    assert texts == [
        f"{head}0||at 0 of 3|0{tail}",
        f"{head}1|[Step 1, observation: at 0 of 3, answer: {GO}]|at 1 of 3|1{tail}",
        f"{head}1|[Step 2, observation: at 1 of 3, answer: {GO}]|at 2 of 3|2{tail}",
    ]
    assert [sampled(row, encoder) for row in rows] == [[GO + "<|im_end|>"]] * 3
    assert [(row.turn, row.index, row.reward) for row in rows] == [(0, 6, 1.5), (1, 6, 1.5), (2, 6, 1.5)]
    assert [float(row.turn_rewards[0]) for row in rows if row.turn_rewards is not None] == [0.5, 0.5, 0.5]
    assert len({row.state_key for row in rows}) == 3
    assert [len(row.turns) for row in rows] == [3, 0, 0]


def test_history_gives_way_oldest_first_when_the_prompt_is_too_long(encoder: ChatEncoder) -> None:
    config = env_config(
        env_manager_cls="step",
        history_length=4,
        max_steps=6,
        agent_template="{history}|{observation}",
        env_config={"length": 6},
    )
    rows = asyncio.run(player(encoder, Script(encoder, [GO]), config, max_length=110).play(job()))
    assert max(len(row.input_ids) for row in rows) <= 110
    last = encoder.show(rows[-1].input_ids)
    assert "[Step 5" in last and "[Step 1" not in last
    assert rows[-1].metrics == {} and rows[0].metrics["sequence_cut"] == 1.0


@cases("pattern, text, action")
def test_the_last_group_of_the_pattern_is_the_action(
    encoder: ChatEncoder, pattern: str, text: str, action: str | None
) -> None:
    config = env_config(action_pattern=pattern, max_steps=1, max_tokens_per_step=40)
    (row,) = asyncio.run(player(encoder, Script(encoder, [text]), config).play(job()))
    assert row.turns[0].action == action


def test_a_pattern_without_end_fails_the_episode_and_holds_up_no_other(encoder: ChatEncoder) -> None:
    config = env_config(action_pattern="(a|aa)+$", max_steps=1, max_tokens_per_step=80)
    players = [player(encoder, Script(encoder, [text]), config) for text in ("a" * 60 + "b", "aaa")]

    async def play() -> list[list[Trajectory]]:
        return await asyncio.gather(*(made.play(job()) for made in players))

    (endless,), (fine,) = asyncio.run(play())
    assert endless.failure is not None
    assert "action_pattern took longer than 1 s on a response of 61 characters" in endless.failure
    assert fine.failure is None


@cases("how, cause")
def test_an_environment_that_fails_gives_a_failed_row_with_the_cause(
    encoder: ChatEncoder, how: str, cause: str
) -> None:
    config = env_config(env_type="tests.unit.pipeline.agentic.parts:Misbehaving", env_config={"how": how})
    (row,) = asyncio.run(player(encoder, Script(encoder, [GO]), config, step_timeout_s=2.0).play(job(seed=1)))
    assert row.failure is not None and cause in row.failure
    assert np.isnan(row.reward) and not row.response_mask.any()
    assert row.metrics["env_hangs" if how == "hang" else "env_crashes"] == 1.0


def test_a_fresh_environment_takes_the_place_of_one_that_crashed_and_its_cause_is_said(
    encoder: ChatEncoder, caplog: pytest.LogCaptureFixture
) -> None:
    Misbehaving.builds = 0
    config = env_config(
        env_type="tests.unit.pipeline.agentic.parts:Misbehaving", env_config={"how": "raise", "first_builds": 1}
    )
    (row,) = asyncio.run(player(encoder, Script(encoder, [GO]), config, retries=1).play(job(seed=1)))
    assert (row.failure, row.reward, row.metrics["env_crashes"]) == (None, 1.5, 1.0)
    assert [record.message for record in caplog.records if "is played again" in record.message]


def test_an_episode_that_takes_too_long_in_its_environment_is_stopped_and_the_thread_counts_as_lost(
    encoder: ChatEncoder,
) -> None:
    config = env_config(env_type="tests.unit.pipeline.agentic.parts:Misbehaving", env_config={"how": "hang"})
    play = player(encoder, Script(encoder, [GO]), config, step_timeout_s=None, episode_timeout_s=3.0)
    (row,) = asyncio.run(play.play(job(seed=1)))
    assert row.failure is not None and "the episode took longer than 3 s" in row.failure
    assert play.num_abandoned_threads == 1


@pytest.mark.parametrize("step_s, limit_s", [(0.05, None), (1.0, 0.4)], ids=["whole", "cut short by the time limit"])
def test_no_more_calls_than_the_turnstile_lets_through_run_at_once(
    encoder: ChatEncoder, step_s: float, limit_s: float | None
) -> None:
    """Closing included, and calls that nobody waits for any more."""
    Crowded.num_now = Crowded.num_most = Crowded.num_closed = 0
    config = env_config(env_type="tests.unit.pipeline.agentic.parts:Crowded", env_config={"step_s": step_s})

    async def play_all() -> list[list[Trajectory]]:
        play = player(
            encoder,
            Script(encoder, [GO]),
            config,
            asyncio.Semaphore(1),
            step_timeout_s=60.0,
            episode_timeout_s=limit_s,
        )
        rows = await asyncio.gather(*(play.play(job(seed=i, index=i)) for i in range(4)))
        while Crowded.num_closed < 4:
            await asyncio.sleep(0.02)
        return rows

    results = asyncio.run(play_all())
    assert Crowded.num_most == 1
    assert all((rows[0].failure is None) == (limit_s is None) for rows in results)


def test_the_same_job_gives_the_same_requests(encoder: ChatEncoder) -> None:
    seeds = []
    for _ in range(2):
        script = Script(encoder, [GO])
        asyncio.run(player(encoder, script, env_config()).play(job(index=2, group_id=9)))
        seeds.append([request.sampling.seed for request in script.requests])
    assert seeds[0] == seeds[1]
    other = Script(encoder, [GO])
    asyncio.run(player(encoder, other, env_config()).play(job(index=3, group_id=9)))
    assert not set(seeds[0]) & {request.sampling.seed for request in other.requests}


def test_a_row_that_differs_from_what_was_sampled_is_refused(encoder: ChatEncoder) -> None:
    config = env_config()
    script = Script(encoder, [GO])
    form = FORMS[config.env_manager_cls](config, encoder, 400, 16)
    play = player(encoder, script, config)
    played = []
    original = form.rows
    play._form.rows = lambda turns: played.extend(turns) or original(turns)  # type: ignore[method-assign]
    asyncio.run(play.play(job()))
    ids = played[1].prompt.ids.copy()
    ids[4] += 1
    wrong = [played[0], replace(played[1], prompt=replace(played[1].prompt, ids=ids))]
    with pytest.raises(EnvError, match="the training row is not what was sent and sampled"):
        form.rows(wrong)


@pytest.mark.parametrize("room", [1, 2])
def test_a_cancelled_call_and_the_closing_after_it_take_one_place(room: int) -> None:
    """Of `room` places one is the call's until it ends, and the others stay free meanwhile."""
    begun, ended = threading.Event(), threading.Event()

    def step() -> None:
        begun.set()
        ended.wait()

    async def cancel() -> bool:
        turnstile = asyncio.Semaphore(room)
        thread = EnvThread("env", turnstile)
        call = asyncio.create_task(thread.call("step", step, timeout_s=60))
        while not begun.is_set():
            await asyncio.sleep(0.01)
        call.cancel()
        thread.close(lambda: None)
        await asyncio.sleep(0.05)
        was_locked = turnstile.locked()
        ended.set()
        while turnstile._value < room:
            await asyncio.sleep(0.01)
        return was_locked

    assert asyncio.run(asyncio.wait_for(cancel(), 30)) is (room == 1)


def test_an_environment_is_closed_behind_a_cancelled_call_of_any_length(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(env_calls, "_CLOSE_TIMEOUT_S", 0.05)
    ended, closed = threading.Event(), threading.Event()

    async def cancel() -> None:
        thread = EnvThread("env", asyncio.Semaphore(1))
        call = asyncio.create_task(thread.call("step", ended.wait, timeout_s=60))
        await asyncio.sleep(0.01)
        call.cancel()
        thread.close(closed.set)
        await asyncio.sleep(0.3)
        ended.set()
        assert await asyncio.to_thread(closed.wait, 30)

    asyncio.run(cancel())


def test_tokens_are_counted_turn_by_turn_of_the_attempt_that_is_played(encoder: ChatEncoder) -> None:
    counts = Counts(num_tokens=99)
    (row,) = asyncio.run(player(encoder, Script(encoder, [GO]), env_config()).play(job(), counts))
    assert counts.num_tokens == row.facts.num_sampled > 0
