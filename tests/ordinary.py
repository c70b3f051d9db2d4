"""Commands as a user for whom file permissions hold, also when root runs the tests."""

from __future__ import annotations

import os
import shutil

import pytest

IS_ROOT = os.geteuid() == 0
AS_ORDINARY = ("setpriv", "--bounding-set", "-dac_override,-dac_read_search") if IS_ROOT else ()
"""Beginning of a command line that takes root's power over files from the command."""
CANNOT = (
    "root runs the tests, and there is no setpriv to do without its power over files"
    if (IS_ROOT and shutil.which("setpriv") is None)
    else ""
)
"""Reason why there are no such commands here; empty if there are."""
needs_ordinary = pytest.mark.skipif(bool(CANNOT), reason=CANNOT or "root needs setpriv")
