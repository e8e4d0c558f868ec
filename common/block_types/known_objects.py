"""Rules for objects of well-known libraries; see hallmarks.py.

Each rule was written from the library's public headers or sources.
tests/integration/test_hallmarks.py checks each rule against an object that it makes with the
libraries of Debian 12."""

from __future__ import annotations

TABLE = """
# zlib 1.2.11 to 1.3 (zutil.h, inflate.h: mode; deflate.h: status, and strm->state leads back)
zlib deflate state: size = 5000..; word 0.56 = self; u32 8 = 42|57|69|73|91|103|113|666
zlib inflate state: size = 7000..10000; u32 8 = 16180..16211
# bzip2 1.0 (bzlib_private.h: EState, DState). strm->state leads back.
bzip2 compression state: size = 55000..60000; word 0.48 = self; u32 8 = 1..4; u32 12 = 1|2
bzip2 decompression state: size = 60000..; word 0.48 = self; u32 8 = 1..50
# curl 7.30 to 8 (urldata.h CURLEASY_MAGIC_NUMBER, multihandle.h CURL_MULTI_HANDLE, curl_share.h)
curl easy handle: size = 1000..; u32 0 = 0xc0dedbad
curl multi handle: size = 200..; u32 0 = 0x000bab1e
curl share handle: size = 100..; u32 0 = 0x7e117a1e
# libxml2 2.9 to 2.14 (tree.h: xmlDoc, xmlNode; parser.h: xmlParserCtxt, xmlSAXHandler)
libxml2 xmlDoc: size = 150..; u32 8 = 9|13|21; word 64 = self
libxml2 xmlNode {16}: u32 8 = 1; u32 64.8 = 9|13|21; word 64.64 = @64
libxml2 xmlNode: u32 8 = 2..8; u32 64.8 = 9|13|21; word 64.64 = @64
libxml2 xmlParserCtxt: size = 500..; word 8 = self; code 0.0 = libxml2*
# SQLite 3.7 to 3.50 (sqliteInt.h: sqlite3, sqlite3_vfs; vdbeInt.h: Vdbe). Behind the length of the request.
SQLite connection: at = 0|8; size = 300..; text 0.24 = unix*; code 0.40 = *
SQLite prepared statement: at = 0|8; size = 150..; text 0.0.24 = unix*; code 0.0.40 = *
# PCRE and PCRE2 (pcre2_intmodedep.h: pcre2_real_code; pcre_internal.h: REAL_PCRE)
PCRE2 compiled pattern: size = 128..; u32 80 = 0x50435245
PCRE compiled pattern: size = 48..; u32 0 = 0x50435245
# libarchive 3 (archive_private.h)
libarchive reader: u32 0 = 0x00deb0c5; size = 100..
libarchive writer: u32 0 = 0xb0c5c0de; size = 100..
libarchive disk reader: u32 0 = 0x0badb0c5; size = 100..
libarchive disk writer: u32 0 = 0xc001b0c5; size = 100..
# OpenSSL 1.1 to 3.1 (ssl_local.h: ssl_st, ssl_ctx_st, ssl_method_st; bio_local.h; rsa_local.h)
OpenSSL SSL: size = 1000..; u32 0 = 0x300..0x304|0xfeff|0xfefd; code 8.16 = libssl*
OpenSSL SSL_CTX: size = 500..; code 8.16 = libssl*
OpenSSL BIO ({8.8}): size = 80..; text 8.8 = *; code 8.16 = *; code 8.32 = *
OpenSSL RSA: size = 100..; text 24.0 = OpenSSL *RSA*
OpenSSL EC_KEY: size = 60..; text 0.0 = OpenSSL EC_KEY*
# GLib 2.26 to 2.74 (gtype.c: TypeNode, whose supers[0] is the type itself; gobject.h: GObjectClass)
# Private data precedes an instance in its block.
GLib object ({gtype 0.0}): loaded = libgobject*; at = 0|16|32|48|64|80|96|112|128|160|192|224|256; word 0.0.72 = @0.0
GLib GObject: size = 24..; word 0.0 = 80; code 0.24 = libgobject*
# Exceptions of C++ (libstdc++: unwind-cxx.h, __cxa_refcounted_exception; libc++abi: cxa_exception.h).
# Offset 16 has the std::type_info of the object. Offset 96 has the class in _Unwind_Exception: "GNUCC++" or "CLNGC++".
C++ exception ({class 16.8}): size = 128..; text 16.8 = *; word 96 = 0x474e5543432b2b00|0x434c4e47432b2b00
# libstdc++ since GCC 5 (eh_alloc.cc: pool). If malloc has never failed, the first free entry takes all of the pool.
libstdc++'s emergency pool for exceptions: size = 72704..73760; word 0 = 72700..73760; word 8 = 0; loaded = libstdc++*
# ld.so (link.h: struct link_map; include/link.h: l_real)
ld.so's entry of the loaded file {8}: size = 1000..; word 40 = self; text 8 = *
# glibc (dirstream.h: struct __dirstream; netdb.h: struct addrinfo with its address behind it; regex.h: struct re_pattern_buffer, whose
# buffer is a re_dfa_t of `allocated` = `used` bytes; bits/types/__locale_t.h: data and names of 13 categories, without those of LC_ALL)
DIR (opendir): size = 32816..33024; u32 0 = 0..1048576; u32 4 = 0; word 8 = 32768; word 16 = 0..32768
addrinfo (getaddrinfo): u32 4 = 2|10; u32 16 = 16|28; word 24 = self+48
regex_t (regcomp): size = 64..; word 8 = 216..248; word 16 = @8; word 24 = 1..0x7ffffff; word 0.8 = 1..1000000; word 0.16 = 1..1000000
locale_t (newlocale): size = 232..; word 48 = 0; text 0.0 = *; text 8.0 = *; text 96.0 = *; text 128 = *; text 136 = *; text 224 = *
"""
