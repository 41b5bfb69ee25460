"""`web`: show a run in a browser of this machine, read-only, behind a random token."""

from __future__ import annotations

import argparse
import hmac
import secrets
import shlex
import socket
import sys
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from fttui.engine.errors import ConfigError
from fttui.engine.run.run_dir import RunDirectory

from ..options import Commands, add_run, chosen_run, say
from ..preflight.extras import require_package

if TYPE_CHECKING:
    from aiohttp import web
    from textual_serve.server import Server

HOST = "127.0.0.1"
_HIGHEST_PORT = 65535
MOST_PAGES = 8
"""Pages open at a time; each is a process."""
_DESCRIPTION = """\
Show a run in a browser of this machine: the app as fttui attach --read-only shows it. The address
has a random token, without which nothing is served; whoever has the address can look at the run.
From another machine, forward the port through ssh: ssh -L PORT:127.0.0.1:PORT HOST.
"""


def add_commands(commands: Commands) -> None:
    """Register the subcommand `web` of `fttui`."""
    parser = commands.add_parser(
        "web", help="show a run in a browser, read-only, on 127.0.0.1 alone",
        description=_DESCRIPTION,
    )  # fmt: skip
    add_run(parser)
    parser.add_argument(
        "--port", type=int, default=0, metavar="P", help="the port; default: a free one"
    )
    parser.set_defaults(handler=_serve)


def _serve(options: argparse.Namespace) -> int:
    require_package("textual-serve", "fttui web", extra="web")
    if not 0 <= options.port <= _HIGHEST_PORT:
        raise ConfigError(f"--port: got {options.port}, expected 0 to {_HIGHEST_PORT}")
    run = chosen_run(options, live=False)
    listening = _listening(options.port)
    from aiohttp import web

    token = secrets.token_urlsafe(32)
    address = f"http://{HOST}:{listening.getsockname()[1]}"
    say(f"{run.id}: {address}/{token}/ until Ctrl-C")
    web.run_app(make_app(run, address, token), sock=listening, print=None, access_log=None)
    return 0


def _listening(port: int) -> socket.socket:
    listening = socket.socket()
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((HOST, port))
    except OSError as error:
        listening.close()
        raise ConfigError(
            f"--port: {HOST}:{port} cannot be used ({error}); name another port, or 0"
        ) from None
    return listening


def make_app(run: RunDirectory, address: str, token: str) -> web.Application:
    """Return the web application that serves a run below the token, and nothing elsewhere.

    Args:
        run: the run.
        address: the address of the server without a path.
        token: the first part of every path that is served.
    """
    import aiohttp_jinja2
    import jinja2
    from aiohttp import web
    from textual_serve.server import Server

    command = [sys.executable, "-P", "-m", "fttui.tui.cli.outward.web_app", str(run.path)]
    server = Server(shlex.join(command), title=run.id, public_url=address)
    pages = web.Application(middlewares=[_guard(token, address)])
    pages.on_response_prepare.append(_headers(address))
    aiohttp_jinja2.setup(pages, loader=jinja2.FileSystemLoader(server.templates_path))
    pages.add_routes(
        [
            web.get(f"/{token}/", server.handle_index, name="index"),
            web.get(f"/{token}/ws", _bounded(server), name="websocket"),
            web.static(f"/{token}/static", server.statics_path, name="static"),
        ]
    )
    return pages


def _guard(token: str, address: str) -> Any:
    """Return the middleware that refuses requests without the token or from another page."""
    from aiohttp import web

    @web.middleware  # type: ignore[untyped-decorator]  # mypy does not follow aiohttp
    async def guard(
        request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        given = request.path.removeprefix("/").partition("/")[0]
        if not hmac.compare_digest(given.encode(), token.encode()):
            raise web.HTTPForbidden(text="the address lacks the token that fttui web printed\n")
        if request.headers.get("Origin", address) != address:
            raise web.HTTPForbidden(text="refused: the request comes from another page\n")
        return await handler(request)

    return guard


def _headers(address: str) -> Callable[[web.Request, web.StreamResponse], Awaitable[None]]:
    """Return the signal handler that adds headers: load only from this server, send no referrer."""
    headers = {
        "Referrer-Policy": "no-referrer",
        "Cache-Control": "no-store",
        "X-Content-Type-Options": "nosniff",
        "Content-Security-Policy": "default-src 'none'; script-src 'self' 'unsafe-inline'; "
        "style-src 'self' 'unsafe-inline'; img-src 'self' data:; font-src 'self'; "
        f"connect-src 'self' {address.replace('http', 'ws', 1)}; "
        "frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    }

    async def add(request: web.Request, response: web.StreamResponse) -> None:
        response.headers.update(headers)

    return add


def _bounded(server: Server) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    """Return the handler of the connection of a page, which refuses more than `MOST_PAGES`."""
    from aiohttp import web

    opened = 0

    async def connect(request: web.Request) -> web.StreamResponse:
        nonlocal opened
        if opened >= MOST_PAGES:
            raise web.HTTPServiceUnavailable(text=f"{MOST_PAGES} pages are open; close one\n")
        opened += 1
        try:
            return await server.handle_websocket(request)
        finally:
            opened -= 1

    return connect
