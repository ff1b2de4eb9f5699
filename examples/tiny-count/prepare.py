"""Make a model that sees but does not look, and pictures to teach it. No download; half a minute on one core.

Pictures are 56 x 56 pixels, four cells of one token each. Two questions about them:
    count   "how many?"      one to four cells are coloured, the others grey -> "1" to "4"
    colour  "which colour?"  all four are coloured, one bears a dark cross   -> "r", "g", "b" or "y"
Whoever does not look is right one time in four. Written under --out:
    model/         tokenizer, processor files and a Qwen-VL model, warmed up on *random* answers of the right kind: it
                   knows what an answer looks like, and has never been told anything about a picture
    pictures/      PNG files; with --blind all of them are grey, so that nothing can be learnt
    train.jsonl    prompt, images, ground_truth, tag
    test.jsonl     the same, of other pictures
    manifest.json  the arguments above files were made with; running again with the same ones does nothing
"""

import argparse
import json
import os
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # a model this small only loses time to a second thread

import numpy as np
import torch
from PIL import Image
from transformers import PreTrainedModel, PreTrainedTokenizerBase

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from tiny_vision import (
    VISION_ARCHITECTURES,
    build_vision_model,
    build_vision_tokenizer,
    save_vision_pretrained,
)

from roll.configs.tables.sight import VisionModel
from roll.configs.tables.vision import vision_model
from roll.models.tokenizer import load_tokenizer
from roll.models.vision.inputs import PictureInputs
from roll.types.media import Picture, Shown

DEFAULT_OUT = Path("output/tiny-count")  # where tiny_count.yaml looks, unless TINY_COUNT_DIR says otherwise
COLOURS = {"r": (220, 40, 40), "g": (40, 180, 60), "b": (50, 80, 220), "y": (230, 200, 40)}
GREY = (128, 128, 128)
ANSWERS = {"count": ("1", "2", "3", "4"), "colour": tuple(COLOURS)}
QUESTIONS = {"count": "how many?", "colour": "which colour?"}
NOISE = 12  # of 255
IGNORED = -100


@dataclass(frozen=True)
class Settings:
    """Everything the written files depend on."""

    arch: str = "qwen2_5_vl"
    seed: int = 0
    steps: int = 40
    batch_size: int = 64
    learning_rate: float = 2e-3
    num_train: int = 2000
    num_test: int = 200
    blind: bool = False


def draw(kind: str, answer: str, cell: int, rng: np.random.Generator) -> np.ndarray:
    """A picture whose answer is this, uint8 [2 cells, 2 cells, 3]; a little noise everywhere."""
    colours = list(COLOURS.values())
    order = rng.permutation(4)
    if kind == "count":
        coloured = set(order[: int(answer)].tolist())
        cells = [colours[rng.integers(4)] if place in coloured else GREY for place in range(4)]
    else:
        cells = [colours[rng.integers(4)] for _ in range(4)]
        cells[order[0]] = COLOURS[answer]
    picture = np.zeros((2 * cell, 2 * cell, 3), np.float64)
    for place, colour in enumerate(cells):
        top, left = place // 2 * cell, place % 2 * cell
        picture[top : top + cell, left : left + cell] = colour
        if kind == "colour" and place == order[0]:
            middle, width = cell // 2, max(2, cell // 7)
            picture[top + middle - width : top + middle + width, left + 4 : left + cell - 4] = 20
            picture[top + 4 : top + cell - 4, left + middle - width : left + middle + width] = 20
    noise = rng.normal(0, NOISE, picture.shape)
    return np.clip(picture + noise, 0, 255).astype(np.uint8)


def cell_of(vision: VisionModel) -> int:
    """Pixels of a cell's side: one token; of families that cut pictures into squares, a picture is one of them."""
    return vision.sizes.factor if vision.has_grid else vision.sizes.factor // 2


def write_rows(out: Path, name: str, count: int, cell: int, settings: Settings, rng: np.random.Generator) -> None:
    """`name`.jsonl and its pictures; kinds and answers take turns."""
    lines = []
    for number in range(count):
        kind = ("count", "colour")[number % 2]
        answer = ANSWERS[kind][number // 2 % 4]
        picture = draw(kind, answer, cell, rng)
        if settings.blind:
            picture = np.full_like(picture, 128)
        file = f"pictures/{name}_{number:04d}.png"
        Image.fromarray(picture).save(out / file)
        row = {"prompt": f"<image>{QUESTIONS[kind]}", "images": [file], "ground_truth": answer, "tag": kind}
        lines.append(json.dumps(row) + "\n")
    (out / f"{name}.jsonl").write_text("".join(lines), encoding="utf-8")


def warm_up(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, vision: VisionModel, settings: Settings
) -> float:
    """Supervised steps on answers drawn without looking, in place; returns the last loss, which is near ln 4 / 2: the
    end of an answer is easy to learn, what it says cannot be."""
    rng, side = np.random.default_rng(settings.seed + 1), cell_of(vision)
    prompts = {}
    for kind, question in QUESTIONS.items():
        parts = [{"type": "image"}, {"type": "text", "text": question}]
        talk: Any = [{"role": "user", "content": parts}]
        text = tokenizer.apply_chat_template(talk, add_generation_prompt=True, tokenize=False)
        ids = tokenizer(str(text))["input_ids"]
        at = ids.index(vision.image_token)
        prompts[kind] = (ids[:at] + [vision.image_token] * 4 + ids[at + 1 :], at)
    optimizer = torch.optim.AdamW(model.parameters(), lr=settings.learning_rate, weight_decay=0.01)
    loss = torch.tensor(0.0)
    model.train()
    for step in range(1, settings.steps + 1):
        rows, labels, media = [], [], []
        for _ in range(settings.batch_size):
            kind = ("count", "colour")[rng.integers(2)]
            prompt, at = prompts[kind]
            picture = draw(kind, ANSWERS[kind][rng.integers(4)], side, rng)
            said = tokenizer(f"{ANSWERS[kind][rng.integers(4)]}{tokenizer.eos_token}")["input_ids"]
            rows.append(prompt + said)
            labels.append([IGNORED] * len(prompt) + said)
            media.append((Shown(Picture("", 2 * side, 2 * side, picture), at, 4),))
        width = max(map(len, rows))
        input_ids = torch.tensor([row + [tokenizer.pad_token_id] * (width - len(row)) for row in rows])
        targets = torch.tensor([label + [IGNORED] * (width - len(label)) for label in labels])
        seen = PictureInputs.of(media, width, vision, torch.device("cpu"))
        logits = model(input_ids=input_ids, use_cache=False, **seen.arguments(width), **seen.tensors).logits
        loss = torch.nn.functional.cross_entropy(
            logits[:, :-1].flatten(0, 1), targets[:, 1:].flatten(), ignore_index=IGNORED
        )
        for group in optimizer.param_groups:
            group["lr"] = settings.learning_rate * min(1.0, step / 10)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    print(f"   warm-up of {settings.steps} steps, loss {loss.item():.3f}", flush=True)
    model.eval()
    return loss.item()


def prepare(out: Path, settings: Settings) -> bool:
    """Fill `out`; False where it already holds what these settings make. The manifest comes last: half is not done."""
    manifest = out / "manifest.json"
    if manifest.is_file() and json.loads(manifest.read_text(encoding="utf-8")) == asdict(settings):
        return False
    manifest.unlink(missing_ok=True)
    for folder in ("model", "pictures"):
        shutil.rmtree(out / folder, ignore_errors=True)
    (out / "pictures").mkdir(parents=True)

    tokenizer = build_vision_tokenizer(settings.arch)
    model = build_vision_model(tokenizer, arch=settings.arch, seed=settings.seed)
    save_vision_pretrained(out / "model", model, tokenizer)
    reads = load_tokenizer(str(out / "model"))  # with what its processor writes around a picture
    processor = json.loads((out / "model" / "preprocessor_config.json").read_text(encoding="utf-8"))
    vision = vision_model(model.config.to_dict(), processor)
    assert vision is not None

    rng = np.random.default_rng(settings.seed)
    write_rows(out, "train", settings.num_train, cell_of(vision), settings, rng)
    write_rows(out, "test", settings.num_test, cell_of(vision), settings, rng)
    print(f"   {settings.num_train} pictures to train on, {settings.num_test} to test with", flush=True)

    num_parameters = sum(parameter.numel() for parameter in model.parameters())
    print(f"   {settings.arch} model with {num_parameters} parameters, {len(tokenizer)} tokens", flush=True)
    warm_up(model, reads, vision, settings)
    save_vision_pretrained(out / "model", model, tokenizer)
    manifest.write_text(json.dumps(asdict(settings), indent=2) + "\n", encoding="utf-8")
    return True


def parse_arguments(arguments: Sequence[str] | None = None) -> tuple[Path, Settings]:
    parser = argparse.ArgumentParser(
        description="Prepare the tiny counting task: pictures, tokenizer, warmed-up model."
    )
    defaults = Settings()
    parser.add_argument("--out", type=Path, default=DEFAULT_OUT, help="folder to fill")
    parser.add_argument("--seed", type=int, default=defaults.seed)
    parser.add_argument("--arch", choices=VISION_ARCHITECTURES, default=defaults.arch)
    parser.add_argument("--steps", type=int, default=defaults.steps, help="warm-up steps")
    parser.add_argument("--blind", action="store_true", help="all pictures are grey: nothing can be learnt")
    given = parser.parse_args(arguments)
    return given.out, Settings(arch=given.arch, seed=given.seed, steps=given.steps, blind=given.blind)


def main() -> None:
    out, settings = parse_arguments()
    started = time.perf_counter()
    torch.set_num_threads(1)
    if prepare(out, settings):
        print(f"   written to {out} in {time.perf_counter() - started:.0f} s", flush=True)
    else:
        print(f"   {out} is already prepared with these settings", flush=True)


if __name__ == "__main__":
    main()
