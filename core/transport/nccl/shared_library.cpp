#include "core/transport/nccl/shared_library.hpp"

#include <utility>

#include <dlfcn.h>

#include "core/base/error.hpp"

namespace reshard {
namespace {

std::string loader_reason() {
  char const* const reason = ::dlerror();
  return reason != nullptr ? reason : "the loader gives no reason";
}

}  // namespace

SharedLibrary::SharedLibrary(std::string name, std::string const& advice)
    : name_(std::move(name)), handle_(::dlopen(name_.c_str(), RTLD_NOW | RTLD_LOCAL)) {
  if (handle_ == nullptr)
    fail(ErrorKind::resources, "{} cannot be opened: {}. {}", name_, loader_reason(), advice);
}

void* SharedLibrary::address_of(char const* name) const {
  void* const address = ::dlsym(handle_, name);
  if (address == nullptr)
    fail(ErrorKind::resources, "{} has no function {}: {}. It is another library, or too old.",
         name_, name, loader_reason());
  return address;
}

}  // namespace reshard
