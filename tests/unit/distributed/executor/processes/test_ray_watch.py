"""The death of Ray's own processes."""

import queue
import subprocess
import sys
from pathlib import Path

import pytest

from roll.distributed.executor.processes.launch import died, when_one_dies

AGENT = "[E] agent_manager.cc:86: The raylet exited immediately because one Ray agent failed, agent_name = {}.\n"
ENDINGS = {
    "os.kill(os.getpid(), 9)": (
        "died ({}, signal 9): no worker can be reached without it. If nobody stopped it, the host may be out of "
        "memory (see `dmesg`)."
    ),
    "os.kill(os.getpid(), 15)": "died ({}, signal 15): no worker can be reached without it. It was ended by that "
    "signal.",
    "os.kill(os.getpid(), 11)": "died ({}, signal 11): no worker can be reached without it. It crashed.",
    "sys.exit(0)": "ended ({}, exit code 0): no worker can be reached without it. It ended by itself, or was stopped.",
    "sys.exit(3)": "ended ({}, exit code 3): no worker can be reached without it. It ended by itself, or was stopped.",
}


def told(end: str, logs: Path) -> tuple[int, str]:
    """What is said of a process that ends so."""
    texts: queue.Queue[str] = queue.Queue()
    code = f"import os, resource, sys; resource.setrlimit(resource.RLIMIT_CORE, (0, 0)); input(); {end}"
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE)
    when_one_dies({process.pid: "Ray's raylet"}, logs, texts.put)
    assert process.stdin is not None
    process.stdin.write(b"\n")
    process.stdin.close()
    text = texts.get(timeout=60)
    assert process.wait(60) is not None
    return process.pid, text


@pytest.mark.parametrize("end", ENDINGS)
def test_a_death_is_told_as_what_it_is(end: str, tmp_path: Path) -> None:
    pid, text = told(end, tmp_path)
    assert text == "Ray's raylet on this host " + ENDINGS[end].format(f"pid {pid}")


@pytest.mark.parametrize("agent", ["runtime_env_agent", "dashboard_agent"])
@pytest.mark.parametrize("log", ["raylet.out", "raylet.err"])
def test_a_raylet_that_ends_with_its_agent_is_not_what_died(agent: str, log: str, tmp_path: Path) -> None:
    (tmp_path / log).write_text(AGENT.format(agent))
    pid, text = told("sys.exit(0)", tmp_path)
    assert text.startswith(f"Ray's {agent} on this host died, and with it Ray's raylet (pid {pid}): no worker")
    assert told("os.kill(os.getpid(), 9)", tmp_path)[1].startswith("Ray's raylet on this host died (pid ")


def test_of_a_death_that_nobody_saw_the_cause_is_unknown() -> None:
    assert died("Ray's gcs_server", 7).startswith(
        "Ray's gcs_server on this host died (pid 7, cause unknown): no worker"
    )
