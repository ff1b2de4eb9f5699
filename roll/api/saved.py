"""Files that a run has left on disk, read by a Python program."""

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from roll.configs.sections.algorithm import AlgorithmConfig
from roll.configs.sections.run import RunConfig
from roll.errors import ConfigError
from roll.report.run_files import RunFiles, read_run
from roll.run.saving.checkpoint import HF_MODEL, CheckpointStore
from roll.utils.files import expanded, open_regular

Row = tuple[int, Mapping[str, float]]


class Table(list[dict[str, Any]]):
    """Rows, as a list of dicts."""

    def column(self, name: str) -> list[Any]:
        """The values of a column, where a row has it. Example: run.metrics.column("val/reward_mean") == [0.1, 0.8]"""
        return [row[name] for row in self if name in row]


def metric_table(rows: Iterable[Row]) -> Table:
    """Example: [(1, {"rollout/reward_mean": 0.5})] -> [{"step": 1, "rollout/reward_mean": 0.5}]"""
    return Table({"step": step, **metrics} for step, metrics in rows)


@dataclass(frozen=True)
class Rollouts:
    """Recorded samples, read from disk when they are asked for: each a dict with step, kind ("train", or "val..." of
    a validation), prompt_text, response_text, reward (None: failed), group_id, domain, and turns of an episode."""

    files: Mapping[tuple[str, int], Path] = field(repr=False)
    """Recorded files by kind and step. Empty while the run goes on: then `directory` is read."""
    directory: Path

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for (kind, step), path in sorted(self.files.items(), key=lambda item: (item[0][1], item[0][0])):
            yield from _rows(path, kind, step)

    def at(self, step: int, kind: str = "train") -> list[dict[str, Any]]:
        """Return the rollouts of one step; [] if none were recorded."""
        usual = self.directory / f"step_{step:06d}{'' if kind == 'train' else f'.{kind}'}.jsonl"
        return [*_rows(self.files.get((kind, step), usual), kind, step)]


def _rows(path: Path, kind: str, step: int) -> Iterator[dict[str, Any]]:
    if not path.is_file():
        return
    with open_regular(path) as file:
        for line in file:
            try:
                row = json.loads(line)
            except ValueError:  # the last line of a run that was killed
                continue
            if isinstance(row, dict):
                yield {**row, "step": step, "kind": kind}


def rollouts_in(output: Path, config: RunConfig) -> Rollouts:
    """Return the rollouts of a run that is still going on."""
    dump_dir = config.rollout_dump_dir if isinstance(config, AlgorithmConfig) else None
    return Rollouts({}, Path(dump_dir or output / "rollouts"))


@dataclass(frozen=True)
class SavedRun:
    """A run on disk, whether it has ended or still goes on. `path` is its output_dir, `config` its settings with
    secrets as ***. `exit_code` is 0 where it finished, None where it goes on or was killed."""

    name: str
    path: Path
    config: Mapping[str, Any] = field(repr=False)
    exit_code: int | None
    cause: str
    """Why it failed."""
    _files: RunFiles = field(repr=False)
    _checkpoints: Path = field(repr=False)

    @property
    def metrics(self) -> Table:
        """A row per step: `step` (0: before training) and its metrics (docs/metrics.md)."""
        return metric_table(self._files.rows)

    @property
    def rollouts(self) -> Rollouts:
        """Recorded samples, of all steps."""
        return Rollouts({(kind, step): path for kind, step, path in self._files.records()}, self._files.rollouts)

    @property
    def checkpoints(self) -> list[Path]:
        """Complete checkpoints, the newest last."""
        return CheckpointStore(self._checkpoints).newest_first()[::-1] if self._checkpoints.is_dir() else []

    @property
    def model(self) -> Path:
        """The trained model of the newest checkpoint, as transformers loads it. Raises ConfigError where none is."""
        models = [path / HF_MODEL for path in self.checkpoints if (path / HF_MODEL).is_dir()]
        if not models:
            raise ConfigError(f"{self.path} has no checkpoint with a model. Set save_steps, or call run.save().")
        return models[-1]


def open_run(
    path: str | os.PathLike[str], config: RunConfig | None = None, rows: Sequence[Row] | None = None
) -> SavedRun:
    """Reads a run's output_dir: `roll.open`. Raises ConfigError where there is no run. `config` and `rows` of a run of
    this process, which knows where it writes, and metrics that no file may have."""
    files = read_run(expanded(path if config is None else config.logging_dir))
    files = files if rows is None else replace(files, rows=[*rows])
    place = expanded(path)
    last = files.starts[-1] if files.starts else None
    return SavedRun(
        name=files.name,
        path=(place if config is not None else files.output).absolute(),
        config=files.config,
        exit_code=None if last is None else last.exit_code,
        cause="" if last is None else last.cause,
        _files=files,
        _checkpoints=_checkpoints(files, place),
    )


def _checkpoints(files: RunFiles, place: Path) -> Path:
    """Folder of the checkpoints: below the output_dir (which may have been moved), unless checkpoint_config names
    another one."""
    usual = (place if (place / "checkpoints").is_dir() else files.output) / "checkpoints"
    section = files.config.get("checkpoint_config")
    output_dir = section.get("output_dir") if isinstance(section, Mapping) else None
    return Path(str(output_dir)) if output_dir and not usual.is_dir() else usual
