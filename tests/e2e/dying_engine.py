"""The engine `hf_infer`, whose process is killed at moments that files name."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from roll.configs.strategies.table import STRATEGIES
from roll.distributed.strategy.base import State
from roll.distributed.strategy.hf.generate import HfGenerateStrategy
from roll.distributed.weights.bucket import BucketSource
from roll.types.rollout import Answered, Generation, GenerationRequest

DEATHS = "TEST_DEATHS"  # the variable with the folder of the files
SPEC = replace(STRATEGIES["hf_infer"], name="dying", classes={"generate": "tests.e2e.dying_engine:DyingEngine"})


class DyingEngine(HfGenerateStrategy):
    """Dies once in a method for each file `<method>-<version of its weights>`, which it removes before. In `generate`
    it dies with the first answer, when others are under way, and in `start` after all the other deaths."""

    async def start(self) -> None:
        if len(os.listdir(os.environ[DEATHS])) == 1:
            self._die_of("start")
        await super().start()

    async def generate(self, request: GenerationRequest, answered: Answered | None = None) -> list[Generation]:
        def told(number: int, generation: Generation) -> None:
            self._die_of("generate")
            if answered is not None:
                answered(number, generation)

        return await super().generate(request, told)

    async def abort(self, request_ids: Sequence[str] | None = None) -> None:
        self._die_of("abort")
        await super().abort(request_ids)

    async def begin_weight_update(self, whole: bool = True) -> None:
        self._die_of("begin")
        await super().begin_weight_update(whole)

    async def import_weights(self, source: BucketSource) -> None:
        self._die_of("import")
        await super().import_weights(source)

    async def finish_weight_update(self, version: int) -> None:
        self._die_of("finish")
        await super().finish_weight_update(version)

    def offload_states(self, states: frozenset[State]) -> None:
        self._die_of("offload")
        super().offload_states(states)

    def load_states(self, states: frozenset[State]) -> None:
        self._die_of("load")
        super().load_states(states)

    def _die_of(self, method: str) -> None:
        file = Path(os.environ[DEATHS]) / f"{method}-{self.policy_version}"
        if file.exists():
            file.unlink()
            os.kill(os.getpid(), signal.SIGKILL)
