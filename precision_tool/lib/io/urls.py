"""Places that are no disk: a URL of the user's is a path inside, so that all that joins and cuts paths works with it.

`s3://bucket/run` is `/s3:/bucket/run`. User names, passwords and query strings never become part of a path: they are
kept in this process, to be sent along by whoever opens a connection, and are shown nowhere. Runs on Python 3.7.
"""

import os
import posixpath
import re
from functools import lru_cache
from typing import Dict, FrozenSet, Iterator, Mapping, NamedTuple, Optional, Set, Union
from urllib.parse import parse_qsl, quote, unquote, unquote_plus

from precision_tool.lib.messages.errors import UsageError

_URL = re.compile(r"([a-z][a-z0-9+.\-]+)://([^/?#]*)([^?]*)(?:\?(.*))?", re.DOTALL | re.IGNORECASE)
_PATH = re.compile(r"/([a-z][a-z0-9+.\-]+):(?:/(.*))?\Z", re.DOTALL)
#: What names a scheduler of a cluster, and no place of data.
_OTHERS = ("tcp", "tls", "ucx", "ws", "wss", "inproc")
_DISK, _HTTP = ("file", "local"), ("http", "https")
#: Parameters of a query whose values alone tell what is secret.
_TELLING = re.compile(r"sig|token|key|secret|pass|cred|auth", re.IGNORECASE)
#: Characters of what is looked for in a text, as secret: fewer are part of many words.
_LEAST = 4
#: Characters that some leave as they are in URLs.
_LEFT = "!$&'()*+,;="


class Secret(NamedTuple):
    """What a URL had beside the place: user and password as before the `@`, and the query string."""

    user: str
    query: str


class Secrets(NamedTuple):
    """All that is known of places, for another process: their secrets, and every one that was ever given."""

    of_places: Mapping[str, Secret]
    given: FrozenSet[str]


_NONE = Secret("", "")
#: Of each place that was named, by its path without the first `/`, as `s3:/bucket/run`.
_secrets: Dict[str, Secret] = {}
#: Passwords, queries and tokens ever given, in each way that they may be written: no text may hold them.
_given: Set[str] = set()
#: Schemes that were named, with a colon.
_schemes: Set[str] = set()


def path_of(path: "Union[str, os.PathLike[str]]") -> str:
    """The path that stands for a URL; any other as it is. What is secret in the URL is kept here.

    UsageError for what is like a URL and names no place; it repeats none of the text, which may hold a password.
    """
    text = os.fspath(path)
    match = _URL.fullmatch(text)
    if match is None:
        if "://" in text:
            raise UsageError("io.url.invalid")
        return text
    scheme, place, below, query = match.group(1).lower(), match.group(2), match.group(3), match.group(4) or ""
    if scheme in _OTHERS:
        return text
    if scheme in _DISK:
        return _on_disk(scheme, text)
    user, _, host = place.rpartition("@")
    _check(scheme, host, below, query)
    _schemes.add(scheme)
    _given.update(_written(scheme, user, query))
    path = f"/{scheme}:/{host}{below}".rstrip("/")
    secret = _secrets.get(_key(path), _NONE)
    _secrets[_key(path)] = Secret(user or secret.user, query or secret.query)
    return path


def _on_disk(scheme: str, text: str) -> str:
    """The path of this machine in a URL of it."""
    below = text[len(scheme) + 3 :]
    path = below[len("localhost") :] if below.lower().startswith("localhost/") else below
    if not path.startswith("/"):
        raise UsageError("io.url.no_path", scheme=scheme)
    return path


def _check(scheme: str, host: str, below: str, query: str) -> None:
    """Raises the error for a URL in which it is not plain what is secret."""
    _, colon, port = host.partition(":")
    has_port = not colon or host.startswith(("[", "arn:")) or port == "" or (port.isascii() and port.isdigit())
    if not has_port or (below[:1] in ("", "#") and "@" in below + query):
        raise UsageError("io.url.user", scheme=scheme)
    if "#" in below + query and scheme in _HTTP:
        raise UsageError("io.url.fragment", scheme=scheme)


def _written(scheme: str, user: str, query: str) -> Iterator[str]:
    """What is secret of a URL, in each way that it may be written."""
    name, colon, password = user.partition(":")
    secret = [password, query, *(value for key, value in parse_qsl(query) if _TELLING.search(key))]
    if not colon and scheme in _HTTP:  # a token in the place of both
        secret.append(name)
    for part in secret:
        plain = unquote(part)
        quoted = (quote(plain, safe=safe) for safe in ("/", "", "=&", _LEFT))
        for written in (part, plain, unquote_plus(part), *quoted):
            if len(written) >= _LEAST:
                yield written


def is_remote(path: "Union[str, os.PathLike[str]]") -> bool:
    """Whether a path stands for a URL."""
    return _PATH.match(os.fspath(path)) is not None


def url_of(path: str) -> Optional[str]:
    """The URL, without what is secret in it, that a path stands for; None for a path of this machine."""
    match = _PATH.match(path)
    return None if match is None else "{}://{}".format(match.group(1), match.group(2) or "")


def _key(path: str) -> str:
    return posixpath.normpath(path)[1:]


@lru_cache(maxsize=1 << 14)
def place_of(path: str) -> str:
    """Scheme and host of a path that stands for a URL, as `s3:/bucket`: what one connection reaches."""
    return "/".join(_key(path).split("/", 2)[:2])


def secret_of(path: str) -> Secret:
    """What is secret of the place that a path stands for: that of the place itself, or of the nearest one above it.

    Where none of these has any, it is that of another place of the same host, if that has but one.
    """
    if not any(map(any, _secrets.values())):
        return _NONE
    key = _key(path)
    above = [key[:end] for end in range(len(key), 0, -1) if key[end : end + 1] in ("", "/")]
    of_place = [_secrets[place] for place in above if place in _secrets]
    host = place_of(path)
    of_host = [secret for place, secret in _secrets.items() if place_of(f"/{place}") == host]
    parts = []
    for number in range(len(Secret._fields)):
        nearest = next((secret[number] for secret in of_place if secret[number]), "")
        others = {secret[number] for secret in of_host if secret[number]}
        parts.append(nearest or (others.pop() if len(others) == 1 else ""))
    return Secret(*parts)


def is_named(path: str) -> bool:
    """Whether a path lies at a host that the user named: what lies above it is nobody's to ask for."""
    host = place_of(path)
    return any(place_of(f"/{place}") == host for place in _secrets)


def any_named() -> bool:
    """Whether the user named any place that is no disk."""
    return bool(_secrets)


def secrets() -> Secrets:
    """All of them, for workers that the user started."""
    return Secrets(dict(_secrets), frozenset(_given))


def take_secrets(secrets: Secrets) -> None:
    """What `secrets` gave elsewhere."""
    of_places, texts = secrets
    for key, secret in of_places.items():
        _secrets[key] = Secret(*secret)
    _given.update(texts)


def shown(text: str) -> str:
    """A text with URLs in the place of the paths that stand for them, and without anything secret."""
    for scheme in _schemes:
        text = re.sub(rf"(?<![\w.\-/:])/{re.escape(scheme)}:/", f"{scheme}://", text)
    return scrubbed(text) if "://" in text else text


def scrubbed(text: str) -> str:
    """A text in which no URL has a user, a password or a query."""
    for secret in sorted(_given, key=len, reverse=True):
        text = text.replace(secret, "***")
    text = re.sub(r"(://)[^/\s'\"]*@", r"\1", text)
    return re.sub(r"(://[^\s'\"?]*)\?[^\s'\")\]]*", r"\1", text)


def uses_memory() -> bool:
    """Whether something lies in the memory of this process alone."""
    return "memory" in _schemes
