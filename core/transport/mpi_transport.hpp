#pragma once

#include <vector>

#include "core/transport/comm.hpp"
#include "core/transport/transport.hpp"

namespace reshard {

/// Messages in host memory, over MPI. A message travels in parts of at most 64 MiB. At most one
/// MpiTransport per Comm at a time: two would receive each other's messages.
class MpiTransport final : public Transport {
 public:
  explicit MpiTransport(Comm const& comm) : comm_(comm) {}
  ~MpiTransport() override { cancel(); }
  MpiTransport(MpiTransport const&) = delete;
  MpiTransport& operator=(MpiTransport const&) = delete;

  void post(std::span<FlatMessage const> receives, std::span<FlatMessage const> sends,
            std::size_t first_number) override;
  void poll(std::vector<Landed>& landed) override;
  bool one_group() const override { return false; }
  std::uint64_t bytes_landed() const override { return bytes_landed_; }
  std::vector<int> awaited_peers() const override;
  /// Messages that were matched may still write into their memory.
  void cancel() override;

 private:
  struct Flight {
    Landed report;
    int peer = 0;
    std::uint64_t parts_left = 0;
  };
  /// A part of a message, with a request in flight.
  struct Part {
    std::size_t flight = 0;  ///< in flights_
    int bytes = 0;
  };

  void begin(FlatMessage const& message, std::size_t number, bool receive);
  std::size_t new_flight(Flight const& flight);
  void land(std::size_t request, MPI_Status const& status, std::vector<Landed>& landed);

  Comm comm_;
  std::vector<MPI_Request> requests_;
  std::vector<Part> parts_;      // one per request
  std::vector<Flight> flights_;  // those in free_flights_ are complete
  std::vector<std::size_t> free_flights_;
  std::vector<Landed> at_once_;  // empty messages
  std::uint64_t bytes_landed_ = 0;
  // Kept to reuse their memory.
  std::vector<int> done_;
  std::vector<MPI_Status> statuses_;
};

}  // namespace reshard
