"""What a generator wants of an engine, wherever the engine runs."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol

from forge_core import WeightManifest

if TYPE_CHECKING:
    from vllm import RequestOutput, SamplingParams
    from vllm.engine.protocol import EngineClient

PauseMode = Literal["keep", "wait", "abort"]
"""What becomes of requests in flight when weights change; see ``VllmSettings.pause``."""


Spans = list[tuple[str, int]]
"""Weight versions of a request's tokens: each with the place of its first token."""


class Engine(Protocol):
    """A running vLLM engine. Whatever waits raises ``ReplicaDied`` once the engine is gone."""

    vllm_config: Any

    client: EngineClient | None
    """vLLM's asynchronous client of it, which its server parts want; None in process."""

    async def generate(
        self, prompt: Sequence[int], params: Sequence[SamplingParams], priority: int
    ) -> list[RequestOutput]:
        """Sample one completion for each of ``params``; their final outputs, in that order.

        Cancelling the call aborts what is under way.
        """
        ...

    def stream(
        self, prompt: Sequence[int], params: SamplingParams, priority: int
    ) -> AsyncGenerator[tuple[RequestOutput, Spans]]:
        """The outputs of one request as they come, each with the spans of all tokens so far."""
        ...

    async def load(self, version: int, mode: PauseMode) -> WeightManifest:
        """Swap the weights for a version's between two steps and say what is now held.

        Raises:
            Exception: it could not be loaded; the engine then holds weights of no version, and
                every request has failed.
        """
        ...

    def tokens_in_flight(self) -> int:
        """Tokens sampled so far for requests that are not finished."""
        ...

    async def close(self) -> None:
        """Fail what is pending and end the engine. Nothing of it is left running."""
        ...


def tokens_in_flight(engine: Any) -> int:
    """Of vLLM's synchronous or asynchronous engine, from any thread."""
    states = list(engine.output_processor.request_states.values())
    return sum(state.detokenizer.num_output_tokens() for state in states)


def spans(engine: Any, name: str) -> Spans:
    """Of a request under way, by the name it was given."""
    processor = engine.output_processor
    internal = processor.external_req_ids.get(name, ())
    states = [processor.request_states.get(each) for each in internal]
    return [span for state in states if state is not None for span in state.weight_version_starts]
