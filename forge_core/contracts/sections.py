"""The shared sections of a config: what they hold, their units and defaults.

A component's own settings are beside the component; only those that several share are here.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from forge_core.contracts.settings import Settings

_SECRET = re.compile(r"(^|_)(key|key_id|token|secret|password|passwd|credentials)$", re.IGNORECASE)


def _no_secrets(variables: dict[str, str]) -> dict[str, str]:
    """Refuse environment variables whose names say that they are secrets; empty ones may stand.

    Raises:
        ValueError: names the variable, and never its value.
    """
    for name, value in variables.items():
        if value and _SECRET.search(name):
            raise ValueError(
                f"{name} looks like a secret, and the config is written to the run folder; set the "
                "variable in the environment that forge is started in, on each host"
            )
    return variables


Variables = Annotated[dict[str, str], AfterValidator(_no_secrets)]
"""Environment variables of a process, by name."""

Count = Annotated[int, Field(ge=1)]
Fraction = Annotated[float, Field(ge=0, le=1)]
Positive = Annotated[float, Field(gt=0)]


class ArchitectureFields(BaseModel):
    """What well-known fields of ``model.init.config`` must be; the others are transformers'."""

    model_config = ConfigDict(extra="allow")

    hidden_size: Count | None = None
    intermediate_size: Count | None = None
    num_hidden_layers: Count | None = None
    num_attention_heads: Count | None = None
    num_key_value_heads: Count | None = None
    head_dim: Count | None = None
    vocab_size: Count | None = None
    max_position_embeddings: Count | None = None
    sliding_window: Count | None = None
    moe_intermediate_size: Count | None = None
    num_experts: Count | None = None
    num_local_experts: Count | None = None
    num_experts_per_tok: Count | None = None
    n_positions: Count | None = None
    n_embd: Count | None = None
    n_layer: Count | None = None
    n_head: Count | None = None
    rms_norm_eps: Positive | None = None
    layer_norm_eps: Positive | None = None
    layer_norm_epsilon: Positive | None = None
    rope_theta: Positive | None = None
    initializer_range: Annotated[float, Field(ge=0)] | None = None
    attention_dropout: Fraction | None = None
    hidden_act: str | None = None
    tie_word_embeddings: bool | None = None
    attention_bias: bool | None = None
    mlp_bias: bool | None = None
    use_cache: bool | None = None
    use_sliding_window: bool | None = None
    rope_scaling: dict[str, Any] | None = None
    rope_parameters: dict[str, Any] | None = None
    layer_types: list[str] | None = None


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
    trust_remote_code: bool = Field(
        False, description="run Python code that the folder brings with it; read it first"
    )
    allow_pickle: bool = Field(
        False,
        description="read weights from pickle files (pytorch_model.bin), not safetensors only",
    )

    @model_validator(mode="after")
    def _one_origin(self) -> ModelSection:
        if self.path is not None and self.init is not None:
            raise ValueError("give path or init, not both")
        return self


class ModelsSection(Settings):
    """Further models beside the policy, each by a name of your own: a teacher, an opponent, a
    reward model. Recipes and ``reference`` ask for them by name."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, ModelSection | None]

    def named(self) -> dict[str, ModelSection]:
        """Those that there are; null takes one away."""
        given = self.__pydantic_extra__ or {}
        return {name: model for name, model in given.items() if model is not None}


LONGEST = 1e8
"""Seconds; some three years. Clocks of the operating system overflow far beyond."""


class TrainingSection(Settings):
    """The optimizer step, shared by every recipe and trainer.

    In a config ``optimizer`` and ``schedule`` are in this section too: components, chosen by
    ``use``.
    """

    batch_size: int | None = Field(
        None, ge=1, description="sequences in a micro-batch; default: the recipe's choice"
    )
    gradient_accumulation_steps: int = Field(
        1, ge=1, description="micro-batches in an optimizer step"
    )
    learning_rate: float = Field(1e-5, ge=0, description="peak learning rate")
    num_epochs: float | None = Field(None, gt=0, le=1e6, description="passes over the dataset")
    steps: int | None = Field(None, ge=1, description="optimizer steps; takes num_epochs' place")
    warmup_steps: int = Field(0, ge=0, description="steps of linear warmup from 0")
    max_grad_norm: float | None = Field(
        1.0, gt=0, description="gradients are scaled down to this norm; null: no clipping"
    )
    seed: int = Field(0, ge=0, description="seed of everything random in the run")

    @model_validator(mode="after")
    def _one_target(self) -> TrainingSection:
        if self.steps is not None and self.num_epochs is not None:
            raise ValueError("give steps or num_epochs, not both")
        return self


class DistributedSection(Settings):
    """How a trainer spreads over its ranks (``trainer.procs``). It refuses what it cannot do.

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
                f"strategy: {self.strategy} sets the data-parallel degrees; give it or "
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
    save_interval_minutes: float | None = Field(
        10.0,
        gt=0,
        allow_inf_nan=False,
        description="minutes after the last checkpoint until another is written, at the end of the "
        "step under way; null: only by save_interval",
    )
    keep: int = Field(2, ge=1, description="newest checkpoints kept; a stage's last always is")
    output_dir: Path = Field(Path("runs"), description="folder that holds the run folders")
    resume: Path | None = Field(None, description="run folder to go on with")


class SamplingSection(Settings):
    """How completions are sampled."""

    max_tokens: int = Field(256, ge=1, description="most tokens of a completion")
    temperature: float = Field(1.0, ge=0, le=100, description="0 is greedy")
    top_p: float = Field(1.0, gt=0, le=1, description="nucleus probability; 1 turns it off")
    top_k: int = Field(0, ge=0, description="most probable tokens kept; 0 turns it off")
    stop: tuple[Annotated[str, Field(min_length=1)], ...] = Field(
        (), description="strings that end a completion, which keeps them"
    )


class EvaluationSection(Settings):
    """Held-out score: ``eval_dataset`` answered by the policy and judged by ``rewards``."""

    interval: int | None = Field(
        None, ge=1, description="steps between evaluations; null: only before and after"
    )
    tasks: int | None = Field(None, ge=1, description="first tasks of eval_dataset; null: all")
    temperature: float = Field(0.0, ge=0, le=100, description="0 is greedy")
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
    env: Variables = Field(
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
    deadline: float = Field(
        3600.0,
        gt=0,
        description="seconds that a call of a replica may take; one that hangs longer is taken for "
        "dead: it is started again, and its calls go to others",
    )
    outage_limit: float = Field(
        600.0,
        gt=0,
        le=LONGEST,
        description="seconds without a replica that takes requests after which the run fails",
    )
    restarts: int = Field(
        10,
        ge=0,
        le=100,
        description="restarts of a replica that answers no call between them; then it is given up",
    )
    restart_delay: float | None = Field(
        None,
        ge=0,
        le=LONGEST,
        description="seconds before the second of them, doubled before each that follows (the "
        "first comes at once); default: so many that the last comes at the end of outage_limit",
    )


class EnvironmentKeys(Settings):
    """The kernel's keys of the environment section: what an episode may cost, and what becomes of
    one that fails."""

    deadline: float = Field(
        300.0, gt=0, description="seconds that a start or an answer of the environment may take"
    )
    retries: int = Field(
        1,
        ge=0,
        description="times that a start or an answer that failed is tried again; before an answer, "
        "a new interaction is given what the policy said so far",
    )
    on_failure: Literal["drop", "fail"] | Annotated[float, Field(allow_inf_nan=False)] = Field(
        "drop",
        description="what becomes of an episode that fails all the same: drop leaves it out of its "
        "group, a number is its reward, fail ends the run",
    )
    concurrency: int | None = Field(
        None, ge=1, description="most interactions at once; more wait in order; null: no limit"
    )
    weight: float = Field(
        1.0, description="factor of the environment's own reward in the weighted sum"
    )


class DatasetKeys(Settings):
    """The kernel's keys of the sections dataset and eval_dataset."""

    deadline: float = Field(300.0, gt=0, description="seconds that reading one item may take")
    retries: int = Field(
        1, ge=0, description="times that an item that could not be read is tried again"
    )
    on_failure: Literal["drop", "fail"] = Field(
        "fail",
        description="what becomes of an item that cannot be read all the same: drop puts the next "
        "one in its place (in eval_dataset: leaves it out), fail ends the run",
    )


class ReferenceKeys(PlacementKeys):
    """The kernel's keys of the reference section."""

    replicas: int = Field(
        1, ge=1, description="copies of the model; they share the sequences of a step evenly"
    )
    model: str = Field(
        "",
        description="name of the model in models: that answers; default: the one that the stage "
        "starts from",
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
    env: Variables = Field(
        default_factory=dict, description="environment variables of each worker's process"
    )
    inherit_env: tuple[str, ...] = Field(
        (),
        description="variables of the environment that reward processes get beside those that "
        "programs need to run, such as HF_TOKEN or OPENAI_*",
    )
    memory_gib: float | None = Field(
        None,
        gt=0,
        le=1e6,
        description="GiB of private memory of a reward process, and of each program that it "
        "starts; default: half the host's, with_gpus: no limit",
    )
    cpu_seconds: int | None = Field(
        None,
        ge=1,
        le=10**9,
        description="CPU seconds of one sample, and of each program that it starts; null: no limit",
    )
    processes: int = Field(
        1024, ge=1, le=10**6, description="most programs of a reward process at one time"
    )
    open_files: int = Field(
        4096, ge=64, le=10**6, description="most open files of a reward process"
    )
    file_gib: float = Field(
        16.0, gt=0, le=1e6, description="GiB of the largest file that samples may write"
    )


class ReplayBufferSection(Settings):
    """Where groups wait that a recipe has sampled ahead of their step.

    With nothing said, in the controller's process.
    """

    isolate: bool = Field(False, description="a process of its own")
    env: Variables = Field(
        default_factory=dict, description="environment variables of that process"
    )


class RewardKeys(Settings):
    """Keys of each part of ``rewards`` that are the kernel's, not the component's."""

    weight: float = Field(1.0, description="factor in the weighted sum")
    deadline: float = Field(10.0, gt=0, le=LONGEST, description="seconds until the call is killed")
    concurrency: int = Field(
        64, ge=1, description="calls of an async reward that a worker has under way at once"
    )
    failure_reward: float | None = Field(
        None,
        description="what an episode gets for this part when the call raised or was killed; null: "
        "the episode is left out of its group",
    )
