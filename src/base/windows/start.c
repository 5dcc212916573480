/* base/windows/start.c - a program begins here on Windows: what was typed becomes UTF-8, and so does what it prints. */
#define WIN32_LEAN_AND_MEAN
#include <windows.h>

#include <shellapi.h>

#include "base/windows/names.h"

int tn_win_main(int argc, char **argv); /* the program's own main, by the macro of cmake/windows.cmake */

int main(void) {
    int argc = 0;
    wchar_t **wide = CommandLineToArgvW(GetCommandLineW(), &argc);
    char **argv = wide ? calloc((size_t)argc + 1, sizeof *argv) : NULL;
    for (int i = 0; argv && i < argc; i++) {
        argv[i] = tn_win_utf8(wide[i]);
        if (!argv[i]) argv = NULL;
    }
    if (!argv) return fputs("no memory for the command line\n", stderr), 1;
    SetConsoleOutputCP(CP_UTF8);
    for (int fd = 0; fd < 3; fd++) (void)_setmode(fd, O_BINARY);
    return tn_win_main(argc, argv);
}
