"""The environment variables of worker processes. Pure functions: what is set for a role, and what for one rank of
it."""

from __future__ import annotations

import os
import sys
import uuid
from collections.abc import Mapping, MutableMapping, Sequence

from roll.distributed.executor.processes.resource_manager import TakenSeat
from roll.utils.allocator import clear_expandable
from roll.utils.network import LOOPBACK

# NCCL's own defaults where its version is new enough, said aloud: SGLang sets others for itself, and the ranks of one
# communicator (trainer and engines, when weights are broadcast) must agree, or its first use fails or hangs.
_NCCL = {"NCCL_CUMEM_ENABLE": "1", "NCCL_NVLS_ENABLE": "2"}
RUN_MARK = "ROLL_RUN"  # in the environment of every worker and of what it starts: the id of its run
RUN_ID = uuid.uuid4().hex  # of this driver's


SHARES_GPUS = "ROLL_SHARES_GPUS"  # in the environment of workers whose GPUs another role uses as well


def begin_environment(variables: MutableMapping[str, str], own: Mapping[str, str]) -> list[str]:
    """Adds to a worker's variables what is its `own`, before torch is imported. Returns the variables, inherited from a
    shell or an image, in which expandable segments were switched off: of roles that share GPUs, memory must be open to
    other processes (`roll.utils.allocator`).

    With GPUs the programs of its Python environment are on PATH, also where nobody has activated it: vLLM 0.32 takes
    FlashInfer's fused all-reduce only where it finds `ninja` and `nvcc`.
    """
    variables.update(own)
    if variables.get("CUDA_VISIBLE_DEVICES"):
        programs, path = os.path.dirname(sys.executable), variables.get("PATH", os.defpath)
        if programs not in path.split(os.pathsep):
            variables["PATH"] = os.pathsep.join((path, programs))
    return clear_expandable(variables) if SHARES_GPUS in variables else []


def role_environment(role: str, system_envs: Mapping[str, str], seat: TakenSeat) -> dict[str, str]:
    """What a process of a role starts with; `system_envs` win. ROLL_ROLE tells a process list who is who.

    One thread per process without a GPU: several ranks share the cores, and spinning threads make each other 4-10 times
    slower. A worker with GPUs gets its share of the node's cores: AdamW in host memory and copies use them (Ray would
    say 1).
    """
    defaults = {"ROLL_ROLE": role, RUN_MARK: RUN_ID, "TOKENIZERS_PARALLELISM": "false"}
    if seat.gpu_ids:
        share = max(seat.host.num_cores // len(seat.host.gpu_ids), 1)
        defaults |= {"OMP_NUM_THREADS": str(share), **_NCCL}
    else:
        defaults |= {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
    return {**defaults, **system_envs}


# Folders that a worker adds to the end of its path: PYTHONPATH would put the user's `code.py` before Python's own.
IMPORT_FOLDERS = "ROLL_IMPORT_FOLDERS"


def import_environment(folders: Sequence[str], code: str | None, system_envs: Mapping[str, str]) -> dict[str, str]:
    """What lets workers import what the driver can: its `folders`, as far as they exist there, and the folder `code` of
    a roll that is not installed. Ray replaces ${PYTHONPATH} by the variable of the worker's node."""
    names = {IMPORT_FOLDERS: os.pathsep.join(folders)}
    if code is not None:
        names["PYTHONPATH"] = os.pathsep.join((code, system_envs.get("PYTHONPATH", "${PYTHONPATH}")))
    return names


def rank_environment(seats: Sequence[TakenSeat], seat: TakenSeat, is_distributed: bool) -> dict[str, str]:
    """What one worker adds before torch is imported: its devices, and where torch.distributed meets (but for
    MASTER_PORT)."""
    visible = {"CUDA_VISIBLE_DEVICES": ",".join(seat.gpu_ids)}
    if not is_distributed:
        return visible
    one_host = len({other.host.address for other in seats}) == 1
    return visible | {
        "RANK": str(seat.rank),
        "WORLD_SIZE": str(len(seats)),
        "LOCAL_RANK": "0" if seat.gpu_ids else str(seat.local_rank),  # each worker sees its own GPU only
        "LOCAL_WORLD_SIZE": str(sum(other.node == seat.node for other in seats)),
        "MASTER_ADDR": LOOPBACK if one_host else seats[0].host.address,
    }
