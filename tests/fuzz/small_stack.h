/* fuzz/small_stack.h - an input is read by a thread whose stack is half as large as that of any thread of ours, so that
 * a recursion that nobody counts is a crash here and not in a server. */
#ifndef TN_FUZZ_SMALL_STACK_H
#define TN_FUZZ_SMALL_STACK_H

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#if defined(__SANITIZE_ADDRESS__) || defined(TERN_FUZZING)
enum { SMALL_STACK = 2 << 20 }; /* frames have redzones there, and are eight times as large */
#else
enum { SMALL_STACK = 256 << 10 };
#endif

typedef struct small_input {
    void (*read)(const uint8_t *data, size_t size);
    const uint8_t *data;
    size_t size;
} small_input;

static void *read_small(void *arg) {
    small_input *i = arg;
    i->read(i->data, i->size);
    return NULL;
}

static inline void on_small_stack(void (*read)(const uint8_t *, size_t), const uint8_t *data, size_t size) {
    small_input i = {read, data, size};
    pthread_attr_t a;
    pthread_t t;
    if (pthread_attr_init(&a) || pthread_attr_setstacksize(&a, SMALL_STACK) ||
        pthread_create(&t, &a, read_small, &i) || pthread_join(t, NULL))
        abort();
    pthread_attr_destroy(&a);
}

#endif
