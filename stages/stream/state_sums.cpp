#include "stages/stream/state_sums.hpp"

#include <fmt/ranges.h>

#include "core/base/text/text.hpp"
#include "core/device/state_digest.hpp"
#include "core/plan/equal/digest_work.hpp"

namespace reshard {
namespace {

std::string place_text(std::vector<Index> const& shape, Index place) {
  std::vector<Index> at(shape.size(), 0);
  for (std::size_t d = shape.size(); d-- > 0; place /= shape[d]) at[d] = place % shape[d];
  return fmt::format("[{}]", fmt::join(at, ", "));
}

}  // namespace

StateSums::StateSums(Plan const& plan, Model const& model, std::span<std::string const> files)
    : model_(model), files_(files) {
  for (StateCheck const& check : plan.checks) {
    if (check.rounded == digest_of(check.state)) continue;  // that digest is computed anyway
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

void StateSums::add_rounded(StateCheck const& check, DigestPart const& part, std::byte const* from,
                            std::vector<DigestShare>& shares) const {
  thread_local std::vector<std::byte> block;
  std::uint64_t const after = part.tensor_bytes - part.at - part.run_bytes;
  shares.push_back(
      {check.rounded,
       rounded_digest(check.weight_dtype, from, part.run_bytes, part.dims, after, block),
       bytes_of(part) / 2});
}

void StateSums::check_moment(StateCheck const& check, DigestPart const& part,
                             std::byte const* from) const {
  auto const wrong = wrong_moment(from, part.run_bytes, part.dims);
  if (!wrong) return;
  fail(ErrorKind::source,
       "{}: '{}' is {} at {}, but a second moment must be finite and not negative. The file is "
       "damaged, args describe another layout, or training had diverged: choose another "
       "checkpoint, or set source.optimizer = \"drop\".",
       files_[part.file], model_.tensor(check.state).name, wrong->value,
       place_text(logical_shape(model_, check.state),
                  static_cast<Index>((part.at + wrong->at) / sizeof(float))));
}

}  // namespace reshard
