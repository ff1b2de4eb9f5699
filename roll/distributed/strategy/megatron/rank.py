"""One rank of a role that runs on Megatron: its place in the parallel groups, and its part of the model."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from roll.configs.sections.cluster import WorkerConfig
from roll.configs.strategies.megatron_checks import cpu_problems, megatron_problems, missing_packages, ranks_problems
from roll.configs.strategies.megatron_config import MegatronSettings, split_settings
from roll.distributed.strategy.base import RankContext
from roll.errors import StrategyError
from roll.platforms.cpu_stand_ins import megatron as megatron_cpu
from roll.platforms.stores import bind_stores
from roll.platforms.table import platform_of
from roll.utils.network import LOOPBACK


class MegatronRank:
    """Starts this rank's process groups. Megatron keeps them in module globals, so there is one such rank in a
    process."""

    def __init__(self, role: WorkerConfig, context: RankContext):
        self.role, self.context = role, context
        self.platform = platform_of(context.device)
        found = list(megatron_problems(f"{context.role}.strategy_args.strategy_config", role.strategy_config))
        if found:
            raise StrategyError(" ".join(problem.text for problem in found))
        if role.model_args.dtype == "fp16":
            raise StrategyError(
                "model_args.dtype: fp16 is not supported by the megatron strategies (its range is too small for "
                "log-probs without loss scaling). Use bf16, or fp32."
            )
        self.settings: MegatronSettings
        self.passed_on: dict[str, Any]
        self.settings, self.passed_on = split_settings(role.strategy_config)
        self._check_world()
        self._started = False

    @property
    def gives_values(self) -> bool:
        """True for a critic, and for a reward model that learns: its numbers are the values of last tokens."""
        return self.context.head != "lm"

    @property
    def device(self) -> torch.device:
        return self.context.device

    @property
    def model_parallel_size(self) -> int:
        s = self.settings
        return s.tensor_model_parallel_size * s.pipeline_model_parallel_size * s.context_parallel_size

    @property
    def dp_size(self) -> int:
        return self.context.world_size // self.model_parallel_size

    @property
    def dp_rank(self) -> int:
        """Ranks count through tensor, context, data, pipeline, in this order, as Megatron orders them."""
        inner = self.settings.tensor_model_parallel_size * self.settings.context_parallel_size
        return self.context.rank // inner % self.dp_size

    def start(self) -> None:
        """Joins the role's process group and divides it. A rank that does not come is an error after backend_timeout,
        not a hang."""
        self.platform.set_device(self.device)
        megatron_cpu.install()
        from megatron.core import parallel_state
        from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed

        timeout = timedelta(minutes=self.role.backend_timeout)
        if not dist.is_initialized():
            os.environ.setdefault("MASTER_ADDR", LOOPBACK)
            bind_stores()
            dist.init_process_group(self.platform.communication_backend, timeout=timeout)
        if parallel_state.model_parallel_is_initialized():
            raise StrategyError("this process runs a megatron strategy already; each needs a process of its own")
        s = self.settings
        parallel_state.initialize_model_parallel(
            s.tensor_model_parallel_size,
            s.pipeline_model_parallel_size,
            self._virtual_stages,
            context_parallel_size=s.context_parallel_size,
            expert_model_parallel_size=s.expert_model_parallel_size,
            expert_tensor_parallel_size=s.expert_tensor_size,
            distributed_timeout_minutes=self.role.backend_timeout,
        )
        self._started = True
        torch.manual_seed(self.context.seed)
        model_parallel_cuda_manual_seed(self.context.seed, force_reset_rng=True)

    def draw_apart(self) -> None:
        """Makes ranks draw different random numbers for dropout, except tensor-parallel ranks that hold the same
        inputs. Called once all weights exist, since all ranks must draw those alike."""
        from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed

        size = self.settings.tensor_model_parallel_size
        seed = self.context.seed + self.context.rank // size * size  # the tracker adds the tensor-parallel rank
        torch.manual_seed(seed)
        model_parallel_cuda_manual_seed(seed, force_reset_rng=True)

    def all_reduce_data(self, values: Sequence[float], op: Any = dist.ReduceOp.SUM) -> list[float]:
        """Elementwise over the data-parallel ranks, in float64."""
        from megatron.core import parallel_state

        if self.dp_size == 1:
            return [float(value) for value in values]
        total = torch.tensor(list(values), dtype=torch.float64, device=self.device)
        dist.all_reduce(total, op, group=parallel_state.get_data_parallel_group())
        return total.tolist()

    def check_head(self, *, values: bool) -> None:
        """StrategyError when a critic is asked for log-probs, or a policy for values."""
        if values and not self.gives_values:
            raise StrategyError(f"{self.context.role} has no value head; values come from the critic role")
        if self.gives_values and not values:
            raise StrategyError(f"{self.context.role} has a value head and gives no log-probs")

    def stop(self) -> None:
        if self._started:
            from megatron.core import parallel_state

            parallel_state.destroy_model_parallel()
            self._started = False
        self.platform.empty_cache()

    @property
    def _virtual_stages(self) -> int | None:
        stages = self.settings.virtual_pipeline_model_parallel_size
        return stages if stages is not None and stages > 1 else None

    def _check_world(self) -> None:
        s, ranks = self.settings, self.context.world_size
        if ranks % self.model_parallel_size:
            raise StrategyError(
                f"{self.context.role}: {ranks} ranks do not divide by tensor x pipeline x context parallel = "
                f"{self.model_parallel_size}"
            )
        at = f"{self.context.role}.strategy_args.strategy_config"
        found = [*ranks_problems(at, s, ranks), *missing_packages(at, s)]
        if self.device.type == "cpu":
            found += cpu_problems(at, s)
        if found:
            raise StrategyError(" ".join(problem.text for problem in found))
