#!/bin/sh
# Install with apt, as root, what the tests need and this machine lacks. Without root, say what is missing, and fail.
set -eu

# What shows that it is there (a command, a file, or dpkg:PACKAGE) and the Debian package that brings it.
needs='
gdb gdb
gdb-multiarch gdb-multiarch
gdbserver gdbserver
lldb-19 lldb-19
/usr/lib/llvm-19/lib/python3*/site-packages/lldb/__init__.py python3-lldb-19
clang-19 clang-19
/usr/lib/llvm-19/lib/clang/19/lib/linux/libclang_rt.asan*.a libclang-rt-19-dev
gcc gcc
aarch64-linux-gnu-gcc gcc-aarch64-linux-gnu
/usr/aarch64-linux-gnu/include/stdlib.h libc6-dev-arm64-cross
i686-linux-gnu-gcc gcc-i686-linux-gnu
/usr/i686-linux-gnu/include/stdlib.h libc6-dev-i386-cross
/lib/ld-linux.so.2 libc6-i386
g++ g++
/usr/include/stdlib.h libc6-dev
dpkg:libc6-dbg libc6-dbg
ld binutils
git git
zsh zsh
valgrind valgrind
dwz dwz
dwp binutils
debuginfod debuginfod
zstd zstd
xz xz-utils
redis-server redis-server
nginx nginx-light
ruby ruby
dpkg:ruby-pg ruby-pg
dpkg:postgresql postgresql
chromium chromium
javac default-jdk-headless
npm npm
jeprof libjemalloc-dev
sqlite3 sqlite3
zsh zsh
fish fish
groff groff
/usr/include/python3*/Python.h python3-dev
/usr/include/sqlite3.h libsqlite3-dev
/usr/include/talloc.h libtalloc-dev
/usr/include/apr-1.0/apr_pools.h libapr1-dev
/usr/include/apr-1.0/apr_buckets.h libaprutil1-dev
/usr/include/glib-2.0/glib-object.h libglib2.0-dev
/usr/include/uv.h libuv1-dev
php php-cli
perl perl
lua5.4 lua5.4
luajit luajit
/usr/include/luajit-2.1/lua.h libluajit-5.1-dev
cargo cargo
go golang-go
ocamlopt ocaml-nox
'

# For `make test-matrix`, by `sh install.sh machines`: interpreters, and what cores of other machines are made of.
machines='
llvm-dwp llvm
erl erlang-base
sbcl sbcl
R r-base-core
lua5.1 lua5.1
lua5.2 lua5.2
lua5.3 lua5.3
aarch64-linux-gnu-g++ g++-aarch64-linux-gnu
riscv64-linux-gnu-g++ g++-riscv64-linux-gnu
/usr/riscv64-linux-gnu/include/stdlib.h libc6-dev-riscv64-cross
arm-linux-gnueabihf-g++ g++-arm-linux-gnueabihf
/usr/arm-linux-gnueabihf/include/stdlib.h libc6-dev-armhf-cross
powerpc64le-linux-gnu-g++ g++-powerpc64le-linux-gnu
/usr/powerpc64le-linux-gnu/include/stdlib.h libc6-dev-ppc64el-cross
i686-linux-gnu-g++ g++-i686-linux-gnu
s390x-linux-gnu-g++ g++-s390x-linux-gnu
/usr/s390x-linux-gnu/include/stdlib.h libc6-dev-s390x-cross
/usr/lib/llvm-19/bin/ld.lld lld-19
/usr/lib/llvm-19/include/c++/v1/map libc++-19-dev
qemu-system-aarch64 qemu-system-arm
qemu-system-riscv64 qemu-system-misc
qemu-system-ppc64le qemu-system-ppc
qemu-system-i386 qemu-system-x86
bc bc
bison bison
flex flex
make make
mvn maven
'
[ "${1:-}" != machines ] || needs=$needs$machines

there() {
    case $1 in
    dpkg:*) dpkg-query -W -f '${db:Status-Status}' "${1#dpkg:}" 2>/dev/null | grep -qx installed ;;
    /*) ls $1 >/dev/null 2>&1 ;; # unquoted: a pattern
    *) PATH=$PATH:/usr/sbin:/sbin command -v "$1" >/dev/null 2>&1 ;;
    esac
}

missing() {
    echo "$needs" | while read -r probe package; do
        [ -z "$probe" ] || there "$probe" || printf '%s ' "$package"
    done
}

packages=$(missing)
[ -n "$packages" ] || exit 0

line="apt-get install -y --no-install-recommends $packages"
if ! command -v apt-get >/dev/null; then
    echo "The tests need what Debian calls: $packages" >&2
    echo "This machine has no apt-get: install them in its own way, then run make test again." >&2
    exit 1
fi
if [ "$(id -u)" != 0 ]; then
    echo "The tests need packages that are missing. As root:" >&2
    echo "    apt-get update && $line" >&2
    exit 1
fi

# Run a command of apt-get up to four times. apt-get repeats a download if the connection fails, but not if the mirror answers with an
# error, such as 503 if it is overloaded. Another process may be installing packages, such as unattended-upgrades after the start of a
# machine. apt-get waits for it at most five minutes.
fetch() {
    for pause in 2 10 30 ''; do
        "$@" -o Acquire::Retries=3 -o DPkg::Lock::Timeout=300 >"$log" 2>&1 </dev/null && return
        [ -n "$pause" ] && grep -q -e 'Failed to fetch' -e 'Could not get lock' "$log" || return 1
        sleep "$pause"
    done
}

log=$(mktemp)
policy=/usr/sbin/policy-rc.d
made=
clean() {
    rm -f "$log"
    [ -z "$made" ] || rm -f "$policy"
}
trap clean EXIT
trap 'exit 1' INT TERM

echo "installing: $packages"
export DEBIAN_FRONTEND=noninteractive
fetch apt-get update -qq || {
    tail -n 15 "$log" >&2
    echo "apt-get update failed" >&2
    exit 1
}
for package in $packages; do
    if apt-cache policy "$package" | grep -q 'Candidate: (none)' || [ -z "$(apt-cache policy "$package")" ]; then
        echo "this machine's apt sources have no $package (Debian 12 and newer do)" >&2
        exit 1
    fi
done
# The tests start servers of their own: those that the packages bring shall not start.
if [ ! -e "$policy" ]; then
    made=1
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod 755 "$policy"
fi
# shellcheck disable=SC2086
fetch $line || {
    tail -n 15 "$log" >&2
    echo "failed: $line" >&2
    exit 1
}
packages=$(missing)
[ -z "$packages" ] || {
    echo "apt-get installed them, yet something of these is not there: $packages" >&2
    exit 1
}
