/* A program that prints the true type of each of its blocks, as typed_truth.cpp does: documents with several base classes own sheets.
 * Sheets own cells and trees of rules. std::shared_ptr, std::variant and void pointers refer to further objects, such as sessions.
 * A fifth of the documents is leaked. Blocks of the standard library are not printed.
 *
 *   typed_graph DOCUMENTS SEED */
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <variant>
#include <vector>
#include <unistd.h>
template <class T> T *told(T *block, const char *type) {
    printf("%lx block %s\n", (unsigned long)block, type);
    return block;
}
#define NEW(type, ...) told(new type{__VA_ARGS__}, #type)
static unsigned seed = 1;
static int chance(int most) { return (int)((seed = seed * 1103515245u + 12345u) >> 16) % most; }
struct Observer {
    virtual void changed() = 0;
    virtual ~Observer() = default;
    Observer *next_observer = nullptr;
};
struct Named {
    std::string name;
    Named *alias = nullptr;
};
template <class T> struct Tree {
    T *left = nullptr, *right = nullptr, *parent = nullptr;
};
struct Rule : Tree<Rule> {
    long weight;
    Named *subject = nullptr;
    explicit Rule(long of) : weight(of) {}
};
enum Tag { NUMBER, NAMED, CELLS };
struct Cell {
    union {
        double number;
        Named *named;
        Cell *cells;
    };
    int tag, count;
};
struct Sheet {
    std::vector<Cell> cells;
    std::map<long, Rule *> by_weight;
    std::list<Named *> names;
    Sheet *below = nullptr;
};
struct Document : Named, Observer {
    void changed() override {}
    Sheet *sheet = nullptr;
    std::deque<Sheet *> history;
    std::function<void()> on_close;
    void *user = nullptr;
    int user_kind = 0;
};
struct Session {
    long id;
    Document *open;
    void *cookie;
    std::optional<Named> who;
};
struct Cookie { /* of the same size class as Named */
    Session *session;
    char bytes[24];
};
struct Ticket {
    long serial, expires;
    Session *session;
    Ticket *next;
};
struct Registry {
    std::unordered_map<std::string, Document *> documents;
    std::vector<std::shared_ptr<Session>> shared;
    Observer *observers = nullptr;
    std::variant<Sheet *, Ticket *, Rule *> last;
    Ticket *tickets = nullptr;
};
Registry *registry;
static Rule *tree(int depth, Rule *parent) {
    Rule *made = told(new Rule(chance(1000)), "Rule");
    made->parent = parent;
    if (chance(2)) {
        made->subject = NEW(Named);
        made->subject->name = "short";
    }
    if (depth) {
        made->left = tree(depth - 1, made);
        if (chance(3))
            made->right = tree(depth - 1, made);
    }
    return made;
}
static Cell cell(int deep) {
    static const char *const types[] = {"Cell[2]", "Cell[3]", "Cell[4]"};
    Cell made{};
    made.tag = chance(deep ? CELLS : CELLS + 1);
    if (made.tag == NUMBER)
        made.number = chance(1000) / 7.0;
    if (made.tag == NAMED) {
        made.named = NEW(Named);
        made.named->name = chance(2) ? "inside" : "a cell with quite a long name";
    }
    if (made.tag == CELLS) {
        made.count = 2 + chance(3);
        made.cells = told(new Cell[made.count], types[made.count - 2]);
        for (int at = 0; at < made.count; at++)
            made.cells[at] = cell(1);
    }
    return made;
}
static Sheet *sheet(int depth) {
    Sheet *made = NEW(Sheet);
    for (int at = 0; at < 5; at++)
        made->cells.push_back(cell(0));
    Rule *top = tree(3, nullptr);
    made->by_weight[top->weight] = top;
    for (int at = 0; at < 3; at++)
        made->names.push_back(NEW(Named));
    if (depth)
        made->below = sheet(depth - 1);
    return made;
}
int main(int argc, char **argv) {
    int count = argc > 1 ? atoi(argv[1]) : 50;
    seed = argc > 2 ? (unsigned)atoi(argv[2]) : 1;
    registry = NEW(Registry);
    for (int at = 0; at < count; at++) {
        Document *one = NEW(Document);
        one->name = "document " + std::to_string(at) + " with a long name";
        one->sheet = sheet(1);
        for (int each = 0; each < 2; each++)
            one->history.push_back(sheet(0));
        Session *session = NEW(Session);
        session->id = at;
        session->open = one;
        Cookie *cookie = NEW(Cookie);
        cookie->session = session;
        session->cookie = cookie;
        one->user_kind = chance(2);
        one->user = one->user_kind ? (void *)NEW(Ticket, at, 5, session, nullptr) : tree(2, nullptr);
        one->on_close = [one, session, at] { session->id += at + one->user_kind; };
        if (at % 5 != 4) {
            registry->documents[one->name] = one;
            registry->shared.emplace_back(session, [](Session *) {});
            one->next_observer = registry->observers;
            registry->observers = one;
            registry->tickets = NEW(Ticket, at, 7, session, registry->tickets);
            registry->last = registry->tickets;
        }
    }
    puts("ready");
    fflush(stdout);
    for (;;)
        pause();
}
