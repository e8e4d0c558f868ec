// A program that prints the true type of each of its blocks. Its cells have the name and the layout of OnceLock in Rust. The values of two
// cells were taken out: their states are those of the start of the program, and their stale pointers refer to objects of another type.
// Newer releases of Rust start with another state than older ones.
//
//   typed_taken
#include <cstdio>
#include <unistd.h>
namespace std::sync::once_lock { template <class T> struct OnceLock { T value; unsigned once; }; }
struct Account { long number, balance; Account *next; };
struct Sample { long low, high, count; };
__attribute__((used)) static std::sync::once_lock::OnceLock<Account *> taken = {nullptr, 3}, kept = {nullptr, 3}, older_taken, older_kept;
__attribute__((used)) static unsigned long samples[2];
template <class T> static T *tell(T *made, const char *type) { printf("%lx reachable %s\n", (unsigned long)made, type); return made; }
int main() {
    Sample *first = tell(new Sample{1, 2, 3}, "Sample"), *second = tell(new Sample{4, 5, 6}, "Sample");
    samples[0] = (unsigned long)first, samples[1] = (unsigned long)second;
    taken = {(Account *)first, 3}, older_taken = {(Account *)second, 0};
    kept = {tell(new Account{7, 8, nullptr}, "Account"), 0}, older_kept = {tell(new Account{9, 10, nullptr}, "Account"), 3};
    first = second = nullptr;
    puts("ready");
    fflush(stdout);
    for (;;) pause();
}
