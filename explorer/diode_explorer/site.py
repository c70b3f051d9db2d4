"""The site: pages, downloads and error pages."""

from __future__ import annotations

import logging
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from diode_explorer.downloads import FORMATS, as_bytes, as_table
from diode_explorer.feed import MOST_DOWNLOADED, SlowQueryError
from diode_explorer.guarding import REFUSED, Guard
from diode_explorer.ordering import asked_order, ordered
from diode_explorer.pages import PAGES
from diode_explorer.pages.page import AddressError, NotThereError
from diode_explorer.rendering import address, render, shown
from diode_explorer.visit import Visit
from diode_store.errors import DiodeError, first_line
from diode_trainer.report.html import STATIC, THEME, named
from diode_trainer.report.parts import Picture, Table, flat
from diode_trainer.report.questions import Answer, Extended, Question

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa
    from starlette.requests import Request

    from diode_explorer.background import Background
    from diode_explorer.feed import Feed, State
    from diode_explorer.pages.page import Page, Parameter

log = logging.getLogger(__name__)

_STATIC = Path(__file__).parent / "static"
_FIRST = next(iter(PAGES))


class _Files(StaticFiles):
    """Static files that browsers cache and revalidate."""

    def file_response(self, *arguments: Any, **named: Any) -> Response:
        """Return a file, or that it has not changed."""
        response = super().file_response(*arguments, **named)
        response.headers["Cache-Control"] = "no-cache"
        return response


def make_site(
    feed: Feed,
    *,
    spools: Sequence[Path] = (),
    background: Background | None = None,
    hosts: frozenset[str] = frozenset(),
    token: str | None = None,
) -> Guard:
    """Return the site as an ASGI application.

    Args:
        feed: the cache.
        spools: spools of this machine that the site reports on.
        background: runs long tasks; None for no such tasks.
        hosts: names that the site answers to; empty for any.
        token: token that a request must bring; None for no token.
    """
    site = _Site(feed, tuple(spools), background)
    feed.prepare(site.prepare)
    app = Starlette(
        routes=[
            Route("/", lambda _request: RedirectResponse(f"/{_FIRST}")),
            Route("/live", site.live),
            Route("/theme.css", lambda _request: Response(THEME, media_type="text/css")),
            Mount("/static", _Files(directory=_STATIC)),
            Mount("/drawing", _Files(directory=STATIC)),
            Route("/{page}", site.page),
            Route("/{page}/{part}.{suffix}", site.download),
        ],
        exception_handlers={HTTPException: _wrong, DiodeError: _failed, Exception: _broken},
    )
    app.router.redirect_slashes = False  # it would redirect to whatever name a request gives this server
    return Guard(app, refuse=lambda refusal: _error(refusal.status, refusal.text), hosts=hosts, token=token)


class _Site:
    """Handlers of requests."""

    def __init__(self, feed: Feed, spools: tuple[Path, ...], background: Background | None) -> None:
        self._feed, self._spools, self._background = feed, spools, background

    def prepare(self, state: State) -> None:
        """Make every page once without parameters, so that no visitor waits for it."""
        for page in PAGES.values():
            try:
                _rendered(page, Visit(state, {}, self._spools))
            except Exception as error:
                of_ours = isinstance(error, DiodeError)
                log.warning("/%s: %s", page.name, first_line(error), exc_info=None if of_ours else error)

    def live(self, _request: Request) -> Response:
        """Return the generation of the shown state."""
        return JSONResponse({"generation": self._feed.state.generation})

    def page(self, request: Request) -> Response:
        """Return a page."""
        page = _named(request)
        return HTMLResponse(_rendered(page, self._visit(request, page)))

    def download(self, request: Request) -> Response:
        """Return the rows of a part as a file."""
        page, suffix = _named(request), request.path_params["suffix"]
        visit = self._visit(request, page)
        found = {part.name: part for part in flat(page.parts(visit)) if isinstance(part, Table | Picture)}
        part = found.get(request.path_params["part"])
        if part is None or suffix not in FORMATS:
            has = f"{', '.join(found)}, each as {', '.join(FORMATS)}" if found else "no downloads with these filters"
            raise HTTPException(404, f"{page.title} has {has}")
        source = ordered(part, asked_order(visit)).source if isinstance(part, Table) else part.source
        table = _table(source, visit)
        name = f"{page.name}-{part.name}.{suffix}"
        headers = {"Content-Disposition": f'attachment; filename="{name}"'}
        return Response(as_bytes(table, suffix), media_type=FORMATS[suffix], headers=headers)

    def _visit(self, request: Request, page: Page) -> Visit:
        filters = {**page.implied(), **page.parse(request.query_params.multi_items())}
        return Visit(self._feed.state, filters, self._spools, self._background)


def _table(source: Question | Answer | Extended, visit: Visit) -> pa.Table:
    """Return all rows of a part."""
    if isinstance(source, Extended):
        return as_table(source.extend(visit.state.ask(source.question, MOST_DOWNLOADED)))
    return as_table(source) if isinstance(source, Answer) else visit.state.table(source)


def _rendered(page: Page, visit: Visit) -> str:
    parts = shown(page.parts(visit), visit)
    is_passing = page.is_live or any(part.is_passing for part in parts)
    return render(
        "site.html",
        title=page.title,
        text=page.text,
        menu=_menu(page),
        pages=PAGES,
        page=page,
        asked=visit,
        shown=parts,
        options={each.name: _options(visit, each) for each in page.shown(visit.filters)},
        generation="" if is_passing else visit.state.generation,
        formats=FORMATS,
    )


def _menu(here: Page | None = None) -> list[tuple[str, str, bool]]:
    """Return the address and title of each page, and whether it is this one."""
    return [(address(page.name, {}), page.title, page is here) for page in PAGES.values()]


def _options(visit: Visit, parameter: Parameter) -> tuple[tuple[str, str], ...] | None:
    """Return the options of a parameter with their labels."""
    options = parameter.options
    if options is None:
        return None
    if isinstance(options, tuple):
        return tuple((option, option) for option in options if option != parameter.unset)
    rows = visit.ask(Question(options if isinstance(options, str) else options(visit.filters), visit.filters)).rows
    return tuple((str(row[0]), named(str(row[-1]))) for row in rows if row[0] is not None)


def _named(request: Request) -> Page:
    page = PAGES.get(request.path_params["page"])
    if page is None:
        raise HTTPException(404, f"there is no such page; the pages are {', '.join(PAGES)}")
    return page


def _wrong(request: Request, error: Any) -> Response:
    is_unsaid = error.detail == HTTPStatus(error.status_code).phrase
    return _refused(request, error.status_code, "there is nothing at this address" if is_unsaid else error.detail)


def _failed(request: Request, error: Exception) -> Response:
    if isinstance(error, NotThereError | AddressError):
        return _refused(request, 404 if isinstance(error, NotThereError) else 400, first_line(error))
    log.warning("%s: %s", request.url.path, first_line(error))
    return _error(503 if isinstance(error, SlowQueryError) else 500, first_line(error))


def _refused(request: Request, status: int, text: str) -> Response:
    log.warning(REFUSED, request.method, request.scope["path"], text)
    return _error(status, text)


def _broken(request: Request, error: Exception) -> Response:
    log.error("%s: %s", request.url.path, first_line(error), exc_info=error)
    return _error(500, "this page failed; please report the error in the log of diode serve")


def _error(status: int, text: str) -> Response:
    return HTMLResponse(render("error.html", menu=_menu(), title=str(status), text=text), status_code=status)
