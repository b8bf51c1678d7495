"""What is done for TorchStore 0.1.2 on Monarch 0.7, and that it is left undone elsewhere."""

from __future__ import annotations

import inspect
import subprocess
import sys
import textwrap
import types

import pytest
import torchstore
import torchstore.api
import torchstore.controller
from monarch.actor import Actor, endpoint

from forge_core import BuildContext, Forge, PluginError, UsageError
from forge_torchstore import compat, shared_volume, torchstore_api
from forge_torchstore.plugin import TORCHSTORE
from forge_torchstore.settings import TorchStoreSettings


class Mixed(Actor):
    @endpoint
    def sync(self, value: int) -> int:
        return value

    @endpoint
    async def coroutine(self) -> None: ...

    def helper(self) -> None: ...


class NewerTorchStore(Actor):
    @endpoint
    async def one(self) -> None: ...

    @endpoint
    async def other(self) -> None: ...


class AllSync(Actor):
    @endpoint
    def one(self) -> None: ...


def test_classes_of_both_kinds_become_async_and_keep_their_signatures() -> None:
    before = inspect.signature(Mixed.sync._method)  # type: ignore[attr-defined]
    assert compat.unmix_endpoints(Mixed) == ["sync"]
    method = Mixed.sync._method  # type: ignore[attr-defined]
    assert inspect.iscoroutinefunction(method)
    assert inspect.signature(method) == before
    assert compat.unmix_endpoints(Mixed) == []


@pytest.mark.parametrize("actor", [NewerTorchStore, AllSync])
def test_classes_of_one_kind_are_left_alone(actor: type) -> None:
    methods = {name: vars(actor)[name]._method for name in vars(actor) if name in ("one", "other")}
    assert compat.unmix_endpoints(actor) == []
    assert all(vars(actor)[name]._method is method for name, method in methods.items())


def test_the_installed_torchstore_needs_it() -> None:
    assert compat.PATCHED["Controller"] != []
    assert compat.PATCHED["StorageVolume"] == []
    assert torchstore.api.Controller is compat.Controller
    assert shared_volume.usable()


def test_a_newer_torchstore_keeps_its_own_classes() -> None:
    """With a Controller of one kind, importing the layer changes nothing."""
    script = """
        import torchstore.controller, torchstore.api
        from monarch.actor import Actor, endpoint

        class Controller(Actor):
            @endpoint
            async def init(self): ...

        torchstore.controller.Controller = torchstore.api.Controller = Controller
        import forge_torchstore.compat as compat
        assert compat.PATCHED == {"Controller": [], "StorageVolume": []}
        assert torchstore.api.Controller is Controller
        assert not hasattr(compat, "Controller")
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(script)], check=True)


def test_an_api_that_does_not_fit_is_one_line() -> None:
    fitting = {name: getattr(torchstore, name) for name in torchstore_api.CALLS}
    torchstore_api.check_api(types.SimpleNamespace(**fitting))
    without = {name: call for name, call in fitting.items() if name != "reset_client"}
    with pytest.raises(PluginError, match=r"torchstore 0\.1\.2 does not fit: has no reset_client"):
        torchstore_api.check_api(types.SimpleNamespace(**without))
    renamed = fitting | {"client": lambda name: name}
    with pytest.raises(PluginError, match=r"client\(\) takes no store_name; pip install") as caught:
        torchstore_api.check_api(types.SimpleNamespace(**renamed))
    assert "\n" not in str(caught.value)


def test_without_torchstore_the_error_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch, context: BuildContext
) -> None:
    monkeypatch.setitem(sys.modules, "torchstore", None)
    with pytest.raises(PluginError, match=r"pip install --no-deps torchstore==0\.1\.2") as caught:
        TORCHSTORE.build(TorchStoreSettings(), context)
    assert "\n" not in str(caught.value)


def test_a_process_that_monarch_did_not_start_is_refused() -> None:
    script = """
        import multiprocessing
        from forge_core import UsageError
        from forge_torchstore import torchstore_api

        def child(pipe):
            try:
                torchstore_api.load()
            except UsageError as error:
                pipe.send(str(error))

        if __name__ == "__main__":
            ours, theirs = multiprocessing.Pipe()
            process = multiprocessing.get_context("fork").Process(target=child, args=(theirs,))
            process.start()
            assert "--runtime monarch" in ours.recv()
            process.join()
            assert process.exitcode == 0
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(script)], check=True)


@pytest.mark.parametrize("section", ["trainer", "generator"])
def test_processes_of_the_local_runtime_are_refused_before_anything_starts(section: str) -> None:
    config = {"transport": {"use": "torchstore"}, section: {"isolate": True}}
    with pytest.raises(UsageError, match=rf"{section} asks for.*--runtime monarch"):
        Forge().run("quickstart", config)
