#pragma once

#include <barrier>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "core/base/capture.hpp"
#include "core/formats/headers/header_exchange.hpp"

namespace reshard::test {

/// The ranks of a job as threads of one process.
class RankThreads {
 public:
  explicit RankThreads(int count)
      : barrier_(count), errors_(static_cast<std::size_t>(count)), said_(errors_.size()) {}

  /// Runs `work` on every rank; what it threw on each of them.
  std::vector<std::optional<Error>> run(std::function<void(HeaderExchange const&)> const& work) {
    std::vector<std::optional<Error>> thrown(errors_.size());
    std::vector<std::thread> threads;
    for (std::size_t rank = 0; rank < errors_.size(); ++rank)
      threads.emplace_back([&, rank] {
        Exchange const exchange(*this, rank);
        thrown[rank] = capture([&] { work(exchange); });
      });
    for (std::thread& thread : threads) thread.join();
    return thrown;
  }

 private:
  class Exchange final : public HeaderExchange {
   public:
    Exchange(RankThreads& ranks, std::size_t rank) : ranks_(ranks), rank_(rank) {}

    int rank() const override { return static_cast<int>(rank_); }
    int size() const override { return static_cast<int>(ranks_.errors_.size()); }
    void together(std::function<void()> const& work) const override {
      ranks_.errors_[rank_] = capture(work);
      ranks_.barrier_.arrive_and_wait();
      std::optional<Error> first;
      for (auto const& error : ranks_.errors_)
        if (error && !first) first = error;
      ranks_.barrier_.arrive_and_wait();
      if (first) throw Error(*first);
    }
    void together_seeing(std::function<void()> const& work) const override { together(work); }
    std::vector<std::string> all_gather(std::string const& bytes) const override {
      ranks_.said_[rank_] = bytes;
      ranks_.barrier_.arrive_and_wait();
      std::vector<std::string> const all = ranks_.said_;
      ranks_.barrier_.arrive_and_wait();
      return all;
    }

   private:
    RankThreads& ranks_;
    std::size_t rank_;
  };

  std::barrier<> barrier_;
  std::vector<std::optional<Error>> errors_;
  std::vector<std::string> said_;
};

}  // namespace reshard::test
