#include "core/formats/megatron/mcore/extra_state.hpp"

#include <algorithm>
#include <charconv>
#include <set>

#include "core/base/text/json.hpp"
#include "core/containers/torch/pickle/carried_calls.hpp"
#include "core/formats/megatron/mcore/root.hpp"
#include "core/formats/torch_dist/dist_objects.hpp"

namespace reshard {
namespace {

constexpr std::string_view ending = "_extra_state";

/// Replaces the number that follows `prefix` in a key; false when the key has no such number or the
/// new one is negative.
template <class Change>
bool renumber(std::string& key, std::string_view prefix, Change const& change) {
  std::size_t const at = key.find(prefix);
  if (at == std::string::npos) return true;
  std::size_t const begin = at + prefix.size();
  std::size_t end = begin;
  while (end < key.size() && key[end] >= '0' && key[end] <= '9') ++end;
  Index number = 0;
  auto const [stop, error] = std::from_chars(key.data() + begin, key.data() + end, number);
  if (error != std::errc() || stop != key.data() + end) return true;
  Index const changed = change(number);
  if (changed < 0) return false;
  key.replace(begin, end - begin, fmt::format("{}", changed));
  return true;
}

bool is_grouped_expert(std::string_view key) {
  return key.find(".mlp.experts.linear_fc") != std::string_view::npos;
}

/// Numbers of the target place in a global key; false when the key belongs elsewhere.
bool to_local(std::string& key, std::string_view root, PipelineChunk const& chunk,
              Run const& experts) {
  std::string_view const rest = megatron::behind_root(key, root);
  if (rest.empty() && !root.empty())
    return chunk.embedding;  // of the parts next to the language
                             // model
  if (megatron::is_of_tower(key)) return chunk.embedding;
  if (rest.starts_with("output_layer.") && !chunk.head) return false;
  if (rest.starts_with("decoder.final_") && !chunk.head) return false;
  if (rest.starts_with("embedding.") && !chunk.embedding) return false;
  return renumber(key, "decoder.layers.",
                  [&](Index layer) { return position_of(chunk.decoder, layer); }) &&
         renumber(key, "mtp.layers.", [&](Index depth) { return position_of(chunk.mtp, depth); }) &&
         renumber(key, ".local_experts.",
                  [&](Index expert) { return position_of({experts}, expert); });
}

}  // namespace

std::string ExtraStates::global_key(std::string const& local, PipelineChunk const& chunk,
                                    Run const& experts) const {
  std::string key = local;
  if (megatron::is_of_tower(key)) return key;
  renumber(key, "decoder.layers.", [&](Index layer) { return index_at(chunk.decoder, layer); });
  renumber(key, "mtp.layers.", [&](Index depth) { return index_at(chunk.mtp, depth); });
  renumber(key, ".local_experts.", [&](Index expert) { return experts.begin + expert; });
  return key;
}

void ExtraStates::set_names(TrainerNames const& source, TrainerNames const& target) {
  source_root_ = source.root;
  root_ = target.root;
  tower_ = target.tower == "mcore";
}

/// A key of the source as the target has it.
std::string ExtraStates::with_root(std::string key) const {
  std::string_view const rest = megatron::behind_root(key, source_root_);
  return rest.empty() || source_root_ == root_ ? key : root_ + std::string(rest);
}

void ExtraStates::take(Checkpoint const& source, std::vector<PipelineChunk> const& chunks,
                       Index experts) {
  files_ = source.files;
  Index const per_rank = experts / std::max<Index>(source.shares.mesh.size("ep"), 1);
  for (ModuleStates const& states : source.shares.module_states) {
    SharePlace const& place = source.shares.places[states.place];
    Index const ep_rank = source.shares.mesh.coordinate(place.at, "ep");
    Run const held{ep_rank * per_rank, (ep_rank + 1) * per_rank, false};
    for (megatron::ExtraEntry const& entry : *states.entries) {
      // Files come in order of tp, then pp and ep: the first one seen is tp rank 0's.
      auto const [known, fresh] =
          known_.try_emplace(with_root(global_key(entry.key, chunks[place.chunk], held)));
      if (!fresh) continue;
      known->second.kind = entry.kind;
      known->second.file = place.file;
      known->second.dict = states.dict;
      known->second.key = entry.key;
      known->second.tensor = entry.tensor;
      known->second.size_bytes = entry.size_bytes;
      known->second.source_ranks = source.shares.mesh.size("ep");
    }
  }
}

/// Whether norms have a state: with Transformer Engine 2 they require one, with version 1 they
/// refuse it. A Transformer Engine source shows the version, else 2 is assumed.
bool ExtraStates::norms_keep_state() const {
  if (spec_ != "te") return false;
  bool const source_te = std::any_of(known_.begin(), known_.end(), [](auto const& known) {
    return known.second.kind != megatron::ExtraKind::none;
  });
  return !source_te || std::any_of(known_.begin(), known_.end(), [](auto const& known) {
    return known.first.find("norm.") != std::string::npos;
  });
}

std::vector<std::string> ExtraStates::keys_of(std::string_view name) const {
  std::vector<std::string> keys;
  // Parts of a fused projection have keys of their own in torch_dist: "in_proj.weight.z".
  if (std::size_t const weight = name.rfind(".weight."); weight != std::string_view::npos)
    name = name.substr(0, name.find('.', weight + 1));
  // A fused norm may stand under the name of a linear that is not there: shown by the linear's own
  // weight.
  if (name.ends_with(".layer_norm_weight") || name.ends_with(".layer_norm_bias")) return keys;
  std::size_t const dot = name.rfind('.');
  std::string const module(name.substr(0, dot == std::string_view::npos ? 0 : dot + 1));
  std::string_view const rest = megatron::behind_root(name, root_);
  bool const of_tower = tower_ && megatron::is_of_tower(name);
  // The embedding has none, and tensors that are kept as they are
  if (!of_tower && (rest.empty() || rest.starts_with("embedding."))) return keys;
  std::size_t const before =
      dot == std::string_view::npos || dot == 0 ? std::string_view::npos : name.rfind('.', dot - 1);
  std::string_view const last =
      std::string_view(module).substr(before == std::string_view::npos ? 0 : before + 1);
  bool const linear = last.starts_with("linear_") ||
                      last.ends_with("_proj.") ||  // eh_proj, in_proj, fc1_latent_proj
                      module.ends_with("projector.proj.");
  bool const norm = last.find("norm") != std::string_view::npos &&
                    !module.ends_with("mixer.norm.");  // Mamba's own is none of TE's
  if (linear || rest.starts_with("output_layer.") || (norm && norms_keep_state()))
    keys.push_back(module + std::string(ending));
  for (std::string_view const beside :
       {"self_attention.linear_qkv.weight", "self_attention.linear_kv_up_proj.weight"})
    if (spec_ == "te" && name.ends_with(beside))
      keys.push_back(std::string(name.substr(0, name.size() - beside.size())) +
                     "self_attention.core_attention." + std::string(ending));
  if (rest == "decoder.final_layernorm.weight" || rest == "decoder.final_norm.weight")
    keys.push_back(root_ + "output_layer." + std::string(ending));
  return keys;
}

std::vector<std::string> ExtraStates::made_keys(std::vector<StoredName> const& names) const {
  std::vector<std::string> keys;
  std::set<std::string> seen;
  // Attention that chooses its tokens is not Transformer Engine's and has no state.
  for (StoredName const& stored : names)
    if (auto const at = stored.name.find("core_attention.indexer."); at != std::string::npos)
      seen.insert(stored.name.substr(0, at) + "core_attention." + std::string(ending));
  for (StoredName const& stored : names)
    for (std::string& key : keys_of(stored.name))
      if (seen.insert(key).second) keys.push_back(std::move(key));
  return keys;
}

std::vector<ExtraStates::Placed> ExtraStates::place(PipelineChunk const& chunk,
                                                    HeldExperts const& experts,
                                                    std::vector<StoredName> const& names) {
  std::vector<Placed> result;
  if (from_source_) {
    for (auto const& [key, known] : known_) {
      std::string local = key;
      if (to_local(local, root_, chunk, experts.run))
        result.push_back(from_known(local, known, experts.ranks));
    }
    return result;
  }
  for (std::string const& local : made_keys(names)) {
    auto const known = known_.find(global_key(local, chunk, experts.run));
    bool const has_bytes = known != known_.end() && known->second.size_bytes > 0 &&
                           known->second.kind != megatron::ExtraKind::none;
    if (has_bytes && spec_ == "te") {
      result.push_back(from_known(local, known->second, experts.ranks));
      continue;
    }
    bool const te_module =
        spec_ == "te" && !megatron::behind_root(local, root_).starts_with("output_layer.");
    Placed placed;
    placed.entry.name = local;
    placed.entry.kind =
        te_module ? megatron::ChunkEntry::Kind::empty_uint8 : megatron::ChunkEntry::Kind::none;
    result.push_back(std::move(placed));
  }
  return result;
}

ExtraStates::Placed ExtraStates::from_known(std::string const& local, Known const& known,
                                            Index ranks) {
  using Kind = megatron::ChunkEntry::Kind;
  Placed placed;
  placed.entry.name = local;
  if (is_grouped_expert(local) && known.size_bytes > 0 && known.source_ranks != ranks)
    fail(
        ErrorKind::source,
        "{}: '{}' holds FP8 state of all experts of one ep rank ({} bytes), which cannot be regrouped from ep = {} to ep = {}. "
        "Save the checkpoint without FP8 state, or keep ep.",
        files_[known.file].string(), known.key, known.size_bytes, known.source_ranks, ranks);
  switch (known.kind) {
    case megatron::ExtraKind::none: placed.entry.kind = Kind::none; return placed;
    case megatron::ExtraKind::uint8_tensor:
      if (known.size_bytes == 0) {
        placed.entry.kind = Kind::empty_uint8;
        return placed;
      }
      placed.entry.kind = Kind::tensor;
      placed.entry.dtype = DType::u8;
      placed.entry.shape = {static_cast<Index>(known.size_bytes)};
      placed.opaque = true;
      placed.source_file = known.file;
      placed.source_offset_bytes = known.tensor.offset_bytes;
      return placed;
    case megatron::ExtraKind::bytes_io:
    case megatron::ExtraKind::other:
      placed.entry.kind = Kind::copy;
      placed.entry.node = node_of(known, &placed.entry.from);
      if (auto const found = pickle::not_to_carry(*placed.entry.from, placed.entry.node);
          !may_be_carried(found, foreign_classes_))
        fail(
            ErrorKind::source,
            "{}: '{}', the state of a module, holds {}, expected plain data; loading the target would import and run it. Save the checkpoint without "
            "such state, or set model.foreign_classes = \"keep\" when that is a class of a package that you trust.",
            files_[known.file].string(), known.key, json_quoted(found.name));
      return placed;
  }
  return placed;
}

TorchFile const& ExtraStates::document_of(Known const& known) {
  auto& file = documents_[{known.file, known.item.offset_bytes}];
  if (file) return *file;
  File const opened = File::open_for_reading(files_[known.file]);
  if (known.object)
    file = std::make_unique<TorchFile>(
        read_torch_file(FileRange(opened, known.item.offset_bytes, known.item.size_bytes)));
  else
    file = std::make_unique<TorchFile>(read_torch_file(opened));
  return *file;
}

pickle::NodeId ExtraStates::node_of(Known const& known, pickle::Document const** document) {
  pickle::Document const& found = document_of(known).document;
  *document = &found;
  if (known.object) return found.at(found.root).items.front();
  pickle::NodeId node = found.find(found.root, known.dict);
  if (node == pickle::no_node) node = found.find(found.root, "model");
  return found.find(node, known.key);
}

void ExtraStates::take_objects(Checkpoint const& source) {
  constexpr std::uint64_t largest_empty_bytes =
      1600;  // torch.save of a list with an empty tensor or None takes less
  FilePaths const& files = files_ = source.files;
  for (StoredObject const& object : source.stored.objects) {
    auto const key = module_state_key(object.name);
    if (!key || object.item.size_bytes <= largest_empty_bytes) continue;
    Known known;
    known.file = object.item.file;
    known.key = object.name;
    known.object = true;
    known.item = object.item;
    TorchFile const& torch = document_of(known);
    pickle::Node const& root = torch.document.at(torch.document.root);
    if (root.kind != pickle::Kind::list || root.items.size() != 1)
      fail(ErrorKind::source,
           "{}: '{}' is not a list of one state, as Megatron-Core stores it. Drop the object, or "
           "save the checkpoint again.",
           files[known.file].string(), object.name);
    megatron::ExtraEntry const entry =
        megatron::extra_entry(torch, root.items.front(), object.name);
    known.kind = entry.kind;
    known.tensor = entry.tensor;
    known.size_bytes = entry.size_bytes;
    if (known.size_bytes > 0 && form_ == "grouped" &&
        key->find(".local_experts.") != std::string::npos)
      fail(
          ErrorKind::source,
          "{}: '{}' holds FP8 state of one expert ({} bytes), which cannot be merged for grouped experts. Save the checkpoint without FP8 state, or "
          "set target.experts = \"sequential\".",
          files[known.file].string(), object.name, known.size_bytes);
    known_.emplace(with_root(*key), std::move(known));
  }
}

SharedText ExtraStates::object_bytes(std::string const& key) {
  auto const known = known_.find(key);
  if (known == known_.end() || known->second.size_bytes == 0) {
    check_grouped(key);
    return object_without_state();
  }
  pickle::Document document;
  std::string payload;
  Placed const placed = from_known(key, known->second, known->second.source_ranks);
  pickle::NodeId value = pickle::no_node;
  if (placed.opaque) {
    payload.resize(known->second.size_bytes);
    File::open_for_reading(files_[placed.source_file])
        .read_at(placed.source_offset_bytes, std::as_writable_bytes(std::span(payload)));
    value = document.add_tensor(DType::u8, placed.entry.shape);
  } else {
    value = document.add_copy(*placed.entry.from, placed.entry.node);
  }
  document.root = document.add_list({value});
  return dcp::torch_file_bytes(document, "archive", [&payload](std::size_t) { return payload; });
}

/// Most modules have none.
SharedText const& ExtraStates::object_without_state() {
  if (!object_without_state_.empty()) return object_without_state_;
  pickle::Document document;
  document.root = document.add_list(
      {spec_ == "te" ? document.add_tensor(DType::u8, {0}) : document.add_none()});
  object_without_state_ = dcp::torch_file_bytes(document, "archive", {});
  return object_without_state_;
}

/// Refuses non-empty state of grouped experts, which belongs to several keys of torch_dist.
void ExtraStates::check_grouped(std::string const& key) const {
  constexpr std::string_view experts = ".local_experts.";
  std::size_t const at = key.find(experts);
  if (at == std::string::npos) return;
  std::size_t const end = key.find('.', at + experts.size());
  auto const grouped = known_.find(key.substr(0, at) + key.substr(std::min(end, key.size())));
  if (grouped == known_.end() || grouped->second.size_bytes == 0) return;
  fail(
      ErrorKind::source,
      "{}: '{}' holds FP8 state of all experts of one ep rank ({} bytes), which cannot be split. Save the checkpoint without it.",
      files_[grouped->second.file].string(), grouped->second.key, grouped->second.size_bytes);
}

}  // namespace reshard
