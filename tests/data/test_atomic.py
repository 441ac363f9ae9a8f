"""Files are whole or not there, also on a full disk and after a crash, and what failed is said with the file's name."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gppvae.data import atomic
from gppvae.data.atomic import WriteError, write_bytes


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_content_arrives_and_nothing_else_stays(tmp_path: Path) -> None:
    path = write_bytes(tmp_path / "new" / "a.bin", b"one")
    assert path.read_bytes() == b"one" and write_bytes(path, b"two").read_bytes() == b"two"
    assert names(tmp_path / "new") == ["a.bin"]


def test_the_folder_is_flushed_after_the_file_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    replace, fsync = os.replace, os.fsync

    def note_replace(source: Path, target: Path) -> None:
        replace(source, target)
        done.append("replace")

    def note_fsync(number: int) -> None:
        fsync(number)
        done.append("folder" if os.path.isdir(f"/proc/self/fd/{number}") else "file")

    monkeypatch.setattr(os, "replace", note_replace)
    monkeypatch.setattr(os, "fsync", note_fsync)
    write_bytes(tmp_path / "a.bin", b"one")
    assert done == ["file", "replace", "folder"]


class FullFile:
    """A file on a full disk."""

    def __init__(self, path: Path, mode: str) -> None:
        self.file = path.open(mode)

    def __enter__(self) -> "FullFile":
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()

    def write(self, _: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")


def fail(number: int):  # type: ignore[no-untyped-def]
    def failing(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    return failing


@pytest.mark.parametrize("step", ["write", "fsync", "replace"])
@pytest.mark.parametrize("earlier", [False, True])
def test_a_full_disk_is_told_with_the_file_and_what_was_kept(
    step: str, earlier: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "model.safetensors"
    if earlier:
        path.write_bytes(b"earlier")
    if step == "write":
        monkeypatch.setattr(atomic, "open", FullFile, raising=False)
    else:
        monkeypatch.setattr(os, step, fail(errno.ENOSPC))
    with pytest.raises(WriteError) as caught:
        write_bytes(path, b"new")
    kept = "the previous file is unchanged" if earlier else "no file was left"
    assert (
        str(caught.value) == f"could not write {path}: No space left on device; {kept}: free some space and try again"
    )
    assert isinstance(caught.value, OSError) and caught.value.errno == errno.ENOSPC
    assert caught.value.filename == str(path)
    assert caught.value.strerror is None, "so that the command line shows the whole sentence"
    monkeypatch.undo()
    assert names(tmp_path) == ([path.name] if earlier else [])
    assert not earlier or path.read_bytes() == b"earlier"


def test_other_faults_have_other_advice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "replace", fail(errno.EROFS))
    with pytest.raises(WriteError, match=r"Read-only file system; no file was left: check the folder and try again"):
        write_bytes(tmp_path / "a.bin", b"new")


def test_file_systems_that_cannot_flush_folders_are_no_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fsync = os.fsync

    def only_files(number: int) -> None:
        if os.path.isdir(f"/proc/self/fd/{number}"):
            raise OSError(errno.EINVAL, "Invalid argument")
        fsync(number)

    monkeypatch.setattr(os, "fsync", only_files)
    assert write_bytes(tmp_path / "a.bin", b"one").read_bytes() == b"one"


def test_what_dead_processes_left_is_removed(tmp_path: Path) -> None:
    """A process killed while it writes leaves its part; the next write of that file removes it."""
    code = (
        "import os, signal, sys; from gppvae.data.atomic import write_bytes;"
        "os.fsync = lambda _: os.kill(os.getpid(), signal.SIGKILL); write_bytes(sys.argv[1], b'half')"
    )
    for name in ("a.bin", "b.bin"):
        assert subprocess.run([sys.executable, "-c", code, str(tmp_path / name)], timeout=120).returncode == -9
    left = names(tmp_path)
    assert len(left) == 2 and all(name.endswith(".part") for name in left)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as alive:
        host = left[0].removeprefix(".a.bin.").rpartition("-")[0]
        others = [f".a.bin.{host}-{alive.pid}.part", ".a.bin.other-host-1.part", ".a.bin.notes.part"]
        for name in others:
            (tmp_path / name).write_bytes(b"in use")
        write_bytes(tmp_path / "a.bin", b"whole")
        assert names(tmp_path) == sorted([*others, left[1], "a.bin"])
        alive.communicate(b"\n", timeout=60)
