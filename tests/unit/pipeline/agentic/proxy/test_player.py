"""Programs as users write them, each in a process of its own, and what becomes of their episodes."""

from __future__ import annotations

import asyncio
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from roll.errors import EnvError, WorkerError
from roll.pipeline.agentic.episode import Counts
from roll.pipeline.agentic.proxy.endpoint.reward import outcome_of
from roll.pipeline.agentic.proxy.endpoint.server import Endpoint
from roll.pipeline.agentic.proxy.player import ProgramPlayer
from roll.pipeline.agentic.proxy.session_player import Tasks
from roll.types.rollout import Trajectory
from roll.types.texts import ParsedMessage
from tests.helpers.cases import cases
from tests.unit.pipeline.agentic.proxy.parts import JOB, Engine, check_rows, proxy_rules, tool_encoder

ENCODER = tool_encoder()
AGENT = """
import asyncio, json, os, subprocess, sys, time, urllib.request

def ask(session, messages):
    body = json.dumps({"messages": messages}).encode()
    headers = {"Authorization": "Bearer " + session.api_key}
    request = urllib.request.Request(session.base_url + "/chat/completions", body, headers)
    return json.load(urllib.request.urlopen(request))["choices"][0]["message"]

def play(task, session):
    print("task", json.dumps(task))
    messages = [{"role": "user", "content": task.get("question", "?")}]
    for _ in range(2):
        messages.append(ask(session, messages))
        messages.append({"role": "user", "content": "go on"})
    return {"reward": 0.5, "metrics": {"right": 1}}

async def slowly(task, session):
    await asyncio.sleep(0.01)
    return await asyncio.to_thread(play, task, session)

def breaks(task, session):
    ask(session, [{"role": "user", "content": "?"}])
    print("about to break")
    raise ValueError("the ice broke")

def silent(task, session):
    return 1.0

def poor(task, session):
    ask(session, [{"role": "user", "content": "?"}])

def odd(task, session):
    ask(session, [{"role": "user", "content": "?"}])
    return "much"

def huge(task, session):
    ask(session, [{"role": "user", "content": "?"}])
    return 10**400

def no_number(task, session):
    return {"reward": huge(task, session) and 1, "metrics": {"right": float("nan")}}

def writes(task, session):
    ask(session, [{"role": "user", "content": "?"}])
    open(os.environ["ROLL_REWARD_FILE"], "w").write("0.25")

def clash(task, session):
    writes(task, session)
    return {"reward": task["worth"], "metrics": {"rows": 9, "requests": 9, "broken_answer_edited": 9, "env_hangs": 9}}

def leaves(task, session):
    ask(session, [{"role": "user", "content": "?"}])
    code = "import os, time; os.setsid(); open({!r}, 'w').write(str(os.getpid())); time.sleep(600)"
    for name in ("one", "two"):
        file = os.path.join(os.environ["KEEP"], name)
        subprocess.Popen([sys.executable, "-c", code.format(file)])
        while not os.path.exists(file) or not open(file).read():
            time.sleep(0.01)
    if task["seed"] == 5:
        return 1.0
    time.sleep(600)

def forever(task, session):
    messages = [{"role": "user", "content": "?"}]
    while True:
        messages += [ask(session, messages), {"role": "user", "content": "go on"}]
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "foreign_agent.py").write_text(AGENT, encoding="utf-8")
    (started_in := tmp_path / "started_in").mkdir()
    (started_in / "heapq.py").write_text("raise SystemExit('taken for the module of this name that asyncio imports')")
    monkeypatch.chdir(started_in)
    (tmp_path / "tasks.jsonl").write_text('{"question": "zero"}\n{"question": "one"}\n', encoding="utf-8")
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    monkeypatch.setenv("KEEP", str(tmp_path))
    return tmp_path


def played(folder: Path, rules: dict[str, Any], engine: Engine | None = None, **changes: Any) -> list[Trajectory]:
    async def run() -> list[Trajectory]:
        endpoint = Endpoint(ENCODER, engine or Engine(ENCODER, lambda number: f"answer {number}"))
        found = proxy_rules(**rules)
        player = ProgramPlayer(type(found)(**{**vars(found), **changes}), endpoint, folder / "logs")
        try:
            return await asyncio.wait_for(player.play(JOB, Counts()), 60)
        finally:
            await player.stop()
            await endpoint.stop()

    return asyncio.run(run())


@pytest.mark.parametrize("function", ["play", "slowly"])
def test_a_function_plays_and_returns_its_reward(folder: Path, function: str) -> None:
    engine = Engine(ENCODER, lambda number: f"answer {number}")
    rows = played(folder, {"agent": f"foreign_agent:{function}", "tasks": str(folder / "tasks.jsonl")}, engine)
    (row,) = rows
    check_rows(rows, engine, sum(len(sent) for sent in engine.sent) - sum(len(r.prompt_ids) for r in engine.requests))
    assert (row.reward, row.index, row.failure) == (0.5, JOB.index, None)
    assert row.turn_rewards is not None and row.turn_rewards.tolist() == [0.0, 0.5]
    assert row.metrics["right"] == 1 and row.metrics["rows"] == 1 and row.metrics["continued_requests"] == 1
    assert [turn.response for turn in row.turns] == ["answer 0", "answer 1"]
    assert row.turns[0].observation == "[user] one", "task 5 of two rows is the second"
    log = (folder / "logs" / f"{JOB.name}-0.log").read_text(encoding="utf-8")
    assert 'task {"question": "one", "seed": 5}' in log


def test_a_command_plays_and_writes_its_reward(folder: Path) -> None:
    (folder / "script.py").write_text(
        "import json, os, sys\nsys.path.insert(0, os.environ['KEEP'])\nfrom foreign_agent import ask\n"
        "from types import SimpleNamespace\nbase, key, task = sys.argv[1:]\n"
        "assert base == os.environ['OPENAI_BASE_URL'] and key == os.environ['OPENAI_API_KEY']\n"
        "question = json.load(open(task))['question']\n"
        "ask(SimpleNamespace(base_url=base, api_key=key), [{'role': 'user', 'content': question}])\n"
        "open(os.environ['ROLL_REWARD_FILE'], 'w').write('0.25')\n",
        encoding="utf-8",
    )
    command = f"{sys.executable} script.py {{base_url}} {{api_key}} {{task_file}}"
    (row,) = played(folder, {"agent": None, "agent_command": command, "tasks": str(folder / "tasks.jsonl")})
    assert row.reward == 0.25 and row.turns[0].observation == "[user] one"


@cases("function, cause")
def test_an_episode_without_reward_is_a_failed_one_that_says_why(folder: Path, function: str, cause: str) -> None:
    (row,) = played(folder, {"agent": f"foreign_agent:{function}"})
    assert row.failure is not None and not row.response_mask.any()
    assert row.failure.startswith("Tools: ")
    assert re.search(cause, row.failure), row.failure


def test_metrics_of_a_program_leave_the_counts_of_its_session(folder: Path) -> None:
    (folder / "odd_tasks.py").write_text(
        "import numpy as np\nROWS = [{'worth': np.float32(0.5), 'ids': np.arange(3)}]\n"
    )
    (row,) = played(folder, {"agent": "foreign_agent:clash", "tasks": "odd_tasks:ROWS"})
    assert (row.reward, row.metrics["rows"], row.metrics["requests"], row.metrics["env_hangs"]) == (0.5, 1, 1, 0)
    assert "broken_answer_edited" not in row.metrics


def test_a_task_that_is_no_json_is_named(folder: Path) -> None:
    (folder / "bad_tasks.py").write_text("ROWS = [{'a': 1}, {'picture': b'x'}]\n")
    with pytest.raises(EnvError, match="tasks: a row of bad_tasks:ROWS .* bytes"):
        Tasks("bad_tasks:ROWS").of(3)


@pytest.mark.parametrize(
    "value",
    [float("nan"), "1", None, [1]],
    ids=lambda value: type(value).__name__,
)
def test_what_is_no_number_is_refused_in_one_way(value: object) -> None:
    with pytest.raises(ValueError, match="a reward is a number up to"):
        outcome_of(value)
    with pytest.raises(ValueError, match="metrics are finite numbers by name"):
        outcome_of({"reward": 1, "metrics": {"a": value}})
    found = outcome_of({"reward": np.float32(0.5), "metrics": {"a": np.int64(2)}})
    assert (found.reward, found.metrics) == (0.5, {"a": 2.0})


def test_a_program_that_crashes_is_started_again_and_a_slow_one_fails(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    engine = Engine(ENCODER, lambda number: "yes")
    (row,) = played(folder, {"agent": "foreign_agent:breaks"}, engine, retries=2)
    assert row.metrics["env_crashes"] == 3 and len({request.session for request in engine.requests}) == 3
    (said,) = [record.message for record in caplog.records if "is played again" in record.message]
    assert "the ice broke" in said
    (folder / "late_agent.py").write_text("import time\ndef play(task, session):\n    time.sleep(600)\n")
    (row,) = played(folder, {"agent": "late_agent:play"}, None, episode_timeout_s=1.5)
    assert row.failure == "Tools: the program took longer than 1.5 s" and row.metrics["env_hangs"] == 1


@pytest.mark.parametrize("is_in_time", [True, False])
def test_nothing_that_a_program_started_outlives_its_episode(folder: Path, is_in_time: bool) -> None:
    job = JOB if is_in_time else type(JOB)(**{**vars(JOB), "env_seed": 6})

    async def run() -> list[Trajectory]:
        endpoint = Endpoint(ENCODER, Engine(ENCODER, lambda number: "yes"))
        found = proxy_rules(agent="foreign_agent:leaves")
        player = ProgramPlayer(type(found)(**{**vars(found), "episode_timeout_s": 20.0}), endpoint, folder / "logs")
        try:
            play = asyncio.create_task(player.play(job, Counts()))
            while not all((folder / name).exists() and (folder / name).read_text() for name in ("one", "two")):
                await asyncio.sleep(0.01)
            if not is_in_time:
                play.cancel()
            (result,) = await asyncio.gather(play, return_exceptions=True)
            return [] if isinstance(result, BaseException) else result
        finally:
            await player.stop()
            await endpoint.stop()

    rows = asyncio.run(run())
    assert [row.reward for row in rows] == ([1.0] if is_in_time else [])
    for name in ("one", "two"):
        assert not psutil.pid_exists(int((folder / name).read_text()))


def test_after_max_steps_answers_a_program_is_ended(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("roll.pipeline.agentic.proxy.player._LAST_S", 5.0)
    engine = Engine(ENCODER, lambda number: "yes")
    (row,) = played(folder, {"agent": "foreign_agent:forever", "max_steps": 3}, engine)
    assert len(engine.requests) == 3
    assert row.failure is not None and "exit code 70" in row.failure and "HTTP Error 400" in row.failure


def test_an_engine_that_is_gone_ends_the_run_and_not_only_the_episode(folder: Path) -> None:
    engine = Engine(ENCODER, lambda number: "yes")
    engine.error = WorkerError("rank 0 died")
    with pytest.raises(WorkerError, match="rank 0 died"):
        played(folder, {"agent": "foreign_agent:play"}, engine)


def test_broken_prefixes_reach_the_record_and_the_metrics(folder: Path) -> None:
    (folder / "dropping_agent.py").write_text(
        "from foreign_agent import ask\ndef play(task, session):\n"
        "    messages = [{'role': 'user', 'content': 'box F?'}]\n"
        "    for _ in range(3):\n        said = ask(session, messages)\n        said.pop('reasoning_content', None)\n"
        "        messages += [said, {'role': 'user', 'content': 'go on'}]\n    return 1\n",
        encoding="utf-8",
    )
    rows = played(
        folder, {"agent": "dropping_agent:play"}, Engine(ENCODER, lambda number: f"<think>{number}</think>ok")
    )
    assert len(rows) == 3 and {row.reward for row in rows} == {1.0}
    assert [row.turn for row in rows] == [0, 1, 2]
    assert rows[0].metrics["broken_requests"] == rows[0].metrics["broken_thinking_dropped"] == 2
    assert [one["cause"] for one in rows[0].extra["witness"]] == ["thinking_dropped"] * 2
    assert rows[0].extra["witness"][0]["was"].startswith("<think>0</think>")
    assert [one["turn"] for one in rows[0].extra["witness"]] == [2, 3]
    assert [turn.metrics["after"] for turn in rows[0].turns] == [0, 0, 0] and rows[0].turns[0].metrics["tokens"] > 0
    second = rows[0].turns[1].said
    assert second == (ParsedMessage("user", "go on"), ParsedMessage("assistant", "ok", "1"))
    sums = [row.turn_rewards.sum() for row in rows if row.turn_rewards is not None]
    assert sums == [0.0, 0.0, 1.0], "the reward of the attempt stands once"
