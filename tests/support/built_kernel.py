"""Build Linux kernels that Debian provides only as source, with just the features that an emulated machine (foreign.py) needs.

A kernel is built once, in minutes, and cached by the hash of the source package, the configuration and the compiler.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import debian

SOURCE = ("bookworm", "linux-source-6.1")
"""Debian's suite, and its package with the patched source as an archive, /usr/src/linux-source-6.1.tar.xz."""
PINS = {("linux-source-6.1", "6.1.176-1"): "9305d1a151b8e83dcb88aa11361e7b9513f0c252bdf7f5647e4542762d99c094"}
PAGES_OF_64_KIB = (
    "# CONFIG_EXPERT is not set",  # keeps the features that only CONFIG_EXPERT can turn off: futexes, epoll, rseq, /proc, /sys, cores…
    *("CONFIG_ARM64_64K_PAGES=y", "CONFIG_ARM64_VA_BITS_48=y"),
    # As in Debian's kernel: pointer authentication, memory tags, large vector registers, and timers.
    *("CONFIG_ARM64_PTR_AUTH=y", "CONFIG_ARM64_BTI=y", "CONFIG_ARM64_PAN=y", "CONFIG_ARM64_TAGGED_ADDR_ABI=y", "CONFIG_ARM64_MTE=y"),
    *("CONFIG_ARM64_SVE=y", "CONFIG_HIGH_RES_TIMERS=y", "CONFIG_NO_HZ_IDLE=y"),
    # For programs, and for cores in the form in which Debian's kernel dumps them.
    *("CONFIG_BINFMT_ELF=y", "CONFIG_BINFMT_SCRIPT=y", "CONFIG_COREDUMP=y", "CONFIG_CORE_DUMP_DEFAULT_ELF_HEADERS=y"),
    "CONFIG_CROSS_MEMORY_ATTACH=y",
    # For the first process's archive and console, and the host's folders: foreign_init.c mounts them.
    *("CONFIG_BLK_DEV_INITRD=y", "CONFIG_SERIAL_AMBA_PL011=y", "CONFIG_SERIAL_AMBA_PL011_CONSOLE=y", "CONFIG_DEVTMPFS=y", "CONFIG_TMPFS=y"),
    *("CONFIG_NET=y", "CONFIG_INET=y", "CONFIG_UNIX=y", "CONFIG_VIRTIO_MENU=y", "CONFIG_VIRTIO_MMIO=y"),
    *("CONFIG_NET_9P=y", "CONFIG_NET_9P_VIRTIO=y", "CONFIG_NETWORK_FILESYSTEMS=y", "CONFIG_9P_FS=y"),
    # For /proc/PID/task/*/schedstat, with which foreign_init.c checks that all threads are idle.
    *("CONFIG_DEBUG_KERNEL=y", "CONFIG_SCHEDSTATS=y"),
)
"""AArch64 with pages of 64 KiB and addresses of 48 bits. No modules are built: everything is in the image."""
IDLE = ("*/Documentation/*/*", "*/tools/testing", "*/drivers/gpu/drm/amd/include")
"""Parts of the source that this kernel does not need (half a gigabyte)."""

CALLERS = ("MAKEFLAGS", "MAKELEVEL", "MFLAGS", "FINDLEAKS_TEST_COMPILED")
"""Variables of `make test`, and the folder in which compilers/gcc would keep each of the kernel's objects."""


def tree(machine: str, compiler: str, configuration: Sequence[str]) -> Path:
    """Return a folder with a kernel in boot/, like an unpacked Debian package; `unpacked`, next to it, has the sources.

    `machine` is Debian's name of the architecture, `compiler` a name that ends with "-gcc". Raises debian.PackagesMissing.
    """
    debs = debian.unpack_packages(SOURCE[0], SOURCE[1:], debian.cache() / "kernel-source", PINS)
    version = subprocess.run([compiler, "--version"], check=True, capture_output=True, text=True).stdout.splitlines()[0]
    digests = (f"{deb.name} {hashlib.sha256(deb.read_bytes()).hexdigest()}" for deb in debs)
    made_of = "\n".join([*digests, version, *configuration, ""])
    folder = debian.cache() / machine / "built-kernels"
    kept = folder / hashlib.sha256(made_of.encode()).hexdigest()[:32]
    with debian.hold_lock(folder):
        if not kept.exists():
            with tempfile.TemporaryDirectory(dir=folder) as scratch:
                made = Path(scratch, "made")
                (made / "root" / "boot").mkdir(parents=True)
                image = _built(machine, compiler.removesuffix("gcc"), configuration, Path(scratch))
                image.rename(made / "root" / "boot" / "vmlinuz-built")
                (made / "unpacked").write_text(made_of)
                made.rename(kept)
    return kept / "root"


def _built(architecture: str, prefix: str, configuration: Sequence[str], scratch: Path) -> Path:
    """Build the kernel and return its image. Raises RuntimeError if the sources lack a part of the configuration, or do not compile."""
    (archive,) = (debian.cache() / "kernel-source/root/usr/src").glob("linux-source-*.tar.xz")
    subprocess.run(["tar", "-xJf", archive, "-C", scratch, *(f"--exclude={pattern}" for pattern in IDLE)], check=True)
    (source,) = scratch.glob("linux-source-*")
    wanted, output = scratch / "wanted", scratch / "output"
    wanted.write_text("\n".join([*configuration, ""]))
    # The same source must produce the same bytes.
    variables = {"KBUILD_BUILD_TIMESTAMP": "1980-01-01", "KBUILD_BUILD_USER": "findleaks", "KBUILD_BUILD_HOST": "findleaks"}
    make = ["nice", "make", "-s", f"-j{os.cpu_count()}", "-C", str(source)]
    make += [f"O={output}", f"ARCH={architecture}", f"CROSS_COMPILE={prefix}"]
    _run([*make, f"KCONFIG_ALLCONFIG={wanted}", "allnoconfig"], variables)
    missing = set(configuration) - set((output / ".config").read_text().splitlines())
    if missing:
        raise RuntimeError(f"{source.name} has no {sorted(missing)}, or these need something else that is not configured")
    _run([*make, "Image"], variables)
    return output / "arch" / architecture / "boot" / "Image"


def _run(command: Sequence[str], variables: Mapping[str, str]) -> None:
    environment = {name: value for name, value in os.environ.items() if name not in CALLERS}
    done = subprocess.run(
        command, env={**environment, **variables}, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    if done.returncode:
        raise RuntimeError(f"`{' '.join(command)}` failed:\n{done.stdout[-5000:]}")
