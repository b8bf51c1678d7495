"""The TRL peer: GRPOTrainer and SFTTrainer on the shared workloads, fp32 on the CPU.

Settings are chosen in TRL's favour: no gradient checkpointing, no mixed precision, no logging,
saving or trackers, the whole batch as one micro-batch, generation with the KV cache. For GRPO
this also lets TRL skip the pass for the old log-probabilities.

SFT is measured in several settings, and the fastest of the first three counts:
  unpacked  rows in the given order, padded to the longest of the batch
  grouped   rows of similar length batched together, which saves padding
  packed    rows packed into 256 tokens without crossing document borders (best fit decreasing)
  wrapped   rows cut and joined into 256 tokens; shown only, as its documents attend to each other
  default   as TRL comes, unpacked and packed, with the gradient checkpointing that it turns on by
            itself; shown only
"""

from __future__ import annotations

import tempfile
import time
from itertools import pairwise
from typing import Any

from peer import Arguments, Timing, parse_arguments, print_result
from workloads import CLIP_EPSILON, MAX_GRAD_NORM, SEED, WORKLOADS, Grpo, Sft, reward

SFT_SETTINGS: dict[str, dict[str, Any]] = {
    "unpacked": {"train_sampling_strategy": "sequential"},
    "grouped": {"train_sampling_strategy": "group_by_length"},
    "packed": {"packing": True, "packing_strategy": "bfd"},
    "wrapped": {"packing": True, "packing_strategy": "wrapped"},
    "default": {"gradient_checkpointing": True},
    "default-packed": {"gradient_checkpointing": True, "packing": True, "packing_strategy": "bfd"},
}
SFT_ELIGIBLE = ["unpacked", "grouped", "packed"]


def common(workload: Grpo | Sft, arguments: Arguments, folder: str) -> dict[str, Any]:
    """Training arguments that both trainers share."""
    return {
        "output_dir": folder,
        "max_steps": arguments.warmup + arguments.steps,
        "learning_rate": workload.learning_rate,
        "lr_scheduler_type": "constant",
        "weight_decay": 0.0,
        "max_grad_norm": MAX_GRAD_NORM,
        "gradient_accumulation_steps": 1,
        "gradient_checkpointing": False,
        "bf16": False,
        "use_cpu": True,
        "logging_strategy": "no",
        "logging_nan_inf_filter": False,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "dataloader_pin_memory": False,
        "shuffle_dataset": False,
        "seed": SEED,
    }


def clock(times: list[float]) -> Any:
    """A trainer callback which notes the time at the end of every optimizer step."""
    from transformers import TrainerCallback

    class Clock(TrainerCallback):
        def on_step_end(self, *_: Any, **__: Any) -> None:
            times.append(time.perf_counter())

    return Clock()


def step_seconds(times: list[float], warmup: int) -> list[float]:
    """Seconds between step ends, the warm-up left out."""
    return [after - before for before, after in pairwise(times[warmup - 1 :])]


def load(arguments: Arguments) -> tuple[Any, Any]:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.set_num_threads(arguments.threads)
    model = AutoModelForCausalLM.from_pretrained(
        arguments.model, dtype=torch.float32, trust_remote_code=False
    )
    return model, AutoTokenizer.from_pretrained(arguments.model, trust_remote_code=False)


def grpo(workload: Grpo, arguments: Arguments, folder: str) -> Timing:
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    model, tokenizer = load(arguments)
    times: list[float] = []
    lengths: list[list[int]] = []

    def reward_function(
        completions: list[str], completion_ids: list[list[int]], **_: Any
    ) -> list[float]:
        lengths.append([len(ids) for ids in completion_ids])
        return [reward(completion) for completion in completions]

    steps = arguments.warmup + arguments.steps
    trainer = GRPOTrainer(
        model=model,
        processing_class=tokenizer,
        reward_funcs=reward_function,
        train_dataset=Dataset.from_dict({"prompt": list(workload.prompts) * steps}),
        callbacks=[clock(times)],
        args=GRPOConfig(
            **common(workload, arguments, folder),
            per_device_train_batch_size=workload.completions,
            num_generations=workload.group_size,
            max_completion_length=workload.max_new_tokens,
            temperature=1.0,
            beta=0.0,
            epsilon=CLIP_EPSILON,
        ),
    )
    trainer.train()
    return Timing(step_seconds(times, arguments.warmup), lengths=lengths[arguments.warmup :])


def sft(workload: Sft, arguments: Arguments, folder: str, setting: dict[str, Any]) -> Timing:
    from datasets import Dataset
    from trl import SFTConfig, SFTTrainer

    model, tokenizer = load(arguments)
    times: list[float] = []
    tokens: list[int] = []
    steps = arguments.warmup + arguments.steps
    # Packing needs fewer batches for the same texts: twice the texts keep it in its first epoch.
    texts = workload.texts(2 * steps if setting.get("packing") else steps)

    trainer = SFTTrainer(
        model=model,
        processing_class=tokenizer,
        train_dataset=Dataset.from_dict({"text": texts}),
        callbacks=[clock(times)],
        args=SFTConfig(
            **{**common(workload, arguments, folder), **setting},
            per_device_train_batch_size=workload.rows,
            max_length=workload.max_tokens,
        ),
    )
    collate = trainer.data_collator

    def counting_collator(rows: list[dict[str, Any]]) -> dict[str, Any]:
        tokens.append(sum(len(row["input_ids"]) for row in rows))
        return collate(rows)

    trainer.data_collator = counting_collator
    trainer.train()
    timed = tokens[arguments.warmup : steps]
    return Timing(step_seconds(times, arguments.warmup), tokens=timed)


def main() -> None:
    arguments = parse_arguments(__doc__)
    workload = WORKLOADS[arguments.workload]
    with tempfile.TemporaryDirectory() as folder:
        if isinstance(workload, Grpo):
            print_result("trl", arguments, {"generate": grpo(workload, arguments, folder)})
            return
        timings = {
            name: sft(workload, arguments, folder, setting)
            for name, setting in SFT_SETTINGS.items()
        }
        print_result("trl", arguments, timings, eligible=SFT_ELIGIBLE)


if __name__ == "__main__":
    main()
