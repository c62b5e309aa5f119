"""Places that are no disk: a URL of the user's is a path inside, so that all that joins and cuts paths works with it.

`s3://bucket/run` is `/s3:/bucket/run`. User names, passwords and query strings never become part of a path: they are
kept in this process, to be sent along by whoever opens a connection, and are shown nowhere. Runs on Python 3.7.
"""

import os
import re
from typing import Dict, Mapping, NamedTuple, Optional, Set, Union

_URL = re.compile(r"([a-z][a-z0-9+.\-]+)://([^/?#]*)([^?#]*)(?:\?([^#]*))?", re.DOTALL)
_PATH = re.compile(r"/([a-z][a-z0-9+.\-]+):(?:/(.*))?\Z", re.DOTALL)
#: What names a scheduler of a cluster, or a disk, and no place of data.
_OTHERS = ("tcp", "tls", "ucx", "ws", "wss", "inproc", "file", "local")


class Secret(NamedTuple):
    """What a URL had beside the place: user and password as before the `@`, and the query string."""

    user: str
    query: str


#: Of each place that was named, by scheme and host, as `s3:/bucket`.
_secrets: Dict[str, Secret] = {}
#: Schemes that were named, with a colon.
_schemes: Set[str] = set()


def path_of(path: "Union[str, os.PathLike[str]]") -> str:
    """The path that stands for a URL; any other as it is. What is secret in the URL is kept here."""
    text = os.fspath(path)
    found = _URL.match(text)
    if found is None or found.group(1) in _OTHERS:
        return text
    scheme, place, below, query = found.groups()
    user, _, host = place.rpartition("@")
    _schemes.add(scheme)
    key = f"{scheme}:/{host}"
    if user or query or key not in _secrets:
        _secrets[key] = Secret(user, query or "")
    return f"/{scheme}:/{host}{below}".rstrip("/")


def is_remote(path: "Union[str, os.PathLike[str]]") -> bool:
    """Whether a path stands for a URL."""
    return _PATH.match(os.fspath(path)) is not None


def url_of(path: str) -> Optional[str]:
    """The URL, without what is secret in it, that a path stands for; None for a path of this machine."""
    found = _PATH.match(path)
    return None if found is None else "{}://{}".format(found.group(1), found.group(2) or "")


def secret_of(path: str) -> Secret:
    """What is secret of the place that a path stands for."""
    parts = path.split("/", 3)
    return _secrets.get("/".join(parts[1:3]), Secret("", ""))


def is_named(path: str) -> bool:
    """Whether a path lies in a place that the user named: what lies above it is nobody's to ask for."""
    return "/".join(path.split("/", 3)[1:3]) in _secrets


def secrets() -> Mapping[str, Secret]:
    """All of them, for workers that the user started."""
    return dict(_secrets)


def take_secrets(known: Mapping[str, Secret]) -> None:
    """What `secrets` gave elsewhere."""
    for key, secret in known.items():
        _secrets[key] = Secret(*secret)


def shown(text: str) -> str:
    """A text with URLs in the place of the paths that stand for them, and without anything secret."""
    for scheme in _schemes:
        text = re.sub(rf"(?<![\w.\-/:])/{re.escape(scheme)}:/", f"{scheme}://", text)
    return scrubbed(text) if "://" in text else text


def scrubbed(text: str) -> str:
    """A text in which no URL has a user, a password or a query."""
    text = re.sub(r"(://)[^/\s'\"@]*@", r"\1", text)
    text = re.sub(r"(://[^\s'\"?]*)\?[^\s'\")\]]*", r"\1", text)
    for secret in _secrets.values():
        for part in (secret.query, secret.user.partition(":")[2]):
            if len(part) > 3:
                text = text.replace(part, "***")
    return text


def uses_memory() -> bool:
    """Whether something lies in the memory of this process alone."""
    return "memory" in _schemes
