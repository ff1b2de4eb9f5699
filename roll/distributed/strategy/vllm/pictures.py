"""Pictures for vLLM: engine arguments, their checks, and prompts that show some. Imports neither torch nor vLLM."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from roll.configs.problems import Problem
from roll.configs.tables.vision import VisionModel
from roll.datasets.pictures.expansion import shorten
from roll.errors import StrategyError
from roll.types.rollout import GenerationRequest

if TYPE_CHECKING:
    from vllm.inputs import EngineInput
    from vllm.v1.engine.async_llm import AsyncLLM

LIMITS, KWARGS, CACHE = "limit_mm_per_prompt", "mm_processor_kwargs", "mm_processor_cache_gb"
OLD_CACHE = "disable_mm_preprocessor_cache"  # vLLM's name until 0.8, in YAMLs of ROLL and verl
_SIZE_KEYS = ("size", "min_pixels", "max_pixels")
_CPU_CACHE_GB, _GPU_CACHE_GB = 0.1, 0.5  # of processed pictures, in two processes; vLLM's own default is 4
_NEVER: Mapping[str, int] = {"image": 0, "video": 0}
_logger = logging.getLogger(__name__)


def with_new_names(settings: Mapping[str, Any]) -> dict[str, Any]:
    """`strategy_config` without the name of older engines."""
    renamed = {key: value for key, value in settings.items() if key != OLD_CACHE}
    if settings.get(OLD_CACHE) is True:
        _logger.info("%s: true is read as %s: 0", OLD_CACHE, CACHE)
        renamed[CACHE] = 0
    return renamed


def picture_arguments(
    settings: Mapping[str, Any], vision: VisionModel | None, shows_pictures: bool, on_cpu: bool
) -> dict[str, Any]:
    """Engine arguments of a model that sees, with the user's `settings` in them.

    In a run that shows no picture vLLM does not load the tower. In one that shows some its processor gets limits under
    which it resizes none: pictures have the model's size already, and the trainer's are resized by no other hand.
    """
    if vision is None:
        return {}
    limits = settings.get(LIMITS) or {}
    if not shows_pictures:
        return {LIMITS: {**_NEVER, **limits}}
    area = vision.sizes.factor**2 * vision.facts.frames_in_limits
    return {
        LIMITS: {"video": 0, **limits},
        CACHE: settings.get(CACHE, _CPU_CACHE_GB if on_cpu else _GPU_CACHE_GB),
        KWARGS: {
            **(settings.get(KWARGS) or {}),
            "size": {"shortest_edge": area, "longest_edge": vision.sizes.most_tokens * area},
        },
    }


def picture_problems(at: str, settings: Mapping[str, Any]) -> Iterator[Problem]:
    """Sizes of pictures that only the engine would know of, and values of the older name."""
    kwargs = settings.get(KWARGS)
    nested = kwargs.get("images_kwargs") if isinstance(kwargs, Mapping) else None
    for path, part in ((f"{at}.{KWARGS}", kwargs), (f"{at}.{KWARGS}.images_kwargs", nested)):
        for key in _SIZE_KEYS:
            if isinstance(part, Mapping) and key in part:
                yield Problem(
                    f"{path}.{key} cannot be set: trainers would see pictures of another size. Set "
                    "data_args.image_min_pixels and data_args.image_max_pixels, which all roles read.",
                    (f"{path}.{key}",),
                )
    if (old := settings.get(OLD_CACHE)) is None:
        return
    if not isinstance(old, bool):
        yield Problem(f"{at}.{OLD_CACHE}: {old!r} must be true or false.", (f"{at}.{OLD_CACHE}",))
    elif old and settings.get(CACHE):
        yield Problem(
            f"{at}.{OLD_CACHE} is true, and {CACHE} is {settings[CACHE]}. Remove one of them.",
            (f"{at}.{OLD_CACHE}", f"{at}.{CACHE}"),
        )


def check_number_of_pictures(request: GenerationRequest, engine: AsyncLLM) -> None:
    """Raises StrategyError for more pictures than the engine takes in one prompt."""
    if not request.media:
        return
    config = engine.model_config.multimodal_config
    most = 0 if config is None else config.get_limit_per_prompt("image")
    if len(request.media) > most:
        raise StrategyError(
            f"request {request.request_id} shows {len(request.media)} pictures, and the engine takes {most} in a "
            f"prompt. Raise {LIMITS}: {{image: {most}}} in strategy_config."
        )


async def picture_prompt(engine: AsyncLLM, request: GenerationRequest, cache_salt: str | None) -> EngineInput:
    """The prompt of a request that shows pictures, as vLLM's renderer makes it: vLLM takes one id for each picture, and
    puts in as many as it has tokens. Their digests are their names in its caches.

    Raises StrategyError where that is not the prompt that the trainer has.
    """
    from PIL import Image
    from vllm.inputs import TokensPrompt

    pictures = [shown.picture for shown in request.media]
    prompt = TokensPrompt(
        prompt_token_ids=shorten(request.prompt_ids, request.media).tolist(),
        multi_modal_data={"image": [Image.fromarray(picture.array) for picture in pictures]},
        multi_modal_uuids={"image": [picture.digest for picture in pictures]},
    )
    if cache_salt is not None:
        prompt["cache_salt"] = cache_salt
    rendered: Any
    try:
        (rendered,) = await engine.renderer.render_cmpl_async([prompt])
    except AssertionError:  # vLLM 0.32 forgot the picture between two looks at its cache: now it knows that it has
        (rendered,) = await engine.renderer.render_cmpl_async([prompt])
    ids: list[int] = rendered["prompt_token_ids"]
    if not np.array_equal(ids, request.prompt_ids):
        raise StrategyError(
            f"request {request.request_id}: vllm expanded its {len(pictures)} pictures to a prompt of {len(ids)} "
            f"tokens, and the trainer's has {len(request.prompt_ids)}. Their processor files differ: compare "
            "preprocessor_config.json and config.json beside the models of both roles."
        )
    return rendered
