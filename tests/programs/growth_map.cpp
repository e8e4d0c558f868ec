// A registry of several containers, one of which grows. Reads numbers from standard input, a line each: adds as many entries to the
// map `sessions` (or takes as many away, if the number is negative), and to each other field nothing that stays. Prints what each field holds: its offset, and its elements.
#include <cstdio>
#include <list>
#include <map>
#include <string>
#include <vector>

struct Session {
    long user, hits;
};

class Registry {
public:
    virtual ~Registry() = default;
    long enabled = 1;
    std::map<long, std::string> names;
    std::map<long, Session> sessions;
    std::list<long> events;
    std::vector<double> samples;
};

Registry *g_registry;
std::map<int, long> g_settings;

int main() {
    g_registry = new Registry;
    for (int i = 0; i < 3000; i++) {
        g_settings[i] = i;
        g_registry->names[i] = "a name long enough for a block of its own #" + std::to_string(i);
        g_registry->events.push_back(i);
        g_registry->samples.push_back(i);
    }
    for (long count = 0, key = 0;;) {
        for (; count < 0 && !g_registry->sessions.empty(); count++)
            g_registry->sessions.erase(g_registry->sessions.begin());
        while (count-- > 0) {
            g_registry->sessions[key++] = Session{key, 1};
            g_registry->events.push_back(key);
            g_registry->events.pop_front();
        }
        const char *start = (const char *)g_registry;
        std::printf("names %d %zu\n", (int)((const char *)&g_registry->names - start), g_registry->names.size());
        std::printf("sessions %d %zu\n", (int)((const char *)&g_registry->sessions - start), g_registry->sessions.size());
        std::printf("events %d %zu\n", (int)((const char *)&g_registry->events - start), g_registry->events.size());
        std::printf("ready\n");
        std::fflush(stdout);
        if (std::scanf("%ld", &count) != 1)
            return 0;
    }
}
