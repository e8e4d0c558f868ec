// Containers that grow. The first argument names the kind, the second the number of elements. Prints "ready" and waits.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory_resource>
#include <string>
#include <unistd.h>
#include <vector>
#ifdef WITH_ABSEIL
#include <absl/container/btree_map.h>
static absl::btree_map<std::string, std::string> sessions;
#endif
#ifdef WITH_BOOST
#include <boost/lockfree/queue.hpp>
#include <boost/unordered_map.hpp>
static boost::unordered_map<long, std::string> cached;
static boost::lockfree::queue<char *> jobs(1);
#endif

struct Record { Record *next, *previous; char text[80]; };
static struct { Record *first, *last; long count; } records;
static Record *forgotten;  // a stale pointer to a record

template <class T> struct Ring {  // a container that findleaks does not recognise
    T **slots;
    unsigned used, size;
};
static Ring<Record> ring;

static std::pmr::monotonic_buffer_resource *scratch;
static std::pmr::vector<std::pmr::string> *names;

static std::string text(long number) { return "a text that is too long for the string itself, number " + std::to_string(number); }

static void add(const char *kind, long number) {
    if (!strcmp(kind, "resource")) {  // at most 100 names, because the resource frees nothing
        if (names->size() > 100) names->clear();
        names->emplace_back(text(number));
    } else if (!strcmp(kind, "records")) {
        auto *made = new Record{nullptr, records.last, ""};
        snprintf(made->text, sizeof made->text, "record %ld", number);
        (records.last ? records.last->next : records.first) = made;
        records.last = made;
        if (records.count++ == number / 2) forgotten = made;
    }
    if (!strcmp(kind, "ring")) {
        if (ring.used == ring.size) {
            ring.size = ring.size ? 2 * ring.size : 1024;
            ring.slots = (Record **)realloc(ring.slots, ring.size * sizeof(Record *));
        }
        ring.slots[ring.used++] = new Record{nullptr, nullptr, "a record of the ring"};
    }
#ifdef WITH_ABSEIL
    if (!strcmp(kind, "btree")) sessions[text(number)] = text(-number);
#endif
#ifdef WITH_BOOST
    if (!strcmp(kind, "map")) cached[number] = text(number);
    if (!strcmp(kind, "jobs")) {
        char *job = new char[200];
        memset(job, 'j', 200);
        jobs.push(job);
    }
#endif
}

int main(int, char **words) {
    scratch = new std::pmr::monotonic_buffer_resource;
    names = new std::pmr::vector<std::pmr::string>(scratch);
    for (long number = 0; number < atol(words[2]); number++) add(words[1], number);
    volatile char dead[65536];  // overwrites stale words of the stack
    memset((char *)dead, 0, sizeof dead);
    puts("ready");
    fflush(stdout);
    sleep(3600);
}
