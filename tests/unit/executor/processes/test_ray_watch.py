"""The death of Ray's own processes."""

import queue
import subprocess
import sys

from roll.distributed.executor.processes.ray_watch import when_one_dies


def test_a_death_is_told_with_its_cause() -> None:
    told: queue.Queue[str] = queue.Queue()
    killed = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    exits = subprocess.Popen([sys.executable, "-c", "input(); raise SystemExit(3)"], stdin=subprocess.PIPE, text=True)
    when_one_dies({killed.pid: "Ray's raylet", exits.pid: "Ray's gcs_server"}, told.put)
    killed.kill()
    assert told.get(timeout=60) == f"Ray's raylet on this host died (pid {killed.pid}, signal 9)"
    assert exits.stdin is not None
    exits.stdin.write("\n")
    exits.stdin.close()
    assert told.get(timeout=60) == f"Ray's gcs_server on this host died (pid {exits.pid}, exit code 3)"
    assert (killed.wait(60), exits.wait(60)) == (-9, 3)  # whoever started them still gets their status
