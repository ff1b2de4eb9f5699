"""Commands in a sandbox: they reach the endpoint, and nothing else."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from roll.pipeline.agentic.episode import Counts
from roll.pipeline.agentic.proxy.endpoint.server import Endpoint
from roll.pipeline.agentic.proxy.player import ProgramPlayer
from roll.types.rollout import Trajectory
from roll.utils.sandbox.backends import SandboxUnavailable, find_means
from tests.unit.pipeline.agentic.proxy.parts import ENCODER, JOB, Engine, check_rows, proxy_rules

try:
    find_means(has_door=True)
except SandboxUnavailable as why:
    pytest.skip(str(why), allow_module_level=True)

AGENT = """
import json, os, sys, urllib.request

def ask(content):
    body = json.dumps({"messages": [{"role": "user", "content": content}]}).encode()
    headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
    request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body, headers)
    return json.load(urllib.request.urlopen(request))["choices"][0]["message"]["content"]

task = json.load(open(os.environ["ROLL_TASK_FILE"]))
said = ask(task["question"])
reward = {"reward": 0.25, "metrics": {"length": len(said)}}
"""
ENDS = 'json.dump(reward, open(os.environ["ROLL_REWARD_FILE"], "w"))\n'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "tasks.jsonl").write_text('{"question": "zero"}\n{"question": "one"}\n', encoding="utf-8")
    return tmp_path


def played(
    folder: Path, code: str, limit_s: float = 60.0, command: str = "python AGENT", **keys: Any
) -> tuple[Trajectory, str]:
    """The row of an episode with this program, and what the program said."""
    engine = Engine(ENCODER, lambda number: f"answer {number}")
    agent = folder / "agent" / "agent.py"
    agent.parent.mkdir(exist_ok=True)
    agent.write_text(code, encoding="utf-8")
    rules: dict[str, Any] = {"agent": None, "sandbox": True, "tasks": str(folder / "tasks.jsonl")} | keys
    found = proxy_rules(agent_command=command.replace("AGENT", str(agent)), **rules)

    async def run() -> list[Trajectory]:
        endpoint = Endpoint(ENCODER, engine)
        limited = type(found)(**{**vars(found), "episode_timeout_s": limit_s, "retries": 0})
        player = ProgramPlayer(limited, endpoint, folder / "logs")
        try:
            return await asyncio.wait_for(player.play(JOB, Counts()), 120)
        finally:
            await player.stop()
            await endpoint.stop()

    (row,) = asyncio.run(run())
    if row.failure is None:
        check_rows([row], engine, len(engine.sent[0]) - len(engine.requests[0].prompt_ids))
    return row, (folder / "logs" / f"{JOB.name}-0.log").read_text(encoding="utf-8")


def test_a_command_plays_in_the_sandbox_and_its_reward_comes_out(folder: Path) -> None:
    row, log = played(folder, AGENT + 'print("done with", task)\n' + ENDS)
    assert row.failure is None, row.failure
    assert (row.reward, row.metrics["length"]) == (0.25, len("answer 0"))
    assert "done with {'question': 'one', 'seed': 5}" in log


def test_a_sandboxed_program_is_told_its_address_and_says_why_it_fails(folder: Path) -> None:
    command = 'python -c "import sys; print(sys.argv[1:])" {base_url} {task_file} {reward_file} {model}'
    _, log = played(folder, "", command=command)
    assert "'http://127.0.0.1:8000/s/" in log and "'/box/task.json', '/reward/reward.json', 'policy'" in log
    row, _ = played(folder, AGENT + 'open(os.environ["ROLL_REWARD_FILE"], "w").write("much")\n')
    assert row.failure is not None and "the reward file" in row.failure and "a number" in row.failure
    row, _ = played(folder, AGENT + 'raise ValueError("the ice broke")\n')
    assert row.failure is not None and "exit code 1" in row.failure and "the ice broke" in row.failure


def test_it_sees_the_files_of_its_command_and_reaches_nothing_but_the_endpoint(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("A_SECRET", "of the run")
    (folder / "private.txt").write_text("private", encoding="utf-8")
    (folder / "agent").mkdir()
    (folder / "agent" / "run.yaml").write_text("api_key: key", encoding="utf-8")
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        look = f"""
import socket
def tried(action):
    try:
        return repr(action())
    except Exception as error:
        return type(error).__name__
print(json.dumps({{
    "other": tried(lambda: socket.create_connection(("127.0.0.1", {port}), 2)),
    "out": tried(lambda: socket.create_connection(("192.0.2.1", 80), 2)),
    "metadata": tried(lambda: socket.create_connection(("169.254.169.254", 80), 2)),
    "names": tried(lambda: socket.getaddrinfo("example.com", 80)),
    "datagrams": tried(lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM)),
    "unix": tried(lambda: socket.socket(socket.AF_UNIX)),
    "private": tried(lambda: open({str(folder / "private.txt")!r}).read()),
    "settings": tried(lambda: open({str(folder / "agent" / "run.yaml")!r}).read()),
    "passwords": tried(lambda: open("/etc/shadow").read()),
    "processes": tried(lambda: os.listdir("/proc")),
    "beside": tried(lambda: open(__file__, "a")),
    "own": tried(lambda: open("/tmp/x", "w").write("x")),
    "secret": os.environ.get("A_SECRET"),
    "variables": sorted(os.environ),
}}))
"""
        row, log = played(folder, AGENT + look + ENDS)
    assert row.failure is None, row.failure
    seen = json.loads(next(line for line in log.splitlines() if line.startswith("{")))
    variables = set(seen.pop("variables"))
    assert seen.pop("own") == "1" and seen.pop("secret") is None
    expected = {"other": "ConnectionRefusedError", "out": "OSError", "metadata": "OSError", "names": "gaierror"}
    assert {name: seen.pop(name) for name in expected} == expected
    assert all(text.endswith("Error") for text in seen.values()), seen
    assert not {name for name in variables if name.startswith(("RAY", "ROLL_RUNTIME", "PYTHONPATH", "SSH"))}


@pytest.mark.parametrize("is_asked", [False, True])
def test_files_and_truths_are_seen_if_they_are_asked_for(folder: Path, is_asked: bool) -> None:
    (folder / "tasks.jsonl").write_text('{"question": "one", "answer": 42, "ground_truth": 7}\n', encoding="utf-8")
    helper = folder / "agent" / "helper.py"
    helper.parent.mkdir()
    helper.write_text("NAME = 'helper'\n", encoding="utf-8")
    keys: dict[str, Any] = {"agent_files": [str(helper)], "agent_truths": ["answer"]} if is_asked else {}
    look = """
try:
    from helper import NAME
except ImportError:
    NAME = None
served = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/task")
served.add_header("Authorization", "Bearer " + os.environ["OPENAI_API_KEY"])
assert json.load(urllib.request.urlopen(served)) == task
print("seen", NAME, sorted(task))
"""
    row, log = played(folder, AGENT + look + ENDS, **keys)
    assert row.failure is None, (row.failure, log)
    assert ("seen helper ['answer', 'question', 'seed']" if is_asked else "seen None ['question', 'seed']") in log


def test_the_key_of_the_policy_gives_no_reward(folder: Path) -> None:
    pay = """
import urllib.error
def pay(key, reward):
    headers = {"Authorization": "Bearer " + os.environ[key]}
    body = json.dumps({"reward": reward}).encode()
    request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/reward", body, headers)
    try:
        return urllib.request.urlopen(request).status
    except urllib.error.HTTPError as error:
        return error.code
print("paid", pay("ROLL_REWARD_KEY", 0.5), pay("OPENAI_API_KEY", 1.0))
"""
    row, log = played(folder, AGENT + pay)
    assert (row.failure, row.reward) == (None, 0.5) and "paid 200 401" in log, log


def test_a_program_that_takes_too_long_is_gone_with_all_that_it_started(folder: Path) -> None:
    mark = f"{time.time_ns()}"
    lingers = f"""
import subprocess, time
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", "{mark}"], start_new_session=True)
time.sleep(600)
"""
    row, _ = played(folder, AGENT + lingers, limit_s=8.0)
    assert row.failure is not None and "longer than 8 s" in row.failure
    until = time.monotonic() + 30
    while found := [process for process in psutil.process_iter(["cmdline"]) if mark in (process.info["cmdline"] or [])]:
        assert time.monotonic() < until, found
        time.sleep(0.1)


@pytest.mark.slow
def test_an_sdk_of_this_python_works_inside(folder: Path) -> None:
    pytest.importorskip("openai", reason="the SDK of OpenAI is not installed")
    code = """
import json, os
import openai
task = json.load(open(os.environ["ROLL_TASK_FILE"]))
messages = [{"role": "user", "content": task["question"]}]
reply = openai.OpenAI().chat.completions.create(model="policy", messages=messages)
open(os.environ["ROLL_REWARD_FILE"], "w").write(str(float(reply.choices[0].message.content == "answer 0")))
"""
    row, log = played(folder, code)
    assert row.failure is None, (row.failure, log)
    assert row.reward == 1.0
