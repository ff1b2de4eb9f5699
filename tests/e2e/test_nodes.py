"""The demo on a Ray cluster of two nodes that is there before the run and stays when it ends."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from roll.utils.network import free_port
from tests.e2e.test_rlvr import assert_engine_and_trainer_agree
from tests.helpers.runs import END_LIMIT_S, Run

HEAD, OTHER = "127.0.0.1", "127.0.0.2"  # loopback addresses stand for hosts
MARK = "ROLL_TEST_CLUSTER"
REPOSITORY = Path(__file__).resolve().parents[2]


def _start_node(environment: dict[str, str], *arguments: str) -> None:
    fixed = ["--num-cpus=2", "--object-store-memory=200000000", "--disable-usage-stats"]
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", *fixed, *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


def _kill_marked(mark: str) -> None:
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == mark:
                process.send_signal(signal.SIGKILL)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue


@pytest.fixture
def two_nodes(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[str]:
    """The address of a Ray cluster with two nodes of this test's own. Its token is in the environment. A parameter has
    variables of the shell in which the other node is started."""
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setenv("RAY_AUTH_TOKEN", secrets.token_hex(32))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    port = free_port(HEAD)
    mark, directory = uuid.uuid4().hex, tempfile.mkdtemp(prefix="ray-")  # tmp_path is too long for Ray's sockets
    environment = os.environ | {MARK: mark}
    try:
        _start_node(
            environment,
            "--head",
            f"--node-ip-address={HEAD}",
            f"--port={port}",
            "--include-dashboard=false",
            f"--temp-dir={directory}",
        )
        shell: dict[str, str] = getattr(request, "param", {})
        _start_node(environment | shell, f"--address={HEAD}:{port}", f"--node-ip-address={OTHER}")
        yield f"{HEAD}:{port}"
    finally:
        _kill_marked(mark)
        shutil.rmtree(directory, ignore_errors=True)


@pytest.mark.slow
def test_a_run_spreads_over_the_nodes_of_a_cluster_and_leaves_it_alive(
    two_nodes: str, sort_data: Path, start_run: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
):
    """Trainer on one node, engine on the other: weights go by collective broadcast. Once to the end; once with the
    trainer killed, which must end the run and free the other node too."""
    monkeypatch.setenv("RAY_ADDRESS", two_nodes)
    placed = ["num_nodes=2", "num_gpus_per_node=1", "actor_train.device_mapping=[0]", "actor_infer.device_mapping=[1]"]
    run = start_run(
        sort_data, "tiny_sort", *placed, "max_steps=4", "eval_steps=-1", "save_steps=-1", name="whole"
    ).finished()
    assert f"joined the Ray cluster at {two_nodes}" in run.text
    assert "asks for no token" not in run.text
    assert_engine_and_trainer_agree(run)

    run = start_run(sort_data, "tiny_sort", *placed, "max_steps=10000", "eval_steps=-1", "save_steps=-1", name="killed")
    run.wait_for_step(2)
    trainer = _worker("actor_train")
    assert trainer is not None
    trainer.kill()
    assert run.wait(END_LIMIT_S) == 1, run.text
    assert "actor_train rank 0 died" in run.text
    assert not [role for role in ("actor_train", "actor_infer") if _worker(role) is not None]


@pytest.mark.slow
@pytest.mark.parametrize("two_nodes", [{"NVIDIA_TF32_OVERRIDE": "1"}], indirect=True)
def test_a_variable_of_another_nodes_shell_ends_the_run_before_it_changes_numbers(
    two_nodes: str, sort_data: Path, start_run: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", two_nodes)
    placed = ["num_nodes=2", "num_gpus_per_node=1", "actor_train.device_mapping=[0]", "actor_infer.device_mapping=[1]"]
    run = start_run(sort_data, "tiny_sort", *placed, "max_steps=1", "eval_steps=-1", "save_steps=-1")
    assert run.wait() == 1, run.text
    assert "NVIDIA_TF32_OVERRIDE is set in the shell or image, and actor_" in run.text


@pytest.mark.slow
def test_the_doctor_asks_every_node_of_a_cluster(
    two_nodes: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Loopback addresses stand for hosts, so the nodes are alike; that others are told apart, a unit test shows."""
    monkeypatch.setenv("RAY_ADDRESS", two_nodes)
    code = (
        "import sys; from pathlib import Path; from roll.doctor.machine import cluster_findings\n"
        "for found in cluster_findings(Path(sys.argv[1])): print(found.level, found.what)"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "out")]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=300)
    (said,) = done.stdout.splitlines() or [done.stderr]
    assert said.startswith("ok 2 nodes answer: ") and said.endswith(f"; all see {tmp_path}"), said
    assert OTHER in said  # Ray calls the head by the host's own address
    assert list(tmp_path.iterdir()) == []


def _worker(role: str) -> psutil.Process | None:
    """The process that serves this role: a child of the cluster, so it carries the cluster's mark and not the run's."""
    for process in psutil.process_iter():
        try:
            environment = process.environ()
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
        if MARK in environment and environment.get("ROLL_ROLE") == role and process.status() != psutil.STATUS_ZOMBIE:
            return process
    return None
