/* Compiles numbers between bounds, digit by digit. */
#include "text/grammar/schema_impl.h"

#include "base/status.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* The most digits of an unbounded number or fraction: a small model once wrote hundreds. Doubles hold no
 * more. */
enum { DIGITS_MOST = 17 };

static tn_gx digits(tn_sc *c, char lo, char hi) {
    if (lo > hi) return TN_GX_NEVER;
    return tn_gx_set(c->b, &(tn_grange){(uint32_t)lo, (uint32_t)hi}, 1);
}

static tn_gx any_digits(tn_sc *c, size_t min, uint32_t max) {
    return tn_gx_rep(c->b, digits(c, '0', '9'), (uint32_t)min, max);
}

/* Compiles texts of n digits from lo to hi; NULL stands for 000... and 999... */
static tn_gx same_length(tn_sc *c, const char *lo, const char *hi, size_t n) {
    if (!n) return TN_GX_EMPTY;
    if (!lo && !hi) return any_digits(c, n, (uint32_t)n);
    char a = lo ? *lo : '0', z = hi ? *hi : '9';
    const char *lo_rest = lo ? lo + 1 : NULL, *hi_rest = hi ? hi + 1 : NULL;
    if (a == z) return TN_GX_SEQ(c->b, digits(c, a, a), same_length(c, lo_rest, hi_rest, n - 1));
    tn_gx x = TN_GX_NEVER;
    if (lo) x = TN_GX_SEQ(c->b, digits(c, a, a), same_length(c, lo_rest, NULL, n - 1));
    if (hi) x = TN_GX_ALT(c->b, x, TN_GX_SEQ(c->b, digits(c, z, z), same_length(c, NULL, hi_rest, n - 1)));
    char from = lo ? (char)(a + 1) : a, to = hi ? (char)(z - 1) : z;
    if (from > to) return x;
    return TN_GX_ALT(c->b, x, TN_GX_SEQ(c->b, digits(c, from, to), any_digits(c, n - 1, (uint32_t)(n - 1))));
}

/* Compiles whole numbers from lo to hi (or unbounded), without sign or leading zeros. */
static tn_gx whole(tn_sc *c, uint64_t lo, uint64_t hi, bool endless) {
    if (!endless && lo > hi) return TN_GX_NEVER;
    char a[24], z[24];
    size_t n_a = (size_t)snprintf(a, sizeof a, "%" PRIu64, lo),
           n_z = (size_t)snprintf(z, sizeof z, "%" PRIu64, hi);
    tn_gx x = TN_GX_NEVER;
    if (endless) {
        x = TN_GX_SEQ(c->b, digits(c, '1', '9'),
                      any_digits(c, n_a, n_a < DIGITS_MOST ? DIGITS_MOST - 1 : (uint32_t)n_a));
        n_z = n_a;
    }
    for (size_t n = n_a; n <= n_z; n++) {
        char least[24] = "1";
        memset(least + 1, '0', sizeof least - 2);
        bool last = n == n_z && !endless;
        tn_gx y = same_length(c, n == n_a ? a : least, last ? z : NULL, n);
        x = TN_GX_ALT(c->b, x, y);
    }
    return x;
}

static tn_gx fraction(tn_sc *c, bool nonzero) {
    tn_gx some = any_digits(c, 0, DIGITS_MOST);
    if (nonzero) return TN_GX_SEQ(c->b, tn_gx_str(c->b, "."), some, digits(c, '1', '9'), some);
    return TN_GX_SEQ(c->b, tn_gx_str(c->b, "."), any_digits(c, 1, DIGITS_MOST));
}

/* Compiles numbers from lo >= 0 to hi, both whole, without a sign. */
static tn_gx positive(tn_sc *c, tn_bounds b, bool integer) {
    bool endless = isinf(b.hi);
    if (b.lo > b.hi) return TN_GX_NEVER;
    uint64_t lo = (uint64_t)b.lo, hi = endless ? 0 : (uint64_t)b.hi;
    if (integer) {
        lo += b.lo_open;
        if (!endless && b.hi_open && !hi--) return TN_GX_NEVER;
        return whole(c, lo, hi, endless);
    }
    tn_gx zeros =
        TN_GX_SEQ(c->b, tn_gx_str(c->b, "."), tn_gx_rep(c->b, tn_gx_str(c->b, "0"), 1, DIGITS_MOST));
    tn_gx x = TN_GX_NEVER, any = tn_gx_rep(c->b, fraction(c, false), 0, 1);
    if (!endless && !b.hi_open && (lo < hi || !b.lo_open)) /* the upper bound itself */
        x = TN_GX_SEQ(c->b, whole(c, hi, hi, false), tn_gx_rep(c->b, zeros, 0, 1));
    if (!endless && lo == hi) return x;
    if (b.lo_open) { /* between lo and the next */
        x = TN_GX_ALT(c->b, x, TN_GX_SEQ(c->b, whole(c, lo, lo, false), fraction(c, true)));
        lo++;
    }
    if (endless || lo < hi)
        x = TN_GX_ALT(c->b, x, TN_GX_SEQ(c->b, whole(c, lo, endless ? 0 : hi - 1, endless), any));
    return x;
}

tn_gx tn_sc_between(tn_sc *c, tn_bounds b, bool integer) {
    if (integer) { /* whole bounds, both included */
        if (!isinf(b.lo)) b.lo = b.lo_open && b.lo == ceil(b.lo) ? b.lo + 1 : ceil(b.lo);
        if (!isinf(b.hi)) b.hi = b.hi_open && b.hi == floor(b.hi) ? b.hi - 1 : floor(b.hi);
        b.lo_open = b.hi_open = false;
    }
    const double most = 9007199254740992; /* 2^53: beyond it doubles skip integers */
    if ((!isinf(b.lo) && fabs(b.lo) > most) || (!isinf(b.hi) && fabs(b.hi) > most))
        return tn_sc_later(c, "a bound of numbers beyond 2^53")
                   ? tn_sc_any_number(c, integer)
                   : tn_sc_refuse(c, "a bound of numbers beyond 2^53");
    if ((!isinf(b.lo) && b.lo != floor(b.lo)) || (!isinf(b.hi) && b.hi != floor(b.hi))) {
        if (!tn_sc_later(c, "a bound with a fraction"))
            return tn_sc_refuse(c, "a bound with a fraction, for numbers that need not be integers,");
        b.lo_open = b.lo_open && b.lo == floor(b.lo);
        b.hi_open = b.hi_open && b.hi == floor(b.hi);
        b.lo = floor(b.lo), b.hi = ceil(b.hi);
    }
    if (b.lo > b.hi || (b.lo == b.hi && (b.lo_open || b.hi_open))) return TN_GX_NEVER;
    tn_gx x = TN_GX_NEVER;
    if (b.hi > 0 || (b.hi == 0 && !b.hi_open)) {
        tn_bounds up = {b.lo > 0 ? b.lo : 0, b.hi, b.lo >= 0 && b.lo_open, b.hi_open};
        x = positive(c, up, integer);
    }
    if (b.lo < 0) {
        tn_bounds down = {b.hi < 0 ? -b.hi : 0, -b.lo, b.hi >= 0 || b.hi_open, b.lo_open};
        x = TN_GX_ALT(c->b, x, TN_GX_SEQ(c->b, tn_gx_str(c->b, "-"), positive(c, down, integer)));
    }
    return x;
}

tn_gx tn_sc_any_number(tn_sc *c, bool integer) {
    tn_gx *kept = integer ? &c->integer : &c->number;
    if (!*kept) {
        tn_gx minus = tn_gx_rep(c->b, tn_gx_str(c->b, "-"), 0, 1), x;
        x = TN_GX_SEQ(c->b, minus, whole(c, 0, 0, true));
        if (!integer) {
            tn_gx e = tn_gx_set(c->b, (tn_grange[]){{'e', 'e'}, {'E', 'E'}}, 2);
            tn_gx sign = tn_gx_set(c->b, (tn_grange[]){{'+', '+'}, {'-', '-'}}, 2);
            tn_gx power = TN_GX_SEQ(c->b, e, tn_gx_rep(c->b, sign, 0, 1), any_digits(c, 1, 3));
            x = TN_GX_SEQ(c->b, x, tn_gx_rep(c->b, fraction(c, false), 0, 1), tn_gx_rep(c->b, power, 0, 1));
        }
        tn_grule r = tn_gb_rule(c->b, "", 0);
        tn_gb_define(c->b, r, x);
        *kept = tn_gx_rule(c->b, r);
    }
    return *kept;
}
