"""The data that flows through a run, in the order it flows. No tensors here: numpy arrays.

task -> prompt tokens -> completion -> episode -> rewards -> group -> sequences -> trainer.

Token in, token out: from the moment a prompt is tokenized, token ids are what is carried, sampled,
masked and trained on. Text is for people and rewards.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Real
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, SupportsIndex

if TYPE_CHECKING:
    from forge_core.contracts.arrays import (
        BoolArray,
        Flags,
        FloatArray,
        Floats,
        IntArray,
        Ints,
    )

_converting: Any = None


def _conversion() -> Any:
    """``forge_core.contracts.conversion``, whose numpy is loaded with the first token data. An
    ``import`` in each constructor would take longer than all the rest of it."""
    global _converting
    if _converting is None:
        import forge_core.contracts.conversion as conversion

        _converting = conversion
    return _converting


Role = Literal["system", "user", "assistant", "tool"]
FinishReason = Literal["stop", "length", "cancelled"]


@dataclass(frozen=True, slots=True)
class Message:
    """One chat message.

    Args:
        role: who speaks.
        content: the text; may be empty.
        extra: further keys for the model's chat template, such as ``tool_calls`` (arguments as a
            mapping) or ``reasoning_content``. A key that the template does not use is an error when
            the message is tokenized.
    """

    role: Role
    content: str
    extra: Mapping[str, Any] = field(default_factory=dict, hash=False)


Prompt = str | tuple[Message, ...]
"""Plain text, or messages that the model's chat template renders."""


@dataclass(frozen=True, slots=True)
class Task:
    """One problem of a dataset.

    Args:
        id: unique in its dataset and stable over runs.
        prompt: plain text or messages.
        answer: the reference that rewards compare with, or None.
        response: what supervised training imitates: text, or an assistant's message where it has
            more than text (``Message.extra``); None means ``answer``.
        metadata: anything else a reward or environment wants.
        tools: JSON schemas of the functions that a chat may call; the chat template renders them.
    """

    id: str
    prompt: Prompt
    answer: str | None = None
    response: str | Message | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    tools: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How to sample completions for one prompt.

    Args:
        max_tokens: most new tokens of a completion, stop token included.
        temperature: 0 is greedy. Logprobs are those of the distribution sampled from, that is after
            temperature, top-k and top-p; greedy reports the logprobs at temperature 1.
        top_p: smallest set of tokens whose probability reaches this; 1 turns it off.
        top_k: that many most probable tokens; 0 turns it off.
        stop_token_ids: a completion ends with the first of these; it is kept as its last token.
        stop: a completion ends with the token that completes one of these strings in its text; it
            is kept as its last token.
        n: completions for the prompt; they share the prompt's computation.
        seed: sample i of n draws from a stream derived from (seed, i), so that what it samples does
            not depend on what else is in the batch. None: not reproducible.
        priority: a lower number is served first where requests wait. Not every generator knows it.
    """

    max_tokens: int = 256
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    stop_token_ids: tuple[int, ...] = ()
    stop: tuple[str, ...] = ()
    n: int = 1
    seed: int | None = None
    priority: int = 0


@dataclass(frozen=True, slots=True, init=False, eq=False)
class Completion:
    """What a generator returns for one sample. Lists, arrays and tensors are taken.

    Args:
        tokens: new token ids, stop token included when it stopped on one. [L] int32
        logprobs: natural-log probability of each token under the distribution sampled from.
            [L] float32
        versions: policy version of the weights that sampled each token, non-decreasing. [L] int32
        finish_reason: ``stop`` (a stop token), ``length`` (max_tokens or window), ``cancelled``.

    Raises:
        ValueError: they are not equally long, or hold something else.
    """

    tokens: IntArray
    logprobs: FloatArray
    versions: IntArray
    finish_reason: FinishReason

    def __init__(
        self, tokens: Ints, logprobs: Floats, versions: Ints, finish_reason: FinishReason
    ) -> None:
        convert = _conversion()
        put = object.__setattr__
        put(self, "tokens", convert.ints(tokens, "tokens"))
        put(self, "logprobs", convert.floats(logprobs, "logprobs"))
        put(self, "versions", convert.ints(versions, "versions"))
        put(self, "finish_reason", finish_reason)
        if not len(self.tokens) == len(self.logprobs) == len(self.versions):
            raise ValueError(
                f"completion of {len(self.tokens)} tokens has {len(self.logprobs)} logprobs and "
                f"{len(self.versions)} versions; all three must be equally long"
            )

    def __eq__(self, other: object) -> bool:
        return _equal(self, other)

    def __reduce_ex__(self, protocol: SupportsIndex, /) -> tuple[Any, ...]:
        packed = _conversion().packed
        buffers = (
            packed(self.tokens, protocol),
            packed(self.logprobs, protocol),
            packed(self.versions, protocol),
        )
        return _unpickled_completion, (*buffers, self.finish_reason)


def _unpickled_completion(
    tokens: Any, logprobs: Any, versions: Any, finish_reason: FinishReason
) -> Completion:
    import numpy as np

    return Completion(
        np.frombuffer(tokens, np.int32),
        np.frombuffer(logprobs, np.float32),
        np.frombuffer(versions, np.int32),
        finish_reason,
    )


def _equal(one: Any, other: Any) -> bool:
    """Whether two dataclasses are of one type and hold the same, arrays by their numbers."""
    from forge_core.contracts.conversion import equal

    if not isinstance(other, type(one)):
        return False
    names = one.__dataclass_fields__
    return all(equal(getattr(one, name), getattr(other, name)) for name in names)


@dataclass(frozen=True, slots=True)
class CompletionPart:
    """The next tokens of a completion that is handed out while it is being sampled.

    Args:
        tokens: new token ids; only the last part may have none.
        logprobs: as in ``Completion``, for these tokens.
        versions: as in ``Completion``, for these tokens.
        finish_reason: None until the last part.
    """

    tokens: Sequence[int]
    logprobs: Sequence[float]
    versions: Sequence[int]
    finish_reason: FinishReason | None = None


@dataclass(frozen=True, slots=True, init=False, eq=False)
class Turn:
    """A run of tokens with one origin. Only ``completion`` turns are trained on.

    Args:
        kind: where the tokens come from.
        tokens: token ids; lists, arrays and tensors are taken. [L] int32
        completion: whose tokens they are, in a ``completion`` turn.
    """

    kind: Literal["prompt", "completion", "observation"]
    tokens: IntArray
    completion: Completion | None

    def __init__(
        self,
        kind: Literal["prompt", "completion", "observation"],
        tokens: Ints,
        completion: Completion | None = None,
    ) -> None:
        put = object.__setattr__
        put(self, "kind", kind)
        put(self, "tokens", _conversion().ints(tokens, f"tokens of a {kind}"))
        put(self, "completion", completion)

    def __eq__(self, other: object) -> bool:
        return _equal(self, other)

    def __reduce_ex__(self, protocol: SupportsIndex, /) -> tuple[Any, ...]:
        packed = _conversion().packed
        said = self.completion
        if said is not None and said.tokens is self.tokens:
            return _unpickled_turn, (self.kind, None, said)
        return _unpickled_turn, (self.kind, packed(self.tokens, protocol), said)


def _unpickled_turn(kind: Any, tokens: Any, completion: Completion | None) -> Turn:
    import numpy as np

    if tokens is None:
        assert completion is not None
        return Turn(kind, completion.tokens, completion)
    return Turn(kind, np.frombuffer(tokens, np.int32), completion)


@dataclass(slots=True)
class Episode:
    """One whole interaction.

    Args:
        task: the problem.
        turns: prompt first, then completions and observations in turn.
        prompt_text: what a person sees of the prompt.
        completion_texts: decoded completions, in turn.
        truncated: a completion ended on length, or the turn limit was reached.
        rewards: by part, before weighting; without the parts that failed and have no
            ``failure_reward``.
        reward: the weighted sum of the parts.
        advantage: set by the recipe from the group.
        failures: reward parts that failed, with the cause.
        left_out: one of those has no ``failure_reward``, so that the reward says nothing about the
            episode: recipes neither compare it with its siblings nor train on it.
        environment_failure: why the environment could not play it to its end; such an episode is
            not judged: it is left out, or its reward is ``environment.on_failure``.
        messages: the conversation as it was: the prompt (plain text is one message of the user),
            completions and what the environment said between them.
        observation_texts: what the environment said, in turn.
        agent: whose side it is, where several agents take part in an episode.
        turn_rewards: what the environment gave for each completion; None where it gave nothing.
        group: the same for the episodes that were sampled together for one task; empty: those of
            one task are one group.
        metrics: numbers that rewards and the environment measured, by their names in the step's
            metrics (``reward/PART/NAME``, ``environment/NAME``), which are means over episodes.
    """

    task: Task
    turns: list[Turn]
    prompt_text: str = ""
    completion_texts: list[str] = field(default_factory=list)
    truncated: bool = False
    rewards: dict[str, float] = field(default_factory=dict)
    reward: float = 0.0
    advantage: float = 0.0
    failures: dict[str, str] = field(default_factory=dict)
    left_out: bool = False
    environment_failure: str = ""
    messages: list[Message] = field(default_factory=list)
    observation_texts: list[str] = field(default_factory=list)
    agent: str = ""
    turn_rewards: list[float | None] = field(default_factory=list)
    group: str = ""
    metrics: dict[str, float] = field(default_factory=dict)

    @property
    def tokens(self) -> IntArray:
        """All token ids, in order; made when asked for. [T] int32"""
        joined: IntArray = _conversion().joined([turn.tokens for turn in self.turns], "int32")
        return joined

    @property
    def loss_mask(self) -> BoolArray:
        """True where a token was sampled by the policy: from roles, never from token values. [T]"""
        import numpy as np

        mask = np.zeros(sum([len(turn.tokens) for turn in self.turns]), np.bool_)
        start = 0
        for turn in self.turns:
            end = start + len(turn.tokens)
            if turn.kind == "completion":
                mask[start:end] = True
            start = end
        return mask

    @property
    def logprobs(self) -> FloatArray:
        """Sampler's logprob of every token, 0 where it was not sampled. [T] float32"""
        import numpy as np

        values = np.zeros(sum([len(turn.tokens) for turn in self.turns]), np.float32)
        for start, completion in self._completions():
            values[start : start + len(completion.tokens)] = completion.logprobs
        return values

    @property
    def versions(self) -> IntArray:
        """Policy version that sampled each token, -1 where it was not sampled. [T] int32"""
        import numpy as np

        values = np.full(sum([len(turn.tokens) for turn in self.turns]), -1, np.int32)
        for start, completion in self._completions():
            values[start : start + len(completion.tokens)] = completion.versions
        return values

    def _completions(self) -> Iterator[tuple[int, Completion]]:
        """Each completion, with the place of its first token."""
        start = 0
        for turn in self.turns:
            if turn.completion is not None:
                yield start, turn.completion
            start += len(turn.tokens)

    @property
    def environment_reward(self) -> float | None:
        """The sum of what the environment gave; None if it gave nothing."""
        given = [reward for reward in self.turn_rewards if reward is not None]
        return sum(given) if given else None

    @property
    def all_failures(self) -> dict[str, str]:
        """What failed, with the cause: parts of the reward, and ``environment``."""
        failed = {"environment": self.environment_failure} if self.environment_failure else {}
        return {**self.failures, **failed}

    @property
    def completion_length(self) -> int:
        """Tokens that the policy sampled in all turns."""
        return sum([len(turn.tokens) for turn in self.turns if turn.kind == "completion"])


@dataclass(slots=True)
class Group:
    """The episodes sampled for one task."""

    task: Task
    episodes: list[Episode]


@dataclass(frozen=True, slots=True)
class RewardSample:
    """What a reward judges. Picklable; rewards are pure functions of it.

    Args:
        task: the problem, with its reference answer.
        prompt: the prompt as text.
        completion: text of the last completion.
        completions: text of every completion, in turn.
        finish_reason: how the last completion ended.
        completion_length: tokens sampled in the whole episode.
        observations: what the environment said, in turn.
        messages: the whole conversation: prompt, completions, and what the environment said.
        agent: whose side of the episode it is, where several agents take part.
    """

    task: Task
    prompt: str
    completion: str
    completions: tuple[str, ...] = ()
    finish_reason: FinishReason = "stop"
    completion_length: int = 0
    observations: tuple[str, ...] = ()
    agent: str = ""
    messages: tuple[Message, ...] = ()


@dataclass(frozen=True, slots=True)
class Response:
    """What an environment answers to a completion.

    Args:
        messages: what the policy sees before its next completion: text, or messages of a chat
            (roles ``user``, ``tool``, ``system``). For an agent that has not spoken yet, it is the
            prompt.
        reward: for this turn; None: none. The sum over the turns is part ``environment`` of the
            episode's reward.
        metrics: finite numbers by name; ``environment/NAME`` in the step's metrics. What a later
            turn says of a name takes the place of what an earlier one said.
        done: the episode is over. What is said then is kept as text, and the policy never sees it.
        agent: who speaks next, if somebody else does.
        rewards: what is added to the last turns of other agents, by agent.
    """

    messages: str | tuple[Message, ...] = ""
    reward: float | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    done: bool = False
    agent: str | None = None
    rewards: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, answer: object) -> Response:
        """What ``Interaction.respond`` returned: text, None, or a response.

        Raises:
            TypeError: it is none of these, or has a part of another type.
            ValueError: a number is not finite, or a metric has a name that the kernel uses.
        """
        if answer is None or answer is _OVER:
            return _OVER
        if isinstance(answer, str):
            return cls(answer)
        if not isinstance(answer, Response):
            raise TypeError(
                f"respond returned a {type(answer).__name__}; expected a Response, text or None"
            )
        messages = answer.messages
        if not isinstance(messages, str) and not (
            isinstance(messages, Sequence) and all(isinstance(each, Message) for each in messages)
        ):
            raise TypeError(
                "respond returned a Response whose messages are neither text nor Messages"
            )
        numbers: dict[str, Any] = {f"metric {name!r}": n for name, n in answer.metrics.items()}
        numbers |= {f"reward of {name!r}": n for name, n in answer.rewards.items()}
        numbers |= {"reward": answer.reward} if answer.reward is not None else {}
        for name, value in numbers.items():
            where = f"respond returned a Response whose {name}"
            if not isinstance(value, Real):
                raise TypeError(f"{where} is {value!r}, not a number")
            if not math.isfinite(value):
                raise ValueError(f"{where} is {value}")
        for name in answer.metrics:
            if name in ("failed", "dropped", "retried"):
                raise ValueError(
                    f"respond returned metric {name!r}, which the kernel counts itself"
                )
        return answer

    @property
    def as_messages(self) -> tuple[Message, ...]:
        """Text is a message of the user."""
        text = self.messages
        return (Message("user", text),) if isinstance(text, str) else tuple(text)


_OVER = Response(done=True)
"""What None stands for: most episodes' only answer, made and checked once."""


@dataclass(frozen=True, slots=True)
class RewardResult:
    """A reward with what it was made of. Rewards return it, or just the number.

    Args:
        value: the reward.
        metrics: finite numbers by name; they are ``reward/PART/NAME`` in the step's metrics (means
            over its episodes) and in ``episodes.jsonl``.
    """

    value: float
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, init=False, eq=False)
class TrainSequence:
    """One sequence to train on, as a recipe hands it to a trainer. Lists, arrays and tensors are
    taken.

    Args:
        tokens: token ids. [T] int32
        loss_mask: True for each token whose prediction is trained; the first is never. [T] bool
        fields: what the loss needs beside logprobs: a number (for the whole sequence) or one number
            for each token [T] float32. Well-known names: ``advantages``, ``sampler_logprobs``,
            ``reference_logprobs``, ``versions``, ``weights``.
        group: sequences of a step with the same number belong together (a pair, the answers to one
            prompt): they are put into one micro-batch, and go through the loss in one call,
            whatever a trainer splits for memory or over ranks. None: it stands alone.

    Raises:
        ValueError: the mask or a field is not as long as the tokens, or one of them holds something
            else than such numbers; names it.
    """

    tokens: IntArray
    loss_mask: BoolArray
    fields: Mapping[str, float | FloatArray]
    group: int | None

    def __init__(
        self,
        tokens: Ints,
        loss_mask: Flags,
        fields: Mapping[str, float | Floats] = MappingProxyType({}),
        group: int | None = None,
    ) -> None:
        convert = _conversion()
        put = object.__setattr__
        put(self, "tokens", convert.ints(tokens, "tokens"))
        put(self, "loss_mask", convert.flags(loss_mask, "loss_mask"))
        length = len(self.tokens)
        if len(self.loss_mask) != length:
            raise ValueError(f"loss_mask has {len(self.loss_mask)} entries for {length} tokens")
        checked = {
            name: convert.number_or_floats(value, length, f"field {name!r}")
            for name, value in fields.items()
        }
        put(self, "fields", checked)
        put(self, "group", None if group is None else operator.index(group))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TrainSequence) or self.fields.keys() != other.fields.keys():
            return False
        from forge_core.contracts.conversion import equal

        pairs: list[tuple[Any, Any]] = [
            (getattr(self, name), getattr(other, name)) for name in ("tokens", "loss_mask", "group")
        ]
        pairs += [(value, other.fields[name]) for name, value in self.fields.items()]
        return all(equal(one, another) for one, another in pairs)

    def __reduce_ex__(self, protocol: SupportsIndex, /) -> tuple[Any, ...]:
        packed = _conversion().packed
        fields = {
            name: value if isinstance(value, float) else packed(value, protocol)
            for name, value in self.fields.items()
        }
        return _unpickled_sequence, (
            packed(self.tokens, protocol),
            packed(self.loss_mask, protocol),
            fields,
            self.group,
        )


def _unpickled_sequence(
    tokens: Any, loss_mask: Any, fields: Mapping[str, Any], group: int | None
) -> TrainSequence:
    import numpy as np

    return TrainSequence(
        np.frombuffer(tokens, np.int32),
        np.frombuffer(loss_mask, np.bool_),
        {
            name: value if isinstance(value, float) else np.frombuffer(value, np.float32)
            for name, value in fields.items()
        },
        group,
    )


@dataclass(frozen=True, slots=True)
class StepResult:
    """What one optimizer step did.

    Args:
        loss: sum over all trained tokens divided by the loss's count, over all micro-batches and
            ranks.
        grad_norm: norm of the whole gradient before clipping.
        learning_rate: used in this step.
        tokens: real tokens the model processed (no padding).
        trained_tokens: tokens under the loss mask. 0: no weight has changed, and the step is not
            published.
        metrics: means the loss reported, and the sampler-trainer mismatch where it is known.
    """

    loss: float
    grad_norm: float
    learning_rate: float
    tokens: int
    trained_tokens: int
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class WeightManifest:
    """Names a published set of weights, so that a loader can prove what it holds.

    Args:
        version: policy version.
        checksum: of all tensors by Hugging Face name, the same at both ends of a transport.
        tensors: how many.
        bytes: in all.
    """

    version: int
    checksum: str
    tensors: int
    bytes: int
