"""Contributes one reward and fails at the second."""

from forge_core import RewardComponent, Settings, hookimpl


class NoSettings(Settings):
    pass


def build_first(settings, context):
    return lambda sample: 1.0


@hookimpl
def forge_rewards():
    yield RewardComponent(name="first", settings=NoSettings, build=build_first, summary="always 1")
    raise OSError("the second reward's word list is gone")
