"""Forge's reference generator and trainer on one GPU, beside plain transformers and plain torch.

    python benchmarks/cuda.py

A Qwen3 of 0.6B parameters in the published shape (28 layers, vocabulary 151,936) with random
weights, bfloat16. Generation: 64 prompts of 64 tokens, 256 new tokens each; the peer is
``model.generate`` on the same batch. Training: 16 sequences of 256 to 1,024 tokens in one step;
the peer is a padded batch, cross-entropy over full logits and AdamW. Weight sync: publish, fetch
and both checksums through transport ``memory``. Prints medians, ratios and peak memory.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import random
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from statistics import median

import torch
import torch.nn.functional as F
from transformers import Qwen3Config, Qwen3ForCausalLM

from forge_core import BuildContext, Forge, Sampling, Selection, TrainSequence
from forge_core.config.sections import DistributedSection, ModelSection, TrainingSection
from forge_core.models.characters import character_tokenizer
from forge_core.models.folder import load_model

VOCABULARY = 151_936
PROMPTS, PROMPT_TOKENS, NEW_TOKENS = 64, 64, 256
SEQUENCES, SHORTEST, LONGEST = 16, 256, 1024


def make_model(folder: Path, layers: int) -> None:
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=1024,
        intermediate_size=3072,
        num_hidden_layers=layers,
        num_attention_heads=16,
        num_key_value_heads=8,
        head_dim=128,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
    )
    Qwen3ForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
    character_tokenizer("0123456789").save_pretrained(folder)


def context_for(folder: Path) -> BuildContext:
    catalog = Forge().plugins.catalog

    def selection(family: str, name: str) -> Selection[object]:
        component = catalog.get(family, name)
        return Selection(family=family, component=component, settings=component.settings())

    return BuildContext(
        model=ModelSection(path=folder, dtype="bfloat16"),
        training=TrainingSection(steps=100, learning_rate=1e-5),
        distributed=DistributedSection(),
        loss=selection("loss", "cross_entropy"),
        transport=selection("transport", "memory"),
    )


async def seconds(work: Callable[[], Awaitable[object]], repeats: int) -> float:
    """Median wall-clock time, after one warm-up."""
    times = []
    for _ in range(repeats + 1):
        torch.cuda.synchronize()
        start = time.perf_counter()
        await work()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return median(times[1:])


async def forge_generation(context: BuildContext, prompts: list[list[int]], repeats: int) -> float:
    component = Forge().plugins.catalog.get("generator", "torch")
    generator = component.build(component.settings(), context)

    async def step() -> None:
        sampling = Sampling(max_tokens=NEW_TOKENS, seed=0)
        results = await asyncio.gather(*(generator.generate(p, sampling) for p in prompts))
        assert all(len(row.tokens) == NEW_TOKENS for (row,) in results)

    rate = PROMPTS * NEW_TOKENS / await seconds(step, repeats)
    await generator.close()
    return rate


async def plain_generation(context: BuildContext, prompts: list[list[int]], repeats: int) -> float:
    assert context.model.path is not None
    model = load_model(context.model.path, "bfloat16", "cuda").eval()
    ids = torch.tensor(prompts, device="cuda")

    async def step() -> None:
        with torch.inference_mode():
            model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                do_sample=True,
                top_k=0,
                max_new_tokens=NEW_TOKENS,
                min_new_tokens=NEW_TOKENS,
                pad_token_id=0,
            )

    return PROMPTS * NEW_TOKENS / await seconds(step, repeats)


async def forge_training(
    context: BuildContext, rows: list[list[int]], repeats: int
) -> tuple[float, float]:
    sequences = [TrainSequence(row, [False] + [True] * (len(row) - 1)) for row in rows]
    component = Forge().plugins.catalog.get("trainer", "torch")
    trainer = component.build(component.settings(), context)

    async def step() -> None:
        await trainer.train_step([sequences])

    result = await rate_and_peak(step, rows, repeats)
    await trainer.close()
    return result


async def plain_training(
    context: BuildContext, rows: list[list[int]], repeats: int
) -> tuple[float, float]:
    assert context.model.path is not None
    model = load_model(context.model.path, "bfloat16", "cuda").train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    batch = [torch.tensor(row) for row in rows]
    ids = torch.nn.utils.rnn.pad_sequence(batch, batch_first=True).cuda()
    labels = torch.nn.utils.rnn.pad_sequence(batch, batch_first=True, padding_value=-100).cuda()

    async def step() -> None:
        logits = model(input_ids=ids, attention_mask=(labels != -100).long()).logits
        loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        loss.item()

    return await rate_and_peak(step, rows, repeats)


async def rate_and_peak(
    step: Callable[[], Awaitable[object]], rows: list[list[int]], repeats: int
) -> tuple[float, float]:
    """Real tokens per second, and peak GiB."""
    torch.cuda.reset_peak_memory_stats()
    rate = sum(map(len, rows)) / await seconds(step, repeats)
    return rate, torch.cuda.max_memory_allocated() / 2**30


def forget() -> None:
    """Let go of what the last measurement held."""
    gc.collect()
    torch.cuda.empty_cache()


async def weight_sync(context: BuildContext, repeats: int) -> tuple[float, float]:
    """Seconds of publish and of update, and GiB moved."""
    catalog = Forge().plugins.catalog
    trainer_component = catalog.get("trainer", "torch")
    generator_component = catalog.get("generator", "torch")
    trainer = trainer_component.build(trainer_component.settings(), context)
    generator = generator_component.build(generator_component.settings(), context)
    version = 0
    size = 0

    async def sync() -> None:
        nonlocal version, size
        manifest = await trainer.publish(version)
        held = await generator.update_weights(manifest)
        assert held.checksum == manifest.checksum
        version, size = version + 1, manifest.bytes

    whole = await seconds(sync, repeats)
    await generator.close()
    await trainer.close()
    return whole, size / 2**30


async def compare(folder: Path, repeats: int) -> None:
    context = context_for(folder)
    numbers = random.Random(0)
    vocabulary = range(VOCABULARY)
    prompts = [numbers.choices(vocabulary, k=PROMPT_TOKENS) for _ in range(PROMPTS)]
    lengths = [numbers.randint(SHORTEST, LONGEST) for _ in range(SEQUENCES)]
    rows = [numbers.choices(vocabulary, k=length) for length in lengths]
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, Qwen3 0.6B shape, bfloat16")
    ours = await forge_generation(context, prompts, repeats)
    forget()
    theirs = await plain_generation(context, prompts, repeats)
    forget()
    show("generation", "tok/s", ours, theirs)
    our_rate, our_peak = await forge_training(context, rows, repeats)
    forget()
    their_rate, their_peak = await plain_training(context, rows, repeats)
    forget()
    show("training", "tok/s", our_rate, their_rate)
    show("training peak", "GiB", our_peak, their_peak)
    whole, size = await weight_sync(context, repeats)
    print(f"weight sync     {whole:.3f} s for {size:.2f} GiB, checksums of both sides included")


def show(what: str, unit: str, ours: float, theirs: float) -> None:
    ratio = ours / theirs
    print(f"{what:<15} forge {ours:12,.1f}  plain {theirs:12,.1f} {unit:<6} ratio {ratio:.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description="one GPU: Forge beside plain transformers, torch")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--layers", type=int, default=28)
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("this benchmark needs a CUDA device")
    with tempfile.TemporaryDirectory() as folder:
        make_model(Path(folder), arguments.layers)
        asyncio.run(compare(Path(folder), arguments.repeats))


if __name__ == "__main__":
    main()
