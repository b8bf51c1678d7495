"""The package of ``docs/writing-a-plugin.md``: built, installed, listed, and its parts at work."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys

import pytest

from forge_core import (
    BuildContext,
    DistributedSection,
    Forge,
    Generator,
    Loss,
    ModelSection,
    Reward,
    RewardSample,
    Sampling,
    Selection,
    Task,
    TrainingSection,
    UsageError,
)
from forge_core.contracts.target import call_build
from forge_testing.command import run_as_process


@pytest.fixture
def acme_forge(guide_package, monkeypatch):
    monkeypatch.syspath_prepend(guide_package)
    yield importlib.import_module("acme_forge")
    del sys.modules["acme_forge"]


def component(module, family: str, name: str):
    return Forge(plugins=[module], discover=False).plugins.catalog.get(family, name)


def test_the_installed_package_is_listed(installed_guide, tmp_path):
    result = run_as_process("plugins", "--json", cwd=tmp_path, python_path=[installed_guide])
    page = json.loads(result.stdout)
    assert {
        "name": "acme",
        "distribution": "acme-forge",
        "version": "0.1.0",
        "status": "ok",
        "cause": "",
    } in page["plugins"]
    brought = [(c["family"], c["name"]) for c in page["components"] if c["plugin"] == "acme"]
    assert brought == [("generator", "plain"), ("loss", "keep_good"), ("reward", "concise")]


def test_its_own_tests_pass(guide_package, installed_guide):
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", guide_package],
        cwd=guide_package,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr


def test_the_reward(acme_forge):
    concise = component(acme_forge, "reward", "concise")
    reward = call_build(concise.build, concise.settings(limit=4), None)
    assert isinstance(reward, Reward)
    scores = [reward(RewardSample(Task("t", ""), "", "x" * length)) for length in (0, 4, 8)]
    assert scores == [1.0, 1.0, 0.5]


def test_the_loss(acme_forge):
    import torch

    from forge_core import LossBatch, ModelOutputs

    loss = call_build(component(acme_forge, "loss", "keep_good").build, None, None)
    assert isinstance(loss, Loss)
    fields = {"advantages": torch.tensor([2.0, -1.0, 0.0])}
    batch = LossBatch(sequence=torch.tensor([0, 0, 1]), num_sequences=2, fields=fields)
    logprobs = torch.tensor([-1.0, -2.0, -3.0], requires_grad=True)
    output = loss(logprobs, batch, ModelOutputs())
    output.sum.backward()
    assert (output.sum.item(), output.count) == (2.0, 3)
    assert logprobs.grad.tolist() == [-2.0, 0.0, 0.0]


@pytest.fixture
def context(tiny_model, forge_app) -> BuildContext:
    """What the generator is built with: a small model, and a transport for its weights."""
    from forge_torch import plugin as forge_torch

    memory = forge_app(forge_torch).plugins.catalog.get("transport", "memory")
    return BuildContext(
        model=ModelSection(path=tiny_model),
        training=TrainingSection(),
        distributed=DistributedSection(),
        channel="writing-a-plugin",
        transport=Selection(family="transport", component=memory, settings=memory.settings()),
    )


async def test_the_generator(acme_forge, context, tiny_model):
    import torch

    from forge_models.folder import load_model

    generator = component(acme_forge, "generator", "plain").build(None, context)
    assert isinstance(generator, Generator)
    sampling = Sampling(max_tokens=6, temperature=0.7, n=2, seed=1)
    first, second = await generator.generate([5, 6, 7], sampling)
    again = await generator.generate([5, 6, 7], sampling)
    assert again == [first, second]
    assert first.tokens.tolist() != second.tokens.tolist()
    model = load_model(tiny_model)
    with torch.no_grad():
        logits = model(torch.tensor([[5, 6, 7, *first.tokens]])).logits[0, 2:-1] / 0.7
    expected = logits.log_softmax(-1).gather(1, torch.tensor(first.tokens).long()[:, None])[:, 0]
    assert first.logprobs == pytest.approx(expected.tolist(), abs=1e-4)
    with pytest.raises(UsageError, match="without top_p"):
        await generator.generate([5], Sampling(top_p=0.9))
    assert await generator.stats() == {"tokens": 24}
    await generator.close()


async def test_the_generator_takes_new_weights(acme_forge, context, tiny_model):
    import torch

    from forge_models.folder import load_model

    generator = component(acme_forge, "generator", "plain").build(None, context)
    greedy = Sampling(max_tokens=4, temperature=0.0)
    [before] = await generator.generate([5, 6, 7], greedy)
    trainer = load_model(tiny_model)
    with torch.no_grad():
        for parameter in trainer.parameters():
            parameter.neg_()
    publisher = context.transport.build(context)
    manifest = await publisher.publish(3, trainer.named_parameters())
    assert await generator.update_weights(manifest) == manifest
    [after] = await generator.generate([5, 6, 7], greedy)
    assert before.versions.tolist() == [0] * 4
    assert after.versions.tolist() == [3] * 4
    assert after.tokens.tolist() != before.tokens.tolist()
    await generator.close()
    await publisher.close()
