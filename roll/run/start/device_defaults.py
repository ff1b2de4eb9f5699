"""Backends and devices of roles whose YAML names none: what is installed, and what the machine has."""

import math
from collections.abc import Iterator
from typing import Any

from roll.configs.base import DEVICES_PER_NODE
from roll.configs.load.chosen_values import Chosen, KeysInYaml, Machine
from roll.configs.load.yaml_file import fragments_dir, read_yaml
from roll.configs.plan.layout import parallel_sizes
from roll.configs.problems import ids_text
from roll.configs.sections.algorithm import AlgorithmConfig
from roll.configs.sections.cluster import WorkerConfig
from roll.configs.sections.run import RunConfig
from roll.run.saving.model_files import num_parameters, read_model_config
from roll.run.start.machine import THREADS
from roll.utils.network import cluster_address

ENGINES = ("vllm", "sglang")
ZERO2_PARAMETERS = 4e9  # weights of larger models are divided among the GPUs
WEIGHTS_SHARE = 0.3  # of a GPU, that an engine's part of the weights may take


def strategy_defaults(config: RunConfig, user_keys: KeysInYaml, machine: Machine) -> Iterator[Chosen]:
    """The backend of every role that holds a model and names none."""
    for name, worker in config.model_roles.items():
        if worker.strategy_args is not None:
            continue
        match config.roles[name].use:
            case "generate":
                yield _engine(config, user_keys, name, worker, machine)
            case "train":
                yield _trainer(config, user_keys, name, worker, machine)
            case _:
                yield _strategy(name, "hf_infer", "it scores with any model of transformers, whole on each device")


def _engine(config: RunConfig, user_keys: KeysInYaml, name: str, worker: WorkerConfig, machine: Machine) -> Chosen:
    if not _on_gpus(config, user_keys, machine):
        return _strategy(name, "hf_infer", "this machine has no GPU, and hf_infer starts at once and needs no package")
    engine = next((each for each in ENGINES if each in machine.packages), None)
    if engine is None and asks_for_more(config, user_keys, machine):
        return _strategy(name, ENGINES[0], "the run asks for GPUs of another machine; it must be installed there")
    if engine is None:
        return _strategy(name, "hf_infer", "neither vllm nor sglang is installed here; both are much faster on GPUs")
    size, memory = num_parameters(worker.model_args), _gpu_bytes(config, machine)
    tensor = _tensor_size(config, worker, size, memory, len(run_devices(config, user_keys, machine)[0]))
    why = "it is installed" if engine == ENGINES[0] else "it is installed, and vllm is not"
    if tensor == 1 or size is None:
        return _strategy(name, engine, why)
    why += f"; weights of {size / 1e9:.2g} B parameters take {tensor} GPUs"
    return _strategy(name, engine, why, {"tensor_parallel_size": tensor})


def _tensor_size(config: RunConfig, worker: WorkerConfig, size: float | None, memory: float | None, count: int) -> int:
    """The smallest power of 2 by which bf16 weights leave room on each GPU."""
    model, _ = read_model_config(worker.model_args)
    heads = (model or {}).get("num_attention_heads")
    count = min(count, config.num_gpus_per_node)
    tensor = 1
    while size is not None and memory is not None and 2 * size / tensor > WEIGHTS_SHARE * memory:
        if count % (2 * tensor) or (type(heads) is int and heads % (2 * tensor)):
            break
        tensor *= 2
    return tensor


def _trainer(config: RunConfig, user_keys: KeysInYaml, name: str, worker: WorkerConfig, machine: Machine) -> Chosen:
    if "deepspeed" not in machine.packages:
        return _strategy(name, "fsdp2_train", "deepspeed is not installed here, and fsdp2_train needs torch alone")
    if worker.training_args.optim == "muon":
        return _strategy(name, "fsdp2_train", "muon needs whole matrices, which ZeRO does not keep")
    size = num_parameters(worker.model_args, config.roles[name].head or "lm")
    if not _on_gpus(config, user_keys, machine) and len(run_devices(config, user_keys, machine)[0]) <= 1:
        stage, why = "deepspeed_zero", "one worker on the CPU has nothing to divide"
    elif size is not None and size <= ZERO2_PARAMETERS:
        stage, why = "deepspeed_zero2", f"weights of {size / 1e9:.2g} B parameters stay whole on each GPU"
    elif worker.use_torch_compile:
        return _strategy(name, "fsdp2_train", "it divides weights, and use_torch_compile does not go with ZeRO 3")
    else:
        stage, why = "deepspeed_zero3", "weights, gradients and optimizer are divided among the GPUs"
    fragment = read_yaml(fragments_dir() / f"{stage}.yaml")[stage]
    return _strategy(name, "deepspeed_train", f"it is installed; {stage}: {why}", fragment, stage)


def _strategy(name: str, strategy: str, reason: str, config: dict[str, Any] | None = None, called: str = "") -> Chosen:
    value: dict[str, Any] = {"strategy_name": strategy}
    if config is not None:
        value["strategy_config"] = config
    details = called or ", ".join(f"{key} {each}" for key, each in (config or {}).items())
    return Chosen(f"{name}.strategy_args", value, reason, shown=f"{strategy}{f' ({details})' if details else ''}")


def device_defaults(config: RunConfig, user_keys: KeysInYaml, machine: Machine) -> Iterator[Chosen]:
    """The devices of every role that holds a model and names none: all of the run, which roles share in turns."""
    here = _gpus_of_a_node(config, user_keys, machine)
    if here is not None and here != DEVICES_PER_NODE:
        yield Chosen("num_gpus_per_node", here, "the GPUs that this process sees", rolls=DEVICES_PER_NODE)
    on_cpu = unplaced(config)
    devices, reason = run_devices(config, user_keys, machine)
    if not devices and not _on_gpus(config, user_keys, machine):
        why = "this machine has no GPU; each role has a worker of its own"
        yield from (Chosen(f"{name}.world_size", 1, why, shown="1, on the CPU") for name in on_cpu)
    if not devices:
        return
    policy = config.model_roles.get("actor_train")
    for name, worker in on_cpu.items():
        use = config.roles[name].use
        beside = use in ("train", "score") and policy is not None and policy.device_mapping is not None
        ids = list(policy.device_mapping or ()) if beside and policy is not None else devices
        chosen = ids[: _fitting(config, user_keys, name, worker, len(ids))]
        if not chosen:
            continue
        cause = "those of actor_train" if beside else reason
        if len(chosen) < len(ids):
            cause += f", less {len(ids) - len(chosen)} over which it does not split evenly"
        yield Chosen(f"{name}.device_mapping", chosen, cause, shown=ids_text(chosen))


def unplaced(config: RunConfig) -> dict[str, WorkerConfig]:
    """Roles with a model for which the YAML says neither devices nor a number of workers."""
    roles = config.model_roles.items()
    return {name: role for name, role in roles if role.device_mapping is None and role.world_size is None}


def run_devices(config: RunConfig, user_keys: KeysInYaml, machine: Machine) -> tuple[list[int], str]:
    """All devices of the run with the reason; none where roles run on the CPU, or nothing says how many there are."""
    here = _gpus_of_a_node(config, user_keys, machine)
    if here is not None and config.num_nodes == 1:
        return list(range(here)), f"all {here} GPUs that this process sees"
    speaks = "num_gpus_per_node" in user_keys or config.num_nodes > 1
    if machine.num_gpus or (speaks and not _named_devices(config)):
        each = config.num_gpus_per_node if here is None else here
        return list(range(config.num_nodes * each)), f"num_nodes {config.num_nodes} x num_gpus_per_node {each}"
    return [], ""


def _gpus_of_a_node(config: RunConfig, user_keys: KeysInYaml, machine: Machine) -> int | None:
    """The GPUs of this machine, where the YAML does not say how many a node has and names none beyond them."""
    named, fits = _named_devices(config), max(_named_devices(config), default=-1) < machine.num_gpus
    if not machine.num_gpus or "num_gpus_per_node" in user_keys or not fits:
        return None
    is_elsewhere = bool(named) and not unplaced(config) and machine.num_gpus > DEVICES_PER_NODE
    return None if is_elsewhere else machine.num_gpus


def _named_devices(config: RunConfig) -> set[int]:
    return {device for role in config.model_roles.values() for device in role.device_mapping or ()}


def _fitting(config: RunConfig, user_keys: KeysInYaml, name: str, worker: WorkerConfig, count: int) -> int:
    """The most of so many devices that the role can share its work over, or else that its model can; 0 for none."""
    samples = None
    if isinstance(config, AlgorithmConfig) and config.roles[name].learns and "rollout_batch_size" in user_keys:
        samples = config.num_groups * config.group_size if config.update_rounding == "whole" else None
    args = f"{name}.training_args"
    keys = [
        key for key in ("per_device_train_batch_size", "gradient_accumulation_steps") if f"{args}.{key}" in user_keys
    ]
    each = math.prod(worker.training_args.value(key) for key in keys)
    able: list[int] = []
    for number in range(count, 0, -1):
        sizes = parallel_sizes(worker.model_copy(update={"device_mapping": tuple(range(number))}))
        ranks = math.prod((sizes.data, sizes.tensor, sizes.pipeline, sizes.context, sizes.sequence))
        if number % worker.num_gpus_per_worker or (config.roles[name].use != "generate" and ranks != number):
            continue
        if samples is None or samples % (sizes.data * each) == 0:
            return number
        able.append(number)
    return able[0] if able else 0


def asks_for_more(config: RunConfig, user_keys: KeysInYaml, machine: Machine) -> bool:
    """True if the YAML asks for GPUs that this machine lacks. Devices that it names on one without any are slots."""
    if not machine.num_gpus:
        return bool(run_devices(config, user_keys, machine)[0])
    wanted_gpus = config.num_gpus_per_node if "num_gpus_per_node" in user_keys else 0
    named = max(_named_devices(config), default=-1) + 1 if config.num_nodes == 1 else 0
    return max(wanted_gpus, named) > machine.num_gpus


def _on_gpus(config: RunConfig, user_keys: KeysInYaml, machine: Machine) -> bool:
    if config.platform == "cpu":
        return False
    names_them = config.platform != "auto" or config.gpu_memory_gb is not None
    return names_them or machine.num_gpus > 0 or asks_for_more(config, user_keys, machine)


def computes_on_cpu(config: RunConfig, user_keys: KeysInYaml, machine: Machine) -> bool:
    """True if the YAML puts all models on CPUs, or names no devices and this machine has no GPUs."""
    if config.num_nodes > 1 or _named_devices(config):
        return False
    return not _on_gpus(config, user_keys, machine) or not unplaced(config)


def thread_defaults(config: RunConfig, user_keys: KeysInYaml, machine: Machine) -> Iterator[Chosen]:
    """The threads of workers on CPUs: they share the cores with those that compute at the same time. Roles take turns,
    but for engines, which sample together, and in asynchronous runs beside the others."""
    is_elsewhere = config.num_nodes > 1 or cluster_address() is not None
    if is_elsewhere or (_on_gpus(config, user_keys, machine) and not computes_on_cpu(config, user_keys, machine)):
        return
    workers = {
        name: len(worker.device_mapping or ()) or worker.world_size or 1 for name, worker in config.model_roles.items()
    }
    sampling = {name for name in workers if config.roles[name].use == "generate"}
    num_sampling = sum(workers[name] for name in sampling)
    num_others = max((workers[name] for name in workers.keys() - sampling), default=0)
    is_async = isinstance(config, AlgorithmConfig) and config.async_generation_ratio > 0
    most = 2 if isinstance(config, AlgorithmConfig) and config.exact_log_probs else machine.num_cores
    for name, worker in config.model_roles.items():
        together = num_sampling + num_others * is_async if name in sampling else workers[name] + num_sampling * is_async
        threads = min(most, machine.num_cores // max(1, together))
        if threads > 1 and not {THREADS} & {*config.system_envs, *worker.system_envs}:
            beside = "which no other worker uses meanwhile" if together == 1 else f"for {together} workers at a time"
            why = f"{machine.num_cores} cores, {beside}"
            yield Chosen(f"{name}.system_envs.{THREADS}", str(threads), why)


def _gpu_bytes(config: RunConfig, machine: Machine) -> float | None:
    return machine.gpu_bytes if config.gpu_memory_gb is None else config.gpu_memory_gb * 1e9
