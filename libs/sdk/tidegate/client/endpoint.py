"""Where the gateway is: an argument, else TIDEGATE_URL, else what the local stack wrote about itself."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Mapping, Optional
from urllib.parse import urlsplit

from tidegate.client.errors import NoGatewayError

URL_VARIABLE = "TIDEGATE_URL"
HOME_VARIABLE = "TIDEGATE_HOME"
STACK_FILE = "stack.json"
START_REMEDY = f"Start a local stack with `tidegate up`, or name a gateway in {URL_VARIABLE}."


def stack_home(environ: Optional[Mapping[str, str]] = None) -> Path:
    """Return the data directory of the local stack: TIDEGATE_HOME, else ~/.local/share/tidegate/local."""
    environ = os.environ if environ is None else environ
    named = environ.get(HOME_VARIABLE, "")
    return Path(named) if named else Path.home() / ".local" / "share" / "tidegate" / "local"


def gateway_url(url: Optional[str] = None, environ: Optional[Mapping[str, str]] = None) -> str:
    """Return the gateway's base URL without a trailing slash.

    Raises NoGatewayError where nothing names one, or where what names one is not an http(s) URL.
    """
    environ = os.environ if environ is None else environ
    if url:
        return _checked(url, "the url argument")
    if environ.get(URL_VARIABLE):
        return _checked(environ[URL_VARIABLE], URL_VARIABLE)
    path = stack_home(environ) / STACK_FILE
    return _checked(_from_stack_file(path), str(path))


def _from_stack_file(path: Path) -> str:
    try:
        stack = json.loads(path.read_text(encoding="utf-8"))
        return str(stack["gateway_url"])
    except FileNotFoundError:
        raise NoGatewayError(f"No gateway is known: there is no {path}.", START_REMEDY) from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        message = f"{path} does not say where the gateway is ({type(error).__name__})."
        raise NoGatewayError(message, START_REMEDY) from error


def _checked(url: str, source: str) -> str:
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        remedy = "Accepted is http://HOST:PORT or https://HOST[:PORT]."
        raise NoGatewayError(f"{source} is not the URL of a gateway: {url!r}.", remedy)
    return url.rstrip("/")
