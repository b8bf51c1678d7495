"""Commands that plugins add to ``forge``."""

from __future__ import annotations

import sys

import pytest

from forge_core import Command, hookimpl
from forge_core.command import INSTALL_ENGINES

GREET = """
    from forge_core import Command, hookimpl

    @hookimpl
    def forge_commands():
        yield Command(name="greet", target="{target}", summary="Say hello from {name}.")
"""
COMMAND = """
    import click
    from forge_core import UsageError

    @click.command()
    @click.argument("count", type=int)
    @click.pass_obj
    def greet(app, count):
        "Say hello."
        if count > 9:
            raise UsageError("that is a lot")
        click.echo(f"hello from {name}, beside {{len(app.plugins.plugins()) - 1}} plugins")
        return count
"""


@pytest.fixture
def greeter(fake_distribution):
    """Install a plugin whose command lives in a module of its own."""

    def install(name: str) -> None:
        module = f"{name.replace('-', '_')}_command"
        fake_distribution(name, GREET.format(target=f"{module}:greet", name=name))
        fake_distribution(f"{name}-command", COMMAND.format(name=name), entry_points={})

    return install


def test_it_is_listed_and_called_like_the_kernels(greeter, run_forge):
    greeter("acme-one")
    assert "  greet     Say hello from acme-one.\n" in run_forge("--help").stdout
    assert "acme_one_command" not in sys.modules  # help costs no import of it
    result = run_forge("greet", "3")
    assert result.exit_code == 3
    assert result.stdout.startswith("hello from acme-one, beside ")
    assert "Usage: forge greet [OPTIONS] COUNT" in run_forge("greet", "--help").stdout
    assert "'many' is not a valid integer" in run_forge("greet", "many").stderr
    refused = run_forge("greet", "10")
    assert (refused.exit_code, refused.stderr) == (2, "error: that is a lot\n")


def test_one_that_is_left_out_is_neither_listed_nor_called(greeter, run_forge):
    greeter("acme-one")
    assert "greet" not in run_forge("-p", "no:acme_one", "--help").stdout
    result = run_forge("-p", "no:acme_one", "greet", "3")
    assert result.exit_code == 2
    assert "plugin acme_one (acme-one 1.0) is blocked: left out (-p no:acme_one)" in result.stderr


def test_two_of_one_name_are_told_apart(greeter, run_forge):
    greeter("acme-one")
    greeter("acme-two")
    both = "command 'greet' is provided by acme-one 1.0 and acme-two 1.0; pick one: "
    result = run_forge("greet", "3")
    assert result.exit_code == 2
    assert result.stderr == f"error: {both}acme-one:greet or acme-two:greet\n"
    assert f"conflict: {both}" in run_forge("plugins").stdout
    assert run_forge("acme-two:greet", "0").stdout.startswith("hello from acme-two")


def test_an_unknown_command(run_forge, forge_app):
    near = run_forge("plugin", app=forge_app())
    assert near.exit_code == 2
    assert near.stderr.startswith(
        "error: no command is called 'plugin'; did you mean 'plugins'?; installed: plugins, "
    )
    assert INSTALL_ENGINES not in near.stderr
    far = run_forge("xyz", app=forge_app())
    assert far.exit_code == 2
    assert far.stderr.endswith(f"(in a clone of Forge's repository: {INSTALL_ENGINES})\n")


@pytest.mark.parametrize(
    ("command", "cause"),
    [
        (
            Command(name="plugins", target="a:b", summary=""),
            "the kernel has a command of that name",
        ),
        (Command(name="Say it", target="a:b", summary=""), "lower case words joined by - or _"),
        (Command(name="say", target="a.b", summary=""), "must be 'module:attribute', not 'a.b'"),
        ("say", "yielded a str, not a Command"),
    ],
)
def test_what_cannot_be_a_command_breaks_its_plugin(command, cause, run_forge, fake_distribution):
    fake_distribution(
        "acme-bad",
        f"""
        from forge_core import Command, hookimpl

        @hookimpl
        def forge_commands():
            yield {command!r}
        """,
    )
    assert cause in run_forge("plugins").stdout
    assert run_forge("--help").exit_code == 0


@pytest.mark.parametrize(
    ("target", "cause"),
    [
        ("acme_missing:say", "ModuleNotFoundError: No module named 'acme_missing'"),
        ("json:dumps", "TypeError: it is no click.Command: <function dumps"),
        ("json:no_such", "AttributeError: module 'json' has no attribute 'no_such'"),
    ],
)
def test_a_target_that_is_no_command(target, cause, run_forge, forge_app):
    class Mine:
        @hookimpl
        def forge_commands(self):
            yield Command(name="say", target=target, summary="")

    result = run_forge("say", app=forge_app(Mine()))
    assert result.exit_code == 2
    assert f"error: command 'say': {target} cannot be used: {cause}" in result.stderr


def test_help_is_shown_whatever_is_wrong_with_the_plugins(run_forge_process):
    result = run_forge_process("--help", environ={"FORGE_PLUGIN_AUTOLOAD": "maybe"})
    assert result.exit_code == 0
    assert "  plugins " in result.stdout
