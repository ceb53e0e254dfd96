#include "stages/stream/state_sums.hpp"

#include <cstring>

#include "core/base/text.hpp"
#include "core/device/strided_digest.hpp"
#include "core/plan/digest_work.hpp"
#include "core/quant/rounded.hpp"

namespace reshard {
namespace {

constexpr std::uint64_t f32_bytes = 4;
constexpr std::uint64_t half_bytes = 2;

/// Calls run(where a run begins in memory, where in the tensor) for each run of a part.
template <class Run>
void each_run(std::span<ByteDim const> dims, std::byte const* from, std::uint64_t at,
              Run const& run) {
  if (dims.empty()) return run(from, at);
  for (std::uint64_t i = 0; i < dims[0].count; ++i)
    each_run(dims.subspan(1), from + static_cast<std::int64_t>(i) * dims[0].from_stride,
             at + i * static_cast<std::uint64_t>(dims[0].to_stride), run);
}

template <class Convert>
void convert_run(std::byte const* from, std::byte* into, std::uint64_t count,
                 Convert const& convert) {
  for (std::uint64_t i = 0; i < count; ++i) {
    std::uint32_t bits = 0;
    std::memcpy(&bits, from + f32_bytes * i, sizeof bits);
    std::uint16_t const rounded = convert(bits);
    std::memcpy(into + half_bytes * i, &rounded, sizeof rounded);
  }
}

bool is_moment(std::uint32_t bits) { return bits < 0x7f800000U || bits == 0x80000000U; }

/// Whether a whole run is: as fast as memory gives it.
bool are_moments(std::byte const* from, std::uint64_t count) {
  std::uint32_t wrong = 0;
  for (std::uint64_t i = 0; i < count; ++i) {
    std::uint32_t bits = 0;
    std::memcpy(&bits, from + f32_bytes * i, sizeof bits);
    wrong |= static_cast<std::uint32_t>(bits >= 0x7f800000U) &
             static_cast<std::uint32_t>(bits != 0x80000000U);
  }
  return wrong == 0;
}

std::string place_text(std::vector<Index> const& shape, Index place) {
  std::vector<Index> at(shape.size(), 0);
  for (std::size_t d = shape.size(); d-- > 0; place /= shape[d]) at[d] = place % shape[d];
  return fmt::format("[{}]", fmt::join(at, ", "));
}

}  // namespace

StateSums::StateSums(Plan const& plan, Model const& model, std::span<std::string const> files)
    : model_(model), files_(files) {
  for (StateCheck const& check : plan.checks) {
    if (check.rounded == digest_of(check.state)) continue;  // that digest is taken anyway
    std::size_t const digest = index(digest_of(check.state));
    if (by_digest_.size() <= digest) by_digest_.resize(digest + 1, nullptr);
    by_digest_[digest] = &check;
  }
}

void StateSums::add(DigestPart const& part, std::byte const* staging,
                    std::vector<DigestShare>& shares) const {
  if (part.digest == DigestId::none || index(part.digest) >= by_digest_.size()) return;
  StateCheck const* const check = by_digest_[index(part.digest)];
  if (check == nullptr) return;
  if (check->rule == StateRule::rounds_to_weight)
    add_rounded(*check, part, staging + part.from, shares);
  else
    check_moment(*check, part, staging + part.from);
}

/// Runs are rounded into a block without gaps, whose runs have half the strides in the tensor.
void StateSums::add_rounded(StateCheck const& check, DigestPart const& part, std::byte const* from,
                            std::vector<DigestShare>& shares) const {
  std::uint64_t const run_bytes = part.run_bytes / 2;
  std::uint64_t const bytes = bytes_of(part) / 2;
  thread_local std::vector<std::byte> block;
  block.resize(std::max<std::size_t>(block.size(), bytes));
  std::byte* into = block.data();
  each_run(part.dims, from, 0, [&](std::byte const* run, std::uint64_t) {
    std::uint64_t const count = part.run_bytes / f32_bytes;
    if (check.weight_dtype == DType::bf16)
      convert_run(run, into, count, quant::bf16_of);
    else
      convert_run(run, into, count, quant::f16_of);
    into += run_bytes;
  });
  std::vector<ByteDim> dims = part.dims;
  auto step = static_cast<std::int64_t>(run_bytes);
  for (std::size_t d = dims.size(); d-- > 0;) {
    dims[d].from_stride = step;
    dims[d].to_stride /= 2;
    step *= static_cast<std::int64_t>(dims[d].count);
  }
  std::uint64_t const after = (part.tensor_bytes - part.at - part.run_bytes) / 2;
  shares.push_back({check.rounded, strided_digest(block.data(), run_bytes, dims, after), bytes});
}

void StateSums::check_moment(StateCheck const& check, DigestPart const& part,
                             std::byte const* from) const {
  each_run(part.dims, from, part.at, [&](std::byte const* run, std::uint64_t at) {
    std::uint64_t const count = part.run_bytes / f32_bytes;
    if (are_moments(run, count)) return;
    for (std::uint64_t i = 0; i < count; ++i) {
      std::uint32_t bits = 0;
      std::memcpy(&bits, run + f32_bytes * i, sizeof bits);
      if (is_moment(bits)) continue;
      float value = 0;
      std::memcpy(&value, &bits, sizeof value);
      fail(
          ErrorKind::source,
          "{}: '{}' is {} at {}: a second moment is finite and not below zero. The file is damaged, "
          "the layout in args is not that of the save, or training had diverged: choose another "
          "checkpoint, or set source.optimizer = \"drop\".",
          files_[part.file], model_.tensor(check.state).name, value,
          place_text(logical_shape(model_, check.state), static_cast<Index>(at / f32_bytes + i)));
    }
  });
}

}  // namespace reshard
