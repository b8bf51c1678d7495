"""What all conformance suites share: a time limit, the only way to leave a test out, and the check
of what a component builds."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any, ClassVar, TypeVar

import pytest

from forge_core import BuildContext, Selection
from forge_core.contracts.built import check_built

T = TypeVar("T")

_HERE = __name__.rpartition(".")[0]


class Suite:
    """Base of the suites. A class that inherits one may leave tests out, but not override them.

    Raises:
        TypeError: when the class is made, if it overrides a test of the suite, or if ``opt_out``
            names no test or gives no reason.
    """

    opt_out: ClassVar[Mapping[str, str]] = {}
    """Test name -> why this component cannot pass it; the test is then skipped with that reason."""

    time_limit: ClassVar[float] = 300.0
    """Seconds for a test with its fixtures; one that hangs fails (pytest-timeout)."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if cls.__module__.startswith(_HERE):
            return
        tests = sorted(
            {
                name
                for base in cls.__mro__
                if base.__module__.startswith(_HERE)
                for name in vars(base)
                if name.startswith("test_")
            }
        )
        overridden = [name for name in tests if name in vars(cls)]
        if overridden:
            raise TypeError(
                f"{cls.__name__} overrides {', '.join(overridden)}; leave a test out with "
                "opt_out, which wants a reason"
            )
        for name, reason in cls.opt_out.items():
            if name not in tests:
                near = difflib.get_close_matches(name, tests, n=1)
                hint = f"; did you mean {near[0]!r}?" if near else ""
                raise TypeError(f"{cls.__name__}.opt_out: no test is called {name!r}{hint}")
            if not isinstance(reason, str) or not reason.strip():
                raise TypeError(f"{cls.__name__}.opt_out[{name!r}]: give a reason, as text")

    @pytest.fixture(autouse=True)
    def _opt_out(self, request: pytest.FixtureRequest) -> None:
        """Runs before the other fixtures, so that what a skipped test would need is not made."""
        reason = self.opt_out.get(request.node.originalname)
        if reason is not None:
            pytest.skip(reason)


def built(selection: Selection[T], context: BuildContext) -> T:
    """Build a component as a run does: ``build`` is imported, called, and what it returns has to be
    what its family's protocol asks for, whether a config selected it or a test did.

    Raises:
        PluginError: it is something else; names the component and what was expected.
    """
    made = selection.build(context)
    check_built(selection, made)
    return made
