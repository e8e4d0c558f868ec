// What tcmalloc_stats.c asks of gperftools' MallocExtension, answered by that of Google's tcmalloc.
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
    static std::string text; // grows the first time only
    MallocExtension_Internal_GetStats(&text);
    size_t size = text.size() < static_cast<size_t>(length) ? text.size() : static_cast<size_t>(length) - 1;
    memcpy(buffer, text.data(), size);
    buffer[size] = 0;
}
