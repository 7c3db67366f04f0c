"""Finds brokers by asking one of them, for when those that a client was given are gone."""

from __future__ import annotations

import ipaddress
from typing import Iterator, Mapping, Sequence
from urllib.parse import urlsplit

from .types import Json

__all__ = ["LOOK_SECONDS", "brokers"]

#: The shortest time between two questions.
LOOK_SECONDS = 30.0

#: How many found brokers are remembered, besides those that were given.
FOUND_MAX = 16

#: The election of the brokers.
ELECTION = "tenure.queue"


def brokers(cluster: Mapping[str, Json], named: Sequence[str]) -> list[str]:
    """The addresses of the living brokers that a client may use, without those that it was given.

    A client that was given https addresses sends its token to no others. Loopback addresses of the broker are useless
    to a client on another host.
    """
    is_secure = all(urlsplit(url).scheme == "https" for url in named)
    is_local = any(is_loopback(url) for url in named)
    known = {origin(url) for url in named}
    found = []
    for url in addresses(cluster):
        parts = urlsplit(url)
        usable = parts.scheme == "https" or (parts.scheme == "http" and not is_secure)
        if usable and (is_local or not is_loopback(url)) and origin(url) not in known:
            known.add(origin(url))
            found.append(url)
    return found[:FOUND_MAX]


def addresses(cluster: Mapping[str, Json]) -> Iterator[str]:
    """The addresses of brokers that can lead the queue. Unexpected values are skipped."""
    elections = [item for item in as_list(cluster.get("elections")) if item.get("name") == ELECTION]
    candidates = {name for item in elections for name in (item.get("candidates") or []) if isinstance(name, str)}
    for node in as_list(cluster.get("nodes")):
        address = node.get("address")
        if node.get("state") == "alive" and node.get("node") in candidates and isinstance(address, str):
            yield address


def as_list(value: Json) -> list[dict[str, Json]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def origin(url: str) -> tuple[str, str]:
    parts = urlsplit(url)
    return parts.scheme, parts.netloc


def is_loopback(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
