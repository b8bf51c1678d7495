"""An OpenAI-compatible address of a generator's engine, made of vLLM's own server parts."""

from __future__ import annotations

import asyncio
import errno
import hmac
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Self

from pydantic import ValidationError

from forge_core import ConfigError, ForgeError, RunFailed
from forge_vllm.api_keys import NAMES, read_keys
from forge_vllm.engine_args import reason

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Awaitable, Callable

    from fastapi import FastAPI
    from vllm.engine.protocol import EngineClient

DEFAULTS: Mapping[str, Any] = {
    # vLLM itself would listen on every interface of the host.
    "host": "127.0.0.1",
    "disable_uvicorn_access_log": True,
    "uvicorn_log_level": "error",
}
VERSION = b"x-forge-policy-version"
FIRST_VERSION = b"x-forge-policy-version-first"
GRACE_SECONDS = 2
"""For answers under way, when the server ends."""

OPEN_PATHS = ("/health", "/ping")
"""What can be asked without a key: whether the server is there."""

_STATES = ("openai_serving_chat", "openai_serving_chat_batch", "openai_serving_completion")


class PolicyServer:
    """Answers what vLLM's server answers (``/v1/models``, ``/v1/completions``,
    ``/v1/chat/completions``, ...) from an engine that a run uses and updates meanwhile.

    Make it with ``start``.
    """

    def __init__(
        self, app: FastAPI, listener: socket.socket, version: int, keys: Sequence[str] = ()
    ) -> None:
        self._app = app
        self._keys = [f"bearer {key}".encode() for key in keys]
        self._listener = listener
        self.unusable: str | None = None
        self._hold(version, version)

    @classmethod
    async def start(
        cls, engine: EngineClient, settings: Mapping[str, Any], *, version: int, replica: int = 0
    ) -> Self:
        """Open the address.

        Args:
            engine: vLLM's engine client.
            settings: vLLM's server arguments by its own names.
            version: policy version that the engine holds.
            replica: added to a port that is not 0, so that replicas do not meet on one.

        Raises:
            ConfigError: vLLM refuses the arguments or the model, or the address is not available.
        """
        from vllm.entrypoints.launchers.api_server.app_state import init_app_state
        from vllm.entrypoints.launchers.app import build_app

        keys = read_keys(settings)
        args = server_args(engine, settings, keys)
        listener = _listen(args, replica)
        try:
            tasks = await engine.get_supported_tasks()
            app = build_app(args, tasks, engine.model_config)
            await init_app_state(engine, app.state, args, tasks)
            server = cls(app, listener, version, keys)
            await server._serve(args)
        except BaseException as error:
            listener.close()
            if not isinstance(error, Exception) or isinstance(error, ForgeError):
                raise
            raise ConfigError(
                f"generator.serve: vLLM's server did not start: {reason(error)}"
            ) from error
        return server

    @contextmanager
    def loading(self, version: int) -> Iterator[None]:
        """While the engine loads a version. If that fails it holds none, and requests are refused
        (503) until another has been loaded."""
        self._hold(self.oldest, version)
        try:
            yield
        except BaseException as error:
            self.unusable = f"the update to policy version {version} failed: {error}"
            raise
        self._hold(version, version)
        self.unusable = None

    def _hold(self, oldest: int, newest: int) -> None:
        """Say which versions can sample the tokens of an answer now; answers name them."""
        self.oldest = oldest
        self.newest = newest
        for name in _STATES:
            serving = getattr(self._app.state, name, None)
            if serving is not None:
                serving.system_fingerprint = f"policy-{newest}"

    def lets_in(self, scope: Any) -> bool:
        """Whether a request shows a key, where there are any. vLLM itself guards only ``/v1``."""
        if not self._keys or scope["path"] in OPEN_PATHS or scope.get("method") == "OPTIONS":
            return True
        shown = dict(scope["headers"]).get(b"authorization", b"")
        kind, _, key = shown.partition(b" ")
        shown = kind.lower() + b" " + key
        return any(hmac.compare_digest(shown, known) for known in self._keys)

    @property
    def address(self) -> str:
        """What an OpenAI client takes for ``base_url``."""
        host, port = self._listener.getsockname()[:2]
        return f"http://{f'[{host}]' if ':' in host else host}:{port}/v1"

    async def close(self) -> None:
        """Refuse new requests, give those under way a moment, and free the port."""
        self._server.should_exit = True
        with suppress(asyncio.CancelledError):
            await self._task
        self._listener.close()

    async def _serve(self, args: Namespace) -> None:
        import uvicorn
        from vllm.entrypoints.launchers.launcher import NoSignalServer

        config = uvicorn.Config(
            _VersionHeaders(self._app, self),
            log_level=args.uvicorn_log_level,
            access_log=not args.disable_uvicorn_access_log,
            timeout_graceful_shutdown=GRACE_SECONDS,
            root_path=args.root_path or "",
        )
        # serve_http would take the run's signal handlers away.
        self._server = NoSignalServer(config)
        self._task = asyncio.create_task(self._server.serve(sockets=[self._listener]))
        while not self._server.started:
            if self._task.done():
                await self._task
                raise RunFailed("vLLM's server did not start", component="generator vllm")
            await asyncio.sleep(0.01)


class _VersionHeaders:
    """Names the policy versions in every answer: the newest that can have sampled its tokens, and
    the oldest. A stream's head goes out before its tokens are sampled; its last chunk names the
    newest in ``system_fingerprint``, as whole answers do."""

    def __init__(self, app: Callable[..., Awaitable[None]], server: PolicyServer) -> None:
        self._app = app
        self._server = server

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] in ("http", "websocket") and not self._server.lets_in(scope):
            from starlette.responses import JSONResponse

            error = {"message": "no valid API key", "type": "AuthenticationError"}
            await JSONResponse({"error": error}, 401)(scope, receive, send)
            return
        if scope["type"] == "http" and self._server.unusable is not None:
            from starlette.responses import JSONResponse

            error = {"message": self._server.unusable, "type": "ServiceUnavailableError"}
            await JSONResponse({"error": error}, 503)(scope, receive, send)
            return
        first = self._server.oldest

        async def send_with_version(message: Any) -> None:
            if message["type"] == "http.response.start":
                versions = {VERSION: self._server.newest, FIRST_VERSION: first}
                added = [(name, str(value).encode()) for name, value in versions.items()]
                message = {**message, "headers": [*message.get("headers", ()), *added]}
            await send(message)

        await self._app(scope, receive, send_with_version)


def server_args(
    engine: EngineClient, settings: Mapping[str, Any], keys: Sequence[str]
) -> Namespace:
    """What vLLM's server parts ask for: its own defaults, ours over them, and the settings.

    Raises:
        ConfigError: vLLM refuses a value.
    """
    from vllm.entrypoints.launchers.cli_args import (
        FrontendArgs,
        make_arg_parser,
        validate_parsed_serve_args,
    )
    from vllm.entrypoints.launchers.launcher import validate_api_server_args
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    model = engine.model_config
    names = model.served_model_name
    try:
        own = {name: value for name, value in settings.items() if name not in NAMES}
        given = asdict(FrontendArgs(**{**DEFAULTS, **own, "api_key": list(keys) or None}))
        args = make_arg_parser(FlexibleArgumentParser()).parse_args([])
        vars(args).update(given)
        args.model = model.model
        args.served_model_name = [names] if isinstance(names, str) else names
        args.disable_log_stats = True
        validate_parsed_serve_args(args)
        validate_api_server_args(args)
    except (ValidationError, TypeError, ValueError, KeyError) as error:
        raise ConfigError(f"generator.serve: {reason(error)}") from error
    checked: Namespace = args
    return checked


def _listen(args: Namespace, replica: int) -> socket.socket:
    from vllm.entrypoints.launchers.launcher import create_server_socket

    port = args.port and args.port + replica
    try:
        listener: socket.socket = create_server_socket((args.host, port), reuse_port=False)
        return listener
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise ConfigError(
                f"generator.serve.port: {args.host}:{port} is in use; take another, or 0 for a "
                "free one"
            ) from error
        raise ConfigError(
            f"generator.serve: cannot listen on {args.host}:{port}: {error.strerror}"
        ) from error
