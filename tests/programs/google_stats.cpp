// The functions of gperftools' MallocExtension that tcmalloc_stats.c calls, implemented with Google's tcmalloc.
#include <cstddef>
#include <cstring>
#include <string>

extern "C" {
bool MallocExtension_Internal_GetNumericProperty(const char *name, size_t length, size_t *value);
void MallocExtension_Internal_GetStats(std::string *text);
int MallocExtension_GetNumericProperty(const char *name, size_t *value);
void MallocExtension_GetStats(char *buffer, int length);
}

int MallocExtension_GetNumericProperty(const char *name, size_t *value) {
    return MallocExtension_Internal_GetNumericProperty(name, strlen(name), value);
}

void MallocExtension_GetStats(char *buffer, int length) {
    static std::string text; // static: grows only in the first call
    MallocExtension_Internal_GetStats(&text);
    size_t size = text.size() < static_cast<size_t>(length) ? text.size() : static_cast<size_t>(length) - 1;
    memcpy(buffer, text.data(), size);
    buffer[size] = 0;
}
