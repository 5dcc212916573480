/* Where does sparse attention begin? Times of pieces with answers that follow by hand. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "measure/tune.h"

enum { N = 4, PIECE = 512 };

static int32_t begins(const double full[N], const double sparse[N]) {
    const double *const us[2] = {full, sparse};
    return tn_tune_begins(us, N, PIECE);
}

/* The first piece that is faster ends at the place, at the next power of two. */
static void within_the_prompt(void **state) {
    (void)state;
    assert_int_equal(begins((double[]){100, 200, 300, 400}, (double[]){90, 110, 130, 150}), 512);
    assert_int_equal(begins((double[]){100, 200, 300, 400}, (double[]){150, 170, 190, 210}), 1024);
    assert_int_equal(begins((double[]){100, 200, 300, 400}, (double[]){250, 270, 290, 310}), 2048);
    /* A piece in front of one that is slower does not count. */
    assert_int_equal(begins((double[]){100, 200, 300, 400}, (double[]){90, 110, 310, 350}), 2048);
    /* What is faster by less than a fiftieth is not faster: these lines cross after the prompt. */
    assert_int_equal(begins((double[]){100, 200, 300, 400}, (double[]){397, 397, 397, 397}), 4096);
}

/* Lines that cross beyond the prompt: gains of -400, -300, -200, -100 are none in the fifth piece. */
static void beyond_the_prompt(void **state) {
    (void)state;
    const double full[N] = {102, 204, 306, 408}, sparse[N] = {500, 500, 500, 500};
    double later[N], never[N], worse[N];
    assert_int_equal(begins(full, sparse), 4096); /* 5 pieces and less than one */
    for (int i = 0; i < N; i++) later[i] = 1500, never[i] = 5000, worse[i] = full[i] * 1.5;
    assert_int_equal(begins(full, later), 8192); /* 1500 * 1.02 / 102 = 15: the fifteenth piece */
    assert_int_equal(begins(full, never), TN_TUNE_NEVER);
    assert_int_equal(begins(full, worse), TN_TUNE_NEVER); /* the lines part */
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(within_the_prompt),
                                       cmocka_unit_test(beyond_the_prompt)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
