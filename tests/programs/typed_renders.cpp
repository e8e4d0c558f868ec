// A program that prints the true type of each of its objects: renderers, of which only one is not leaked, and assets with a std::variant.
// An array of such variants has the size of a renderer.
//
//   typed_renders RENDERERS SEED
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <stack>
#include <string>
#include <unistd.h>
#include <variant>
#include <vector>

struct Texture {
    long width, height;
    Texture *parent;
};

struct Asset {
    std::string name = "an asset";
    std::variant<std::shared_ptr<Texture>, Texture *, std::vector<std::string>> data;
};

struct Render {
    std::multimap<int, Texture *> layers;
    std::stack<Texture *> order;
    Texture *first;
};

template <class T> static T *say(T *object, const char *type) {
    printf("%lx b %s\n", (unsigned long)object, type);
    return object;
}

std::vector<Asset *> assets;
Render *kept;

__attribute__((noinline)) static Render *make_render(long number) {
    Render *made = say(new Render, "Render");
    made->first = say(new Texture{number, 16, nullptr}, "Texture");
    for (int i = 0; i < 3; i++)
        made->order.push(say(new Texture{number, i + 1, made->first}, "Texture"));
    return made;
}

__attribute__((noinline)) static void fill(int count) {
    kept = make_render(1);
    for (int i = 0; i < count; i++) {
        assets.push_back(say(new Asset, "Asset"));
        assets.back()->data = say(new Texture{i + 1, 32, nullptr}, "Texture");
        make_render(i + 2);
    }
}

__attribute__((noinline)) static void clear() {
    volatile char space[16384];
    for (unsigned i = 0; i < sizeof space; i++)
        space[i] = 0;
}

int main(int count, char **words) {
    fill(count > 1 ? atoi(words[1]) : 20);
    clear();
    puts("ready");
    fflush(stdout);
    for (;;)
        pause();
}
