"""Options of `diode evaluate` for what to judge and what to show."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from diode_store.errors import SettingsError

if TYPE_CHECKING:
    from diode_trainer.policy import Policy


@dataclass(frozen=True, kw_only=True)
class JudgingOptions:
    """Problems to judge by, and results to show."""

    family: Annotated[
        list[str] | None,
        typer.Option(help="Judge by the problems of this family only (repeatable); baselines learn from the others."),
    ] = None
    unseen: Annotated[bool, typer.Option("--unseen", help="Leave out problems in the model's training data.")] = False
    no_vendor: Annotated[bool, typer.Option("--no-vendor", help="Count Triton choices only.")] = False
    by: Annotated[
        list[str] | None,
        typer.Option(metavar="SLICE", help="Also show results by op, alignment, time, family and so on (repeatable)."),
    ] = None
    top_n_worst: Annotated[int, typer.Option(min=0, help="Number of costliest choices to list.")] = 0
    mode: Annotated[
        str | None,
        typer.Option(
            metavar="MODE",
            help="Replay the hook in this mode instead (adaptive, top_k or zero): how many kernels it would benchmark,"
            " the regret after that, and stated against observed confidence.",
        ),
    ] = None
    kernel_price: Annotated[
        float | None,
        typer.Option(
            help="With --mode adaptive: relative gain that makes a kernel worth benchmarking.",
            show_default="the model's",
        ),
    ] = None
    top_k: Annotated[
        int | None,
        typer.Option(help="With --mode top_k: number of candidates to keep.", show_default="3"),
    ] = None

    def policy(self) -> Policy | None:
        """Return the policy to replay; None to judge rankings.

        Raises:
            SettingsError: the mode is unknown, or options contradict each other.
        """
        if self.mode is None:
            if self.kernel_price is not None or self.top_k is not None:
                raise SettingsError("--kernel-price and --top-k need --mode")
            return None
        if self.no_vendor or self.by or self.top_n_worst:
            raise SettingsError("--no-vendor, --by and --top-n-worst judge rankings: drop them or --mode")
        from diode_trainer.policy import Mode, make_policy

        policy = make_policy(self.mode, self.top_k, None, self.kernel_price, knows_its_spread=True)
        if self.kernel_price is not None and policy.mode is not Mode.ADAPTIVE:
            raise SettingsError("--kernel-price goes with --mode adaptive")
        if self.top_k is not None and policy.mode is not Mode.TOP_K:
            raise SettingsError("--top-k goes with --mode top_k")
        return policy
