"""Forge plugin: advantage estimator ``rloo``, REINFORCE leave-one-out.

Ahmadian et al., arXiv:2402.14740, section 3.3 (Kool et al., 2019).
"""

from forge_core import AdvantageComponent, Settings, hookimpl


def rloo(rewards):
    """Reward of each episode minus the mean reward of the others, [G]."""
    others = len(rewards) - 1
    total = sum(rewards)
    return [reward - (total - reward) / others if others else 0.0 for reward in rewards]


@hookimpl
def forge_advantages():
    yield AdvantageComponent(
        name="rloo", settings=Settings, build=lambda: rloo, summary="leave-one-out baseline (RLOO)"
    )
