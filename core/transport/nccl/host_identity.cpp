#include "core/transport/nccl/host_identity.hpp"

#include <array>
#include <cstdlib>
#include <fstream>

#include <unistd.h>

namespace reshard {
namespace {

// NCCL cuts the text here.
constexpr std::size_t longest_identity = 1023;

}  // namespace

std::string host_name() {
  std::array<char, longest_identity + 1> name{};
  if (::gethostname(name.data(), name.size() - 1) != 0) return "unknown";
  return name.data();
}

std::string nccl_host_identity_of(char const* host_id, std::string_view host_name,
                                  std::string_view boot_id) {
  std::string identity =
      host_id != nullptr ? std::string(host_id) : std::string(host_name).append(boot_id);
  if (identity.size() > longest_identity) identity.resize(longest_identity);
  return identity;
}

std::string nccl_host_identity() {
  std::string boot_id;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot_id;
  return nccl_host_identity_of(std::getenv("NCCL_HOSTID"), host_name(), boot_id);
}

}  // namespace reshard
