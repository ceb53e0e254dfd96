#include "core/formats/megatron/state/buffer_shares.hpp"

#include <algorithm>

#include "core/base/text/text.hpp"
#include "core/mapping/maps/config_defaults.hpp"
#include "core/mapping/registration.hpp"

namespace reshard::megatron {
namespace {

constexpr std::string_view embedding = "embedding.word_embeddings.weight";
constexpr std::string_view output_layer = "output_layer.weight";

/// Whether a name is this one, under any root.
bool is(std::string_view name, std::string_view word) {
  return name.ends_with(word) &&
         (name.size() == word.size() || name[name.size() - word.size() - 1] == '.');
}

}  // namespace

BufferShares::BufferShares(BufferModel model) : model_(std::move(model)) {
  for (PipelineChunk const& chunk : model_.chunks) names_.push_back(model_.side.names(&chunk));
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
    if (is_buffer || of_experts != experts || (model_.trained && !model_.trained(names_[chunk][n])))
      continue;
    members.push_back(n);
    texts.push_back(name);
  }
  for (std::size_t const at :
       registration_order(texts, model_.map.registration, model_.map.name + ", registration"))
    known->second.push_back(members[at]);
  return known->second;
}

Index BufferShares::elements(StoredName const& name, SidePlace const& place) const {
  return checked_volume(model_.side.layout(name.entry, place).layout.shape, ErrorKind::source,
                        name.name);
}

std::vector<BufferShare> BufferShares::parameters(MeshPlace const& place, int pipeline_rank,
                                                  bool experts) {
  std::vector<BufferShare> result;
  for (std::size_t c = 0; c < model_.chunks.size(); ++c) {
    if (model_.chunks[c].rank != pipeline_rank) continue;
    BufferShare share{c, "", {}};
    for (std::uint32_t const n : ordered(c, experts))
      share.parameters.push_back({n, elements(names_[c][n], {place, &model_.chunks[c]})});
    result.push_back(std::move(share));
  }
  return result;
}

std::vector<BufferShare> BufferShares::of(MeshPlace const& place, int pipeline_rank, bool experts) {
  std::vector<BufferShare> result;
  for (BufferShare const& all : parameters(place, pipeline_rank, experts)) {
    std::size_t const first = result.size();
    for (RankParameter const& parameter : all.parameters) {
      std::string const dtype = model_.dtype(name(all, parameter));
      auto share = std::find_if(result.begin() + static_cast<std::ptrdiff_t>(first), result.end(),
                                [&](BufferShare const& one) { return one.weights == dtype; });
      if (share == result.end()) share = result.insert(share, {all.chunk, dtype, {}});
      share->parameters.push_back(parameter);
    }
  }
  return result;
}

std::vector<FlatParameter> BufferShares::flat(BufferShare const& share) const {
  std::vector<FlatParameter> result;
  for (RankParameter const& one : share.parameters)
    result.push_back({one.elements, is_shared(name(share, one).name)});
  return result;
}

/// Whether several pipeline stages hold a parameter: embeddings of tied models, and of those with
/// multi-token prediction.
bool BufferShares::is_shared(std::string_view name) const {
  if (model_.mesh.size("pp") == 1) return false;
  auto const head = model_.model.find_tensor("lm_head");
  bool const tied = !head || !model_.model.exists(*head);
  if (is(name, output_layer)) return tied;
  Json const prediction_layers = model_.model.value("M");
  bool const predicts = prediction_layers.integer() != nullptr && *prediction_layers.integer() > 0;
  return is(name, embedding) && (tied || predicts);
}

Index BufferShares::rank_elements(int stage) {
  MeshPlace const place = model_.mesh.at({{"pp", stage}});
  Index sum = 0;
  for (bool const experts : {false, true})
    for (BufferShare const& share : parameters(place, stage, experts))
      for (RankParameter const& one : share.parameters) sum += one.elements;
  return sum;
}

bool decays(std::string_view name, std::span<Index const> shape, Json const& args) {
  if (shape.size() != 1 && !name.ends_with(".bias")) return true;
  constexpr std::string_view word = "apply_wd_to_qk_layernorm";
  Json const flag = fact(args, word);
  Json const condition = fact(args, "no_weight_decay_cond_type");
  bool const norms = (flag.boolean() != nullptr && *flag.boolean()) ||
                     (condition.text() != nullptr && *condition.text() == word);
  return norms && (name.find("q_layernorm.") != std::string_view::npos ||
                   name.find("k_layernorm.") != std::string_view::npos);
}

bool may_be_decoupled(std::string_view name) {
  return is(name, embedding) || is(name, output_layer);
}

}  // namespace reshard::megatron
