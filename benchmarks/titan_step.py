"""SFT tokens per second of trainer `titan` against TorchTitan's own training step.

    python benchmarks/titan_step.py [--steps N] [--repeats N] [--threads N] [--json FILE]

Both train the same Qwen3 from the same folder on the same batch: rows of equal length, one
sequence each, every token trained, float32, AdamW, clipping. TorchTitan's side is
`torchtitan.trainer.Trainer` itself with its cross-entropy and its scaled-dot-product attention, the
fastest it has on CPU. Each side runs in a process of its own, in alternation; the figure is the
ratio of the medians (above 1: trainer `titan` is faster). Losses of the last step are compared, so
that both are seen to do the same work.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any

SIDES = ("forge", "torchtitan")


def main() -> None:
    arguments = parse()
    if arguments.side:
        print(json.dumps(measure(arguments)))
        return
    with tempfile.TemporaryDirectory() as folder:
        make_model(Path(folder), arguments)
        runs: dict[str, list[dict[str, Any]]] = {side: [] for side in SIDES}
        for _ in range(arguments.repeats):
            for side in SIDES:
                runs[side].append(run_side(side, folder, arguments))
    rates = {side: median(run["tokens_per_second"] for run in runs[side]) for side in SIDES}
    losses = {side: runs[side][0]["loss"] for side in SIDES}
    ratio = rates["forge"] / rates["torchtitan"]
    for side in SIDES:
        print(f"{side:<12}{rates[side]:>10,.0f} tokens/s   last loss {losses[side]:.6f}")
    print(f"{'ratio':<12}{ratio:>10.3f}")
    if abs(losses["forge"] - losses["torchtitan"]) > 1e-3:
        sys.exit("the losses differ: this is no comparison")
    if arguments.json:
        arguments.json.write_text(json.dumps({"ratio": ratio, "rates": rates, "runs": runs}))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=20, help="timed steps")
    parser.add_argument("--warmup", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=3, help="processes of each side")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    parser.add_argument("--model", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


def run_side(side: str, folder: str, arguments: argparse.Namespace) -> dict[str, Any]:
    names = ("steps", "warmup", "threads", "rows", "length", "hidden", "layers")
    options = [f"--{name}={getattr(arguments, name)}" for name in names]
    result = subprocess.run(
        [sys.executable, __file__, f"--side={side}", f"--model={folder}", *options],
        env={**os.environ, "OMP_NUM_THREADS": str(arguments.threads)},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    measured: dict[str, Any] = json.loads(result.stdout.splitlines()[-1])
    return measured


def make_model(folder: Path, arguments: argparse.Namespace) -> None:
    from forge_core import ModelInit, ModelSection
    from forge_models.folder import materialize

    config = {
        "hidden_size": arguments.hidden,
        "num_hidden_layers": arguments.layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "intermediate_size": 3 * arguments.hidden,
        "max_position_embeddings": arguments.length,
        "tie_word_embeddings": False,
    }
    characters = "".join(map(chr, range(256, 256 + 4094)))
    materialize(ModelSection(init=ModelInit(characters=characters, config=config)), folder, 0)


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    import torch

    torch.set_num_threads(arguments.threads)
    generator = torch.Generator().manual_seed(0)
    shape = (arguments.rows, arguments.length)
    tokens = torch.randint(2, 4096, shape, generator=generator)
    step = (forge_side if arguments.side == "forge" else torchtitan_side)(arguments, tokens)
    for _ in range(arguments.warmup):
        step()
    seconds = []
    for _ in range(arguments.steps):
        started = time.perf_counter()
        loss = step()
        seconds.append(time.perf_counter() - started)
    return {"tokens_per_second": tokens.numel() / median(seconds), "loss": loss}


def forge_side(arguments: argparse.Namespace, tokens: Any) -> Any:
    import asyncio

    from forge_core import (
        BuildContext,
        DistributedSection,
        ModelSection,
        Selection,
        TrainingSection,
        TrainSequence,
    )
    from forge_optim.plugin import ADAMW
    from forge_sft.plugin import forge_losses
    from forge_titan.plugin import TRAINER
    from forge_titan.settings import TitanTrainerSettings

    (loss,) = forge_losses()
    context = BuildContext(
        model=ModelSection(path=arguments.model),
        training=TrainingSection(learning_rate=1e-3, steps=10_000),
        optimizer=Selection(
            family="optimizer", component=ADAMW, settings=ADAMW.settings(betas=(0.9, 0.95))
        ),
        distributed=DistributedSection(),
        loss=Selection(family="loss", component=loss, settings=loss.settings()),
    )
    trainer = TRAINER.build(TitanTrainerSettings(device="cpu"), context)
    mask = [False] + [True] * (arguments.length - 1)
    rows = [TrainSequence(row, mask) for row in tokens.tolist()]
    return lambda: asyncio.run(trainer.train_step([rows])).loss


def torchtitan_side(arguments: argparse.Namespace, tokens: Any) -> Any:
    import dataclasses

    os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    from torchtitan.components import metrics
    from torchtitan.components.checkpointer import CheckpointManager
    from torchtitan.components.loss import IGNORE_INDEX, CrossEntropyLoss
    from torchtitan.components.optimizer import LRSchedulersContainer, default_adamw
    from torchtitan.config import CommConfig, DebugConfig, ParallelismConfig, TrainingConfig
    from torchtitan.models.common.attention import ScaledDotProductAttention
    from torchtitan.trainer import Trainer

    from forge_titan import cpu, torchtitan_api  # noqa: F401  (TorchTitan without an accelerator)
    from forge_titan.attention import PackedAttention
    from forge_titan.model_spec import model_spec

    spec = model_spec(arguments.model)
    for _, _, parent, name in list(spec.model.traverse(PackedAttention.Config)):
        setattr(parent, name, ScaledDotProductAttention.Config())

    def spread(model: Any, **how: Any) -> Any:
        model = spec.parallelize_fn(model, **how)
        cpu.sum_gradients(model)
        return model

    training = TrainingConfig(
        local_batch_size=arguments.rows,
        seq_len=arguments.length,
        steps=10_000,
        disable_cuda_graphs=True,
        mixed_precision_param="float32",
    )
    config = Trainer.Config(
        model_spec=dataclasses.replace(spec, parallelize_fn=spread),
        dump_folder=str(arguments.model / "titan"),
        tokenizer=tokenizer_config(),
        dataloader=loader_config(),
        loss=CrossEntropyLoss.Config(global_vocab_size=spec.model.vocab_size),
        optimizer=dataclasses.replace(
            default_adamw(lr=1e-3, weight_decay=0.0), implementation="fused"
        ),
        lr_scheduler=LRSchedulersContainer.Config(warmup_steps=0, decay_ratio=0.0),
        training=training,
        parallelism=ParallelismConfig(spmd_backend="partial_dtensor"),
        checkpoint=CheckpointManager.Config(enable=False),
        activation_checkpoint=None,
        comm=CommConfig(trace_buf_size=0),
        debug=DebugConfig(seed=0, enable_structured_logging=False),
    )
    metrics.build_device_memory_monitor = NoMonitor  # it asks CUDA
    trainer = Trainer(config)
    trainer.metrics_processor.should_log = lambda step: False
    load_hf_weights(trainer, spec, arguments.model)
    labels = tokens.roll(-1, 1)
    labels[:, -1] = IGNORE_INDEX
    seen: list[float] = []
    trainer.loss_fn = Remembering(trainer.loss_fn, seen)

    def batches() -> Any:
        while True:
            yield {"input": tokens}, labels.clone()

    data = batches()

    def step() -> float:
        trainer.step += 1
        trainer.gc_handler.run(trainer.step)
        trainer.train_step(data)
        return seen[-1]

    return step


class NoMonitor:
    """Stands where TorchTitan watches a device's memory."""

    device_name = "CPU"

    def reset_peak_stats(self) -> None:
        pass

    def get_peak_stats(self) -> Any:
        return SimpleNamespace(max_reserved_gib=0.0, max_reserved_pct=0.0)


class Remembering:
    """TorchTitan's loss, whose values it would only log."""

    def __init__(self, loss: Any, seen: list[float]) -> None:
        self._loss, self._seen = loss, seen

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        loss, metrics = self._loss(*args, **kwargs)
        self._seen.append(float(loss.detach()))
        return loss, metrics


def load_hf_weights(trainer: Any, spec: Any, folder: Path) -> None:
    import torch
    from safetensors.torch import load_file

    adapter = spec.state_dict_adapter(spec.model, None)
    given = adapter.from_hf(load_file(folder / "model.safetensors"))
    (model,) = trainer.model_parts
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            local = parameter.to_local() if hasattr(parameter, "to_local") else parameter
            local.copy_(given[name])


def tokenizer_config() -> Any:
    from dataclasses import dataclass

    from torchtitan.components.tokenizer import BaseTokenizer

    class NoTokenizer(BaseTokenizer):
        @dataclass(kw_only=True, slots=True)
        class Config(BaseTokenizer.Config):
            pass

        def __init__(self, config: Any, **kwargs: Any) -> None:
            super().__init__()
            self.eos_id = 1

        def encode(self, *args: Any, **kwargs: Any) -> list[int]:
            raise NotImplementedError

        def decode(self, *args: Any, **kwargs: Any) -> str:
            raise NotImplementedError

        def get_vocab_size(self) -> int:
            return 4096

    return NoTokenizer.Config()


def loader_config() -> Any:
    from dataclasses import dataclass

    from torchtitan.components.dataloader import BaseDataLoader

    class NoLoader(BaseDataLoader):
        @dataclass(kw_only=True, slots=True)
        class Config(BaseDataLoader.Config):
            pass

        def __init__(self, config: Any, **kwargs: Any) -> None:
            pass

        def __iter__(self) -> Any:
            raise NotImplementedError

        def state_dict(self) -> dict[str, Any]:
            return {}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            pass

    return NoLoader.Config()


if __name__ == "__main__":
    main()
