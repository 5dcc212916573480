/* base/windows/posix.c - files, folders and the process, as base/windows/posix.h declares them. */
#define WIN32_LEAN_AND_MEAN
#include <windows.h>

#include <bcrypt.h>
#include <stdarg.h>
#include <wchar.h>

#include "base/windows/descriptors.h"
#include "base/windows/names.h"

/* The number in errno of an error of Windows. */
static int errno_of(DWORD e) {
    switch (e) {
    case ERROR_FILE_NOT_FOUND:
    case ERROR_PATH_NOT_FOUND:
    case ERROR_INVALID_NAME:
    case ERROR_BAD_NETPATH:
    case ERROR_INVALID_DRIVE: return ENOENT;
    case ERROR_ACCESS_DENIED:
    case ERROR_SHARING_VIOLATION:
    case ERROR_WRITE_PROTECT: return EACCES;
    case ERROR_LOCK_VIOLATION: return EWOULDBLOCK;
    case ERROR_FILE_EXISTS:
    case ERROR_ALREADY_EXISTS: return EEXIST;
    case ERROR_DISK_FULL:
    case ERROR_HANDLE_DISK_FULL: return ENOSPC;
    case ERROR_DIR_NOT_EMPTY: return ENOTEMPTY;
    case ERROR_NOT_SAME_DEVICE: return EXDEV;
    case ERROR_NOT_ENOUGH_MEMORY:
    case ERROR_OUTOFMEMORY: return ENOMEM;
    case ERROR_TOO_MANY_OPEN_FILES: return EMFILE;
    case ERROR_FILENAME_EXCED_RANGE: return ENAMETOOLONG;
    case ERROR_INVALID_HANDLE: return EBADF;
    case ERROR_BROKEN_PIPE:
    case ERROR_NO_DATA: return EPIPE;
    case ERROR_DIRECTORY: return ENOTDIR;
    case ERROR_INVALID_PARAMETER:
    case ERROR_NOT_SUPPORTED: return EINVAL;
    }
    return EIO;
}

static int failed(void) {
    errno = errno_of(GetLastError());
    return -1;
}

/* The name that Linux gives an open file, which tern_engine_open_fd goes by. */
static bool name_of_open(const char *path, wchar_t out[TN_WIN_PATH]) {
    static const char folder[] = "/proc/self/fd/";
    if (strncmp(path, folder, sizeof folder - 1)) return false;
    HANDLE h = (HANDLE)_get_osfhandle(atoi(path + sizeof folder - 1));
    DWORD n = h == INVALID_HANDLE_VALUE ? 0 : GetFinalPathNameByHandleW(h, out, TN_WIN_PATH, VOLUME_NAME_DOS);
    return n && n < TN_WIN_PATH;
}

bool tn_win_wide(const char *path, wchar_t out[TN_WIN_PATH]) {
    if (name_of_open(path, out)) return true;
    if (MultiByteToWideChar(CP_UTF8, MB_ERR_INVALID_CHARS, path, -1, out, TN_WIN_PATH)) return true;
    errno = GetLastError() == ERROR_INSUFFICIENT_BUFFER ? ENAMETOOLONG : ENOENT;
    return false;
}

char *tn_win_utf8(const wchar_t *s) {
    int n = WideCharToMultiByte(CP_UTF8, 0, s, -1, NULL, 0, NULL, NULL);
    char *out = n > 0 ? malloc((size_t)n) : NULL;
    if (out) WideCharToMultiByte(CP_UTF8, 0, s, -1, out, n, NULL, NULL);
    return out;
}

static HANDLE handle_of(int fd) { return (HANDLE)_get_osfhandle(fd); }

/* ---- opening -------------------------------------------------------------------------------------------- */

int tn_win_open(const char *path, int flags, ...) {
    wchar_t wide[TN_WIN_PATH];
    if (!tn_win_wide(path, wide)) return -1;
    DWORD want = GENERIC_READ, how = OPEN_EXISTING, attributes = FILE_ATTRIBUTE_NORMAL;
    if ((flags & (O_WRONLY | O_RDWR)) == O_WRONLY) want = GENERIC_WRITE;
    if (flags & O_RDWR) want = GENERIC_READ | GENERIC_WRITE;
    if (flags & O_APPEND) want = (want & ~GENERIC_WRITE) | FILE_APPEND_DATA;
    if (flags & O_CREAT) how = flags & O_EXCL ? CREATE_NEW : flags & O_TRUNC ? CREATE_ALWAYS : OPEN_ALWAYS;
    else if (flags & O_TRUNC) how = TRUNCATE_EXISTING;
    if (flags & O_NOFOLLOW) attributes |= FILE_FLAG_OPEN_REPARSE_POINT;
    SECURITY_ATTRIBUTES inherit = {sizeof inherit, NULL, !(flags & O_NOINHERIT)};
    HANDLE h = CreateFileW(wide, want, FILE_SHARE_READ | FILE_SHARE_WRITE | FILE_SHARE_DELETE, &inherit, how,
                           attributes, NULL);
    if (h == INVALID_HANDLE_VALUE) return failed();
    FILE_ATTRIBUTE_TAG_INFO tag;
    if (flags & O_NOFOLLOW && GetFileInformationByHandleEx(h, FileAttributeTagInfo, &tag, sizeof tag) &&
        tag.FileAttributes & FILE_ATTRIBUTE_REPARSE_POINT) {
        CloseHandle(h);
        errno = ELOOP;
        return -1;
    }
    int fd = _open_osfhandle((intptr_t)h, (flags & (O_APPEND | O_NOINHERIT | O_WRONLY | O_RDWR)) | O_BINARY);
    if (fd < 0) CloseHandle(h);
    return fd;
}

/* The C runtime's letters of a mode, in binary; POSIX's e is what every file is here. */
static void mode_of(const char *mode, char out[8], int *flags) {
    size_t n = 0;
    *flags = O_NOINHERIT;
    for (const char *p = mode; *p && n < 5; p++)
        if (*p != 'e' && *p != 'b') out[n++] = *p;
    out[n++] = 'b';
    out[n] = 0;
    bool plus = strchr(mode, '+') != NULL;
    *flags |= plus ? O_RDWR : *mode == 'r' ? O_RDONLY : O_WRONLY;
    if (*mode != 'r') *flags |= O_CREAT | (*mode == 'a' ? O_APPEND : O_TRUNC);
    if (strchr(mode, 'x')) *flags |= O_EXCL;
}

FILE *tn_win_fopen(const char *path, const char *mode) {
    char letters[8];
    int flags;
    mode_of(mode, letters, &flags);
    int fd = tn_win_open(path, flags, 0666);
    FILE *f = fd >= 0 ? _fdopen(fd, letters) : NULL;
    if (!f && fd >= 0) _close(fd);
    return f;
}

FILE *tn_win_fdopen(int fd, const char *mode) {
    char letters[8];
    int flags;
    mode_of(mode, letters, &flags);
    return _fdopen(fd, letters);
}

int tn_win_mkstemp(char *name) {
    static const char letters[] = "abcdefghijklmnopqrstuvwxyz0123456789";
    size_t n = strlen(name);
    uint8_t r[6];
    if (n < sizeof r || memcmp(name + n - 6, "XXXXXX", 6)) {
        errno = EINVAL;
        return -1;
    }
    for (int i = 0; i < 100; i++) {
        if (tn_win_getrandom(r, sizeof r, 0) != sizeof r) return -1;
        for (size_t k = 0; k < sizeof r; k++) name[n - 6 + k] = letters[r[k] % 36];
        int fd = tn_win_open(name, O_RDWR | O_CREAT | O_EXCL | O_NOINHERIT, 0600);
        if (fd >= 0 || errno != EEXIST) return fd;
    }
    return -1;
}

/* ---- what a file is -------------------------------------------------------------------------------------- */

static struct timespec time_of(uint64_t ticks) { /* of 100 ns since 1601 */
    ticks = ticks > UINT64_C(116444736000000000) ? ticks - UINT64_C(116444736000000000) : 0;
    return (struct timespec){(time_t)(ticks / 10000000), (long)(ticks % 10000000) * 100};
}

static struct timespec filetime_of(FILETIME t) {
    return time_of((uint64_t)t.dwHighDateTime << 32 | t.dwLowDateTime);
}

static int stat_of(HANDLE h, struct tn_win_stat *sb) {
    BY_HANDLE_FILE_INFORMATION f;
    FILE_BASIC_INFO basic;
    DWORD type = GetFileType(h);
    memset(sb, 0, sizeof *sb);
    if (type != FILE_TYPE_DISK) {
        if (type == FILE_TYPE_UNKNOWN && GetLastError() != NO_ERROR) return failed();
        sb->st_mode = type == FILE_TYPE_CHAR ? S_IFCHR : S_IFIFO;
        return 0;
    }
    if (!GetFileInformationByHandle(h, &f)) return failed();
    bool folder = f.dwFileAttributes & FILE_ATTRIBUTE_DIRECTORY;
    sb->st_dev = f.dwVolumeSerialNumber;
    sb->st_ino = (uint64_t)f.nFileIndexHigh << 32 | f.nFileIndexLow;
    sb->st_mode = folder                                         ? S_IFDIR | 0700
                  : f.dwFileAttributes & FILE_ATTRIBUTE_READONLY ? S_IFREG | 0400
                                                                 : S_IFREG | 0600;
    sb->st_nlink = f.nNumberOfLinks;
    sb->st_size = (int64_t)((uint64_t)f.nFileSizeHigh << 32 | f.nFileSizeLow);
    sb->st_atim = filetime_of(f.ftLastAccessTime);
    sb->st_mtim = sb->st_ctim = filetime_of(f.ftLastWriteTime);
    if (GetFileInformationByHandleEx(h, FileBasicInfo, &basic, sizeof basic) && basic.ChangeTime.QuadPart > 0)
        sb->st_ctim = time_of((uint64_t)basic.ChangeTime.QuadPart);
    return 0;
}

static int stat_path(const char *path, struct tn_win_stat *sb, DWORD flags) {
    wchar_t wide[TN_WIN_PATH];
    if (!tn_win_wide(path, wide)) return -1;
    HANDLE h = CreateFileW(wide, FILE_READ_ATTRIBUTES, FILE_SHARE_READ | FILE_SHARE_WRITE | FILE_SHARE_DELETE,
                           NULL, OPEN_EXISTING, FILE_FLAG_BACKUP_SEMANTICS | flags, NULL);
    if (h == INVALID_HANDLE_VALUE) return failed();
    int rc = stat_of(h, sb);
    CloseHandle(h);
    return rc;
}

int tn_win_stat(const char *path, struct tn_win_stat *sb) { return stat_path(path, sb, 0); }

int tn_win_lstat(const char *path, struct tn_win_stat *sb) {
    return stat_path(path, sb, FILE_FLAG_OPEN_REPARSE_POINT);
}

int tn_win_fstat(int fd, struct tn_win_stat *sb) {
    HANDLE h = handle_of(fd);
    if (h != INVALID_HANDLE_VALUE) return stat_of(h, sb);
    errno = EBADF;
    return -1;
}

int tn_win_access(const char *path, int mode) {
    wchar_t wide[TN_WIN_PATH];
    if (!tn_win_wide(path, wide)) return -1;
    DWORD a = GetFileAttributesW(wide);
    if (a == INVALID_FILE_ATTRIBUTES) return failed();
    if (!(mode & W_OK) || a & FILE_ATTRIBUTE_DIRECTORY || !(a & FILE_ATTRIBUTE_READONLY)) return 0;
    errno = EACCES;
    return -1;
}

int tn_win_chmod(const char *path, unsigned mode) {
    struct tn_win_stat sb;
    return (void)mode,
           tn_win_stat(path, &sb); /* who else may read it is the folder's access list's business */
}

int tn_win_utimensat(int dir, const char *path, const struct timespec *times, int flags) {
    wchar_t wide[TN_WIN_PATH];
    FILETIME now;
    (void)dir, (void)flags;
    if (times) {
        errno = EINVAL;
        return -1;
    }
    if (!tn_win_wide(path, wide)) return -1;
    HANDLE h =
        CreateFileW(wide, FILE_WRITE_ATTRIBUTES, FILE_SHARE_READ | FILE_SHARE_WRITE | FILE_SHARE_DELETE, NULL,
                    OPEN_EXISTING, FILE_FLAG_BACKUP_SEMANTICS, NULL);
    if (h == INVALID_HANDLE_VALUE) return failed();
    GetSystemTimeAsFileTime(&now);
    int rc = SetFileTime(h, NULL, NULL, &now) ? 0 : failed();
    CloseHandle(h);
    return rc;
}

char *tn_win_realpath(const char *path, char *into) {
    wchar_t wide[TN_WIN_PATH], full[TN_WIN_PATH];
    (void)into;
    if (!tn_win_wide(path, wide)) return NULL;
    HANDLE h = CreateFileW(wide, FILE_READ_ATTRIBUTES, FILE_SHARE_READ | FILE_SHARE_WRITE | FILE_SHARE_DELETE,
                           NULL, OPEN_EXISTING, FILE_FLAG_BACKUP_SEMANTICS, NULL);
    if (h == INVALID_HANDLE_VALUE) return failed(), NULL;
    DWORD n = GetFinalPathNameByHandleW(h, full, TN_WIN_PATH, FILE_NAME_NORMALIZED | VOLUME_NAME_DOS);
    CloseHandle(h);
    if (!n || n >= TN_WIN_PATH) return failed(), NULL;
    const wchar_t *shown =
        wcsncmp(full, L"\\\\?\\UNC\\", 8) && !wcsncmp(full, L"\\\\?\\", 4) ? full + 4 : full;
    char *out = tn_win_utf8(shown);
    if (!out) errno = ENOMEM;
    for (char *p = out; p && shown != full && *p; p++)
        if (*p == '\\') *p = '/';
    return out;
}

ssize_t tn_win_readlink(const char *path, char *out, size_t cap) {
    wchar_t wide[TN_WIN_PATH];
    DWORD n = strcmp(path, "/proc/self/exe") ? 0 : GetModuleFileNameW(NULL, wide, TN_WIN_PATH);
    char *self = n && n < TN_WIN_PATH ? tn_win_utf8(wide) : NULL;
    size_t len = self ? strlen(self) : 0;
    errno = EINVAL;
    if (!self) return -1;
    for (char *p = self; *p; p++)
        if (*p == '\\') *p = '/';
    len = len < cap ? len : cap;
    memcpy(out, self, len);
    free(self);
    return (ssize_t)len;
}

/* ---- reading and writing at a place ------------------------------------------------------------------------ */

static OVERLAPPED at_place(int64_t at) {
    return (OVERLAPPED){.Offset = (DWORD)at, .OffsetHigh = (DWORD)((uint64_t)at >> 32)};
}

/* Windows moves a handle's place along with such reads and writes. Nobody here reads or writes in order what he reads
 * and writes at places too, so the place is left where it went. */
ssize_t tn_win_pread(int fd, void *to, size_t n, int64_t at) {
    OVERLAPPED o = at_place(at);
    DWORD got = 0, ask = n < 1u << 30 ? (DWORD)n : 1u << 30;
    if (ReadFile(handle_of(fd), to, ask, &got, &o)) return got;
    return GetLastError() == ERROR_HANDLE_EOF ? 0 : failed();
}

ssize_t tn_win_pwrite(int fd, const void *from, size_t n, int64_t at) {
    OVERLAPPED o = at_place(at);
    DWORD done = 0, ask = n < 1u << 30 ? (DWORD)n : 1u << 30;
    return WriteFile(handle_of(fd), from, ask, &done, &o) ? (ssize_t)done : failed();
}

int tn_win_close(int fd) {
    if (fd >= TN_WIN_SOCKETS_FROM) return tn_win_socket_close(fd);
    if (fd >= TN_WIN_EPOLLS_FROM) return tn_win_epoll_close(fd), 0;
    return _close(fd);
}

ssize_t tn_win_read(int fd, void *to, size_t n) {
    if (fd >= TN_WIN_SOCKETS_FROM) return tn_win_socket_read(fd, to, n);
    return _read(fd, to, n < 1u << 30 ? (unsigned)n : 1u << 30);
}

ssize_t tn_win_write(int fd, const void *from, size_t n) {
    if (fd >= TN_WIN_SOCKETS_FROM) return tn_win_socket_write(fd, from, n);
    return _write(fd, from, n < 1u << 30 ? (unsigned)n : 1u << 30);
}

int tn_win_ftruncate(int fd, int64_t n) {
    FILE_END_OF_FILE_INFO end = {.EndOfFile.QuadPart = n};
    return SetFileInformationByHandle(handle_of(fd), FileEndOfFileInfo, &end, sizeof end) ? 0 : failed();
}

int tn_win_fsync(int fd) {
    if (FlushFileBuffers(handle_of(fd)) || GetLastError() == ERROR_ACCESS_DENIED)
        return 0; /* only read here */
    return failed();
}

int tn_win_fcntl(int fd, int command, ...) {
    HANDLE copy, self = GetCurrentProcess();
    if (fd >= TN_WIN_SOCKETS_FROM && command == F_DUPFD_CLOEXEC) return tn_win_socket_copy(fd);
    if (fd >= TN_WIN_SOCKETS_FROM && command == F_GETFL) return 0;
    if (fd >= TN_WIN_SOCKETS_FROM && command == F_SETFL) return tn_win_socket_flags(fd);
    if (command != F_DUPFD_CLOEXEC) {
        errno = EINVAL;
        return -1;
    }
    if (!DuplicateHandle(self, handle_of(fd), self, &copy, 0, FALSE, DUPLICATE_SAME_ACCESS)) return failed();
    int out = _open_osfhandle((intptr_t)copy, O_BINARY | O_NOINHERIT);
    if (out < 0) CloseHandle(copy);
    return out;
}

/* A lock keeps others from bytes here, so it is taken on one that no file has. */
int tn_win_flock(int fd, int how) {
    OVERLAPPED o = at_place(INT64_MAX - 1);
    if (how & LOCK_UN) return UnlockFileEx(handle_of(fd), 0, 1, 0, &o) ? 0 : failed();
    DWORD flags =
        (how & LOCK_EX ? LOCKFILE_EXCLUSIVE_LOCK : 0) | (how & LOCK_NB ? LOCKFILE_FAIL_IMMEDIATELY : 0);
    if (LockFileEx(handle_of(fd), flags, 0, 1, 0, &o)) return 0;
    return failed();
}

/* ---- names ----------------------------------------------------------------------------------------------- */

static int move(const char *from, const char *to, DWORD flags) {
    wchar_t a[TN_WIN_PATH], b[TN_WIN_PATH];
    if (!tn_win_wide(from, a) || !tn_win_wide(to, b)) return -1;
    return MoveFileExW(a, b, flags) ? 0 : failed();
}

int tn_win_rename(const char *from, const char *to) {
    return move(from, to, MOVEFILE_REPLACE_EXISTING | MOVEFILE_WRITE_THROUGH);
}

int tn_win_renameat2(int from_dir, const char *from, int to_dir, const char *to, unsigned flags) {
    (void)from_dir, (void)to_dir;
    return flags & RENAME_NOREPLACE ? move(from, to, MOVEFILE_WRITE_THROUGH) : tn_win_rename(from, to);
}

int tn_win_unlink(const char *path) {
    wchar_t wide[TN_WIN_PATH];
    return tn_win_wide(path, wide) && DeleteFileW(wide) ? 0 : failed();
}

int tn_win_mkdir(const char *path) {
    wchar_t wide[TN_WIN_PATH];
    if (!tn_win_wide(path, wide)) return -1;
    if (wcslen(wide) == 2 && wide[1] == L':') { /* a drive, as the first part of a path */
        errno = EEXIST;
        return -1;
    }
    return CreateDirectoryW(wide, NULL) ? 0 : failed();
}

/* ---- folders --------------------------------------------------------------------------------------------- */

struct tn_win_dir {
    HANDLE find;
    bool first;
    WIN32_FIND_DATAW found;
    struct tn_win_dirent entry;
};

tn_win_dir *tn_win_opendir(const char *path) {
    wchar_t wide[TN_WIN_PATH];
    tn_win_dir *d = calloc(1, sizeof *d);
    size_t n = d && tn_win_wide(path, wide) ? wcslen(wide) : 0;
    if (n && n + 3 < TN_WIN_PATH) {
        wcscpy(wide + n, L"/*");
        d->find = FindFirstFileW(wide, &d->found);
        d->first = true;
        if (d->find != INVALID_HANDLE_VALUE) return d;
        failed();
    }
    free(d);
    return NULL;
}

struct tn_win_dirent *tn_win_readdir(tn_win_dir *d) {
    do {
        if (!d->first && !FindNextFileW(d->find, &d->found)) return NULL;
        d->first = false;
    } while (!WideCharToMultiByte(CP_UTF8, 0, d->found.cFileName, -1, d->entry.d_name, sizeof d->entry.d_name,
                                  NULL, NULL));
    return &d->entry;
}

int tn_win_closedir(tn_win_dir *d) {
    FindClose(d->find);
    free(d);
    return 0;
}

int tn_win_alphasort(const struct tn_win_dirent **a, const struct tn_win_dirent **b) {
    return strcmp((*a)->d_name, (*b)->d_name);
}

int tn_win_scandir(const char *path, struct tn_win_dirent ***list, int (*want)(const struct tn_win_dirent *),
                   int (*order)(const struct tn_win_dirent **, const struct tn_win_dirent **)) {
    tn_win_dir *d = tn_win_opendir(path);
    struct tn_win_dirent **all = NULL, *e;
    int n = 0;
    if (!d) return -1;
    while ((e = tn_win_readdir(d))) {
        if (want && !want(e)) continue;
        struct tn_win_dirent **more = realloc(all, (size_t)(n + 1) * sizeof *all);
        struct tn_win_dirent *copy = more ? malloc(sizeof *copy) : NULL;
        all = more ? more : all;
        if (!copy) break;
        *copy = *e;
        all[n++] = copy;
    }
    tn_win_closedir(d);
    if (e) {
        while (n) free(all[--n]);
        free(all);
        errno = ENOMEM;
        return -1;
    }
    if (n) qsort(all, (size_t)n, sizeof *all, (int (*)(const void *, const void *))order);
    *list = all;
    return n;
}

/* ---- the process and the machine ---------------------------------------------------------------------------- */

/* Values that were told once stay where they are: a program keeps pointers to them. */
typedef struct told {
    struct told *next;
    char *value;
    char name[];
} told;

static char *told_of(const char *name, const wchar_t *wide_name) {
    static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;
    static told *all;
    const wchar_t *now = _wgetenv(wide_name);
    char *value = now ? tn_win_utf8(now) : NULL;
    if (!value) return NULL;
    pthread_mutex_lock(&mu);
    for (told *t = all; t; t = t->next) {
        if (strcmp(t->name, name) || strcmp(t->value, value)) continue;
        free(value);
        value = t->value;
        pthread_mutex_unlock(&mu);
        return value;
    }
    told *t = malloc(sizeof *t + strlen(name) + 1);
    if (t) {
        *t = (told){.next = all, .value = value};
        strcpy(t->name, name);
        all = t;
    } else {
        free(value);
        value = NULL;
    }
    pthread_mutex_unlock(&mu);
    return value;
}

char *tn_win_getenv(const char *name) {
    wchar_t wide[TN_WIN_PATH];
    if (!tn_win_wide(name, wide)) return NULL;
    char *value = told_of(name, wide);
    if (!value && !strcmp(name, "HOME")) return told_of(name, L"USERPROFILE");
    if (!value && !strcmp(name, "TMPDIR")) return told_of(name, L"TEMP");
    return value;
}

int tn_win_unsetenv(const char *name) {
    char line[256];
    const int n = snprintf(line, sizeof line, "%s=", name);
    return n < (int)sizeof line && !_putenv(line) ? 0 : -1;
}

long tn_win_sysconf(int what) {
    SYSTEM_INFO s;
    MEMORYSTATUSEX m = {.dwLength = sizeof m};
    DWORD_PTR mine = 0, all = 0;
    GetSystemInfo(&s);
    switch (what) {
    case _SC_PAGESIZE: return (long)s.dwPageSize;
    case _SC_PHYS_PAGES: return GlobalMemoryStatusEx(&m) ? (long)(m.ullTotalPhys / s.dwPageSize) : -1;
    case _SC_NPROCESSORS_ONLN:
        return GetProcessAffinityMask(GetCurrentProcess(), &mine, &all) && mine
                   ? __builtin_popcountll(mine)
                   : (long)s.dwNumberOfProcessors;
    }
    errno = EINVAL;
    return -1;
}

ssize_t tn_win_getrandom(void *to, size_t n, unsigned flags) {
    (void)flags;
    if (n <= UINT32_MAX && BCryptGenRandom(NULL, to, (ULONG)n, BCRYPT_USE_SYSTEM_PREFERRED_RNG) >= 0)
        return (ssize_t)n;
    errno = EIO;
    return -1;
}

/* Of all threads of the process: those that a thread starts do not take its cores over here. */
int tn_win_sched_setaffinity(int who, size_t size, const tn_win_cpu_set *set) {
    (void)who, (void)size;
    return SetProcessAffinityMask(GetCurrentProcess(), (DWORD_PTR)set->bits) ? 0 : failed();
}

static char library_error[64];

void *tn_win_dlopen(const char *path, int how) {
    wchar_t wide[TN_WIN_PATH];
    (void)how;
    HMODULE m = tn_win_wide(path, wide) ? LoadLibraryW(wide) : NULL;
    if (!m) snprintf(library_error, sizeof library_error, "it cannot be loaded (error %lu)", GetLastError());
    return m;
}

void *tn_win_dlsym(void *library, const char *name) {
    return (void *)(intptr_t)GetProcAddress((HMODULE)library, name);
}

int tn_win_dlclose(void *library) { return FreeLibrary((HMODULE)library) ? 0 : -1; }

char *tn_win_dlerror(void) { return library_error; }

/* ---- signals and pipes ----------------------------------------------------------------------------------- */

#undef signal
void (*tn_win_signal(int sig, void (*handler)(int)))(int) {
    return sig == SIGPIPE || sig == SIGXFSZ ? SIG_DFL : signal(sig, handler);
}

int tn_win_sigaction(int sig, const struct tn_win_sigaction *now, struct tn_win_sigaction *before) {
    void (*was)(int) = tn_win_signal(sig, now ? now->sa_handler : SIG_DFL);
    if (was == SIG_ERR) return -1;
    if (!now) tn_win_signal(sig, was);
    if (before) *before = (struct tn_win_sigaction){.sa_handler = was};
    return 0;
}

/* Signals that wait to be taken; Windows tells of them on a thread of its own. */
static HANDLE ends_come;
static volatile LONG ends_which;

static BOOL WINAPI an_end(DWORD what) {
    InterlockedExchange(&ends_which, what == CTRL_C_EVENT || what == CTRL_BREAK_EVENT ? SIGINT : SIGTERM);
    ReleaseSemaphore(ends_come, 1, NULL);
    if (what != CTRL_C_EVENT && what != CTRL_BREAK_EVENT)
        Sleep(INFINITE); /* it ends the process when this returns */
    return TRUE;
}

int tn_win_sigmask(int how, const int *set, int *before) {
    (void)how, (void)set;
    if (before) *before = 0;
    if (ends_come) return 0;
    ends_come = CreateSemaphoreW(NULL, 0, 16, NULL);
    return ends_come && SetConsoleCtrlHandler(an_end, TRUE) ? 0 : EAGAIN;
}

int tn_win_sigwait(const int *set, int *sig) {
    (void)set;
    if (WaitForSingleObject(ends_come, INFINITE) != WAIT_OBJECT_0) return EINVAL;
    *sig = (int)ends_which;
    return 0;
}

int tn_win_sigtimedwait(const int *set, const struct timespec *most) {
    (void)set;
    const DWORD ms = (DWORD)(most->tv_sec * 1000 + most->tv_nsec / 1000000);
    if (WaitForSingleObject(ends_come, ms) == WAIT_OBJECT_0) return (int)ends_which;
    errno = EAGAIN;
    return -1;
}

int tn_win_poll(struct tn_win_pollfd *p, unsigned long n, int ms) {
    if (n == 1 && p->fd >= TN_WIN_SOCKETS_FROM) return tn_win_socket_poll(p, ms);
    if (!n && ms > 0) Sleep((DWORD)ms);
    for (unsigned long i = 0; i < n; i++) p[i].revents = i ? 0 : p[i].events;
    return n > 0;
}

int tn_win_pipe2(int ends[2], int flags) { return _pipe(ends, 4096, O_BINARY | (flags & O_NOINHERIT)); }

/* ---- text ------------------------------------------------------------------------------------------------ */

void *tn_win_memmem(const void *in, size_t n_in, const void *what, size_t n_what) {
    const char *p = in, *w = what;
    if (!n_what) return (void *)p;
    for (; n_in >= n_what; p++, n_in--) {
        const char *hit = memchr(p, *w, n_in - n_what + 1);
        if (!hit) return NULL;
        n_in -= (size_t)(hit - p);
        p = hit;
        if (!memcmp(p, w, n_what)) return (void *)p;
    }
    return NULL;
}

char *tn_win_strsep(char **at, const char *among) {
    char *word = *at;
    if (!word) return NULL;
    char *end = word + strcspn(word, among);
    *at = *end ? end + 1 : NULL;
    *end = 0;
    return word;
}

char *tn_win_strchrnul(const char *s, int c) {
    while (*s && *s != (char)c) s++;
    return (char *)s;
}

char *tn_win_strcasestr(const char *in, const char *what) {
    size_t n = strlen(what);
    for (; strlen(in) >= n; in++)
        if (!_strnicmp(in, what, n)) return (char *)in;
    return NULL;
}
