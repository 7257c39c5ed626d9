"""A browser before datasets that want to run in it: nothing does, all is shown; keys and audio work."""

from __future__ import annotations

import asyncio
import contextlib
import html
import itertools
import json
import re
import shutil
import subprocess
import time
import urllib.parse
from collections.abc import AsyncIterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import aiohttp
import pytest

import shardio
from shardio import codecs
from shardio.view import Pages
from tests.servers.processes import BUILD
from tests.view import made
from tests.view.test_web import TOKEN, serving

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]  # a dozen browsers are started one after another

RUN = "document.title='taken'"
ATTACKS = [
    f"<script>{RUN}</script>",
    f'<img src=x onerror="{RUN}">',
    f"</script><script>{RUN}</script>",
    f"<svg xmlns='http://www.w3.org/2000/svg' onload=\"{RUN}\"><script>{RUN}</script></svg>",
    f"javascript:{RUN}",
    f"'\"><body onload={RUN}>",
    f"</title><script>{RUN}</script>",
    '{{constructor.constructor("' + RUN + '")()}}',
    f"data:text/html,<script>{RUN}</script>",
    f'<iframe srcdoc="<script>parent.{RUN}</script>"></iframe>',
]
PHONE = {"width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": True}
HTML = f'<!doctype html><html><body onload="{RUN}"><script>{RUN}</script></body></html>'.encode()
SVG = f"<svg xmlns='http://www.w3.org/2000/svg' onload=\"{RUN}\"><script>{RUN}</script></svg>".encode()


def chromium() -> str:
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if found is None:
        pytest.skip("there is no chromium, chromium-browser or google-chrome")
    return found


def command(folder: Path, *more: str) -> list[str]:
    return [
        chromium(), "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-sync",
        "--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage",
        f"--user-data-dir={folder}", "--window-size=1200,2500", *more,
    ]  # fmt: skip


def shown(url: str, folder: Path) -> str:
    """The page as it is once its script has drawn it: its elements as text."""
    words = command(folder, "--virtual-time-budget=20000", "--dump-dom", url)
    done = subprocess.run(words, capture_output=True, text=True, timeout=600, check=True)
    return done.stdout


class Tab:
    """A page of a browser that is used: keys and clicks arrive as those of a person do."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._numbers = itertools.count(1)

    async def call(self, method: str, **parameters: Any) -> Any:
        number = next(self._numbers)
        await self._socket.send_json({"id": number, "method": method, "params": parameters})
        while True:
            answer = await self._socket.receive_json(timeout=600)
            if answer.get("id") == number:
                if "error" in answer:
                    raise LookupError(answer["error"]["message"])
                return answer["result"]

    async def value(self, expression: str) -> Any:
        found = await self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    async def until(self, expression: str, wanted: Any = True) -> None:
        """Wait until the page's own word for it is what is wanted."""
        end = time.monotonic() + 600
        found = None
        while True:
            # Before a page is there, and between two, nothing can be asked.
            with contextlib.suppress(LookupError):
                found = await self.value(expression)
                if found == wanted:
                    return
            assert time.monotonic() < end, (expression, found, wanted)
            await asyncio.sleep(0.05)

    async def press(self, key: str) -> None:
        text = {"Enter": "\r"}.get(key, key if len(key) == 1 else "")
        code = {"Enter": 13, "Escape": 27, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40}
        words = {"key": key, "windowsVirtualKeyCode": code.get(key, 0), **({"text": text} if text else {})}
        await self.call("Input.dispatchKeyEvent", type="keyDown", **words)
        await self.call("Input.dispatchKeyEvent", type="keyUp", key=key)

    async def click(self, chosen: str) -> None:
        box = f"(() => {{ const box = {chosen}.getBoundingClientRect(); return [box.x + 5, box.y + 5]; }})()"
        x, y = await self.value(box)
        for kind in ("mousePressed", "mouseReleased"):
            await self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    async def shows(self, address: str) -> None:
        await self.until("location.hash", address)
        # The page hears of a new address a moment later; until then it is still ready with the one before.
        later = "new Promise((done) => setTimeout(done, 200))"
        await self.call("Runtime.evaluate", expression=later, awaitPromise=True)
        await self.until("document.body.dataset.ready", "yes")


@contextlib.asynccontextmanager
async def used(url: str, folder: Path) -> AsyncIterator[Tab]:
    """Run a browser that shows a page, and drive it by the protocol of its own tools."""
    told = folder / "DevToolsActivePort"
    words = command(folder, "--remote-debugging-port=0", "--mute-audio", url)
    quiet = asyncio.subprocess.DEVNULL
    browser = await asyncio.create_subprocess_exec(*words, stdout=quiet, stderr=quiet)
    try:
        end = time.monotonic() + 600
        while not told.exists() or "\n" not in told.read_text(encoding="utf-8"):
            assert browser.returncode is None, browser.returncode
            assert time.monotonic() < end, "the browser did not tell its port"
            await asyncio.sleep(0.05)
        port = told.read_text(encoding="utf-8").split()[0]
        async with aiohttp.ClientSession() as session:
            pages: list[Any] = []
            while not pages:
                async with session.get(f"http://127.0.0.1:{port}/json/list") as answer:
                    pages = [each for each in await answer.json() if each["url"] == url]
            async with session.ws_connect(pages[0]["webSocketDebuggerUrl"], max_msg_size=0) as socket:
                yield Tab(socket)
    finally:
        with contextlib.suppress(ProcessLookupError):
            browser.kill()
        await browser.wait()


def hostile(url: Path) -> None:
    """Names of features and classes, descriptions, texts, JSON, bytes, metadata and tags: all want to run."""
    schema = {
        **{name: shardio.Feature("text", description=name) for name in ATTACKS},
        "__proto__": "text",
        "constructor": "text",
        "image": shardio.Feature("image", default=SVG),  # a default need not be an image
        "page": "bytes",
        "about": "json",
        "label": shardio.Feature("int64", classes=ATTACKS),
    }
    with shardio.DatasetWriter(url, schema, metadata={ATTACKS[0]: ATTACKS[1]}) as out:
        for n in range(len(ATTACKS)):
            texts = {name: ATTACKS[(k + n) % len(ATTACKS)] for k, name in enumerate(ATTACKS)}
            texts |= {"__proto__": ATTACKS[0], "constructor": ATTACKS[1]}
            value = {**texts, "image": SVG, "page": HTML, "about": {ATTACKS[0]: ATTACKS}, "label": n}
            if n % 2:
                # An image that is one, with a page behind its pixels.
                value["image"] = made.picture("PNG") + HTML
            out.write(value)


def bare(url: Path) -> None:
    """Records without a schema, among them Examples whose features are named by them."""
    with shardio.DatasetWriter(url) as out:
        for attack in ATTACKS:
            out.write(attack.encode())
            out.write(codecs.encode_example({attack: attack, "__proto__": HTML, "image": SVG}))


class Drawn(HTMLParser):
    """What a page consists of: its scripts, its text, and elements and attributes that could run or load."""

    def __init__(self, dom: str) -> None:
        super().__init__()
        self.scripts: list[str] = []
        self.suspicious: list[str] = []
        self.text = ""
        self.feed(dom)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "script":
            self.scripts.append(dict(attrs).get("src") or "inline")
        if tag in ("iframe", "object", "embed", "base", "meta") and "charset" not in dict(attrs):
            self.suspicious += [tag] if dict(attrs).get("name") not in ("viewport", "color-scheme") else []
        for name, value in attrs:
            own = (value or "").startswith(("#/", "/static/", "blob:http://127.0.0.1:"))
            if name.startswith("on") or (
                name in ("href", "src", "srcdoc", "action", "formaction") and not own
            ):
                self.suspicious.append(f"{tag} {name}={value}")

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.mark.parametrize("make", [hostile, bare], ids=lambda make: make.__name__)
def test_nothing_of_a_dataset_runs(make, tmp_path):
    make(tmp_path / "ds")
    with serving(Pages(tmp_path / "ds")) as browser:
        pages = ["overview", "records", "record?position=1"]
        if make is hostile:
            pages += ["statistics", "shards", f"records?where={ATTACKS[0]}", "records?as=grid"]
        for page in pages:
            dom = shown(f"http://127.0.0.1:{browser.port}/?token={TOKEN}#/{page}", tmp_path / "profile")
            # It was drawn to its end, the title is the program's, and what is hostile is there as text.
            assert 'data-ready="yes"' in dom, page
            assert re.search("<title>(.*?)</title>", dom)[1].endswith(" - ds - shardio"), page
            drawn = Drawn(dom)
            assert drawn.scripts == ["/static/app.js"], page
            assert drawn.suspicious == [], page
            if page != "shards":
                assert RUN in drawn.text, page
        # What was sent for images is pixels alone.
        for record in browser.get("records").json["records"]:
            for name, cell in record["cells"]:
                if cell["kind"] == "image":
                    sent = browser.get("media", position=record["position"], path=json.dumps(cell["path"]))
                    assert sent.headers["content-type"] == "image/png", name
                    assert b"script" not in sent.body


def test_a_browser_draws_every_page(tmp_path):
    made.values(tmp_path / "ds")
    with serving(Pages(tmp_path / "ds")) as browser:
        wanted = {
            "overview": "First records of train", "records": "0 to 19 of 20", "statistics": "robin (1)",
            "record?position=3": "Where it is", "shards": "Stored bytes of a shard",
            "records?as=grid": "0 to 19 of 20",
            "versions": "committed", "record?position=99": "out of range", "nothing": "no such page",
        }  # fmt: skip
        for page, words in wanted.items():
            dom = shown(f"http://127.0.0.1:{browser.port}/?token={TOKEN}#/{page}", tmp_path / "profile")
            assert 'data-ready="yes"' in dom, page
            assert words in html.unescape(dom), page
            if page == "records":
                # Images of the records that are in sight, from the server; each has one and its pixels.
                assert dom.count('src="blob:') >= 20
        refused = shown(f"http://127.0.0.1:{browser.port}/?token=wrong", tmp_path / "profile")
        assert "ends with a token" in refused


def test_keys_move_from_page_to_page_and_from_record_to_record(tmp_path):
    made.values(tmp_path / "ds")

    async def type_them(port: int) -> None:
        async with used(f"http://127.0.0.1:{port}/?token={TOKEN}#/overview", tmp_path / "profile") as tab:
            await tab.shows("#/overview")
            for number, name in enumerate(("overview", "records", "statistics", "shards", "versions"), 1):
                await tab.press(str(number))
                await tab.shows(f"#/{name}")
            await tab.value("location.hash = '#/records?count=4'")
            await tab.shows("#/records?count=4")
            for key, start in (("ArrowRight", 4), ("j", 8), ("j", 8), ("k", 4), ("ArrowLeft", 0)):
                await tab.press(key)
                await tab.shows(f"#/records?count=4&start={start}")
            # The selection goes from record to record, and stays at both ends.
            for key, record in (("Down", 0), ("Down", 1), ("Down", 2), ("Down", 3), ("Down", 3), ("Up", 2)):
                await tab.press(f"Arrow{key}")
                assert await tab.value("document.activeElement.textContent") == str(record)
            await tab.press("Enter")
            await tab.shows("#/record?position=2")
            for key, position in (("ArrowRight", 3), ("j", 4), ("k", 3), ("ArrowLeft", 2)):
                await tab.press(key)
                await tab.shows(f"#/record?position={position}")
            # What is typed into a field is text, not a key.
            await tab.press("g")
            for key in ("7", "Enter"):
                await tab.press(key)
            await tab.shows("#/record?position=7")
            await tab.press("Escape")
            await tab.shows("#/records?count=4&start=0")
            await tab.press("?")
            await tab.until("document.getElementById('help').open")
            await tab.press("Escape")
            await tab.until("document.getElementById('help').open", wanted=False)
            await tab.value("location.hash = '#/shards'")
            await tab.shows("#/shards")
            await tab.press("/")
            await tab.until("document.activeElement.id", "find-where")
            assert await tab.value("location.hash") == "#/records"

    with serving(Pages(tmp_path / "ds", split="test")) as browser:
        asyncio.run(type_them(browser.port))


def test_audio_is_played(tmp_path):
    made.values(tmp_path / "ds")

    async def listen(port: int) -> None:
        url = f"http://127.0.0.1:{port}/?token={TOKEN}#/record?position=0"
        async with used(url, tmp_path / "profile") as tab:
            await tab.shows("#/record?position=0")
            await tab.click(
                "[...document.querySelectorAll('button')].find((b) => b.textContent.includes('play'))"
            )
            await tab.until("document.querySelector('audio')?.readyState >= 1")
            audio = "document.querySelector('audio')"
            assert (await tab.value(f"{audio}.src")).startswith(f"blob:http://127.0.0.1:{port}/")
            # 800 samples at 8,000 a second.
            assert await tab.value(f"{audio}.duration") == pytest.approx(0.1)
            await tab.until(f"{audio}.ended")
            assert await tab.value(f"{audio}.error") is None

    with serving(Pages(tmp_path / "ds")) as browser:
        asyncio.run(listen(browser.port))


def test_a_wrong_condition_keeps_the_form(tmp_path):
    made.values(tmp_path / "ds")

    async def use(port: int) -> None:
        at = f"http://127.0.0.1:{port}/?token={TOKEN}"
        async with used(f"{at}#/records?where=lable+%3D+3", tmp_path / "profile") as tab:
            await tab.until("document.querySelector('[role=alert]') !== null")
            assert await tab.value("document.getElementById('find-where').value") == "lable = 3"
            assert "did you mean 'label'" in await tab.value(
                "document.querySelector('[role=alert]').textContent"
            )
            assert (await tab.value("document.title")).startswith("Records - ds - ")

    with serving(Pages(tmp_path / "ds")) as browser:
        asyncio.run(use(browser.port))


def test_many_features_are_folded(tmp_path):
    with shardio.DatasetWriter(tmp_path / "ds", schema={f"f{n:03}": "int64" for n in range(200)}) as out:
        out.write({f"f{n:03}": n for n in range(200)})

    async def use(port: int) -> None:
        at = f"http://127.0.0.1:{port}/?token={TOKEN}#/records"
        async with used(at, tmp_path / "profile") as tab:
            columns = "document.querySelectorAll('table.records th').length"
            await tab.until(f"{columns} === 13")
            await tab.value("document.querySelector('.picker summary').click()")
            await tab.value("document.querySelector('.picker input').click()")
            await tab.value("document.querySelector('.picker button').click()")
            await tab.until(f"{columns} === 201")
            chosen = urllib.parse.quote_plus('["f007","f199"]')
            await tab.value(f"location.hash = '#/records?columns={chosen}'")
            await tab.until(f"{columns} === 3")
            # On a phone no page is as long as all of them.
            await tab.call("Emulation.setDeviceMetricsOverride", **PHONE)
            for page in ("overview", "record?position=0", "statistics"):
                await tab.value(f"location.hash = '#/{page}'")
                await tab.shows(f"#/{page}")
                assert await tab.value("document.documentElement.scrollHeight") < 20_000, page
                buttons = "[...document.querySelectorAll('button')]"
                await tab.value(f"{buttons}.find((b) => b.textContent.includes('more feature')).click()")
                await tab.until("document.body.textContent.includes('f199')")

    with serving(Pages(tmp_path / "ds")) as browser:
        asyncio.run(use(browser.port))


@pytest.mark.filterwarnings("ignore:records are read:UserWarning")
def test_records_are_filtered_sorted_and_paged_and_every_state_has_its_address(tmp_path):
    made.values(tmp_path / "ds")

    async def use(port: int) -> None:
        at = f"http://127.0.0.1:{port}/?token={TOKEN}#/records"
        shown = "[...document.querySelectorAll('td.key a')].map((a) => Number(a.textContent)).join()"
        async with used(at, tmp_path / "profile") as tab:
            await tab.shows("#/records")
            # A class in the head of its column is a link; bars of a histogram are clicked.
            await tab.until("document.querySelectorAll('.head a.name').length > 0")
            links = "[...document.querySelectorAll('.head a.name')]"
            await tab.value(f"{links}.find((a) => a.textContent.startsWith('robin')).click()")
            await tab.until("document.getElementById('range')?.textContent", "0 to 9 of 10 found, of 20")
            assert await tab.value("document.getElementById('find-where').value") == '"label" = 1'
            # Text beside it, by the form; then the order, by a head; then the next page.
            await tab.value("document.getElementById('find-text').value = 'BIRD 1'")
            await tab.value("document.querySelector('form[role=search]').requestSubmit()")
            await tab.until("document.getElementById('range')?.textContent", "0 to 3 of 4 found, of 20")
            for wanted, said in (("1,9,10,13", "ascending"), ("13,10,9,1", "descending")):
                await tab.value("document.querySelector('th[data-name=caption] button').click()")
                await tab.until(shown, wanted)
                sort = "document.querySelector('th[data-name=caption]').getAttribute('aria-sort')"
                assert await tab.value(sort) == said
            address = await tab.value("location.hash")
            await tab.value(f"location.hash = {json.dumps(address + '&count=3')}")
            await tab.until(shown, "13,10,9")
            await tab.press("ArrowRight")
            await tab.until(shown, "1")
            # The address alone gives the same page, and so does the code.
            address = await tab.value("location.hash")
            await tab.value("document.getElementById('python').click()")
            code = await tab.value("document.querySelector('#original pre').textContent")
            names: dict[str, Any] = {}
            exec(code, names)
            assert [value["caption"] for value in names["records"]] == ["bird 1"]
            await tab.value("location.hash = '#/overview'")
            await tab.shows("#/overview")
            await tab.value(f"location.hash = {json.dumps(address)}")
            await tab.until(shown, "1")
            # An image in all its pixels.
            await tab.value("document.querySelector('td button.plain').click()")
            await tab.until("document.querySelector('#original img')?.naturalWidth", 24)

    with serving(Pages(tmp_path / "ds")) as browser:
        asyncio.run(use(browser.port))


@pytest.mark.filterwarnings("ignore:records are read:UserWarning")
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages_are_accessible_and_fit_a_phone(tmp_path, scheme):
    """Axe finds nothing on any page, wide or narrow; no page is wider than a screen of 390 pixels."""
    axe = (BUILD / "npm" / "node_modules" / "axe-core" / "axe.min.js").read_text(encoding="utf-8")
    made.values(tmp_path / "ds")
    pages = ["overview", "records", "records?as=grid", "records?where=lable+%3D+3", "records?sort=caption"]
    pages += ["record?position=3", "statistics", "shards", "versions"]
    ask = (
        "axe.run(document, {resultTypes: ['violations']}).then((found) => JSON.stringify("
        "found.violations.map((each) => [each.id, each.nodes.map((node) => node.html)])))"
    )

    async def use(port: int) -> None:
        async with used(f"http://127.0.0.1:{port}/?token={TOKEN}#/overview", tmp_path / "profile") as tab:
            media = [{"name": "prefers-color-scheme", "value": scheme}]
            await tab.call("Emulation.setEmulatedMedia", features=media)
            await tab.shows("#/overview")
            await tab.call("Runtime.evaluate", expression=axe)
            for screen in ({**PHONE, "width": 1280, "mobile": False}, PHONE):
                await tab.call("Emulation.setDeviceMetricsOverride", **screen)
                for page in pages:
                    await tab.value(f"location.hash = '#/{page}'")
                    await tab.shows(f"#/{page}")
                    assert await tab.value("document.documentElement.scrollWidth") <= screen["width"], page
                    found = await tab.call(
                        "Runtime.evaluate", expression=ask, awaitPromise=True, returnByValue=True
                    )
                    assert json.loads(found["result"]["value"]) == [], (page, screen)

    with serving(Pages(tmp_path / "ds")) as browser:
        asyncio.run(use(browser.port))


def test_a_record_is_not_under_the_header(tmp_path):
    """From a list that was scrolled; going back leads to where it was."""
    made.values(tmp_path / "ds")

    async def use(port: int) -> None:
        async with used(f"http://127.0.0.1:{port}/?token={TOKEN}#/records", tmp_path / "profile") as tab:
            screen = {"width": 1280, "height": 500, "deviceScaleFactor": 1, "mobile": False}
            await tab.call("Emulation.setDeviceMetricsOverride", **screen)
            await tab.shows("#/records")
            await tab.value("scrollTo(0, 700)")
            left = await tab.value("scrollY")
            assert left > 0
            await tab.value("location.hash = '#/record?position=15'")
            await tab.shows("#/record?position=15")
            title, header = "main h1:not(.unseen)", "header"
            bottom, top = [
                await tab.value(f"document.querySelector('{part}').getBoundingClientRect().{side}")
                for part, side in ((header, "bottom"), (title, "top"))
            ]
            assert bottom <= top
            await tab.value("history.back()")
            await tab.shows("#/records")
            assert abs(await tab.value("scrollY") - left) < 50

    with serving(Pages(tmp_path / "ds")) as browser:
        asyncio.run(use(browser.port))
