"""The GPUs of this machine, asked of the driver's own tool: it takes no memory on them, as a CUDA context would."""

import shutil
import subprocess

_MIB = 1 << 20
_TIMEOUT_S = 20


def smallest_gpu_bytes() -> float | None:
    """Memory of the smallest GPU; None without GPUs, or where nvidia-smi does not say."""
    sizes = _sizes()
    return min(map(int, sizes)) * _MIB if sizes and all(size.isdecimal() for size in sizes) else None


def num_visible_gpus(visible: str | None) -> int:
    """GPUs that a process sees whose CUDA_VISIBLE_DEVICES is `visible` (None: not set); 0 where there is no nvidia-smi.

    Example: on a machine of 8, "2,3" is 2 GPUs, "" and "-1" are none.
    """
    if visible is None:
        return len(_sizes())
    names = [name.strip() for name in visible.split(",")]
    seen = next((place for place, name in enumerate(names) if name in ("", "-1")), len(names))  # CUDA stops there
    return seen if seen and _sizes() else 0


def _sizes() -> list[str]:
    """The memory of each GPU in MiB, as nvidia-smi writes it."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return []
    command = [tool, "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=True).stdout
    except (OSError, ValueError, subprocess.SubprocessError):
        return []
    return [line.strip() for line in answer.splitlines() if line.strip()]
