"""Cores of other machines, written by real kernels: Debian's kernel for the architecture, or one that is built here (built_kernel.py).
qemu-system emulates the machine. It runs a program with the architecture's libc until the program prints "ready", and dumps its core
(tests/programs/foreign_init.c is the machine's first process).

Packages are unpacked outside the system (debian.py). Cores are cached by the hash of everything that they depend on; a new core takes about
10 s of emulation.
"""

from __future__ import annotations

import functools
import hashlib
import io
import json
import lzma
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import built_kernel
import debian

INIT = Path(__file__).resolve().parent.parent / "programs" / "foreign_init.c"
PATIENCE = 1800
"""Seconds for a machine with all its programs, even on a busy host."""
ANYWHERE = (f"-ffile-prefix-map={INIT.parents[2]}=.",)
"""Compiler options: debug information does not contain the path of this checkout, so that another checkout can use the same cores."""
UNUSED_DAYS = 7
"""Cores that no test has used for this number of days are removed."""


@dataclass(frozen=True)
class Machine:
    """An architecture: Debian's name, the GNU triplet, the kernel's suite and package, and the machine that qemu emulates."""

    name: str
    triplet: str
    kernel: tuple[str, str]
    qemu: tuple[str, ...]
    transport: str  # the module that detects virtio's devices
    device: str  # qemu's name of its 9p device
    console: str = ""  # an argument of the kernel
    memory: str = "3G"
    compiles_for: str = ""  # the triplet in the compiler's name, if it differs
    emulator: str = ""  # Debian's suite whose qemu is used; "": the installed one
    configuration: tuple[str, ...] = ()  # the configuration of a kernel that is built for it (built_kernel.py) in place of Debian's

    @property
    def compiler(self) -> str:
        return f"{self.compiles_for or self.triplet}-gcc"


ARM64 = Machine(
    "arm64",
    "aarch64-linux-gnu",
    ("bookworm", "linux-image-arm64"),
    ("qemu-system-aarch64", "-M", "virt", "-cpu", "max,pauth-impdef=on,sve-max-vq=2"),
    "virtio_mmio",
    "virtio-9p-device",
)
ARM64_16K = replace(ARM64, kernel=("trixie", "linux-image-arm64-16k"))
"""AArch64 with pages of 16 KiB."""
ARM64_64K = replace(ARM64, kernel=built_kernel.SOURCE, configuration=built_kernel.PAGES_OF_64_KIB)
"""AArch64 with pages of 64 KiB, with a kernel that Debian provides only as source."""
ARM64_MTE = replace(ARM64, qemu=tuple("virt,mte=on" if word == "virt" else word for word in ARM64.qemu), emulator="trixie")
"""AArch64 with the memory tagging extension. QEMU 7.2 writes its tags to wrong addresses."""
RISCV64 = Machine(
    "riscv64",
    "riscv64-linux-gnu",
    ("sid", "linux-image-riscv64"),
    ("qemu-system-riscv64", "-M", "virt"),
    "virtio_mmio",
    "virtio-9p-device",
)
PPC64EL = Machine(
    "ppc64el",
    "powerpc64le-linux-gnu",
    ("bookworm", "linux-image-powerpc64le"),
    ("qemu-system-ppc64le", "-M", "pseries", "-cpu", "power9"),
    "virtio_pci",
    "virtio-9p-pci",
)
"""This machine has pages of 64 KiB."""
S390X = Machine(
    "s390x",
    "s390x-linux-gnu",
    ("bookworm", "linux-image-s390x"),
    ("qemu-system-s390x", "-M", "s390-ccw-virtio", "-cpu", "max"),
    "virtio_ccw",
    "virtio-9p-ccw",
)
ARMHF = Machine(
    "armhf",
    "arm-linux-gnueabihf",
    ("bookworm", "linux-image-armmp-lpae"),
    ("qemu-system-arm", "-M", "virt", "-cpu", "cortex-a15"),
    "virtio_mmio",
    "virtio-9p-device",
    memory="2G",
)
I386 = Machine(
    "i386",
    "i386-linux-gnu",
    ("bookworm", "linux-image-686-pae"),
    ("qemu-system-i386", "-M", "q35", "-cpu", "max"),
    "virtio_pci",
    "virtio-9p-pci",
    console="console=ttyS0",
    memory="2G",
    compiles_for="i686-linux-gnu",
)
MACHINES = (ARM64, RISCV64, PPC64EL, S390X, ARMHF, I386)


@dataclass(frozen=True)
class Program:
    """A program to run: `files` are copied to /programs/NAME, which is its working folder; `command` is run there. `tree` is its root
    folder."""

    tree: Path
    command: tuple[str, ...]
    files: tuple[Path, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Picture:
    """The result of a program: its output, up to "ready", and its core. `root` is the tree to give as --sysroot."""

    core: Path
    output: str
    root: Path


def tree(machine: Machine, suite: str, packages: Sequence[str], name: str = "", dependencies: bool = False) -> Path:
    """Unpack Debian packages of the architecture into a tree that can be the root folder of programs. Raises debian.PackagesMissing."""
    folder = debian.cache() / machine.name / (name or suite)
    debian.unpack_packages(suite, packages, folder, {}, dependencies, machine.name)
    for mount_point in ("programs", "proc", "dev", "tmp"):
        (folder / "root" / mount_point).mkdir(exist_ok=True)
    return folder / "root"


def pictures(machine: Machine, programs: Mapping[str, Program]) -> dict[str, Picture]:
    """Return the output and the core of each program. Missing cores are made one after another, in one machine for each tree."""
    kept = {name: debian.cache() / machine.name / "cores" / _hash(machine, one) for name, one in programs.items()}
    for root in dict.fromkeys(one.tree for one in programs.values()):
        with debian.hold_lock(debian.cache() / machine.name / "cores"):
            wanted = {name: one for name, one in programs.items() if one.tree == root and not kept[name].exists()}
            if wanted:
                _remove_unused(machine)
                with tempfile.TemporaryDirectory(dir=debian.cache() / machine.name) as folder:
                    for name in run(machine, root, wanted, Path(folder)):
                        (Path(folder) / "work" / name).rename(kept[name])
    missing = [name for name in programs if not kept[name].exists()]
    if missing:
        raise RuntimeError(f"emulated programs that did not get ready: {missing}")
    for folder in kept.values():
        os.utime(folder)
    return {name: Picture(kept[name] / "core", (kept[name] / "stdout").read_text(), one.tree) for name, one in programs.items()}


def _remove_unused(machine: Machine) -> None:
    for folder in (debian.cache() / machine.name / "cores").iterdir():
        if folder.is_dir() and time.time() - folder.stat().st_mtime > UNUSED_DAYS * 86_400:
            shutil.rmtree(folder)


def picture(machine: Machine, program: Program) -> Picture:
    return pictures(machine, {"program": program})["program"]


def _hash(machine: Machine, program: Program) -> str:
    """Return the hash of everything that a core depends on: the program, its libraries' packages, its command, and the kernel that dumps
    it."""
    made = hashlib.sha256(INIT.read_bytes())
    made.update(json.dumps([machine.qemu, program.command, sorted(program.environment.items())]).encode())
    made.update((program.tree.parent / "unpacked").read_bytes() + (_native(machine).parent / "unpacked").read_bytes())
    made.update(machine.emulator.encode())
    for file in program.files:
        made.update(file.name.encode() + b"\0" + file.read_bytes())
    return made.hexdigest()[:32]


def run(machine: Machine, root: Path, programs: Mapping[str, Program], folder: Path, patience: int = PATIENCE) -> list[str]:
    """Start the machine, and wait until it is off. Return the names of the programs that have a core; their output is in `folder`."""
    for name, program in programs.items():
        place = folder / "work" / name
        place.mkdir(parents=True)
        for file in program.files:
            shutil.copy(file, place)
        (place / "command").write_bytes(b"".join(word.encode() + b"\0" for word in program.command))
        variables = (f"{key}={value}" for key, value in program.environment.items())
        (place / "environment").write_bytes(b"".join(one.encode() + b"\0" for one in variables))
    (folder / "initrd").write_bytes(_initrd(machine, folder))
    # Since Linux 7, Debian's package has the kernel next to its modules.
    (kernel,) = (*(_native(machine) / "boot").glob("vmlinu*-*"), *(_native(machine) / "usr/lib/modules").glob("*/vmlinuz"))
    command = [*_emulator(machine), *machine.qemu[1:], "-smp", "2", "-m", machine.memory, "-nographic", "-no-reboot", "-nic", "none"]
    command += [
        "-kernel",
        str(kernel),
        "-initrd",
        str(folder / "initrd"),
        "-append",
        f"quiet panic=-1 mitigations=off patience={patience // 3} {machine.console}",
    ]
    for tag, path, more in (("work", folder / "work", ""), ("root", root, ",readonly=on,multidevs=remap")):
        command += ["-fsdev", f"local,id={tag},path={path},security_model=none{more}"]
        command += ["-device", f"{machine.device},fsdev={tag},mount_tag={tag}"]
    with (folder / "console").open("wb") as console:
        subprocess.run(command, stdin=subprocess.DEVNULL, stdout=console, stderr=subprocess.STDOUT, timeout=patience, check=True)
    done = [name for name in programs if (folder / "work" / name / "core").exists()]
    if set(done) != set(programs):
        said = "".join((folder / "work" / name / "stderr").read_text() for name in programs if (folder / "work" / name / "stderr").exists())
        raise RuntimeError(f"{machine.name}: only {done} of {list(programs)}:\n{(folder / 'console').read_text(errors='replace')}{said}")
    return done


@functools.cache
def _native(machine: Machine) -> Path:
    if machine.configuration:
        return built_kernel.tree(machine.name, machine.compiler, machine.configuration)
    suite, package = machine.kernel
    return tree(machine, suite, [package], package, dependencies=True)


@functools.cache
def _emulator(machine: Machine) -> list[str]:
    """Return the emulator's command. An emulator of another suite is run by the ld.so of that suite."""
    if not machine.emulator:
        return [machine.qemu[0]]
    folder = debian.cache() / f"qemu-{machine.emulator}"
    debian.unpack_packages(machine.emulator, ["qemu-system-arm"], folder, {}, dependencies=True)
    root, triplet = folder / "root", "x86_64-linux-gnu"
    loader = [str(root / "lib64/ld-linux-x86-64.so.2"), "--library-path", str(root / "usr/lib" / triplet)]
    return [*loader, str(root / "usr/bin" / machine.qemu[0]), "-L", str(root / "usr/share/qemu")]


def _initrd(machine: Machine, folder: Path) -> bytes:
    """Write a cpio archive (newc) of the first process and the modules that it loads. Layout: Linux,
    Documentation/driver-api/early-userspace/buffer-format.rst."""
    init = folder / "init"
    flags = ("-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O1", "-D_FILE_OFFSET_BITS=64", "-static")
    subprocess.run([machine.compiler, *flags, "-o", str(init), str(INIT)], check=True)
    modules = _modules(machine, (machine.transport, "9pnet_virtio", "9p"))
    names = "".join(f"/{name}.ko\n" for name in modules).encode()
    made = io.BytesIO()
    entries = [("init", 0o100755, init.read_bytes()), ("modules", 0o100644, names), ("dev", 0o040755, b"")]
    entries += [(f"{name}.ko", 0o100644, data) for name, data in modules.items()]
    for number, (name, mode, data) in enumerate([*entries, ("TRAILER!!!", 0, b"")]):
        fields = (number, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(name) + 1, 0)
        made.write(b"070701" + "".join(f"{value:08x}" for value in fields).encode() + name.encode() + b"\0")
        made.write(b"\0" * (-made.tell() % 4))
        made.write(data)
        made.write(b"\0" * (-made.tell() % 4))
    return made.getvalue()


def _modules(machine: Machine, wanted: Sequence[str]) -> dict[str, bytes]:
    """Return the kernel's modules with these names, unpacked, each after its dependencies. Built-in modules are left out."""
    there = {file.name.split(".")[0].replace("-", "_"): file for file in (_native(machine) / "lib/modules").rglob("*.ko*")}
    found: dict[str, bytes] = {}

    def add(name: str) -> None:
        file = there.get(name.replace("-", "_"))
        if file is None or name in found:
            return
        data = lzma.decompress(file.read_bytes()) if file.suffix == ".xz" else file.read_bytes()
        depends = re.search(rb"\0depends=([^\0]*)\0", data)
        for one in depends[1].decode().split(",") if depends else ():
            add(one)
        found[name] = data

    for name in wanted:
        add(name)
    return found
