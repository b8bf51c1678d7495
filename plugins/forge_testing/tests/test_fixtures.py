"""The fixtures of ``forge_testing``, and what they cost people who do not use them."""

from __future__ import annotations

import importlib
import importlib.metadata
import subprocess
import sys

import pytest

from forge_core import hookimpl
from forge_testing.plugin import TINY_CHARACTERS


def test_the_pytest_plugin_is_light():
    code = (
        "import sys, forge_testing.plugin\n"
        "heavy = {'torch', 'transformers', 'numpy', 'click'} & set(sys.modules)\n"
        "sys.exit(' '.join(heavy) or 0)"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr


def test_an_app_is_fresh_and_knows_no_installed_plugin(forge_app, fake_distribution):
    fake_distribution("acme-unseen", "")

    class Mine:
        @hookimpl
        def forge_rewards(self):
            return []

    app = forge_app(Mine())
    assert [plugin.name for plugin in app.plugins.plugins()] == ["core", "Mine"]
    assert forge_app(disabled=["core"]).plugins.plugins()[0].status == "blocked"
    assert forge_app() is not forge_app()


def test_a_fake_distribution_is_a_real_one(fake_distribution):
    file = fake_distribution(
        "acme-real.thing", "VALUE = 1", version="3.1", requires=["torch"], entry_points={"a": "b:c"}
    )
    found = importlib.metadata.distribution("Acme_Real-Thing")
    assert found.version == "3.1"
    assert found.requires == ["torch"]
    [entry] = found.entry_points
    assert (entry.group, entry.name, entry.value) == ("forge", "a", "b:c")
    assert importlib.import_module("acme_real_thing").__file__ == str(file)


@pytest.mark.parametrize("value", [1, 2])
def test_modules_of_a_fake_distribution_are_forgotten(fake_distribution, value):
    fake_distribution("acme-again", f"VALUE = {value}")
    assert value == importlib.import_module("acme_again").VALUE


def test_the_command_in_process_gives_exit_code_and_output(run_forge, forge_app):
    good = run_forge("--version")
    assert (good.exit_code, good.stderr) == (0, "")
    assert good.stdout.startswith("forge, version ")
    bad = run_forge("no-such-command", app=forge_app())
    assert bad.exit_code == 2
    assert "no-such-command" in bad.stderr


def test_the_command_as_a_process_is_not_disturbed_by_the_callers_settings(
    run_forge_process, monkeypatch, tmp_path
):
    monkeypatch.setenv("FORGE_PLUGIN_AUTOLOAD", "nonsense")
    result = run_forge_process("plugins")
    assert (result.exit_code, result.stderr) == (0, "")
    assert run_forge_process("runs").stdout == "no runs in runs\n"
    (tmp_path / "elsewhere").mkdir()
    away = run_forge_process("plugins", cwd=tmp_path / "elsewhere", environ={"FORGE_X": "1"})
    assert away.exit_code == 0


def test_the_tiny_model_answers_and_its_tokenizer_takes_printable_text(tiny_model):
    import torch

    from forge_models.folder import load_model, load_tokenizer

    tokenizer = load_tokenizer(tiny_model)
    ids = tokenizer.encode(TINY_CHARACTERS)
    assert len(ids) == len(TINY_CHARACTERS)
    assert tokenizer.decode(ids) == TINY_CHARACTERS
    model = load_model(tiny_model)
    assert model.config.model_type == "qwen3"
    assert sum(parameter.numel() for parameter in model.parameters()) < 50_000
    with torch.no_grad():
        assert model(torch.tensor([ids])).logits.isfinite().all()
