/* Functions inlined into each other, through a namespace, a template, a lambda and a class. Each notes its name and the line of its call,
   so that the program can print the stack that it stops with, the innermost first: "frame NAME LINE". Then it says "ready", and waits;
   with an argument it goes on calling instead. */
#include <cstdio>
#include <cstdlib>
#include <unistd.h>

#define INLINE inline __attribute__((always_inline))
#define APART __attribute__((noinline))
#define NOTE(name) (names[depth] = name, lines[depth++] = __LINE__)

static const char *names[64];
static int lines[64];
static int depth;
static int calls;
static bool goes_on;
volatile int steps;

extern "C" APART void wait_here(int inner) {
    for (int i = depth - 1; i >= 0 && !calls; i--)
        printf("frame %s %d\n", names[i], lines[i]);
    if (!calls++) {
        printf("ready\n");
        fflush(stdout);
    }
    depth = 0;
    if (goes_on)
        usleep(1000);
    else
        pause();
    steps += inner;
}

namespace deep {
struct Parser {
    int state = 0;
    INLINE int feed(int more) {
        state += more;
        NOTE("deep::Parser::feed"), wait_here(state);
        return state + steps;
    }
};

template <typename T> static INLINE T twice(T value) {
    Parser parser;
    T made = value;
    for (T i = 0; i < value; i++)
        NOTE("deep::twice"), made += parser.feed(i + 1);
    return made;
}
} // namespace deep

static INLINE int stepwise(int count) {
    auto step = [](int n) __attribute__((always_inline)) {
        return NOTE("lambda"), deep::twice<long>(n);
    };
    return NOTE("stepwise"), step(count) + steps;
}

extern "C" APART int outer(int count) {
    steps++;
    return NOTE("outer"), stepwise(count) + steps;
}

int main(int argc, char **) {
    goes_on = argc > 1;
    do {
        NOTE("main"), steps += outer(3);
    } while (goes_on);
    return steps;
}
