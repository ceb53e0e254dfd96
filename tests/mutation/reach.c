// Notes which blocks of a program run (clang's -fsanitize-coverage=trace-pc-guard) and writes their addresses, 4 bytes each, to $RESHARD_REACH/PID.blocks
// when it ends, beside PID.program with its path. The program has fixed addresses (-no-pie). Linked into the tests of the build that reach.py reads.
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/types.h>
#include <unistd.h>

enum { MOST = 4000000 };
static uint32_t reached[MOST];
static uint32_t blocks;

static void store(const char* ending, const void* bytes, size_t size) {
  char name[4096];
  snprintf(name, sizeof name, "%s/%d.%s", getenv("RESHARD_REACH"), (int)getpid(), ending);
  int file = open(name, O_WRONLY | O_CREAT | O_TRUNC, 0644);
  if (file < 0 || write(file, bytes, size) != (ssize_t)size) fprintf(stderr, "cannot write %s\n", name);
  if (file >= 0) close(file);
}

static void store_all(void) {
  if (!getenv("RESHARD_REACH")) return;
  uint32_t count = 0;
  for (uint32_t i = 1; i <= blocks && i < MOST; ++i)
    if (reached[i]) reached[count++] = reached[i];
  store("blocks", reached, count * sizeof *reached);
  char program[4096];
  ssize_t length = readlink("/proc/self/exe", program, sizeof program);
  if (length > 0) store("program", program, (size_t)length);
}

void __sanitizer_cov_trace_pc_guard_init(uint32_t* begin, uint32_t* end) {
  if (begin == end || *begin) return;
  if (!blocks) atexit(store_all);
  for (; begin < end; ++begin) *begin = ++blocks;
}

void __sanitizer_cov_trace_pc_guard(uint32_t* guard) {
  if (*guard < MOST && !reached[*guard]) reached[*guard] = (uint32_t)(uintptr_t)__builtin_return_address(0);
}
