"""Settings of Megatron that several tests share."""

from typing import Any

TP2: dict[str, Any] = {"tensor_model_parallel_size": 2}
PP2: dict[str, Any] = {"pipeline_model_parallel_size": 2}
VPP2: dict[str, Any] = PP2 | {"virtual_pipeline_model_parallel_size": 2}
CP2: dict[str, Any] = {"context_parallel_size": 2}
EP2: dict[str, Any] = {"expert_model_parallel_size": 2}
SP: dict[str, Any] = {"sequence_parallel": True}
TP2_SP = TP2 | SP
SHARED: dict[str, Any] = {"use_distributed_optimizer": True}
BUCKETS: dict[str, Any] = {"overlap_grad_reduce": True, "bucket_size": 1000}
RECOMPUTE: dict[str, Any] = {"recompute_granularity": "full"}
BF16: dict[str, Any] = {"dtype": "bf16"}
