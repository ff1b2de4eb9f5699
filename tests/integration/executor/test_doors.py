"""Who gets into a cluster of a run: nobody without its token, and nobody from another machine."""

import os
import stat
import subprocess
import sys

import psutil
import ray

from roll.distributed.executor.processes import cleaner
from roll.distributed.executor.processes.cluster import Cluster
from roll.distributed.executor.processes.launch import RayRuntime
from roll.distributed.executor.processes.resource_manager import ResourceManager
from tests.helpers.process_table import name_of
from tests.helpers.sockets import listening, open_to_others

JOIN = """
import ray, sys
ray.init(address=sys.argv[1], log_to_driver=False)
print("joined with", ray.cluster_resources())
"""
# Ray would look for a cluster on loopback at another interface's address, and try for long.
AS_A_NEIGHBOUR = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_NUM_REDIS_GET_RETRIES": "1"}


def join(**environment: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    command = [sys.executable, "-c", JOIN, ray.get_runtime_context().gcs_address]
    return subprocess.run(command, env=kept | AS_A_NEIGHBOUR | environment, capture_output=True, text=True, timeout=200)


def test_a_run_on_one_machine_listens_on_loopback_only(
    resources: ResourceManager, toys: Cluster, runtime: RayRuntime
) -> None:
    toys.wait_ready()
    marked = cleaner.marked_processes(cleaner.MARK, str(runtime.directory))  # this process has children of other tests
    family = [process for process in psutil.process_iter() if process.pid in {os.getpid(), *marked}]
    names = {name for process in family if listening([process]) and (name := name_of(process))}
    assert {"gcs_server", "raylet"} <= names
    assert any(name.startswith("ray::") for name in names)  # workers
    assert open_to_others(family) == {}
    environment = toys.call_all("environment")[0]
    assert environment["GLOO_SOCKET_IFNAME"] == "lo"
    assert environment["MASTER_ADDR"] == "127.0.0.1"


def test_only_the_user_with_the_token_joins_a_run(resources: ResourceManager, runtime: RayRuntime) -> None:
    for environment in ({}, {"RAY_AUTH_MODE": "disabled"}, {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0" * 64}):
        stranger = join(**environment)
        assert stranger.returncode != 0
        assert "joined with" not in stranger.stdout
        assert "InvalidAuthToken" in stranger.stderr
    friend = join(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN_PATH=f"{runtime.directory}/token")
    assert "joined with" in friend.stdout, friend.stderr
    assert runtime.directory is not None
    assert stat.S_IMODE(runtime.directory.stat().st_mode) == 0o700
    assert stat.S_IMODE((runtime.directory / "token").stat().st_mode) == 0o600
    assert "RAY_AUTH_TOKEN_PATH" not in os.environ  # what else this process starts is not the run's
