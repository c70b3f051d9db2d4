"""Pages of the site: queries, and the meaning of their columns."""

from dataclasses import replace

from diode_explorer.pages.change.page import CHANGE
from diode_explorer.pages.coverage.page import COVERAGE
from diode_explorer.pages.decisions.page import DECISIONS
from diode_explorer.pages.intake import INTAKE
from diode_explorer.pages.model.page import MODEL
from diode_explorer.pages.overview import OVERVIEW
from diode_explorer.pages.page import SORT
from diode_explorer.pages.problem.page import PROBLEM
from diode_explorer.pages.sql import SQL

PAGES = {
    page.name: replace(page, parameters=(*page.parameters, SORT))
    for page in (OVERVIEW, PROBLEM, COVERAGE, MODEL, CHANGE, DECISIONS, INTAKE, SQL)
}
"""All pages, in the order of the menu."""
