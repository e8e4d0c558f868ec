// Types of C++, and what the compiler knows of them: lines as those of type_layouts.c; and "base\tTYPE\tBASE\tOFFSET".
#include <cstddef>
#include <cstdio>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace app {
namespace {
struct Hidden {
    int a;
};
} // namespace
struct Plain {
    long plain;
};
struct Base {
    virtual ~Base() {}
    int b = 1;
};
struct Derived : Plain, Base {
    std::string name;
    Hidden hidden;
    static int total;
    typedef Base *parent_type;
    parent_type parent = nullptr;
};
struct Virtual : virtual Base {
    int v = 2;
};
template <typename T, int N>
struct Box {
    typedef T value_type;
    value_type items[N];
    long int tail;
};
class Registry {
  public:
    static std::map<std::string, std::shared_ptr<Base>> all;
    static int &count() {
        static int counted;
        return counted;
    }
    class Entry {
      public:
        Derived *first;
        Entry *next;
    };
};
enum class Level : unsigned char { LOW, HIGH };

int Derived::total = 4;
std::map<std::string, std::shared_ptr<Base>> Registry::all;
Level level = Level::HIGH;
Box<std::vector<long>, 3> box;
Box<unsigned long, 2> numbers;
Registry::Entry entry;
Virtual *shared;
int Derived::*member_pointer = nullptr;
Derived derived;
Derived &reference = derived;
} // namespace app
thread_local std::vector<int> scratch;

#define SIZE(type, name) printf("size\t%s\t%zu\n", name, sizeof(type))
#define AT(type, object, member) printf("member\t%s\t%s\t%zu\t%zu\n", type, #member, (size_t)((char *)&object.member - (char *)&object), sizeof object.member)
#define VARIABLE(name) printf("variable\t%s\t%#zx\t%zu\n", #name, (size_t)&name, sizeof name)

int main(int argc, char **) {
    using app::box, app::derived, app::entry;
    struct Local {
        int q;
        static int run() {
            static int deep;
            return deep++;
        }
    } local = {argc};
    auto lambda = [&](int x) { return x + local.q + Local::run(); };
    app::Registry::count() = lambda(1);
    app::shared = new app::Virtual;
    scratch.push_back(argc);
    SIZE(app::Derived, "app::Derived"), SIZE(app::Virtual, "app::Virtual"), SIZE(app::Hidden, "app::(anonymous namespace)::Hidden");
    printf("size\tapp::Box<std::vector<long, std::allocator<long> >, 3>\t%zu\n", sizeof box);
    printf("size\tapp::Box<unsigned long, 2>\t%zu\n", sizeof app::numbers);
    SIZE(app::Registry::Entry, "app::Registry::Entry"), SIZE(app::Level, "app::Level");
    AT("app::Derived", derived, name), AT("app::Derived", derived, hidden), AT("app::Derived", derived, parent), AT("app::Derived", derived, plain);
    AT("app::Derived", derived, b), AT("app::Registry::Entry", entry, next);
    printf("base\tapp::Derived\tapp::Base\t%zu\n", (size_t)((char *)static_cast<app::Base *>(&derived) - (char *)&derived));
    VARIABLE(app::Derived::total), VARIABLE(app::Registry::all), VARIABLE(app::level), VARIABLE(app::box), VARIABLE(app::entry), VARIABLE(app::shared);
    return 0;
}
