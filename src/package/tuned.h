/* package/tuned.h - the results of `tern bench --tune` (measure/tune.h) for a package on this machine,
 * read from the profile beside the package. */
#ifndef TN_PACKAGE_TUNED_H
#define TN_PACKAGE_TUNED_H

#include "package/npu_model.h"

enum { TN_TUNED_READS = 4 };

#define TN_TUNED_READ_DEFAULT "uring-direct"                  /* where nothing was measured */
extern const char *const tn_tuned_read_names[TN_TUNED_READS]; /* methods of base/aio.h */

/* Sets the way of reading that was measured here to be fastest, by the profile (NULL or unreadable: the usual one). */
void tn_tuned_method(const char *profile_path, tn_aio_options *o);
/* Decides how to read a package, or a quantised file (profile_path may be NULL): through the page cache if it is cached, else as the
 * profile says, else
 * directly. */
void tn_tuned_read(int fd, const char *profile_path, tn_aio_options *o);

/* Reads the results for this processor and these lanes. Returns false if there are none. The caller
 * compares the fingerprint. */
bool tn_tuned_load(const char *profile_path, uint32_t cpu, const int32_t *n_lane_workers, tn_tuned *out);

/* Makes the path of the profile beside a package. Returns false if it is longer than cap bytes. */
bool tn_tuned_path(const char *package, char *out, size_t cap);

/* Makes the key of an entry. */
void tn_tuned_key(uint32_t cpu, const int32_t *n_lane_workers, char key[40]);

#endif
