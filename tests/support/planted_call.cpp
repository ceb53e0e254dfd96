#include "tests/support/planted_call.hpp"

#include <cerrno>
#include <map>
#include <mutex>
#include <optional>

#include <dlfcn.h>
#include <sys/file.h>
#include <sys/random.h>
#include <unistd.h>

namespace reshard::test {
namespace {

struct Rule {
  std::string call;
  std::string part;
  std::function<int(std::string const&)> answer;
};

std::mutex& mutex() {
  static auto* const one = new std::mutex;
  return *one;
}
std::map<std::size_t, Rule>& rules() {
  static auto* const all = new std::map<std::size_t, Rule>;
  return *all;
}

/// Of the first rule that is meant; nothing where the call is to be made.
std::optional<int> answer(char const* call, std::string const& path) {
  std::function<int(std::string const&)> wanted;
  {
    std::lock_guard const lock(mutex());
    for (auto const& [number, rule] : rules())
      if (rule.call == call && path.find(rule.part) != std::string::npos) {
        wanted = rule.answer;
        break;
      }
  }
  int const given = wanted ? wanted(path) : PlantedCall::is_made;
  if (given == PlantedCall::is_made) return std::nullopt;
  errno = given;
  return given == PlantedCall::succeeds ? 0 : -1;
}

std::string path_of(int descriptor) {
  char path[4096];
  ssize_t const length =
      ::readlink(("/proc/self/fd/" + std::to_string(descriptor)).c_str(), path, sizeof path);
  return length < 0 ? "" : std::string(path, static_cast<std::size_t>(length));
}

template <class Function>
Function* next(char const* name) {
  return reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, name));
}

}  // namespace

PlantedCall::PlantedCall(std::string call, std::string part,
                         std::function<int(std::string const&)> answer) {
  static std::size_t last = 0;
  std::lock_guard const lock(mutex());
  number_ = ++last;
  rules()[number_] = {std::move(call), std::move(part), std::move(answer)};
}

PlantedCall::~PlantedCall() {
  std::lock_guard const lock(mutex());
  rules().erase(number_);
}

}  // namespace reshard::test

extern "C" {

int flock(int descriptor, int operation) {
  using namespace reshard::test;
  auto const given = answer("flock", path_of(descriptor));
  return given ? *given : next<decltype(flock)>("flock")(descriptor, operation);
}

int fsync(int descriptor) {
  using namespace reshard::test;
  auto const given = answer("fsync", path_of(descriptor));
  return given ? *given : next<decltype(fsync)>("fsync")(descriptor);
}

ssize_t getrandom(void* bytes, size_t count, unsigned flags) {
  using namespace reshard::test;
  auto const given = answer("getrandom", "");
  return given ? *given : next<decltype(getrandom)>("getrandom")(bytes, count, flags);
}

int rename(char const* from, char const* to) {
  using namespace reshard::test;
  auto const given = answer("rename", from);
  return given ? *given : next<decltype(rename)>("rename")(from, to);
}

int renameat2(int from_folder, char const* from, int to_folder, char const* to, unsigned flags) {
  using namespace reshard::test;
  auto const given = answer("renameat2", from);
  return given ? *given
               : next<decltype(renameat2)>("renameat2")(from_folder, from, to_folder, to, flags);
}

}  // extern "C"
