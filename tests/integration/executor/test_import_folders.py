"""A checkout that is not installed, started from a folder that is not its own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[3]
DRIVER = """
import asyncio, sys
sys.path.insert(0, {repository!r})  # as the scripts in examples/ do
from roll.configs.plan.layout import RolePlace, WorkerSlot
from roll.distributed.executor.processes.launch import RayRuntime
from roll.distributed.executor.processes.resource_manager import ResourceManager
from roll.distributed.executor.pools.task_pool import TaskPool
from pathlib import Path
from roll.utils.imports import add_folder

add_folder(Path({folder!r}))
runtime = RayRuntime()
place = RolePlace("rewards.math", (WorkerSlot(0),))
pool = TaskPool("rewards.math", ResourceManager(1, 8), place, "code_of_mine:Worker", (), {{"PYTHONPATH": "/users"}})
print("found", asyncio.run(pool.call("places", timeout_s=60)))
runtime.shutdown()
"""
WORKER = """
import code, sys  # Python's own, though a file of this name is beside this one
import roll


class Worker:
    def places(self) -> list[object]:
        return [roll.__path__[0], code.__file__, "/users" in sys.path]
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_workers_import_the_drivers_code_and_files_beside_the_yaml_but_pythons_own_modules_first(
    tmp_path: Path,
) -> None:
    elsewhere, folder = tmp_path / "elsewhere", tmp_path / "yaml"
    elsewhere.mkdir()
    folder.mkdir()
    (folder / "code_of_mine.py").write_text(WORKER)
    (folder / "code.py").write_text("raise RuntimeError")
    script = elsewhere / "driver.py"
    script.write_text(DRIVER.format(repository=str(REPOSITORY), folder=str(folder)))
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "RAY_ADDRESS")}
    done = subprocess.run([sys.executable, str(script)], cwd=elsewhere, env=environment, capture_output=True, text=True)
    import code

    assert f"found {[str(REPOSITORY / 'roll'), code.__file__, True]}" in done.stdout, done.stdout + done.stderr
