"""The site: its pages, what can be downloaded of them, and what is said where something is wrong."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from diode_explorer import rendering
from diode_explorer.downloads import FORMATS, as_bytes, as_table
from diode_explorer.feed import SlowQueryError
from diode_explorer.guarding import Guard
from diode_explorer.pages import PAGES
from diode_explorer.pages.page import NotThereError
from diode_explorer.pages.parts import Picture, Table
from diode_explorer.pages.questions import Answer, Question
from diode_explorer.rendering import PALETTES, THEME, render, shown
from diode_store.errors import DiodeError, first_line

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from starlette.requests import Request

    from diode_explorer.feed import Feed, State
    from diode_explorer.pages.page import Page
    from diode_explorer.pages.questions import Value

log = logging.getLogger(__name__)

_STATIC = Path(__file__).parent / "static"
_FIRST = next(iter(PAGES))


@dataclass(frozen=True)
class Visit:
    """One request for a page: what it asks for, and the state of the lake that answers it."""

    state: State
    filters: Mapping[str, Value]
    spools: Sequence[Path] = ()

    def ask(self, question: Question) -> Answer:
        """Return what the lake answers; the errors are those of the state."""
        return self.state.ask(question)

    def address(self, page: str, values: Mapping[str, Value]) -> str | None:
        """Return the address of a page."""
        return rendering.address(page, values)


class _Files(StaticFiles):
    """Files that browsers keep, and ask about before they use them again."""

    def file_response(self, *arguments: Any, **named: Any) -> Response:
        """Return a file, or that it has not changed."""
        response = super().file_response(*arguments, **named)
        response.headers["Cache-Control"] = "no-cache"
        return response


def make_site(
    feed: Feed, *, spools: Sequence[Path] = (), hosts: frozenset[str] = frozenset(), token: str | None = None
) -> Guard:
    """Return the site as an ASGI application.

    Args:
        feed: what it shows.
        spools: folders of this machine that it tells of.
        hosts: names under which it answers; empty for any.
        token: what a request must bring; None for nothing.
    """
    site = _Site(feed, tuple(spools))
    feed.prepare(site.prepare)
    app = Starlette(
        routes=[
            Route("/", lambda _request: RedirectResponse(f"/{_FIRST}")),
            Route("/live", site.live),
            Route("/theme.css", lambda _request: Response(THEME, media_type="text/css")),
            Route("/palettes.json", lambda _request: JSONResponse(PALETTES)),
            Mount("/static", _Files(directory=_STATIC)),
            Route("/{page}", site.page),
            Route("/{page}/{part}.{suffix}", site.download),
        ],
        exception_handlers={HTTPException: _wrong, DiodeError: _failed, Exception: _broken},
    )
    app.router.redirect_slashes = False  # it would redirect to whatever name a request gives this server
    return Guard(app, refuse=lambda refusal: _error(refusal.status, refusal.text), hosts=hosts, token=token)


class _Site:
    """Answers requests."""

    def __init__(self, feed: Feed, spools: tuple[Path, ...]) -> None:
        self._feed, self._spools = feed, spools

    def prepare(self, state: State) -> None:
        """Make every page once as it is without parameters, so that nobody waits for it."""
        for page in PAGES.values():
            try:
                _rendered(page, Visit(state, {}, self._spools))
            except DiodeError as error:
                log.warning("/%s: %s", page.name, first_line(error))

    def live(self, _request: Request) -> Response:
        """Say which state is shown."""
        return JSONResponse({"generation": self._feed.state.generation})

    def page(self, request: Request) -> Response:
        """Return a page."""
        page = _named(request)
        return HTMLResponse(_rendered(page, self._visit(request, page)))

    def download(self, request: Request) -> Response:
        """Return what a part of a page shows as a file."""
        page, suffix = _named(request), request.path_params["suffix"]
        visit = self._visit(request, page)
        found = {part.name: part for part in page.parts(visit) if isinstance(part, Table | Picture)}
        part = found.get(request.path_params["part"])
        if part is None or suffix not in FORMATS:
            raise HTTPException(404, f"{page.title} has {', '.join(found)}, each as {', '.join(FORMATS)}")
        table = as_table(part.source) if isinstance(part.source, Answer) else visit.state.table(part.source)
        name = f"{page.name}-{part.name}.{suffix}"
        headers = {"Content-Disposition": f'attachment; filename="{name}"'}
        return Response(as_bytes(table, suffix), media_type=FORMATS[suffix], headers=headers)

    def _visit(self, request: Request, page: Page) -> Visit:
        return Visit(self._feed.state, _filters(request, page), self._spools)


def _rendered(page: Page, visit: Visit) -> str:
    return render(
        "page.html",
        pages=PAGES,
        page=page,
        asked=visit,
        shown=list(shown(page.parts(visit), visit)),
        options={each.name: _options(visit, each.options) for each in page.shown(visit.filters)},
        generation=visit.state.generation,
        formats=FORMATS,
    )


def _options(visit: Visit, options: str | tuple[str, ...] | None) -> tuple[tuple[str, str], ...] | None:
    """Return what a parameter may be, and how each is called."""
    if options is None:
        return None
    if isinstance(options, str):
        rows = visit.ask(Question(options)).rows
        return tuple((str(row[0]), str(row[-1])) for row in rows if row[0] is not None)
    return tuple((option, option) for option in options)


def _named(request: Request) -> Page:
    page = PAGES.get(request.path_params["page"])
    if page is None:
        raise HTTPException(404, f"there is no such page; there is {', '.join(PAGES)}")
    return page


def _filters(request: Request, page: Page) -> dict[str, Value]:
    """Return the parameters that an address sets, in the page's order.

    Raises:
        HTTPException: it sets one twice, one that the page does not have, or a value that cannot be.
    """
    found: dict[str, Value] = {}
    for name, text in request.query_params.multi_items():
        parameter = page.parameter(name)
        if parameter is None:
            names = ", ".join(each.name for each in page.parameters) or "none"
            raise HTTPException(400, f"unknown parameter {name[:50]!r}; {page.title} has {names}")
        if name in found:
            raise HTTPException(400, f"{name} is given twice")
        if text:
            try:
                found[name] = parameter.parse(text)
            except ValueError as error:
                raise HTTPException(400, str(error)) from None
    return {each.name: found[each.name] for each in page.parameters if each.name in found}


def _wrong(_request: Request, error: Any) -> Response:
    return _error(error.status_code, str(error.detail))


def _failed(request: Request, error: Exception) -> Response:
    if isinstance(error, NotThereError):
        return _error(404, first_line(error))
    log.warning("%s: %s", request.url.path, first_line(error))
    return _error(503 if isinstance(error, SlowQueryError) else 500, first_line(error))


def _broken(request: Request, error: Exception) -> Response:
    log.error("%s: %s", request.url.path, first_line(error), exc_info=error)
    return _error(500, "this page failed; the log of diode serve says why, please report it")


def _error(status: int, text: str) -> Response:
    return HTMLResponse(render("error.html", pages=PAGES, status=status, text=text), status_code=status)
