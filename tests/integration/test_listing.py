"""How the hook has Inductor list another search space."""

from __future__ import annotations

import threading

from torch._inductor import config as inductor_config

from diode_integration.inductor.listing import searching


def test_one_thread_lists_at_a_time() -> None:
    """A second thread waits: where the configuration is the process's, each must put back what was there before."""
    entered = threading.Event()

    def list_too() -> None:
        with searching("EXHAUSTIVE"):
            entered.set()

    other = threading.Thread(target=list_too)
    with searching("EXHAUSTIVE"):
        other.start()
        assert not entered.wait(0.2)
    other.join(10)
    assert entered.is_set()
    assert inductor_config.max_autotune_gemm_search_space == "DEFAULT"
