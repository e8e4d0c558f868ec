/* Runs the stub on a stack that the caller prepared, with known values in registers and flags, to detect changes of them. */

/* `stack`: the stack pointer at entry. Its first word is replaced by the return address, which is returned. */
unsigned long run(void *stub, unsigned long *stack, unsigned long fp) {
    unsigned long back;
    __asm__ volatile("push %%rbp\n\t"
                     "lea 1f(%%rip), %%rax\n\t"
                     "mov %%rax, (%%rsi)\n\t"
                     "mov %%rsp, %%rbx\n\t"
                     "mov %%rdx, %%rbp\n\t"
                     "mov %%rsi, %%rsp\n\t"
                     "jmp *%%rdi\n"
                     "1:\n\t"
                     "mov %%rbx, %%rsp\n\t"
                     "pop %%rbp"
                     : "=a"(back)
                     : "D"(stub), "S"(stack), "d"(fp)
                     : "rbx", "rcx", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15", "cc", "memory");
    return back;
}

/* Sets the general registers and the flags from `seed`, and calls the stub, which returns at its end. Afterwards
 * `out` has the flags, rax, rbx, rcx, rdx, rsi, rdi, rbp, r8 to r15, and the last word of the red zone. */
void preserved(void *stub, unsigned long seed, unsigned long *out) {
    __asm__ volatile("push %%rbp\n\t"
                     "push %%rdx\n\t"
                     "push %%rdi\n\t"
                     "sub $512, %%rsp\n\t"
                     "mov %%rsi, -136(%%rsp)\n\t"
                     "mov %%rsi, %%rax\n\t"
                     "lea 1(%%rsi), %%rbx\n\t lea 2(%%rsi), %%rcx\n\t lea 3(%%rsi), %%rdx\n\t lea 5(%%rsi), %%rdi\n\t"
                     "lea 6(%%rsi), %%rbp\n\t lea 7(%%rsi), %%r8\n\t lea 8(%%rsi), %%r9\n\t lea 9(%%rsi), %%r10\n\t"
                     "lea 10(%%rsi), %%r11\n\t lea 11(%%rsi), %%r12\n\t lea 12(%%rsi), %%r13\n\t lea 13(%%rsi), %%r14\n\t"
                     "lea 14(%%rsi), %%r15\n\t"
                     "push %%rsi\n\t and $0x8d5, %%rsi\n\t or $0x202, %%rsi\n\t push %%rsi\n\t popfq\n\t mov (%%rsp), %%rsi\n\t"
                     "lea 8(%%rsp), %%rsp\n\t"
                     "call *512(%%rsp)\n\t"
                     "push %%r15\n\t push %%r14\n\t push %%r13\n\t push %%r12\n\t push %%r11\n\t push %%r10\n\t push %%r9\n\t"
                     "push %%r8\n\t push %%rbp\n\t push %%rdi\n\t push %%rsi\n\t push %%rdx\n\t push %%rcx\n\t push %%rbx\n\t"
                     "push %%rax\n\t pushfq\n\t"
                     "mov 648(%%rsp), %%rdi\n\t" /* behind the 16 that were pushed, 512 bytes, and the stub */
                     "mov %%rsp, %%rsi\n\t mov $16, %%ecx\n\t cld\n\t rep movsq\n\t"
                     "mov -8(%%rsp), %%rax\n\t mov %%rax, (%%rdi)\n\t"
                     "add $648, %%rsp\n\t"
                     "pop %%rdx\n\t"
                     "pop %%rbp\n\t"
                     : "+S"(seed), "+d"(out), "+D"(stub)
                     :
                     : "rax", "rbx", "rcx", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15", "cc", "memory");
}
