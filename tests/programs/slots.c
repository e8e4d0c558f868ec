/* Leaves addresses of blocks in words of the frame of a function that waits in pause(): words that it never uses, one that it overwrites
   before it reads it, one that it reads. Prints "lost ADDRESS" and "held ADDRESS" a line, then "ready".
   usage: slots plain|address: with "address" the function passes the address of a word on, so that all its words may be read */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { WORDS = 6, FRAME = 56 };
static uintptr_t words[WORDS]; /* complements: no address is in memory */

/* spoil: what an earlier call leaves below the stack pointer, in the words of the frame that comes next.
   Of this frame the words 0, 1 and 4 are padding, 2 is read after each call, 3 is written first, 5 is padding, too. */
#define WAIT(name, more)                                                                                                                    \
    __asm__(".text\n.globl " #name "\n.type " #name ", @function\n" #name ":\n.cfi_startproc\n"                                             \
            "sub $56, %rsp\n.cfi_adjust_cfa_offset 56\n"                                                                                    \
            "mov 16(%rdi), %rax\n not %rax\n mov %rax, 16(%rsp)\n xor %eax, %eax\n xor %edi, %edi\n" more                                    \
            "1: call pause@PLT\n mov %rax, 24(%rsp)\n mov 24(%rsp), %rcx\n mov 16(%rsp), %rdx\n xor %edx, %edx\n jmp 1b\n"                    \
            ".cfi_endproc\n.size " #name ", .-" #name "\n")
WAIT(wait_plain, "");
WAIT(wait_address, "lea 8(%rsp), %rsi\n xor %esi, %esi\n");

void spoil_and_wait(const uintptr_t *words, void (*wait)(const uintptr_t *));
void wait_plain(const uintptr_t *words);
void wait_address(const uintptr_t *words);
__asm__(".text\n.globl spoil_and_wait\n.type spoil_and_wait, @function\nspoil_and_wait:\n.cfi_startproc\n"
        "push %rbx\n.cfi_adjust_cfa_offset 8\n mov %rsi, %rbx\n call spoil\n call *%rbx\n hlt\n"
        ".cfi_endproc\n.size spoil_and_wait, .-spoil_and_wait\n"
        /* Word n of the frame is at entry - 56 + 8n. */
        ".type spoil, @function\nspoil:\n.cfi_startproc\n.altmacro\n"
        ".irp number, 0, 1, 2, 3, 4, 5\n mov 8*\\number(%rdi), %rax\n not %rax\n mov %rax, -56+8*\\number(%rsp)\n .endr\n"
        "xor %eax, %eax\n ret\n.cfi_endproc\n.size spoil, .-spoil\n");

static void __attribute__((noinline)) make(int all_held) {
    for (int i = 0; i < WORDS; i++) {
        void *volatile block = malloc(3000 + 16 * (size_t)i);
        words[i] = ~(uintptr_t)block;
        printf("%s %p\n", all_held || i == 2 ? "held" : "lost", block);
        block = NULL;
    }
    puts("ready");
    fflush(stdout);
}

static void __attribute__((noinline)) sweep(void) {
    volatile char waste[1 << 15];
    for (unsigned i = 0; i < sizeof waste; i++) waste[i] = 0;
}

int main(int argc, char **argv) {
    int address = argc > 1 && !strcmp(argv[1], "address");
    make(address);
    sweep();
    spoil_and_wait(words, address ? wait_address : wait_plain);
}
