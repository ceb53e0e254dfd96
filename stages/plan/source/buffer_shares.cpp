#include "stages/plan/source/buffer_shares.hpp"

#include <algorithm>

#include "core/base/text.hpp"
#include "core/mapping/registration.hpp"

namespace reshard {

BufferShares::BufferShares(BufferModel const& model) : model_(model) {
  for (PipelineChunk const& chunk : model.chunks) names_.push_back(model.side.names(&chunk));
}

std::vector<std::uint32_t> BufferShares::ordered(std::size_t chunk, bool experts) {
  auto const [known, is_new] = order_.try_emplace({chunk, experts});
  if (!is_new) return known->second;
  std::vector<std::uint32_t> members;
  std::vector<std::string> texts;
  for (std::uint32_t n = 0; n < names_[chunk].size(); ++n) {
    std::string const& name = names_[chunk][n].name;
    bool const of_experts = model_.experts_apart && name.find(".experts.") != std::string::npos;
    bool const is_buffer = std::ranges::any_of(
        model_.map.buffers, [&](auto const& pattern) { return matches_glob(pattern, name); });
    if (is_buffer || of_experts != experts) continue;
    members.push_back(n);
    texts.push_back(name);
  }
  for (std::size_t const at :
       registration_order(texts, model_.map.registration, model_.map.name + ", registration"))
    known->second.push_back(members[at]);
  return known->second;
}

std::string BufferShares::dtype_of(StoredName const& name) const {
  auto const& dtype = model_.dtypes[index(model_.side.tensors(name.entry).front())];
  return dtype ? std::string(reshard::name(*dtype)) : "";
}

Index BufferShares::elements(StoredName const& name, SidePlace const& place) const {
  return checked_volume(model_.side.layout(name.entry, place).layout.shape, ErrorKind::source,
                        name.name);
}

std::vector<BufferShare> BufferShares::of(MeshPlace const& place, int pipeline_rank, bool experts) {
  std::vector<BufferShare> result;
  for (std::size_t c = 0; c < model_.chunks.size(); ++c) {
    if (model_.chunks[c].rank != pipeline_rank) continue;
    std::size_t const first = result.size();
    for (std::uint32_t const n : ordered(c, experts)) {
      std::string const dtype = dtype_of(names_[c][n]);
      auto share = std::find_if(result.begin() + static_cast<std::ptrdiff_t>(first), result.end(),
                                [&](BufferShare const& one) { return one.weights == dtype; });
      if (share == result.end()) share = result.insert(share, {c, dtype, {}});
      share->parameters.push_back({n, elements(names_[c][n], {place, &model_.chunks[c]})});
    }
  }
  return result;
}

}  // namespace reshard
