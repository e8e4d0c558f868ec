// A program that prints the true type of each of its blocks: structs that begin with an object of a class with virtual functions, or with a
// std::function. Their first word is the address of another class's vtable. A fifth of the blocks is leaked.
//
//   typed_members COUNT SEED
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <unistd.h>
#include <vector>
struct Shape { virtual ~Shape() = default; virtual long area() const { return side * side; } long side = 3; long *cache = nullptr; };
struct Circle : Shape { long area() const override { return 3 * side * side; } long radius = 1; };
struct Drawing { Shape first; long layer; Drawing *below; };
struct Badge { Circle mark; Badge *next; long owner[3]; };
struct Timer { std::function<long()> run; unsigned period; Timer *next; };
static struct { std::vector<Shape *> shapes; Drawing *drawings; Badge *badges; Timer *timers; } world;
template <class T> __attribute__((noinline)) T *told(T *block, bool leaked, const char *type) { printf("%lx %s %s\n", (unsigned long)block, leaked ? "leaked" : "reachable", type); return block; }
static __attribute__((noinline)) void clear_stack() { volatile char space[32768]; for (unsigned at = 0; at < sizeof space; at++) space[at] = 0; }
int main(int argc, char **argv) {
    unsigned count = argc > 1 ? (unsigned)atoi(argv[1]) : 100;
    for (unsigned at = 0; at < count; at++) {
        bool leaked = at % 5 == 4;
        Shape *shape = at % 2 ? told<Shape>(new Circle, leaked, "Circle") : told(new Shape, leaked, "Shape");
        Drawing *drawing = told(new Drawing{{}, (long)at, world.drawings}, leaked, "Drawing");
        Badge *badge = told(new Badge{{}, world.badges, {(long)at, 0, 0}}, leaked, "Badge");
        Timer *timer = told(new Timer{[shape] { return shape->side; }, at, world.timers}, leaked, "Timer");
        if (leaked) continue;
        world.shapes.push_back(shape);
        world.drawings = drawing;
        world.badges = badge;
        world.timers = timer;
    }
    clear_stack();
    puts("ready");
    fflush(stdout);
    for (;;) pause();
}
