"""Keys of an address come from where they are not seen, and are never told."""

from __future__ import annotations

import traceback
from pathlib import Path

import pytest

from forge_core import ConfigError
from forge_testing.command import run_in_process
from forge_testing.context import bare_context
from forge_vllm.api_keys import read_keys
from forge_vllm.checks import generator_cautions
from forge_vllm.settings import VllmSettings


@pytest.fixture(autouse=True)
def no_key_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VLLM_API_KEY", raising=False)


def test_keys_come_from_a_file_or_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "keys.txt"
    file.write_text("one\n\n two \n")
    assert read_keys({}) == []
    assert read_keys({"api_key_file": str(file)}) == ["one", "two"]
    monkeypatch.setenv("MY_KEY", "three")
    assert read_keys({"api_key_env": "MY_KEY"}) == ["three"]
    monkeypatch.setenv("VLLM_API_KEY", "four")
    assert read_keys({}) == ["four"]


def test_no_key_is_an_error_not_an_open_door(tmp_path: Path) -> None:
    (tmp_path / "empty.txt").write_text("\n")
    (tmp_path / "binary.txt").write_bytes(b"hunter2\xff")
    for serve in (
        {"api_key_file": str(tmp_path / "empty.txt")},
        {"api_key_file": str(tmp_path / "binary.txt")},
        {"api_key_file": str(tmp_path / "missing.txt")},
        {"api_key_env": "NOT_SET_ANYWHERE"},
    ):
        with pytest.raises(ConfigError, match=r"generator\.serve\.api_key_") as raised:
            read_keys(serve)
        assert "hunter2" not in "".join(traceback.format_exception(raised.value))


def test_an_address_for_others_without_a_key_is_warned_of() -> None:
    def cautions(**serve: object) -> list[str]:
        return generator_cautions(VllmSettings(serve=serve), bare_context())

    (line,) = cautions(host="0.0.0.0")
    assert "anyone who reaches 0.0.0.0 can use the policy without a key" in line
    assert not cautions()
    assert not cautions(host="0.0.0.0", api_key_file="keys.txt")


def test_the_command_takes_no_key_itself(tiny_model: Path) -> None:
    refused = run_in_process("serve", str(tiny_model), "--api-key", "hunter2")
    assert refused.exit_code == 2
    assert "use --api-key-file FILE or --api-key-env NAME" in refused.stderr
    assert "hunter2" not in refused.stdout + refused.stderr
