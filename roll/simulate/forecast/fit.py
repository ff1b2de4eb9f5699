"""`roll fit`: the layout of a run that its forecast says is fastest, among those that fit in memory."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from roll.configs.load.loader import RawTree, compose_tree, resolve_tree, yaml_at
from roll.configs.memory.flops import Gpu, gpu_of
from roll.configs.memory.memory_points import MemoryPoint, largest, memory_plan
from roll.configs.memory.parts import GB, gigabytes
from roll.configs.plan.batch_plan import BatchPlan
from roll.errors import ConfigError
from roll.run.kind import kind_of
from roll.run.records.scorecard import Forecast, plain, with_bar
from roll.run.spec import PipelineSpec
from roll.run.start.load import Loaded, check
from roll.run.start.memory_report import gather_facts
from roll.simulate.forecast.costs import Hardware
from roll.simulate.forecast.forecast import forecast, hardware_of
from roll.simulate.options import fit_parser
from roll.utils.files import write_whole
from roll.utils.text import counted, table

_SHOWN, _REFINED = 5, 4  # layouts that are shown, and that are varied in the second round
_STAGES = tuple({"strategy_config": {"zero_optimization": {"stage": stage}}} for stage in (0, 2, 3))
_TRAINERS = ({"strategy_name": "fsdp2_train"}, *({"strategy_name": "deepspeed_train", **stage} for stage in _STAGES))

Keys = Mapping[str, Any]


@dataclass(frozen=True)
class Layout:
    """Layout that was tried: the keys that it sets, and its forecast and largest moment of memory."""

    keys: Keys
    forecast: Forecast
    peak: MemoryPoint

    @property
    def text(self) -> str:
        flat = (f"{path}: {value}" for path, value in _flat(self.keys))
        return ", ".join(line for line in flat if not line.startswith(("num_", "gpu_"))) or "the YAML as it is"


class Search:
    """Layouts of one YAML on `nodes` x `gpus` devices, or on the cores of this machine."""

    def __init__(
        self, raw: RawTree, spec: PipelineSpec, gpus: int, nodes: int, name: str | None, here: Gpu | None = None
    ):
        self._raw, self._spec, self.gpus, self.nodes = raw, spec, gpus, nodes
        self.refused = Counter[str]()
        self._tried: dict[str, Layout | None] = {}
        self._keys_of: dict[int, Keys] = {}  # all that a layout was made of
        self.machine: Keys = {}
        if gpus:
            device = here if here is not None and name is None else gpu_of(name or "")
            if device is None:
                raise ConfigError(f"--gpu: {name or 'no name'} is not in gpus.yaml. Name one, such as H100.")
            given = raw.tree.get("gpu_memory_gb") or device.memory
            self.machine = {
                "num_nodes": nodes,
                "num_gpus_per_node": gpus,
                "gpu_memory_gb": given,
                "gpu_name": name or device.name,
            }
            self._hardware = Hardware(device.name, device)

    @cached_property
    def base(self) -> Loaded:
        return self._load({})

    def best(self) -> list[Layout]:
        """All that fit, the fastest first."""
        first = self._try_all(self._on_gpus() if self.gpus else self._on_cpus())
        if not first:
            return []
        for keys in [self._keys_of[id(layout)] for layout in first[:_REFINED]]:
            self._try_all({**keys, **more} for more in self._variants(keys))
        fitting = sorted(filter(None, self._tried.values()), key=lambda each: (each.forecast.step_s, len(each.text)))
        unlike: dict[tuple[str, float], Layout] = {}  # others of the same time and memory say nothing new
        for each in fitting:
            unlike.setdefault((f"{each.forecast.step_s:.3g}", round(each.peak.total, -8)), each)
        return list(unlike.values())

    def _on_gpus(self) -> Iterator[Keys]:
        total = self.gpus * self.nodes
        splits = sorted({total} | {max(1, round(total * share)) for share in (0.25, 0.5, 0.75)} - {0})
        for strategy in self._strategies():
            for train in splits:
                for tensor in (size for size in (1, 2, 4, 8) if size <= min(self.gpus, total)):
                    for ratio in (0, 1) if train < total else (0,):
                        yield from self._layout(strategy, train, total, tensor, ratio)

    def _strategies(self) -> Iterator[Keys]:
        """The trainer of the YAML, its other stages, or other trainers where it has no settings for one."""
        worker = self.base.config.model_roles["actor_train"]
        yield {}
        if not worker.strategy_config:
            yield from _TRAINERS
        elif "zero_optimization" in worker.strategy_config:
            yield from _STAGES

    def _layout(self, strategy: Keys, train: int, total: int, tensor: int, ratio: float) -> Iterator[Keys]:
        trains = f"list(range(0,{train}))"
        samples = f"list(range({0 if train == total else train},{total}))"
        if (total if train == total else total - train) % tensor:
            return
        roles: dict[str, dict[str, Any]] = {role: {"device_mapping": trains} for role in self.base.config.model_roles}
        roles["actor_infer"] = {"device_mapping": samples}
        if tensor > 1 or self.base.config.model_roles["actor_infer"].num_gpus_per_worker > 1:
            roles["actor_infer"]["strategy_args"] = {"strategy_config": {"tensor_parallel_size": tensor}}
        roles["actor_train"] |= {"strategy_args": dict(strategy)} if strategy else {}
        yield {**self.machine, **roles, **self._ahead(ratio)}

    def _on_cpus(self) -> Iterator[Keys]:
        for strategy in self._strategies():
            for ratio in (0, 1):
                role = {"actor_train": {"strategy_args": strategy}} if strategy else {}
                yield {**role, **self._ahead(ratio)}

    def _ahead(self, ratio: float) -> Keys:
        key = "async_generation_ratio"
        return {key: ratio} if ratio or key in self._raw.tree else {}

    def _variants(self, layout: Keys) -> Iterator[Keys]:
        """Micro batches of other sizes in updates of the same, and other shares of the GPU for engines.

        None on CPUs: a larger micro batch fits into no cache (SmolLM2 in 16 rows for 2: a step of 7.4 s for 5.1 s).
        """
        if not self.gpus:
            return
        keys = layout.get("actor_train", {})
        worker = self.base.config.model_roles["actor_train"]
        if worker.use_dynamic_batching_in_train:
            for factor in (0.5, 2, 4):
                tokens = round(worker.max_tokens_per_microbatch_in_train * factor)
                yield {"actor_train": _merged(keys, {"max_tokens_per_microbatch_in_train": tokens})}
        else:
            for micro in (1, 2, 4, 8, 16, 32, 64):
                yield {"actor_train": _merged(keys, {"training_args": {"per_device_train_batch_size": micro}})}
        engine = layout.get("actor_infer")
        if engine and worker.device_mapping == self.base.config.model_roles["actor_infer"].device_mapping:
            for share in (0.5, 0.75):
                config = {"strategy_config": {"gpu_memory_utilization": share}}
                yield {"actor_infer": _merged(engine, {"strategy_args": config})}

    def _try_all(self, layouts: Iterable[Keys]) -> list[Layout]:
        tried = [found for keys in layouts if (found := self._try(keys)) is not None]
        return sorted(tried, key=lambda each: each.forecast.step_s)

    def _try(self, keys: Keys) -> Layout | None:
        name = repr(sorted(_flat(keys)))
        if name not in self._tried:
            self._tried[name] = layout = self._made(keys)
            self._keys_of[id(layout)] = keys
        return self._tried[name]

    def _made(self, keys: Keys) -> Layout | None:
        try:
            keys = self._with_whole_updates(keys)
            loaded = self._load(keys)
        except ConfigError as error:
            self.refused[error.problems[0].partition(": ")[0]] += 1
            return None
        config, plan = loaded.config, loaded.plan
        room = config.gpu_memory_gb * GB if config.gpu_memory_gb and self.gpus else None
        facts, missing = gather_facts(config, plan, room)
        memory = memory_plan(plan.layout, facts, missing)
        moments = [largest(each) for each in (*memory.by_gpu.values(), *([memory.on_cpus] if memory.on_cpus else []))]
        hardware = self._hardware if self.gpus else hardware_of(config, plan)
        found = hardware if isinstance(hardware, str) else forecast(config, plan, facts, hardware=hardware)
        if isinstance(found, str) or not moments:
            raise ConfigError(f"There is no forecast: {found if isinstance(found, str) else '; '.join(missing)}.")
        peak = largest(moments)
        short = [role for role, each in memory.roles.items() if each.doubt and self.gpus]
        if short or (room is not None and peak.total > room):
            self.refused["does not fit in memory"] += 1
            return None
        return Layout(_differing(keys, self._raw.tree), found, peak)

    def _with_whole_updates(self, keys: Keys) -> Keys:
        """The accumulation with which an update has as many samples as in the YAML."""
        base, workers = self.base.plan.trains["actor_train"], len(self.base.plan.layout["actor_train"].workers)
        ranks = _at(keys, "actor_train", "device_mapping")
        ranks = int(ranks.removeprefix("list(range(0,").removesuffix("))")) if ranks else workers
        has_name = _at(keys, "actor_train", "strategy_args", "strategy_name")
        ranks = max(1, ranks // (1 if has_name else workers // base.dp_size))
        micro = _at(keys, "actor_train", "training_args", "per_device_train_batch_size") or base.micro_batch_size
        micro = min(micro, max(1, base.samples_per_update // ranks))
        accumulation, rest = divmod(base.samples_per_update, micro * ranks)
        if rest:
            raise ConfigError("an update does not divide over the ranks: ")
        args = {"per_device_train_batch_size": micro, "gradient_accumulation_steps": accumulation}
        return {**keys, "actor_train": _merged(keys.get("actor_train", {}), {"training_args": args})}

    def _load(self, keys: Keys) -> Loaded:
        tree = _merged(self._raw.tree, keys)
        return check(self._spec, resolve_tree(replace(self._raw, tree=tree), self._spec.config_class()))


def run(argv: Sequence[str]) -> Iterator[str]:
    """Lines about the best layouts. Raises ConfigError for a run that is none of RL, and where nothing fits."""
    options, overrides = fit_parser().parse_known_args(argv)
    raw = compose_tree(*yaml_at(options.config), overrides)
    if options.out is not None:
        _check_out(options.out, raw.path)
    spec = kind_of(raw.tree)
    loaded = check(spec, resolve_tree(raw, spec.config_class()))
    config, plan = loaded.config, loaded.plan
    if not isinstance(plan, BatchPlan):
        raise ConfigError(
            f"{options.config}: `roll fit` searches layouts of RL runs, and this one is of kind {spec.name}."
        )
    name = options.gpu or config.gpu_name
    where = hardware_of(config, plan)
    here = where.gpu if isinstance(where, Hardware) else None
    has_gpus = name is not None or here is not None
    gpus = options.gpus if options.gpus is not None else config.num_gpus_per_node if has_gpus else 0
    search = Search(raw, spec, gpus, options.nodes or config.num_nodes, name, here)
    best = search.best()
    if not best:
        reasons = "; ".join(f"{count} x {reason}" for reason, count in search.refused.most_common(3))
        raise ConfigError(f"No layout of {options.config} fits: {reasons}.")
    where = f"{search.nodes} x {gpus} {best[0].forecast.machine}" if gpus else best[0].forecast.machine
    yield f"{counted(len(best), 'layout')} fit on {where}, {search.refused.total()} do not"
    yield from table(_row(place, layout, best[0]) for place, layout in enumerate(best[:_SHOWN], 1))
    yield from (f"not possible: {count} x {reason}" for reason, count in search.refused.most_common(3))
    first = best[0].forecast
    yield f"error bar: a step ~{with_bar(first.step_s, first.error)}: {first.source}"
    if gpus * search.nodes > 1:
        yield "Not measured: traffic between GPUs, and parallel sizes. Layouts closer than the bar may change places."
    if options.out is not None:
        base = os.path.relpath(Path(options.config).absolute().with_suffix(""), options.out.absolute().parent)
        written = compose_tree(*yaml_at(options.config), ()).tree  # what is not in it came from the command line
        tree = {"defaults": [f"{base}@_here_", "_self_"], **_differing(_merged(raw.tree, best[0].keys), written)}
        try:
            write_whole(options.out, yaml.safe_dump(tree, sort_keys=False))
        except OSError as error:
            raise ConfigError(f"--out: {options.out} cannot be written: {error.strerror}.") from None
        again = [each for each in overrides if each.startswith("~")]  # a YAML on top removes nothing
        yield " ".join((f"{options.out} is written: roll plan {options.out}", *again))


def _check_out(out: Path, config: Path) -> None:
    if out.suffix != ".yaml" or out.resolve() == config.resolve():
        raise ConfigError(f"--out: {out} has to be a .yaml other than {config}, which stays and is read by it.")
    if not os.access(out.absolute().parent, os.W_OK):
        raise ConfigError(f"--out: there is no folder {out.absolute().parent} to write to.")


def _row(place: int, layout: Layout, best: Layout) -> tuple[str, ...]:
    """Rank, seconds, memory, the keys, and which phase is longer than in the best layout."""
    slower = {name: value - best.forecast.phases.get(name, 0.0) for name, value in layout.forecast.phases.items()}
    phase = max(slower, key=lambda name: slower[name])
    lost = f"{phase} +{plain(slower[phase])} s" if layout is not best and slower[phase] > 0 else ""
    seconds, peak = f"{plain(layout.forecast.step_s, 3)} s", f"{gigabytes(layout.peak.total)} GB ({layout.peak.phase})"
    return str(place), seconds, peak, lost or "best", layout.text


def _merged(tree: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    merged = deepcopy(dict(tree))
    for key, value in more.items():
        before = merged.get(key)
        both = isinstance(before, Mapping) and isinstance(value, Mapping)
        merged[key] = _merged(before, value) if both else deepcopy(value)  # type: ignore[arg-type]
    return merged


def _differing(keys: Mapping[str, Any], tree: Mapping[str, Any]) -> dict[str, Any]:
    """The keys whose values are not those of the YAML."""
    found: dict[str, Any] = {}
    for key, value in keys.items():
        before = tree.get(key)
        if isinstance(value, Mapping):
            value = _differing(value, before if isinstance(before, Mapping) else {})
        if value != before and value != {}:
            found[key] = value
    return found


def _at(tree: Any, *path: str) -> Any:
    for name in path:
        tree = tree.get(name) if isinstance(tree, Mapping) else None
    return tree


def _flat(tree: Mapping[str, Any], at: str = "") -> Iterator[tuple[str, str]]:
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{at}{key}.")
        else:
            yield f"{at}{key}", str(value)
