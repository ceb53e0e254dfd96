#pragma once

#include <memory>
#include <span>
#include <string_view>

#include "core/device/device.hpp"
#include "core/transport/comm.hpp"
#include "core/transport/transport.hpp"

namespace reshard {

/// The parts of a transport; all must outlive it.
struct TransportParts {
  Comm const& comm;
  Device* device = nullptr;        ///< whose memory messages are in; nullptr: host memory
  DeviceStream* stream = nullptr;  ///< of that device, used only by the transport
  double timeout_seconds = 600;    ///< for the ranks to find each other
};

/// A transport that a job can choose.
struct TransportKind {
  std::string_view name;   ///< the value in job files
  std::string_view needs;  ///< requirements of the transport, for the user
  bool takes_stream;       ///< whether it requires a device and a stream
  std::unique_ptr<Transport> (*make)(TransportParts const& parts);
};

std::span<TransportKind const> transports();

/// Pre: a transport has this name.
TransportKind const& transport_named(std::string_view name);

/// Collective. In case of an obstacle every rank throws the same Error.
std::unique_ptr<Transport> make_transport(std::string_view name, TransportParts const& parts);

}  // namespace reshard
