// A profiler whose maps are cleaned wrongly: an event is taken from one map by its number, from the other by a key that never is there.
// Also one of each standard container. Prints, of each field, its offset in its owner, what it holds (elements, blocks, usable bytes).
#include "counted_new.h"
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <forward_list>
#include <list>
#include <map>
#include <set>
#include <string>
#include <unistd.h>
#include <unordered_map>
#include <vector>

struct Site {
    long line, hits;
};

class Profiler {
public:
    virtual ~Profiler() = default;
    long enabled = 1;
    void *spare[4] = {};
    std::map<long, std::string> names;
    std::map<long, Site> sites;
    std::set<std::string> words;
    std::unordered_map<long, long> counts;
    std::list<long> events;
    std::forward_list<long> recent;
    std::vector<Site *> order;
    std::vector<double> samples;
    std::deque<long long> waiting;
    std::string title;
};

Profiler *g_agent;
static std::map<int, Site> local_sites;

static const char *what = "";
static long before_blocks, before_bytes;

static void begin(const char *name) {
    what = name;
    before_blocks = counted_blocks;
    before_bytes = counted_bytes;
}

// `offset` is where the container's own object begins in its owner.
static void end(const void *field, const void *owner, long length) {
    std::printf("%s %ld %ld %ld %ld\n", what, (long)((const char *)field - (const char *)owner), length, counted_blocks - before_blocks,
                counted_bytes - before_bytes);
}

int main(int argc, char **argv) {
    long events = argc > 1 ? std::atol(argv[1]) : 1000;
    Profiler *agent = new Profiler;
    Profiler *volatile again = agent; // a stack also points to it; it is still attributed to the variable
    std::printf("agent 0 1 1 %ld\n", (long)malloc_usable_size(agent));
    long empty_blocks = counted_blocks - 1, empty_bytes = counted_bytes - (long)malloc_usable_size(agent); // a deque always has at least one chunk
    begin("names");
    for (long i = 0; i < events; i++)
        agent->names[i * 7919 % 1000003] = i % 2 ? "short" : "a name long enough for a block of its own #" + std::to_string(i % 10);
    for (long i = 0; i < events; i++)
        agent->names.erase(-i - 1); // the error: there is no such key
    end(&agent->names, agent, (long)agent->names.size());
    begin("sites");
    for (long i = 0; i < events; i++)
        agent->sites[i] = Site{i, 1};
    for (long i = 0; i < events; i += 2)
        agent->sites.erase(i);
    end(&agent->sites, agent, (long)agent->sites.size());
    begin("words");
    for (long i = 0; i < events; i++)
        agent->words.insert("word" + std::to_string(i));
    end(&agent->words, agent, (long)agent->words.size());
    begin("counts");
    for (long i = 0; i < events; i++)
        agent->counts[i * 31] = i;
    end(&agent->counts, agent, (long)agent->counts.size());
    begin("events");
    for (long i = 0; i < events; i++)
        agent->events.push_back(i);
    end(&agent->events, agent, (long)agent->events.size());
    begin("recent");
    for (long i = 0; i < events; i++)
        agent->recent.push_front(i);
    end(&agent->recent, agent, events);
    begin("order");
    for (long i = 0; i < events; i++)
        agent->order.push_back(new Site{i, 2});
    end(&agent->order, agent, (long)agent->order.size());
    begin("samples");
    for (long i = 0; i < events; i++)
        agent->samples.push_back(0.25 * (double)i);
    end(&agent->samples, agent, (long)agent->samples.size());
    begin("waiting");
    for (long i = 0; i < events; i++)
        agent->waiting.push_back(i);
    for (long i = 0; i < events / 3; i++)
        agent->waiting.pop_front();
    before_blocks -= empty_blocks;
    before_bytes -= empty_bytes;
    end(&agent->waiting, agent, (long)agent->waiting.size());
    begin("title");
    agent->title = "a title that is longer than fifteen characters";
    end(&agent->title, agent, 1);
    begin("local_sites");
    for (int i = 0; i < events / 2; i++)
        local_sites[i] = Site{i, 3};
    end(&local_sites, &local_sites, (long)local_sites.size());
    g_agent = again;
    std::puts("ready");
    std::fflush(stdout);
    for (;;)
        pause();
}
