"""Rows that a task of reasoning-gym makes, `file_name: reasoning_gym:chain_sum`: a file in the user's cache.

A file depends on task, settings, split and version of the package alone. It is made once, in a process of its own with
a fixed hash seed, since some tasks iterate over sets.
"""

import dataclasses
import hashlib
import json
import logging
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from roll.configs.problems import did_you_mean
from roll.configs.sections.data import DataArgs
from roll.datasets.sources import GENERATED, task_of
from roll.errors import ConfigError, describe
from roll.utils.files import write_whole
from roll.utils.imports import resolve

logger = logging.getLogger(__name__)
CACHE = "~/.cache/roll/rows"
INSTALL = "pip install reasoning-gym==0.1.25"
SPLITS = ("train", "test")
TEST_PART = 5  # one question in five, by its hash, is of the split test
DRAWS = 20  # for a row that is asked for, at most
_DEFAULTS = {"size": 500, "seed": 1}


def missing_generator() -> str | None:
    """Return what must be installed before rows can be made, None if nothing is missing."""
    try:
        version("reasoning-gym")
    except PackageNotFoundError:
        return f"it needs the package reasoning-gym. Install it: {INSTALL}"
    return None


def rows_file(task: str, args: DataArgs, key: str) -> Path:
    """Return the file with the rows of a task, which is made at the first use. `key`: the YAML path of `args`. Raises
    ConfigError."""
    validates = key.startswith(("validation.", "eval_sets."))
    split = args.split or SPLITS[validates]
    if split not in SPLITS:
        raise ConfigError(f"{key}.split: {split!r} must be {' or '.join(SPLITS)}, as {GENERATED}{task} has no other")
    asked = json.dumps([task, split, _settings(task, args)], sort_keys=True)
    name = hashlib.sha256(f"{version('reasoning-gym')} {asked}".encode()).hexdigest()[:12]
    path = Path(CACHE).expanduser() / f"{task}-{split}-{name}.jsonl"
    if path.is_file():
        return path
    logger.warning("making the rows of %s%s, once: they are kept in %s", GENERATED, task, path)
    command = [sys.executable, "-m", "roll.datasets.generated", asked]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONHASHSEED": "0"})
    if done.returncode != 0:
        last = (done.stderr.strip() or f"exit code {done.returncode}").splitlines()[-1]
        raise ConfigError(f"{key}.file_name: {GENERATED}{task} cannot be made with {key}.generator: {last}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, done.stdout)
    except OSError as error:
        raise ConfigError(f"{key}.file_name: {path} cannot be written: {error.strerror}") from error
    return path


def _settings(task: str, args: DataArgs) -> dict[str, Any]:
    """The settings of one task: those under its name come before those of all."""
    tasks = set(map(task_of, args.file_name))
    shared = {name: value for name, value in args.generator.items() if name not in tasks}
    return {**_DEFAULTS, **shared, **args.generator.get(task, {})}


def task_rows(task: str, split: str, settings: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield distinct rows of a split, in the order of the task's own numbers, until there are `size` of them."""
    tasks: Any = resolve("reasoning_gym.factory:DATASETS")
    create: Any = resolve("reasoning_gym:create_dataset")
    if task not in tasks:
        raise ConfigError(f"there is no task {task}.{did_you_mean(task, tasks)}")
    own = {name: value for name, value in settings.items() if name not in _DEFAULTS}
    known = [field.name for field in dataclasses.fields(tasks[task][1])]
    for name in own.keys() - set(known):
        raise ConfigError(f"there is no setting {name}.{did_you_mean(name, known)} There are {', '.join(known)}")
    size, seen = settings["size"], set[str]()
    rows = create(task, **{**settings, "size": size * DRAWS})
    for place in range(size * DRAWS):
        entry = rows[place]
        question = entry["question"]
        is_test = int(hashlib.sha256(question.encode()).hexdigest(), 16) % TEST_PART == 0
        if question in seen or is_test != (split == "test"):
            continue
        stored = json.loads(json.dumps(entry, default=str))  # some metadata hold fractions, of which nothing is scored
        if not seen and rows.score_answer(entry["answer"], entry) != rows.score_answer(entry["answer"], stored):
            raise ConfigError(f"{task} scores Python objects that no file of rows can hold")
        seen.add(question)
        yield {
            "prompt": question,
            "ground_truth": stored["answer"],
            "tag": task,
            "metadata": stored["metadata"],
            "generator": {"task": task, **own},
        }
        if len(seen) == size:
            return


if __name__ == "__main__":
    try:
        sys.stdout.write("".join(f"{json.dumps(row)}\n" for row in task_rows(*json.loads(sys.argv[1]))))
    except Exception as error:  # of the task's own checks of its settings
        sys.exit(str(error) if isinstance(error, ConfigError) else describe(error))
