"""The memory of a run and the disk of its checkpoints, as far as its models' config.json are on this machine."""

import shutil
from collections.abc import Iterator
from typing import TYPE_CHECKING

from roll.configs.plan.run_plan import RunPlan
from roll.configs.problems import Problem
from roll.configs.sections.run import RunConfig
from roll.run.saving.model_files import read_model_config
from roll.run.start.machine import smallest_gpu_bytes
from roll.run.start.start_checks import MemoryReport

if TYPE_CHECKING:
    from roll.configs.memory.parts import RoleFacts

STATE_BYTES = 12  # of a trained parameter in a checkpoint: fp32 copy and two moments


def memory_report(config: RunConfig, plan: RunPlan) -> MemoryReport:
    """Looks at files and at the driver's word on its GPUs; imports no torch and makes no CUDA context."""
    memory_gb = config.gpu_memory_gb
    is_nvidias = config.platform in ("auto", "cuda")
    gpu_bytes = memory_gb * 1e9 if memory_gb is not None else smallest_gpu_bytes() if is_nvidias else None
    host_bytes = config.host_memory_gb * 1e9 if config.host_memory_gb is not None else None
    facts, missing = gather_facts(config, plan, gpu_bytes)
    if not facts:
        reasons = "; ".join(dict.fromkeys(reason.partition(": ")[2] for reason in missing))
        return MemoryReport(f"Memory: not known ({reasons}).")
    from roll.configs.memory.memory_points import memory_plan, memory_problems, memory_text, memory_warnings

    memory = memory_plan(plan.layout, facts, missing)
    if not memory.by_gpu and not memory.on_cpus:
        return MemoryReport("", room_problems=tuple(room_problems(config)), facts=facts)
    source = "gpu_memory_gb:" if memory_gb is not None else "gpu_memory_gb is not given and this machine's GPUs have"
    on_gpus = tuple(memory_problems(memory, gpu_bytes, None, source))
    on_hosts = tuple(memory_problems(memory, None, host_bytes, source)) if host_bytes is not None else ()
    return MemoryReport(
        text=memory_text(memory, gpu_bytes, host_bytes),
        knows_gpus=gpu_bytes is not None,
        warnings=tuple(memory_warnings(memory, gpu_bytes, host_bytes)),
        problems=(*(on_gpus if memory_gb is not None else ()), *on_hosts),
        room_problems=tuple(room_problems(config)),
        machine_problems=() if memory_gb is not None else on_gpus,
        facts=facts,
    )


def gather_facts(config: RunConfig, plan: RunPlan, gpu_bytes: float | None) -> "tuple[dict[str, RoleFacts], list[str]]":
    """The roles whose model is known, and the others with the reason why it is not."""
    facts: dict[str, RoleFacts] = {}
    missing: list[str] = []
    for name, worker in config.model_roles.items():
        role = config.roles[name]
        model, why_not = read_model_config(worker.model_args)
        shape = None
        if model is not None:
            from roll.configs.memory.model_shape import model_shape  # the formulas, where they have something to say

            shape, why_not = model_shape(model, role.head or "lm")
        if shape is None:
            missing.append(f"{name}: {why_not}")
        else:
            from roll.configs.memory.parts import role_facts

            facts[name] = role_facts(plan, role, worker, shape, gpu_bytes)
    return facts, missing


def checkpoint_bytes(config: RunConfig, sure: bool = False) -> float:
    """Bytes of a checkpoint, about; 0 where no model is known: the weights of each role that learns, and the states of
    what is trained. `sure`: no more than there will be, whatever the optimizer keeps."""
    if all(read_model_config(worker.model_args)[0] is None for worker in config.learning_roles.values()):
        return 0.0
    from roll.configs.memory.model_shape import model_shape
    from roll.configs.memory.parts import BYTES_OF
    from roll.configs.memory.trained import held_weights

    size = 0.0
    for role, worker in config.learning_roles.items():
        args, (model, _) = worker.model_args, read_model_config(worker.model_args)
        shape = None if model is None else model_shape(model, config.roles[role].head or "lm")[0]
        if shape is not None:
            trained = sum(weight.num_elements for weight, learns in held_weights(shape, args) if learns)
            size += BYTES_OF[args.dtype] * shape.num_elements + (0 if sure else STATE_BYTES * trained)
    return size


def room_problems(config: RunConfig) -> Iterator[Problem]:
    """A disk that is too small for one checkpoint."""
    if config.save_steps <= 0 or not (needed := checkpoint_bytes(config, sure=True)):
        return
    place = config.checkpoint_dir.absolute()
    try:
        free = shutil.disk_usage(next(path for path in (place, *place.parents) if path.is_dir())).free
    except OSError:
        return  # `directories` are looked at by name
    if free < needed:
        from roll.configs.memory.parts import gigabytes

        yield Problem(
            f"checkpoint_config.output_dir: {place} has {gigabytes(free)} GB free, and the weights of one checkpoint "
            f"alone take {gigabytes(needed)} GB. Free some, or choose another disk.",
            ("checkpoint_config", "output_dir"),
            "place",
        )
