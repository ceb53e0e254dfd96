#include <algorithm>
#include <iterator>
#include <utility>

#include "core/base/files/file.hpp"
#include "stages/stream/stream_threads.hpp"

namespace reshard {

void StreamThreads::open_device(DeviceSetup const& setup) {
  pinned_ = setup.device->pin(ring_.data(), ring_.capacity_bytes());
  DeviceExchange::Parts parts{*setup.device,  setup.memory_bytes, setup.link,
                              options_.views, sources_,           {}};
  if (options_.trace != nullptr)
    parts.observer = [this](DeviceSpan const& span) {
      double const shift = options_.trace->seconds(device_->start_time());
      options_.trace->add(
          {span.name, span.round, span.begin + shift, span.end + shift, span.bytes});
    };
  device_ = std::make_unique<DeviceExchange>(std::move(parts));
}

void StreamThreads::exchange_on_device() {
  std::deque<StagedRound> under_way;  // oldest first
  std::optional<StagedRound> next;
  Patience patience(options_.stall_timeout_seconds, [this] { check_others(); });
  for (bool more = true; more || next || !under_way.empty();) {
    look();
    if (more && !next) {
      bool const idle = under_way.empty();
      next = idle ? take(filled_, Wait::watched, exchange_time_.stall_seconds)
                  : take_if_there(filled_);
      if (idle) more = next.has_value();
      if (next) take_digests(*next);
      if (idle || next) patience.begin();
    }
    Timed const timed(exchange_time_.busy_seconds);
    bool moved = false;
    if (next && device_->begin(*next->device_round, next->staging)) {
      under_way.push_back(*std::move(next));
      next.reset();
      moved = true;
    }
    moved = move_on_device(under_way) || moved;
    if (moved)
      patience.begin();
    else if (!under_way.empty())
      wait_for_device(patience);
  }
}

/// Passes the ended rounds to the writer; returns whether there was progress.
bool StreamThreads::move_on_device(std::deque<StagedRound>& under_way) {
  bool moved = device_->advance();
  while (!under_way.empty() && device_->take_ended()) {
    ++rounds_;
    StagedRound& ended = under_way.front();
    if (!options_.digests.empty())
      std::ranges::copy(computed_digests(*ended.device_round, ended.staging),
                        std::back_inserter(ended.digests));
    put(exchanged_, std::move(under_way.front()));
    under_way.pop_front();
    moved = true;
  }
  return moved;
}

void StreamThreads::wait_for_device(Patience& patience) {
  if (patience.wait()) return;
  Transport const* const transport = options_.on_device->link.transport;
  std::vector<int> const peers =
      transport == nullptr ? std::vector<int>() : transport->awaited_peers();
  if (!peers.empty()) throw stalled(patience.timeout_seconds(), awaited_text(peers));
  comm_.abort(Error(
      ErrorKind::stall,
      fmt::format(
          "the GPU has completed no work for {} s, {} rounds are done. Check it with nvidia-smi.",
          patience.timeout_seconds(), rounds_.load())));
}

StagedRound StreamThreads::staged(RoundWork work) {
  StagedRound round;
  if (!device_) {
    round.own_work = std::move(work);
    return round;
  }
  auto const first_view_file = static_cast<std::uint32_t>(sources_.size());
  round.device_round = std::make_unique<DeviceRound>(make_device_round(
      std::move(work), options_.views, first_view_file, device_->message_place()));
  std::uint64_t const needed = round.work().staging_bytes;
  std::uint64_t const on_device = options_.on_device->memory_bytes;
  if (needed > std::min(options_.memory_bytes, on_device))
    fail(
        ErrorKind::resources,
        "a round needs {} on the host and on the GPU; there are {} and {}. Set {} to {} or more.",
        human_bytes(needed), human_bytes(options_.memory_bytes), human_bytes(on_device),
        options_.memory_bytes < needed ? "run.memory (and run.device_memory)" : "run.device_memory",
        human_bytes(4 * needed));
  return round;
}

}  // namespace reshard
