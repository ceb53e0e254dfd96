#pragma once

#include <string>
#include <string_view>

namespace reshard {

/// NCCL's identity of the host: two ranks are on one host for it if these texts are equal. The
/// value of NCCL_HOSTID if it is set, even to an empty string; else the host's name followed by the
/// first word of the kernel's boot id. So a container with its own host name is a host of its own,
/// and processes on one host can pose as several hosts.
std::string nccl_host_identity();

/// nccl_host_identity() from its parts. `host_id` is nullptr if the variable is not set.
std::string nccl_host_identity_of(char const* host_id, std::string_view host_name,
                                  std::string_view boot_id);

/// gethostname(), for people.
std::string host_name();

}  // namespace reshard
