"""Installs a choices handler for the whole process, and uninstalls it.

Inductor keeps its choices handler per thread and compiles backward graphs in other threads, so setting it is not
enough; and its FX graph cache must know that choices changed, or it serves kernels that another handler chose. Both
differ between versions of torch; what this torch has decides, not its version number:

- ``register_inductor_choices`` (torch 2.15): process-wide, and in the cache key;
- ``config.inductor_choices_class`` (2.10 to 2.14): its default reaches every new thread; where the cache key does not
  ask the class for its ``uuid`` (2.10, 2.11), ``cache_key_tag`` carries it.

What threads get is a ``ProcessChoices``, which asks for the installed handler each time: threads that keep theirs
follow a later install or uninstall. A thread that compiled before keeps a stock handler, out of reach, so the methods
of its class ask for the installed handler as well: autograd's thread, which compiles backward graphs, is often such.
"""

from __future__ import annotations

import functools
import logging
import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import torch
import torch.compiler.config as compiler_config
from torch._inductor import choices as inductor_choices
from torch._inductor import config as inductor_config
from torch._inductor import virtualized
from torch._inductor.choices import InductorChoices

from diode_integration import convolution, final, retry
from diode_store import safely
from diode_store.errors import DiodeError

if TYPE_CHECKING:
    from types import ModuleType, TracebackType

    from diode_integration.choices import DiodeInductorChoices

log = logging.getLogger("diode_integration")

_KEY = "torch-diode"
_HOOK = "_finalize_template_configs"
"""The method of Inductor's handlers that the hook overrides."""
_NO_HANDLER = object()

_lock = threading.RLock()
_installation: Installation | None = None


class Installation:
    """An installed handler; leaving it as a context manager uninstalls it."""

    def __init__(self, choices: DiodeInductorChoices) -> None:
        self.choices = choices
        self._undo = ExitStack()

    def close(self) -> None:
        """Uninstall, unless another installation has replaced this one."""
        with _lock:
            if _installation is self:
                uninstall()

    def __enter__(self) -> DiodeInductorChoices:
        """Return the handler."""
        return self.choices

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Uninstall."""
        self.close()


class ProcessChoices(InductorChoices):  # type: ignore[misc]  # Inductor is not typed
    """What every thread has: it forwards to the handler installed at that moment."""

    annotates_choices = True

    def uuid(self) -> str:
        """Return the installed handler's part of the cache key."""
        handler = installed()
        return handler.uuid() if handler else f"{_KEY}/none"

    def _finalize_template_configs(self, *args: Any, **kwargs: Any) -> Any:
        handler: Any = installed() or super()
        return handler._finalize_template_configs(*args, **kwargs)  # noqa: SLF001 - the one hook Inductor has


def _reach_stock_handlers(undo: ExitStack) -> None:
    """Have handlers that are stock Inductor's, in whichever thread, ask for the installed one."""
    stock = getattr(InductorChoices, _HOOK)

    @functools.wraps(stock)
    def finalize(self: Any, *args: Any, **kwargs: Any) -> Any:
        # Of a subclass this is the call of super(), which means stock.
        handler = installed() if type(self) is InductorChoices else None
        return stock(self, *args, **kwargs) if handler is None else getattr(handler, _HOOK)(*args, **kwargs)

    undo.callback(setattr, InductorChoices, _HOOK, stock)
    setattr(InductorChoices, _HOOK, finalize)


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


def install(choices: DiodeInductorChoices) -> Installation:
    """Make ``choices`` the handler of this process, in place of one installed before.

    Compiles that are already running keep what they have chosen so far.

    Args:
        choices: the handler; its ``uuid`` must not change while it is installed.

    Returns:
        The installation, which may serve as a context manager.

    Raises:
        DiodeError: this torch has no way to do it.
    """
    global _installation  # noqa: PLW0603 - one handler a process is what this module is for
    problem = missing_capability()
    if problem is not None:
        raise DiodeError(problem)
    with _lock:
        uninstall()
        installation = Installation(choices)
        _installation = installation
        try:
            _engage(choices, installation._undo)  # noqa: SLF001 - its own module
        except BaseException:
            uninstall()
            raise
        return installation


def uninstall() -> None:
    """Restore what was before the install, in this thread and for new ones; harmless when nothing is installed."""
    global _installation
    with _lock:
        gone, _installation = _installation, None
        if gone is not None:
            gone._undo.close()  # noqa: SLF001 - its own module


def installed() -> DiodeInductorChoices | None:
    """Return the installed handler, or None."""
    installation = _installation  # once: another thread may uninstall meanwhile
    return installation.choices if installation else None


def _engage(choices: DiodeInductorChoices, undo: ExitStack) -> None:
    undo.callback(choices.flush)
    undo.callback(final.unregister)
    # Last in, first out: the thread's handler comes back after everything else was undone.
    undo.callback(_restore_handler, threading.get_ident(), _current_handler())
    _reach_stock_handlers(undo)
    retry.guard(installed, undo)
    convolution.guard(installed, undo)
    if hasattr(inductor_choices, "register_inductor_choices"):
        undo.callback(inductor_choices.unregister_inductor_choices, _KEY)
        inductor_choices.register_inductor_choices(_KEY, process_choices)
        return
    if inductor_config.inductor_choices_class is not None:
        theirs = safely.in_words(inductor_config.inductor_choices_class)
        safely.log(log, logging.WARNING, f"torch-diode replaces inductor_choices_class = {theirs}")
    _set_for_all_threads(inductor_config, "inductor_choices_class", process_choices, undo)
    if not hasattr(inductor_config, "_cache_config_factory_keys"):
        _tag_cache_keys(f"|{choices.uuid()}", undo)
    _drop_handler()


def _set_for_all_threads(module: ModuleType, name: str, value: Any, undo: ExitStack) -> None:
    """Set an entry of a config module: its default reaches other threads, an assignment this one."""
    entry = module._config[name]  # noqa: SLF001 - no public way reaches threads that exist already
    old_default, old = entry.default, getattr(module, name)

    def restore() -> None:
        ours = getattr(module, name) == value
        entry.default = old_default
        if ours:  # otherwise it was set since, and is kept
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
    return getattr(virtualized.threadlocal, virtualized._choices._key, _NO_HANDLER)  # noqa: SLF001 - V builds one when asked


def _drop_handler() -> None:
    """Have this thread ask for a new handler when it needs one."""
    if _current_handler() is not _NO_HANDLER:
        delattr(virtualized.threadlocal, virtualized._choices._key)  # noqa: SLF001 - V can only replace a handler


def _restore_handler(thread: int, handler: Any) -> None:
    """Give the installing thread its handler back; another thread that uninstalls asks for a new one."""
    _drop_handler()
    if thread == threading.get_ident() and handler is not _NO_HANDLER:
        setattr(virtualized.threadlocal, virtualized._choices._key, handler)  # noqa: SLF001 - as above
