"""Generator ``remote`` against a real HTTP server over generator ``torch``."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import acme_remote_generator
import pytest

from forge_core import (
    DataError,
    Forge,
    RecipeComponent,
    RecipeService,
    ReplicaDied,
    Sampling,
    Selection,
    Settings,
    TrainSequence,
    UsageError,
    WeightManifest,
    hookimpl,
)
from forge_models.prompts import encode_prompt
from forge_testing.command import run_in_process
from forge_testing.context import bare_context
from forge_testing.runs import lines_of, small_config
from forge_torch.plugin import forge_generators


class Server:
    """Speaks ``/v1/completions`` for a model folder; ``down`` and ``up`` keep its port."""

    def __init__(self, folder: Path) -> None:
        (torch,) = forge_generators()
        chosen = Selection(family="generator", component=torch, settings=torch.settings())
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, daemon=True).start()
        self.generator = chosen.build(bare_context(folder))
        self.port = 0
        self.up()

    def up(self) -> None:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(handler) -> None:  # noqa: N805
                self.answer(handler, 200, {"data": [{"id": "tiny"}]})

            def do_POST(handler) -> None:  # noqa: N805
                length = int(handler.headers["Content-Length"])
                try:
                    self.answer(handler, 200, self.complete(json.loads(handler.rfile.read(length))))
                except DataError as error:
                    self.answer(handler, 400, {"error": {"message": str(error)}})

            def log_message(handler, *_: object) -> None:  # noqa: N805
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", self.port), Handler)
        self.port = self.http.server_port
        threading.Thread(target=self.http.serve_forever, args=(0.05,), daemon=True).start()

    def down(self) -> None:
        self.http.shutdown()
        self.http.server_close()

    @staticmethod
    def answer(handler: BaseHTTPRequestHandler, status: int, content: object) -> None:
        body = json.dumps(content).encode()
        handler.send_response(status)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    def sample(self, prompt: list[int], sampling: Sampling) -> Any:
        call = self.generator.generate(prompt, sampling)
        return asyncio.run_coroutine_threadsafe(call, self.loop).result()

    def complete(self, body: dict[str, Any]) -> dict[str, Any]:
        names = ("max_tokens", "temperature", "top_p", "top_k", "seed")
        sampling = Sampling(
            stop_token_ids=tuple(body["stop_token_ids"]),
            **{name: body[name] for name in names if name in body},
        )
        (completion,) = self.sample(body["prompt"], sampling)
        choice = {
            "token_ids": completion.tokens.tolist(),
            "logprobs": {"token_logprobs": completion.logprobs.tolist()},
            "finish_reason": completion.finish_reason,
        }
        return {"choices": [choice]}


@pytest.fixture
def server(tiny_model: Path) -> Iterator[Server]:
    server = Server(tiny_model)
    yield server
    server.down()
    asyncio.run_coroutine_threadsafe(server.generator.close(), server.loop).result()
    server.loop.call_soon_threadsafe(server.loop.stop)


@pytest.fixture
def section(server: Server) -> dict[str, Any]:
    return {"use": "remote", "url": f"http://127.0.0.1:{server.port}/v1", "model": "tiny"}


def remote(section: dict[str, Any]) -> Any:
    keys = {name: value for name, value in section.items() if name != "use"}
    return acme_remote_generator.Remote(acme_remote_generator.RemoteSettings(**keys), None)


async def test_completions_come_with_tokens_and_logprobs(server: Server, section: Any) -> None:
    generator = remote(section)
    sampling = Sampling(max_tokens=5, seed=3, temperature=0.7)
    one, two = await generator.generate([3, 4, 5], Sampling(max_tokens=5, seed=3, n=2))
    assert len(one.tokens) == len(one.logprobs) == 5
    assert one.tokens.tolist() != two.tokens.tolist()
    (again,) = await generator.generate([3, 4, 5], sampling)
    (same,) = await generator.generate([3, 4, 5], sampling)
    assert again == same
    assert (await generator.stats())["tokens"] == 20
    with pytest.raises(DataError, match="refuses"):
        await generator.generate([3, 999], sampling)
    with pytest.raises(UsageError, match="takes none from a trainer"):
        await generator.update_weights(WeightManifest(1, "", 0, 0))
    with pytest.raises(UsageError, match=r"serves no 'huge' \(it serves: tiny\)"):
        remote({**section, "model": "huge"})
    server.down()
    with pytest.raises(ReplicaDied, match="is away"):
        await generator.generate([3], sampling)
    server.up()
    await generator.close()


class Imitation:
    """Trains on what the server answers; at the second step the server goes away for a second."""

    def __init__(self, server: Server) -> None:
        self.server = server

    def plan(self, config: Any, dataset_length: int) -> int:
        steps: int = config.training.steps
        return steps

    def services(self, config: Any) -> dict[str, RecipeService]:
        return {"teacher": RecipeService(section="generator")}

    async def run(self, stage: Any) -> None:
        trainer = await stage.trainer()
        teacher = await stage.service("teacher")
        prompt = encode_prompt("1+1=", stage.tokenizer)
        async for step in stage.steps():
            if step.number == 2:
                self.server.down()
                threading.Timer(1, self.server.up).start()
            written = await teacher.generate.route(prompt, stage.sampling(n=4, seed=step.number))
            sequences = [
                TrainSequence(
                    [*prompt, *each.tokens],
                    [False] * len(prompt) + [True] * len(each.tokens),
                )
                for each in written
            ]
            step.trained(await trainer.train_step.route([sequences]))


def test_a_run_goes_on_when_the_server_comes_back(
    server: Server, section: Any, tiny_model: Path, tmp_path: Path
) -> None:
    class Plugin:
        @hookimpl
        def forge_recipes(self) -> Any:
            yield RecipeComponent(
                name="imitation",
                settings=Settings,
                build=lambda settings: Imitation(server),
                requires={"dataset", "generator", "trainer", "loss"},
                summary="a test's",
            )

    config = small_config(
        model={"path": str(tiny_model)},
        recipe={"use": "imitation"},
        loss={"use": "cross_entropy"},
        generator={**section, "outage_limit": 20},
        training={"steps": 3, "learning_rate": 0.01},
        checkpointing={"output_dir": str(tmp_path)},
    )
    summary = Forge(plugins=[acme_remote_generator, Plugin()]).run(config)
    assert summary.outcome == "finished"
    kinds = [event["kind"] for event in lines_of(summary.folder / "events.jsonl")]
    assert "replica_died" in kinds
    assert "replica_restarted" in kinds
    assert len(lines_of(summary.folder / "metrics.jsonl")) == 3


@pytest.mark.parametrize("flags", [["--dry-run"], []])
def test_it_is_refused_as_the_policy_before_anything_starts(
    section: Any, tmp_path: Path, flags: list[str], write_config: Any
) -> None:
    config = write_config(small_config(generator=section))
    app, output = Forge(plugins=[acme_remote_generator]), tmp_path / "output"
    where = f"checkpointing.output_dir={output}"
    result = run_in_process("run", str(config), where, *flags, app=app)
    assert result.exit_code == 2
    assert result.stderr == (
        "error: generator.use: generator 'remote' takes no weights from a trainer, and recipe "
        "'grpo' (stage 'grpo') samples from the weights that are trained\n"
    )
    assert not output.exists()


def test_it_is_refused_for_an_evaluation(section: Any, tiny_model: Path, tmp_path: Path) -> None:
    app = Forge(plugins=[acme_remote_generator])
    config = small_config(
        recipe={"use": "sft"},
        loss={"use": "cross_entropy"},
        eval_dataset={"use": "arithmetic", "low": 0, "high": 9},
        generator=section,
        checkpointing={"output_dir": str(tmp_path)},
    )
    with pytest.raises(UsageError, match=r"takes no weights .* the held-out evaluation"):
        app.run(config)


def test_forge_generate_asks_it(section: Any, tiny_model: Path) -> None:
    keys = (f"generator.{name}={section[name]}" for name in ("url", "model"))
    app = Forge(plugins=[acme_remote_generator])
    arguments = ("generate", str(tiny_model), "1+1=", "--json", "--generator", "remote", *keys)
    result = run_in_process(*arguments, "--max-tokens", "4", app=app)
    assert result.exit_code == 0, result.stderr
    assert len(json.loads(result.stdout)["tokens"]) <= 4
