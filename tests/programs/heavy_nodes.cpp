// Containers in which one node retains nearly all of the memory, and an array of circular lists. Prints "ready".
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <unistd.h>
#include <vector>

struct plugin { plugin *next; const char *name; void **instances; int count; };
struct slot_link { slot_link *next, *previous; };
struct timer { slot_link links; long at; char text[40]; };

plugin *registry;
std::map<std::string, std::vector<char *>> handlers;
slot_link *wheel;

enum { PLUGINS = 4, INSTANCES = 3000, TOPICS = 5, HANDLERS = 4000, SLOTS = 64, TIMERS = 6400 };

int main() {
    for (int i = 0; i < PLUGINS; i++) {
        plugin *made = (plugin *)calloc(1, sizeof *made);
        made->next = registry;
        made->name = "plugin";
        made->count = i == 1 ? (int)INSTANCES : 2;
        made->instances = (void **)calloc((size_t)made->count, sizeof(void *));
        for (int k = 0; k < made->count; k++) made->instances[k] = calloc(1, 200);
        registry = made;
    }
    for (int i = 0; i < TOPICS; i++)
        for (int k = 0; k < (i == 2 ? (int)HANDLERS : 1); k++) handlers["topic " + std::to_string(i)].push_back((char *)calloc(1, 120));
    wheel = (slot_link *)malloc(SLOTS * sizeof *wheel);
    for (int i = 0; i < SLOTS; i++) wheel[i].next = wheel[i].previous = &wheel[i];
    for (int i = 0; i < TIMERS; i++) {
        timer *made = (timer *)calloc(1, sizeof *made);
        slot_link *slot = &wheel[i * 7 % SLOTS];
        made->at = i;
        made->links.next = slot->next;
        made->links.previous = slot;
        slot->next->previous = &made->links;
        slot->next = &made->links;
    }
    puts("ready");
    fflush(stdout);
    return pause();
}
