"""One of two plugins that provide the reward ``polite``."""

from forge_core import RewardComponent, Settings, hookimpl


class PoliteSettings(Settings):
    pass


def build_polite(settings, context):
    return lambda sample: float("please" in sample.completion)


@hookimpl
def forge_rewards():
    yield RewardComponent(
        name="polite", settings=PoliteSettings, build=build_polite, summary="polite in the north"
    )
