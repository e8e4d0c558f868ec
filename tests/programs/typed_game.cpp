// A program that prints the true type of its own objects, as typed_truth.cpp does: the server of a game. Nodes of containers are not
// printed. Classes have several bases; components are variants; systems use pmr containers; queues are deques of unique pointers.
//
//   typed_game ROOMS SEED
#include <any>
#include <array>
#include <cstdint>
#include <cstdio>
#include <deque>
#include <forward_list>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <memory_resource>
#include <optional>
#include <set>
#include <stack>
#include <string>
#include <unistd.h>
#include <unordered_map>
#include <unordered_set>
#include <variant>
#include <vector>
static unsigned long state = 1;
static bool leaking;
static unsigned roll(unsigned n) { state = state * 6364136223846793005ul + 1442695040888963407ul; return (unsigned)(state >> 33) % n; }
template <class T> __attribute__((noinline)) T *told(T *block, const char *type) { printf("%lx %s %s\n", (unsigned long)block, leaking ? "leaked" : "reachable", type); return block; }
#define NEW(T, ...) told(new T{__VA_ARGS__}, #T)
static std::string text() { std::string s; for (unsigned n = 3 + roll(30); n; n--) s += (char)('a' + roll(26)); return s; }
struct Serial { virtual ~Serial() = default; virtual int save() const { return version; } int version = 3; };
struct Tickable { virtual void tick() {} virtual ~Tickable() = default; unsigned period = 20; };
struct Entity; struct Room; struct Item;
struct Vec3 { float x, y, z; };
struct Mesh { std::string path; std::vector<Vec3> points; std::vector<unsigned> faces; };
struct Body { Vec3 at, speed; double mass; Body *attached; };
struct Sprite { std::string sheet; int frame; Mesh *mesh; };
struct Script { std::string source; std::vector<std::string *> args; std::unordered_map<std::string, double> globals; };
struct Health { int now, most; std::vector<struct Effect *> effects; };
struct Effect { std::string name; int turns; Entity *source; Effect *stacked; };
using Component = std::variant<std::monostate, Body, std::unique_ptr<Sprite>, std::shared_ptr<Script>, Health, std::vector<Item *>>;
struct Entity : Serial, Tickable { std::string name; std::vector<Component> parts; Room *room = nullptr; std::optional<std::vector<Entity *>> party; int save() const override { return 1; } };
struct Npc : Entity { std::deque<std::unique_ptr<struct Goal>> goals; Entity *foe = nullptr; void tick() override {} };
struct Player : Entity { std::map<std::string, Item *> bag; std::optional<std::string> title; std::weak_ptr<struct Guild> guild; };
struct Item { unsigned kind; unsigned count; std::optional<std::vector<Effect *>> enchants; Item *inside; };
struct Goal { enum { Walk, Kill, Fetch } kind; std::variant<Vec3, Entity *, Item *> target; std::unique_ptr<Goal> then; };
struct Guild { std::string name; std::set<Player *> members; std::multimap<int, std::shared_ptr<struct Letter>> board; };
struct Letter { std::string from, body; std::forward_list<Item *> gifts; };
struct Tile { unsigned short ground, height; Item *top; };
struct Room { std::string name; std::unique_ptr<Tile[]> tiles; unsigned width, depth; std::array<Room *, 4> exits{}; std::list<std::unique_ptr<Entity>> inside; std::deque<struct Event> events; std::any extra; };
struct Event { double when; Entity *who; std::function<void(Room &)> run; };
struct Weather { int rain; std::vector<double> forecast; }; struct Quest { std::string title; std::vector<std::shared_ptr<Goal>> steps; Quest *next; };
struct Matrix { unsigned rows, columns; double **row; };
struct Index { std::pmr::vector<Entity *> all; std::pmr::unordered_map<std::pmr::string, Entity *> by_name; std::pmr::list<Event *> late; Index() = default; };
struct Undo { std::stack<std::variant<Item *, Room *, std::string>> stack; std::optional<std::deque<Item *>> redo; };
static struct { std::vector<std::unique_ptr<Room>> rooms; std::vector<std::shared_ptr<Guild>> guilds; std::unordered_set<Player *> players; Index *index; std::map<unsigned, std::unique_ptr<Undo>> undo; std::vector<Matrix *> paths; std::map<std::string, std::vector<Quest *>> quests; } *world;
static __attribute__((noinline)) Effect *effect(Entity *of) { return NEW(Effect, text(), (int)roll(9), of, roll(3) ? nullptr : effect(of)); }
static __attribute__((noinline)) Item *item(int depth) {
    Item *made = NEW(Item, roll(90), roll(9) + 1, std::nullopt, depth > 0 && roll(2) ? item(depth - 1) : nullptr);
    if (roll(2)) { made->enchants.emplace(); for (unsigned n = 1 + roll(3); n; n--) made->enchants->push_back(effect(nullptr)); told(made->enchants->data(), "Effect *[]"); }
    return made;
}
static __attribute__((noinline)) std::unique_ptr<Goal> goal(Entity *foe, int depth) {
    std::unique_ptr<Goal> made(NEW(Goal));
    switch (roll(3)) { case 0: made->kind = Goal::Walk; made->target = Vec3{1, 2, 3}; break; case 1: made->kind = Goal::Kill; made->target = foe; break; case 2: made->kind = Goal::Fetch; made->target = item(0); }
    if (depth > 0 && roll(2)) made->then = goal(foe, depth - 1);
    return made;
}
static __attribute__((noinline)) void components(Entity *of) {
    for (unsigned count = 1 + roll(4); count; count--)
        switch (roll(5)) {
        case 0: of->parts.emplace_back(Body{{1, 2, 3}, {0, 1, 0}, roll(100) / 3.0, nullptr}); break;
        case 1: { auto *sprite = NEW(Sprite, text(), (int)roll(9), nullptr); if (roll(2)) { sprite->mesh = NEW(Mesh, text()); sprite->mesh->points.assign(3 + roll(9), Vec3{1, 1, 1}); } of->parts.emplace_back(std::unique_ptr<Sprite>(sprite)); break; }
        case 2: { std::shared_ptr<Script> script(NEW(Script, text())); for (unsigned n = roll(4); n; n--) script->args.push_back(new std::string(text())); script->globals[text()] = 1; of->parts.emplace_back(script); break; }
        case 3: { Health health{(int)roll(50), 50, {}}; for (unsigned n = 1 + roll(3); n; n--) health.effects.push_back(effect(of)); told(health.effects.data(), "Effect *[]"); of->parts.emplace_back(std::move(health)); break; }
        case 4: { std::vector<Item *> items; for (unsigned n = 1 + roll(4); n; n--) items.push_back(item(1)); told(items.data(), "Item *[]"); of->parts.emplace_back(std::move(items)); break; }
        }
}
static __attribute__((noinline)) Letter *letter() { Letter *made = NEW(Letter, text(), text()); for (unsigned n = roll(3); n; n--) made->gifts.push_front(item(0)); return made; }
static __attribute__((noinline)) Player *player(Room *in, const std::shared_ptr<Guild> &guild) {
    Player *made = NEW(Player); made->name = text(); made->room = in; made->guild = guild; components(made);
    for (unsigned n = roll(5); n; n--) made->bag[text()] = item(1);
    if (roll(2)) made->title = text();
    if (!leaking) { guild->members.insert(made); guild->board.emplace(roll(9), std::shared_ptr<Letter>(letter())); }
    return made;
}
static __attribute__((noinline)) Npc *npc(Room *in, Entity *foe) {
    Npc *made = NEW(Npc); made->name = text(); made->room = in; made->foe = foe; components(made);
    for (unsigned n = 1 + roll(4); n; n--) made->goals.push_back(goal(foe, 2));
    if (foe && roll(2)) { made->party.emplace(); made->party->push_back(foe); made->party->push_back(made); told(made->party->data(), "Entity *[]"); }
    return made;
}
static __attribute__((noinline)) Room *room(Room *before) {
    Room *made = NEW(Room); made->name = text(); made->width = 2 + roll(4); made->depth = 2 + roll(4);
    made->tiles.reset(told(new Tile[made->width * made->depth]{}, "Tile[]"));
    for (unsigned at = 0; at < made->width * made->depth; at++) { made->tiles[at].ground = (unsigned short)roll(50); if (roll(3) == 0) made->tiles[at].top = item(0); }
    made->exits[roll(4)] = before;
    for (unsigned n = 1 + roll(4); n; n--) {
        Entity *one;
        if (roll(2)) one = player(made, world->guilds[roll((unsigned)world->guilds.size())]); else one = npc(made, made->inside.empty() ? nullptr : made->inside.front().get());
        made->inside.emplace_back(one);
        if (roll(3) == 0) { std::string words = text(); made->events.push_back(Event{1.5, one, [one, words](Room &r) { r.name = words + one->name; }}); }
        if (!leaking) { world->index->all.push_back(one); world->index->by_name.emplace(one->name, one); }
    }
    if (roll(2)) made->extra = Weather{3, {1.5, 2.5}}; else made->extra = std::string("plain") + text();
    return made;
}
static __attribute__((noinline)) void undo(unsigned number) { auto *made = NEW(Undo); for (unsigned n = roll(6); n; n--) if (roll(2)) made->stack.push(item(0)); else made->stack.push(text()); if (roll(2)) { made->redo.emplace(); for (unsigned n = 1 + roll(3); n; n--) made->redo->push_back(item(0)); } if (!leaking) world->undo[number].reset(made); }
static __attribute__((noinline)) void path() { auto *made = NEW(Matrix, 2 + roll(4), 2 + roll(4), nullptr); made->row = told(new double *[made->rows]{}, "double *[]"); for (unsigned at = 0; at < made->rows; at++) { made->row[at] = new double[made->columns]; for (unsigned n = 0; n < made->columns; n++) made->row[at][n] = n / 3.0; } if (!leaking) world->paths.push_back(made); }
static __attribute__((noinline)) void quest() { auto *made = NEW(Quest, text()); for (unsigned n = 1 + roll(4); n; n--) made->steps.push_back(std::shared_ptr<Goal>(goal(nullptr, 1))); if (!leaking) { auto &all = world->quests[std::string(1 + roll(20), 'q')]; made->next = all.empty() ? nullptr : all.back(); all.push_back(made); } }
static __attribute__((noinline)) void clear_stack() { volatile char space[32768]; for (size_t at = 0; at < sizeof space; at++) space[at] = 0; }
int main(int argc, char **argv) {
    unsigned rooms = argc > 1 ? (unsigned)atoi(argv[1]) : 300;
    state = argc > 2 ? strtoul(argv[2], nullptr, 10) : 1;
    setvbuf(stdout, nullptr, _IOFBF, 1 << 20);
    world = new std::remove_pointer_t<decltype(world)>;
    world->index = NEW(Index);
    for (unsigned at = 0; at < 20; at++) { world->guilds.emplace_back(NEW(Guild, text())); }
    for (unsigned at = 0; at < rooms; at++) {
        leaking = at % 5 == 4;
        Room *made = room(world->rooms.empty() ? nullptr : world->rooms.back().get());
        if (!leaking) world->rooms.emplace_back(made);
        undo(at); path(); quest();
    }
    clear_stack();
    puts("ready");
    fflush(stdout);
    for (;;) pause();
}
