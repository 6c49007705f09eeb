"""What the operating system does while files are read: errors, short answers, files that turn into something else."""

import errno
import os
from pathlib import Path

import numpy as np
import pytest

from dask_rl.storage import CorruptDataError, DatasetError, OfflineDataset

SHARD = "data/rewards/c/1"
PLACE = r"data/rewards/c/1 in dataset .* \(rewards, rows 64 to 127\)"


def refuse(code):
    def fail(*args, **kwargs):
        raise OSError(code, os.strerror(code))

    return fail


@pytest.mark.parametrize("call", ["preadv", "pread", "open"])
@pytest.mark.parametrize("code", [errno.EIO, errno.EACCES, errno.EMFILE, errno.ESTALE])
def test_an_error_of_the_system_names_file_and_rows(dataset, monkeypatch, call, code):
    monkeypatch.setattr(os, call, refuse(code))
    with pytest.raises(DatasetError, match=f"{PLACE}: got {os.strerror(code)}; allowed: files that can be read"):
        dataset.read("rewards", 70, 75)
    monkeypatch.undo()
    assert len(dataset.read("rewards", 70, 75)) == 5


@pytest.mark.parametrize("field", ["rewards", "observations", "terminations"])
def test_short_answers_are_continued(dataset, monkeypatch, field):
    wanted = OfflineDataset.open(dataset.path).read(field, 0, dataset.num_rows)
    whole = os.preadv

    def short(descriptor, buffers, offset):
        return whole(descriptor, [buffers[0][: max(len(buffers[0]) // 2, 1)]], offset)

    monkeypatch.setattr(os, "preadv", short)
    np.testing.assert_array_equal(dataset.read(field, 0, dataset.num_rows), wanted)
    for row in (0, 67, 68, 127):
        np.testing.assert_array_equal(dataset.read(field, row, row + 1), wanted[row : row + 1])


def test_a_directory_that_cannot_be_listed(dataset, monkeypatch):
    monkeypatch.setattr(os, "scandir", refuse(errno.EACCES))
    with pytest.raises(DatasetError, match=r"dataset .*got Permission denied; allowed: files that can be read"):
        OfflineDataset.open(dataset.path)


@pytest.mark.parametrize("deep", [False, True])
@pytest.mark.parametrize(
    ("exchange", "got"),
    [
        (lambda path: path.symlink_to(path.with_name("elsewhere")), "a symbolic link"),
        (os.mkfifo, "no plain file"),
        (os.mkdir, "no plain file"),
    ],
)
def test_a_shard_that_turns_into_something_else(dataset, monkeypatch, exchange, got, deep):
    path = Path(dataset.path, SHARD)
    path.rename(path.with_name("elsewhere"))
    exchange(path)
    with pytest.raises(CorruptDataError, match=f"{SHARD} .*got {got}"):
        list(dataset.location.pieces(SHARD)) if deep else dataset.read("rewards", 64, 128)


def test_a_wrong_sum_names_the_rows_of_its_shard(dataset):
    path = Path(dataset.path, "commit.json")
    text = path.read_text()
    sum_ = dataset.contents.commit.objects[SHARD].sha256
    path.write_text(text.replace(sum_, "0" * 64))
    with pytest.raises(CorruptDataError, match=rf"{SHARD} \(rewards, rows 64 to 127\) in dataset .*got sha256"):
        OfflineDataset.open(dataset.path).verify(deep=True)
