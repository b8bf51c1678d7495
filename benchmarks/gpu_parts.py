"""The parts of ``benchmarks/gpu.py``, each run in a process of its own.

    python benchmarks/gpu_parts.py NAME '{"device": "cuda", "models": FOLDER, ...}'

A part prints one line of JSON for each thing it measured.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from gpu_models import make, operations, rows

from forge_core import (
    BuildContext,
    Component,
    DistributedSection,
    ModelSection,
    Sampling,
    Selection,
    TrainingSection,
    TrainSequence,
)
from forge_models.folder import load_model
from forge_tensors.accumulate import fuses
from forge_tensors.chunks import CPU_BYTES
from forge_tensors.logprobs import chunk_bytes_on, token_logprobs
from forge_tensors.named_weights import named_weights
from forge_tensors.variable_length import trouble
from forge_testing.context import bare_context

REPEATS = 4
MIB = 2**20


class Bench:
    """What a part is run with.

    Args:
        device: ``cuda`` or ``cpu``.
        models: folder with the models' folders.
        peak: bfloat16 operations per second that a large matrix product reached here, if known.
        tiny: small sizes, to try the code.
    """

    def __init__(self, device: str, models: str, peak: float | None, tiny: bool) -> None:
        self.device, self.models, self.peak, self.tiny = device, Path(models), peak, tiny

    def model(self, shape: str) -> Path:
        return self.models / ("tiny" if self.tiny else shape)

    def size(self, full: int, tiny: int) -> int:
        return tiny if self.tiny else full

    def wait(self) -> None:
        if self.device == "cuda":
            torch.cuda.synchronize()

    def time(self, call: Callable[[], Any], repeats: int = REPEATS, warm_up: int = 2) -> float:
        """Median seconds of a call that is finished when the device is."""
        seconds = []
        for _ in range(warm_up + repeats):
            self.wait()
            start = time.perf_counter()
            call()
            self.wait()
            seconds.append(time.perf_counter() - start)
        return statistics.median(seconds[warm_up:])

    def share(self, operations: float, seconds: float) -> float | None:
        """Of what a large matrix product reaches."""
        return round(operations / seconds / self.peak, 3) if self.peak else None

    def memory(self) -> float | None:
        """Most GiB allocated so far."""
        if self.device != "cuda":
            return None
        return round(torch.cuda.max_memory_allocated() / 2**30, 1)

    def context(self, shape: str, dtype: str, precision: Any, **more: Any) -> BuildContext:
        folder = self.model(shape)
        return bare_context(
            folder,
            model=ModelSection.model_validate({"path": folder, "dtype": dtype}),
            distributed=DistributedSection(precision=precision),
            training=TrainingSection(learning_rate=1e-6, steps=1000),
            **more,
        )


def say(**what: Any) -> None:
    print(json.dumps({key: value for key, value in what.items() if value is not None}), flush=True)


def selected(family: str, component: Component[Any], **settings: Any) -> Selection[Any]:
    parsed = component.settings.model_validate(settings)
    return Selection(family=family, component=component, settings=parsed)


def facts(bench: Bench) -> None:
    """The machine: its torch, which kernels work, what a matrix product and a copy reach."""
    from torch.nn.attention.varlen import varlen_attn

    device = torch.device(bench.device)
    say(
        what="software",
        python=sys.version.split()[0],
        torch=torch.__version__,
        gpu=torch.cuda.get_device_name() if bench.device == "cuda" else None,
        varlen_attn=list(inspect.signature(varlen_attn).parameters),
        varlen_attn_trouble=trouble(device) or "none",
        adds_products_in_float32=fuses(device, torch.bfloat16, torch.float32),
        chunk_mib=chunk_bytes_on(device) // MIB,
    )
    n = bench.size(8192, 128)
    left = torch.randn(n, n, device=device, dtype=torch.bfloat16)
    seconds = bench.time(lambda: left @ left, repeats=10)
    say(what="matrix product, bfloat16", flops=2 * n**3 / seconds, seconds=seconds)
    source = torch.randint(255, (bench.size(2**31, 2**20),), dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    seconds = bench.time(lambda: target.copy_(source))
    say(what="copy on the device", gb_per_s=round(2 * source.nbytes / seconds / 1e9, 1))
    host = torch.empty(source.numel() // 2, dtype=torch.uint8)
    seconds = bench.time(lambda: host.copy_(source[: host.numel()]))
    say(what="copy to the host, pageable", gb_per_s=round(host.nbytes / seconds / 1e9, 1))


def models(bench: Bench) -> None:
    """Model folders for the other parts."""
    for shape in ("tiny",) if bench.tiny else ("0.6b", "1.7b"):
        start = time.perf_counter()
        count = make(shape, bench.models / shape, bench.device)
        say(what=shape, parameters=count, seconds=round(time.perf_counter() - start, 1))


def logprobs(bench: Bench) -> None:
    """The head at 32,768 tokens, in chunks of a CPU's and of this device's size."""
    n, hidden, words = (bench.size(*s) for s in ((32_768, 256), (2048, 32), (151_936, 1024)))
    x = torch.randn(n, hidden, device=bench.device, dtype=torch.bfloat16, requires_grad=True)
    weight = (torch.randn(words, hidden, device=bench.device) * 0.02).requires_grad_()
    targets = torch.randint(words, (n,), device=bench.device)
    for most in dict.fromkeys((CPU_BYTES, chunk_bytes_on(x.device))):

        def step(most: int = most) -> None:
            with torch.autocast(bench.device, dtype=torch.bfloat16):
                values = token_logprobs(x, weight, targets, most_bytes=most).logprobs
            values.sum().backward()

        seconds = bench.time(step, repeats=3, warm_up=1)
        say(
            what=f"{n} tokens, chunks of {most // MIB} MiB",
            seconds=round(seconds, 4),
            tokens_per_s=round(n / seconds),
            share_of_peak=bench.share(8 * n * hidden * words, seconds),
            memory_gib=bench.memory(),
        )


def sft(bench: Bench, shape: str, way: str) -> None:
    """A step of supervised training on 16,384 tokens in rows of 256 to 2,048."""
    batch = _rows(bench, shape)
    if way == "hand":
        step = _hand_loop(bench, shape, batch)
    else:
        from forge_sft.plugin import forge_losses

        sequences = [TrainSequence(row, [False] + [True] * (len(row) - 1)) for row in batch]
        step = _trainer_step(bench, shape, way, next(iter(forge_losses())), sequences)
    _report(bench, shape, f"sft, {way}", batch, bench.time(step))


def grpo(bench: Bench, shape: str, way: str) -> None:
    """A step of GRPO on the same rows, whose second halves are completions."""
    from forge_grpo.plugin import forge_losses

    batch = _rows(bench, shape)
    sequences = []
    for index, row in enumerate(batch):
        prompt = len(row) // 2
        mask = [False] * prompt + [True] * (len(row) - prompt)
        fields = {"advantages": (-1.0) ** index, "sampler_logprobs": [-12.0] * len(row)}
        sequences.append(TrainSequence(row, mask, fields))
    loss = next(component for component in forge_losses() if component.name == "grpo")
    seconds = bench.time(_trainer_step(bench, shape, way, loss, sequences))
    _report(bench, shape, f"grpo, {way}", batch, seconds)


def _rows(bench: Bench, shape: str) -> list[list[int]]:
    lengths = (4, 32) if bench.tiny else (256, 2048)
    return rows(bench.model(shape), bench.size(16_384, 256), lengths)


def _report(bench: Bench, shape: str, what: str, batch: list[list[int]], seconds: float) -> None:
    tokens = sum(map(len, batch))
    say(
        what=f"{what}, {bench.model(shape).name}",
        seconds=round(seconds, 4),
        tokens_per_s=round(tokens / seconds),
        share_of_peak=bench.share(operations(bench.model(shape), batch), seconds),
        memory_gib=bench.memory(),
    )


def _trainer_step(
    bench: Bench, shape: str, way: str, loss: Component[Any], sequences: list[TrainSequence]
) -> Callable[[], Any]:
    if way == "titan":
        from forge_titan.plugin import TRAINER
    else:
        from forge_torch.plugin import TRAINER
    context = bench.context(shape, "float32", "bf16", loss=selected("loss", loss))
    trainer = selected("trainer", TRAINER, device=bench.device).build(context)
    return lambda: asyncio.run(trainer.train_step([sequences]))


def _hand_loop(bench: Bench, shape: str, batch: list[list[int]]) -> Callable[[], None]:
    """What one would write by hand: transformers, padded rows of similar length, autocast."""
    model = load_model(bench.model(shape), "float32", bench.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, fused=bench.device == "cuda")
    ordered = sorted((torch.tensor(row) for row in batch), key=len)
    groups = []
    for start in range(0, len(ordered), 4):
        part = ordered[start : start + 4]
        tokens = torch.nn.utils.rnn.pad_sequence(part, batch_first=True).to(bench.device)
        lengths = torch.tensor([len(row) for row in part], device=bench.device)
        mask = torch.arange(tokens.shape[1], device=bench.device) < lengths[:, None]
        groups.append((tokens, mask))
    count = sum(map(len, batch)) - len(batch)

    def step() -> None:
        for tokens, mask in groups:
            with torch.autocast(bench.device, dtype=torch.bfloat16):
                output = model.base_model(input_ids=tokens, attention_mask=mask, use_cache=False)
                keep = mask[:, 1:]
                logits = model.get_output_embeddings()(output.last_hidden_state[:, :-1][keep])
            loss = F.cross_entropy(logits.float(), tokens[:, 1:][keep], reduction="sum") / count
            del logits
            loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return step


def decode(bench: Bench, shape: str, batch: str) -> None:
    """Generator ``torch``: that many rows in groups of eight, 128 new tokens each."""
    from forge_torch.plugin import GENERATOR

    count, new = bench.size(int(batch), 16), bench.size(128, 8)
    generator = selected("generator", GENERATOR, device=bench.device).build(
        bench.context(shape, "bfloat16", "fp32")
    )
    length = bench.size(128, 8)
    prompts = rows(bench.model(shape), count // 8 * length, (length, length))

    async def sample(tokens: int) -> None:
        await asyncio.gather(
            *(
                generator.generate(prompt, Sampling(n=8, max_tokens=tokens, seed=index))
                for index, prompt in enumerate(prompts)
            )
        )

    async def measure() -> None:
        await sample(4)
        before = dict(await generator.stats())
        bench.wait()
        start = time.perf_counter()
        await sample(new)
        bench.wait()
        seconds = time.perf_counter() - start
        after = await generator.stats()
        say(
            what=f"decode, {bench.model(shape).name}, {count} rows",
            ms_per_step=round(1000 * seconds / (after["steps"] - before["steps"]), 2),
            tokens_per_s=round((after["tokens"] - before["tokens"]) / seconds),
            memory_gib=bench.memory(),
        )
        await generator.close()

    asyncio.run(measure())


def mismatch(bench: Bench, shape: str) -> None:
    """How far generator ``torch`` and trainer ``torch`` are apart on what the generator sampled."""
    for kind, precision in (("float32", "fp32"), ("bfloat16", "bf16")):
        gaps = torch.tensor(asyncio.run(_gaps(bench, shape, kind, precision)), dtype=torch.float64)
        say(
            what=f"mismatch, {kind}, {bench.model(shape).name}",
            tokens=gaps.numel(),
            abs_mean=float(gaps.abs().mean()),
            abs_max=float(gaps.abs().max()),
            kl=float((gaps.expm1() - gaps).mean()),
        )


async def _gaps(bench: Bench, shape: str, kind: str, precision: str) -> list[float]:
    """The trainer's logprob less the generator's, of each token that the generator sampled."""
    from forge_torch.plugin import GENERATOR, TRAINER

    generator = selected("generator", GENERATOR, device=bench.device).build(
        bench.context(shape, kind, "fp32")
    )
    trainer = selected("trainer", TRAINER, device=bench.device).build(
        bench.context(shape, "float32", precision)
    )
    prompts = rows(bench.model(shape), bench.size(2048, 64), (8, bench.size(256, 16)))
    sampling = Sampling(n=4, max_tokens=bench.size(128, 8), seed=0)
    answers = await asyncio.gather(*(generator.generate(prompt, sampling) for prompt in prompts))
    sequences, sampled = [], []
    for prompt, completions in zip(prompts, answers, strict=True):
        for completion in completions:
            mask = [False] * len(prompt) + [True] * len(completion.tokens)
            sequences.append(TrainSequence([*prompt, *completion.tokens], mask))
            sampled.append(completion.logprobs)
    scored = await trainer.logprobs(sequences)
    await generator.close()
    return [
        theirs - ours
        for row, own in zip(scored, sampled, strict=True)
        for theirs, ours in zip(row[-len(own) :], own, strict=True)
    ]


def update(bench: Bench, shape: str) -> None:
    """Weights from this process into another one's on the same device, with both checksums."""
    name = "cuda_ipc" if bench.device == "cuda" else "shm"
    model = load_model(bench.model(shape), "bfloat16", bench.device)
    channel = f"bench/{os.getpid()}"
    reader = subprocess.Popen(
        [sys.executable, __file__, "reader", json.dumps([name, channel, bench.device])],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert reader.stdin is not None
    assert reader.stdout is not None
    asked, answers = reader.stdin, reader.stdout

    async def publish() -> None:
        transport = _transport(name, channel)
        for version in range(4):
            bench.wait()
            start = time.perf_counter()
            manifest = await transport.publish(version, named_weights(model).items())
            published = time.perf_counter() - start
            asked.write(f"{version}\n")
            asked.flush()
            there = json.loads(answers.readline())
            if version == 3:  # buffers are there and open
                say(
                    what=f"update by {name}, {bench.model(shape).name}",
                    gb=round(manifest.bytes / 1e9, 2),
                    publish_s=round(published, 4),
                    copy_s=there["copy_s"],
                    checksum_s=there["checksum_s"],
                    same=there["checksum"] == manifest.checksum,
                )
            await transport.drop(version - 1)
        asked.close()
        reader.wait(20)
        await transport.close()

    asyncio.run(publish())


def _transport(name: str, channel: str) -> Any:
    from forge_torch.transports.cuda_ipc import CudaIpcTransport
    from forge_torch.transports.shm import ShmTransport

    return (CudaIpcTransport if name == "cuda_ipc" else ShmTransport)(channel)


def read(name: str, channel: str, device: str) -> None:
    """The other end of ``update``: fetch each version that is named on standard input."""
    from forge_tensors.checksum import checksum

    bench = Bench(device, "", None, False)

    async def fetch() -> None:
        transport = _transport(name, channel)
        held: dict[str, torch.Tensor] = {}
        for line in sys.stdin:
            start = time.perf_counter()
            async for name_, tensor in transport.fetch(int(line)):
                if name_ in held:
                    held[name_].copy_(tensor)
                else:
                    held[name_] = tensor.to(device, copy=True)
            bench.wait()
            copied = time.perf_counter()
            total = checksum(held.items())
            weighed = time.perf_counter()
            say(
                copy_s=round(copied - start, 4),
                checksum_s=round(weighed - copied, 4),
                checksum=total,
            )
        await transport.close()

    asyncio.run(fetch())


PARTS: dict[str, Callable[..., None]] = {
    "facts": facts,
    "models": models,
    "logprobs": logprobs,
    "sft": sft,
    "grpo": grpo,
    "decode": decode,
    "mismatch": mismatch,
    "update": update,
}


if __name__ == "__main__":
    if sys.argv[1] == "reader":
        read(*json.loads(sys.argv[2]))
    else:
        part, *rest = sys.argv[1].split(":")
        PARTS[part](Bench(**json.loads(sys.argv[2])), *rest)
