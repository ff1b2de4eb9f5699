"""The tiny-sort job in one plain process and one thread, without roll: the yardstick for roll's overhead.

GRPO as in examples/tiny-sort/tiny_sort.yaml: 32 prompts x 8 samples, 12 new tokens, PPO clip 0.2, token mean, AdamW.
Sampling uses the Hugging Face model with its own KV cache, each prompt prefilled once; training applies the head at
response positions only.

    python benchmarks/plain_grpo.py --data output/tiny-sort --steps 40
"""

import argparse
import json
import random
import re
import time
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache

ANSWER = re.compile(r"<answer>(.*)</answer>")
PROMPTS, SAMPLES, NEW_TOKENS, CLIP, LEARNING_RATE, WARMUP = 32, 8, 12, 0.2, 1e-3, 5


@torch.inference_mode()
def sample(
    model, prompts: list[list[int]], eos: int, generator: torch.Generator
) -> list[tuple[list[int], list[float]]]:
    """SAMPLES answers to each prompt, with the log-prob of every sampled token."""
    width = max(map(len, prompts))
    ids = torch.tensor([[eos] * (width - len(p)) + p for p in prompts])
    mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts])
    padded = not bool(mask.all())
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    cache = DynamicCache(config=model.config)
    attention = {"attention_mask": mask} if padded else {}
    logits = model(ids, position_ids=positions, past_key_values=cache, logits_to_keep=1, **attention).logits[:, -1]
    cache.batch_repeat_interleave(SAMPLES)
    logits = logits.repeat_interleave(SAMPLES, 0)
    mask = mask.repeat_interleave(SAMPLES, 0)
    position = positions[:, -1:].repeat_interleave(SAMPLES, 0)
    tokens, log_probs = [], []
    finished = torch.zeros(len(logits), dtype=torch.bool)
    for t in range(NEW_TOKENS):
        distribution = torch.log_softmax(logits, -1)
        uniform = torch.rand(len(logits), 1, generator=generator)
        token = (distribution.exp().cumsum(-1) < uniform).sum(-1, keepdim=True).clamp(max=logits.shape[-1] - 1)
        tokens.append(token)
        log_probs.append(distribution.gather(-1, token))
        finished |= token[:, 0] == eos
        if t == NEW_TOKENS - 1 or bool(finished.all()):
            break
        position = position + 1
        mask = torch.cat([mask, torch.ones(len(mask), 1, dtype=mask.dtype)], 1)
        attention = {"attention_mask": mask} if padded else {}
        logits = model(token, position_ids=position, past_key_values=cache, **attention).logits[:, -1]
    rows = []
    for row, row_log_probs in zip(torch.cat(tokens, 1).tolist(), torch.cat(log_probs, 1).tolist(), strict=True):
        size = row.index(eos) + 1 if eos in row else len(row)
        rows.append((row[:size], row_log_probs[:size]))
    return rows


def train(model, optimizer, prompts: list[list[int]], answers, advantages: list[float]) -> None:
    """One update over all samples: PPO clip against the rollout's log-probs, mean over all response tokens."""
    sequences = [prompts[i // SAMPLES] + tokens for i, (tokens, _) in enumerate(answers)]
    width = max(map(len, sequences))
    ids, response = (
        torch.zeros(len(sequences), width, dtype=torch.long),
        torch.zeros(len(sequences), width, dtype=torch.bool),
    )
    old, advantage = torch.zeros(len(sequences), width), torch.zeros(len(sequences), width)
    for i, (sequence, (tokens, log_probs)) in enumerate(zip(sequences, answers, strict=True)):
        start, end = len(sequence) - len(tokens), len(sequence)
        ids[i, :end] = torch.tensor(sequence)
        response[i, start:end] = True
        old[i, start:end] = torch.tensor(log_probs)
        advantage[i, start:end] = advantages[i]
    hidden = model.model(ids, use_cache=False).last_hidden_state[:, :-1][response[:, 1:]]
    logits = model.lm_head(hidden)
    log_probs = logits.gather(-1, ids[response][:, None])[:, 0] - torch.logsumexp(logits, -1)
    ratio, advantage = (log_probs - old[response]).exp(), advantage[response]
    loss = -torch.minimum(ratio * advantage, ratio.clamp(1 - CLIP, 1 + CLIP) * advantage).mean()
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="directory made by examples/tiny-sort/prepare.py")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    tokenizer = AutoTokenizer.from_pretrained(arguments.data / "model")
    model = AutoModelForCausalLM.from_pretrained(arguments.data / "model", dtype=torch.float32).eval()
    rows = [json.loads(line) for line in (arguments.data / "train.jsonl").read_text().splitlines()]
    pick, generator = random.Random(arguments.seed), torch.Generator().manual_seed(arguments.seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.99), weight_decay=0.0)
    wall: dict[str, float] = {"rollout": 0.0, "reward": 0.0, "train": 0.0}
    rewards: list[float] = []
    step_wall: list[float] = []
    start_cpu = time.process_time()
    for step in range(arguments.steps):
        marks = [time.perf_counter()]
        batch = pick.sample(rows, PROMPTS)
        prompts = [
            tokenizer.apply_chat_template(
                [{"role": "user", "content": r["prompt"]}], add_generation_prompt=True, return_dict=True
            )["input_ids"]
            for r in batch
        ]
        answers = sample(model, prompts, tokenizer.eos_token_id, generator)
        marks.append(time.perf_counter())
        scores = []
        for i, text in enumerate(tokenizer.batch_decode([tokens for tokens, _ in answers], skip_special_tokens=True)):
            match = ANSWER.fullmatch(text.strip())
            scores.append(float(match is not None and match[1] == batch[i // SAMPLES]["ground_truth"]))
        groups = torch.tensor(scores).view(PROMPTS, SAMPLES)
        advantages = ((groups - groups.mean(1, keepdim=True)) / (groups.std(1, keepdim=True) + 1e-6)).view(-1).tolist()
        marks.append(time.perf_counter())
        for group in optimizer.param_groups:
            group["lr"] = LEARNING_RATE * min(1.0, (step + 1) / WARMUP)
        train(model, optimizer, prompts, answers, advantages)
        marks.append(time.perf_counter())
        for name, begin, end in zip(wall, marks, marks[1:], strict=False):
            wall[name] += end - begin
        rewards.append(sum(scores) / len(scores))
        step_wall.append(marks[-1] - marks[0])
    result = {
        "wall_s_per_step": sum(step_wall[5:]) / len(step_wall[5:]),
        "cpu_s_per_step": (time.process_time() - start_cpu) / arguments.steps,
        "phases_s_per_step": {name: seconds / arguments.steps for name, seconds in wall.items()},
        "reward_first_last": [sum(rewards[:5]) / 5, sum(rewards[-5:]) / 5],
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
