"""Changes between two environments, or differences between two devices: by slice, and by problem."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from diode_explorer.pages import cases
from diode_explorer.pages.change.pairs import SIZES, SLICES, SLOWER, TIMES, VERDICTS, WINNERS, Pairs
from diode_explorer.pages.change.picture import change_picture
from diode_explorer.pages.change.sides import BY, DEVICE, ENVIRONMENT, names, sides
from diode_explorer.pages.page import Page, Parameter
from diode_store.command_line.render import counted
from diode_store.timing.noise import TIE_SIGMAS
from diode_trainer.report.parts import COUNT, NUMBER, TIME, Column, Fact, Facts, Link, Note, Picture, Table
from diode_trainer.report.questions import Question

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from diode_explorer.pages.change.sides import Side, Sides
    from diode_explorer.pages.page import Asked
    from diode_trainer.report.parts import Part
    from diode_trainer.report.questions import Value

_MOST = 20
"""Maximum problems in a table."""
_SLICES = {"size": "size", "time": "time before", "winner": "best kernel before"}
"""Labels of slices whose parameter's name is not enough."""
_NARROWING = ("size", "time", "winner")
"""Parameters that have a field only after a click on a slice has set them."""
_THERE_IS = """\
SELECT count(DISTINCT environment_key) AS environments, count(DISTINCT hardware) AS devices FROM best_times"""


def _parts(asked: Asked) -> Iterator[Part]:
    compared = sides(asked)
    if compared is None:
        if asked.filters.get("before", "") == asked.filters.get("after"):
            yield Note("Both sides are the same. Choose another for one of them.", is_alarm=True)
        else:
            yield from _nothing(asked)
        return
    pairs = Pairs(compared, asked.filters)
    found = asked.ask(pairs.slices(None)).dicts()
    yield _facts(asked, compared, found[0] if found else None)
    if not found:
        yield Note("Nothing matches the filters.")
        return
    if compared.by == DEVICE and compared.before.environment != compared.after.environment:
        yield Note("The devices have no environment in common, so these ratios mix devices and environments.")
    name = str(asked.filters.get("slice", SLICES[0]))
    yield _picture(asked, pairs, name)
    yield _slices(pairs, name)
    verdict = str(asked.filters.get("verdict", SLOWER))
    if compared.by == ENVIRONMENT:
        yield _first(pairs, verdict)
    yield _most(pairs, verdict)


def _nothing(asked: Asked) -> Iterator[Part]:
    """Yield that there is nothing to compare, and how to change that."""
    environments, devices = asked.ask(Question(_THERE_IS)).rows[0]
    facts = (
        Fact("environments", f"{environments:,}"),
        Fact("devices", f"{devices:,}"),
        *_instead(asked, devices),
    )
    yield Facts("sides", "Nothing was timed on two sides", facts)
    yield Note(
        "This page compares problems that were timed on both sides in the same regime. To get a second side, repeat a"
        " sweep after an update of torch, Triton or the driver, or on another device. Then run `diode-ingest --once`."
    )


def _instead(asked: Asked, devices: int) -> Iterator[Fact]:
    """Yield a link to the other kind of comparison."""
    if asked.filters.get("by") == DEVICE:
        yield from _way(asked, "compare environments", {})
    elif devices > 1:
        yield from _way(asked, "compare devices", {"by": DEVICE})


def _way(asked: Asked, text: str, values: Mapping[str, Value]) -> Iterator[Fact]:
    """Yield a link, unless it leads nowhere, as in a file."""
    if address := asked.address(CHANGE.name, values):
        yield Fact("instead", text, address=address)


def _facts(asked: Asked, compared: Sides, found: Mapping[str, Any] | None) -> Facts:
    ((_, devices),) = asked.ask(Question(_THERE_IS)).rows
    narrowed = {name: value for name, value in asked.filters.items() if name not in {"by", "before", "after"}}
    facts = [
        _side_fact("before", compared.before),
        _side_fact("after", compared.after),
        *(_figures(found, compared.by) if found else ()),
        *_way(asked, "swap the sides", {**compared.swapped, **narrowed}),
        *_instead(asked, devices),
    ]
    return Facts("sides", "What is compared", tuple(facts))


def _side_fact(label: str, side: Side) -> Fact:
    if side.device is not None:
        return Fact(label, side.device, side.environment_text)
    torch, _, rest = side.environment_text.partition(", ")
    return Fact(label, torch, rest)


def _figures(found: Mapping[str, Any], by: str) -> Iterator[Fact]:
    problems = found["problems"]
    yield Fact(
        "in common",
        counted(problems, "problem"),
        f"on {counted(found['devices'], 'device')}" if by == ENVIRONMENT else "",
    )
    yield Fact("best time", f"{found['mean_ratio']:.4f}", "after / before, geometric mean")
    for name, label in (("vendor", "vendor's best"), ("triton", "Triton's best")):
        if found[f"{name}_ratio"] is not None:
            yield Fact(label, f"{found[f'{name}_ratio']:.4f}", "after / before, geometric mean")
    for verdict in VERDICTS:
        yield Fact(verdict, f"{found[verdict]:,}", f"{100 * found[verdict] / problems:.1f}%, beyond noise")


def _picture(asked: Asked, pairs: Pairs, name: str) -> Picture:
    return Picture(
        "change",
        f"Change, by {_SLICES.get(name, name)}",
        "A dot is a slice's geometric mean of after / before, on its 95% confidence interval. The line spans the middle"
        f" half of the problems. The band is the noise of one problem: {TIE_SIGMAS} sigmas around no change.",
        pairs.slices(name),
        lambda rows: change_picture(rows, name, lambda value: _address(asked, name, value)),
    )


def _address(asked: Asked, name: str, value: str) -> str | None:
    wanted = {**asked.filters, name: value}
    return asked.address(
        CHANGE.name, {each.name: wanted[each.name] for each in CHANGE.parameters if each.name in wanted}
    )


def _slices(pairs: Pairs, name: str) -> Table:
    return Table(
        "slices",
        "Slices",
        "Ratios are geometric means of after / before; above 1 is slower.",
        (
            Column("slice", _SLICES.get(name, name), link=Link({name: "slice"})),
            Column("problems", "problems", COUNT),
            Column("slower", "slower", COUNT),
            Column("faster", "faster", COUNT),
            Column("mean_ratio", "best time", NUMBER, 4),
            Column("mean_from", "95% from", NUMBER, 4),
            Column("mean_to", "95% to", NUMBER, 4),
            Column("quarter_from", "P25", NUMBER, 3),
            Column("quarter_to", "P75", NUMBER, 3),
            Column("vendor_ratio", "vendor's", NUMBER, 4),
            Column("triton_ratio", "Triton's", NUMBER, 4),
            Column("noise_pct", "noise, %", NUMBER, 1),
        ),
        pairs.slices(name),
    )


def _first(pairs: Pairs, verdict: str) -> Table:
    first, *rest = _PROBLEM_COLUMNS
    return Table(
        "first",
        f"What got {verdict} first",
        f"{_beyond(verdict)}, in the order of their first timing after.",
        (first, Column("first_measured_at", "first timed after, UTC", TIME), *rest),
        pairs.problems(verdict, "first_measured_at NULLS LAST"),
        f"Nothing got {verdict} beyond noise.",
        most=_MOST,
    )


def _most(pairs: Pairs, verdict: str) -> Table:
    return Table(
        "most",
        f"What got {verdict} most" if pairs.sides.by == ENVIRONMENT else f"What is {verdict} after, by how much",
        f"{_beyond(verdict)}, the greatest change first.",
        _PROBLEM_COLUMNS,
        pairs.problems(verdict, "ratio DESC" if verdict == SLOWER else "ratio"),
        f"Nothing is {verdict} beyond noise.",
        most=_MOST,
    )


def _beyond(verdict: str) -> str:
    return f"Problems that are {verdict} by more than {TIE_SIGMAS} sigmas of the noisier side"


def _to_problem(device: str, environment: str) -> Link:
    columns = {"problem": "problem_key", "device": device, "environment": environment, "regime": "regime"}
    return Link(columns, cases.TO_PROBLEM.page, keeps=False)


_PROBLEM_COLUMNS = (
    Column("problem", "problem"),
    Column("before_us", "before, us", NUMBER, 2, link=_to_problem("device", "environment")),
    Column("after_us", "after, us", NUMBER, 2, link=_to_problem("device_after", "environment_after")),
    Column("ratio", "after / before", NUMBER, 3),
    Column("sigmas", "sigmas", NUMBER, 1),
    Column("device", "device"),
    Column("regime", "regime"),
    Column("template_before", "best before"),
    Column("template_after", "best after"),
)


def _sides_of(filters: Mapping[str, Value]) -> str:
    return names(filters.get("by", ENVIRONMENT))


def _fields(filters: Mapping[str, Value]) -> Iterator[str]:
    yield from ("before", "after", "regime", "op", "dtype", "layout", "family", "slice", "verdict")
    yield "environment" if filters.get("by") == DEVICE else "device"
    yield from (name for name in _NARROWING if name in filters)


CHANGE = Page(
    "change",
    "Change",
    "Best times that differ between two environments or two devices, for problems that were timed on both sides in the"
    " same regime.",
    (
        Parameter("by", "by", options=BY, unset=ENVIRONMENT, is_shown=False),
        Parameter("before", "before", options=_sides_of, unset="most in common"),
        Parameter("after", "after", options=_sides_of, unset="most in common"),
        cases.DEVICE,
        cases.ENVIRONMENT,
        cases.REGIME_OF,
        cases.OP,
        cases.DTYPE,
        cases.LAYOUT,
        cases.FAMILY,
        Parameter("size", _SLICES["size"], options=SIZES),
        Parameter("time", _SLICES["time"], options=TIMES),
        Parameter("winner", _SLICES["winner"], options=WINNERS),
        Parameter("slice", "slices", options=SLICES, unset=SLICES[0]),
        Parameter("verdict", "list", options=VERDICTS, unset=SLOWER),
    ),
    _parts,
    fields=_fields,
)
