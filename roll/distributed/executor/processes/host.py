"""Actors that host one worker object, built by its dotted path. Nothing heavy is imported here: the environment of a
worker must be complete before torch is."""

import asyncio
import gc
import inspect
import os
import sys
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, TextIO, cast

import ray

from roll.distributed.executor.pools.job import packed
from roll.distributed.executor.processes.resource_manager import IMPORT_FOLDERS, RUN_MARK, begin_environment
from roll.distributed.executor.processes.worker_process import Failure, MemoryWatch
from roll.distributed.executor.processes.worker_records import RecordSender
from roll.utils.background import lost_failure
from roll.utils.imports import add_folder, import_external, resolve, set_script_code
from roll.utils.logging import MaskedStream, configure_logging
from roll.utils.network import free_port
from roll.utils.worker_usage import IDLE, Meter, TraceOptions, Usage

_TOGETHER_S = 0.01
_NO_CODE: Mapping[str, object] = MappingProxyType({})


class Host:
    """A worker that serves one call at a time, in the main thread. Whatever escapes from a call comes back as
    `Failure`: KeyboardInterrupt and SystemExit, too, which would otherwise mean something to Ray. `code`: what the
    driver's script defines (`script_code`); Ray sends it by value."""

    def __init__(self, rank: int, environment: Mapping[str, str], code: Mapping[str, object] = _NO_CODE):
        cleared = begin_environment(os.environ, environment)
        for folder in filter(None, os.environ.get(IMPORT_FOLDERS, "").split(os.pathsep)):
            add_folder(Path(folder))
        set_script_code(code)
        role = os.environ.get("ROLL_ROLE", "")
        worker = f"{role}-{rank}"
        for stream in (sys.stdout, sys.stderr):  # the first lines of the process's own log, see `launch`
            stream.write(f":worker:{worker}\n")
            stream.flush()
        sys.stdout, sys.stderr = (cast(TextIO, MaskedStream(stream)) for stream in (sys.stdout, sys.stderr))
        configure_logging(tag=worker, more=[RecordSender(os.environ.get(RUN_MARK, ""), worker)])
        if cleared:
            sys.stderr.write(f"{', '.join(cleared)}: without expandable_segments, since this role shares its GPUs\n")
        self._rank = rank
        self._worker: Any = None
        self._build_failure: Failure | None = None
        self._meter, self._memory = Meter(role, f"rank {rank}"), MemoryWatch(worker)

    def free_port(self) -> int:
        return free_port()

    def build(self, worker_class: str, arguments: tuple[Any, ...], master_port: int) -> Failure | None:
        """Creates the worker. `master_port` is where torch.distributed meets (0: nowhere)."""
        if master_port:
            os.environ["MASTER_PORT"] = str(master_port)
        try:
            import_external()
            constructor: Any = resolve(worker_class)
            self._worker = constructor(*arguments)
            gc.freeze()  # what was imported stays: a full collection over it takes .3 s, in the middle of anything
        except BaseException as error:
            self._build_failure = Failure.of(error, self._rank)
        return self._build_failure

    def call(self, method: str, *arguments: Any) -> Any:
        self._meter.go(method)
        try:
            return self._reply(method, arguments)
        finally:
            self._meter.go(IDLE)

    def _reply(self, method: str, arguments: Sequence[Any]) -> Any:
        if self._build_failure is not None:
            return self._build_failure
        try:
            return getattr(self._worker, method)(*arguments)
        except BaseException as error:
            return Failure.of(error, self._rank)

    def usage(self, request: TraceOptions) -> Usage:
        return self._memory.add_to(self._meter.take(request.trace), request)

    def call_split(self, method: str, num_values: int, *arguments: Any) -> tuple[Any, ...]:
        """Calls a method that returns (summary, value, ...); the values stay in the object store."""
        return self._apart(method, self.call(method, *arguments), num_values)

    def _apart(self, method: str, reply: Any, num_values: int) -> tuple[Any, ...]:
        if not isinstance(reply, Failure) and len(reply) != 1 + num_values:
            reply = Failure(self._rank, f"{method} returned {len(reply)} values, expected {1 + num_values}")
        if isinstance(reply, Failure):
            return (reply, *[None] * num_values)
        summary, *values = reply
        return (packed(summary), *values)


class PoolHost(Host):
    """A worker that goes through a batch of calls and streams the replies."""

    def run_batch(self, calls: Sequence[tuple[str, tuple[Any, ...]]]) -> Iterator[Any]:
        """Yields the replies in order; those of quick calls travel together, with the first that was not.
        References among the arguments are what they stand for."""
        replies: list[Any] = []
        fetched: dict[ray.ObjectRef, Any] = {}
        last = time.monotonic()
        for method, arguments in calls:
            replies.append(self._call_with(method, arguments, fetched))
            if time.monotonic() - last > _TOGETHER_S:
                yield packed(replies)
                replies, last = [], time.monotonic()
        if replies:
            yield packed(replies)

    def _call_with(self, method: str, arguments: tuple[Any, ...], fetched: dict[ray.ObjectRef, Any]) -> Any:
        values = list(arguments)
        try:
            for place, argument in enumerate(arguments):
                if isinstance(argument, ray.ObjectRef):
                    if argument not in fetched:
                        fetched[argument] = ray.get(argument)
                    values[place] = fetched[argument]
        except Exception as error:  # its owner, or the node that held it, is gone
            return Failure.of(error, self._rank)
        return self._reply(method, values)


class AsyncHost(Host):
    """A worker that serves many calls at once, on one event loop. Calls may start in another order than they were
    made. What fails on the loop with nobody to tell fails every call, the open ones and all later ones."""

    def __init__(self, rank: int, environment: Mapping[str, str], code: Mapping[str, object] = _NO_CODE):
        super().__init__(rank, environment, code)
        self._built = asyncio.Event()
        self._open_calls: set[asyncio.Task[Any]] = set()
        self._lost: Failure | None = None  # the first failure that nobody was told of

    def build(self, worker_class: str, arguments: tuple[Any, ...], master_port: int) -> Failure | None:
        failure = super().build(worker_class, arguments, master_port)
        self._built.set()
        return failure

    def is_built(self) -> bool:
        """False in a process that Ray started in place of one that died."""
        return self._built.is_set()

    @cached_property
    def _is_replacement(self) -> bool:
        """Ray started this process in place of one that died: somebody builds it who has seen that, if anybody."""
        with warnings.catch_warnings():
            # Ray 2.60's own property goes through an accessor that Ray has deprecated.
            warnings.simplefilter("ignore", DeprecationWarning)
            return bool(ray.get_runtime_context().was_current_actor_reconstructed)

    async def call(self, method: str, *arguments: Any) -> Any:
        return packed(await self._answer(method, arguments))

    async def call_split(  # pyright: ignore[reportIncompatibleMethodOverride]  # Ray awaits it
        self, method: str, num_values: int, *arguments: Any
    ) -> tuple[Any, ...]:
        return self._apart(method, await self._answer(method, arguments), num_values)

    async def _answer(self, method: str, arguments: Sequence[Any]) -> Any:
        if not self._built.is_set() and self._is_replacement:
            return Failure(self._rank, "the process that replaced it is not set up yet", died=True)
        await self._built.wait()
        if (failure := self._build_failure or self._lost) is not None:
            return failure
        task = asyncio.current_task()
        assert task is not None
        task.get_loop().set_exception_handler(self._handle_exception)
        self._open_calls.add(task)
        try:
            reply = getattr(self._worker, method)(*arguments)
            return await reply if inspect.isawaitable(reply) else reply
        except BaseException as error:
            return self._lost or Failure.of(error, self._rank)
        finally:
            self._open_calls.discard(task)

    def _handle_exception(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = lost_failure(context)
        if error is None or "task" not in context:  # an engine's own callbacks are its own affair
            loop.default_exception_handler(context)
        elif self._lost is None:
            self._lost = Failure.of(error, self._rank)
            for task in self._open_calls:
                task.cancel()
