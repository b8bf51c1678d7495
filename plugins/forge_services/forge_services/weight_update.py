"""A replica takes requests only after it has proved that it holds the weights asked for."""

from __future__ import annotations

from functools import partial

from forge_core import FanoutError, ReplicaDied, WeightManifest, WeightMismatch
from forge_services.replica import LiveReplica
from forge_services.service import Service


async def update_weights(service: Service, manifest: WeightManifest) -> None:
    """Have every replica load these weights and compare what each then holds with the manifest.

    A replica that holds something else leaves rotation. One that restarts later (or is restarting
    now) loads the manifest and proves it before it takes requests.

    Raises:
        WeightMismatch: a replica reports another version or checksum; names each.
        FanoutError: ``update_weights`` raised on a replica.
        RunFailed: every replica died and none came back.
    """
    # First of all, so that a replica restarting now does not come back with older weights.
    service.on_restart("weights", partial(_load, manifest=manifest))
    outcomes = await service.outcomes("update_weights", manifest)
    mismatches = []
    for outcome in outcomes:
        if outcome.error is None and (problem := _difference(outcome.value, manifest)):
            service.evict(outcome.replica, problem)
            mismatches.append(f"replica {outcome.replica} of {service.name!r} {problem}")
    if mismatches:
        raise WeightMismatch("; ".join(mismatches))
    # A dead replica proves the manifest when it restarts; any other error is final.
    failures: dict[int, BaseException] = {
        outcome.replica: outcome.error
        for outcome in outcomes
        if outcome.error is not None and not isinstance(outcome.error, ReplicaDied)
    }
    if failures:
        raise FanoutError(f"{service.name}.update_weights", failures, len(outcomes))
    await service.until_healthy()


async def _load(live: LiveReplica, manifest: WeightManifest) -> None:
    problem = _difference(await live.call("update_weights", manifest), manifest)
    if problem:
        raise WeightMismatch(f"replica {live.index} {problem}")


def _difference(held: object, manifest: WeightManifest) -> str:
    """What is wrong with the weights a replica reports, or nothing."""
    if not isinstance(held, WeightManifest):
        return f"reports {held!r} instead of the weights it holds"
    if held.version != manifest.version:
        return f"holds version {held.version}, not {manifest.version}"
    if held.checksum != manifest.checksum:
        return (
            f"holds version {held.version} with checksum {held.checksum}, not {manifest.checksum}"
        )
    return ""
