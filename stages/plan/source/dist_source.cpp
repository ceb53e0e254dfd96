#include "stages/plan/source/dist_source.hpp"

#include <algorithm>
#include <array>
#include <optional>
#include <set>

#include "stages/plan/source/source_names.hpp"

namespace reshard {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

/// "chained_0." of several optimizers in one.
std::string_view without_chain(std::string_view key) {
  constexpr std::string_view chain = "chained_";
  if (!key.starts_with(chain)) return key;
  std::size_t at = chain.size();
  while (at < key.size() && is_digit(key[at])) ++at;
  return at > chain.size() && at < key.size() && key[at] == '.' ? key.substr(at + 1) : key;
}

/// A key of optimizer state: what kind, and of which weight.
struct StateKey {
  std::string state;
  std::string weight;
};

constexpr std::string_view dist_states = "optimizer.state.";
constexpr std::string_view fsdp_states = "optimizer.state.module.module.module.";

/// optimizer.state.exp_avg.decoder.… of torch_dist;
/// optimizer.state.module.module.module.decoder.….exp_avg of Megatron-FSDP.
std::optional<StateKey> state_key(std::string_view key, dcp::Flavour flavour) {
  std::string_view const rest = without_chain(key);
  if (flavour == dcp::Flavour::fsdp_dtensor) {
    std::size_t const dot = rest.rfind('.');
    if (!rest.starts_with(fsdp_states) || dot < fsdp_states.size()) return std::nullopt;
    return StateKey{std::string(rest.substr(dot + 1)),
                    std::string(rest.substr(fsdp_states.size(), dot - fsdp_states.size()))};
  }
  if (flavour != dcp::Flavour::torch_dist || !rest.starts_with(dist_states)) return std::nullopt;
  std::size_t const dot = rest.find('.', dist_states.size());
  if (dot == std::string_view::npos) return std::nullopt;
  std::string state(rest.substr(dist_states.size(), dot - dist_states.size()));
  return StateKey{std::move(state), std::string(rest.substr(dot + 1))};
}

std::string found_prefix(DcpCheckpoint const& checkpoint) {
  if (checkpoint.flavour == dcp::Flavour::plain) return "";
  for (std::string_view const prefix :
       {"model.module.module.", "model.module.", "module.", "model.", ""})
    for (dcp::StoredTensor const& tensor : checkpoint.metadata.tensors)
      if (tensor.name.starts_with(prefix) &&
          std::string_view(tensor.name).substr(prefix.size()).starts_with("decoder."))
        return std::string(prefix);
  return "";
}

bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

bool number_follows(std::string_view name, std::string_view part) {
  std::size_t const at = name.find(part);
  return at != std::string_view::npos && at + part.size() < name.size() &&
         is_digit(name[at + part.size()]);
}

void note_traits(DistView& view, std::string const& name, dcp::StoredTensor const& tensor) {
  if (name.starts_with("decoder.layers.") && !number_follows(name, "decoder.layers."))
    view.stacked = true;
  if (name.ends_with("_w")) view.halves = true;
  if (contains(name, ".mlp.experts.experts."))
    view.traits.form = number_follows(name, ".mlp.experts.experts.") ? "singleton" : "dist";
  if (contains(name, ".mlp.experts.linear_fc1.weight")) view.traits.form = "fsdp";
  if (contains(name, ".experts.local_experts.")) view.traits.form = "fsdp_sequential";
  if (name.starts_with("mtp.") && contains(name, ".transformer_layer."))
    view.traits.mtp_block = "transformer_layer";
  if (name == "embedding.word_embeddings.weight" && !tensor.shape.empty())
    view.traits.padded_vocab = tensor.shape[0];
}

/// Which key of a table a stored name is under, by its name or an alias; two keys for one name are
/// an Error.
class Finder {
 public:
  Finder(DistView::Table const& table, std::string const& place) : table_(table), place_(place) {}

  std::optional<std::size_t> find(StoredName const& name) const {
    auto const* hit = at(name.name);
    for (std::string const& alias : name.aliases) {
      auto const* other = at(alias);
      if (other == nullptr || other == hit) continue;
      if (hit != nullptr)
        fail(ErrorKind::source,
             "{}: '{}' and '{}' are two names of one tensor. Remove one of them.", place_,
             hit->first, other->first);
      hit = other;
    }
    return hit == nullptr ? std::nullopt : std::optional<std::size_t>(hit->second);
  }

 private:
  DistView::Table::value_type const* at(std::string const& key) const {
    auto const found = table_.find(key);
    return found == table_.end() ? nullptr : &*found;
  }
  DistView::Table const& table_;
  std::string const& place_;
};

class DistCollector {
 public:
  DistCollector(Model& model, Side const& side, DcpCheckpoint const& checkpoint,
                DistView const& view, std::string map_names)
      : model_(model),
        side_(side),
        checkpoint_(checkpoint),
        view_(view),
        map_names_(std::move(map_names)) {
    place_ = (checkpoint.container == TensorContainer::items
                  ? checkpoint.directory.folder / dcp::metadata_name
                  : checkpoint.directory.folder)
                 .string();
    catalog_.tensors.resize(model.tensors().size());
  }

  Catalog run(std::vector<std::string> const& files, std::vector<int> const& may_lack) {
    catalog_.files = files;
    std::vector<bool> found;
    auto const is_there = [this](std::string const& name) { return view_.weights.contains(name); };
    note_found(model_, side_, side_.names(nullptr), is_there, found);
    settle_optional(model_, may_lack, found);
    names_ = side_.names(nullptr);
    add_plane(view_.weights, 0, false);
    std::size_t const planes = view_.state_tables.size() + 1;
    if (model_.tensors().size() % planes != 0 || !has_states()) return std::move(catalog_);
    for (std::size_t k = 0; k + 1 < planes; ++k)
      add_plane(view_.state_tables[k], (k + 1) * (model_.tensors().size() / planes), true);
    return std::move(catalog_);
  }

 private:
  bool has_states() const {
    return !view_.states.empty() &&
           model_.find_tensor(
               fmt::format("{} ({})", model_.tensors().front().name, view_.states.front())) >= 0;
  }

  void add_plane(DistView::Table const& table, std::size_t first_tensor, bool partial) {
    Finder const finder(table, place_);
    std::vector<bool> explained(checkpoint_.metadata.tensors.size(), false);
    for (StoredName const& name : names_) {
      auto const at = finder.find(name);
      if (!at) {
        if (name.copy || partial) continue;  // frozen weights have no state
        fail_behind_prefix(table, name);
        fail(
            ErrorKind::source,
            "{}: lacks '{}', which {} expects. The save was cut short, or the facts or the map are another checkpoint's: check source.config and "
            "model.map, or choose another save.",
            place_, name.name, side_.entry_place(name.entry));
      }
      explained[*at] = true;
      add_tensor(name, checkpoint_.metadata.tensors[*at], first_tensor);
      if (partial)
        for (int const tensor : side_.tensors(name.entry))
          model_.set_exists(tensor + narrow<int>(first_tensor), true);
    }
    for (auto const& [key, at] : table)
      if (!explained[at] && !side_.dropped(key))
        fail_unexplained(place_, checkpoint_.metadata.tensors[at].name, names_, model_, map_names_);
  }

  /// The Error where this name is there behind a prefix that other keys have too.
  void fail_behind_prefix(DistView::Table const& table, StoredName const& name) const {
    std::set<std::string> prefixes;
    for (auto const& [key, at] : table)
      if (key.ends_with("." + name.name))
        prefixes.insert(key.substr(0, key.size() - name.name.size()));
    if (prefixes.empty()) return;
    std::string const& prefix = *prefixes.begin();
    auto const behind =
        static_cast<std::size_t>(std::count_if(table.begin(), table.end(), [&](auto const& item) {
          return item.first.starts_with(prefix);
        }));
    fail(
        ErrorKind::source,
        "{}: '{}' is there as '{}{}', and {} of {} keys begin with '{}'. Set source.prefix = \"{}\"{}.",
        place_, name.name, prefix, name.name, behind, table.size(), prefix, prefix,
        behind == table.size()
            ? ""
            : "; the other keys are no part of what the map describes, and model.unmapped = \"drop\" leaves them out");
  }

  void add_tensor(StoredName const& name, dcp::StoredTensor const& tensor,
                  std::size_t first_tensor) {
    check_stored(place_, tensor.name, tensor.dtype, tensor.shape, side_.shape(name), side_,
                 name.entry, model_);
    dcp::Metadata const& metadata = checkpoint_.metadata;
    for (std::size_t c = tensor.first_chunk; c < tensor.first_chunk + tensor.chunk_count; ++c) {
      dcp::Chunk const& chunk = metadata.chunks[c];
      auto const begin = metadata.offsets(chunk);
      auto const sizes = metadata.sizes(chunk);
      std::vector<Index> end(begin.begin(), begin.end());
      for (std::size_t d = 0; d < end.size(); ++d) end[d] += sizes[d];
      std::vector<Piece> pieces = side_.box_pieces(name, begin, end);
      if (auto const strides = checkpoint_.strides.find(c); strides != checkpoint_.strides.end())
        restride(pieces, {sizes.begin(), sizes.end()}, strides->second);
      for (Piece& piece : pieces) piece.tensor += narrow<int>(first_tensor);
      catalog_.add(
          {chunk.item.file, checkpoint_.payload_offset_bytes[c], tensor.dtype, tensor.name},
          std::move(pieces), name.copy);
    }
  }

  Model& model_;
  Side const& side_;
  DcpCheckpoint const& checkpoint_;
  DistView const& view_;
  std::string map_names_;
  std::string place_;
  std::vector<StoredName> names_;
  Catalog catalog_;
};

}  // namespace

std::string state_prefix(std::string_view state) {
  return fmt::format("{}{}.", dist_states, state);
}

DistView look_at(DcpCheckpoint const& checkpoint, std::string const& prefix) {
  DistView view;
  view.traits.mtp_block = "mtp_model_layer";
  std::string const cut = prefix.empty() ? found_prefix(checkpoint) : prefix;
  auto const& tensors = checkpoint.metadata.tensors;
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    std::string const& key = tensors[t].name;
    if (auto state = state_key(key, checkpoint.flavour)) {
      if (checkpoint.flattened && state->state == "fp32_param")
        state->state = "param";  // its name in fully_reshardable
      auto const at = static_cast<std::size_t>(
          std::find(view.states.begin(), view.states.end(), state->state) - view.states.begin());
      if (at == view.states.size()) {
        view.states.push_back(state->state);
        view.state_tables.emplace_back();
      }
      bool const behind = !prefix.empty() && state->weight.starts_with(prefix);
      view.state_tables[at].emplace(behind ? state->weight.substr(prefix.size()) : state->weight,
                                    t);
    } else if (checkpoint.flavour != dcp::Flavour::plain &&
               without_chain(key).starts_with("optimizer")) {
      view.fixed_state.push_back(key);
    } else if (key.starts_with(cut)) {
      std::string name = key.substr(cut.size());
      note_traits(view, name, tensors[t]);
      view.weights.emplace(std::move(name), t);
    } else if (prefix.empty()) {
      view.weights.emplace(key, t);  // nothing will explain it, and the user hears of it
    } else {
      view.unread.push_back(key);
    }
  }
  return view;
}

Catalog dist_catalog(Model& model, Side const& side, DcpCheckpoint const& checkpoint,
                     DistView const& view, std::vector<std::string> const& files,
                     std::vector<int> const& may_lack, std::string const& map_names) {
  return DistCollector(model, side, checkpoint, view, map_names).run(files, may_lack);
}

}  // namespace reshard
