"""Compiles structures in a process of its own, with a limit of time, before an engine sees them.

The file is its program, too: it imports nothing of roll, reads a line for each structure and answers with one."""

import asyncio
import json
import resource
import sys
from contextlib import suppress
from typing import Any

_LIMIT_S = 2.0  # that a structure may take
_START_S = 120.0  # that the process may take to import xgrammar
_MOST_KNOWN = 4096
_LONGEST_ANSWER = 1 << 20
_SLOW = f"a schema takes longer than {_LIMIT_S:g} s to compile. Leave out long repeats, patterns or optional properties"


class Compiler:
    """Says what is wrong with a structure, "" if nothing is. Belongs to one event loop; one structure at a time."""

    def __init__(self, tokenizer: Any):
        self._tokenizer = tokenizer
        self._known: dict[str, str] = {}
        self._turn = asyncio.Lock()
        self._process: asyncio.subprocess.Process | None = None

    async def fault_of(self, structure: str) -> str:
        if structure not in self._known:
            async with self._turn:
                if structure not in self._known:
                    self._known[structure] = await self._compiled(structure)
            while len(self._known) > _MOST_KNOWN:
                del self._known[next(iter(self._known))]
        return self._known[structure]

    async def stop(self) -> None:
        if self._process is not None:
            await _ended(self._process)

    async def _compiled(self, structure: str) -> str:
        process = self._process or await self._started()
        self._process = None  # until it has answered: one that is left amid its work is no use
        assert process.stdin is not None and process.stdout is not None
        try:
            process.stdin.write(json.dumps(structure).encode() + b"\n")
            answer = await asyncio.wait_for(process.stdout.readline(), _LIMIT_S)
            self._process = process
        except TimeoutError:
            return _SLOW
        finally:
            if self._process is None:
                await _ended(process)
        return json.loads(answer) if answer else "the compiler ended over a schema"

    async def _started(self) -> asyncio.subprocess.Process:
        vocabulary = await asyncio.to_thread(_vocabulary, self._tokenizer)
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            sys.executable, __file__, stdin=pipe, stdout=pipe, limit=_LONGEST_ANSWER
        )
        try:
            assert process.stdin is not None and process.stdout is not None
            process.stdin.write(vocabulary.encode() + b"\n")
            await process.stdin.drain()
            await asyncio.wait_for(process.stdout.readline(), _START_S)
        except BaseException:
            await _ended(process)
            raise
        return process


async def _ended(process: asyncio.subprocess.Process) -> None:
    with suppress(ProcessLookupError):
        process.kill()
    await process.communicate()


def _vocabulary(tokenizer: Any) -> str:
    import xgrammar

    return xgrammar.TokenizerInfo.from_huggingface(tokenizer).serialize_json()


def main() -> None:
    """Reads a vocabulary, then structures, until nobody writes."""
    import xgrammar

    info = xgrammar.TokenizerInfo.deserialize_json(sys.stdin.readline())
    compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)
    _answer("")
    for line in sys.stdin:
        used_s = sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
        resource.setrlimit(resource.RLIMIT_CPU, (int(used_s) + 10, resource.RLIM_INFINITY))  # if nobody waits any more
        try:
            compiler.compile_structural_tag(json.loads(line))
            fault = ""
        except Exception as error:  # RuntimeError of its parser, and others
            fault = f"{type(error).__name__}: {error}"[:500]
        _answer(fault)


def _answer(fault: str) -> None:
    sys.stdout.write(f"{json.dumps(fault)}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
