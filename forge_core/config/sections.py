"""The shared sections of a config: what they hold, their units and defaults.

A component's own settings stand beside the component; here is only what several share.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator

from forge_core.component import Settings


class ModelInit(Settings):
    """A model made from a seed instead of loaded: for tests, examples and from-scratch training."""

    architecture: str = Field("qwen3", description="transformers model type, such as qwen3, llama")
    config: dict[str, Any] = Field(
        default_factory=dict, description="fields of that architecture's transformers config"
    )
    characters: str = Field(
        description="alphabet of a character tokenizer made with the model; one token each"
    )
    seed: int | None = Field(None, description="seed of the weights; default: training.seed")


class ModelSection(Settings):
    """The policy's weights and tokenizer, always a folder in Hugging Face layout in the end."""

    name: str = Field("", description="model name; also selects a model preset of that name")
    path: Path | None = Field(None, description="folder in Hugging Face layout")
    dtype: Literal["float32", "bfloat16"] = Field("float32", description="type weights are kept in")
    init: ModelInit | None = Field(None, description="make the model from a seed instead")

    @model_validator(mode="after")
    def _one_origin(self) -> ModelSection:
        if self.path is not None and self.init is not None:
            raise ValueError("give path or init, not both")
        return self


class TrainingSection(Settings):
    """The optimizer step, shared by every recipe and trainer."""

    batch_size: int | None = Field(
        None, ge=1, description="sequences in a micro-batch; default: the recipe's choice"
    )
    gradient_accumulation_steps: int = Field(
        1, ge=1, description="micro-batches in an optimizer step"
    )
    learning_rate: float = Field(1e-5, ge=0, description="peak learning rate")
    num_epochs: float | None = Field(None, gt=0, description="passes over the dataset")
    steps: int | None = Field(None, ge=1, description="optimizer steps; takes num_epochs' place")
    warmup_steps: int = Field(0, ge=0, description="steps of linear warmup from 0")
    schedule: Literal["constant", "linear", "cosine"] = Field(
        "constant", description="course of the learning rate after warmup, to 0 at the last step"
    )
    max_grad_norm: float | None = Field(
        1.0, gt=0, description="gradients are scaled down to this norm; null: no clipping"
    )
    weight_decay: float = Field(0.0, ge=0, description="decoupled weight decay of AdamW")
    betas: tuple[float, float] = Field((0.9, 0.999), description="AdamW's moment decay rates")
    seed: int = Field(0, ge=0, description="seed of everything random in the run")

    @model_validator(mode="after")
    def _one_target(self) -> TrainingSection:
        if self.steps is not None and self.num_epochs is not None:
            raise ValueError("give steps or num_epochs, not both")
        return self


class DistributedSection(Settings):
    """How a trainer spreads over its ranks (``trainer.procs``). A trainer refuses what it lacks.

    Degrees multiply to the number of ranks: replicate x shard x tensor x pipeline x context. Expert
    parallelism takes its ranks from the shard, context and tensor degrees.
    """

    strategy: Literal["none", "ddp", "fsdp"] | None = Field(
        None,
        description="short for the two data-parallel degrees: fsdp shards over the ranks that are "
        "left, ddp replicates over them, none does neither; null: what the degrees say",
    )
    precision: Literal["fp32", "bf16"] = Field(
        "fp32", description="type of the forward and backward computation"
    )
    tf32: bool = Field(
        False,
        description="on a GPU, round the factors of float32 matrix products to TF32 (10 bits of "
        "mantissa), which tensor cores take; for precision fp32",
    )
    data_parallel_replicate_degree: int = Field(
        1, ge=1, description="copies of the weights, each on its own part of the batch"
    )
    data_parallel_shard_degree: int = Field(
        -1,
        ge=-1,
        description="ranks that share one copy of the weights, each with its own part of the batch "
        "(FSDP2); -1: the ranks that are left",
    )
    tensor_parallel_degree: int = Field(1, ge=1, description="ranks that share each matrix")
    pipeline_parallel_degree: int = Field(1, ge=1, description="ranks that share the layers")
    pipeline_parallel_schedule: str = Field(
        "1F1B", description="order of a pipeline's micro-batches, such as 1F1B or GPipe"
    )
    context_parallel_degree: int = Field(1, ge=1, description="ranks that share each sequence")
    expert_parallel_degree: int = Field(
        1, ge=1, description="ranks that share the experts of a mixture-of-experts model"
    )
    compile: bool = Field(False, description="torch.compile each layer")
    activation_checkpoint: Literal["none", "selective", "full"] = Field(
        "none",
        description="activations computed again in the backward pass instead of kept: none, those "
        "that are cheap to compute (selective), all but each layer's input (full)",
    )
    enable_cpu_offload: bool = Field(
        False, description="keep parameters, gradients and optimizer state in host memory"
    )

    @model_validator(mode="after")
    def _possible(self) -> DistributedSection:
        if self.data_parallel_shard_degree == 0:
            raise ValueError("data_parallel_shard_degree: 1 turns it off, -1 takes what is left")
        degrees = (self.data_parallel_replicate_degree, self.data_parallel_shard_degree)
        if self.strategy is not None and degrees != (1, -1):
            raise ValueError(
                f"strategy: {self.strategy} stands for the data-parallel degrees; give it or "
                "data_parallel_replicate_degree and data_parallel_shard_degree, not both "
                "(strategy=null leaves it to them)"
            )
        return self


class CheckpointingSection(Settings):
    """When checkpoints are written, where runs live, and what to go on from."""

    save_interval: int | None = Field(
        None,
        ge=1,
        description="steps between checkpoints; one is written at each stage's end anyway",
    )
    keep: int = Field(2, ge=1, description="newest checkpoints kept; a stage's last always is")
    output_dir: Path = Field(Path("runs"), description="folder that holds the run folders")
    resume: Path | None = Field(None, description="run folder to go on with")


class SamplingSection(Settings):
    """How completions are sampled."""

    max_tokens: int = Field(256, ge=1, description="most tokens of a completion")
    temperature: float = Field(1.0, ge=0, description="0 is greedy")
    top_p: float = Field(1.0, gt=0, le=1, description="nucleus probability; 1 turns it off")
    top_k: int = Field(0, ge=0, description="most probable tokens kept; 0 turns it off")


class EvaluationSection(Settings):
    """Held-out score: ``eval_dataset`` answered by the policy and judged by ``rewards``."""

    interval: int | None = Field(
        None, ge=1, description="steps between evaluations; null: only before and after"
    )
    tasks: int | None = Field(None, ge=1, description="first tasks of eval_dataset; null: all")
    temperature: float = Field(0.0, ge=0, description="0 is greedy")
    samples: int = Field(1, ge=1, description="completions for each task; the mean counts")


class PlacementKeys(Settings):
    """The kernel's keys of the trainer section: how many processes, and what they are given."""

    procs: int = Field(
        1, ge=1, description="ranks of one replica; above 1 each is a process of its own"
    )
    isolate: bool = Field(
        False, description="a process of its own for each replica even with one rank"
    )
    with_gpus: bool = Field(
        False, description="one GPU for each rank; refused where there are too few"
    )
    env: dict[str, str] = Field(
        default_factory=dict, description="environment variables of each rank's process"
    )


class ReplicatedKeys(PlacementKeys):
    """The kernel's keys of the generator section."""

    replicas: int = Field(1, ge=1, description="copies of the component behind one handle")
    routing: Literal["least_loaded", "round_robin", "sticky", "prefix"] = Field(
        "least_loaded",
        description="replica that a request goes to: the least loaded; each in turn; the one that "
        "took the episode's last (sticky); the one that holds the longest prefix of the prompt",
    )
    concurrency: int = Field(
        1024, ge=1, description="most requests in flight on a replica; more wait in order"
    )
    outage_limit: float = Field(
        600.0,
        gt=0,
        description="seconds without a replica that takes requests after which the run fails; "
        "restarts of one that dies are spread over them",
    )


class ReferenceKeys(PlacementKeys):
    """The kernel's keys of the reference section."""

    replicas: int = Field(
        1, ge=1, description="copies of the model; they share the sequences of a step evenly"
    )


class RewardWorkersSection(Settings):
    """Who judges the parts of ``rewards``: each worker has a process that it kills at a deadline.

    With one worker and nothing else said it lives in the controller's process.
    """

    replicas: int = Field(1, ge=1, description="workers; they share the samples of a step")
    isolate: bool = Field(False, description="a process of its own for each worker")
    with_gpus: bool = Field(
        False, description="one GPU for each worker, for reward models; refused where too few"
    )
    env: dict[str, str] = Field(
        default_factory=dict, description="environment variables of each worker's process"
    )


class ReplayBufferSection(Settings):
    """Where groups wait that a recipe has sampled ahead of their step.

    With nothing said, in the controller's process.
    """

    isolate: bool = Field(False, description="a process of its own")
    env: dict[str, str] = Field(
        default_factory=dict, description="environment variables of that process"
    )


class RewardKeys(Settings):
    """Keys of each part of ``rewards`` that are the kernel's, not the component's."""

    weight: float = Field(1.0, description="factor in the weighted sum")
    deadline: float = Field(10.0, gt=0, description="seconds until the call is killed")
    failure_reward: float | None = Field(
        None,
        description="what an episode gets for this part when the call raised or was killed; null: "
        "the episode is left out of its group",
    )


SHARED_SECTIONS: dict[str, type[Settings]] = {
    "model": ModelSection,
    "training": TrainingSection,
    "distributed": DistributedSection,
    "checkpointing": CheckpointingSection,
    "sampling": SamplingSection,
    "replay_buffer": ReplayBufferSection,
    "reward_workers": RewardWorkersSection,
    "evaluation": EvaluationSection,
}
"""Section name -> model. Every stage has each of them."""

COMPONENT_SECTIONS: dict[str, str] = {
    "recipe": "recipe",
    "generator": "generator",
    "trainer": "trainer",
    "reference": "trainer",
    "loss": "loss",
    "environment": "environment",
    "transport": "transport",
    "runtime": "runtime",
    "dataset": "dataset",
    "eval_dataset": "dataset",
}
"""Section name -> family, for sections with one ``use:``."""

COMPONENT_MAPS: dict[str, str] = {"rewards": "reward", "trackers": "tracker"}
"""Section name -> family, for sections that name several: ``{part: {use: ..., ...}}``.
``use`` may be left out where the part is called like the component."""

RUN_WIDE: frozenset[str] = frozenset({"model", "checkpointing", "runtime", "trackers"})
"""Sections that belong to the whole run: a stage cannot change them."""

KERNEL_KEYS: dict[str, type[Settings]] = {
    "generator": ReplicatedKeys,
    "trainer": PlacementKeys,
    "reference": ReferenceKeys,
    "rewards": RewardKeys,
}
"""Component section -> the kernel's own keys in it (for ``rewards``: in each part)."""

EXCLUSIVE: dict[str, tuple[str, str]] = {
    "training": ("steps", "num_epochs"),
    "model": ("path", "init"),
}
"""Section -> two keys that say one thing in two ways: setting one in a higher layer takes the place
of the other in lower layers, so that ``training.steps=5`` works over a file with ``num_epochs``."""

ALIASES: dict[str, str] = {"trainer.lr": "training.learning_rate"}
"""Another way to type a key -> the key."""
