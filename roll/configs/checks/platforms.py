"""Checks that each role can work on the devices that the key `platform` names, before anything starts."""

from collections.abc import Iterator

from roll.configs.problems import Problem
from roll.configs.strategies.choice import Choice
from roll.configs.strategies.table import spec_of
from roll.platforms.table import ACCELERATORS, CUDA, NPU, PLATFORMS, machine_platform
from roll.utils.imports import is_installed

NO_TREES = "prefix sharing works on NVIDIA's GPUs and on CPUs"
NO_EXACT_PRODUCTS = "exact passes work on NVIDIA's GPUs and on CPUs"


def on_gpus_here() -> bool:
    """True if this machine has devices of any platform but the CPU's."""
    return machine_platform().is_accelerator


def platform_problems(choice: Choice) -> Iterator[Problem]:
    """Finds what the platform of the run does not have, whatever the machine. Nothing where it is `auto`: then the
    devices are NVIDIA's, or slots."""
    platform, worker, name = PLATFORMS.get(choice.platform), choice.worker, choice.role.name
    if platform is None:
        return
    refusals: dict[str, str] = {}
    kernel = worker.model_args.fused_kernel_options.impl_backend
    if kernel != "torch" and platform is not CUDA:
        key = f"{name}.model_args.fused_kernel_options.impl_backend"
        refusals[key] = f"{kernel}: its kernels are for NVIDIA's GPUs. Use torch"
    if worker.use_prefix_sharing == "on" and worker.device_mapping is not None and not platform.has_tree_attention:
        refusals[f"{name}.use_prefix_sharing"] = f"on: {NO_TREES}. Set it to off"
    if worker.use_torch_compile and platform is NPU:
        why = "torch.compile has no compiler for Ascend without torchair, which roll does not use"
        refusals[f"{name}.use_torch_compile"] = f"true: {why}. Set it to false"
    if why := spec_of(worker.strategy_name).not_on.get(platform.name):
        refusals[choice.name_key] = f"{worker.strategy_name}: {why}"
    for key, why in refusals.items():
        yield Problem(f"{key}: {why} (platform: {platform.name}).", (key, "platform"))


def platform_machine_problems(platform: str) -> Iterator[Problem]:
    """Finds a platform whose package for torch is not installed here."""
    if platform == NPU.name and not is_installed("torch_npu"):
        text = "platform: npu needs the package torch_npu, which is not installed. Install the one for this torch"
        yield Problem(f"{text} (docs/platforms.md).", ("platform",), "machine")


def platform_warnings(platform: str) -> Iterator[str]:
    """Says what has never run."""
    if platform in {each.name for each in ACCELERATORS if each is not CUDA}:
        yield (
            f"platform: {platform}: roll has never run on it: the code follows the vendor's documents "
            "(docs/platforms.md)."
        )
