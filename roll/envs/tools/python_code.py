"""`python_code`: a program of the policy's, run in the sandbox."""

import re

from roll.envs.tools.base import Tool, ToolError
from roll.errors import EnvError
from roll.utils.sandbox.backends import SandboxUnavailable, find_means
from roll.utils.sandbox.job import BOX, Job, Limits, Namespaces, own_python, view
from roll.utils.sandbox.process import SandboxError, run

PROGRAM = re.compile(r"<python>(.*?)</python>|```(?:python|py)\s*\n(.*?)```", re.DOTALL)
OUTPUT_BYTES = 65536
EXTRA_S = 25.0  # for starting an interpreter on a busy machine; the program itself has `timeout` of the CPU


class PythonCodeTool(Tool):
    """Its output is the result; an error is the whole traceback, or with `keep_error_last_line` its last line.

    The interpreter is that of the run, with its standard library and no other package. There is no network, and nothing
    of the machine to be seen; `timeout` counts seconds of the CPU. It always runs in the sandbox: `sandbox_type` is a
    key of ROLL's, which changes nothing here.
    """

    name = "python"
    instruction = (
        "You can run Python: <python>print(2 ** 10)</python>, or a block ```python, runs as a program of its own, and "
        "you see what it prints."
    )
    example = "print(2 ** 10)"

    def __init__(
        self,
        timeout: float = 5.0,
        memory_mb: int = 512,
        keep_error_last_line: bool = False,
        sandbox_type: str | None = None,
    ):
        if timeout <= 0 or memory_mb < 64:
            raise EnvError(f"timeout: {timeout} must be above 0, and memory_mb: {memory_mb} 64 or more")
        self._limits = Limits(timeout, timeout + EXTRA_S, memory_mb, 16, OUTPUT_BYTES, threads=16)
        self._last_line = keep_error_last_line
        _means()

    def find(self, answer: str) -> tuple[int, str] | None:
        match = PROGRAM.search(answer)
        return None if match is None else (match.start(), (match[1] or match[2] or "").strip())

    def run(self, call: str) -> str:
        files = {"main.py": call.encode(errors="replace")}
        interpreter, shown = own_python()
        command = (interpreter, "-I", "-S", "-B", f"{BOX}/main.py")
        try:
            finished = run(Job(command, view(*shown), self._limits, files), _means())
        except SandboxError as error:
            raise EnvError(f"python_code: {error}") from error
        if finished.ending == "time":
            raise ToolError(f"the program took longer than {self._limits.cpu_s:g} s")
        if finished.ending == "output":
            raise ToolError(f"the program printed more than {OUTPUT_BYTES} bytes")
        if finished.code:
            said = finished.stderr.decode(errors="replace").strip()
            lines = said.splitlines()[-1:] if self._last_line else said.splitlines()
            raise ToolError("\n".join(lines) or f"the program ended with code {finished.code}")
        return f"Code execution result: {finished.stdout.decode(errors='replace').strip()}"


def _means() -> Namespaces:
    try:
        return find_means(*own_python()[1])
    except SandboxUnavailable as error:
        raise EnvError(f"python_code runs programs in a sandbox, and {error}") from None
