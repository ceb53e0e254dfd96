#include "core/plan/equal/alike_tensors.hpp"

#include "core/base/hash/mixed_bits.hpp"

namespace reshard {

std::size_t AlikeTensors::Hash::operator()(Traits const& traits) const {
  std::uint64_t hash = traits.size();
  for (std::uint64_t const word : traits) hash = mixed_bits(hash ^ word) + hash;
  return hash;
}

bool AlikeTensors::find_traits(TensorId tensor) {
  traits_.clear();
  for (Catalog const* const side : sides_) {
    if (side == nullptr) continue;
    TensorPieces const& pieces = side->tensors[index(tensor)];
    if (pieces.size() != 1 || pieces.has_copies()) return false;
    traits_.push_back(std::uint64_t{pieces.frame(0)} << 32U | pieces.form(0));
    traits_.push_back(static_cast<std::uint64_t>(pieces.offset(0)));
    traits_.push_back(static_cast<std::uint64_t>(side->blobs[pieces.blob(0)].dtype));
  }
  traits_.push_back(model_.tensor(tensor).axes.number());
  return true;
}

std::optional<TensorId> AlikeTensors::like(TensorId tensor) {
  if (!find_traits(tensor)) return std::nullopt;
  if (traits_ == last_) return first_like_last_;
  auto const [known, is_new] = first_.emplace(traits_, tensor);
  last_ = traits_;
  first_like_last_ = known->second;
  return is_new ? std::nullopt : std::optional(known->second);
}

}  // namespace reshard
