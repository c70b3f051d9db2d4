"""The config of a call of flex attention: that of a picks file, of a model, or of a plain compile."""

from __future__ import annotations

import logging
import threading
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from diode_collectors.inductor.adapter import detect_hardware
from diode_collectors.inductor.attention import Call
from diode_integration.decide.abstention import Unknown
from diode_integration.decide.decision import DecidedBy, Decision
from diode_integration.inductor.attention import is_listed, why_not
from diode_store.candidates.attention_space import accumulators_fit
from diode_store.ops.attending import BACKWARD

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from diode_integration.decide.alone import AloneModels
    from diode_integration.inductor.attention import Offered
    from diode_integration.picks.search import FilePicks
    from diode_store.kernels import KernelConfig
    from diode_store.records import Hardware, Problem
    from diode_store.values.safely import Once

PLAIN = (
    "picks and models of flex attention, and picks of fused kernels, serve torch.compile without max-autotune too;"
    " DIODE_PLAIN=0 ends that"
)
"""Line that is logged once."""
UNDESCRIBED = "attention: symbolic sizes, a mask or scores that have no name, or options of the caller"
"""Reason why a call has no problem."""
UNKNOWN_DEVICE = "hardware: the device cannot be identified"
FAILED = "attention: the graph could not be compiled with another config"


class Chosen(NamedTuple):
    """Config for a call, and the decision to record."""

    config: KernelConfig | None
    """None for Inductor's own list."""
    decision: Decision
    changes: bool = False
    """True if a plain compile would take another config."""


class AttentionChooser:
    """Chooses one config for each call of flex attention."""

    def __init__(
        self,
        models: AloneModels | None,
        hardware: Hardware | None,
        unknown: Unknown,
        once: Once,
        *,
        serves_plain: bool,
    ) -> None:
        """Prepare to choose.

        Args:
            models: the models to ask; None without any.
            hardware: the device to choose for; None for each call's own.
            unknown: who chooses if no model knows a call.
            once: logs each kind of line once.
            serves_plain: True if it chooses in a compile without max-autotune as well.
        """
        self._once = once
        self._serves_plain = serves_plain
        self._hardware = hardware
        self._unknown = unknown
        self._thread = threading.local()
        self._models = models

    def forget(self) -> None:
        """Forget what this thread chose for its last graph."""
        self._thread.changed = False

    def choose(
        self, op: str, arguments: Sequence[Any], offered: Offered, picks: FilePicks | None, *, again: bool = False
    ) -> Chosen | None:
        """Return the config for a call; None if nothing is to say about it.

        Args:
            op: the op whose configs Inductor asks for.
            arguments: the arguments of the lowering.
            offered: returns the configs to choose from.
            picks: the picks that decide first.
            again: the graph failed with what was chosen. Another config than the default may be at fault; otherwise
                Inductor's list, of which one may compile, is left.

        Raises:
            RecordError: the arguments are not those of attention.
        """
        has_picks = picks is not None and picks.has_any({op})
        is_asked = (self._models is not None or has_picks) and (is_listed() or self._serves_plain)
        if not is_asked or (again and not (is_listed() and getattr(self._thread, "changed", False))):
            return None
        call = Call.of(arguments).with_static_blocks()
        if call is None:
            return None
        hardware = self._hardware or detect_hardware(call.query.get_device())
        problem = None if hardware is None or again else call.problem(op)
        fits = partial(why_not, op=op, query_block=call.query_block, key_block=call.key_block)
        chosen: Chosen | None = None
        if picks is not None and problem is not None and hardware is not None:
            sought = picks.alone(problem, hardware, fits)
            if sought is not None:
                chosen = Chosen(sought.pick.configs[0], sought.decision(0, observe=False), changes=True)
        if chosen is None:
            why = FAILED if again else UNDESCRIBED if hardware else UNKNOWN_DEVICE
            name = hardware.name if hardware else str(call.query.get_device())
            decision = Decision(op, problem, name, 0, (), None, why, decided_by=DecidedBy.STOCK, device=hardware)
            listed = offered()
            chosen = self._predicted(decision, listed[0], [config for config in listed if fits(config) is None])
        self._thread.changed = chosen.changes or getattr(self._thread, "changed", False)
        if chosen.changes and not is_listed():
            self._once.log("plain", PLAIN, logging.INFO)
        if chosen.decision.abstained:
            self._once.log(f"{op} {chosen.decision.reason}", chosen.decision.describe(), logging.INFO)
        return chosen

    def _predicted(self, decision: Decision, first: KernelConfig, usable: list[KernelConfig]) -> Chosen:
        """Return the config that a model predicts fastest; without one what is left.

        Args:
            decision: the decision if no model knows the call.
            first: the config of a plain compile.
            usable: the configs that fit the call.
        """
        default, problem, hardware = (first if first in usable else None), decision.problem, decision.device
        if self._models is None or problem is None or hardware is None:
            return self._left(default, decision)
        found = self._models.choose(problem, hardware, default, fitting_of(problem, usable))
        if found.config is None:
            return self._left(default, found.decision)
        return Chosen(found.config, found.decision, changes=found.changes)

    def _left(self, default: KernelConfig | None, decision: Decision) -> Chosen:
        """Return the default alone where nothing may be timed, else Inductor's list."""
        if default is None or not is_listed() or self._unknown is not Unknown.VENDOR:
            return Chosen(None, decision)
        return Chosen(default, replace(decision, reason=f"{decision.reason}; the config of a plain compile is kept"))


def fitting_of(problem: Problem, configs: Iterable[KernelConfig]) -> list[KernelConfig]:
    """Return the configs whose accumulators the registers can hold: all that sweeps draw, and models learned."""
    return [config for config in configs if _fits(problem, config)]


def _fits(problem: Problem, config: KernelConfig) -> bool:
    blocks = {name.lower(): int(value) for name, value in config.kwargs if type(value) is int}
    if problem.op != BACKWARD:
        blocks = {"block_m": config.block_m or 0, "block_n": config.block_n or 0}
    return accumulators_fit(problem.shape, blocks, config.num_warps or 1)
