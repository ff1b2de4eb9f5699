"""Drivers in processes of their own: joining a cluster, living beside another, and dying."""

import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import ray

from roll.distributed.executor.processes.launch import RayRuntime
from roll.distributed.executor.processes.resource_manager import ResourceManager

REPOSITORY = Path(__file__).resolve().parents[3]

DRIVER = """
import os, sys
from pathlib import Path
import psutil
import ray
from roll.distributed.executor.processes.cluster import Cluster
from roll.distributed.executor.processes.launch import RayRuntime
from roll.distributed.executor.processes.resource_manager import ResourceManager
from tests.integration.executor.parts import worker_setup

runtime = RayRuntime(logs=Path(sys.argv[2]) if len(sys.argv) > 2 else None)
resources = ResourceManager(num_nodes=1, num_gpus_per_node=4)
place, spec = worker_setup("reference", devices=(3,), worker_class="tests.toys:ToyWorker")
cluster = Cluster("reference", resources, resources.slots(place), spec)
print("sum", cluster.call_all("add", 20, 22)[0], "at", ray.get_runtime_context().gcs_address, flush=True)
if sys.argv[1] == "die":
    print("directory", cluster.call_all("environment")[0]["ROLL_RUNTIME_DIRECTORY"])
    print("child", cluster.call_all("start_child")[0], flush=True)
    family = [process.pid for process in psutil.Process().children(recursive=True)]
    print("beside", sum(os.getpgid(pid) == os.getpgrp() for pid in family), "family", *family, flush=True)
    os.kill(os.getpid(), 9)
cluster.call_all("say", "last words")
cluster.kill()
resources.release()
runtime.shutdown()
"""


def run_driver(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    variables = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"} | environment
    command = [sys.executable, "-c", DRIVER, *arguments]
    return subprocess.run(command, cwd=REPOSITORY, env=variables, capture_output=True, text=True, timeout=200)


def processes_of(variable: str) -> list[int]:
    """Living processes with this variable in their environment."""
    found = []
    for process in psutil.process_iter():
        try:
            if variable in process.environ() and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


def is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.slow
def test_a_run_joins_the_cluster_at_ray_address_with_the_users_token_and_leaves_it_alive(
    resources: ResourceManager, runtime: RayRuntime, tmp_path: Path
) -> None:
    """Ray looks for a cluster on loopback at another address, but for the variable."""
    address = ray.get_runtime_context().gcs_address
    there = {"RAY_ADDRESS": address, "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_NUM_REDIS_GET_RETRIES": "1"}
    joined = run_driver(
        "end", str(tmp_path), **there, RAY_AUTH_MODE="token", RAY_AUTH_TOKEN_PATH=f"{runtime.directory}/token"
    )
    assert f"sum 42 at {address}" in joined.stdout, joined.stderr
    assert joined.returncode == 0
    assert ray.get(ray.put(1)) == 1
    refused = run_driver("end", str(tmp_path), **there)
    assert refused.returncode != 0
    assert f"RAY_ADDRESS={address}: the Ray cluster there requires a token" in refused.stderr


def test_an_address_where_no_cluster_answers_is_a_clear_error(tmp_path: Path) -> None:
    refused = run_driver("end", str(tmp_path), RAY_ADDRESS="127.0.0.1:1")
    assert refused.returncode != 0
    assert "ResourceError: RAY_ADDRESS=127.0.0.1:1: no Ray cluster answers there" in refused.stderr


@pytest.mark.slow
def test_a_run_beside_another_ends_with_its_processes_and_keeps_what_workers_said(
    resources: ResourceManager, tmp_path: Path
) -> None:
    ended = run_driver("end", str(tmp_path), EXECUTOR_TEST_RUN_A="1")
    assert "sum 42 at" in ended.stdout, ended.stderr
    assert ray.get_runtime_context().gcs_address not in ended.stdout
    assert ended.returncode == 0
    assert processes_of("EXECUTOR_TEST_RUN_A") == []
    assert (tmp_path / "reference-0.out").read_text() == "last words\n"


def test_a_killed_driver_takes_workers_and_their_children_along(resources: ResourceManager, tmp_path: Path) -> None:
    killed = run_driver("die", str(tmp_path), EXECUTOR_TEST_RUN_B="1")
    assert killed.returncode == -9
    assert "child" in killed.stdout, killed.stderr
    directory = Path(killed.stdout.split("directory ")[1].split()[0])
    deadline = time.monotonic() + 60
    while processes_of("EXECUTOR_TEST_RUN_B") and time.monotonic() < deadline:
        time.sleep(0.1)
    assert processes_of("EXECUTOR_TEST_RUN_B") == []
    assert not directory.exists()
    beside, family = killed.stdout.split("beside ")[1].split(" family ")
    assert int(beside) == 0, "a signal to the driver's process group reaches others"
    pids = [int(pid) for pid in family.split()]
    while any(map(is_alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert [pid for pid in pids if is_alive(pid)] == [], "such as Ray's agents"
    assert "ended without a word: it was killed, or it crashed." in killed.stderr
    assert "on this host died" not in killed.stderr
