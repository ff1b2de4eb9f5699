"""The memory of this machine's GPUs, asked of the driver's own tool: it takes no memory on them, as a CUDA context
would."""

import shutil
import subprocess

_MIB = 1 << 20
_TIMEOUT_S = 20


def smallest_gpu_bytes() -> float | None:
    """Of the smallest GPU; None without GPUs, or where nvidia-smi does not say."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return None
    command = [tool, "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=True).stdout
        sizes = [int(line) for line in answer.splitlines() if line.strip()]
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
    return min(sizes) * _MIB if sizes else None
