"""What a step costs the driver, in seconds and memory, by the number of samples: whole RLVR steps, but for learning.

    python benchmarks/driver_load.py [--samples 1024 8192 65536] [--tokens 4096] [--steps 2]

Engines answer at once with random tokens (synthetic.py), rewards come from their pool, ranks get their shards; nothing
is learnt from them. One process of its own for each size. `memory` is the driver's own (anonymous pages: without
libraries and without the object store), over what it had before the first step: the highest during the steps, and what
is left when a step is over. `CPU` is that of the driver alone. The first step is left out of times.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from roll.models.tiny import build_tokenizer
from roll.pipeline.rlvr.rlvr_pipeline import RLVRPipeline
from roll.rl.scoring import StepScores
from roll.run.spec import pipeline_of
from roll.run.start.load import load

GROUP_SIZE, PROMPT_TOKENS, PHASES = 16, 128, ("rollout", "gather")
YAML = """
exp_name: driver_load
output_dir: {folder}
logging_dir: {folder}
pretrain: {folder}
num_gpus_per_node: 4
max_steps: {steps}
save_steps: -1
eval_steps: -1
track_with: [jsonl]
rollout_batch_size: {groups}
num_return_sequences_in_group: {group_size}
prompt_length: {prompt_tokens}
response_length: {tokens}
adv_estimator: grpo
loss_agg_mode: token-mean
actor_train:
  data_args: {{file_name: {folder}/data.jsonl}}
  model_args: {{dtype: fp32}}
  training_args: {{per_device_train_batch_size: 16, gradient_accumulation_steps: {accumulated}}}
  strategy_args: {{strategy_name: "synthetic:TRAINER"}}
  device_mapping: [0, 1]
actor_infer:
  strategy_args: {{strategy_name: "synthetic:ENGINE"}}
  device_mapping: [2, 3]
rewards:
  any: {{reward: "driver_load_reward:length", world_size: 2}}
"""


class Watch:
    """The driver's own memory: now, and the highest since the last look."""

    def __init__(self) -> None:
        self.highest = self.now()
        threading.Thread(target=self._watch, daemon=True).start()

    @staticmethod
    def now() -> int:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("RssAnon"))

    def _watch(self) -> None:
        while True:
            self.highest = max(self.highest, self.now())
            time.sleep(0.01)


class DriverLoad(RLVRPipeline):
    """Measures itself. Nothing is trained: that is not the driver's work."""

    def __init__(self, *arguments: Any):
        super().__init__(*arguments)
        self.watch, self.seen, self.before = Watch(), [], 0

    def step(self, step: int) -> dict[str, float]:
        if not step:
            self.before = self.watch.now()
        self.watch.highest, cpu, wall = self.watch.now(), time.process_time(), time.perf_counter()
        metrics = super().step(step)
        self.seen.append(
            {
                "highest": self.watch.highest - self.before,
                "left": self.watch.now() - self.before,
                "cpu_s": time.process_time() - cpu,
                "step_s": time.perf_counter() - wall,
            }
        )
        return metrics

    def score(self, *given: Any, **named: Any) -> StepScores:
        return StepScores({}, {})

    def train(self, *given: Any, **named: Any) -> dict[str, float]:
        return {"actor/num_updates": 0.0, "actor/grad_norm": 1.0}


def run_here(samples: int, tokens: int, steps: int) -> dict[str, float]:
    """One run, in this process."""
    with tempfile.TemporaryDirectory(prefix="driver-load-") as name:
        folder = Path(name)
        tokenizer = build_tokenizer()
        tokenizer.save_pretrained(folder)
        (folder / "config.json").write_text(json.dumps({"model_type": "qwen2", "max_position_embeddings": 1 << 20}))
        rows = [{"prompt": f"{i:08d}" * 4, "ground_truth": "", "tag": "any"} for i in range(samples // GROUP_SIZE)]
        (folder / "data.jsonl").write_text("\n".join(map(json.dumps, rows)))
        text = YAML.format(
            folder=folder,
            steps=steps,
            groups=samples // GROUP_SIZE,
            group_size=GROUP_SIZE,
            prompt_tokens=PROMPT_TOKENS,
            tokens=tokens,
            accumulated=samples // 32,
        )
        (folder / "load.yaml").write_text(text)
        loaded = load(pipeline_of("rlvr"), folder, "load")
        pipeline = DriverLoad(loaded.config, loaded.plan)
        if code := pipeline.run():
            raise SystemExit(code)
        rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    counted = pipeline.seen[1:] or pipeline.seen
    result = {key: sum(seen[key] for seen in counted) / len(counted) for key in ("cpu_s", "step_s")}
    result |= {"highest": max(seen["highest"] for seen in pipeline.seen), "left": pipeline.seen[-1]["left"]}
    later = [row for row in rows if "time/rollout_s" in row][-len(counted) :]
    return result | {phase: sum(row[f"time/{phase}_s"] for row in later) / len(later) for phase in PHASES}


def run_apart(arguments: Sequence[str]) -> dict[str, float]:
    done = subprocess.run([sys.executable, __file__, "--here", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(arguments)} failed:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, nargs="+", default=[1024, 8192, 65536])
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.here:
        print(json.dumps(run_here(given.samples[0], given.tokens, given.steps)))
        return
    names = ("highest", "left", "CPU", *PHASES)
    print(f"{'samples':>8}" + "".join(f"{name:>12}" for name in names) + f"{'CPU/sample':>12}")
    for samples in given.samples:
        found = run_apart(["--samples", str(samples), "--tokens", str(given.tokens), "--steps", str(given.steps)])
        memory = "".join(f"{found[key] / 1e6:9.0f} MB" for key in ("highest", "left"))
        seconds = "".join(f"{found[key]:10.2f} s" for key in ("cpu_s", *PHASES))
        print(f"{samples:8}{memory}{seconds}{1e6 * found['cpu_s'] / samples:9.0f} us", flush=True)


if __name__ == "__main__":
    main()
