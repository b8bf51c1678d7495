"""``forge plugins``: what it shows, and that it always answers."""

from __future__ import annotations

import json

from forge_core import hookimpl


def test_health_causes_components_and_conflicts_are_shown(install, run_forge):
    install("good", "import_error", "wrong_version", "conflict")
    result = run_forge("plugins")
    assert result.exit_code == 0
    lines = [line.split() for line in result.stdout.splitlines()]
    assert ["good", "acme-good", "1.2", "ok"] in lines
    assert ["reward", "short", "1", "if", "short", "acme-good"] in lines
    assert "refused  needs forge-rl-core>=99, this is 0.1.0" in result.stdout
    # A long cause is not cut off where there is no terminal to cut it for.
    assert "No module named 'acme_engine_that_is_not_installed'\n" in result.stdout
    assert "conflict: reward 'polite' is provided by acme-north 1.0 and acme-south 2.0" in (
        result.stdout
    )
    assert "\x1b[" not in result.stdout


def test_the_page_for_programs(install, run_forge):
    install("good", "import_error", "conflict")
    page = json.loads(run_forge("plugins", "--json").stdout)
    [broken] = [plugin for plugin in page["plugins"] if plugin["name"] == "import_error"]
    assert broken["status"] == "broken"
    assert broken["version"] == "1.0"
    assert broken["cause"].startswith("import of acme_import_error failed")
    assert {
        "family": "reward",
        "name": "short",
        "summary": "1 if short",
        "default": False,
        "provider": "acme-good",
        "plugin": "good",
    } in page["components"]
    assert len(page["conflicts"]) == 1


def test_debug_shows_the_traceback_behind_a_cause(install, run_forge):
    install("import_error")
    assert "Traceback" not in run_forge("plugins").stderr
    assert "import acme_engine_that_is_not_installed" in run_forge("--debug", "plugins").stderr


def test_plugins_handed_over_are_listed(forge_app, run_forge):
    class Mine:
        @hookimpl
        def forge_rewards(self):
            return []

    result = run_forge("plugins", app=forge_app(Mine()))
    assert "Mine    handed over in code  ok" in result.stdout


def test_leaving_out_from_the_command_line(install, run_forge, run_forge_process):
    install("good")
    assert "left out (-p no:good)" in run_forge("-p", "no:good", "plugins").stdout
    bad = run_forge_process("-p", "good", "plugins")
    assert bad.exit_code == 2
    assert "-p takes no:NAME" in bad.stderr


def test_a_process_finds_plugins_and_heeds_the_environment(fake_distribution, run_forge_process):
    fake_distribution("acme-fresh", "")
    assert "acme-fresh 1.0" in run_forge_process("plugins").stdout
    off = run_forge_process("plugins", environ={"FORGE_PLUGIN_AUTOLOAD": "0"})
    assert off.exit_code == 0
    assert "acme-fresh" not in off.stdout


def test_a_page_on_a_narrow_terminal_folds_and_loses_nothing(monkeypatch, capsys):
    from forge_core.cli.table import print_table

    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    print_table(("name", "cause"), [("mine", "word " * 20 + "x" * 60)])
    shown = "".join(capsys.readouterr().out.split())
    assert shown.count("word") == 20
    assert shown.count("x") == 60
