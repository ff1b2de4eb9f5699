from collections.abc import Iterator
from datetime import timedelta
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock, call

import pytest
import torch

from roll.distributed.executor.weights.sender import BroadcastRouteSender, MemoryRouteSender
from roll.distributed.strategy.data_parallel import random_state, set_random_state
from roll.distributed.strategy.host_copies import HostCopies
from roll.distributed.strategy.optimizer import orthogonal
from roll.distributed.weights.broadcast_group import BroadcastGroup
from roll.distributed.weights.bucket import GroupSpec, index_bucket
from roll.distributed.weights.transport import WeightReceiver
from roll.models import execution, head_scores
from roll.models.sequences import packed_attention
from roll.platforms import table
from roll.platforms.table import ACCELERATORS, CPU, CUDA, NPU, ROCM, platform_here, platform_of
from tests.unit.platforms.stand_in import FakeModule, StandInPlatform, stand_in

DEVICE_OF_NPU: Any = SimpleNamespace(type="npu")  # torch knows the name only where torch_npu has told it


@pytest.fixture
def npu(monkeypatch: pytest.MonkeyPatch) -> FakeModule:
    """torch.npu, as torch_npu brings it."""
    fake = FakeModule()
    monkeypatch.setattr(torch, "npu", fake, raising=False)
    return fake


@pytest.fixture
def on_npu(monkeypatch: pytest.MonkeyPatch) -> Iterator[StandInPlatform]:
    """Tensors of the CPU count as an NPU's."""
    platform = stand_in()
    monkeypatch.setattr(table, "CPU", platform)
    yield platform


def built_for_hip(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "hip", "6.4.1")


def test_a_device_names_its_platform(monkeypatch: pytest.MonkeyPatch) -> None:
    assert platform_of(torch.device("cpu")) is CPU
    assert platform_of(torch.device("cuda", 1)) is CUDA
    assert platform_of(DEVICE_OF_NPU) is NPU
    with pytest.raises(ValueError, match="known kinds of device: cuda, npu, cpu"):
        platform_of(torch.device("meta"))
    built_for_hip(monkeypatch)
    assert platform_of(torch.device("cuda", 1)) is ROCM
    assert platform_of(torch.device("cpu")) is CPU


def test_a_process_sees_the_devices_of_its_worker_and_on_the_cpu_none() -> None:
    assert CUDA.visible(("4", "5")) == {"CUDA_VISIBLE_DEVICES": "4,5"}
    assert ROCM.visible(("0",)) == {"HIP_VISIBLE_DEVICES": "0"}
    assert NPU.visible(()) == {"ASCEND_RT_VISIBLE_DEVICES": ""}
    hidden = {"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": "", "ASCEND_RT_VISIBLE_DEVICES": ""}
    assert CPU.visible(("0",)) == hidden


def test_ray_knows_devices_by_the_names_in_the_table() -> None:
    from ray._private.accelerators import amd_gpu, npu, nvidia_gpu

    managers = (
        nvidia_gpu.NvidiaGPUAcceleratorManager,
        amd_gpu.AMDGPUAcceleratorManager,
        npu.NPUAcceleratorManager,
    )
    said = [(m.get_resource_name(), m.get_visible_accelerator_ids_env_var()) for m in managers]
    assert said == [(platform.ray_resource, platform.visible_variable) for platform in ACCELERATORS]


def test_the_devices_that_a_process_sees_decide_its_platform(npu: FakeModule, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert platform_here() is NPU
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert platform_here() is CUDA
    built_for_hip(monkeypatch)
    assert platform_here() is ROCM
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(npu, "is_available", lambda: False)
    assert platform_here() is CPU


def test_what_is_done_with_a_device_is_asked_of_its_own_module(npu: FakeModule) -> None:
    device: Any = "npu:1"
    NPU.set_device(device)
    NPU.empty_cache()
    NPU.synchronize()
    NPU.synchronize(device)
    NPU.wait_for_stream(device)
    assert npu.calls == ["set_device npu:1", "empty_cache", "synchronize", "synchronize npu:1", "wait npu:1"]
    assert NPU.random_states() is npu.states
    assert ROCM.module is CUDA.module is torch.cuda


@pytest.mark.parametrize(("text", "is_hip"), [("hip: Optional[str] = None", False), ("hip = '6.4.1'", True)])
def test_what_torch_is_built_for_is_read_and_not_imported(
    text: str, is_hip: bool, tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "version.py").write_text(f"__version__ = '2.13.0'\ncuda: Optional[str] = None\n{text}\n")
    monkeypatch.setattr(table, "find_spec", lambda name: SimpleNamespace(origin=str(tmp_path / "__init__.py")))
    assert table.torch_is_for_hip() is is_hip


@pytest.mark.parametrize(
    ("files", "is_hip", "expected"),
    [
        (["nvidia0", "nvidia1", "nvidiactl"], False, (CUDA, 2)),
        (["kfd", "dri/renderD128", "dri/card0"], True, (ROCM, 1)),
        (["dri/renderD128"], False, (CPU, 0)),
        (["davinci0", "davinci11", "davinci_manager"], False, (NPU, 2)),
    ],
    ids=["nvidia", "amd", "a-display", "ascend"],
)
def test_a_machine_has_the_platform_that_its_drivers_files_tell(
    files: list[str], is_hip: bool, expected: tuple[table.Platform, int], tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in files:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    monkeypatch.setattr(table, "_DEVICES", tmp_path)
    monkeypatch.setattr(table, "torch_is_for_hip", lambda: is_hip)
    platform = table.machine_platform()
    assert (platform, platform.num_devices()) == expected


# Every place that has to do with a device asks the platform of it: with a stand-in, whose tensors are the CPU's.


def test_random_states_of_the_devices_are_in_a_checkpoint(npu: FakeModule, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    state = random_state()
    assert state["npu"] is npu.states
    npu.states = []
    set_random_state(state)
    assert npu.states is state["npu"]
    set_random_state({"cpu": state["cpu"]})  # of a run on the CPU
    assert npu.states is state["npu"]


def test_contents_that_leave_a_device_wait_in_page_locked_memory(
    on_npu: StandInPlatform, monkeypatch: pytest.MonkeyPatch
) -> None:
    pinned: list[bool] = []

    def buffer(self: HostCopies, num_bytes: int, **options: bool) -> torch.Tensor:
        pinned.append(options["pinned"])
        return torch.empty(num_bytes, dtype=torch.uint8)

    monkeypatch.setattr(HostCopies, "_host_buffer", buffer)
    copies, weight = HostCopies(), torch.arange(4.0)
    copies.take([weight])
    assert pinned == [True] and on_npu.fake.calls == ["wait cpu"]
    copies.bring_back([weight])
    assert weight.tolist() == [0, 1, 2, 3] and on_npu.fake.calls == ["wait cpu"] * 2


def test_activations_that_leave_a_device_wait_in_page_locked_memory(
    on_npu: StandInPlatform, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[bool] = []
    empty = torch.empty

    def unpinned(*size: Any, pin_memory: bool = False, **options: Any) -> torch.Tensor:
        made.append(pin_memory)
        return empty(*size, **options)

    monkeypatch.setattr(execution.torch, "empty", unpinned)
    execution.ActivationOffload(torch.nn.Identity())._pack(torch.ones(execution.LEAST_ELEMENTS))
    assert made == [True]


def test_senders_wait_for_copies_out_of_device_memory(on_npu: StandInPlatform) -> None:
    bucket = [("weight", torch.arange(4.0))]
    sender = MemoryRouteSender([(0, 0)])
    try:
        sender.write(bucket, index_bucket(bucket), 0)
        assert on_npu.fake.calls == ["synchronize"]
    finally:
        sender.close()


def test_buffers_of_a_broadcast_are_given_back_after_an_update(on_npu: StandInPlatform) -> None:
    device = torch.device("cpu")
    sender = BroadcastRouteSender.__new__(BroadcastRouteSender)
    sender._device, sender._buffers = device, [torch.ones(3), torch.ones(3)]
    sender.rest()
    receiver = WeightReceiver(device)
    receiver._received = torch.ones(3)
    receiver.rest()
    assert [len(buffer) for buffer in (*sender._buffers, receiver._received)] == [0, 0, 0]
    assert on_npu.fake.calls == ["empty_cache"] * 2


def test_a_broadcast_between_devices_is_a_group_of_the_platforms_backend(
    on_npu: StandInPlatform, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch_npu's class takes the options that NCCL's takes (torch_npu 2.7, ProcessGroupHCCL.hpp)."""

    class Group:
        def __init__(self, *arguments: Any):
            self.arguments = arguments

        def broadcast(self, tensors: list[torch.Tensor], options: Any) -> Any:
            tensors[0].fill_(options.rootRank + 5)
            return SimpleNamespace(wait=lambda: None, is_completed=lambda: True)

        class Options:
            _timeout: timedelta

    monkeypatch.setattr(table, "import_module", lambda name: SimpleNamespace(ProcessGroupHCCL=Group))
    store = BroadcastGroup.open_store("127.0.0.1")
    device, flat = torch.device("cpu"), torch.zeros(2)
    group = BroadcastGroup(GroupSpec("g", "127.0.0.1", store.port, 1, "hccl"), 0, device, store, timeout_s=9)
    group.broadcast(flat)
    made: Any = group._group
    _, rank, size, options = made.arguments
    assert (rank, size, options._timeout, flat.tolist()) == (0, 1, timedelta(seconds=9), [5, 5])
    assert on_npu.fake.calls == ["set_device cpu", "wait cpu"]


def test_kernels_that_only_gpus_have_are_not_called_elsewhere(on_npu: StandInPlatform) -> None:
    """Muon's iteration is in bf16 on any device; products in a wider dtype and packed rows take the general way."""
    assert orthogonal(torch.eye(4)).dtype == torch.bfloat16
    ones = torch.ones(2, 2, dtype=torch.bfloat16)
    assert head_scores._wide_product(ones, ones, torch.float32).dtype == torch.float32
    query = torch.ones(1, 2, 4, 8, dtype=torch.bfloat16)
    starts = torch.tensor([0, 4])
    output, _ = packed_attention.packed_attention(torch.nn.Identity(), query, query, query, 0, cu_seq_lens_q=starts)
    assert output.shape == (1, 4, 2, 8) and output.eq(1).all()


def test_a_group_that_waits_for_a_lost_member_is_ended_where_the_backend_can() -> None:
    """NCCL's groups and HCCL's have a method for it, each its own; gloo's have none."""
    for platform, expected in ((CUDA, call.abort()), (ROCM, call.abort()), (NPU, call.abort_hccl_comm("given up"))):
        group = Mock()
        assert platform.abort(group)
        assert group.mock_calls == [expected]
    group = Mock()
    assert not CPU.abort(group) and group.mock_calls == []
