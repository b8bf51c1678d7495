"""The model of the tests marked ``real``: made once a session, for all of its processes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from forge_core import UsageError
from forge_smollm2.convert import INSTALL, convert, gguf_file

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


def _is_installed() -> bool:
    try:
        gguf_file()
    except UsageError:
        return False
    return True


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if _is_installed():
        return
    skip = pytest.mark.skip(reason=f"SmolLM2-135M-Instruct is not here: {INSTALL}")
    for item in items:
        if item.get_closest_marker("real") is not None:
            item.add_marker(skip)


@pytest.fixture(scope="session")
def smollm2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of SmolLM2-135M-Instruct. Not to be changed."""
    from filelock import FileLock

    base = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        base = base.parent
    folder = base / "smollm2"
    with FileLock(base / "smollm2.lock"):
        if not folder.is_dir():
            making = base / "smollm2-in-making"
            convert(making)
            making.rename(folder)
    return folder


@pytest.fixture(scope="module")
def model(smollm2: Path) -> PreTrainedModel:
    """The model in float32, run by transformers."""
    from forge_models.folder import load_model

    return load_model(smollm2)


@pytest.fixture(scope="session")
def tokenizer(smollm2: Path) -> PreTrainedTokenizerBase:
    from forge_models.folder import load_tokenizer

    return load_tokenizer(smollm2)
