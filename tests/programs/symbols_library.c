// A library whose symbols end before its data does: a function and a mark without a size, and variables without symbols behind them.
#include <stdlib.h>
#include <string.h>

__asm__(".text\n.globl sizeless_function\nsizeless_function:\nnop\nret\n");
__asm__(".data\n.globl sizeless_mark\n.balign 64\nsizeless_mark:\n");
__asm__(".quad 0\n.local behind\nbehind: .quad 0\n.text\n");
extern void *behind;
void *sized;

void **keep(int which) {
    void **place = which ? &sized : &behind;
    *place = memset(malloc(700), 'k', 700);
    return place;
}
