"""The memory of a run in words, and what of it cannot fit."""

from collections.abc import Iterable, Iterator

from roll.configs.memory.moments import MemoryPlan, Moment, largest
from roll.configs.memory.parts import GB, Part
from roll.configs.problems import Problem
from roll.utils.text import table

_TITLE = "Memory where devices are GPUs, in GB (1e9 bytes), of the ranks that hold most; ~: estimated (docs/memory.md)"


def memory_text(plan: MemoryPlan, gpu_bytes: float | None, host_bytes: float | None) -> str:
    """The section of the plan."""
    lines = [_TITLE]
    for where, moments in plan.by_gpu.items():
        lines += [f"  {line}" for line in _section(where, moments, gpu_bytes)]
    if plan.asleep:
        asleep = ", ".join(f"{role} ~{gigabytes(left)}" for role, left in plan.asleep.items())
        lines.append(f"  stays on a GPU while other roles work there: {asleep}")
    for where, moments in plan.by_node.items():
        lines += [f"  {line}" for line in _section(where, moments, host_bytes)]
    lines += [f"  not counted: {reason}" for reason in plan.missing]
    return "\n".join(lines)


def _section(where: str, moments: tuple[Moment, ...], room: float | None) -> Iterator[str]:
    top = largest(moments)
    of = f" of {gigabytes(room)}" if room else ""
    yield f"the peak on {where}: {top.name}, {_about(top)} GB{of}: {_parts(top.parts)}"
    rest = [moment for moment in moments if moment is not top]
    rows = [(moment.phase, " and ".join(moment.roles), _about(moment), _parts(moment.parts)) for moment in rest]
    yield from (f"  {line}" for line in table(rows))


def _about(moment: Moment) -> str:
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


def gigabytes(num_bytes: float) -> str:
    """Example: 3.8e9 is "3.8", 47.3e9 is "47", 2.4e6 is "0.0024"."""
    value = num_bytes / GB
    return f"{value:.0f}" if value >= 20 else f"{value:.1f}" if value >= 0.1 else f"{value:.2g}"


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
                f"GB: no room for a key-value cache. Use {memory.ways['rollout']}.",
                (f"{role}.strategy_args", f"{role}.device_mapping", "gpu_memory_gb"),
            )
    for moments in plan.by_node.values():
        for moment in moments:
            if host_bytes is not None and moment.least > host_bytes:
                yield _too_large(moment, host_bytes, "host_memory_gb:", "host_memory_gb")


def memory_warnings(plan: MemoryPlan, gpu_bytes: float | None, host_bytes: float | None) -> Iterator[str]:
    """Largest moments that fit by what is certain of them, and not by the whole estimate; engines with too little
    cache."""
    for role, memory in plan.roles.items():
        if memory.doubt:
            yield f"{role}: {memory.doubt}. Use {memory.ways['rollout']}."
    for moments, room, key in (
        *((moments, gpu_bytes, "GPU memory") for moments in plan.by_gpu.values()),
        *((moments, host_bytes, "host memory") for moments in plan.by_node.values()),
    ):
        top = largest(moments)
        if room is not None and top.least <= room < top.total:
            yield (
                f"{key} may not suffice: {top.name} takes about {gigabytes(top.total)} GB of {gigabytes(room)} on "
                f"{top.where}, {gigabytes(top.least)} of them certain: {_parts(top.parts)}.{_smaller(top)}"
            )


def _too_large(moment: Moment, room: float, source: str, key: str) -> Problem:
    more = moment.total - moment.least
    beside = f", and about {gigabytes(more)} GB beside that" if more >= 0.05 * GB else ""
    sure = [part for part in moment.parts if not part.is_estimate]
    return Problem(
        f"{source} {gigabytes(room)} GB: {moment.name} needs at least {gigabytes(moment.least)} GB on {moment.where} "
        f"({_parts(sure)}){beside}.{_smaller(moment)}",
        (key, *(f"{role}.{part}" for role in moment.roles for part in ("strategy_args", "device_mapping"))),
    )


def _smaller(moment: Moment) -> str:
    ways = "; ".join(f"{role}: {way}" for role, way in moment.ways.items())
    return f" Ways to reduce it: {ways}." if ways else ""
