#!/usr/bin/env python3
"""Which files of src read bytes from outside, by the functions that give them: each has a line in tests/fuzz/readers.txt. Exit 1: one has none, or a
line is for a file or a fuzz target that is not there."""
import glob, os, re, sys

os.chdir(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
DOORS = re.compile(r"\b(tn_json_parse|tn_json_read|tn_file_read_at|tn_file_map|p?read|readv|recv|recvmsg|recvfrom|fgets|fgetc|getline|getdelim|fread|f?scanf|getchar(_unlocked)?|"
                   r"tn_(gguf|safetensors|pkg)_open|archive_read_(data|open)\w*|htmlParse\w*|xmlParse\w*|htmlCreate\w*|sqlite3_open\w*|mmap)\(")
COMMENTS = re.compile(r"/\*.*?\*/|//[^\n]*", re.S)
bad = []
lines = {}
for line in open("tests/fuzz/readers.txt"):
    if not line.startswith("#"):
        file, target, *why = line.split(None, 2)
        lines[file] = target
        if not os.path.exists(file):
            bad.append(f"{file} is not there")
        if target == "-" and not why:
            bad.append(f"{file} has no target, and no reason")
        if target != "-" and not os.path.exists(f"tests/fuzz/fuzz_{target}.c"):
            bad.append(f"{file}: there is no target {target}")
for file in sorted(glob.glob("src/**/*.c", recursive=True)):
    door = DOORS.search(COMMENTS.sub("", open(file).read()))
    if door and file not in lines:
        bad.append(f"{file} reads from outside ({door.group(1)}) and is not in tests/fuzz/readers.txt")
for line in bad:
    print("lint:", line)
print("lint: readers have a fuzz target, or a reason" if not bad else f"lint: {len(bad)} lines about readers")
sys.exit(bool(bad))
