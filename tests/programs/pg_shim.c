/* Preloaded into a program that uses libpq: adds up the true results of PQresultMemorySize, and returns 0 instead if PG_UNCOUNTED is set. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
#include <stdlib.h>

size_t pg_true_size;

size_t PQresultMemorySize(const void *result) {
    size_t (*real)(const void *) = (size_t (*)(const void *))dlsym(RTLD_NEXT, "PQresultMemorySize");
    size_t size = real(result);
    pg_true_size += size;
    return getenv("PG_UNCOUNTED") ? 0 : size;
}
