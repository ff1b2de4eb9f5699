"""Task folders of Harbor: a shell in the sandbox, and tests that the policy cannot bend."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from roll.envs.adapters.harbor import HarborTask, HarborTasks, sandbox
from roll.envs.tools.base import ToolError
from roll.envs.tools.servers import ToolServers
from roll.errors import EnvError
from roll.pipeline.agentic.episode import Counts
from roll.pipeline.agentic.proxy.tool_player import ToolPlayer
from roll.types.rollout import Trajectory
from tests.unit.pipeline.agentic.proxy.parts import JOB, Engine, tool_encoder
from tests.unit.pipeline.agentic.proxy.test_tool_player import call, tool_rules

ENCODER = tool_encoder()


def write_task(folder: Path, expected: str = "hi", writes: str = "reward.txt") -> None:
    files = {
        "task.toml": f'schema_version = "1.4"\n[verifier]\ntimeout_sec = 30\n[verifier.env]\nEXPECTED = "{expected}"\n',
        "instruction.md": "Write hi into answer.txt.\n",
        "environment/Dockerfile": "FROM ubuntu:24.04\nWORKDIR /work/there\nRUN true\n",
        "environment/data/notes.txt": "a note\n",
        "tests/test.sh": 'ls /work/there/data && test "$(cat answer.txt)" = "$EXPECTED" && right=1 || right=0\n'
        + f"/bin/bash /tests/write.sh $right > /logs/verifier/{writes}\n",
        "tests/write.sh": "echo $1\n" if writes == "reward.txt" else 'echo "{\\"reward\\": $1, \\"steps\\": 2}"\n',
    }
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content, encoding="utf-8")


@pytest.fixture
def tasks(tmp_path: Path) -> Path:
    try:
        sandbox()
    except EnvError as why:
        pytest.skip(str(why))
    write_task(tmp_path / "tasks" / "hello")
    write_task(tmp_path / "tasks" / "more" / "json", writes="reward.json")
    return tmp_path / "tasks"


def opened(folder: Path, place: int = 0, **keys: Any) -> HarborTask:
    task = HarborTask(**keys)
    task.reset(folder=HarborTasks(str(folder))[place]["folder"])
    return task


def test_folders_of_harbor_hold_tasks_by_name_with_tests(tasks: Path) -> None:
    found = HarborTasks(str(tasks))
    assert [task["name"] for task in found] == ["hello", "json"]
    assert found[0]["question"] == "Write hi into answer.txt.\n"
    with pytest.raises(EnvError, match=r"there is no task\.toml in .*/hello/tests or in a folder below it"):
        HarborTasks(str(tasks / "hello" / "tests"))
    with pytest.raises(EnvError, match=r"reward\.json has speed, not reward: set reward_key"):
        judged(tasks, "echo '{\"speed\": 1}' > /logs/verifier/reward.json\n")
    (tasks / "hello" / "tests" / "test.sh").unlink()
    (tasks / "hello" / "steps").mkdir()
    with pytest.raises(EnvError, match=r"has no tests/test\.sh\. Tasks in steps are not played\."):
        opened(tasks)
    with pytest.raises(EnvError, match="Set tasks to it"):
        HarborTask().reset()


def test_commands_work_in_the_task_and_its_tests_are_the_reward(tasks: Path) -> None:
    task = opened(tasks)
    assert task.bash("cat data/notes.txt; ls Dockerfile 2>/dev/null") == "a note\n\n[exit code 2]"
    assert task.bash("echo hi > answer.txt; ls /tests") == ""
    assert task.get_reward() == {"reward": 1.0, "metrics": {"no_verdict": 0.0}}
    task.close()
    task = opened(tasks, 1)
    task.bash("echo no > answer.txt")
    assert task.get_reward() == {"reward": 0.0, "metrics": {"no_verdict": 0.0, "steps": 2.0}}
    task.close()


def test_commands_leave_nothing_behind_that_judges_them(tasks: Path) -> None:
    task = opened(tasks)
    task.bash("echo 'echo 1 > /logs/verifier/reward.txt' > /tests/test.sh; mkdir /logs/verifier")
    task.bash("echo 1 > /logs/verifier/reward.txt; (while true; do echo 1 > /logs/verifier/reward.txt; done) &")
    assert task.get_reward() == {"reward": 0.0, "metrics": {"no_verdict": 0.0}}
    task.close()
    task = opened(tasks, timeout_s=2.0)
    with pytest.raises(ToolError, match="took longer than 2 s and was stopped. begun"):
        task.bash("echo begun; sleep 60")
    assert task.bash("kill -9 -1 2> /dev/null; kill -STOP $PPID; echo on") == "on\n"
    task.close()
    (tasks / "hello" / "tests" / "test.sh").write_text(
        "python3 -m json.tool notes.json && echo 1 > /logs/verifier/reward.txt || echo 0 > /logs/verifier/reward.txt\n"
    )
    task = opened(tasks)
    task.bash("mkdir json; echo 'import sys; sys.exit(0)' | tee json/__init__.py > json/tool.py")
    assert task.get_reward()["reward"] == 0.0
    task.close()
    script = "python3 -c 'import own' && python3 more/main.py && echo 1 > /logs/verifier/reward.txt\n"
    (tasks / "hello" / "tests" / "test.sh").write_text(script)
    task = opened(tasks)
    task.bash("mkdir more; touch own.py more/beside.py; echo 'import beside' > more/main.py")
    assert task.get_reward()["reward"] == 1.0
    task.close()


def judged(tasks: Path, script: str) -> Any:
    (tasks / "hello" / "tests" / "test.sh").write_text(script)
    task = opened(tasks)
    try:
        return task.get_reward()
    finally:
        task.close()


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("echo nothing here\n", "wrote no reward into /logs/verifier; they said: nothing here"),
        ("kill -9 -1\n", "wrote no reward"),
        *((f"echo '{content}' > /logs/verifier/reward.txt\n", "is no reward") for content in ("", "much", "NaN", "{}")),
        ("""echo '{"reward": "1"}' > /logs/verifier/reward.txt\n""", "is no reward"),
    ],
)
def test_tests_without_a_reward_are_a_zero_that_says_why(
    tasks: Path, script: str, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert judged(tasks, script) == {"reward": 0.0, "metrics": {"no_verdict": 1.0}}
    assert why in caplog.text


def test_a_policy_plays_a_task_of_harbor_by_its_tools(tasks: Path) -> None:
    engine = Engine(ENCODER, lambda number: [call("bash", command="echo hi > answer.txt"), "done"][number])
    rules = tool_rules(tool_class="harbor", tasks=str(tasks / "hello"))

    async def run() -> list[Trajectory]:
        servers = ToolServers({}, tasks)
        player = ToolPlayer(rules, ENCODER, engine, servers, None)
        return await asyncio.wait_for(player.play(JOB, Counts()), 60)

    (row,) = asyncio.run(run())
    assert (row.failure, row.reward, len(row.turns)) == (None, 1.0, 2)
    assert row.turns[0].observation.endswith("Write hi into answer.txt.\n")
