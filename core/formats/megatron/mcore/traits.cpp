#include "core/formats/megatron/mcore/traits.hpp"

#include "core/formats/megatron/mcore/root.hpp"

namespace reshard::megatron {
namespace {

constexpr std::string_view embedding = "embedding.word_embeddings.weight";

bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

bool number_follows(std::string_view name, std::string_view part) {
  std::size_t const at = name.find(part);
  return at != std::string_view::npos && at + part.size() < name.size() &&
         name[at + part.size()] >= '0' && name[at + part.size()] <= '9';
}

void note_block(NameTraits& traits, std::string_view name) {
  if (name.starts_with("mtp.") && contains(name, ".transformer_layer."))
    traits.mtp_block = "transformer_layer";
}

}  // namespace

NameTraits traits_of_shares(Checkpoint const& checkpoint) {
  NameTraits traits;
  traits.vocab_ranks = checkpoint.shares.mesh.size("tp");
  std::vector<std::size_t> tensors;  // of tensors that disagree, the last counts
  for (TensorRun const& run : checkpoint.different_tensors(Checkpoint::Which::last))
    for (std::size_t t = run.first; t < run.first + run.count; ++t) tensors.push_back(t);
  StoredTensors const& stored = checkpoint.stored.tensors;
  for (std::size_t const t : tensors)
    if (auto root = root_in(stored.name(t))) traits.names.root = std::move(*root);
  for (std::size_t const t : tensors) {
    std::string_view const name = behind_root(stored.name(t), traits.names.root);
    if (name.ends_with("layer_norm_weight")) traits.spec = "te";
    if (contains(name, ".experts.local_experts.")) traits.form = "sequential";
    if (name.ends_with(".experts.weight1")) traits.form = "flat";
    if (name.ends_with(".experts.linear_fc1.weight0")) traits.form = "grouped";
    if (contains(name, ".mlp.experts.linear_fc") && traits.form.empty()) traits.form = "grouped";
    note_block(traits, name);
    if (name == embedding && !stored.shape(t).empty())
      traits.padded_vocab = stored.shape(t)[0] * traits.vocab_ranks;
  }
  bool te_states = false;  // layers of latent attention keep their norm apart under both
  for (ModuleStates const& states : checkpoint.shares.module_states)
    te_states = te_states || std::ranges::any_of(*states.entries, [](ExtraEntry const& entry) {
                  return entry.kind == ExtraKind::uint8_tensor || entry.kind == ExtraKind::bytes_io;
                });
  if (traits.spec != "te") traits.spec = te_states ? "te" : "local";
  if (traits.form.empty()) traits.form = traits.spec == "te" ? "grouped" : "sequential";
  return traits;
}

void note_traits(NameTraits& traits, std::string_view key, StoredTensor const& tensor) {
  constexpr std::string_view tower_layers = "vision_model.decoder.layers.";
  if (key.starts_with(tower_layers) && !number_follows(key, tower_layers))
    traits.names.tower_stacked = true;
  std::string_view const name = behind_root(key, traits.names.root);
  if (name.starts_with("decoder.layers.") && !number_follows(name, "decoder.layers."))
    traits.stacked = true;
  if (name.ends_with("_w")) traits.halves = true;
  if (number_follows(name, ".mlp.experts.experts."))
    traits.form = "singleton";
  else if (contains(name, ".mlp.experts.experts.") && traits.form != "singleton")
    traits.form = "dist";  // shared state of a layer's experts has no number in that form, either
  if (contains(name, ".mlp.experts.linear_fc1.weight")) traits.form = "fsdp";
  if (contains(name, ".experts.local_experts.")) traits.form = "fsdp_sequential";
  note_block(traits, name);
  if (name != embedding || tensor.shape.empty()) return;
  traits.padded_vocab = tensor.shape[0];
  traits.vocab_chunks = tensor.chunk_count;
}

void add_names(SideOptions& options, TrainerNames const& names) {
  options.options["root"] = Json(names.root);
  options.options["names"] = Json(names.trainer);
  options.options["tower_form"] = Json(names.tower);
}

bool same_names(TrainerNames const& a, TrainerNames const& b) {
  return a.root == b.root && a.trainer == b.trainer && a.tower == b.tower;
}

}  // namespace reshard::megatron
