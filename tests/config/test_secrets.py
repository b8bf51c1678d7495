"""A secret in a config would be written to the run folder: it is refused by name."""

from __future__ import annotations

import pytest

from forge_core import ConfigError, Forge
from forge_testing.runs import small_config


@pytest.mark.parametrize("section", ["generator", "trainer", "reward_workers", "replay_buffer"])
@pytest.mark.parametrize(
    "name", ["WANDB_API_KEY", "HF_TOKEN", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "Password"]
)
def test_a_secret_among_the_variables_of_a_process(section: str, name: str) -> None:
    with pytest.raises(ConfigError, match=f"{section}.env.*{name} looks like a secret") as raised:
        Forge().resolve(small_config(**{section: {"env": {name: "hunter2"}}}))
    assert "hunter2" not in str(raised.value)


def test_other_variables_are_left_alone() -> None:
    env = {"TOKENIZERS_PARALLELISM": "false", "NCCL_SOCKET_IFNAME": "eth0", "HF_TOKEN": ""}
    Forge().resolve(small_config(trainer={"env": env}))
