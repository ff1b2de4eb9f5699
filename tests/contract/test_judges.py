"""One judge in three places: code_sandbox, Harbor's tasks and `sandbox: true`. What a policy runs inside can neither
stop it, nor fill its disk, nor use up its processes, nor turn a 0 into a failure.

Each attack is Python that the policy runs before its work. Right work is then worth 1 and wrong work 0; where an attack
ends the work itself, that is a 0 too.
"""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from roll.envs.adapters.harbor import HarborTask
from roll.envs.tools.base import ToolError
from roll.pipeline.agentic.episode import Counts
from roll.pipeline.agentic.proxy.endpoint.server import Endpoint
from roll.pipeline.agentic.proxy.player import ProgramPlayer
from roll.rewards.base import RewardInput
from roll.rewards.code.reward import CodeSandbox
from roll.utils.sandbox.backends import SandboxUnavailable, find_means
from tests.unit.pipeline.agentic.proxy.parts import ENCODER, JOB, Engine, proxy_rules

try:
    find_means(has_door=True)
except SandboxUnavailable as why:
    pytest.skip(str(why), allow_module_level=True)

PRELUDE = """
import os, resource, signal, sys, time
def attempt(function, *arguments):
    try:
        return function(*arguments)
    except OSError:
        return None
def child(body):
    if attempt(os.fork) == 0:
        attempt(body)
        os._exit(0)
"""
SIGNALS = "for number in (signal.SIGSTOP, signal.SIGKILL, signal.SIGINT, signal.SIGTERM, signal.SIGALRM):"
LIMITS = "resource.RLIMIT_CPU, resource.RLIMIT_AS, resource.RLIMIT_NPROC, resource.RLIMIT_NOFILE, resource.RLIMIT_FSIZE"
ATTACKS = {
    "signals to process 1": f"{SIGNALS} attempt(os.kill, 1, number)",
    "limits of process 1": f"for limit in ({LIMITS}): attempt(resource.prlimit, 1, limit, (0, 0))",
    "300 orphans": "for _ in range(300): child(lambda: child(lambda: time.sleep(0.01))); attempt(os.wait)",
    "200 processes that stay": "for _ in range(200): child(lambda: (os.setsid(), time.sleep(600)))",
    "all files of all disks": (
        "for folder in ('/tmp', '/tests', '/logs', '/logs/verifier', '/reward'):\n"
        "    for number in range(5000):\n"
        "        if attempt(open, f'{folder}/{number}', 'w') is None: break"
    ),
    "all bytes of all disks": (
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "for folder in ('/tmp', '/tests', '/logs'):\n"
        "    file = attempt(open, f'{folder}/full', 'wb', 0)\n"
        "    while file and attempt(file.write, bytes(1 << 22)): pass"
    ),
    "folders that nobody may enter": (
        "for folder in ('/tests', '/logs', '/logs/verifier'):\n"
        "    attempt(os.makedirs, f'{folder}/a/b'); attempt(os.chmod, f'{folder}/a', 0); attempt(os.chmod, folder, 0)"
    ),
    "links in the place of the verdict": (
        "for place in ('/tests/test.sh', '/logs/verifier', '/logs/verifier/reward.txt'):\n"
        "    attempt(os.symlink, '/tmp', place)"
    ),
}
SHELL = {  # what ends, or stops, everything that may be signalled
    "stops who started it": "os.kill(os.getppid(), signal.SIGSTOP)",
    "kills who started it": "os.kill(os.getppid(), signal.SIGKILL)",
    "kills all": "os.kill(-1, signal.SIGKILL)",
    "a bomb of processes": "while True:\n    try: os.fork()\n    except OSError: break",
}

LINKS = {  # what a policy runs, and what it is worth
    "to its file": ("ln -s /tests/expected.txt answer.txt", 0.0),
    "by a relative path": ("ln -s ../../tests/expected.txt answer.txt", 0.0),
    "by the root of a process": ("ln -s /proc/self/root/tests/expected.txt answer.txt", 0.0),
    "by the folder of a process": ("ln -s /proc/self/cwd/expected.txt answer.txt", 0.0),
    "by a folder": ("ln -s /tests ~/seen; ln -s ~/seen/expected.txt answer.txt", 0.0),
    "in a folder that cannot be listed": ("ln -s /tests/expected.txt answer.txt; chmod 300 .", 0.0),
    "in a folder that cannot be written": ("ln -s /tests/expected.txt answer.txt; chmod 500 .", 0.0),
    "behind a chain without end": ("for i in $(seq 2000); do ln -s $((i + 1)) $i; done", 0.0),
    "to work": ("echo hi > work.txt; ln -s work.txt answer.txt; chmod 500 .", 1.0),
}

Judge = Callable[[str, bool], float]
"""What the policy's code and then right or wrong work is worth. A failure is an exception."""


def by_code(folder: Path) -> Judge:
    reward = CodeSandbox()

    def judge(attack: str, is_right: bool) -> float:
        text = f"```python\n{PRELUDE}{attack}\ndef f(x):\n    return x + {int(is_right)}\n```"
        sample = RewardInput("", text, payload={"test_cases": ["assert f(1) == 2"]})
        return reward(sample).score

    return judge


def harbor_task(folder: Path, check: str) -> None:
    for name, content in {
        "task.toml": "[verifier]\ntimeout_sec = 60\n",
        "instruction.md": "Write hi.\n",
        "tests/expected.txt": "hi\n",
        "tests/test.sh": f"{check} && echo 1 > /logs/verifier/reward.txt || echo 0 > /logs/verifier/reward.txt\n",
    }.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(content, encoding="utf-8")


def by_harbor(folder: Path) -> Judge:
    harbor_task(folder, '[ "$(cat answer.txt)" = hi ]')

    def judge(attack: str, is_right: bool) -> float:
        task = HarborTask(timeout_s=20.0)
        task.reset(folder=str(folder))
        try:
            task.bash(f"echo {'hi' if is_right else 'no'} > answer.txt")
            try:
                task.bash(f"python3 -c {shlex.quote(PRELUDE + attack)}")
            except ToolError as error:  # told to the policy, which goes on
                assert "took longer" in str(error)
            return float(task.get_reward()["reward"])
        finally:
            task.close()

    return judge


AGENT = """
import json, os, subprocess, sys, urllib.request
body = json.dumps({"messages": [{"role": "user", "content": "?"}]}).encode()
headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body, headers)
urllib.request.urlopen(request).read()
try:
    subprocess.run([sys.executable, "-c", ATTACK], timeout=20, start_new_session=True, check=False)
except subprocess.TimeoutExpired:
    pass
open(os.environ["ROLL_REWARD_FILE"], "w").write(RESULT)
"""


def by_program(folder: Path) -> Judge:
    async def played(agent: Path) -> float:
        engine = Engine(ENCODER, lambda number: "an answer")
        rules = proxy_rules(agent=None, agent_command=f"python {agent}", sandbox=True)
        endpoint = Endpoint(ENCODER, engine)
        player = ProgramPlayer(rules, endpoint, folder / "logs")
        try:
            (row,) = await asyncio.wait_for(player.play(JOB, Counts()), 120)
        finally:
            await player.stop()
            await endpoint.stop()
        assert row.failure is None, row.failure
        return row.reward

    def judge(attack: str, is_right: bool) -> float:
        agent = folder / "agent" / "agent.py"
        agent.parent.mkdir(exist_ok=True)
        agent.write_text(f"ATTACK, RESULT = {PRELUDE + attack!r}, '{int(is_right)}'\n{AGENT}", encoding="utf-8")
        return asyncio.run(played(agent))

    return judge


JUDGES: dict[str, Callable[[Path], Judge]] = {"code": by_code, "harbor": by_harbor, "program": by_program}


@pytest.fixture(params=JUDGES)
def judge(request: pytest.FixtureRequest, tmp_path: Path) -> Judge:
    return JUDGES[request.param](tmp_path)


@pytest.mark.gate(*(f"{judge}-{name}" for judge in JUDGES for name in ("300 orphans", "all files of all disks")))
@pytest.mark.parametrize("name", ATTACKS)
def test_right_work_is_paid_and_wrong_work_is_a_zero_whatever_was_tried_before(judge: Judge, name: str) -> None:
    assert (judge(ATTACKS[name], True), judge(ATTACKS[name], False)) == (1.0, 0.0)


@pytest.mark.gate(*(f"{judge}-stops who started it" for judge in JUDGES))
@pytest.mark.parametrize("name", SHELL)
def test_who_ends_what_surrounds_it_ends_no_judge(judge: Judge, name: str) -> None:
    assert judge(SHELL[name], False) == 0.0


@pytest.mark.gate("to its file")
@pytest.mark.parametrize("name", LINKS)
def test_a_link_to_what_the_judge_knows_is_no_work(tmp_path: Path, name: str) -> None:
    harbor_task(tmp_path, "work=$PWD; cd /tests; cmp -s $work/answer.txt expected.txt")
    task = HarborTask(timeout_s=20.0)
    task.reset(folder=str(tmp_path))
    try:
        task.bash(LINKS[name][0])
        assert task.get_reward()["reward"] == LINKS[name][1]
    finally:
        task.close()
