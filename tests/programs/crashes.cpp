/* A program that ends in the way its argument names. What it prints to stderr last is the truth. */
#include <cassert>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <stdexcept>
#include <string>
#include <thread>

static void *volatile kept[64];

struct Refused : std::runtime_error {
    int code;
    Refused(const std::string &text, int number) : std::runtime_error(text), code(number) {}
};
struct Literal : std::runtime_error {
    Literal() : std::runtime_error("the text of the base") {}
    const char *what() const noexcept override { return "a literal text"; }
};
struct Member : std::exception {
    std::string text = "a text in a member of the class";
    const char *what() const noexcept override { return text.c_str(); }
};
struct Array : std::exception {
    char text[32] = "a text in an array";
    const char *what() const noexcept override { return text; }
};
struct Composed : std::runtime_error {
    std::string prefix = "composed";
    Composed() : std::runtime_error("the text of the base") {}
    const char *what() const noexcept override {
        static std::string whole;
        whole = prefix + ": " + std::runtime_error::what();
        return whole.c_str();
    }
};
struct Shape {
    virtual ~Shape() {}
    virtual long area() = 0;
    Shape() { measure(); }
    __attribute__((noinline)) void measure() { kept_area = area(); }
    long kept_area;
};
struct Circle : Shape {
    long area() override { return 3; }
};
struct Session {
    char text[56];
    virtual ~Session() { kept[59] = text; }
};
struct Request {
    long references;
    char name[40];
};

static void end(int, siginfo_t *, void *) { abort(); }

static const char word_table[4096] = "words";
static volatile long words_left = 1L << 40, kept_number;

__attribute__((noinline)) static long deeper(long count) {
    volatile char frame[200];
    frame[0] = (char)count;
    return count ? deeper(count - 1) + frame[0] : 0;
}

__attribute__((noinline)) static void parse_header(const char *word) {
    if (!strcmp(word, "throw")) throw Refused("no route to host 17", 3);
    if (!strcmp(word, "nested")) {
        try {
            throw Refused("no route to host 17", 3);
        } catch (const std::exception &) {
            std::throw_with_nested(std::runtime_error("cannot read the table"));
        }
    }
    if (!strcmp(word, "circle")) { /* damage makes an exception contain itself */
        try {
            parse_header("nested");
        } catch (const std::exception &error) {
            void **words = (void **)&error;
            words[3] = words;
            throw;
        }
    }
    if (!strcmp(word, "bare")) throw; /* there is no exception */
    if (!strcmp(word, "literal")) throw Literal();
    if (!strcmp(word, "member")) throw Member();
    if (!strcmp(word, "array")) throw Array();
    if (!strcmp(word, "composed")) throw Composed();
    if (!strcmp(word, "virtual")) Circle();
    if (!strcmp(word, "thread")) std::thread([] {}); /* that nothing joins */
    if (!strcmp(word, "rethrown")) { /* like std::future::get, which throws the exception of another thread */
        std::exception_ptr thrown;
        std::thread([&thrown] {
            try {
                throw Refused("no route to host 23", 4);
            } catch (...) {
                thrown = std::current_exception();
            }
        }).join();
        std::rethrow_exception(thrown);
    }
    if (!strcmp(word, "number")) throw 42;
    if (!strcmp(word, "string")) throw "a plain text";
    if (!strcmp(word, "object")) throw std::string("an object of class string");
    if (!strcmp(word, "assert")) assert(!"positive count");
    if (!strcmp(word, "null")) *(volatile int *)(uintptr_t)kept[60] = 1;
    if (!strcmp(word, "handled")) { /* the handler of the fault ends the process */
        struct sigaction action = {};
        action.sa_sigaction = end;
        action.sa_flags = SA_SIGINFO;
        sigaction(SIGSEGV, &action, nullptr);
        ((volatile char *)kept[60])[48] = 1;
    }
    if (!strcmp(word, "call")) kept[61] = (void *)(uintptr_t)((long (*)(long))kept[60])(words_left); /* kept[60] is null */
    if (!strcmp(word, "data")) kept[61] = (void *)(uintptr_t)((long (*)(long))kept[50])(words_left);
    if (!strcmp(word, "field")) ((volatile char *)kept[60])[24] = 1;
    if (!strcmp(word, "wild")) *(volatile char *)0x123456789000 = 1;
    if (!strcmp(word, "noncanonical")) *(volatile char *)0x8123456789abcdef = 1;
    if (!strcmp(word, "double")) {
        void *block = malloc(100);
        kept[0] = block;
        free(block);
        free((void *)kept[0]);
    }
    if (!strcmp(word, "overrun")) {
        for (int i = 0; i < 8; i++) kept[i] = malloc(1240);
        memset((void *)kept[2], 'A', 1240 + 24);
        free((void *)kept[3]);
    }
    if (!strcmp(word, "deleted")) {
        Session *volatile session = new Session;
        fprintf(stderr, "%p\n", (void *)session);
        delete session;
        delete session; /* calls the destructor through the vtable pointer of the deleted object */
    }
    if (!strcmp(word, "release")) { /* a reference is given back after the object was freed */
        for (int i = 0; i < 8; i++) kept[i] = malloc(sizeof(Request));
        Request *request = (Request *)kept[3];
        free((void *)kept[2]);
        free(request);
        request->references--;
        abort();
    }
    if (!strcmp(word, "readonly")) *(volatile char *)(uintptr_t)word_table = 1;
    if (!strcmp(word, "deep")) deeper(words_left);
    if (!strcmp(word, "deep-thread")) std::thread([] { deeper(words_left); }).join();
    if (!strcmp(word, "abort")) abort();
    if (!strcmp(word, "index")) kept[0] = (void *)&std::string(word)[64 + kept_number];
    if (!strcmp(word, "printed")) {
        for (int i = 0; i < 4; i++)
            fprintf(fopen("program.log", "w"), "accepted the connection\n");
        printf("reading table %d\n", 7);
        abort();
    }
}

int main(int, char **words) {
    kept[50] = malloc(100);
    parse_header(words[1]);
    return 0;
}
