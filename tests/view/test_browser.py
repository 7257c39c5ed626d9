"""Debian's chromium before datasets that want to run in it: nothing of them does, and all is shown."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest

import shardio
from shardio import codecs
from shardio.view import Pages
from tests.view import made
from tests.view.test_web import TOKEN, serving

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]  # a dozen browsers are started one after another

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
HTML = f'<!doctype html><html><body onload="{RUN}"><script>{RUN}</script></body></html>'.encode()
SVG = f"<svg xmlns='http://www.w3.org/2000/svg' onload=\"{RUN}\"><script>{RUN}</script></svg>".encode()


def chromium() -> str:
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if found is None:
        pytest.fail("there is no chromium: `make browser` installs Debian's, as root")
    return found


def shown(url: str, folder: Path) -> str:
    """The page as it stands once its script has drawn it: its elements as text."""
    command = [
        chromium(), "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-sync",
        "--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage",
        f"--user-data-dir={folder}", "--virtual-time-budget=20000",
        "--window-size=1200,2500", "--dump-dom", url,
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return done.stdout


def hostile(url: Path) -> None:
    """Names of features and classes, descriptions, texts, JSON, bytes, metadata and tags: all want to run."""
    schema = {
        **{name: shardio.Feature("text", description=name) for name in ATTACKS},
        "__proto__": "text",
        "constructor": "text",
        "image": "image",
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
    report = {
        "findings": [{"kind": ATTACKS[0], "message": ATTACKS[1], "url": ATTACKS[4], "advice": ATTACKS[2]}]
    }
    report |= {"ok": False, "left_out": [], "records": 1, "good_records": 0, "shards": 1, "stored_bytes": 1}
    with serving(Pages(tmp_path / "ds", report=report)) as browser:
        pages = ["overview", "records", "record?position=1"]
        if make is hostile:
            pages += ["statistics", "shards", "damage", f"find?where={ATTACKS[0]}"]
        for page in pages:
            dom = shown(f"http://127.0.0.1:{browser.port}/?token={TOKEN}#/{page}", tmp_path / "profile")
            # It was drawn to its end, the title is the program's, and what is hostile stands there as text.
            assert 'data-ready="yes"' in dom, page
            assert re.search("<title>(.*?)</title>", dom)[1] == "ds - shardio", page
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
            "overview": "First records of test", "records": "0 to 9 of 10", "statistics": "robin (1)",
            "record?position=3": "Where it lies", "shards": "Stored bytes of a shard", "find": "Filter",
            "versions": "committed", "audit": "What a step of a run saw", "damage": "verify this version",
            "record?position=99": "out of range", "nothing": "no such page",
        }  # fmt: skip
        for page, words in wanted.items():
            dom = shown(f"http://127.0.0.1:{browser.port}/?token={TOKEN}#/{page}", tmp_path / "profile")
            assert 'data-ready="yes"' in dom, page
            assert words in html.unescape(dom), page
            if page == "records":
                assert (
                    dom.count('src="blob:') == 10 * 2
                )  # each with its image and its pixels, from the server
        refused = shown(f"http://127.0.0.1:{browser.port}/?token=wrong", tmp_path / "profile")
        assert "ends with a token" in refused
