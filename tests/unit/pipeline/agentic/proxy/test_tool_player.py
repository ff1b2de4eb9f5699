"""Episodes whose policy calls tools: of servers that work, hang, die, flood and change, and of classes."""

from __future__ import annotations

import asyncio
import json
import re
import sys
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import psutil
import pytest

from roll.envs.config import EnvConfig, ToolServerConfig
from roll.envs.tools import servers as of_servers
from roll.envs.tools.base import ToolError
from roll.envs.tools.class_tools import class_schemas, method_problems, tool_names
from roll.envs.tools.servers import ServerTools, ToolServer, ToolServers
from roll.envs.tools.toolset import cut_in_middle
from roll.errors import EnvError
from roll.pipeline.agentic.episode import Counts, EpisodeJob, EpisodeRules, turn_seed
from roll.pipeline.agentic.proxy.metrics import agentic_metrics
from roll.pipeline.agentic.proxy.tool_player import CUT, UNREADABLE, ToolPlayer
from roll.types.rollout import SamplingParams, Task, Trajectory, TrajectoryGroup
from roll.utils import supervision
from tests.helpers.cases import cases
from tests.unit.pipeline.agentic.parts import rules
from tests.unit.pipeline.agentic.proxy.parts import CALL, DROPS, JOB, KEEPS, Engine, check_rows, tool_encoder

pytest.importorskip("mcp", reason="the package mcp is not installed")
T = TypeVar("T")
ENCODER = tool_encoder()
HERE = Path(__file__).resolve().parent
PLAIN = str(HERE / "plain_server.py")


def call(name: str, **arguments: Any) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {json.dumps(arguments)}}}\n</tool_call>'


class Boxes:
    """Boxes with a digit in each, as an environment of TRL's."""

    ended: list[str] = []

    def __init__(self, offset: int = 0):
        self.offset, self.opened = offset, 0

    def reset(self, **task: Any) -> str | None:
        self.seed = task["seed"]
        return task.get("hint")

    def open(self, box: str) -> str:
        """Opens a box.

        Args:
            box: The letter of the box.
        """
        if not box.isalpha():
            raise ToolError("a box has a letter")
        self.opened += 1
        return str(self.seed + self.offset)

    async def peek(self, box: str, times: int = 1) -> dict[str, int]:
        """Looks at a box.

        Args:
            box: The letter of the box.
            times: How often.
        """
        await asyncio.sleep(0)
        return {box: times}

    def shatter(self, how: str = "") -> str:
        """Breaks.

        Args:
            how: A call that goes wrong, or nothing: then the environment is broken.
        """
        if how == "exit":
            sys.exit(2)
        if how:
            raise KeyError(how)
        raise EnvError("the ice broke")

    def wait(self) -> None:
        """Waits."""
        time.sleep(5)

    def _hidden(self) -> None: ...

    def get_reward(self) -> dict[str, Any]:
        return {"reward": float(self.opened), "metrics": {"opened": self.opened}}

    def close(self) -> None:
        Boxes.ended.append("closed")


class Counter:
    """Its reward is an attribute, and its reset takes one column alone."""

    def reset(self, start: int) -> str:
        self.reward = start
        return "count"

    def add(self) -> str:
        """Adds one."""
        self.reward += 1
        return f"{self.reward}"


class Silent:
    def shout(self, word: str) -> str:
        return word


class Vague:
    def shout(self, word: str, loud) -> str:  # type: ignore[no-untyped-def]
        """Shouts.

        Args:
            loud: How loud.
        """
        return word


class Unnamed:
    def sum(self, first: int, /, *others: int) -> int:
        """Adds.

        Args:
            first: A number.
            others: More numbers.
        """
        return first + sum(others)


TASKS = [{"question": "box F?", "digit": "5", "digits": ["5", "cinq"], "hint": " Open it.", "start": 2}]
BOXES = f"{__name__}:Boxes"


async def judged(task: Any, messages: Any) -> dict[str, Any]:
    """A reward of the messages: how many results there are, and the arguments of the first call."""
    results = [message for message in messages if message["role"] == "tool"]
    return {"reward": len(results), "metrics": {"seed": task["seed"]}}


def tool_rules(**changes: Any) -> EpisodeRules:
    own = {name: changes.pop(name) for name in list(changes) if name in EpisodeRules.__dataclass_fields__}
    keys = {"env_manager_cls": "tools", "env_type": "tools", "tasks": f"{__name__}:TASKS"}
    config = EnvConfig.model_validate(keys | changes)
    found = rules(config, max_length=4000, sampling=SamplingParams(400))
    return EpisodeRules(**{**vars(found), "max_answer_tokens": 400, **own})


def server(*args: str, **keys: Any) -> dict[str, Any]:
    return {"command": sys.executable, "args": [PLAIN, *args]} | keys


def run(work: Coroutine[Any, Any, T]) -> T:
    """The result; no process of this test and no task may be left."""

    async def whole() -> T:
        try:
            return await asyncio.wait_for(work, 200)
        finally:
            assert asyncio.all_tasks() == {asyncio.current_task()}

    result = asyncio.run(whole())
    assert not [child for child in psutil.Process().children(recursive=True) if "plain_server" in str(child.cmdline())]
    return result


def played(said: list[str], logs: Path, job: EpisodeJob = JOB, **changes: Any) -> tuple[list[Trajectory], Engine]:
    async def play() -> tuple[list[Trajectory], Engine]:
        engine = Engine(ENCODER, lambda number: said[number % len(said)])
        found = tool_rules(**changes)
        player = ToolPlayer(found, ENCODER, engine, ToolServers(found.config.tool_servers, logs))
        try:
            rows = await player.play(job, Counts())
            assert not player.num_abandoned_threads or "longer" in str(rows[0].failure)
            return rows, engine
        finally:
            await player.stop()

    return run(play())


def asked(tool_server: ToolServer, *calls: tuple[str, str]) -> list[str]:
    """What each call comes to, one after the other; of an error its text."""

    async def ask() -> list[str]:
        found: list[str] = []
        try:
            for name, text in calls:
                try:
                    found.append(await ServerTools(tool_server).call(name, {"text": text}))
                except (ToolError, EnvError) as error:
                    found.append(f"{type(error).__name__}: {error}")
        finally:
            await tool_server.close()
        return found

    return run(ask())


def plain(logs: Path, *args: str, **keys: Any) -> ToolServer:
    return ToolServer("plain", ToolServerConfig.model_validate(server(*args, **keys)), logs / "plain.log")


# --- episodes


def test_a_class_plays_an_episode_whose_rows_are_what_was_sampled(tmp_path: Path) -> None:
    Boxes.ended.clear()
    (row,), engine = played([CALL, "it is 6"], tmp_path, tool_class=BOXES, env_config={"offset": 1})
    check_rows(
        [row], engine, sum(len(s) - len(r.prompt_ids) for s, r in zip(engine.sent, engine.requests, strict=True))
    )
    assert (row.reward, row.failure, row.metrics["opened"], row.metrics["num_turns"]) == (1.0, None, 1, 2)
    assert (row.metrics["tool_calls"], row.metrics["tool_errors"], row.metrics["broken_requests"]) == (1, 0, 0)
    assert row.turn_rewards is not None and row.turn_rewards.tolist() == [0.0, 1.0]
    text = ENCODER.show(row.input_ids)
    assert "<|im_start|>user\nbox F? Open it.<|im_end|>" in text and '"description": "The letter of the box."' in text
    assert "<tool_response>\n6\n</tool_response>" in text and row.turns[1].observation == "[tool] 6"
    assert [r.sampling.seed for r in engine.requests] == [turn_seed(3, JOB, turn, 0) for turn in range(2)]
    group = TrajectoryGroup(Task("t", "Tools", np.zeros(0, np.int32)), 0, (row,))
    assert agentic_metrics([group])["agentic/tool_error_fraction"] == 0
    until(lambda: Boxes.ended == ["closed"])


def test_calls_of_one_answer_run_in_order_and_errors_are_answered(tmp_path: Path) -> None:
    calls = [call("peek", box="A", times=2), call("shut", box="A"), call("open"), call("open", box="1")]
    calls += [call("shatter", how="Z"), call("shatter", how="exit"), call("open", box=5), call("open", lid="A")]
    said = ["\n".join(calls), "<tool_call>\n{broken\n</tool_call>", "done"]
    (row,), _ = played(said, tmp_path, tool_class=BOXES, max_answer_tokens=1000)
    shown = [turn.observation for turn in row.turns]
    assert shown[1].split("\n") == [
        '[tool] {"A": 2}',
        "[tool] Error: there is no tool shut. Tools: open, peek, shatter, wait.",
        "[tool] Error: TypeError: Boxes.open() missing 1 required positional argument: 'box'",
        "[tool] Error: a box has a letter",
        "[tool] Error: KeyError: 'Z'",
        "[tool] Error: SystemExit: 2",
        "[tool] Error: AttributeError: 'int' object has no attribute 'isalpha'",
        "[tool] Error: TypeError: Boxes.open() got an unexpected keyword argument 'lid'",
    ]
    assert shown[2] == f"[tool] {UNREADABLE}"
    assert (row.metrics["tool_calls"], row.metrics["tool_errors"], row.metrics["malformed_calls"]) == (9, 8, 1)


def test_a_call_that_is_cut_or_that_no_result_may_follow_is_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    most = len(ENCODER.encode(CALL)) - 9
    (row,), _ = played([CALL, "so"], tmp_path, tool_class=BOXES, max_answer_tokens=most)
    assert row.turns[1].observation == f"[tool] {CUT}" and row.metrics["tool_errors"] == 1
    loop = "{% for m in messages %}"
    strict = "{% if m.role == 'tool' and not m.tool_call_id %}{{ raise_exception('a result of nothing') }}{% endif %}"
    monkeypatch.setitem(globals(), "ENCODER", tool_encoder(KEEPS.replace(loop, loop + strict)))
    (row,), _ = played(["<tool_call>\n{broken\n</tool_call>", CALL, "so"], tmp_path, tool_class=BOXES)
    assert [turn.observation for turn in row.turns[1:]] == [f"[user] {UNREADABLE}", "[tool] 5"]


def test_thinking_stays_in_the_row_unless_the_template_drops_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = [f"<think>why</think>{CALL}", "so"]
    (row,), _ = played(said, tmp_path, tool_class=BOXES)
    assert "<think>why</think><tool_call>" in ENCODER.show(row.input_ids) and row.metrics["broken_requests"] == 0
    monkeypatch.setitem(globals(), "ENCODER", tool_encoder(DROPS))
    rows, engine = played(said, tmp_path, tool_class=BOXES)
    check_rows(rows, engine, sum(len(s) - len(r.prompt_ids) for s, r in zip(engine.sent, engine.requests, strict=True)))
    assert [row.reward for row in rows] == [1.0, 1.0] and rows[0].metrics["broken_template"] == 1
    assert [one["cause"] for one in rows[0].extra["witness"]] == ["template"]


def test_the_reward_is_of_a_function_of_a_column_or_of_an_attribute(tmp_path: Path) -> None:
    (row,), _ = played([CALL, " 5\n"], tmp_path, tool_class=BOXES, answer_key="digit")
    assert (row.reward, row.metrics["success"]) == (1.0, 1.0)
    (row,), _ = played([CALL], tmp_path, tool_class=BOXES, answer_key="digit", max_steps=2)
    assert row.reward == 0.0, "the result of a tool is no answer, though it is the digit"
    (row,), _ = played(["6"], tmp_path, tool_class=BOXES, answer_key="digit")
    assert (row.reward, row.metrics["success"]) == (0.0, 0.0)
    (row,), _ = played(["cinq"], tmp_path, tool_class=BOXES, answer_key="digits")
    assert row.reward == 1.0, "any of a list is right"
    (row,), _ = played([CALL, "so"], tmp_path, tool_class=BOXES, reward=f"{__name__}:judged")
    assert (row.reward, row.metrics["seed"]) == (1.0, JOB.env_seed)
    (row,), _ = played([call("add"), "so"], tmp_path, tool_class=f"{__name__}:Counter", question_key="none")
    assert row.reward == 3 and row.turns[0].observation == "[user] count"


@pytest.mark.parametrize(
    ("said", "changes", "cause"),
    [
        (call("shatter"), {}, "shatter raised EnvError: the ice broke"),
        (call("wait"), {"step_timeout_s": 0.3}, "wait took longer than 0.3 s"),
        ("x", {"answer_key": "colour"}, "answer_key: the task has no column 'colour'; it has question, digit, digits"),
        ("x", {"tool_class": f"{__name__}:Silent", "answer_key": "digit"}, "Silent.shout has no schema"),
        ("x", {"tool_class": f"{__name__}:Silent2"}, "has no Silent2"),
        ("x", {"reward": "json:loads"}, "reward raised TypeError"),
    ],
)
def test_an_episode_that_cannot_be_played_or_judged_says_why(
    tmp_path: Path, said: str, changes: dict[str, Any], cause: str
) -> None:
    keys: dict[str, Any] = {"tool_class": BOXES} | changes
    (row,), _ = played([said], tmp_path, JOB, **keys)
    assert row.failure is not None and row.failure.startswith("Tools: ") and cause in row.failure
    assert not row.response_mask.any()


def test_a_crash_is_played_again_and_a_prompt_without_room_ends_the_conversation(tmp_path: Path) -> None:
    (row,), engine = played([call("shatter"), CALL, "so"], tmp_path, tool_class=BOXES, retries=1)
    assert (row.failure, row.reward, row.metrics["env_crashes"]) == (None, 1.0, 1)
    assert len({request.session for request in engine.requests}) == 2
    (row,), _ = played([CALL], tmp_path, tool_class=BOXES, max_steps=100, max_length=1300)
    assert (row.failure, row.finish_reason, row.metrics["sequence_cut"]) == (None, "length", 1)
    assert row.reward == row.metrics["num_turns"] > 1


def test_rows_of_messages_and_a_system_message_are_taken_as_they_are(tmp_path: Path) -> None:
    task = [{"chat": [{"role": "user", "content": "one"}, {"role": "assistant", "content": "two"}]}]
    sys.modules[__name__].TASKS_OF_CHAT = task  # type: ignore[attr-defined]
    (row,), _ = played(["x"], tmp_path, tool_class=BOXES, tasks=f"{__name__}:TASKS_OF_CHAT", question_key="chat",
                       agent_system_template="be brief")  # fmt: skip
    assert "<|im_start|>system\nbe brief<|im_end|>\n<|im_start|>user\none<|im_end|>" in ENCODER.show(row.input_ids)


# --- classes


def test_public_methods_are_tools_and_faults_name_the_method() -> None:
    assert tool_names(Boxes) == ["open", "peek", "shatter", "wait"]
    schema = class_schemas(Boxes)[1]["function"]
    assert schema["name"] == "peek" and schema["parameters"]["required"] == ["box"]
    assert schema["parameters"]["properties"]["times"] == {"type": "integer", "description": "How often."}
    assert "Silent.shout has no schema: " in next(method_problems(Silent))
    assert "loud is missing a type hint" in next(method_problems(Vague))
    assert [fault.partition(" cannot")[0] for fault in method_problems(Unnamed)] == [
        "Unnamed.sum: the argument first",
        "Unnamed.sum: the argument others",
    ]


def test_a_long_result_is_cut_in_its_middle() -> None:
    text = "begin " + "word " * 3000 + " end"

    def count(part: str) -> int:
        return len(part.split())

    cut = cut_in_middle(text, 100, count)
    assert count(cut) <= 100 and count(cut) > 60 and cut.startswith("begin word") and cut.endswith("word  end")
    assert "characters left out]" in cut and cut_in_middle("short", 100, count) == "short"


# --- servers


def test_the_package_itself_serves_over_both_transports(tmp_path: Path) -> None:
    from tests.unit.pipeline.agentic.proxy.package_server import served

    two = "\n" + call("meet", box="A") + "\n" + call("meet", box="B")

    async def over_http() -> tuple[list[Trajectory], list[str], Engine]:
        headers: list[str] = []
        with served(headers) as url:
            engine = Engine(ENCODER, lambda number: [CALL + two, "7"][number % 2])
            found = tool_rules(
                tool_servers={"boxes": {"url": url, "headers": {"Authorization": "Bearer abcdef"}}}, answer_key="digit"
            )
            player = ToolPlayer(found, ENCODER, engine, ToolServers(found.config.tool_servers, tmp_path))
            rows = await player.play(JOB, Counts())
            await player.stop()
        return rows, headers, engine

    (row,), headers, engine = run(over_http())
    assert row.turns[1].observation == "[tool] 7\n[tool] ?\n[tool] ?", "calls of one answer run at once"
    assert set(headers) == {"Bearer abcdef"}
    text = ENCODER.show(engine.requests[0].prompt_ids)
    assert text.index('"open"') < text.index('"meet"'), "both pages"
    command = {"command": sys.executable, "args": [str(HERE / "package_server.py")]}
    (other,), _ = played([CALL + two, "7"], tmp_path, tool_servers={"boxes": command}, answer_key="digit")
    assert np.array_equal(other.input_ids, row.input_ids) and np.array_equal(other.log_probs, row.log_probs)


def test_results_of_a_server_are_text_and_its_errors_are_answered(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("SECRET_OF_THE_RUN", "x")
    said = asked(
        plain(tmp_path, env={"OWN": "1"}),
        *(("echo", "hi"), ("fail", ""), ("refuse", ""), ("picture", ""), ("mixed", ""), ("environment", "")),
        *(("shout", ""), ("flood", "2000000"), ("count", ""), ("odd", ""), ("count", "")),
    )
    assert said[6] == "shouted" and (tmp_path / "plain.log").stat().st_size <= supervision.MOST_LOGGED
    assert len(said[7]) == 8_000_008
    assert said[9].startswith("ToolError: ") and (said[8], said[10]) == ("1", "2"), "no death"
    assert said[:4] == [
        "hi",
        "ToolError: no such box",
        "ToolError: not today",
        "ToolError: picture returned a picture (image/png), but only text can be read",
    ]
    assert said[4] == "see\n[mixed returned a picture (image/png), but only text can be read]"
    assert "OWN" in said[5].split() and "PATH" in said[5].split() and "SECRET_OF_THE_RUN" not in said[5]


def test_a_server_that_dies_is_started_again_and_three_deaths_end_the_call(tmp_path: Path) -> None:
    said = asked(plain(tmp_path), ("die_once", str(tmp_path / "once")), ("count", ""), ("die", ""), ("count", ""))
    assert said[:2] == ["alive", "1"] and said[3] == "1"
    assert said[2].startswith("EnvError: tool_servers.plain (")
    assert "died under die 3 times in a row: Connection closed" in said[2] and "the ice broke" in said[2]


def test_a_call_that_kills_its_server_takes_no_others_with_it(tmp_path: Path) -> None:
    async def ask() -> list[Any]:
        shared = plain(tmp_path)
        try:
            await shared.schemas()
            calls = [("echo", str(number)) for number in range(4)]
            calls.insert(2, ("die", ""))
            work = [ServerTools(shared).call(name, {"text": text}) for name, text in calls]
            return list(await asyncio.gather(*work, return_exceptions=True))
        finally:
            await shared.close()

    *_, killer, third, last = found = run(ask())
    assert [found[0], found[1], third, last] == ["0", "1", "2", "3"] and isinstance(killer, EnvError)


def test_a_call_that_hangs_is_answered(tmp_path: Path) -> None:
    said = asked(plain(tmp_path, timeout_s=3.0), ("echo", "a"), ("hang", ""))
    assert said == ["a", "ToolError: hang took longer than 3 s"]


@cases("how, keys, cause")
def test_a_server_that_does_not_start_fails_the_episode_with_its_words(
    tmp_path: Path, how: str, keys: dict[str, Any], cause: str, monkeypatch: Any
) -> None:
    monkeypatch.setattr(of_servers, "_WAIT_S", 0.01)
    command = server(how, **keys) if how != "no command" else {"command": "no_such_program"}
    (row,), engine = played(["x"], tmp_path, tool_servers={"plain": command}, answer_key="digit")
    assert row.failure is not None and not engine.requests
    assert re.search(f"Tools: tool_servers.plain \\(.*\\) .*{cause}", row.failure), row.failure


def test_names_that_clash_are_refused_and_a_prefix_helps(tmp_path: Path) -> None:
    two = {"a": server("one", "open"), "b": server("one", "open")}
    (row,), _ = played(["x"], tmp_path, tool_servers=two, answer_key="digit")
    assert "two tools are called open: of tool_servers.a and of tool_servers.b. Set prefix" in str(row.failure)


def test_a_large_result_is_cut_and_calls_of_one_answer_keep_their_order(tmp_path: Path) -> None:
    said = "\n".join([call("p_flood", text="9000"), call("p_echo", text="b"), call("p_count", text="c")])
    plain_server = {"plain": server(prefix="p_")}
    (row,), _ = played([said, "so"], tmp_path, tool_servers=plain_server, answer_key="digit", max_result_tokens=64)
    flood, echo, count = row.turns[1].observation.split("\n[tool] ")
    assert flood.startswith("[tool] beginx y x y") and flood.endswith("x y end") and (echo, count) == ("b", "1")
    assert len(ENCODER.encode(flood.removeprefix("[tool] "))) <= 64 and "35908 characters" not in flood
    assert row.metrics["tool_calls"] == 3 and row.metrics["broken_requests"] == 0


def test_an_episode_with_a_server_of_its_own_keeps_its_state_and_loses_it_with_the_server(tmp_path: Path) -> None:
    own = {"plain": server(scope="episode")}
    for _ in range(2):
        (row,), _ = played([call("count", text=""), "so"], tmp_path, tool_servers=own, answer_key="digit")
        assert row.turns[1].observation == "[tool] 1"
    said = [call("die_once", text=str(tmp_path / "once")), call("die_once", text=str(tmp_path / "once")), "so"]
    (row,), _ = played(said, tmp_path, tool_servers=own, answer_key="digit", retries=1)
    assert (row.failure, row.metrics["env_crashes"]) == (None, 1)
    (row,), _ = played([call("die", text="")], tmp_path, tool_servers=own, answer_key="digit")
    assert "died under die, and with it what the episode had changed: Connection closed" in str(row.failure)


@pytest.mark.parametrize("how", ["", pytest.param("stubborn", marks=pytest.mark.slow)])
def test_nothing_that_a_server_started_is_left(tmp_path: Path, how: str) -> None:
    (said,) = asked(plain(tmp_path, *filter(None, [how])), ("leave", ""))
    until(lambda: not psutil.pid_exists(int(said)))


def until(holds: Callable[[], bool]) -> None:
    for _ in range(3000):
        if holds():
            return
        time.sleep(0.02)
    raise AssertionError("it does not come to that")
