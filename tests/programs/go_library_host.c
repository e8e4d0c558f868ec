/* This program is linked with the archive of go_library.go. It calls Start(COUNT), and prints "ready". */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

void Start(long count);

int main(int count, char **words) {
    if (count != 2)
        return 1;
    Start(atol(words[1]));
    puts("ready");
    fflush(stdout);
    for (;;)
        pause();
}
