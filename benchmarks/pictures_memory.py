"""What pictures cost the driver of a run in memory: tasks are read, and their pictures decoded group by group.

    python benchmarks/pictures_memory.py [--tasks 2000] [--side 600] [--in_flight 64]

Pictures are noise, so that their PNG files are as large as their pixels: 600 x 600 pixels are 1.1 MB. Groups in flight
hold their prompts as a rollout does, and let go of them in the order in which they began. `read` is what the tasks take
themselves; `decoded` is the highest over that while pictures come and go. Both are the driver's own memory (anonymous
pages), without the object store.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections import deque
from pathlib import Path

import numpy as np
import psutil
import ray
from PIL import Image

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples" / "tiny-count"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tiny_vision import build_vision_model, build_vision_tokenizer, save_vision_pretrained

from roll.configs.sections.data import DataArgs
from roll.configs.sections.model import ModelArgs
from roll.datasets.encoding import load_tasks
from roll.datasets.rows import Domain
from roll.distributed.executor.pictures import PictureLoader
from roll.models.vision.files import vision_of
from roll.types.media import Prompt
from roll.types.rollout import Task


def write_rows(folder: Path, count: int, side: int) -> Path:
    random, lines = np.random.default_rng(0), []
    for number in range(count):
        name = folder / f"{number}.png"
        Image.fromarray(random.integers(0, 256, (side, side, 3), dtype=np.uint8)).save(name, compress_level=0)
        lines.append(json.dumps({"prompt": "<image>how many?", "images": [name.name], "ground_truth": "1"}) + "\n")
    rows = folder / "rows.jsonl"
    rows.write_text("".join(lines))
    return rows


def own_megabytes() -> float:
    memory = psutil.Process().memory_info()
    return (memory.rss - memory.shared) / 1e6


async def decode_all(loader: PictureLoader, tasks: list[Task], in_flight: int) -> float:
    """Begin the group of each task, at most so many at once; returns the highest memory on the way, in MB."""
    most, held = own_megabytes(), deque[Prompt](maxlen=in_flight)
    room = asyncio.Semaphore(in_flight)

    async def begin(task: Task) -> None:
        nonlocal most
        async with room:
            held.append(await loader.prompt(task))
            most = max(most, own_megabytes())

    await asyncio.gather(*map(begin, tasks))
    return most


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tasks", type=int, default=2000)
    parser.add_argument("--side", type=int, default=600)
    parser.add_argument("--in_flight", type=int, default=64)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        tokenizer = build_vision_tokenizer()
        save_vision_pretrained(folder / "model", build_vision_model(tokenizer), tokenizer, max_pixels=448 * 448)
        rows = write_rows(folder, options.tasks, options.side)
        vision = vision_of(ModelArgs(model_name_or_path=str(folder / "model")))
        assert vision is not None
        ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
        at_first = own_megabytes()
        args = DataArgs(file_name=(str(rows),))
        tasks = load_tasks(args, "actor_train.data_args", [Domain("any", ())], tokenizer, 512, vision=vision).tasks
        read, began = own_megabytes(), time.perf_counter()
        most = asyncio.run(decode_all(PictureLoader(vision, 512), list(tasks), options.in_flight))
        seconds = time.perf_counter() - began
        ray.shutdown()
    print(
        f"{len(tasks)} tasks with a picture of {options.side} x {options.side}: read {read - at_first:.1f} MB, decoded "
        f"{most - read:.1f} MB more, {seconds:.1f} s"
    )


if __name__ == "__main__":
    main()
