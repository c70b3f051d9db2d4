"""Kernels that problems share: have Inductor compile them, and keep them from one problem to the next."""

from __future__ import annotations

import logging
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from diode_collectors.sweep.lane.shared_source import SharedSource, shared_source

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

log = logging.getLogger(__name__)

_TRITON_CACHE = "TRITON_CACHE_DIR"


def can_share() -> bool:
    """Return whether this version of Inductor makes kernels in the form that ``shared_kernels`` expects."""
    from torch._inductor import select_algorithm

    kind = getattr(select_algorithm, "GenerateAndLoadResult", None)
    has_arguments = "kernel_args_sizevars_keys" in getattr(kind, "_fields", ())
    generates = hasattr(select_algorithm.TritonTemplate, "generate_and_load")
    return has_arguments and generates and hasattr(select_algorithm, "PyCodeCache")


@contextmanager
def shared_kernels(folder: Path) -> Iterator[list[SharedSource]]:
    """Make sizes arguments of Triton kernels, and keep the compiled kernels in ``folder``, which lanes may share.

    Yields a list that gets the source of each kernel with such arguments. Enter this inside Inductor's ``fresh_cache``,
    which would keep the kernels for one problem only.
    """
    import sympy  # type: ignore[import-untyped]
    from torch._inductor.select_algorithm import TritonTemplate

    generate, kept = TritonTemplate.generate_and_load, os.environ.get(_TRITON_CACHE)
    shared: list[SharedSource] = []

    def generate_shared(template: Any, *arguments: Any, **named: Any) -> Any:
        """Stand in for ``generate_and_load``."""
        result, source = _generated(generate, template, arguments, named)
        if result is None or source is None or not source.sizes:
            return result
        shared.append(source)
        # Inductor passes these values behind the tensors, as it does for dynamic sizes.
        return result._replace(kernel_args_sizevars_keys=tuple(map(sympy.Integer, source.sizes)))

    TritonTemplate.generate_and_load = generate_shared
    os.environ[_TRITON_CACHE] = str(folder)
    try:
        yield shared
    finally:
        TritonTemplate.generate_and_load = generate
        if kept is None:
            del os.environ[_TRITON_CACHE]
        else:
            os.environ[_TRITON_CACHE] = kept


def _generated(
    generate: Any, template: Any, arguments: tuple[Any, ...], named: dict[str, Any]
) -> tuple[Any, SharedSource | None]:
    """Return Inductor's result for a kernel with our source in place of its own, and that source.

    The result is None if Inductor wrote nothing.
    """
    from torch._inductor import select_algorithm

    loader = select_algorithm.PyCodeCache
    written: list[SharedSource] = []

    class Loader:
        @staticmethod
        def load(code: str, extra: str = "", **options: Any) -> Any:
            written.append(_source_of(code))
            return loader.load(written[-1].code, extra, **options)

    select_algorithm.PyCodeCache = Loader
    try:
        result = generate(template, *arguments, **named)
    finally:
        select_algorithm.PyCodeCache = loader
    return result, written[-1] if written else None


def _source_of(code: str) -> SharedSource:
    """Return a kernel's source that problems share, or Inductor's own if there is none."""
    try:
        return shared_source(code)
    except ValueError as error:
        log.debug("a kernel of its own: %s", error)
        return SharedSource(code)
