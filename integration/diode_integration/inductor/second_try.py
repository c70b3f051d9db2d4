"""Compile a graph again, with the vendor kernels, if a picked kernel fails.

Inductor drops most candidates that fail in its benchmark. A candidate kept alone is compiled only with the graph, and
so is code fused into it. Its failure would be the whole compile's.
"""

from __future__ import annotations

import copy
import functools
import logging
import sys
from typing import TYPE_CHECKING, Any

import torch

from diode_integration.inductor.after_import import once_inductor_is_there, put_in_place
from diode_integration.inductor.attention import has_attention
from diode_integration.inductor.listing import is_tuned
from diode_store.values import safely

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import ExitStack

    from diode_integration.inductor.entry import Handler

log = logging.getLogger("diode_integration")

_COMPILER = "torch._inductor.compile_fx"
ENTRANCE = "fx_codegen_and_compile"
"""Function of that module that compiles one graph, after a look into the caches."""


def guard(installed: Callable[[], Handler | None], undo: ExitStack) -> None:
    """Have Inductor compile a graph again, without the model, if it fails with a template that was kept.

    If Inductor's compiler is not imported yet, this happens after its import, which takes long.
    """
    once_inductor_is_there(lambda: _wrap(installed, undo), undo)


def _wrap(installed: Callable[[], Handler | None], undo: ExitStack) -> bool:
    """Wrap the entrance; return False if the compiler is not imported yet."""
    compile_fx = sys.modules.get(_COMPILER)
    if compile_fx is None:
        return False
    stock = getattr(compile_fx, ENTRANCE, None)
    if stock is None:  # the import is still running; or this torch lacks the function
        return not getattr(compile_fx.__spec__, "_initializing", False)

    @functools.wraps(stock)
    def compiled(*args: Any, **kwargs: Any) -> Any:
        handler = installed()
        if handler is None:
            return stock(*args, **kwargs)
        module = args[0] if args else kwargs.get("gm")
        may_pick = is_tuned() or handler.serves_plain
        may_pick = may_pick or (handler.serves_plain_attention and _has_attention(module))
        restore = _restorer(module) if may_pick else None
        with handler.graphs.compiling():
            try:
                return stock(*args, **kwargs)
            except Exception as error:
                # A time limit, such as a signal's, is no fault of a kernel.
                if restore is None or not handler.graphs.has_template or isinstance(error, TimeoutError):
                    raise
                restore()
                return _again(handler, error, functools.partial(stock, *args, **kwargs))

    put_in_place(vars(compile_fx), ENTRANCE, compiled, undo)
    return True


def _has_attention(module: Any) -> bool:
    try:
        return has_attention(module)
    except Exception:  # noqa: BLE001 - as in ``_restorer``
        return False


def _restorer(module: Any) -> Callable[[], None] | None:
    """Return a function that restores the present graphs of a module and its submodules; None if that cannot be done.

    Inductor's passes change a graph in place, in the end so that it is no longer functional. Run again on such a graph,
    they would drop copies that matter. torch copies a graph's nodes, but not the objects in their metadata.
    """
    try:
        graphs = [
            (each, copy.deepcopy(each.graph)) for each in module.modules() if isinstance(each, torch.fx.GraphModule)
        ]
    except Exception as error:  # noqa: BLE001 - the user's compile must go on, whatever happened here
        safely.log(log, logging.DEBUG, f"a graph cannot be copied: {safely.in_words(error)}", error)
        return None

    def restore() -> None:
        for each, graph in graphs:
            each.graph = graph

    return restore


def _again(handler: Handler, error: Exception, compile_graph: Callable[[], Any]) -> Any:
    why = safely.in_words(error)
    failed = False
    try:
        with handler.graphs.without_model(why):
            result = compile_graph()
    except Exception:  # noqa: BLE001 - the pick was not at fault; the first error is raised
        failed = True
    if failed:
        raise error
    what = "a kernel that was picked cannot be used, so the graph is compiled without picks and models"
    safely.log(log, logging.WARNING, f"{what}: {why}", error)
    return result
