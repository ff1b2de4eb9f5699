"""Whether an engine lives: it is asked now and then, and whoever waits for one that died is told."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from roll.distributed.strategy.base import GenerateStrategy
from roll.errors import EngineDied, describe
from roll.utils.background import contained, start

T = TypeVar("T")
_LONGEST_WATCH_INTERVAL_S = 30.0


class EngineLife:
    """Belongs to the event loop of the engine's process. `on_death` is called when the engine has died."""

    def __init__(self, strategy: GenerateStrategy, role: str, patience_s: float, on_death: Callable[[], None]):
        self._strategy, self._role, self._patience_s = strategy, role, patience_s
        self._on_death = on_death
        self._death: str | None = None
        self._is_dead = asyncio.Event()

    @property
    def death(self) -> str | None:
        """Its cause, once it has died."""
        return self._death

    async def wait_death(self) -> None:
        await self._is_dead.wait()

    async def check(self) -> None:
        """Raises EngineDied if the engine can serve no more requests."""
        if self._death is not None:
            raise EngineDied(self._death)
        await self._strategy.check_health()

    def died(self, cause: str) -> None:
        """The first cause stands."""
        self._death = self._death or cause
        self._is_dead.set()
        self._on_death()

    async def watch(self) -> None:
        """Returns when the engine is gone."""
        while self._death is None:
            await asyncio.sleep(min(self._patience_s / 2, _LONGEST_WATCH_INTERVAL_S))
            try:
                await asyncio.wait_for(contained(self._strategy.heartbeat()), self._patience_s)
            except TimeoutError:
                self.died(
                    f"the engine hangs: no sign of life for {self._patience_s / 60:g} min (backend_timeout of "
                    f"{self._role}); its log may say why"
                )
                await asyncio.to_thread(self._strategy.shutdown)  # or it would keep its devices
            except Exception as error:
                self.died(describe(error))

    async def while_alive(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of `work`. Raises EngineDied as soon as the engine is given up: one that hangs never answers."""
        death = start(self._is_dead.wait())
        outcome = asyncio.gather(start(work), return_exceptions=True)  # else what comes too late would be logged
        try:
            await asyncio.wait((outcome, death), return_when=asyncio.FIRST_COMPLETED)
            if self._death is not None:
                raise EngineDied(self._death)
            (result,) = outcome.result()
        finally:
            outcome.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
            outcome.cancel()
            death.cancel()
        if isinstance(result, EngineDied):
            self.died(str(result))
        if isinstance(result, BaseException):
            raise result
        return result
