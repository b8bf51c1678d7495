"""The hand-written peer: what one writes in plain torch around the same transformers model.

SFT: pad the batch, forward with an attention mask, cross-entropy ignoring the padding, backward,
clip, AdamW. GRPO: left-pad the prompts, sample token by token with the KV cache until every
completion has ended, then one forward and backward over the padded batch with the PPO clip.
There is no trainer, no metric and no data loader, so this is the bare cost of the arithmetic.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from peer import Arguments, Timing, parse_arguments, print_result
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel
from transformers import PreTrainedTokenizerBase as Tokenizer
from workloads import CLIP_EPSILON, MAX_GRAD_NORM, SEED, WORKLOADS, Grpo, Sft, reward

IGNORED = -100


def timed(step: Callable[[], object], arguments: Arguments) -> list[float]:
    """Seconds of each timed step, after the warm-up steps."""
    seconds = []
    for _ in range(arguments.warmup + arguments.steps):
        start = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - start)
    return seconds[arguments.warmup :]


def update(model: PreTrainedModel, optimizer: torch.optim.Optimizer, loss: torch.Tensor) -> float:
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_GRAD_NORM)
    optimizer.step()
    optimizer.zero_grad()
    return loss.item()


def sft(model: PreTrainedModel, tokenizer: Tokenizer, work: Sft, arguments: Arguments) -> Timing:
    optimizer = torch.optim.AdamW(model.parameters(), lr=work.learning_rate, weight_decay=0.0)
    texts = work.texts(arguments.warmup + arguments.steps)
    rows = [[*ids, tokenizer.eos_token_id] for ids in tokenizer(texts)["input_ids"]]
    batches = [rows[i : i + work.rows] for i in range(0, len(rows), work.rows)]
    remaining = iter(batches)

    def step() -> float:
        batch = [torch.tensor(row) for row in next(remaining)]
        pad = torch.nn.utils.rnn.pad_sequence
        ids = pad(batch, batch_first=True, padding_value=tokenizer.pad_token_id)
        labels = pad(batch, batch_first=True, padding_value=IGNORED)
        logits = model(input_ids=ids, attention_mask=(labels != IGNORED).long()).logits
        loss = F.cross_entropy(
            logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=IGNORED
        )
        return update(model, optimizer, loss)

    seconds = timed(step, arguments)
    return Timing(seconds, tokens=[sum(map(len, b)) for b in batches[arguments.warmup :]])


@torch.no_grad()
def sample(
    model: PreTrainedModel, tokenizer: Tokenizer, ids: torch.Tensor, mask: torch.Tensor, limit: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Completions (padded after their end) and the mask of their tokens."""
    running = torch.ones(len(ids), dtype=torch.bool)
    positions = mask.cumsum(-1).sub(1).clamp(min=0)
    cache, step_ids, tokens, masks = None, ids, [], []
    for _ in range(limit):
        output = model(
            input_ids=step_ids,
            attention_mask=mask,
            position_ids=positions,
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        )
        cache = output.past_key_values
        chosen = torch.multinomial(output.logits[:, -1].softmax(-1), 1).squeeze(1)
        chosen = chosen.where(running, tokenizer.pad_token_id)
        tokens.append(chosen)
        masks.append(running)
        running = running & (chosen != tokenizer.eos_token_id)
        if not running.any():
            break
        mask = torch.cat([mask, mask.new_ones(len(mask), 1)], dim=1)
        positions = positions[:, -1:] + 1
        step_ids = chosen.unsqueeze(1)
    return torch.stack(tokens, 1), torch.stack(masks, 1)


def grpo(model: PreTrainedModel, tokenizer: Tokenizer, work: Grpo, arguments: Arguments) -> Timing:
    optimizer = torch.optim.AdamW(model.parameters(), lr=work.learning_rate, weight_decay=0.0)
    prompts = [prompt for prompt in work.prompts for _ in range(work.group_size)]
    encoded = tokenizer(prompts, padding=True, padding_side="left", return_tensors="pt")
    ids, mask = encoded["input_ids"], encoded["attention_mask"]
    lengths: list[list[int]] = []

    def step() -> float:
        completions, alive = sample(model, tokenizer, ids, mask, work.max_new_tokens)
        texts = tokenizer.batch_decode(completions, skip_special_tokens=True)
        rewards = torch.tensor([reward(text) for text in texts]).view(-1, work.group_size)
        spread = rewards.std(1, keepdim=True) + 1e-4
        advantages = ((rewards - rewards.mean(1, keepdim=True)) / spread).view(-1, 1)
        lengths.append(alive.sum(1).tolist())

        full = torch.cat([mask, alive.long()], dim=1)
        logits = model(
            input_ids=torch.cat([ids, completions], dim=1),
            attention_mask=full,
            position_ids=full.cumsum(-1).sub(1).clamp(min=0),
            logits_to_keep=completions.shape[1] + 1,
            use_cache=False,
        ).logits[:, :-1]
        losses = F.cross_entropy(logits.flatten(0, 1), completions.flatten(), reduction="none")
        logps = -losses.view_as(completions)
        ratio = (logps - logps.detach()).exp()
        clipped = ratio.clamp(1 - CLIP_EPSILON, 1 + CLIP_EPSILON)
        objective = torch.min(ratio * advantages, clipped * advantages)
        return update(model, optimizer, -(objective * alive).sum() / alive.sum())

    seconds = timed(step, arguments)
    return Timing(seconds, lengths=lengths[arguments.warmup :])


def main() -> None:
    arguments = parse_arguments(__doc__)
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(SEED)
    model = AutoModelForCausalLM.from_pretrained(
        arguments.model, dtype=torch.float32, trust_remote_code=False
    )
    tokenizer = AutoTokenizer.from_pretrained(arguments.model, trust_remote_code=False)
    workload = WORKLOADS[arguments.workload]
    if isinstance(workload, Grpo):
        timing = grpo(model, tokenizer, workload, arguments)
    else:
        timing = sft(model, tokenizer, workload, arguments)
    print_result("hand", arguments, {"loop": timing})


if __name__ == "__main__":
    main()
