"""The app in a browser: behind its token, on this machine alone, and unable to send anything."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from fttui.engine.run.journal import FrameReader
from fttui.engine.run.run_dir import RunDirectory

from .conftest import StartRun

aiohttp = pytest.importorskip("aiohttp")
pytest.importorskip("textual_serve")

TOKEN = "a-random-token"
_COMMANDS = (" ", "x", "y", "s", "a", "t", "y", ":", "stop no-save\r", "R", "y", "0", "\x1b[24~")
"""Keys that stop, save, confirm, take control, open the list of runs or write a file."""


@asynccontextmanager
async def served(run: RunDirectory) -> AsyncIterator[str]:
    """Serve a run; the value is the address without the token."""
    from aiohttp import web

    from fttui.tui.cli.outward.web import _listening, make_app

    listening = _listening(0)
    assert listening.getsockname()[0] == "127.0.0.1"
    address = f"http://127.0.0.1:{listening.getsockname()[1]}"
    runner = web.AppRunner(make_app(run, address, TOKEN))
    await runner.setup()
    await web.SockSite(runner, listening).start()
    try:
        yield address
    finally:
        await runner.cleanup()


async def shown(websocket: Any, text: str, limit_s: float = 60) -> None:
    """Receive until the app has drawn a text."""
    seen = b""
    async with asyncio.timeout(limit_s):
        while text.encode() not in seen:
            message = await websocket.receive()
            assert message.type in (aiohttp.WSMsgType.BINARY, aiohttp.WSMsgType.TEXT), seen[-2000:]
            seen += message.data if isinstance(message.data, bytes) else message.data.encode()


@pytest.mark.parametrize("path", ["/", "/ws", "/static/js/textual.js", "/a-random-toke/", "/x/ws"])
async def test_nothing_is_served_without_the_token(start_run: StartRun, path: str) -> None:
    run, _ = start_run("--no-hub")
    async with served(run) as address, aiohttp.ClientSession() as client:
        answer = await client.get(f"{address}{path}")
        assert answer.status == 403
        with pytest.raises(aiohttp.WSServerHandshakeError, match="403"):
            await client.ws_connect(f"{address}{path}")


async def test_a_page_comes_from_this_server_alone(start_run: StartRun) -> None:
    run, _ = start_run("--no-hub")
    async with served(run) as address, aiohttp.ClientSession() as client:
        page = await client.get(f"{address}/{TOKEN}/")
        assert page.status == 200
        assert f"{address}/{TOKEN}/static/" in await page.text()
        assert page.headers["Referrer-Policy"] == "no-referrer"
        assert page.headers["Content-Security-Policy"].startswith("default-src 'none'")
        script = await client.get(f"{address}/{TOKEN}/static/js/textual.js")
        assert script.status == 200
        other = {"Origin": "http://127.0.0.1:9"}
        assert (await client.get(f"{address}/{TOKEN}/", headers=other)).status == 403
        with pytest.raises(aiohttp.WSServerHandshakeError, match="403"):
            await client.ws_connect(f"{address}/{TOKEN}/ws", headers=other)


@pytest.mark.slow
async def test_no_key_of_a_browser_reaches_the_run(start_run: StartRun) -> None:
    run, engine = start_run("--step-s", "0.1")
    before = {path.name for path in Path.cwd().iterdir()}
    async with served(run) as address, aiohttp.ClientSession() as client:
        url = f"{address}/{TOKEN}/ws?width=120&height=40"
        async with client.ws_connect(url) as websocket:
            await shown(websocket, "loss")
            for keys in _COMMANDS:
                await websocket.send_json(["stdin", keys])
            await shown(websocket, "read-only")
    assert list(FrameReader(run.control)) == []
    assert engine.poll() is None, "the run goes on"
    assert {path.name for path in Path.cwd().iterdir()} == before


@pytest.mark.long
@pytest.mark.slow
async def test_a_browser_draws_the_run_and_sends_nothing(
    start_run: StartRun, tmp_path: Path
) -> None:
    playwright = pytest.importorskip("playwright.async_api")
    if not (chromium := shutil.which("chromium")):
        pytest.skip("needs chromium")
    run, engine = start_run("--step-s", "0.1")
    pictures = Path(os.environ.get("FTTUI_TEST_PICTURES", tmp_path))
    async with served(run) as address, playwright.async_playwright() as driver:
        browser = await driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = await browser.new_page(viewport={"width": 1280, "height": 800})
        asked: list[str] = []
        received = bytearray()
        page.on("websocket", lambda socket: socket.on("framereceived", _keep(received)))
        page.on("request", lambda request: asked.append(request.url))
        refused = await page.goto(f"{address}/")
        assert refused is not None
        assert refused.status == 403
        await page.goto(f"{address}/{TOKEN}/")
        await page.wait_for_selector("body.-first-byte", timeout=60_000)
        await _arrived(received, "grad norm")
        assert await page.locator(".xterm-screen canvas").count()
        for key in ("x", "y", "s"):
            await page.keyboard.press(key)
        await _arrived(received, "read-only")
        await asyncio.sleep(1)
        await page.screenshot(path=str(pictures / "web.png"))
        await browser.close()
    outside = [url for url in asked if not url.startswith((address, "data:"))]
    assert all("fonts.googleapis" in url for url in outside), "only what the policy blocks"
    assert list(FrameReader(run.control)) == []
    assert engine.poll() is None


def _keep(received: bytearray) -> Callable[[bytes | str], None]:
    return lambda data: received.extend(data if isinstance(data, bytes) else data.encode())


async def _arrived(received: bytearray, text: str) -> None:
    """Wait until the terminal of a page has received a text, which it draws on a canvas."""
    async with asyncio.timeout(60):
        while text.encode() not in received:
            await asyncio.sleep(0.1)
