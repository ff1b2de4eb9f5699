"""What vLLM is started with, and what is refused before it is."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from roll.configs.sections.cluster import WorkerConfig
from roll.configs.strategies.choice import Choice
from roll.configs.tables.roles import ROLES
from roll.configs.tables.sight import VisionModel
from roll.configs.tables.vision import vision_model
from roll.distributed.strategy.vllm import args as vllm_args
from roll.distributed.strategy.vllm.args import argument_problems, engine_arguments, worker_environment
from tests.helpers.cases import cases


def make_role(num_gpus_per_worker: int = 1, dtype: str = "bf16", **strategy_config: Any) -> WorkerConfig:
    return WorkerConfig.model_validate(
        {
            "model_args": {"model_name_or_path": "/models/m", "dtype": dtype},
            "strategy_args": {"strategy_name": "vllm", "strategy_config": strategy_config},
            "num_gpus_per_worker": num_gpus_per_worker,
        }
    )


def problems(**options: Any) -> list[str]:
    return [problem.text for problem in argument_problems("actor_infer", make_role(**options))]


def test_tensor_parallel_size_must_agree_with_the_devices_of_a_worker() -> None:
    (text,) = problems(num_gpus_per_worker=4, tensor_parallel_size=2)
    assert "num_gpus_per_worker is 4" in text
    assert problems(num_gpus_per_worker=2, tensor_parallel_size=2) == []


def test_defaults_differ_on_a_cpu_and_the_user_has_the_last_word() -> None:
    on_gpu = engine_arguments(make_role(num_gpus_per_worker=2, load_format="dummy"), on_cpu=False, seed=3)
    assert on_gpu["tensor_parallel_size"] == 2
    assert on_gpu["distributed_executor_backend"] == "mp"
    assert on_gpu["dtype"] == "bfloat16"
    assert (on_gpu["seed"], on_gpu["load_format"], on_gpu["enable_sleep_mode"]) == (3, "dummy", True)
    assert not {"enforce_eager", "kv_cache_memory_bytes"} & on_gpu.keys()

    on_cpu = engine_arguments(make_role(dtype="fp32", kv_cache_memory_bytes=1 << 20, max_num_seqs=None), True, seed=3)
    assert on_cpu["enforce_eager"] is True
    assert on_cpu["kv_cache_memory_bytes"] == 1 << 20
    assert on_cpu["max_num_seqs"] == 256  # null means the default
    assert on_cpu["dtype"] == "float32"
    assert "enable_sleep_mode" not in on_cpu
    assert on_cpu["logprobs_mode"] == on_gpu["logprobs_mode"] == "processed_logprobs"


@pytest.mark.parametrize(
    ("shares_devices", "given", "expected"),
    [(True, {}, 0.6), (True, {"gpu_memory_utilization": 0.8}, 0.8), (False, {}, None)],
)
def test_an_engine_on_shared_gpus_leaves_room_unless_told_otherwise(
    shares_devices: bool, given: dict[str, Any], expected: float | None
) -> None:
    arguments = engine_arguments(make_role(**given), on_cpu=False, seed=3, shares_devices=shares_devices)
    assert arguments.get("gpu_memory_utilization") == expected


def test_environments_and_shares_of_engines_on_a_cpu() -> None:
    """There the key is a share of the machine's memory."""
    assert "gpu_memory_utilization" not in engine_arguments(make_role(), on_cpu=True, seed=3, shares_devices=True)
    common, on_cpu = worker_environment(False), worker_environment(True)
    assert common.items() <= on_cpu.items()
    assert on_cpu["VLLM_CPU_OMP_THREADS_BIND"] == "nobind"
    assert "TORCHDYNAMO_DISABLE" not in common


def test_phimoe_by_the_name_that_transformers_writes_is_refused() -> None:
    choice = Choice(ROLES["actor_infer"], make_role())
    model = {"model_type": "phimoe", "architectures": ["PhimoeForCausalLM"]}
    (problem,) = vllm_args.model_problems(choice, model)
    assert "vLLM knows these models as PhiMoEForCausalLM" in problem.text
    assert problem.keys[0] == "actor_infer.strategy_args.strategy_name"
    assert [*vllm_args.model_problems(choice, model | {"architectures": ["PhiMoEForCausalLM"]})] == []


def test_importing_the_module_imports_neither_torch_nor_vllm() -> None:
    source = "import sys, roll.distributed.strategy.vllm.args; print(sorted({'torch', 'vllm'} & set(sys.modules)))"
    root = Path(__file__).parents[4]
    printed = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True, cwd=root)
    assert printed.stdout.strip() == "[]"


@cases("given, sizes")
def test_an_engine_on_a_gpu_samples_all_answers_that_it_is_given_at_once(
    given: dict[str, Any], sizes: list[int | None]
) -> None:
    """An AsyncLLM that no server starts has 128 sequences and prefills 2,048 tokens otherwise, on any GPU."""
    arguments = engine_arguments(make_role(**given), on_cpu=False, seed=0, most_answers=512)
    assert [arguments["max_num_seqs"], arguments.get("max_num_batched_tokens")] == sizes


@pytest.mark.parametrize(("most_answers", "size"), [(64, 256), (512, 512)])
def test_an_engine_on_a_cpu_has_room_for_all_answers(most_answers: int, size: int) -> None:
    arguments = engine_arguments(make_role(), on_cpu=True, seed=0, most_answers=most_answers)
    assert arguments["max_num_seqs"] == size and "max_num_batched_tokens" not in arguments


def sees(**processor: Any) -> VisionModel:
    found = vision_model({"model_type": "qwen2_5_vl", "vision_config": {}}, processor)
    assert found is not None
    return found


def test_a_model_that_sees_is_served_without_its_tower_where_no_row_shows_a_picture() -> None:
    arguments = engine_arguments(make_role(), on_cpu=False, seed=0, vision=sees())
    assert arguments["limit_mm_per_prompt"] == {"image": 0, "video": 0}
    assert not {"mm_processor_kwargs", "mm_processor_cache_gb"} & arguments.keys()
    given = make_role(limit_mm_per_prompt={"image": 2})
    assert engine_arguments(given, False, 0, vision=sees())["limit_mm_per_prompt"] == {"image": 2, "video": 0}
    assert "limit_mm_per_prompt" not in engine_arguments(make_role(), on_cpu=False, seed=0, shows_pictures=True)


def test_the_engines_processor_resizes_no_picture_of_a_size_that_the_model_takes() -> None:
    vision = sees(min_pixels=56 * 56, max_pixels=112 * 112)
    arguments = engine_arguments(make_role(), on_cpu=True, seed=0, vision=vision, shows_pictures=True)
    assert arguments["limit_mm_per_prompt"] == {"video": 0}
    size = arguments["mm_processor_kwargs"]["size"]
    assert size == {"shortest_edge": 28 * 28, "longest_edge": vision.sizes.most_tokens * 28 * 28}
    for height, width in ((1, 1), (30, 4000), (90, 70), (3000, 2000), (56, 57)):
        rows, columns = vision.sizes.size(height, width)
        assert size["shortest_edge"] <= rows * columns <= size["longest_edge"]


def test_the_user_has_the_last_word_on_what_is_no_size_of_pictures() -> None:
    given = {
        "limit_mm_per_prompt": {"image": 4},
        "mm_processor_cache_gb": 2,
        "mm_processor_kwargs": {"images_kwargs": {"device": "cpu"}},
    }
    arguments = engine_arguments(make_role(**given), False, 0, vision=sees(), shows_pictures=True)
    assert arguments["limit_mm_per_prompt"] == {"image": 4, "video": 0}
    assert arguments["mm_processor_cache_gb"] == 2
    assert arguments["mm_processor_kwargs"].keys() == {"images_kwargs", "size"}


def test_squares_of_a_picture_are_pictures_for_the_engine_which_cuts_none() -> None:
    def arguments(kind: str, **strategy: Any) -> dict[str, Any]:
        vision = vision_model({"model_type": kind, "vision_config": {"patch_size": 14}}, {})
        return engine_arguments(make_role(**strategy), False, 0, vision=vision, shows_pictures=True)

    internvl, gemma = (arguments(kind, limit_mm_per_prompt={"image": 2}) for kind in ("internvl", "gemma3"))
    assert internvl["limit_mm_per_prompt"] == {"image": 2 * 13, "video": 0}
    assert gemma["limit_mm_per_prompt"] == {"image": 2, "video": 0}
    assert internvl["mm_processor_kwargs"] == {"crop_to_patches": False}
    assert gemma["mm_processor_kwargs"] == {"do_pan_and_scan": False}
    assert arguments("internvl")["limit_mm_per_prompt"] == {"video": 0}


@pytest.mark.parametrize(("old", "room"), [(True, 0), (False, 0.5)])
def test_the_old_name_of_the_processors_cache_is_read(old: bool, room: float) -> None:
    role = make_role(disable_mm_preprocessor_cache=old)
    arguments = engine_arguments(role, False, 0, vision=sees(), shows_pictures=True)
    assert arguments["mm_processor_cache_gb"] == room
    assert "disable_mm_preprocessor_cache" not in arguments
    assert problems(disable_mm_preprocessor_cache=old) == []


@cases("given, message")
def test_settings_of_pictures_that_would_disagree_are_refused(given: dict[str, Any], message: str) -> None:
    (text,) = problems(**given)
    assert text.startswith("actor_infer.strategy_args.strategy_config.") and message in text
