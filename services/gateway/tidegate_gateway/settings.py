"""What the gateway can be told, by flags or by environment variables `TIDEGATE_*`; checked before anything starts.

Where the bus is comes from TIDEGATE_BUS_URL, TIDEGATE_BUS_USER and TIDEGATE_BUS_PASSWORD, and where the read models are
from TIDEGATE_DATABASE_URL, never from a flag: `ps` shows those.
"""

from __future__ import annotations

import argparse
import ipaddress
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
from tidegate_events.bus import BusSettings
from tidegate_events.process import bus_settings
from tidegate_events.subjects import token

from tidegate_gateway.database.url import DatabaseUrlError, database_url

LOOPBACK_NAMES = ("localhost",)


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds of what a request may ask for or bring."""

    body_bytes_max: int = 512 * 1024
    blob_bytes_max: int = 1024 * 1024 * 1024
    blobs_at_once_max: int = 8
    appends_waiting_max: int = 256


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a deployment decides. `data_dir` holds the blobs; roots bound what jobs may bind."""

    instance: str = "g1"
    host: str = "127.0.0.1"
    port: int = 8080
    bus: BusSettings = BusSettings(name="tidegate-gateway")
    data_dir: Path = Path("gateway")
    input_roots: tuple[Path, ...] = ()
    output_roots: tuple[Path, ...] = ()
    tenants_file: Path | None = None
    secrets_dir: Path | None = None
    journal_bytes_max: int = 0
    database_url: str | None = None
    limits: Limits = Limits()


class SettingsError(Exception):
    """A setting cannot be used; says which, and what is accepted."""


_FLAGS: tuple[tuple[str, str, str], ...] = (
    ("instance", "g1", "name of this gateway among others, a token of A-Z a-z 0-9 _ -"),
    ("host", "127.0.0.1", "loopback address to listen on"),
    ("port", "8080", "port to listen on; 0 takes a free one, which the log names"),
    ("data-dir", "gateway", "directory of the uploaded blobs"),
    ("input-roots", "", "directories below which jobs may read, separated by colons"),
    ("output-roots", "", "directories below which jobs may write, separated by colons"),
    ("tenants-file", "", "JSON file with the highest priority of each tenant"),
    ("secrets-dir", "", "directory <tenant>/<name> of secrets; when given, unknown names are refused (never read)"),
    ("journal-bytes-max", "0", "create the journal's stream with this size where it is missing; 0 waits for it"),
    ("blob-bytes-max", str(Limits().blob_bytes_max), "largest blob"),
)


def from_arguments(arguments: Sequence[str], environment: Mapping[str, str]) -> Settings:
    """Return the settings: a flag wins over TIDEGATE_<FLAG>, which wins over the default. Raises SettingsError."""
    parser = argparse.ArgumentParser(prog="tidegate-gateway", description="Tidegate's submission API and read model.")
    for flag, default, text in _FLAGS:
        variable = "TIDEGATE_" + flag.upper().replace("-", "_")
        parser.add_argument(f"--{flag}", default=environment.get(variable, default), help=f"{text} [{variable}]")
    given = parser.parse_args(arguments)
    return Settings(
        instance=_token(given.instance),
        host=_loopback(given.host),
        port=_number("port", given.port, 0, 65_535),
        bus=bus_settings(f"tidegate-gateway-{given.instance}"),
        data_dir=Path(given.data_dir).absolute(),
        input_roots=_roots("input-roots", given.input_roots),
        output_roots=_roots("output-roots", given.output_roots),
        tenants_file=Path(given.tenants_file) if given.tenants_file else None,
        secrets_dir=Path(given.secrets_dir) if given.secrets_dir else None,
        journal_bytes_max=_number("journal-bytes-max", given.journal_bytes_max, 0, 2**50),
        database_url=_database_url(environment),
        limits=Limits(blob_bytes_max=_number("blob-bytes-max", given.blob_bytes_max, 1, 2**40)),
    )


def _database_url(environment: Mapping[str, str]) -> str | None:
    try:
        return database_url(environment)
    except DatabaseUrlError as error:
        raise SettingsError(str(error)) from error


def _token(name: str) -> str:
    try:
        return token(name)
    except ValueError as error:
        raise SettingsError(f"--instance: {error}") from error


def _loopback(host: str) -> str:
    """Refuse an address that others reach: the gateway trusts whoever can talk to it."""
    try:
        loopback = host in LOOPBACK_NAMES or ipaddress.ip_address(host).is_loopback
    except ValueError:
        loopback = False
    if not loopback:
        raise SettingsError(f"--host: {host!r} is refused, because requests carry no proof of who asks; use 127.0.0.1")
    return host


def _number(flag: str, text: str, low: int, high: int) -> int:
    if not text.isascii() or not text.isdigit() or not low <= int(text) <= high:
        raise SettingsError(f"--{flag}: {text!r} is refused; a whole number from {low} to {high} is accepted")
    return int(text)


def _roots(flag: str, text: str) -> tuple[Path, ...]:
    roots = tuple(Path(part) for part in text.split(":") if part)
    for root in roots:
        if not root.is_absolute():
            raise SettingsError(f"--{flag}: {str(root)!r} is refused; absolute directories are accepted")
    return roots
