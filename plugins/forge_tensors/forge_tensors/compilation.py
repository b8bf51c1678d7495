"""Whether torch can compile on this machine's CPU."""

from __future__ import annotations

import sysconfig
from functools import cache
from pathlib import Path


@cache
def missing_for_compilation() -> str | None:
    """What torch's compiler wants on a CPU and does not find, or None if nothing is missing.

    Without it, the first call of a compiled function fails with the output of a C++ compiler.
    """
    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch._inductor.cpu_vec_isa import pick_vec_isa
    from torch._inductor.exc import InvalidCxxCompiler

    try:
        get_cpp_compiler()
    except InvalidCxxCompiler:
        return "a C++ compiler (g++)"
    if not Path(sysconfig.get_path("include"), "Python.h").is_file():
        return "Python's headers (Python.h)"
    if not pick_vec_isa():
        # torch writes code for vector instructions also where it has found none.
        return "vector instructions (AVX2; ATEN_CPU_CAPABILITY=default turns them off)"
    return None
