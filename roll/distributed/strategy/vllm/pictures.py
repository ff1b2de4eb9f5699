"""Pictures for vLLM: engine arguments, their checks, and prompts that show some. Imports neither torch nor vLLM."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from roll.configs.problems import Problem
from roll.configs.tables.sight import SquareSizes, VisionModel
from roll.datasets.pictures.expansion import shorten
from roll.distributed.strategy.vllm.args import CACHE, KWARGS, OLD_CACHE
from roll.errors import StrategyError
from roll.types.rollout import GenerationRequest

if TYPE_CHECKING:
    from vllm.inputs import EngineInput
    from vllm.v1.engine.async_llm import AsyncLLM

LIMITS = "limit_mm_per_prompt"
_NESTED = "images_kwargs"
_SAFE_KEYS = (  # of what processes pictures, and of videos and sounds, which requests never show
    *("use_fast", "device", "backend", "videos_kwargs", "audio_kwargs", "fps", "num_frames", "min_frames"),
    *("max_frames", "do_sample_frames", "use_audio_in_video"),
)
_CPU_CACHE_GB, _GPU_CACHE_GB = 0.1, 0.5  # of processed pictures, in two processes; vLLM's own default is 4
_NEVER: Mapping[str, int] = {"image": 0, "video": 0}


def picture_arguments(
    settings: Mapping[str, Any], vision: VisionModel, shows_pictures: bool, on_cpu: bool
) -> dict[str, Any]:
    """Engine arguments of a model that sees, with the user's `settings` in them.

    In a run that shows no picture vLLM does not load the tower. In one that shows some its processor gets limits under
    which it resizes none: pictures have the model's size already, and the trainer's are resized by no other hand.
    """
    limits = settings.get(LIMITS) or {}
    if not shows_pictures:
        return {LIMITS: {**_NEVER, **limits}}
    area = vision.sizes.factor**2 * vision.facts.frames_in_limits
    opened: dict[str, Any] = {"size": {"shortest_edge": area, "longest_edge": vision.sizes.most_tokens * area}}
    if isinstance(vision.sizes, SquareSizes):  # each square is a picture for vLLM
        opened = {"do_pan_and_scan": False} if vision.facts.looks_both_ways else {"crop_to_patches": False}
        if type(most := limits.get("image")) is int:
            limits = {**limits, "image": most * vision.sizes.most_squares}
    return {
        LIMITS: {"video": 0, **limits},
        CACHE: settings.get(CACHE, _CPU_CACHE_GB if on_cpu else _GPU_CACHE_GB),
        KWARGS: {**(settings.get(KWARGS) or {}), **opened},
    }


def picture_problems(at: str, settings: Mapping[str, Any]) -> Iterator[Problem]:
    """Sizes and colours of pictures that only the engine would know of, and values of the older name."""
    kwargs = settings.get(KWARGS)
    nested = kwargs.get(_NESTED) if isinstance(kwargs, Mapping) else None
    for path, part in ((f"{at}.{KWARGS}", kwargs), (f"{at}.{KWARGS}.{_NESTED}", nested)):
        for key in part if isinstance(part, Mapping) else ():
            if key not in _SAFE_KEYS and not (key == _NESTED and part is kwargs):
                yield Problem(
                    f"{path}.{key} cannot be set: trainers would see other pictures. Sizes are set by "
                    "data_args.image_min_pixels and image_max_pixels, the rest in preprocessor_config.json beside the "
                    "model, which all roles read.",
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


def check_number_of_pictures(engine: AsyncLLM, request: GenerationRequest, vision: VisionModel | None) -> None:
    """Raises StrategyError for more pictures than the engine takes in one prompt."""
    if not request.media:
        return
    config = engine.model_config.multimodal_config
    most = 0 if config is None else config.get_limit_per_prompt("image")
    if vision is not None and isinstance(vision.sizes, SquareSizes):
        most //= vision.sizes.most_squares
    if len(request.media) > most:
        raise StrategyError(
            f"request {request.request_id} shows {len(request.media)} pictures, and the engine takes {most} in a "
            f"prompt. Raise {LIMITS}: {{image: {most}}} in strategy_config."
        )


async def picture_prompt(
    engine: AsyncLLM, request: GenerationRequest, vision: VisionModel, cache_salt: str | None
) -> EngineInput:
    """The prompt of a request that shows pictures, as vLLM's renderer makes it: vLLM takes one id for each picture, and
    puts in as many as it has tokens. Digests of pictures are their names in its caches.

    Raises StrategyError where that is not the prompt that the trainer has.
    """
    if isinstance(vision.sizes, SquareSizes):
        return await _prompt_of_squares(engine, request, vision, vision.sizes, cache_salt)
    pictures = [shown.picture for shown in request.media]
    ids, arrays = shorten(request.prompt_ids, request.media).tolist(), [picture.array for picture in pictures]
    rendered = await _rendered(engine, ids, arrays, [picture.digest for picture in pictures], cache_salt)
    if not np.array_equal(rendered["prompt_token_ids"], request.prompt_ids):
        made, wanted = len(rendered["prompt_token_ids"]), len(request.prompt_ids)
        raise _other_tokens(request, f"a prompt of {made} tokens, and the trainer's has {wanted}")
    return rendered


async def _prompt_of_squares(
    engine: AsyncLLM, request: GenerationRequest, vision: VisionModel, sizes: SquareSizes, cache_salt: str | None
) -> EngineInput:
    """The same of a family that cuts pictures into squares. vLLM gets each square as a picture of its own, so that it
    cuts none, and the prompt is the trainer's: processors of these families also write text around a picture."""
    from vllm.multimodal.inputs import PlaceholderRange

    from roll.models.vision.inputs import cut

    ids, arrays, names, places = list[int](), list[np.ndarray](), list[str](), list[Any]()
    for shown in request.media:
        for number, square in enumerate(cut(shown.picture, sizes.factor)):
            ids += [vision.template_token, *([vision.end_token] if vision.end_token >= 0 else [])]
            arrays.append(square.permute(1, 2, 0).contiguous().numpy())
            names.append(f"{shown.picture.digest}/{number}")
            places.append(PlaceholderRange(shown.start + number * sizes.tokens, sizes.tokens))
    rendered = await _rendered(engine, ids, arrays, names, cache_salt)
    made = sum(place.get_num_embeds() for place in rendered["mm_placeholders"]["image"])
    if made != (wanted := sum(shown.length for shown in request.media)):
        raise _other_tokens(request, f"{made} tokens, and the trainer has {wanted}")
    rendered["prompt_token_ids"], rendered["mm_placeholders"] = request.prompt_ids.tolist(), {"image": places}
    return rendered


async def _rendered(
    engine: AsyncLLM, ids: list[int], pictures: Sequence[np.ndarray], names: list[str], cache_salt: str | None
) -> Any:
    """Return what vLLM makes of a prompt with one id for each picture."""
    from PIL import Image
    from vllm.inputs import TokensPrompt

    prompt = TokensPrompt(
        prompt_token_ids=ids,
        multi_modal_data={"image": [Image.fromarray(picture) for picture in pictures]},
        multi_modal_uuids={"image": [*names]},
    )
    if cache_salt is not None:
        prompt["cache_salt"] = cache_salt
    try:
        (rendered,) = await engine.renderer.render_cmpl_async([prompt])
    except AssertionError:  # vLLM 0.32 forgot the picture between two looks at its cache: now it knows that it has
        (rendered,) = await engine.renderer.render_cmpl_async([prompt])
    return rendered


def _other_tokens(request: GenerationRequest, what: str) -> StrategyError:
    return StrategyError(
        f"request {request.request_id}: vllm expanded its {len(request.media)} pictures to {what}. Their processor "
        "files differ: compare preprocessor_config.json and config.json beside the models of both roles."
    )
