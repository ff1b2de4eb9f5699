"""CPU seconds of a GRPO step on a pretrained model, beside the same step without roll.

    python benchmarks/real_step.py --model MODEL [--rounds 3] [--steps 3] [--trl PYTHON] [--only plain "roll, shared"]

MODEL is a folder of SmolLM2-135M-Instruct or of another model with a chat template. A step samples 8 responses of 24
tokens to each of 4 questions (sums of two numbers) and makes one AdamW update of all 32 rows, in fp32, one thread per
process. Every round runs each contestant once, in processes of its own, and counts the steps after the first:

- "roll, shared" and "roll": fsdp2_train and hf_infer, with `use_prefix_sharing: on` and off. Both have
  `skip_idle_rows: false`: the other contestants compute every row, and how many rows are idle depends on luck
- "plain": transformers and torch alone; it prefills a prompt once, and its head sees response positions only
- "TRL": GRPOTrainer, run by a python that has trl

For roll, "rollout" and "update" are the seconds of the engine's and the trainer's process, weight updates included;
"rest" is that of all other processes, Ray's included. Starting and loading the model are in no figure. A ratio
compares two contestants of one round. A contestant needs up to 8 GB.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

PROMPTS, SAMPLES, NEW_TOKENS, LEARNING_RATE = 4, 8, 24, 1e-5
REPOSITORY = Path(__file__).resolve().parents[1]
PARTS = ("rollout", "update", "rest")
AIMS = {
    ("roll, shared", "plain"): "at most .7",
    ("roll", "plain"): "at most 1.1",
    ("TRL", "roll, shared"): "2.5 or more",
}

Seconds = dict[str, float]  # of a step, by part

ROLL = """
exp_name: real_step
pretrain: {model}
output_dir: {output}
logging_dir: {output}
max_steps: {steps}
eval_steps: -1
save_steps: -1
track_with: [jsonl]
num_gpus_per_node: 2
rollout_batch_size: 4
num_return_sequences_in_group: 8
prompt_length: 96
response_length: 24
loss_agg_mode: token-mean
skip_idle_rows: false
actor_train:
  model_args: {{dtype: fp32, disable_gradient_checkpointing: true}}
  training_args:
    learning_rate: 1.0e-5
    lr_scheduler_type: constant
    per_device_train_batch_size: 32
    gradient_accumulation_steps: 1
  data_args: {{file_name: {rows}}}
  strategy_args: {{strategy_name: fsdp2_train}}
  use_prefix_sharing: {sharing}
  device_mapping: [0]
actor_infer:
  model_args: {{dtype: fp32}}
  generating_args: {{ignore_eos: true}}
  strategy_args: {{strategy_name: hf_infer}}
  device_mapping: [1]
rewards:
  sums: {{reward: exact_match, reward_args: {{pattern: '\\d+'}}, world_size: 1}}
"""


def sums(steps: int) -> list[dict[str, str]]:
    """Questions for so many steps."""
    pairs = [(2 + 7 * i % 40, 3 + 11 * i % 50) for i in range(steps * PROMPTS)]
    return [{"prompt": f"What is {a} + {b}?", "ground_truth": str(a + b), "tag": "sums"} for a, b in pairs]


def run_roll(model: Path, steps: int, sharing: str) -> Seconds:
    import psutil

    with tempfile.TemporaryDirectory() as folder:
        rows, config = Path(folder, "rows.jsonl"), Path(folder, "real_step.yaml")
        rows.write_text("".join(json.dumps(row) + "\n" for row in sums(steps)))
        config.write_text(ROLL.format(model=model, output=folder, steps=steps, rows=rows, sharing=sharing))
        command = [sys.executable, "-m", "roll", "run", str(config)]
        environment = os.environ | {"PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1", "RAY_worker_niceness": "0"}
        log = Path(folder, "log")
        with log.open("w") as stream:
            process = subprocess.Popen(command, cwd=folder, env=environment, stdout=stream, stderr=stream)
        metrics, marks = Path(folder, "metrics.jsonl"), []
        for step in (1, steps):
            while not metrics.exists() or metrics.read_text().count("\n") < step:
                if process.poll() is not None:
                    raise SystemExit(f"the run failed:\n{log.read_text()[-3000:]}")
                time.sleep(0.01)
            marks.append(seconds_by_role(psutil.Process(process.pid)))
        process.wait()
    first, last = marks
    return {part: (last[part] - first[part]) / (steps - 1) for part in PARTS}


def seconds_by_role(parent: Any) -> Seconds:
    """CPU seconds so far of a run's processes."""
    import psutil

    parts = {"actor_infer": "rollout", "actor_train": "update"}
    total: Seconds = {str(part): 0.0 for part in PARTS}
    for process in (parent, *parent.children(recursive=True)):
        try:
            times = process.cpu_times()
            total[parts.get(process.environ().get("ROLL_ROLE", ""), "rest")] += times.user + times.system
        except psutil.NoSuchProcess:
            continue
    return total


def run_alone(name: str, python: str, model: Path, steps: int) -> Seconds:
    """A contestant of one process: this file, which prints its steps' seconds at the end."""
    command = [python, __file__, "--model", str(model), "--steps", str(steps), "--alone", name]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{name} failed:\n{done.stderr[-3000:]}")
    steps_ = json.loads(done.stdout.strip().splitlines()[-1])[1:]
    return {part: statistics.mean(step[part] for step in steps_) for part in steps_[0]}


def chats(tokenizer: Any, rows: list[dict[str, str]]) -> list[list[int]]:
    """The questions' tokens by the model's chat template."""
    turns = [[{"role": "user", "content": row["prompt"]}] for row in rows]
    return [
        tokenizer.apply_chat_template(turn, add_generation_prompt=True, return_dict=True)["input_ids"] for turn in turns
    ]


def load(model: Path) -> tuple[Any, Any]:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.set_num_threads(1)
    return AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32), AutoTokenizer.from_pretrained(model)


def left_padded(prompts: list[list[int]]) -> tuple[Any, Any]:
    """Ids and attention mask [N, T]."""
    import torch

    width = max(map(len, prompts))
    ids = torch.tensor([[0] * (width - len(p)) + p for p in prompts])
    return ids, torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts])


def plain(path: Path, steps: int) -> list[Seconds]:
    import torch
    from transformers import DynamicCache

    model, tokenizer = load(path)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0.0)
    rows, taken = sums(steps), []
    for step in range(steps):
        part = rows[step * PROMPTS :][:PROMPTS]
        marks = [time.process_time()]
        prompts = chats(tokenizer, part)
        ids, mask = left_padded(prompts)
        with torch.inference_mode():
            cache = DynamicCache(config=model.config)
            positions = (mask.cumsum(1) - 1).clamp(min=0)
            options = {"past_key_values": cache, "logits_to_keep": 1}
            logits = model(ids, attention_mask=mask, position_ids=positions, **options).logits[:, -1]
            cache.batch_repeat_interleave(SAMPLES)
            logits, mask = logits.repeat_interleave(SAMPLES, 0), mask.repeat_interleave(SAMPLES, 0)
            tokens, old = [], []
            for position in range(NEW_TOKENS):
                distribution = logits.log_softmax(-1)
                tokens.append(torch.multinomial(distribution.exp(), 1))
                old.append(distribution.gather(-1, tokens[-1]))
                if position < NEW_TOKENS - 1:
                    mask = torch.cat([mask, torch.ones(len(mask), 1, dtype=mask.dtype)], 1)
                    options["position_ids"] = mask.sum(1, keepdim=True) - 1
                    logits = model(tokens[-1], attention_mask=mask, **options).logits[:, -1]
        marks.append(time.process_time())
        answers, old = torch.cat(tokens, 1), torch.cat(old, 1)
        texts = tokenizer.batch_decode(answers, skip_special_tokens=True)
        right = [part[i // SAMPLES]["ground_truth"] in text for i, text in enumerate(texts)]
        groups = torch.tensor(right, dtype=torch.float32).view(PROMPTS, SAMPLES)
        advantages = ((groups - groups.mean(1, keepdim=True)) / (groups.std(1, keepdim=True) + 1e-6)).view(-1, 1)
        marks.append(time.process_time())
        ids, mask = left_padded([prompts[i // SAMPLES] + answer for i, answer in enumerate(answers.tolist())])
        positions = (mask.cumsum(1) - 1).clamp(min=0)
        hidden = model.model(ids, attention_mask=mask, position_ids=positions, use_cache=False).last_hidden_state
        logits = model.lm_head(hidden[:, -NEW_TOKENS - 1 : -1])
        log_probs = logits.gather(-1, answers[..., None])[..., 0] - logits.logsumexp(-1)
        ratio = (log_probs - old).exp()
        loss = -torch.minimum(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages).mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        marks.append(time.process_time())
        taken.append({"rollout": marks[1] - marks[0], "rest": marks[2] - marks[1], "update": marks[3] - marks[2]})
    return taken


def trl(path: Path, steps: int) -> list[Seconds]:
    from datasets import Dataset
    from transformers import TrainerCallback
    from trl import GRPOConfig, GRPOTrainer  # type: ignore[import-not-found]

    sampling, ends = [], []

    class Clock(TrainerCallback):
        def on_step_end(self, *_: Any, **__: Any) -> None:
            ends.append(time.process_time())

    class Timed(GRPOTrainer):
        def _generate(self, *arguments: Any, **options: Any) -> Any:
            began = time.process_time()
            found = super()._generate(*arguments, **options)
            sampling.append(time.process_time() - began)
            return found

    def reward(completions: list[Any], ground_truth: list[str], **_: Any) -> list[float]:
        return [float(truth in c[0]["content"]) for c, truth in zip(completions, ground_truth, strict=True)]

    model, tokenizer = load(path)
    rows = [row | {"prompt": [{"role": "user", "content": row["prompt"]}]} for row in sums(steps)]
    with tempfile.TemporaryDirectory() as output:
        settings = GRPOConfig(
            output_dir=output,
            use_cpu=True,
            bf16=False,
            per_device_train_batch_size=PROMPTS * SAMPLES,
            num_generations=SAMPLES,
            max_completion_length=NEW_TOKENS,
            generation_kwargs={"min_new_tokens": NEW_TOKENS},
            learning_rate=LEARNING_RATE,
            lr_scheduler_type="constant",
            weight_decay=0.0,
            max_grad_norm=1.0,
            beta=0.0,
            loss_type="dapo",  # mean over all tokens of the batch
            temperature=1.0,
            top_p=1.0,
            top_k=0,
            max_steps=steps,
            save_strategy="no",
            report_to="none",
            gradient_checkpointing=False,
            dataloader_pin_memory=False,
            disable_tqdm=True,
        )
        trainer = Timed(
            model=model,
            reward_funcs=reward,
            args=settings,
            train_dataset=Dataset.from_list(rows),
            processing_class=tokenizer,
            callbacks=[Clock()],
        )
        began = time.process_time()
        trainer.train()
    whole = [end - start for start, end in zip([began, *ends], ends, strict=False)]
    return [{"rollout": of, "update": all_ - of, "rest": 0.0} for of, all_ in zip(sampling, whole, strict=True)]


CONTESTANTS: dict[str, Callable[[Path, int], list[Seconds]]] = {
    "plain": plain,
    "TRL": trl,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--trl", metavar="PYTHON", help="of a virtual environment that has trl")
    parser.add_argument("--only", nargs="+", help="these contestants")
    parser.add_argument("--out", type=Path, help="a file for the seconds of every round, as JSON")
    parser.add_argument("--alone", choices=list(CONTESTANTS), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.alone:
        print(json.dumps(CONTESTANTS[given.alone](given.model, given.steps)))
        return
    runs: dict[str, Callable[[], Seconds]] = {
        "roll, shared": lambda: run_roll(given.model.absolute(), given.steps, "on"),
        "roll": lambda: run_roll(given.model.absolute(), given.steps, "off"),
    }
    for name in CONTESTANTS:
        python = given.trl if name == "TRL" else sys.executable
        if python:
            runs[name] = lambda name=name, python=python: run_alone(name, python, given.model.absolute(), given.steps)
    names = [name for name in runs if name in (given.only or runs)]
    found: dict[str, list[Seconds]] = {name: [] for name in names}
    for number in range(given.rounds):
        for name in names:
            found[name].append(runs[name]())
            shown = ", ".join(f"{part} {seconds:.2f}" for part, seconds in found[name][-1].items())
            print(f"round {number + 1}, {name}: {shown} CPU s a step", file=sys.stderr, flush=True)
            if given.out:
                given.out.write_text(json.dumps(found, indent=1) + "\n")
    report(found)


def report(found: dict[str, list[Seconds]]) -> None:
    """Prints medians of CPU seconds, and ratios."""
    from ratios import describe_ratios

    print(f"{'CPU s a step':16}{''.join(f'{part:>10}' for part in (*PARTS, 'whole'))}")
    for name, rounds in found.items():
        values = [statistics.median(each.get(part, 0.0) for each in rounds) for part in PARTS]
        values.append(statistics.median(sum(each.values()) for each in rounds))
        print(f"{name:16}{''.join(f'{value:10.2f}' for value in values)}")
    for (one, other), aim in AIMS.items():
        if one in found and other in found:
            pairs = zip(found[one], found[other], strict=True)
            ratios = describe_ratios([sum(a.values()) / sum(b.values()) for a, b in pairs])
            print(f"{one} / {other}: {ratios} (aim: {aim})")
    for name in CONTESTANTS:
        for part in ("rollout", "update"):
            if "roll" in found and name in found:
                pairs = zip(found["roll"], found[name], strict=True)
                print(f"{part}: roll / {name}: {describe_ratios([a[part] / b[part] for a, b in pairs])}")


if __name__ == "__main__":
    main()
