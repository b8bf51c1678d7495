"""What Forge adds to vLLM's workers: receiving weights. Lives in each of the engine's processes."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import pickle
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from forge_core import ForgeError, WeightMismatch
from forge_vllm.weight_loading import Copied, WeightStream, copy_some, folder_shapes, optional_names

if TYPE_CHECKING:
    from forge_core import BuildContext, Transport

Held = dict[str, Any]
"""What a worker holds after an update: ``checksum``, ``tensors`` and ``bytes``."""


class WeightReceiver:
    """Extends vLLM's worker class (``worker_extension_cls``).

    ``model_config``, ``model_runner`` and ``reload_weights`` are the worker's.
    """

    model_config: Any
    model_runner: Any
    forge_names: tuple[Mapping[str, tuple[int, ...]], frozenset[str]] | None = None
    forge_transport: Transport | None = None
    forge_runner: asyncio.Runner
    forge_prepared: Iterator[Copied] = iter(())

    def forge_load(self, weights: Iterator[Copied]) -> Held:
        """Load weights by Hugging Face name and say what is held.

        Raises:
            WeightMismatch: they do not fit the model. What the engine then holds is of no version.
        """
        from vllm.model_executor.model_loader.reload import finalize_layerwise_reload

        if self.forge_names is None:
            folder = Path(self.model_config.model)
            shapes = folder_shapes(folder)
            self.forge_names = shapes, optional_names(folder, shapes)
        stream = WeightStream(weights, *self.forge_names)
        model = self.model_runner.get_model()
        packed = packed_matrices(model)
        try:
            self.reload_weights(weights_iterator=iter(stream))  # type: ignore[attr-defined]
        except Exception:
            # Else vLLM would take the next update for the rest of this one.
            finalize_layerwise_reload(model, self.model_config)
            raise
        held = stream.finish()
        repack(model, packed)
        return held

    def forge_connect(self, context: bytes) -> None:
        """Build this process's end of the transport, for an engine that has its own process.

        Args:
            context: a pickled ``BuildContext``.
        """
        opened: BuildContext = pickle.loads(context)
        assert opened.transport is not None
        self.forge_runner = asyncio.Runner()
        self.forge_transport = opened.transport.build(opened)

    def forge_prepare(self, version: int) -> None:
        """Open a version and copy its first tensors, while the engine comes to its pause."""
        assert self.forge_transport is not None
        weights = _synchronous(self.forge_runner, self.forge_transport.fetch(version))
        try:
            self.forge_prepared = chain([next(weights)], weights)
        except (ForgeError, KeyError, StopIteration) as error:
            self.forge_prepared = _raising(error)

    def forge_fetch(self) -> Held:
        """Load the version that was prepared.

        What was wrong with it is ``refusal`` in the result: vLLM makes all exceptions one between
        processes.
        """
        weights, self.forge_prepared = self.forge_prepared, iter(())
        try:
            return self.forge_load(weights)
        except (ForgeError, KeyError) as error:
            return {"refusal": str(error.args[0])}

    def forge_disconnect(self) -> None:
        """Leave the transport."""
        if self.forge_transport is not None:
            self.forge_runner.run(self.forge_transport.close())
            self.forge_runner.close()
            self.forge_transport = None


def packed_matrices(model: torch.nn.Module) -> dict[str, Callable[..., torch.Tensor]]:
    """By layer, the functions in which vLLM keeps matrices that it packed for a CPU."""
    functions: dict[str, Any] = {
        name: getattr(layer, "cpu_linear", None) for name, layer in model.named_modules()
    }
    return {name: f for name, f in functions.items() if getattr(f, "__closure__", None)}


def repack(model: torch.nn.Module, before: Mapping[str, Callable[..., torch.Tensor]]) -> None:
    """Pack again what a reload has not: a head tied to the embeddings gets no tensor of its own.

    Args:
        model: after the reload.
        before: ``packed_matrices`` before it.

    Raises:
        WeightMismatch: a layer still computes with the matrix it had before.
    """
    for name, old in before.items():
        layer: Any = model.get_submodule(name)
        if layer.cpu_linear is old:
            layer.quant_method.process_weights_after_loading(layer)
        if layer.cpu_linear is old:
            raise WeightMismatch(f"vLLM still computes {name} with the weights it had before")


def _end_with_parent() -> None:
    """vLLM's engine process would outlive a generator's that is killed."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


# vLLM imports this module in its own processes, and calls nothing of ours there before a request.
_end_with_parent()


def _raising(error: Exception) -> Iterator[Copied]:
    if not isinstance(error, StopIteration):
        raise error
    yield from ()


def _synchronous(
    runner: asyncio.Runner, source: AsyncIterator[tuple[str, torch.Tensor]]
) -> Iterator[Copied]:
    try:
        while copies := runner.run(copy_some(source)):
            yield from copies
    finally:
        runner.run(source.aclose())  # type: ignore[attr-defined]
