"""Files that are whole or not there."""

import errno

import pytest

from paraaegis.files import write_whole


def test_a_file_that_cannot_be_written_is_named_and_the_old_one_stays(tmp_path):
    path = tmp_path / "result.json"
    path.write_bytes(b"old")

    def full(file):
        file.write(b"n")
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError, match="No space left on device") as stopped:
        write_whole(path, full)
    assert stopped.value.filename == str(path)
    assert path.read_bytes() == b"old"
    write_whole(path, lambda file: file.write(b"new"))
    assert path.read_bytes() == b"new"
    assert [one.name for one in tmp_path.iterdir()] == ["result.json"]
