"""The experts that SGLang tells, in the form that it tells them in."""

import base64

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from roll.distributed.strategy.sglang.generate import ReportedRoutes, to_generation
from roll.errors import StrategyError
from roll.models.routers import mixture_layers
from tests.unit.models.test_router_replay import MODELS, SHAPE

TOLD = ReportedRoutes(num_layers=3, top_k=2, mixtures=(0, 2))


def meta(numbers: np.ndarray) -> dict[str, str]:
    return {"routed_experts": base64.b64encode(numbers.astype(np.int32).tobytes()).decode()}


def test_routes_are_of_layers_with_routers_and_of_whole_answers() -> None:
    numbers = np.arange(4 * 3 * 2).reshape(4, 3, 2)
    routes = TOLD.read(meta(numbers))
    assert routes is not None and routes.dtype == np.int16
    assert np.array_equal(routes, numbers[:, [0, 2]])
    assert TOLD.read({}) is None
    numbers = np.zeros((4, 3, 2))
    numbers[1, 1] = -1  # of a layer that has none
    assert TOLD.read(meta(numbers)) is not None
    numbers[1, 2, 0] = -1
    with pytest.raises(StrategyError, match="experts of all tokens"):
        TOLD.read(meta(numbers))
    config = AutoConfig.for_model("qwen3_moe", **SHAPE | MODELS["qwen3_moe"] | {"mlp_only_layers": [0]})
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    assert mixture_layers(model) == (1,)
    answer = {"output_ids": [], "meta_info": {"finish_reason": {"type": "stop"}}}
    with pytest.raises(StrategyError, match="does not report which experts processed the tokens"):
        to_generation(answer, was_aborted=False, route_reader=TOLD)
    answer["meta_info"] = {"finish_reason": {"type": "abort"}}
    assert to_generation(answer, was_aborted=True, route_reader=TOLD).routes is None
