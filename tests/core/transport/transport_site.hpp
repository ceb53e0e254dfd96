#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/transport/comm.hpp"
#include "core/transport/transport.hpp"

namespace reshard {

/// A transport that is tested, and memory for its messages. Made on every rank, and destroyed
/// likewise.
class TransportSite {
 public:
  virtual ~TransportSite() = default;
  virtual Transport& transport() = 0;
  /// Memory that lives as long as the site.
  virtual std::byte* allocate(std::uint64_t bytes) = 0;
  virtual void write(std::byte* to, std::span<std::byte const> bytes) = 0;
  virtual std::vector<std::byte> read(std::byte* from, std::uint64_t bytes) = 0;
};

/// The transports of this program.
std::vector<std::string> site_names();
/// Null, with the reason in `why_not`, where this one cannot be tested.
std::unique_ptr<TransportSite> make_site(std::string const& name, std::string& why_not);

}  // namespace reshard
