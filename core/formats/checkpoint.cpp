#include "core/formats/checkpoint.hpp"

#include "core/base/error.hpp"

namespace reshard {

std::vector<TensorRun> Checkpoint::different_tensors(Which which) const {
  std::vector<std::size_t> last(shares.places.size());  // by the first place of an equal table
  for (std::size_t p = 0; p < shares.places.size(); ++p)
    last[shares.places[p].alike.value_or(p)] = p;
  std::vector<TensorRun> runs;
  std::size_t end = 0;
  auto const add = [&runs](std::size_t first, std::size_t count) {
    if (count > 0) runs.push_back({first, count});
  };
  for (std::size_t p = 0; p < shares.places.size(); ++p) {
    SharePlace const& share = shares.places[p];
    RESHARD_EXPECT(share.first_tensor >= end);
    add(end, share.first_tensor - end);
    end = share.first_tensor + share.tensor_count;
    std::size_t const first = share.alike.value_or(p);
    if (p == (which == Which::first ? first : last[first]))
      add(share.first_tensor, share.tensor_count);
  }
  add(end, stored.tensors.size() - end);
  return runs;
}

void Checkpoint::forget_tensors() {
  stored.forget_tensors();
  index.promised = {};
  if (model.beside) model.beside->weight_map = {};
}

}  // namespace reshard
