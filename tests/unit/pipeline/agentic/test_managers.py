"""The env managers that give a sample per turn: token ids, masks, log-probs and credit of a hand-made episode."""

from __future__ import annotations

import asyncio
import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import PreTrainedTokenizerFast

from roll.algorithms.advantage import AdvantageSettings
from roll.algorithms.episodes import EpisodeSettings, turn_advantages
from roll.envs.base import Conversation, EnvStep
from roll.envs.config import EnvConfig
from roll.envs.native import REMINDER
from roll.errors import EnvError
from roll.pipeline.agentic.sample_forms import ChatEncoder
from roll.types.collate import row_meta
from roll.types.rollout import Task, Trajectory, TrajectoryGroup
from tests.unit.pipeline.agentic.parts import GO, Corridor, Script, env_config, job, player

USER, ASSISTANT, END = "<|im_start|>user\n", "<|im_start|>assistant\n", "<|im_end|>\n"


@pytest.fixture(scope="module")
def encoder(tiny_tokenizer: PreTrainedTokenizerFast) -> ChatEncoder:
    return ChatEncoder(tiny_tokenizer)


class Chatty(Corridor):
    """A corridor that keeps its conversation: `how` it may go wrong."""

    tools = ({"type": "function", "function": {"name": "walk"}},)

    def __init__(self, length: int = 2, how: str = ""):
        super().__init__(length)
        self.how = how

    def reset(self, seed: int) -> str:
        text = super().reset(seed)
        self.messages: list[dict[str, Any]] = [{"role": "system", "content": "S"}, {"role": "user", "content": text}]
        return text

    def step(self, action: str) -> EnvStep:
        self.messages.append({"role": "assistant", "content": action})
        step = super().step(action.removeprefix("say "))
        self.messages.append({"role": "user", "content": step.observation})
        return step

    def conversation(self) -> Conversation:
        if self.how == "list":
            return self.messages  # type: ignore[return-value]
        if self.how == "role":
            return Conversation([{"content": "who says it?"}])
        return Conversation(self.messages, self.tools)


def native(**changes: Any) -> EnvConfig:
    keys = {"env_type": "tests.unit.pipeline.agentic.test_managers:Chatty", "env_manager_cls": "agent_native"}
    return env_config(**(keys | changes))


def played(encoder: ChatEncoder, config: EnvConfig, *answers: str, **rules: Any) -> list[Trajectory]:
    return asyncio.run(player(encoder, Script(encoder, answers), config, **rules).play(job(index=6)))


def check_rows(rows: list[Trajectory], encoder: ChatEncoder, prompts: list[str], answers: list[str]) -> None:
    """Row k is prompt k and answer k, of which the answer alone is trained; the script's log-prob of token t of turn
    k is -(k + t / 100)."""
    assert len(rows) == len(prompts)
    for turn, (row, prompt, answer) in enumerate(zip(rows, prompts, answers, strict=True)):
        given, said = encoder.encode(prompt), encoder.encode(answer + "<|im_end|>")
        np.testing.assert_array_equal(row.input_ids, [*given, *said])
        np.testing.assert_array_equal(row.response_mask, [False] * len(given) + [True] * len(said))
        np.testing.assert_allclose(row.log_probs[: len(given)], 0)
        np.testing.assert_allclose(row.log_probs[len(given) :], -(turn + np.arange(len(said)) / 100), atol=1e-6)
        assert set(row.policy_versions[len(given) :]) == {turn}
        assert row.turn == turn


def test_marks_of_thinking_that_are_special_tokens_reach_the_environment_and_are_words_in_a_message(
    tiny_tokenizer: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    tokenizer = copy.deepcopy(tiny_tokenizer)
    tokenizer.add_special_tokens({"additional_special_tokens": ["[THINK]", "[/THINK]"]})
    (tmp_path / "opens.jinja").write_text("{{ messages[0]['content'] }}[THINK]")
    encoder = ChatEncoder(tokenizer, str(tmp_path / "opens.jinja"))
    assert encoder.answer_opening == "[THINK]"
    ids = np.array(tokenizer.encode("a[/THINK]b<|im_end|>", add_special_tokens=False), np.int32)
    assert encoder.decode(ids) == "a[/THINK]b"
    assert encoder.as_words("a[/THINK]b") == "a b"


def test_step_concat_shows_the_last_observations_as_they_were_and_no_answer(encoder: ChatEncoder) -> None:
    config = env_config(
        env_manager_cls="step_concat",
        history_length=2,
        agent_template="{history}\n{current_observation}",
        env_config={"length": 4},
    )
    rows = played(encoder, config, GO)
    seen = [
        "\nat 0 of 4",
        "at 0 of 4\nat 1 of 4",
        "at 0 of 4\nat 1 of 4\nat 2 of 4",
        "at 1 of 4\nat 2 of 4\nat 3 of 4",
    ]
    check_rows(rows, encoder, [f"{USER}{text}{END}{ASSISTANT}" for text in seen], [GO] * 4)
    assert [row.reward for row in rows] == [2.0] * 4
    assert [float(row.turn_rewards[0]) for row in rows if row.turn_rewards is not None] == [0.5] * 4
    assert len({row.state_key for row in rows}) == 4


def test_agent_native_shows_the_conversation_that_the_environment_keeps(encoder: ChatEncoder) -> None:
    """The environment gets the whole answer, whatever action_pattern is; its messages are encoded anew every turn."""
    rows = played(encoder, native(format_penalty=-0.25), "say go", "hm", "say go")
    first = f"<|im_start|>system\nS{END}{USER}at 0 of 2{END}{ASSISTANT}"
    second = f"{first}say go{END}{USER}at 1 of 2{END}{ASSISTANT}"
    third = f"{second}hm{END}{USER}at 1 of 2{END}{ASSISTANT}"
    check_rows(rows, encoder, [first, second, third], ["say go", "hm", "say go"])
    assert [float(row.turn_rewards[0]) for row in rows if row.turn_rewards is not None] == [0.5, -0.25, 0.5]
    assert [row.reward for row in rows] == [0.75] * 3
    assert [turn.action for turn in rows[0].turns] == ["say go", "hm", "say go"]
    assert rows[0].metrics["action_is_valid"] == pytest.approx(2 / 3)


@pytest.mark.parametrize("manager", ["step_concat", "agent_native"])
def test_every_turn_is_credited_with_what_the_episode_earns_from_there_on(encoder: ChatEncoder, manager: str) -> None:
    """step_reinforce with a discount of .5 on rewards .5, -.25, .5: the rows' advantages are the returns."""
    if manager == "agent_native":
        rows = played(encoder, native(format_penalty=-0.25), "say go", "hm", "say go")
    else:
        config = env_config(
            env_manager_cls=manager,
            agent_template="{history}{observation}",
            env_config={"length": 2},
            format_penalty=-0.25,
        )
        rows = played(encoder, config, GO, "hm", GO)
    task = Task("t", "Corridor", np.zeros(0, np.int32))
    groups = [TrajectoryGroup(task, 0, tuple(rows))]
    meta = row_meta(groups)
    settings = EpisodeSettings(AdvantageSettings("step_reinforce", None, None), turn_gamma=0.5)
    values, _ = turn_advantages(meta, settings)
    np.testing.assert_allclose(values, [0.5 + 0.5 * (-0.25 + 0.5 * 0.5), -0.25 + 0.5 * 0.5, 0.5])


def test_a_conversation_that_fills_the_sequence_ends_the_episode_and_is_marked(encoder: ChatEncoder) -> None:
    rows = played(encoder, native(env_config={"length": 50}, max_steps=50), "say go", max_length=150)
    assert rows[0].failure is None
    assert 3 < len(rows) < 50
    assert max(len(row.input_ids) for row in rows) <= 150
    assert rows[0].metrics["sequence_cut"] == 1.0 and {row.finish_reason for row in rows} == {"length"}


TEMPLATE = (
    "{% for tool in tools or [] %}[{{ tool.function.name }}]{% endfor %}"
    "{% for m in messages %}{{ m.role }}:{{ m.content }}"
    "{% for call in m.tool_calls or [] %}({% for key, value in call.function.arguments.items() %}{{ key }}={{ value }}"
    "{% endfor %}){% endfor %};{% endfor %}"
)


def test_tools_and_tool_calls_reach_the_chat_template(tiny_tokenizer: PreTrainedTokenizerFast, tmp_path: Any) -> None:
    (tmp_path / "chat.jinja").write_text(TEMPLATE)
    call = {"function": {"name": "walk", "arguments": '{"far": 2}'}}
    conversation = Conversation(
        [{"role": "user", "content": "x"}, {"role": "assistant", "content": "", "tool_calls": [call]}], Chatty.tools
    )
    reads = ChatEncoder(tiny_tokenizer, str(tmp_path / "chat.jinja"), reads_tool_calls=True)
    assert reads.show(reads.conversation(conversation)) == "[walk]user:x;assistant:(far=2);"
    plain = ChatEncoder(tiny_tokenizer, str(tmp_path / "chat.jinja"))
    with pytest.raises(EnvError, match="the chat template does not take the environment's conversation"):
        plain.conversation(conversation)


def test_a_text_environment_becomes_a_conversation_that_tells_of_invalid_answers(encoder: ChatEncoder) -> None:
    config = native(
        env_type="native",
        env_config={
            "env": "tests.unit.pipeline.agentic.parts:Corridor",
            "env_config": {"length": 2},
            "system_template": "Play.",
            "observation_suffix": "?",
        },
    )
    rows = played(encoder, config, GO, "hm", GO)
    last = encoder.show(rows[-1].input_ids)
    expected = (
        f"<|im_start|>system\nPlay.\n\nSay go.{END}{USER}at 0 of 2\n?{END}{ASSISTANT}{GO}{END}{USER}at 1 of 2\n?{END}"
        f"{ASSISTANT}hm{END}{USER}{REMINDER}\nat 1 of 2\n?{END}{ASSISTANT}{GO}<|im_end|>"
    )
    assert last == expected
    assert rows[0].metrics["success"] == 1.0 and rows[0].metrics["action_is_valid"] == pytest.approx(2 / 3)


def test_the_user_message_is_put_together_of_what_stands_before_and_after_the_observation(
    encoder: ChatEncoder,
) -> None:
    config = env_config(
        pre_step_template="Turn {turn_idx}:\n",
        next_step_template="\n{actions_left} left, {max_response_length} tokens.",
        env_config={"length": 2},
    )
    (row,) = played(encoder, config, GO)
    assert encoder.show(row.input_ids) == (
        f"{USER}Turn 1:\nat 0 of 2\n5 left, 16 tokens.{END}{ASSISTANT}{GO}{END}"
        f"{USER}Turn 2:\nat 1 of 2\n4 left, 16 tokens.{END}{ASSISTANT}{GO}<|im_end|>"
    )
    assert env_config(pre_step_template="{state}!").template == "{state}!"
    assert env_config(next_step_template="?").template == "{observation}?"
