"""Settings that make Inductor's compiles cheap for tests and the processes they start, and no less real."""

from __future__ import annotations

from pathlib import Path

COMPILER = Path(__file__).with_name("cached-g++")


def settings(cache: Path) -> dict[str, str]:
    """Return environment variables for processes that compile; torch reads them when it is imported.

    Args:
        cache: a folder for compiled kernels; all these processes share it.
    """
    return {
        "CXX": str(COMPILER),
        "DIODE_TEST_CXX_CACHE": str(cache),
        # Each of these costs g++ some ten seconds of a compile: a header that is no faster to read once it is
        # precompiled, and small programs that show what the CPU can do.
        "TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS": "0",
        "TORCHINDUCTOR_VEC_ISA_OK": "1",
        # A pool of workers costs each process a second torch, and one kernel at a time needs none.
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
        # Threads make nothing so small faster, and kernels for several threads are other kernels.
        "OMP_NUM_THREADS": "1",
    }
