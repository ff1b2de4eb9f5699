"""Writes the defaults of verl's releases, roll/importers/data/verl.json, from a repository of verl with its tags.

    python tools/verl_defaults.py /path/to/verl v0.1 v0.2 ...

Each line holds one configuration of one release: what differs from the release before, as a tree. A key that is gone
has the value "-gone-"."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

FOLDER = "verl/trainer/config"
NAMES = ("ppo_trainer", "ppo_megatron_trainer", "sft_trainer", "sft_trainer_engine")
WRITTEN = Path(__file__).resolve().parents[1] / "roll" / "importers" / "data" / "verl.json"
GONE = "-gone-"
_UNUSED = re.compile(r"_target_|hydra|.*profiler?|nsys|\w*nsight_options|transfer_queue|ray_kwargs|ray_init")


def main(repository: str, tags: list[str]) -> None:
    lines, before = list[str](), dict[str, dict[str, Any]]()
    for tag in tags:
        for name, tree in composed(repository, tag):
            change = json.dumps([name, tag, difference(before.get(name, {}), tree)], separators=(",", ":"))
            lines.append(change)
            before[name] = tree
    WRITTEN.write_text("[\n" + ",\n".join(lines) + "\n]\n", encoding="utf-8")


def composed(repository: str, tag: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the names of a release's configurations with what Hydra makes of them; references stay."""
    archive = subprocess.run(["git", "-C", repository, "archive", tag, FOLDER], capture_output=True, check=True)
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as tar:
            tar.extractall(folder, filter="data")
        for name in NAMES:
            if (Path(folder) / FOLDER / f"{name}.yaml").is_file():
                with initialize_config_dir(f"{folder}/{FOLDER}", version_base=None):
                    tree = OmegaConf.to_container(compose(name), resolve=False)
                assert isinstance(tree, dict)
                yield name, _used({str(key): value for key, value in tree.items()})


def _used(tree: dict[str, Any]) -> dict[str, Any]:
    return {k: _used(v) if isinstance(v, dict) else v for k, v in tree.items() if not _UNUSED.fullmatch(k)}


def difference(before: Any, after: dict[str, Any]) -> dict[str, Any]:
    """Return what turns a tree into another one."""
    made = dict[str, Any](dict.fromkeys(before.keys() - after.keys(), GONE))
    for key, value in after.items():
        held = before.get(key)
        if isinstance(held, dict) and isinstance(value, dict):
            made |= {key: inner} if (inner := difference(held, value)) else {}
        elif key not in before or held != value or isinstance(held, bool) != isinstance(value, bool):
            made[key] = value
    return made


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
