"""Imported once by the server that ranks are forked from, so that each of them need not import megatron-core (5 s)
itself."""

from roll.platforms.cpu_stand_ins import megatron as megatron_cpu

megatron_cpu.install()

import roll.distributed.strategy.megatron.checkpoint  # noqa: E402
import roll.distributed.strategy.megatron.optimizer  # noqa: E402, F401
