"""Early compiles: kernels compile as soon as they are generated, and load as soon as they are compiled.

Inductor generates all kernels of a problem before it hands the first to its compile workers. It loads a compiled kernel
only when it benchmarks it. Both leave cores or the GPU waiting.
"""

from __future__ import annotations

import logging
from concurrent.futures import as_completed
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from concurrent.futures import Future

log = logging.getLogger(__name__)


class EagerCompiles:
    """Submits Triton kernels when they are generated; when Inductor asks for them they are compiling already."""

    def __init__(self) -> None:
        from torch._inductor.async_compile import AsyncCompile

        self._compiler = AsyncCompile()
        self._pending: dict[Future[Any], Any] = {}

    def forget(self) -> None:
        """Release the last problem's kernels."""
        self._pending.clear()

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Submit every kernel of Inductor's autotuner in this process early."""
        from torch._inductor import select_algorithm

        caller, cache = select_algorithm.TritonTemplateCaller, select_algorithm.AlgorithmSelectorCache
        make, prepare = caller.__init__, cache.make_precompile_fn

        def make_and_submit(choice: Any, *arguments: Any, **named: Any) -> None:
            make(choice, *arguments, **named)
            self._submit(choice)

        def prepare_and_load(selector: Any, *arguments: Any, **named: Any) -> Callable[[], Any]:
            wait = prepare(selector, *arguments, **named)

            def load_and_wait() -> Any:
                self._load()
                return wait()

            return load_and_wait

        caller.__init__, cache.make_precompile_fn = make_and_submit, prepare_and_load
        try:
            yield
        finally:
            caller.__init__, cache.make_precompile_fn = make, prepare

    def _submit(self, choice: Any) -> None:
        from torch._inductor.autotune_process import TritonGPUBenchmarkRequest

        request = choice.bmreq
        if not isinstance(request, TritonGPUBenchmarkRequest) or not self._compiler.use_process_pool():
            return
        try:
            source = Path(request.module_path).read_text(encoding="utf-8")
            compiling = self._compiler.triton(kernel_name=request.kernel_name, source_code=source)
            self._pending[compiling.future] = request
        except Exception as error:  # noqa: BLE001 - then Inductor submits it, later
            log.debug("%s is not compiled ahead: %s", choice.name, error)

    def _load(self) -> None:
        """Load compiled kernels in the order of their completion, without touching the device."""
        from torch._inductor.codecache import PyCodeCache

        for future in as_completed(self._pending):
            request = self._pending[future]
            if future.exception() is not None:
                continue
            try:
                module = PyCodeCache.load_by_key_path(request.module_cache_key, request.module_path)
                getattr(module, request.kernel_name).precompile(warm_cache_only=True)
            except Exception as error:  # noqa: BLE001 - it is raised again when the choice is timed
                log.debug("%s cannot be loaded: %s", request.kernel_name, error)
