"""The file systems of fsspec that URLs stand for, connected to, and their errors as ours.

Credentials are found by fsspec's own ways, or were part of the URL.
"""

from __future__ import annotations

import base64
import threading
from collections.abc import Callable
from typing import Any, TypeVar
from urllib.parse import unquote

from precision_tool.lib import urls
from precision_tool.lib.errors import DataNotFoundError, FormatError, PrecisionToolError, UsageError

T = TypeVar("T")

#: Seconds until a server has to have answered.
SECONDS = 60.0
HTTP = ("http", "https")
#: Schemes whose file systems keep no listings, and hand options that they do not know on to what connects.
_HAND_ON = ("ssh", "sftp")
#: Errors of SSH's libraries, which are none of Python's own kinds, for who may not read.
_REFUSALS = ("SFTPPermissionDenied", "PermissionDenied", "AuthenticationException")
#: Packages of fsspec's that know a scheme, where it is not the scheme's own name.
_PACKAGES = {
    "s3": "s3fs", "s3a": "s3fs", "oss": "ossfs", "gs": "gcsfs", "gcs": "gcsfs", "ssh": "paramiko", "sftp": "paramiko",
    "hdfs": "pyarrow", "http": "aiohttp", "https": "aiohttp", "az": "adlfs", "abfs": "adlfs",
}  # fmt: skip


def filesystem_of(path: str) -> Any:
    """The file system of fsspec that a path stands for. UsageError where what it needs is not installed."""
    scheme = path[1:].partition(":")[0]
    try:
        import fsspec
    except ImportError:
        hint = "pip install 'precision-tool[remote]'"
        raise UsageError(f"{urls.url_of(path)}: URLs need fsspec, which is not installed", hint) from None
    try:
        kind = fsspec.get_filesystem_class(scheme)
        options: dict[str, Any] = {"skip_instance_cache": True}
        if scheme not in _HAND_ON:
            options["use_listings_cache"] = False
        if scheme == "memory":
            return kind()
        if scheme in HTTP:
            import aiohttp

            timeout = aiohttp.ClientTimeout(total=None, sock_connect=min(SECONDS, 15.0), sock_read=SECONDS)
            options["client_kwargs"] = {"timeout": timeout, "trust_env": True}
            user, _, password = urls.secret_of(path).user.partition(":")
            if user:
                plain = f"{unquote(user)}:{unquote(password)}".encode()
                options["client_kwargs"]["headers"] = {"Authorization": f"Basic {base64.b64encode(plain).decode()}"}
        else:
            options |= kind._get_kwargs_from_urls(_full_url(path))
        if scheme in _HAND_ON:
            kind, checked = _of_known_hosts(kind)
            options |= checked
        return timed(path, lambda: kind(**options))
    except PrecisionToolError:
        raise
    except (ImportError, ValueError) as error:
        package = _PACKAGES.get(scheme)
        if isinstance(error, ValueError) and "not known" in str(error).lower():
            raise UsageError(
                f"{urls.url_of(path)}: {scheme}:// is no kind of place that fsspec knows",
                "s3://, http:// and others are",
            ) from None
        what = f"pip install {package or 'what fsspec needs for it'}"
        raise UsageError(f"{urls.url_of(path)}: {scheme}:// cannot be opened: {_reason(error)}", what) from None
    except Exception as error:
        raise error_of(path, error) from None


def _of_known_hosts(kind: Any) -> tuple[Any, dict[str, Any]]:
    """SSH's file system, and options, that connect to servers alone whose keys are known; both else take any key."""
    try:
        from fsspec.implementations import sftp
    except ImportError:  # without paramiko it is that of sshfs, which hands options on to asyncssh
        sftp = None
    if sftp is None or not issubclass(kind, sftp.SFTPFileSystem):
        return kind, {"known_hosts": ()}

    class OfKnownHosts(kind):  # type: ignore[misc]  # fsspec has no types
        def _connect(self) -> None:
            self.client = sftp.paramiko.SSHClient()
            self.client.load_system_host_keys()
            self.client.set_missing_host_key_policy(sftp.paramiko.RejectPolicy())
            self.client.connect(self.host, **self.ssh_kwargs)
            self.ftp = self.client.open_sftp()

    return OfKnownHosts, {}


def _full_url(path: str) -> str:
    """The URL with all that the user gave."""
    url = urls.url_of(path) or path
    secret = urls.secret_of(path)
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{secret.user + '@' if secret.user else ''}{rest}"


def timed(path: str, call: Callable[[], T]) -> T:
    """What a call returns, which may not take longer than a server may need to answer."""
    answers: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            answers.append(call())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(SECONDS * 2)
    if errors:
        raise errors[0]
    if not answers:
        raise TimeoutError
    return answers[0]


def _reason(error: BaseException) -> str:
    return urls.scrubbed(f"{type(error).__name__}: {error}" if str(error) else type(error).__name__)[:500]


def error_of(path: str, error: BaseException) -> PrecisionToolError:
    """The user's error for what a server, or a library, answered."""
    if isinstance(error, PrecisionToolError):
        return error
    if isinstance(error, FileNotFoundError) and error.__cause__ is not None:  # as fsspec words whatever HTTP says
        return error_of(path, error.__cause__)
    status = getattr(error, "status", None)
    name = type(error).__name__  # asyncssh's errors are none of Python's own kinds
    if isinstance(error, FileNotFoundError) or status == 404 or name in ("SFTPNoSuchFile", "SFTPNoSuchPath"):
        return DataNotFoundError.of(path, "no such file", "check the name; a listing may have changed meanwhile")
    if name in ("HostKeyNotVerifiable", "BadHostKeyException") or "not found in known_hosts" in str(error):
        return FormatError.of(
            path,
            f"not connected: the server's key is not the one known of it, or none is known ({_reason(error)})",
            "connect once with `ssh` as the same user: it shows the key, which its owner can confirm, and keeps it in "
            "~/.ssh/known_hosts",
        )
    is_refused = (
        isinstance(error, PermissionError) or name in _REFUSALS or "Credential" in name
    )  # none, or no good ones
    if is_refused or status in (401, 403) or "Expired" in str(error):
        return FormatError.of(
            path,
            f"no permission to read it ({_reason(error)})",
            "set or renew the credentials, which fsspec finds in its own ways (environment, profile, ~/.config/fsspec)",
        )
    if isinstance(error, IsADirectoryError):
        return FormatError.of(path, "a folder where a file should be", "name a file inside it")
    if isinstance(error, TimeoutError) or "Timeout" in name:
        return FormatError.of(path, "its server does not answer", "check the address, and whether it can be reached")
    return FormatError.of(
        path, f"cannot be read ({_reason(error)})", "check the address, and whether it can be reached"
    )
