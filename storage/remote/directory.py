"""Files below a URL: read in ranges, listed, written whole. Every request is tried again while that may help."""

import json
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import fsspec

from dask_rl.storage.encoding import Bytes
from dask_rl.storage.errors import CorruptDataError, DatasetError, explain
from dask_rl.storage.location import Location
from dask_rl.storage.manifest import Commit
from dask_rl.storage.schema import COMMIT_NAME, METADATA_NAME

from .address import Address, redact
from .errors import describe
from .requests import RequestPolicy, run_all, run_request

T = TypeVar("T")

_CANNOT_LIST = frozenset({"http", "https"})
_VERSIONS = ("ETag", "etag", "e_tag", "generation", "md5Hash", "Content-MD5", "content_md5", "version_id", "VersionId",
             "LastModified", "last_modified", "Last-Modified", "updated", "mtime", "created")  # fmt: skip
"""What packages call that which tells one version of an object from another, best first."""
NOTES_SUFFIX = ".partial"
"""Of the place beside a dataset where it is noted what of it is written."""
BUILD_NAME = "build.json"
"""The note that says what is being written."""
_SHORT_ANSWERS = 3
_SLOWEST_BYTES_PER_SECOND = 1 << 20  # what is written may take so much longer


class RemoteDirectory(Location):
    """A dataset behind a URL such as s3://bucket/name.zarr; its protocol's package must be installed.

    Credentials and endpoints come from where the protocol's package looks for them and from fsspec's configuration
    of the machine that reads: they do not travel with this object.

    Raises:
        DatasetError: fsspec does not know the protocol, or its package is missing.
    """

    def __init__(self, url: str, policy: RequestPolicy | None = None) -> None:
        """Name the place; nothing is asked before the first read."""
        self._address_given = url
        self.url = redact(url).rstrip("/")
        self._policy = policy or RequestPolicy()
        self._local = threading.local()
        self._seen = threading.Lock()
        self._small: dict[str, bytes] = {}
        self._version: Any = None
        files, root = self._open()
        protocols = {files.protocol} if isinstance(files.protocol, str) else set(files.protocol)
        self.can_list = not protocols & _CANNOT_LIST
        """Whether the store tells what there is; a web server does not, and is not written to either."""
        self._address = Address.split(root)

    def exists(self) -> bool:
        """Whether there is anything."""
        if any(self.has(key) for key in (COMMIT_NAME, METADATA_NAME)):
            return True
        return self.can_list and bool(self.sizes())

    def read(self, key: str) -> bytes:
        """Return a whole file."""
        with self._seen:
            known = self._small.pop(key, None)
        if known is not None:
            return known
        path = self._path(key)
        return self._request(key, lambda files, options: bytes(files.cat_file(path, **options)))

    def will_read(self, keys: Iterable[str]) -> None:
        """Fetch small files at once that are read one by one soon; those that fail are asked for again then."""

        def fetch(key: str) -> tuple[str, bytes | None]:
            with suppress(OSError, DatasetError):
                return key, self.read(key)
            return key, None

        found = {key: content for key, content in run_all(fetch, keys) if content is not None}
        with self._seen:
            self._small |= found

    def read_range(self, key: str, start: int, stop: int) -> bytes:
        """Return the bytes [start, stop) of a file; fewer where it ends before.

        Raises:
            FileNotFoundError: there is none.
            StoreAccessError: credentials are missing or do not suffice.
            StoreUnreachableError: the store does not answer.
        """
        path, tries = self._path(key), _SHORT_ANSWERS

        def ask(files: Any, options: Mapping[str, Any]) -> bytes:
            nonlocal tries
            content: bytes = files.cat_file(path, start=start, end=stop, **options)
            if len(content) > stop - start:  # a server that knows no ranges sends all
                content = content[start:stop]
            tries -= 1
            if len(content) < stop - start and tries:
                raise ConnectionError(f"{len(content)} bytes instead of {stop - start}")
            return content

        return self._request(key, ask)

    def sizes(self, wanted: Collection[str] = ()) -> dict[str, int]:
        """Return the size of every file; where the store cannot be listed, of those that are wanted."""
        if self.can_list:
            return {key: int(info["size"]) for key, info in self._list().items()}
        return self.sizes_of(wanted)

    def sizes_of(self, keys: Collection[str]) -> dict[str, int]:
        """Return the sizes of those of these files that are there, asked one by one."""
        answers = run_all(lambda key: (key, self._size(key)), keys)
        return {key: size for key, size in answers if size is not None}

    def has(self, key: str) -> bool:
        """Whether there is such a file."""
        return self._size(key) is not None

    def forget(self) -> None:
        """Forget what was fetched before it is asked for."""
        with self._seen:
            self._small.clear()

    def is_unfinished(self) -> bool:
        """Whether a dataset is being written here, or was by one that stopped."""
        return self.can_list and self.beside(NOTES_SUFFIX).has(BUILD_NAME)

    def check_current(self, commit: Commit) -> None:
        """Raise DatasetError where what was read before this call may be of another dataset than `commit`.

        A writer removes commit.json before it changes anything else, and one that appends changes nothing else.
        """
        now = self._version_of_commit()
        with self._seen:
            if now is not None and now == self._version:
                return
        found = None
        with suppress(FileNotFoundError, ValueError, AttributeError, TypeError):
            found = json.loads(self.read(COMMIT_NAME)).get("objects")
        wanted = {key: entry.model_dump() for key, entry in commit.objects.items()}
        if not isinstance(found, dict) or any(found.get(key) != entry for key, entry in wanted.items()):
            raise DatasetError(
                explain(
                    f"dataset {self.url}",
                    got="another dataset than when it was opened, or one that is being written",
                    allowed="a dataset that stays as it is while it is read",
                    fix="put that dataset back, or start a new run on the new one",
                )
            )
        with self._seen:
            self._version = now

    def put(self, key: str, buffers: Sequence[Bytes], *, create: bool = False) -> None:
        """Write a file, there complete or not at all.

        Args:
            key: the file.
            buffers: its content.
            create: only where there is none; exact where the store can do that, a look before elsewhere.

        Raises:
            FileExistsError: there is one already; perhaps of this very call, whose answer was lost.
            StoreAccessError: credentials are missing or do not suffice.
            StoreUnreachableError: the store does not answer.
            DatasetError: it cannot be written.
        """
        path, content = self._path(key), b"".join(buffers)
        mode = {"mode": "create"} if create else {}
        seconds = len(content) / _SLOWEST_BYTES_PER_SECOND
        self._request(key, lambda files, options: files.pipe_file(path, content, **mode, **options), seconds)

    def delete(self, keys: Iterable[str]) -> None:
        """Remove files; those that are not there are fine."""

        def remove(key: str) -> None:
            path = self._path(key)
            with suppress(FileNotFoundError):
                self._request(key, lambda files, options: files.rm_file(path, **options))

        for _ in run_all(remove, keys):
            pass

    def beside(self, suffix: str) -> "RemoteDirectory":
        """Return the place whose name is this one's with a suffix."""
        base, mark, query = self._address_given.partition("?")
        return RemoteDirectory(base.rstrip("/") + suffix + mark + query, self._policy)

    def __getstate__(self) -> dict[str, Any]:
        return {"url": self._address_given, "policy": self._policy}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["url"], state["policy"])  # type: ignore[misc]

    def _path(self, key: str) -> str:
        try:
            return self._address.of(key)
        except ValueError as error:
            allowed = "names that lie in the dataset"
            raise CorruptDataError(
                explain(f"a file of dataset {self.url}", got=str(error), allowed=allowed, fix="do not use it")
            ) from error

    def _size(self, key: str) -> int | None:
        info = self._info(key)
        return None if info is None or info.get("size") is None else int(info["size"])

    def _info(self, key: str) -> Mapping[str, Any] | None:
        path = self._path(key)
        try:
            info: Mapping[str, Any] = self._request(key, lambda files, options: files.info(path, **options))
        except FileNotFoundError:
            return None
        return info if info.get("type", "file") == "file" else None

    def _version_of_commit(self) -> Any:
        """Return what tells one commit.json from another; None where there is none, or the store does not say."""
        info = self._info(COMMIT_NAME) or {}
        return next(((name, str(info[name]), info.get("size")) for name in _VERSIONS if info.get(name)), None)

    def _list(self) -> dict[str, Mapping[str, Any]]:
        root = self._address.base

        def find(files: Any, options: Mapping[str, Any]) -> Any:
            return files.find(root, detail=True, **options)

        try:
            found = self._request("", find)
        except FileNotFoundError:
            return {}
        prefix = root.strip("/") + "/"
        keys = {name.lstrip("/"): info for name, info in found.items() if info.get("type", "file") == "file"}
        return {name.removeprefix(prefix): info for name, info in keys.items() if name.startswith(prefix)}

    def _request(self, key: str, ask: Callable[[Any, Mapping[str, Any]], T], more_seconds: float = 0) -> T:
        subject = f"{key} in dataset {self.url}" if key else f"dataset {self.url}"

        def call() -> T:
            files, _ = self._open()
            # Only packages that speak asynchronously can be interrupted.
            options = {"timeout": self._policy.timeout_seconds + more_seconds} if files.async_impl else {}
            return ask(files, options)

        return run_request(call, subject, self._policy)

    def _open(self) -> tuple[Any, str]:
        """Return the file system, one for each thread as fsspec wants it, and the path in it."""
        opened: tuple[Any, str] | None = getattr(self._local, "opened", None)
        if opened is None:
            try:
                # What was listed once may be gone: nothing is remembered.
                opened = fsspec.core.url_to_fs(self._address_given, use_listings_cache=False)
            except (ImportError, ValueError, TypeError) as error:
                raise DatasetError(
                    explain(
                        f"dataset {self.url}",
                        got=describe(error),
                        allowed="a path, or a URL whose protocol fsspec knows",
                        fix="install the protocol's package (s3: pip install 'dask-rl[remote]'), or correct the URL",
                    )
                ) from error
            self._local.opened = opened
        return opened
