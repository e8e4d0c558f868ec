// A program that ends with a fault whose pointer has the same value as a word that it was not loaded from. Usage: crash_origins WORD.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#define SEPARATE __attribute__((noinline, noclone))

struct record { long id; record *parent; const char *name; };
record first, second, *current = &first;
char *unused;
char table[64];

SEPARATE void check(record *one) { if (!one->id) throw 1; }
[[noreturn]] SEPARATE void fail(record *one) { throw one ? 2 : 3; }
SEPARATE long read_caught(record *one, record *parent) { // the null pointer is the argument
    try {
        check(one);
        parent = one->parent;
        fail(parent);
    } catch (int) {
    }
    return parent->id;
}

SEPARATE size_t measure(const char *, record *one) { return std::strlen(one->name); } // jumps to strlen()
SEPARATE size_t measure_twice(record *one) { return measure(unused, one) + measure(unused, one); }

extern "C" {
// Jump to each other. The null pointer is not the one that the caller passed.
__asm__(".text\n.type odd, @function\nodd: .cfi_startproc\n\txor %edi, %edi\n\tjmp even\n\t.cfi_endproc\n.size odd, .-odd\n"
        ".type even, @function\neven: .cfi_startproc\n\tdec %esi\n\tjs 1f\n\tjmp odd\n1:\tmov (%rdi), %rax\n\tret\n\t.cfi_endproc\n.size even, .-even");
long even(record *one, int count);
// The second part of the function is elsewhere, as compilers place it. Its pointer is not an argument.
__asm__(".type moved, @function\nmoved: .cfi_startproc\n\tmov 8(%rdi), %rdi\n\ttest %rdi, %rdi\n\tje moved.cold\n\tret\n\t.cfi_endproc\n.size moved, .-moved\n"
        ".type moved.cold, @function\nmoved.cold: .cfi_startproc\n\tmov (%rdi), %rax\n\tret\n\t.cfi_endproc\n.size moved.cold, .-moved.cold");
long moved(record *one); long passed(record *one); long sum_names(record *one); record *make_list();
}
SEPARATE long read_reentered(record *one) { return even(one->parent, 1) + one->id; }

SEPARATE long read_byte(unsigned long index, const char *bytes) { // the index is the base register
    long found;
    __asm__ volatile("movsbq (%1,%2), %0" : "=r"(found) : "r"(index), "r"(bytes));
    return found;
}
SEPARATE long read_table(unsigned long index) {
    long found;
    __asm__ volatile("movsbq table(%1), %0" : "=r"(found) : "r"(index));
    return found;
}
SEPARATE void release_in_handler(record *one) { try { check(one); } catch (int) { std::free(const_cast<char *>(one->name)); throw; } } // GCC moves the handler
int main(int, char **words) {
    const char *word = words[1];
    first.parent = &second;
    if (!std::strcmp(word, "caught")) { first.parent = nullptr; return (int)read_caught(current, second.parent); }
    if (!std::strcmp(word, "jumped")) return (int)measure_twice(current);
    if (!std::strcmp(word, "reentered")) { first.parent = nullptr; return (int)read_reentered(current); }
    if (!std::strcmp(word, "moved")) return (int)(moved(&second) + 1);
    if (!std::strcmp(word, "passed")) { first.parent = nullptr; return (int)passed(current); } if (!std::strcmp(word, "base")) return (int)read_byte(1UL << 40, table);
    if (!std::strcmp(word, "table")) return (int)read_table(1UL << 40);
    if (!std::strcmp(word, "handler")) { first.name = static_cast<char *>(std::malloc(40)) + 16; release_in_handler(current); }
    if (!std::strcmp(word, "listed")) { record *last = make_list(); last->parent = (record *)0x646e692f20544547; return (int)sum_names(current); }
    if (!std::strcmp(word, "keyed")) { std::free(make_list()); return (int)sum_names(current); }
    return 0;
}
// One path ends with a jump to the address in a register, after it removed the frame. The null pointer is first.parent.
__asm__(".text\n.type passed, @function\npassed: .cfi_startproc\n\tpush %rbx\n\t.cfi_def_cfa_offset 16\n\t.cfi_offset %rbx, -16\n"
        "\tmov %rdi, %rbx\n\tcmpq $0, (%rbx)\n\tjne 2f\n1:\tmov 8(%rbx), %rdi\n\tmov (%rdi), %rax\n\tjmp 1b\n"
        "2:\tmov 16(%rbx), %rax\n\tpop %rbx\n\t.cfi_def_cfa_offset 8\n\tjmp *%rax\n\t.cfi_endproc\n.size passed, .-passed");
SEPARATE long sum_names(record *one) {
    long sum = 0;
    for (; one; one = one->parent) sum += one->name[0];
    return sum;
}
SEPARATE record *make_list() { // return the third of five blocks in the list of `current`
    record *third = nullptr;
    first.name = "first", first.parent = nullptr;
    for (int count = 0; count < 5; count++) {
        record *one = static_cast<record *>(std::malloc(sizeof *one));
        one->name = "name", one->parent = first.parent, first.parent = one, third = count == 2 ? one : third;
    }
    std::fprintf(stderr, "block=%p\n", static_cast<void *>(third));
    return third;
}
