"""Forge plugin: generator ``remote``, which asks an OpenAI-compatible server for completions.

Token ids in, token ids out: the server has to know vLLM's ``return_token_ids``.
"""

from __future__ import annotations

import asyncio
import json
import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from pydantic import Field

from forge_core import (
    Completion,
    DataError,
    FinishReason,
    GeneratorComponent,
    PromptRefused,
    ReplicaDied,
    Settings,
    UsageError,
    derive_seed,
    hookimpl,
)

FINISH_REASONS: dict[str, FinishReason] = {
    "stop": "stop",
    "length": "length",
    "abort": "cancelled",
}


class RemoteSettings(Settings):
    """Where the server is, and what it is asked for."""

    url: str = Field(description="such as http://host:8000/v1")
    model: str = Field(description="the server's name of the model")
    api_key_env: str = Field("", description="environment variable that holds the key")
    timeout: float = Field(600, gt=0, description="seconds that an answer may take")
    connections: int = Field(64, ge=1, description="requests under way at once")


class Remote:
    """Holds no weights, so it samples from those of the server and takes none.

    While the server is away its calls raise ``ReplicaDied``: the service builds it again, with
    growing waits, until the server answers or ``outage_limit`` is over, and repeats the calls.
    """

    def __init__(self, settings: RemoteSettings, context: object) -> None:
        self.settings = settings
        self.counts = {"requests": 0.0, "tokens": 0.0}
        served = [each["id"] for each in self._ask("models")["data"]]
        if settings.model not in served:
            raise UsageError(
                f"generator.model: {settings.url} serves no {settings.model!r} "
                f"(it serves: {', '.join(served)})"
            )
        self._threads = ThreadPoolExecutor(settings.connections)

    async def generate(self, prompt, sampling) -> list[Completion]:
        if not len(prompt):
            raise PromptRefused("the prompt is empty")
        # A request for each sample: servers do not agree on how n of them share a seed.
        bodies = [self._body(prompt, sampling, index) for index in range(sampling.n)]
        run = asyncio.get_running_loop().run_in_executor
        answers = [run(self._threads, self._ask, "completions", body) for body in bodies]
        return [self._completion(answer) for answer in await asyncio.gather(*answers)]

    def _body(self, prompt, sampling, index: int) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": self.settings.model,
            "prompt": [int(token) for token in prompt],
            "max_tokens": sampling.max_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
            "stop_token_ids": [int(token) for token in sampling.stop_token_ids],
            "stop": list(sampling.stop),
            "include_stop_str_in_output": True,
            "logprobs": 0,
            "return_token_ids": True,
        }
        if sampling.seed is not None:
            body["seed"] = derive_seed(sampling.seed, index)
        return body

    def _completion(self, answer: dict[str, Any]) -> Completion:
        choice = answer["choices"][0]
        tokens = choice.get("token_ids")
        if tokens is None:
            raise UsageError(
                f"generator.url: {self.settings.url} gives no token ids (vLLM's return_token_ids)"
            )
        self.counts["requests"] += 1
        self.counts["tokens"] += len(tokens)
        logprobs = choice["logprobs"]["token_logprobs"]
        return Completion(
            tokens, logprobs, [0] * len(tokens), FINISH_REASONS[choice["finish_reason"]]
        )

    def _ask(self, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        settings = self.settings
        headers = {"Content-Type": "application/json"}
        if settings.api_key_env:
            headers["Authorization"] = f"Bearer {os.environ.get(settings.api_key_env, '')}"
        request = Request(
            f"{settings.url.rstrip('/')}/{path}",
            data=None if body is None else json.dumps(body).encode(),
            headers=headers,
        )
        try:
            with urlopen(request, timeout=settings.timeout) as answer:
                return json.load(answer)
        except HTTPError as error:
            said = error.read().decode(errors="replace")[:300]
            if error.code >= 500:
                raise ReplicaDied(f"{settings.url} answers {error.code}: {said}") from error
            raise DataError(f"{settings.url} refuses ({error.code}): {said}") from error
        except OSError as error:  # refused, reset, timed out
            raise ReplicaDied(f"{settings.url} is away: {error}") from error

    async def update_weights(self, manifest):
        raise UsageError(
            f"generator remote: the server at {self.settings.url} keeps its own weights and takes "
            "none from a trainer; use it as a recipe's service without weights_from"
        )

    async def stats(self):
        return dict(self.counts)

    async def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)


@hookimpl
def forge_generators():
    yield GeneratorComponent(
        name="remote",
        settings=RemoteSettings,
        build=Remote,
        takes_weights=False,
        summary="completions of an OpenAI-compatible server",
    )
