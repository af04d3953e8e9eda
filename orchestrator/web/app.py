"""Routes of the pages, and their rendering."""

from __future__ import annotations

import logging
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import parse_qsl, quote, urlsplit

import anyio
import anyio.to_thread
from jinja2 import Environment
from msgspec.structs import replace
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Match, Mount, Route
from starlette.staticfiles import StaticFiles

from orchestrator.core.errors import OrchError, UsageError
from orchestrator.core.version import __version__
from orchestrator.daemon.lock import running_daemon
from orchestrator.reports.markup import environment
from orchestrator.reports.words import group_words
from orchestrator.web import actions, figures
from orchestrator.web.access import SESSION_SECONDS, PageAccess, Visitor
from orchestrator.web.guard import FORM, VISITOR, Guard, form_of
from orchestrator.web.live import LivePages
from orchestrator.web.loop_health import LoopHealth
from orchestrator.web.metrics import CONTENT_TYPE, HomeMetrics
from orchestrator.web.outlook_cache import Outlooks
from orchestrator.web.reader import HomeReader, Readers
from orchestrator.web.views import Page, PageAddress, View, jobs, others, rows
from orchestrator.web.views.tonight import Tonight

log = logging.getLogger(__name__)

HERE = Path(__file__).parent
THREADS = 2
"""Pages rendered at a time, plus as many slow pages. Few, to leave the processors to the daemon."""
SLOW: frozenset[Page] = frozenset({others.night, others.diff})
"""Pages that read a whole night."""
Made = TypeVar("Made")
NAV = (
    ("tonight", "/", "Tonight"),
    ("jobs", "/jobs", "Jobs"),
    ("nights", "/nights", "Nights"),
    ("schedules", "/schedules", "Schedules"),
    ("money", "/money", "Money"),
    ("backends", "/backends", "Backends"),
    ("quarantine", "/quarantine", "Quarantine"),
)


class Pages:
    """The pages of one home. `new_link` is called after a link has been used, to print a new link."""

    def __init__(
        self,
        readers: Readers,
        access: PageAccess,
        hosts: frozenset[str],
        new_link: Callable[[], None],
        loop: LoopHealth | None = None,
    ) -> None:
        self._readers = readers
        self._access = access
        self._hosts = hosts
        self._new_link = new_link
        self._live = LivePages(lambda: running_daemon(readers().home))
        self._usual, self._slow = anyio.CapacityLimiter(THREADS), anyio.CapacityLimiter(THREADS)
        self._templates = _templates()
        outlooks = Outlooks()
        self._metrics = HomeMetrics(readers, outlooks, lambda: self._live.viewers, loop)
        known: list[tuple[str, Page]] = [
            ("/", Tonight(outlooks)),
            ("/jobs", jobs.job_list),
            ("/jobs/{job}", jobs.JobPage(outlooks)),
            ("/jobs/{job}/rows", rows.rows),
            ("/jobs/{job}/rows/{seq}", rows.row),
            ("/jobs/{job}/terms", actions.terms),
            ("/nights", others.nights),
            ("/nights/{night}", others.night),
            ("/schedules", others.schedules),
            ("/diff", others.diff),
            ("/money", others.money),
            ("/backends", others.backends),
            ("/quarantine", others.quarantine),
        ]
        self._routes = [(Route(path, self._shown(page), methods=["GET"]), page) for path, page in known]

    def application(self) -> Starlette:
        routes = [
            *(route for route, _ in self._routes),
            Route("/jobs/{job}/rows/{seq}/picture/{number}", self._picture, methods=["GET"]),
            Route("/jobs/{job}/rows.{form}", self._download, methods=["GET"]),
            Route("/cost.html", self._cost_file, methods=["GET"]),
            Route("/metrics", self._scraped, methods=["GET"]),
            Route("/do/{action}", self._act, methods=["POST"]),
            Route("/live", self._events, methods=["GET"]),
            Route("/enter", self._enter, methods=["GET"]),
            Route("/sign-in", self._sign_in, methods=["POST"]),
            Mount("/static", _Static(directory=HERE / "static")),
        ]
        guard = Middleware(Guard, access=self._access, hosts=self._hosts, sign_in=self._stranger)
        app = Starlette(routes=routes, middleware=[guard], exception_handlers={404: self._missing})
        app.router.redirect_slashes = False
        return app

    # --- pages

    def _shown(self, page: Page) -> Callable[[Request], Any]:
        async def shown(request: Request) -> Response:
            return await self._answer(page, request)

        return shown

    async def _answer(self, page: Page, request: Request) -> Response:
        address = PageAddress(request.path_params, request.query_params)
        visitor: Visitor = request.scope[VISITOR]
        here = f"{request.url.path}?{request.url.query}" if request.url.query else request.url.path
        text, status = await self._threaded(
            lambda: self._page(page, address, visitor, here, "layout.html"), slow=page in SLOW
        )
        return HTMLResponse(text, status)

    async def _threaded(self, work: Callable[[], Made], *, slow: bool = False) -> Made:
        """Run work in a thread. Slow work has a limit of its own, so that it does not hold up live pages."""
        return await anyio.to_thread.run_sync(work, limiter=self._slow if slow else self._usual)

    def _page(
        self, page: Page | None, address: PageAddress, visitor: Visitor, here: str, layout: str
    ) -> tuple[str, int]:
        """Render a page. Errors become pages too."""
        reader = self._readers()
        try:
            view = View("empty.html", "", "") if page is None else page(reader, address)
            return self._rendered(reader, view, visitor, here, layout), view.status
        except OrchError as error:
            view = _error_view(error)
        except Exception:
            log.exception("the page %s cannot be made", here)
            facts = {"message": "this page cannot be made: a defect of orch", "hint": "its log has the details"}
            view = View("error.html", "Not shown", "", facts, status=500)
        return self._rendered(reader, view, visitor, here, layout), view.status

    def _rendered(self, reader: HomeReader, view: View, visitor: Visitor, here: str, layout: str) -> str:
        holder = running_daemon(reader.home)
        return self._templates.get_template(view.template).render(
            layout=layout,
            title=view.title,
            nav=NAV,
            here=view.nav,
            live=here if view.live else "",
            daemon=None if holder is None else str(holder),
            # A page about an internal error must not query the database again.
            has_work=view.status >= HTTPStatus.INTERNAL_SERVER_ERROR or (holder is None and _has_work(reader)),
            home=str(reader.home.root),
            version=__version__,
            visitor=visitor,
            **view.facts,
        )

    async def _act(self, request: Request) -> Response:
        action = actions.ACTIONS.get(request.path_params["action"])
        visitor: Visitor = request.scope[VISITOR]
        if action is None:
            return Response(status_code=404)
        try:
            place = await self._threaded(lambda: action(self._readers(), request.scope[FORM], visitor.name))
        except OrchError as caught:
            return await self._refused(caught, request, "Not done")
        return RedirectResponse(place, 303)

    async def _refused(self, refusal: OrchError, request: Request, title: str = "") -> Response:
        """Return a page that says why orch refuses a request. It is not live, because its address names no page."""
        view = replace(_error_view(refusal, title), live=False)
        return await self._answer(lambda reader, address: view, request)

    async def _picture(self, request: Request) -> Response:
        address = PageAddress(request.path_params, request.query_params)
        try:
            found = await self._threaded(lambda: rows.picture(self._readers(), address))
        except OrchError:
            found = None
        if found is None:
            return Response(status_code=404)
        return Response(
            found[1], media_type=found[0], headers={"content-security-policy": "default-src 'none'; sandbox"}
        )

    async def _download(self, request: Request) -> Response:
        address = PageAddress(request.path_params, request.query_params)
        try:
            lines = await self._threaded(lambda: rows.download(self._readers(), address))
        except OrchError as caught:
            return await self._refused(caught, request)
        form = request.path_params["form"]
        name = quote(f"{request.path_params['job']}.{form}")
        kind = "text/csv; charset=utf-8" if form == "csv" else "application/jsonl"
        headers = {"content-disposition": f"attachment; filename*=UTF-8''{name}"}
        return StreamingResponse(lines, media_type=kind, headers=headers)

    async def _cost_file(self, request: Request) -> Response:
        address = PageAddress(request.path_params, request.query_params)
        try:
            text = await self._threaded(lambda: others.cost_file(self._readers(), address))
        except OrchError as caught:
            return await self._refused(caught, request)
        # Offer the report as a download, as its own styles are forbidden on these pages.
        return HTMLResponse(text, headers={"content-disposition": "attachment; filename=cost.html"})

    async def _scraped(self, request: Request) -> Response:
        try:
            return Response(await self._threaded(self._metrics.text), media_type=CONTENT_TYPE)
        except OrchError as error:
            return PlainTextResponse(f"{error.message}\n", 503)

    # --- live

    async def _events(self, request: Request) -> Response:
        here = request.query_params.get("page", "")
        parts = urlsplit(here)
        page, address = self._page_at(parts.path, parts.query)
        visitor: Visitor = request.scope[VISITOR]

        async def make() -> str:
            text, _ = await self._threaded(lambda: self._page(page, address, visitor, here, "fragment.html"))
            return str(text)

        cookie = request.cookies.get(self._access.cookie)
        events = self._live.events(
            f"{visitor.right} {visitor.form_token} {here}", make, lambda: self._access.visitor(cookie) is not None
        )
        return StreamingResponse(events, media_type="text/event-stream")

    def _page_at(self, path: str, query: str) -> tuple[Page | None, PageAddress]:
        scope = {"type": "http", "method": "GET", "path": path, "root_path": ""}
        for route, page in self._routes:
            match, found = route.matches(scope)
            if path and match is Match.FULL:
                return page, PageAddress(found["path_params"], dict(parse_qsl(query)))
        return None, PageAddress({}, {})

    # --- sign-in

    async def _enter(self, request: Request) -> Response:
        cookie = self._access.enter(request.query_params.get("token", ""))
        if cookie is None:
            return self._door("This link was already used or is not valid. The terminal shows the current one.")
        self._new_link()
        # Not a redirect: browsers withhold a strict cookie if the navigation began at another program.
        return self._with_cookie(HTMLResponse(self._templates.get_template("entered.html").render()), request, cookie)

    async def _sign_in(self, request: Request) -> Response:
        given = (await form_of(request.receive)).get("key", "")
        try:
            cookie = await run_in_threadpool(self._access.sign_in, given.strip())
        except OrchError as error:
            return PlainTextResponse(f"{error.message}\n", 503)
        if cookie is None:
            return self._door("This key opens nothing here: it is unknown, revoked, or not made with --right view.")
        return self._with_cookie(RedirectResponse("/", 303), request, cookie)

    def _with_cookie(self, response: Response, request: Request, cookie: str) -> Response:
        is_secure = request.headers.get("x-forwarded-proto") == "https" or request.url.scheme == "https"
        response.set_cookie(
            self._access.cookie, cookie, SESSION_SECONDS, httponly=True, samesite="strict", secure=is_secure
        )
        return response

    async def _stranger(self, scope: Any, receive: Any, send: Any) -> None:
        await self._door("")(scope, receive, send)

    def _door(self, problem: str) -> Response:
        return HTMLResponse(
            self._templates.get_template("door.html").render(
                problem=problem, links=self._access.links, version=__version__
            ),
            401,
        )

    async def _missing(self, request: Request, error: Exception) -> Response:
        if request.scope.get(VISITOR) is None:
            return Response(status_code=404)

        return await self._refused(UsageError("there is no such page"), request)


def _has_work(reader: HomeReader) -> bool:
    home = reader.home.identity()
    will_run = any(one.home == home and one.paused_at is None for one in reader.store.schedules.all())
    return will_run or bool(reader.store.jobs.unfinished(home))


def _error_view(error: OrchError, title: str = "") -> View:
    found = ("Not found", 404) if isinstance(error, UsageError) else ("Not shown", 503)
    facts = {"message": error.message, "hint": error.hint}
    return View("error.html", title or found[0], "", facts, status=found[1])


class _Static(StaticFiles):
    """Static files of orch. Their URLs contain orch's version."""

    async def get_response(self, path: str, scope: Any) -> Response:
        response = await super().get_response(path, scope)
        response.headers["cache-control"] = "max-age=86400"
        return response


def _templates() -> Environment:
    made = environment(HERE / "templates")
    made.filters.update(figures.FORMS, moment=figures.moment, day=figures.day, in_zone=figures.in_zone)
    made.globals.update(figure=figures.figure, group_words=group_words)
    return made
