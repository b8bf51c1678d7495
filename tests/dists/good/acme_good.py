"""A plugin as it should be."""

from forge_core import RewardComponent, Settings, hookimpl


class ShortSettings(Settings):
    limit: int = 20


def build_short(settings, context):
    return lambda sample: float(len(sample.completion) <= settings.limit)


@hookimpl
def forge_rewards():
    yield RewardComponent(
        name="short", settings=ShortSettings, build=build_short, summary="1 if short"
    )
