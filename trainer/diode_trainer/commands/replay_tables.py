"""Show replays of the hook's modes as tables and as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from diode_store.command_line.console import print_rows
from diode_store.command_line.render import counted
from diode_trainer.judging.replay import Replay, by_device, by_kind
from diode_trainer.policy import Mode
from diode_trainer.report.evaluation.rows import certainty_groups

if TYPE_CHECKING:
    from collections.abc import Sequence

    from diode_trainer.artifact import TimingModel
    from diode_trainer.judging.replay import Replayed
    from diode_trainer.policy import Policy
    from diode_trainer.report.evaluation.rows import CertaintyGroup

HEADER = ("problems of", "problems", "benchmarks", "kept alone", "regret", "p95", "max", "sure", "seen")
_CERTAINTY_HEADER = ("problems", "sure", "seen")


def print_tables(replayed: Sequence[Replayed], model: TimingModel, policy: Policy) -> None:
    """Print the results of a mode, overall and by kind of problem, and the quality of its confidence."""
    title = f"{model.path.stem} in {_described(policy, model)}, {counted(len(replayed), 'problem')}"
    parts = {"all": Replay.of(replayed), **by_device(replayed), **by_kind(replayed)}
    print_rows(HEADER, [row(*item) for item in parts.items()], title=title)
    groups = certainty(replayed)
    if groups:
        print_rows(
            _CERTAINTY_HEADER,
            [(group.problems, f"{group.said_pct:.0f}%", f"{group.was_pct:.0f}%") for group in groups],
            title="How sure it is that the first choice is within 2% of the best, and how often it is",
        )


def to_plain(replayed: Sequence[Replayed], model: TimingModel, policy: Policy) -> dict[str, Any]:
    """Return the results as JSON has them."""
    return {
        "model": model.path.stem,
        "mode": str(policy.mode),
        "kernel_price": _price(policy, model),
        "top_k": policy.top_k_configs if policy.mode is Mode.TOP_K else None,
        **Replay.of(replayed).to_plain(),
        "devices": {device: part.to_plain() for device, part in by_device(replayed).items()},
        "kinds": {kind: part.to_plain() for kind, part in by_kind(replayed).items()},
        "certainty": [
            {"problems": group.problems, "said": group.said_pct / 100, "seen": group.was_pct / 100}
            for group in certainty(replayed)
        ],
    }


def row(name: str, of: Replay) -> tuple[object, ...]:
    """Return a row of figures, in the order of ``HEADER``."""
    return (
        name,
        of.problems,
        f"{of.benchmarks:.2f}",
        f"{of.kept_alone:.0%}",
        f"{of.regret.geomean:.4f}",
        f"{of.regret.p95:.3f}",
        f"{of.regret.max:.3f}",
        "-" if of.said is None else f"{of.said:.0%}",
        f"{of.seen:.0%}",
    )


def certainty(replayed: Sequence[Replayed]) -> list[CertaintyGroup]:
    """Return groups of similarly sure choices; none if the model has no confidence."""
    said = [one.p_within_2pct for one in replayed if one.p_within_2pct is not None]
    if len(said) < len(replayed):
        return []
    return certainty_groups(np.array(said), np.array([one.first_loss for one in replayed]))


def _price(policy: Policy, model: TimingModel) -> float | None:
    if policy.mode is not Mode.ADAPTIVE:
        return None
    calibration = model.card.calibration
    own = None if calibration is None else calibration.kernel_price
    return own if policy.kernel_price is None else policy.kernel_price


def _described(policy: Policy, model: TimingModel) -> str:
    price = _price(policy, model)
    if price is not None:
        return f"adaptive mode at a price of {price:.2%} a kernel"
    return f"top-{policy.top_k_configs} mode" if policy.mode is Mode.TOP_K else f"{policy.mode} mode"
