"""The site: its pages, what can be downloaded of them, and what is said where something is wrong."""

from __future__ import annotations

import logging
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from diode_explorer.downloads import FORMATS, as_bytes
from diode_explorer.feed import SlowQueryError
from diode_explorer.guarding import Guard
from diode_explorer.pages.overview import OVERVIEW
from diode_explorer.pages.page import filled_in, parameters_of
from diode_explorer.rendering import render
from diode_store.errors import DiodeError, first_line
from diode_trainer.report.theme import DARK, LIGHT, css_variables

if TYPE_CHECKING:
    from starlette.requests import Request

    from diode_explorer.feed import Feed
    from diode_explorer.pages.page import Page, Table

log = logging.getLogger(__name__)

PAGES = {page.name: page for page in (OVERVIEW,)}
_MOST_CHARACTERS = 500
"""Of the value of a filter; the names of devices and machines are shorter."""
_STATIC = Path(__file__).parent / "static"
_THEME = (
    f":root {{ {css_variables(LIGHT)} }}\n@media (prefers-color-scheme: dark) {{ :root {{ {css_variables(DARK)} }} }}\n"
)


def make_site(feed: Feed, *, hosts: frozenset[str] = frozenset(), token: str | None = None) -> Guard:
    """Return the site as an ASGI application.

    Args:
        feed: what it shows.
        hosts: names under which it answers; empty for any.
        token: what a request must bring; None for nothing.
    """
    app = Starlette(
        routes=[
            Route("/", lambda _request: RedirectResponse(f"/{OVERVIEW.name}")),
            Route("/live", partial(_live, feed)),
            Route("/theme.css", lambda _request: Response(_THEME, media_type="text/css")),
            Mount("/static", StaticFiles(directory=_STATIC)),
            Route("/{page}", partial(_page, feed)),
            Route("/{page}/{table}.{suffix}", partial(_download, feed)),
        ],
        exception_handlers={HTTPException: _wrong, DiodeError: _failed, Exception: _broken},
    )
    app.router.redirect_slashes = False  # it would redirect to whatever name a request gives this server
    return Guard(app, refuse=lambda refusal: _error(refusal.status, refusal.text), hosts=hosts, token=token)


def _live(feed: Feed, _request: Request) -> Response:
    return JSONResponse({"generation": feed.generation})


def _page(feed: Feed, request: Request) -> Response:
    page = _named(request)
    filters = _filters(request, page)
    generation = feed.generation
    shown = []
    for table in page.tables:
        sql = table.sql(filters)
        shown.append((table, filled_in(sql, filters), feed.ask(sql, parameters_of(sql, filters))))
    return HTMLResponse(
        render(
            "page.html", pages=PAGES, page=page, filters=filters, shown=shown, generation=generation, formats=FORMATS
        )
    )


def _download(feed: Feed, request: Request) -> Response:
    page = _named(request)
    table = next((table for table in page.tables if table.name == request.path_params["table"]), None)
    suffix = request.path_params["suffix"]
    if table is None or suffix not in FORMATS:
        raise HTTPException(404, f"{page.title} has {_downloads(page.tables)}, each as {', '.join(FORMATS)}")
    filters = _filters(request, page)
    sql = table.sql(filters)
    content = as_bytes(feed.table(sql, parameters_of(sql, filters)), suffix)
    name = f"{page.name}-{table.name}.{suffix}"
    return Response(
        content, media_type=FORMATS[suffix], headers={"Content-Disposition": f'attachment; filename="{name}"'}
    )


def _downloads(tables: tuple[Table, ...]) -> str:
    return ", ".join(table.name for table in tables)


def _named(request: Request) -> Page:
    page = PAGES.get(request.path_params["page"])
    if page is None:
        raise HTTPException(404, f"there is no such page; there is {', '.join(PAGES)}")
    return page


def _filters(request: Request, page: Page) -> dict[str, str]:
    """Return the filters that an address sets.

    Raises:
        HTTPException: it sets one twice, one that the page does not have, or a value that no name can be.
    """
    found: dict[str, str] = {}
    for name, value in request.query_params.multi_items():
        if name not in page.filters:
            raise HTTPException(400, f"unknown parameter {name[:50]!r}; {page.title} has {', '.join(page.filters)}")
        if name in found:
            raise HTTPException(400, f"{name} is given twice")
        if len(value) > _MOST_CHARACTERS or not value.isprintable():
            raise HTTPException(400, f"{name} is no name: too long, or not printable")
        if value:
            found[name] = value
    return found


def _wrong(_request: Request, error: Any) -> Response:
    return _error(error.status_code, str(error.detail))


def _failed(request: Request, error: Exception) -> Response:
    log.warning("%s: %s", request.url.path, first_line(error))
    return _error(503 if isinstance(error, SlowQueryError) else 500, first_line(error))


def _broken(request: Request, error: Exception) -> Response:
    log.error("%s: %s", request.url.path, first_line(error), exc_info=error)
    return _error(500, "this page failed; the log of diode serve says why, please report it")


def _error(status: int, text: str) -> Response:
    return HTMLResponse(render("error.html", pages=PAGES, status=status, text=text), status_code=status)
