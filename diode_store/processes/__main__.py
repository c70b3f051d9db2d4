"""Run one function for the ``Child`` that started this process: ``python -m diode_store.processes FUNCTION FD``."""

from __future__ import annotations

import io
import os
import sys
import traceback
from importlib import import_module

from diode_store.processes.parent import Parent


def main() -> None:
    """Call the function with the parent; end without waiting for threads."""
    function, fd = sys.argv[1:]
    parent = Parent(int(fd))
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)  # a killed process loses no line
    status = 1
    try:
        module, _, name = function.partition(":")
        getattr(import_module(module), name)(parent)
        status = 0
    except Exception as error:  # noqa: BLE001 - the parent is told, whatever it is
        # An interrupted library may fail while it cleans up; nobody is left who could be told.
        if not parent.is_gone:
            traceback.print_exc()
            parent.report(error)
    except KeyboardInterrupt:
        pass
    os._exit(status)


if __name__ == "__main__":
    main()
