"""Make a model that reads a frozen lake and dawdles on it. No download; a minute and a half on one core.

Written under --out:
    model/         tokenizer and Qwen model, warmed up on a demonstrator that prefers harmless moves which lead nowhere,
                   on maps of the training only
    manifest.json  the arguments it was made with; running again with the same ones does nothing
"""

import argparse
import json
import os
import random
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # a model this small only loses time to a second thread

import numpy as np
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerFast

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from roll.envs.frozen_lake import DIRECTIONS, MOVES, FrozenLake, distances
from roll.models.tiny import build_model, build_tokenizer, save_pretrained
from roll.pipeline.agentic.sample_forms import ChatEncoder

DEFAULT_OUT = Path("output/tiny-frozen-lake")  # where the YAMLs look, unless TINY_FROZEN_LAKE_DIR says otherwise
IGNORED = -100
HOLE = 99  # farther from the goal than any cell
MOVE_PLACE = 1  # in <answer>Right</answer><|im_end|>


@dataclass
class Row:
    """Tokens of a conversation, which of them are learned, and what is known of the moves among these."""

    input_ids: list[int] = field(default_factory=list)
    labels: list[int] = field(default_factory=list)
    move_places: list[int] = field(default_factory=list)
    move_chances: list[list[float]] = field(default_factory=list)
    """Per move the demonstrator's chances of the four DIRECTIONS: learned instead of the one that was drawn, which
    would say little."""


@dataclass(frozen=True)
class Batch:
    """Right-padded rows; the places of moves as (row, position), with their chances [M, 4]."""

    input_ids: torch.Tensor
    labels: torch.Tensor
    move_rows: torch.Tensor
    move_places: torch.Tensor
    move_chances: torch.Tensor


@dataclass(frozen=True)
class Settings:
    """Everything the written files depend on."""

    seed: int = 0
    turn_steps: int = 150
    """Steps on single turns from anywhere on a map: they teach to read it."""
    turn_batch_size: int = 128
    episode_steps: int = 100
    """Steps on whole conversations after that: they teach to look at the latest map only."""
    episode_batch_size: int = 24
    learning_rate: float = 2e-3
    good_moves: float = 0.5
    """The demonstrator's chance of a move that leads nearer to the goal; all such moves share it."""
    idle_moves: float = 0.4
    """Its chance of a harmless move that leads nowhere: the first of these, so that it is the likeliest move of all.
    What is left is for any move."""
    max_turns: int = 8


class Demonstrations:
    """Conversations and single turns, encoded as a rollout does it."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, settings: Settings):
        self._encoder, self._settings = ChatEncoder(tokenizer), settings
        self._rng = random.Random(f"demonstrations {settings.seed}")
        texts = {name: f"<answer>{name}</answer>{tokenizer.eos_token}" for name in DIRECTIONS}
        self._answers = {name: np.array(tokenizer.encode(text), np.int32) for name, text in texts.items()}
        self.moves = torch.tensor([int(self._answers[name][MOVE_PLACE]) for name in DIRECTIONS])
        """The token of each direction."""

    def batch(self, step: int) -> Batch:
        """The rows of a step, counted from 0: turns first, then whole episodes."""
        settings = self._settings
        if step < settings.turn_steps:
            rows = [self._play(1, anywhere=True) for _ in range(settings.turn_batch_size)]
        else:
            rows = [self._play(settings.max_turns, anywhere=False) for _ in range(settings.episode_batch_size)]
        longest = max(len(row.input_ids) for row in rows)
        return Batch(
            torch.tensor([row.input_ids + [0] * (longest - len(row.input_ids)) for row in rows]),
            torch.tensor([row.labels + [IGNORED] * (longest - len(row.labels)) for row in rows]),
            torch.tensor([i for i, row in enumerate(rows) for _ in row.move_places]),
            torch.tensor([place for row in rows for place in row.move_places]),
            torch.tensor([chances for row in rows for chances in row.move_chances]),
        )

    def _play(self, max_turns: int, anywhere: bool) -> Row:
        """One episode, from the corner or from anywhere on the ice."""
        lake = FrozenLake(maps="training")
        observation = lake.reset(self._rng.randrange(1 << 30))
        if anywhere:
            lake.position = self._rng.choice([cell for cell, moves in distances(lake.grid).items() if moves])
            observation = lake.render()
        row = Row()
        answer = np.zeros(0, np.int32)
        for turn in range(max_turns):
            first = self._encoder.start([("user", observation)])
            prompt = self._encoder.follow_up(answer, observation) if turn else first
            chances = self._chances(lake)
            (name,) = self._rng.choices(DIRECTIONS, chances)
            answer = self._answers[name]
            row.move_places.append(len(row.input_ids) + len(prompt) + MOVE_PLACE)
            row.move_chances.append(chances)
            row.input_ids += [*prompt.tolist(), *answer.tolist()]
            learned = answer.tolist()
            learned[MOVE_PLACE] = IGNORED
            row.labels += [IGNORED] * len(prompt) + learned
            step = lake.step(name)
            if step.terminated:
                break
            observation = step.observation
        return row

    def _chances(self, lake: FrozenLake) -> list[float]:
        """The demonstrator's chances of the four directions: see `Settings`."""
        settings, far, last = self._settings, distances(lake.grid), lake.size - 1
        row, column = lake.position
        cells = [(min(last, max(0, row + down)), min(last, max(0, column + right))) for down, right in MOVES.values()]
        after = [far.get(cell, HOLE) for cell in cells]
        good = [distance == min(after) for distance in after]
        chances = [
            (1 - settings.good_moves - settings.idle_moves) / 4 + settings.good_moves / sum(good) * g for g in good
        ]
        idle = [i for i in range(4) if after[i] < HOLE and not good[i]]
        for i in idle[:1] or range(4):
            chances[i] += settings.idle_moves / (1 if idle else 4)
        return chances


def warm_up(model: PreTrainedModel, demonstrations: Demonstrations, settings: Settings) -> float:
    """Supervised steps in place; returns the last loss. A causal model needs no attention mask for right padding."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=settings.learning_rate, weight_decay=0.01)
    loss = torch.tensor(0.0)
    num_steps = settings.turn_steps + settings.episode_steps
    model.train()
    for step in range(num_steps):
        for group in optimizer.param_groups:
            group["lr"] = settings.learning_rate * min(1.0, (step + 1) / 20, (num_steps - step) / (0.3 * num_steps))
        batch = demonstrations.batch(step)
        hidden = model.model(input_ids=batch.input_ids, use_cache=False).last_hidden_state
        answer = batch.labels[:, 1:] != IGNORED
        loss = torch.nn.functional.cross_entropy(model.lm_head(hidden[:, :-1][answer]), batch.labels[:, 1:][answer])
        log_probs = model.lm_head(hidden[batch.move_rows, batch.move_places - 1]).log_softmax(-1)
        loss = loss - (batch.move_chances * log_probs[:, demonstrations.moves]).sum(-1).mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if (step + 1) % 50 == 0 or step + 1 == num_steps:
            print(f"   warm-up {step + 1}/{num_steps}, loss {loss.item():.3f}", flush=True)
    model.eval()
    return loss.item()


def prepare(out: Path, settings: Settings) -> bool:
    """Fill `out`; False where it already holds what these settings make. The manifest comes last: half is not done."""
    manifest = out / "manifest.json"
    if manifest.is_file() and json.loads(manifest.read_text(encoding="utf-8")) == asdict(settings):
        return False
    manifest.unlink(missing_ok=True)
    shutil.rmtree(out / "model", ignore_errors=True)
    out.mkdir(parents=True, exist_ok=True)

    tokenizer = build_tokenizer()
    model = build_model(tokenizer, num_kv_heads=2, seed=settings.seed)
    warm_up(model, Demonstrations(tokenizer, settings), settings)
    save_pretrained(out / "model", model, tokenizer)

    manifest.write_text(json.dumps(asdict(settings), indent=2) + "\n", encoding="utf-8")
    return True


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Prepare the tiny frozen lake: tokenizer and warmed-up model.")
    defaults = Settings()
    parser.add_argument("--out", type=Path, default=DEFAULT_OUT, help="folder to fill")
    parser.add_argument("--seed", type=int, default=defaults.seed)
    given = parser.parse_args(arguments)
    started = time.perf_counter()
    torch.set_num_threads(1)
    if prepare(given.out, Settings(seed=given.seed)):
        print(f"   written to {given.out} in {time.perf_counter() - started:.0f} s", flush=True)
    else:
        print(f"   {given.out} is already prepared with these settings", flush=True)


if __name__ == "__main__":
    main()
