"""Tables of diode serve in the order that a click asks for."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

import samples
from diode_explorer.ordering import Order, next_order, ordered
from diode_explorer.pages.page import AddressError
from diode_store.warehouse.store import Store
from diode_trainer.report.parts import COUNT, Column, Table
from diode_trainer.report.questions import Answer, Extended, Question
from served import Site, ended, started

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

COLUMNS = (Column("name", "name"), Column("times", "times", COUNT))
ANSWER = Answer(("name", "times"), (("b", 2), ("a", None), ("d", 10), ("c", 2)))


def table(source: Question | Answer | Extended) -> Table:
    """Return a table."""
    return Table("some", "Some", "", COLUMNS, source)


@pytest.fixture(scope="module")
def site(_template_database: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Return a server over measurements of three machines."""
    database = shutil.copy(_template_database, tmp_path_factory.mktemp("ordering") / "warehouse.db")
    with Store.open(str(database)) as store:
        hosts = ("beta", "alpha", "alpha", "gamma", "gamma", "gamma")
        store.write([samples.measurement(number, host=host) for number, host in enumerate(hosts)])
    found = started(str(database))
    yield found
    ended(found)


@pytest.mark.parametrize(
    ("order", "names"),
    [
        (None, ["b", "a", "d", "c"]),
        (Order("other", "times", is_descending=False), ["b", "a", "d", "c"]),
        (Order("some", "times", is_descending=False), ["b", "c", "d", "a"]),
        (Order("some", "times", is_descending=True), ["d", "b", "c", "a"]),
        (Order("some", "name", is_descending=False), ["a", "b", "c", "d"]),
    ],
)
def test_rows_that_were_worked_out(order: Order | None, names: list[str]) -> None:
    """By value; what has none comes last, and equal ones stay as they were."""
    found = ordered(table(ANSWER), order).source
    assert isinstance(found, Answer)
    assert [row[0] for row in found.rows] == names


def test_columns_beside_a_query() -> None:
    """Are ordered once they are worked out."""
    source = Extended(Question("SELECT 1"), lambda _answer: ANSWER)
    found = ordered(table(source), Order("some", "times", is_descending=True)).source
    assert isinstance(found, Extended)
    assert [row[0] for row in found.extend(Answer((), ())).rows] == ["d", "b", "c", "a"]


def test_no_such_column() -> None:
    """Is said, with those that there are."""
    with pytest.raises(AddressError, match="Some has no column 'nope'; it has name, times"):
        ordered(table(ANSWER), Order("some", "nope", is_descending=False))


def test_a_click_turns_the_order() -> None:
    """Numbers begin with the greatest, names with the first."""
    first = [next_order(table(ANSWER), column, None) for column in COLUMNS]
    assert [str(order) for order in first] == ["some.name", "some.times-desc"]
    again = [next_order(table(ANSWER), column, order) for column, order in zip(COLUMNS, first, strict=True)]
    assert [str(order) for order in again] == ["some.name-desc", "some.times"]


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("order", "machines"),
    [
        ("machines.machine", ["alpha", "beta", "gamma"]),
        ("machines.machine-desc", ["gamma", "beta", "alpha"]),
        ("machines.measurements", ["beta", "alpha", "gamma"]),
    ],
)
def test_of_a_query(site: Site, order: str, machines: list[str]) -> None:
    """On the page, in what is downloaded, and in the SQL; the page says so, and the next click turns it."""
    page = site.get(f"/overview?sort={order}").text
    places = [page.index(f">{machine}</a></td>") for machine in machines]
    assert places == sorted(places)
    csv = site.get(f"/overview/machines.csv?sort={order}").text
    assert [line.split(",")[0] for line in csv.splitlines()[1:]] == machines
    assert ('aria-sort="descending"' in page) == order.endswith("-desc")
    turned = order.removesuffix("-desc") if order.endswith("-desc") else f"{order}-desc"
    assert f"sort={turned}#machines" in page
    assert "row_number() OVER () AS given_place" in page


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("order", "said"),
    [
        ("machines", "sort must be TABLE.COLUMN"),
        ("machines.x;drop", "sort must be TABLE.COLUMN"),
        ("machines.nope", "Last intake by machine has no column"),
    ],
)
def test_what_is_no_order(site: Site, order: str, said: str) -> None:
    """A page that says why."""
    answer = site.get(f"/overview?sort={order}")
    assert (answer.status, said in answer.text) == (400, True)
