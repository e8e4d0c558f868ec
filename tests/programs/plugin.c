/* Two allocators in one process: the program's malloc is libc's, that of the plugin (this file with -DPLUGIN, with a jemalloc linked in that
 * it does not export) is its own. Blocks of each hold, and lose, blocks of the other. Prints them as truth.c does.
 * usage: plugin PLUGIN.so */
#include "truth.h"

#ifdef PLUGIN

hidden plugin_make(size_t size) {
    struct block b = {malloc(size), size, 0};
    fill(b.p, malloc_usable_size(b.p));
    return hide(b.p);
}
void plugin_note(hidden h, size_t size, const char *kind, hidden leader) { note((struct block){reveal(h), size, 0}, kind, reveal(leader), "plugin"); }
void plugin_free(hidden h, size_t size) {
    truth_other = 1;
    free_and_note((struct block){reveal(h), size, 0}, "plugin-freed");
}

#else
#include <dlfcn.h>

static hidden (*plugin_make)(size_t);
static void (*plugin_note)(hidden, size_t, const char *, hidden);
static void (*plugin_free)(hidden, size_t);
static void *volatile held[400];

static NOINLINE hidden own(size_t size) {
    struct block b = {malloc(size), size, 0};
    fill(b.p, malloc_usable_size(b.p));
    return hide(b.p);
}

static NOINLINE void own_note(hidden h, size_t size, const char *kind, hidden leader) {
    note((struct block){reveal(h), size, 0}, kind, reveal(leader), "program");
}

static NOINLINE void put(hidden holder, size_t word, hidden value) { ((void *volatile *)reveal(holder))[word] = reveal(value); }

static NOINLINE void pairs(void) {
    const hidden none = ~(hidden)0;
    for (size_t i = 0; i < 400; i++) {
        size_t size = 40 + i * 37 % 3000 + (i % 50 ? 0 : 200000);
        hidden mine = own(size), its = plugin_make(size);
        switch (i % 4) {
        case 0:
            held[i] = reveal(mine);
            put(mine, 3, its);
            own_note(mine, size, "reachable", none);
            plugin_note(its, size, "reachable", none);
            break;
        case 1:
            held[i] = reveal(its);
            put(its, 2, mine);
            own_note(mine, size, "reachable", none);
            plugin_note(its, size, "reachable", none);
            break;
        case 2:
            put(its, 2, mine);
            own_note(mine, size, "indirect", its);
            plugin_note(its, size, "definite", its);
            break;
        default:
            put(mine, 1, its);
            own_note(mine, size, "definite", mine);
            plugin_note(its, size, "indirect", mine);
        }
    }
}

static NOINLINE void frees(void) {
    hidden made[100];
    for (size_t i = 0; i < 100; i++) made[i] = plugin_make(24 + 16 * i);
    for (size_t i = 0; i < 100; i++) plugin_free(made[i], 24 + 16 * i);
    explicit_bzero(made, sizeof made);
}

int main(int argc, char **argv) {
    void *library = argc > 1 ? dlopen(argv[1], RTLD_NOW | RTLD_LOCAL) : NULL;
    if (!library) {
        const char *why = dlerror();
        if (why && write(2, why, strlen(why)) < 0) return 3;
        return 2;
    }
    plugin_make = (hidden(*)(size_t))dlsym(library, "plugin_make");
    plugin_note = (void (*)(hidden, size_t, const char *, hidden))dlsym(library, "plugin_note");
    plugin_free = (void (*)(hidden, size_t))dlsym(library, "plugin_free");
    pairs();
    frees();
    scrub();
    hidden nothing[9];
    for (int i = 0; i < 9; i++) nothing[i] = ~(hidden)0;
    stop(nothing, 1);
}
#endif
