/* Runs a fuzz target over every file of the folders named: the regression form of fuzzing. */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int main(int argc, char **argv) {
    int n = 0;
    for (int i = 1; i < argc; i++) {
        DIR *d = opendir(argv[i]);
        if (!d) {
            perror(argv[i]);
            return 1;
        }
        for (struct dirent *e; (e = readdir(d));) {
            if (e->d_name[0] == '.') continue;
            char path[4096];
            snprintf(path, sizeof path, "%s/%s", argv[i], e->d_name);
            FILE *f = fopen(path, "rb");
            if (!f) {
                perror(path);
                return 1;
            }
            fseek(f, 0, SEEK_END);
            long size = ftell(f);
            rewind(f);
            uint8_t *buf =
                malloc(size > 0 ? (size_t)size : 1); /* exact size: reads beyond it are seen by ASan */
            if (!buf || fread(buf, 1, (size_t)size, f) != (size_t)size) return 1;
            fclose(f);
            LLVMFuzzerTestOneInput(buf, (size_t)size);
            free(buf);
            n++;
        }
        closedir(d);
    }
    printf("%d inputs replayed\n", n);
    return n ? 0 : 1;
}
