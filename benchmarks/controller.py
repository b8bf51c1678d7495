"""What the controller costs: whole GRPO runs whose generator and trainer cost nothing.

    python benchmarks/controller.py [--episodes N] [--steps N] [--repeats N] [--json FILE]

Generator, trainer and reward are a few lines each; everything else is Forge's: services, rollouts,
the environment under its deadline, decoding, rewards in their process, the weight handshake, hooks,
the run's record. Once in one process, once with generator and trainer in processes of their own;
once at 2,048 tokens an episode, for tokens a second, once at 64, for microseconds an episode.

A figure is the median of a run's steps after the first few; of the repeats the best, because
everything else that this machine does only adds. `CPU` is the processor time of this process in
all those steps, the garbage collector's included: it depends less on what else runs. `decoding` is
what making the text of a completion takes by itself, and `without it` the figure with that time
taken off: what reads text pays for it. `kept` is what an episode's token data hold in memory, over
its tokens.

Run it on an idle machine.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
import timeit
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase, Qwen3Config, Qwen3ForCausalLM

from forge_core import (
    BuildContext,
    Completion,
    Component,
    DatasetComponent,
    Episode,
    FloatArray,
    Forge,
    GeneratorComponent,
    RewardComponent,
    RewardSample,
    Sampling,
    Settings,
    StepResult,
    Task,
    TrainerComponent,
    TrainSequence,
    WeightManifest,
    hookimpl,
)
from forge_models.decoding import decode_all
from forge_testing.byte_tokenizer import byte_tokenizer

GROUP = 8
PROMPT = 64
OBJECT = sys.getsizeof(np.zeros(0))
"""Bytes of an array besides its numbers."""
TEXT = (65, 90)
"""Tokens that are sampled, so that completions are text."""


class Generator:
    """Says the same random tokens to everything; a copy for each completion, as from an engine."""

    def __init__(self, settings: Settings, context: BuildContext) -> None:
        rng = np.random.default_rng(0)
        self.tokens = rng.integers(*TEXT, 1 << 16, dtype=np.int32)
        self.logprobs = -rng.random(1 << 16, dtype=np.float32)
        self.versions = np.zeros(1 << 16, np.int32)

    async def generate(self, prompt: Sequence[int], sampling: Sampling) -> list[Completion]:
        count = sampling.max_tokens
        return [
            Completion(
                self.tokens[index : index + count].copy(),
                self.logprobs[index : index + count].copy(),
                self.versions[:count].copy(),
                "stop",
            )
            for index in range(sampling.n)
        ]

    async def update_weights(self, manifest: WeightManifest) -> WeightManifest:
        self.versions[:] = manifest.version
        return manifest

    async def stats(self) -> Mapping[str, float]:
        return {}

    async def close(self) -> None:
        pass


class Trainer:
    """Counts what it is given."""

    def __init__(self, settings: Settings, context: BuildContext) -> None:
        pass

    async def train_step(
        self, micro_batches: Sequence[Sequence[TrainSequence]], *, temperature: float = 1.0
    ) -> StepResult:
        sequences = [sequence for batch in micro_batches for sequence in batch]
        return StepResult(
            loss=0.0,
            grad_norm=0.0,
            learning_rate=0.0,
            tokens=sum(len(sequence.tokens) for sequence in sequences),
            trained_tokens=sum(int(np.count_nonzero(s.loss_mask)) for s in sequences),
        )

    async def logprobs(
        self,
        sequences: Sequence[TrainSequence],
        *,
        reference: bool = False,
        temperature: float = 1.0,
    ) -> list[FloatArray]:
        return [np.zeros(len(sequence.tokens), np.float32) for sequence in sequences]

    async def hold_reference(self) -> None:
        pass

    async def publish(self, version: int) -> WeightManifest:
        return WeightManifest(version, f"{version:032x}", 1, 1)

    async def save(self, folder: Path) -> None:
        (folder / "nothing").touch()

    async def load(self, folder: Path) -> None:
        pass

    async def close(self) -> None:
        pass


def sevens(sample: RewardSample) -> float:
    return float(sample.completion_length + len(sample.completion) % 7)


class Free:
    """A plugin: the parts that cost nothing, and a clock at the end of each step."""

    def __init__(self) -> None:
        self.ends: list[float] = []
        self.cpu: list[float] = []
        self.kept = 0.0

    @hookimpl
    def forge_generators(self) -> Iterable[Component[Any]]:
        yield GeneratorComponent(
            name="free", settings=Settings, build=Generator, summary="costs nothing"
        )

    @hookimpl
    def forge_trainers(self) -> Iterable[Component[Any]]:
        yield TrainerComponent(
            name="free", settings=Settings, build=Trainer, summary="costs nothing"
        )

    @hookimpl
    def forge_datasets(self) -> Iterable[Component[Any]]:
        yield DatasetComponent(
            name="free",
            settings=Settings,
            build=lambda settings, context: [
                Task(id=str(index), prompt=f"{index:{PROMPT}}") for index in range(1024)
            ],
            summary="short prompts",
        )

    @hookimpl
    def forge_rewards(self) -> Iterable[Component[Any]]:
        yield RewardComponent(
            name="sevens",
            settings=Settings,
            build=lambda settings, context: sevens,
            summary="looks at the text",
        )

    @hookimpl
    def forge_episode_finished(self, episode: Episode) -> None:
        if not self.kept:
            self.kept = bytes_kept(episode) / len(episode.tokens)

    @hookimpl
    def forge_step_finished(self, record: Any) -> None:
        self.ends.append(time.perf_counter())
        self.cpu.append(time.process_time())


def bytes_kept(episode: Episode) -> int:
    """Bytes of all arrays that an episode's turns hold, those that are shared counted once."""
    arrays = [turn.tokens for turn in episode.turns]
    for turn in episode.turns:
        if turn.completion is not None:
            said = turn.completion
            arrays += [said.tokens, said.logprobs, said.versions]
    held = {id(array): array for array in arrays}
    return sum(array.nbytes + OBJECT for array in held.values())


def make_model(folder: Path) -> PreTrainedTokenizerBase:
    """A model folder as small as one can be, with a tokenizer of bytes."""
    tokenizer = byte_tokenizer()
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=8,
        intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=1,
        num_key_value_heads=1,
        head_dim=8,
        max_position_embeddings=4096,
    )
    Qwen3ForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return tokenizer


@dataclass(frozen=True)
class Figure:
    """Of one run: seconds an episode, processor seconds of them, and bytes a token."""

    seconds: float
    cpu: float
    kept: float


def measure(model: Path, folder: Path, length: int, isolate: bool, options: Any) -> Figure:
    plugin = Free()
    Forge(plugins=[plugin]).run(
        {
            "model": {"path": str(model)},
            "recipe": {"use": "grpo", "group_size": GROUP, "zero_variance": "keep"},
            "loss": {"use": "grpo"},
            "dataset": {"use": "free"},
            "generator": {"use": "free", "isolate": isolate, "replicas": 1},
            "trainer": {"use": "free", "isolate": isolate},
            "rewards": {"sevens": {}},
            "sampling": {"max_tokens": length},
            "training": {
                "steps": options.warmup + options.steps,
                "batch_size": options.episodes,
                "learning_rate": 0.1,
            },
            "trackers": {"console": None},
            "checkpointing": {"output_dir": str(folder)},
        }
    )
    ends = plugin.ends[options.warmup - 1 :]
    seconds = median(after - before for before, after in pairwise(ends))
    cpu = (plugin.cpu[-1] - plugin.cpu[options.warmup - 1]) / options.steps
    return Figure(seconds / options.episodes, cpu / options.episodes, plugin.kept)


def decoding(tokenizer: PreTrainedTokenizerBase, length: int) -> float:
    """Seconds that the text of one completion takes, made for a group at a time."""
    rng = np.random.default_rng(0)
    rows = [rng.integers(*TEXT, length, dtype=np.int32) for _ in range(GROUP)]
    said = partial(decode_all, rows, tokenizer)
    return min(timeit.repeat(said, number=1, repeat=200)) / GROUP


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=12, help="timed steps of a run")
    parser.add_argument("--warmup", type=int, default=3, help="steps before them")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each kind")
    parser.add_argument("--episodes", type=int, default=512, help="of a step")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    found = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tokenizer = make_model(folder / "model")
        for isolate in (False, True):
            for length in (2048, 64):
                runs = [
                    measure(folder / "model", folder / "runs", length, isolate, options)
                    for _ in range(options.repeats)
                ]
                best = min(run.seconds for run in runs)
                cpu = min(run.cpu for run in runs)
                text = decoding(tokenizer, length)
                where = "isolated" if isolate else "one process"
                found[f"{where}, {length}"] = {
                    "tokens_per_second": length / best,
                    "microseconds_per_episode": best * 1e6,
                    "cpu_microseconds_per_episode": cpu * 1e6,
                    "decoding_microseconds": text * 1e6,
                    "bytes_per_token": runs[0].kept,
                }
                rest = best - text
                print(
                    f"{where:12} {length:5} tokens: {length / best / 1e6:6.2f} M tokens/s, "
                    f"{best * 1e6:7.1f} us/episode, CPU {cpu * 1e6:.1f} us; "
                    f"decoding {text * 1e6:.1f} us, without it "
                    f"{length / rest / 1e6:6.2f} M tokens/s, {rest * 1e6:.1f} us; "
                    f"{runs[0].kept:.1f} bytes a token kept",
                    flush=True,
                )
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
