"""The kinds of device that a run computes on: a row for each, with everything in which they differ.

Importing this imports no torch and opens no device: the plan reads the same rows. Tests run on the CPU, and CUDA has
run on one GPU (docs/gpu_validation.md). ROCm and Ascend are written by the documents of torch, CANN, torch_npu, Ray and
vllm-ascend, and have never run (docs/platforms.md).
"""

from __future__ import annotations

import ctypes
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h
_DEVICES = Path("/dev")
_HIP = re.compile(r"^hip\b[^=]*=\s*['\"]", re.MULTILINE)


@dataclass(frozen=True)
class Platform:
    """One kind of device: its names in torch, Ray and the environment, and what it has."""

    name: str  # the value of the key `platform`
    devices: str  # what people call them
    device_type: str  # as in torch.device(device_type); torch's module has the name, and DeepSpeed's accelerator
    communication_backend: str  # of torch.distributed
    process_group: tuple[str, str]  # module and class of one of the backend's groups
    visible_variable: str  # it shows a process its devices, by their numbers
    ray_resource: str  # "" where devices are slots
    device_files: str  # pattern below /dev: each device has a file
    interface_variables: Mapping[str, str] = field(hash=False)  # "{}" stands for the interface to listen on
    allocator_variables: tuple[str, ...] = ()  # where torch reads the settings of its allocator
    worker_variables: Mapping[str, str] = field(default_factory=dict, hash=False)  # of workers with devices
    has_ipc: bool = False  # a process can open a tensor in another's device memory
    has_flash_attention: bool = False  # torch's own, with packed rows and causal_lower_right
    has_tree_attention: bool = False  # kernels whose results of several calls can be merged: use_prefix_sharing
    has_wide_products: bool = False  # torch.mm(out_dtype=): fp32 products of bf16 factors
    has_exact_products: bool = False  # products that do not depend on how many rows there are: exact_log_probs
    abort_call: tuple[str, ...] = ()  # method of a group that ends what waits in its kernels, and its arguments

    @property
    def is_accelerator(self) -> bool:
        """True if devices have memory of their own, to which page-locked host memory copies fast."""
        return self.device_type != "cpu"

    @property
    def module(self) -> Any:
        """torch.cuda, torch.npu or torch.cpu. torch_npu adds its own when torch is imported."""
        import torch

        return getattr(torch, self.device_type)

    def device_name(self, index: int = 0) -> str:
        """Name of a device for torch. Example: cuda:0."""
        return f"{self.device_type}:{index}"

    def visible(self, ids: Sequence[str]) -> dict[str, str]:
        """Variables with which a process sees these devices and no other."""
        return {self.visible_variable: ",".join(ids)}

    def num_devices(self) -> int:
        """Devices that this machine's driver has files of."""
        return sum(1 for _ in _DEVICES.glob(self.device_files))

    def set_device(self, device: torch.device) -> None:
        """Makes it the current device of this process."""
        self.module.set_device(device)

    def empty_cache(self) -> None:
        """Hands memory that the allocator keeps but does not use back to the device."""
        self.module.empty_cache()

    def synchronize(self, device: torch.device | None = None) -> None:
        """Waits for everything on the device; without one on the current device."""
        self.module.synchronize(device)

    def wait_for_stream(self, device: torch.device) -> None:
        """Waits for what the current stream of the device has been given."""
        self.module.current_stream(device).synchronize()

    def random_states(self) -> list[torch.Tensor]:
        """States of the random generators of all devices."""
        return self.module.get_rng_state_all()

    def set_random_states(self, states: Sequence[torch.Tensor]) -> None:
        self.module.set_rng_state_all(states)

    def new_process_group(self, store: Any, rank: int, world_size: int, timeout: Any, device: torch.device) -> Any:
        """A group of the backend outside torch.distributed's own table of groups."""
        self.set_device(device)
        module, name = self.process_group
        group_class = getattr(import_module(module), name)
        options = group_class.Options()
        options._timeout = timeout
        return group_class(store, rank, world_size, options)

    def abort(self, group: Any) -> bool:
        """Ends a group of the backend at once, kernels that wait for a lost member too. False where the backend
        cannot."""
        if not self.abort_call:
            return False
        method, *arguments = self.abort_call
        getattr(group, method)(*arguments)
        return True


@dataclass(frozen=True)
class CpuPlatform(Platform):
    """A machine without accelerators, or one whose accelerators the run leaves alone: devices are slots."""

    def device_name(self, index: int = 0) -> str:
        return self.device_type

    def visible(self, ids: Sequence[str]) -> dict[str, str]:
        """No accelerator is seen, of whatever kind."""
        return {platform.visible_variable: "" for platform in ACCELERATORS}

    def num_devices(self) -> int:
        return 0

    def set_device(self, device: torch.device) -> None:
        """Tells the C library to keep freed memory: handing every activation back to the kernel and faulting it in
        again costs a tenth of a small model's step."""
        if sys.platform == "linux":
            mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # glibc's; absent from other C libraries
            if mallopt is not None:
                mallopt(_M_MMAP_THRESHOLD, 32 << 20)
                mallopt(_M_TRIM_THRESHOLD, 1 << 30)

    def empty_cache(self) -> None:
        """Does nothing: there is no cache of ours."""

    def synchronize(self, device: torch.device | None = None) -> None:
        """Does nothing: what was called is done."""

    def wait_for_stream(self, device: torch.device) -> None:
        """Does nothing: what was called is done."""

    def random_states(self) -> list[torch.Tensor]:
        """An empty list: torch's own generator is all there is."""
        return []

    def set_random_states(self, states: Sequence[torch.Tensor]) -> None:
        """Does nothing: a checkpoint of another platform has states that this one does not use."""

    def new_process_group(self, store: Any, rank: int, world_size: int, timeout: Any, device: torch.device) -> Any:
        module, name = self.process_group
        return getattr(import_module(module), name)(store, rank, world_size, timeout=timeout)


_GROUPS = "torch.distributed.distributed_c10d"
_GLOO = {"GLOO_SOCKET_IFNAME": "{}"}  # every run has groups of gloo beside those of its devices
_NCCL = {**_GLOO, "NCCL_SOCKET_IFNAME": "={}"}  # a bare name is the beginning of one

CUDA = Platform(
    name="cuda",
    devices="GPUs",
    device_type="cuda",
    communication_backend="nccl",
    process_group=(_GROUPS, "ProcessGroupNCCL"),
    visible_variable="CUDA_VISIBLE_DEVICES",
    ray_resource="GPU",
    device_files="nvidia[0-9]*",
    interface_variables=_NCCL,
    allocator_variables=("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"),
    # NCCL's own defaults where its version is new enough, said aloud: SGLang sets others for itself, and the ranks of
    # one communicator (trainer and engines, when weights are broadcast) must agree, or its first use fails or hangs.
    worker_variables={"NCCL_CUMEM_ENABLE": "1", "NCCL_NVLS_ENABLE": "2"},
    has_ipc=True,
    has_flash_attention=True,
    has_tree_attention=True,
    has_wide_products=True,
    has_exact_products=True,
    abort_call=("abort",),
)
"""NVIDIA GPUs."""

ROCM = replace(
    CUDA,
    name="rocm",
    visible_variable="HIP_VISIBLE_DEVICES",  # Ray refuses ROCR_VISIBLE_DEVICES without it
    device_files="dri/renderD*",
    allocator_variables=("PYTORCH_HIP_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"),
    # RCCL reads NCCL's variables. These are SGLang's values: RCCL has neither cuMem nor NVLink's multicast by default.
    worker_variables={"NCCL_CUMEM_ENABLE": "0", "NCCL_NVLS_ENABLE": "0"},
    has_tree_attention=False,  # AOTriton's kernels have log-sum-exps of another form, and have never been tried
    has_wide_products=False,  # torch documents them for CUDA alone
    has_exact_products=False,  # the Triton kernel was written for, and tried on, NVIDIA's GPUs
)
"""AMD GPUs: a torch built for HIP calls them cuda, and RCCL nccl."""

NPU = Platform(
    name="npu",
    devices="NPUs",
    device_type="npu",
    communication_backend="hccl",
    process_group=("torch_npu._C._distributed_c10d", "ProcessGroupHCCL"),
    visible_variable="ASCEND_RT_VISIBLE_DEVICES",
    ray_resource="NPU",
    device_files="davinci[0-9]*",
    interface_variables={**_GLOO, "HCCL_SOCKET_IFNAME": "={}"},
    allocator_variables=("PYTORCH_NPU_ALLOC_CONF",),
    # By default HCCL of every process listens on 16 ports from HCCL_IF_BASE_PORT (60000) on, on the host and on the
    # NPU: two processes on one NPU collide. With "auto" the system chooses ports; it wins over the base port (CANN 8.5,
    # environment variables). vLLM-Ascend must keep weights in torch's layout, or new ones cannot be copied into them.
    worker_variables={
        "HCCL_HOST_SOCKET_PORT_RANGE": "auto",
        "HCCL_NPU_SOCKET_PORT_RANGE": "auto",
        "VLLM_ASCEND_ENABLE_NZ": "0",
    },
    abort_call=("abort_hccl_comm", "given up"),
)
"""Ascend NPUs, by torch_npu."""

ACCELERATORS = (CUDA, ROCM, NPU)

CPU = CpuPlatform(
    name="cpu",
    devices="slots",
    device_type="cpu",
    communication_backend="gloo",
    process_group=(_GROUPS, "ProcessGroupGloo"),
    visible_variable="",
    ray_resource="",
    device_files="",
    interface_variables=_GLOO,
    has_tree_attention=True,
    has_exact_products=True,
)

PLATFORMS: Mapping[str, Platform] = {platform.name: platform for platform in (*ACCELERATORS, CPU)}
"""The rows by the values of the key `platform`."""


def platform_of(device: torch.device) -> Platform:
    """The platform of a device. ValueError for a kind of device that no platform has.

    A device `cuda` of a torch that is built for HIP is ROCm's.
    """
    known = (ROCM, NPU, CPU) if device.type == "cuda" and _is_for_hip() else (CUDA, NPU, CPU)
    for platform in known:
        if platform.device_type == device.type:
            return platform
    raise ValueError(f"no platform for device {device}; known kinds of device: cuda, npu, cpu")


def _is_for_hip() -> bool:
    import torch  # no import_module: torch.compile follows this into its graph

    return torch.version.hip is not None


def platform_here() -> Platform:
    """The platform of the devices that this process sees. Imports torch; makes no context on a device."""
    import torch

    for platform in (ROCM if _is_for_hip() else CUDA, NPU):
        module = getattr(torch, platform.device_type, None)
        if module is not None and module.is_available():
            return platform
    return CPU


def machine_platform() -> Platform:
    """The platform of this machine's devices, by the files of their drivers; CPU where there are none."""
    first = ROCM if torch_is_for_hip() else CUDA
    return next((platform for platform in (first, NPU) if platform.num_devices()), CPU)


def torch_is_for_hip() -> bool:
    """True if the torch that is installed is built for ROCm, by what its files say: it is not imported. No other torch
    computes on AMD GPUs."""
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        return False
    return _HIP.search((Path(spec.origin).parent / "version.py").read_text(encoding="utf-8")) is not None
