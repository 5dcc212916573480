#!/usr/bin/env bash
# Vercel's AI SDK and LangChain against tern serve on loopback; and real MCP servers in tern chat.
set -u
tern=$1
skip() { echo "skipped: $*"; exit 77; }
[ -r models/tern-tiny/model.safetensors ] || skip "no models/tern-tiny"
command -v node >/dev/null && command -v npm >/dev/null && command -v python3 >/dev/null || skip "no node, npm or python3"
[ "$(node -p 'process.versions.node.split(".")[0]')" -ge 20 ] || skip "node is older than 20"
[ -z "${TERN_EMULATED:-}" ] || skip "emulated"
at=$(dirname "$tern")/npm-frameworks
want="ai@7.0.173 @ai-sdk/openai-compatible@3.0.92 @ai-sdk/openai@4.0.118 @ai-sdk/anthropic@4.0.105 @langchain/openai@1.6.0 @langchain/anthropic@1.5.11 @langchain/ollama@1.3.0 @langchain/core zod@4 @modelcontextprotocol/sdk@1.32.2 @modelcontextprotocol/server-filesystem@2026.8.31 @modelcontextprotocol/server-everything@2026.8.31"
if [ "$(cat "$at/installed" 2>/dev/null)" != "$want" ]; then
    mkdir -p "$at"
    echo '{"private": true}' >"$at/package.json"
    timeout 180 npm install --prefix "$at" --no-audit --no-fund --ignore-scripts $want >"$at/npm.log" 2>&1 || skip "npm cannot install the packages: $(tail -1 "$at/npm.log")"
    echo "$want" >"$at/installed"
fi
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
mkdir "$work/notes"
printf 'The valve froze on Tuesday!' >"$work/notes/valve.md"
python3 - "$work" <<'END' || exit 1
import json, sys
sys.path.insert(0, "tests/fixture")
import saying
call = lambda name, **arguments: "<tool_call>" + json.dumps({"name": name, "arguments": arguments}) + "</tool_call>"
notes = sys.argv[1] + "/notes"
saying.write(sys.argv[1] + "/say.gguf", {"A": ['<tool_call>{"name": "add", ', '"arguments": {"a": 2, ', '"b": 3}}', "</tool_call>"], "5": ["It is five."], "L": [call("list_directory", path=notes)], "R": [call("read_text_file", path=notes + "/valve.md")],
                                         "P": [call("read_text_file", path="/etc/passwd")], "E": [call("echo", message="5")], "d": ["A list."], "Q": ["<tool_call>", '{"name": "add", "arguments": {"a": 3, "b": 2}}', "</tool_call> "], "!": ["It froze."], "s": ["It may not."]}, context=32768)
END
cp tests/server/frameworks.mjs "$at/"
XDG_DATA_HOME=$work/data XDG_CACHE_HOME=$work/cache node "$at/frameworks.mjs" "$tern" models/tern-tiny "$work/say.gguf" "$work/notes"
