/* base/windows/posix.h - the part of POSIX that tern uses and mingw-w64 lacks, or has in another form.
 *
 * tern is written to POSIX. For Windows every file is compiled with this header in front (cmake/windows.cmake), so
 * that no other file asks which system it is for. Names that the C runtime has too are redirected here by macros:
 * paths and environment variables are UTF-8, files are binary and may be renamed and removed while they are open,
 * sizes have 64 bits. The folder include/ holds the headers that the runtime lacks; they bring nothing more.
 *
 * Where Windows has another notion, the answer is the nearest that is true: the owner of every file is user 0, who
 * runs the program, and no mode tells of others (the folder's access list does). A mapped file cannot be cut off by
 * others, so nothing watches for that (file_map.c). What has no counterpart is not declared: fork, sockets of Unix,
 * terminals' settings. */
#ifndef TN_BASE_WINDOWS_POSIX_H
#define TN_BASE_WINDOWS_POSIX_H

#define _POSIX_THREAD_SAFE_FUNCTIONS /* localtime_r */

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <io.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

/* ---- constants */

#define O_CLOEXEC O_NOINHERIT
#define O_NOCTTY 0
#define O_NONBLOCK 0 /* files are never waited for */
#define O_NOFOLLOW 0x40000000
#define O_DIRECTORY 0x20000000
#define F_DUPFD_CLOEXEC 1030
#define F_GETFL 3
#define F_SETFL 4
#define F_SETFD 2
#define FD_CLOEXEC 1
#define AT_FDCWD (-100)
#define RENAME_NOREPLACE 1
#define LOCK_EX 2
#define LOCK_NB 4
#define LOCK_UN 8
#define POSIX_FADV_WILLNEED 3
#define _SC_PAGESIZE 30
#define _SC_NPROCESSORS_ONLN 84
#define _SC_PHYS_PAGES 85
#define GRND_NONBLOCK 1
#define RTLD_NOW 2
#define RTLD_LOCAL 0
#ifndef EDQUOT
#define EDQUOT 10069 /* Winsock's */
#endif
#ifndef S_ISLNK
#define S_ISLNK(mode) ((void)(mode), 0)
#endif

/* ---- files */

struct tn_win_stat {
    uint64_t st_dev, st_ino; /* of the volume; of the file on it */
    uint32_t st_mode, st_nlink, st_uid, st_gid;
    int64_t st_size;
    struct timespec st_atim, st_mtim, st_ctim; /* st_ctim: the last change, of attributes too */
};

int tn_win_open(const char *path, int flags, ...);
int tn_win_stat(const char *path, struct tn_win_stat *sb);
int tn_win_lstat(const char *path, struct tn_win_stat *sb);
int tn_win_fstat(int fd, struct tn_win_stat *sb);
FILE *tn_win_fopen(const char *path, const char *mode);
FILE *tn_win_fdopen(int fd, const char *mode);
ssize_t tn_win_pread(int fd, void *to, size_t n, int64_t at);
ssize_t tn_win_pwrite(int fd, const void *from, size_t n, int64_t at);
ssize_t tn_win_read(int fd, void *to, size_t n);
ssize_t tn_win_write(int fd, const void *from, size_t n);
int tn_win_ftruncate(int fd, int64_t n);
int tn_win_fsync(int fd);
int tn_win_fcntl(int fd, int command, ...); /* F_DUPFD_CLOEXEC; of sockets F_SETFL too, for O_NONBLOCK */
int tn_win_close(int fd);
int tn_win_flock(int fd, int how);
int tn_win_rename(const char *from, const char *to);
int tn_win_renameat2(int from_dir, const char *from, int to_dir, const char *to, unsigned flags);
int tn_win_unlink(const char *path);
int tn_win_mkdir(const char *path);
int tn_win_access(const char *path, int mode);
int tn_win_chmod(const char *path, unsigned mode);
int tn_win_mkstemp(char *name);
ssize_t tn_win_readlink(const char *path, char *out, size_t cap); /* of this program, /proc/self/exe, alone */
/* To now: times must be NULL. */
int tn_win_utimensat(int dir, const char *path, const struct timespec *times, int flags);
char *tn_win_realpath(const char *path, char *into); /* into must be NULL; the caller frees */

#undef stat
#undef fstat
#undef ftruncate
#define open tn_win_open
#define stat tn_win_stat
#define lstat tn_win_lstat
#define fstat tn_win_fstat
#define fopen tn_win_fopen
#define fdopen tn_win_fdopen
#define pread tn_win_pread
#define pwrite tn_win_pwrite
#define read tn_win_read
#define write tn_win_write
#define ftruncate tn_win_ftruncate
#define fsync tn_win_fsync
#define fcntl tn_win_fcntl
#define close tn_win_close
#define flock tn_win_flock
#define rename tn_win_rename
#define renameat2 tn_win_renameat2
#define unlink tn_win_unlink
#define mkdir(path, mode) tn_win_mkdir(path)
#define access tn_win_access
#define chmod tn_win_chmod
#define mkstemp tn_win_mkstemp
#define utimensat tn_win_utimensat
#define fdatasync tn_win_fsync
#define tell tn_win_tell /* the runtime declares one, which nobody calls */
#define realpath tn_win_realpath
#define readlink tn_win_readlink

static inline int fchmod(int fd, unsigned mode) { return (void)fd, (void)mode, 0; }
typedef unsigned uid_t;
static inline unsigned geteuid(void) { return 0; }
static inline unsigned getuid(void) { return 0; }
/* A hint that the system is free to ignore. */
static inline int posix_fadvise(int fd, int64_t at, int64_t n, int advice) {
    return (void)fd, (void)at, (void)n, (void)advice, 0;
}

/* ---- folders */

struct tn_win_dirent {
    char d_name[1024];
};
typedef struct tn_win_dir tn_win_dir;

tn_win_dir *tn_win_opendir(const char *path);
struct tn_win_dirent *tn_win_readdir(tn_win_dir *d);
int tn_win_closedir(tn_win_dir *d);
int tn_win_scandir(const char *path, struct tn_win_dirent ***list, int (*want)(const struct tn_win_dirent *),
                   int (*order)(const struct tn_win_dirent **, const struct tn_win_dirent **));
int tn_win_alphasort(const struct tn_win_dirent **a, const struct tn_win_dirent **b);

#define dirent tn_win_dirent
#define DIR tn_win_dir
#define opendir tn_win_opendir
#define readdir tn_win_readdir
#define closedir tn_win_closedir
#define scandir tn_win_scandir
#define alphasort tn_win_alphasort

/* ---- the process and the machine */

/* Of the environment, in UTF-8. HOME and TMPDIR, where they are not set, are the user's folders as Windows says. */
char *tn_win_getenv(const char *name);
long tn_win_sysconf(int what);
ssize_t tn_win_getrandom(void *to, size_t n, unsigned flags);
void *tn_win_dlopen(const char *path, int how);
void *tn_win_dlsym(void *library, const char *name);
int tn_win_dlclose(void *library);
char *tn_win_dlerror(void);

int tn_win_unsetenv(const char *name);
#define getenv tn_win_getenv
#define unsetenv tn_win_unsetenv
#define secure_getenv tn_win_getenv
#define sysconf tn_win_sysconf
#define getrandom tn_win_getrandom
#define dlopen tn_win_dlopen
#define dlsym tn_win_dlsym
#define dlclose tn_win_dlclose
#define dlerror tn_win_dlerror

/* One bit a core; more than 64 cores are in groups, of which a process of Windows starts in one. */
typedef struct tn_win_cpu_set {
    uint64_t bits;
} tn_win_cpu_set;
int tn_win_sched_setaffinity(int who, size_t size, const tn_win_cpu_set *set);
#define cpu_set_t tn_win_cpu_set
#define CPU_ZERO(set) ((set)->bits = 0)
#define CPU_SET(cpu, set) ((set)->bits |= (cpu) < 64 ? UINT64_C(1) << (cpu) : 0)
#define sched_setaffinity tn_win_sched_setaffinity

/* ---- signals and pipes: Ctrl-C is all that Windows sends */

#define SIGPIPE 13
#define SIGXFSZ 25
#define SA_RESETHAND 1 /* as every handler is, there */
#define SA_RESTART 2
struct tn_win_sigaction {
    void (*sa_handler)(int);
    int sa_mask, sa_flags;
};
int tn_win_sigaction(int sig, const struct tn_win_sigaction *now, struct tn_win_sigaction *before);
#define sigaction tn_win_sigaction
/* Sets of signals are for those who wait for SIGINT (Ctrl-C) and SIGTERM (the window is closed, the user logs off). A
 * call to pthread_sigmask takes both over for good. */
#define sigset_t int
#undef SIG_BLOCK
#define SIG_BLOCK 0
#define sigemptyset(set) (*(set) = 0)
#define sigaddset(set, sig) (*(set) |= 1 << (sig))
#define sigismember(set, sig) (*(const sigset_t *)(set) >> (sig)&1)
#define sigpending(set) (*(set) = 0) /* none waits: a thread of the system's own brings it */
int tn_win_sigwait(const int *set, int *sig);
int tn_win_sigtimedwait(const int *set, const struct timespec *most);
int tn_win_sigmask(int how, const int *set, int *before);
#define sigwait tn_win_sigwait
#define sigtimedwait(set, info, most) tn_win_sigtimedwait(set, most)
#undef pthread_sigmask
#define pthread_sigmask tn_win_sigmask
#define signal tn_win_signal /* those that Windows lacks never come */
void (*tn_win_signal(int sig, void (*handler)(int)))(int);

struct tn_win_pollfd {
    int fd;
    short events, revents;
};
#define pollfd tn_win_pollfd
#ifndef _WINSOCK2API_
#define POLLIN 1
#define POLLOUT 4
#define POLLERR 8
#define POLLHUP 16
#endif
#define POLLRDHUP 0x2000
/* One socket is waited for. Of others it says that they can be read, as reading waits; of none, that time is over. */
int tn_win_poll(struct tn_win_pollfd *p, unsigned long n, int ms);
int tn_win_pipe2(int ends[2], int flags);
#define poll tn_win_poll
#define pipe2 tn_win_pipe2

/* ---- text */

/* Ends of lines are one character, whoever wrote them. */
ssize_t tn_win_getline(char **line, size_t *cap, FILE *f);
#define getline tn_win_getline
#define getchar_unlocked _getchar_nolock

void *tn_win_memmem(const void *in, size_t n_in, const void *what, size_t n_what);
char *tn_win_strsep(char **at, const char *among);
char *tn_win_strchrnul(const char *s, int c);
char *tn_win_strcasestr(const char *in, const char *what);
#define memmem tn_win_memmem
#define strsep tn_win_strsep
#define strchrnul tn_win_strchrnul
#define strcasestr tn_win_strcasestr

/* The compiler's own take a stride of `long`, which is half an address here. */
#ifdef __AMX_TILE__
#include <immintrin.h>
#undef _tile_loadd
#undef _tile_stored
#define _tile_loadd(tile, base, stride)                                                                      \
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #tile ::"r"((const void *)(base)), "r"((long long)(stride)))
#define _tile_stored(tile, base, stride)                                                                     \
    __asm__ volatile("tilestored %%tmm" #tile ", (%0,%1,1)" ::"r"((void *)(base)), "r"((long long)(stride))  \
                     : "memory")
#endif

#endif
