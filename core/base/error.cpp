#include "core/base/error.hpp"

namespace reshard {

int exit_code(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::usage: return 2;
    case ErrorKind::source: return 3;
    case ErrorKind::target: return 4;
    case ErrorKind::io: return 5;
    case ErrorKind::resources: return 6;
    case ErrorKind::self_check: return 7;
    case ErrorKind::stall: return 8;
    case ErrorKind::internal: return 70;
    case ErrorKind::interrupted: return 75;
  }
  return 70;
}

void broken(std::string_view what, char const* file, int line) {
  fail(ErrorKind::internal,
       "internal error: {}:{}: the assertion '{}' failed. This is a bug of reshard: please report "
       "it with the job file.",
       file, line, what);
}

}  // namespace reshard
