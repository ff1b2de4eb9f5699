"""Pictures on their way: decoded beside the driver, kept in the object store."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from roll.configs.tables.sight import PictureSizes, VisionModel
from roll.datasets.pictures.expansion import expand
from roll.errors import PictureError, WorkerError, describe
from roll.types.media import Picture, PictureSource, Prompt
from roll.types.rollout import Task

AT_ONCE = 4  # pictures that are decoded at once


class PictureLoader:
    """Makes the prompts of tasks that show something. Decoded pictures belong to this process."""

    def __init__(self, model: VisionModel, most_tokens: int | None = None):
        """`most_tokens`: of a prompt; None: any number. Pictures that nobody could measure before are measured here."""
        self._model, self._most_tokens = model, most_tokens
        self._free = asyncio.Semaphore(AT_ONCE)

    async def prompt(self, task: Task) -> Prompt:
        """The prompt as the model sees it. PictureError where a picture cannot be shown, or the prompt is too long."""
        if not task.pictures:
            return Prompt(task.prompt_ids)
        prompt = expand(task.prompt_ids, await self.pictures(task.pictures), self._model)
        if self._most_tokens is not None and len(prompt.ids) > self._most_tokens:
            raise PictureError(
                f"{task.pictures[0].where}: the prompt has {len(prompt.ids)} tokens with its pictures, more than "
                f"prompt_length = {self._most_tokens}; lower image_max_pixels"
            )
        return prompt

    async def pictures(self, sources: Sequence[PictureSource]) -> list[Picture]:
        """The pictures of these sources, each with a handle on its pixels. Raises PictureError."""
        return await asyncio.gather(*(self._picture(source) for source in sources))

    async def _picture(self, source: PictureSource) -> Picture:
        async with self._free:
            here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=True)
            handles: Any = _decoded.options(scheduling_strategy=here).remote(source, self._model.sizes)
            facts, pixels = handles
            try:
                picture: Picture | str = await facts
            except RayError as error:
                raise WorkerError(f"{source.where}: its picture could not be decoded: {describe(error)}") from error
        if isinstance(picture, str):
            raise PictureError(picture)
        return replace(picture, pixels=pixels)


@ray.remote(num_cpus=0, num_returns=2, max_retries=3)
def _decoded(source: PictureSource, sizes: PictureSizes) -> tuple[Picture | str, Any]:
    """The picture without its pixels, and these; or why there is none."""
    from roll.datasets.pictures.decode import decode  # only where a task shows some

    try:
        picture = decode(source, sizes)
    except PictureError as error:
        return str(error), None
    return replace(picture, pixels=None), picture.array
