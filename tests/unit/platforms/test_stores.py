"""The meeting points of torch.distributed, in processes of their own: one address each."""

import json
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[4]

PROGRAM = """
import json, os
from datetime import timedelta
import psutil
from roll.platforms.stores import bind_stores, open_store
from roll.errors import StrategyError
from roll.utils.network import free_port

def addresses():
    connections = psutil.Process().net_connections(kind="tcp")
    return sorted(connection.laddr.ip for connection in connections if connection.status == "LISTEN")

store = open_store("127.0.0.2", timeout_s=60)
store.set("key", "value")
found = {"of a weight group": addresses(), "value": store.get("key").decode(), "port": store.port > 0}
del store

import torch.distributed as dist

bind_stores()
os.environ |= {"MASTER_ADDR": "127.0.0.3", "MASTER_PORT": str(free_port()), "RANK": "0", "WORLD_SIZE": "1"}
os.environ["GLOO_SOCKET_IFNAME"] = "lo"
dist.init_process_group("gloo")
found["of a process group"] = addresses()
group = dist.new_group([0])
dist.destroy_process_group()
os.environ["MASTER_ADDR"] = "203.0.113.9"
try:
    dist.init_process_group("gloo", timeout=timedelta(seconds=20))
except StrategyError as error:
    found["error"] = str(error)
print(json.dumps(found))
"""


def test_stores_listen_on_the_address_at_which_the_others_look_for_them() -> None:
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["of a weight group"] == ["127.0.0.2"]
    assert (found["value"], found["port"]) == ("value", True)
    assert "127.0.0.3" in found["of a process group"]
    assert set(found["of a process group"]) <= {"127.0.0.1", "127.0.0.3"}  # the first is gloo's own
    assert found["error"].startswith("torch.distributed cannot listen on 203.0.113.9:")
