/* A program that prints the true type of each of its blocks, as typed_truth.cpp does. Caches own arrays made by new T[n], values in the
 * nodes of containers, and objects made by std::make_shared and std::allocate_shared. Other pointers refer to these values. A fifth of
 * the caches is leaked. Blocks of the standard library are not printed.
 *
 *   typed_storage CACHES SEED */
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unistd.h>
#include <unordered_map>
#include <variant>
#include <vector>
template <class T> T *told(T *block, const char *type) {
    printf("%lx block %s\n", (unsigned long)block, type);
    return block;
}
struct Label {
    std::string text;
    int color;
    Label *next = nullptr;
};
struct Shape {
    long id;
    Label *label;
    long width, height;
};
struct Job {
    std::variant<std::monostate, Shape *, std::unique_ptr<Label>, std::string> what;
    std::optional<Label> maybe;
    std::shared_ptr<Shape> shared;
    Label *chosen = nullptr; /* refers into a node of Cache::by_id */
};
struct Cache {
    std::unordered_map<std::string, Shape *> by_name;
    std::map<long, Label> by_id;
    std::list<Shape *> order;
    std::deque<Job *> queue;
    std::unique_ptr<Label[]> labels;
    std::vector<std::optional<Label>> options;
};
static std::vector<Cache *> *caches;
static Label *label(int number) {
    return told(new Label{number % 3 ? "short" : "a label that is longer than the buffer", number}, "Label");
}
static Shape *shape(int number) { return told(new Shape{number, label(number), 3, 4}, "Shape"); }
static Job *job(int number, Cache *cache) {
    Job *made = told(new Job, "Job");
    if (number % 4 == 1)
        made->what = shape(number);
    if (number % 4 == 2)
        made->what = std::unique_ptr<Label>(label(number));
    if (number % 4 == 3)
        made->what = std::string("the text of a variant that is long enough");
    if (number % 3 == 0)
        made->maybe = Label{"an optional label with a long text", number, nullptr};
    if (number % 5 == 0)
        made->shared = std::shared_ptr<Shape>(shape(number), [](Shape *one) { delete one; });
    if (number % 5 == 1)
        made->shared = std::allocate_shared<Shape>(std::allocator<Shape>(), Shape{number, label(number), 5, 6});
    if (number % 5 == 2)
        made->shared = std::make_shared<Shape>(Shape{number, label(number), 7, 8});
    made->chosen = &cache->by_id[number % 6];
    return made;
}
static Cache *cache(int number) {
    Cache *made = told(new Cache, "Cache");
    for (int at = 0; at < 6; at++) {
        made->by_name["the name of the shape " + std::to_string(at)] = shape(at);
        made->by_id[at] = Label{"a label in a node of a map", at, label(at)};
        made->order.push_back(shape(at));
        made->queue.push_back(job(number + at, made));
    }
    made->labels.reset(new Label[4]);
    for (int at = 0; at < 4; at++) {
        made->labels[at].text = "a label in an array of labels";
        made->labels[at].next = label(at);
    }
    made->options.push_back(Label{"a label in a vector of optional labels", 1, label(1)});
    made->options.push_back(std::nullopt);
    return made;
}
int main(int argc, char **argv) {
    int count = argc > 1 ? atoi(argv[1]) : 50;
    caches = new std::vector<Cache *>;
    for (int at = 0; at < count; at++) {
        Cache *made = cache(at);
        if (at % 5 != 4)
            caches->push_back(made);
    }
    puts("ready");
    fflush(stdout);
    for (;;)
        pause();
}
