#pragma once

#include <ctime>
#include <string>

#include <gtest/gtest.h>

#include "core/base/error.hpp"
#include "tests/support/memory_use.hpp"

namespace reshard {

/// Adversarial inputs, of the size at which a step that is not linear takes minutes. Every parser
/// keeps to the same bound: so many bytes, and so many more for each byte of input; and processor
/// time that is generous for what is linear, so that a busy machine changes nothing.
inline constexpr std::uint64_t free_memory = std::uint64_t{96} << 20U;
inline constexpr std::uint64_t memory_per_byte = 32;
inline constexpr double most_cpu_seconds = 20;

/// Lets `call` read an input of so many bytes, within the bounds. What it refused, as "kind:
/// sentence"; "" when it did not.
template <class Call>
std::string within_bounds(std::string_view what, std::uint64_t input_bytes, Call call) {
  auto const cpu_seconds = [] {
    timespec now{};
    ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
  };
  std::string refused;
  double const begin = cpu_seconds();
  begin_memory_use();
  try {
    call();
  } catch (Error const& error) {
    refused = fmt::format("{}: {}", exit_code(error.kind()), error.sentence());
  }
  std::uint64_t const peak = peak_memory_bytes();
  double const seconds = cpu_seconds() - begin;
  fmt::print("{:40} {:9.1f} MiB read, {:9.1f} MiB held at most, {:6.2f} s{}\n", what,
             static_cast<double>(input_bytes) / (1 << 20U), static_cast<double>(peak) / (1 << 20U),
             seconds, refused.empty() ? "" : ", refused");
  EXPECT_LE(peak, free_memory + memory_per_byte * input_bytes) << what;
  EXPECT_LT(seconds, most_cpu_seconds) << what;
  EXPECT_LT(refused.size(), 16U * 1024U) << what;  // a sentence for a terminal
  return refused;
}

/// The same for bytes; `parse` takes them.
template <class Parse>
std::string bounded(std::string_view what, std::string const& bytes, Parse parse) {
  return within_bounds(what, bytes.size(), [&] { parse(bytes); });
}

inline void expect_refused(std::string const& refused, std::string_view words) {
  EXPECT_TRUE(refused.starts_with("3: ")) << refused;
  EXPECT_NE(refused.find(words), std::string::npos)
      << "no '" << words << "' in: " << refused.substr(0, 2000);
}

/// `item(0)`, …, `item(count - 1)` between `begin` and `end`, with commas.
template <class Item>
std::string joined(std::string_view begin, std::size_t count, Item item, std::string_view end) {
  std::string out(begin);
  for (std::size_t i = 0; i < count; ++i) {
    if (i != 0) out += ',';
    out += item(i);
  }
  return out.append(end);
}

inline std::string repeated(std::string_view text, std::size_t times) {
  std::string out;
  out.reserve(text.size() * times);
  for (std::size_t i = 0; i < times; ++i) out += text;
  return out;
}

}  // namespace reshard
