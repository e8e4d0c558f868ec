// Pointers behind the first word of blocks: arrays of objects with a destructor, whose number is in that word (argument "arrays"), or
// blocks of numbers whose first word is a kind.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <unistd.h>

struct Row {
    long number;
    std::string name;
};

static void *volatile held[600];

int main(int argc, char **argv) {
    for (int at = 0; at < 600; at++) {
        int count = 2 + at % 9;
        if (argc > 1 && !strcmp(argv[1], "arrays")) {
            Row *rows = new Row[count];
            for (int row = 0; row < count; row++) rows[row].number = row + 1;
            held[at] = rows;
        } else {
            long *words = static_cast<long *>(malloc(8 * (4 + at % 7 * 2)));
            words[0] = 2 + at % 5;
            for (int word = 1; word < 4 + at % 7 * 2; word++) words[word] = word;
            held[at] = words + 1;
        }
    }
    puts("ready");
    fflush(stdout);
    pause();
}
