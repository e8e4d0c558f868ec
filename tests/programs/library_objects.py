"""Make one object of each of several libraries; print its name in the table of rules, and its address. Then print "ready" and wait."""

import ctypes as c
import struct
import time

P = c.c_void_p


def library(name, *functions):
    made = c.CDLL(name)
    for function in functions:
        getattr(made, function).restype = P
    return made


def word(address, offset):
    return struct.unpack("N", c.string_at(address + offset, 8))[0]


def report(name, address):
    assert address, name
    print(name, hex(address), flush=True)


def stream(size, at, start):
    made = c.create_string_buffer(size)
    KEPT.append(made)
    assert start(made) == 0
    return word(c.addressof(made), at)


KEPT = []
z = library("libz.so.1")
report("zlib deflate state", stream(112, 56, lambda made: z.deflateInit_(made, 6, b"1.2.11", 112)))
report("zlib inflate state", stream(112, 56, lambda made: z.inflateInit_(made, b"1.2.11", 112)))
bz2 = library("libbz2.so.1.0")
report("bzip2 compression state", stream(80, 48, lambda made: bz2.BZ2_bzCompressInit(made, 9, 0, 0)))
report("bzip2 decompression state", stream(80, 48, lambda made: bz2.BZ2_bzDecompressInit(made, 0, 0)))
curl = library("libcurl-gnutls.so.4", "curl_easy_init", "curl_multi_init", "curl_share_init")
for kind in ("easy", "multi", "share"):
    report(f"curl {kind} handle", getattr(curl, f"curl_{kind}_init")())
xml = library("libxml2.so.2", "xmlNewDoc", "xmlNewDocNode", "xmlNewDocText", "xmlNewParserCtxt")
document = xml.xmlNewDoc(b"1.0")
report("libxml2 xmlDoc", document)
report("libxml2 xmlNode item", xml.xmlNewDocNode(P(document), None, b"item", None))
report("libxml2 xmlNode", xml.xmlNewDocText(P(document), b"text"))
report("libxml2 xmlParserCtxt", xml.xmlNewParserCtxt())
sqlite, connection, statement = library("libsqlite3.so.0"), P(), P()
sqlite.sqlite3_open(b":memory:", c.byref(connection))
sqlite.sqlite3_prepare_v2(connection, b"select 1", -1, c.byref(statement), None)
report("SQLite connection", connection.value)
report("SQLite prepared statement", statement.value)
pcre, code, at = library("libpcre2-8.so.0", "pcre2_compile_8"), c.c_int(), c.c_size_t()
report("PCRE2 compiled pattern", pcre.pcre2_compile_8(b"a+b", c.c_size_t(3), 0, c.byref(code), c.byref(at), None))
archive = library("libarchive.so.13", *(f"archive_{kind}_new" for kind in ("read", "write", "read_disk", "write_disk")))
report("libarchive reader", archive.archive_read_new())
report("libarchive writer", archive.archive_write_new())
report("libarchive disk reader", archive.archive_read_disk_new())
report("libarchive disk writer", archive.archive_write_disk_new())
ssl = library("libssl.so.3", "TLS_client_method", "SSL_CTX_new", "SSL_new")
crypto = library("libcrypto.so.3", "BIO_s_mem", "BIO_new", "RSA_new", "EC_KEY_new")
context = ssl.SSL_CTX_new(P(ssl.TLS_client_method()))
report("OpenSSL SSL_CTX", context)
report("OpenSSL SSL", ssl.SSL_new(P(context)))
report("OpenSSL BIO (memory buffer)", crypto.BIO_new(P(crypto.BIO_s_mem())))
report("OpenSSL RSA", crypto.RSA_new())
report("OpenSSL EC_KEY", crypto.EC_KEY_new())
gobject, gio = library("libgobject-2.0.so.0", "g_object_new"), library("libgio-2.0.so.0")
for name, kind in (("GLib GObject", gobject.g_object_get_type), ("GLib object (GCancellable)", gio.g_cancellable_get_type)):
    kind.restype = c.c_size_t
    report(name, gobject.g_object_new(c.c_size_t(kind()), None))
report("ld.so's entry of the loaded file /lib/x86_64-linux-gnu/libarchive.so.13", archive._handle)
libc = library(None, "opendir")
report("DIR (opendir)", libc.opendir(b"/"))
found = P()
assert libc.getaddrinfo(b"127.0.0.1", b"80", None, c.byref(found)) == 0
report("addrinfo (getaddrinfo)", found.value)
pattern = c.create_string_buffer(64)
assert libc.regcomp(pattern, b"^user-[0-9]+$", 1) == 0
block = library(None, "malloc").malloc(64)
c.memmove(block, pattern, 64)
report("regex_t (regcomp)", block)
report("locale_t (newlocale)", library(None, "newlocale").newlocale(0x1FBF, b"C.UTF-8", None))
print("ready", flush=True)
time.sleep(1e6)
