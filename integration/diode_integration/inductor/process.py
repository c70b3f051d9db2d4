"""The parts of Inductor through which a choices handler reaches every thread of a process.

Inductor keeps its choices handler per thread and compiles backward graphs in other threads, so setting one is not
enough. Its FX graph cache must also know the handler, or it serves kernels that another handler chose. This module
looks for the capability, not for the version of torch:

- ``register_inductor_choices`` (torch 2.15): process-wide, and in the cache key;
- ``config.inductor_choices_class`` (2.10 to 2.14): its default reaches every new thread. In 2.10 and 2.11 the cache key
  does not ask the class for its ``uuid``, so ``cache_key_tag`` carries it.

Every thread gets a ``ProcessChoices``, which looks up the installed handler each time and so follows later installs.
A thread that compiled before, often autograd's, keeps a stock handler. The methods of that class are therefore wrapped
to look up the installed handler, too.
"""

from __future__ import annotations

import functools
import logging
import sys
import threading
from typing import TYPE_CHECKING, Any

import torch
import torch.compiler.config as compiler_config
from torch._inductor import choices as inductor_choices
from torch._inductor import config as inductor_config
from torch._inductor import virtualized
from torch._inductor.choices import InductorChoices

from diode_integration.inductor import attention, benchmark, entry, fused, grouped, second_try, unranked
from diode_integration.inductor.after_import import once_inductor_is_there
from diode_integration.inductor.entry import ProcessChoices
from diode_store.values import safely

if TYPE_CHECKING:
    from contextlib import ExitStack
    from types import ModuleType

    from diode_integration.inductor.entry import Handler

log = logging.getLogger("diode_integration")

_KEY = "torch-diode"
_HOOK = "_finalize_template_configs"
"""Method of Inductor's handlers that the hook overrides."""
_NO_HANDLER = object()


def process_choices() -> ProcessChoices:
    """Return a thread's handler; at module level, because cache keys pickle it by name."""
    return ProcessChoices()


def missing_capability() -> str | None:
    """Return what this torch is missing for an installation, or None."""
    if not hasattr(InductorChoices, _HOOK):
        return f"torch {torch.__version__} has no hook for kernel choices; torch-diode needs torch 2.10 or later"
    if hasattr(inductor_choices, "register_inductor_choices") or hasattr(inductor_config, "inductor_choices_class"):
        return None
    return f"torch {torch.__version__} takes no process-wide choices handler; use torch 2.10 to 2.15"


def installed() -> Handler | None:
    """Return the installed handler, or None."""
    return ProcessChoices.handler


def engage(handler: Handler, undo: ExitStack) -> None:
    """Have every thread of the process ask ``handler``, until ``undo`` is closed."""
    undo.callback(entry.unregister)
    undo.callback(benchmark.disengage)
    # Last in, first out: the thread's handler comes back after everything else was undone.
    undo.callback(_restore_handler, threading.get_ident(), _current_handler())
    undo.callback(setattr, ProcessChoices, "handler", None)
    ProcessChoices.handler = handler
    _reach_stock_handlers(undo)
    second_try.guard(installed, undo)
    unranked.guard(installed, undo)
    grouped.guard(installed, undo)
    fused.guard(installed, undo)
    attention.guard(installed, undo)
    once_inductor_is_there(_registered, undo)
    if hasattr(inductor_choices, "register_inductor_choices"):
        undo.callback(inductor_choices.unregister_inductor_choices, _KEY)
        inductor_choices.register_inductor_choices(_KEY, process_choices)
        return
    if inductor_config.inductor_choices_class is not None:
        theirs = safely.in_words(inductor_config.inductor_choices_class)
        safely.log(log, logging.WARNING, f"torch-diode replaces inductor_choices_class = {theirs}")
    _set_for_all_threads(inductor_config, "inductor_choices_class", process_choices, undo)
    if not hasattr(inductor_config, "_cache_config_factory_keys"):
        _tag_cache_keys(f"|{handler.uuid()}", undo)
    _drop_handler()


def _registered() -> bool:
    """Have Inductor hand over each op's choices, also if it never asks for candidates; False if it is not there yet."""
    if "torch._inductor.select_algorithm" not in sys.modules:
        return False
    entry.ensure_registered()
    return True


def _reach_stock_handlers(undo: ExitStack) -> None:
    """Have stock handlers, in whichever thread, ask for the installed one."""
    stock = getattr(InductorChoices, _HOOK)

    @functools.wraps(stock)
    def finalize(self: Any, *args: Any, **kwargs: Any) -> Any:
        # In a subclass this is the call of super(), which means stock.
        handler = installed() if type(self) is InductorChoices else None
        return stock(self, *args, **kwargs) if handler is None else getattr(handler, _HOOK)(*args, **kwargs)

    undo.callback(setattr, InductorChoices, _HOOK, stock)
    setattr(InductorChoices, _HOOK, finalize)


def _set_for_all_threads(module: ModuleType, name: str, value: Any, undo: ExitStack) -> None:
    """Set an entry of a config module: the default reaches other threads, the assignment reaches this one."""
    entry = module._config[name]  # noqa: SLF001 - no public way reaches threads that exist already
    old_default, old = entry.default, getattr(module, name)

    def restore() -> None:
        ours = getattr(module, name) == value
        entry.default = old_default
        if ours:  # else somebody has set it since, and that value stays
            setattr(module, name, old)

    undo.callback(restore)
    entry.default = value
    setattr(module, name, value)


def _tag_cache_keys(tag: str, undo: ExitStack) -> None:
    def restore() -> None:
        compiler_config.cache_key_tag = compiler_config.cache_key_tag.replace(tag, "")

    undo.callback(restore)
    compiler_config.cache_key_tag += tag


def _current_handler() -> Any:
    return getattr(virtualized.threadlocal, virtualized._choices._key, _NO_HANDLER)  # noqa: SLF001 - V would build one


def _drop_handler() -> None:
    """Have this thread ask for a new handler when it needs one."""
    if _current_handler() is not _NO_HANDLER:
        delattr(virtualized.threadlocal, virtualized._choices._key)  # noqa: SLF001 - V can only replace a handler


def _restore_handler(thread: int, handler: Any) -> None:
    """Give the installing thread its handler back; another thread that uninstalls asks for a new one."""
    _drop_handler()
    if thread == threading.get_ident() and handler is not _NO_HANDLER:
        setattr(virtualized.threadlocal, virtualized._choices._key, handler)  # noqa: SLF001 - as above
