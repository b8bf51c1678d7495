"""Forge's ``Sampling`` as vLLM's ``SamplingParams``, and vLLM's outputs as completions."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from forge_core import (
    Completion,
    CompletionPart,
    DataError,
    FinishReason,
    IntArray,
    RunFailed,
    Sampling,
    derive_seed,
)
from forge_vllm.engine import Spans

if TYPE_CHECKING:
    from vllm import RequestOutput, SamplingParams

VLLM_FIRST_VERSION, FIRST_VERSION = "default", 0
"""What vLLM and Forge call the weights that an engine starts with."""

LEAST_TEMPERATURE = 0.01
"""vLLM would sample at this one instead of a lower one above 0."""

FINISH_REASONS: Mapping[str, FinishReason] = {
    "stop": "stop",
    "length": "length",
    "abort": "cancelled",
}


def check_sampling(sampling: Sampling) -> None:
    """Raises:
    DataError: a value is out of its range.
    """
    temperature = sampling.temperature
    for name, allowed, good in (
        ("n", "at least 1", sampling.n >= 1),
        ("max_tokens", "at least 1", sampling.max_tokens >= 1),
        (
            "temperature",
            f"0 or at least {LEAST_TEMPERATURE}",
            temperature == 0 or LEAST_TEMPERATURE <= temperature < float("inf"),
        ),
        ("top_p", "above 0 and at most 1", 0 < sampling.top_p <= 1),
        ("top_k", "at least 0", sampling.top_k >= 0),
    ):
        if not good:
            raise DataError(f"sampling.{name} is {getattr(sampling, name)}; it must be {allowed}")


class RequestParams:
    """Makes the parameters of vLLM's requests. Each sample of a prompt is a request of its own:
    vLLM would seed sample i of n with seed + i, so that neighbouring seeds share samples.

    Requests that differ in nothing share one object, which vLLM copies (``skip_clone`` has it copy
    no deeper): to make and check one takes longer than all else that is done for a request.

    Args:
        extra: vLLM's own parameters from the settings.
    """

    def __init__(self, extra: Mapping[str, Any]) -> None:
        from vllm.sampling_params import StructuredOutputsParams

        self._extra = dict(extra)
        self._structured: dict[str, Any] | None = self._extra.pop("structured_outputs", None)
        self._structured_class = StructuredOutputsParams
        self._seedless = lru_cache(maxsize=64)(self._make)

    def of(
        self, sampling: Sampling, index: int, max_tokens: int, *, stream: bool = False
    ) -> SamplingParams:
        """Parameters of sample ``index`` of a prompt.

        Args:
            sampling: of all its samples, checked.
            index: of this one.
            max_tokens: within the window.
            stream: hand out tokens as they come, not only when all are there.

        Raises:
            DataError: vLLM refuses the parameters.
        """
        try:
            params = self._seedless(
                max_tokens,
                sampling.temperature,
                sampling.top_p,
                sampling.top_k,
                tuple(sampling.stop_token_ids),
                tuple(sampling.stop),
                stream,
            )
            if sampling.seed is None and self._structured is None:
                return params
            params = copy(params)
            if sampling.seed is not None:
                params.seed = derive_seed(sampling.seed, index)
            if self._structured is not None:  # a new one for each: the engine writes to it
                params.structured_outputs = self._structured_class(**self._structured)
        except Exception as error:
            if is_refusal(error):
                raise DataError(f"vLLM refuses the sampling parameters: {error}") from error
            raise
        return params

    def _make(
        self,
        max_tokens: int,
        temperature: float,
        top_p: float,
        top_k: int,
        stop_token_ids: tuple[int, ...],
        stop: tuple[str, ...],
        stream: bool,
    ) -> SamplingParams:
        from vllm.sampling_params import RequestOutputKind, SamplingParams

        return SamplingParams(
            **self._extra,
            temperature=temperature,
            top_p=top_p,
            top_k=top_k,
            stop_token_ids=list(stop_token_ids),
            stop=list(stop),
            ignore_eos=True,
            max_tokens=max_tokens,
            logprobs=0,
            flat_logprobs=True,
            detokenize=bool(stop),
            output_kind=RequestOutputKind.DELTA if stream else RequestOutputKind.FINAL_ONLY,
            skip_clone=True,
        )


def is_refusal(error: Exception) -> bool:
    """Whether vLLM means that the request is wrong, not the engine."""
    from vllm.exceptions import VLLMClientError

    return isinstance(error, TypeError | ValueError | VLLMClientError)


def completion(output: RequestOutput) -> Completion:
    """The completion of a request's final output.

    Raises:
        RunFailed: vLLM ended it with an error, or did not say which weights sampled its tokens.
    """
    (sample,) = output.outputs
    spans = [(span.version, span.start) for span in sample.weight_versions or ()]
    tokens = np.asarray(sample.token_ids, np.int32)
    return Completion(
        tokens,
        np.asarray(sample.logprobs.logprobs if len(tokens) else [], np.float32),
        _versions(spans, 0, len(tokens)),
        _finish_reason(sample.finish_reason),
    )


def completion_part(output: RequestOutput, spans: Spans, start: int) -> CompletionPart:
    """The part of a completion in one output of a request that streams.

    Args:
        output: with the new tokens alone.
        spans: of the request's tokens so far; the final output has its own.
        start: tokens that came before.

    Raises:
        RunFailed: as ``completion``.
    """
    (sample,) = output.outputs
    if sample.weight_versions is not None:
        spans = [(span.version, span.start) for span in sample.weight_versions]
    tokens = list(sample.token_ids)
    return CompletionPart(
        tokens,
        list(sample.logprobs.logprobs) if tokens else [],
        _versions(spans, start, start + len(tokens)).tolist(),
        _finish_reason(sample.finish_reason) if output.finished else None,
    )


def _versions(spans: Spans, start: int, end: int) -> IntArray:
    """Version of each token from ``start`` to ``end``."""
    if end == start:
        return np.zeros(0, np.int32)
    if not spans or spans[0][1] > start:
        raise RunFailed(
            "vLLM does not say which weights sampled its tokens", component="generator vllm"
        )
    ends = [place for _, place in spans[1:]] + [end]
    versions = [
        FIRST_VERSION if version == VLLM_FIRST_VERSION else int(version) for version, _ in spans
    ]
    lengths = [
        max(0, min(last, end) - max(first, start))
        for (_, first), last in zip(spans, ends, strict=True)
    ]
    return np.repeat(np.array(versions, np.int32), lengths)


def _finish_reason(reason: str | None) -> FinishReason:
    known = FINISH_REASONS.get(reason or "")
    if known is None:
        raise RunFailed(f"vLLM ended a request with {reason!r}", component="generator vllm")
    return known
