/* A process whose names a test replaces by names of the same length: its library's file and what is in it, a file with data that is mapped, the
   program itself. usage: escapes_program LIBRARY DATA sound|damaged|ticking */

#include <cstdio>
#include <dlfcn.h>

int main(int argc, char **argv)
{
    void *library = argc == 4 ? dlopen(argv[1], RTLD_NOW) : nullptr;
    auto begin = library ? reinterpret_cast<void (*)(const char *, const char *)>(dlsym(library, "begin")) : nullptr;
    if (!begin) {
        std::fprintf(stderr, "no library: %s\n", argc == 4 ? dlerror() : "three words, please");
        return 1;
    }
    begin(argv[2], argv[3]);
    return 0;
}
