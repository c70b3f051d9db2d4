"""The two sides of a comparison: two environments on the same devices, or two devices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from diode_explorer.pages import cases
from diode_explorer.pages.page import NotThereError
from diode_trainer.report.questions import Question, where

if TYPE_CHECKING:
    from diode_explorer.pages.page import Asked
    from diode_trainer.report.questions import Value

ENVIRONMENT, DEVICE = BY = ("environment", "device")
"""Difference between the sides."""

# Everything that was timed on both sides. Environments are ordered by their first measurement.
_COMMON = """\
WITH places AS (
    SELECT
        environment_key,
        row_number() OVER (ORDER BY min(first_measured_at) NULLS LAST, min(environment_id)) AS place
    FROM best_times
    GROUP BY environment_key
)
SELECT
    b.hardware AS before_device,
    a.hardware AS after_device,
    b.environment_key AS before_environment,
    a.environment_key AS after_environment
FROM best_times AS b
JOIN best_times AS a ON a.problem_id = b.problem_id AND a.regime IS NOT DISTINCT FROM b.regime
JOIN places AS earlier ON earlier.environment_key = b.environment_key
JOIN places AS later ON later.environment_key = a.environment_key
{where}GROUP BY before_device, after_device, before_environment, after_environment, earlier.place, later.place
ORDER BY
    {first}sum(count(*)) OVER (PARTITION BY before_device, after_device) DESC,
    before_device,
    after_device,
    before_environment != after_environment,
    later.place DESC,
    earlier.place DESC
LIMIT 1"""
_CONDITIONS = {
    ENVIRONMENT: {"before": "b.environment_key", "after": "a.environment_key", "device": "b.hardware"},
    DEVICE: {"before": "b.hardware", "after": "a.hardware", "environment": "b.environment_key"},
}
_TOGETHER = {
    ENVIRONMENT: ("a.hardware_id = b.hardware_id", "a.hardware = b.hardware", "a.environment_key != b.environment_key"),
    DEVICE: ("a.hardware != b.hardware",),
}
_FIRST = {ENVIRONMENT: "later.place > earlier.place DESC,\n    ", DEVICE: ""}


@dataclass(frozen=True)
class Side:
    """One side."""

    device: str | None
    """Name of the device; None for every device that was measured on both sides."""
    environment: str
    """Key of the environment."""
    environment_text: str


@dataclass(frozen=True)
class Sides:
    """The compared sides."""

    by: str
    before: Side
    after: Side

    @property
    def values(self) -> dict[str, Value]:
        """Values of the parameters in ``conditions``."""
        found: dict[str, Value] = {}
        for name, side in (("before", self.before), ("after", self.after)):
            found[f"{name}_environment"] = side.environment
            if side.device is not None:
                found[f"{name}_device"] = side.device
        return found

    def condition(self, side: str) -> str:
        """Return the WHERE clause of a side, ``before`` or ``after``."""
        names = {f"{side}_environment": "environment_key", f"{side}_device": "hardware"}
        return where(names, self.values)

    @property
    def joined(self) -> tuple[str, ...]:
        """Conditions that join a problem's two sides, b and a."""
        return () if self.by == DEVICE else ("a.hardware_id = b.hardware_id", "a.hardware = b.hardware")

    @property
    def swapped(self) -> dict[str, Value]:
        """Parameters that swap the sides."""
        if self.by == ENVIRONMENT:
            return {"before": self.after.environment, "after": self.before.environment}
        return {"by": DEVICE, "before": str(self.after.device), "after": str(self.before.device)}


def names(by: Value) -> str:
    """Return the SELECT of possible sides with their labels."""
    return cases.facet_sql(str(by), {})


def sides(asked: Asked) -> Sides | None:
    """Return the sides of the address. Missing sides become those with most problems in common.

    Environments default to a device's last two. Devices default to the last environment of both, or else to the last of
    each.

    Returns:
        None if nothing was timed on both sides.

    Raises:
        NotThereError: there is no such environment or device.
    """
    by = str(asked.filters.get("by", ENVIRONMENT))
    _check(asked, by)
    together = list(_TOGETHER[by])
    if by == DEVICE and "environment" in asked.filters:
        together.append("a.environment_key = $environment")
    condition = where(_CONDITIONS[by], asked.filters, *together)
    found = asked.ask(Question(_COMMON.format(where=condition, first=_FIRST[by]), asked.filters)).dicts()
    if not found:
        return None
    texts = dict(asked.ask(Question(names(ENVIRONMENT))).rows)

    def side(name: str) -> Side:
        environment = found[0][f"{name}_environment"]
        device = found[0][f"{name}_device"] if by == DEVICE else None
        return Side(device, environment, texts[environment])

    return Sides(by, side("before"), side("after"))


def _check(asked: Asked, by: str) -> None:
    wanted = [asked.filters[name] for name in ("before", "after") if name in asked.filters]
    known = {row[0] for row in asked.ask(Question(names(by))).rows} if wanted else set()
    for value in wanted:
        if value not in known:
            raise NotThereError(f"the warehouse has no timings of the {by} {value}")
