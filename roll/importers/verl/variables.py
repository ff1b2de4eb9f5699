"""Variables of the environment that scripts of verl give workers or export."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from roll.importers.rows import CombinedKeys, SourceLookup
from roll.importers.script import Command, is_open
from roll.importers.verl.common import ROLLOUT
from roll.platforms.table import PLATFORMS
from roll.utils.secrets import is_secret_key

_OF_RAY = "ray_kwargs.ray_init.runtime_env.env_vars"
_VISIBLE = {platform.visible_variable for platform in PLATFORMS.values()}
_SECRET = "no YAML should hold a secret: export it where the run starts"
_DEVICES = "device_mapping says which devices a worker has"


def of_workers(source: SourceLookup) -> CombinedKeys:
    """Variables of Ray's workers, which are those of the workers here; devices are chosen by other means."""
    given = source.below(_OF_RAY)
    kept = {name: str(value) for name, value in given.items() if not is_secret_key(name) and name not in _VISIBLE}
    return CombinedKeys(
        {f"system_envs.{name}": value for name, value in kept.items()},
        f"system_envs: {', '.join(kept)}.",
        lost={f"{_OF_RAY}.{name}": _SECRET for name in given if is_secret_key(name)},
        idle={f"{_OF_RAY}.{name}": _DEVICES for name in given if name in _VISIBLE},
    )


_OF_LIBRARIES = re.compile(
    r"(CUDA|NCCL|GLOO|VLLM|SGL|SGLANG|RAY|HF|TRANSFORMERS|TOKENIZERS|PYTORCH|TORCH|TORCHDYNAMO|TORCHINDUCTOR|TRITON|"
    r"HYDRA|WANDB|SWANLAB|MLFLOW|TENSORBOARD|VERL|HCCL|ASCEND|OMP|MKL|LD|NVTE|SLURM|TF|CPU|CUBLAS|NVSHMEM|FLASHINFER)_"
    r"\w+|PYTHON(?!PATH)\w*|PATH|HOME|MASTER_(ADDR|PORT)|MAX_JOBS|TASK_QUEUE_ENABLE|(?i:https?_proxy|no_proxy|all_proxy)"
)
"""Variables that packages read, and none of a user's own code does to decide anything."""
_OWN_CODE = (
    "custom_reward_function.path",
    *(f"{ROLLOUT}.multi_turn.{name}_config_path" for name in ("tool", "interaction")),
)


def runs_own_code(values: Mapping[str, Any]) -> bool:
    """Whether a file of the user's own scores answers or answers calls."""
    return any(values.get(key) for key in _OWN_CODE)


def own_variables(command: Command | None) -> dict[str, str]:
    """Return what a script exports, and its own code may read."""
    variables = command.environment if command else {}
    return {name: value for name, value in variables.items() if not _OF_LIBRARIES.fullmatch(name)}


def is_carried(name: str, value: str) -> bool:
    """Whether a YAML can hold the value of a variable: it is known, and leads to no packages of the machine."""
    return not (is_open(value) or is_secret_key(name) or name == "PYTHONPATH")


def key_of_variable(name: str) -> str:
    """Return the key of a variable of verl's workers."""
    return f"{_OF_RAY}.{name}"


def read_by_own_code(command: Command | None, values: Mapping[str, Any]) -> Iterator[str]:
    """Yield a note on what a script exports and no YAML can hold, where code of the user's runs."""
    names = [name for name, value in own_variables(command).items() if not is_carried(name, value)]
    if names and runs_own_code(values):
        yield f"The script exports {', '.join(names)}, which its own code may read: export them where the run starts."
