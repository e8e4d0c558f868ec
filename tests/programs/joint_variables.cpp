/* Global variables that retain one structure together. The argument selects the structures; the program then waits. */
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <unistd.h>
#include <unordered_map>
#include <vector>

enum { COUNT = 9000, BUCKETS = 4096 };

struct conn {
    unsigned long id;
    struct conn *next_by_id, *next_by_name;
    char name[40], *buffer;
};
struct table {
    struct conn **slots;
    unsigned size;
};
struct table conns_by_id, conns_by_name;
struct conn **conn_list;

namespace people {
struct User {
    long id;
    std::string name;
    std::vector<char> picture;
};
std::unordered_map<long, std::shared_ptr<User>> by_id;
std::map<std::string, std::shared_ptr<User>> by_name;
} // namespace people

std::vector<char *> first_own, second_own; /* each also retains most of its memory alone */

static void fill_tables() {
    conns_by_id.size = conns_by_name.size = 4096;
    conns_by_id.slots = static_cast<struct conn **>(calloc(BUCKETS, sizeof(void *)));
    conns_by_name.slots = static_cast<struct conn **>(calloc(BUCKETS, sizeof(void *)));
    conn_list = static_cast<struct conn **>(calloc(COUNT, sizeof(void *)));
    for (unsigned each = 0; each < COUNT; each++) {
        struct conn *made = static_cast<struct conn *>(calloc(1, sizeof *made));
        struct conn **id = &conns_by_id.slots[each * 2654435761u >> 20], **name = &conns_by_name.slots[(each * 40503u + 77) * 2654435761u >> 20];
        made->id = each;
        snprintf(made->name, sizeof made->name, "peer-%u", each);
        made->buffer = static_cast<char *>(calloc(1, 600));
        made->next_by_id = *id;
        made->next_by_name = *name;
        *id = *name = conn_list[each] = made;
    }
}

static void fill_maps() {
    for (long each = 0; each < COUNT; each++) {
        auto made = std::make_shared<people::User>();
        made->id = each;
        made->name = "user-with-a-long-name-" + std::to_string(each);
        made->picture.resize(600);
        people::by_id[each] = made;
        people::by_name[made->name] = made;
    }
}

/* A list that counts its nodes, and an array of pointers to them. `newest` is one more pointer to a node, as a stale one would be. */
struct job { struct job *next, *before, *chain; long id; char *text; };
struct job *job_slots[512], **job_table, *newest;
struct { struct job *first, *last; long count; } jobs;

static void fill_jobs(struct job **slots, long size) {
    for (long each = 0; each < COUNT; each++) {
        struct job *made = static_cast<struct job *>(calloc(1, sizeof *made));
        made->id = each;
        made->text = static_cast<char *>(calloc(1, 600));
        made->before = jobs.last;
        (jobs.last ? jobs.last->next : jobs.first) = made;
        jobs.last = newest = made;
        jobs.count++;
        if (slots) {
            made->chain = slots[each % size];
            slots[each % size] = made;
        }
    }
}

static void fill_own() {
    for (int each = 0; each < COUNT; each++) {
        first_own.push_back(static_cast<char *>(calloc(1, 300)));
        second_own.push_back(static_cast<char *>(calloc(1, 300)));
        if (each % 5 == 0) {
            first_own.push_back(static_cast<char *>(calloc(1, 300)));
            second_own.push_back(first_own.back());
        }
    }
}

int main(int, char **arguments) {
    job_table = static_cast<struct job **>(calloc(BUCKETS, sizeof(void *)));
    for (const char *each = arguments[1]; *each; each++)
        *each == 'l'   ? fill_jobs(nullptr, 0)
        : *each == 'a' ? fill_jobs(job_slots, 512)
        : *each == 'h' ? fill_jobs(job_table, BUCKETS)
        : *each == 't' ? fill_tables() : *each == 'm' ? fill_maps() : fill_own();
    puts("ready");
    fflush(stdout);
    for (;;)
        pause();
}
