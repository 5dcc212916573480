/* libraries/stubs.h - the functions of a library under their own names, in a program that is not linked with it.
 *
 * Each is a jump through a slot that loaded.c fills with the function's address, so arguments (variadic ones too)
 * and results pass unchanged. Slots lie in RELRO: read-only, except while a library is loaded. One file for each
 * library lists its functions; one that is called and not listed is a linker error. Internal to libraries/. */
#ifndef TN_LIBRARIES_STUBS_H
#define TN_LIBRARIES_STUBS_H

#include <stddef.h>

/* What every slot holds until its library is loaded: a caller that did not ask first ends the program here. */
__attribute__((visibility("hidden"))) void tn_library_not_loaded(void);

typedef struct tn_stub {
    const char *name;
    void **slot;
} tn_stub;

#if defined(__x86_64__)
#define TN_STUB_JUMP(slot) "endbr64\n jmp *" slot "(%rip)\n"
#elif defined(__aarch64__)
#define TN_STUB_JUMP(slot)                                                                                   \
    "hint #34\n adrp x16, " slot "\n ldr x16, [x16, #:lo12:" slot "]\n br x16\n" /* bti c */
#endif

#define TN_STUB(f)                                                                                           \
    extern __attribute__((visibility("hidden"))) void *tn_slot_##f;                                          \
    __attribute__((section(".data.rel.ro.slots"))) void *tn_slot_##f = (void *)tn_library_not_loaded;        \
    __asm__(".pushsection .text\n .p2align 4\n .globl " #f "\n .hidden " #f "\n .type " #f                   \
            ", %function\n" #f                                                                               \
            ":\n .cfi_startproc\n " TN_STUB_JUMP("tn_slot_" #f) " .cfi_endproc\n .size " #f ", . - " #f      \
                                                                "\n .popsection\n");
#define TN_STUB_ROW(f) {#f, &tn_slot_##f},

/* A library: its SONAME, Debian's package, what it is for in tern. `stubs` ends with a row
 * whose name is NULL. */
typedef struct tn_loaded {
    const char *file, *package, *what;
    const tn_stub *stubs;
} tn_loaded;

/* The program tells in an ELF note what it may load, as systemd's ELF_DLOPEN_METADATA has it (scripts/loads.py). */
#define TN_LOADED_NOTE(file, what)                                                                           \
    __asm__(".pushsection .note.dlopen, \"a\", %note\n .balign 4\n .long 4, 2f - 1f, 0x407c0c0a\n"           \
            " .asciz \"FDO\"\n1: .asciz \"[{\\\"feature\\\":\\\"" what                                       \
            "\\\",\\\"priority\\\":\\\"recommended\\\",\\\"soname\\\":[\\\"" file                            \
            "\\\"]}]\"\n2: .balign 4\n .popsection\n");

/* FUNCTIONS(F) is F(name) for every function. */
#define TN_LOADED(name, file, package, what)                                                                 \
    FUNCTIONS(TN_STUB)                                                                                       \
    static const tn_stub stubs[] = {FUNCTIONS(TN_STUB_ROW){NULL, NULL}};                                     \
    extern __attribute__((visibility("hidden"))) const tn_loaded name;                                       \
    const tn_loaded name = {file, package, what, stubs};                                                     \
    TN_LOADED_NOTE(file, what)

#endif
