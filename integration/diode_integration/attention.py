"""The config of a call of flex attention: that of a picks file, of a model, or of a plain compile."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from diode_collectors.inductor.adapter import detect_hardware, static
from diode_collectors.inductor.attention import Call
from diode_integration.decide.abstention import Unknown
from diode_integration.decide.attention import AttentionModels
from diode_integration.decide.decision import DecidedBy, Decision
from diode_integration.decide.models import attention_files
from diode_integration.inductor.attention import why_not
from diode_integration.inductor.listing import is_tuned
from diode_store.candidates.attention_space import accumulators_fit
from diode_store.ops.attending import BACKWARD

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from diode_integration.inductor.attention import Offered
    from diode_integration.picks.search import FilePicks
    from diode_store.kernels import KernelConfig
    from diode_store.records import Hardware, Problem

PLAIN = (
    "picks and models of flex attention, and picks of fused kernels, serve torch.compile without max-autotune too;"
    " DIODE_PLAIN=0 ends that"
)
"""Line that is logged once."""
UNDESCRIBED = "attention: symbolic sizes, a mask or scores that have no name, or options of the caller"
"""Reason why a call has no problem."""


class Chosen(NamedTuple):
    """Config for a call, and the decision to record."""

    config: KernelConfig | None
    """None for Inductor's own list."""
    decision: Decision
    changes: bool = False
    """True if a plain compile would take another config."""


class AttentionChooser:
    """Chooses one config for each call of flex attention."""

    def __init__(self, hardware: Hardware | None, unknown: Unknown) -> None:
        """Find the models.

        Args:
            hardware: the device to choose for; None for each call's own.
            unknown: who chooses if no model knows a call.
        """
        self._hardware = hardware
        self._unknown = unknown
        files = attention_files()
        self.models = AttentionModels(files) if files else None
        """None without models."""

    def choose(self, op: str, arguments: Sequence[Any], offered: Offered, picks: FilePicks | None) -> Chosen | None:
        """Return the config for a call; None if nothing is to say about it.

        Args:
            op: the op whose configs Inductor asks for.
            arguments: the arguments of the lowering.
            offered: returns the configs to choose from.
            picks: the picks that decide first.

        Raises:
            RecordError: the arguments are not those of attention.
        """
        if self.models is None and (picks is None or not picks.has_any({op})):
            return None
        call = Call.of(arguments)
        hardware = self._hardware or detect_hardware(call.query.get_device())
        problem = None if hardware is None else call.problem(op)
        if picks is not None and problem is not None and hardware is not None:
            sought = picks.alone(problem, hardware, lambda config: why_not(config, op, call))
            if sought is not None:
                return Chosen(sought.pick.configs[0], sought.decision(0, observe=False), changes=True)
        if static((call.query_block, call.key_block)) is None:
            return None
        listed, *others = offered()
        default, chosen = (listed if why_not(listed, op, call) is None else None), None
        if self.models is not None and problem is not None and hardware is not None:
            fitting = fitting_of(problem, [each for each in others if why_not(each, op, call) is None])
            found = self.models.choose(problem, hardware, default, fitting)
            chosen = Chosen(found.config, found.decision, changes=found.changes)
        if chosen is None:
            name = hardware.name if hardware else str(call.query.get_device())
            decision = Decision(
                op, problem, name, 0, (), None, UNDESCRIBED, decided_by=DecidedBy.STOCK, device=hardware
            )
            chosen = Chosen(None, decision)
        if chosen.config is None and default is not None and is_tuned() and self._unknown is Unknown.VENDOR:
            reason = f"{chosen.decision.reason}; its config of a plain compile is left alone"
            return Chosen(default, replace(chosen.decision, reason=reason))
        return chosen


def fitting_of(problem: Problem, configs: Iterable[KernelConfig]) -> list[KernelConfig]:
    """Return the configs whose accumulators the registers can hold: all that sweeps draw, and models learned."""
    return [config for config in configs if _fits(problem, config)]


def _fits(problem: Problem, config: KernelConfig) -> bool:
    blocks = {name.lower(): int(value) for name, value in config.kwargs if type(value) is int}
    if problem.op != BACKWARD:
        blocks = {"block_m": config.block_m or 0, "block_n": config.block_n or 0}
    return accumulators_fit(problem.shape, blocks, config.num_warps or 1)
