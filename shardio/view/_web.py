"""The HTTP layer between pages and one browser: access checks, responses and headers.

Requests are refused unless their Host is this machine (which stops DNS rebinding), they come from no other
site, and they carry the token of the printed address.  No cookie is set, so other sites can't reuse the
browser's access.  Nothing of a dataset is ever sent as anything but
JSON, images remade, audio, and downloads.
"""

from __future__ import annotations

import hmac
import inspect
import ipaddress
import json
import logging
import secrets
import socket
import urllib.parse
from collections.abc import Callable, Iterable, Mapping
from http import HTTPStatus
from importlib.resources import files
from typing import Any

from shardio.arguments import need
from shardio.errors import NotFoundError, ShardioError, StorageError
from shardio.view._pages import Media, Pages
from shardio.view._search import Search

# Nothing may be loaded or run but the files of this server; images and audio come as blobs of its pages.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' blob:; "
    "media-src blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_STATIC = {
    "app.js": "text/javascript; charset=utf-8",
    "style.css": "text/css; charset=utf-8",
    "icon.svg": "image/svg+xml",
}
_METHODS = ("GET", "HEAD")
_MOST_BODY = 1 << 20
_THREADS = 8
# Limits for connections without the token: number, and age in seconds.
_STRANGERS = 64
_STRANGER_SECONDS = 15
_CONNECTIONS = 1024

Environ = dict[str, Any]
StartResponse = Any
App = Any  # a WSGI application


class ViewServer:
    """A listening server; `run` serves until Ctrl-C, or `stop`.

    Attributes:
        url: to be opened in a browser, with the token.
        host, port: where it listens.
    """

    def __init__(self, server: Any, host: str, token: str, pages: Pages) -> None:
        self._server = server
        self._pages = pages
        self.host = host
        self.port = int(server.socket.getsockname()[1])
        name = "localhost" if host in ("0.0.0.0", "::", "") else f"[{host}]" if ":" in host else host  # noqa: S104
        self.url = f"http://{name}:{self.port}/?token={token}"

    def run(self) -> None:
        """Serve requests until Ctrl-C, or `stop`."""
        try:
            self._server.run()
        finally:
            self.close()

    def stop(self) -> None:
        """Let `run` return; may be called from any thread."""
        self._server.trigger.pull_trigger(self.close)

    def close(self) -> None:
        """Stop listening, and end running requests; those that take more than seconds are abandoned."""
        self._pages.close()
        self._server.task_dispatcher.shutdown()
        for each in list(self._server._map.values()):  # noqa: SLF001 - waitress closes them nowhere else
            each.close()


def make_server(
    pages: Pages,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    token: str | None = None,
) -> ViewServer:
    """Return a server that listens.

    Args:
        pages: of the dataset.
        host: address to listen on; by default the loopback.
        port: 0 for a free one.
        token: that requests must bring; None for a random one.

    Raises:
        ImportError: the web server is not installed: `pip install "shardio[view]"`.
        OSError: the address cannot be listened on.
    """
    need("the viewer", "shardio[view]", "waitress")
    import waitress

    token = token or secrets.token_urlsafe(24)
    app = make_app(pages, token=token, host=host)
    # Waitress warns when requests wait for a thread, which users need not see.
    logging.getLogger("waitress").setLevel(logging.ERROR)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listening = socket.create_server((host, port), family=family)
    except (OSError, OverflowError) as error:
        what = f"cannot listen on {host}, port {port}: {getattr(error, 'strerror', None) or error}"
        message = f"{what}; port=0 takes a free port, and an address must be one of this machine"
        raise OSError(message) from error
    server = waitress.create_server(
        app,
        sockets=[listening],
        threads=_THREADS,
        connection_limit=_CONNECTIONS,
        cleanup_interval=1,
        asyncore_use_poll=True,  # select knows no descriptor above 1023
        ident="shardio",
        max_request_body_size=_MOST_BODY,
        channel_request_lookahead=1,  # else a client that is gone is not noticed
        expose_tracebacks=False,
    )
    maintain = server.maintenance

    def maintain_all(now: float) -> None:
        maintain(now)
        _end_strangers(server.active_channels.values(), now)

    server.maintenance = maintain_all
    return ViewServer(server, host, token, pages)


def _end_strangers(channels: Iterable[Any], now: float) -> None:
    """Close connections without the token: all old ones, and the oldest if there are too many.

    Otherwise idle or slow connections could exhaust the connection limit.
    """
    strangers = [each for each in channels if not each.requests and not getattr(each, "is_trusted", False)]
    strangers.sort(key=lambda channel: channel.creation_time)
    for number, channel in enumerate(strangers):
        if channel.creation_time < now - _STRANGER_SECONDS or number < len(strangers) - _STRANGERS:
            channel.will_close = True


def make_app(pages: Pages, *, token: str, host: str = "127.0.0.1") -> App:
    """Return the WSGI application; arguments as in `make_server`."""
    known = _known_names(host)

    def app(environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        refusal = _refusal(environ, token, known)
        if refusal is None:
            if _token_of(environ):
                # The channel that owns this method is marked as authenticated.
                channel = getattr(environ.get("waitress.client_disconnected"), "__self__", None)
                if channel is not None:
                    channel.is_trusted = True
            status, found = _answer(pages, environ)
        else:
            status, found = 403, Media(refusal.encode(), "text/plain; charset=utf-8")
        headers = {"Content-Type": found.type, "Content-Length": str(len(found.data)), **_HEADERS}
        if found.type == "application/octet-stream":
            headers["Content-Disposition"] = 'attachment; filename="record.bin"'
        if status == 405:
            headers["Allow"] = ", ".join(_METHODS)
        start_response(f"{status} {HTTPStatus(status).phrase}", list(headers.items()))
        return [] if environ["REQUEST_METHOD"] == "HEAD" else [found.data]

    return app


def _answer(pages: Pages, environ: Environ) -> tuple[int, Media]:
    """Return status and body of the answer to a request that may be answered."""
    path = environ.get("PATH_INFO", "")
    folder, _, name = path.removeprefix("/").partition("/")
    is_file = path in ("", "/") or (folder == "static" and name in _STATIC)
    if not is_file and (folder != "api" or not name or "/" in name):
        return 404, _json({"kind": "HTTP 404", "error": "there is no such page"})
    if environ["REQUEST_METHOD"] not in _METHODS:
        return 405, _json({"kind": "HTTP 405", "error": "pages are read with GET"})
    if is_file:
        name = name or "index.html"
        data = files("shardio.view").joinpath("static", name).read_bytes()
        return 200, Media(data, _STATIC.get(name, "text/html; charset=utf-8"))
    try:
        is_gone = environ.get("waitress.client_disconnected", lambda: False)
        found = _call(pages, name, _query(environ), is_gone)
        return 200, found if isinstance(found, Media) else _json(found)
    except Exception as error:  # noqa: BLE001 - the page shows the error
        return _status(error), _json(pages.describe(error))


def _json(value: Any) -> Media:
    # ASCII, so that no lone surrogate of a record can spoil the page.
    return Media(json.dumps(value, allow_nan=False).encode(), "application/json; charset=utf-8")


def _status(error: Exception) -> int:
    if isinstance(error, NotFoundError | IndexError):
        return 404
    if isinstance(error, StorageError | OSError):
        return 502
    return 400 if isinstance(error, ShardioError | ValueError | TypeError | ImportError) else 500


# ------------------------------------------------------------------------------------------ who may ask


def _refusal(environ: Environ, token: str, known: set[str]) -> str | None:
    if not _is_known(environ.get("HTTP_HOST", ""), known):
        return "This server answers requests to addresses of its own machine only.\n"
    # The page itself may be reached by a link: from the file that the program opens in the browser.
    is_page = environ.get("PATH_INFO") == "/" and environ.get("HTTP_SEC_FETCH_MODE") == "navigate"
    if not is_page and environ.get("HTTP_SEC_FETCH_SITE", "none") not in ("same-origin", "none"):
        return "Requests from other sites are refused.\n"
    given = _token_of(environ)
    if not given and environ.get("PATH_INFO", "").startswith("/static/"):
        return None  # files of the program, which are public
    if not hmac.compare_digest(given.encode(errors="replace"), token.encode()):
        return "Open the address that `shardio view` printed: it ends with a token.\n"
    return None


def _token_of(environ: Environ) -> str:
    return environ.get("HTTP_X_SHARDIO_TOKEN") or _query(environ).get("token", "")


def _known_names(host: str) -> set[str]:
    names = {"localhost", host.lower()}
    if host not in ("localhost", "127.0.0.1", "::1"):
        names |= {socket.gethostname().lower(), socket.getfqdn().lower()}
    return names


def _is_known(header: str, known: set[str]) -> bool:
    """Tell whether a Host header is an address or a name of this machine; others may be rebound to it."""
    try:
        name = urllib.parse.urlsplit(f"//{header}").hostname or ""
    except ValueError:
        return False
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return name in known
    return True


# ------------------------------------------------------------------------------------------ what is asked


def _query(environ: Environ) -> dict[str, str]:
    return dict(urllib.parse.parse_qsl(environ.get("QUERY_STRING", ""), keep_blank_values=True))


def _version(_name: str, value: Any) -> int | str:
    return int(value) if isinstance(value, str) and value.isascii() and value.isdigit() else value


def _whole(name: str, value: Any) -> int:
    try:
        return int(str(value))  # not the numbers that JSON has beside whole ones
    except (TypeError, ValueError):
        raise ValueError(f"{name}={value!r} must be a whole number") from None


def _path(_name: str, value: str) -> list[str | int]:
    try:
        path = json.loads(value)
    except (ValueError, RecursionError):
        path = None
    if not isinstance(path, list) or not all(type(step) in (str, int) for step in path):
        raise ValueError("path= must be a JSON list of names and numbers")
    return path


# What pages take, by name; all else are whole numbers.
_ARGUMENTS: dict[str, Callable[[str, Any], Any]] = {
    "version": _version,
    "split": lambda _, value: str(value),
    "path": _path,
}
_PAGES = frozenset(
    ("summary", "shards", "seen", "versions", "records", "record", "media", "content", "statistics")
)


def _call(pages: Pages, name: str, given: Mapping[str, Any], is_gone: Callable[[], bool]) -> Any:
    """Return a page, made by the method of its name from what was sent of its arguments."""
    if name not in _PAGES:
        raise ValueError(f"there is no page {name!r}")
    page: Callable[..., Any] = getattr(pages, name)
    options: dict[str, Any] = {}
    for parameter in inspect.signature(page).parameters.values():
        key = parameter.name
        if key == "asked":
            words = {word: given.get(word, "") for word in Search._fields if word != "descending"}
            options[key] = Search(**words, descending=bool(given.get("descending")))
        elif key == "is_gone":
            options[key] = is_gone
        elif given.get(key) not in (None, ""):
            convert: Callable[[str, Any], Any] = _ARGUMENTS.get(key, _whole)
            options[key] = convert(key, given[key])
        elif parameter.default is parameter.empty:
            raise ValueError(f"{key}= is missing")
    return page(**options)
