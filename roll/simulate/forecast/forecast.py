"""The forecast of a run: seconds of a step by phase, of the run, and what they cost."""

from __future__ import annotations

import json
import logging
import math
import shutil
import statistics
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from roll.configs.memory.flops import gpu_of
from roll.configs.memory.parts import RoleFacts
from roll.configs.plan.batch_plan import BatchPlan, ahead_by
from roll.configs.plan.engine_limits import share_key
from roll.configs.plan.run_plan import RunPlan
from roll.configs.sections.algorithm import AlgorithmConfig
from roll.configs.sections.run import RunConfig
from roll.errors import describe
from roll.run.records.scorecard import HISTORY, Forecast
from roll.run.start.machine import lacks_gpus, smallest_gpu_bytes
from roll.run.start.memory_report import gather_facts
from roll.simulate.forecast.costs import Hardware, Phases
from roll.simulate.forecast.lengths import Lengths, lengths_of
from roll.simulate.forecast.machine import probe_of_cpus
from roll.simulate.setup import Costs, LogNormal, Setup, setup_of_plan
from roll.simulate.simulation import Report, simulate
from roll.utils.text import counted

logger = logging.getLogger(__name__)

_LEAST_ERROR, _RUNS = 0.15, 3
_EVENTS = 4000  # responses that a plan simulates
_MOST_PLAYED = 1_000_000  # samples of a step: with more the clock takes all memory


def hardware_of(config: RunConfig, plan: RunPlan, elsewhere: bool = False) -> Hardware | str:
    """Return where the run computes, or why that is not known."""
    on_gpus = any(place.device_ids for place in plan.layout.roles) and config.platform != "cpu"
    if on_gpus and config.gpu_name is not None:
        gpu = gpu_of(config.gpu_name)
        return f"gpu_name: {config.gpu_name} is not in gpus.yaml" if gpu is None else Hardware(gpu.name, gpu)
    name = "" if elsewhere or not on_gpus or lacks_gpus(config) else _name_of_gpus()
    if name:
        gpu, size = gpu_of(name), smallest_gpu_bytes()
        if gpu is None:
            return f"{name} is not in gpus.yaml. Set gpu_name to the nearest that is"
        return Hardware(gpu.name, replace(gpu, memory=size / 1e9) if size else gpu)
    if elsewhere or (on_gpus and (_is_for_gpus(config) or not lacks_gpus(config))):
        return "name the GPUs with gpu_name, such as H100"
    probe = probe_of_cpus()
    if probe is None:
        return "the CPUs could not be measured"
    return Hardware(counted(int(probe["cores"]), "core"), probe=probe)


def _is_for_gpus(config: RunConfig) -> bool:
    """Whether devices are GPUs, and not the slots of a run on cores."""
    engines = [worker for worker in config.model_roles.values() if share_key(worker) is not None]
    return bool(engines) or config.gpu_memory_gb is not None


def _name_of_gpus() -> str:
    tool = shutil.which("nvidia-smi")
    command = [tool or "", "--query-gpu=name", "--format=csv,noheader"]
    with suppress(OSError, subprocess.SubprocessError):
        names = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout.splitlines()
        return min(set(names), default="").strip()
    return ""


def outlook(config: RunConfig, plan: RunPlan, facts: Mapping[str, RoleFacts], elsewhere: bool) -> Forecast | str:
    """The forecast as a plan shows it, which it never keeps from its end."""
    try:
        return forecast(config, plan, facts, elsewhere)
    except Exception as error:
        logger.debug("no forecast", exc_info=True)
        return describe(error)


def forecast(
    config: RunConfig,
    plan: RunPlan,
    facts: Mapping[str, RoleFacts] | None = None,
    elsewhere: bool = False,
    hardware: Hardware | None = None,
) -> Forecast | str:
    """The forecast of a planned run, or why there is none. `facts`: of the roles whose model is known."""
    if facts is None:
        facts = gather_facts(config, plan, None)[0]
    trainer = next(iter(plan.trains), None)
    if trainer is None or trainer not in facts or not config.takes_steps:
        return "no model of a role that learns is on this machine"
    if isinstance(plan, BatchPlan) and "actor_infer" not in facts:
        return "the model of actor_infer is not on this machine"
    where = hardware if hardware is not None else hardware_of(config, plan, elsewhere)
    if isinstance(where, str):
        return where
    if isinstance(plan, BatchPlan) and plan.num_groups * plan.group_size > _MOST_PLAYED:
        return f"a step of more than {_MOST_PLAYED} samples is not played"
    phases = Phases(config, plan, facts, lengths_of(config, plan), where)
    hint = ""
    if isinstance(plan, BatchPlan) and isinstance(config, AlgorithmConfig):
        setup = setup_of(phases, config, plan)
        report = _played(setup)
        seconds = {name: report.phase_s(name) for name in report.steps[0].phases}
        hint = _hint(setup, report)
    else:
        seconds = {"train": sum(phases.train_s(trainer))}
        if scorers := [role for role in plan.scoring if role in facts and role not in plan.trains]:
            seconds["score"] = sum(phases.score_s(role) for role in scorers)
        seconds["other"] = phases.share("step_s")
    return _whole(phases, trainer, seconds, hint)


def simulated(config: AlgorithmConfig, plan: BatchPlan) -> Setup:
    """The simulation of a planned run; with imagined costs where its models or its machine are not known."""
    facts, where, lengths = gather_facts(config, plan, None)[0], hardware_of(config, plan), lengths_of(config, plan)
    if isinstance(where, str) or not {"actor_train", "actor_infer"} <= facts.keys():
        return setup_of_plan(config, plan, _workload(lengths), Costs())
    return setup_of(Phases(config, plan, facts, lengths, where), config, plan)


def _whole(phases: Phases, trainer: str, seconds: Mapping[str, float], hint: str) -> Forecast:
    config, lengths, name = phases.config, phases.lengths, phases.hardware.name
    steps = 0 if config.counts_epochs else config.max_steps
    saves = math.ceil(steps / config.save_steps) if config.save_steps > 0 else 0
    validates = math.ceil(steps / config.eval_steps) + config.validates_first if config.eval_steps > 0 else 0
    validates = 0 if config.missing_validation else validates
    validate_s = seconds.get("rollout", 0.0)  # as long as the rollout of a step: the rows are not counted here
    save_s = phases.save_s(trainer)
    error, known = _error(phases, seconds)
    absent = [role for role in config.model_roles if role not in phases.facts]
    if absent:
        known += f"; without {', '.join(absent)}: no config.json here"
    return Forecast(
        machine=name,
        phases={phase: value for phase, value in seconds.items() if value > 0},
        error=error,
        steps=steps,
        validate_s=validate_s,
        checkpoint_s=save_s,
        beside_s=phases.share("start_s") + validates * validate_s + saves * save_s,
        num_gpus=len({device for place in phases.plan.layout.roles for device in place.device_ids})
        if phases.hardware.gpu
        else 0,
        source=f"{known}; {lengths.source}" + (f", {lengths.skipped:.0%} of rows skipped" if lengths.skipped else ""),
        hour_cost=config.gpu_hour_cost,
        hint=hint,
        kind=_kind(phases),
    )


def _error(phases: Phases, seconds: Mapping[str, float]) -> tuple[float, str]:
    """The error bar, and what it rests on: the finished runs of this machine where there are some, else the errors of
    phases in shares.yaml. Lengths that are assumed add theirs to all that grows with tokens."""
    whole = sum(seconds.values()) or 1.0
    usual = {"rollout": phases.share("rollout"), "train_actor": phases.share("train_error")}
    usual["train"] = usual["train_actor"]
    of_phases = sum(usual.get(name, phases.share("other")) * value for name, value in seconds.items()) / whole
    of_tokens = sum(value for name, value in seconds.items() if name.startswith(("rollout", "train", "score"))) / whole
    ratios = past_ratios(_kind(phases))
    if len(ratios) >= _RUNS:
        of_phases = sorted(abs(ratio - 1) for ratio in ratios)[math.ceil(0.9 * len(ratios)) - 1]
        runs = f"{counted(len(ratios), 'run')} of such a size on {phases.hardware.name}"
        known = f"{runs}, off by {_median(ratios):.0%} (median)"
    else:
        known = f"the {phases.hardware.name} of gpus.yaml" if phases.hardware.gpu else "a probe of this machine's CPUs"
    return max(_LEAST_ERROR, of_phases + phases.lengths.error * of_tokens), known


def _median(ratios: Sequence[float]) -> float:
    return statistics.median(abs(ratio - 1) for ratio in ratios)


def _kind(phases: Phases) -> str:
    """Name of the runs whose history tells of this one: the devices, and the trained model's power of ten of weights.

    Example: "H100 1e10" for a model of 7B.
    """
    probe = phases.hardware.probe
    size = phases.facts[next(iter(phases.plan.trains))].shape.num_elements
    return f"{probe['key'] if probe else phases.hardware.name} 1e{math.log10(size):.0f}"


def past_ratios(kind: str) -> list[float]:
    """Measured step / forecast of the finished runs of this kind, the newest 50."""
    ratios = list[float]()
    with suppress(OSError, ValueError, KeyError, TypeError):
        for line in Path(HISTORY).expanduser().read_text(encoding="utf-8").splitlines()[-200:]:
            row = json.loads(line)
            if row.get("kind") == kind and row["ratio"] > 0:
                ratios.append(float(row["ratio"]))
    return ratios[-50:]


# The clock: steps of these costs are played.


def _workload(lengths: Lengths) -> LogNormal:
    spread = lengths.spread
    return LogNormal(lengths.median, 0.8 * spread, 0.6 * spread, lengths.cap, round(lengths.prompt))


def setup_of(phases: Phases, config: AlgorithmConfig, plan: BatchPlan) -> Setup:
    lengths = phases.lengths
    setup = setup_of_plan(config, plan, _workload(lengths), Costs())
    room = phases.kv_tokens("actor_infer")
    if room is not None:  # a full cache is fewer responses at once: their preemptions, one by one, say no more
        most = min(phases.facts["actor_infer"].most_answers, max(1, int(room / lengths.row)))
        setup = replace(setup, max_running=most)
    return replace(setup, costs=costs_of(phases, plan, setup))


def costs_of(phases: Phases, plan: BatchPlan, setup: Setup) -> Costs:
    """The costs of the simulator, by the arithmetic of `Phases`."""
    engine, trainer = "actor_infer", "actor_train"
    lengths, most = phases.lengths, max(1, min(setup.max_running or 1, plan.samples_per_step))
    counts = sorted({*(2**power for power in range(most.bit_length())), most})
    tokens = plan.samples_per_step * lengths.row
    products, beside = phases.train_s(trainer)
    critic = sum(phases.train_s("critic")) if "critic" in phases.facts else 0.0
    roles = {"values": "critic", "old_log_probs": trainer}
    reference = trainer if plan.policy_is_reference else "reference"
    scorers = [roles.get(name, reference) for name in setup.passes]
    scored = sum(phases.score_s(role) if role in phases.facts else 0.0 for role in scorers)
    devices = statistics.fmean(setup.passes.values()) if setup.passes else 1
    decode, best = [], 0.0
    for count in counts:
        best = max(best * 1.000001, phases.decode_s(engine, count))
        decode.append((count, best))
    prompt = max(1.0, lengths.prompt)
    return Costs(
        decode_s=tuple(decode),
        decode_context_s=phases.context_s(engine),
        prefill_tokens_per_s=prompt / phases.prefill_s(engine, prompt),
        train_tokens_per_s=tokens / products / setup.devices.train,
        train_overhead_s=beside,
        critic_share=critic / (products + beside),
        score_tokens_per_s=tokens * len(scorers) / scored / devices if scored else 1e12,
        publish_s=phases.publish_s(trainer, engine),
        turn_s=phases.turn_s(trainer),
        driver_s=phases.share("step_s"),
        beside=_beside(phases, plan),
    )


def _beside(phases: Phases, plan: BatchPlan) -> float:
    """How much slower trainer and engines are at the same time, where together they have more threads than cores."""
    if phases.hardware.probe is None or plan.bounds.alternates:
        return 1.0
    threads = sum(
        getattr(phases.devices(role), "threads", 1) * len(plan.layout[role].workers)
        for role in ("actor_train", "actor_infer")
    )
    return max(1.0, threads / int(str(phases.hardware.probe["cores"])))


def _played(setup: Setup) -> Report:
    """Some steps: fewer of runs with many responses, so that a plan stays quick."""
    samples = setup.bounds.num_groups * setup.group_size
    ahead = setup.bounds.max_staleness + 1 if setup.bounds.ahead else 0
    return simulate(setup, max(1, min(4, _EVENTS // samples)), warmup=ahead)


def _hint(setup: Setup, report: Report) -> str:
    """Return what would make the largest phase smaller, where the engines have devices of their own or many."""
    share = report.phase_s("rollout") / report.step_s
    if share < 0.4 or setup.bounds.ahead or setup.costs.beside > 1 or setup.devices.num_engines < 2:
        return ""
    bounds = replace(setup.bounds, ahead=ahead_by(0.5, setup.bounds.num_groups), max_staleness=1, additional=0)
    saved = 1 - _played(replace(setup, bounds=bounds)).step_s / report.step_s
    if saved < 0.1:
        return ""
    return f"largest: rollout, {share:.0%} of a step: async_generation_ratio: 0.5 would save ~{saved:.0%}"
