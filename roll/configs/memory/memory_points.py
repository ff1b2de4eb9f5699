"""The memory of a run by GPU and by node: who holds what while each role works, and which moment is the largest."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from roll.configs.memory.parts import GB, PROCESS, ROUNDING, Part, Phase, RankMemory, RoleFacts, gigabytes, total
from roll.configs.plan.layout import Layout, RolePlace
from roll.configs.problems import Problem, ids_text
from roll.configs.strategies.table import spec_of
from roll.utils.text import table

CPU_PROCESS = 1.2e9  # Python, torch and an engine's packages, without CUDA's libraries
_PHASES: tuple[Phase, ...] = ("rollout", "scoring", "training", "publish")
_NEEDS: Mapping[Phase, tuple[str, ...]] = {  # states on shared devices; on its own ones a role keeps them all
    "rollout": ("weights", "kv_cache"),
    "scoring": ("weights",),
    "training": ("weights", "gradients", "optimizer"),
    "publish": ("weights",),
}


@dataclass(frozen=True)
class MemoryPoint:
    """Memory in use while `roles` do something."""

    where: str
    phase: str
    roles: tuple[str, ...]
    parts: tuple[Part, ...]

    @property
    def name(self) -> str:
        return f"{self.phase} of {' and '.join(self.roles)}" if self.roles else self.phase

    @property
    def total(self) -> float:
        return total(self.parts)

    @property
    def least(self) -> float:
        """Bytes without the estimated parts."""
        return total(self.parts, sure_only=True)


@dataclass(frozen=True)
class MemoryPlan:
    """`by_gpu` and `by_node`: moments of each group of GPUs that serve the same roles, and of each node. `on_cpus`:
    moments of roles without devices, whose states are all in host memory. `missing`: roles that are left out, and
    why."""

    roles: Mapping[str, RankMemory]
    asleep: Mapping[str, float]  # what a role leaves on a GPU while others work there
    by_gpu: Mapping[str, tuple[MemoryPoint, ...]]
    by_node: Mapping[str, tuple[MemoryPoint, ...]]
    missing: tuple[str, ...] = ()
    on_cpus: tuple[MemoryPoint, ...] = ()

    @property
    def of_hosts(self) -> tuple[tuple[MemoryPoint, ...], ...]:
        return (*self.by_node.values(), *((self.on_cpus,) if self.on_cpus else ()))


@dataclass(frozen=True)
class _Placed:
    role: str
    place: RolePlace
    facts: RoleFacts
    memory: RankMemory


def memory_plan(layout: Layout, facts: Mapping[str, RoleFacts], missing: Sequence[str] = ()) -> MemoryPlan:
    """Return the points in time at which memory is estimated, of the roles on devices."""
    placed: list[_Placed] = []
    on_cpus: list[_Placed] = []
    left_out = list(missing)
    for role, its in facts.items():
        spec = spec_of(its.worker.strategy_name)
        if its.use not in spec.memory:
            left_out.append(f"{role}: the memory formulas do not know {its.worker.strategy_name}")
        else:
            one = _Placed(role, layout[role], its, spec.call_hook(spec.memory[its.use], RankMemory, its))
            (placed if layout[role].device_ids else on_cpus).append(one)
    return MemoryPlan(
        roles={each.role: each.memory for each in placed},
        asleep={each.role: total(each.memory.stays) for each in placed if each.facts.shares_devices},
        by_gpu={where: tuple(_gpu_moments(where, there)) for where, there in _groups(placed).items()},
        by_node=_by_node(placed),
        missing=tuple(left_out),
        on_cpus=tuple(_cpu_moments(on_cpus)),
    )


def largest(moments: Iterable[MemoryPoint]) -> MemoryPoint:
    return max(moments, key=lambda moment: moment.total)


def _groups(placed: Sequence[_Placed]) -> dict[str, list[_Placed]]:
    """GPUs that serve the same roles, by a name for them, and those roles."""
    devices = sorted({device for each in placed for device in each.place.device_ids})
    groups: dict[tuple[int, ...], list[int]] = {}
    for device in devices:
        here = tuple(i for i, each in enumerate(placed) if device in each.place.device_ids)
        groups.setdefault(here, []).append(device)
    return {
        f"{'GPU' if len(ids) == 1 else 'GPUs'} {ids_text(ids)}": [placed[i] for i in here]
        for here, ids in groups.items()
    }


def _gpu_moments(where: str, there: Sequence[_Placed]) -> Iterator[MemoryPoint]:
    publishing = [each for each in there if _does(each, "publish")]
    for phase in _PHASES:
        working = [[each] for each in there if _does(each, phase)]
        for group in [publishing] if phase == "publish" and publishing else working:
            parts = [part for each in group for part in _held(each, phase)]
            waiting = sum(total(each.memory.stays) for each in there if each not in group)
            if waiting:
                parts.append(Part("states of waiting roles", waiting, True))
            name = "weight publish" if phase == "publish" else phase
            yield MemoryPoint(where, name, tuple(each.role for each in group), tuple(parts))


def _does(each: _Placed, phase: Phase) -> bool:
    facts = each.facts
    amount = {"scoring": facts.score_tokens, "training": facts.train_tokens, "publish": facts.bucket_bytes}.get(
        phase, 1
    )
    return phase in each.memory.passes and bool(amount)


def _held(each: _Placed, phase: Phase) -> Iterator[Part]:
    for state, parts in each.memory.states.items():
        if state in _NEEDS[phase] or not each.facts.shares_devices:
            yield from parts
    yield from each.memory.passes[phase]
    yield from each.memory.stays


def _by_node(placed: Sequence[_Placed]) -> dict[str, tuple[MemoryPoint, ...]]:
    """Nodes on which the same happens are told of together."""
    counts: dict[tuple[int, ...], list[int]] = {}
    for node in sorted({worker.node for each in placed for worker in each.place.workers}):
        workers = tuple(sum(worker.node == node for worker in each.place.workers) for each in placed)
        counts.setdefault(workers, []).append(node)
    return {
        where: tuple(_host_moments(where, [(each, n) for each, n in zip(placed, workers, strict=True) if n]))
        for workers, nodes in counts.items()
        for where in [f"the host of {'node' if len(nodes) == 1 else 'each of nodes'} {ids_text(nodes)}"]
    }


def _host_moments(where: str, there: Sequence[tuple[_Placed, int]]) -> Iterator[MemoryPoint]:
    """Moments of the host's memory: while roles start, and after all have had their turns. Roles on shared GPUs start
    one after the other, engines last, and each leaves for the next. `there`: roles, and how many workers they have on
    this node."""
    number = sum(count * each.memory.num_processes for each, count in there)
    running = Part(f"{number} processes", number * PROCESS, True)
    alone = [pair for pair in there if not pair[0].facts.shares_devices]
    turns = [pair for pair in there if pair[0].facts.shares_devices]
    staying: list[Part] = []
    for group in [alone, *([pair] for pair in sorted(turns, key=lambda pair: pair[0].facts.use == "generate"))]:
        if loading := [part for each, count in group for part in _times(each, each.memory.loading, count)]:
            yield MemoryPoint(where, "start", tuple(each.role for each, _ in group), (*staying, *loading, running))
        for each, count in group:
            copies = each.memory.copies if each.facts.shares_devices else ()
            staying += _times(each, (*each.memory.host, *copies), count)
    buckets = 2 * max((each.facts.bucket_bytes for each, _ in there), default=0)
    shared = (Part("buckets of a weight publish", buckets, True),) if buckets else ()
    yield MemoryPoint(where, "all roles running", (), (*staying, *shared, running))


def _cpu_moments(there: Sequence[_Placed]) -> Iterator[MemoryPoint]:
    """Moments of the host's memory for roles without devices: each keeps its states while others work."""
    number = sum(each.facts.num_ranks * each.memory.num_processes for each in there)
    states: list[Part] = []
    for each in there:
        held = (part for parts in each.memory.states.values() for part in parts if part.num_bytes)  # else of a GPU's
        states += _times(each, held, each.facts.num_ranks)
    for phase in _PHASES:
        for each in there:
            if _does(each, phase):
                working = _times(each, each.memory.passes[phase], each.facts.num_ranks)
                parts = (*states, *working, Part(f"{number} processes", number * CPU_PROCESS, True))
                yield MemoryPoint("the host of roles on CPUs", phase, (each.role,), parts)


def _times(each: _Placed, parts: Iterable[Part], number: int) -> list[Part]:
    """Parts of all workers of a role on a node."""
    return [
        replace(
            part,
            name=part.name if part.name == ROUNDING else f"{each.role}: {number} x {part.name}",
            num_bytes=number * part.num_bytes,
        )
        for part in parts
    ]


# The memory of a run in words, and what of it cannot fit.

_SMALLER = "docs/memory.md lists what takes less."
_TITLE = "Memory where devices are GPUs, in GB (1e9 bytes), of the ranks that hold most; ~: estimated (docs/memory.md)"


def memory_text(plan: MemoryPlan, gpu_bytes: float | None, host_bytes: float | None) -> str:
    """The section of the plan."""
    lines = [_TITLE] if plan.by_gpu else ["Memory of roles on CPUs, in GB (1e9 bytes); ~: estimated (docs/memory.md)"]
    for where, moments in plan.by_gpu.items():
        lines += [f"  {line}" for line in _section(where, moments, gpu_bytes)]
    if plan.asleep:
        asleep = ", ".join(f"{role} ~{gigabytes(num_bytes)}" for role, num_bytes in plan.asleep.items())
        lines.append(f"  stays on a GPU while other roles work there: {asleep}")
    for where, moments in plan.by_node.items():
        lines += [f"  {line}" for line in _section(where, moments, host_bytes)]
    lines += [f"  {line}" for line in _section(plan.on_cpus[0].where, plan.on_cpus, host_bytes)] if plan.on_cpus else []
    lines += [f"  not counted: {reason}" for reason in plan.missing]
    return "\n".join(lines)


def _section(where: str, moments: tuple[MemoryPoint, ...], room: float | None) -> Iterator[str]:
    top = largest(moments)
    of = f" of {gigabytes(room)}" if room else ""
    yield f"the peak on {where}: {top.name}, {_about(top)} GB{of}: {_parts(top.parts)}"
    rest = [moment for moment in moments if moment is not top]
    rows = [(moment.phase, " and ".join(moment.roles), _about(moment), _parts(moment.parts)) for moment in rest]
    yield from (f"  {line}" for line in table(rows))


def _about(moment: MemoryPoint) -> str:
    return f"{'~' if moment.total > moment.least else ''}{gigabytes(moment.total)}"


def _parts(parts: Iterable[Part]) -> str:
    """Example: "weights 3.8, gradients 7.6, optimizer 11.4, activations ~5.2"."""
    return ", ".join(
        f"{part.name} {'~' if part.is_estimate else ''}{gigabytes(part.num_bytes)}" if part.num_bytes else part.name
        for part in _summed(parts)
    )


def _summed(parts: Iterable[Part]) -> list[Part]:
    """Parts of one name as one."""
    sums: dict[tuple[str, bool], float] = {}
    for part in parts:
        sums[part.name, part.is_estimate] = sums.get((part.name, part.is_estimate), 0.0) + part.num_bytes
    return [Part(name, num_bytes, is_estimate) for (name, is_estimate), num_bytes in sums.items()]


def memory_problems(
    plan: MemoryPlan, gpu_bytes: float | None, host_bytes: float | None, source: str
) -> Iterator[Problem]:
    """Moments whose certain part alone is more than there is. `source` is how the GPU's memory is known, as a sentence
    begins with it."""
    for moments in plan.by_gpu.values():
        for moment in moments:
            if gpu_bytes is not None and moment.least > gpu_bytes:
                yield _too_large(moment, gpu_bytes, source, "gpu_memory_gb")
    for role, memory in plan.roles.items():
        weights = sum(part.num_bytes for part in memory.states.get("weights", ()) if not part.is_estimate)
        if memory.room is not None and weights >= memory.room[0]:
            limit, key = memory.room
            yield Problem(
                f"{role}: its weights are {gigabytes(weights)} GB on each of its GPUs, and {key} is {gigabytes(limit)} "
                f"GB: no room for a key-value cache. Use a larger share, or more GPUs per engine (docs/memory.md).",
                (f"{role}.strategy_args", f"{role}.device_mapping", "gpu_memory_gb"),
            )
    for moments in plan.of_hosts:
        for moment in moments:
            if host_bytes is not None and moment.least > host_bytes:
                yield _too_large(moment, host_bytes, "host_memory_gb:", "host_memory_gb")


def memory_warnings(plan: MemoryPlan, gpu_bytes: float | None, host_bytes: float | None) -> Iterator[str]:
    """Largest moments that fit by what is certain of them, and not by the whole estimate; engines with too little
    cache."""
    for role, memory in plan.roles.items():
        if memory.doubt:
            yield f"{role}: {memory.doubt} (docs/memory.md)."
    for moments, room, key in (
        *((moments, gpu_bytes, "GPU memory") for moments in plan.by_gpu.values()),
        *((moments, host_bytes, "host memory") for moments in plan.of_hosts),
    ):
        top = largest(moments)
        if room is not None and top.least <= room < top.total:
            yield (
                f"{key} may not suffice: {top.name} takes about {gigabytes(top.total)} GB of {gigabytes(room)} on "
                f"{top.where}, {gigabytes(top.least)} of them certain: {_parts(top.parts)}. {_SMALLER}"
            )


def _too_large(moment: MemoryPoint, room: float, source: str, key: str) -> Problem:
    more = moment.total - moment.least
    beside = f", and about {gigabytes(more)} GB beside that" if more >= 0.05 * GB else ""
    sure = [part for part in moment.parts if not part.is_estimate]
    return Problem(
        f"{source} {gigabytes(room)} GB: {moment.name} needs at least {gigabytes(moment.least)} GB on {moment.where} "
        f"({_parts(sure)}){beside}. {_SMALLER}",
        (key, *(f"{role}.{part}" for role in moment.roles for part in ("strategy_args", "device_mapping"))),
    )
