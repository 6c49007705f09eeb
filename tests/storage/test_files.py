"""Durable files: what the disk refuses is told, and nothing unfinished stays."""

import errno
import os
import time
from unittest import mock

import pytest

from dask_rl.storage.files import write_atomically, write_stream

MIB = b"x" * (1 << 20)


@pytest.fixture
def temporary(tmp_path):
    (tmp_path / "tmp").mkdir()
    return tmp_path / "tmp"


@pytest.mark.parametrize("failing", [1, 2])
def test_a_disk_that_fails_once_is_told_although_it_succeeds_afterwards(failing, tmp_path, temporary):
    """The system tells a failed writing back once for each descriptor."""
    calls, count = os.fdatasync, 0

    def fdatasync(descriptor):
        nonlocal count
        count += 1
        if count == failing:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        calls(descriptor)

    def parts():
        for _ in range(8):
            yield MIB
            time.sleep(0.01)  # the next flush begins when the one before is done

    with (
        mock.patch("dask_rl.storage.files._SYNC_BYTES", len(MIB)),
        mock.patch("os.fdatasync", fdatasync),
        pytest.raises(OSError, match=os.strerror(errno.EIO)),
    ):
        write_stream(tmp_path / "file", parts(), temporary)
    assert os.listdir(tmp_path) == ["tmp"]
    assert not os.listdir(temporary)


def interrupted():
    yield MIB
    raise KeyboardInterrupt


@pytest.mark.parametrize("write", [write_atomically, write_stream])
@pytest.mark.parametrize("call", ["writev", "fdatasync", "replace"])
def test_what_a_full_disk_cuts_off_does_not_stay(write, call, tmp_path, temporary):
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with mock.patch(f"os.{call}", side_effect=full), pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
        write(tmp_path / "file", [MIB, MIB], temporary)
    assert os.listdir(tmp_path) == ["tmp"]
    assert not os.listdir(temporary)


def test_what_is_interrupted_does_not_stay(tmp_path, temporary):
    with pytest.raises(KeyboardInterrupt):
        write_stream(tmp_path / "file", interrupted(), temporary)
    assert not os.listdir(temporary)
