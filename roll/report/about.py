"""Facts of a run, by its record: model, algorithm, data, learning rate, machine; and the title of a report."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import PurePath
from typing import Any

from roll.errors import ConfigError
from roll.report.run_files import RunFiles
from roll.run.kind import kind_of
from roll.utils.text import short

_TRAINED_ROLES = ("actor_train", "student")
_FEW = 3  # names that a line shows


@dataclass(frozen=True)
class About:
    """Facts of a run as texts, "" where nothing tells. `evaluates`: it only samples and scores, as `roll eval` does."""

    kind: str = ""
    model: str = ""
    algorithm: str = ""
    data: str = ""
    learning_rate: str = ""
    started: str = ""
    machine: str = ""
    commit: str = ""
    roll: str = ""
    evaluates: bool = False
    forked: str = ""

    def lines(self) -> dict[str, str]:
        """The facts by the names that a person reads, without the empty ones.

        Example: {"model": "qwen/model", "algorithm": "grpo", "data": "train.jsonl", "learning rate": "1e-6", ...}
        """
        facts = {name.replace("_", " "): text for name, text in vars(self).items() if name not in ("kind", "evaluates")}
        return {name: text for name, text in facts.items() if text}


def about(run: RunFiles) -> About:
    config, first = run.config, run.starts[0] if run.starts else None
    kind = kind_name(config)
    return About(
        kind=kind,
        model=_model(config),
        algorithm=str(config.get("algorithm") or config.get("adv_estimator") or kind),
        data=_listed(_data(config)),
        learning_rate="" if run.is_evaluation else _listed(_learning_rates(config)),
        started=first.started.replace("T", " ").removesuffix("+00:00") + " UTC" if first else "",
        machine=", ".join(filter(None, (first.host, first.machine))) if first else "",
        commit=first.commit if first else "",
        roll=run.roll_version,
        evaluates=run.is_evaluation,
        forked=run.story.forked if run.story is not None else "",
    )


def title_of_runs(runs: Sequence[RunFiles], labels: Sequence[str]) -> str:
    """The title of a report. Example: "sort: qwen/model, grpo, 2026-01-31", "sort and 1 more: qwen/model, grpo"."""
    whole = labels[0] if len(runs) == 1 else f"{labels[0]} and {len(runs) - 1} more"
    facts = about(runs[0])
    kind = "evaluation of " if all(run.is_evaluation for run in runs) else ""
    parts = [kind + facts.model if facts.model else "", "" if kind else facts.algorithm]
    parts.append(facts.started[:10] if len(runs) == 1 else "")
    rest = ", ".join(filter(None, parts))
    return f"{whole}: {rest}" if rest else whole


def kind_name(config: Mapping[str, Any]) -> str:
    """The kind of run that a configuration is of, "" where nothing tells.

    Example: one with `rewards` and `rollout_batch_size` is "rlvr".
    """
    algorithm = config.get("algorithm")
    return str(config.get("pipeline") or _kind_of_keys(frozenset(config), str(algorithm) if algorithm else None))


@lru_cache(maxsize=256)
def _kind_of_keys(keys: frozenset[str], algorithm: str | None) -> str:
    try:
        return kind_of({"algorithm": algorithm} | dict.fromkeys(keys - {"pipeline", "algorithm"})).name
    except ConfigError:
        return ""


def _model(config: Mapping[str, Any]) -> str:
    """A model of a hub by its name, one in a folder by the last two parts of its path."""
    roles = (at(config, role, "model_args", "model_name_or_path") for role in (*_TRAINED_ROLES, "actor_infer"))
    return "/".join(PurePath(str(next(filter(None, (config.get("pretrain"), *roles)), ""))).parts[-2:])


def _data(config: Mapping[str, Any]) -> Iterator[str]:
    for role in _TRAINED_ROLES:
        files = at(config, role, "data_args", "file_name") or []
        yield from (PurePath(str(file)).name for file in (files if isinstance(files, list) else [files]))
    tags = at(config, "train_env_manager", "tags")
    yield from map(str, tags if isinstance(tags, list) else [])


def _learning_rates(config: Mapping[str, Any]) -> Iterator[str]:
    rates = (at(config, role, "training_args", "learning_rate") for role in _TRAINED_ROLES)
    yield from (short(rate) for rate in rates if rate is not None)


def _listed(names: Iterator[str]) -> str:
    """Example: "a, b, c and 2 more"."""
    unique = list(dict.fromkeys(names))
    more = f" and {len(unique) - _FEW} more" if len(unique) > _FEW else ""
    return ", ".join(unique[:_FEW]) + more


def at(tree: Any, *path: str) -> Any:
    """The value at a path of a tree; None where nothing is."""
    for name in path:
        tree = tree.get(name) if isinstance(tree, Mapping) else None
    return tree
