#pragma once

#include <memory>
#include <span>
#include <string_view>

#include "core/device/device.hpp"
#include "core/transport/comm.hpp"
#include "core/transport/transport.hpp"

namespace reshard {

/// What a transport is made of; all of it outlives the transport.
struct TransportParts {
  Comm const& comm;
  Device* device = nullptr;        ///< whose memory messages are in; null: host memory
  DeviceStream* stream = nullptr;  ///< of that device, for the transport alone
  double timeout_seconds = 600;    ///< for the ranks to find each other
};

/// A transport that a job can choose.
struct TransportKind {
  std::string_view name;   ///< its word in job files
  std::string_view needs;  ///< of the system, as text for people
  bool takes_stream;       ///< and a device: both are given
  std::unique_ptr<Transport> (*make)(TransportParts const& parts);
};

std::span<TransportKind const> transports();

/// Pre: a transport has this name.
TransportKind const& transport_named(std::string_view name);

/// Collective. What is in the way is thrown on every rank, the same Error.
std::unique_ptr<Transport> make_transport(std::string_view name, TransportParts const& parts);

}  // namespace reshard
