"""A core contains names of files. findleaks reads such a file only if it is a regular file below the sysroot, and it reads the
same file that it checked."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from descriptors import open_descriptors
from handmade import built_library, constant_of, core_with, open_bytes

from findleaks.target import files
from findleaks.target.core import CoreTarget
from findleaks.target.files import FilePlace, open_regular

LOCAL = "frame_dummy"
"""A symbol of every library of gcc's, which is in no dynamic symbol table."""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built_library(tmp_path_factory.mktemp("made"))


def make_core(tmp_path: Path, library: Path, path: str) -> CoreTarget:
    """Return a core whose library has the path `path`. The sysroot is the folder "root"."""
    return open_bytes(tmp_path / "core", core_with(library, path), sysroot=str(tmp_path / "root"))


def put(library: Path, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(library.read_bytes())


def test_a_path_does_not_leave_the_sysroot(tmp_path: Path, library: Path) -> None:
    put(library, tmp_path / "outside/libx.so")
    (tmp_path / "root/lib").mkdir(parents=True)
    assert not constant_of(make_core(tmp_path, library, "/../outside/libx.so"))
    assert not constant_of(make_core(tmp_path, library, "/lib/../../outside/libx.so"))
    put(library, tmp_path / "root/outside/libx.so")
    assert constant_of(make_core(tmp_path, library, "/lib/../../outside/libx.so")), '".." of the root is the root'


def test_symbolic_links_stay_below_the_sysroot(tmp_path: Path, library: Path) -> None:
    """As with chroot, an absolute link is relative to the sysroot."""
    put(library, tmp_path / "outside/libx.so")
    (tmp_path / "root").mkdir()
    (tmp_path / "root/absolute").symlink_to(tmp_path / "outside")
    (tmp_path / "root/relative").symlink_to("../outside")
    (tmp_path / "root/libfile.so").symlink_to(tmp_path / "outside/libx.so")
    (tmp_path / "root/circle").symlink_to("circle")
    for path in ("/absolute/libx.so", "/relative/libx.so", "/libfile.so", "/circle/libx.so"):
        assert not constant_of(make_core(tmp_path, library, path)), path
    put(library, tmp_path / "root/usr/lib/libx.so.1")
    (tmp_path / "root/lib").symlink_to("/usr/./lib")
    (tmp_path / "root/usr/lib/libx.so").symlink_to("../../../lib/libx.so.1")
    assert constant_of(make_core(tmp_path, library, "/lib/libx.so"))
    assert not constant_of(make_core(tmp_path, library, "/lib/libx.so/libx.so"))


def test_debug_files_are_found_below_the_sysroot_and_compared(tmp_path: Path, library: Path) -> None:
    core = make_core(tmp_path, library, "/libx.so")
    build_id = core.modules()[0].build_id
    debug = tmp_path / f"root/usr/lib/debug/.build-id/{build_id[:2]}/{build_id[2:]}.debug"
    debug.parent.mkdir(parents=True)
    outside = tmp_path / "outside.debug"
    subprocess.run(["objcopy", "--only-keep-debug", library, outside], check=True)
    assert core.symbol(LOCAL) is None
    debug.symlink_to(outside)
    assert make_core(tmp_path, library, "/libx.so").symbol(LOCAL) is None
    debug.unlink()
    os.rename(outside, debug)
    assert make_core(tmp_path, library, "/libx.so").symbol(LOCAL) is not None
    assert len(make_core(tmp_path, library, "/libx.so").debug_data(core.modules()[0])) == 1
    other = subprocess.run(["readelf", "-nW", debug], check=True, capture_output=True, text=True).stdout
    assert build_id in other
    wrong = debug.read_bytes().replace(bytes.fromhex(build_id), bytes(20))
    debug.write_bytes(wrong)
    assert make_core(tmp_path, library, "/libx.so").symbol(LOCAL) is None
    assert make_core(tmp_path, library, "/libx.so").debug_data(core.modules()[0]) == []


def test_special_files_are_not_opened(tmp_path: Path, library: Path) -> None:
    """Nothing writes to the FIFO, so a process that opens it for reading would wait forever."""
    core = make_core(tmp_path, library, "/libx.so")
    build_id = core.modules()[0].build_id
    debug = tmp_path / f"root/usr/lib/debug/.build-id/{build_id[:2]}/{build_id[2:]}.debug"
    debug.parent.mkdir(parents=True)
    os.mkfifo(debug)
    os.mkfifo(tmp_path / "root/libx.so")
    program = (
        "import sys; from findleaks.target.core import open_core; core = open_core(sys.argv[1], sysroot=sys.argv[2]); "
        "print(core.symbol('frame_dummy'), core.debug_data(core.modules()[0]))"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "core"), str(tmp_path / "root")]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=180)
    assert done.stdout == "None []\n"


def test_opening_refuses_special_files(tmp_path: Path, library: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "link").symlink_to("fifo")
    (tmp_path / "library").symlink_to(library)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(os.path.relpath(tmp_path / "socket"))
        for name in ("fifo", "link", "socket", "."):
            for place in (FilePlace(str(tmp_path / name)), FilePlace(f"/{name}", str(tmp_path))):
                with pytest.raises(OSError, match=r"not a regular file|Is a directory|No such device"):
                    place.open()
    for device in ("/dev/zero", "/dev/null"):
        for place in (FilePlace(device), FilePlace(device, "/")):
            with pytest.raises(OSError, match="not a regular file"):
                place.open()
    before = open_descriptors()
    for place in (
        FilePlace(str(library)),
        FilePlace(str(library), "/"),
        FilePlace(str(tmp_path / "library")),
        FilePlace("../../etc/passwd", "/"),
    ):
        fd = place.open()
        assert not os.get_inheritable(fd)
        os.close(fd)
    os.close(open_regular(str(library)))
    for bad in ("a\0b", "x" * 5000, "/no/such/file", ""):
        for place in (FilePlace(bad), FilePlace(bad, "/")):
            with pytest.raises((OSError, ValueError)):
                place.open()
    assert open_descriptors() == before


def test_a_file_replaced_after_the_check_is_not_read(tmp_path: Path, library: Path) -> None:
    mine = tmp_path / "libx.so"
    put(library, mine)
    data = core_with(library, str(mine))
    place = open_bytes(tmp_path / "core", data).symbol("text", "lib")
    assert place is not None
    core = open_bytes(tmp_path / "core", data)
    mine.with_suffix(".new").write_bytes(library.read_bytes().replace(b"constant in the file", b"something else there"))
    os.replace(mine.with_suffix(".new"), mine)
    assert core.read(place.address, 20) == bytes(20)


def simulate_mounts(monkeypatch: pytest.MonkeyPatch, *rows: tuple[str, str]) -> None:
    """Simulate that these file systems, (folder, type), are mounted in addition to the root file system."""
    table = "".join(f"{50 + n} 27 0:9{n} / {folder} rw,relatime shared:1 - {kind} what rw\n" for n, (folder, kind) in enumerate(rows))
    data = f"27 1 254:0 / / rw - ext4 /dev/vda rw\n{table}".encode()
    kept = files.read_file
    monkeypatch.setattr(files, "read_file", lambda path: data if path == "/proc/self/mountinfo" else kept(path))


def test_mounts_of_the_kernel_and_of_other_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    simulate_mounts(
        monkeypatch, ("/proc", "proc"), (r"/a\040b", "nfs4"), ("/net", "autofs"), ("/over", "nfs"), ("/over", "ext4"), ("/tmp", "tmpfs")
    )
    assert files.foreign_mounts("/home/core") == {"/proc", "/a b", "/net"}
    assert files.foreign_mounts("/a b/core") == {"/proc", "/net"}
    assert files.foreign_mounts("/a bc/core") == {"/proc", "/a b", "/net"}
    simulate_mounts(monkeypatch, ("/", "nfs"), ("/proc", "proc"))
    assert files.foreign_mounts("/home/core") == {"/proc"}


@pytest.mark.parametrize("kind", ["nfs4", "autofs", "fuse.sshfs", "proc"])
def test_files_on_slow_mounts_are_not_touched(tmp_path: Path, library: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """Neither the files nor their folder are touched: any access to a folder of autofs mounts a file system."""
    remote, here = tmp_path / "remote", tmp_path / "here"
    simulate_mounts(monkeypatch, (str(remote), kind))
    put(library, remote / "lib/libx.so")
    here.mkdir()
    (here / "liblink.so").symlink_to("../remote/lib/libx.so")
    (here / "folder").symlink_to(remote)
    put(library, here / "libx.so")

    def open_core(path: str, folder: Path = here, sysroot: str = "") -> CoreTarget:
        return open_bytes(folder / "core", core_with(library, path), sysroot=sysroot)

    touched = []
    kept = os.open
    with monkeypatch.context() as watched:
        watched.setattr(os, "open", lambda path, *rest, **more: (touched.append(os.fsdecode(path)), kept(path, *rest, **more))[1])
        named = (
            f"{remote}/lib/libx.so",
            f"{here}/liblink.so",
            f"{here}/folder/lib/libx.so",
            f"{here}/../remote/lib/libx.so",
            f"{remote}/libnone.so",
        )
        for path in named:
            assert not constant_of(open_core(path)), path
    assert "here" in touched and not any(one in ("remote", "lib") or str(remote) in one for one in touched)
    assert any("on a remote or kernel file system" in warning for warning in open_core(named[0]).warnings)
    assert constant_of(open_core(f"{here}/libx.so"))
    assert constant_of(open_core(named[0], sysroot="/")), "the user named this folder"
    assert constant_of(open_core(named[0], remote)), "the core itself is in this folder"


def test_files_of_the_kernel_are_not_read(tmp_path: Path, library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """/proc/kmsg is a regular file. A process that reads it waits, or removes its contents."""
    touched = []
    kept = os.open
    monkeypatch.setattr(os, "open", lambda path, *rest, **more: (touched.append(os.fsdecode(path)), kept(path, *rest, **more))[1])
    for path in ("/proc/kmsg", f"/proc/self/root{library}", "/sys/kernel/notes"):
        core = open_bytes(tmp_path / "core", core_with(library, path))
        assert core.symbol(LOCAL) is None
        assert any("on a remote or kernel file system" in warning for warning in core.warnings), path
    assert "/" in touched and not {"proc", "sys", "/proc/kmsg"} & set(touched)
