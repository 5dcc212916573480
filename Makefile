# The two commands of the README; everything else is CMake.
BUILD ?= build
CMAKE_FLAGS ?=
# One test more than there are processors: some wait for a server, a disk or a process of low priority.
JOBS ?= $(shell expr $$(getconf _NPROCESSORS_ONLN) + 1)
# Warnings are errors with the compiler that the house is checked with. Another one has others, which should stop nobody who wants to try tern.
WERROR ?= $(if $(filter 12,$(shell cc -dumpversion 2>/dev/null | cut -d. -f1)),ON,OFF)

# Where ccache is installed, what was compiled once in any folder is not compiled again.
ifneq ($(shell command -v ccache),)
export CMAKE_C_COMPILER_LAUNCHER ?= ccache
export CCACHE_BASEDIR ?= $(CURDIR)
export CCACHE_NOHASHDIR ?= 1
# What is handed out is compiled where it is.
dist dist-test deb deb-test: export CMAKE_C_COMPILER_LAUNCHER =
endif

.PHONY: lines figures all setup emulators demo test bare check test-aarch64 hexagon-stack sanitize fuzz torture mutate power dist dist-test deb deb-test packages site board clean

all: $(BUILD)/build.ninja
	@cmake --build $(BUILD)

setup:
	@bash scripts/setup.sh

# The tools of the processors that are not here; the tests that need them are skipped without.
EMULATORS = --optional --hexagon --aarch64 --lint --oracle --bindings --browser --site --compilers --windows
emulators: setup
	@bash scripts/setup.sh $(EMULATORS)

$(BUILD)/build.ninja: | setup
	@cmake -S . -B $(BUILD) -G Ninja -DTERN_WERROR=$(WERROR) $(CMAKE_FLAGS) >$(BUILD).log 2>&1 || { cat $(BUILD).log; exit 1; }
	@mv $(BUILD).log $(BUILD)/configure.log

# Answer a question about a short document with the model shipped in the repository.
demo: $(BUILD)/build.ninja
	@cmake --build $(BUILD) --target demo
	@echo "--- the document and the question ---"; cat models/tern-tiny/demo.txt; echo; echo "--- tern's answer ---"
	@$(BUILD)/tern models/tern-tiny - --temp 0 -n 96 --stats --pack never <models/tern-tiny/demo.txt
	@[ ! -s $(BUILD)/tern-eyes/model.safetensors ] || { echo; echo "--- a picture, models/tern-eyes/demo.png: What is the code of the garden? ---"; \
	  $(BUILD)/tern $(BUILD)/tern-eyes models/tern-eyes/demo.png "What is the code of the garden?" --temp 0 --pack never; }
	@echo; echo "With a model of yours:  $(BUILD)/tern MODEL.gguf \"a question\"    ($(BUILD)/tern models lists what is on this machine)"

# The suite, the house's rules, and a build where no optional tool is in sight. Tests whose tools are missing are skipped.
test: setup
	@bash scripts/setup.sh --optional --lint --oracle --ccache
	@$(MAKE) --no-print-directory all
	@bash scripts/lint.sh
	@ctest --test-dir $(BUILD) --output-on-failure -j $(JOBS)
	@dpkg-query -W >$(BUILD)/tested-with 2>/dev/null || rm -f $(BUILD)/tested-with
	@$(MAKE) --no-print-directory bare

# Builds everything with no optional tool in sight. A make of its own, so that it sees a ccache that `make test` has just installed.
bare:
	@bash scripts/compilers.sh bare

# What takes longer: the tests that `make test` skipped, with their tools installed; sanitizers, AArch64, other compilers. CI runs both.
# Steps that leave a processor idle (installing packages, a single-threaded emulator, valgrind) run beside another one.
check: all
	@bash scripts/beside.sh $(BUILD)/emulators.log "python3 scripts/figures.py --tern $(BUILD)/tern" "bash scripts/setup.sh $(EMULATORS)"
	@cmake -S . -B $(BUILD) -G Ninja -DTERN_WERROR=$(WERROR) $(CMAKE_FLAGS) -U 'HEX_*' -U TERN_HEXAGON >$(BUILD)/configure.log 2>&1 || { cat $(BUILD)/configure.log; exit 1; }
	@cmake --build $(BUILD)
	@dpkg-query -W 2>/dev/null | cmp -s - $(BUILD)/tested-with && tests="$(LONG_FORMS)" || tests="$(NEED_TOOLS)|$(LONG_FORMS)"; \
	  TERN_TEST_FULL=1 ctest --test-dir $(BUILD) --output-on-failure -j $(JOBS) -R "$$tests"
	@TERN_GROWTH=all bash scripts/beside.sh $(BUILD)/growth.log "bash scripts/compilers.sh clang musl" "ctest --test-dir $(BUILD) --output-on-failure -R ^lab/growth"
	@bash scripts/sanitized.sh
	@bash scripts/beside.sh $(BUILD)/windows.log "bash scripts/aarch64.sh" "bash scripts/windows.sh $(BUILD)/tern"
# What skips itself, whole or in part, in `make test` on a bare machine; where no package came since, it has run there.
NEED_TOOLS = ^npu/(hexagon|conformance)|^cli/(hexagon|completions)|^bindings/|^server/(page|clients)|^tools/(site|deb|hexagon)

# What asks a part in `make test`, or skips itself there, and all with TERN_TEST_FULL: every type and scheme, every step and allocation, more cases.
LONG_FORMS = ^cli/(estimate|eyes|minimal)$$|^engine/(drafts|families|scarce)$$|^quant/(partial|quality)$$|^prefill/experts$$|^server/again$$|^torture/slice$$|^oracle/make$$|^tools/(reproduce|train)$$

# The figures that documents quote and that no machine's speed changes, taken again.
figures: setup all
	@python3 scripts/figures.py --tern $(BUILD)/tern

# Every test on AArch64 under QEMU (`make check` runs the kernels and the device's).
test-aarch64: setup
	@bash scripts/setup.sh --aarch64
	@bash scripts/aarch64.sh all

# The whole suite under ASan + UBSan, then TSan (longer than `make check`, which runs the sensitive part of it).
sanitize: setup
	@bash scripts/sanitized.sh all

# Every fuzz target for FUZZ_SECONDS each.
FUZZ_SECONDS ?= 600
fuzz: setup
	@bash scripts/fuzz.sh $(FUZZ_SECONDS)

# One failing call at a time (memory, files, threads, libraries too) and kills at random instants, over every command.
TORTURE_MINUTES ?= 30
torture: setup all
	@python3 tests/torture/torture.py hours $(BUILD)/tern $(BUILD)/libtorture_faults.so $(TORTURE_MINUTES)

# Every mechanism broken once, one at a time: do the tests notice? (Over an hour; tools/mutate.sh --part 1/4 --results FILE for a part.)
mutate: setup
	@tools/mutate.sh

# A whole 0.5B model on the emulated Hexagon, to the host's bits. (Up to half an hour.)
hexagon-stack: setup all
	@scripts/hexagon-stack.sh $(BUILD)

# The power goes POWER_CRASHES times in each of four scenes: package, session, store, cache.
POWER_CRASHES ?= 250
power: setup all
	@python3 tests/torture/power.py $(BUILD)/tern $(BUILD)/libtorture_disk.so $(POWER_CRASHES)

# What is handed out, in build/dist: source, static programs, install.sh, wheel, Node package, Debian packages, SBOMs, checksums.
dist: setup
	@bash scripts/setup.sh --optional --ask --static --aarch64 --deb --site
	@bash scripts/dist.sh

# The same bytes twice; the source without git, the programs where there is nothing else (minutes, and as root).
dist-test: dist
	@bash scripts/dist-test.sh --twice

# Debian packages, in build/deb.
deb: setup
	@bash scripts/setup.sh --deb --site
	@bash scripts/deb.sh

# The same bytes twice; then installed, used and purged in a bare system (minutes, and as root).
deb-test: setup
	@bash scripts/setup.sh --deb --site
	@bash scripts/deb.sh --twice
	@bash scripts/deb-test.sh

# What registries take: a Python wheel and a Node package, each with libtern in it, in build/packages. Nothing is sent anywhere.
packages: $(BUILD)/build.ninja
	@cmake --build $(BUILD) --target packages_of_bindings

# The documents as pages for a browser, in build/site.
site:
	@bash scripts/setup.sh --site
	@python3 scripts/site.py

# tern-mini as on a small board: AArch64 under QEMU, its size, memory and text.
board: setup all
	@bash scripts/setup.sh --optional --static --aarch64
	@bash scripts/board.sh $(BUILD)/tern

# Lines of code, product by product.
lines:
	@python3 scripts/lines.py -v

clean:
	rm -rf $(BUILD) build-asan build-tsan build-fuzz build-aarch64 build-bare build-clang build-musl build-windows
