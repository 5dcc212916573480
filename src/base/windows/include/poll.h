/* What POSIX declares here is in base/windows/posix.h, or there is nothing of it. */
