"""The OpenAI-compatible address of a policy, asked by OpenAI's own client."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import string
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import openai
import pytest
import pytest_asyncio

from forge_core import (
    BuildContext,
    ConfigError,
    Forge,
    ModelInit,
    ModelSection,
    Sampling,
    Selection,
    ServingGenerator,
    Transport,
    WeightMismatch,
    hookimpl,
)
from forge_models.folder import load_model, load_tokenizer, materialize
from forge_testing.context import bare_context
from forge_testing.policies import Versions
from forge_testing.runs import lines_of
from forge_testing.shapes import tiny_shape
from forge_torch.plugin import MEMORY, SHM
from forge_torch.settings import MemorySettings, ShmSettings
from forge_vllm.checks import check_generator
from forge_vllm.plugin import GENERATOR
from forge_vllm.server import PolicyServer
from forge_vllm.settings import VllmSettings

pytestmark = pytest.mark.asyncio(loop_scope="module")

Config = dict[str, Any]
ENGINE: Config = {"kv_cache_memory_bytes": 32 << 20, "max_num_seqs": 16}
GREEDY: Config = {"model": "policy", "temperature": 0, "max_tokens": 12}
PROMPT = "abcabc"
CHARACTERS = string.printable[:95]
"""Of the model; vLLM's server parts try texts of their own on the tokenizer."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with a chat template and far from uniform weights."""
    shape = tiny_shape(head_dim=32, max_position_embeddings=1024, initializer_range=0.3)
    init = ModelInit(config=shape, characters=CHARACTERS)
    section = ModelSection(init=init)
    folder = materialize(section, tmp_path_factory.mktemp("model"), seed=1)
    tokenizer = load_tokenizer(folder)
    tokenizer.chat_template = "{% for m in messages %}<{{ m.content }}>{% endfor %}"
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def context(folder: Path) -> BuildContext:
    transport = Selection(family="transport", component=SHM, settings=ShmSettings())
    return bare_context(folder, transport=transport)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def publisher(context: BuildContext) -> AsyncIterator[Transport]:
    assert context.transport is not None
    end = context.transport.build(context)
    yield end
    await end.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def generator(
    context: BuildContext, publisher: Transport, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[ServingGenerator]:
    file = tmp_path_factory.mktemp("keys") / "keys.txt"
    file.write_text("old-secret\nsecret\n")
    settings = VllmSettings(engine=ENGINE, serve={"port": 0, "api_key_file": str(file)})
    generator = GENERATOR.build(settings, context)
    yield generator
    await generator.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(generator: ServingGenerator) -> AsyncIterator[openai.AsyncOpenAI]:
    address = await generator.serve()
    assert await generator.serve() == address, "it is opened once"
    async with openai.AsyncOpenAI(base_url=address, api_key="secret", max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def versions(publisher: Transport, folder: Path) -> Versions:
    return Versions(publisher, load_model(folder))


async def spoken(generator: ServingGenerator, folder: Path) -> str:
    """What the generator itself says to the prompt, greedy."""
    tokenizer = load_tokenizer(folder)
    stops = (tokenizer.eos_token_id,)
    sampling = Sampling(temperature=0, max_tokens=12, stop_token_ids=stops)
    (completion,) = await generator.generate(tokenizer.encode(PROMPT), sampling)
    text = tokenizer.decode(completion.tokens, skip_special_tokens=True)
    assert isinstance(text, str)
    return text


async def test_the_policy_answers_as_the_generator_does(
    client: openai.AsyncOpenAI, generator: ServingGenerator, folder: Path
) -> None:
    assert [model.id for model in (await client.models.list()).data] == ["policy"]
    expected = await spoken(generator, folder)
    answer = await client.completions.with_raw_response.create(prompt=PROMPT, **GREEDY)
    completion = answer.parse()
    assert completion.choices[0].text == expected
    version = answer.headers["x-forge-policy-version"]
    assert completion.system_fingerprint == f"policy-{version}"
    assert answer.headers["x-forge-policy-version-first"] == version

    messages: Any = [{"role": "user", "content": "abc"}]
    chat = await client.chat.completions.create(messages=messages, **GREEDY)
    rendered = await client.completions.create(prompt="<abc>", **GREEDY)
    assert chat.choices[0].message.content == rendered.choices[0].text
    chunks = [
        chunk
        async for chunk in await client.chat.completions.create(
            messages=messages, stream=True, **GREEDY
        )
    ]
    said = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
    assert "".join(said) == chat.choices[0].message.content
    assert sum(map(bool, said)) > 1
    assert chunks[-1].system_fingerprint == f"policy-{version}"


async def test_a_key_that_is_wrong_is_refused(client: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.AuthenticationError):
        await client.with_options(api_key="wrong").models.list()
    assert (await client.with_options(api_key="old-secret").models.list()).data


async def test_everything_but_health_needs_a_key(client: openai.AsyncOpenAI) -> None:
    root = str(client.base_url).removesuffix("v1/")
    body = {"model": "policy", "prompt": PROMPT, "max_tokens": 1}

    async def asked(path: str, **headers: str) -> int:
        sent = {"Authorization": ""} | headers
        return (await client._client.post(root + path, json=body, headers=sent)).status_code

    for path in ("tokenize", "invocations", "v1/completions", "version", "nonsense"):
        assert await asked(path) == 401
        assert await asked(path, Authorization="Bearer wrong") == 401
    assert await asked("tokenize", Authorization="Bearer secret") == 200
    assert (await client._client.get(root + "health")).status_code == 200


async def test_weights_change_while_it_answers(
    client: openai.AsyncOpenAI, generator: ServingGenerator, versions: Versions, folder: Path
) -> None:
    before = versions.last
    long: Config = {
        "model": "policy",
        "prompt": PROMPT,
        "max_tokens": 900,
        "extra_body": {"ignore_eos": True},
    }
    stream = await client.completions.create(stream=True, **long)
    await anext(aiter(stream))
    whole = asyncio.create_task(client.completions.with_raw_response.create(**long))
    await anext(aiter(stream))
    manifest = await versions.publish_next()
    assert await generator.update_weights(manifest) == manifest
    assert not whole.done(), "it was to be in flight during the update"

    answer = await client.completions.with_raw_response.create(prompt=PROMPT, **GREEDY)
    assert answer.headers["x-forge-policy-version"] == str(versions.last)
    assert answer.parse().choices[0].text == await spoken(generator, folder)

    chunks = [chunk async for chunk in stream]
    assert chunks[-1].choices[0].finish_reason == "length"
    assert chunks[-1].system_fingerprint == f"policy-{versions.last}"
    crossed = await whole
    assert crossed.parse().usage.completion_tokens == 900
    assert crossed.headers["x-forge-policy-version-first"] == str(before)
    assert crossed.headers["x-forge-policy-version"] == str(versions.last)


async def test_there_is_no_answer_from_half_loaded_weights(
    client: openai.AsyncOpenAI, generator: ServingGenerator, versions: Versions
) -> None:
    name = "model.layers.0.mlp.down_proj.weight"
    with pytest.raises(WeightMismatch, match=name):
        await generator.update_weights(await versions.publish_next(leave_out=name))
    with pytest.raises(openai.InternalServerError, match=f"version {versions.last} failed") as no:
        await client.completions.create(prompt=PROMPT, **GREEDY)
    assert no.value.status_code == 503

    await generator.update_weights(await versions.publish_next())
    answer = await client.completions.with_raw_response.create(prompt=PROMPT, **GREEDY)
    assert answer.headers["x-forge-policy-version"] == str(versions.last)


async def test_a_port_in_use_is_one_line(generator: Any, client: openai.AsyncOpenAI) -> None:
    taken = client.base_url.port
    with pytest.raises(ConfigError) as caught:
        await PolicyServer.start(generator._engine.client, {"port": taken}, version=0)
    assert str(caught.value) == (
        f"generator.serve.port: 127.0.0.1:{taken} is in use; take another, or 0 for a free one"
    )
    # The next replica has the next port.
    server = await PolicyServer.start(
        generator._engine.client, {"port": taken}, version=0, replica=1
    )
    assert server.address == f"http://127.0.0.1:{taken + 1}/v1"
    await server.close()


@pytest.mark.parametrize(
    ("serve", "problem"),
    [
        ({"port": "high"}, "generator.serve: port: "),
        ({"tool_call_parser": "mine", "enable_auto_tool_choice": True}, "invalid tool call parser"),
        ({"host": "203.0.113.1", "port": 0}, "generator.serve: cannot listen on 203.0.113.1:0"),
    ],
)
async def test_what_vllm_refuses_is_one_line(generator: Any, serve: Config, problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        await PolicyServer.start(generator._engine.client, serve, version=0)
    assert problem in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"serve": {"prt": 1}}, "generator.serve.prt: .*did you mean port?"),
        ({"serve": {"uds": "x"}}, "generator.serve.uds: cannot be set: the address is plain HTTP"),
        ({"serve": {}, "engine_process": False}, "needs the engine in a process of its own"),
    ],
)
async def test_what_cannot_work_is_said_before_a_start(
    context: BuildContext, settings: Config, problem: str
) -> None:
    with pytest.raises(ConfigError, match=problem):
        check_generator(VllmSettings(**settings), context)


async def test_a_transport_that_does_not_reach_the_engine(context: BuildContext) -> None:
    memory = Selection(family="transport", component=MEMORY, settings=MemorySettings())
    context = replace(context, transport=memory)
    with pytest.raises(ConfigError, match="'memory' works within one process, and gen"):
        check_generator(VllmSettings(serve={}), context)
    with pytest.raises(ConfigError, match="engine_process puts the engine into another"):
        check_generator(VllmSettings(engine_process=True), context)
    check_generator(VllmSettings(), context)


async def test_it_ends_with_its_generator(
    generator: ServingGenerator, client: openai.AsyncOpenAI
) -> None:
    """The last one: it closes what the others share."""
    long: Config = {"max_tokens": 900, "extra_body": {"ignore_eos": True}}
    # 25 times what the engine holds at once: far from done after the grace period, on any CPU.
    stream = await client.completions.create(
        model="policy", prompt=PROMPT, n=400, stream=True, **long
    )
    await anext(aiter(stream))
    # First come, first served: it waits for the one above.
    pending = asyncio.create_task(client.completions.create(model="policy", prompt=PROMPT, **long))
    await asyncio.sleep(0.2)  # so that the server has it
    assert not pending.done()
    await generator.close()
    with pytest.raises(openai.OpenAIError):
        await pending
    with pytest.raises(openai.APIConnectionError):
        await client.models.list()


class Agent:
    """Asks a run's policy after every step, as a program beside the run does. Rewards episodes in a
    way that teaches something in every step."""

    def __init__(self, runs: Path) -> None:
        self._runs = runs
        self.versions: list[int] = []

    @hookimpl
    def forge_episode_finished(self, episode: Any) -> None:
        episode.reward = float(episode.tokens[-1] % 2)

    @hookimpl
    def forge_step_finished(self, record: Any) -> None:
        (file,) = self._runs.glob("*/addresses.json")
        address = json.loads(file.read_text())["0"]
        with openai.OpenAI(base_url=address, api_key="none") as client:
            completions = client.completions.with_raw_response
            answer = completions.create(model="policy", prompt="1+2=", max_tokens=3)
        assert answer.parse().choices
        self.versions.append(int(answer.headers["x-forge-policy-version"]))


@pytest.mark.slow
async def test_a_run_answers_while_it_trains(small_config: Config, tmp_path: Path) -> None:
    # The agent holds up the controller's event loop, as a training step does, until it is answered.
    small_config["generator"] |= {"serve": {"port": 0}}
    agent = Agent(tmp_path / "runs")
    summary = Forge(plugins=[agent]).run(small_config)
    assert len(agent.versions) == summary.steps == 3
    assert agent.versions == sorted(set(agent.versions)), "each step has another version"
    events = lines_of(summary.folder / "events.jsonl")
    (told,) = [event for event in events if event["kind"] == "address"]
    assert told["data"]["address"].startswith("http://127.0.0.1:")
    assert not (summary.folder / "addresses.json").exists()


@pytest.mark.slow
async def test_the_command_serves_until_ctrl_c(folder: Path) -> None:
    engine = f"generator.engine={json.dumps(ENGINE)}"
    process = subprocess.Popen(
        [sys.executable, "-m", "forge_core", "serve", str(folder), "--port", "0", engine],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    try:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        with openai.OpenAI(base_url=address, api_key="none") as client:
            answer = client.completions.create(prompt=PROMPT, **GREEDY)
            assert answer.system_fingerprint == "policy-0"
        process.send_signal(signal.SIGINT)
        _, printed = process.communicate(timeout=300)
        assert process.returncode == 0
        assert "Traceback" not in printed
    finally:
        process.kill()
        process.wait()
    with pytest.raises(OSError, match="refused"), socket.socket() as probe:
        probe.connect(("127.0.0.1", int(address.split(":")[2].split("/")[0])))
