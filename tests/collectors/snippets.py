"""Python examples of the pages, run in this process, where torch is imported already."""

from __future__ import annotations

import io
from contextlib import chdir, redirect_stdout
from typing import TYPE_CHECKING
from unittest import mock

import torch
import torch._inductor.config as inductor_config
from torch._inductor.utils import fresh_cache

from inductor_harness import quiet_torch

if TYPE_CHECKING:
    from pathlib import Path


def printed_by(code: str, folder: Path) -> str:
    """Run ``code`` in ``folder``, with an empty cache and on the CPU, and return what it printed."""
    stdout = io.StringIO()
    torch._dynamo.reset()
    with (
        chdir(folder),
        redirect_stdout(stdout),
        quiet_torch(),
        fresh_cache(),
        inductor_config.patch(max_autotune_gemm_backends=inductor_config.max_autotune_gemm_backends),
        mock.patch.object(torch.cuda, "is_available", return_value=False),
    ):
        exec(compile(code, "<example>", "exec"), {})  # noqa: S102 - the page's own code
    torch._dynamo.reset()
    return stdout.getvalue()
